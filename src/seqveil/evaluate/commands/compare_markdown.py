"""A comparison as one Markdown table: a line a mechanism, a column an ε."""

from __future__ import annotations

from collections.abc import Sequence

from seqveil.core import mechanisms
from seqveil.evaluate.commands.compare_table import _short, winners
from seqveil.evaluate.comparison import Row


def markdown(rows: Sequence[Row]) -> str:
    """Error after the online decoder (in brackets with hindsight), and how much of its claim the worst release reached.

    >>> measured = {"lift_most": 1.0, "lift_least": -0.5, "filtered": 0.5, "smoothed": 0.25}
    >>> told = Row("optimal", "optimal", 1.0, "sound", claimed=1.0, events=9, micros=3.0, **measured)
    >>> print(markdown([told]))
    | mechanism | ε = 1 | worst release / claim |
    |---|---|---|
    | `optimal` | **.500** (.250) | 1.00 |
    """
    bounds = list(dict.fromkeys(row.epsilon for row in rows))
    best = {id(row) for bound in bounds for row, _ in winners([row for row in rows if row.epsilon == bound])}
    head = ["mechanism", *(f"ε = {bound:g}" for bound in bounds), "worst release / claim"]
    lines = [_line(head), "|" + "---|" * len(head)]
    labels = list(dict.fromkeys(row.label for row in sorted(rows, key=lambda row: row.limit or row.status == "limit")))
    for label in labels:
        mine = {row.epsilon: row for row in rows if row.label == label}
        if any(row.filtered is not None for row in mine.values()):
            cells = [_cell(mine.get(bound), best) for bound in bounds]
            lines.append(_line([_named(label, list(mine.values())), *cells, _reached(list(mine.values()))]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _named(label: str, rows: list[Row]) -> str:
    """The label, a mechanism's name as code, limits in italics, with fewer users noted."""
    name, comma, rest = label.partition(",")
    limit = any(row.limit or row.status == "limit" for row in rows)
    word, _, factor = name.partition(" at ")
    shown = f"`{word}`{' at ' + factor if factor else ''}" if word in mechanisms.names() else name
    return f"*limit:* {shown}{comma}{rest}" if limit else f"{shown}{comma}{rest}"


def _cell(row: Row | None, best: set[int]) -> str:
    if row is None or row.filtered is None:
        return "–"
    late = "" if row.smoothed is None else f" ({_short(row.smoothed)})"
    shown = _short(row.filtered)
    return f"**{shown}**{late}" if id(row) in best else f"{shown}{late}"


def _reached(rows: list[Row]) -> str:
    """Largest over all ε; past 1 the claim is broken."""
    shares = [
        max(row.lift_most, -row.lift_least) / row.claimed
        for row in rows
        if row.lift_most is not None and row.lift_least is not None and row.claimed
    ]
    if not shares:
        return ""
    broken = any(row.status == "unsound" for row in rows)
    text = "no bound" if max(shares) == float("inf") else f"{max(shares):.2f}"
    return f"{text} ✗" if broken else text
