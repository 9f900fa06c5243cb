"""A look at somebody's own file before anything is fitted: what its columns may be, what is odd, and what to type.

It shows counts, and of the values only those that at least ten people share. It is for whoever has the raw file: what
it says is not private.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from seqveil.core import geography
from seqveil.core.alphabet import Alphabet, Bins, Symbols
from seqveil.core.bulk import numbered
from seqveil.core.errors import DataError, InputError
from seqveil.core.places import LEAST, count_cells
from seqveil.interfaces.choosing import held_out
from seqveil.interfaces.files.columns import TIMES, Columns, Taken, coordinates_in
from seqveil.interfaces.files.guessing import Guess, Role, guessed
from seqveil.interfaces.files.in_memory import as_polars
from seqveil.interfaces.files.ordering import order_key, seconds
from seqveil.interfaces.files.placing import round_near, round_up
from seqveil.interfaces.files.reading import FRAME, Chunk, FilePath, file_name, first_rows, format_of
from seqveil.interfaces.files.rows import Progress, Source
from seqveil.interfaces.files.scanning import around

if TYPE_CHECKING:
    import polars as pl

    from seqveil.interfaces.frames import ColumnWords

SHARED = 10  # people who must have a value before it is shown, and below which it is rare
SHOWN = 8  # values shown at most
MOST_NUMBERS = 30  # different numbers beyond which they are to be cut
MOST_SYMBOLS = 5_000  # beyond which how predictable they are is not computed
FAR = 5.0  # spreads (from the first to the third quartile) beyond the quartiles where an outlier begins
LEVELS = 20  # bins that are proposed
CELLS = 1_000  # of the map that are proposed, at most


@dataclass(frozen=True)
class Inspection:
    """What was found in a file. `lines` says it in words, `command` is what to type next."""

    roles: list[Role]
    reading: dict[str, Any]
    read: str
    users: int
    events: int
    shortest: int  # events of a stream
    typical: int
    longest: int
    ties: int
    needs_sorting: bool
    gap_typical: float | None  # seconds between two events of a stream; None without times
    gap_longest: float | None
    missing: int
    values: int  # different ones
    numbers: bool  # whether they are numbers
    outliers: int
    rare: int  # values that fewer than ten people have
    rare_events: int
    shared: list[tuple[str, int]]  # the most frequent values that at least ten people have, and their events
    log_likelihood: dict[str, float] = field(default_factory=dict)  # a symbol of held-out people, by order 0 and 1
    held_out_people: int = 0
    questions: list[str] = field(default_factory=list)
    command: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """What was found, a line for each part."""
        said = [
            ("column", f"{role.column!r}: {role.role} ({role.why})") for role in self.roles if role.role != "not used"
        ]
        unused = [repr(role.column) for role in self.roles if role.role == "not used"]
        more = f" and {len(unused) - SHOWN} more" if len(unused) > SHOWN else ""
        said += [("column", f"not used: {', '.join(unused[:SHOWN])}{more}")] if unused else []
        said.append(("read", self.read))
        length = f"{self.shortest} to {self.longest} events each, {self.typical} in the middle"
        said.append(("people", f"{self.users:,} people, {self.events:,} events; {length}"))
        if self.needs_sorting:
            said.append(("order", "rows go back in time; --sort puts them in order"))
        if self.gap_typical is not None and self.gap_longest is not None:
            said.append(
                (
                    "gaps",
                    f"{_span(self.gap_typical)} between two events in the middle, {_span(self.gap_longest)} at most",
                )
            )
        kind = "numbers" if self.numbers else "values"
        said.append(("values", f"{self.values:,} different {kind}, {self.missing:,} rows without one"))
        if self.numbers and self.outliers:
            said.append(("outliers", f"{self.outliers:,} rows far from the bulk"))
        if not self.numbers:
            few = f"{self.rare:,} value{'s' * (self.rare != 1)} that fewer than {SHARED} people have"
            said.append(("rare", f"{few}, in {self.rare_events:,} events"))
            shown = ", ".join(f"{value!r} {count:,}" for value, count in self.shared)
            said += [("shared", shown)] if shown else []
        if self.log_likelihood:
            zero, one = self.log_likelihood["order 0"], self.log_likelihood["order 1"]
            said.append(
                (
                    "predicted",
                    f"{one:.3f} nats a symbol from the one before, {zero:.3f} from how often it comes, on "
                    f"{self.held_out_people:,} held-out people ({one - zero:+.3f} is what correlation tells)",
                )
            )
        said += [("question", text) for text in self.questions]
        return [*said, ("next", self.command)]

    def __str__(self) -> str:
        return "\n".join(f"{name:<9} {text}" for name, text in self.lines())

    __repr__ = __str__


def inspect(
    data: Any,
    columns: Columns | None = None,
    *,
    format: str | None = None,
    on_map: bool = False,
    progress: Progress | None = None,
    **words: Unpack[ColumnWords],
) -> Inspection:
    """Look at a file or a frame (polars, pandas, Arrow) and say what is in it and what to type next.

    Parameters:
        data: the file, or the frame.
        columns: names of columns where they are known; the others are guessed from names and values.
        format: of a file whose name does not tell.
        on_map: whether two columns of the value are latitude and longitude, whatever they are called.
        progress: called with the number of rows done.
        words: user, value, time, latitude, longitude, in place of `columns`.

    >>> import polars as pl
    >>> rows = {"person": [k // 4 for k in range(80)], "page": ["news", "news", "sport", "news"] * 20}
    >>> found = inspect(pl.DataFrame(rows))
    >>> found.users, found.events, found.command
    (20, 80, 'seqveil fit DATA -o DATA.model --user-column person --value-column page')
    """
    if words:
        from seqveil.interfaces.frames import columns_of

        if columns is not None:
            raise InputError("columns are named once: pass columns, or words such as user=")
        columns, on_map = columns_of(words), on_map or words.get("latitude") is not None
    source = as_polars(data)
    if isinstance(source, str | os.PathLike) and os.fspath(source) == "-":
        raise InputError("a look at a file reads it more than once, so it cannot come from a pipe; name a file")
    head = first_rows(source, format)
    guess = guessed(head, columns, file_name(source))
    names = guess.columns
    on_map = on_map or coordinates_in(names.value_columns) == names.value_columns
    rows = Source(source, names, format, missing="drop")
    sort = False
    try:
        parts = list(rows.chunks(progress=progress))
    except DataError as error:
        if "lies before" not in str(error):
            raise
        sort, rows = True, Source(source, names, format, True, missing="drop")
        parts = list(rows.chunks(progress=progress))
    return _found(parts, rows, guess, sort, _title(source, format), on_map)


def _title(data: FilePath | pl.DataFrame, format: str | None) -> tuple[str, str]:
    """The words for the data and the model in a command."""
    if not isinstance(data, str | os.PathLike):
        return "DATA", "DATA.model"
    format_of(data, format)
    stem = Path(data).name.split(".")[0] or "data"
    return shlex.quote(os.fspath(data)), shlex.quote(f"{stem}.model")


def _found(
    parts: list[Chunk], source: Source, guess: Guess, sort: bool, title: tuple[str, str], on_map: bool
) -> Inspection:
    taken, names = source.taken, source.columns
    people: dict[Hashable, int] = {}
    who = np.concatenate([numbered(people, part.users.to_list()) for part in parts])
    lengths = np.bincount(who)
    gaps = _gaps(parts, who, source.name)
    values = _Values.of(parts, who)
    alphabet, codes = values.cut(len(people))
    zero, one, held = _predicted(alphabet, codes, who)
    facts: dict[str, Any] = {"missing": taken.missing, "ties": taken.ties, "needs_sorting": sort}
    facts |= {"gap_typical": None if gaps is None else float(np.median(gaps)) if gaps.size else 0.0}
    facts |= {"gap_longest": None if gaps is None else float(gaps.max(initial=0.0))}
    read = taken.sentence
    return Inspection(
        roles=guess.roles,
        reading=taken.to_dict(),
        read=read,
        users=len(people),
        events=int(who.size),
        shortest=int(lengths.min()),
        typical=int(np.median(lengths)),
        longest=int(lengths.max()),
        values=values.count,
        numbers=values.numbers,
        outliers=values.outliers,
        rare=values.rare,
        rare_events=values.rare_events,
        shared=values.shared,
        log_likelihood={} if zero is None or one is None else {"order 0": zero, "order 1": one},
        held_out_people=held,
        questions=[
            *guess.questions,
            *_about_places(guess.roles, names, on_map),
            *_questions(values, names, len(people), int(lengths.max())),
        ],
        command=_command(values, names, taken, sort, len(people), title, on_map),
        **facts,
    )


def _gaps(parts: list[Chunk], who: NDArray[np.intp], name: str) -> NDArray[np.float64] | None:
    """Seconds between two events of a stream; None where the order is no time."""
    import polars as pl

    first = parts[0].order
    if first is None or parts[0].counts or first.dtype == pl.Struct:
        return None
    named = first.name.strip().lower() in TIMES or first.dtype == pl.String or first.dtype.is_temporal()
    if not named:
        return None
    if first.dtype == pl.String:
        times = np.concatenate([order_key(p.order, p.row, name).to_numpy() / 1e9 for p in parts if p.order is not None])
    else:
        times = np.concatenate([seconds(part, name) for part in parts])
    order = np.argsort(who, kind="stable")
    steps, same = np.diff(times[order]), np.diff(who[order]) == 0
    return np.asarray(steps[same], np.float64)


@dataclass
class _Values:
    """What the values are: how many, whether numbers, which of them few people have."""

    series: Any  # all values, in their order; an array of pairs for places
    who: NDArray[np.intp]
    count: int
    numbers: bool
    outliers: int
    rare: int
    rare_events: int
    shared: list[tuple[str, int]]
    people_of: dict[Hashable, int] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: list[Chunk], who: NDArray[np.intp]) -> _Values:
        import polars as pl

        if isinstance(parts[0].values, np.ndarray):
            pairs = np.concatenate([np.asarray(part.values) for part in parts])
            count = len(np.unique(pairs, axis=0))
            return cls(pairs, who, count, True, int(_far(pairs).sum()), 0, 0, [])
        series = pl.concat([part.values.to_frame("v") for part in parts], how="vertical_relaxed")["v"]  # type: ignore[union-attr]
        table = (
            pl.DataFrame({"v": series, "who": who})
            .group_by("v", maintain_order=True)
            .agg(pl.len().alias("events"), pl.col("who").n_unique().alias("people"))
            .sort("events", descending=True, maintain_order=True)
        )
        numbers = series.dtype.is_float() or (series.dtype.is_integer() and table.height > MOST_NUMBERS)
        few = table.filter(pl.col("people") < SHARED)
        shown = [] if numbers else table.filter(pl.col("people") >= SHARED).head(SHOWN).select("v", "events").rows()
        far = int(_far(np.asarray(series.to_numpy(), np.float64)[:, None]).sum()) if numbers else 0
        shared = [(str(value), int(events)) for value, events in shown]
        own = dict(zip(table["v"].to_list(), table["people"].to_list(), strict=True))
        return cls(series, who, table.height, numbers, far, few.height, int(few["events"].sum()), shared, own)

    def pools(self, people: int) -> bool:
        """Whether rare values are better taken together: some are, and several are not."""
        return not self.numbers and self.rare > 0 and people >= 2 * SHARED and self.count - self.rare >= 2

    @property
    def asks(self) -> bool:
        """Whether numbers must be cut before they are symbols."""
        return self.numbers and self.count > MOST_NUMBERS

    def cut(self, people: int) -> tuple[Symbols | None, NDArray[np.int64]]:
        """An alphabet to see how predictable the values are, and the code of each; None where that is not computed."""
        nothing = np.zeros(0, np.int64)
        if isinstance(self.series, np.ndarray) or (not self.numbers and self.count > MOST_SYMBOLS):
            return None, nothing
        if self.numbers and self.count > 1:
            alphabet: Symbols = Bins.quantiles(self.series.to_numpy(), LEVELS)
            return alphabet, alphabet.encode(self.series)
        kept = [value for value, own in self.people_of.items() if own >= SHARED or not self.pools(people)]
        if len(kept) < self.count:
            pooled = Alphabet([*map(str, kept), "other"] if "other" not in kept else list(map(str, kept)), "other")
            return pooled, pooled.encode([str(value) for value in self.series.to_list()])
        return Alphabet(kept), Alphabet(kept).encode(self.series)


def _far(numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows lie far from the bulk in some column."""
    low, high = np.quantile(numbers, [0.25, 0.75], axis=0)
    with np.errstate(over="ignore"):  # then nothing is far
        reach = FAR * np.where(high > low, high - low, np.inf)
    return np.asarray(((numbers < low - reach) | (numbers > high + reach)).any(1))


def _predicted(
    alphabet: Symbols | None, codes: NDArray[np.int64], who: NDArray[np.intp]
) -> tuple[float | None, float | None, int]:
    """Log-likelihood a symbol on held-out people, from frequencies alone and from the symbol before."""
    from seqveil.core.filtering import log_likelihoods
    from seqveil.core.model import Counts

    people = int(who.max()) + 1
    if alphabet is None or people < 5 or alphabet.n < 2:
        return None, None, 0
    held = held_out(who)
    counts = np.bincount(codes[~held], minlength=alphabet.n) + 1.0 / alphabet.n
    zero = float(np.log(counts / counts.sum())[codes[held]].mean())
    fitted = Counts(alphabet.n, 1)
    fitted.add(who[~held], codes[~held])
    total = log_likelihoods(fitted.model(alphabet), who[held], codes[held]).sum()
    return zero, float(total / held.sum()), int(np.unique(who[held]).size)


def _about_places(roles: list[Role], names: Columns, on_map: bool) -> list[str]:
    """What is to be asked where values, or columns beside them, are places or points."""
    beside = coordinates_in([role.column for role in roles if role.role == "not used"])
    if on_map:
        return ["how large shall the cells of the map be? Pass --cell-metres"]
    if len(names.value_columns) == 2:
        return ["points need a grid: how fine shall it be? auto cuts about 10 by 10 cells over their bulk"]
    if beside is None:
        return []
    return [
        f"columns {beside[0]!r} and {beside[1]!r} are coordinates: shall an error be a distance? Cut the map with "
        "--cell-metres"
    ]


def _questions(values: _Values, names: Columns, people: int, longest: int) -> list[str]:
    asked = []
    if values.asks and len(names.value_columns) == 1:
        asked.append(
            f"the values are {values.count:,} different numbers. Taken as they are, each would be a symbol of its own, "
            "and a model learns little about a symbol that comes rarely. How finely shall they be cut? "
            "--bins WIDTH cuts evenly, --levels N into bins of about equal count"
        )
    elif not values.numbers and values.count > MOST_SYMBOLS:
        asked.append(f"{values.count:,} different values are many: is this the value column?")
    if people < SHARED:
        asked.append(f"{people} people are few: a model of them shows how they behave. Is the user column right?")
    elif longest == 1:
        asked.append("each person has one event, so nothing follows upon anything. Is the user column right?")
    return asked


def _command(
    values: _Values, names: Columns, taken: Taken, sort: bool, people: int, title: tuple[str, str], on_map: bool
) -> str:
    """What to type next."""
    words = ["seqveil fit", title[0], "-o", title[1]]
    usual = Columns()
    for option, given, default in (
        ("--user-column", names.user, usual.user),
        ("--value-column", None if on_map else names.value, usual.value),
        *zip(("--latitude", "--longitude"), names.value_columns if on_map else (), (None, None), strict=False),
        ("--time-column", names.time, None),
    ):
        words += [option, shlex.quote(given)] if given is not None and given != default else []
    words += ["--sort"] * sort
    cut = len(names.value_columns) == 2 or values.asks
    if taken.missing:
        words += ["--missing", "hold" if cut else "symbol"]
    if on_map:
        words += ["--cell-metres", f"{_cell(values.series):g}"]
    elif len(names.value_columns) == 2:
        words += ["--grid", "auto"]
    elif values.asks and (values.outliers or not _width(values.series)):
        words += ["--levels", str(LEVELS)]
    elif values.asks:
        words += ["--bins", f"{_width(values.series):g}"]
    words += ["--other", str(SHARED)] if values.pools(people) and not cut else []
    return " ".join(words)


def _cell(points: NDArray[np.float64]) -> float:
    """A round size of cells of which at most `CELLS` cover the bulk of the places."""
    good = points[geography.possible(points)]
    if not len(good):
        return 500.0
    bounds, size = around(good), LEAST
    while count_cells(size, bounds) > CELLS:
        size = round_up(size * 1.01)
    return size


def _width(series: Any) -> float:
    """A round width that cuts the bulk of the numbers into about `LEVELS` bins; 0 where there is none."""
    low, high = np.quantile(np.asarray(series.to_numpy(), np.float64), [0.01, 0.99])
    raw = (high - low) / LEVELS
    return round_near(float(raw)) if raw > 0 and math.isfinite(raw) else 0.0


def _span(time: float) -> str:
    """A number of seconds in words."""
    for unit, size in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if time >= size:
            return f"{time / size:.3g} {unit}"
    return f"{time:.3g} seconds"


__all__ = ["FRAME", "Inspection", "Role", "inspect"]
