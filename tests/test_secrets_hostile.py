"""Random settings against an enumeration that shares nothing with the package but the kernels' integers.

A setting is made of plain arrays and plain rules over words; every outcome that the released kernels can make is
followed, and the odds of every window are compared with the promise. Nothing may be above ε, not by one rounding.
"""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import seqveil as sv
from seqveil.engine import stream
from seqveil.engine.streams import CodeStreams


class Chain:
    """A random distribution of words: of order 1 or 2, with or without zeros, or a mixture of two chains."""

    def __init__(self, rng, n, kind):
        def distribution(rows, zeros):
            table = rng.dirichlet(np.full(n, rng.choice([0.3, 1.0, 5.0])), rows)
            if zeros:
                table[rng.random(table.shape) < 0.25] = 0.0
                table[np.arange(rows), rng.integers(0, n, rows)] += 0.1
            return table / table.sum(1, keepdims=True)

        self.n, self.kind = n, kind
        zeros = kind == "zeros"
        self.parts = [(distribution(1, zeros)[0], distribution(n, zeros)) for _ in range(2 if kind == "mixture" else 1)]
        self.shares = rng.dirichlet([2.0, 2.0]) if kind == "mixture" else np.ones(1)
        self.rows = distribution(n * n, False) if kind == "order 2" else None
        models = [sv.MarkovModel(first, steps) for first, steps in self.parts]
        self.model = models[0] if len(models) == 1 else sv.MarkovModel.mixture(models, self.shares)
        if self.rows is not None:
            first, steps = self.parts[0]
            self.model = sv.MarkovModel(first[:, None] * steps, self.rows, order=2)

    def distribution(self, words):
        total = np.zeros(len(words))
        for share, (first, steps) in zip(self.shares, self.parts, strict=True):
            mass = share * first[words[:, 0]]
            for k in range(1, words.shape[1]):
                if k > 1 and self.rows is not None:
                    mass = mass * self.rows[words[:, k - 2] * self.n + words[:, k - 1], words[:, k]]
                else:
                    mass = mass * steps[words[:, k - 1], words[:, k]]
            total += mass
        return total


def random_rule(rng, n):
    """A secret of the package, and the same as a rule over a word, written anew."""
    x, z = (int(v) for v in rng.integers(0, n, 2))
    kind = rng.choice(["ever", "always", "count", "followed_by", "pattern"])
    made = {
        "ever": (lambda **how: sv.secrets.ever(x, **how), lambda w: x in w),
        "always": (lambda **how: sv.secrets.always([x, z], **how), lambda w: all(v in (x, z) for v in w)),
        "count": (lambda **how: sv.secrets.count(x, 2, **how), lambda w: list(w).count(x) >= 2),
        "followed_by": (
            lambda **how: sv.secrets.followed_by(x, z, **how),
            lambda w: any(w[i] == x and z in w[i + 1 :] for i in range(len(w))),
        ),
        "pattern": (
            lambda **how: sv.secrets.pattern(f"{x} . {z}", **how),
            lambda w: any(w[i] == x and w[i + 2] == z for i in range(len(w) - 2)),
        ),
    }
    return made[kind]


def windows_of(window, steps, length):
    """First and last event of every window, and until when the promise about it is looked at."""
    if window is None:
        return [(0, end, end) for end in range(1, steps + 1)]
    if isinstance(window, str) and window.startswith("first"):
        return [(0, int(window.split()[1]), steps)]
    size = 1 if window == "event" else window
    return [(begin, begin + size, steps) for begin in range(0, length - size + 1, size)]


def random_setting(rng, steps):
    n = int(rng.integers(2, 4))
    chain = Chain(rng, n, rng.choice(["plain", "zeros", "order 2", "mixture"]))
    others = [Chain(rng, n, "plain")] if rng.random() < 0.25 else []
    rules = []
    for _ in range(int(rng.integers(1, 3))):
        make, rule = random_rule(rng, n)
        window = [None, "event", 1, 2, 3, "first 2", "first 3"][rng.integers(0, 7)]
        sides = "both" if rng.random() < 0.7 else "up"
        epsilon = float(rng.choice([0.05, 0.3, 1.0, 2.5]))
        rules.append((make(epsilon=epsilon, window=window, one_sided=sides == "up"), rule, window))
    how = [{}, {"withhold": True}, {"epsilon": 0.7}, {"distortion": "absolute"}]
    more = how[rng.integers(0, len(how))]
    declared = [secret for secret, _, _ in rules]
    made = sv.Policy(secrets=declared, observers=[other.model for other in others], **more).on(chain.model)
    return made, [chain, *others], rules


def worst_excess(setting, chains, rules, steps):
    """The largest log B - ε over every outcome, time, window, secret and observer."""
    n, length = chains[0].n, steps + 1
    if setting.trackers.limit is not None:
        steps = min(steps, setting.trackers.limit)
    words = np.array(list(itertools.product(range(n), repeat=length)))
    distributions = [chain.distribution(words) for chain in chains]
    sources, automata = words.copy(), setting.trackers.users.automata
    memory, width = np.zeros((len(words), len(setting.remembered)), np.int64), n * automata.size
    for t in range(length if setting.remembered else 0):
        memory = automata.read(memory, words[:, t], t)
        sources[:, t] += n * automata.row(memory)
    bounded = []
    for k, (secret, rule, window) in enumerate(rules):
        ends = [row[k].limit for row in setting.trackers.rows if row[k].limit is not None]
        reach = min([length, *ends])  # on a chain that does not forget, windows beyond the limit are not promised
        for begin, end, until in windows_of(window, steps, reach):
            holds = np.array([rule(tuple(word[begin:end])) for word in words.tolist()])
            bounded += [(distribution, holds, secret, until) for distribution in distributions]
    worst, outcomes = -np.inf, 0

    def follow(state, disclosed, t):
        nonlocal worst, outcomes
        outcomes += 1
        for distribution, holds, secret, until in bounded:
            prior, after = (distribution[holds].sum(), distribution[~holds].sum()), distribution * disclosed
            if not 0 < t <= until or min(prior) < 1e-12:
                continue
            yes, no = after[holds].sum() / prior[0], after[~holds].sum() / prior[1]
            if yes + no == 0:
                continue
            with np.errstate(divide="ignore"):
                odds = np.log(yes) - np.log(no)
            worst = max(worst, (odds if secret.sides == "up" else abs(odds)) - secret.epsilon)
        if t == steps:
            return
        table = sv.engine.secrets.guarded_table(setting, state.trackers[0])
        weights = table.full()
        assert (weights.sum(1) == 2**62).all()
        for place, code in enumerate(table.outputs.tolist()):
            column = np.resize(weights[:, place], width) / 2.0**62
            if column.any() and any(
                (distribution * disclosed * column[sources[:, t]]).sum() > 0 for distribution in distributions
            ):
                _, onward = stream.observe(setting, state, np.array([code]))
                follow(onward, disclosed * column[sources[:, t]], t + 1)

    follow(stream.State.start(setting), np.ones(len(words)), 0)
    return worst, outcomes


def tried(seeds, steps):
    """The worst excess over settings that can be kept; those that cannot are refused in one line."""
    worst, kept, lines = -np.inf, 0, []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        try:
            made = random_setting(rng, steps)
        except sv.errors.InputError as error:
            lines.append(str(error))
            continue
        excess, outcomes = worst_excess(*made, steps)
        assert outcomes > 1
        assert excess <= 0, f"seed {seed}: {excess}"
        worst, kept = max(worst, excess), kept + 1
    assert not any("\n" in line for line in lines)
    return worst, kept


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_random_settings_keep_every_promise(part, longest):
    longest(3)
    worst, kept = tried(range(1000 + 200 * part, 1120 + 200 * part), 3)
    assert kept >= 50
    assert worst <= 0


MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]])


def test_secrets_that_contradict_each_other_are_both_kept():
    """Never 2 and always 2: what keeps the one from moving keeps the other."""
    declared = [sv.secrets.ever(2, epsilon=0.2, window=3), sv.secrets.always(2, epsilon=0.2, window=3, one_sided=True)]
    declared += [sv.secrets.always([0, 1], epsilon=0.2, window=3)]
    session = sv.Session(MODEL, mechanism="guarded", secrets=declared, seed=1)
    for code in [2, 2, 2, 0, 1, 2]:
        session.release(code)
        assert all(tracker.worst.worst(tracker.secret.sides) <= 0.2 for tracker in session.trackers.rows[0])


def test_refusals_and_retries_draw_nothing_and_move_no_account():
    setting = sv.Policy(secrets=sv.secrets.ever(2, epsilon=0.3, window="first 4"), mechanism="guarded").on(MODEL)
    session = sv.Session(MODEL, mechanism="guarded", secrets=setting.secrets, seed=5)
    twin = sv.Session(MODEL, mechanism="guarded", secrets=setting.secrets, seed=5)
    for code in [0, 2, 1, 2, 2, 0]:
        for wrong in (7, "news", None, 1.5):
            before = session.trackers.rows[0][0].log_odds
            with pytest.raises(sv.errors.SeqveilError):
                session.release(wrong)
            assert session.trackers.rows[0][0].log_odds == before
        assert session.release(code) == twin.release(code)
    assert session.trackers.rows[0][0].log_odds == twin.trackers.rows[0][0].log_odds
    streams = CodeStreams(setting)
    first = streams.release(["u"], [2], seqs=[0])
    for _ in range(3):  # what was drawn is never drawn again
        again = streams.release(["u"], [0], seqs=[0])
        assert again.codes.tolist() == first.codes.tolist()
        with pytest.raises(sv.errors.SeqveilError):
            streams.release(["u"], [2], seqs=[5])
    assert abs(streams.account("u").secrets[0].log_odds) <= 0.3


def test_releases_from_several_threads_are_charged_one_by_one():
    """Whatever the order of threads, the account is that of the releases in the order they were made."""
    session = sv.Session(MODEL, mechanism="guarded", secrets=[sv.secrets.ever(2, epsilon=0.3, window=5)])
    setting = session.setting
    streams, released, failed = CodeStreams(setting), [], []

    def work(user):
        try:
            for k in range(10):
                streams.release([f"u{user}", "all"], [k % 3, 2])
                released.append(session.release(k % 3))
        except Exception as error:  # the test fails below, in the thread that can say so
            failed.append(error)

    threads = [threading.Thread(target=work, args=(user,)) for user in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(released) == 40
    assert session.trackers.rows[0][0].worst.worst() <= 0.3
    assert all(total.kept for total in streams.secrets())
    assert streams.secrets()[0].users == 5
    assert streams.account("all").events == 40
