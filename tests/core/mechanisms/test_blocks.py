"""Blocks against enumeration of all their paths, and against the best that any online mechanism can do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from reference.blocks import Paths, every_path, online_optimum
from seqveil import MarkovModel
from seqveil.core.distortion import absolute, hamming
from seqveil.core.mechanisms import closed_form
from seqveil.core.mechanisms.blocks import BlockRule, block_rule, mean_costs

STICKY = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
UNEVEN = MarkovModel([0.8, 0.2], [[0.9, 0.1], [0.4, 0.6]])


def random_chain(rng: np.random.Generator, n: int, holes: bool, order: int = 1) -> MarkovModel:
    rows = rng.dirichlet(np.full(n, 0.5), n**order)
    if holes:
        rows[rng.random(rows.shape) < 0.3] = 0.0
        rows[np.arange(len(rows)), np.arange(len(rows)) % n] += 0.1
    rows = np.maximum(rows, 0.0 if holes else 1e-3)
    return MarkovModel(rng.dirichlet(np.ones(n)), rows / rows.sum(1, keepdims=True), order=order)


def random_case(seed: int) -> tuple[BlockRule, list[float], list[int]]:
    """A chain with or without impossible steps, and two or three blocks in a row, the last one short."""
    rng = np.random.default_rng(seed)
    n, length = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    order = 2 if seed % 5 == 4 else 1
    model = random_chain(rng, n, seed % 2 == 1, order)
    schedule = tuple(rng.choice([0, 4, 7, 8, 8, 8], length).tolist())
    level = float(rng.choice([0.2, 1.0, 2.5, 6.0]))
    levels = [level * float(part) for part in rng.choice([1.0, 0.5], 2)]
    costs = absolute(range(n)) if seed % 4 == 2 else hamming()
    return BlockRule(model, level, length, costs, schedule), levels, [length, max(1, length - 1)]


@pytest.mark.parametrize("seed", range(20))
def test_no_prefix_of_any_block_passes_its_bound_and_the_account_is_exact(seed: int) -> None:
    rule, levels, lengths = random_case(seed)
    spent, ends = np.cumsum([0.0, *levels]), np.cumsum(lengths)
    for place, paths in enumerate(every_path(rule, levels, lengths)):
        possible = paths.chances[paths.chances > 0]
        assert np.allclose(paths.weights.sum(0), 1.0, atol=1e-12)
        block = int(np.searchsorted(ends, place, side="right"))
        assert np.abs(paths.lifts).max() <= spent[block + 1]
        assert np.abs(paths.lifts.max(1) - paths.account.most).max() < 1e-9
        assert np.abs(paths.lifts.min(1) - paths.account.least).max() < 1e-9
        assert (paths.account.most >= paths.lifts.max(1) - 1e-14).all()
        assert (paths.account.least <= paths.lifts.min(1) + 1e-14).all()
        ratios = np.log(paths.weights.max(1) / paths.weights.min(1))  # over all sequences, also impossible ones
        assert ratios.max() <= 2 * spent[block + 1]
        posterior = np.exp(paths.lifts) * possible
        assert np.allclose(posterior.sum(1), 1.0)


def test_the_belief_is_that_of_bayes_over_all_sequences() -> None:
    rule = BlockRule(UNEVEN, 2.0, 3, hamming(), (8, 7, 8))
    prefixes = every_path(rule, [2.0, 1.0], [3, 2])
    for now, later in itertools.pairwise(prefixes):
        joint = now.weights * now.chances
        last = np.stack([joint[:, now.sequences[:, -1] == x].sum(1) for x in range(2)], axis=1)
        ahead = (last / last.sum(1, keepdims=True)) @ UNEVEN.advance(np.eye(2))
        assert np.abs(ahead - now.beliefs).max() < 1e-12
        assert later.codes.shape[1] == now.codes.shape[1] + 1


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.3, 1.0, 2.5])
def test_a_block_of_one_event_is_the_optimum(level: float) -> None:
    model = random_chain(np.random.default_rng(3), 3, False)
    rule = block_rule(model, level, 1, hamming())
    best = float(closed_form.solve(model.initial[None], level)[1][0])
    paths = every_path(rule, [level], [1])[0]
    assert error([paths]) == pytest.approx(best, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "total", "known", "within"),
    [(STICKY, 1.5, 0.2086, 1.1), (STICKY, 3.0, 0.0583, 1.1), (STICKY, 6.0, 0.0034, 1.1), (UNEVEN, 3.0, 0.0669, 1.15)],
)
def test_blocks_come_near_the_best_online_mechanism_with_full_memory(
    model: MarkovModel, total: float, known: float, within: float
) -> None:
    best = online_optimum(model, 6, total)
    assert best == pytest.approx(known, abs=5e-5)
    assert error(every_path(block_rule(model, total, 6, hamming()), [total], [6])) < within * best


def error(prefixes: list[Paths]) -> float:
    """Expected share of wrong symbols, exactly."""
    wrong = [
        float((each.weights * each.chances * (each.codes[:, -1:] != each.sequences[:, -1])).sum()) for each in prefixes
    ]
    return sum(wrong) / len(wrong)


def test_hard_cells_of_three_events_in_numbers() -> None:
    """Chain S, w = 3, L = 3: named while every cell keeps its mass, the paths are 00*, 01*, 10* and 11*."""
    prefixes = every_path(BlockRule(STICKY, 3.0, 3, hamming(), (8, 8, 0)), [3.0], [3])
    paths = prefixes[-1]
    assert sorted((paths.weights @ paths.chances).round(6)) == [0.05, 0.05, 0.45, 0.45]
    wrong = [error([each]) for each in prefixes]
    assert wrong == pytest.approx([0.0248935, 0.0248935, 0.1199148], abs=1e-7)
    assert paths.lifts.min() == pytest.approx(-3.0, abs=1e-7)
    assert paths.lifts.max() == pytest.approx(2.94728, abs=1e-5)


@pytest.mark.slow
def test_simulated_schedules_cost_what_enumeration_finds_alone_and_beside_others() -> None:
    """Schedules that begin alike share their paths, and each costs to the last digit what it costs alone."""
    schedules = list(itertools.product((8, 0, 6), repeat=3))
    rule = BlockRule(UNEVEN, 2.0, 3, hamming(), schedules[0])
    together = mean_costs(rule, schedules, 512)
    assert together.tolist() == [float(mean_costs(rule, [each], 512)[0]) for each in schedules]
    exact = [error(every_path(BlockRule(UNEVEN, 2.0, 3, hamming(), each), [2.0], [3])) for each in schedules]
    assert np.abs(together - exact).max() < 0.01
