"""Fit a model to a file in two passes: what values there are, then how they follow one another.

A private fit takes a public alphabet, bounds what each user gives, and counts with noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import MISSING, OTHER, Alphabet, Bins, Grid, OnMissing, OnUnknown, Symbols
from seqveil.core.coins import coins
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import Counts, MarkovModel
from seqveil.interfaces.files.columns import Columns, Taken
from seqveil.interfaces.files.ordering import NO_SYMBOL
from seqveil.interfaces.files.reading import Chunk, FilePath, ValueType
from seqveil.interfaces.files.rows import CHUNK_ROWS, Progress, Source, encode, seconds, value_type_of
from seqveil.receive.learn.private import CONTRIBUTION, BoundedCounts

if TYPE_CHECKING:
    import polars as pl

    from seqveil.receive.contexts import Choice

MOST_SYMBOLS = 100_000
FOR_FIT = "check the value column, or add the value to the alphabet"
SAMPLE = 2_000_000  # numbers kept to find quantiles
NEEDED = (
    "a private fit needs a public alphabet, since collecting it from the data would show who had what; pass --alphabet "
    "FILE (a value a line, or a model to take it from), --bins with --range LO,HI, or --grid with --range X0,X1,Y0,Y1"
)


@dataclass(frozen=True)
class Fitted:
    """A model and how much it was fitted on."""

    model: MarkovModel
    events: int
    users: int
    choice: Choice | None = None  # where contexts were compared
    streams: int = 0  # where users have several
    pooled: int = 0  # values that were taken together as "other"
    reading: Taken = field(default_factory=Taken)  # how the rows were read and ordered


def fit_file(
    data: FilePath | pl.DataFrame,
    *,
    columns: Columns | None = None,
    order: int = 1,
    smoothing: float = 0.0,
    prior: str = "data",
    bins: float | None = None,
    levels: int | None = None,
    grid: str | None = None,
    on_unknown: OnUnknown | None = None,
    alphabet: Symbols | None = None,
    format: str | None = None,
    sort: bool = False,
    missing: OnMissing | None = None,
    other: int | None = None,
    chunk: int = CHUNK_ROWS,
    progress: Progress | None = None,
    context: str | None = None,
    working: Callable[[float], None] | None = None,
) -> Fitted:
    """Fit a model to a file of streams, chunk by chunk. The fit itself is **not** private.

    Parameters: `order`, `smoothing` and `prior` as in `MarkovModel.fit`. Numbers are cut into bins of width `bins`, or
    into `levels` bins of about equal count; points (`columns.value` = "x,y") into a `grid` such as "10x10". Without any
    of them the alphabet is the set of values that occur, unless `alphabet` gives it. `on_unknown` is the policy the
    model carries for later values ("error" unless told otherwise).
    With `other` values that fewer people have are taken together as the symbol "other", where later values outside the
    alphabet go too. `missing` says what to do with rows without a value (`Source`), and the model remembers it. Where
    `columns` tell streams of a user apart, each begins the chain anew.
    Standard input and sorted files are held in memory, other files are read twice. A `context` ("auto", "order:2",
    "types:16", "hours") is checked on held-out people (`receive.contexts.choose`); `working` is told the share that is
    done.
    """
    named = columns or Columns()
    if context is not None and _by_hour(context):
        named = replace(named, clock=True)
    source = Source(data, named, format, sort, chunk, missing)
    policy: OnUnknown = on_unknown or ("error" if other is None else "other")
    pooled = 0
    if alphabet is None:
        scan = scanner(source, bins, levels, grid, other)
        names: ValueType = "auto" if other is None else "text"
        kind: ValueType = names if isinstance(scan, Distinct) else "number"
        first, second = _two_readings(source, kind, progress)
        for part in first:
            scan.add(part)
        alphabet = scan.alphabet()
        pooled = scan.pooled if isinstance(scan, Distinct) else 0
    else:
        if other is not None:
            raise InputError("--other pools values that occur, and --alphabet names those there are; leave one out")
        second = source.chunks(value_type_of(alphabet), progress)
    alphabet = alphabet.with_policy(policy).with_missing(missing)
    told: dict[str, Any] = {"pooled": pooled, "reading": source.taken}
    if context is not None:
        found = _with_context(second, alphabet, source, context, smoothing, prior, working)
        return replace(found, **told)
    counts, users, streams = Counts(alphabet.n, order), set[Hashable](), set[Hashable]()
    for part in second:
        keys = part.keys
        counts.add(keys, encode(part, _counted(alphabet), source.name, FOR_FIT))
        users.update(part.users.unique().to_list())
        streams.update(() if part.streams is None else keys.unique().to_list())
    source.taken.streams = len(streams)
    model = counts.model(alphabet, smoothing, prior)
    return Fitted(model, counts.events, len(users), streams=len(streams), **told)


def _counted(alphabet: Symbols) -> Symbols:
    """The alphabet as a fit counts by it: what is outside is refused, or pooled."""
    return alphabet if alphabet.on_unknown == "other" else alphabet.strict


def _with_context(
    rows: Iterable[Chunk],
    alphabet: Symbols,
    source: Source,
    context: str,
    smoothing: float,
    prior: str,
    working: Callable[[float], None] | None,
) -> Fitted:
    """The context chosen for the streams of a file, fitted to everyone.

    The codes of all events are held in memory, since some people are held out and foretold one event after another. A
    `smoothing` of 0 stands for 1: others may do what nobody did in the fit.
    """
    from seqveil.receive.contexts import SMOOTHING, choose
    from seqveil.receive.follow import numbered

    ids, whose, codes = [], [], []
    streams, people = dict[Hashable, int](), dict[Hashable, int]()
    stamps: list[Floats] | None = []
    for part in rows:
        ids.append(numbered(streams, part.keys.to_list()))
        whose.append(numbered(people, part.users.to_list()))
        codes.append(np.asarray(encode(part, _counted(alphabet), source.name, FOR_FIT), np.int64))
        stamps = _noted(stamps, part, source.name, needed=_by_hour(context))
    events, apart = np.concatenate(codes), bool(source.columns.stream_columns)
    more: dict[str, Any] = {"smoothing": smoothing or SMOOTHING, "prior": prior, "progress": working}
    more |= {"people": np.concatenate(whose)} if apart else {}
    more |= {"times": np.concatenate(stamps)} if stamps else {}
    number = _by_name(streams)
    choice = choose(number[np.concatenate(ids)], events, alphabet, context, **more)
    source.taken.streams = len(streams) if apart else 0
    return Fitted(choice.model, events.size, len(people), choice, source.taken.streams)


def _by_name(index: dict[Hashable, int]) -> Ints:
    """For each number the place of its name among all names: the same whatever the order of the rows."""
    place = {name: at for at, name in enumerate(sorted(index))}  # type: ignore[type-var]
    return np.array([place[name] for name in index], np.int64)


def _by_hour(context: str) -> bool:
    """Whether a context goes by the hour of the day, and so needs times; auto takes them where they are."""
    from seqveil.receive.contexts import Context

    return context != "auto" and Context.parse(context).hours is not None


def _noted(stamps: list[Floats] | None, part: Chunk, file: str, needed: bool) -> list[Floats] | None:
    """The times so far with those of these rows; None where the file has none and nobody asked for them."""
    if stamps is None:
        return None
    try:
        return [*stamps, seconds(part, file)]
    except DataError:
        if needed:
            raise
        return None


def _two_readings(
    source: Source, kind: ValueType, progress: Progress | None
) -> tuple[Iterable[Chunk], Iterable[Chunk]]:
    """The rows of a file twice; held in memory where they come from a pipe, or are sorted."""
    rows = source.chunks(kind, progress)
    if source.piped or source.sort:
        held = list(rows)
        return held, held
    return rows, source.chunks(kind, progress, again=True)


def scanner(
    source: Source, bins: float | None, levels: int | None, grid: str | None, other: int | None = None
) -> Distinct | _Width | _Levels | _Plane:
    """What finds the alphabet of a file: the values that occur, or cuts of numbers."""
    cut = any(option is not None for option in (bins, levels, grid))
    if cut and other is not None:
        raise InputError("--other pools values that are names, and numbers that are cut have bins; leave one out")
    if cut and source.missing == "symbol":
        raise InputError(NO_SYMBOL)
    if sum(option is not None for option in (bins, levels, grid)) > 1:
        raise InputError("expected at most one of bins, levels and grid; they are three ways to cut numbers")
    pairs = len(source.columns.value_columns) == 2
    if pairs != (grid is not None):
        raise InputError("a grid and two value columns go together; pass both, as in --grid 10x10 --value-column x,y")
    if grid is not None:
        return _Plane(*cells(grid))
    if bins is not None:
        if not (bins > 0 and math.isfinite(bins)):
            raise InputError(f"expected a bin width that is a finite number above 0, got {bins}")
        return _Width(bins)
    if levels is not None:
        if levels < 1 or levels > MOST_SYMBOLS:
            raise InputError(f"expected a number of levels from 1 to {MOST_SYMBOLS}, got {levels}")
        return _Levels(levels)
    return Distinct(source.name, other, source.missing == "symbol")


def cells(grid: str) -> tuple[int, int]:
    """10x10 as numbers.

    >>> cells("20x10")
    (20, 10)
    """
    parts = grid.lower().replace("×", "x").split("x")
    if len(parts) != 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"expected a grid such as 10x10, got {grid!r}")
    x, y = (int(part) for part in parts)
    if x * y > MOST_SYMBOLS:
        raise InputError(f"a grid of {x * y} cells is more than the {MOST_SYMBOLS} a model may have; use fewer")
    return x, y


@dataclass
class Distinct:
    """The values that occur; with `other`, those that fewer people have are one, and `missing` is one more."""

    name: str
    other: int | None = None
    missing: bool = False
    seen: set[Hashable] = field(default_factory=set)
    people: dict[Hashable, set[Hashable]] = field(default_factory=dict, repr=False)  # who has a value, few of them

    def __post_init__(self) -> None:
        if self.other is not None and self.other < 1:
            raise InputError(f"expected --other as a number of people, at least 1; got {self.other}")

    def add(self, chunk: Chunk) -> None:
        """Take in the values of a chunk; too many different ones are refused."""
        assert not isinstance(chunk.values, np.ndarray)  # one column, or the scanner would be a grid
        self.seen.update(chunk.values.unique().to_list())
        if self.other is not None:
            self._count(chunk)
        if len(self.seen) > MOST_SYMBOLS:
            raise DataError(
                f"{self.name}: the values differ in more than {MOST_SYMBOLS} ways; cut numbers with --bins or --levels"
            )

    def _count(self, chunk: Chunk) -> None:
        import polars as pl

        assert self.other is not None
        pairs = pl.DataFrame({"value": chunk.values, "user": chunk.users}).unique()
        for value, user in pairs.iter_rows():
            known = self.people.setdefault(value, set())
            if len(known) < self.other:
                known.add(user)

    @property
    def pooled(self) -> int:
        """How many values were taken together."""
        return sum(value not in (OTHER, MISSING) for value in self._rare)

    @property
    def _rare(self) -> set[Hashable]:
        return {value for value, people in self.people.items() if len(people) < (self.other or 0)}

    def alphabet(self) -> Symbols:
        """The alphabet of all values that were seen."""
        kept = self.seen - self._rare if self.other is not None else self.seen
        kept = kept | ({OTHER} if self.other is not None else set()) | ({MISSING} if self.missing else set())
        return Alphabet.of(kept)


class _Numbers:
    """The least and the greatest number of each value column."""

    def __init__(self) -> None:
        self.low: Floats = np.array(np.inf)
        self.high: Floats = np.array(-np.inf)

    def add(self, chunk: Chunk) -> None:
        numbers = np.asarray(chunk.values, np.float64)
        self.low, self.high = np.minimum(self.low, numbers.min(0)), np.maximum(self.high, numbers.max(0))


class _Width(_Numbers):
    """Bins of one width, with edges at multiples of it."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def alphabet(self) -> Symbols:
        low, high, width = float(self.low), float(self.high), self.width
        first = math.floor(low / width)
        last = max(first + 1, math.ceil(high / width))
        first -= first * width > low  # the division may have rounded past the number
        last += last * width < high
        if last - first > MOST_SYMBOLS:
            raise InputError(f"bins this narrow cut the data into {last - first}, more than {MOST_SYMBOLS}; widen them")
        return Bins.of_width(first * width, last * width, width)


class _Levels(_Numbers):
    """Bins of about equal count, from a uniform sample of the numbers where there are very many."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self._numbers, self._keys = np.zeros(0), np.zeros(0)
        self._draw = np.random.default_rng(0)  # thins a sample; no privacy rests on it

    def add(self, chunk: Chunk) -> None:
        super().add(chunk)
        self._numbers = np.concatenate([self._numbers, np.asarray(chunk.values, np.float64)])
        self._keys = np.concatenate([self._keys, self._draw.random(chunk.n)])
        if len(self._keys) > SAMPLE:
            kept = np.argpartition(self._keys, SAMPLE)[:SAMPLE]
            self._numbers, self._keys = self._numbers[kept], self._keys[kept]

    def alphabet(self) -> Symbols:
        return Bins.quantiles(np.concatenate([self._numbers, [self.low, self.high]]), self.count)


class _Plane(_Numbers):
    """A regular grid over the box that the points fill."""

    def __init__(self, x_cells: int, y_cells: int) -> None:
        super().__init__()
        self.cells = (x_cells, y_cells)

    def alphabet(self) -> Symbols:
        (x0, y0), (x1, y1) = self.low.tolist(), np.where(self.high > self.low, self.high, self.low + 1).tolist()
        return Grid.regular(*self.cells, (x0, x1, y0, y1))


def values_of(source: Source, progress: Progress | None = None) -> Symbols:
    """The alphabet of the values that occur in a file. That they occur becomes public."""
    scan = Distinct(source.name, missing=source.missing == "symbol")
    for part in source.chunks("auto", progress, again=True):
        scan.add(part)
    return scan.alphabet()


def fit_private_file(
    data: FilePath | pl.DataFrame,
    epsilon: float,
    alphabet: Symbols,
    *,
    contribution: int = CONTRIBUTION,
    seed: int | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    sort: bool = False,
    missing: OnMissing | None = None,
    chunk: int = CHUNK_ROWS,
    progress: Progress | None = None,
) -> Fitted:
    """Fit a chain of order 1 to a file, ε-differentially private for each user; see `learn.private.fit_private`.

    `Fitted.users` and `Fitted.events` are noisy too: nothing that comes back tells more than the model does. A `seed`
    makes the fit repeatable and not private.
    """
    source = Source(data, columns or Columns(), format, sort, chunk, missing)
    if source.columns.stream_columns:
        raise InputError("a private fit bounds one stream of each user; leave --stream-column out")
    alphabet = alphabet.with_missing(missing)
    pairs = len(source.columns.value_columns) == 2
    if pairs != isinstance(alphabet, Grid):
        raise InputError("a grid and two value columns go together; pass both, as in --grid 10x10 --value-column x,y")
    counts = BoundedCounts(alphabet.n, contribution)
    first, second = _two_readings(source, value_type_of(alphabet), progress)
    for part in first:
        counts.measure(part.users.to_list())
    for part in second:
        counts.add(part.users.to_list(), encode(part, alphabet.strict, source.name, FOR_FIT))
    noisy = counts.noisy(epsilon, coins(seed))
    events = noisy.users + max(0, int(noisy.moves.sum()))
    source.taken.begin()  # counts of raw rows are nobody's business: they have no noise
    return Fitted(noisy.model(alphabet), events, noisy.users, reading=source.taken)


def public_alphabet(
    named: FilePath | None = None,
    bins: float | None = None,
    levels: int | None = None,
    grid: str | None = None,
    span: str | None = None,
    on_unknown: OnUnknown = "error",
) -> Symbols:
    """The alphabet that the options spell out without a look at the data."""
    if levels is not None:
        raise InputError("levels are quantiles of the data, which a private fit may not look at; use bins and a range")
    if sum(option is not None for option in (named, bins, grid)) != 1:
        raise InputError(NEEDED)
    if named is not None:
        if span is not None:
            raise InputError("a range goes with bins or a grid, not with a list of values; leave it out")
        return named_alphabet(named).with_policy(on_unknown)
    edges = _numbers(span, 4 if grid is not None else 2)
    if bins is not None:
        if not (bins > 0 and math.isfinite(bins)) or (edges[1] - edges[0]) / bins > MOST_SYMBOLS:
            raise InputError(f"expected a bin width above 0 that cuts the range into at most {MOST_SYMBOLS} bins")
        return Bins.of_width(edges[0], edges[1], bins, on_unknown)
    assert grid is not None
    x0, x1, y0, y1 = edges
    return Grid.regular(*cells(grid), (x0, x1, y0, y1), on_unknown)


def named_alphabet(path: FilePath) -> Symbols:
    """The alphabet of a model file, of a JSON list, or of a text file with a value a line.

    Lines that are all whole numbers are numbers; JSON says what is text.
    """
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file.name}: the alphabet cannot be read ({error.strerror}); check the path") from None
    if content.startswith(b"PK"):
        return MarkovModel.load(file).alphabet
    try:
        text = content.decode("utf-8-sig")
        values = json.loads(text) if text.lstrip().startswith("[") else [line for line in text.splitlines() if line]
        if values and all(isinstance(value, str) and _whole(value) for value in values) and text[:1] != "[":
            values = [int(value) for value in values]
        return Alphabet(values)
    except (ValueError, TypeError, RecursionError) as error:
        why = f" ({error})" if isinstance(error, InputError) else ""
        raise DataError(f"{file.name}: expected distinct values, one a line, or a JSON list{why}; see --help") from None


def _whole(text: str) -> bool:
    digits = text[1:] if text[:1] == "-" else text
    return digits.isdecimal() and str(int(text)) == text


def _numbers(span: str | None, count: int) -> list[float]:
    """LO,HI or X0,X1,Y0,Y1 as numbers.

    >>> _numbers("40,180", 2)
    [40.0, 180.0]
    """
    shape = "LO,HI" if count == 2 else "X0,X1,Y0,Y1"
    try:
        found = [float(part) for part in (span or "").split(",")]
    except ValueError:
        found = []
    rising = all(low < high for low, high in zip(found[::2], found[1::2], strict=False))
    if len(found) != count or not all(map(math.isfinite, found)) or not rising:
        raise InputError(f"expected --range {shape}, the public range of the values, low before high")
    return found
