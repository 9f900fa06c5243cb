"""The commands at the terminal: what they print, how far they are, and how Ctrl-C or SIGTERM ends them."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from seqveil.core.compiled import heard
from seqveil.core.results import Line, Result, ResultTable, aligned, to_json
from seqveil.core.words import count, duration

if TYPE_CHECKING:
    from seqveil.interfaces.files.events import Progress

REFRESH = 0.1  # seconds between two states of a line on a terminal
LOGGED, FOREVER = 10.0, 1e6  # seconds between two lines in a log, and the most that a thread can wait
ARRIVAL = "releases are written in the order in which events arrive, and whoever reads them sees it"
AGAIN = 1.0  # seconds until an interruption that Python dropped is raised again


class Interrupted(BaseException):
    """Somebody asked the run to end: it unwinds every open file, and no library catches it by mistake."""


INTERRUPTIONS = (Interrupted, KeyboardInterrupt)  # at Ctrl-C polars raises Python's own, whatever the handler does


class _Request:
    made = False


def check_interrupted() -> None:
    """Raise where the run was asked to end, and Python dropped the exception that said so."""
    if _Request.made:
        raise Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into `Interrupted` while the block runs.

    A signal may come while Python runs a finaliser, such as that of a generator nobody needs any more, and exceptions
    there are dropped. The request is remembered: `check_interrupted` sees it at the next rows, and a run that waits for
    rows is interrupted again after `AGAIN` seconds. Not at once: a KeyboardInterrupt of polars may be on its way
    already, and closing what it leaves takes time.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        """Raise, and remember that the run was asked to end."""
        _Request.made = True
        raise Interrupted

    def dropped(lost: sys.UnraisableHookArgs) -> None:
        """Ask again later, where Python drops an interruption; else do as before."""
        if not issubclass(lost.exc_type, Interrupted):
            hook(lost)
            return
        before.setdefault(signal.SIGALRM, signal.signal(signal.SIGALRM, stop))
        signal.setitimer(signal.ITIMER_REAL, AGAIN)

    _Request.made = False
    before: dict[int, Any] = {}
    hook = sys.unraisablehook
    try:
        before |= {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        sys.unraisablehook = dropped
    except ValueError:  # not the main thread: whoever runs it owns the signals
        pass
    try:
        yield
    finally:
        _Request.made = False  # the request was for this run; the next one in the same process begins without it
        if signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        if before:
            sys.unraisablehook = hook


def show(result: Result, json: bool = False, to_stderr: bool = False) -> None:
    """Print what a command found, in words or as JSON."""
    print(to_json(result) if json else result, file=sys.stderr if to_stderr else sys.stdout)


def emit_json(content: Mapping[str, Any] | Sequence[Any], to_stderr: bool = False) -> None:
    """Print one JSON document: numbers or null, never "nan"."""
    print(to_json(content), file=sys.stderr if to_stderr else sys.stdout)


def lines(pairs: Sequence[Line], to_stderr: bool = False) -> None:
    """Print lines of a name and what there is to say about it, aligned."""
    print(aligned(pairs), file=sys.stderr if to_stderr else sys.stdout)


def note(text: str) -> None:
    """Say on standard error what somebody who looks at the result has to know beside it."""
    print(f"note: {text}", file=sys.stderr)


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on standard output."""
    print(ResultTable("", headings, rows))


def tell_hidden(values: int) -> None:
    """Say how many values were outside the alphabet, on an interactive terminal alone: it follows from raw data."""
    if values and sys.stderr.isatty():
        note(f"{count(values, 'value')} outside the model's alphabet came in hidden; check the senders")


class Meter:
    """How far a run is: one line that is rewritten on a terminal, one line every ten seconds in a log.

    A thread of its own shows it, so that a step which takes minutes does not leave anybody in the dark. `at` also looks
    for interruptions, so every long loop calls it.
    """

    def __init__(self, label: str, total: float | None, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._most = 0.0  # what was shown is never taken back
        self._rows = self._since = 0  # rows of whole chunks, and steps of streams since the last one

    def at(self, done: float, label: str | None = None) -> None:
        """So much is done, never more than there is; `label` says what is under way."""
        check_interrupted()
        most = done if self._total is None else min(done, self._total)
        self._label, self._most = label or self._label, max(self._most, most)

    def advance(self, rows: int) -> None:
        """A chunk of rows is done."""
        self._rows, self._since = self._rows + rows, 0
        self.at(self._rows)

    def took_step(self, streams: int) -> None:
        """So many streams went one event on, between two chunks, or once more in a check after the last.

        Where nobody knows how many rows there are, that cannot be distinguished, and whole chunks alone count.
        """
        self._since += streams if self._total is not None else 0
        self.at(self._rows + self._since)

    def turn(self, label: str, share: float) -> None:
        """What was counted is over; from now on it is the share that is done of something else, 0 to 1."""
        if self._unit != "%":
            self._label, self._total, self._unit, self._most, self._begun = label, 100, "%", 0.0, time.monotonic()
        self.at(100 * share)

    def text(self, seconds: float) -> str:
        """The line after so many seconds.

        >>> meter = Meter("releasing", 2000, "rows")
        >>> meter.text(20.0)
        'releasing: 0 of 2,000 rows, for 20 seconds'
        >>> meter.at(500)
        >>> meter.text(10.0)
        'releasing: 500 of 2,000 rows, 50 a second, 30 seconds left'
        >>> meter.took_step(2500)
        >>> meter.text(50.0)
        'releasing: all 2,000 rows, finishing, for 50 seconds'
        """
        if self._unit == "rows" and self._total == self._most:
            return f"{self._label}: all {self._total:,.0f} rows, finishing, for {duration(seconds)}"
        rate = self._most / max(seconds, 1e-3)
        parts = [f"{self._most:,.0f}{'' if self._total is None else f' of {self._total:,.0f}'} {self._unit}"]
        parts.append(f"{rate:,.0f} a second" if rate >= 1 and self._unit != "%" else f"for {duration(seconds)}")
        if rate > 0 and self._total is not None:
            parts.append(f"{duration(max(self._total - self._most, 0.0) / rate)} left")
        return f"{self._label}: {', '.join(parts)}"

    def __enter__(self) -> Meter:
        threading.Thread(target=self._show, daemon=True).start()
        return self

    def _show(self) -> None:
        begin, end = ("\r", "\x1b[K") if self._terminal else ("", "\n")
        while not self._over.wait(REFRESH if self._terminal else min(LOGGED, FOREVER)):
            with suppress(OSError, ValueError):  # whoever read it has gone
                print(begin + self.text(time.monotonic() - self._begun), end=end, file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def steps(total: int | None, unit: str = "steps") -> Iterator[Callable[[str, float], None]]:
    """Progress over so many steps: a function to call with what is under way and how many are done, parts included."""
    with Meter("starting", total, unit) as meter:
        yield lambda label, done: meter.at(done, label)


@contextmanager
def progress(path: str | Path, label: str) -> Iterator[Progress]:
    """Progress over the rows of a file: a function to call with how many more are done."""
    with stages(path, label) as (advance, _):
        yield advance


@contextmanager
def stages(
    path: str | Path, label: str, passes: int = 1, work: str = "working"
) -> Iterator[tuple[Progress, Callable[[float], None]]]:
    """`progress`, and a second function for the work that comes after the reading: it takes the share done, 0 to 1."""
    from seqveil.interfaces.files.table import count_rows

    rows = None
    with suppress(ValueError, OSError):  # an odd name: the command itself will say what is wrong with it
        rows = count_rows(path)
    with Meter(label, None if rows is None else rows * passes, "rows") as meter, heard(meter.took_step):
        yield meter.advance, lambda share: meter.turn(work, share)
