"""Budgets against their definition: totals, windows, and the one that needs no model."""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import streams as ref
from reference.batches import every_leaf
from seqveil import Budget, MarkovModel, Session, mechanisms
from seqveil.core.errors import InputError
from seqveil.core.mechanisms import trees
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches, stream
from seqveil.engine.budget import Window
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams


@pytest.mark.parametrize(
    "wrong",
    [
        *({"total": total} for total in (0, -1.0, math.nan, math.inf, "1")),
        {"ldp_total": -1.0},
        *({"per_window": 1.0}, {"releases": 3}),
        {"per_window": 1.0, "releases": 3, "seconds": 2.0},
        {"total": 1.0, "when_spent": "shrug"},
        *({"total": 1.0, "over": 2.5}, {"total": 1.0, "over": 5, "delta": 1.0}),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        Budget(**wrong)


@settings(deadline=None, max_examples=80)
@given(total=st.floats(0.1, 5), spent=st.floats(0, 6), wanted=st.floats(0, 5))
def test_what_a_total_allows(total, spent, wanted):
    arguments = np.array([wanted]), np.array([spent]), np.zeros(1)
    assert Budget(total=total).allow(*arguments)[0] == min(wanted, max(0.0, total - spent))
    assert Budget().allow(*arguments)[0] == wanted


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(events=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 2)), min_size=1, max_size=15), span=st.floats(0.5, 6))
def test_a_window_sums_what_lies_in_it_and_forgets_the_rest(events, span):
    window, now, past = Window(np.zeros((1, 0)), np.zeros((1, 0))), 0.0, []
    for gap, cost in events:
        now += gap
        inside = math.fsum(c for t, c in past if exactly_within(t, now, span))
        assert window.within(np.array([now]), span)[0] == pytest.approx(inside, abs=1e-12)
        window = window.push(np.array([now]), np.array([cost]), span)
        past.append((now, cost))
        assert window.costs.shape[1] == sum(exactly_within(t, now, span) for t, _ in past)


def exactly_within(time, now, span):
    """Whether less than `span` has passed, in fractions: the difference of two floats need not be one."""
    return Fraction(now) - Fraction(time) < Fraction(span)


def test_a_window_sums_alike_whoever_else_is_there():
    """Empty places in front come from users with longer windows; they must not change the last bit of a sum."""
    generator = np.random.default_rng(3)
    for width in range(1, 40):
        costs, stamps = generator.random((1, width)), np.arange(width, dtype=np.float64)[None]
        alone = Window(costs, stamps)
        now = np.array([float(width)])
        for room in range(width, width + 20):
            assert alone.padded(room).within(now, 1e9)[0] == alone.within(now, 1e9)[0]


STICKY = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])


def test_a_release_leaves_the_window_once_its_span_has_passed():
    for window, times in (({"seconds": 10.0}, [0.0, 10.0, 20.0, 29.9]), ({"releases": 1}, None)):
        budget = Budget(per_window=1.0, **window)
        setting = Policy(epsilon=1.0, mechanism="balanced", budget=budget).on(STICKY)
        made = CodeStreams(setting, randomness=SeededRandomness(1)).release(["ann"] * 4, [0] * 4, times=times)
        assert made.epsilons[:3].tolist() == [1.0] * 3
        assert made.held.tolist() == [False] * 3 + [times is not None]


SURE = MarkovModel([1.0, 0.0], [[1.0, 0.0]] * 2)  # of the symbol that never comes
WRONG = MarkovModel([1 - 1e-9, 1e-9], [[1 - 1e-9, 1e-9]] * 2)


def test_an_unsound_mechanism_has_no_level():
    session = Session(STICKY, mechanism="crr", epsilon=1.0, seed=1)
    assert session.account.ldp == 0.0
    session.release(0)
    assert session.account.ldp == math.inf


def within(columns, total):
    """Whether all pairs of raw sequences give these releases probabilities within e^total, in exact arithmetic."""
    weights = [math.prod(int(column[x]) for x, column in zip(raw, columns, strict=True))
               for raw in itertools.product(range(len(columns[0])), repeat=len(columns))]  # fmt: skip
    with localcontext() as context:
        context.prec = 80
        return Decimal(max(weights)) <= Decimal(min(weights)) * Decimal(total).exp()


NAMES = ("optimal", "balanced", "randomized_response", "optimal_ldp")


@pytest.mark.parametrize("policy", ["hold", "stop"])
@pytest.mark.parametrize("name", NAMES)
def test_no_two_sequences_are_disclosed_apart_beyond_it_whatever_the_model(name, policy):
    """All release sequences, all pairs of raw ones, exactly, under models that are sure of the wrong symbol."""
    for model, (total, epsilon) in itertools.product((SURE, WRONG), ((0.7, 0.3), (1.0, 1 / 3), (2.5, 0.9))):
        budget = Budget(ldp_total=total, when_spent=policy)
        setting = Policy(epsilon=epsilon, budget=budget, mechanism=name).on(model)
        spent = set()
        for columns, state in ref.release_paths(setting, 5):
            assert within(columns, total)
            assert state.ldp[0] <= total
            spent.add(round(float(state.ldp[0]), 6))
        assert max(spent) == pytest.approx(total, abs=1e-5)  # and all of it can be used


def test_other_budgets_hold_beside_it():
    budget = Budget(total=1.0, per_window=0.8, releases=2, ldp_total=1.5)
    for columns, state in ref.release_paths(Policy(epsilon=0.6, budget=budget, mechanism="optimal").on(STICKY), 4):
        assert within(columns, 1.5)
        assert state.account.worst[0] <= 1.0


def test_it_holds_for_batches():
    """All paths of four batches of two symbols, all pairs of raw sequences, whatever the model says of them."""
    total, model = 2.5, MarkovModel([0.6, 0.4], [[0.6, 0.4], [0.3, 0.7]])
    setting = Policy(epsilon=1.0, batch=2, budget=Budget(ldp_total=total), mechanism="tree").on(model)
    raws = list(itertools.product(range(2), repeat=2))

    def paths(state, factor, left):
        if not left:
            yield factor, state
            return
        epsilon = float(stream.allowance(setting, state)[0][0])
        batch = mechanisms.Batch(model, state.states[0], 2, epsilon, setting.distortion)
        grown = trees.tree(batch)
        disclosed = grown.disclosed / 2.0**62
        for leaf in every_leaf(grown):
            inside = [math.prod(float(weights[raw[k]]) for k, weights in leaf.box.items()) for raw in raws]
            distribution = [(1 - disclosed) * leaf.chance + disclosed * each for each in inside]
            _, after = batches.observe(setting, state, leaf.path, 2)
            yield from paths(after, factor + math.log(max(distribution) / min(distribution)), left - 1)

    found = list(paths(stream.State.start(setting), 0.0, 4))
    assert total / 2 < max(factor for factor, _ in found) <= total + 1e-9
    assert max(float(state.ldp[0]) for _, state in found) == pytest.approx(total)


@pytest.mark.slow
def test_a_model_sure_of_the_wrong_symbol_buys_no_more_than_it():
    """Under a total alone every release is free as the model sees it; without the model it ends."""
    disclosed = {}
    for name, budget in {"trusting": Budget(total=1.0), "not": Budget(total=1.0, ldp_total=1.0)}.items():
        session = Session(SURE, mechanism="randomized_response", epsilon=0.5, budget=budget, seed=1)
        for _ in range(1000):
            session.release(1)
        disclosed[name] = session.account
    assert disclosed["trusting"].leakage <= 1.0
    assert disclosed["trusting"].ldp == pytest.approx(500.0)
    assert 0.9 < disclosed["not"].ldp <= 1.0


SOUND = [name for name in mechanisms.instantaneous() if mechanisms.get(name).sound]
SPARING = ("optimal_ldp", "temporal")  # may find nothing worth telling, or keep back what correlation gives away


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("when_spent", ["hold", "stop"])
def test_fact_7_a_total_holds_on_every_path(name, zeros, when_spent):
    model, distribution_of = ref.model_of(1, zeros, seed=12)
    total, length = 1.3, 4
    budget = Budget(total=total, when_spent=when_spent)
    setting = Policy(epsilon=0.9, budget=budget, mechanism=name).on(model)
    distributions = [distribution_of(t) for t in range(length + 1)]
    worst = 0.0
    for columns, state in ref.release_paths(setting, length):
        for t in range(1, length + 1):
            most, least = ref.sequence_leakage(distributions[t], columns[:t])
            assert max(most, -least) <= total
            worst = max(worst, most, -least)
        assert state.account.worst[0] <= total
    assert worst > 0.5 * total or name in SPARING  # the filter is no mere refusal
