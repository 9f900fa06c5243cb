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

from seqveil.core.alphabet import Alphabet, Bins, Grid, OnMissing, OnUnknown, Symbols
from seqveil.core.coins import coins
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import Counts, MarkovModel
from seqveil.core.places import Cells, Places
from seqveil.core.slots import NOTHING, Slots
from seqveil.interfaces.files.columns import Columns, Taken
from seqveil.interfaces.files.ordering import seconds
from seqveil.interfaces.files.placing import Spread, cells_over, located, places_in
from seqveil.interfaces.files.reading import Chunk, FilePath, ValueType
from seqveil.interfaces.files.rows import CHUNK_ROWS, Progress, Source, encode, value_type_of
from seqveil.interfaces.files.scanning import (
    AUTO,
    AUTO_BINS,
    AUTO_CELLS,
    MOST_SYMBOLS,
    Distinct,
    cells,
    scanner,
    width_of,
)
from seqveil.interfaces.files.slots import NO_MEAN
from seqveil.receive.learn.private import CONTRIBUTION, BoundedCounts

if TYPE_CHECKING:
    import polars as pl

    from seqveil.receive.choosing import Choice

FOR_FIT = "check the value column, or add the value to the alphabet"
FOR_PLACES = (
    "add the place to --points, say which of its columns are meant with --points-columns NAME,LAT,LON, or name columns "
    "with --latitude and --longitude for the nearest one"
)
FOR_CELLS = "it lies outside --range: widen that, or pass --on-unknown nearest to count it to the cell at the edge"
NEEDED = (
    "a private fit needs a public alphabet, since collecting it from the data would show who had what; pass --alphabet "
    "FILE (a value a line, or a model to take it from), --points FILE, --bins with --range LO,HI, --grid with --range "
    "X0,X1,Y0,Y1, or --cell-metres with --range SOUTH,NORTH,WEST,EAST"
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
    clamped: int = 0  # events outside the range that "auto" found, counted to the cells at its edge
    spread: Spread | None = None  # how far events are from the places that stand for them
    reading: Taken = field(default_factory=Taken)  # how the rows were read and ordered


def fit_file(
    data: FilePath | pl.DataFrame,
    *,
    columns: Columns | None = None,
    order: int = 1,
    smoothing: float = 0.0,
    prior: str = "data",
    bins: float | str | None = None,
    levels: int | None = None,
    grid: str | None = None,
    cell_metres: float | None = None,
    points: Any = None,
    points_columns: str | None = None,
    on_unknown: OnUnknown | None = None,
    alphabet: Symbols | None = None,
    format: str | None = None,
    sort: bool = False,
    missing: OnMissing | None = None,
    other: int | None = None,
    slots: Slots | None = None,
    chunk: int = CHUNK_ROWS,
    progress: Progress | None = None,
    context: str | None = None,
    working: Callable[[float], None] | None = None,
) -> Fitted:
    """Fit a model to a file of streams, chunk by chunk. The fit itself is **not** private.

    Parameters: `order`, `smoothing` and `prior` as in `MarkovModel.fit`. Numbers are cut into bins of width `bins`, or
    into `levels` bins of about equal count; points (`columns.value` = "x,y") into a `grid` such as "10x10". "auto", for
    `bins` or `grid`, cuts the bulk of the data evenly at round numbers, and what lies outside counts to the cells at
    the edge. `cell_metres` cuts the map around the bulk of latitudes and longitudes into cells of this size; `points`
    is a list of places (a file, a frame or `Places`) that values name, or are nearest to where their columns are
    coordinates. Without any of them the alphabet is the set of values that occur, unless `alphabet` gives it.
    `on_unknown` is the policy the model carries for later values ("error" unless told otherwise, "nearest" after "auto"
    and for coordinates).
    With `other` values that fewer people have are taken together as the symbol "other", where later values outside the
    alphabet go too. `missing` says what to do with rows without a value (`Source`), and the model remembers it. Where
    `columns` tell streams of a user apart, each begins the chain anew.
    With `slots` the chain is one of slots of time, and the model remembers them, too.
    Standard input, slots and sorted files are held in memory, other files are read twice. A `context` ("auto",
    "order:2", "types:16", "hours") is checked on held-out people (`receive.choosing.choose`); `working` is told the
    share that is done.
    """
    named = columns or Columns()
    if cell_metres is not None or points is not None or (alphabet is not None and alphabet.on_map):
        widths = (2,) if cell_metres is not None else (1, 2) if alphabet is None else alphabet.widths
        named = located(data, named, format, widths)
    if context is not None and _by_hour(context):
        named = replace(named, clock=True)
    if points is not None and alphabet is None:
        cut = {"bins": bins, "levels": levels, "grid": grid, "cell_metres": cell_metres}
        alphabet = listed_places(points, points_columns, **cut)
    if alphabet is not None and alphabet.on_map and slots is not None:
        slots = replace(slots, empty="hold")
    source = Source(data, named, format, sort, chunk, missing, slots)
    policy: OnUnknown = on_unknown or ("error" if other is None else "other")
    pooled = 0
    clamps = AUTO in (bins, grid) or cell_metres is not None
    if alphabet is None:
        scan = scanner(source, bins, levels, grid, other, cell_metres)
        names: ValueType = "auto" if other is None and slots is None else "text"
        kind: ValueType = names if isinstance(scan, Distinct) else "number"
        first, second = _two_readings(source, kind, progress)
        for part in first:
            scan.add(part)
        alphabet = scan.alphabet()
        pooled = scan.pooled if isinstance(scan, Distinct) else 0
    else:
        if other is not None:
            raise InputError("--other pools values that occur, and the alphabet or --points names all; leave one out")
        alphabet = in_slots(alphabet, slots)
        source.check_width(alphabet)
        second = source.chunks(value_type_of(alphabet), progress)
    if on_unknown is None and (clamps or (alphabet.on_map and len(named.value_columns) == 2)):
        policy = "nearest"
    alphabet = alphabet.with_policy(policy).with_missing(missing).with_slots(slots)
    code = _Coder(alphabet, source.name, clamps)
    told: dict[str, Any] = {"pooled": pooled, "reading": source.taken, "spread": code.spread}
    if context is not None:
        found = _with_context(second, code, source, context, smoothing, prior, working)
        return replace(found, clamped=code.clamped, **told)
    counts, users, streams = Counts(alphabet.n, order), set[Hashable](), set[Hashable]()
    for part in second:
        keys = part.keys
        counts.add(keys, code(part))
        users.update(part.users.unique().to_list())
        streams.update(() if part.streams is None else keys.unique().to_list())
    source.taken.streams = len(streams)
    model = counts.model(alphabet, smoothing, prior)
    return Fitted(model, counts.events, len(users), streams=len(streams), clamped=code.clamped, **told)


def in_slots(alphabet: Symbols, slots: Slots | None) -> Symbols:
    """The alphabet with what slots need: among names a symbol for nothing."""
    if slots is None or not alphabet.named or not isinstance(alphabet, Alphabet):
        return alphabet
    if slots.rule == "mean":
        raise InputError(NO_MEAN)
    if not all(type(value) is str for value in alphabet.values):
        raise InputError("slots take names, or numbers that are cut; name the values as text, or pass --bins or --grid")
    named = list(alphabet.values)
    return alphabet if NOTHING in named or slots.empty == "hold" else Alphabet([*named, NOTHING])


def listed_places(points: Any, names: str | None, **cut: Any) -> Places:
    """The list of places, with which no other way to make symbols goes."""
    for name in (name for name, given in cut.items() if given is not None):
        option = "--" + name.replace("_", "-")
        raise InputError(f"--points lists the places there are, so {option} does not go with it; leave one out")
    return places_in(points, names)


class _Coder:
    """Codes of rows as a fit counts them: what is outside is refused, pooled, or clamped to the edge and counted."""

    def __init__(self, alphabet: Symbols, file: str, clamps: bool) -> None:
        self.alphabet, self._file, self._clamps = alphabet, file, clamps
        self._counted = alphabet if alphabet.on_unknown == "other" else alphabet.strict
        if clamps:
            self._counted, self._inner = alphabet.with_policy("nearest"), alphabet.with_policy("hide")
        self.clamped = 0
        self.spread = Spread() if isinstance(alphabet, Places) else None
        cut = isinstance(alphabet, Bins | Grid | Cells)
        self._remedy = FOR_CELLS if cut else FOR_FIT if self.spread is None else FOR_PLACES

    def __call__(self, part: Chunk) -> Ints:
        if self._clamps:
            self.clamped += int((self._inner.encode(part.values) < 0).sum())
        codes = encode(part, self._counted, self._file, self._remedy)
        if self.spread is not None and isinstance(part.values, np.ndarray):
            self.spread.add(part.values, self.alphabet, codes)
        return codes


def _with_context(
    rows: Iterable[Chunk],
    code: _Coder,
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
    from seqveil.receive.choosing import choose
    from seqveil.receive.contexts import SMOOTHING
    from seqveil.receive.follow import numbered

    ids, whose, codes = [], [], []
    streams, people = dict[Hashable, int](), dict[Hashable, int]()
    stamps: list[Floats] | None = []
    for part in rows:
        ids.append(numbered(streams, part.keys.to_list()))
        whose.append(numbered(people, part.users.to_list()))
        codes.append(np.asarray(code(part), np.int64))
        stamps = _noted(stamps, part, source.name, needed=_by_hour(context))
    events, apart = np.concatenate(codes), bool(source.columns.stream_columns)
    more: dict[str, Any] = {"smoothing": smoothing or SMOOTHING, "prior": prior, "progress": working}
    more |= {"people": np.concatenate(whose)} if apart else {}
    more |= {"times": np.concatenate(stamps)} if stamps else {}
    number = _by_name(streams)
    choice = choose(number[np.concatenate(ids)], events, code.alphabet, context, **more)
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
    if source.piped or source.sort or source.slots is not None:
        held = list(rows)
        return held, held
    return rows, source.chunks(kind, progress, again=True)


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
    slots: Slots | None = None,
    chunk: int = CHUNK_ROWS,
    progress: Progress | None = None,
) -> Fitted:
    """Fit a chain of order 1 to a file, ε-differentially private for each user; see `learn.private.fit_private`.

    `Fitted.users` and `Fitted.events` are noisy too: nothing that comes back tells more than the model does. A `seed`
    makes the fit repeatable and not private.
    """
    if slots is not None and slots.pad:
        raise InputError("padding shows when others begin and end, which noise does not hide; leave --pad out")
    named = columns or Columns()
    if alphabet.on_map:
        named, slots = (
            located(data, named, format, alphabet.widths),
            None if slots is None else replace(slots, empty="hold"),
        )
    source = Source(data, named, format, sort, chunk, missing, slots)
    if source.columns.stream_columns:
        raise InputError("a private fit bounds one stream of each user; leave --stream-column out")
    alphabet = in_slots(alphabet, slots).with_missing(missing).with_slots(slots)
    source.check_width(alphabet)
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
    bins: float | str | None = None,
    levels: int | None = None,
    grid: str | None = None,
    span: str | None = None,
    on_unknown: OnUnknown | None = None,
    cell_metres: float | None = None,
    points: Any = None,
    points_columns: str | None = None,
) -> Symbols:
    """The alphabet that the options spell out without a look at the data.

    Values outside are refused unless `on_unknown` says otherwise; after "auto", and in cells of the map, they go to the
    cells at the edge.
    """
    if points is not None:
        cut = {"bins": bins, "levels": levels, "grid": grid, "cell_metres": cell_metres, "alphabet": named}
        return listed_places(points, points_columns, **cut, range=span).with_policy(on_unknown or "error")
    on_unknown = on_unknown or ("nearest" if AUTO in (bins, grid) or cell_metres is not None else "error")
    if levels is not None:
        raise InputError("levels are quantiles of the data, which a private fit may not look at; use bins and a range")
    if sum(option is not None for option in (named, bins, grid, cell_metres)) != 1:
        raise InputError(NEEDED)
    if named is not None:
        if span is not None:
            raise InputError("a range goes with bins or a grid, not with a list of values; leave it out")
        return named_alphabet(named).with_policy(on_unknown)
    if cell_metres is not None:
        south, north, west, east = _numbers(span, 4, "SOUTH,NORTH,WEST,EAST")
        return cells_over(cell_metres, (south, north, west, east)).with_policy(on_unknown)
    edges = _numbers(span, 4 if grid is not None else 2)
    if bins == AUTO:
        return Bins(np.linspace(edges[0], edges[1], AUTO_BINS + 1), on_unknown)
    if bins is not None:
        width = width_of(bins)
        if (edges[1] - edges[0]) / width > MOST_SYMBOLS:
            raise InputError(f"expected a bin width above 0 that cuts the range into at most {MOST_SYMBOLS} bins")
        return Bins.of_width(edges[0], edges[1], width, on_unknown)
    assert grid is not None
    x0, x1, y0, y1 = edges
    counts = (AUTO_CELLS, AUTO_CELLS) if grid == AUTO else cells(grid)
    return Grid.regular(*counts, (x0, x1, y0, y1), on_unknown)


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


def _numbers(span: str | None, count: int, form: str | None = None) -> list[float]:
    """LO,HI or X0,X1,Y0,Y1 as numbers.

    >>> _numbers("40,180", 2)
    [40.0, 180.0]
    """
    shape = form or ("LO,HI" if count == 2 else "X0,X1,Y0,Y1")
    try:
        found = [float(part) for part in (span or "").split(",")]
    except ValueError:
        found = []
    rising = all(low < high for low, high in zip(found[::2], found[1::2], strict=False))
    if len(found) != count or not all(map(math.isfinite, found)) or not rising:
        raise InputError(f"expected --range {shape}, the public range of the values, low before high")
    return found
