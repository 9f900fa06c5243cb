"""A look at somebody's own file before anything is fitted: what its columns may be, what is odd, and what to type.

It shows counts, and of the values only those that at least ten people share. It is for whoever has the raw file: what
it says is not private.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from seqveil.core import geography
from seqveil.core.alphabet import Alphabet, Bins, Symbols
from seqveil.core.errors import InputError, option
from seqveil.core.places import LEAST, count_cells
from seqveil.core.reading import Reading
from seqveil.core.results import Line, Result
from seqveil.interfaces.choosing import held_out
from seqveil.interfaces.files.cuts import around, round_near, round_up
from seqveil.interfaces.files.events import Events, coordinates_in, read_events
from seqveil.interfaces.files.fit import MOST_NUMBERS, ColumnWords
from seqveil.interfaces.files.frames import as_polars
from seqveil.interfaces.files.guessing import Guess, Role, guessed
from seqveil.interfaces.files.ordering import TIMES
from seqveil.interfaces.files.table import FilePath, Table, read_table

if TYPE_CHECKING:
    import polars as pl

SHARED = 10  # people who must have a value before it is shown, and below which it is rare
SHOWN = 8  # values shown at most
HEAD = 10_000  # rows from which columns are guessed
MOST_SYMBOLS = 5_000  # beyond which how predictable they are is not computed
FAR = 5.0  # spreads (from the first to the third quartile) beyond the quartiles where an outlier begins
LEVELS = 20  # bins that are proposed
CELLS = 1_000  # of the map that are proposed, at most


@dataclass(frozen=True, repr=False)
class Inspection(Result):
    """What was found in a file. `lines` says it in words, `command` is what to type next."""

    roles: list[Role]
    reading: dict[str, Any]
    read: str
    users: int
    events: int
    shortest: int  # events of a stream
    typical: int
    longest: int
    gap_typical: float | None  # seconds between two events of a stream; None without times
    gap_longest: float | None
    values: int  # different ones
    numbers: bool  # whether they are numbers
    outliers: int
    rare: int  # values that fewer than ten people have
    rare_events: int
    shared: list[tuple[str, int]]  # values that at least ten people have, and how often they come
    log_likelihood: dict[str, float]  # a symbol, on held-out people
    held_out_people: int
    questions: list[str] = field(default_factory=list)
    command: str = ""

    def lines(self) -> list[Line]:
        """What was found, a line for each part."""
        said = [
            ("column", f"{role.column!r}: {role.role} ({role.why})") for role in self.roles if role.role != "not used"
        ]
        unused = [repr(role.column) for role in self.roles if role.role == "not used"]
        more = f" and {len(unused) - SHOWN} more" if len(unused) > SHOWN else ""
        said += [("column", f"not used: {', '.join(unused[:SHOWN])}{more}")] if unused else []
        length = f"{self.shortest} to {self.longest} events each, median {self.typical}"
        said += [("read", self.read), ("people", f"{self.users:,} people, {self.events:,} events; {length}")]
        if self.gap_typical is not None and self.gap_longest is not None:
            gaps = f"median {_span(self.gap_typical)} between two events, {_span(self.gap_longest)} at most"
            said.append(("gaps", gaps))
        kind = "numbers" if self.numbers else "values"
        said.append(("values", f"{self.values:,} different {kind}, {self.reading['missing']:,} rows without one"))
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


def inspect(data: Any, *, format: str | None = None, **words: Unpack[ColumnWords]) -> Inspection:
    """Look at a file or a frame (polars, pandas, Arrow) and say what is in it and what to type next.

    Parameters:
        data: the file, or the frame.
        format: of a file whose name does not tell.
        words: user, value and time where they are known; others are guessed from names and values.

    >>> import polars as pl
    >>> rows = {"person": [k // 4 for k in range(80)], "page": ["news", "news", "sport", "news"] * 20}
    >>> found = inspect(pl.DataFrame(rows))
    >>> found.users, found.events, found.command
    (20, 80, 'seqveil fit DATA -o DATA.model --user-column person --value-column page')
    """
    strange = sorted(set(words) - set(ColumnWords.__annotations__))
    if strange:
        raise InputError(
            f"{strange[0]!r} is not known here; columns are named {', '.join(ColumnWords.__annotations__)}"
        )
    source = as_polars(data)
    if isinstance(source, str | os.PathLike) and os.fspath(source) == "-":
        raise InputError("a look at a file reads it more than once, so it cannot come from a pipe; name a file")
    table = source if isinstance(source, Table) else read_table(source, None, format)
    guess = guessed(table.frame.head(HEAD), Reading().but(**words), table.name)
    on_map = coordinates_in(guess.reading.value_columns) == guess.reading.value_columns
    events = read_events(table, guess.reading, missing="drop")
    return _found(events, guess, _title(source), on_map)


def _title(data: FilePath | pl.DataFrame | Table) -> tuple[str, str]:
    """The words for the data and the model in a command."""
    if not isinstance(data, str | os.PathLike):
        return "DATA", "DATA.model"
    stem = Path(data).name.split(".")[0] or "data"
    return shlex.quote(os.fspath(data)), shlex.quote(f"{stem}.model")


def _found(events: Events, guess: Guess, title: tuple[str, str], on_map: bool) -> Inspection:
    people, who = events.people
    lengths = np.bincount(who)
    gaps = _gaps(events, who)
    values = _Values.of(events, who)
    alphabet, codes = values.cut(len(people))
    zero, one, held = _predicted(alphabet, codes, who)
    return Inspection(
        roles=guess.roles,
        reading=events.taken.to_dict(),
        read=events.taken.sentence,
        users=len(people),
        events=int(who.size),
        shortest=int(lengths.min()),
        typical=int(np.median(lengths)),
        longest=int(lengths.max()),
        gap_typical=None if gaps is None else float(np.median(gaps)) if gaps.size else 0.0,
        gap_longest=None if gaps is None else float(gaps.max(initial=0.0)),
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
            *_about_places(guess.roles, events.reading, on_map),
            *_questions(values, events.reading, len(people), int(lengths.max())),
        ],
        command=_command(values, events, len(people), title, on_map),
    )


def _gaps(events: Events, who: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Seconds between two events of a stream; None where the order is no time."""
    import polars as pl

    order = events.order
    if order is None or events.counts or order.dtype == pl.Struct:
        return None
    if not (order.name.strip().lower() in TIMES or order.dtype == pl.String or order.dtype.is_temporal()):
        return None
    places = np.argsort(who, kind="stable")
    steps, same = np.diff(events.seconds()[places]), np.diff(who[places]) == 0
    return np.asarray(steps[same], np.float64)


@dataclass
class _Values:
    """What the values are: how many, whether numbers, which of them few people have."""

    series: Any  # all values, in their order; an array of pairs for places
    count: int
    numbers: bool
    outliers: int
    rare: int = 0
    rare_events: int = 0
    shared: list[tuple[str, int]] = field(default_factory=list)
    people_of: dict[Hashable, int] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Events, who: NDArray[np.int64]) -> _Values:
        import polars as pl

        series = events.values
        if isinstance(series, np.ndarray):
            return cls(series, len(np.unique(series, axis=0)), True, int(_far(series).sum()))
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
        return cls(series, table.height, numbers, far, few.height, int(few["events"].sum()), shared, own)

    def pools(self, people: int) -> bool:
        """Whether rare values are better taken together: some are, and several are not."""
        return not self.numbers and self.rare > 0 and people >= 2 * SHARED and self.count - self.rare >= 2

    @property
    def asks(self) -> bool:
        """Whether numbers must be cut before they are symbols."""
        return self.numbers and self.count > MOST_NUMBERS

    def cut(self, people: int) -> tuple[Symbols | None, NDArray[np.int64]]:
        """An alphabet to see how predictable the values are, and the code of each; None where that is not computed."""
        if isinstance(self.series, np.ndarray) or (not self.numbers and self.count > MOST_SYMBOLS):
            return None, np.zeros(0, np.int64)
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
    alphabet: Symbols | None, codes: NDArray[np.int64], who: NDArray[np.int64]
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


def _about_places(roles: list[Role], reading: Reading, on_map: bool) -> list[str]:
    """What is to be asked where values, or columns beside them, are places or points."""
    beside = coordinates_in([role.column for role in roles if role.role == "not used"])
    if on_map:
        return [f"how large shall the cells of the map be? Say it with {option('cell_metres')}"]
    if len(reading.value_columns) == 2:
        return ["points need a grid: how fine shall it be? auto cuts about 10 by 10 cells over their bulk"]
    if beside is None:
        return []
    return [
        f"columns {beside[0]!r} and {beside[1]!r} are coordinates: shall an error be a distance? Cut the map with "
        f"{option('cell_metres')}"
    ]


def _questions(values: _Values, reading: Reading, people: int, longest: int) -> list[str]:
    asked = []
    if values.asks and len(reading.value_columns) == 1:
        asked.append(
            f"the values are {values.count:,} different numbers. Taken as they are, each would be a symbol of its own, "
            "and a model learns little about a symbol that comes rarely. How finely shall they be cut? "
            f"{option('bins')} cuts evenly, {option('levels')} into bins of about equal count"
        )
    elif not values.numbers and values.count > MOST_SYMBOLS:
        asked.append(f"{values.count:,} different values are many: is this the value column?")
    if people < SHARED:
        asked.append(f"{people} people are few: a model of them shows how they behave. Is the user column right?")
    elif longest == 1:
        asked.append("each person has one event, so nothing follows upon anything. Is the user column right?")
    return asked


def _command(values: _Values, events: Events, people: int, title: tuple[str, str], on_map: bool) -> str:
    """What to type next."""
    names, usual = events.reading, Reading()
    words = ["seqveil fit", title[0], "-o", title[1]]
    for role, given, default in (
        ("--user-column", names.user, usual.user),
        ("--value-column", names.value, usual.value),
        ("--time-column", names.time, None),
    ):
        words += [role, shlex.quote(given)] if given is not None and given != default else []
    cut = len(names.value_columns) == 2 or values.asks
    if events.taken.missing:
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
    """A number of seconds in words.

    >>> _span(60), _span(5400), _span(0.5)
    ('1 minute', '1.5 hours', '0.5 seconds')
    """
    sizes = {"day": 86_400.0, "hour": 3_600.0, "minute": 60.0, "second": 1.0}
    unit = next((name for name, size in sizes.items() if time >= size), "second")
    text = f"{time / sizes[unit]:.3g}"
    return f"{text} {unit}{'s' * (text != '1')}"
