"""A session that threads share: every release is charged, and no budget is passed."""

import sys
import threading

import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.engine.accounting import Budget

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


def test_a_refused_push_can_be_pushed_again():
    session = sv.Session(MODEL, mechanism="tree", epsilon=1.0, batch=2, budget=Budget(per_window=1.0, seconds=10.0))
    session.push(0)
    for _ in range(3):
        with pytest.raises(InputError, match="time"):
            session.push(1)
    assert len(session.push(1, time=30.0)) == 2
    assert session.push(1, time=31.0) == []
