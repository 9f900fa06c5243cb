"""The budget schedule of a secret: windows begin with half of ε and keep a part for after their end."""

from __future__ import annotations

import numpy as np
import pytest

from reference_secrets import Enumerated
from seqveil import MarkovModel
from seqveil.core.secrets import Watch, ever
from seqveil.core.secrets.bounds import schedule
from seqveil.engine import stream
from seqveil.engine.policy import Policy
from seqveil.engine.secrets import guarded_table
from seqveil.receiver.planning import guarded_cost

STICKY = MarkovModel(np.full(3, 1 / 3), 0.85 * np.eye(3) + 0.05)


def cost(epsilon):
    setting = Policy(secrets=ever(0, epsilon=epsilon, window="event"), mechanism="guarded").on(STICKY)
    return guarded_cost(setting, STICKY.sample(8, 4, seed=3).T, 1)


def aims(model, window, events, epsilon=1.0):
    """What is aimed at for the first live window at each event, while nothing is revealed."""
    watch, found = Watch.start(model, ever(0, epsilon=epsilon, window=window)), []
    for _ in range(events):
        found.append(float(np.ravel(schedule(watch))[0]))
        watch = watch.observe(np.ones(model.n))
    return found


@pytest.mark.slow
def test_a_larger_total_is_worth_something_on_a_chain_that_stays():
    assert cost(8.0) < 0.05  # 0.1 and more where a window spends all of its ε on its own event


@pytest.mark.parametrize("window", ["event", 2])
def test_no_outcome_of_any_stream_breaks_a_promise(window):
    """Every path of releases, and the odds of every window after each, by enumeration of all sequences."""
    length, epsilon = 4, 0.8
    model = MarkovModel([0.5, 0.5], [[0.8, 0.2], [0.3, 0.7]])
    setting = Policy(secrets=ever(1, epsilon=epsilon, window=window), mechanism="guarded").on(model)
    every, size = Enumerated(model, length), 1 if window == "event" else window
    compiled, worst = setting.secrets[0].compile(model), 0.0
    paths = [(stream.State.start(setting), [])]
    for _ in range(length):
        further = []
        for state, columns in paths:
            table = guarded_table(setting, state.watches[0])
            for place, code in enumerate(table.outputs.tolist()):
                column = table.column(place)
                if column.any():
                    after = stream.observe(setting, state, np.array([code]))[1]
                    further.append((after, [*columns, column / float(1 << 62)]))
        paths = further
        for _, columns in paths:
            for begin in range(0, length, size):
                values = every.values(compiled, begin, size)
                worst = max(worst, abs(every.log_odds(values, 2, columns)))
    assert len(paths) > 4
    assert 0.5 * epsilon < worst <= epsilon


def test_a_window_begins_with_half_and_ends_with_all_of_it():
    assert aims(STICKY, "first 5", 6) == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0, 1.0])
    assert aims(STICKY, 2, 4) == pytest.approx([0.5, 0.875, 0.9375, 0.96875])  # 1/8 of it is kept for after its end
    assert schedule(Watch.start(STICKY, ever(0, epsilon=1.0))) is None  # whose end is unknown


def test_a_chain_without_memory_keeps_nothing_for_later():
    alone = MarkovModel([0.2, 0.3, 0.5], np.tile([0.2, 0.3, 0.5], (3, 1)))
    assert aims(alone, "event", 2) == pytest.approx([1.0, 1.0])
