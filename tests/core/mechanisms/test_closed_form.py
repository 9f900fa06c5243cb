"""The exact optima, Hamming in closed form and any distortion by program, against the full LP and known facts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.optimum import full_lp
from seqveil.core import programs
from seqveil.core.distortion import hamming as hamming_distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Kernels
from seqveil.core.mechanisms import closed_form, optimal

EPSILONS = (0.1, 0.2, 0.5, math.log(2.0), 1.0, math.log(3.0), 2.0, 3.0, 5.0)
weights = st.one_of(
    st.just(0.0), st.sampled_from([1e-12, 1e-6, 0.25, 0.5, 1.0]), st.floats(1e-3, 1.0), st.floats(0.9, 1.0)
)


@st.composite
def beliefs(draw, largest=7):
    values = np.array(draw(st.lists(weights, min_size=2, max_size=largest)))
    values[draw(st.integers(0, len(values) - 1))] += 0.5
    return values / values.sum()


def random_belief(generator, n):
    """From nearly certain to nearly uniform, sometimes with zeros, sometimes over thirteen decades."""
    kind = generator.integers(6)
    if kind < 3:
        belief = generator.dirichlet(np.full(n, (0.1, 0.5, 5.0)[kind]))
    elif kind == 3:
        belief = 1.0 + 10.0 ** -generator.integers(1, 6) * generator.random(n)
    elif kind == 4:
        belief = generator.random(n) * (generator.random(n) < 0.5)
        belief[0] += 0.01
    else:
        belief = 10.0 ** generator.uniform(-13.0, 0.0, n)
    return belief / belief.sum()


def hamming(belief, epsilon):
    """The closed form for one belief: its table written out (columns in order of likelihood), its error, the bound."""
    kernels, bound = closed_form.solve(belief[None], epsilon)
    table = (kernels.extra[0, kernels.rows[0]] + kernels.base[0]) / 2.0**62
    hits = belief[kernels.outputs[0]] * table[kernels.outputs[0], np.arange(table.shape[1])]
    return table, 1.0 - math.fsum(hits), bound[0]


def check_sound(belief, table, epsilon, tolerance=1e-12):
    marginal = belief @ table
    assert table.min() >= 0.0
    np.testing.assert_allclose(table.sum(axis=1), 1.0, rtol=0.0, atol=tolerance)
    used = marginal > 0.0
    assert not table[:, ~used].any()
    # floats round a lift of e^-ε by parts of the largest, e^ε; releases leave room for it (`usable`)
    rounded = tolerance + 2.0**-50 * math.exp(epsilon) + 8.0 / (2.0**62 * marginal[used])
    lifts = table[:, used] / marginal[used]
    assert (lifts <= math.exp(epsilon) * (1.0 + rounded)).all()
    assert (lifts >= math.exp(-epsilon) * (1.0 - rounded)).all()
    return marginal


def assert_hamming_is_the_optimum(belief, epsilon):
    table, error, bound = hamming(belief, epsilon)
    check_sound(belief, table, epsilon)
    assert abs(error - bound) <= 1e-12
    assert error <= 1.0 - belief.max() + 1e-12
    expected, _ = full_lp(belief, epsilon, 1.0 - np.eye(len(belief)))
    assert error == pytest.approx(expected, abs=5e-9)  # the twin is good to about 2e-9


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(beliefs(12), st.sampled_from(EPSILONS))
def test_hamming_is_the_full_lp(belief, epsilon):
    assert_hamming_is_the_optimum(belief, epsilon)


@settings(max_examples=60, deadline=None)
@given(beliefs(largest=60), st.floats(0.01, 8.0))
def test_hamming_is_certified_and_sound_everywhere(belief, epsilon):
    table, error, bound = hamming(belief, epsilon)
    check_sound(belief, table, epsilon)
    assert abs(error - bound) <= 1e-12
    kernel = optimal.kernels(belief[None], epsilon)  # integers, checked against ε on the way
    assert abs(kernel.one(0).error(belief, hamming_distortion()) - bound) <= 1e-9


def test_hamming_drops_what_would_hardly_ever_be_released():
    epsilon = math.log(3.0) + 2e-11  # four whole slots, and a fifth label of probability 1e-11 or so
    kernel = optimal.kernels(np.full((1, 40), 1.0 / 40.0), epsilon).one(0)
    assert kernel.codes.size == 4


@pytest.mark.parametrize("n", [30, 200, 3000])
def test_hamming_tells_symbols_apart_where_it_is_free(n):
    """Symbols that are never released still fill different slots, so a release says something about them."""
    belief = np.sort(np.random.default_rng(n).dirichlet(np.full(n, 0.5)))[::-1]
    kernels, _ = closed_form.solve(belief[None], 1.0)
    assert len(np.unique(hamming(belief, 1.0)[0][4:].round(9), axis=0)) > 3
    assert kernels.extra.shape[1] <= 4 * 4


@settings(max_examples=60, deadline=None)
@given(beliefs(largest=12), st.sampled_from([2.0, 3.0, 4.0]), st.sampled_from([-1e-13, -1e-15, 1e-15, 1e-13]))
def test_hamming_stays_sound_where_slots_just_fit(belief, fits, nudge):
    belief = np.round(belief * 4.0 * (1.0 + fits)) + (belief > 0.0) * 1e-14
    belief /= belief.sum()
    table, error, bound = hamming(belief, math.log(fits) + nudge)
    check_sound(belief, table, math.log(fits) + nudge)
    assert error - bound <= 1e-11


def test_columns_survive_rounding():
    assert [closed_form.columns(10**6, math.log(k)) for k in range(2, 200)] == list(range(3, 201))
    assert closed_form.columns(5, 1000.0) == 5


def distortions(generator, n):
    place, points = np.arange(float(n)), generator.random((n, 2))
    yield 1.0 - np.eye(n)
    yield np.abs(np.subtract.outer(place, place))
    yield np.subtract.outer(place, place) ** 2
    yield np.linalg.norm(points[:, None] - points, axis=2)
    yield generator.random((n, n + 2))
    yield generator.integers(-1, 2, (n, max(1, n - 2))).astype(float)


def check_program(belief, epsilon, distortion):
    optimum = programs.sound(belief, epsilon, distortion)
    integers = Kernels.from_tables(optimum.outputs[None], optimum.table[None], None, belief[None])
    bounds = epsilon + 1e-10, 2 * epsilon + 2e-10
    weights = integers.made_sound(belief[None], *bounds).extra[0]
    check_sound(belief, weights / 2.0**62, bounds[0])
    spread = float(np.ptp(distortion)) or 1.0
    cost = np.sum(belief[:, None] * (weights / 2.0**62) * distortion[:, optimum.outputs])
    assert optimum.error == pytest.approx(cost, abs=1e-8 * spread)
    assert len(set(optimum.outputs.tolist())) == len(optimum.outputs)
    assert optimum.error <= (belief @ distortion).min() + 1e-12 * spread
    assert optimum.bound <= optimum.error
    return optimum, spread


@pytest.mark.parametrize(("n", "count"), [(2, 4), (3, 4), (6, 5)])
def test_program_is_the_full_lp(n, count):
    generator = np.random.default_rng(n)
    for trial in range(count):
        belief, epsilon = random_belief(generator, n), EPSILONS[trial % len(EPSILONS)]
        for distortion in distortions(generator, n):
            optimum, spread = check_program(belief, epsilon, distortion)
            expected, _ = full_lp(belief, epsilon, distortion)
            assert optimum.error == pytest.approx(expected, abs=1e-8 * spread)
            assert optimum.error - optimum.bound <= 2e-8 * spread  # beliefs down to 1e-13 make it rougher than usual


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_program_closes_the_gap_when_labels_are_generated(epsilon):
    generator = np.random.default_rng(7)
    for distortion in distortions(generator, 64):
        optimum, spread = check_program(generator.dirichlet(np.full(64, 0.5)), epsilon, distortion)
        assert optimum.error - optimum.bound <= 2e-9 * spread


def test_program_is_the_full_lp_where_labels_are_generated():
    place = np.arange(51.0)
    optimum, spread = check_program((1.0 + place) / 1326.0, 1.0, np.abs(np.subtract.outer(place, place)))
    assert optimum.error == pytest.approx(6.6964839678, abs=1e-8)  # `full_lp` takes seconds
    assert optimum.error - optimum.bound <= 2e-9 * spread


def test_program_takes_the_published_kernel_where_it_is_sound():
    belief, epsilon = np.array([0.3, 0.4, 0.3]), 1.0
    distance = np.abs(np.subtract.outer(np.arange(3.0), np.arange(3.0)))
    optimum = programs.sound(belief, epsilon, distance)
    published = math.exp(-epsilon) * belief - math.expm1(-epsilon) * np.eye(3)
    np.testing.assert_allclose(optimum.table, published, rtol=0.0, atol=1e-15)
    assert optimum.error - optimum.bound <= 1e-15


def test_program_gives_symbols_of_belief_zero_their_cheapest_sound_row():
    belief, epsilon = np.array([0.5, 0.5, 0.0]), 1.0
    distance = np.abs(np.subtract.outer(np.arange(3.0), np.arange(3.0)))
    table = programs.sound(belief, epsilon, distance).table
    np.testing.assert_allclose(table[2], table[1], rtol=0.0, atol=1e-15)


def test_a_program_that_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr(programs, "ITERATIONS", 0)
    belief, distance = np.array([0.05, 0.6, 0.35]), np.abs(np.subtract.outer(np.arange(3.0), np.arange(3.0)))
    with pytest.raises(programs.Unsolved, match="was not solved"):
        programs.sound(belief, 0.3, distance)


def test_program_refuses_what_it_cannot_solve():
    with pytest.raises(InputError, match="balanced"):
        programs.sound(np.full(500, 1.0 / 500), 1.0, np.zeros((500, 500)))
