"""How far a run is, on a terminal and in a log."""

import signal
from threading import Event

import pytest

from seqveil.core import compiled
from seqveil.interfaces.commands import terminal


def test_a_bar_moves_with_the_steps_between_chunks_and_never_back(monkeypatch):
    meter, shown = terminal.Meter("releasing", 7, "rows"), []
    monkeypatch.setattr(terminal, "check_interrupted", lambda: shown.append(meter.text(1.0)))  # before each is counted
    with compiled.heard(meter.took_step):
        compiled.took_step(3)
        compiled.took_step(2)
        meter.advance(4)
        compiled.took_step(2)
    compiled.took_step(100)  # nobody listens any more
    assert [line.split()[1] for line in (*shown[1:], meter.text(1.0))] == ["3", "5", "5", "6"]
    assert all(line.startswith("releasing: ") and line.endswith(" left") for line in shown[1:])


def test_a_check_after_the_last_row_is_not_counted_as_rows():
    known, unknown = terminal.Meter("auditing", 5, "rows"), terminal.Meter("auditing", None, "rows")
    for meter in (known, unknown):
        meter.advance(5)
        meter.took_step(4)
    assert known.text(30.0) == "auditing: all 5 rows, finishing, for 30 seconds"
    assert unknown.text(1.0) == "auditing: 5 rows, 5 a second"


def test_a_chunk_that_takes_long_says_how_far_it_is_of_the_rows_of_its_file(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(terminal, "LOGGED", 0.001)
    path = tmp_path / "data.csv"
    path.write_text("user,value\n" + "ann,1\n" * 8)
    with terminal.progress(path, "releasing"):
        compiled.took_step(2)  # as a secret in metres, whose releases take a program each
        while "releasing: 2 of 8 rows" not in capfd.readouterr().err:
            Event().wait(0.001)


def test_a_step_that_takes_long_is_seen_in_a_log(monkeypatch, capfd):
    monkeypatch.setattr(terminal, "LOGGED", 0.001)
    with terminal.steps(7, "policies tried") as tell:
        tell("at a total of 1", 2)
        seen = ""
        while "at a total of 1: 2 of 7 policies tried" not in seen:  # nothing else is called meanwhile
            Event().wait(0.001)
            seen += capfd.readouterr().err
    lines = seen.splitlines()
    assert len(lines) >= 1
    with terminal.stages("none.csv", "fitting", work="comparing") as (advance, later):
        advance(3)
        later(0.5)
        while "comparing: 50 of 100 %" not in capfd.readouterr().err:
            Event().wait(0.001)


def test_a_request_to_end_ends_one_run_and_not_the_next():
    with pytest.raises(terminal.Interrupted), terminal.interruptible():
        signal.raise_signal(signal.SIGINT)
    terminal.check_interrupted()
