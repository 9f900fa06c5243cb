"""What the commands print: JSON, tables, lines, and a progress bar that only a terminal sees."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seqveil.interfaces.commands import interrupt
from seqveil.interfaces.flow.rows import Progress

WIDE = 160  # columns of a table that goes to a file or a pipe


def emit_json(content: Mapping[str, Any] | Sequence[Any], to_stderr: bool = False) -> None:
    """One JSON document; an infinite number is written as the text "inf", which JSON has no number for."""
    text = json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False)
    print(text, file=sys.stderr if to_stderr else sys.stdout)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def lines(pairs: Sequence[tuple[str, str]], to_stderr: bool = False) -> None:
    """Aligned lines of a name and what there is to say about it."""
    width = max(len(name) for name, _ in pairs)
    for name, text in pairs:
        print(f"{name:<{width}}  {text}", file=sys.stderr if to_stderr else sys.stdout)


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
def progress(path: str | Path, label: str, passes: int = 1) -> Iterator[Progress]:
    """A bar over the rows of a file, on standard error and only where that is a terminal; looks for interruptions."""
    if not sys.stderr.isatty():
        yield lambda count: interrupt.check()
        return
    from rich import progress as bars
    from rich.console import Console

    from seqveil.interfaces.files import count_rows

    rows = None if str(path) == "-" else _rows(path, count_rows)
    parts = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TextColumn("{task.completed:,.0f} rows"))
    with bars.Progress(*parts, bars.TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None if rows is None else rows * passes)

        def advance(count: int) -> None:
            interrupt.check()
            bar.advance(task, count)

        yield advance


def _rows(path: str | Path, count: Any) -> int | None:
    try:
        found: int | None = count(path)
    except ValueError:  # an odd name: the command itself will say what is wrong with it
        return None
    return found
