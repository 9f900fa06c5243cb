"""Streams to look at, with the model that they are released under. Raw codes stay in memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from seqveil.core import filtering
from seqveil.core.alphabet import Bins, Grid, Symbols
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.geography import DEGREE, Cells, wrapped
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.interfaces import datasets

MOST_EVENTS = 1000  # of a stream that is shown
MOST_BELIEFS = 2_000_000  # probabilities of one picture
PEOPLE, SHOWN = 64, 8  # of a sample: streams in all, and those to look at; the model is fitted to the others
CROWD, CROWD_EVENTS = 600, 100  # people whom an attack tries, and their events
RUN = 50  # events of a window that is proposed for a secret
LIKELY = 0.35  # times that a value proposed as a secret is expected in a window


@dataclass(frozen=True, eq=False)
class StudioSource:
    """Streams with the model they are released under. The repr shows no data."""

    name: str
    title: str
    about: str  # what it is, in words
    model: MarkovModel = field(repr=False)
    streams: Sequence[Ints] = field(repr=False)  # codes of the people who can be shown
    crowd: Sequence[Ints] = field(repr=False)  # of people whom an attack may try; the model was fitted to none of them
    length: int  # events of the longest stream there is, which is what "the whole stream" means
    start: Mapping[str, Any]  # the policy that the page proposes, as plain values
    steps: str  # the commands that fit, release, check and attack, with the policy that the page saves
    answers: Sequence[str | None] = field(default=(), repr=False)  # of the crowd to the model's trait, where known
    _guessed: dict[bytes, Ints] = field(default_factory=dict, init=False, repr=False)  # `guesses`, by costs of errors

    @cached_property
    def labels(self) -> list[str]:
        """A name for each symbol: places by how far they lie from the south-west corner, never in degrees."""
        alphabet = self.model.alphabet
        if isinstance(alphabet, Grid):
            return [f"cell {k // alphabet.y.n + 1}, {k % alphabet.y.n + 1}" for k in range(alphabet.n)]
        if isinstance(alphabet, Cells):
            return [f"{_far((x0 + x1) / 2)} east, {_far((y0 + y1) / 2)} north" for x0, y0, x1, y1 in self.boxes]
        if isinstance(alphabet, Bins):
            return [f"{low:.4g}–{high:.4g}" for low, high in itertools.pairwise(alphabet.edges)]
        return [str(value) for value in alphabet.decode(np.arange(alphabet.n))]

    @cached_property
    def boxes(self) -> list[list[float]]:
        """Left, bottom, right and top of every cell, where values are places: metres on a map, else as in the data."""
        alphabet = self.model.alphabet
        if isinstance(alphabet, Grid):
            x, y = (np.asarray(axis.edges) - axis.edges[0] for axis in (alphabet.x, alphabet.y))
            i, j = np.divmod(np.arange(alphabet.n), alphabet.y.n)
            return np.stack((x[i], y[j], x[i + 1], y[j + 1]), axis=1).round(6).tolist()
        if not isinstance(alphabet, Cells):
            return []
        south, north, west, east = alphabet.boxes
        scale = DEGREE * np.cos(np.radians((south + north) / 2))
        left, low = wrapped(west - float(np.median(west))) * scale, south * DEGREE
        left, low = left - left.min(), low - low.min()
        flat = (left, low, left + (east - west) * scale, low + (north - south) * DEGREE)
        return np.stack(flat, axis=1).round(1).tolist()

    @cached_property
    def values(self) -> list[Any]:
        """Each symbol as a policy names it."""
        found = self.model.alphabet.decode(np.arange(self.model.n))
        return [list(value) if isinstance(value, tuple) else value for value in found]

    def describe(self) -> dict[str, Any]:
        """What the page needs to know of it; no event of any stream."""
        points = self.model.alphabet.points
        return {
            "name": self.name,
            "title": self.title,
            "about": self.about,
            "labels": self.labels,
            "values": self.values,
            "boxes": self.boxes,
            "map": self.model.alphabet.on_map,
            "ordered": points is not None and points.ndim == 1,
            "lengths": [len(codes) for codes in self.streams],
            "length": self.length,
            "most": self.most,
            "distortions": distortions(self.model.alphabet),
            "start": dict(self.start),
            "window": min(RUN, self.length),
            "rare": self.rare,
            "step": self._step,
            "trait": "" if self.model.trait is None else self.model.trait.name,
        }

    @property
    def most(self) -> int:
        """How many events of a stream one picture has room for."""
        return max(2, min(MOST_EVENTS, MOST_BELIEFS // self.model.n))

    @cached_property
    def _expected(self) -> Floats:
        """How often each symbol is expected in a window."""
        return self._unseen[: min(RUN, self.length)].sum(0)

    @property
    def rare(self) -> int:
        """A symbol that is expected in about one window of three: one that a person may want to keep secret."""
        return int(np.argmin(np.abs(np.log(np.maximum(self._expected, 1e-9) / LIKELY))))

    @property
    def usual(self) -> int:
        """The most frequent symbol."""
        return int(np.argmax(self._expected))

    @property
    def _step(self) -> float:
        """How far two neighbouring symbols are apart, where they are numbers or places."""
        alphabet = self.model.alphabet
        if isinstance(alphabet, Cells):
            return alphabet.metres
        if isinstance(alphabet, Grid):
            return float(max(np.diff(alphabet.x.edges).max(), np.diff(alphabet.y.edges).max()))
        if alphabet.points is None or alphabet.n < 2:
            return 1.0
        return float(np.diff(np.sort(np.asarray(alphabet.points).ravel())).max())

    def guesses(self, distortion: Distortion, events: int) -> Ints:
        """The best guess for each event of a stream from the model alone: the same whatever is promised."""
        if distortion.content not in self._guessed:
            self._guessed[distortion.content] = distortion.best_guess(self._unseen)
        return self._guessed[distortion.content][:events]

    @cached_property
    def _unseen(self) -> Floats:
        """What the model says of each event before anything is released: (T, n)."""
        return filtering.unseen(self.model, self.most)

    def somebody_with(self, secret: Secret, events: int) -> int:
        """The first person whose shown events have the secret; the first of all where nobody has it. No event shows a
        trait."""
        if secret.kind == "trait":
            return 0
        read = secret.over(self.model.alphabet).read
        span = secret.length(self.model.alphabet.slots) or events
        for person, codes in enumerate(self.streams):
            shown = codes[: events if secret.repeats else min(span, events)].tolist()
            if any(read(shown[begin : begin + span]) for begin in range(0, len(shown), span)):
                return person
        return 0


def _far(metres: float) -> str:
    return f"{metres / 1000:.3g} km" if metres >= 1000 else f"{metres:.3g} m"


def steps(data: str, model_file: str, columns: str = "", how: str = "") -> str:
    """The commands for a file and its model: options that name columns, and all those of the fit."""
    return f"""\
seqveil fit {data} -o {model_file}{how}
seqveil release {data} --model {model_file}{columns} --policy policy.toml --out released.csv
seqveil audit released.csv --model {model_file}
seqveil attack released.csv --truth {data} --model {model_file}
"""


class _Sample(NamedTuple):
    """A made-up source: how it is called, what it is, and what the page proposes for it."""

    title: str
    about: str
    start: Mapping[str, Any]
    options: Mapping[str, Any] = {}


SAMPLES = {
    "clicks": _Sample(
        "Clicks", "Page categories that a reader of a news site asks for, one after another",
        {"epsilon": 1.0, "distortion": "hamming"},
    ),
    "gaze": _Sample(
        "Gaze path", "Where somebody looks in a panorama, 25 to 30 times a second, on a grid of 10 by 10",
        {"epsilon": 1.0, "mechanism": "tree", "distortion": "euclidean"}, {"side": 10},
    ),
    "power": _Sample(
        "Household power", "What a household draws in each quarter of an hour, in ten levels",
        {"epsilon": 1.0, "mechanism": "balanced", "distortion": "absolute"},
    ),
}  # fmt: skip


@lru_cache(maxsize=len(SAMPLES))
def sample(name: str) -> StudioSource:
    """A made-up source: some streams to look at, and a model fitted to the streams of other people."""
    if name not in SAMPLES:
        raise InputError(f"expected a sample among {', '.join(SAMPLES)}; check the request")
    found = SAMPLES[name]
    data = datasets.synthetic(name, PEOPLE, MOST_EVENTS, seed=0, **found.options)
    crowd = list(datasets.synthetic(name, CROWD, CROWD_EVENTS, seed=1, **found.options).codes)
    shown = list(data.codes[:SHOWN])
    model = data.model(people=range(SHOWN, PEOPLE))
    commands = steps("past.csv", "past.model")
    return StudioSource(name, found.title, found.about, model, shown, crowd, MOST_EVENTS, found.start, commands)


def proposed(model: MarkovModel) -> dict[str, Any]:
    """The policy to begin with, for a model of somebody's own."""
    costs = distortions(model.alphabet)[0]
    # for numbers "auto" takes a linear program for every event, which nobody wants to watch
    quick = {"hamming": {}, "absolute": {"mechanism": "balanced"}}.get(costs, {"mechanism": "auto"})
    return {"epsilon": 1.0, **quick, "distortion": costs}


def distortions(alphabet: Symbols) -> list[str]:
    """Costs of an error that make sense for the alphabet, the natural one first."""
    if alphabet.on_map:
        return ["metres", "hamming"]
    if isinstance(alphabet, Grid):
        return ["euclidean", "hamming"]
    return ["hamming"] if alphabet.points is None else ["absolute", "squared", "hamming"]
