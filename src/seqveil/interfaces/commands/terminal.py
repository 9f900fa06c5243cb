"""The commands at the terminal: what they print, how far they are, and how Ctrl-C or SIGTERM ends them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from seqveil.core.compiled import heard
from seqveil.core.results import Line, Result, ResultTable, aligned, cell_text, to_json
from seqveil.core.words import count, duration

if TYPE_CHECKING:
    from seqveil.interfaces.files.events import Progress

REFRESH = 0.1  # seconds between two states of a line on a terminal
WIDE = 160  # columns of a table that goes to a file or a pipe
LOGGED = 10.0  # seconds between two lines in a log
ARRIVAL = "releases are written in the order in which events arrive, and whoever reads them sees it"
AGAIN = 1.0  # seconds until an interruption that Python dropped is raised again

figure = cell_text


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
        _Request.made = True
        raise Interrupted

    def dropped(lost: sys.UnraisableHookArgs) -> None:
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


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on standard output."""
    print(ResultTable("", headings, rows))


def tell_hidden(values: int) -> None:
    """Say how many values were outside the alphabet, on an interactive terminal alone: it follows from raw data."""
    if values and sys.stderr.isatty():
        print(f"{count(values, 'value')} outside the model's alphabet came in hidden; check the senders",
              file=sys.stderr)  # fmt: skip


class Meter:
    """How far a run is: one line that is rewritten on a terminal, one line every ten seconds in a log.

    It also looks for interruptions, so every long loop calls `at`.
    """

    def __init__(self, label: str, total: float | None, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._due = self._begun + (0.0 if self._terminal else LOGGED)
        self._most = 0.0  # what was shown is never taken back

    def at(self, done: float, label: str | None = None) -> None:
        """So much is done; `label` says what is under way."""
        check_interrupted()
        self._label, self._most = label or self._label, max(self._most, done)
        now = time.monotonic()
        if now >= self._due:
            self._due = now + (REFRESH if self._terminal else LOGGED)
            begin, end = ("\r", "\x1b[K") if self._terminal else ("", "\n")
            print(begin + self.text(now - self._begun), end=end, file=sys.stderr, flush=True)

    def text(self, seconds: float) -> str:
        """The line after so many seconds.

        >>> meter = Meter("releasing", 2000, "rows")
        >>> meter.at(500)
        >>> meter.text(10.0)
        'releasing: 500 of 2,000 rows, 50 a second, 30 seconds left'
        """
        rate = self._most / max(seconds, 1e-3)
        parts = [f"{self._most:,.0f}{'' if self._total is None else f' of {self._total:,.0f}'} {self._unit}"]
        if rate > 0:
            parts.append(f"{rate:,.0f} a second" if rate >= 1 else f"{60 * rate:,.2g} a minute")
        if rate > 0 and self._total is not None:
            parts.append(f"{duration(max(self._total - self._most, 0.0) / rate)} left")
        return f"{self._label}: {', '.join(parts)}"

    def close(self) -> None:
        """Take the line off a terminal."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def steps(total: int | None, unit: str = "steps") -> Iterator[Callable[[str, float], None]]:
    """Progress over so many steps: a function to call with what is under way and how many are done, parts included."""
    meter = Meter("starting", total, unit)
    try:
        yield lambda label, done: meter.at(done, label)
    finally:
        meter.close()


@contextmanager
def progress(path: str | Path, label: str, passes: int = 1) -> Iterator[Progress]:
    """Progress over the rows of a file: a function to call with how many more are done."""
    with stages(path, label, passes) as (advance, _):
        yield advance


@contextmanager
def stages(
    path: str | Path, label: str, passes: int = 1, work: str = "working"
) -> Iterator[tuple[Progress, Callable[[float], None]]]:
    """`progress`, and a second function for the work that comes after the reading: it takes the share done, 0 to 1."""
    reading, later = Meter(label, _rows(path, passes), "rows"), Meter(work, 100, "%")
    counted = CountedRows(reading.at)
    try:
        with heard(counted.took_step):
            yield counted.advance, lambda share: later.at(100 * share)
    finally:
        reading.close()


def _rows(path: str | Path, passes: int) -> int | None:
    """How many rows there are to read, where somebody looks on."""
    from seqveil.interfaces.files.table import count_rows

    found = None
    if sys.stderr.isatty() and str(path) != "-":
        with suppress(ValueError):  # an odd name: the command itself will say what is wrong with it
            found = count_rows(path)
    return None if found is None else found * passes


class CountedRows:
    """Rows that are done, chunk by chunk, and between two chunks by the steps that their streams have taken."""

    def __init__(self, at: Callable[[float], None]) -> None:
        self._at, self._done, self._since = at, 0, 0

    def advance(self, rows: int) -> None:
        """A chunk is done."""
        self._done, self._since = self._done + rows, 0
        self._at(self._done)

    def took_step(self, rows: int) -> None:
        """So many streams went one event on."""
        self._since += rows
        self._at(self._done + self._since)
