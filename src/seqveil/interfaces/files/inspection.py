"""A look at somebody's own file before anything is fitted: what its columns may be, what is odd, and what to type.

It shows counts, and of the values only those that at least ten people share. It is for whoever has the raw file: what
it says is not private.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import polars as pl

from seqveil.core import geography
from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.model import Reading
from seqveil.core.words import Line, Result, count
from seqveil.interfaces.files.cuts import AUTO, around, fitting_size
from seqveil.interfaces.files.events import Events, coordinates_in, read_events
from seqveil.interfaces.files.fit import MOST_NUMBERS, ColumnWords, refuse_strange
from seqveil.interfaces.files.guessing import Guess, Role
from seqveil.interfaces.files.table import as_polars, read_table

SHARED = 10  # people who must have a value before it is shown, and below which it is rare
SHOWN = 8  # values shown at most
HEAD = 10_000  # rows from which columns are guessed
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
    values: int  # different ones
    numbers: bool  # whether they are numbers
    rare: int  # values that fewer than ten people have
    rare_events: int
    shared: list[tuple[str, int]]  # values that at least ten people have, and how often they come
    questions: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)  # of `fit`, by their names in Python
    command: str = ""

    def lines(self) -> list[Line]:
        """What was found, a line for each part."""
        said = [
            ("column", f"{role.column!r}: {role.role} ({role.why})") for role in self.roles if role.role != "not used"
        ]
        unused = [repr(role.column) for role in self.roles if role.role == "not used"]
        more = f" and {len(unused) - SHOWN} more" if len(unused) > SHOWN else ""
        said += [("column", f"not used: {', '.join(unused[:SHOWN])}{more}")] if unused else []
        length = f"{count(self.shortest, 'event')} each"
        if self.shortest < self.longest:
            length = f"{self.shortest} to {self.longest} events each, median {self.typical}"
        said += [
            ("read", self.read),
            ("people", f"{count(self.users, 'person', 'people')}, {count(self.events, 'event')}; {length}"),
        ]
        different = count(self.values, "different number" if self.numbers else "different value")
        said.append(("values", f"{different}, {count(self.reading['missing'], 'row')} without one"))
        if not self.numbers:
            few = f"{count(self.rare, 'value')} that fewer than {SHARED} people have"
            said.append(("rare", f"{few}, in {count(self.rare_events, 'event')}"))
            shown = ", ".join(f"{value!r} {many:,}" for value, many in self.shared)
            said += [("shared", shown)] if shown else []
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
    refuse_strange(words, ColumnWords)
    source = as_polars(data)
    if isinstance(source, str | os.PathLike) and os.fspath(source) == "-":
        raise InputError("a look at a file reads it more than once, so it cannot come from a pipe; name a file")
    table = read_table(source, None, format)
    guess = Guess(table.frame.head(HEAD), Reading().but(**words), table.name)
    events = read_events(table, guess.reading, missing="drop")
    order = next((role.why for role in guess.roles if role.role == "order"), events.taken.why)
    taken, (people, who) = replace(events.taken, why=order, dropped=0), events.people
    lengths = np.bincount(who)
    found = Inspection(
        roles=guess.roles,
        reading=asdict(taken),
        read=replace(taken, missing=0).sentence,  # which are counted with the values
        users=len(people),
        events=int(who.size),
        shortest=int(lengths.min()),
        typical=int(np.median(lengths)),
        longest=int(lengths.max()),
        **_about_values(events, who),
    )
    options = _options(found, events)
    title, model = "DATA", "DATA.model"
    if isinstance(source, str | os.PathLike):
        title, model = os.fspath(source), f"{Path(source).name.split('.')[0] or 'data'}.model"
    command = f"seqveil fit {shlex.quote(title)} -o {shlex.quote(model)}{option_words(options)}"
    return replace(found, questions=[*guess.questions, *_questions(found)], options=options, command=command)


def _about_values(events: Events, who: Ints) -> dict[str, Any]:
    """How many values there are, whether they are numbers, and which of them few people have."""
    series = events.values
    if isinstance(series, np.ndarray):
        many = len(np.unique(series, axis=0))
        return {"values": many, "numbers": True, "rare": 0, "rare_events": 0, "shared": []}
    table = (
        pl.DataFrame({"v": series, "who": who})
        .group_by("v", maintain_order=True)
        .agg(pl.len().alias("events"), pl.col("who").n_unique().alias("people"))
        .sort("events", descending=True, maintain_order=True)
    )
    numbers = series.dtype.is_float() or (series.dtype.is_integer() and table.height > MOST_NUMBERS)
    few, common = table.filter(pl.col("people") < SHARED), table.filter(pl.col("people") >= SHARED)
    return {
        "values": table.height,
        "numbers": numbers,
        "rare": few.height,
        "rare_events": int(few["events"].sum()),
        "shared": [] if numbers else [(str(value), many) for value, many, _ in common.head(SHOWN).rows()],
    }


def _questions(found: Inspection) -> list[str]:
    """What whoever knows the file should be asked about its people."""
    if found.users < SHARED:
        few = f"{count(found.users, 'person', 'people')} {'is' if found.users == 1 else 'are'} few"
        return [f"{few}: a model of them shows how they behave. Is the user column right?"]
    if found.longest == 1:
        return ["each person has one event, so nothing follows upon anything. Is the user column right?"]
    return []


def _options(found: Inspection, events: Events) -> dict[str, Any]:
    """How `fit` is to read this file, by the names that it has for it, where that is not what it does anyway."""
    usual, series = Reading().to_dict(), events.values
    options: dict[str, Any] = {role: name for role, name in events.reading.to_dict().items() if name != usual[role]}
    cut = found.numbers and (isinstance(series, np.ndarray) or found.values > MOST_NUMBERS)
    if events.taken.missing:
        options["missing"] = "hold" if cut else "symbol"
    if coordinates_in(events.reading.value_columns) == events.reading.value_columns:
        good = np.asarray(series)[geography.possible(np.asarray(series))]
        options["cell_metres"] = fitting_size(around(good), CELLS) if len(good) else 500.0
    elif isinstance(series, np.ndarray):
        options["grid"] = AUTO
    elif cut:
        options["bins"] = AUTO
    pools = found.rare > 0 and found.users >= 2 * SHARED and found.values - found.rare >= 2
    return options | ({"other": SHARED} if pools and not found.numbers and not cut else {})


def option_words(options: Mapping[str, Any]) -> str:
    """Options of `fit` by their names in Python, as one types them after a command."""
    words = ""
    for name, value in options.items():
        text = f"{value:g}" if isinstance(value, int | float) else shlex.quote(value)
        words += f" --{name.replace('_', '-')}{'-column' * (name in ('user', 'value', 'time'))} {text}"
    return words
