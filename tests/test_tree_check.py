"""Batched releases never refuse once anything is drawn: every raw batch and every coin, and the promise exactly."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_streams as ref
from seqveil import MarkovModel, distortion, mechanisms
from seqveil.core.errors import SeqveilError
from seqveil.core.mechanisms import Batch, tree, tree_ldp, trees

EPSILONS = (0.5, 8.0, 14.0, 16.0, 18.0, 20.0, 30.0, 32.0)
WHOLE = 1 << 62


def small_chain(seed: int) -> MarkovModel:
    """Two or three symbols, from well mixed to nearly certain, so that some cells are about as small as may be."""
    rng = np.random.default_rng(seed)
    n, shape = int(rng.choice([2, 3])), float(rng.choice([1.0, 0.2, 0.05, 0.01]))
    prior = rng.dirichlet(np.full(n, shape)) + 1e-300
    if seed % 3 == 0:
        prior = np.r_[1.0, np.exp(-rng.uniform(10, 32, n - 1))]
    return MarkovModel(prior / prior.sum(), rng.dirichlet(np.full(n, shape), n))


def every_batch(batch: Batch) -> list[np.ndarray]:
    return [np.array(codes) for codes in itertools.product(range(batch.model.n), repeat=batch.length)]


class Turns:
    """A coin that passes or fails each comparison by a script."""

    private = False

    def __init__(self, script: list[bool]) -> None:
        self.script, self.taken = script, []

    def draw(self, count: int) -> list[Turns]:
        assert count == 1
        return [self]

    def __lt__(self, weight: int) -> bool:
        step = len(self.taken)
        wanted = self.script[step] if step < len(self.script) else True
        turn = (wanted and weight > 0) or weight == WHOLE  # what no coin does is not tried
        self.taken.append((bool(turn), 0 < weight < WHOLE))
        return bool(turn)

    def __ge__(self, weight: int) -> bool:
        return not self < weight


def outcome(mechanism, batch: Batch, codes: np.ndarray, randomness) -> tuple[str, object]:
    """What a release came to: its bounds and all that a receiver computes, or the kind of refusal."""
    try:
        sent = mechanism.draw(batch, codes, randomness)
        return "released", (sent.path, sent.least, sent.most, sent.codes.tolist(), sent.ahead.sum())
    except SeqveilError as error:
        return type(error).__name__, None


def walks(mechanism, batch: Batch, codes: np.ndarray) -> list[tuple[str, object]]:
    """The outcome of every coin path of a tree."""
    found, script = [], []
    while True:
        uniform = Turns(script)
        found.append(outcome(mechanism, batch, codes, uniform))
        taken = uniform.taken
        while taken and not all(taken[-1]):
            taken.pop()
        if not taken:
            return found
        script = [*(turn for turn, _ in taken[:-1]), False]


def assert_released_within_epsilon(batch: Batch, found: list[tuple[str, object]]) -> None:
    assert {kind for kind, _ in found} == {"released"}
    for _, (_, least, most, _, total) in found:
        assert most <= batch.epsilon
        assert -least <= batch.epsilon
        assert total == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tree", "tree_ldp"])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_tree_refuses_whatever_the_raw_batch_and_the_randomness(name, epsilon):
    mechanism = mechanisms.get_batched(name)
    for seed in range(12):
        model = small_chain(seed)
        batch = Batch(model, model.initial, 1 + seed % 2, epsilon, distortion.hamming())
        for codes in every_batch(batch):
            assert_released_within_epsilon(batch, walks(mechanism, batch, codes))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auto", "batch_lp", "batch_descent"])
def test_tables_refuse_before_the_draw_or_never(name):
    mechanism = mechanisms.get_batched(name)
    thrown = [0, WHOLE - 1, *((WHOLE // 31) * k for k in range(1, 31, 5))]
    for seed, epsilon in itertools.product(range(4), EPSILONS):
        model = small_chain(seed)
        batch = Batch(model, model.initial, 1 + seed % 2, epsilon, distortion.hamming())
        if epsilon > mechanism.largest:
            continue
        for codes in every_batch(batch):
            tries = [tuple(thrown[(k * m) % len(thrown)] for m in range(1, 80)) for k in range(len(thrown))]
            found = [outcome(mechanism, batch, codes, ref.GivenCoins(randomness)) for randomness in tries]
            if mechanism.sound:
                assert_released_within_epsilon(batch, found)
            assert {kind for kind, _ in found} == {"released"}


def exact_distribution(model: MarkovModel, length: int) -> dict[tuple[int, ...], Fraction]:
    """Pr of every batch, in fractions of the model's own floats."""
    rows = [[Fraction(float(p)) for p in model.advance(row)] for row in np.eye(model.size)]
    distribution = {(x,): Fraction(float(p)) for x, p in enumerate(model.initial)}
    for _ in range(length - 1):
        distribution = {
            (*codes, x): p * rows[codes[-1]][x] for codes, p in distribution.items() for x in range(model.n)
        }
    return distribution


def leaves_in_fractions(grown, raw: list[tuple[int, ...]]) -> dict[tuple[int, ...], list[Fraction]]:
    """a(y|o) of every leaf and batch from the integers that are drawn from."""
    disclosed, found = Fraction(grown.disclosed, WHOLE), {}

    def go(path, fresh, shares):
        split = grown.nodes[path][1]
        if split is None:
            found[path] = [(1 - disclosed) * fresh + disclosed * share for share in shares]
            return
        for side in (0, 1):
            left = [Fraction(int(split.left[codes[split.position]]), WHOLE) for codes in raw]
            chance = Fraction(split.fresh, WHOLE)
            turn = [1 - x if side else x for x in left]
            go(
                (*path, side),
                fresh * (1 - chance if side else chance),
                [s * t for s, t in zip(shares, turn, strict=True)],
            )

    grown.everything()
    go((), Fraction(1), [Fraction(1)] * len(raw))
    return found


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), epsilon=st.floats(12.0, 32.0), ldp=st.booleans())
def test_every_leaf_keeps_its_promise_in_exact_arithmetic(seed, epsilon, ldp):
    model = small_chain(seed)
    batch = Batch(model, model.initial, 1 + seed % 2, epsilon, distortion.hamming())
    distribution = exact_distribution(model, batch.length)
    total = sum(distribution.values())
    table = leaves_in_fractions(trees.plant(batch, ldp=ldp), list(distribution))
    for path, weights in table.items():
        marginal = sum(p * w for p, w in zip(distribution.values(), weights, strict=True)) / total
        sent = (tree_ldp if ldp else tree).read(batch, path)
        high, low = ref.log(max(weights) / marginal), ref.log(min(weights) / marginal)
        assert -epsilon <= sent.least <= low + 1e-15
        assert high - 1e-15 <= sent.most <= epsilon
        if ldp:
            assert ref.log(max(weights) / min(weights)) <= epsilon


def test_a_large_epsilon_still_tells_small_cells_apart():
    """The check costs nothing where it is not needed: e^-18 of belief is a cell of its own at ε = 20."""
    rare = float(np.exp(-18.0))
    model = MarkovModel([1 - rare, rare], [[1 - rare, rare], [0.5, 0.5]])
    batch = Batch(model, model.initial, 1, 20.0, distortion.hamming())
    disclosed = {tree.draw(batch, np.array([x]), ref.GivenCoins((0,) * 9)).codes[0] for x in (0, 1)}
    assert disclosed == {0, 1}
