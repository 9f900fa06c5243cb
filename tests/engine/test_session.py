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

import seqveil as sv
from reference import streams as ref
from seqveil import mechanisms
from seqveil.core import filtering
from seqveil.core.errors import InputError, UnknownSymbol
from seqveil.core.kernel import DENOMINATOR
from seqveil.engine import stream
from seqveil.engine.budget import Budget
from seqveil.engine.streams import CodeStreams

NAMES = mechanisms.instantaneous()
SOUND = [name for name in NAMES if mechanisms.get(name).sound]
PAIR = ([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
ROUND = ([1.0, 0.0, 0.0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
seeds = st.integers(0, 2**32 - 1)


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
def test_what_follows_is_the_same_for_all_raw_symbols_that_release_the_same(name):
    """Every raw symbol and every interval of its coins: belief, account and spending follow from the release alone."""
    rng = np.random.default_rng(4)
    setting = sv.Policy(epsilon=1.0, mechanism=name).on(sv.MarkovModel(*ref.random_chain(rng, 4)))
    state = stream.State.start(setting)
    for _ in range(8):
        kernels, after = stream.kernels(setting, filtering.symbols(setting.model, state.states), 1.0), {}
        for symbol in range(4):
            row = symbol if kernels.rows is None else int(kernels.rows[0, symbol])
            edges = np.cumsum(np.concatenate([[0], kernels.extra[0, row], kernels.base[0]]))
            for uniform in (int(edge) for edge in edges if edge < DENOMINATOR):
                made, found = stream.step(setting, state, np.array([symbol]), ref.GivenCoins([uniform]))
                public = found.states, found.account.most, found.account.least, found.spent, made.columns
                after.setdefault(int(made.codes[0]), []).append((tuple(each.tobytes() for each in public), found))
        assert all(len({public for public, _ in each}) == 1 for each in after.values())
        state = after[int(rng.choice(sorted(after)))][0][1]


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
        _, (column,) = ref.released_with_columns(session, [symbol])
        costs.append(cost_of(column, belief))
        assert math.fsum(costs[-size:]) <= cap + 1e-12


@pytest.mark.parametrize("when_spent", ["hold", "stop"])
def test_a_spent_budget_holds_the_best_guess_or_stops(when_spent):
    budget = Budget(total=0.8, when_spent=when_spent)
    session = sv.Session(sv.MarkovModel(*PAIR), mechanism="balanced", epsilon=2.0, budget=budget, seed=1)
    while session.account.budget_left >= 1e-6:
        session.release(0)
    before = session.account.releases
    for step in range(5):
        guess = int(session.belief.argmax())
        assert session.release(step % 2) == (guess if when_spent == "hold" else None)
        assert session.leakage <= 0.8
    assert session.account.releases == before + (5 if when_spent == "hold" else 0)


def test_a_seed_repeats_and_is_marked():
    model = sv.MarkovModel(*PAIR)
    runs = [sv.Session(model, epsilon=1.0, seed=7) for _ in range(2)]
    one, other = ([session.release(x) for x in [0, 1] * 20] for session in runs)
    assert one == other
    assert not runs[0].private
    assert not runs[0].account.private
    assert sv.Session(model, epsilon=0.5).private
    assert sv.Session(model, epsilon=0.5).account.private


@pytest.mark.parametrize("bad", ["Zq9secret", 987654321, None, 1.25, ("Zq9secret",)])
def test_a_failed_release_changes_nothing_and_tells_nothing(bad):
    session = sv.Session(sv.MarkovModel.fit([["home", "work", "home"]]), epsilon=1.0, seed=1)
    session.release("home")
    before = session.account, session.belief.tolist(), session.kernel().weights.tolist()
    with pytest.raises(UnknownSymbol) as caught:
        session.release(bad)
    shown = str(caught.value) + repr(vars(caught.value)) + "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # no KeyError with the value in it
    assert not any(secret in shown for secret in ("Zq9secret", "987654321", "1.25", "home"))
    assert (session.account, session.belief.tolist(), session.kernel().weights.tolist()) == before


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


def test_threads_cannot_pass_a_budget():
    """On a chain without memory every release costs the same, so how many there are is known."""
    flat = sv.MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
    budget = Budget(total=20.0, when_spent="stop")
    alone, shared = (sv.Session(flat, mechanism="randomized_response", epsilon=1.0, budget=budget) for _ in range(2))
    expected = sum(alone.release(0) is not None for _ in range(THREADS * 12))
    made = [one for one in together(lambda: shared.release(0), 12) if one is not None]
    assert len(made) == shared.account.releases == expected < THREADS * 12
    assert shared.leakage <= 20.0
    free = sv.Session(MODEL, mechanism="balanced", epsilon=1.0)
    assert len(together(lambda: free.release(0), 12)) == free.account.releases == free.account.epsilon_spent


def test_threads_may_share_a_store(tmp_path):
    with CodeStreams.open(tmp_path / "s.db", sv.Policy(epsilon=1.0, mechanism="balanced").on(MODEL)) as store:
        together(lambda: store.release([f"u{threading.get_ident()}"], [1], [0]), 5)
        made = together(lambda: int(store.release(["ann"], [1], [0]).codes[0]), 5)
        assert len(set(made)) == 1
        assert store.account("ann").releases == 1


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_is_not_copied(again):
    """Copies of one stream would release it several times, and each would count its own releases alone."""
    with pytest.raises(InputError, match="cannot be copied"):
        again(sv.Session(sv.MarkovModel(*PAIR), epsilon=1.0))
