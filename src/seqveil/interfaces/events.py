"""Events from several senders, for the interfaces that take them live: their values in JSON, and one transaction."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqveil.core.alphabet import Codes, Symbols
from seqveil.core.errors import InputError
from seqveil.core.times import Time
from seqveil.engine.calls import OutOfOrder
from seqveil.engine.policy import Terms
from seqveil.engine.sqlite import size_of
from seqveil.engine.store import Damaged, Position, Releases, Stored, StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import key_for
from seqveil.interfaces.logs import log

BEGINS = "the state file was missing or empty; if it should not have been, stop and restore it from a backup"
BY_SYMBOL = (
    "without --key nothing of a raw stream can be kept, so secrets are kept by symbol alone, as with "
    "side_information = 0; receivers must decode with that"
)


class Wording:
    """Symbols as JSON: text, numbers, true, false and null as they are, pairs and tuples as lists.

    A value that has no code is UNKNOWN: no answer shows that it was sent.

    >>> from seqveil.core.alphabet import Alphabet, Grid
    >>> Wording(Alphabet(["rest", "run"])).encode(["run", "rest"])
    array([1, 0])
    >>> Wording(Grid.regular(4, 2, bounds=(0, 4, 0, 2))).shown[7]
    [3.5, 1.5]
    """

    def __init__(self, alphabet: Symbols) -> None:
        self._alphabet = alphabet.tracked()
        self.shown: list[Any] = [_as_json(value) for value in alphabet.decode(np.arange(alphabet.n))]

    def stored(self, one: Stored, terms: Terms) -> dict[str, Any]:
        """A release as it stands in the store."""
        words = [self.shown[code] for code in one.codes] if one.released else None
        said: dict[str, Any] = {"value": words[0] if words else None}
        if terms.in_batches:
            events = terms.batch if one.status == "given-up" else one.events
            said = {"values": words, "path": one.path, "events": events}
        known = {"epsilon": one.epsilon, "time": one.time}
        said |= {
            name: figure if figure is not None and math.isfinite(figure) else None for name, figure in known.items()
        }
        return {"seq": one.seq, "status": one.status, **said}

    def encode(self, values: list[Any]) -> Codes:
        """The codes of values."""
        return self._alphabet.encode([tuple(value) if type(value) is list else value for value in values])


def from_json(content: bytes) -> Any:
    """What JSON in UTF-8 says; ValueError for what is none, or where a member is named twice: which would count?"""
    try:
        return _JSON.decode(content.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a member is named twice")
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_named_once)


def _as_json(value: Any) -> Any:
    if type(value) is tuple and all(type(part) is not tuple for part in value):
        return [_as_json(part) for part in value]
    if value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value)):
        return value
    raise InputError(
        "events come as JSON: expected an alphabet of text, finite numbers, true, false, null or flat "
        "tuples of these; fit the model with such values"
    )


@dataclass(eq=False)
class EventJob:
    """Events of one sender, to be released together. The raw codes are in no repr.

    The outcome is what they were released as, or why they were not.
    """

    users: list[str] = field(repr=False)
    seqs: list[int]
    raw: list[Any] = field(repr=False)  # the code of each event, or the codes of each batch
    times: list[Time] | None
    outcome: Releases | Exception | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """How many events it has."""
        return len(self.seqs)


Noted = Callable[[Sequence[EventJob], Releases], Mapping[str, Position]]  # what is written down with jobs' releases


def release_together(store: CodeStreams, jobs: Sequence[EventJob], noted: Noted | None = None) -> None:
    """Release all jobs in one transaction; where that cannot be, find who is in the way and go on without.

    *Guarantee*: a job has its outcome only after the transaction with it was committed and synced. Jobs are released
    in the order they came, each whole or not at all. What is wrong with a job is found before any of it is drawn, and
    holds up no other.
    """
    left = list(jobs)
    while left:
        try:
            _share(left, _released(store, left, noted))
        except OutOfOrder as error:
            # later events of a stream make an earlier gap no smaller, so whoever has it is out for good
            for each in error.all:
                culprit, place = _owner(left, each.position)
                culprit.outcome = culprit.outcome or OutOfOrder(place, str(each), each.upcoming)
        except Damaged as error:  # of some users: whoever sends events of theirs is out, all others go on
            users = set(error.users)
            culprits = [job for job in left if users.intersection(job.users)]
            for job in culprits:
                job.outcome = error
            if not culprits:  # it is not known whose they are
                _halves(store, left, noted, error)
        except StoreError as error:  # the disk's trouble is everyone's
            for job in left:
                job.outcome = error
        except Exception as error:
            _halves(store, left, noted, error)
        left = [job for job in left if job.outcome is None]


def _halves(store: CodeStreams, jobs: Sequence[EventJob], noted: Noted | None, error: Exception) -> None:
    """Go on with either half by itself, down to the one job that has the trouble."""
    if len(jobs) == 1:
        jobs[0].outcome = error
    else:
        half = len(jobs) // 2
        release_together(store, jobs[:half], noted)
        release_together(store, jobs[half:], noted)


def _released(store: CodeStreams, jobs: Sequence[EventJob], noted: Noted | None) -> Releases:
    users = [user for job in jobs for user in job.users]
    seqs = [seq for job in jobs for seq in job.seqs]
    raw = [codes for job in jobs for codes in job.raw]
    timed = store.setting.timed
    times = [stamp for job in jobs for stamp in job.times or ()] if timed else None
    return store.release(users, raw, seqs, times, noted and (lambda made: noted(jobs, made)))


def _owner(jobs: Sequence[EventJob], place: int) -> tuple[EventJob, int]:
    """Whose event stands at this place of the group, and its place among the job's own."""
    for job in jobs[:-1]:
        if place < job.size:
            return job, place
        place -= job.size
    return jobs[-1], place


def _share(jobs: Sequence[EventJob], made: Releases) -> None:
    """Give each job what its own events were released as."""
    at = 0
    for job in jobs:
        own = slice(at, at + job.size)
        sent = None if made.sent is None else made.sent[own]
        drawn = made.codes[own], made.seqs[own], made.epsilons[own], made.replayed[own]
        job.outcome = Releases(*drawn, made.leakages[own], sent, made.alphabet)
        at += job.size


def open_state(state: Path, setting: Terms, key: Path | None, begin: bool, gaps: str) -> CodeStreams:
    """Open the state file of what runs for long, and log what its operator must know.

    One that is missing or empty is refused, unless one is to be begun.
    """
    if gaps not in ("refuse", "skip"):
        raise InputError(f"expected --gaps to be refuse or skip, got {gaps}")
    if not begin and not size_of(state):
        raise InputError(
            f"{state.name}: expected a state file, and there is none or it is empty; restore it from a backup, or pass "
            "--begin, for the first start alone: all accounts start at zero"
        )
    store = CodeStreams.open(state, setting, key=key_for(state, key), gaps=gaps, must_exist=not begin)
    if store.begun:
        log("an account begins at zero", "warning", file=state.name, detail=BEGINS)
    if store.setting is not setting:
        log("secrets are kept by symbol", "warning", detail=BY_SYMBOL)
    return store
