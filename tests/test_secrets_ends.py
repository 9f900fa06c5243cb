"""Streams that end inside a window of a secret: what holds for them, and that nothing more is said."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from reference_secrets import Enumerated
from seqveil import MarkovModel
from seqveil.core.secrets import SecretTrackers, ever
from seqveil.core.secrets.tables import schedule
from seqveil.engine import stream
from seqveil.engine.secrets import guarded_table
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.planning import simulate

PAIR = sv.MarkovModel([0.95, 0.05], [[0.7, 0.3], [0.5, 0.5]])
# from work people soon go to the clinic, so that a first event says little about twenty, and all about itself
SOON = sv.MarkovModel(
    [0.75, 0.2, 0.05],
    [[0.1, 0.899, 0.001], [0.899, 0.1, 0.001], [0.005, 0.005, 0.99]],
    alphabet=["work", "clinic", "home"],
)
SECRET = sv.secrets.ever("clinic", epsilon=0.5, window=20)


def outcomes(setting, length):
    """The columns of every path of releases of every length up to this one."""
    paths = [(stream.State.start(setting), [])]
    for _ in range(length):
        further = []
        for state, columns in paths:
            table = guarded_table(setting, state.trackers[0])
            for place, code in enumerate(table.outputs.tolist()):
                column = table.column(place)
                if column.any():
                    after = stream.observe(setting, state, np.array([code]))[1]
                    further.append((after, [*columns, column / 2.0**62]))
        paths = further
        yield [columns for _, columns in paths]


@pytest.mark.parametrize(
    ("window", "size"), [(None, None), ("event", 1), (2, 2), (3, 3), ("first 4", 4), ("first 5", 5)]
)
def test_what_holds_wherever_a_stream_ends(window, size):
    """By enumeration: the odds of "in the events of its window that did come", if the stream ends after any outcome.

    Within ε where the window is whole, which the stream itself always is; a part of a window may pass it.
    """
    length, secret = 5, sv.secrets.ever(1, epsilon=0.5, window=window)
    every, compiled, parts = Enumerated(PAIR, length), secret.over(PAIR.alphabet), []
    for ended, found in enumerate(outcomes(sv.Policy(secrets=secret, side_information=0).on(PAIR), length), 1):
        first = 0 if size is None or not secret.repeats else (ended - 1) // size * size
        events = ended - first if size is None else min(ended - first, size)
        values = every.values(compiled, first, events)
        worst = max(abs(every.log_odds(values, 2, columns)) for columns in found)
        if size is None or events == size:
            assert worst <= 0.5, ended
        else:
            parts.append(worst)
    assert max(parts, default=0.0) > 0.55 or window not in ("first 4", "first 5")


def test_one_event_streams_are_not_called_kept_and_not_graded_green(seqveil, tmp_path, monkeypatch):
    """20,000 people with one event each, windows of 20, ε = 0.5: "clinic" moves the odds of that event by e^4.3."""
    monkeypatch.chdir(tmp_path)
    table = guarded_table(setting := sv.Policy(secrets=SECRET).on(SOON), setting.trackers).full() / 2.0**62
    elsewhere = (SOON.prior[[0, 2]] @ table[[0, 2]]) / SOON.prior[[0, 2]].sum()
    assert math.log(table[1, 1] / elsewhere[1]) > 4
    values = np.array(SOON.alphabet.decode(range(3)))[SOON.sample(1, 20_000, seed=1).ravel()]
    pl.DataFrame({"user": np.arange(20_000), "value": values}).write_csv("d.csv")
    SOON.save("m.model")
    kept = ("--secret", "ever:clinic", "--secret-epsilon", 0.5, "--secret-window", 20)
    made = seqveil("release", "d.csv", "-m", "m.model", *kept, "--out", "r.csv")
    assert made.code == 0, made.err
    assert "nothing is promised about these 20000 streams" in made.err
    assert "its log odds moved by" not in made.err
    audited = seqveil("audit", "r.csv", "-m", "m.model", "--json", "--html", "report.html")
    found, page = audited.json, (tmp_path / "report.html").read_text()
    assert (found["grade"], found["checks"]["declared"]) == ("red", None)
    assert found["secrets"][0]["without_window"] == 20_000
    assert "nothing is promised about these 20000 streams" in found["grade_why"]
    assert "within its ε, in every whole window</th><td>nothing of the kind was promised" in page
    assert "nothing is promised about these 20000 streams" in page
    assert not any("becomes at most" in said and "secret" in said for said in found["words"])


def test_some_streams_end_inside_a_window_and_some_do_not(tmp_path):
    lengths = {"short": 3, "whole": 20, "longer": 25, "twice": 40, "one": 1}
    names = np.array(SOON.alphabet.decode(range(3)))[SOON.sample(40, 5, seed=2)]
    rows = [(user, name) for own, user in zip(names, lengths, strict=True) for name in own[: lengths[user]]]
    frame = pl.DataFrame(rows, schema=["user", "value"], orient="row")
    released = sv.release(frame, SOON, secrets=[SECRET])
    (total,) = released.account.secrets
    assert (total.users, total.without_window, total.inside_window, total.kept) == (5, 2, 1, True)
    audited = sv.audit(released, SOON)
    for shown in (released, audited):
        said = shown._repr_html_()
        assert "nothing is promised about 2 of 5 streams, whose first window is not over" in said
        assert "the last window of 1 of 5 streams, which is not over" in said
    assert (released.account.grade, audited.report.grade) == ("unchecked", "unchecked")
    whole = sv.secrets.ever("clinic", epsilon=0.5)
    assert not sv.release(frame, SOON, secrets=[whole]).account.secrets[0].unkept


def test_a_session_says_that_its_window_is_not_over():
    session = sv.Session(SOON, secrets=[SECRET], seed=1)
    for event in range(20):
        assert ("before it is over" in session._repr_html_()) == (event > 0)
        session.release("work")
    assert "before it is over" not in session._repr_html_()
    streams = CodeStreams(sv.Policy(secrets=sv.secrets.ever("clinic", epsilon=0.5, window="event")).on(SOON))
    streams.release(["ann"] * 3, [0, 1, 0])
    assert streams.secrets()[0].unkept == ""


STAYS = MarkovModel(np.full(3, 1 / 3), 0.85 * np.eye(3) + 0.05)


def cost(epsilon):
    setting = sv.Policy(secrets=ever(0, epsilon=epsilon, window="event"), side_information=0.0).on(STAYS)
    return simulate(setting, 8, 60, seed=3).error


def aims(model, window, events, epsilon=1.0):
    """What is aimed at for the first live window at each event, while nothing is revealed."""
    tracker, found = SecretTrackers(model, ever(0, epsilon=epsilon, window=window)), []
    for _ in range(events):
        found.append(float(np.ravel(schedule(tracker.users.own[0]))[0]))
        tracker = tracker.observe(np.ones(model.n))
    return found


@pytest.mark.slow
def test_a_larger_total_is_worth_something_on_a_chain_that_stays():
    assert cost(8.0) < 0.05  # 0.1 and more where a window spends all of its ε on its own event


def test_a_window_begins_with_half_and_ends_with_all_of_it():
    assert aims(STAYS, "first 5", 6) == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0, 1.0])
    assert aims(STAYS, 2, 4) == pytest.approx([0.5, 0.875, 0.9375, 0.96875])  # 1/8 of it is kept for after its end
    assert set(schedule(SecretTrackers(STAYS, ever(0, epsilon=1.0)).users.own[0])[0]) == {
        1.0 - 1e-9
    }  # its end is unknown


def test_a_chain_without_memory_keeps_nothing_for_later():
    alone = MarkovModel([0.2, 0.3, 0.5], np.tile([0.2, 0.3, 0.5], (3, 1)))
    assert aims(alone, "event", 2) == pytest.approx([1.0, 1.0])
