"""Somebody's own file: its bytes read in memory, what `seqveil inspect` says about it, and the source that it makes.

The page fits with the very options that `inspect` proposes, so that the command that it shows fits the same model.

*Guarantee*: nothing is written to a disk, and no message holds a field of the file; a problem is named by its row, the
first row of data being row 1.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Ints
from seqveil.core.model import Counts, MarkovModel
from seqveil.interfaces.choosing import said_of_check
from seqveil.interfaces.files.fit import read_values
from seqveil.interfaces.files.inspection import Inspection, inspect
from seqveil.interfaces.files.table import Table, file_name, table_of_bytes
from seqveil.interfaces.studio.source import CROWD, StudioSource, proposed

MOST_BYTES = 256 << 20  # of a compressed file, taken apart
FEW, SHARE = 10, 5  # people from which on some are kept out of the fit to be shown, and one in how many
MOST_STREAMS = 50  # that can be shown
LONGEST_NAME = 200
SMALL = {"cell_metres": float, "levels": int, "other": int}  # the options of a fit that are numbers

# what `seqveil inspect` says by options of the command line, and what a visitor of the page can do about it
CUT = "Say it under “Cut into”; left empty, the page cuts as the commands below say"
SAID_HERE = {
    " Name yours with value=": " Choose yours above",
    "bins= cuts evenly, levels= into bins of about equal count": CUT,
    "Say it with cell_metres=": CUT,
    "Cut the map with cell_metres=": "Choose them above",
    "auto cuts about 10 by 10 cells over their bulk": CUT,
    ", or name date and clock apart, as in time='date,hour'": ", or choose the rows as they are",
}


@dataclass(frozen=True)
class UploadChoice:
    """What somebody chose for a file; what is empty is left to `inspect`.

    Parameters:
        user, value, time: columns; two of the value, as in x,y, are places.
        cut: into cells of so many metres, so many bins, or so many cells a side.
    """

    user: str = ""
    value: str = ""
    time: str = ""
    cut: float | None = None

    @classmethod
    def of(cls, given: Any) -> UploadChoice:
        """From JSON."""
        if not isinstance(given, Mapping) or not given.keys() <= {"user", "value", "time", "cut"}:
            raise InputError("columns: expected user, value, time and cut; check the request")
        for name in ("user", "value", "time"):
            if not isinstance(given.get(name, ""), str) or len(given.get(name, "")) > LONGEST_NAME:
                raise InputError(f"{name}: expected the name of a column; check the request")
        cut = given.get("cut")
        number = isinstance(cut, int | float) and not isinstance(cut, bool)
        if cut is not None and not (number and 0 < cut < 1e7):
            raise InputError("cut: expected a number above 0, or nothing; check the request")
        return cls(**given)

    @property
    def columns(self) -> dict[str, str]:
        """The same as files are read with."""
        named = [name.strip() for text in (self.user, self.value, self.time) if text for name in text.split(",")]
        if len(set(named)) < len(named):
            raise InputError("a column is chosen twice; choose a different column for each part")
        given = {"user": self.user, "value": self.value, "time": self.time}
        return {name: text for name, text in given.items() if text}


@dataclass(frozen=True, eq=False)
class Upload:
    """A file in memory: all of its rows and columns. The repr shows no data."""

    file: str
    table: Table = field(repr=False)

    @classmethod
    def of(cls, content: bytes, file: str) -> Upload:
        """A file of any kind that the commands read, by its name.

        >>> Upload.of(b"user;value\\nann;3\\nbob;4\\n", "walk.csv").table.frame["value"].to_list()
        ['3', '4']
        """
        return cls(file, table_of_bytes(content, file))

    @property
    def title(self) -> str:
        """What the file is called, without its folder."""
        return file_name(self.file)

    def look(self, chosen: UploadChoice) -> Look:
        """What `seqveil inspect` says about it with these columns."""
        return Look.of(inspect(self.table, **chosen.columns), chosen)

    def describe(self, chosen: UploadChoice) -> dict[str, Any]:
        """What the page shows before the file is used: columns that can be chosen, what was found, what is amiss."""
        shown = {"user": chosen.user, "value": chosen.value, "time": chosen.time}
        facts = {"file": self.title, "columns": self.table.frame.columns, "rows": self.table.frame.height, "lines": []}
        try:
            found = self.look(chosen)
        except InputError as error:
            return facts | {"chosen": shown, "problem": _here(str(error))}
        return facts | {"chosen": shown | found.columns, "problem": "", "lines": found.lines}


@dataclass(frozen=True)
class Look:
    """What was found in a file, and the options of `seqveil fit` that go with it, by their names in Python."""

    options: Mapping[str, str]
    lines: list[tuple[str, str]]

    @classmethod
    def of(cls, found: Inspection, chosen: UploadChoice) -> Look:
        """What an inspection says and proposes, cut as somebody chose."""
        said = [(name, text) for name, text in found.lines() if name not in ("column", "next")]
        return cls(_cut(_options(found.command), chosen.cut), [(name, _here(text)) for name, text in said])

    @property
    def columns(self) -> dict[str, str]:
        """The columns that were taken, as somebody could have chosen them."""
        return {
            "user": self.options.get("user_column", "user"),
            "value": self.options.get("value_column", "value"),
            "time": self.options.get("time_column", ""),
        }

    def words(self, *names: str) -> str:
        """Some of the options as a command has them; all where none is named."""
        given = {name: text for name, text in self.options.items() if not names or name in names}
        return "".join(
            f" --{name.replace('_', '-')}{' ' * bool(text)}{shlex.quote(text) if text else ''}"
            for name, text in given.items()
        )

    @property
    def reading(self) -> str:
        """The options that say how rows are read."""
        return self.words("user_column", "value_column", "time_column")

    def values(self, model: MarkovModel | None) -> dict[str, Any]:
        """How the file is read and its values become symbols; with a model by its alphabet."""
        typed: dict[str, Any] = {
            name.removesuffix("_column"): SMALL.get(name, str)(text) for name, text in self.options.items()
        }
        if model is None:
            return typed
        alphabet, slots = model.alphabet, model.alphabet.slots
        kept: dict[str, Any] = {name: typed[name] for name in ("user", "value", "time") if name in typed}
        unknown = "nearest" if alphabet.points is not None else alphabet.on_unknown
        kept |= {"alphabet": alphabet, "on_unknown": unknown, "missing": alphabet.missing or "drop"}
        if slots is not None:
            rule = ",".join([slots.rule, *["pad"] * slots.pad, *([slots.empty] if slots.empty else [])])
            kept |= {"every_seconds": slots.seconds, "slot": rule, "utc_offset": slots.utc_offset}
        return kept


def _options(command: str) -> dict[str, str]:
    """The options of a `seqveil fit` command, without the files.

    >>> _options("seqveil fit DATA -o DATA.model --user-column 'who am I' --sort --levels 20")
    {'user_column': 'who am I', 'sort': '', 'levels': '20'}
    """
    found: dict[str, str] = {}
    for word in shlex.split(command)[5:]:
        if word.startswith("--"):
            found[word[2:].replace("-", "_")] = ""
        else:
            found[list(found)[-1]] = word
    return found


def _cut(options: dict[str, str], cut: float | None) -> dict[str, str]:
    """The options with the cut that somebody chose in place of the one that was proposed."""
    if cut is None:
        return options
    if "cell_metres" in options:
        return options | {"cell_metres": f"{cut:g}"}
    if "grid" in options:
        return options | {"grid": f"{int(cut)}x{int(cut)}"}
    return {name: text for name, text in options.items() if name not in ("bins", "other")} | {"levels": str(int(cut))}


def _here(text: str) -> str:
    """What `seqveil inspect` says, with what the page offers in place of the options of the command line."""
    for there, here in SAID_HERE.items():
        text = text.replace(there, here)
    return text


def loaded(
    upload: Upload, chosen: UploadChoice, name: str, model: MarkovModel | None = None, file: str = ""
) -> StudioSource:
    """A source from a file: fitted to some of the people, to show others; or all of them under a model that is given.

    >>> text = "user,value\\n" + "".join(f"u{k // 5},{'ab'[k % 2]}\\n" for k in range(100))
    >>> source = loaded(Upload.of(text.encode(), "d.csv"), UploadChoice(), "own")
    >>> source.model.n, len(source.streams), source.fit
    (2, 4, 'seqveil fit d.csv -o d.model')
    """
    look = upload.look(chosen)
    who, codes, alphabet = _events(upload, look, model)
    people = np.arange(int(who.max()) + 1)
    apart = model is None and people.size >= FEW
    shown = people % SHARE == SHARE - 1 if apart else np.ones(people.size, bool)
    chain, how = model, "the model given"
    if chain is None:
        fitted = ~shown[who] if apart else np.ones(who.size, bool)
        counts = Counts(alphabet.n, 1)
        counts.add(who[fitted], codes[fitted])
        chain, how = counts.model(alphabet), "a model, itself not private, fitted to "
        how += f"{int((~shown).sum())} people; the others are shown" if apart else "them"
    begins = np.concatenate(([0], np.bincount(who).cumsum()))
    grouped = codes[np.argsort(who, kind="stable")]
    streams = [grouped[begins[k] : begins[k + 1]] for k in np.flatnonzero(shown)]
    crowd = [each for each in streams if each.size > 1]
    streams = crowd[:MOST_STREAMS]
    if not streams:
        raise DataError("no stream has two events; check that the column of the user is the right one")
    about = f"{who.size:,} events of {people.size:,} people, {alphabet.n:,} symbols, under {how}. "
    about += f"It was {said_of_check(chain)}"
    length, given = int(np.diff(begins).max()), _commands(upload, look, file)
    return StudioSource(
        name, upload.title, about, chain, streams, crowd[:CROWD], length, "event", *proposed(chain), **given
    )


def _commands(upload: Upload, look: Look, model: str) -> dict[str, Any]:
    """What the commands call the files, and the one that fits, where no model is given."""
    data, made = shlex.quote(upload.file), shlex.quote(f"{upload.title.split('.')[0] or 'data'}.model")
    fit = "" if model else f"seqveil fit {data} -o {made}{look.words()}"
    return {"data": data, "columns": look.reading, "model_file": shlex.quote(model) if model else made, "fit": fit}


def _events(upload: Upload, look: Look, model: MarkovModel | None) -> tuple[Ints, Ints, Any]:
    """Whose each event is, its code, and the alphabet."""
    import polars as pl

    try:
        found = read_values(upload.table, **look.values(model))
    except InputError as error:
        raise DataError(_here(str(error))) from None
    users = found.events.users.cast(pl.String).to_numpy()
    return np.unique(users, return_inverse=True)[1], found.codes, found.alphabet
