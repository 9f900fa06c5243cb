"""Data that somebody loads: columns of text become streams of codes with a chain fitted to them, in memory alone.

*Guarantee*: no message holds a field of the data; a problem is named by its row, the first row of data being row 1.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from seqveil.core.alphabet import Alphabet, Bins, Grid, Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Ints
from seqveil.core.model import Counts, MarkovModel
from seqveil.interfaces.files import Columns, read
from seqveil.interfaces.studio.source import MOST_SYMBOLS, Source, costs_of, unit_of

MOST_ROWS = 500_000
MOST_STREAMS = 50  # that can be chosen; all of them are fitted on
CELLS, LEVELS = 10, 20  # how numbers are cut where nobody says how
SMOOTHING = 0.5


@dataclass(frozen=True)
class Cut:
    """Which columns to read and how to cut them into symbols.

    `user` may be empty: all rows are then one stream. `value` is one column, or two as in x,y for a grid. `cells` cuts
    numbers into so many bins, or points into cells × cells; 0 takes the values as they are.
    """

    user: str = "user"
    value: str = "value"
    cells: int | None = None

    @classmethod
    def of(cls, given: Any) -> Cut:
        """From JSON."""
        if not isinstance(given, Mapping) or not given.keys() <= {"user", "value", "cells"}:
            raise InputError("columns: expected user, value and cells; check the configuration")
        for name in ("user", "value"):
            if not isinstance(given.get(name, ""), str) or len(given.get(name, "")) > 200:
                raise InputError(f"{name}: expected the name of a column; check the configuration")
        cells = given.get("cells")
        whole = isinstance(cells, int) and not isinstance(cells, bool)
        if cells is not None and not (whole and 0 <= cells <= MOST_SYMBOLS):
            raise InputError(f"cells: expected a whole number from 0 to {MOST_SYMBOLS}; check the configuration")
        return cls(**given)

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.value.split(","))


Rows = tuple[list[str], list[list[str]]]  # user of each row; its values, one list a value column


def rows_of_text(text: str, cut: Cut) -> Rows:
    """The columns of a CSV text.

    >>> rows_of_text("user,value\\nann,3\\nbob,4\\n", Cut())
    (['ann', 'bob'], [['3', '4']])
    """
    lines = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    try:
        found = [row for row in lines if row]
    except csv.Error:
        raise DataError(f"line {lines.line_num} cannot be read as CSV; close its quotes and save it again") from None
    if len(found) < 2:
        raise DataError("expected a header and at least one row of data; load another file")
    header = [name.strip() for name in found[0]]
    wanted = [*([cut.user] if cut.user else []), *cut.values]
    if len(wanted) > 3 or len(set(wanted)) < len(wanted) or not all(name in header for name in wanted):
        raise DataError("the header lacks a column that is asked for; choose the columns of user and value")
    for k, row in enumerate(found[1:], 1):
        if len(row) != len(header):
            raise DataError(f"row {k} has {len(row)} fields, the header {len(header)}; mend or quote it")
    at = [header.index(name) for name in wanted]
    columns = [[row[place].strip() for row in found[1:]] for place in at]
    return (columns[0], columns[1:]) if cut.user else ([""] * (len(found) - 1), columns)


def rows_of_file(path: str, cut: Cut) -> Rows:
    """The columns of a file, of any format that the other commands read."""
    users: list[str] = []
    values: list[list[str]] = [[] for _ in cut.values]
    kind = "text" if len(cut.values) == 1 else "number"
    for chunk in read(path, Columns(cut.user, cut.value), value_type=kind):  # type: ignore[arg-type]
        users += [str(user) for user in chunk.users.to_list()]
        parts = chunk.values.T.tolist() if isinstance(chunk.values, np.ndarray) else [chunk.values.to_list()]
        for column, part in zip(values, parts, strict=True):
            column += [str(value) for value in part]
    return users, values


def loaded(rows: Rows, cut: Cut, name: str, model: MarkovModel | None = None) -> Source:
    """A source from these rows; the chain is fitted to them unless a model is given.

    >>> loaded(rows_of_text("value\\na\\nb\\na\\nb\\n", Cut("")), Cut(""), "own").model.n
    2
    """
    users, values = rows
    if len(users) > MOST_ROWS:
        raise DataError(f"expected at most {MOST_ROWS} rows, got {len(users)}; load a part of them")
    blank = next((k for column in values for k, value in enumerate(column, 1) if not value), None)
    if blank is not None:
        raise DataError(f"row {blank}: the value is empty; fill it in or drop the row")
    numbers = _numbers(values)
    if model is None:
        alphabet = _grid(numbers, cut) if len(values) == 2 else _line(values[0], numbers, cut)
    else:
        alphabet = model.alphabet.with_policy("nearest" if model.alphabet.points is not None else "error")
    streams = _streams(users, _encoded(alphabet, values, numbers))
    chain = model or _fitted(streams, alphabet)
    shown = [codes for codes in streams if codes.size > 1][:MOST_STREAMS]
    if not shown:
        raise DataError("no stream has two events; check that the column of the user is the right one")
    costs = costs_of(chain)
    fitted = "a chain fitted to them, which is itself not private" if model is None else "the model given"
    about = f"{len(users)} events in {len(streams)} streams, {alphabet.n} symbols, under {fitted}"
    origin = {"kind": "data", "columns": asdict(cut), **({} if model is None else {"model": model.fingerprint})}
    start = {"mechanism": "optimal" if alphabet.n <= 40 or costs == "hamming" else "tree"}
    return Source(name, "Your data", about, chain, shown, costs, "event", unit_of(costs), origin, start)


def _numbers(values: Sequence[Sequence[str]]) -> list[np.ndarray[Any, np.dtype[np.float64]]] | None:
    """The columns as finite numbers, or None where one is not; a leading zero makes text, as in a code or a date."""
    if any(len(v) > 1 and v[0] == "0" and v[1] not in ".eE" for column in values for v in column):
        return None
    try:
        found = [np.array([float(value) for value in column]) for column in values]
    except ValueError:
        return None
    return found if all(np.isfinite(column).all() for column in found) else None


def _line(values: Sequence[str], numbers: Any, cut: Cut) -> Symbols:
    distinct = len(set(values))
    if numbers is None or cut.cells == 0 or (cut.cells is None and distinct <= LEVELS):
        if distinct > MOST_SYMBOLS:
            remedy = "group them" if numbers is None else "cut them into bins"
            raise DataError(f"the values differ in {distinct} ways, the page shows {MOST_SYMBOLS}; {remedy}")
        return Alphabet.of(values if numbers is None else _plain(numbers[0]))
    low, high = float(numbers[0].min()), float(numbers[0].max())
    count = cut.cells or LEVELS
    return Bins(np.linspace(low, high if high > low else low + 1.0, count + 1))


def _grid(numbers: Any, cut: Cut) -> Symbols:
    if numbers is None:
        raise DataError("a grid needs numbers in both columns, and some are not; choose other columns")
    side = cut.cells or CELLS
    if side * side > MOST_SYMBOLS:
        raise InputError(f"cells: a grid of {side} by {side} is more than {MOST_SYMBOLS} symbols; use fewer")
    ends = [(float(axis.min()), float(axis.max())) for axis in numbers]
    (x0, x1), (y0, y1) = ((low, high if high > low else low + 1.0) for low, high in ends)
    return Grid.regular(side, side, (x0, x1, y0, y1))


def _plain(numbers: Any) -> list[int] | list[float]:
    """Whole numbers as such, so that 3 and 3.0 are one symbol and are shown as 3."""
    if (numbers == np.round(numbers)).all() and float(np.abs(numbers).max()) < 2.0**53:
        return [int(value) for value in numbers]
    return [float(value) for value in numbers]


def _encoded(alphabet: Symbols, values: Sequence[Sequence[str]], numbers: Any) -> Ints:
    given: Any = values[0]
    if isinstance(alphabet, Grid):
        if numbers is None or len(numbers) != 2:
            raise DataError("the model is for points; name two columns of numbers, as in x,y")
        given = np.column_stack(numbers)
    elif numbers is not None and alphabet.points is not None:
        given = np.array(_plain(numbers[0]))
    try:
        return alphabet.encode(given)
    except InputError:
        raise DataError(f"a value is not in the model's alphabet ({alphabet.n} symbols); load what it is for") from None


def _streams(users: Sequence[str], codes: Ints) -> list[Ints]:
    """Codes of each user in the order of the rows, users in the order they come."""
    number: dict[str, int] = {}
    ids = np.array([number.setdefault(user, len(number)) for user in users])
    order = np.argsort(ids, kind="stable")
    cuts = np.flatnonzero(np.diff(ids[order])) + 1
    return [part for part in np.split(codes[order], cuts) if part.size]


def _fitted(streams: Sequence[Ints], alphabet: Symbols) -> MarkovModel:
    counts = Counts(alphabet.n, 1)
    counts.add(np.repeat(np.arange(len(streams)), [codes.size for codes in streams]), np.concatenate(streams))
    return counts.model(alphabet, SMOOTHING, "data")
