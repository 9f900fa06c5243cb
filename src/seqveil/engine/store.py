"""What was released and the accounts of it, and where the users of `Streams` are kept: memory, whose methods all stores
have. None is given a raw symbol; what a mechanism must remember of them comes sealed (`packing.Sealing`), or never.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side
from seqveil.core.words import DisclosedSecret, Risk
from seqveil.engine.blocks import HELD
from seqveil.engine.stream import REFUSED, Mask

if TYPE_CHECKING:
    from seqveil.core.alphabet import Symbols
    from seqveil.core.secrets import SecretTracker, SecretTrackers
    from seqveil.engine.packing import Sealing
    from seqveil.engine.policy import Terms
    from seqveil.engine.sqlite import SqliteStore

Path = tuple[int, ...]
EARLIER = -4  # the code of an event that was released before, where the store does not keep what as


@dataclass(frozen=True, eq=False)
class Releases:
    """What events were released as, in their order. An event is one symbol, whose path is its code, or a batch."""

    # of a single symbol; of a batch 0 where it was sent. Else NOTHING where the budget's policy is to stop, GAP where
    # the event's place was given up before, EARLIER, and in the `made` of an error REFUSED
    codes: Ints
    seqs: Ints  # the sequence number of each event
    epsilons: Floats  # of events that share one, at the first; HELD outside of any block
    replayed: Mask  # whether the release was there already
    leakages: Floats  # what each batch disclosed by itself
    sent: list[tuple[Path, Ints] | None] | None  # the path and the reproduction of each batch; None for single symbols
    alphabet: Symbols | None = None  # what the codes stand for, where that is known
    in_blocks: bool = False  # whether events share an ε

    def __len__(self) -> int:
        return self.codes.size

    @property
    def refused(self) -> Mask:
        """Which events were not taken, because the call ended before."""
        return self.codes == REFUSED

    @property
    def held(self) -> Mask:
        """Which releases only repeat the best guess, because the budget is gone."""
        return (self.codes >= 0) & (self.epsilons == (HELD if self.in_blocks else 0.0))

    @property
    def paths(self) -> list[Path | None]:
        """What was published of each event; None where nothing was released."""
        if self.sent is not None:
            return [None if each is None else each[0] for each in self.sent]
        return [(code,) if code >= 0 else None for code in self.codes.tolist()]

    @property
    def values(self) -> list[Any]:
        """What was released of each event: its value, or those of a batch; None where nothing was."""
        assert self.alphabet is not None
        if self.sent is not None:
            return [None if each is None else self.alphabet.decode(each[1]) for each in self.sent]
        made = iter(self.alphabet.decode(self.codes[self.codes >= 0]))
        return [next(made) if code >= 0 else None for code in self.codes.tolist()]


@dataclass(frozen=True)
class Release:
    """One release; public."""

    user: str
    seq: int
    status: str  # "released"; "withheld" by a budget or secret; "given-up" for a later one
    epsilon: float | None  # None where nothing is promised about the whole sequence
    value: Any = None  # of a single symbol
    values: tuple[Any, ...] | None = None  # of a batch, with its path
    path: tuple[int, ...] | None = None
    events: int = 1
    time: float | None = None
    replayed: bool | None = None

    @classmethod
    def of(cls, user: str, stored: Stored, terms: Terms) -> Release:
        """A release as a store has it, with its values."""
        shown: dict[str, Any] = {}
        if stored.released:
            values = tuple(terms.model.alphabet.decode(np.array(stored.codes, np.int64)))
            shown = {"values": values, "path": stored.path} if terms.in_batches else {"value": values[0]}
        epsilon = None if terms.unbounded else stored.epsilon
        return cls(user, stored.seq, stored.status, epsilon, events=stored.events, time=stored.time, **shown)


@dataclass(frozen=True)
class SecretAccount:
    """What a user's releases disclosed about a declared secret, as plain values; `SecretTracker` explains the words."""

    name: str
    sentence: str
    epsilon: float
    log_odds: float  # of the window that holds the latest event; so are the extremes and the probabilities
    lowest: float
    highest: float
    prior: Any
    posterior: Any
    worst: float  # the most that the log odds moved in any window at any time, on the sides that are bounded

    @classmethod
    def of(cls, tracker: SecretTracker) -> SecretAccount:
        """The figures of a secret, without the filter that computes them."""
        latest = tracker.latest
        return cls(
            tracker.secret.name, tracker.sentence, tracker.secret.total, latest.log_odds, latest.lowest, latest.highest,
            latest.prior, latest.posterior, tracker.worst.worst(tracker.secret.sides),
        )  # fmt: skip


@dataclass(frozen=True)
class Account:
    """What one user's releases have disclosed so far, and what is left, in nats; for batches a bound from above."""

    user: str | None  # None for a session, which has one user alone
    events: int  # so many so far (a batch is one), which is the sequence number that comes next
    releases: int  # so many of them that were answered with a value
    leakage: float
    most: float
    least: float
    epsilon_spent: float  # Σ ε used: what basic composition charges
    ldp: float  # Σ of (LDP level · ε): what holds without any model
    budget_left: float | None
    private: bool
    whole_sequence: str = ""  # says in words where nothing is promised about the whole sequence
    secrets: tuple[SecretAccount, ...] = ()  # in the order of declaration
    composed: str = ""  # the total that may fail with probability δ, in words
    rules_out: bool = False  # whether the model calls something impossible, which leakage and budget then assume

    @property
    def risk(self) -> Risk:
        """What the figures mean for the person."""
        disclosed = tuple(DisclosedSecret(each.name, max(0.0, each.worst), "so far") for each in self.secrets)
        ldp = self.ldp if self.rules_out else None
        return Risk(max(0.0, self.most), -self.least, secrets=disclosed, measured=bool(self.whole_sequence), ldp=ldp)

    @classmethod
    def of(
        cls, terms: Terms, user: str | None, figures: UserRow, private: bool, trackers: SecretTrackers | None
    ) -> Account:
        """The account of a user from the figures of the stream, and the filters of its declared secrets."""
        leakage = max(figures.most, -figures.least, 0.0)
        secrets = () if trackers is None else tuple(map(SecretAccount.of, trackers.worst()))
        left = left_of(terms.budget.exact_total, leakage)
        return cls(
            user, figures.events, figures.releases, leakage, figures.most, figures.least, figures.spent, figures.ldp,
            left, private, terms.whole_sequence, secrets, terms.budget.composed, terms.model.rules_out,
        )  # fmt: skip

    @property
    def sentences(self) -> tuple[str, ...]:
        """The same in words."""
        return (*self.risk.sentences, *([self.composed] if self.composed else []))

    @property
    def sentence(self) -> str:
        """All of them in one line."""
        return "; ".join(self.sentences)


@dataclass(frozen=True, eq=False)
class Accounts:
    """The accounts of all users, in the order they came: a column for each figure of an `Account`."""

    users: list[str]
    events: Ints
    releases: Ints
    epsilon_spent: Floats
    most: Floats
    least: Floats
    ldp: Floats

    @classmethod
    def of(cls, rows: Mapping[str, UserRow]) -> Accounts:
        """From where each user stands."""
        events, releases, *figures = np.array([row[1:7] for row in rows.values()]).reshape(-1, 6).T.copy()
        return cls(list(rows), events.astype(np.int64), releases.astype(np.int64), *figures)

    @property
    def leakage(self) -> Floats:
        """(B,) leakage of every stream so far, the larger of both sides."""
        return larger_side(self.most, self.least)

    def __len__(self) -> int:
        return len(self.users)


def left_of(total: float | None, leakage: float) -> float | None:
    """What is left of a total budget after this leakage; None where there is no total."""
    return None if total is None else max(0.0, total - leakage)


StateStore: TypeAlias = "Memory | SqliteStore"
Position = str | int
SALT_BYTES = 32
NONE = np.zeros(0, np.int64)
NEW = -1  # the id of a user whom a store does not have yet
GAP = -2  # the code of an event whose place was given up, because a later one came first
POSITION = "position "  # before a source, in the name of the fact that has its position
LATEST = ":latest:"  # between a bridge and a user, in the name of the position that has the time of the latest event
NUMBERS = ":numbers"  # after a bridge, in the name of a position that has the number of an event, as {"WHAT/USER": 7}


class StoreError(SeqveilError):
    """The state file cannot be used or written now; what was committed before stands, nothing else happened."""


class NoSuchUser(StoreError):
    """Nothing was released of a user who is asked for."""


class Damaged(StoreError):
    """Records of some users are not what was written, of whom nothing is released: those that the call named."""

    def __init__(self, message: str, users: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.users = tuple(users)


class Erased(Damaged):
    """Users who were erased, of whom nothing more is released."""

    def __init__(self, users: Sequence[str]) -> None:
        super().__init__("a user was erased, so nothing more is released of this user; all others go on", users)


class Stored(NamedTuple):
    """One release as it stands in the store."""

    seq: int
    code: int  # of a single symbol; NOTHING or GAP where nothing was released; 0 for a batch that was sent
    epsilon: float
    time: float | None
    path: Path | None  # what was published; None where nothing was released
    codes: tuple[int, ...]  # the one symbol, or the reproduction of a batch; empty where nothing was released
    events: int = 1  # symbols that it stands for: the size of the batch
    skipped: int = 0  # events just before it that were given up
    model: int = 0  # which of the models of the store it was drawn with, in the order they were adopted

    @property
    def released(self) -> bool:
        """Whether anything was published of it."""
        return self.code >= 0

    @property
    def status(self) -> str:
        """What became of the event, in a word."""
        return "released" if self.released else "given-up" if self.code == GAP else "withheld"

    @classmethod
    def of(
        cls, seq: int, skipped: int, model: int, code: int, epsilon: float, time: float | None, batch: str | None
    ) -> Stored:
        """One release from its columns; `batch` is what `batch_text` wrote."""
        one = [code] if code >= 0 else []
        events, path, codes = (1, one or None, one) if batch is None else json.loads(batch)
        shown = None if path is None else tuple(path)
        return cls(seq, code, epsilon, time, shown, tuple(codes), events, skipped, model)


def batch_text(events: int, path: Path | None, codes: Sequence[int] | Ints) -> str:
    """What a batch holds beyond a single symbol, as JSON: how many symbols, its path and its reproduction."""
    shown = None if path is None else [int(step) for step in path]
    return json.dumps([events, shown, [int(code) for code in codes]], separators=(",", ":"))


def with_gaps(kept: Iterable[Stored], first: int) -> Iterator[Stored]:
    """Releases in order from number `first` on, and in place of each number left out that it was given up."""
    for stored in kept:
        given_up = range(max(first, stored.seq - stored.skipped), stored.seq)
        yield from (Stored(seq, GAP, 0.0, None, None, ()) for seq in given_up)
        yield stored


class UserRow(NamedTuple):
    """Where a user stands, in nats, and the exact state where the store keeps it. All of it is public but `sealed`."""

    id: int
    events: int
    releases: int
    spent: float
    most: float
    least: float
    ldp: float
    state: bytes
    sealed: bytes | None = None  # what the mechanism remembers of raw symbols, as `Sealing` closed it
    erased: bool = False  # whether only the ledger is left of the user


class Entry(NamedTuple):
    """What a call left of the users it touched, and the releases it made, those of a user in order."""

    names: list[str]
    ids: Ints  # (K,) NEW for those whom the store does not have yet
    ledger: Floats  # (K, 6) their events and releases so far, Σε, both sides of the leakage, the LDP level
    states: bytes  # K states of one size; nothing where the store does not want them
    sealed: list[bytes | None] | None  # the private part of each, sealed; None where there is none
    model: int = 0  # which of the models of the store the releases were drawn with
    owners: Ints = NONE  # (E,) whose each release is: a place among the users touched
    seqs: Ints = NONE
    skips: Ints = NONE  # how many events before each were given up
    codes: Ints = NONE
    epsilons: Floats = np.zeros(0)
    times: Floats | None = None
    batches: list[str] | None = None  # as `batch_text` writes them; None for single symbols

    def columns(self, ids: Ints) -> Iterator[tuple[Any, ...]]:
        """The releases one by one: the id of whose each is, and what `Stored.of` makes one of."""
        count = self.owners.size
        times: Sequence[float | None] = [None] * count
        if self.times is not None:  # no negative zero, and None where it is not known: as SQLite gives them back
            times = [None if np.isnan(time) else time for time in (self.times + 0.0).tolist()]
        batches: Sequence[str | None] = self.batches or [None] * count
        numbers = (ids[self.owners].tolist(), self.seqs.tolist(), self.skips.tolist(), [self.model] * count)
        return zip(*numbers, self.codes.tolist(), self.epsilons.tolist(), times, batches, strict=True)

    @property
    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Where each user touched stands now: what a `UserRow` has, from `events` up to `sealed`."""
        count = len(self.names)
        size, sealed = len(self.states) // max(1, count), self.sealed or [None] * count
        states = [self.states[k * size : (k + 1) * size] for k in range(count)]
        counts, figures = self.ledger[:, :2].astype(np.int64), self.ledger[:, 2:] + 0.0  # SQLite knows no negative zero
        return zip(*counts.T.tolist(), *figures.T.tolist(), states, sealed, strict=True)


def checked_positions(positions: Mapping[str, Position]) -> dict[str, Position]:
    """The positions as they will be kept, or a refusal of what a store could not give back the same."""
    found = dict(positions) if isinstance(positions, Mapping) else {0: 0}
    if not all(type(source) is str and _fits(source) and _fits(position) for source, position in found.items()):
        raise InputError("expected positions by source, each text or a 64-bit whole number")
    return found


def _fits(value: object) -> bool:
    if type(value) is int:  # exactly: a truth value would come back as a number, whose checksum is another
        return -(2**63) <= value < 2**63
    return type(value) is str and value.encode(errors="replace").decode() == value


class Memory:
    """A state store in memory; every method of a store but `fact` is called inside `transaction`.

    Without `releases` an event that comes a second time is not drawn again, and what it was released as is not known.
    """

    name = "memory"  # for error messages
    durable = False  # whether `append` gets the states
    sealing: Sealing | None = None  # what seals the private part of users; None: nothing private is kept

    def __init__(self, releases: bool = True) -> None:
        # whether releases are kept; random bytes of this state alone, which keyed randomness is mixed with
        self.keeps_releases, self.salt = releases, os.urandom(SALT_BYTES)
        self._index, self._ledger = dict[str, int](), np.zeros((0, 6))
        self._calls: list[tuple[Entry, Ints]] = []  # the latest ones, whose releases are not sorted by user yet
        self._disclosed: dict[int, list[Stored]] = {}  # those before
        self._facts: dict[str, Any] = {}

    def transaction(self) -> AbstractContextManager[None]:
        """All of the block is kept when it ends, or, if it fails, nothing that `append` has not got."""
        return nullcontext()

    def find(self, names: Sequence[str]) -> list[UserRow | None]:
        """Where these users stand; None for a new one."""
        return [None if (k := self._index.get(name)) is None else self._row(k) for name in names]

    def _row(self, user: int) -> UserRow:
        events, releases, *figures = self._ledger[user].tolist()
        return UserRow(*[user, int(events), int(releases), *figures, b""])

    def append(self, entry: Entry) -> Ints:
        """Keep what a call left; the ids of its users."""
        ids, new = entry.ids.copy(), np.flatnonzero(entry.ids == NEW)
        ids[new] = np.arange(len(self._index), len(self._index) + new.size)
        self._index.update((entry.names[k], int(ids[k])) for k in new.tolist())
        if len(self._index) > len(self._ledger):
            self._ledger = np.concatenate([self._ledger, np.zeros((len(self._index), 6))])
        self._ledger[ids] = entry.ledger
        if self.keeps_releases and entry.owners.size:
            self._calls.append((entry, ids))
        return ids

    def releases(self, row: UserRow, since: int = 0, until: int | None = None) -> Iterator[Stored]:
        """The user's releases from `since` on; what was given up between them has no place of its own."""
        if not self.keeps_releases:
            raise InputError("these streams keep no releases; pass Memory(), or a state file")
        for entry, ids in self._calls:
            for user, *release in entry.columns(ids):
                self._disclosed.setdefault(user, []).append(Stored.of(*release))
        self._calls = []
        found = self._disclosed.get(row.id, [])
        yield from found[bisect_left(found, since, key=lambda stored: stored.seq) :]

    def users(self) -> Iterator[tuple[int, str | bytes, UserRow | None]]:
        """Id, name and row of users in the order they came; of a damaged row None, of who was erased bytes as name."""
        for name, user in self._index.items():
            yield user, name, self._row(user)

    def fact(self, name: str) -> Any:
        """What the store says of itself under this name, positions of sources (POSITION) included; None: nothing."""
        return self._facts.get(name)

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Have the store say this of itself, and no longer what is None."""
        self._facts.update(facts)

    def close(self) -> None:
        """Let others have it."""
