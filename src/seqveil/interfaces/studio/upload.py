"""Somebody's own file: its bytes read in memory, what `seqveil inspect` says about it, and the source that it makes.

The page fits with the very options that `inspect` proposes, so that the command that it shows fits the same model.

*Guarantee*: nothing is written to a disk, and no message holds a field of the file; a problem is named by its row, the
first row of data being row 1.
"""

from __future__ import annotations

import gzip
import io
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.errors import FILES, DataError, InputError, needs_extra
from seqveil.core.kernel import Ints
from seqveil.core.model import Counts, MarkovModel
from seqveil.interfaces.choosing import said_of_check
from seqveil.interfaces.commands.options import fit_words
from seqveil.interfaces.files import Columns
from seqveil.interfaces.files.columns import DECIMAL
from seqveil.interfaces.files.fit import FOR_FIT, read_values
from seqveil.interfaces.files.inspection import Inspection, inspect
from seqveil.interfaces.files.reading import FRAME, compressed, file_name, format_of, whole_table
from seqveil.interfaces.files.rows import encode
from seqveil.interfaces.files.words import FitWords
from seqveil.interfaces.studio.source import CROWD, StudioSource, proposed

if TYPE_CHECKING:
    import polars as pl

MOST_BYTES = 256 << 20  # of a compressed file, taken apart
FEW, SHARE = 10, 5  # people from which on some are kept out of the fit to be shown, and one in how many
MOST_STREAMS = 50  # that can be shown
LONGEST_NAME = 200
SMALL = {"cell_metres": float, "levels": int, "other": int}  # the options of a fit that are numbers

# what `seqveil inspect` says by options of the command line, and what a visitor of the page can do about it
CUT = "Say it under “Cut into”; left empty, the page cuts as the commands below say"
SAID_HERE = {
    "--sort puts them in order": "they are put in order",
    " Name yours with --value-column": " Choose yours above",
    "--bins WIDTH cuts evenly, --levels N into bins of about equal count": CUT,
    "Pass --cell-metres": CUT,
    "Cut the map with --cell-metres": "Choose them above",
    "auto cuts about 10 by 10 cells over their bulk": CUT,
    ", or name date and clock apart, as in --time-column date,hour": ", or choose the rows as they are",
}


@dataclass(frozen=True)
class Chosen:
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
    def of(cls, given: Any) -> Chosen:
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
    def columns(self) -> Columns:
        """The same as files are read with."""
        named = [name.strip() for text in (self.user, self.value, self.time) if text for name in text.split(",")]
        if len(set(named)) < len(named):
            raise InputError("a column is chosen twice; choose a different column for each part")
        return Columns(self.user or "user", self.value or "value", self.time or None)


@dataclass(frozen=True, eq=False)
class Upload:
    """A file in memory: all of its rows and columns. The repr shows no data."""

    file: str
    frame: pl.DataFrame = field(repr=False)

    @classmethod
    def of(cls, content: bytes, file: str) -> Upload:
        """A file of any kind that the commands read, by its name.

        >>> Upload.of(b"user;value\\nann;3\\nbob;4\\n", "walk.csv").frame["value"].to_list()
        [3, 4]
        """
        with needs_extra(*FILES):
            import polars as pl
        kind = format_of(file, None)
        if kind == "parquet":
            try:
                return cls(file, pl.read_parquet(io.BytesIO(content)))
            except (Exception, pl.exceptions.PanicException):
                raise DataError(f"{file_name(file)}: cannot be read as Parquet; check that it is whole") from None
        table = whole_table(_plain(content, file) if compressed(file) else content, kind, file)
        table = table.select(name for name in table.columns if name)
        return cls(file, table if kind == "jsonl" else table.with_columns(map(_typed, table.get_columns())))

    @property
    def title(self) -> str:
        """What the file is called, without its folder."""
        return file_name(self.file)

    def look(self, chosen: Chosen) -> Look:
        """What `seqveil inspect` says about it with these columns."""
        return Look.of(inspect(self.frame, chosen.columns), chosen)

    def describe(self, chosen: Chosen) -> dict[str, Any]:
        """What the page shows before the file is used: columns that can be chosen, what was found, what is amiss."""
        shown = {"user": chosen.user, "value": chosen.value, "time": chosen.time}
        facts = {"file": self.title, "columns": self.frame.columns, "rows": self.frame.height, "lines": []}
        try:
            found = self.look(chosen)
        except InputError as error:
            return facts | {"chosen": shown, "problem": _here(str(error))}
        return facts | {"chosen": shown | found.columns, "problem": "", "lines": found.lines}


def _plain(content: bytes, file: str) -> bytes:
    """What a compressed file holds."""
    try:
        with gzip.open(io.BytesIO(content)) as packed:
            found = packed.read(MOST_BYTES + 1)
    except (OSError, zlib.error, EOFError):
        raise DataError(f"{file_name(file)}: cannot be read as gzip; check that it is whole") from None
    if len(found) > MOST_BYTES:
        raise DataError(f"{file_name(file)}: holds more than {MOST_BYTES >> 20} MB; load a part of it")
    return found


def _typed(column: pl.Series) -> pl.Series:
    """A column of text as numbers, where all of it is; a leading zero makes text, as in a code."""
    import polars as pl

    empty = column == ""
    filled = column.filter(~empty)
    if not filled.len() or not filled.str.contains(DECIMAL).all() or filled.str.contains(r"^[+-]?0\d").any():
        return pl.select(pl.when(~empty).then(column)).to_series().alias(column.name)
    whole = filled.str.contains(r"^[+-]?\d{1,18}$").all()
    return column.cast(pl.Int64 if whole else pl.Float64, strict=False)


@dataclass(frozen=True)
class Look:
    """What was found in a file, and the options of `seqveil fit` that go with it, by their names in Python."""

    options: Mapping[str, str]
    lines: list[tuple[str, str]]

    @classmethod
    def of(cls, found: Inspection, chosen: Chosen) -> Look:
        """What an inspection says and proposes, cut as somebody chose."""
        said = [
            (name, text.removeprefix("a frame: ")) for name, text in found.lines() if name not in ("column", "next")
        ]
        return cls(_cut(_options(found.command), chosen.cut), [(name, _here(text)) for name, text in said])

    @property
    def columns(self) -> dict[str, str]:
        """The columns that were taken, as somebody could have chosen them."""
        place = [self.options[name] for name in ("latitude", "longitude") if name in self.options]
        value = ",".join(place) or self.options.get("value_column", "value")
        return {
            "user": self.options.get("user_column", "user"),
            "value": value,
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
        return self.words("user_column", "value_column", "latitude", "longitude", "time_column", "sort")

    def fit_words(self, model: MarkovModel | None) -> FitWords:
        """What a fit takes; with a model its values are those to read."""
        typed: dict[str, Any] = {name: SMALL.get(name, str)(text) for name, text in self.options.items()}
        typed |= {"sort": "sort" in typed}
        if model is None:
            return fit_words(**typed)
        alphabet = model.alphabet
        kept = {
            name: typed[name] for name in typed if name.endswith("_column") or name in ("latitude", "longitude", "sort")
        }
        unknown = "nearest" if alphabet.points is not None else alphabet.on_unknown
        given = fit_words(**kept, alphabet=alphabet, on_unknown=unknown, missing=alphabet.missing or "drop")
        return replace(given, slots=alphabet.slots)


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
    text = text.removeprefix(f"{FRAME}: ")
    for there, here in SAID_HERE.items():
        text = text.replace(there, here)
    return text


def loaded(upload: Upload, chosen: Chosen, name: str, model: MarkovModel | None = None, file: str = "") -> StudioSource:
    """A source from a file: fitted to some of the people, to show others; or all of them under a model that is given.

    >>> text = "user,value\\n" + "".join(f"u{k // 5},{'ab'[k % 2]}\\n" for k in range(100))
    >>> source = loaded(Upload.of(text.encode(), "d.csv"), Chosen(), "own")
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

    words = look.fit_words(model).settled(upload.frame)
    try:
        alphabet, _, rows = read_values(words.source(upload.frame), words)
        parts = [(part.users, encode(part, alphabet, upload.file, FOR_FIT)) for part in rows]
    except InputError as error:
        raise DataError(_here(str(error))) from None
    users = pl.concat([users for users, _ in parts]).cast(pl.String).to_numpy()
    return np.unique(users, return_inverse=True)[1], np.concatenate([codes for _, codes in parts]), alphabet
