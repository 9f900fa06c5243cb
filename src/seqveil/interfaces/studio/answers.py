"""What answers the page: a model's source and a policy in, JSON values out.

*Guarantee*: nothing is written to a disk or a log, and no message holds an event. Files that somebody loads stay in
memory under names that cannot be guessed, for at most `KEPT` seconds after they were last looked at, and at most
`LOADED` of them.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seqveil import __version__
from seqveil.core.errors import InputError
from seqveil.engine.policy import Policy
from seqveil.engine.stream import Terms
from seqveil.interfaces.planning import SEEN_BY
from seqveil.interfaces.studio.picture import (
    STEPS,
    PictureRun,
    attacked,
    by_answer,
    expected,
    offers,
    picture_of,
    too_slow,
)
from seqveil.interfaces.studio.source import SAMPLES, StudioSource, sample
from seqveil.interfaces.studio.upload import Upload, UploadChoice, loaded
from seqveil.interfaces.trials import best_guess_error

LOADED, KEPT = 8, 900.0
SLICE = 0.4  # seconds of the processor after which a picture of what there is beats a longer wait
MOST_SEED = 2**31 - 1


@dataclass
class _Held:
    """What somebody loaded, and the source that it became; `seen` is when somebody last looked."""

    upload: Upload
    seen: float
    source: StudioSource | None = None


class Gone(InputError):
    """Loaded data that was dropped, or a name that never was."""


class Studio:
    """Answers of one page. Requests are answered one at a time, each within a moment: a picture that takes longer is
    handed out as far as it has come, and goes on when it is asked for again.

    `own` is a source, or a file and the columns `chosen` of it, that is there beside the samples.

    >>> studio = Studio()
    >>> asked = {"source": "clicks", "policy": {"epsilon": 1.0}, "person": 0, "events": 10, "seed": 1}
    >>> while not (shown := studio.show(asked))["complete"]:
    ...     pass
    >>> shown["done"]
    10
    """

    def __init__(
        self,
        own: StudioSource | Upload | None = None,
        chosen: UploadChoice | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._chosen = clock, chosen or UploadChoice()
        self._lock, self._expecting = threading.Lock(), threading.Lock()
        self._held: dict[str, _Held] = {}
        self._run: tuple[Any, PictureRun] | None = None  # the picture that was asked for last
        self._own = own if isinstance(own, StudioSource) else None
        self._first: str | None = None  # the file that the command named
        self._first = self._keep(own) if isinstance(own, Upload) else None

    def begin(self, given: Any = None) -> dict[str, Any]:
        """What there is to look at; `upload` is a file whose columns are to be chosen first."""
        listed = {} if self._own is None else {self._own.name: self._own.title}
        listed |= {name: each.title for name, each in SAMPLES.items()}
        return {
            "seqveil": __version__,
            "sources": [{"name": name, "title": title} for name, title in listed.items()],
            "first": next(iter(listed)),
            "upload": None if self._first is None else self._looked(self._first, self._chosen),
            "seen_by": {name: limit for name, (_, limit) in SEEN_BY.items()},
        }

    def upload(self, content: bytes, file: str) -> dict[str, Any]:
        """Take a file in, and say what `seqveil inspect` says about it."""
        found = Upload.of(content, file)
        with self._lock:
            name = self._keep(found)
        return self._looked(name, UploadChoice())

    def look(self, given: Any) -> dict[str, Any]:
        """The same with other columns: {"upload": name, "columns": {…}}."""
        return self._looked(_named(given, "upload", "columns"), UploadChoice.of(given["columns"]))

    def load(self, given: Any) -> dict[str, Any]:
        """Fit a model to a file: {"upload": name, "columns": {…}}; returns the source that it makes."""
        name, chosen = _named(given, "upload", "columns"), UploadChoice.of(given["columns"])
        made = loaded(self._uploaded(name), chosen, name)
        with self._lock:
            self._find_held(name).source = made
        return made.describe()

    def source(self, given: Any) -> dict[str, Any]:
        """A source in words, with what the page proposes for it: {"source": name}."""
        return self._find(_named(given, "source")).describe()

    def show(self, given: Any) -> dict[str, Any]:
        """A picture, or as much of it as there was time for; ask again for the rest.

        {"source": name, "policy": {…}, "person": number or null for somebody who has the secret, "events", "seed"}
        """
        begun = time.thread_time()
        source = self._find(_named(given, "source", "policy", "person", "events", "seed"))
        terms = _terms(given["policy"], source)
        events = _whole("events", given["events"], 2, source.most)
        seed = _whole("seed", given["seed"], 0, MOST_SEED)
        person = given["person"]
        if person is None:
            person = source.somebody_with(terms.secrets[0], events) if terms.secrets else 0
        person = _whole("person", person, 0, len(source.streams) - 1)
        key = (source, terms.signature, person, events, seed)
        with self._lock:
            if self._run is None or self._run[0] != key:
                self._run = (key, PictureRun(terms, source.streams[person][:events], seed))
            run = self._run[1]
            run.go(max(SLICE / 4, SLICE - (time.thread_time() - begun)))
            return picture_of(source, run) | {"person": person}

    def offers(self, given: Any) -> dict[str, Any]:
        """Every mechanism, and why it does not fit where it does not: {"source": name, "policy": {…}}."""
        source = self._find(_named(given, "source", "policy"))
        chosen = given["policy"]
        if isinstance(chosen, Mapping):  # whatever mechanism it names is one of those on offer
            chosen = {name: value for name, value in chosen.items() if name != "mechanism"}
        return {"mechanisms": offers(source, _policy(chosen))}

    def expect(self, given: Any) -> dict[str, Any]:
        """The error to expect under a policy, and with no release at all: {"source": name, "policy": {…}}.

        Nothing is compared with a policy that does not go, or that takes too long: it has no error.
        """
        source = self._find(_named(given, "source", "policy"))
        try:
            terms = _terms(given["policy"], source)
        except InputError as refusal:
            return {"error": None, "why": str(refusal)}
        with self._expecting:  # pictures need not wait for it
            made = {"error": expected(terms), "silent": best_guess_error(terms, STEPS)}
            return made | {"by_answer": by_answer(source, terms)}

    def attack(self, given: Any) -> dict[str, Any]:
        """What an attacker finds out about people whom the model was not fitted to: {"source", "policy", "seed"}."""
        source = self._find(_named(given, "source", "policy", "seed"))
        terms, seed = _terms(given["policy"], source), _whole("seed", given["seed"], 0, MOST_SEED)
        with self._expecting:
            return attacked(source, terms, seed)

    def _keep(self, upload: Upload) -> str:
        self._forget()
        while len(self._held) >= LOADED:
            others = [name for name in self._held if name != self._first]
            self._drop(min(others, key=lambda name: self._held[name].seen))
        name = f"own-{secrets.token_urlsafe(16)}"
        self._held[name] = _Held(upload, self._clock())
        return name

    def _uploaded(self, name: str) -> Upload:
        with self._lock:
            return self._find_held(name).upload

    def _looked(self, name: str, chosen: UploadChoice) -> dict[str, Any]:
        return self._uploaded(name).describe(chosen) | {"upload": name}

    def _find(self, name: str) -> StudioSource:
        if self._own is not None and name == self._own.name:
            return self._own
        with self._lock:
            found = sample(name) if name in SAMPLES else self._find_held(name).source
        if found is None:
            raise InputError("source: its columns are still to be chosen; use them first")
        return found

    def _find_held(self, name: str) -> _Held:
        self._forget()
        if name not in self._held:
            raise Gone("the file is not in memory any more; load it again")
        self._held[name].seen = self._clock()
        return self._held[name]

    def _forget(self) -> None:
        """Drop files that nobody has looked at for long; not the one that the command named."""
        now = self._clock()
        for name in [name for name, held in self._held.items() if now - held.seen > KEPT and name != self._first]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        """Let a file go, and the picture, which may be of it."""
        del self._held[name]
        self._run = None


def _named(given: Any, first: str, *others: str) -> str:
    """The name in the first field of a request that has these fields and no others."""
    if not isinstance(given, Mapping) or given.keys() != {first, *others}:
        raise InputError(f"expected a request with {', '.join((first, *others))}; check it")
    name = given[first]
    if not isinstance(name, str):
        raise InputError(f"{first}: expected a name; check the request")
    return name


def _whole(name: str, value: Any, least: int, most: int) -> int:
    number = isinstance(value, int) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise InputError(f"{name}: expected a whole number from {least} to {most}; check the request")
    return int(value)


def _policy(given: Any) -> Policy:
    """A policy as its file has it; no file is read for one, so models of observers are refused."""
    if not isinstance(given, Mapping) or "observers" in given:
        raise InputError("policy: expected the lines of a policy, without observers; check the request")
    try:
        return Policy.from_dict(given)
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError):
        raise InputError("policy: a line has a value of another kind than a policy takes; check the request") from None


def _terms(given: Any, source: StudioSource) -> Terms:
    """What a policy means for a source; what needs the time of every event is for the commands."""
    made = _policy(given).on(source.model)
    if made.timed:
        raise InputError("the page shows events without their times; leave seconds, days and hours out")
    why = too_slow(made.mechanism.name, source.model.n, made.policy)
    if why:
        raise InputError(f"{made.mechanism.name}: {why}; choose another mechanism")
    return made
