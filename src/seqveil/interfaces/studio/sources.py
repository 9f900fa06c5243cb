"""Where streams to look at come from: made up, loaded by somebody, or sampled from a model. Raw codes, in memory alone.

*Guarantee*: no message holds a field of loaded data; a problem is named by its row, the first row of data being row 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np

from seqveil.core import filtering
from seqveil.core.alphabet import Alphabet, Bins, Grid, Symbols
from seqveil.core.distortion import Distortion
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Ints
from seqveil.core.model import Counts, MarkovModel
from seqveil.interfaces import datasets
from seqveil.interfaces.choosing import held_out_check, said_of_check
from seqveil.interfaces.studio.uploads import MOST_CELLS, MOST_ROWS, Cut, Rows

Found = TypeVar("Found")

MOST_EVENTS = 1000  # of a stream that is shown
MOST_SYMBOLS = MOST_CELLS  # that a heat map has room for, and a picture takes some seconds for
PEOPLE, SHOWN = 64, 8  # of a built-in source: streams in all, and those to look at; the chain is fitted on the others
SAMPLES = 8  # streams of a source that is sampled from a model
MOST_STREAMS = 50  # of them that can be chosen; all are fitted on
CELLS, LEVELS = 10, 20  # how numbers are cut where nobody says how


@dataclass(frozen=True, eq=False)
class StudioSource:
    """Streams with the chain they are released under. The repr shows no data.

    `origin` is all that `seqveil.studio.unpack` needs to make the source again; `event` and `unit` say what an event
    and an error are, in words; `start` what the page proposes for it.
    """

    name: str
    title: str
    about: str
    model: MarkovModel = field(repr=False)
    streams: Sequence[Ints] = field(repr=False)
    distortion: str
    event: str
    unit: str
    origin: Mapping[str, Any]
    start: Mapping[str, Any] = field(default_factory=dict)
    data_file: str = "DATA.csv"  # what commands are to call the files that the source is from
    model_file: str = "MODEL"

    @cached_property
    def labels(self) -> list[str]:
        """A short name for each symbol."""
        alphabet = self.model.alphabet
        if isinstance(alphabet, Grid):
            return [f"{k // alphabet.y.n + 1}, {k % alphabet.y.n + 1}" for k in range(alphabet.n)]
        if isinstance(alphabet, Bins):
            edges = alphabet.edges
            return [f"{low:.4g}–{high:.4g}" for low, high in itertools.pairwise(edges)]
        shown = alphabet.decode(np.arange(alphabet.n))
        return [(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))[:40] for value in shown]

    @property
    def distortions(self) -> list[str]:
        """Costs of an error that make sense for the alphabet."""
        alphabet = self.model.alphabet
        if alphabet.on_map:
            return ["metres", "hamming"]
        if isinstance(alphabet, Grid):
            return ["euclidean", "hamming"]
        return ["hamming"] if alphabet.points is None else ["absolute", "squared", "hamming"]

    def describe(self) -> dict[str, Any]:
        """What the page needs to know of it; no event of any stream."""
        alphabet = self.model.alphabet
        grid = [alphabet.x.n, alphabet.y.n] if isinstance(alphabet, Grid) else None
        ordered = alphabet.points is not None and alphabet.points.ndim == 1
        return {
            "name": self.name,
            "title": self.title,
            "about": self.about,
            "symbols": self.model.n,
            "labels": self.labels,
            "grid": grid,
            "ordered": ordered,
            "lengths": [min(len(codes), MOST_EVENTS) for codes in self.streams],
            "distortions": self.distortions,
            "event": self.event,
            "unit": self.unit,
            "start": {"distortion": self.distortion, "epsilon": 1.0, **self.start},
            "held_out_check": held_out_check(self.model),
            "rare": self._rare,
            "step": self._step,
        }

    @cached_property
    def _rare(self) -> int:
        """A symbol that is expected about once in a stream: one that a person may want to keep secret."""
        expected = filtering.unseen(self.model, min(200, MOST_EVENTS)).sum(0)
        return int(np.argmin(np.abs(np.log(np.maximum(expected, 1e-9)))))

    @property
    def _step(self) -> float:
        """How far two neighbouring symbols are apart, where they are numbers or places."""
        alphabet = self.model.alphabet
        if isinstance(alphabet, Grid):
            return float(max(np.diff(alphabet.x.edges).max(), np.diff(alphabet.y.edges).max()))
        if alphabet.points is None or alphabet.n < 2:
            return 1.0
        return float(np.diff(np.sort(np.asarray(alphabet.points).ravel())).max())

    def guesses(self, distortion: Distortion) -> Ints:
        """The best guess for each event of a stream from the chain alone."""
        return self.remember(
            ("guesses", distortion.name),
            lambda: distortion.best_guess(filtering.unseen(self.model, MOST_EVENTS)),
        )

    def remember(self, key: Hashable, make: Callable[[], Found]) -> Found:
        """What was worked out about the source before; it goes when the source does."""
        if key not in self._known:
            self._known[key] = make()
        found: Found = self._known[key]
        return found

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    def codes(self, stream: int, events: int) -> Ints:
        """The first events of a stream."""
        if stream >= len(self.streams):
            raise InputError(f"stream: expected 0 to {len(self.streams) - 1}; the source has no more")
        return self.streams[stream][:events]


# title, what it is, cost of an error, what an event and an error are called, how it is made, what the page proposes
BUILTIN: dict[str, tuple[str, str, str, str, str, dict[str, Any], dict[str, Any]]] = {
    "clicks": (
        "Clicks",
        "Page categories that a reader of a news site asks for, one after another",
        "hamming",
        "click",
        "wrong",
        {},
        {"mechanism": "optimal", "epsilon": 1.0},
    ),
    "gaze": (
        "Gaze path",
        "Where somebody looks in a panorama, 25 to 30 times a second, on a grid of 10 by 10",
        "euclidean",
        "sample",
        "cells",
        {"side": 10},
        {"mechanism": "tree", "epsilon": 1.0, "every": 4, "stream": 2},
    ),
    "heart_rate": (
        "Heart rate",
        "Beats a minute from a watch, once a second, in bins of 5",
        "absolute",
        "second",
        "beats a minute",
        {},
        {"mechanism": "optimal", "epsilon": 0.5, "every": 8, "stream": 4, "events": 500},
    ),
    "power": (
        "Household power",
        "What a household draws in each quarter of an hour, in ten levels",
        "absolute",
        "quarter of an hour",
        "levels",
        {},
        {"mechanism": "optimal", "epsilon": 1.0, "every": 4},
    ),
}


@lru_cache(maxsize=8)
def builtin(name: str) -> StudioSource:
    """A synthetic source: some streams to look at, and a chain fitted on the streams of other people.

    >>> source = builtin("power")
    >>> source.model.n, len(source.streams)
    (10, 8)
    """
    if name not in BUILTIN:
        raise InputError(f"expected a built-in stream among {', '.join(BUILTIN)}; check the configuration")
    title, about, distortion, event, unit, options, start = BUILTIN[name]
    data = datasets.synthetic(name, PEOPLE, MOST_EVENTS, seed=0, **options)
    model = data.model(people=range(SHOWN, PEOPLE))
    streams = data.arrays()[:SHOWN]
    origin = {"kind": "synthetic", "name": name}
    return StudioSource(name, title, about, model, streams, distortion, event, unit, origin, start)


def sampled(model: MarkovModel, seed: int = 0) -> StudioSource:
    """Streams sampled from a model: made up, so that nobody's data is needed to see what a release under it does."""
    if model.n > MOST_SYMBOLS:
        raise InputError(f"the page shows at most {MOST_SYMBOLS} symbols, the model has {model.n}; cut it coarser")
    streams = list(model.sample(MOST_EVENTS, SAMPLES, seed))
    origin = {"kind": "model", "model": model.fingerprint, "seed": seed}
    kind = costs_of(model)
    title = "This model"
    about = f"Streams sampled from the model given, {model.n} symbols: nobody's data. It was {said_of_check(model)}"
    return StudioSource("model", title, about, model, streams, kind, "event", unit_of(kind), origin)


def costs_of(model: MarkovModel) -> str:
    """The natural cost of an error for a model's alphabet."""
    if model.alphabet.on_map:
        return "metres"
    if isinstance(model.alphabet, Grid):
        return "euclidean"
    return "absolute" if isinstance(model.alphabet, Bins) else "hamming"


def unit_of(distortion: str) -> str:
    """What an error is counted in where nothing better is known."""
    return {"hamming": "wrong", "euclidean": "apart", "absolute": "off", "metres": "m"}.get(distortion, "")


def loaded(rows: Rows, cut: Cut, name: str, model: MarkovModel | None = None) -> StudioSource:
    """A source from these rows; the chain is fitted to them unless a model is given.

    >>> from seqveil.interfaces.studio.uploads import rows_of_text
    >>> loaded(rows_of_text("value\\na\\nb\\na\\nb\\n", Cut("")), Cut(""), "own").model.n
    2
    """
    users, values = rows
    if len(users) > MOST_ROWS:
        raise DataError(f"expected at most {MOST_ROWS} rows, got {len(users)}; load a part of them")
    whole = [k for k, row in enumerate(zip(*values, strict=True)) if all(row)]
    without = len(users) - len(whole)
    if without:
        users, values = [users[k] for k in whole], [[column[k] for k in whole] for column in values]
    if not users:
        raise DataError("no row has a value; choose another column")
    numbers = _numbers(values)
    if model is None:
        alphabet = _grid(numbers, cut) if len(values) == 2 else _line(values[0], numbers, cut)
        alphabet = alphabet.with_missing("drop") if without else alphabet  # `release` follows what the model says
    else:
        alphabet = model.alphabet.with_policy("nearest" if model.alphabet.points is not None else "error")
    number: dict[str, int] = {}
    ids = np.array([number.setdefault(user, len(number)) for user in users])
    codes = _encoded(alphabet, values, numbers)
    streams = [codes[rows] for rows in np.split(np.argsort(ids, kind="stable"), np.bincount(ids).cumsum()[:-1])]
    chain = model or _fitted(ids, codes, alphabet)
    shown = [codes for codes in streams if codes.size > 1][:MOST_STREAMS]
    if not shown:
        raise DataError("no stream has two events; check that the column of the user is the right one")
    costs = costs_of(chain)
    fitted = "a chain fitted to them, which is itself not private" if model is None else "the model given"
    about = f"{len(users)} events in {len(streams)} streams, {alphabet.n} symbols, under {fitted}. It was "
    about += said_of_check(chain)
    about += f". Left out: {without} rows without a value, which shows who had none" if without else ""
    origin = {"kind": "data", "columns": asdict(cut), **({} if model is None else {"model": model.fingerprint})}
    start = {"mechanism": "optimal" if alphabet.n <= 40 or costs == "hamming" else "tree"}
    return StudioSource(name, "Your data", about, chain, shown, costs, "event", unit_of(costs), origin, start)


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
    return Bins(np.linspace(*_ends(numbers[0]), (cut.cells or LEVELS) + 1))


def _grid(numbers: Any, cut: Cut) -> Symbols:
    if numbers is None:
        raise DataError("a grid needs numbers in both columns, and some are not; choose other columns")
    side = cut.cells or CELLS
    if side * side > MOST_SYMBOLS:
        raise InputError(f"cells: a grid of {side} by {side} is more than {MOST_SYMBOLS} symbols; use fewer")
    return Grid.regular(side, side, (*_ends(numbers[0]), *_ends(numbers[1])))


def _ends(numbers: Any) -> tuple[float, float]:
    low, high = float(numbers.min()), float(numbers.max())
    return low, high if high > low else low + 1.0


def _plain(numbers: Any) -> list[int] | list[float]:
    """Whole numbers as such, so that 3 and 3.0 are one symbol and are shown as 3."""
    if (numbers == np.round(numbers)).all() and float(np.abs(numbers).max()) < 2.0**53:
        return [int(value) for value in numbers]
    return [float(value) for value in numbers]


def _encoded(alphabet: Symbols, values: Sequence[Sequence[str]], numbers: Any) -> Ints:
    given: Any = values[0]
    if len(values) != alphabet.width or (len(values) == 2 and numbers is None):
        wanted = "points; name two columns of numbers, as in x,y" if alphabet.width == 2 else "one column; name it"
        raise DataError(f"the model is for {wanted}")
    if len(values) == 2:
        given = np.column_stack(numbers)
    elif numbers is not None and alphabet.points is not None:
        given = np.array(_plain(numbers[0]))
    try:
        return alphabet.encode(given)
    except InputError:
        raise DataError(f"a value is not in the model's alphabet ({alphabet.n} symbols); load what it is for") from None


def _fitted(users: Ints, codes: Ints, alphabet: Symbols) -> MarkovModel:
    counts = Counts(alphabet.n, 1)
    counts.add(users, codes)
    return counts.model(alphabet)
