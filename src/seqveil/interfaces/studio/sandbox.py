"""What answers the page: sources, pictures and curves, kept in memory for as long as somebody looks at them.

*Guarantee*: nothing is written to a disk or a log, and no message holds an event. Loaded data stays in memory under a
name that cannot be guessed, for at most `KEPT` seconds after it was last looked at, and at most `LOADED` of them.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from seqveil import __version__
from seqveil.core import mechanisms
from seqveil.core.distortion import resolve
from seqveil.core.errors import InputError
from seqveil.interfaces.planning import SEEN_BY
from seqveil.interfaces.studio.ask import MOST_BATCH, Ask, offers, slow
from seqveil.interfaces.studio.comparing import Comparison, from_accuracy
from seqveil.interfaces.studio.picture import PictureRun, picture_of
from seqveil.interfaces.studio.sources import (
    BUILTIN,
    MOST_EVENTS,
    StudioSource,
    builtin,
    loaded,
)
from seqveil.interfaces.studio.uploads import MOST_ROWS, Cut, looked_at, rows_of_text

Kept = TypeVar("Kept")

LOADED, KEPT = 8, 900.0
RUNS, CURVES = 24, 200
PATIENCE = 0.12  # seconds after which a first picture of what there is beats a longer wait
NEARLY = 0.3  # seconds more that the whole picture is worth waiting for
LATER = 0.5  # and for the pictures after the first
SLICE = 0.2  # of a curve
LEAST = 0.03  # that everyone gets, however many wait


EPSILONS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # at which a curve has its points
STREAMS, EVENTS = 8, 40  # that a point is the mean over
FEW = 2  # streams where each release takes a program or a tree of its own
FEW_EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)  # and the ε at which


class Point(NamedTuple):
    """One mechanism at one ε an event: mean error as released and after the online decoder, and the worst release."""

    epsilon: float
    error: float
    decoded: float
    worst: float | None  # None: without bound
    claimed: float


class Curve:
    """Error against ε for one mechanism over a source: the same streams at several ε, one point after another.

    >>> curve = Curve(builtin("clicks"), Ask("clicks", mechanism="balanced"))
    >>> curve.go()
    >>> errors = [point.error for point in curve.points]
    >>> errors[0] > errors[-1], max(point.worst - point.claimed for point in curve.points) < 1e-9
    (True, True)
    """

    def __init__(self, source: StudioSource, ask: Ask) -> None:
        without: Any = {"budget": None, "window": None, "window_releases": None, "secret": None, "stream": 0, "seed": 1}
        self.ask, self.source = replace(ask, source=source.name, events=EVENTS, **without), source
        self.points: list[Point] = []
        self.lock = threading.Lock()
        self._slow = slow(ask.mechanism, ask.distortion)
        self._left = list(FEW_EPSILONS if self._slow else EPSILONS)
        self._run: PictureRun | None = None  # of the first ε left

    @property
    def complete(self) -> bool:
        """Whether all its points are computed."""
        return not self._left

    def go(self, seconds: float = math.inf, stop: Callable[[], bool] = lambda: False) -> None:
        """Work on the points for so long, or until somebody else waits."""
        end = time.perf_counter() + seconds
        while self._left:
            try:
                self._run = run = self._run or self._begin(self._left[0])
                run.go(end - time.perf_counter(), stop)
                if run.complete:
                    self.points.append(self._point(run))
            except InputError:  # this ε is more than it takes
                run = None
            if run is None or run.complete:
                self._run, self._left = None, self._left[1:]
            if time.perf_counter() > end or stop():
                return

    def _begin(self, epsilon: float) -> PictureRun:
        ask = replace(self.ask, epsilon=epsilon)
        unfit = next((each.why_not for each in offers(self.source, ask) if each.name == ask.mechanism), "")
        if unfit:
            raise InputError(unfit)
        events = ask.every * (ask.batch if ask.setting(self.source.model).in_batches else 1)
        return PictureRun(self.source, ask, min(STREAMS, FEW * events) if self._slow else STREAMS)

    def _point(self, run: PictureRun) -> Point:
        costs, truth = run.setting.distortion, run.raw.ravel()
        guesses = costs.best_guess(run.online.reshape(truth.size, -1))
        error, decoded = (float(costs.between(truth, each).mean()) for each in (run.released.ravel(), guesses))
        worst = float(run.series["costs"].max())
        claimed = run.setting.epsilon * run.setting.schedule
        return Point(run.ask.rate, error, decoded, worst if math.isfinite(worst) else None, claimed)

    def to_json(self) -> dict[str, Any]:
        """The curve as the page draws it."""
        facts = {"mechanism": self.ask.mechanism, "batch": self.ask.batch, "every": self.ask.every}
        facts |= {"sound": mechanisms.find(self.ask.mechanism).sound, "complete": self.complete}
        return facts | {"points": [list(point) for point in self.points], "silent": self.silent}

    @cached_property
    def silent(self) -> float:
        """Mean error of the best guess from the chain alone."""
        costs = resolve(self.ask.distortion, self.source.model.alphabet)
        guess, truth = self.source.guesses(costs), [codes[:EVENTS] for codes in self.source.streams[:STREAMS]]
        return float(np.concatenate([costs.between(codes, guess[: codes.size]) for codes in truth]).mean())


class Recent(OrderedDict[Hashable, Kept]):
    """The things looked at last, at most so many."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def get_or_make(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What is kept under this key, made if it is not there; what was not asked for longest is let go."""
        if key not in self:
            self[key] = make()
        self.move_to_end(key)
        while len(self) > self._room:
            self.popitem(last=False)
        return self[key]


class Sandbox:
    """Answers of one page; safe to call from several threads, which take turns.

    >>> sandbox = Sandbox()
    >>> while not (shown := sandbox.show({"source": "clicks", "events": 10, "epsilon": 1.0}))["complete"]:
    ...     pass
    >>> shown["done"]
    10
    """

    def __init__(self, own: Sequence[StudioSource] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._own = {source.name: source for source in own}
        self._loaded: Recent[tuple[StudioSource, float]] = Recent(LOADED)
        self._runs: Recent[PictureRun] = Recent(RUNS)
        self._curves: Recent[Curve] = Recent(CURVES)
        self._comparisons: Recent[Comparison] = Recent(RUNS)
        self._lock, self._turn, self._clock = threading.Lock(), threading.Lock(), clock
        self._waiting, self._advising = 0, threading.Lock()

    def begin(self) -> dict[str, Any]:
        """What there is to look at; sources are described when they are first asked for."""
        own = [{"name": each.name, "title": each.title} for each in self._own.values()]
        return {
            "seqveil": __version__,
            "sources": own + [{"name": name, "title": title} for name, (title, *_) in BUILTIN.items()],
            "first": next(iter(self._own), "clicks"),
            "most": {"events": MOST_EVENTS, "batch": MOST_BATCH, "rows": MOST_ROWS},
            "seen_by": {name: limit for name, (_, limit) in SEEN_BY.items()},
        }

    def source(self, given: Any) -> dict[str, Any]:
        """A source in words, with what the page proposes for it."""
        if not isinstance(given, Mapping) or not isinstance(given.get("source"), str) or len(given) > 1:
            raise InputError("source: expected the name of a stream; check the request")
        return self._find(given["source"]).describe()

    def inspect(self, given: Any) -> dict[str, Any]:
        """What `seqveil inspect` says about data, which are not kept: {"csv": text, "file": its name, "columns": {…}}.

        Without columns they are guessed.
        """
        text, file = _text_of(given)
        return looked_at(text, file, None if given.get("columns") is None else Cut.of(given["columns"]))

    def load(self, given: Any) -> dict[str, Any]:
        """Take in data: {"csv": text, "columns": {…}, "file": its name}; returns the source it makes."""
        text, file = _text_of(given)
        cut = Cut.of(given.get("columns", {}))
        name = f"own-{secrets.token_urlsafe(16)}"
        source = replace(loaded(rows_of_text(text, cut, file), cut, name), data_file=file)
        with self._lock:
            self._forget()
            self._loaded.get_or_make(name, lambda: (source, self._clock()))
        return source.describe()

    def show(self, given: Any) -> dict[str, Any]:
        """A picture of what is asked for, or of as much of it as there was time for; ask again for the rest."""
        ask = Ask.of(given)
        source = self._find(ask.source)
        with self._lock:
            run = self._runs.get_or_make((ask, id(source)), lambda: PictureRun(source, ask))
        with self._my_turn(), run.lock:
            begin, before = time.perf_counter(), run.done
            if not run.complete:
                run.go(LATER if before else PATIENCE, self._stopper())
            took = time.perf_counter() - begin
            if not run.complete and took * (run.raw.shape[1] - run.done) < NEARLY * (run.done - before):
                run.go(NEARLY, self._stopper())  # at this pace it is nearly there: one picture is better than two
            # what only hindsight tells comes with the next picture, where this one took its time
            return picture_of(run, whole=time.perf_counter() - begin < PATIENCE + NEARLY)

    def curve(self, given: Any) -> dict[str, Any]:
        """Error against ε for the mechanism, batch and pulses that are asked for, as far as it has come."""
        # it has points at ε of its own, whatever is asked for
        ask = Ask.of({"epsilon": EPSILONS[0], **given} if isinstance(given, Mapping) else given)
        source = self._find(ask.source)
        key = (source.name, id(source), ask.mechanism, ask.distortion, ask.batch, ask.every)
        with self._lock:
            curve = self._curves.get_or_make(key, lambda: Curve(source, ask))
        with self._my_turn(), curve.lock:
            if not curve.complete:
                curve.go(SLICE, self._stopper())
            return curve.to_json()

    def compare(self, given: Any) -> dict[str, Any]:
        """A few ways to release at the promise that is asked for, as far as they are worked out."""
        ask = replace(Ask.of(given), stream=0, seed=1)
        source = self._find(ask.source)
        with self._lock:
            found = self._comparisons.get_or_make((ask, id(source)), lambda: Comparison(source, ask))
        with self._my_turn(), found.lock:
            if not found.complete:
                found.go(SLICE, self._stopper())
            return found.to_json()

    def advise(self, given: Any) -> dict[str, Any]:
        """The promise that an error of at most `wrong` leaves, for what is asked for: {"ask": {…}, "wrong": 0.2}."""
        if not isinstance(given, Mapping) or not given.keys() <= {"ask", "wrong"}:
            raise InputError("expected ask and wrong; check the request")
        ask, wrong = Ask.of(given.get("ask")), given.get("wrong")
        if isinstance(wrong, bool) or not isinstance(wrong, int | float) or not 0 < wrong < 1e6:
            raise InputError("wrong: expected a number above 0; check the request")
        with self._advising:  # pictures need not wait for it
            return from_accuracy(self._find(ask.source), ask, float(wrong))

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        """One at a time, since all compute; whoever is at it stops early when another comes."""
        with self._lock:
            self._waiting += 1
        with self._turn:
            with self._lock:
                self._waiting -= 1
            yield

    def _stopper(self) -> Callable[[], bool]:
        """Whether to make way: somebody waits, and the least share is had."""
        end = time.perf_counter() + LEAST
        return lambda: self._waiting > 0 and time.perf_counter() > end

    def _find(self, name: str) -> StudioSource:
        if name in self._own:
            return self._own[name]
        if name in BUILTIN:
            with self._lock:
                return builtin(name)
        with self._lock:
            self._forget()
            if name not in self._loaded:
                raise Gone("the page's data is not here any more; load it again")
            source, _ = self._loaded[name]
            self._loaded[name] = (source, self._clock())
            self._loaded.move_to_end(name)
            return source

    def _forget(self) -> None:
        """Drop data nobody has looked at for long, and all that was made of data that is gone."""
        now = self._clock()
        for name in [name for name, (_, seen) in self._loaded.items() if now - seen > KEPT]:
            del self._loaded[name]
        here = {id(source) for source, _ in self._loaded.values()} | {id(source) for source in self._own.values()}
        for made in (self._runs, self._curves, self._comparisons):
            for key in [key for key, kept in made.items() if _is_loaded(kept.source) and id(kept.source) not in here]:
                del made[key]


def _text_of(given: Any) -> tuple[str, str]:
    """The text of a file that a request brings, and its name."""
    if not isinstance(given, Mapping) or not given.keys() <= {"csv", "columns", "file"}:
        raise InputError("expected csv, columns and file; check the request")
    file = given.get("file", "DATA.csv")
    if not isinstance(given.get("csv"), str) or not isinstance(file, str) or len(file) > 200:
        raise InputError("csv, file: expected the text of a file and its name; check the request")
    return given["csv"], file


class Gone(InputError):
    """Loaded data that was dropped, or a name that never was."""


def _is_loaded(source: StudioSource) -> bool:
    return source.name.startswith("own-")
