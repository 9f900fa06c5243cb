"""How far a run is, on a terminal and in a log."""

import signal
import time

import pytest

from seqveil.core import bulk
from seqveil.interfaces.commands import terminal


def heard(capfd, line):
    """What a log says until it says the line, which must come within a moment."""
    said, end = "", time.monotonic() + 30.0
    while line not in said:
        assert time.monotonic() < end, f"expected {line!r} within 30 seconds; got {said[-200:]!r}"
        time.sleep(0.001)
        said += capfd.readouterr().err
    return said


def test_a_bar_moves_with_the_steps_between_chunks_and_never_back_or_beyond_the_rows_there_are():
    meter = terminal.Meter("releasing")
    shown = []
    with bulk.heard(meter.steps.append):
        bulk.took_step(9)  # before it is known how many rows there are
        for chunk, steps in ((0, (3, 2)), (4, (2,)), (3, (50,))):
            meter.advance(chunk, 7)
            shown.append(meter.text(1.0))
            for streams in steps:
                bulk.took_step(streams)
                shown.append(meter.text(1.0))
    bulk.took_step(100)  # nobody listens any more
    assert [line.split()[1] for line in shown] == ["0", "3", "5", "5", "6", "7", "7"]
    assert meter.text(30.0) == "releasing: 7 of 7 rows, for 30 seconds, finishing"
    unknown = terminal.Meter("auditing")
    unknown.advance(5)
    unknown.steps.append(4)
    assert unknown.text(1.0) == "auditing: 5 rows, for 1 second"


def test_what_takes_long_says_how_far_it_is_in_a_log(monkeypatch, capfd):
    monkeypatch.setattr(terminal, "LOGGED", 0.001)
    with terminal.progress("learning", "rounds") as meter:
        meter.at("testing", 2)
        heard(capfd, "testing: 2 rounds")  # nothing else is called meanwhile
    with terminal.progress("releasing") as meter:
        meter.advance(0, 8)
        bulk.took_step(0)  # when code has to be compiled
        heard(capfd, "compiling once")
        heard(capfd, "releasing: compiling\n")  # and no estimate from the time that it takes
        bulk.took_step(-1)
        bulk.took_step(2)  # as a secret in metres, whose releases take a program each
        heard(capfd, "releasing: 2 of 8 rows")
        meter.turn("comparing", 0.5)
        heard(capfd, "comparing: 50 %")


def test_a_request_to_end_ends_one_run_and_not_the_next_whatever_a_library_makes_of_it():
    def compiles():
        try:
            signal.raise_signal(signal.SIGTERM)
        except terminal.Interrupted:
            raise RuntimeError("cannot compile") from None

    with pytest.raises(terminal.Interrupted), terminal.interruptible():
        compiles()
    terminal.check_interrupted()
