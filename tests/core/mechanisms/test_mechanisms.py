"""Every registered mechanism under the contract checks, and checks that catch mechanisms broken on purpose."""

import math
from dataclasses import replace

import numpy as np
import pytest

from reference import checks
from reference import streams as ref
from seqveil import mechanisms
from seqveil.core.distortion import absolute, euclidean, hamming, matrix, squared
from seqveil.core.errors import GuaranteeError, InputError
from seqveil.core.kernel import DENOMINATOR, Kernels, usable
from seqveil.core.mechanisms import Mechanism, check_epsilon, constant

NAMES = mechanisms.instantaneous()
SOUND = [name for name in NAMES if mechanisms.get(name).sound]
ANY_COSTS = [name for name in NAMES if not mechanisms.get(name).hamming_only]
ALL_EPSILONS = [1e-9, 1e-3, 1.0, 8.0, 15.0, 16.0]


def costs_over(n, seed=0):
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.arange(2.0), np.arange(n // 2)), -1).reshape(-1, 2)
    return [absolute(rng.random(n)), squared(rng.random(n)), euclidean(grid), matrix(rng.random((n, n)))]


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_for_hamming(name):
    checks.check_mechanism(mechanisms.get(name), beliefs=150, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ANY_COSTS)
@pytest.mark.parametrize("kind", range(4))
def test_the_contract_for_other_distortions(name, kind):
    costs = costs_over(6)[kind]
    checks.check_mechanism(mechanisms.get(name), beliefs=12 if name == "optimal" else 60, distortion=costs, n=6)


@pytest.mark.parametrize("epsilon", ALL_EPSILONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_contract_at_every_epsilon_a_session_takes(name, epsilon):
    assert check_epsilon(epsilon) == epsilon
    rng = np.random.default_rng(2)
    for n in (2, 3, 12):
        checks.check_kernels(mechanisms.get(name), checks.random_beliefs(30, n, rng), epsilon)


def test_one_symbol_leaves_nothing_to_tell():
    for name in NAMES:
        kernel = mechanisms.get(name).kernels(np.ones((1, 1)), 1.0).one(0)
        assert kernel.weights.tolist() == [[DENOMINATOR]]


@pytest.mark.parametrize("name", SOUND)
def test_an_epsilon_too_small_to_use_gives_the_constant(name):
    assert usable(1e-12, 3) == 0.0
    kernel = mechanisms.get(name).kernels(np.array([[0.2, 0.5, 0.3]]), 1e-12).one(0)
    assert kernel.codes.tolist() == [1]


def test_the_constant_is_the_best_guess():
    beliefs = np.array([[0.4, 0.25, 0.35]])
    assert constant(beliefs, hamming()).outputs.tolist() == [[0]]
    assert constant(beliefs, absolute([0, 1, 2])).outputs.tolist() == [[1]]
    assert constant(beliefs, hamming()).leakage(beliefs, whole_alphabet=True)[0] < 1e-12


def test_large_alphabets_say_what_to_use_instead():
    with pytest.raises(InputError, match="balanced"):
        mechanisms.optimal.kernels(np.full((1, 3000), 1 / 3000), 8.0)
    with pytest.raises(InputError, match="balanced"):
        mechanisms.optimal.kernels(np.full((1, 600), 1 / 600), 1.0, absolute(np.arange(600)))


def test_a_mechanism_is_found_by_name_or_passes_through():
    assert mechanisms.get("crr") is mechanisms.get(mechanisms.crr)
    with pytest.raises(InputError, match="among"):
        mechanisms.get("magic")


def test_the_closed_form_is_algorithm_1():
    belief, epsilon = np.array([0.5, 0.3, 0.2]), 0.8
    table = mechanisms.crr.kernels(belief[None], epsilon).one(0).probabilities
    for x, y in np.ndindex(3, 3):
        wanted = 1 - (1 - belief[x]) * math.exp(-epsilon) if x == y else belief[y] * math.exp(-epsilon)
        assert table[x, y] == pytest.approx(wanted, abs=1e-12)
    rare = mechanisms.crr.kernels(np.array([[1.0, 1e-25]]), epsilon).one(0)
    assert rare.weights[0, 1] == 1  # rounded up: what is never drawn would tell all


@pytest.mark.parametrize("n", [2, 5, 40])
def test_randomised_response_reaches_its_level(n):
    kernel = mechanisms.randomized_response.kernels(np.full((1, n), 1 / n), 1.0).one(0)
    assert ref.exact_ldp(kernel.weights) == pytest.approx(1.0, abs=1e-9)
    assert ref.exact_ldp(kernel.weights) <= 1.0


def broken(build, sound=True, ldp=2.0):
    return Mechanism("broken", "", "", "", build, sound=sound, ldp=ldp)


def fixed_table(outputs, rows):
    """A mechanism that gives every belief the same table."""

    def build(beliefs, epsilon, distortion):
        users, n = beliefs.shape
        codes = np.tile(np.array(outputs, np.int64), (users, 1))
        table = np.tile(np.array(rows(n), np.int64), (users, 1, 1))
        return Kernels(n, codes, np.zeros_like(codes), table)

    return build


def of_the_stack(beliefs, epsilon, distortion):
    mean = np.tile(beliefs.mean(0), (len(beliefs), 1))
    return constant(mean, distortion)


HALF = DENOMINATOR // 2
BROKEN = {
    "declared sound": replace(mechanisms.crr, sound=True, ldp=2.0),
    "half the level declared": replace(mechanisms.balanced, ldp=0.5),
    "sound without a level": replace(mechanisms.balanced, ldp=math.inf),
    "two outputs share a symbol": broken(fixed_table([1, 1], lambda n: [[HALF, HALF]] * n)),
    "an output outside": broken(fixed_table([0, 99], lambda n: [[HALF, HALF]] * n)),
    "rows fall short": broken(fixed_table([0, 1], lambda n: [[HALF, HALF - 1]] * n)),
    "rows go over": broken(fixed_table([0, 1], lambda n: [[HALF, HALF + 1]] * n)),
    "a negative weight": broken(fixed_table([0, 1], lambda n: [[DENOMINATOR + 5, -5]] * n), sound=False),
    "the truth itself": broken(fixed_table([0, 1], lambda n: [[DENOMINATOR, 0]] + [[0, DENOMINATOR]] * (n - 1))),
    "others in the stack matter": broken(of_the_stack),
}


def test_a_table_that_leaks_is_mixed_until_it_does_not():
    """Repair by mixing makes whatever a solver returns sound, a leaking row as well as a residue beside a zero."""
    leaking = broken(fixed_table([0, 1], lambda n: [[HALF, HALF]] * (n - 1) + [[1, DENOMINATOR - 1]]))
    checks.check_mechanism(leaking, beliefs=50)
    belief = np.full((1, 4), 0.25)
    assert leaking.build(belief, 1.0, None).leakage(belief)[0] > 10
    assert 0.9 < leaking.kernels(belief, 1.0).leakage(belief)[0] <= 1.0


@pytest.mark.parametrize("mechanism", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_mechanism_is_caught(mechanism):
    with pytest.raises(GuaranteeError):
        checks.check_mechanism(mechanism, beliefs=200, n=5)


@pytest.mark.parametrize("epsilon", [2e-10, 1.0])
@pytest.mark.parametrize("name", SOUND)
def test_the_promise_holds_over_a_large_alphabet(name, epsilon):
    """Over 50,000 symbols a weight rounds by more of itself; what one symbol gives up must not tell it apart."""
    rng = np.random.default_rng(2)
    beliefs = np.stack([np.full(50_000, 1 / 50_000), rng.dirichlet(np.full(50_000, 0.3))])
    kernels = mechanisms.get(name).kernels(beliefs, epsilon)  # raises where the promise fails
    assert kernels.leakage(beliefs, whole_alphabet=True).max() <= epsilon
    assert kernels.ldp().max() <= mechanisms.get(name).ldp * epsilon
