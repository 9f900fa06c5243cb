"""What one contestant did at one ε: error, what it really leaked, what an adversary got out of it, and its pace.

Rows are shown as tables: one for each ε at the terminal, with all that was measured, or one for all as Markdown.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqveil.core import html, mechanisms
from seqveil.core.distortion import error_name
from seqveil.core.kernel import Floats
from seqveil.evaluate.comparison.told import Told
from seqveil.interfaces.commands.terminal import WIDE, plain

if TYPE_CHECKING:
    from rich.console import Console

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

Status = Literal["sound", "unsound", "no promise", "limit", "skipped"]


@dataclass(frozen=True)
class Row:
    """One line of a comparison. Errors are means over events, each with the half-width of its 95% interval.

    `status`: "sound" (promised and kept), "unsound" (a release passed what it claims), "no promise" (it kept to it
    here, but may not elsewhere), "limit" (marks the field), "skipped" (`reason` says why; there are no figures).
    `claimed`: ε of one release or batch. `lift_most`, `lift_least`: logs of the largest and least lift of any single
    release, over all outputs of the kernels used (`lift_scope` "kernels") or over those released ("releases", where
    the outputs cannot be listed). `ldp`: the same without a belief. `leakage_most`, `leakage_least`: both sides of the
    worst whole stream as it was realised. `guesses`: the adversary's rates, by names such as "online_1" and
    "hindsight_10", beside their bounds "step_bound_1" and "stream_bound_1". `secrets`: what the row says about each
    declared secret. `epsilon` is None for who keeps secrets and has no ε an event; its status is about the secrets.
    """

    label: str
    mechanism: str
    epsilon: float | None
    status: Status
    reason: str = ""
    factor: float = 1.0
    batch: int = 1
    period: int | None = 1
    limit: bool = False
    claimed: float | None = None
    users: int = 0
    events: int = 0
    error: float | None = None
    error_half: float | None = None
    filtered: float | None = None
    filtered_half: float | None = None
    smoothed: float | None = None
    smoothed_half: float | None = None
    lift_most: float | None = None
    lift_least: float | None = None
    lift_scope: str = ""
    ldp: float | None = None
    leakage_most: float | None = None
    leakage_least: float | None = None
    guesses: Mapping[str, float] = field(default_factory=dict)
    micros: float | None = None  # processor time of a release, in microseconds an event
    secrets: tuple[Told, ...] = ()

    @property
    def may_win(self) -> bool:
        """Whether it keeps its promise with the budget of the race."""
        return self.status == "sound" and self.factor == 1 and not self.limit

    def _repr_html_(self) -> str:
        return html.result(self)

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite number becomes text, because JSON has none. Secrets are there where some are."""
        content: dict[str, Any] = plain(asdict(self))
        if not self.secrets:
            del content["secrets"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Row:
        """The row behind `to_json`.

        >>> row = Row("crr", "crr", 1.0, "unsound", lift_most=math.inf, guesses={"online_1": 0.5})
        >>> Row.from_json(row.to_json()) == row
        True
        """
        known = {f.name for f in fields(cls)}
        values = {name: _read(value) for name, value in content.items() if name in known}
        if "secrets" in values:
            values["secrets"] = tuple(Told.from_json(one) for one in values["secrets"])
        return cls(**values)


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _read(part) for name, part in value.items()}
    return float(value) if value in ("inf", "-inf", "nan") else value


class Tally:
    """Sums over each user's events, by name, and their means with intervals clustered by user."""

    def __init__(self) -> None:
        self._events: list[Floats] = []
        self._sums: dict[str, list[Floats]] = {}

    def add(self, events: Floats, sums: Mapping[str, Floats]) -> None:
        """Users with so many events, and the sums of each over them."""
        self._events.append(np.asarray(events, np.float64))
        for name, values in sums.items():
            self._sums.setdefault(name, []).append(np.asarray(values, np.float64))

    @property
    def users(self) -> int:
        """How many streams were counted."""
        return sum(part.size for part in self._events)

    @property
    def events(self) -> int:
        """How many events they had together."""
        return int(sum(part.sum() for part in self._events))

    def means(self) -> dict[str, float]:
        """Means over events."""
        return {name: float(np.concatenate(parts).sum()) / self.events for name, parts in self._sums.items()}

    def mean(self, name: str) -> tuple[float, float | None]:
        """A mean over events and the half-width of its 95% interval (None for a single user)."""
        return clustered(np.concatenate(self._sums[name]), np.concatenate(self._events))


def clustered(sums: Floats, counts: Floats) -> tuple[float, float | None]:
    """m = Σ s_u / Σ n_u, and t · sqrt(G/(G-1) Σ (s_u - m n_u)²) / Σ n_u over the G users: users differ, events follow.

    >>> mean, half = clustered(np.array([1.0, 3.0]), np.array([2.0, 2.0]))
    >>> mean, round(half, 3)
    (1.0, 6.353)
    """
    total, groups = float(counts.sum()), counts.size
    mean = float(sums.sum()) / total
    if groups < 2:
        return mean, None
    from scipy.special import stdtrit

    spread = math.sqrt(groups / (groups - 1) * float(((sums - mean * counts) ** 2).sum())) / total
    return mean, float(stdtrit(groups - 1, 0.975)) * spread


def tables(rows: Sequence[Row], distortion: str) -> None:
    """Print the rows, contestants before limits, an ε at a time; a narrow terminal gets fewer columns."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else WIDE, markup=False, highlight=False)
    for epsilon in dict.fromkeys(row.epsilon for row in rows if row.epsilon is not None):
        here = [row for row in rows if row.epsilon == epsilon]
        console.print(Text(f"ε = {epsilon:g} an event, {error_name(distortion)}", style="bold"))
        _print(console, here)
    print(LEGEND)
    if console.width < FULL:
        print(f"a terminal of {FULL} columns, and --json, show more: intervals, {', '.join(EXTRA)}")


def _print(console: Console, rows: list[Row]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    best, most, wide = {row.label: mark for row, mark in winners(rows)}, _most(rows), console.width >= FULL
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in _cells(rows[0], "", most, wide):
        grid.add_column(heading, no_wrap=True)
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


def _most(rows: Iterable[Row]) -> int:
    """Events of those who released everyone."""
    return max((row.events for row in rows if row.micros is not None), default=0)


def winners(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """The sound contestants of least filtered error among those that released everyone: with no delay, and of all."""
    field = [row for row in rows if row.may_win and row.filtered is not None and row.events == _most(rows)]
    prompt = [row for row in field if row.batch == 1]
    found = []
    for some, mark in ((prompt, "☆ "), (field, "★ ")):
        if some:
            found.append((min(some, key=lambda row: row.filtered or 0.0), mark))
    return found


def _cells(row: Row, mark: str, most: int, wide: bool) -> dict[str, str]:
    """The cells of a row by the headings of their columns; a wide table has more of both, and intervals."""
    every = f" ({row.period})" if row.period not in (1, None) else ""
    released = "°" if row.lift_scope == "releases" else ""
    cells = {
        "mechanism": mark + row.label + every,
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


def _remark(row: Row, most: int) -> str:
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


def _rates(row: Row, top: int) -> str:
    without, online, late = (_percent(row, f"{name}_{top}") for name in ("without", "online", "hindsight"))
    return f"{without}→{online}/{late}" if online else without


def _percent(row: Row, name: str) -> str:
    return f"{100 * row.guesses[name]:.0f}%" if name in row.guesses else ""


def markdown(rows: Sequence[Row]) -> str:
    """Error after the online decoder (in brackets with hindsight), and how much of its claim the worst release reached.

    >>> measured = {"lift_most": 1.0, "lift_least": -0.5, "filtered": 0.5, "smoothed": 0.25}
    >>> told = Row("optimal", "optimal", 1.0, "sound", claimed=1.0, events=9, micros=3.0, **measured)
    >>> print(markdown([told]))
    | mechanism | ε = 1 | worst release / claim |
    |---|---|---|
    | `optimal` | **.500** (.250) | 1.00 |
    """
    rows = [row for row in rows if row.epsilon is not None]
    bounds = list(dict.fromkeys(row.epsilon for row in rows))
    best = {id(row) for bound in bounds for row, _ in winners([row for row in rows if row.epsilon == bound])}
    head = ["mechanism", *(f"ε = {bound:g}" for bound in bounds), "worst release / claim"]
    lines = [markdown_line(head), "|" + "---|" * len(head)]
    labels = list(dict.fromkeys(row.label for row in sorted(rows, key=lambda row: row.limit or row.status == "limit")))
    for label in labels:
        mine = {row.epsilon: row for row in rows if row.label == label}
        if any(row.filtered is not None for row in mine.values()):
            cells = [_markdown_cell(mine.get(bound), best) for bound in bounds]
            lines.append(
                markdown_line([markdown_name(label, list(mine.values())), *cells, _share_of_claim(list(mine.values()))])
            )
    return "\n".join(lines)


def markdown_line(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def markdown_name(label: str, rows: list[Row]) -> str:
    """The label, a mechanism's name as code, limits in italics, with fewer users noted."""
    name, comma, rest = label.partition(",")
    limit = any(row.limit or row.status == "limit" for row in rows)
    word, _, factor = name.partition(" at ")
    shown = f"`{word}`{' at ' + factor if factor else ''}" if word in mechanisms.names() else name
    return f"*limit:* {shown}{comma}{rest}" if limit else f"{shown}{comma}{rest}"


def _markdown_cell(row: Row | None, best: set[int]) -> str:
    if row is None or row.filtered is None:
        return "–"
    late = "" if row.smoothed is None else f" ({_short(row.smoothed)})"
    shown = _short(row.filtered)
    return f"**{shown}**{late}" if id(row) in best else f"{shown}{late}"


def _share_of_claim(rows: list[Row]) -> str:
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
