"""A visitor's own file: its text taken apart in memory, what its columns may be, and the rows that a source needs.

*Guarantee*: nothing is written to a disk, and no message holds a field of the file; a problem is named by its row, the
first row of data being row 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.errors import DataError, InputError
from seqveil.core.words import percent
from seqveil.interfaces.files import Columns, read
from seqveil.interfaces.files.columns import DECIMAL
from seqveil.interfaces.files.guessing import Guess, guessed, person_in
from seqveil.interfaces.files.inspection import Inspection, inspect
from seqveil.interfaces.files.reading import FRAME, whole_table
from seqveil.interfaces.files.rows import Source as Files

if TYPE_CHECKING:
    import polars as pl

MOST_CELLS = 400  # symbols that a heat map has room for
MOST_ROWS = 500_000  # of loaded data
THIS = "the file"  # what messages call it
EVERYONE = "all rows"  # stands for the user where no column does

# what `seqveil inspect` says by options of the command line, and what a visitor of the page can do about it
CUT_HERE = "Say it under “Cut numbers into”; left empty, it is"
SAID_HERE = {
    " Name yours with --value-column": " Choose yours above",
    "--bins WIDTH cuts evenly, --levels N into bins of about equal count": f"{CUT_HERE} 20 bins",
    "Pass --cell-metres": f"{CUT_HERE} 10 by 10",
    "auto cuts about 10 by 10 cells over their bulk": f"{CUT_HERE} 10 by 10",
    ", or name date and clock apart, as in --time-column date,hour": ", or choose the rows as they are",
}

Rows = tuple[list[str], list[list[str]]]  # user of each row; its values, one list a value column


@dataclass(frozen=True)
class Cut:
    """Which columns to read and how to cut them into symbols.

    Parameters:
        user: the column of the user; empty where all rows are one stream.
        value: one column, or two as in x,y for a grid.
        cells: cuts numbers into so many bins, or points into cells × cells; 0 takes the values as they are.
        time: the columns that rows are sorted by, the coarsest first; None leaves them as the file has them.
    """

    user: str = "user"
    value: str = "value"
    cells: int | None = None
    time: str | None = None

    @classmethod
    def of(cls, given: Any) -> Cut:
        """From JSON."""
        if not isinstance(given, Mapping) or not given.keys() <= {"user", "value", "cells", "time"}:
            raise InputError("columns: expected user, value, time and cells; check the configuration")
        for name in ("user", "value"):
            if not isinstance(given.get(name, ""), str) or len(given.get(name, "")) > 200:
                raise InputError(f"{name}: expected the name of a column; check the configuration")
        time = given.get("time")
        if time is not None and (not isinstance(time, str) or not 0 < len(time) <= 200):
            raise InputError("time: expected the names of columns, or none; check the configuration")
        cells = given.get("cells")
        whole = isinstance(cells, int) and not isinstance(cells, bool)
        if cells is not None and not (whole and 0 <= cells <= MOST_CELLS):
            raise InputError(f"cells: expected a whole number from 0 to {MOST_CELLS}; check the configuration")
        return cls(**given)

    @property
    def values(self) -> tuple[str, ...]:
        """The columns of the value: one, or two for places in a plane."""
        return tuple(name.strip() for name in self.value.split(","))

    @property
    def times(self) -> tuple[str, ...]:
        """The columns that the rows are sorted by; none where they stay as they are."""
        return () if self.time is None else tuple(name.strip() for name in self.time.split(","))

    @property
    def columns(self) -> Columns:
        """The same as files are read with."""
        named = [self.user, *self.values, *self.times]
        if len(self.values) > 2 or not all(named[1:]) or len(set(named)) < len(named):
            raise InputError(
                "a column is chosen twice, or the value is missing; choose a different column for each part"
            )
        return Columns(self.user or EVERYONE, self.value, self.time)


def _table(text: bytes, file: str) -> pl.DataFrame:
    """All columns of a CSV text, or of JSON lines where the file is called so, and one that stands for everybody."""
    import polars as pl

    lines = file.lower().endswith((".jsonl", ".ndjson"))
    found = whole_table(text, "jsonl" if lines else "csv", THIS)
    if found.height > MOST_ROWS:
        raise DataError(f"expected at most {MOST_ROWS} rows, got {found.height}; load a part of them")
    return found.select(name for name in found.columns if name).with_columns(pl.lit("everyone").alias(EVERYONE))


def rows_of_text(text: str, cut: Cut, file: str = "DATA.csv") -> Rows:
    """The users and values of a text, sorted where the cut names times.

    >>> rows_of_text("user;value\\nann;3\\nbob;4\\n", Cut())
    (['ann', 'bob'], [['3', '4']])
    >>> rows_of_text('{"user": "ann", "value": 3}', Cut(), "walk.jsonl")
    (['ann'], [['3']])
    """
    columns, table = cut.columns, _table(_encoded(text), file)
    if not {*columns.user_columns, *columns.value_columns, *columns.time_columns} <= {*table.columns}:
        raise DataError("the header lacks a column that is asked for; choose the columns of user and value")
    try:
        return _rows(table, cut)
    except DataError as error:
        raise DataError(_here(str(error))) from None


def rows_of_file(path: str, cut: Cut) -> Rows:
    """The users and values of a file, of any format that the other commands read; without a user, of one of text."""
    if cut.user:
        return _rows(path, cut)
    try:
        return _rows(_table(Path(path).read_bytes(), path), cut)
    except OSError:
        raise DataError("the file cannot be read; check the path, or name a column of the user") from None


def _rows(data: str | pl.DataFrame, cut: Cut) -> Rows:
    users: list[str] = []
    values: list[list[str]] = [[] for _ in cut.values]
    kind: Any = "text" if len(cut.values) == 1 else "number"
    if cut.times:
        chunks = Files(data, cut.columns, sort=True).chunks(kind, holes="empty")
    else:
        chunks = read(data, cut.columns, value_type=kind, holes="empty")
    for chunk in chunks:
        users += [str(user) for user in chunk.users.to_list()]
        parts = chunk.values.T.tolist() if isinstance(chunk.values, np.ndarray) else [chunk.values.to_list()]
        for column, part in zip(values, parts, strict=True):
            column += ["" if value is None or value != value else str(value) for value in part]  # NaN is no value
    return users, values


def _encoded(text: str) -> bytes:
    """The text with a question mark for every half of a character, which JSON can hold and no file."""
    return text.encode("utf-8", "replace")


def _typed(column: pl.Series) -> pl.Series:
    """A column of text as numbers, where all of it is; a leading zero makes text, as in a code."""
    import polars as pl

    empty = column == ""
    filled = column.filter(~empty)
    if not filled.len() or not filled.str.contains(DECIMAL).all() or filled.str.contains(r"^[+-]?0\d").any():
        return pl.select(pl.when(~empty).then(column)).to_series().alias(column.name)
    whole = filled.str.contains(r"^[+-]?\d{1,18}$").all()
    return column.cast(pl.Int64 if whole else pl.Float64, strict=False)


def looked_at(text: str, file: str = "DATA.csv", given: Cut | None = None) -> dict[str, Any]:
    """What `seqveil inspect` says about a text, and the columns that it proposes or that were `given`.

    What no column can be taken for stays empty, for the visitor to choose; then nothing else is said.

    >>> found = looked_at("person,week,page\\n" + "".join(f"p{k // 4},{k % 4},{'ab'[k % 2]}\\n" for k in range(80)))
    >>> found["chosen"]
    {'user': 'person', 'value': 'page', 'time': 'week', 'cells': None}
    """
    import polars as pl

    everyone = _table(_encoded(text), file)
    everyone = everyone.with_columns(_typed(column) for column in everyone.get_columns() if column.dtype == pl.String)
    frame = everyone.drop(EVERYONE)
    table = frame.columns
    alone = given is not None and not given.user
    guess: Guess | None
    try:
        guess = guessed(everyone if alone else frame, None if given is None else given.columns, "the file")
    except DataError as error:  # the value cannot be guessed, or the user: then all rows may be one person's
        guess = _without_user(everyone) if given is None and "a user's name" in str(error) else None
    names = None if guess is None else guess.columns
    chosen: dict[str, Any] = {
        "user": (person_in(table) or "") if names is None else "" if names.user == EVERYONE else names.user,
        "value": "" if names is None else names.value,
        "time": given.time if given is not None else _order_of(guess),
        "cells": None if given is None else given.cells,
    }
    facts = {"columns": table, "rows": frame.height, "chosen": chosen, "lines": [], "problem": ""}
    if any("," in name and name in table for name in (chosen["user"], chosen["value"], chosen["time"] or "")):
        return facts | {"problem": "a column with a comma in its name cannot be determined from two columns; rename it"}
    if not all(name in table for name in chosen["value"].split(",")):
        return facts | {"problem": "no column is plainly the value: choose the one that holds what happened"}
    columns = Columns(chosen["user"] or EVERYONE, chosen["value"], chosen["time"])
    used = [*columns.user_columns, *columns.value_columns, *columns.time_columns]
    try:
        found = inspect(everyone.select(used), columns)
    except InputError as error:
        return facts | {"problem": _here(str(error))}
    except pl.exceptions.ColumnNotFoundError:
        raise DataError("the header lacks a column that is asked for; choose other columns") from None
    said = [(name, text.removeprefix("a frame: ")) for name, text in found.lines() if name not in ("column", "next")]
    said = [(name, _predictable(found) if name == "predicted" else text) for name, text in said]
    said += [("question", text) for text in _unsure(guess)]
    return facts | {"lines": [[name, _here(text)] for name, text in said]}


def _predictable(found: Inspection) -> str:
    """How well events are predicted, as chances in place of the nats of the command line: e to the mean logarithm."""
    alone, before = (percent(math.exp(found.log_likelihood[order])) for order in ("order 0", "order 1"))
    return (
        f"whoever knows somebody's event before gives what comes next a chance of {before} on average; whoever knows "
        f"only how often each value comes gives it {alone} (tried on {found.held_out_people:,} people set apart for it)"
    )


def _unsure(guess: Guess | None) -> list[str]:
    """What is to be asked about columns that neither the visitor nor their names tell."""
    if guess is None:
        return []
    users = [role.column for role in guess.roles if role.role == "user" and role.why not in ("by its name", "as named")]
    whose = [f"is {name!r} whose event it is? It is a guess, because its values come again" for name in users]
    return whose + guess.questions


def _here(text: str) -> str:
    """What `seqveil inspect` says, with what the page offers in place of the options of the command line."""
    text = text.removeprefix(f"{FRAME}: ")
    for there, here in SAID_HERE.items():
        text = text.replace(there, here)
    return text


def _without_user(everyone: pl.DataFrame) -> Guess | None:
    """The guess for a file of one stream; None where no column could be the value."""
    try:
        return guessed(everyone, Columns(EVERYONE), "the file")
    except DataError:
        return None


def _order_of(guess: Guess | None) -> str | None:
    if guess is None:
        return None
    return guess.columns.time or ",".join(role.column for role in guess.roles if role.role == "order") or None
