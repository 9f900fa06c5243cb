"""Types of people from releases: EM against every type and sequence, cold starts, and drift with mixtures."""

import itertools
import json
import math

import numpy as np
import pytest

import reference_streams as streams
from reference_streams import Rows
from seqveil import MarkovModel, Setting
from seqveil.coldstart import ColdStart, Points, Receiver, Version, VersionedStreams, Versions, first_version
from seqveil.core.alphabet import Alphabet
from seqveil.core.coins import KeyedCoins, SeededCoins
from seqveil.core.errors import InputError
from seqveil.engine import stream
from seqveil.engine.streams import Streams
from seqveil.interfaces.cli import main
from seqveil.receiver.drift import Drift, mean_chain, rivals_of
from seqveil.receiver.learn import Chain, Evidence, learn, likelihoods, region
from seqveil.receiver.learn.expected import expect_types
from seqveil.receiver.learn.types import Types, climb_types, one_round
from seqveil.receiver.upgrade import evidence_of as evidence_in
from seqveil.receiver.upgrade import upgrade

CALM = MarkovModel([0.4, 0.3, 0.3], 0.9 * np.eye(3) + 0.1 / 3)
LIVELY = MarkovModel([0.4, 0.3, 0.3], 0.1 * np.eye(3) + 0.9 / 3)
BOTH = MarkovModel.mixture([CALM, LIVELY], [0.5, 0.5], 1e-4)


def random_types(seed, count=2, n=3):
    rng = np.random.default_rng(seed)
    chains = [Chain(rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n), size=n)) for _ in range(count)]
    lengths = rng.integers(1, 5, size=6)
    users = rng.permutation(np.repeat(np.arange(lengths.size), lengths))
    table = rng.random((7, n)) + 0.01
    evidence = Evidence(table, users, rng.integers(0, len(table), users.size))
    return Types(rng.dirichlet(np.ones(count)), tuple(chains)), evidence


def by_all_sequences(types, evidence):
    """Expected users, firsts and moves of each type, and the log-likelihood: every type and every sequence."""
    n, count = evidence.n, len(types.chains)
    members, first, moves, total = np.zeros(count), np.zeros((count, n)), np.zeros((count, n, n)), 0.0
    for user in np.unique(evidence.users):
        says = evidence.table[evidence.index[evidence.users == user]]
        weights = {}
        for k, x in itertools.product(range(count), itertools.product(range(n), repeat=len(says))):
            chain = types.chains[k]
            weight = types.weights[k] * chain.first[x[0]] * math.prod(says[t][x[t]] for t in range(len(says)))
            weights[k, x] = weight * math.prod(chain.rows[a, b] for a, b in itertools.pairwise(x))
        whole = sum(weights.values())
        total += math.log(whole)
        for (k, x), weight in weights.items():
            members[k] += weight / whole
            first[k, x[0]] += weight / whole
            for a, b in itertools.pairwise(x):
                moves[k, a, b] += weight / whole
    return members, first, moves, total


@pytest.mark.parametrize("seed", range(5))
def test_a_round_of_em_is_that_of_all_types_and_sequences(seed):
    types, evidence = random_types(seed)
    members, first, moves, total = by_all_sequences(types, evidence)
    after, _ = one_round(evidence, types, types.chains, 0.5)
    assert expect_types(evidence, types.chains, types.weights)[2] == pytest.approx(total, abs=1e-10)
    np.testing.assert_allclose(after.weights, (members + 1) / (members + 1).sum(), atol=1e-10)
    for k, chain in enumerate(types.chains):
        want = moves[k] + 0.5 * chain.rows
        np.testing.assert_allclose(after.chains[k].rows, want / want.sum(1, keepdims=True), atol=1e-10)
        want = first[k] + 0.5 * chain.first
        np.testing.assert_allclose(after.chains[k].first, want / want.sum(), atol=1e-10)


@pytest.mark.slow
def test_likelihood_times_prior_never_falls():
    types, evidence = random_types(7)
    values = [climb_types(evidence, types, types.chains, 1.0, rounds).value for rounds in range(1, 12)]
    assert (np.diff(values) >= -1e-9).all()


def test_the_likelihood_of_a_mixture_is_that_of_its_types():
    types, evidence = random_types(3)
    models = [chain.model(Alphabet.codes(3)) for chain in types.chains]
    mixed = likelihoods(evidence, MarkovModel.mixture(models, types.weights))
    assert mixed.sum() == pytest.approx(by_all_sequences(types, evidence)[3], abs=1e-10)
    apart = np.stack([likelihoods(evidence, chain) for chain in types.chains])
    np.testing.assert_allclose(mixed, np.log(types.weights @ np.exp(apart)), atol=1e-10)


def released(setting, truth, seed=1):
    fleet, coins, rows = Rows(setting, len(truth)), SeededCoins(seed), np.arange(len(truth))
    return np.stack([fleet.release(rows, step, coins).codes for step in truth.T], axis=1)


def evidence_of(truth, epsilon=3.0):
    none = MarkovModel(np.full(3, 1 / 3), np.full((3, 3), 1 / 3))
    setting = Setting.of(none, "randomized_response", epsilon)
    return Evidence.of(setting, released(setting, truth))


@pytest.mark.slow
def test_types_are_found_where_there_are_some_and_not_where_there_are_none():
    evidence = evidence_of(BOTH.sample(30, 400, seed=5))
    found = learn(evidence, types=2)
    assert found.types is not None
    assert found.model.types == 2
    assert found.held_out.earned
    stay = sorted(np.diagonal(chain.rows).mean() for chain in found.types.chains)
    assert stay == pytest.approx([0.4, 0.93], abs=0.06)
    assert learn(evidence, types=2).model.fingerprint == found.model.fingerprint
    alike = learn(evidence_of(mean_chain(BOTH).sample(30, 400, seed=5)), types=2)
    assert alike.types is None
    assert alike.model.types == 1
    from_public = learn(evidence, start=BOTH)
    assert from_public.model.types == 2
    again = learn(evidence, types=2, rival=found.model)
    assert not again.held_out.earned  # the model in force already knows the types


@pytest.mark.slow
def test_what_cannot_be_learned_with_types_is_refused_or_left_a_chain():
    evidence = evidence_of(BOTH.sample(8, 12, seed=5))
    assert learn(evidence, types=2).types is None  # too few people to hold any out
    alone = evidence_of(BOTH.sample(50, 1, seed=5))
    assert learn(alone, types=4).model.types == 1
    for wrong in (0, 2.5, True):
        with pytest.raises(InputError, match="whole number"):
            learn(evidence, types=wrong)
    with pytest.raises(InputError, match="chains of order 1"):
        learn(evidence, order=2, types=2)
    with pytest.raises(InputError, match="chains of order 1"):
        ColdStart(3, 1.0, order=2, types=2)
    deep = MarkovModel.mixture([MarkovModel.fit([[0, 1, 2, 0, 1]], order=2, n=3, smoothing=1.0)] * 2, [0.5, 0.5])
    with pytest.raises(InputError, match="order 1 to start from"):
        learn(evidence, start=deep)


def cold(users=300, length=30, types=2, seed=3):
    truth = BOTH.sample(length, users, seed=seed)
    start = ColdStart(3, 3.0, points=Points(4_000, 2, 4_000), seed=9, types=types)
    codes = [start.release_codes(range(users), step)[0] for step in truth.T]
    return start, np.stack(codes, axis=1), truth


@pytest.mark.slow
def test_a_cold_start_moves_on_to_a_mixture_and_a_receiver_agrees(tmp_path):
    start, codes, _ = cold()
    assert start.versions.last.setting.model.types == 2
    assert start.versions.last.why["types"] == 2
    with pytest.raises(InputError, match="one chain, not of a mixture"):
        region(start.tried[-1][1], evidence_of(BOTH.sample(5, 5, seed=1)))
    start.save(tmp_path / "versions")
    receiver = Receiver(Versions.load(tmp_path / "versions"))
    for step in codes.T:
        receiver.observe(range(300), step)
    np.testing.assert_array_equal(start.accounts().leakage, receiver.accounts().leakage)
    assert start.worst_release <= 3.0 + 1e-9


@pytest.mark.parametrize("switch", [0.0, 0.2])
def test_the_account_after_a_switch_to_a_mixture_is_that_of_all_sequences(switch):
    rng = np.random.default_rng(2)
    parts = [streams.random_chain(rng, 2) for _ in range(2)]
    mixed = MarkovModel.mixture([MarkovModel(*part) for part in parts], [0.3, 0.7], switch)
    people, coins, columns = (
        VersionedStreams(first_version(Alphabet.codes(2), "randomized_response", 0.8)),
        SeededCoins(4),
        [],
    )
    people.grow(1)
    for number in range(2):
        if number:
            people.switch(Version(1, Setting.of(mixed, "optimal", 0.8), 2))
        made = [people.release(np.array([0]), rng.integers(0, 2, 1), coins) for _ in range(2)]
        columns += [each.columns[0] for each in made]
    law = {x: math.exp(mixed.log_likelihood(list(x))) for x in itertools.product(range(2), repeat=4)}
    most, least = (float(each) for each in _leakage(law, columns))
    account = people.state.account
    assert (account.most[0], account.least[0]) == (pytest.approx(most, abs=1e-9), pytest.approx(least, abs=1e-9))


def _leakage(law, columns):
    """The largest and smallest log of posterior over prior of any whole sequence."""
    weights = {x: math.prod(int(c[s]) / 2**62 for s, c in zip(x, columns, strict=True)) for x in law}
    total = sum(law[x] * weights[x] for x in law)
    lifts = [math.log(weights[x] / total) for x in law if law[x] > 0]
    return max(lifts), min(lifts)


@pytest.mark.slow
def test_the_commands_learn_types(tmp_path, capsys):
    truth = BOTH.sample(30, 400, seed=5)
    rows = "\n".join(f"u{user},{'abc'[x]}" for step in truth.T for user, x in enumerate(step))
    (tmp_path / "raw.csv").write_text(f"user,value\n{rows}\n")
    (tmp_path / "names").write_text("a\nb\nc\n")
    call = ["release", tmp_path / "raw.csv", "--cold-start", "-e", 3, "--types", 2, "--alphabet", tmp_path / "names"]
    assert main([*map(str, call), "--out", str(tmp_path / "out.csv"), "--seed", "1", "--json"]) == 0
    versions = json.loads(capsys.readouterr().out)["versions"]
    assert versions[-1]["why"]["types"] == 2
    call = ["learn", tmp_path / "out.csv", "--model", tmp_path / "out.csv.versions", "-o", tmp_path / "m", "--types", 2]
    assert main([*map(str, call), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["types"] == 2
    assert "radii" not in facts
    assert MarkovModel.load(tmp_path / "m").types == 2
    assert main([*map(str, call)]) == 0
    assert "2 types" in capsys.readouterr().err
    assert main([*map(str, call), "--order", "2"]) != 0
    assert "chains of order 1" in capsys.readouterr().err


@pytest.mark.slow
def test_bets_against_a_mixture_are_fair():
    """Brute force: Σ Pr(releases) · E(releases) = 1 under the mixture, for two users in turn."""
    setting = Setting.of(MarkovModel.mixture([CALM, LIVELY], [0.3, 0.7], 0.01), "optimal", 1.2)
    total = weight = 0.0
    for codes in itertools.product(range(3), repeat=4):
        state, probability = stream.State.start(setting), 1.0
        for code in codes:
            kernel = stream.kernels(setting, _belief(setting, state), 1.2).one(0)
            outputs = kernel.codes.tolist()
            probability *= kernel.marginal(_belief(setting, state)[0])[outputs.index(code)] if code in outputs else 0.0
            if probability == 0.0:
                break
            _, state = stream.observe(setting, state, np.array([code]))
        if probability > 0:
            value = Drift(setting).update(["u"] * 4, np.array(codes))
            total, weight = total + probability * value, weight + probability
    assert weight == pytest.approx(1.0)
    assert total == pytest.approx(1.0, abs=1e-9)


def _belief(setting, state):
    return np.stack([np.bincount(setting.model.newest, row, minlength=3) for row in state.states])


def bet(model, truth, epsilon=2.0):
    setting = Setting.of(model, "optimal", epsilon)
    drift = Drift(setting, 0.01)
    for codes in released(setting, truth).T:
        drift.update(range(len(truth)), codes)
    return drift


@pytest.mark.slow
def test_a_chain_drifts_on_people_of_two_types_and_the_mixture_does_not():
    truth = BOTH.sample(40, 300, seed=11)
    chain = mean_chain(BOTH)
    fitted = MarkovModel.fit(list(BOTH.sample(40, 3_000, seed=12)), n=3)
    np.testing.assert_allclose(chain.advance(np.eye(3)), fitted.advance(np.eye(3)), atol=0.02)
    assert bet(fitted, truth).alarm
    assert not bet(BOTH, truth).alarm
    assert len(rivals_of(BOTH)) == len(rivals_of(chain))


@pytest.mark.slow
@pytest.mark.parametrize("shares", [[0.95, 0.05], [0.05, 0.95]])
def test_that_other_types_have_become_common_is_seen(shares):
    changed = MarkovModel.mixture([CALM, LIVELY], shares, 1e-4)
    assert bet(BOTH, changed.sample(30, 300, seed=4)).alarm


@pytest.mark.slow
def test_a_state_file_moves_on_to_types(tmp_path):
    """Released without a model, moved on to a mixture, released under it: accounts are those of all columns."""
    names, users = [f"u{k}" for k in range(300)], np.arange(300)
    none = MarkovModel(np.full(3, 1 / 3), np.full((3, 3), 1 / 3))
    first = Setting.of(none, "randomized_response", 3.0)
    truth, path = BOTH.sample(24, 300, seed=8), tmp_path / "state.db"
    coins = KeyedCoins.seeded(3, b"test")
    with Streams.open(path, first, coins=coins) as store:
        told = [store.release(names, step, [t] * 300).codes for t, step in enumerate(truth.T[:20])]
    learned = learn(evidence_in(path, [first]), types=2)
    assert learned.model.types == 2
    second = Setting.of(learned.model, "optimal", 3.0)
    assert upgrade(path, [first], second).users == 300
    with Streams.open(path, second, coins=coins) as store:
        told += [store.release(names, step, [20 + t] * 300).codes for t, step in enumerate(truth.T[20:])]
        kept = np.array([store.standing(name).leakage for name in names])
    streams = VersionedStreams(Version(1, first, 0))
    streams.grow(300)
    for t, step in enumerate(told):
        if t == 20:
            streams.switch(Version(2, second, 0))
        streams.observe(users, step)
    np.testing.assert_allclose(kept, streams.state.account.worst, atol=2.0**-31)
    again = learn(evidence_in(path, [first, second]), types=2, rival=learned.model)
    assert again.held_out is not None
