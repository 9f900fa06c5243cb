"""Where streams to look at come from: made up, loaded by somebody, or sampled from a model. Raw codes, in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np

from seqveil.core import filtering
from seqveil.core.alphabet import Bins, Grid
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.interfaces import datasets
from seqveil.interfaces.studio.ask import MOST_EVENTS

Found = TypeVar("Found")

PEOPLE, SHOWN = 64, 8  # of a built-in source: streams in all, and those to look at; the chain is fitted on the others
SMOOTHING = 0.5
SAMPLES = 8  # streams of a source that is sampled from a model
MOST_SYMBOLS = 400  # that a heat map has room for, and a picture takes some seconds for


@dataclass(frozen=True, eq=False)
class Source:
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
        return [str(value)[:40] for value in alphabet.decode(np.arange(alphabet.n))]

    @property
    def distortions(self) -> list[str]:
        """Costs of an error that make sense for the alphabet."""
        alphabet = self.model.alphabet
        if isinstance(alphabet, Grid):
            return ["euclidean", "hamming"]
        return ["hamming"] if alphabet.points is None else ["absolute", "squared", "hamming"]

    def describe(self) -> dict[str, Any]:
        """What the page needs to know of it; no event of any stream."""
        alphabet = self.model.alphabet
        grid = [alphabet.x.n, alphabet.y.n] if isinstance(alphabet, Grid) else None
        ordered = not isinstance(alphabet, Grid) and alphabet.points is not None
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
            "start": {"distortion": self.distortion, **self.start},
        }

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


_BUILTIN: dict[str, tuple[str, str, str, str, str, dict[str, Any], dict[str, Any]]] = {
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


def builtins() -> list[str]:
    """Names of the built-in sources.

    >>> builtins()
    ['clicks', 'gaze', 'heart_rate', 'power']
    """
    return list(_BUILTIN)


def title_of(name: str) -> str:
    """What a built-in source is called; making it takes longer.

    >>> title_of("power")
    'Household power'
    """
    return _BUILTIN[name][0]


@lru_cache(maxsize=8)
def builtin(name: str) -> Source:
    """A synthetic source: some streams to look at, and a chain fitted on the streams of other people.

    >>> source = builtin("power")
    >>> source.model.n, len(source.streams)
    (10, 8)
    """
    if name not in _BUILTIN:
        raise InputError(f"expected a built-in stream among {', '.join(_BUILTIN)}; check the configuration")
    title, about, distortion, event, unit, options, start = _BUILTIN[name]
    data = datasets.synthetic(name, PEOPLE, MOST_EVENTS, seed=0, **options)
    model = data.model(smoothing=SMOOTHING, people=range(SHOWN, PEOPLE))
    streams = data.arrays()[:SHOWN]
    origin = {"kind": "synthetic", "name": name}
    return Source(name, title, about, model, streams, distortion, event, unit, origin, start)


def sampled(model: MarkovModel, start: Mapping[str, Any] | None = None, seed: int = 0) -> Source:
    """Streams sampled from a model: made up, so that nobody's data is needed to see what a release under it does."""
    if model.n > MOST_SYMBOLS:
        raise InputError(f"the page shows at most {MOST_SYMBOLS} symbols, the model has {model.n}; cut it coarser")
    streams = list(model.sample(MOST_EVENTS, SAMPLES, seed))
    origin = {"kind": "model", "model": model.fingerprint, "seed": seed}
    kind = costs_of(model)
    title, about = "This model", f"Streams sampled from the model given, {model.n} symbols: nobody's data"
    return Source("model", title, about, model, streams, kind, "event", unit_of(kind), origin, start or {})


def costs_of(model: MarkovModel) -> str:
    """The natural cost of an error for a model's alphabet."""
    if isinstance(model.alphabet, Grid):
        return "euclidean"
    return "absolute" if isinstance(model.alphabet, Bins) else "hamming"


def unit_of(distortion: str) -> str:
    """What an error is counted in where nothing better is known."""
    return {"hamming": "wrong", "euclidean": "apart", "absolute": "off"}.get(distortion, "")
