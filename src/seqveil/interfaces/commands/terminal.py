"""The commands at the terminal: what they print, how far they are, and how Ctrl-C or SIGTERM ends them."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from seqveil.core.compiled import heard

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn

    from seqveil.interfaces.files.rows import Progress

WIDE = 160  # columns of a table that goes to a file or a pipe
REFRESH = 0.1  # seconds between two states of a bar
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
    there are dropped. The request stands nevertheless: `check_interrupted` sees it at the next rows, and a run that
    waits for rows is interrupted again after `AGAIN` seconds. Not at once: a KeyboardInterrupt of polars may be on its
    way already, and closing what it leaves takes time.
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


def emit_json(content: Mapping[str, Any] | Sequence[Any], to_stderr: bool = False) -> None:
    """One JSON document; an infinite number is written as the text "inf", which JSON has no number for."""
    text = json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False)
    print(text, file=sys.stderr if to_stderr else sys.stdout)


def plain(value: Any) -> Any:
    """A value as JSON can hold it: an infinite number, and whatever else it has no word for, as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def lines(pairs: Sequence[tuple[str, str]], to_stderr: bool = False) -> None:
    """Aligned lines of a name and what there is to say about it."""
    width = max(len(name) for name, _ in pairs)
    for name, text in pairs:
        print(f"{name:<{width}}  {text}", file=sys.stderr if to_stderr else sys.stdout)


def tell_hidden(values: int) -> None:
    """Say how many values were outside the alphabet, on an interactive terminal alone: it follows from raw data."""
    if values and sys.stderr.isatty():
        print(f"{values} values outside the model's alphabet came and were hidden; check the senders", file=sys.stderr)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output, cut to the terminal's width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grid = Table(*headings, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        grid.add_row(*row)
    terminal = sys.stdout.isatty()
    Console(width=None if terminal else WIDE, markup=False, highlight=False).print(grid)


@contextmanager
def bar(*columns: ProgressColumn) -> Iterator[Bar]:
    """A progress bar on standard error that is gone when the block ends."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        yield shown


@contextmanager
def steps(total: int, unit: str = "steps") -> Iterator[Callable[[str, float], None]]:
    """A bar over so many steps, only where standard error is a terminal; looks for interruptions.

    It shows how many are done, how many a minute, and the time left. It gives a function to call with what is under way
    and how many steps are done, a part of one included.
    """
    if not sys.stderr.isatty():
        yield lambda label, done: check_interrupted()
        return
    from rich import progress as parts

    columns = (
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.TextColumn("{task.completed:.1f} of {task.total} {task.fields[unit]} {task.fields[rate]}"),
    )
    with bar(*columns, parts.TimeRemainingColumn()) as shown:
        task, begun = shown.add_task("starting", total=total, unit=unit, rate=""), time.monotonic()

        def show(label: str, done: float) -> None:
            check_interrupted()
            minutes = max(time.monotonic() - begun, 0.1) / 60
            shown.update(task, description=label, completed=done, rate=f"({done / minutes:,.0f} a minute)")

        yield show


@contextmanager
def progress(path: str | Path, label: str, passes: int = 1) -> Iterator[Progress]:
    """A bar over the rows of a file, only where standard error is a terminal; looks for interruptions."""
    with stages(path, label, passes) as (advance, _):
        yield advance


@contextmanager
def stages(
    path: str | Path, label: str, passes: int = 1, work: str = "working"
) -> Iterator[tuple[Progress, Callable[[float], None]]]:
    """`progress`, and a bar below it for work that comes after the reading: it takes the share done, 0 to 1."""
    if not sys.stderr.isatty():
        yield lambda count: check_interrupted(), lambda share: check_interrupted()
        return
    from rich import progress as parts

    from seqveil.interfaces.files import count_rows

    rows = None
    with suppress(ValueError):  # an odd name: the command itself will say what is wrong with it
        rows = None if str(path) == "-" else count_rows(path)
    columns = (
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.TextColumn("{task.completed:,.0f} {task.fields[unit]} {task.fields[rate]}"),
    )
    with bar(*columns, parts.TimeRemainingColumn()) as shown:
        task = shown.add_task(label, total=None if rows is None else rows * passes, unit="rows", rate="")
        later = shown.add_task(work, total=100, unit="%", rate="", visible=False)
        counted = _Counted(lambda count, rate: shown.update(task, completed=count, rate=rate))

        def done(share: float) -> None:
            check_interrupted()
            shown.update(later, completed=100 * share, visible=True)

        with heard(counted.took_step):
            yield counted.advance, done


class _Counted:
    """Rows that are done, chunk by chunk, and between two chunks by the steps that their streams have taken."""

    def __init__(self, show: Callable[[int, str], None]) -> None:
        self._show, self._begun = show, time.monotonic()
        self._done = self._since = self._shown = 0
        self._next = 0.0  # when the bar is due again

    def advance(self, count: int) -> None:
        """A chunk is done."""
        check_interrupted()
        self._done += count
        self._since = 0
        self._tell(time.monotonic())

    def took_step(self, rows: int) -> None:
        """So many streams went one event on."""
        check_interrupted()
        self._since += rows
        now = time.monotonic()
        if now >= self._next:
            self._tell(now)

    def _tell(self, now: float) -> None:
        self._next = now + REFRESH
        self._shown = max(self._shown, self._done + self._since)  # what was shown is never taken back
        self._show(self._shown, f"({self._shown / max(now - self._begun, 1e-3):,.0f} a second)")


def figure(value: float) -> str:
    """A figure to read, in the words that say it where there is none.

    >>> figure(0.51234), figure(math.inf)
    ('0.5123', 'no bound')
    """
    return f"{value:.4g}" if math.isfinite(value) else "no bound"
