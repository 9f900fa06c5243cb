"""Kernels that keep secrets: the closed form, the program, and integer tables that keep what is promised."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from reference.guarding import Guarded, bounds_of, box_rows, excess, least_cost, random_box, random_promise
from reference.mixtures import mixture
from seqveil import MarkovModel, secrets
from seqveil.core import programs
from seqveil.core.alphabet import WITHHELD
from seqveil.core.distortion import Distortion, absolute, euclidean, hamming, matrix
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets import pools, solving
from seqveil.core.secrets.solving import guarded
from seqveil.core.secrets.tables import TIGHTER, AskedOfUsers, Bounds, Dial
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams

HALF = np.array([0.5, 0.5])


def box(weights, prior, epsilon, sides="both"):
    sigma = np.asarray(weights, float)
    return Guarded(np.array([0]), np.stack([1 - sigma, sigma])[None], np.array([[1 - prior, prior]]), epsilon, sides, 0)


def pooled(belief, weights, lo, hi):
    """The closed form for one box: β(x) Q(y|x) written out, and its error."""
    n = belief.size
    shares, spread = [0.0] * (4 * n), [0.0] * (3 * n)
    assert pools.pooled(belief.tolist(), (belief * weights).tolist(), lo, hi, n, 1, [1.0], shares, spread)
    told, high, low, rest = np.array(shares).reshape(4, n)
    labels = np.array(spread).reshape(3, n)
    table = np.diag(told) + np.outer(high, labels[0]) + np.outer(low, labels[1]) + np.outer(rest, labels[2])
    joint = belief[:, None] * table
    return joint, float(belief.sum() - np.trace(joint))


def test_the_check_values_of_the_design():
    lo, hi = 0.595 * np.exp(-0.5), 1 - 0.405 * np.exp(-0.5)
    joint, error = pooled(HALF, np.array([0.19, 1.0]), lo, hi)
    kernel = joint / 0.5
    assert error == pytest.approx(0.265886, abs=1e-6)
    assert kernel[0, 1] == pytest.approx(0.360886, abs=1e-6)
    assert kernel[1, 0] == pytest.approx(0.170886, abs=1e-6)
    odds = box([0.19, 1.0], 0.595, 0.5)
    table = guarded(bounds_of([(HALF, odds)], HALF), hamming())
    assert table.error == pytest.approx(least_cost(HALF, box_rows(HALF, odds.sigma[0], odds.low[0], odds.high[0]),
                                                   1 - np.eye(2)), abs=3e-6)  # fmt: skip


def test_the_closed_form_is_the_optimum_of_the_whole_program():
    rng = np.random.default_rng(1)
    inside = np.array([0.15, 0.33, 0.11, 0.41]), np.array([0.19, 0.28, 0.44, 0.01]), 0.113, 0.2  # takes of both covers
    for belief, weights, lo, hi in [inside, *(random_box(rng) for _ in range(50))]:
        joint, error = pooled(belief, weights, lo, hi)
        rows = box_rows(belief, weights, lo, hi)
        assert joint.sum(1) == pytest.approx(belief, abs=1e-14)
        assert joint.min() >= 0
        secret, mass = weights @ joint, joint.sum(0)
        assert (secret <= hi * mass + 1e-10).all()
        assert (secret >= lo * mass - 1e-10).all()
        best = least_cost(belief, rows, 1 - np.eye(belief.size))
        assert error == pytest.approx(best, abs=2e-7)
        found = programs.bounded(belief, 1 - np.eye(belief.size), rows)
        assert found.error == pytest.approx(best, abs=3e-8)
        assert found.bound == pytest.approx(best, abs=3e-8)


def test_integer_tables_keep_every_promise_and_miss_the_optimum_by_next_to_nothing():
    """Against the program over all pairs; for wrong symbols the best table for one window is taken where it keeps the
    others too."""
    rng = np.random.default_rng(2)
    for case in range(120):
        n = int(rng.integers(2, 7))
        belief = rng.dirichlet(np.full(n, rng.choice([0.2, 1.0])))
        if rng.random() < 0.2:
            belief[0] = 0.0
            belief /= belief.sum()
        promises = [random_promise(rng, belief, 2 if rng.random() < 0.7 else 4) for _ in range(rng.integers(1, 3))]
        wrong = [1.0 - np.eye(n), np.abs(np.subtract.outer(np.arange(n), np.arange(n))), rng.random((n, n))][case % 3]
        np.fill_diagonal(wrong, 0)
        costs, lies = [hamming(), absolute(np.arange(n)), matrix(wrong)][case % 3], rng.random() < 0.8
        bounds = bounds_of([(belief, one) for one in promises], belief)
        made = guarded(bounds, costs, lies)
        table = made.full()
        assert (table.sum(1) == DENOMINATOR).all()
        assert table.min() >= 0
        for k in range(table.shape[1]):
            assert max(excess(belief, one, table[:, k]) for one in promises) <= 1e-12, case
        if not lies:
            x, k = np.nonzero(table)
            possible = belief[x] > 0
            assert ((made.outputs[k] == x) | (made.outputs[k] == WITHHELD))[possible].all()
        elif case < 60 and len(bounds.aimed) and belief.min() > 1e-6:
            assert made.error == pytest.approx(least_cost(belief, bounds.aimed, wrong), abs=3e-6)
        assert -1e-9 <= made.error - made.bound <= 1e-6, case


def test_labels_that_a_solver_leaves_with_next_to_nothing_are_never_released():
    belief = np.array([0.5, 0.5 - 3e-8, 3e-8])
    two = [box([0.2, 0.3, 1.0], 0.25, 0.3), box([0.3, 0.6, 0.0], 0.45, 0.3)]
    made = guarded(bounds_of([(belief, one) for one in two], belief), hamming())
    assert 2 not in made.outputs.tolist()
    assert (belief @ made.full() / DENOMINATOR > 1e-7).all()


def test_a_free_symbol_is_disclosed_however_unlikely_it_is():
    belief = np.array([0.5, 0.5 - 1e-12, 1e-12])
    made = guarded(bounds_of([(belief, box([0.0, 1.0, 0.5], 0.5, 0.3))], belief), hamming())
    place = made.outputs.tolist().index(2)
    assert made.full()[2, place] == DENOMINATOR


def test_on_the_edge_what_says_nothing_about_the_secret_is_still_disclosed():
    """The mean lies on the upper edge: only symbols that hold as much of the secret as the mean are distinguished."""
    epsilon = 0.5
    sigma = np.array([0.6, 0.6, 0.3, 0.9])
    belief = np.array([0.3, 0.3, 0.2, 0.2])
    prior = 1 / (1 + (0.4 / 0.6) * np.exp(epsilon * (1 - TIGHTER)))
    promise = box(sigma, prior, epsilon)
    assert promise.high[0] == pytest.approx(belief @ sigma, abs=1e-6)
    made = guarded(bounds_of([(belief, promise)], belief), hamming())
    assert made.error == pytest.approx(0.2, abs=1e-4)
    made = guarded(bounds_of([(belief, promise)] * 2, belief), hamming())  # by the program
    assert made.error == pytest.approx(0.2, abs=1e-4)


def test_one_side_lets_everything_that_speaks_against_it_be_disclosed():
    belief, sigma = np.array([0.2, 0.6, 0.2]), np.array([0.0, 0.3, 0.5])
    both, up = (
        guarded(bounds_of([(belief, box(sigma, 0.28, 0.5, sides))], belief), hamming()) for sides in ("both", "up")
    )
    assert up.error < both.error


def test_a_certain_belief_and_nothing_to_keep():
    made = guarded(bounds_of([], np.array([0.0, 1.0])), hamming())
    assert made.error == 0.0
    assert made.outputs.tolist() == [1]
    made = guarded(bounds_of([], np.array([0.25, 0.75])), hamming())
    assert made.full().tolist() == [[DENOMINATOR, 0], [0, DENOMINATOR]]


def test_an_observer_who_rules_a_symbol_out_never_sees_it_disclosed():
    mine, theirs = np.array([0.4, 0.3, 0.3]), np.array([0.5, 0.5, 0.0])
    promises = [(mine, box([0.2, 0.5, 0.9], 0.5, 0.4)), (theirs, box([0.3, 0.5, 0.4], 0.4, 0.4))]
    made = guarded(bounds_of(promises, mine), hamming())
    assert 2 not in made.outputs.tolist()
    for seen, promise in promises:
        assert all(excess(seen, promise, column) <= 1e-12 for column in made.full().T)


@pytest.mark.parametrize("costs", [hamming(), absolute(np.arange(400))], ids=["pools", "program"])
def test_large_alphabets(costs):
    rng = np.random.default_rng(6)
    belief = rng.dirichlet(np.full(400, 0.5))
    sigma = np.where(np.arange(400) < 12, 0.9, rng.uniform(0.1, 0.4, 400))
    promise = box(sigma, float(belief @ sigma), 0.5)
    made = guarded(bounds_of([(belief, promise)], belief), costs)
    table = made.full()
    assert (table.sum(1) == DENOMINATOR).all()
    assert max(excess(belief, promise, column) for column in table.T) <= 1e-12
    assert costs.is_hamming is False or made.error - made.bound <= 1e-6


def test_too_large_for_an_epsilon_beside_the_secrets():
    belief = np.full(6000, 1 / 6000)
    with pytest.raises(InputError, match="at most 5000 symbols"):
        guarded(bounds_of([], belief), hamming(), epsilon=1.0)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("c", [0.5, math.inf])
def test_windows_are_kept_together_as_well_as_by_the_program(rows, c):
    rng, together = np.random.default_rng(11), 0
    for _ in range(30):
        n = int(rng.integers(2, 6))
        belief, dial = rng.dirichlet(np.ones(n * rows)), Dial(n, rows, c)
        promises = [(belief, random_promise(rng, belief)) for _ in range(int(rng.integers(2, 4)))]
        bounds = bounds_of(promises, belief)
        made = guarded(bounds, hamming(), dial=dial)
        best = guarded(replace(bounds, boxes=None), hamming(), dial=dial)
        table = made.full()
        assert (table.sum(1) == DENOMINATOR).all()
        assert table.min() >= 0
        assert made.dials(dial)
        for column in table.T:
            assert max(excess(belief, one, column) for _, one in promises) <= 1e-12
        assert made.error == pytest.approx(best.error, abs=1e-6)
        together += made.error != best.error
    assert together > 5  # else nothing is compared


def test_an_epsilon_is_kept_inside_the_program():
    """Sound at ε and within the secrets, at the least error of the program that has both."""
    rng = np.random.default_rng(9)
    for _ in range(20):
        n, epsilon = int(rng.integers(2, 6)), float(rng.choice([0.3, 1.0]))
        belief = rng.dirichlet(np.ones(n))
        promise, eye, row = random_promise(rng, belief), np.eye(n), np.tile(belief, (n, 1))
        bounds = bounds_of([(belief, promise)], belief)
        lifts = np.concatenate([eye - np.exp(epsilon) * row, np.exp(-epsilon) * row - eye])
        best = least_cost(belief, np.concatenate([bounds.aimed, lifts]), 1 - eye)
        made = guarded(bounds, hamming(), epsilon=epsilon)
        assert made.error == pytest.approx(best, abs=1e-5)
        kernel = made.kernels().one(0)
        assert kernel.leakage(belief, whole_alphabet=True) <= epsilon
        assert kernel.ldp() <= 2 * epsilon
        assert all(excess(belief, promise, column) <= 1e-12 for column in made.full().T)


@pytest.mark.slow
def test_a_program_that_does_not_end_is_given_up_and_the_secret_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "ITERATIONS", 0)
    monkeypatch.setattr(solving, "TOGETHER", 0)
    rng = np.random.default_rng(0)
    chains = [MarkovModel(rng.dirichlet(np.full(12, 0.5)), 0.6 * np.eye(12) + 0.4 * rng.dirichlet(np.full(12, 0.2), 12))
              for _ in range(12)]  # fmt: skip
    model = mixture(chains, rng.dirichlet(np.ones(12)))
    setting = Policy(secrets=[secrets.ever(0, window=20, epsilon=0.5)], side_information=0).on(model)
    streams = CodeStreams(setting, randomness=SeededRandomness(0))
    for codes in model.sample(12, 4, seed=0).T:
        assert streams.release(np.arange(4), codes).codes.size == 4
    assert streams.secrets()[0].log_odds_worst <= 0.5


def square(size: int) -> Distortion:
    places = np.stack(np.meshgrid(np.arange(size), np.arange(size)), axis=-1).reshape(-1, 2)
    return euclidean(places.astype(np.float64))


def bounded(n: int, windows: int, seed: int, broad: float = 0.15, epsilon: float = 0.7) -> Bounds:
    """Bounds of a few windows that symbols tell about more or less, none of which has been disclosed about."""
    rng = np.random.default_rng(seed)
    belief = rng.dirichlet(np.full(n, broad)) + 1e-6
    belief /= belief.sum()
    sigma = np.clip(rng.beta(0.3, 0.9, size=(windows, n)), 1e-3, 1 - 1e-3)
    weights, prior = np.stack([1 - sigma, sigma], axis=1), np.stack([(1 - sigma) @ belief, sigma @ belief], axis=1)
    return bounds_of([(belief, Guarded(np.arange(windows), weights, prior, epsilon, "both", 0.0))], belief)


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_rare_cells_cost_little_and_every_bound_is_kept(
    windows: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds, distance = bounded(100, windows, seed), square(10)
    made = solving.guarded(bounds, distance)
    assert made.keeps(bounds)
    assert (made.full().sum(1) == 2**62).all()
    monkeypatch.setattr(solving, "NEAR", 100)
    whole = solving.guarded(bounds, distance)
    assert whole.bound - 1e-6 <= whole.error <= made.error + 1e-6
    assert made.bound - 1e-6 <= whole.error
    assert made.error <= 1.12 * whole.error


@pytest.mark.parametrize("windows", [1, 2])
def test_programs_over_some_of_the_symbols_keep_every_bound(windows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong symbols of many kinds share one more row; a belief in one cell, and one in all alike."""
    monkeypatch.setattr(solving, "SMALL", 16)
    monkeypatch.setattr(solving, "LABELS", 8)
    cases = [(bounded(40, windows, seed), hamming()) for seed in range(3)]
    for bounds, costs in [*cases, *((bounded(144, windows, 5, broad), square(12)) for broad in (1e-3, 1e3))]:
        made = guarded(bounds, costs)
        assert made.keeps(bounds)
        assert (made.full().sum(1) == 2**62).all()


@pytest.mark.slow
@pytest.mark.parametrize("c", [0.0, 0.5])
def test_the_windows_of_one_secret_need_no_program(c, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, solve = [], programs.bounded
    monkeypatch.setattr(programs, "bounded", lambda *given: asked.append(1) or solve(*given))
    rng = np.random.default_rng(0)
    rows = 0.5 * rng.dirichlet(np.full(9, 0.3), 9) + 0.5 * rng.dirichlet(np.ones(9))
    model = MarkovModel(rng.dirichlet(np.ones(9)), rows)
    setting = Policy(secrets=secrets.ever(0, epsilon=0.5, window=5), side_information=c).on(model)
    streams, raw = CodeStreams(setting, randomness=SeededRandomness(1)), model.sample(12, 20, seed=1)
    for codes in raw.T:
        streams.release(np.arange(20), codes)
    assert len(asked) <= 0.02 * raw.size


@pytest.mark.parametrize("dial", [0.3, 1.5, math.inf])
def test_the_closed_form_is_the_optimum_of_all_kernels_that_the_dial_allows(dial):
    """Against the program over all pairs of source and label, with the dial as bounds of its own."""
    rng = np.random.default_rng(11)
    for case in range(25):
        n = int(rng.integers(2, 5))
        costs = absolute(np.arange(n)) if case % 5 == 0 else hamming()  # by the program
        belief, weights = rng.dirichlet(np.full(2 * n, 0.7)), rng.random(2 * n)
        mean = float(belief @ weights)
        masses = belief * np.stack([1 - weights, weights])
        asked = Dial(n, 2, dial)
        prior = np.array([[[1 - mean, mean]]])
        bounds = AskedOfUsers.of_windows(belief[None], masses[None, None], prior, 0.3, "both", 0.0).one(0)
        made, cost = guarded(bounds, costs, dial=asked), np.tile(costs.matrix(n), (2, 1))
        both = [np.kron(row, np.eye(n)) for row in bounds.aimed]
        apart = np.eye(2 * n * n) - math.exp(min(dial, 50)) * np.roll(np.eye(2 * n * n), n * n, axis=1)
        rows = np.concatenate([*both, *([] if math.isinf(dial) else [apart])])
        sums = np.kron(np.eye(2 * n), np.ones(n))
        found = linprog((belief[:, None] * cost).ravel(), rows, np.zeros(len(rows)), sums, np.ones(2 * n), (0, 1))
        assert made.error == pytest.approx(found.fun, abs=2e-5)
        assert made.keeps(bounds)
        assert made.dials(asked)
