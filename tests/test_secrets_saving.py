"""Windows that follow one another keep a part of their box for after their end: sound, and worth it."""

from __future__ import annotations

import numpy as np
import pytest

import seqveil as sv
from reference_secrets import Enumerated
from seqveil import MarkovModel, Setting
from seqveil.core.secrets import ever
from seqveil.core.secrets.bounds import Opening
from seqveil.engine import stream
from seqveil.engine.secrets import guarded_table
from seqveil.receiver.planning import guarded_cost

STICKY = MarkovModel(np.full(3, 1 / 3), 0.85 * np.eye(3) + 0.05)


def cost(model, epsilon, window, opening, users=4, length=8):
    setting = Setting.of(model, "guarded", secrets=ever(0, epsilon=epsilon, window=window), opening=opening)
    return guarded_cost(setting, model.sample(length, users, seed=3).T, 1)


@pytest.mark.slow
def test_a_larger_total_is_worth_something_on_a_chain_that_stays():
    spent, saved = ([cost(STICKY, epsilon, "event", how) for epsilon in (2.0, 8.0)] for how in ("linear", "saving"))
    assert spent[1] > 0.1
    assert saved[1] < 0.05
    assert saved[0] < spent[0]


@pytest.mark.parametrize("window", ["event", 2])
def test_no_outcome_of_any_stream_breaks_a_promise(window):
    """Every path of releases, and the odds of every window after each, by enumeration of all sequences."""
    length, epsilon = 4, 0.8
    model = MarkovModel([0.5, 0.5], [[0.8, 0.2], [0.3, 0.7]])
    setting = Setting.of(model, "guarded", secrets=ever(1, epsilon=epsilon, window=window))
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


def test_a_chain_without_memory_keeps_nothing_for_later():
    alone = MarkovModel([0.2, 0.3, 0.5], np.tile([0.2, 0.3, 0.5], (3, 1)))
    assert cost(alone, 1.0, "event", "saving") == pytest.approx(cost(alone, 1.0, "event", "constant"))


def test_it_is_the_default_and_part_of_what_is_written_down():
    setting = Setting.of(STICKY, "guarded", secrets=ever(0, epsilon=1.0, window=2))
    assert setting.opening == Opening(saving=True)
    saved = setting.to_dict()
    assert saved["opening"] == [0.5, 1.0, True]
    assert Setting.from_dict(saved, STICKY).opening == setting.opening
    before = Setting.from_dict({**saved, "opening": [0.5, 1.0]}, STICKY)  # as earlier versions wrote it
    assert before.opening == Setting.of(STICKY, "guarded", secrets=setting.secrets, opening="linear").opening


def test_other_windows_open_as_before():
    for window in ("first 5", None):
        found = [cost(STICKY, 1.0, window, how, users=2, length=5) for how in ("linear", "saving")]
        assert found[0] == found[1]
    session = sv.Session(STICKY, "guarded", secrets=[ever(0, epsilon=1.0, window="first 1")], seed=1)
    session.release(0)
    assert abs(session.secrets[0].log_odds) <= 1.0
