"""Options that several commands share, so that each is spelled and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files import Columns
    from seqveil.release.stream import Setting

Data = Annotated[str, typer.Argument(metavar="DATA", help="CSV, TSV, JSONL or Parquet file; - for standard input.")]
ReleasedFile = Annotated[Path, typer.Argument(metavar="RELEASED", help="A file that `seqveil release` wrote.")]
ModelFile = Annotated[Path, typer.Option("--model", "-m", metavar="MODEL", help="The model file.")]
ModelOrNone = Annotated[Path | None, typer.Option("--model", "-m", metavar="MODEL", help="The model file.")]
Out = Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where to write; - for standard output.")]
Format = Annotated[
    str | None, typer.Option(metavar="csv|jsonl", help="Format of standard input and output; files tell by their name.")
]
Meta = Annotated[Path | None, typer.Option(metavar="FILE", help="The side file, where it is not FILE.meta.json.")]

State = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep what was released here, so that the same command goes on after a stop or crash; --out is appended "
        "to (CSV, TSV, JSONL).",
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="With --state: draw from the secret key in this file (made if missing), so that an event that is drawn "
        "again comes out the same. Who has the key can undo the release.",
    ),
]

UserColumn = Annotated[str | None, typer.Option(metavar="NAME", help="Column of the user  [default: user]")]
ValueColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of the value, or two as in x,y  [default: value]")
]
TimeColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of the order  [default: seq or time; time for seconds]")
]
Sort = Annotated[bool, typer.Option("--sort", help="Sort the rows by the order column first (in memory).")]

Bins = Annotated[float | None, typer.Option(metavar="WIDTH", help="Cut numbers into bins of this width.")]
Levels = Annotated[int | None, typer.Option(metavar="N", help="Cut numbers into N bins of about equal count.")]
GridCells = Annotated[str | None, typer.Option(metavar="10x10", help="Cut points (--value-column x,y) into a grid.")]
Order = Annotated[int, typer.Option(metavar="M", help="How many past symbols the next one depends on.")]
Smoothing = Annotated[float, typer.Option(metavar="A", help="Pseudo-count given to each context; 0 keeps zeros.")]

Mechanism = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="See `seqveil mechanisms`  [default: optimal; auto for batches]"),
]
BatchSize = Annotated[
    int | None,
    typer.Option(metavar="W", help="Release W events of a user at a time: less error, more delay  [default: 1]"),
]
Epsilon = Annotated[
    float | None,
    typer.Option("--epsilon", "-e", metavar="E", help="Bound for one release or batch (on average, with --every)."),
]
DistortionName = Annotated[
    str | None,
    typer.Option(metavar="hamming|absolute|squared|euclidean", help="Cost of a wrong release  [default: hamming]"),
]
Every = Annotated[int | None, typer.Option(metavar="M", help="Spend M·ε at every M-th release, nothing in between.")]
SpendAbove = Annotated[
    float | None,
    typer.Option(
        metavar="THRESHOLD", help="Save ε, at most M·ε, and spend it when the best guess's expected cost passes this."
    ),
]
TotalBudget = Annotated[float | None, typer.Option(metavar="TOTAL", help="Most that a user's whole stream may leak.")]
Horizon = Annotated[int | None, typer.Option(metavar="N", help="Spread the total evenly over N releases.")]
WindowBudget = Annotated[
    float | None,
    typer.Option("--window", metavar="EPS", help="Most that may leak in any window of the length given next."),
]
WindowReleases = Annotated[
    int | None, typer.Option(metavar="N", help="Length of the window in events, released or not.")
]
WindowSeconds = Annotated[float | None, typer.Option(metavar="S", help="Length of the window in seconds.")]
LdpBudget = Annotated[
    float | None,
    typer.Option(metavar="X", help="Most that a user's whole stream may leak whatever the truth is: needs no model."),
]
WhenSpent = Annotated[
    str | None,
    typer.Option(metavar="hold|stop|error", help="What to do when the budget is gone  [default: hold, the best guess]"),
]
Delta = Annotated[float, typer.Option(metavar="D", help="Failure probability of the (ε, δ) total.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def columns_of(user: str | None, value: str | None, time: str | None) -> Columns:
    from seqveil.interfaces.files import Columns

    return Columns(user or "user", value or "value", time)


def columns_given(user: str | None, value: str | None, time: str | None) -> Columns | None:
    """The columns, or None where the side file is to name them."""
    return None if user is value is time is None else columns_of(user, value, time)


def setting_given(model: MarkovModel, *options: Any) -> Setting | None:
    """The setting, or None where no option of it was given and the side file is to give it."""
    return setting_of(model, *options) if any(option is not None for option in options) else None


def setting_of(
    model: MarkovModel,
    batch: int | None,
    mechanism: str | None,
    epsilon: float | None,
    distortion: str | None,
    every: int | None,
    spend_above: float | None,
    budget: float | None,
    horizon: int | None,
    window: float | None,
    window_releases: int | None,
    window_seconds: float | None,
    when_spent: str | None,
    ldp_budget: float | None = None,
) -> Setting:
    """The setting that the options spell out."""
    from seqveil.release.accounting import Budget, Schedule
    from seqveil.release.stream import Setting

    _check_together(epsilon, budget, horizon, window, window_releases, window_seconds)
    schedule = Schedule(1 if every is None else every, spend_above)
    spent: Any = when_spent or "hold"
    purse = Budget(budget, horizon, window, window_releases, window_seconds, spent, ldp_budget)
    size = 1 if batch is None else batch
    named = mechanism or ("optimal" if size == 1 else "auto")
    return Setting.of(model, named, epsilon, distortion or "hamming", schedule, purse, size)


def _check_together(
    epsilon: float | None,
    budget: float | None,
    horizon: int | None,
    window: float | None,
    window_releases: int | None,
    window_seconds: float | None,
) -> None:
    """Refuse options that need another one, in the words of the command line."""
    from seqveil.core.errors import InputError

    if window is not None and window_releases is None and window_seconds is None:
        raise InputError(f"--window {window:g} has no length; add --window-releases N or --window-seconds S")
    if window is None and (window_releases is not None or window_seconds is not None):
        raise InputError("the length of a window came without its budget; add --window EPS, the most it may leak")
    if horizon is not None and budget is None:
        raise InputError(f"--horizon {horizon} has no total to spread; add --budget TOTAL")
    if epsilon is None and horizon is None:
        raise InputError("expected --epsilon E, the bound for one release, got none; try --epsilon 1")
