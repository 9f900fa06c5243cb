"""What answers the page: sources, pictures and curves, kept in memory for as long as somebody looks at them.

*Guarantee*: nothing is written to a disk or a log, and no message holds an event. Loaded data stays in memory under a
name that cannot be guessed, for at most `KEPT` seconds after it was last looked at, and at most `LOADED` of them.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from seqveil import __version__
from seqveil.core.errors import InputError
from seqveil.interfaces.studio.ask import MOST_BATCH, MOST_EVENTS, Ask
from seqveil.interfaces.studio.curve import Curve
from seqveil.interfaces.studio.picture import picture_of
from seqveil.interfaces.studio.run import Run
from seqveil.interfaces.studio.source import Source, builtin, builtins, title_of
from seqveil.interfaces.studio.table import MOST_ROWS, Cut, loaded, rows_of_text

Kept = TypeVar("Kept")

LOADED, KEPT = 8, 900.0
RUNS, CURVES = 24, 200
PATIENCE = 0.12  # seconds after which a first picture of what there is beats a longer wait
LATER = 0.5  # and for the pictures after it
SLICE = 0.2  # of a curve
LEAST = 0.03  # that everyone gets, however many wait


class Shelf(OrderedDict[Hashable, Kept]):
    """The things looked at last, at most so many."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def get_or_make(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        if key not in self:
            self[key] = make()
        self.move_to_end(key)
        while len(self) > self._room:
            self.popitem(last=False)
        return self[key]


class Desk:
    """Answers of one page; safe to call from several threads, which take turns.

    >>> desk = Desk()
    >>> while not (shown := desk.show({"source": "clicks", "events": 10}))["complete"]:
    ...     pass
    >>> shown["done"]
    10
    """

    def __init__(
        self, own: Sequence[Source] = (), clock: Callable[[], float] = time.monotonic, service: str | None = None
    ) -> None:
        self._own = {source.name: source for source in own}
        self._loaded: Shelf[tuple[Source, float]] = Shelf(LOADED)
        self._runs: Shelf[Run] = Shelf(RUNS)
        self._curves: Shelf[Curve] = Shelf(CURVES)
        self._lock, self._turn, self._clock = threading.Lock(), threading.Lock(), clock
        self._service, self._waiting = service, 0

    def begin(self) -> dict[str, Any]:
        """What there is to look at; sources are described when they are first asked for."""
        own = [{"name": each.name, "title": each.title} for each in self._own.values()]
        return {
            "seqveil": __version__,
            "sources": own + [{"name": name, "title": title_of(name)} for name in builtins()],
            "first": next(iter(self._own), "clicks"),
            "most": {"events": MOST_EVENTS, "batch": MOST_BATCH, "rows": MOST_ROWS},
            "service": self._service,
        }

    def source(self, given: Any) -> dict[str, Any]:
        """A source in words, with what the page proposes for it."""
        if not isinstance(given, Mapping) or not isinstance(given.get("source"), str) or len(given) > 1:
            raise InputError("source: expected the name of a stream; check the request")
        return self._find(given["source"]).describe()

    def load(self, given: Any) -> dict[str, Any]:
        """Take in data: {"csv": text, "columns": {…}, "file": its name}; returns the source it makes."""
        if not isinstance(given, Mapping) or not given.keys() <= {"csv", "columns", "file"}:
            raise InputError("expected csv, columns and file; check the request")
        file = given.get("file", "DATA.csv")
        if not isinstance(given.get("csv"), str) or not isinstance(file, str) or len(file) > 200:
            raise InputError("csv, file: expected the text of a file and its name; check the request")
        cut = Cut.of(given.get("columns", {}))
        name = f"own-{secrets.token_urlsafe(16)}"
        source = replace(loaded(rows_of_text(given["csv"], cut), cut, name), data_file=file)
        with self._lock:
            self._forget()
            self._loaded.get_or_make(name, lambda: (source, self._clock()))
        return source.describe()

    def show(self, given: Any) -> dict[str, Any]:
        """A picture of what is asked for, or of as much of it as there was time for; ask again for the rest."""
        ask = Ask.of(given)
        source = self._find(ask.source)
        with self._lock:
            run = self._runs.get_or_make((ask, id(source)), lambda: Run(source, ask))
        with self._my_turn(), run.lock:
            begin, before = time.perf_counter(), run.complete
            if not before:
                run.go(LATER if run.done else PATIENCE, self._stopper())
            # what only hindsight tells comes with the next picture, where this one took its time
            return picture_of(run, whole=before or time.perf_counter() - begin < PATIENCE / 2)

    def curve(self, given: Any) -> dict[str, Any]:
        """Error against ε for the mechanism, batch and pulses that are asked for, as far as it has come."""
        ask = Ask.of(given)
        source = self._find(ask.source)
        key = (source.name, id(source), ask.mechanism, ask.distortion, ask.batch, ask.every)
        with self._lock:
            curve = self._curves.get_or_make(key, lambda: Curve(source, ask))
        with self._my_turn(), curve.lock:
            if not curve.complete:
                curve.go(SLICE, self._stopper())
            return curve.to_json()

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

    def _find(self, name: str) -> Source:
        if name in self._own:
            return self._own[name]
        if name in builtins():
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
        for shelf in (self._runs, self._curves):
            for key in [key for key, kept in shelf.items() if _is_loaded(kept.source) and id(kept.source) not in here]:
                del shelf[key]


class Gone(InputError):
    """Loaded data that was dropped, or a name that never was."""


def _is_loaded(source: Source) -> bool:
    return source.name.startswith("own-")
