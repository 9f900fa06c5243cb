"""The facts the guarantees rest on, one by one, each against enumeration or a closed form written down here again."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

import reference_streams as ref
from seqveil import mechanisms
from seqveil.core import filtering
from seqveil.core.distortion import absolute, euclidean, hamming, matrix, squared
from seqveil.core.kernel import DENOMINATOR, Kernels, mix, to_weights
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import stream
from seqveil.engine.budget import Budget
from seqveil.engine.live import skipped
from seqveil.engine.policy import Policy
from seqveil.engine.session import Session
from seqveil.engine.state import State
from seqveil.receiver.decode import decode_stream, estimates

SOUND = [name for name in mechanisms.instantaneous() if mechanisms.get(name).sound]
SPARING = ("optimal_ldp", "temporal")  # may find nothing worth telling, or keep back what correlation gives away
CHAINS = [(1, False), (1, True), (2, False), (2, True)]  # order, whether some transitions are impossible


def kernel_of(name, belief, epsilon, costs=None):
    return mechanisms.get(name).kernels(np.array([belief], dtype=float), epsilon, costs).one(0)


def beliefs(count, n, seed=0):
    rng = np.random.default_rng(seed)
    return [ref.random_belief(rng, n) for _ in range(count)]


def adaptive_paths(distribution, n, length, columns=(), epsilons=()):
    """Releases whose mechanism and ε are chosen by the releases before, with beliefs by Bayes over all sequences."""
    if len(columns) == length:
        yield columns, epsilons
        return
    past = sum(int(column.argmax()) for column in columns) + len(columns)
    epsilon = [0.3, 0.8, 1.5][past % 3]
    belief = ref.symbol_distribution(distribution, columns, len(columns), n)
    kernel = kernel_of(SOUND[past % len(SOUND)], belief, epsilon)
    for index in range(len(kernel.codes)):
        yield from adaptive_paths(distribution, n, length, (*columns, kernel.column(index)), (*epsilons, epsilon))


@pytest.mark.parametrize("seed", range(3))
def test_fact_1_telescoping_bounds_the_sequence_leakage_for_adaptive_kernels(seed):
    n, length = 3, 3
    prior, transitions = ref.random_chain(np.random.default_rng(seed), n, zeros=seed == 2)
    distribution = ref.sequence_distribution(prior, transitions, length)
    for columns, epsilons in adaptive_paths(distribution, n, length):
        total = sum(chance * ref.explained(x, columns) for x, chance in distribution.items())
        seen = [ref.symbol_distribution(distribution, columns[:k], k, n) for k in range(length)]
        marginals = [math.fsum(seen[k] * columns[k]) for k in range(length)]
        for x, chance in distribution.items():
            if chance > 0:
                whole = ref.log(ref.explained(x, columns) / total)
                parts = [math.log(int(columns[k][x[k]]) / marginals[k]) for k in range(length)]
                assert whole == pytest.approx(math.fsum(parts), abs=1e-12)
                assert abs(whole) <= math.fsum(epsilons)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0])
def test_fact_2_the_closed_form_is_one_sided(epsilon):
    edge = 1 / (1 + math.exp(epsilon))
    sides = set()
    for belief in beliefs(40, 5) + beliefs(20, 2, seed=1) + [np.array([edge + 1e-6, 1 - edge - 1e-6])]:
        kernel = kernel_of("crr", belief, epsilon)
        for code, pair in zip(kernel.codes, ref.exact_lifts(kernel.weights, belief), strict=True):
            if belief[code] > 1e-9:  # rarer ones are rounded to few integers
                assert pair[0] >= -epsilon - 1e-7
                assert (pair[1] <= epsilon) == (belief[code] >= edge)
                sides.add(bool(belief[code] >= edge))
    assert sides == {True, False}


def test_fact_2_the_closed_form_can_be_worse_than_silence():
    belief = [0.9, 0.1]
    assert kernel_of("crr", belief, 0.5).error(belief, hamming()) == pytest.approx(0.109, abs=5e-4)
    constant = mechanisms.constant(np.array([belief]), hamming()).one(0)
    assert constant.error(belief, hamming()) == pytest.approx(0.100, abs=1e-12)
    assert constant.leakage(belief, whole_alphabet=True) < 1e-12


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 3.0])
def test_fact_3_sound_for_every_symbol_and_2_epsilon_ldp(name, epsilon):
    for belief in beliefs(25, 6):
        kernel = kernel_of(name, belief, epsilon)
        assert ref.exact_leakage(kernel.weights, belief, whole_alphabet=True) <= epsilon
        assert ref.exact_ldp(kernel.weights) <= 2 * epsilon
        hits = math.fsum(belief[y] * int(kernel.weights[y, j]) / DENOMINATOR for j, y in enumerate(kernel.codes))
        assert hits <= math.exp(epsilon) * belief.max() + 1e-15


@pytest.mark.parametrize("name", SOUND)
def test_fact_3_a_wrong_belief_costs_what_its_total_variation_says(name):
    rng = np.random.default_rng(3)
    for belief in beliefs(25, 5, seed=4):
        epsilon = float(rng.choice([0.1, 0.5, 1.0]))
        kernel = kernel_of(name, belief, epsilon)
        for share in (0.01, 0.1, 0.5):
            truth = (1 - share) * belief + share * ref.random_belief(rng, 5)
            distance = 0.5 * math.fsum(abs(truth - belief))
            room = 1 - distance * (math.exp(epsilon) - math.exp(-epsilon))
            bound = min(2 * epsilon, epsilon - math.log(room)) if room > 0 else 2 * epsilon
            assert ref.exact_leakage(kernel.weights, truth) <= bound + 1e-12


def random_kernel(rng, n):
    """A kernel with every weight positive, and the integers it is made of."""
    weights = to_weights(rng.dirichlet(np.full(n, 3.0), size=n))
    return Kernels(n, np.arange(n)[None], np.zeros((1, n), np.int64), weights[None]).one(0)


def test_fact_3_and_theorem_3_ldp_implies_sip_implies_twice_the_ldp():
    rng = np.random.default_rng(5)
    for _ in range(60):
        n = int(rng.integers(2, 6))
        kernel = random_kernel(rng, n)
        level = ref.exact_ldp(kernel.weights)
        for _ in range(4):
            belief = ref.random_belief(rng, n)
            sip = ref.exact_leakage(kernel.weights, belief, whole_alphabet=True)
            assert sip <= level + 1e-15
            assert level <= 2 * sip + 1e-15


def least_ldp_error(belief, epsilon):
    """The best Hamming error of any ε-LDP kernel, as a dense linear program over Q(y|x)."""
    n = len(belief)
    above = []
    for y, x, other in itertools.product(range(n), repeat=3):
        if x != other:
            row = np.zeros((n, n))
            row[x, y], row[other, y] = 1, -math.exp(epsilon)
            above.append(row.ravel())
    sums = {"A_eq": np.kron(np.eye(n), np.ones(n)), "b_eq": np.ones(n)}
    found = linprog(-np.diag(belief).ravel(), A_ub=above, b_ub=np.zeros(len(above)), **sums)
    return 1 + found.fun


@pytest.mark.parametrize("epsilon", [0.2, 0.7, 1.5])
def test_fact_3_the_sandwich(epsilon):
    for belief in beliefs(6, 4, seed=6):
        error = kernel_of("optimal", belief, epsilon).error(belief, hamming())
        assert least_ldp_error(belief, 2 * epsilon) - 1e-8 <= error <= least_ldp_error(belief, epsilon) + 1e-8


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


def error_of(belief, epsilon, costs=None):
    costs = hamming() if costs is None else costs
    return kernel_of("optimal", belief, epsilon, costs).error(belief, costs)


def test_fact_5_the_example():
    assert error_of([0.2, 0.8], 1.0) == pytest.approx(0.1765, abs=5e-5)


@pytest.mark.parametrize("n", [2, 3, 5, 17])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 3.5])
def test_fact_5_uniform_belief(n, epsilon):
    expected = 1 - min(math.exp(epsilon) / n, 1 - (1 - 1 / n) * math.exp(-epsilon))
    assert error_of(np.full(n, 1 / n), epsilon) == pytest.approx(expected, abs=1e-9)


def test_fact_5_the_closed_form_where_it_is_sound():
    rng = np.random.default_rng(8)
    for _ in range(60):
        epsilon = float(rng.uniform(1.0, 3.0))
        n = int(rng.integers(2, 1 + min(6, math.floor(1 + math.exp(epsilon)))))
        edge = 1 / (1 + math.exp(epsilon))
        belief = edge + (1 - n * edge) * rng.dirichlet(np.ones(n))
        closed = math.exp(-epsilon) * (1 - math.fsum(belief**2))
        assert error_of(belief, epsilon) == pytest.approx(closed, abs=1e-9)
        points = rng.random(n)
        away = math.exp(-epsilon) * (belief @ np.abs(points[:, None] - points) @ belief)
        assert error_of(belief, epsilon, absolute(points)) == pytest.approx(away, abs=1e-8)


@pytest.mark.slow
def test_fact_5_never_worse_than_silence_and_better_with_more_epsilon():
    for belief in beliefs(30, 7, seed=9):
        errors = [error_of(belief, epsilon) for epsilon in (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)]
        assert errors[0] <= 1 - belief.max() + 1e-12
        assert all(later <= earlier + 1e-10 for earlier, later in itertools.pairwise(errors))


def model_of(order, zeros, n=3, seed=0):
    prior, transitions = ref.random_chain(np.random.default_rng(seed), n, order, zeros)
    return MarkovModel(prior, transitions, order=order), prior, transitions


@pytest.mark.slow
@pytest.mark.parametrize(("order", "zeros"), CHAINS)
@pytest.mark.parametrize("name", mechanisms.instantaneous())
def test_facts_6_and_7_belief_and_account_equal_bayes_over_all_sequences(order, zeros, name):
    """Every release path of a small chain: the filter against Bayes, the max-plus account against enumeration."""
    n, length = (2, 4) if order == 2 else (3, 3)
    model, prior, transitions = model_of(order, zeros, n, seed=11)
    setting = Policy(epsilon=0.7, mechanism=name).on(model)
    distribution, longer = (ref.sequence_distribution(prior, transitions, t) for t in (length, length + 1))
    for columns, state in ref.release_paths(setting, length):
        believed = np.bincount(model.newest, state.states[0], minlength=n)
        np.testing.assert_allclose(believed, ref.symbol_distribution(longer, columns, length, n), atol=1e-12)
        most, least = ref.sequence_leakage(distribution, columns)
        assert most <= state.account.most[0] < most + 1e-9
        assert least >= state.account.least[0]
        assert state.account.least[0] > least - 1e-9 or least == -math.inf  # some baselines rule symbols out
        assert not setting.mechanism.sound or max(most, -least) <= length * 0.7


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("when_spent", ["hold", "stop"])
def test_fact_7_the_budget_filter_holds_on_every_path(name, zeros, when_spent):
    model, prior, transitions = model_of(1, zeros, seed=12)
    total, length = 1.3, 4
    budget = Budget(total=total, when_spent=when_spent)
    setting = Policy(epsilon=0.9, budget=budget, mechanism=name).on(model)
    distributions = [ref.sequence_distribution(prior, transitions, t) for t in range(length + 1)]
    worst = 0.0
    for columns, state in ref.release_paths(setting, length):
        for t in range(1, length + 1):
            most, least = ref.sequence_leakage(distributions[t], columns[:t])
            assert max(most, -least) <= total
            worst = max(worst, most, -least)
        assert state.account.worst[0] <= total
    assert worst > 0.5 * total or name in SPARING  # the filter is no mere refusal


@pytest.mark.slow
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize(("order", "zeros"), CHAINS)
def test_fact_9_the_decoder_equals_bayes_over_all_sequences(order, zeros, smooth):
    n, length = (2, 5) if order == 2 else (3, 4)
    model, prior, transitions = model_of(order, zeros, n, seed=13)
    for name, epsilon in itertools.product(mechanisms.instantaneous(), (0.5, 1.5)):
        session, columns, released = Session(model, mechanism=name, epsilon=epsilon, seed=2), [], []
        for x in model.sample(length, seed=4)[0].tolist():
            kernel = session.kernel()
            released.append(session.release(x))
            columns.append(kernel.column(kernel.codes.tolist().index(released[-1])))
        distributions = decode_stream(model, released, mechanism=name, epsilon=epsilon, smooth=smooth)
        distribution = ref.sequence_distribution(prior, transitions, length)
        for t in range(length):
            known = columns if smooth else columns[: t + 1]
            np.testing.assert_allclose(distributions[t], ref.symbol_distribution(distribution, known, t, n), atol=1e-12)


def test_fact_9_estimates_have_the_least_expected_loss():
    rng = np.random.default_rng(14)
    n = 6
    model = MarkovModel(np.full(n, 1 / n), np.full((n, n), 1 / n))
    kinds = [hamming(), absolute(rng.normal(size=n)), squared(rng.normal(size=n)), euclidean(rng.normal(size=(n, 2)))]
    for costs in [*kinds, matrix(rng.random((n, n)))]:
        distributions = np.array([ref.random_belief(rng, n) for _ in range(40)])
        for distribution, guess in zip(distributions, estimates(distributions, costs, model), strict=True):
            losses = [
                sum(Fraction(float(distribution[x])) * Fraction(float(costs.between(x, y))) for x in range(n))
                for y in range(n)
            ]
            assert float(losses[guess]) <= float(min(losses)) + 1e-12


@pytest.mark.parametrize("name", SOUND)
def test_fact_11_pulses_cost_the_same_and_nothing_leaks_between_them(name):
    model, _, _ = model_of(1, False, seed=15)
    setting, randomness = Policy(epsilon=3 * 0.5, mechanism=name).on(model), SeededRandomness(1)
    state = State.start(setting)
    for x in model.sample(9, seed=1)[0][::3]:
        _, state = stream.step(setting, state, np.array([x]), randomness)
        for _ in range(2):
            belief, before = filtering.symbols(model, state.states), state.account.worst
            state = skipped(setting, state)
            assert state.account.worst == pytest.approx(before, abs=1e-13)
            np.testing.assert_allclose(filtering.symbols(model, state.states), model.advance(belief), atol=1e-14)
    assert state.spent[0] == pytest.approx(9 * 0.5, abs=1e-12)
    assert state.account.worst[0] <= 9 * 0.5
