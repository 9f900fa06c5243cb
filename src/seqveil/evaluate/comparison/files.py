"""A file as an arena: read it, keep some users for the fit and release the others, and take up where a run ended."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.core.distortion import Distortion
from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import SMOOTHING
from seqveil.core.kernel import Ints
from seqveil.core.mechanisms import check_epsilon
from seqveil.core.model import Counts, MarkovModel
from seqveil.core.secrets import Secret
from seqveil.evaluate.comparison.arena import Arena, Contestant
from seqveil.evaluate.comparison.race import constant, converse, race
from seqveil.evaluate.comparison.rows import ComparisonRow, check_attack
from seqveil.interfaces.files.events import Progress
from seqveil.interfaces.files.fit import ValueWords, read_values
from seqveil.interfaces.files.table import FilePath

LIMITS = (constant, converse)


@dataclass(frozen=True)
class PeopleSplit:
    """Who is on which side: counts only."""

    fit_users: int
    fit_events: int
    test_users: int
    test_events: int


@dataclass(frozen=True)
class Division:
    """How users are divided into those that the chain is fitted on and those that are released, and what is used."""

    order: int = 1
    smoothing: float = SMOOTHING
    first: int | None = None  # events of a stream that are released; None for all
    test_share: float = 0.5  # of the users, who are released
    test_users: int | None = None  # instead of a share
    batched_users: int | None = None  # who are released in batches; None for all
    seed: int = 0
    context: str | None = None  # instead of an order: "types:16", "order:2" or "auto" (`receive.contexts`)
    secrets: tuple[Secret, ...] = ()
    attack: bool = False
    observers: tuple[MarkovModel, ...] = ()

    def order_of(self, names: Sequence[str]) -> list[int]:
        """The places of these in an order that depends on the seed and the names, not on the file."""
        keys = [hashlib.sha256(f"{self.seed} {name}".encode()).digest() for name in names]
        return sorted(range(len(names)), key=lambda k: keys[k])

    def released(self, users: int, source: str) -> int:
        """How many users are released; at least one is on either side."""
        if users < 2:
            raise DataError(
                f"{source}: holds 1 user, and a comparison needs one to fit on and one to release; pass more"
            )
        if (wanted := self.test_users) is not None:
            if not 1 <= wanted < users:
                most = users - 1
                raise InputError(f"expected --test-users from 1 to {most}, one less than the file has; got {wanted}")
            return wanted
        if not 0 < self.test_share < 1:
            raise InputError(f"expected --test-share between 0 and 1, got {self.test_share:g}; try 0.5")
        return min(users - 1, max(1, round(users * self.test_share)))

    def arena(self, alphabet: Symbols, released: list[Ints], kept: list[Ints], distortion: str | Distortion) -> Arena:
        """The chain fitted on the streams that are kept, and the beginnings of the others to release."""
        if self.first is not None and self.first < 1:
            raise InputError(f"expected --first of at least 1 event a stream, got {self.first}")
        begins = [codes[: self.first] for codes in released]
        for secret in self.secrets:
            secret.over(alphabet)  # a value that is not there is refused before a fit that may take minutes
        if self.attack:
            check_attack(self.secrets, begins)
        users = np.repeat(np.arange(len(kept)), [codes.size for codes in kept])
        model = self._model(alphabet, users, np.concatenate(kept))
        declared: dict[str, Any] = {"secrets": self.secrets, "attack": self.attack, "observers": self.observers}
        return Arena.of(model, begins, distortion, self.seed, self.batched_users, kept, **declared)

    def _model(self, alphabet: Symbols, users: Ints, codes: Ints) -> MarkovModel:
        """The model of the streams that are kept."""
        if self.context is None:
            counts = Counts(alphabet.n, self.order)
            counts.add(users, codes)
            return counts.model(alphabet, self.smoothing, "data")
        from seqveil.interfaces.choosing import CodedEvents, Context, choose

        if self.context == "auto":
            return choose(CodedEvents.of(users, codes), alphabet, smoothing=self.smoothing, seed=self.seed).model
        return Context.parse(self.context).fit(users, codes, alphabet, self.smoothing, seed=self.seed)


def set_arena(
    name: str,
    folder: FilePath | None = None,
    division: Division | None = None,
    *,
    distortion: str | Distortion | None = None,
    streams: int | None = None,
) -> tuple[Arena, PeopleSplit]:
    """A set that `seqveil.datasets` knows, as an arena; "gaze_vr:side=10" passes options on.

    All recordings of a person are on the same side, which follows from the seed and the person's number; of those to be
    released at most `streams` are.
    """
    from seqveil.interfaces import datasets

    divided, (known, _, options) = division or Division(), name.partition(":")
    found = datasets.load(known, folder, **_options(options))
    people = found.people
    places = divided.order_of([str(person) for person in people])
    cut = divided.released(len(people), known)
    sides = ([people[k] for k in side] for side in (places[:cut], places[cut:]))
    released, kept = (found.arrays(people=side) for side in sides)
    if streams is not None and streams < 1:
        raise InputError(f"expected --streams of at least 1, got {streams}")
    drawn = [released[k] for k in divided.order_of([str(k) for k in range(len(released))])]
    arena = divided.arena(found.alphabet, drawn[:streams], kept, distortion or found.distortion)
    return arena, PeopleSplit(len(people) - cut, _events(kept), cut, _events(arena.streams))


def _options(text: str) -> dict[str, Any]:
    """Options of a set, "side=10,width=5".

    >>> _options("side=10")
    {'side': 10}
    """
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise InputError("expected options of a data set as name=number, for example gaze_vr:side=10") from None
        found[key.strip()] = int(number) if number.is_integer() else number
    return found


def read_arena(
    data: FilePath,
    division: Division | None = None,
    *,
    distortion: str | Distortion = "hamming",
    **words: Unpack[ValueWords],
) -> tuple[Arena, PeopleSplit]:
    """Read a file as `sv.fit` does, fit the chain on some of the users and keep the streams of the others.

    The alphabet is that of the whole file, the chain that of the users who are not released. Who is released follows
    from the seed and the user's name alone.

    Parameters:
        data: the file.
        division: who is released, and what is fitted on the others.
        distortion: what a wrong release costs.
        words: how the file is read and how its values become symbols.
    """
    divided = division or Division()
    if divided.seed < 0:
        raise InputError(f"expected a seed that is a whole number ≥ 0, got {divided.seed}")
    found = read_values(data, **words)
    people, who = found.events.people
    names, alphabet = [str(user) for user in people], found.alphabet
    streams = np.split(found.codes[np.argsort(who, kind="stable")], np.cumsum(np.bincount(who))[:-1])
    places = divided.order_of(names)
    cut = divided.released(len(names), found.events.name)
    sides = (places[:cut], sorted(places[cut:]))
    released, kept = ([streams[k] for k in side] for side in sides)
    arena = divided.arena(alphabet, released, kept, distortion)
    return arena, PeopleSplit(len(names) - cut, _events(kept), cut, _events(arena.streams))


def _events(streams: Iterable[Ints]) -> int:
    return sum(codes.size for codes in streams)


@dataclass(frozen=True, eq=False)
class RowJob:
    """One row to be made: a contestant, or a limit, at one ε."""

    label: str
    epsilon: float | None
    key: str
    events: int
    make: Callable[[Progress], ComparisonRow]


def jobs(arena: Arena, epsilons: Sequence[float], contestants: Sequence[Contestant]) -> list[RowJob]:
    """All rows of a comparison: for each ε the contestants in their order, then the limits; last who has no ε."""
    if not epsilons:
        raise InputError("expected at least one epsilon to compare at; try 0.5,1,2")
    found = []
    for epsilon in dict.fromkeys(map(check_epsilon, epsilons)):
        found += [_contestant_job(arena, epsilon, each) for each in contestants if each.by_event]
        found += [_limit_job(arena, epsilon, limit) for limit in LIMITS]
    return found + [_contestant_job(arena, None, each) for each in contestants if not each.by_event]


def _contestant_job(arena: Arena, epsilon: float | None, contestant: Contestant) -> RowJob:
    return RowJob(
        contestant.label,
        epsilon,
        _key(arena, epsilon, asdict(contestant)),
        _events(arena.of_contestant(contestant)),
        partial(race, arena, contestant, epsilon),  # and no lambda: it may be made in another process
    )


def _limit_job(arena: Arena, epsilon: float, limit: Callable[[Arena, float], ComparisonRow]) -> RowJob:
    return RowJob(
        limit.__name__, epsilon, _key(arena, epsilon, limit.__name__), 1, partial(_limit, arena, epsilon, limit)
    )


def _limit(
    arena: Arena, epsilon: float, limit: Callable[[Arena, float], ComparisonRow], progress: Progress
) -> ComparisonRow:
    return limit(arena, epsilon)


def _key(arena: Arena, epsilon: float | None, what: Any) -> str:
    from seqveil import __version__

    return hashlib.sha256(json.dumps([__version__, arena.fingerprint, epsilon, what]).encode()).hexdigest()


class RowBook:
    """Finished rows in a folder, one line each, by what they depend on; a run that ended early goes on from there.

    A line that was cut short is passed over, and its row made again.
    """

    NAME = "rows.jsonl"

    def __init__(self, folder: FilePath | None) -> None:
        self.path = None if folder is None else Path(folder) / self.NAME
        self._rows: dict[str, ComparisonRow] = {}
        if self.path is None:
            return
        if self.path.parent.exists() and not self.path.parent.is_dir():
            raise DataError(f"{self.path.parent.name}: is a file; name a folder for the rows")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._load(self.path)

    def _load(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                self._rows[entry["key"]] = ComparisonRow.from_json(entry["row"])
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
        if text and not text.endswith("\n"):
            with open(path, "a", encoding="utf-8") as file:
                file.write("\n")

    def find(self, job: RowJob) -> ComparisonRow | None:
        """The row of this job, if an earlier run has finished it."""
        return self._rows.get(job.key)

    def keep(self, job: RowJob, row: ComparisonRow) -> None:
        """Keep a finished row, on disk before this returns where there is a file."""
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"key": job.key, "row": row.to_json()}, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self._rows[job.key] = row
