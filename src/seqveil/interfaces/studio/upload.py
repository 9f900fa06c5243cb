"""Somebody's own file: its bytes read in memory, what `seqveil inspect` says about it, and the source that it makes.

The page fits with the very options that `inspect` proposes, so that the command that it shows fits the same model.

*Guarantee*: nothing is written to a disk, and no message holds a field of the file, whose first row of data is row 1.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import fit_codes
from seqveil.core.words import count
from seqveil.interfaces.choosing import said_of_check
from seqveil.interfaces.files.fit import answers_of, read_values
from seqveil.interfaces.files.inspection import inspect, option_words
from seqveil.interfaces.files.table import Table, table_of_bytes
from seqveil.interfaces.studio.source import CROWD, StudioSource, proposed, steps

FEW, SHARE = 10, 5  # people from which on some are kept out of the fit to be shown, and one in how many
MOST_STREAMS = 50  # that can be shown
COLUMNS = ("user", "value", "time", "trait")  # that somebody may choose
USUAL = {"user": "user", "value": "value", "time": ""}  # columns that are taken where none is named

FIELDS = {  # of the page, by the option that `seqveil inspect` would name
    "user": "Whose event it is",
    "value": "What happened",
    "time": "In the order of",
    "distortion": "An error costs",
}
CUT = "Cut into"
_OPTION = re.compile(r"\b(user|value|time|distortion|cell_metres|bins)=('[^']*')?")


@dataclass(frozen=True)
class UploadChoice:
    """The columns that somebody chose for a file; what is empty is left to `inspect`."""

    user: str = ""
    value: str = ""  # two, as in x,y, are places
    time: str = ""
    trait: str = ""  # one label for each person, which may be kept secret
    cut: float | None = None  # into cells of so many metres, bins of this width, or so many cells a side

    @property
    def columns(self) -> dict[str, str]:
        """The same as files are read with."""
        chosen = {name: text for name in COLUMNS if (text := getattr(self, name))}
        named = [name.strip() for text in chosen.values() for name in text.split(",")]
        if len(set(named)) < len(named):
            raise InputError("a column is chosen twice; choose a different column for each part")
        return {name: text for name, text in chosen.items() if name != "trait"}


@dataclass(frozen=True, eq=False)
class Upload:
    """A file in memory: all of its rows and columns. The repr shows no data."""

    file: str
    table: Table = field(repr=False)

    @classmethod
    def of(cls, content: bytes, file: str) -> Upload:
        """A file of any kind that the commands read, by its name."""
        return cls(file, table_of_bytes(content, file))

    def look(self, chosen: UploadChoice) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        """The options of a fit that `seqveil inspect` proposes with these columns, cut as chosen, and what it says."""
        found = inspect(self.table, **chosen.columns)
        said = [(name, here(text)) for name, text in found.lines() if name not in ("column", "next")]
        options, cut = dict(found.options), chosen.cut
        if cut is not None and "cell_metres" in options:
            options["cell_metres"] = cut
        elif cut is not None and "grid" in options:
            options["grid"] = f"{int(cut)}x{int(cut)}"
        elif cut is not None:
            options = {name: value for name, value in options.items() if name != "other"} | {"bins": cut}
        return options | ({"trait": chosen.trait} if chosen.trait else {}), said

    def describe(self, chosen: UploadChoice) -> dict[str, Any]:
        """What the page shows before the file is used: columns that can be chosen, what was found, what is amiss."""
        shown = {name: getattr(chosen, name) for name in COLUMNS}
        facts = {
            "file": self.table.name,
            "columns": self.table.frame.columns,
            "rows": self.table.frame.height,
            "lines": [],
        }
        try:
            options, lines = self.look(chosen)
        except InputError as error:
            return facts | {"chosen": shown, "problem": here(str(error))}
        taken = {name: options.get(name, usual) for name, usual in USUAL.items()}
        return facts | {"chosen": shown | taken, "problem": "", "lines": lines}


def here(text: str) -> str:
    """What `seqveil inspect` says, with the page's fields in place of options."""
    return _OPTION.sub(lambda found: f"“{FIELDS.get(found[1], CUT)}”", text)


def loaded(upload: Upload, chosen: UploadChoice, name: str) -> StudioSource:
    """A source from a file: fitted, as `seqveil fit` does, to some of the people, to show others."""
    options, _ = upload.look(chosen)
    found = read_values(upload.table, **{name: value for name, value in options.items() if name != "trait"})
    names, who = np.unique(found.events.users.cast(str).to_numpy(), return_inverse=True)
    apart = names.size >= FEW
    shown = np.arange(names.size) % SHARE == SHARE - 1 if apart else np.ones(names.size, bool)
    fitted = ~shown if apart else shown
    labels, trait = np.full(names.size, None, object), None
    if chosen.trait:
        answers = answers_of(upload.table, found.events.reading, chosen.trait)
        labels = np.array([answers.get(person) for person in names], object)
        trait = chosen.trait, labels[fitted].tolist()
    rows = fitted[who]
    people = np.unique(who[rows], return_inverse=True)[1]
    model = fit_codes(people, found.codes[rows], found.alphabet, trait=trait)
    grouped = np.split(found.codes[np.argsort(who, kind="stable")], np.bincount(who).cumsum()[:-1])
    kept = [k for k in np.flatnonzero(shown) if grouped[k].size > 1]
    if not kept:
        raise DataError("no stream has two events; check that the column of the user is the right one")
    how = f"{count(int(fitted.sum()), 'person', 'people')}; the others are shown" if apart else "them"
    about = f"{who.size:,} events of {names.size:,} people, {found.alphabet.n:,} symbols, under a model, itself not "
    about += f"private, fitted to {how}. It was {said_of_check(model)}"
    crowd = [grouped[k] for k in kept[:CROWD]]
    data, made = shlex.quote(upload.file), shlex.quote(f"{upload.table.name.split('.')[0] or 'data'}.model")
    columns = option_words({name: options[name] for name in USUAL if name in options})
    return StudioSource(
        name, upload.table.name, about, model, crowd[:MOST_STREAMS], crowd, max(map(len, grouped)),
        proposed(model), answers=labels[kept[:CROWD]].tolist() if chosen.trait else (),
        steps=steps(data, made, columns, option_words(options)),
    )  # fmt: skip
