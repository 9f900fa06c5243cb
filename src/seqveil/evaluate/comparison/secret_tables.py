"""Rows side by side, one table for each declared secret: what is promised about it, what was told, who found it out."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from seqveil.evaluate.comparison.rows import Row, error_cell, markdown_line, markdown_name, number_cell
from seqveil.evaluate.comparison.told import Told
from seqveil.interfaces.commands.terminal import WIDE

Shown = tuple[Row, Told]

HEADINGS = ("mechanism", "ε an event", "error", "filtered", "promises", "told at most")
ATTACK = ("attack shows", "verdict")
LEGEND = """\
promises, told: logs of the factor by which the odds of the secret move, in total for a whole stream. promises: the
most that the mechanism allows under the model; told at most: what it came to for the person whom most was told about,
exact under the model; ✗ more than the ε declared; unbounded: told for certain; no account: released in batches.
★ least filtered error of those that promise the ε declared."""
ATTACK_LEGEND = """\
attack shows: a lower bound on the ε of real people, at least 95% sure in each row, from classifiers that learned from
half of the people and know no model; verdict: whether the ε declared holds for people, whatever the row promises."""


def tables(rows: Sequence[Row]) -> None:
    """Print a table for each secret."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else WIDE, markup=False, highlight=False)
    for shown in by_secret(rows):
        about = shown[0][1]
        console.print(Text(f"{about.about}: ε = {about.epsilon:g} in total{_sides(about)}", style="bold"))
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for heading in headings(shown):
            grid.add_column(heading, no_wrap=True)
        best = winner(shown)
        for row, told in shown:
            broken = told.kept is False or told.verdict == "broken"
            style = "bold green" if row is best else "red" if broken else "dim" if row.limit else ""
            name = ("★ " if row is best else "") + _label(row)
            grid.add_row(*(Text(cell, style=style) for cell in (name, *cells(row, told, _attacked(shown)))))
        console.print(grid)
    if any(row.secrets for row in rows):
        print(LEGEND)
        if any(told.verdict for row in rows for told in row.secrets):
            print(ATTACK_LEGEND)
    for row in rows:
        if row.epsilon is None and row.reason:
            console.print(f"{row.label}: {row.reason}", style="dim")


def by_secret(rows: Sequence[Row]) -> list[list[Shown]]:
    """For each secret the rows that say something about it; the best guess, which has no ε of its own, comes once."""
    kept: dict[tuple[str, float | None], Row] = {}
    for row in rows:
        if row.secrets:
            kept.setdefault((row.label, None if row.status == "limit" else row.epsilon), row)
    ordered = sorted(kept.values(), key=lambda row: (row.status == "limit", row.epsilon is not None))
    count = len(ordered[0].secrets) if ordered else 0
    return [[(row, row.secrets[k]) for row in ordered] for k in range(count)]


def winner(shown: Sequence[Shown]) -> Row | None:
    """The row of least filtered error among those that promise the ε declared, and kept it."""
    field = [row for row, told in shown if told.keeps_by_promise and row.status == "sound" and row.filtered is not None]
    return min(field, key=lambda row: row.filtered or 0.0, default=None)


def headings(shown: Sequence[Shown]) -> tuple[str, ...]:
    """The columns of one secret's table; those of the attack where there was one."""
    return HEADINGS + (ATTACK if _attacked(shown) else ())


def cells(row: Row, told: Told, attacked: bool) -> list[str]:
    """What stands beside the mechanism's name.

    >>> told = Told("ever:a", "whether a occurs", 0.5, promised=None, log_odds_worst=math.inf)
    >>> cells(Row("suppression", "suppression", None, "no promise", error=0.034, filtered=0.03), told, False)
    ['', '.034', '.030', 'nothing', 'unbounded ✗']
    """
    own = "" if row.epsilon is None or row.status == "limit" else f"{row.epsilon:g}"
    promised = "nothing" if told.promised is None else number_cell(told.promised)
    found = [own, error_cell(row.error, None), error_cell(row.filtered, None), promised, _most(told)]
    return [*found, *_attack(told)] if attacked else found


def _most(told: Told) -> str:
    if told.log_odds_worst is None:
        return "no account"
    most = "unbounded" if math.isinf(told.log_odds_worst) else number_cell(told.log_odds_worst)
    return most if told.kept else f"{most} ✗"


def _attack(told: Told) -> tuple[str, str]:
    if told.epsilon_at_least is None:
        return "", ""
    needed = "" if told.people_needed is None else f", about {told.people_needed} needed"
    return f"≥ {number_cell(told.epsilon_at_least)}", f"{told.verdict} ({told.people} people{needed})"


def _attacked(shown: Sequence[Shown]) -> bool:
    return any(told.verdict for _, told in shown)


def _sides(told: Told) -> str:
    return ", growing suspicion alone" if told.sides == "up" else ""


def _label(row: Row) -> str:
    return f"{row.label} ({row.period})" if row.period not in (1, None) else row.label


def markdown(rows: Sequence[Row]) -> str:
    """The same tables as Markdown.

    >>> kept = Told("ever:a", "whether a occurs", 0.5, promised=0.5, log_odds_worst=0.5)
    >>> print(markdown([Row("guarded", "guarded", None, "sound", error=0.116, filtered=0.116, secrets=(kept,))]))
    whether a occurs: ε = 0.5 in total
    <BLANKLINE>
    | mechanism | ε an event | error | filtered | promises | told at most |
    |---|---|---|---|---|---|
    | `guarded` |  | .116 | **.116** | 0.5 | 0.5 |
    """
    parts = []
    for shown in by_secret(rows):
        about, head, best = shown[0][1], headings(shown), winner(shown)
        lines = [f"{about.about}: ε = {about.epsilon:g} in total{_sides(about)}", "", markdown_line(head)]
        lines.append("|" + "---|" * len(head))
        for row, told in shown:
            found = cells(row, told, _attacked(shown))
            found[2] = f"**{found[2]}**" if row is best else found[2]
            lines.append(markdown_line([markdown_name(_label(row), [row]), *found]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
