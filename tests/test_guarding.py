"""Kernels that keep secrets: the closed form, the program, and integer tables that keep what is promised."""

from __future__ import annotations

import numpy as np
import pytest

from reference_guarding import Guarded, bounds_of, box_rows, excess, least_cost, random_box, random_promise
from seqveil import Grid, MarkovModel, secrets
from seqveil.core import programs
from seqveil.core.alphabet import WITHHELD
from seqveil.core.distortion import Distortion, absolute, euclidean, hamming, matrix
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets import pools, solving
from seqveil.core.secrets.solving import guarded
from seqveil.core.secrets.tables import TIGHTER, Bounds
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


def table_of(made):
    return made.full()


def test_the_check_values_of_the_design():
    lo, hi = 0.595 * np.exp(-0.5), 1 - 0.405 * np.exp(-0.5)
    joint, error = pooled(HALF, np.array([0.19, 1.0]), lo, hi)
    kernel = joint / 0.5
    assert error == pytest.approx(0.265886, abs=1e-6)
    assert kernel[0, 1] == pytest.approx(0.360886, abs=1e-6)
    assert kernel[1, 0] == pytest.approx(0.170886, abs=1e-6)
    odds = box([0.19, 1.0], 0.595, 0.5)
    assert odds.low[0] == pytest.approx(0.47120, abs=1e-5)
    assert odds.high[0] == pytest.approx(0.70779, abs=1e-5)
    table = guarded(bounds_of([(HALF, odds)], HALF), hamming())
    assert table.error == pytest.approx(least_cost(HALF, box_rows(HALF, odds.sigma[0], odds.low[0], odds.high[0]),
                                                   1 - np.eye(2)), abs=3e-6)  # fmt: skip


@pytest.mark.slow
def test_the_closed_form_is_the_optimum_of_the_whole_program():
    rng = np.random.default_rng(1)
    for _ in range(500):
        belief, weights, lo, hi = random_box(rng)
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


@pytest.mark.slow
def test_integer_tables_keep_every_promise_and_miss_the_optimum_by_next_to_nothing():
    rng = np.random.default_rng(2)
    worst = 0.0
    for case in range(2000):
        n = int(rng.integers(2, 7))
        belief = rng.dirichlet(np.full(n, rng.choice([0.2, 1.0])))
        if rng.random() < 0.2:
            belief[0] = 0.0
            belief /= belief.sum()
        promises = [random_promise(rng, belief, 2 if rng.random() < 0.7 else 4) for _ in range(rng.integers(1, 3))]
        costs = [hamming(), absolute(np.arange(n)), matrix(rng.random((n, n)) * (1 - np.eye(n)))][case % 3]
        lies = rng.random() < 0.8
        made = guarded(bounds_of([(belief, one) for one in promises], belief), costs, lies)
        table = table_of(made)
        assert (table.sum(1) == DENOMINATOR).all()
        assert table.min() >= 0
        for k in range(table.shape[1]):
            assert max(excess(belief, one, table[:, k]) for one in promises) <= 1e-12, case
        if not lies:
            x, k = np.nonzero(table)
            possible = belief[x] > 0
            assert ((made.outputs[k] == x) | (made.outputs[k] == WITHHELD))[possible].all()
        worst = max(worst, made.error - made.bound)
        assert made.error - made.bound <= 1e-6, case
    assert worst < 1e-6


def promised_twice(seed, count=60):
    """Random beliefs, each with the bounds of two random promises, where these bind."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        belief = rng.dirichlet(np.ones(int(rng.integers(2, 6))))
        promises = [random_promise(rng, belief) for _ in range(2)]
        bounds = bounds_of([(belief, one) for one in promises], belief)
        if len(bounds.aimed):
            yield belief, bounds


@pytest.mark.slow
def test_the_bound_is_the_optimum_of_the_program_over_all_pairs():
    for belief, bounds in promised_twice(seed=3):
        places = np.arange(len(belief))
        made = guarded(bounds, absolute(places))
        cost = np.abs(np.subtract.outer(places, places))
        assert made.bound == pytest.approx(least_cost(belief, bounds.aimed, cost), abs=1e-6)


def test_labels_that_a_solver_leaves_with_next_to_nothing_are_never_released():
    belief = np.array([0.5, 0.5 - 3e-8, 3e-8])
    two = [box([0.2, 0.3, 1.0], 0.25, 0.3), box([0.3, 0.6, 0.0], 0.45, 0.3)]
    made = guarded(bounds_of([(belief, one) for one in two], belief), hamming())
    assert 2 not in made.outputs.tolist()
    assert (belief @ table_of(made) / DENOMINATOR > 1e-7).all()


def test_a_free_symbol_is_disclosed_however_unlikely_it_is():
    belief = np.array([0.5, 0.5 - 1e-12, 1e-12])
    made = guarded(bounds_of([(belief, box([0.0, 1.0, 0.5], 0.5, 0.3))], belief), hamming())
    place = made.outputs.tolist().index(2)
    assert table_of(made)[2, place] == DENOMINATOR


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
    assert table_of(made).tolist() == [[DENOMINATOR, 0], [0, DENOMINATOR]]


@pytest.mark.slow
def test_both_promises_at_once():
    rng = np.random.default_rng(5)
    for _ in range(100):
        n = int(rng.integers(2, 7))
        belief = rng.dirichlet(np.ones(n))
        promise = random_promise(rng, belief)
        bounds = bounds_of([(belief, promise)], belief)
        alone, made = guarded(bounds, hamming()), guarded(bounds, hamming(), epsilon=0.8)
        kernel = made.kernels().one(0)
        assert kernel.leakage(belief, whole_alphabet=True) <= 0.8
        assert kernel.ldp() <= 1.6
        assert alone.error - 1e-9 <= made.error <= 1 - belief.max() + 1e-9
        assert all(excess(belief, promise, column) <= 1e-12 for column in table_of(made).T)


def test_an_observer_who_rules_a_symbol_out_never_sees_it_disclosed():
    mine, theirs = np.array([0.4, 0.3, 0.3]), np.array([0.5, 0.5, 0.0])
    promises = [(mine, box([0.2, 0.5, 0.9], 0.5, 0.4)), (theirs, box([0.3, 0.5, 0.4], 0.4, 0.4))]
    made = guarded(bounds_of(promises, mine), hamming())
    assert 2 not in made.outputs.tolist()
    for seen, promise in promises:
        assert all(excess(seen, promise, column) <= 1e-12 for column in table_of(made).T)


@pytest.mark.parametrize("costs", [hamming(), absolute(np.arange(400))], ids=["pools", "program"])
def test_large_alphabets(costs):
    rng = np.random.default_rng(6)
    belief = rng.dirichlet(np.full(400, 0.5))
    sigma = np.where(np.arange(400) < 12, 0.9, rng.uniform(0.1, 0.4, 400))
    promise = box(sigma, float(belief @ sigma), 0.5)
    made = guarded(bounds_of([(belief, promise)], belief), costs)
    table = table_of(made)
    assert (table.sum(1) == DENOMINATOR).all()
    assert max(excess(belief, promise, column) for column in table.T) <= 1e-12
    assert costs.is_hamming is False or made.error - made.bound <= 1e-6


def test_too_large_for_an_epsilon_beside_the_secrets():
    belief = np.full(6000, 1 / 6000)
    with pytest.raises(InputError, match="at most 5000 symbols"):
        guarded(bounds_of([], belief), hamming(), epsilon=1.0)


@pytest.mark.slow
def test_the_best_table_for_one_window_is_taken_where_it_keeps_the_others_too():
    """With several windows the closed form is tried first; the error is that of the program over all rows."""
    for belief, bounds in promised_twice(seed=8):
        made = guarded(bounds, hamming())
        assert made.error == pytest.approx(least_cost(belief, bounds.aimed, 1 - np.eye(len(belief))), abs=3e-6)


def test_an_epsilon_is_kept_inside_the_program():
    """Sound at ε and within the secrets, at the least error of the program that has both."""
    rng = np.random.default_rng(9)
    for _ in range(40):
        n, epsilon = int(rng.integers(2, 6)), float(rng.choice([0.3, 1.0]))
        belief = rng.dirichlet(np.ones(n))
        bounds = bounds_of([(belief, random_promise(rng, belief))], belief)
        distribution = np.tile(belief, (n, 1))
        lifts = np.concatenate(
            [np.eye(n) - np.exp(epsilon) * distribution, np.exp(-epsilon) * distribution - np.eye(n)]
        )
        best = least_cost(belief, np.concatenate([bounds.aimed, lifts]), 1 - np.eye(n))
        assert guarded(bounds, hamming(), epsilon=epsilon).error == pytest.approx(best, abs=1e-5)


def types(seed: int, size: int = 12, count: int = 12) -> MarkovModel:
    """A mixture of chains that each like to stay where they are."""
    rng = np.random.default_rng(seed)
    chains = []
    for _ in range(count):
        table = rng.dirichlet(np.full(size, 0.15), size=size) + 0.6 * np.eye(size) + 1e-3
        table /= table.sum(1, keepdims=True)
        chains.append(MarkovModel(rng.dirichlet(np.full(size, 0.5)), table))
    return MarkovModel.mixture(chains, rng.dirichlet(np.ones(count)))


def released(model: MarkovModel, seed: int, users: int, length: int) -> tuple[np.ndarray, CodeStreams]:
    setting = Policy(secrets=[secrets.ever(0, window=20, epsilon=0.5)], side_information=0).on(model)
    streams, raw = CodeStreams(setting, randomness=SeededRandomness(seed)), model.sample(length, users, seed=seed)
    disclosed = [streams.release(np.arange(users), raw[:, t]).codes for t in range(length)]
    return np.stack(disclosed, axis=1), streams


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_program_of_a_mixture_is_solved(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, gaps, solve = [], list[float](), programs.bounded

    def tracked(*given: np.ndarray) -> programs.Solution:
        asked.append(given)
        found = solve(*given)  # raises where it is not solved
        gaps.append(found.error - found.bound)
        return found

    monkeypatch.setattr(programs, "bounded", tracked)
    _, streams = released(types(seed), seed, users=8, length=20)
    assert len(gaps) == len(asked) > 50
    assert max(gaps) < 5e-3
    assert streams.secrets()[0].log_odds_worst <= 0.5


@pytest.mark.slow
def test_a_program_that_does_not_end_is_given_up_and_the_secret_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "ITERATIONS", 0)
    codes, streams = released(types(0), 0, users=4, length=12)
    assert codes.shape == (4, 12)
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
@pytest.mark.parametrize("seed", range(3))
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
    assert made.error <= 1.12 * whole.error


@pytest.mark.parametrize("windows", [1, 2])
def test_wrong_symbols_of_many_kinds_share_one_more_row(windows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "SMALL", 16)
    monkeypatch.setattr(solving, "LABELS", 8)
    for seed in range(3):
        bounds = bounded(40, windows, seed)
        made = solving.guarded(bounds, hamming())
        assert made.keeps(bounds)
        assert (made.full().sum(1) == 2**62).all()


def test_a_belief_in_one_cell_and_one_in_all_alike() -> None:
    distance = square(12)
    for broad in (1e-3, 1e3):
        bounds = bounded(144, 2, 5, broad)
        assert solving.guarded(bounds, distance).keeps(bounds)


@pytest.mark.slow
def test_a_zone_of_a_map_is_kept_event_by_event() -> None:
    rng, grid = np.random.default_rng(2), Grid.regular(9, 9, bounds=(0.0, 9.0, 0.0, 9.0))
    walks = np.clip(np.cumsum(rng.integers(-1, 2, size=(30, 40, 2)), axis=1) + 4, 0, 8) + 0.5
    model = MarkovModel.fit([list(map(tuple, walk.tolist())) for walk in walks], alphabet=grid)
    kept = secrets.zone(centre=(4.5, 4.5), radius=0.8, epsilon=0.8, window=4)
    setting = Policy(secrets=kept, mechanism="guarded", distortion="euclidean").on(model)
    streams = CodeStreams(setting, randomness=SeededRandomness(3))
    for t in range(4):
        streams.release(np.arange(2), grid.encode(list(map(tuple, walks[:2, t].tolist()))))
    assert streams.secrets()[0].log_odds_worst <= 0.8
