"""Kernels that keep declared secrets, against every sequence and every outcome of small chains.

Nothing of the filters and accounts is used to check them: sequences are listed, automata are read along each of them,
and what releases reveal follows from the integer tables.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import seqveil as sv
from reference.secrets import Enumerated, random_model, typed_model
from seqveil.core.alphabet import WITHHELD
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets.pools import IMPOSSIBLE
from seqveil.core.secrets.solving import released
from seqveil.engine import packing, stream
from seqveil.engine.secrets import dial_of, guarded_table
from seqveil.engine.store import SecretAccount
from seqveil.engine.stream import State, step
from seqveil.engine.streams import CodeStreams
from seqveil.receiver.audit import Audit

LENGTH = 4
ever, always, count, pattern = sv.secrets.ever, sv.secrets.always, sv.secrets.count, sv.secrets.pattern
CASES = {
    "first": [ever(1, epsilon=0.5, window="first 4")],
    "windows": [ever(1, epsilon=0.5, window=2)],
    "events": [ever(0, epsilon=0.7, window="event")],
    "stream": [ever(1, epsilon=0.5)],
    "one side": [ever(1, epsilon=0.5, window="first 3", one_sided=True)],
    "three states": [count(1, 2, epsilon=0.4, window="first 4")],
    "overlapping": [ever(1, epsilon=0.5, window="first 2"), ever(1, epsilon=0.5, window="first 4")],
    "two": [ever(0, epsilon=1.0, window=2), ever(1, epsilon=0.5, window=3)],
    "joint": [sv.secrets.joint(ever(0, epsilon=0.9, window=2), ever(1, epsilon=0.9, window=2))],
}


class Listed:
    """All sequences of a chain with their probabilities, and where the automata stand along each."""

    def __init__(self, model, secrets):
        every, self.n = Enumerated(model, LENGTH), model.n
        self.words, self.chances = every.array, every.distribution
        self.rows = np.zeros(self.words.shape, np.int64)
        for secret in secrets:
            compiled = secret.over(model.alphabet)
            length, machine = compiled.length or LENGTH, compiled.automaton
            for k, word in enumerate(self.words):
                state = 0
                for t, x in enumerate(word.tolist()):
                    inside = secret.repeats or t < length
                    state = int(machine.moves[0 if t % length == 0 else state, x]) if inside else 0
                    self.rows[k, t] = self.rows[k, t] * machine.size + state

    def windows(self, model, secret):
        """For each window its answers, the event it ends with, and whether it is promised afterwards too."""
        compiled = secret.over(model.alphabet)
        if secret.window is None:
            spans = [(0, last, False) for last in range(1, LENGTH + 1)]
        elif secret.repeats:
            spans = [(at, at + compiled.length, True) for at in range(0, LENGTH - compiled.length + 1, compiled.length)]
        else:
            spans = [(0, compiled.length, True)]
        return [(np.array([compiled.read(word[first:last]) for word in self.words]), first, last, good)
                for first, last, good in spans]  # fmt: skip


def outcomes(setting, listed, steps=LENGTH, beside=None):
    """Every outcome of every length: the state after it, Pr(y | sequence), its table's last column by source, and the
    accounts `beside` those of the state."""
    paths, rows, n = [(State.start(setting), np.ones(len(listed.words)), beside)], dial_of(setting).rows, listed.n
    for t in range(steps):
        at, further = listed.rows[:, t] % rows * n + listed.words[:, t], []
        for state, chance, account in paths:
            table = guarded_table(setting, state.trackers[0])
            assert table.dials(dial_of(setting))
            for place, code in enumerate(table.outputs.tolist()):
                column = np.asarray(table.column(place))
                wide = np.tile(column, rows * n // column.size)
                if not (chance * wide[at] * listed.chances).any():
                    continue
                seen, after = stream.observe(setting, state, np.array([code]))
                assert (seen.remembered[0] == wide).all()  # the table that is shown is the one that is drawn from
                after_it = None if account is None else account.observe(wide)
                further.append((after, chance * wide[at] / 2.0**62, wide, after_it))
        paths = [(state, chance, account) for state, chance, _, account in further]
        yield t, further


def odds(listed, values, chance):
    """log Pr(y | yes) / Pr(y | no); of more than two values the largest ratio between any two that can be."""
    prior = np.bincount(values, listed.chances)
    both = np.bincount(values, listed.chances * chance)[prior > 0] / prior[prior > 0]
    with np.errstate(divide="ignore"):
        return float(np.log(both[1] / both[0]) if prior.size == 2 else np.log(both.max() / both.min()))


@pytest.mark.parametrize(
    "dial", [pytest.param(0.0, marks=pytest.mark.slow), 0.5, pytest.param(math.inf, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("case", CASES)
def test_no_outcome_moves_the_odds_further_than_promised(case, dial, longest):
    longest(6)
    rng, secrets = np.random.default_rng(len(case)), CASES[case]
    for model in (random_model(rng, 2), typed_model(rng, 2, 2)):
        setting, listed = sv.Policy(secrets=secrets, side_information=dial).on(model), Listed(model, secrets)
        assert bool(setting.remembered) == (dial > 0 and case != "events")  # where the symbol says all
        windows = [(secret, *window) for secret in secrets for window in listed.windows(model, secret)]
        for t, found in outcomes(setting, listed):
            for state, chance, *_ in found:
                for secret, values, _, last, for_good in windows:
                    if for_good or t < last:
                        moved = odds(listed, values, chance)
                        assert (moved if secret.one_sided else abs(moved)) <= secret.epsilon
                for secret, tracker in zip(secrets, state.trackers[0].rows[0], strict=True):
                    exact = {first: odds(listed, values, chance) for one, values, first, last, good in windows
                             if one is secret and (good or last == t + 1)}  # fmt: skip
                    if tracker.latest.first in exact and tracker.latest.events + tracker.latest.first <= LENGTH:
                        assert tracker.latest.log_odds == pytest.approx(exact[tracker.latest.first], abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("dial", [0.5, math.inf])
@pytest.mark.parametrize("other", [ever(0, epsilon=None, window="first 4"), ever(0, epsilon=None, window=2),
                                   count(1, 2, epsilon=None, window="first 3")])  # fmt: skip
def test_the_account_of_another_secret_than_the_one_kept_with_memory_is_exact(other, dial, longest):
    """What an audit measures, and does not promise: for every outcome of every length, against all sequences."""
    longest(6)
    rng, kept = np.random.default_rng(5), ever(1, epsilon=0.5, window="first 4")
    for model in (random_model(rng, 2), typed_model(rng, 2, 2)):
        setting, listed = sv.Policy(secrets=kept, side_information=dial).on(model), Listed(model, [kept])
        windows = {first: values for values, first, _, _ in listed.windows(model, other)}
        begun, compared = sv.secrets.SecretTrackers.start(model, other, memory=setting.remembered), 0
        for _, found in outcomes(setting, listed, beside=begun):
            for _, chance, _, account in found:
                latest = account.rows[0][0].latest
                assert latest.log_odds == pytest.approx(odds(listed, windows[latest.first], chance), abs=1e-9)
                compared += 1
        assert compared > 10


def test_accounts_that_do_not_fit_the_terms_are_refused_before_compiled_code_reads_them():
    model, secret = random_model(np.random.default_rng(1), 3), ever(1, epsilon=0.5, window="first 4")
    setting = sv.Policy(secrets=secret).on(model)
    with pytest.raises(sv.SeqveilError, match="over 3 sources, and the terms ask for 6"):
        guarded_table(setting, sv.secrets.SecretTrackers.start(model, secret, kept=True))
    with pytest.raises(sv.SeqveilError, match=r"must hold 3 numbers Q.*, or 6"):
        setting.trackers.users.observe(np.ones((1, 4)))
    for code in (-2, 3):  # no symbol
        status, _, _ = released(setting.trackers.users, dial_of(setting), None, None, np.array([code]))
        assert status.tolist() == [IMPOSSIBLE]


@pytest.mark.slow
def test_an_epsilon_beside_remembered_secrets_holds_for_every_row():
    rng = np.random.default_rng(4)
    model, secret = random_model(rng, 3), ever(1, epsilon=0.5, window="first 3")
    setting = sv.Policy(epsilon=0.8, secrets=secret, side_information=math.inf).on(model)
    listed = Listed(model, [secret])
    values = listed.windows(model, secret)[0][0]
    for t, found in outcomes(setting, listed):
        for state, chance, *_ in found:
            assert abs(odds(listed, values, chance)) <= 0.5
            whole = float(listed.chances @ chance)
            lifts = np.log(chance[listed.chances > 0] / whole)
            assert np.abs(lifts).max() <= 0.8 * (t + 1) + 1e-12
            assert state.account.worst[0] + 1e-12 >= np.abs(lifts).max()


@pytest.mark.slow
@pytest.mark.parametrize("dial", [0.0, 0.3, 2.0])
def test_the_release_of_an_event_adds_at_most_the_dial_for_somebody_who_knows_it(dial):
    """By enumeration: the odds of the secret given the true event and all earlier releases, before and after."""
    rng = np.random.default_rng(6)
    model, secret = random_model(rng, 3), ever(1, epsilon=0.5, window="first 4")
    setting, listed = sv.Policy(secrets=secret, side_information=dial).on(model), Listed(model, [secret])
    values, most = listed.windows(model, secret)[0][0], 0.0
    for t, found in outcomes(setting, listed):
        for x in range(3):
            known = listed.words[:, t] == x
            for _, chance, wide, _ in found:
                own = wide[listed.rows[:, t] % dial_of(setting).rows * 3 + listed.words[:, t]] / 2.0**62
                past = np.where(own > 0, chance / np.where(own > 0, own, 1.0), 0.0)
                sums = [np.bincount(values[known], (listed.chances * part)[known], 2) for part in (past, past * own)]
                if min(part.min() for part in sums) > 0:
                    most = max(most, abs(math.log(sums[1][1] / sums[1][0] * sums[0][0] / sums[0][1])))
    assert 0.5 * dial <= most <= dial + 1e-12


def test_receivers_decode_by_what_was_remembered():
    """Filtered and smoothed posteriors of the true symbols, and the account of the whole, against all sequences."""
    holes = sv.MarkovModel([0.3, 0.3, 0.4], [[0.3, 0.7, 0.0], [0.0, 0.4, 0.6], [0.5, 0.0, 0.5]])
    secret = ever(1, epsilon=0.5, window="first 4")
    for model in (random_model(np.random.default_rng(2), 3), holes):
        setting, listed = sv.Policy(secrets=secret, side_information=math.inf).on(model), Listed(model, [secret])
        state, chance, outcome, possible = State.start(setting), listed.chances, [], listed.chances > 0
        for t, code in enumerate([0, 1, 1, 2]):
            seen, state = step(setting, state, np.array([code]), SeededRandomness(t))
            chance = chance * seen.remembered[0][listed.rows[:, t] * 3 + listed.words[:, t]] / 2.0**62
            outcome.append(int(seen.codes[0]))
            believed = np.bincount(listed.words[:, t], chance, 3) / chance.sum()
            assert seen.posterior[0] == pytest.approx(believed, abs=1e-9)
            lifts = (chance[possible] / listed.chances[possible]) / chance.sum()
            assert math.exp(state.account.least[0]) <= lifts.min() + 1e-12
            assert math.exp(state.account.most[0]) >= lifts.max() - 1e-12
        expected = [np.bincount(listed.words[:, t], chance, 3) / chance.sum() for t in range(LENGTH)]
        found = sv.decode_stream(model, outcome, setting.policy)
        assert np.asarray(found).reshape(LENGTH, 3) == pytest.approx(np.array(expected), abs=1e-9)


# random settings


def random_chain(rng, n):
    """Of order 1 or 2, with zeros, or of two types."""
    kind = rng.choice(["plain", "zeros", "order 2", "types"])
    if kind == "types":
        return typed_model(rng, 2, n)
    if kind != "zeros":
        return random_model(rng, n, 2 if kind == "order 2" else 1, float(rng.choice([0.3, 1.0, 5.0])))
    table = rng.dirichlet(np.ones(n), n + 1) * (rng.random((n + 1, n)) > 0.25)
    table[np.arange(n + 1), rng.integers(0, n, n + 1)] += 0.1
    table /= table.sum(1, keepdims=True)
    return sv.MarkovModel(table[0], table[1:])


def random_setting(rng):
    """Terms with one or two random secrets, and the models of all who observe."""
    n = int(rng.integers(2, 4))
    models, declared = [random_chain(rng, n), random_model(rng, n)][: 1 + int(rng.random() < 0.25)], []
    for _ in range(int(rng.integers(1, 3))):
        x, z = (int(v) for v in rng.integers(0, n, 2))
        how = {"epsilon": float(rng.choice([0.05, 0.3, 1.0, 2.5])), "one_sided": bool(rng.random() < 0.3)}
        how["window"] = [None, "event", 1, 2, 3, "first 2", "first 3"][rng.integers(0, 7)]
        kinds = [(ever, x), (always, [x, z]), (count, x, 2), (sv.secrets.followed_by, x, z)]
        make, *given = [*kinds, (pattern, f"{x} . {z}")][rng.integers(0, 5)]
        declared.append(make(*given, **how))
    more = [{}, {"withhold": True}, {"epsilon": 0.7}, {"distortion": "absolute"}][rng.integers(0, 4)]
    return sv.Policy(secrets=declared, observers=models[1:], **more).on(models[0]), models


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_random_settings_keep_every_promise(part, longest):
    """Not by one rounding above ε, over all outcomes, windows, secrets and observers; others are refused in a line."""
    longest(6)
    kept, refused = 0, ""
    for seed in range(1000 + 200 * part, 1100 + 200 * part):
        try:
            setting, models = random_setting(np.random.default_rng(seed))
        except sv.errors.InputError as error:
            refused += str(error)
            continue
        every = [Listed(model, setting.remembered) for model in models]
        windows = [(listed, secret, values, last if secret.window is None else LENGTH)
                   for listed, model in zip(every, models, strict=True) for secret in setting.secrets
                   for values, _, last, _ in listed.windows(model, secret)
                   if np.bincount(values, listed.chances, 2).min() > 1e-12]  # fmt: skip
        for t, found in outcomes(setting, every[0], 3):
            for _, chance, *_ in found:
                for listed, secret, values, until in windows:
                    if t < until and listed.chances @ chance > 0:
                        moved = odds(listed, values, chance)
                        assert (moved if secret.one_sided else abs(moved)) <= secret.epsilon, seed
        kept += 1
    assert kept >= 50
    assert "\n" not in refused


# streams that end inside a window


FEW = sv.MarkovModel([0.95, 0.05], [[0.7, 0.3], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("window", "size"), [(None, None), ("event", 1), (2, 2), (3, 3), ("first 3", 3), ("first 4", 4)]
)
def test_what_holds_wherever_a_stream_ends(window, size):
    """By enumeration: the odds of "in the events of its window that did come", if the stream ends after any outcome.

    Within ε where the window is whole, which the stream itself always is; a part of a window may pass it.
    """
    secret, parts = ever(1, epsilon=0.5, window=window), []
    listed, compiled = Listed(FEW, [secret]), secret.over(FEW.alphabet)
    for last, found in outcomes(sv.Policy(secrets=secret, side_information=0).on(FEW), listed):
        first = last // size * size if size and secret.repeats else 0
        until = min(last + 1, first + size) if size else last + 1
        values = np.array([compiled.read(word[first:until]) for word in listed.words])
        worst = max(abs(odds(listed, values, chance)) for _, chance, *_ in found)
        if size is None or until - first == size:
            assert worst <= 0.5, last
        else:
            parts.append(worst)
    assert max(parts, default=0.0) > 0.55 or window != "first 4"


# streams of many users, wherever they are kept

MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]])
KEPT = {
    "first": [ever(2, epsilon=0.4, window="first 4")],
    "tumbling": [
        ever(2, epsilon=0.5, window=2),
        always([0, 1], epsilon=0.9, window="event", one_sided=True),
    ],
    "until it ends": [ever(2, epsilon=0.5)],
    "joint": [sv.secrets.joint(ever(1, window=2, epsilon=1.0), ever(2, window=2, epsilon=1.0), epsilon=0.9)],
}


def terms_of(secrets, **more):
    return sv.Policy(secrets=secrets, mechanism="guarded", side_information=0, **more).on(MODEL)


@pytest.mark.parametrize("kind", ["memory", pytest.param("file", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KEPT)
def test_accounts_of_streams_are_those_of_the_steps_on_every_outcome(kind, name, tmp_path, monkeypatch):
    """Wherever streams are kept: a file is closed and opened again after every event."""
    setting = terms_of(KEPT[name])
    held = CodeStreams(setting)
    found = {(): stream.State.start(setting)}
    for _ in range(LENGTH):  # all releases that there can be, and where each leads
        found = {
            (*disclosed, code): stream.observe(setting, state, np.array([code]))[1]
            for disclosed, state in found.items()
            for code in guarded_table(setting, state.trackers[0]).outputs.tolist()
        }
    monkeypatch.setattr(
        stream, "step", lambda terms, state, codes, _, times: stream.observe(terms, state, codes, times)
    )
    for place in range(LENGTH):
        streams = held if kind == "memory" else CodeStreams.open(tmp_path / "s.db", setting)
        streams.release([str(codes) for codes in found], [codes[place] for codes in found])
        totals, accounts = streams.secrets(), {codes: streams.account(str(codes)).secrets for codes in found}
        if streams is not held:
            streams.close()
    for codes, state in found.items():
        assert accounts[codes] == tuple(map(SecretAccount.of, state.trackers[0].rows[0]))
    for total, secret in zip(totals, setting.secrets, strict=True):
        assert total.kept
        assert (total.name, total.epsilon, total.users) == (secret.name, secret.epsilon, len(found))
        assert total.sentence == secret.sentence


CHAINS = [random_model(np.random.default_rng(2), 3), typed_model(np.random.default_rng(3), 2, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("model", CHAINS, ids=["chain", "types"])
@pytest.mark.parametrize("more", [{}, {"withhold": True}, {"epsilon": 1.0}])
def test_accounts_come_back_to_the_last_bit(model, more):
    """The tables that follow from a packed account are those of one that was never packed."""
    secrets = [
        ever(1, epsilon=0.5, window=3),
        sv.secrets.joint(ever(0, window=2, epsilon=1.0), ever(1, window=2, epsilon=1.0), epsilon=0.7),
    ]
    observer = random_model(np.random.default_rng(7), model.n)
    setting = sv.Policy(secrets=secrets, observers=observer, side_information=0, **more).on(model)
    randomness, state = SeededRandomness(3), stream.State.start(setting)
    for code in model.sample(7, seed=2)[0]:
        _, state = stream.step(setting, state, np.array([code]), randomness)
        trackers = state.trackers[0]
        back = packing.restored_accounts(setting.trackers, packing.account_numbers(trackers))
        one, other = (guarded_table(setting, found) for found in (trackers, back))
        assert one.outputs.tolist() == other.outputs.tolist()
        places = range(one.outputs.size)
        assert all((one.column(place) == other.column(place)).all() for place in places)
        assert back.rows[0][0].worst == trackers.rows[0][0].worst


@pytest.mark.parametrize("memory", [1 << 28, 1])
def test_one_event_too_many_is_refused_before_anything_is_drawn(tmp_path, memory, longest):
    longest(LENGTH)
    setting = terms_of(KEPT["until it ends"])
    streams = CodeStreams(setting, memory=memory)
    streams.release(["ann"] * 3, [0, 0, 0])
    with pytest.raises(sv.errors.InputError, match="at most 4 events") as refused:
        streams.release(["bob", "ann", "ann"], [0, 0, 0])
    assert "\n" not in str(refused.value)
    assert streams.account("bob") is None
    assert streams.account("ann").events == 3
    streams.release(["bob", "ann"], [0, 0])
    with pytest.raises(sv.errors.InputError, match="at most 4 events"):
        Audit(setting).take(["ann"] * 5, np.zeros(5, np.int64))


def test_a_state_file_of_another_secret_is_refused(tmp_path):
    CodeStreams.open(tmp_path / "s.db", terms_of(KEPT["tumbling"])).close()
    with pytest.raises(sv.errors.InputError, match="another secret;"):
        CodeStreams.open(tmp_path / "s.db", terms_of(KEPT["first"]))


def test_a_receiver_decodes_what_was_withheld():
    secret = ever(2, epsilon=1.5, window="first 4")
    session = sv.Session(MODEL, mechanism="guarded", secrets=secret, withhold=True, seed=1)
    released = [session.release(symbol) for symbol in (0, 2, 1, 0)]
    assert None in released
    distributions = sv.decode_stream(MODEL, released, mechanism="guarded", secrets=secret, withhold=True, smooth=False)
    state = stream.State.start(session.setting)
    for value, distribution in zip(released, distributions, strict=True):
        code = WITHHELD if value is None else value
        seen, state = stream.observe(session.setting, state, np.array([code]))
        exact = seen.beliefs[0] * seen.columns[0]
        assert distribution == pytest.approx(exact / exact.sum())
    smooth = sv.decode_stream(MODEL, released, mechanism="guarded", secrets=secret, withhold=True)
    assert smooth[-1] == pytest.approx(distributions[-1])
