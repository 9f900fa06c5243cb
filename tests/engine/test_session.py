"""Sessions: the public names, budgets that hold, failures that change nothing, and no raw symbol anywhere public."""

import copy
import math
import pickle
import sys
import threading
import traceback

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_streams as ref
import seqveil as sv
from seqveil import mechanisms
from seqveil.core.errors import InputError, UnknownSymbol
from seqveil.core.kernel import DENOMINATOR
from seqveil.engine.budget import Budget
from seqveil.engine.streams import CodeStreams

NAMES = mechanisms.instantaneous()
SOUND = [name for name in NAMES if mechanisms.get(name).sound]
PAIR = ([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
ROUND = ([1.0, 0.0, 0.0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
seeds = st.integers(0, 2**32 - 1)


def released_column(session, symbol, time=None):
    """Release a code; the weights every symbol puts on what came out (ones where nothing did)."""
    kernel = session.kernel(time)
    out = session.release(symbol, time)
    if out is None:
        return np.ones(session.setting.model.n, np.int64)
    return kernel.column(kernel.codes.tolist().index(out))


def snapshot(session):
    state = session._state
    arrays = [state.states, state.steps, state.spent, state.window.costs, state.window.stamps]
    account = [getattr(state.account, name) for name in ("most", "least", "ahead_most", "ahead_least")]
    return [array.tolist() for array in arrays + account], session.account


def test_symbols_are_the_alphabets_own_values():
    model = sv.MarkovModel.fit([["home", "work", "home"], ["work", "work"]])
    session = sv.Session(model, epsilon=1.0, seed=3)
    assert {session.release("home") for _ in range(30)} <= {"home", "work"}
    assert set(session.kernel().outputs) <= {"home", "work"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chain", [ROUND, ([1 - 1e-30, 1e-30], [[0.5, 0.5], [0.5, 0.5]])], ids=["zero", "tiny"])
def test_symbols_the_model_thought_impossible_can_be_released(name, chain):
    model = sv.MarkovModel(*chain)
    session = sv.Session(model, mechanism=name, epsilon=1.0, seed=1)
    for symbol in [model.n - 1, 0, model.n - 1, 1, 0, model.n - 1] * 3:
        assert session.release(symbol) in range(model.n)
        assert session.belief.sum() == pytest.approx(1)
        assert (session.belief >= 0).all()
        assert session.leakage >= 0  # never NaN


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_follows_from_releases_never_from_raw_data(name):
    """Two sessions with other raw data, and randomness chosen so that both release the same."""
    rng = np.random.default_rng(4)
    model = sv.MarkovModel(*ref.random_chain(rng, 4))
    epsilon = 0.1 if name == "mutual_information" else 1.0  # at 1 nat it may tell all, which no other symbol explains
    one, other = (
        sv.Session(model, mechanism=name, epsilon=epsilon, seed=5),
        sv.Session(model, mechanism=name, epsilon=epsilon),
    )
    for step in range(12):
        stack = other.kernel()._stack
        out, symbol = one.release(step % 4), (step + 1) % 4
        row = symbol if stack.rows is None else int(stack.rows[0, symbol])
        edges = np.cumsum(np.concatenate([[0], stack.extra[0, row], stack.base[0]]))
        tries = [int(e) for e in edges if e < DENOMINATOR]
        drawn = [int(stack.outputs[0, stack.draw(np.array([symbol]), ref.GivenCoins([c]))[0]]) for c in tries]
        other._randomness = ref.GivenCoins([tries[drawn.index(out)]])
        assert other.release(symbol) == out
        assert one.belief.tolist() == other.belief.tolist()
        assert one.leakage == other.leakage
        assert (one.kernel().weights == other.kernel().weights).all()


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    seed=seeds,
    name=st.sampled_from(SOUND),
    order=st.sampled_from([1, 2]),
    zeros=st.booleans(),
    total=st.floats(0.05, 4),
    epsilon=st.floats(0.05, 2),
)
def test_a_total_is_never_passed(seed, name, order, zeros, total, epsilon):
    rng = np.random.default_rng(seed)
    prior, transitions = ref.random_chain(rng, 2, order, zeros)
    model = sv.MarkovModel(prior, transitions, order=order)
    session = sv.Session(model, mechanism=name, epsilon=epsilon, budget=total, seed=seed % 1000)
    columns = []
    for symbol in rng.integers(0, 2, 7).tolist():
        columns.append(released_column(session, symbol))
        assert session.leakage <= total
        assert session.account.budget_left == pytest.approx(total - session.leakage)
    most, least = ref.sequence_leakage(ref.sequence_distribution(prior, transitions, 7), columns)
    assert max(most, -least) <= total + 1e-12


@pytest.mark.slow
def test_a_total_holds_on_a_long_stream():
    """Thousands of free releases after the budget is gone must not add up to anything."""
    session = sv.Session(sv.MarkovModel(*PAIR), epsilon=1.0, budget=1.0, seed=1)
    for step in range(4000):
        session.release(step % 2)
    assert session.leakage <= 1.0


def cost_of(column, belief):
    """Exact |log lift| of one release, over the whole alphabet."""
    return ref.exact_leakage(column[:, None], belief, whole_alphabet=True)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(seed=seeds, name=st.sampled_from(SOUND), size=st.integers(1, 5), cap=st.floats(0.2, 2))
def test_no_window_of_releases_costs_more_than_allowed(seed, name, size, cap):
    rng = np.random.default_rng(seed)
    budget = Budget(per_window=cap, releases=size)
    session = sv.Session(sv.MarkovModel(*ref.random_chain(rng, 3)), mechanism=name, epsilon=0.8, budget=budget, seed=1)
    costs = []
    for symbol in rng.integers(0, 3, 12).tolist():
        belief = session.belief
        costs.append(cost_of(released_column(session, symbol), belief))
        assert math.fsum(costs[-size:]) <= cap + 1e-12


def window_costs(times, seed=1):
    """(time, exact cost) of releases at these times under a budget of 1 in any 10 seconds."""
    budget = Budget(per_window=1.0, seconds=10.0)
    session = sv.Session(sv.MarkovModel(*PAIR), mechanism="balanced", epsilon=0.5, budget=budget, seed=seed)
    made = []
    for step, time in enumerate(times):
        belief = session.belief
        made.append((time, cost_of(released_column(session, step % 2, time), belief)))
    return made


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(gaps=st.lists(st.floats(0, 8), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_no_window_of_seconds_costs_more_than_allowed(gaps, seed):
    made = window_costs(np.cumsum(gaps).tolist(), seed)
    for end, _ in made:
        assert math.fsum(c for t, c in made if end - 10 < t <= end) <= 1.0 + 1e-12


def test_a_budget_per_seconds_needs_times():
    session = sv.Session(sv.MarkovModel(*PAIR), epsilon=0.5, budget=Budget(per_window=1.0, seconds=5.0))
    with pytest.raises(InputError, match="time"):
        session.release(0)


def spend(when_spent):
    """A session whose total is gone."""
    budget = Budget(total=0.8, when_spent=when_spent)
    session = sv.Session(sv.MarkovModel(*PAIR), mechanism="crr_repaired", epsilon=2.0, budget=budget, seed=1)
    while session.account.budget_left >= 1e-6:
        session.release(0)
    return session


def test_a_spent_budget_holds_the_best_guess():
    session = spend("hold")
    for step in range(5):
        guess = int(session.belief.argmax())
        assert session.release(step % 2) == guess
        assert session.leakage <= 0.8


def test_a_spent_budget_stops():
    session = spend("stop")
    before = session.account
    assert [session.release(step % 2) for step in range(5)] == [None] * 5
    assert session.account.releases == before.releases
    assert session.leakage <= 0.8


def test_unspent_epsilon_comes_back():
    """Exact accounting charges less than Σε, so a total outlasts total/ε releases."""
    session = sv.Session(
        sv.MarkovModel(*PAIR), mechanism="balanced", epsilon=0.5, budget=Budget(total=2.0, when_spent="stop"), seed=2
    )
    released = [session.release(step % 2) for step in range(200)]
    assert sum(out is not None for out in released) > 4
    assert session.account.epsilon_spent > session.leakage


@pytest.mark.parametrize("budget", [1.0, Budget(total=1.0), Budget(per_window=1.0, releases=3)])
def test_an_unsound_mechanism_takes_no_budget(budget):
    with pytest.raises(InputError, match="does not keep"):
        sv.Session(sv.MarkovModel(*PAIR), mechanism="crr", epsilon=0.5, budget=budget)


def test_a_seed_repeats_and_is_marked():
    model = sv.MarkovModel(*PAIR)
    runs = [sv.Session(model, epsilon=1.0, seed=7) for _ in range(2)]
    one, other = ([session.release(x) for x in [0, 1] * 20] for session in runs)
    assert one == other
    assert not runs[0].private
    assert not runs[0].account.private
    assert sv.Session(model, epsilon=0.5).private
    assert sv.Session(model, epsilon=0.5).account.private


@pytest.mark.parametrize("epsilon", [0, -1, -1e-9, math.inf, -math.inf, math.nan, "0.5", "x", [1.0], True, None, 41])
def test_an_epsilon_that_protects_nothing_is_refused(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        sv.Session(sv.MarkovModel(*PAIR), epsilon=epsilon)


@pytest.mark.parametrize("symbols", [[], [0, 1]])
def test_a_batch_of_another_length_is_refused(symbols):
    with pytest.raises(InputError, match="batch of 1"):
        sv.Session(sv.MarkovModel(*PAIR), epsilon=0.5).release_batch(symbols)


@pytest.mark.parametrize("bad", ["Zq9secret", 987654321, None, 1.25, ("Zq9secret",)])
def test_a_failed_release_changes_nothing_and_tells_nothing(bad):
    session = sv.Session(sv.MarkovModel.fit([["home", "work", "home"]]), epsilon=1.0, seed=1)
    session.release("home")
    before = snapshot(session)
    with pytest.raises(UnknownSymbol) as caught:
        session.release(bad)
    shown = str(caught.value) + repr(vars(caught.value)) + "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # no KeyError with the value in it
    assert not any(secret in shown for secret in ("Zq9secret", "987654321", "1.25", "home"))
    assert snapshot(session) == before


def test_a_repr_holds_no_symbol():
    session = sv.Session(sv.MarkovModel.fit([["Zq9secret", "other", "Zq9secret"]]), epsilon=1.0, seed=1)
    for _ in range(2):
        text = repr(session) + repr(session.kernel()) + repr(session.setting.to_dict()) + repr(session.account)
        assert "Zq9secret" not in text
        session.release("Zq9secret")


def test_what_others_read_cannot_be_written():
    session = sv.Session(sv.MarkovModel(*PAIR), epsilon=0.5)
    with pytest.raises(ValueError, match="read-only"):
        session.belief[0] = 1.0


MODEL = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
THREADS = 8


@pytest.fixture(autouse=True)
def often():
    """Threads take turns as often as they can, so that a missing lock shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(act, times):
    """Run `act` so many times in each of several threads; all that it returned."""
    made, failures = [], []

    def work():
        try:
            made.extend([act() for _ in range(times)])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    return made


@pytest.mark.slow
def test_every_release_of_threads_that_share_a_session_is_charged():
    session = sv.Session(MODEL, mechanism="balanced", epsilon=1.0)
    made = together(lambda: session.release(0), 100)
    standing = session.account
    assert len(made) == standing.releases == THREADS * 100
    assert standing.epsilon_spent == THREADS * 100.0


def test_threads_cannot_pass_a_budget():
    """On a chain without memory every release costs the same, so how many there are is known."""
    flat = sv.MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
    budget = Budget(total=20.0, when_spent="stop")
    alone, shared = (sv.Session(flat, mechanism="randomized_response", epsilon=1.0, budget=budget) for _ in range(2))
    expected = sum(alone.release(0) is not None for _ in range(THREADS * 12))
    made = [one for one in together(lambda: shared.release(0), 12) if one is not None]
    assert len(made) == shared.account.releases == expected < THREADS * 12
    assert shared.leakage <= 20.0


@pytest.mark.slow
def test_threads_that_push_fill_whole_batches():
    session = sv.Session(MODEL, mechanism="tree", epsilon=2.0, batch=3)
    made = together(lambda: session.push(0), 30)
    assert sorted(map(len, made)) == [0] * 160 + [3] * 80
    assert len(session.paths) == 80
    assert session.account.releases == 240


def test_threads_may_share_a_store(tmp_path):
    with CodeStreams.open(tmp_path / "s.db", sv.Policy(epsilon=1.0, mechanism="balanced").on(MODEL)) as store:
        together(lambda: store.release([f"u{threading.get_ident()}"], [1], [0]), 5)
        made = together(lambda: int(store.release(["ann"], [1], [0]).codes[0]), 5)
        assert len(set(made)) == 1
        assert store.account("ann").releases == 1


def test_a_refused_push_can_be_pushed_again():
    session = sv.Session(MODEL, mechanism="tree", epsilon=1.0, batch=2, budget=Budget(per_window=1.0, seconds=10.0))
    session.push(0)
    for _ in range(3):
        with pytest.raises(InputError, match="time"):
            session.push(1)
    assert len(session.push(1, time=30.0)) == 2
    assert session.push(1, time=31.0) == []


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_is_not_copied(again):
    """Copies of one stream would release it several times, and each would count its own releases alone."""
    with pytest.raises(InputError, match="cannot be copied"):
        again(sv.Session(sv.MarkovModel(*PAIR), epsilon=1.0))
