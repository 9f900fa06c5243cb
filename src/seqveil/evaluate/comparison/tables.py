"""Rows side by side: at the terminal or as Markdown, a table for each ε and one for each declared secret.

A table of an ε has all that was measured; one of a secret says what is promised about it, what was disclosed, and who
found it out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from seqveil.core import mechanisms
from seqveil.core.distortion import error_name
from seqveil.evaluate.comparison.rows import ComparisonRow, SecretFigures
from seqveil.interfaces.commands.terminal import WIDE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

EXTRA = ("claims", "stream up/down", "may be", "top-10")  # columns that a narrow terminal leaves out
FULL = 150  # columns of a terminal that shows them all
LEGEND = """\
error: mean over events of the release as it stands, ± 95% (by user); filtered: after the receiver's online decoder;
smoothed: decoded with the whole stream. lift, LDP, stream: measured logs of the worst release (° of those released;
else of all that the kernels used could release) and of the worst whole stream. top-1, top-10: how often an adversary
who knows the chain names the truth, without releases → with those so far / with all of them; may be: what one release
at its claim allows, on average, were the chain true. ★ least filtered error of the sound ones that released all
users, ☆ of those that do not wait for a batch. (m): every m-th release spends m times as much, from the first on, the
others nothing, so that a stream shorter than m spends as much as one of m.
µs: processor time of a release, for an event."""

Shown = tuple[ComparisonRow, SecretFigures]

HEADINGS = ("mechanism", "ε an event", "error", "filtered", "promises", "disclosed at most")
ATTACK = ("attack shows", "verdict")
SECRET_LEGEND = """\
promises, disclosed: logs of the factor by which the odds of the secret move, in total for a whole stream. promises: the
most that the mechanism allows under the model; disclosed at most: what it came to for the person whom most was
disclosed about, exact under the model; ✗ more than the ε declared; unbounded: disclosed for certain; no account:
released in batches.
★ least filtered error of those that promise the ε declared."""
ATTACK_LEGEND = """\
attack shows: the ε of real people that the best guess shows, and a lower bound, at least 95% sure in each row, from
classifiers that learned from half of the people and know no model; verdict: about the ε declared, whatever the row
promises; noticed: the smallest leak that so many people would have shown to be above it."""


def tables(rows: Sequence[ComparisonRow], distortion: str) -> None:
    """Print the rows, contestants before limits, an ε at a time; a narrow terminal gets fewer columns."""
    from rich.text import Text

    console = _console()
    for epsilon in dict.fromkeys(row.epsilon for row in rows if row.epsilon is not None):
        here = [row for row in rows if row.epsilon == epsilon]
        console.print(Text(f"ε = {epsilon:g} an event, {error_name(distortion)}", style="bold"))
        _print(console, here)
    print(LEGEND)
    if console.width < FULL:
        print(f"a terminal of {FULL} columns, and --json, show more: intervals, {', '.join(EXTRA)}")


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, markup=False, highlight=False)


def _grid(headings: Iterable[str]) -> Table:
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        grid.add_column(heading, no_wrap=True)
    return grid


def _print(console: Console, rows: list[ComparisonRow]) -> None:
    """The table of one ε."""
    from rich.text import Text

    best, most, wide = {row.label: mark for row, mark in winners(rows)}, _most(rows), console.width >= FULL
    grid = _grid(_cells(rows[0], "", most, wide))
    for limit in (False, True):
        block = [row for row in rows if row.limit == limit and row.status != "skipped"]
        if limit and block:
            grid.add_section()
            grid.add_row(Text("limits", style="dim italic"))
        for row in block:
            mark = best.get(row.label, "")
            style = "red" if row.status == "unsound" else "bold green" if mark else "dim" if limit else ""
            grid.add_row(*(Text(cell, style=style) for cell in _cells(row, mark, most, wide).values()))
    console.print(grid)
    for row in rows:
        if row.reason:
            console.print(f"{row.label}: {row.reason}", style="dim")


def _most(rows: Iterable[ComparisonRow]) -> int:
    """Events of those who released everyone."""
    return max((row.events for row in rows if row.micros is not None), default=0)


def winners(rows: Sequence[ComparisonRow]) -> list[tuple[ComparisonRow, str]]:
    """The sound contestants of least filtered error among those that released everyone: with no delay, and of all."""
    field = [row for row in rows if row.may_win and row.filtered is not None and row.events == _most(rows)]
    prompt = [row for row in field if row.batch == 1]
    found = []
    for some, mark in ((prompt, "☆ "), (field, "★ ")):
        if some:
            found.append((min(some, key=lambda row: row.filtered or 0.0), mark))
    return found


def _cells(row: ComparisonRow, mark: str, most: int, wide: bool) -> dict[str, str]:
    """The cells of a row by the headings of their columns; a wide table has more of both, and intervals."""
    released = "°" if row.lift_scope == "releases" else ""
    cells = {
        "mechanism": mark + _label(row),
        "error": error_cell(row.error, row.error_half if wide else None),
        "filtered": error_cell(row.filtered, row.filtered_half if wide else None),
        "smoothed": error_cell(row.smoothed, row.smoothed_half if wide else None),
        "lift up/down": _sides(row.lift_most, row.lift_least) + released,
        "claims": number_cell(row.claimed),
        "LDP": number_cell(row.ldp),
        "stream up/down": _sides(row.leakage_most, row.leakage_least),
        "top-1": _rates(row, 1),
        "may be": _percent(row, "step_bound_1"),
        "top-10": _rates(row, 10),
        "µs": number_cell(row.micros),
        "": _remark(row, most),
    }
    return {heading: cell for heading, cell in cells.items() if wide or heading not in EXTRA}


def _remark(row: ComparisonRow, most: int) -> str:
    said = {"unsound": "✗ unsound", "no promise": "no promise"}.get(row.status, "")
    fewer = f"{row.users} users" if row.events and row.events < most and row.micros is not None else ""
    return "; ".join(part for part in (said, fewer) if part)


def error_cell(value: float | None, half: float | None) -> str:
    """A mean and its interval.

    >>> error_cell(0.5249, 0.0124), error_cell(12.345, 0.5), error_cell(None, None)
    ('.525±.012', '12.3±.500', '')
    """
    return "" if value is None else "±".join(_short(part) for part in (value, half) if part is not None)


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:.3g}" if value < 1000 else f"{value:.4g}"


def number_cell(value: float | None) -> str:
    """Three figures; a log below a thousandth is no leak worth a digit.

    >>> [number_cell(value) for value in (1234.5, 1.2345, 1e-7, float("inf"))]
    ['1234', '1.23', '0', 'inf']
    """
    if value is None:
        return ""
    size = abs(value)
    if size < 1e-3:
        return "0"
    return (
        f"{value:.0f}" if 100 <= size < 1e9 else f"{value:.2f}".rstrip("0").rstrip(".") if size < 10 else f"{value:.3g}"
    )


def _sides(most: float | None, least: float | None) -> str:
    return "" if most is None or least is None else f"+{number_cell(most)}/-{number_cell(abs(least))}"


def _rates(row: ComparisonRow, top: int) -> str:
    without, online, late = (_percent(row, f"{name}_{top}") for name in ("without", "online", "hindsight"))
    return f"{without}→{online}/{late}" if online else without


def _percent(row: ComparisonRow, name: str) -> str:
    return f"{100 * row.guesses[name]:.0f}%" if name in row.guesses else ""


def markdown(rows: Sequence[ComparisonRow]) -> str:
    """Error after the online decoder (in brackets with hindsight), and how much of its claim the worst release reached.

    >>> measured = {"lift_most": 1.0, "lift_least": -0.5, "filtered": 0.5, "smoothed": 0.25}
    >>> disclosed = ComparisonRow("optimal", "optimal", 1.0, "sound", claimed=1.0, events=9, micros=3.0, **measured)
    >>> print(markdown([disclosed]))
    | mechanism | ε = 1 | worst release / claim |
    |---|---|---|
    | `optimal` | **.500** (.250) | 1.00 |
    """
    rows = [row for row in rows if row.epsilon is not None]
    bounds = list(dict.fromkeys(row.epsilon for row in rows))
    best = {id(row) for bound in bounds for row, _ in winners([row for row in rows if row.epsilon == bound])}
    head = ["mechanism", *(f"ε = {bound:g}" for bound in bounds), "worst release / claim"]
    lines = []
    labels = list(dict.fromkeys(row.label for row in sorted(rows, key=lambda row: row.limit or row.status == "limit")))
    for label in labels:
        mine = {row.epsilon: row for row in rows if row.label == label}
        if any(row.filtered is not None for row in mine.values()):
            cells = [_markdown_cell(mine.get(bound), best) for bound in bounds]
            every = list(mine.values())
            lines.append([_markdown_name(label, every), *cells, _share_of_claim(every)])
    return _markdown(head, lines)


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table as Markdown."""
    above, *rest = ("| " + " | ".join(cells) + " |" for cells in (head, *lines))
    return "\n".join([above, "|" + "---|" * len(head), *rest])


def _markdown_name(label: str, rows: list[ComparisonRow]) -> str:
    """The label, a mechanism's name as code, limits in italics, with fewer users noted."""
    name, comma, rest = label.partition(",")
    limit = any(row.limit or row.status == "limit" for row in rows)
    word, _, factor = name.partition(" at ")
    shown = f"`{word}`{' at ' + factor if factor else ''}" if word in mechanisms.names() else name
    return f"*limit:* {shown}{comma}{rest}" if limit else f"{shown}{comma}{rest}"


def _markdown_cell(row: ComparisonRow | None, best: set[int]) -> str:
    if row is None or row.filtered is None:
        return "–"
    late = "" if row.smoothed is None else f" ({_short(row.smoothed)})"
    shown = _short(row.filtered)
    return f"**{shown}**{late}" if id(row) in best else f"{shown}{late}"


def _share_of_claim(rows: list[ComparisonRow]) -> str:
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


def secret_tables(rows: Sequence[ComparisonRow]) -> None:
    """Print a table for each secret."""
    from rich.text import Text

    console = _console()
    for shown in by_secret(rows):
        console.print(Text(_title(shown), style="bold"))
        grid = _grid(headings(shown))
        best = winner(shown)
        for row, disclosed in shown:
            broken = disclosed.kept is False or disclosed.verdict == "broken"
            style = "bold green" if row is best else "red" if broken else "dim" if row.limit else ""
            name = ("★ " if row is best else "") + _label(row)
            grid.add_row(*(Text(cell, style=style) for cell in (name, *secret_cells(row, disclosed, _attacked(shown)))))
        console.print(grid)
    if any(row.secrets for row in rows):
        print(SECRET_LEGEND)
        if any(disclosed.verdict for row in rows for disclosed in row.secrets):
            print(ATTACK_LEGEND)
    for row in rows:
        if row.epsilon is None and row.reason:
            console.print(f"{row.label}: {row.reason}", style="dim")


def by_secret(rows: Sequence[ComparisonRow]) -> list[list[Shown]]:
    """For each secret the rows that say something about it; the best guess, which has no ε of its own, comes once."""
    kept: dict[tuple[str, float | None], ComparisonRow] = {}
    for row in rows:
        if row.secrets:
            kept.setdefault((row.label, None if row.status == "limit" else row.epsilon), row)
    ordered = sorted(kept.values(), key=lambda row: (row.status == "limit", row.epsilon is not None))
    count = len(ordered[0].secrets) if ordered else 0
    return [[(row, row.secrets[k]) for row in ordered] for k in range(count)]


def winner(shown: Sequence[Shown]) -> ComparisonRow | None:
    """The row of least filtered error among those that promise the ε declared, and kept it."""
    field = [
        row
        for row, disclosed in shown
        if disclosed.keeps_by_promise and row.status == "sound" and row.filtered is not None
    ]
    return min(field, key=lambda row: row.filtered or 0.0, default=None)


def headings(shown: Sequence[Shown]) -> tuple[str, ...]:
    """The columns of one secret's table; those of the attack where there was one."""
    return HEADINGS + (ATTACK if _attacked(shown) else ())


def secret_cells(row: ComparisonRow, disclosed: SecretFigures, attacked: bool) -> list[str]:
    """What stands beside the mechanism's name.

    >>> disclosed = SecretFigures("ever:a", "whether a occurs", 0.5, promised=None, log_odds_worst=math.inf)
    >>> row = ComparisonRow("suppression", "suppression", None, "no promise", error=0.034, filtered=0.03)
    >>> secret_cells(row, disclosed, False)
    ['', '.034', '.030', 'nothing', 'unbounded ✗']
    """
    own = "" if row.epsilon is None or row.status == "limit" else f"{row.epsilon:g}"
    promised = "nothing" if disclosed.promised is None else number_cell(disclosed.promised)
    found = [own, error_cell(row.error, None), error_cell(row.filtered, None), promised, _disclosed(disclosed)]
    return [*found, *_attack(disclosed)] if attacked else found


def _disclosed(disclosed: SecretFigures) -> str:
    if disclosed.log_odds_worst is None:
        return "no account"
    most = "unbounded" if math.isinf(disclosed.log_odds_worst) else number_cell(disclosed.log_odds_worst)
    return most if disclosed.kept else f"{most} ✗"


def _attack(disclosed: SecretFigures) -> tuple[str, str]:
    if disclosed.epsilon_at_least is None:
        return "", ""
    low = f"≥ {number_cell(disclosed.epsilon_at_least)}"
    shows = low if disclosed.epsilon_estimate is None else f"{number_cell(disclosed.epsilon_estimate)} ({low})"
    more = ""
    if disclosed.verdict == "not refuted" and disclosed.epsilon_noticeable is not None:
        more = f", noticed {number_cell(disclosed.epsilon_noticeable)}"
    elif disclosed.people_needed is not None:
        more = f", about {disclosed.people_needed} needed"
    return shows, f"{disclosed.verdict} ({disclosed.people} people{more})"


def _attacked(shown: Sequence[Shown]) -> bool:
    return any(disclosed.verdict for _, disclosed in shown)


def _title(shown: Sequence[Shown]) -> str:
    """What a table is about: the secret, and what was declared about it."""
    disclosed = shown[0][1]
    alone = ", growing suspicion alone" if disclosed.sides == "up" else ""
    return f"{disclosed.about}: ε = {disclosed.epsilon:g} in total{alone}"


def _label(row: ComparisonRow) -> str:
    return f"{row.label} ({row.period})" if row.period not in (1, None) else row.label


def secret_markdown(rows: Sequence[ComparisonRow]) -> str:
    """The same tables as Markdown.

    >>> kept = SecretFigures("ever:a", "whether a occurs", 0.5, promised=0.5, log_odds_worst=0.5)
    >>> row = ComparisonRow("guarded", "guarded", None, "sound", error=0.116, filtered=0.116, secrets=(kept,))
    >>> print(secret_markdown([row]))
    whether a occurs: ε = 0.5 in total
    <BLANKLINE>
    | mechanism | ε an event | error | filtered | promises | disclosed at most |
    |---|---|---|---|---|---|
    | `guarded` |  | .116 | **.116** | 0.5 | 0.5 |
    """
    parts = []
    for shown in by_secret(rows):
        best, lines = winner(shown), []
        for row, disclosed in shown:
            found = secret_cells(row, disclosed, _attacked(shown))
            found[2] = f"**{found[2]}**" if row is best else found[2]
            lines.append([_markdown_name(_label(row), [row]), *found])
        parts.append(f"{_title(shown)}\n\n{_markdown(headings(shown), lines)}")
    return "\n\n".join(parts)
