"""Drawing the new events of a call, and what comes of it: results for the caller, an entry for the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from seqveil.core.coins import Coins, KeyedCoins, User, rows
from seqveil.core.errors import BudgetSpent, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.release import batches, fleet, stream
from seqveil.release.store.database import Entry
from seqveil.release.store.live import Live, Slots, skipped
from seqveil.release.store.plan import Places, Plan
from seqveil.release.store.records import BatchCodec, Stored, SymbolCodec
from seqveil.release.stream import REFUSED, Mask, Setting, State, allowance


@dataclass(frozen=True, eq=False)
class Releases:
    """What single events were released as, in their order; public."""

    codes: Ints  # NOTHING where the budget's policy is to stop, GAP where the event's place was given up before, and
    # in the `made` of an error REFUSED where the event was not taken
    epsilons: Floats
    replayed: Mask  # whether the release was there already

    @classmethod
    def none(cls, count: int) -> Releases:
        """Nothing released yet."""
        return cls(np.full(count, REFUSED, np.int64), np.zeros(count), np.zeros(count, bool))

    @property
    def refused(self) -> Mask:
        """Which events were not taken, because the budget is spent and its policy is "error"."""
        return self.codes == REFUSED


@dataclass(frozen=True, eq=False)
class BatchReleases:
    """What batches were released as, in their order; public."""

    paths: list[tuple[int, ...] | None]  # None where nothing was released
    codes: list[Ints]  # the reproductions; empty where nothing was released
    epsilons: Floats
    replayed: Mask
    leakages: Floats  # what each batch told by itself; nan where nothing was drawn in this call
    refused: Mask  # as for single events; nowhere but in the `made` of an error

    @classmethod
    def none(cls, count: int) -> BatchReleases:
        """Nothing released yet."""
        empty, no = [np.zeros(0, np.int64)] * count, np.zeros(count, bool)
        return cls([None] * count, empty, np.zeros(count), no, np.full(count, np.nan), ~no)


@dataclass(frozen=True)
class UserAccount:
    """Where a user stands; public. Leakage is in nats, rounded outward to 2**-32."""

    user: User
    events: int  # so many so far, which is the sequence number that comes next
    releases: int
    leakage: float
    most: float
    least: float
    by_composition: float
    ldp: float
    budget_left: float | None
    private: bool


@dataclass(frozen=True, eq=False)
class Played:
    """What came of the new events of a group: what to keep, and why it ended early, if it did."""

    entry: Entry | None
    failure: Exception | None


@dataclass(frozen=True, eq=False)
class SymbolCall:
    """A call with single symbols. The raw codes stay here and are in no repr."""

    setting: Setting
    names: list[User] = field(repr=False)
    seqs: Ints
    times: Floats | None
    raw: Ints = field(repr=False)
    made: Releases

    def give_back(self, k: int, stored: Stored) -> None:
        self.made.codes[k], self.made.epsilons[k], self.made.replayed[k] = stored.code, stored.epsilon, True

    def copy(self, k: int, first: int) -> None:
        self.made.codes[k], self.made.epsilons[k] = self.made.codes[first], self.made.epsilons[first]
        self.made.replayed[k] = not self.made.refused[first]

    def play(self, plan: Plan, group: Places, slots: Slots, live: Live, coins: Coins | KeyedCoins) -> Played:
        """Draw the new events, in rounds. A round that fails ends it, and takes back nothing of those before."""
        source = _coins_of(coins, self.names, self.seqs)
        refused: set[int] = set()
        failure: Exception | None = times_fail(self, plan, group, slots, live)
        for places in plan.rounds if failure is None else ():
            left = places if not refused else places[[slot not in refused for slot in slots[places].tolist()]]
            if not left.size:
                break
            try:
                refused |= self._round(plan, left, group, slots, live, source)
            except Exception as error:
                failure = error
                break
        done = plan.fresh[~self.made.refused[group[plan.fresh]]]
        return Played(self._entry(plan, done, group, slots, live) if done.size else None, failure)

    def _round(self, plan: Plan, places: Places, group: Places, slots: Slots, live: Live, source: Coins) -> set[int]:
        """Release one event of each of these users; the slots of those who are refused, left as they are."""
        at, who = group[places], slots[places]
        part = fleet.take(live.state, who)
        if plan.skips is not None:
            _skip(self.setting, part, plan.skips[places])
        times = None if self.times is None else self.times[at]
        released, after = stream.step(self.setting, part, self.raw[at], rows(source, at), times)
        taken = np.flatnonzero(released.codes != REFUSED)
        fleet.put(live.state, who[taken], fleet.take(after, taken))
        self.made.codes[at], self.made.epsilons[at] = released.codes, released.epsilons
        return set(who[released.codes == REFUSED].tolist())

    def _entry(self, plan: Plan, done: Places, group: Places, slots: Slots, live: Live) -> Entry:
        at, who = group[done], slots[done]
        codes = self.made.codes[at]
        live.count_releases(who[codes >= 0])
        codec = SymbolCodec(self.setting)
        packed = codec.pack(codes, self.made.epsilons[at], None if self.times is None else self.times[at])
        pieces = np.stack([live.ids(who), np.full(who.size, codec.size), np.ones(who.size, np.int64)], axis=1)
        if plan.skips is not None:
            records = [packed[k * codec.size : (k + 1) * codec.size] for k in range(who.size)]
            packed, pieces = _with_gaps(codec, records, pieces, plan.skips[done])
        return _entry(live, who, pieces, packed)


@dataclass(frozen=True, eq=False)
class BatchCall:
    """A call with batches."""

    setting: Setting
    names: list[User] = field(repr=False)
    seqs: Ints
    times: Floats | None
    raw: list[Ints] = field(repr=False)
    made: BatchReleases

    def give_back(self, k: int, stored: Stored) -> None:
        made = self.made
        made.paths[k], made.epsilons[k], made.replayed[k] = stored.path, stored.epsilon, True
        made.codes[k], made.refused[k] = np.array(stored.codes, np.int64), False

    def copy(self, k: int, first: int) -> None:
        made = self.made
        made.paths[k], made.codes[k], made.epsilons[k] = made.paths[first], made.codes[first], made.epsilons[first]
        made.replayed[k], made.refused[k] = not made.refused[first], made.refused[first]

    def play(self, plan: Plan, group: Places, slots: Slots, live: Live, coins: Coins | KeyedCoins) -> Played:
        """Draw the new batches, one by one. One that fails ends it, and takes back nothing of those before."""
        source, codec = _coins_of(coins, self.names, self.seqs), BatchCodec(self.setting)
        records: list[bytes] = []
        done: list[int] = []
        refused: set[int] = set()
        failure: Exception | None = times_fail(self, plan, group, slots, live)
        for place in plan.fresh.tolist() if failure is None else ():
            at, who = group[[place]], slots[[place]]
            if int(who[0]) in refused:
                continue
            skips = None if plan.skips is None else plan.skips[[place]]
            try:
                records.append(self._send(codec, int(at[0]), who, skips, live, rows(source, at)))
            except BudgetSpent:
                refused.add(int(who[0]))
                continue
            except Exception as error:
                failure = error
                break
            done.append(place)
        return Played(self._entry(plan, np.array(done, np.intp), slots, records, live) if done else None, failure)

    def _entry(self, plan: Plan, done: Places, slots: Slots, records: list[bytes], live: Live) -> Entry:
        who, codec = slots[done], BatchCodec(self.setting)
        sizes = np.array([len(record) for record in records], np.int64)
        pieces = np.stack([live.ids(who), sizes, np.ones(who.size, np.int64)], axis=1)
        packed = b"".join(records)
        if plan.skips is not None:
            packed, pieces = _with_gaps(codec, records, pieces, plan.skips[done])
        return _entry(live, who, pieces, packed)

    def _send(self, codec: BatchCodec, k: int, who: Slots, skips: Ints | None, live: Live, coins: Coins) -> bytes:
        state, time = fleet.take(live.state, who), None if self.times is None else float(self.times[k])
        if skips is not None:
            _skip(self.setting, state, skips)
        epsilon = float(allowance(self.setting, state, None if time is None else np.array([time]))[0][0])
        sent, after = batches.step(self.setting, state, self.raw[k], coins, time)
        fleet.put(live.state, who, after)
        self.made.epsilons[k], self.made.refused[k] = epsilon, False
        if sent is not None:
            live.count_releases(who)
            self.made.paths[k], self.made.codes[k] = sent.path, np.asarray(sent.codes, np.int64)
            self.made.leakages[k] = max(sent.most, -sent.least)
        return codec.pack_one(sent, self.raw[k].size, epsilon, time)


Made = TypeVar("Made", Releases, BatchReleases)


def taken(release: Callable[[], Made]) -> Made:
    """What a call of the store released, the events refused for a spent budget marked so instead of raised."""
    try:
        return release()
    except BudgetSpent as spent:
        made: Made = spent.made
        return made


def _coins_of(coins: Coins | KeyedCoins, users: list[User], seqs: Ints) -> Coins:
    return coins.of(users, seqs) if isinstance(coins, KeyedCoins) else coins


def _skip(setting: Setting, state: State, counts: Ints) -> None:
    """Give up so many events of each user."""
    while (waiting := np.flatnonzero(counts > 0)).size:
        fleet.put(state, waiting, skipped(setting, fleet.take(state, waiting)))
        counts = counts - 1


def times_fail(call: SymbolCall | BatchCall, plan: Plan, group: Places, slots: Slots, live: Live) -> InputError | None:
    """What is wrong with the times of the new events, before any of them is drawn."""
    if call.setting.budget.seconds is None:
        return None
    who, at = slots[plan.fresh], group[plan.fresh]
    try:
        latest = live.state.window.take(who).latest
        stream.check_times(call.setting, who, None if call.times is None else call.times[at], latest)
    except InputError as error:
        return error
    return None


def _with_gaps(codec: SymbolCodec | BatchCodec, records: list[bytes], pieces: Ints, skips: Ints) -> tuple[bytes, Ints]:
    """The records with those of the events given up in front of the event that did it."""
    gaps = [codec.gaps(count) for count in skips.tolist()]
    longer = pieces.copy()
    longer[:, 1] += np.array([len(gap) for gap in gaps], np.int64)
    longer[:, 2] += skips
    return b"".join(part for both in zip(gaps, records, strict=True) for part in both), longer


def _entry(live: Live, slots: Slots, pieces: Ints, packed: bytes) -> Entry:
    touched = np.unique(slots)
    return Entry(live.ledger(touched), live.pack(touched), pieces.astype("<i8", copy=False), packed)
