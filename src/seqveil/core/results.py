"""What a command found, as one object: shown as lines, as JSON and as HTML from the same data.

A result is a dataclass that says in `lines` what there is to read, and in `tables` what stands in rows. The terminal,
`--json`, `print` and a notebook all show it from there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from html import escape
from os import PathLike, fspath
from typing import Any, ClassVar

import numpy as np

MANY = 60  # rows of a table that a notebook shows
CELL = "padding:2px 8px;text-align:"

Line = tuple[str, str]  # a name, and what there is to say about it


@dataclass(frozen=True)
class ResultTable:
    """Rows under headings; the first column names the rows.

    >>> print(ResultTable("errors", ("ε", "error"), [("0.5", 0.25), ("1", None)]))
    errors
    ε    error
    0.5  0.25
    1
    """

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __str__(self) -> str:
        cells = [[cell_text(cell) for cell in row] for row in (self.headings, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        shown = ["  ".join(text.ljust(wide) for text, wide in zip(row, widths, strict=True)).rstrip() for row in cells]
        return "\n".join([*([self.caption] if self.caption else []), *shown])

    def to_html(self) -> str:
        """The table for a notebook, cut to a few dozen rows."""
        head = "".join(f'<th scope="col" style="{CELL}right">{escape(text)}</th>' for text in self.headings)
        body = "".join(_html_row(*map(cell_text, row)) for row in self.rows[:MANY])
        title = f'<caption style="{CELL}left;white-space:nowrap">{escape(self.caption)}</caption>'
        cut = f"<p><small>{MANY} of {len(self.rows)} rows shown</small></p>" if len(self.rows) > MANY else ""
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{cut}"


class Result:
    """What a command found; a subclass is a dataclass that defines `lines`, and `tables` where it has some.

    >>> @dataclass(frozen=True, repr=False)
    ... class Found(Result):
    ...     events: int
    ...     leakage: float
    ...     def lines(self):
    ...         return [("events", f"{self.events:,}"), ("leakage", cell_text(self.leakage))]
    >>> found = Found(1200, math.inf)
    >>> print(found)
    events   1,200
    leakage  no bound
    >>> found.to_dict()
    {'events': 1200, 'leakage': None}
    """

    title: ClassVar[str] = ""  # in a notebook; the name of the class where it is empty

    def lines(self) -> list[Line]:
        """What there is to say: a name and a sentence, line by line."""
        raise NotImplementedError

    def tables(self) -> list[ResultTable]:
        """What stands in rows, below the lines."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON has it: its fields as plain values, null for every figure that is not a finite number."""
        assert is_dataclass(self)
        found: dict[str, Any] = plain({each.name: getattr(self, each.name) for each in fields(self)})
        return found

    def __str__(self) -> str:
        return "\n\n".join([aligned(self.lines()), *map(str, self.tables())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_page(self.title or type(self).__name__, self.lines(), self.tables())


def html_page(title: str, lines: Sequence[Line], tables: Sequence[ResultTable] = ()) -> str:
    """What an object says, for a notebook: a row for each line, and tables after them; all text is escaped.

    >>> "<td" in html_page("Release", [("released", "3 of 3 events")]), "<b>" in html_page("<b>", [])
    (True, False)
    """
    rows = "".join(_html_row(*line, align="left") for line in lines)
    head = f"<p><strong>{escape(title)}</strong></p><table><tbody>{rows}</tbody></table>"
    return f'<div class="seqveil">{head}{"".join(table.to_html() for table in tables)}</div>'


def _html_row(name: str, *cells: str, align: str = "right") -> str:
    shown = "".join(f'<td style="{CELL}{align}">{escape(text)}</td>' for text in cells)
    return f'<tr><th scope="row" style="{CELL}left">{escape(name)}</th>{shown}</tr>'


def aligned(lines: Sequence[Line]) -> str:
    """Lines as text, their names in one column.

    >>> print(aligned([("read", "3 rows"), ("model", "m.model")]))
    read   3 rows
    model  m.model
    """
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def cell_text(value: Any) -> str:
    """A value as a table shows it: a number in four figures, nothing for None.

    >>> [cell_text(value) for value in (0.51234, 3, None, math.inf, "a")]
    ['0.5123', '3', '', 'no bound', 'a']
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value + 0.0:.4g}" if math.isfinite(value) else "no bound"
    return str(value)


def plain(value: Any) -> Any:
    """A value as JSON holds it: numbers or null, never "nan"; objects by their `to_dict`, or as text.

    >>> plain({"error": float("nan"), "people": np.int64(3), "shares": (0.5, math.inf)})
    {'error': None, 'people': 3, 'shares': [0.5, None]}
    """
    if isinstance(value, str | bool | int | None) and not isinstance(value, Enum):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, PathLike):
        return fspath(value)
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return str(value)


def to_json(value: Any) -> str:
    """One JSON document of a result, or of any plain values."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def session_html(setting: Any, account: Any, unfinished: Sequence[bool] = ()) -> str:
    """The account of a stream, and never a symbol that went into it or came out of it.

    `unfinished`: of which secrets the window is not over.
    """
    what, total = f"batch of {setting.batch}" if setting.in_batches else "release", setting.budget.exact_total
    leakage, up, down = map(cell_text, (account.leakage, account.most, account.least))
    lines = [
        ("mechanism", setting.mechanism.name),
        (f"ε a {what}", cell_text(setting.epsilon)),
        *(("promised", sentence) for sentence in setting.policy.sentences),
        ("symbols released", str(account.releases)),
        *(("means", sentence) for sentence in account.sentences),
        ("exact leakage", f"{leakage} (up {up}, down {down})"),
        ("by composition, Σε", cell_text(account.epsilon_spent)),
        ("without trust in the model", f"{cell_text(account.ldp)}-LDP"),
        *(
            (f"secret {place}", _secret(*each))
            for place, each in enumerate(zip(account.secrets, unfinished, strict=True), 1)
        ),
        ("randomness", "operating system" if account.private else "seeded: not private"),
    ]
    if total is not None:
        lines.append(("budget", f"{cell_text(total)}, of which {cell_text(account.budget_left)} left"))
    return html_page("Session", lines)


def _secret(account: Any, unfinished: bool) -> str:
    lowest, highest, odds = map(cell_text, (account.lowest, account.highest, account.log_odds))
    within = "; inside a window, about which nothing is promised before it is over" * unfinished
    return f"{account.name}: log odds {odds}, between {lowest} and {highest} so far{within}"
