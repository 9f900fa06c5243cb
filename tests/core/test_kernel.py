"""Kernels: every figure against exact fractions on the same integers, every draw against the weights."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import streams as ref
from seqveil import distortion, mechanisms
from seqveil.core.alphabet import WITHHELD
from seqveil.core.errors import GuaranteeError, InputError
from seqveil.core.kernel import DENOMINATOR, Kernels, mix, to_weights

NAMES = mechanisms.instantaneous()
EPSILONS = [0.01, 0.1, 0.5, 1.0, 2.0, 4.0]
seeds = st.integers(0, 2**32 - 1)


def random_row(rng, count, total=DENOMINATOR):
    """Integers ≥ 0 that sum to the total; some are zero, some tiny."""
    cuts = np.sort(rng.integers(0, total + 1, count - 1))
    if count > 2 and rng.random() < 0.5:
        cuts[0] = cuts[1] - rng.integers(0, min(3, cuts[1] + 1))
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(np.int64)


def handmade(rng, n, few, merged):
    """A stack of one random kernel of the form asked for."""
    classes = int(rng.integers(1, n + 1)) if merged else n
    outputs = rng.permutation(n)[None, : rng.integers(1, n + 1)].astype(np.int64)
    width = outputs.shape[1]
    rows = rng.permutation(np.r_[np.arange(classes), rng.integers(0, classes, n - classes)])[None] if merged else None
    if not few:
        extra = np.array([[random_row(rng, width) for _ in range(classes)]])
        return Kernels(n, outputs, np.zeros((1, width), np.int64), extra, None, rows)
    disclosed, slots = int(rng.integers(0, DENOMINATOR)), int(rng.integers(1, min(3, width) + 1))
    places = np.array([[rng.permutation(width)[:slots] for _ in range(classes)]])
    extra = np.array([[random_row(rng, slots, disclosed) for _ in range(classes)]])
    return Kernels(n, outputs, random_row(rng, width, DENOMINATOR - disclosed)[None], extra, places, rows)


def written_out(kernels):
    """weight(x, y) = base(y) + extra(class of x, y), cell by cell, in Python integers."""
    width = kernels.outputs.shape[1]
    table = [[int(b) for b in kernels.base[0]] for _ in range(kernels.n)]
    for x in range(kernels.n):
        row = x if kernels.rows is None else int(kernels.rows[0, x])
        for j, extra in enumerate(kernels.extra[0, row].tolist()):
            table[x][j if kernels.places is None else int(kernels.places[0, row, j])] += extra
    assert all(len(row) == width for row in table)
    return np.array(table, dtype=np.int64)


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(seed=seeds, n=st.integers(1, 7), few=st.booleans(), merged=st.booleans())
def test_every_form_means_the_same_table_with_the_same_figures(seed, n, few, merged):
    rng = np.random.default_rng(seed)
    kernels = handmade(rng, n, few, merged)
    table, kernel, belief = written_out(kernels), kernels.one(0), ref.random_belief(rng, n)
    kept = np.flatnonzero(table.max(0) > 0)
    assert (table.sum(1) == DENOMINATOR).all()
    assert kernel.codes.tolist() == kernels.outputs[0, kept].tolist()
    assert (kernel.weights == table[:, kept]).all()
    assert all((kernel.column(j) == table[:, place]).all() for j, place in enumerate(kept))
    marginal = [
        float(sum(Fraction(float(b)) * int(w) for b, w in zip(belief, table[:, y], strict=True)) / DENOMINATOR)
        for y in kept
    ]
    np.testing.assert_allclose(kernel.marginal(belief), marginal, rtol=1e-14)
    low, high = kernels.extremes()
    assert (low[0] == table.min(0)).all()
    assert (high[0] == table.max(0)).all()
    assert_figures(kernel, belief)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=25)
@given(seed=seeds, n=st.integers(1, 9), epsilon=st.sampled_from(EPSILONS), positions=st.booleans())
def test_leakage_of_every_mechanism_is_exact_and_rounded_outward(name, seed, n, epsilon, positions):
    rng = np.random.default_rng(seed)
    belief = ref.random_belief(rng, n)
    if positions and name == "optimal":
        n = min(n, 5)  # a linear program each
        belief = ref.random_belief(rng, n)
    positions = positions and not mechanisms.get(name).hamming_only
    costs = distortion.absolute(rng.random(n)) if positions else distortion.hamming()
    kernel = mechanisms.get(name).kernels(belief[None], epsilon, costs).one(0)
    assert (kernel.weights.sum(1) == DENOMINATOR).all()
    assert (kernel.weights >= 0).all()
    assert_figures(kernel, belief)
    expected = math.fsum(
        belief[x] * kernel.weights[x, j] / DENOMINATOR * costs.matrix(n)[x, y]
        for x in range(n)
        for j, y in enumerate(kernel.codes)
    )
    assert kernel.error(belief, costs) == pytest.approx(expected, abs=1e-12)


def assert_figures(kernel, belief):
    """Never below the exact figure, and within 1e-9 of it."""
    for whole in (False, True):
        exact, reported = ref.exact_leakage(kernel.weights, belief, whole), kernel.leakage(belief, whole)
        assert reported >= exact
        assert reported == exact or reported - exact < 1e-9
    exact, reported = ref.exact_ldp(kernel.weights), kernel.ldp()
    assert reported >= exact
    assert reported == exact or reported - exact < 1e-9
    least, largest = (side[0, kernel._kept] for side in kernel._stack.lift_bounds(belief[None]))
    for j, pair in enumerate(ref.exact_lifts(kernel.weights, belief)):
        if pair is not None:
            assert least[j] <= pair[0]
            assert largest[j] >= pair[1]
            assert least[j] == pair[0] or pair[0] - least[j] < 1e-9
            assert largest[j] == pair[1] or largest[j] - pair[1] < 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(2))
def test_each_output_has_as_many_randomness_as_its_weight(name, seed):
    """Inverting cumulative weights: first, last and random randomness of each interval lead to one output."""
    rng = np.random.default_rng(seed)
    n = 6
    belief = ref.random_belief(rng, n)
    kernels = mechanisms.get(name).kernels(belief[None], 1.0)
    for code in range(n):
        row = code if kernels.rows is None else int(kernels.rows[0, code])
        steps = np.concatenate([kernels.extra[0, row], kernels.base[0]])
        edges = [0, *np.cumsum(steps).tolist()]
        assert edges[-1] == DENOMINATOR
        randomness_of = np.zeros(kernels.outputs.shape[1], dtype=object)
        for start, end in itertools.pairwise(edges):
            if end > start:
                tried = [start, end - 1, *rng.integers(start, end, 3).tolist()]
                drawn = {int(kernels.pick(np.array([code]), np.array([uniform]))[0]) for uniform in tried}
                assert len(drawn) == 1
                randomness_of[drawn.pop()] += end - start
        assert randomness_of.tolist() == written_out(kernels)[code].tolist()


@settings(deadline=None, max_examples=40)
@given(seed=seeds, n=st.integers(2, 8), epsilon=st.sampled_from(EPSILONS))
def test_made_sound_repairs_whatever_a_solver_left(seed, n, epsilon):
    rng = np.random.default_rng(seed)
    tables = rng.dirichlet(np.full(n, 0.2), size=(1, n)) + rng.normal(0, 1e-9, (1, n, n))
    belief = ref.random_belief(rng, n)
    kernel = Kernels.from_tables(np.arange(n)[None], tables, None, belief[None])
    kernel = kernel.made_sound(belief[None], epsilon, 2 * epsilon).one(0)
    assert (kernel.weights.sum(1) == DENOMINATOR).all()
    assert ref.exact_leakage(kernel.weights, belief, whole_alphabet=True) <= epsilon


@settings(deadline=None, max_examples=100)
@given(seed=seeds, count=st.integers(1, 40))
def test_rows_of_probabilities_become_rows_that_sum_exactly(seed, count):
    tables = np.random.default_rng(seed).dirichlet(np.full(count, 0.1), size=5)
    weights = to_weights(tables)
    assert (weights.sum(1) == DENOMINATOR).all()
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights / DENOMINATOR, tables, atol=count * 2.0**-52)


def test_made_sound_raises_where_a_lift_or_the_ldp_level_passes():
    belief = np.array([[0.5, 0.5]])
    kernels = mechanisms.randomized_response.kernels(belief, 1.0)
    assert kernels.made_sound(belief, 1.0, 1.0) is kernels
    with pytest.raises(GuaranteeError, match="nothing was"):
        kernels.made_sound(belief, 0.5, 1.0)
    with pytest.raises(GuaranteeError):
        kernels.made_sound(belief, 1.0, 0.9)


def test_a_full_disclosure_leaks_without_bound():
    table = np.array([[[DENOMINATOR, 0], [0, DENOMINATOR]]])
    kernel = Kernels(2, np.array([[0, 1]]), np.zeros((1, 2), np.int64), table).one(0)
    assert kernel.ldp() == math.inf
    assert kernel.leakage([0.5, 0.5]) == math.inf
    assert kernel.leakage([1.0, 0.0]) < 1e-9  # the observer knew
    assert kernel.leakage([1.0, 0.0], whole_alphabet=True) == math.inf


def test_saying_nothing_has_no_cost_but_that_of_a_wrong_symbol():
    table = np.full((1, 2, 2), DENOMINATOR // 2)
    kernel = Kernels(2, np.array([[0, WITHHELD]]), np.zeros((1, 2), np.int64), table).one(0)
    assert kernel.error([0.5, 0.5], distortion.hamming()) == 0.75
    with pytest.raises(InputError, match="saying nothing has no cost"):
        kernel.error([0.5, 0.5], distortion.absolute([0.0, 1.0]))


def test_a_table_too_large_to_write_out_says_so():
    kernel = mechanisms.randomized_response.kernels(np.full((1, 20_000), 1 / 20_000), 1.0).one(0)
    with pytest.raises(InputError, match="column"):
        _ = kernel.weights
    assert int(kernel.column(7).argmax()) == 7


def test_fact_4_mixing_keeps_the_marginal_and_shrinks_lifts_no_more_than_needed():
    rng = np.random.default_rng(7)
    for _ in range(40):
        n, epsilon = int(rng.integers(2, 6)), float(rng.choice([0.1, 0.5, 1.0]))
        belief, table = rng.dirichlet(np.ones(n)), rng.dirichlet(np.full(n, 0.5), size=n)
        mixed = mix(table[None], belief[None], epsilon)[0]
        marginal = belief @ table
        np.testing.assert_allclose(belief @ mixed, marginal, atol=1e-14)
        before, after = table / marginal, mixed / marginal
        at = np.unravel_index(np.abs(before - 1).argmax(), before.shape)
        share = (before[at] - after[at]) / (before[at] - 1)
        np.testing.assert_allclose(after, (1 - share) * before + share, rtol=1e-9, atol=1e-12)
        assert np.abs(np.log(after)).max() <= epsilon + 1e-9
        assert share == pytest.approx(0, abs=1e-12) or np.abs(np.log(after)).max() == pytest.approx(epsilon, abs=1e-9)
