"""Fit a model to a file with differential privacy: a public alphabet, bounded users, noisy counts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

from seqveil.core.alphabet import Alphabet, Bins, Grid, OnUnknown, Symbols
from seqveil.core.coins import coins
from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel
from seqveil.interfaces.files import Chunk, Columns
from seqveil.interfaces.flow.fit import MOST_SYMBOLS, Fitted, cells
from seqveil.interfaces.flow.rows import CHUNK_ROWS, FilePath, Progress, Source, encode, value_type_of
from seqveil.receive.learn.private import CONTRIBUTION, BoundedCounts

NEEDED = (
    "a private fit needs a public alphabet, since collecting it from the data would show who had what; pass --alphabet "
    "FILE (a value a line, or a model to take it from), --bins with --range LO,HI, or --grid with --range X0,X1,Y0,Y1"
)


def fit_private_file(
    data: FilePath,
    epsilon: float,
    alphabet: Symbols,
    *,
    contribution: int = CONTRIBUTION,
    seed: int | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    sort: bool = False,
    chunk: int = CHUNK_ROWS,
    progress: Progress | None = None,
) -> Fitted:
    """Fit a chain of order 1 to a file, ε-differentially private for each user; see `learn.private.fit_private`.

    `Fitted.users` and `Fitted.events` are noisy too: nothing that comes back tells more than the model does. A `seed`
    makes the fit repeatable and not private.
    """
    source = Source(data, columns or Columns(), format, sort, chunk)
    pairs = len(source.columns.value_columns) == 2
    if pairs != isinstance(alphabet, Grid):
        raise InputError("a grid and two value columns go together; pass both, as in --grid 10x10 --value-column x,y")
    counts, kind = BoundedCounts(alphabet.n, contribution), value_type_of(alphabet)
    rows: Iterable[Chunk] = source.chunks(kind, progress)
    held = list(rows) if source.piped or sort else None
    for part in rows if held is None else held:
        counts.measure(part.users.to_list())
    for part in source.chunks(kind, progress, again=True) if held is None else held:
        counts.add(part.users.to_list(), encode(part, alphabet.strict, source.name))
    noisy = counts.noisy(epsilon, coins(seed))
    return Fitted(noisy.model(alphabet), noisy.users + max(0, int(noisy.moves.sum())), noisy.users)


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
