"""States and streams: every user exactly as in a session of its own, whoever else is there or was put aside."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import seqveil as sv
from reference import streams as ref
from seqveil.core.errors import InputError, UnknownSymbol
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness, SeededRandomness
from seqveil.core.secrets import ever
from seqveil.engine import stream
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.store import StoreError
from seqveil.engine.streams import CodeStreams, Streams
from seqveil.engine.upkeep import verify
from seqveil.interfaces.cli import main


def test_an_empty_chunk_is_nothing():
    assert len(CodeStreams(POLICY.on(MODEL)).release([], np.zeros(0, np.int64))) == 0


# by value, as `seqveil.Streams` shows them


NAMES = ["home", "work", "gym"]
MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.4, 0.3, 0.3]], alphabet=NAMES)
NUMBERS = sv.MarkovModel([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.4, 0.3, 0.3]], alphabet=[1, 2, 0])
POLICY = sv.Policy(epsilon=1.0, budget=sv.Budget(total=6.0))
KEY = bytes(range(32))
USERS = ["ann", "bob", "ann", "ann"]


@pytest.mark.parametrize("model", [MODEL, NUMBERS], ids=["names", "numbers that are codes too"])
def test_values_go_in_and_come_out_as_the_codes_behind_them_do(model, tmp_path):
    codes = np.array([0, 1, 2, 0])
    with sv.Streams(model, POLICY, store=tmp_path / "a.db", key=KEY) as streams:
        made = streams.release(USERS, model.alphabet.decode(codes))
        assert set(made.values) <= set(model.alphabet.values)
        assert made.values == model.alphabet.decode(made.codes)
        again = streams.release(["ann"], model.alphabet.decode([1]), seqs=[0])
        assert (again.values, again.replayed.tolist()) == (made.values[:1], [True])
        kept = streams.releases("ann")
        assert [each.value for each in kept] == [made.values[k] for k in (0, 2, 3)]
        assert [(each.seq, each.status, each.epsilon) for each in kept] == [(k, "released", 1.0) for k in range(3)]
    with sv.Streams(model, POLICY, store=tmp_path / "a.db", key=KEY, must_exist=True) as streams:
        assert streams.next_seqs(["ann", "bob", "new"]).tolist() == [3, 1, 0]
        assert [each.value for each in streams.releases("ann")] == [each.value for each in kept]


def test_batches_are_lists_of_values():
    streams = sv.Streams(MODEL, epsilon=3.0, batch=3, seed=1)
    made = streams.release(["ann", "bob"], [["home", "home", "work"], ["gym"]])
    assert [len(values) for values in made.values] == [3, 1]
    assert not streams.private
    assert streams.releases("bob")[0].values == tuple(made.values[1])


def test_a_stream_has_the_releases_of_a_session():
    session = sv.Session(MODEL, POLICY, seed=7)
    streams = sv.Streams(MODEL, POLICY, seed=7)
    for value in ("home", "gym", "work", "home"):
        assert streams.release(["ann"], [value]).values == [session.release(value)]
    assert streams.account("ann").sentence == session.account.sentence


def test_what_is_wrong_is_refused_before_anything_is_drawn(tmp_path):
    streams = sv.Streams(MODEL, POLICY, store=tmp_path / "s.db")
    with pytest.raises(UnknownSymbol):
        streams.release(["ann", "ann"], ["home", "moon"])
    assert streams.account("ann") is None
    streams.close()


WHOLE = {"int": 7, "numpy": np.int64(7), "small": np.uint8(7)}


@pytest.mark.slow
@pytest.mark.parametrize("seven", WHOLE.values(), ids=WHOLE)
def test_a_whole_number_and_its_digits_are_one_user_of_a_store(tmp_path, seven):
    setting = Policy(epsilon=1.0, budget=1.0, mechanism="optimal").on(MODEL)
    with CodeStreams.open(tmp_path / "s.db", setting, key=KEY) as store:
        first = store.release([seven], [1], [0])
        again = store.release(["7"], [2], [0])
        assert again.replayed.tolist() == [True]
        assert again.codes.tolist() == first.codes.tolist()
        store.release(["7", seven] * 20, [1] * 40, range(1, 41))
        assert store.account(seven) == store.account("7")
        assert store.account("7").leakage <= 1.0 + 2.0**-31
        assert store.next_seqs([seven, "7"]).tolist() == [41, 41]
        assert len(store.releases(seven)) == len(store.releases("7")) == 41
        assert store.accounts().users == ["7"]


@pytest.mark.parametrize("wrong", [True, 7.0, None, b"7", ("7",)])
def test_what_is_neither_text_nor_a_whole_number_is_refused(tmp_path, wrong):
    with pytest.raises(InputError, match="event 0: expected a user that is text or a whole number"):
        CodeStreams.open(tmp_path / "s.db", Policy(epsilon=0.5).on(MODEL)).release([wrong], [0], [0])


def test_accounts_in_memory_follow_the_same_rule():
    setting = Policy(epsilon=1.0, mechanism="optimal").on(MODEL)
    streams = CodeStreams(setting, randomness=SeededRandomness(1))
    streams.release([7, "7", np.int32(7)], np.array([0, 1, 2]))
    assert (streams.accounts().users, streams.accounts().events.tolist()) == (["7"], [3])
    keyed = KeyedRandomness(KEY)
    assert keyed.of([7], [3]).draw(1) == keyed.of(["7"], [3]).draw(1) != keyed.of(["007"], [3]).draw(1)


# another model is adopted: what was released is weighed by it, with the kernels it was drawn from


def chain(seed, zeros=False, alphabet=None):
    """Prior and transitions of a chain with three symbols, and the model."""
    prior, moves = ref.random_chain(np.random.default_rng(seed), 3, 1, zeros)
    return prior, moves, MarkovModel(prior, moves, alphabet=alphabet)


def belief(prior, moves, columns):
    """Of the next symbol, by enumeration over all sequences."""
    distribution = ref.sequence_distribution(prior, moves, len(columns) + 1)
    return ref.symbol_distribution(distribution, columns, len(columns), len(prior))


@pytest.fixture
def drawn(monkeypatch):
    """What each step of a test made public."""
    found, real = [], stream.step

    def step(*given):
        made, after = real(*given)
        found.append(made)
        return made, after

    monkeypatch.setattr(stream, "step", step)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("budget", [None, Budget(total=1.5), Budget(per_window=1.2, releases=3)])
@pytest.mark.parametrize("seed", range(4))
def test_account_and_belief_are_those_of_the_new_model_by_enumeration(tmp_path, drawn, seed, zeros, budget):
    """Adopted twice, the second time after releases that were drawn with the first one adopted."""
    policy = Policy(epsilon=0.7, mechanism="optimal", budget=budget)
    models = [chain(10 * seed, zeros), chain(10 * seed + 1), chain(10 * seed + 2)]
    streams = CodeStreams(policy.on(models[0][2]), tmp_path / "s.db", SeededRandomness(seed))
    raw = np.random.default_rng(seed).integers(0, 3, 7)

    def go(codes):
        for code in codes:
            streams.release(["ann"], [code])
        return [made.columns[0] for made in drawn]

    columns = go(raw[:3])
    before = streams.account("ann")
    for count, (prior, moves, model) in zip((2, 1), models[1:], strict=True):
        streams.adopt(model)
        after = streams.account("ann")
        sides = ref.sequence_leakage(ref.sequence_distribution(prior, moves, len(columns)), columns)
        assert (after.most, after.least) == pytest.approx(sides, abs=1e-9)
        assert (after.events, after.epsilon_spent, after.ldp) == (before.events, before.epsilon_spent, before.ldp)
        at, newest = belief(prior, moves, columns), go(raw[:1])[-1]
        left = 0.7 if budget is None or budget.total is None else max(0.0, budget.total - after.leakage)
        if budget is not None and budget.releases is not None:  # what the window counts is the new model's too
            two = range(len(columns) - 2, len(columns))
            recent = [leaked(belief(prior, moves, columns[:k]), columns[k]) for k in two]
            left = max(0.0, budget.per_window - sum(recent))
        # the next release keeps its ε under the new model
        assert leaked(at, newest) <= min(0.7, left) + 1e-9
        if budget is not None and budget.total is not None and after.leakage <= budget.total:
            assert streams.account("ann").leakage <= budget.total + 1e-9
        columns = go(raw[: count - 1])
        before = streams.account("ann")


def leaked(at, column):
    return np.abs(np.log(column / (at @ column))).max()


@pytest.mark.slow
@pytest.mark.parametrize("policy", [
    Policy(epsilon=0.7, mechanism="balanced", budget=4.0),
    Policy(epsilon=0.7, mechanism="balanced", budget=Budget(per_window=1.2, seconds=2.5, when_spent="stop")),
    Policy(secrets=[ever(2, epsilon=0.6, window=4)], side_information=0),
], ids=["total", "window", "secrets"])  # fmt: skip
def test_a_file_that_is_opened_again_goes_on_as_one_that_stays_open(tmp_path, policy):
    """Restarted after each model, with gaps, and with users who are not live."""
    models, users, rng = (
        [chain(seed)[2] for seed in (1, 2, 3)],
        [f"user {k}" for k in range(5)],
        np.random.default_rng(4),
    )
    twin = opened(tmp_path / "twin.db", policy.on(models[0]), 1 << 20)
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
                streams.adopt(models[k + 1])
                twin.adopt(models[k + 1])
            assert accounts(streams) == accounts(twin)
        assert verify(path).sound
    with pytest.raises(InputError, match="another model"):
        opened(path, policy.on(models[0]))


def opened(path, setting, memory=300):
    return CodeStreams.open(path, setting, randomness=KeyedRandomness.seeded(1), gaps="skip", memory=memory)


def accounts(streams):
    found = streams.accounts()
    names = ("events", "releases", "epsilon_spent", "most", "least", "ldp")
    figures = [getattr(found, name).tolist() for name in names]
    return found.users, figures, [streams.account(user).secrets for user in found.users]


@pytest.mark.slow
@pytest.mark.parametrize("side", [None, 0.0], ids=["by memory", "by symbol"])
@pytest.mark.parametrize("seed", range(4))
def test_secrets_are_those_of_the_new_model_by_enumeration(tmp_path, drawn, seed, side):
    """Adopted twice; kernels that go by what is remembered of the raw stream are weighed as such."""
    secret, models = ever(2, epsilon=0.8, window="first 5"), [chain(seed + k) for k in (5, 6, 7)]
    setting = Policy(secrets=secret, side_information=side).on(models[0][2])
    streams = CodeStreams(setting, tmp_path / "s.db", key=KEY)
    for k, raw in enumerate(([0, 2], [1, 2])):
        streams.release(["ann", "ann"], raw)
        streams.adopt(models[k + 1][2])
    columns = [made.remembered.reshape(-1, 3) / 2**62 for made in drawn]
    (prior, moves, _), likely, mass = models[2], np.zeros(2), np.zeros(2)
    for raw in itertools.product(range(3), repeat=5):
        chance = prior[raw[0]] * np.prod([moves[x, y] for x, y in itertools.pairwise(raw)])
        rows = [column[(2 in raw[: t + 1]) * (len(column) > 1)] for t, column in enumerate(columns)]
        mass[int(2 in raw)] += chance
        likely[int(2 in raw)] += chance * np.prod([row[x] for row, x in zip(rows, raw, strict=False)])
    without, with_it = np.log(likely / mass)
    (found,) = streams.account("ann").secrets
    assert (found.prior, found.log_odds) == pytest.approx((mass[1], with_it - without))
    assert [len(column) for column in columns] == [1 if side == 0 else 2] * 4


@pytest.mark.slow
def test_who_is_past_a_secret_under_the_new_model_is_shown(tmp_path, capsys):
    """Under a chain that never moves, releases that said little about a trait say more: by the account of each user."""
    secret = ever(2, epsilon=0.3)
    (_, _, old), (prior, moves, _) = chain(5), chain(6)
    still = MarkovModel(prior, 0.98 * np.eye(3) + 0.02 * moves)
    with CodeStreams.open(tmp_path / "s.db", Policy(secrets=secret).on(old), key=KEY) as streams:
        users = [f"user {k}" for k in range(20)]
        for raw in old.sample(6, 20, seed=1).T:
            streams.release(users, raw)
        streams.adopt(still)
        worst = {user: streams.account(user).secrets[0].worst for user in users}
    assert main(["state", "account", str(tmp_path / "s.db"), "--json"]) == 0
    shown = {row["user"]: row["secrets"][0] for row in json.loads(capsys.readouterr().out)}
    assert {user: own["worst"] for user, own in shown.items()} == worst
    assert main(["state", "account", str(tmp_path / "s.db"), "--user", "user 3"]) == 0
    assert f"{worst['user 3']:.6g} of 0.3" in capsys.readouterr().out


def test_what_cannot_be_adopted_is_refused_in_one_line(tmp_path):
    _, _, model = chain(1)
    composed = Budget(total=5.0, over=50, delta=1e-6)
    with pytest.raises(InputError, match="only from a state file"):
        CodeStreams(Policy(epsilon=1.0).on(model)).adopt(chain(2)[2])
    for name, policy in (("batches", Policy(epsilon=1.0, batch=2)), ("composed", Policy(budget=composed))):
        with pytest.raises(InputError, match="can be weighed by another model"):
            CodeStreams(policy.on(model), tmp_path / name).adopt(chain(2)[2])
    with Streams(model, epsilon=1.0, store=tmp_path / "s.db") as streams:
        with pytest.raises(InputError, match="same values") as refused:
            streams.adopt(chain(2, alphabet=["a", "b", "c"])[2])
        assert "\n" not in str(refused.value)
        with pytest.raises(InputError, match="expected a MarkovModel"):
            streams.adopt("model.json")
    with pytest.raises(StoreError, match="closed"):
        streams.adopt(chain(2)[2])


@pytest.mark.slow
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


def test_a_model_is_adopted_beside_who_was_erased(tmp_path):
    old, new = (chain(seed)[2] for seed in (3, 5))
    with CodeStreams.open(tmp_path / "s.db", Policy(epsilon=0.7, budget=1e-7).on(old)) as streams:
        streams.release(["bob"], [0])  # for which the budget allows nothing
        streams.release(["ann"], [0])
        streams.erase(["bob"])
        streams.adopt(new)
        assert streams.names() == ["ann"]
    assert verify(tmp_path / "s.db").sound
