"""The users of one bucket: what is kept of each, and the release of their events by the store's own rules.

Nothing here knows Spark. A `Shelf` holds what is kept; Spark's state store is one, a dictionary another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from seqveil.core.coins import KeyedCoins, User
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.release.store import BatchReleases, Releases, Stored
from seqveil.release.store.database import CHUNK, Database, Entry, Row
from seqveil.release.store.live import Live
from seqveil.release.store.migrations import UNKNOWN
from seqveil.release.store.plan import Gaps, plan_of
from seqveil.release.store.play import BatchCall, SymbolCall
from seqveil.release.store.records import codec_of
from seqveil.release.stream import Setting, raw_codes

MEMORY = 1 << 28  # bytes that live states may take at once


def refuse_error(setting: Setting) -> None:
    """Refuse the policy "error": a micro-batch cannot keep what it has drawn and fail, and what is drawn must stand."""
    if setting.budget.limited and setting.budget.when_spent == "error":
        raise InputError('Spark cannot end in the middle of a batch of rows; use when_spent="stop" (--when-spent stop)')


class Kept(NamedTuple):
    """What is kept of a user; public, but for `waiting`, which is sealed. The ledger counts in units of 2**-32."""

    events: int  # releases asked for so far: the number of the next one
    releases: int
    spent: int
    most: int
    least: int
    state: bytes  # exact, where it is small; else empty, and what was told is kept
    symbols: int = 0  # taken so far, those that wait among them (batches only)
    waiting: bytes = b""  # the sealed symbols of a batch that is not full


class Shelf(Protocol):
    """Where what is kept of the users of a bucket lies."""

    def get(self, user: User) -> Kept | None: ...
    def put(self, user: User, kept: Kept) -> None: ...
    def told(self, user: User, chunk: int) -> bytes: ...
    def tell(self, user: User, chunk: int, records: bytes) -> None: ...


class Memory:
    """A shelf in memory: for a frame that is released in one go."""

    def __init__(self) -> None:
        self._kept: dict[User, Kept] = {}
        self._told: dict[tuple[User, int], bytes] = {}

    def get(self, user: User) -> Kept | None:
        return self._kept.get(user)

    def put(self, user: User, kept: Kept) -> None:
        self._kept[user] = kept

    def told(self, user: User, chunk: int) -> bytes:
        return self._told.get((user, chunk), b"")

    def tell(self, user: User, chunk: int, records: bytes) -> None:
        self._told[user, chunk] = records


class Bucket:
    """Releases events of the users on a shelf.

    *Guarantee*: each user's stream is released exactly as by a `Store` with the same setting and key, however its
    events are cut into calls and whoever else is in the bucket. An event whose number was taken before is not drawn
    again.

    >>> from seqveil.core.model import MarkovModel
    >>> setting = Setting.of(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), epsilon=1.0)
    >>> bucket = Bucket(setting, KeyedCoins(bytes(32)), Memory())
    >>> fresh, made = bucket.release(["ann", "ann"], np.array([0, 1]), np.array([0, 0]))
    >>> fresh.tolist(), bucket.release(["ann"], np.array([1]), np.array([1]))[0].tolist()
    ([0, 1], [])
    """

    def __init__(self, setting: Setting, coins: KeyedCoins, shelf: Shelf, gaps: Gaps = "refuse") -> None:
        refuse_error(setting)
        self._setting, self._coins, self._shelf, self._gaps = setting, coins, shelf, gaps
        self._room = Live(setting, MEMORY).room

    def release(
        self, users: list[User], seqs: Ints, codes: Ints, times: Floats | None = None
    ) -> tuple[NDArray[np.intp], Releases]:
        """The places of the events that were new, and what all were released as; the others have no release here."""
        raw = raw_codes(codes, self._setting.model.n)
        made = Releases.none(raw.size)
        call = SymbolCall(self._setting, users, seqs, times, raw, made)
        fresh = [self._play(call, group) for group in self._groups(users)]
        return np.sort(np.concatenate(fresh)) if fresh else np.zeros(0, np.intp), made

    def release_batches(
        self, users: list[User], numbers: Ints, codes: list[Ints], times: Floats | None = None
    ) -> BatchReleases:
        """What these batches were released as; each is the next one of its user."""
        made = BatchReleases.none(len(codes))
        call = BatchCall(self._setting, users, numbers, times, codes, made)
        for group in self._groups(users):
            self._play(call, group)
        return made

    def _groups(self, users: list[User]) -> Iterator[NDArray[np.intp]]:
        """The events in groups whose users can be live together."""
        number = {user: k // self._room for k, user in enumerate(dict.fromkeys(users))}
        groups = np.array([number[user] for user in users], np.intp)
        for group in range(int(groups.max(initial=-1)) + 1):
            yield np.flatnonzero(groups == group)

    def _play(self, call: SymbolCall | BatchCall, group: NDArray[np.intp]) -> NDArray[np.intp]:
        rows, live = _Rows(self._setting, self._shelf), Live(self._setting, MEMORY)
        slots = live.enter([call.names[k] for k in group.tolist()], cast(Database, rows))
        plan = plan_of(slots, call.seqs[group], live.next_seqs(slots), self._gaps)
        if plan.fresh.size:
            played = call.play(plan, group, slots, live, self._coins)
            if played.failure is not None:
                raise played.failure  # the engine drops what this try has put on the shelf; the next has the same coins
            if played.entry is not None:
                rows.keep(played.entry, live.small)
        return group[plan.fresh]


class _Rows:
    """A shelf as the store's live states see their database: users by number."""

    def __init__(self, setting: Setting, shelf: Shelf) -> None:
        self._codec, self._shelf = codec_of(setting), shelf
        self._names: list[User] = []
        self._before: dict[int, Kept] = {}

    def find(self, names: Sequence[User]) -> list[Row | None]:
        found: list[Row | None] = []
        for name in names:
            kept = self._shelf.get(name)
            if kept is not None:
                self._before[len(self._names)] = kept
                found.append(Row(len(self._names), *kept[:5], UNKNOWN, kept.state))
                self._names.append(name)
            else:
                found.append(None)
        return found

    def add(self, names: Sequence[User], room: int) -> list[int]:
        first = len(self._names)
        self._names += names
        return list(range(first, len(self._names)))

    def releases(self, user: int, events: int, since: int = 0) -> Iterator[Stored]:
        for chunk in range(-(-events // CHUNK)):
            yield from self._codec.unpack(self._shelf.told(self._names[user], chunk), chunk * CHUNK)

    def keep(self, entry: Entry, small: bool) -> None:
        """Put what a call has left on the shelf."""
        size = len(entry.states) // max(1, len(entry.touched))
        for k, (user, events, releases, spent, most, least, _) in enumerate(entry.touched.tolist()):
            # the LDP figure is in the state, or follows from what was told: what Spark keeps has its shape for good
            kept = Kept(events, releases, spent, most, least, entry.states[k * size : (k + 1) * size])
            before = self._before.get(user, kept)
            self._shelf.put(self._names[user], kept._replace(symbols=before.symbols, waiting=before.waiting))
        if not small:
            self._tell(entry)

    def _tell(self, entry: Entry) -> None:
        """Keep the releases themselves, in chunks: a large state is computed from them again."""
        more: dict[int, list[bytes]] = {}
        counts: dict[int, int] = {}
        at = 0
        for user, size, records in entry.events.tolist():
            more.setdefault(user, []).append(entry.releases[at : at + size])
            counts[user] = counts.get(user, 0) + records
            at += size
        for user, pieces in more.items():
            name = self._names[user]
            chunk, filled = divmod(self._before[user].events if user in self._before else 0, CHUNK)
            blob = (self._shelf.told(name, chunk) if filled else b"") + b"".join(pieces)
            left = filled + counts[user]
            while left:
                end = self._codec.cut(blob, min(CHUNK, left))
                self._shelf.tell(name, chunk, blob[:end])
                blob, chunk, left = blob[end:], chunk + 1, left - min(CHUNK, left)
