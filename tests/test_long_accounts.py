"""The account of long streams on chains that do not mix: exact beyond the range of a float, whatever comes back."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiling import restored, use  # noqa: F401 -- it restores after every test
from seqveil import MarkovModel
from seqveil.core import filtering
from seqveil.core.kernel import Kernels, to_weights
from seqveil.core.leakage import weight_range
from seqveil.core.mechanisms import Batch, BatchMechanism
from seqveil.core.mechanisms.codebook import Codebook, support
from seqveil.core.mechanisms.trees import TreeRelease
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches, stream
from seqveil.engine.live import skipped
from seqveil.engine.policy import Policy
from seqveil.engine.terms import Terms
from seqveil.receiver.audit import Audit

pytestmark = pytest.mark.slow


def dense(model: MarkovModel) -> np.ndarray:
    return np.stack([model.advance(row) for row in np.eye(model.size)])


def log(values) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(values, np.float64))


def exact(model: MarkovModel, columns: list[np.ndarray]) -> tuple[list[tuple[float, float]], np.ndarray]:
    """Both sides after every release, and the next state's distribution, all in logs: nothing can underflow."""
    steps = log(dense(model))
    distribution = log(model.initial)  # log Pr(y so far, next state)
    high = np.where(np.isneginf(distribution), -math.inf, 0.0)  # log Π Q(y|x) over sequences that lead here
    low = np.where(np.isneginf(distribution), math.inf, 0.0)
    sides, leads = [], ~np.isneginf(steps)
    for column in columns:
        weight = log(column / column.max())[model.newest]
        distribution, high, low = distribution + weight, high + weight, low + weight
        evidence = np.logaddexp.reduce(distribution)
        sides.append((high.max() - evidence, low.min() - evidence))
        distribution = np.logaddexp.reduce(distribution[:, None] + steps, axis=0)
        high = np.where(leads, high[:, None], -math.inf).max(0)
        low = np.where(leads, low[:, None], math.inf).min(0)
    return sides, distribution - np.logaddexp.reduce(distribution)


def follow(setting: Terms, raw: np.ndarray, seed: int) -> tuple[list[stream.State], list[stream.Released]]:
    """The state after every release, and the releases."""
    states, made, randomness = [stream.State.start(setting)], [], SeededRandomness(seed)
    for code in raw:
        released, after = stream.step(setting, states[-1], np.array([code]), randomness)
        states.append(after)
        made.append(released)
    return states[1:], made


def assert_charged_exactly(setting: Terms, raw: np.ndarray, seed: int = 1) -> tuple[float, stream.State]:
    """The account after every release is the exact one from above, an auditor's too, and the belief is right."""
    states, made = follow(setting, raw, seed)
    sides, distribution = exact(setting.model, [released.columns[0] for released in made])
    for state, (most, least) in zip(states, sides, strict=True):
        near = 1e-9 * (1 + most - least)  # the twin's own sums round too
        assert most - near / 10 <= state.account.most[0] <= most + near
        assert least + near / 10 >= state.account.least[0] >= least - near
    held = states[-1].states[0]
    found = np.where(held < 0, held, log(np.maximum(held, 0.0)))
    assert (np.isneginf(found) == np.isneginf(distribution)).all()
    there = ~np.isneginf(distribution)
    assert found[there] == pytest.approx(distribution[there], rel=1e-9, abs=1e-6)
    audit = Audit(setting)
    audit.take(["u"] * len(made), np.concatenate([released.codes for released in made]))
    assert audit.report().leakage == states[-1].account.worst[0]
    return max(max(most, -least) for most, least in sides), states[-1]


def there_and_back(n: int, length: int) -> np.ndarray:
    """Long stretches of one symbol after another, which a chain that does not mix takes to be impossible."""
    return np.repeat(np.array([0, 1, 1, 0, 2, 2]) % n, -(-length // 6))[:length]


CHAINS = {
    "identity": MarkovModel(np.full(3, 1 / 3), np.eye(3)),
    "periodic": MarkovModel(np.full(3, 1 / 3), np.roll(np.eye(3), 1, axis=1)),
    "two rooms": MarkovModel(
        np.full(4, 0.25), [[0.9, 0.1, 0, 0], [0.1, 0.9, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.2, 0.8]]
    ),
    "one way": MarkovModel([0.8, 0.1, 0.1], [[0.5, 0.4, 0.1], [0, 0.9, 0.1], [0, 0, 1]]),
    "hardly ever": MarkovModel([1 - 1e-200, 1e-200], [[1.0, 1e-300], [1e-300, 1.0]]),
    "order two": MarkovModel([0.5, 0.5], [[1, 0], [0, 1], [1, 0], [0, 1]], order=2),
    "sticky": MarkovModel(np.full(3, 1 / 3), [[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]]),
}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_accounts_are_exact_beyond_two_thousand_nats(name, compiled):
    use(compiled)
    model = CHAINS[name]
    setting = Policy(epsilon=8.0, mechanism="randomized_response").on(model)
    worst, _ = assert_charged_exactly(setting, there_and_back(model.n, 900))
    if name == "identity":
        assert worst > 2000


@pytest.mark.parametrize("name", ["optimal", "balanced", "crr_repaired"])
def test_other_mechanisms_too(name):
    for chain in ("identity", "two rooms", "one way"):
        assert_charged_exactly(
            Policy(epsilon=8.0, mechanism=name).on(CHAINS[chain]), there_and_back(CHAINS[chain].n, 240)
        )


def sparse_chain(seed: int) -> MarkovModel:
    rng = np.random.default_rng(seed)
    n, order = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    rows = rng.dirichlet(np.full(n, 0.5), n**order) * (rng.random((n**order, n)) < 0.5)
    rows[rng.random(rows.shape) < 0.1] *= 1e-80
    empty = rows.sum(1) == 0
    rows[empty, rng.integers(0, n, int(empty.sum()))] = 1.0
    prior = rng.dirichlet(np.ones(n)) * (rng.random(n) < 0.8)
    prior = prior if prior.sum() else np.full(n, 1.0)
    return MarkovModel(prior / prior.sum(), rows / rows.sum(1, keepdims=True), order=order)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), epsilon=st.sampled_from([4.0, 9.0, 15.0]), stay=st.sampled_from([1, 20, 90]))
def test_random_sparse_chains_are_charged_exactly_and_alike_by_both_paths(seed, epsilon, stay):
    model = sparse_chain(seed)
    setting = Policy(epsilon=epsilon, mechanism="randomized_response").on(model)
    raw = np.repeat(np.random.default_rng(seed).integers(0, model.n, 150), stay)[:150]
    found = []
    for compiled in (True, False):
        use(compiled)
        state = assert_charged_exactly(setting, raw, seed + 1)[1]
        found.append([state.states.tobytes(), state.account.most.tobytes(), state.account.least.tobytes()])
    assert found[0] == found[1]


class SecondOf:
    """The second of two randomness."""

    private = False

    def __init__(self, seed: int) -> None:
        self._randomness = SeededRandomness(seed)

    def draw(self, count: int) -> np.ndarray:
        return self._randomness.draw(2)[1:]


def test_users_with_faint_states_change_nobody_else():
    model = CHAINS["two rooms"]
    setting = Policy(epsilon=8.0, mechanism="randomized_response").on(model)
    raw = np.stack([there_and_back(4, 300), model.sample(300, 1, seed=4)[0]], axis=1)
    states = {}
    for compiled in (True, False):
        use(compiled)
        state = stream.State.start(setting, 2)
        for k, codes in enumerate(raw):
            _, state = stream.step(setting, state, codes, SeededRandomness(k))
        states[compiled] = state
    assert states[True].states.tobytes() == states[False].states.tobytes()
    assert states[True].account.worst.tobytes() == states[False].account.worst.tobytes()
    alone = stream.State.start(setting)
    for k, codes in enumerate(raw):
        _, alone = stream.step(setting, alone, codes[1:], SecondOf(k))
    assert alone.states[0].tobytes() == states[True].states[1].tobytes()
    assert alone.account.worst[0] == states[True].account.worst[1]


def test_an_event_nobody_released_moves_the_account_on_too():
    """On a periodic chain a gap shifts which sequences can be where; charging as if it had not would be wrong."""
    model = CHAINS["periodic"]
    setting = Policy(epsilon=2.0, mechanism="randomized_response").on(model)
    _, state = stream.step(setting, stream.State.start(setting), np.array([0]), SeededRandomness(1))
    column = np.array([[7, 3, 1]], np.int64) << 58
    silent = np.full((1, 3), 1 << 62)
    disclosed = state.account.charge(model, silent, np.array([float(1 << 62)]), silent[:, 0], silent[:, 0])
    gap = skipped(setting, state)
    for account in (disclosed, gap.account):
        assert account.ahead_most.tolist() == disclosed.ahead_most.tolist()
    after, marginal = filtering.move(model, gap.states, column)
    assert after.sum() == pytest.approx(1.0)
    extremes = weight_range(column, filtering.possible(model, gap.states))
    charged = gap.account.charge(model, column, marginal, *extremes)
    assert charged.worst[0] == disclosed.charge(model, column, marginal, *extremes).worst[0]


def respond(batch: Batch) -> Codebook:
    """Two bits by randomised response, is it 1 and is it 2: ε-LDP, and it goes on telling whatever is believed."""
    found = support(replace(batch, states=np.full(3, 1 / 3)), 10)
    found = replace(found, mass=batch.states, walks=batch.states)  # the identity chain: one walk a batch
    bit = np.array([1.0, math.exp(-batch.epsilon / 2)]) / (1 + math.exp(-batch.epsilon / 2))
    one, two = (np.stack([bit if x != disclosed else bit[::-1] for x in range(3)]) for disclosed in (1, 2))
    table = np.stack([one[:, i] * two[:, j] for i in range(2) for j in range(2)], axis=1)
    kernels = Kernels(3, np.arange(4)[None], np.zeros((1, 4), np.int64), to_weights(table)[None])
    return Codebook(found, np.array([[0, 0], [2, 2], [1, 1], [0, 0]]), kernels)


WORDS = dict.fromkeys(("summary", "guarantee", "trusts", "cost", "reference"), "")
RESPONSE = BatchMechanism(name="response", sound=True, ldp=1.0, rule=respond, **WORDS)


@pytest.mark.parametrize("mechanism", [RESPONSE, "tree", "batch_lp"])
def test_batches_are_charged_from_above_beyond_the_range_of_a_float(mechanism):
    model = CHAINS["identity"]
    setting = Policy(epsilon=8.0, batch=2, mechanism=mechanism).on(model)
    state, randomness = stream.State.start(setting), SeededRandomness(2)
    logs = log(model.initial)  # of the three sequences that can be, given the releases
    for k, code in enumerate([0] * 250 + [1] * 600):
        before = state
        sent, state = batches.step(setting, state, np.full(2, code), randomness)
        lifts = [lift_of(sent, np.full(2, x)) for x in range(3)]
        logs = logs + log(lifts)
        logs -= np.logaddexp.reduce(logs)
        moved = logs - log(model.initial)
        assert state.account.most[0] >= moved.max() - 1e-9 * (1 + k)
        assert -state.account.least[0] >= -moved.min() - 1e-9 * (1 + k)
        assert state.account.worst[0] <= before.account.worst[0] + 8.0 + 1e-9
    if mechanism is RESPONSE:
        assert moved.min() < -4500
        assert state.account.blurred.all()


def lift_of(sent, codes: np.ndarray) -> float:
    """What the release says about a batch, up to a factor."""
    if isinstance(sent, TreeRelease):
        return sent.lift(codes)
    return float(sent.lifts[sent.book.rows.row(codes)])


def test_a_release_is_charged_for_a_symbol_that_only_its_logarithm_remembers():
    model = MarkovModel([0.5, 0.5], np.eye(2))  # never moves
    setting = Policy(epsilon=4.0, mechanism="randomized_response").on(model)
    state = stream.State.start(setting)
    for _ in range(200):  # 800 nats for symbol 0: no float remembers the other one
        seen, state = stream.observe(setting, state, np.array([0]))
    disclosed, _ = stream.observe(setting, state, np.array([1]))
    assert seen.beliefs[0, 1] == 0.0
    assert seen.costs[0] == pytest.approx(4.0, rel=1e-6)
    assert disclosed.costs[0] == pytest.approx(4.0, rel=1e-6)
