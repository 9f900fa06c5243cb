"""Another model is adopted: what was released is weighed by it, with the kernels it was drawn from."""

import math
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

import reference_streams as ref
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness, SeededRandomness
from seqveil.core.secrets import SecretTrackers, ever
from seqveil.engine import packing
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.store import Memory
from seqveil.engine.streams import CodeStreams, Streams
from seqveil.engine.upkeep import erase, verify
from seqveil.interfaces.cli import main

KEY = bytes(range(32))


def chain(seed, zeros=False, alphabet=None):
    """Prior and transitions of a chain with three symbols, and the model."""
    prior, moves = ref.random_chain(np.random.default_rng(seed), 3, 1, zeros)
    return prior, moves, MarkovModel(prior, moves, alphabet=alphabet)


def belief(prior, moves, columns):
    """Of the next symbol, by enumeration over all sequences."""
    found = np.zeros(len(prior))
    for x in product(range(len(prior)), repeat=len(columns) + 1):
        weight = prior[x[0]] * math.prod(moves[a, b] for a, b in pairwise(x))
        found[x[-1]] += weight * math.prod(column[symbol] for column, symbol in zip(columns, x, strict=False))
    return found / found.sum()


class Recorded(CodeStreams):
    """Streams in memory of one user, and the kernel column of each release as it was drawn."""

    def __init__(self, setting, seed, **more):
        self.columns = []
        super().__init__(setting, Memory(), SeededRandomness(seed), seen=self.note, **more)

    def note(self, _, released):
        self.columns.append(released.columns[0] / 2.0**62)

    def go(self, raw, **more):
        return [self.release(["ann"], [int(x)], **more).codes[0] for x in raw]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("budget", [None, Budget(total=1.5), Budget(per_window=1.2, releases=3)])
@pytest.mark.parametrize("seed", range(4))
def test_account_and_belief_are_those_of_the_new_model_by_enumeration(seed, zeros, budget):
    """Adopted twice, the second time after releases that were drawn with the first one adopted."""
    policy = Policy(epsilon=0.7, mechanism="optimal", budget=budget)
    models = [chain(10 * seed, zeros), chain(10 * seed + 1), chain(10 * seed + 2)]
    streams, raw = Recorded(policy.on(models[0][2]), seed), np.random.default_rng(seed).integers(0, 3, 7)
    streams.go(raw[:3])
    before = streams.account("ann")
    for count, (prior, moves, model) in zip((2, 1), models[1:], strict=True):
        assert streams.adopt(model).users == 1
        after = streams.account("ann")
        most, least = ref.sides(prior, moves, streams.columns)
        assert (after.most, after.least) == pytest.approx((most, least), abs=1e-9)
        assert (after.events, after.epsilon_spent, after.ldp) == (before.events, before.epsilon_spent, before.ldp)
        at = belief(prior, moves, streams.columns)
        streams.go(raw[:1])
        left = 0.7 if budget is None or budget.total is None else max(0.0, budget.total - after.leakage)
        if budget is not None and budget.releases is not None:  # what the window counts is the new model's too
            columns = streams.columns
            recent = [
                leaked(belief(prior, moves, columns[:k]), columns[k]) for k in (len(columns) - 3, len(columns) - 2)
            ]
            left = max(0.0, budget.per_window - sum(recent))
        # the next release keeps its ε under the new model
        assert leaked(at, streams.columns[-1]) <= min(0.7, left) + 1e-9
        if budget is not None and budget.total is not None and after.leakage <= budget.total:
            assert streams.account("ann").leakage <= budget.total + 1e-9
        streams.go(raw[: count - 1])
        before = streams.account("ann")


def test_a_belief_that_began_anew_would_break_the_promise():
    """At a true belief of .99 the kernel for .5 leaks 1.48 at ε = 1; after adopting, the belief is the true one."""
    policy, old = Policy(epsilon=1.0, mechanism="optimal"), MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]])
    streams = Recorded(policy.on(old), 1)
    streams.go([0])
    (column,) = streams.columns
    prior = np.array([1.0, 99.0]) * column[::-1]  # so that the release leaves a belief of .99 in what it speaks against
    new = MarkovModel(prior / prior.sum(), np.eye(2))
    at = belief(new.initial, np.eye(2), [column])
    assert at.max() == pytest.approx(0.99)
    fresh = Recorded(policy.on(MarkovModel([0.5, 0.5], np.eye(2))), 1)
    fresh.go([0])
    assert max(leaked(at, each) for each in (fresh.columns[0], fresh.columns[0][::-1])) == pytest.approx(
        1.482, abs=1e-3
    )
    streams.adopt(new)
    streams.go([0])
    assert leaked(at, streams.columns[-1]) <= 1.0 + 1e-9


def leaked(at, column):
    return np.abs(np.log(column / (at @ column))).max()


@pytest.mark.parametrize("small", [4096, 0], ids=["kept", "replayed"])
@pytest.mark.parametrize("policy", [
    Policy(epsilon=0.7, mechanism="balanced", budget=4.0),
    Policy(epsilon=0.7, mechanism="balanced", budget=Budget(per_window=1.2, seconds=2.5, when_spent="stop")),
    Policy(secrets=[ever(2, epsilon=0.6, window=4)], side_information=0),
], ids=["total", "window", "secrets"])  # fmt: skip
def test_a_file_goes_on_as_memory_does(tmp_path, monkeypatch, small, policy):
    """Restarted after each model, with gaps, with users who are not live, and with states that follow from releases."""
    monkeypatch.setattr(packing, "SMALL", small)
    models, users, rng = (
        [chain(seed)[2] for seed in (1, 2, 3)],
        [f"user {k}" for k in range(5)],
        np.random.default_rng(4),
    )
    twin = CodeStreams(policy.on(models[0]), randomness=KeyedRandomness.seeded(1), gaps="skip")
    path, seq, clock = tmp_path / "s.db", dict.fromkeys(users, 0), 0.0
    for k, model in enumerate(models):
        with opened(path, policy.on(model)) as streams:
            for _ in range(4):
                some, clock = [user for user in users if rng.random() < 0.7], clock + 1.0
                seqs = [seq[user] + max(0, int(rng.integers(-2, 3))) for user in some]
                seq |= {user: number + 1 for user, number in zip(some, seqs, strict=True)}
                call = some, rng.integers(0, 3, len(some)), seqs, [clock] * len(some) if twin.setting.timed else None
                assert streams.release(*call).codes.tolist() == twin.release(*call).codes.tolist()
            if k < 2:
                assert streams.adopt(models[k + 1]) == twin.adopt(models[k + 1])
            assert accounts(streams) == accounts(twin)
        assert verify(path).sound
    with pytest.raises(InputError, match="another model"):
        opened(path, policy.on(models[0]))


def opened(path, setting):
    return CodeStreams.open(path, setting, randomness=KeyedRandomness.seeded(1), gaps="skip", memory=300)


def accounts(streams):
    found = streams.accounts()
    names = ("events", "releases", "epsilon_spent", "most", "least", "ldp")
    figures = [getattr(found, name).tolist() for name in names]
    return found.users, figures, [streams.account(user).secrets for user in found.users]


def test_secrets_are_those_of_the_new_model():
    secret, (_, _, old), (_, _, new) = ever(2, epsilon=0.5, window=4), chain(5), chain(6)
    streams = Recorded(Policy(secrets=secret).on(old), 2)
    streams.go([0, 2, 1])
    streams.adopt(new)
    trackers = SecretTrackers(new, secret, kept=True)
    for column in streams.columns:
        trackers = trackers.observe(column)
    (found,), (true,) = streams.account("ann").secrets, trackers.worst()
    assert (found.prior, found.log_odds) == pytest.approx((true.prior, true.log_odds))
    room = max(0.5, found.worst)
    streams.go([2, 2, 0])
    assert streams.account("ann").secrets[0].worst <= room + 1e-9


def test_of_releases_that_were_erased_only_the_ldp_level_goes_on(tmp_path):
    """Of who came back since, and of who did not."""
    path, policy = tmp_path / "s.db", Policy(epsilon=0.4, mechanism="balanced", budget=4.0)
    old, new = policy.on(chain(1)[2]), policy.on(chain(2)[2])
    with CodeStreams.open(path, old, key=KEY) as streams:
        streams.release(["ann", "bob", "cy"] * 3, [0, 1, 2] * 3)
    erase(path, ["ann", "bob"], KEY)
    with CodeStreams.open(path, old, key=KEY) as streams:
        streams.release(["ann"], [0])
        before = [streams.account(user) for user in ("ann", "bob")]
        assert streams.adopt(new.model) == (2, 2, 0)
        after = [streams.account(user) for user in ("ann", "bob")]
        assert [(each.ldp, each.epsilon_spent) for each in after] == [(e.ldp, e.epsilon_spent) for e in before]
        assert 2.4 < after[0].leakage <= 3.2 + 1e-9  # three erased ones at 2ε, and one whose kernel is known
        assert after[1].leakage == pytest.approx(2.4)
    with CodeStreams.open(path, new, key=KEY) as streams:
        streams.release(["ann", "bob"] * 9, [0] * 18)
        assert max(streams.account(user).leakage for user in ("ann", "bob")) <= 4.0 + 1e-9
    assert verify(path).sound


def test_what_cannot_be_adopted_is_refused_in_one_line(tmp_path):
    _, _, model = chain(1)
    composed = Budget(total=5.0, over=50, delta=1e-6)
    for policy, store in (
        (Policy(epsilon=1.0, batch=2), Memory()),
        (Policy(epsilon=1.0), Memory(releases=False)),
        (Policy(budget=composed), Memory()),
    ):
        with pytest.raises(InputError, match="can be weighed by another model"):
            CodeStreams(policy.on(model), store).adopt(chain(2)[2])
    with Streams(model, epsilon=1.0) as streams:
        with pytest.raises(InputError, match="same values") as refused:
            streams.adopt(chain(2, alphabet=["a", "b", "c"])[2])
        assert "\n" not in str(refused.value)


def test_the_command(tmp_path, capsys):
    values, path, key = ["home", "work", "gym"], tmp_path / "s.db", tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    (_, _, old), (_, _, new) = chain(1, alphabet=values), chain(2, alphabet=values)
    new.save(tmp_path / "new")
    with Streams(old, epsilon=0.5, budget=0.6, store=path, key=KEY) as streams:
        streams.release(["ann", "ann", "bob"], ["home", "gym", "work"])
        twin = streams.account("ann")
    command = ["state", "adopt", str(path), "--model", str(tmp_path / "new")]
    assert main(command) == 2
    assert "no key is given" in capsys.readouterr().err
    assert main([*command, "--key", str(key)]) == 0
    assert "2 users go on with what they disclosed under this model" in capsys.readouterr().out
    with Streams(new, epsilon=0.5, budget=0.6, store=path, key=KEY) as streams:
        assert streams.account("ann").epsilon_spent == twin.epsilon_spent
        assert streams.release(["ann"], ["gym"]).seqs.tolist() == [2]


def test_receivers_are_not_let_to_weigh_by_one_model_what_two_have_drawn(tmp_path, monkeypatch, capsys):
    """Audited with the new model alone, releases of the old one would count as its own."""
    monkeypatch.chdir(tmp_path)
    values = ["home", "work", "gym"]
    old, new = (chain(seed, alphabet=values)[2] for seed in (3, 5))
    old.save("old")
    new.save("new")
    Policy(secrets=ever("gym", epsilon=0.2)).save("policy.toml")
    rows = [f"p{user},{values[code]}" for user, codes in enumerate(old.sample(10, 30, seed=1)) for code in codes]
    Path("raw.csv").write_text("user,value\n" + "\n".join(rows[:-30]) + "\n", encoding="utf-8")
    release = ["release", "raw.csv", "--policy", "policy.toml", "--state", "s.db", "--out", "out.csv"]
    assert main([*release, "--model", "old"]) == 0
    assert main(["audit", "out.csv", "--model", "old"]) in (0, 1)
    assert main(["state", "adopt", "s.db", "--model", "new"]) == 0
    with CodeStreams.open("s.db", Policy.load("policy.toml").on(new), must_exist=True) as streams:
        worst = streams.secrets()[0].log_odds_worst
    assert ("past its ε = 0.2" in capsys.readouterr().err) == (worst > 0.2)
    Path("raw.csv").write_text("user,value\n" + "\n".join(rows) + "\n", encoding="utf-8")
    assert main([*release, "--model", "new"]) == 0
    for command in (["audit"], ["decode", "--out", "decoded.csv"]):
        assert main([command[0], "out.csv", "--model", "new", *command[1:]]) == 2
        assert "after `seqveil state adopt`" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["release", "raw.csv", "--out", "out.csv"], ["serve", "--begin", "--no-auth"]])
def test_blocks_are_refused_before_a_state_file_is_made(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    chain(3, alphabet=["home", "work", "gym"])[2].save("m")
    Policy(epsilon=2.0, block=4).save("policy.toml")
    Path("raw.csv").write_text("user,value\nann,home\n", encoding="utf-8")
    assert main([*command, "--model", "m", "--policy", "policy.toml", "--state", "s.db"]) == 2
    assert "need a key" in capsys.readouterr().err
    assert not [each.name for each in tmp_path.iterdir() if each.name.startswith(("s.db", "out"))]


def test_who_was_erased_before_anything_was_disclosed_goes_on_at_zero(tmp_path):
    old, new = (chain(seed)[2] for seed in (3, 5))
    with CodeStreams.open(tmp_path / "s.db", Policy(epsilon=0.7, budget=1e-7).on(old)) as streams:
        streams.release(["bob"], [0])  # for which the budget allows nothing
        streams.release(["ann"], [0])
        streams.erase(["bob"])
        streams.adopt(new)
        assert streams.names() == ["ann"]
    assert verify(tmp_path / "s.db").sound
