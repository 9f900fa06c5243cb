"""What a fit takes: how rows are read, how values become symbols, and what the next symbol depends on.

The commands, `sv.fit` and comparisons make one `FitWords`; what does not go together is refused there, in the words of
the command line.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import Alphabet, Bins, Grid, OnMissing, OnUnknown, Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import SMOOTHING
from seqveil.core.model import MarkovModel
from seqveil.core.slots import NOTHING, Slots
from seqveil.interfaces.files.columns import Columns
from seqveil.interfaces.files.placing import cells_over, located
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.rows import CHUNK_ROWS, Source
from seqveil.interfaces.files.scanning import AUTO, AUTO_BINS, AUTO_CELLS, MOST_SYMBOLS, cells, width_of
from seqveil.interfaces.files.slots import NO_MEAN

if TYPE_CHECKING:
    import polars as pl

NEEDED = (
    "a private fit needs a public alphabet, since collecting it from the data would show who had what; pass --alphabet "
    "FILE (a value a line, or a model to take it from), --bins with --range LO,HI, --grid with --range X0,X1,Y0,Y1, or "
    " --cell-metres with --range SOUTH,NORTH,WEST,EAST"
)


@dataclass(frozen=True)
class FitWords:
    """All that a fit takes.

    Parameters:
        columns: what the columns are called.
        format: of a file whose name does not tell.
        sort: whether to sort the rows first, which holds them in memory.
        missing: what to do with rows without a value (`Source`); the model remembers it.
        slots: one symbol for each slot of time; the model remembers them.
        chunk: rows read at a time.
        bins: cut numbers into bins of this width; "auto" cuts their bulk evenly at round numbers, and what lies outside
            counts to the bins at the edge.
        levels: cut numbers into so many bins of about equal count.
        grid: cut points (two columns of the value) into a grid such as "10x10", or "auto".
        cell_metres: cut the map around the bulk of latitudes and longitudes into cells of this size.
        other: take values that fewer people have together as the symbol "other".
        on_unknown: the policy that the model carries for later values: "error" by default, "other" with
            `other`, "nearest" after "auto" and for coordinates.
        alphabet: the values there are: a list, an alphabet, or a file of them; else those that occur.
        range: that of bins, a grid or cells, where it is not taken from the data.
        order, smoothing, prior: of the chain, as in `MarkovModel.fit`.
        context: what the next symbol depends on ("auto", "order:2", "types:16"), checked on held-out people.
        trait: a column with one label for each user; each label gets types of its own, as many as `context` says.
        private: fit with differential privacy at this ε for each user.
        contribution: with `private`, the most transitions of one user that count.
        seed: with `private`, makes the noise repeatable, and the fit not private.
    """

    columns: Columns = field(default_factory=Columns)
    format: str | None = None
    sort: bool = False
    missing: OnMissing | None = None
    slots: Slots | None = None
    chunk: int = CHUNK_ROWS
    bins: float | str | None = None
    levels: int | None = None
    grid: str | None = None
    cell_metres: float | None = None
    other: int | None = None
    on_unknown: OnUnknown | None = None
    alphabet: Any = None
    range: str | None = None
    order: int = 1
    smoothing: float = SMOOTHING
    prior: str = "data"
    context: str | None = None
    trait: str | None = None
    private: float | None = None
    contribution: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.context is not None and self.order != 1:
            raise InputError("--context says what --order says; pass --context order:2, or leave it out")
        if self.private is None:
            if self.contribution is not None or self.seed is not None:
                raise InputError(
                    "--contribution and --seed are for a private fit; pass --private EPSILON, or leave them out"
                )
            return
        self._check_private()

    def _check_private(self) -> None:
        """Refuse what a fit with differential privacy cannot do."""
        if self.context is not None or self.trait is not None:
            raise InputError(
                "a private fit is of one chain: noise for n² counts hides a person, noise for each type's would hide "
                "the types; leave --context and --trait out, or fit it to data that may be published"
            )
        if self.order != 1 or self.smoothing != SMOOTHING or self.prior != "data":
            raise InputError(
                "a private fit is of order 1 and smooths by its noise; leave --order, --smoothing and --prior out"
            )
        if self.other is not None:
            raise InputError("--other looks at who has what, which a private fit may not; leave it out")
        if self.slots is not None and self.slots.pad:
            raise InputError("padding shows when others begin and end, which noise does not hide; leave --pad out")

    @property
    def ways(self) -> dict[str, Any]:
        """The ways to cut numbers that were asked for."""
        asked = {"bins": self.bins, "levels": self.levels, "grid": self.grid, "cell_metres": self.cell_metres}
        return {name: way for name, way in asked.items() if way is not None}

    @property
    def clamps(self) -> bool:
        """Whether what lies outside the cells counts to those at the edge."""
        return AUTO in (self.bins, self.grid) or self.cell_metres is not None

    def settled(self, data: FilePath | pl.DataFrame) -> FitWords:
        """The same with the alphabet that is spelled out made, and with the columns that give a place or a time."""
        named, columns, slots = self.named(), self.columns, self.slots
        if self.cell_metres is not None or (named is not None and named.on_map):
            columns = located(data, columns, self.format)
        if named is not None and named.on_map and slots is not None:
            slots = replace(slots, empty="hold")
        return replace(self, alphabet=named, columns=columns, slots=slots)

    def source(self, data: FilePath | pl.DataFrame) -> Source:
        """The data, to be read as the words say."""
        return Source(data, self.columns, self.format, self.sort, self.chunk, self.missing, self.slots)

    def policy(self, alphabet: Symbols) -> OnUnknown:
        """What later commands do with values outside the alphabet."""
        if self.on_unknown is not None:
            return self.on_unknown
        if self.clamps or alphabet.on_map:
            return "nearest"
        return "error" if self.other is None else "other"

    def named(self) -> Symbols | None:
        """The alphabet that the words spell out without a look at the data; None where the data have to tell it."""
        if self.alphabet is None and self.private is None and self.range is None:
            return None
        if self.alphabet is None or isinstance(self.alphabet, str | os.PathLike):
            return self._public()
        if self.ways or self.range is not None:
            raise InputError("alphabet= names the values, so no cut and no range go with it; leave them out")
        given = self.alphabet if isinstance(self.alphabet, Symbols) else Alphabet(list(self.alphabet))
        return given.with_policy(self.on_unknown or given.on_unknown)

    def _public(self) -> Symbols:
        """The alphabet of a file, or cuts of a range."""
        if self.private is None and self.alphabet is None and (self.levels is not None or not self.ways):
            own = "--levels cuts at quantiles of the data: " if self.levels is not None else ""
            raise InputError(
                f"{own}--range goes with --bins, --grid or --cell-metres; pass one of them, or leave it out"
            )
        if self.levels is not None:
            raise InputError(
                "levels are quantiles of the data, which a private fit may not look at; use bins and a range"
            )
        if len(self.ways) + (self.alphabet is not None) != 1:
            raise InputError(NEEDED)
        policy = self.on_unknown or ("nearest" if self.clamps else "error")
        if self.alphabet is not None:
            if self.range is not None:
                raise InputError("a range goes with bins or a grid, not with a list of values; leave it out")
            return named_alphabet(self.alphabet).with_policy(policy)
        if self.cell_metres is not None:
            south, north, west, east = _numbers(self.range, 4, "SOUTH,NORTH,WEST,EAST")
            return cells_over(self.cell_metres, (south, north, west, east)).with_policy(policy)
        if self.grid is not None:
            x0, x1, y0, y1 = _numbers(self.range, 4, "X0,X1,Y0,Y1")
            counts = (AUTO_CELLS, AUTO_CELLS) if self.grid == AUTO else cells(self.grid)
            return Grid.regular(*counts, (x0, x1, y0, y1), policy)
        assert self.bins is not None
        low, high = _numbers(self.range, 2, "LO,HI")
        if self.bins == AUTO:
            return Bins(np.linspace(low, high, AUTO_BINS + 1), policy)
        width = width_of(self.bins)
        if (high - low) / width > MOST_SYMBOLS:
            raise InputError(f"expected a bin width above 0 that cuts the range into at most {MOST_SYMBOLS} bins")
        return Bins.of_width(low, high, width, policy)


def in_slots(alphabet: Symbols, slots: Slots | None) -> Symbols:
    """The alphabet with what slots need: among names a symbol for nothing."""
    if slots is None or not isinstance(alphabet, Alphabet):
        return alphabet
    if slots.rule == "mean":
        raise InputError(NO_MEAN)
    if not all(type(value) is str for value in alphabet.values):
        raise InputError("slots take names, or numbers that are cut; name the values as text, or pass --bins or --grid")
    named = list(alphabet.values)
    return alphabet if NOTHING in named or slots.empty == "hold" else Alphabet([*named, NOTHING])


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


def _numbers(span: str | None, count: int, form: str) -> list[float]:
    """The numbers of a range, so many as its form names.

    >>> _numbers("40,180", 2, "LO,HI")
    [40.0, 180.0]
    """
    try:
        found = [float(part) for part in (span or "").split(",")]
    except ValueError:
        found = []
    rising = all(low < high for low, high in zip(found[::2], found[1::2], strict=False))
    if len(found) != count or not all(map(math.isfinite, found)) or not rising:
        raise InputError(f"expected --range {form}, the public range of the values, low before high")
    return found
