"""Drawing the new events of a call, and what comes of it: results for the caller, an entry for the log."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seqveil import batches, fleet, stream
from seqveil.coins import Coins, KeyedCoins, User, rows
from seqveil.kernel import Floats, Ints
from seqveil.store.database import Entry
from seqveil.store.live import Live, Slots
from seqveil.store.plan import Places, Plan
from seqveil.store.records import BatchCodec, Stored, SymbolCodec
from seqveil.stream import Setting, allowance


@dataclass(frozen=True, eq=False)
class Releases:
    """What single events were released as, in their order; public."""

    codes: Ints  # NOTHING where the budget's policy is to stop, GAP where the event's place was given up before
    epsilons: Floats
    replayed: NDArray[np.bool_]  # whether the release was there already


@dataclass(frozen=True, eq=False)
class BatchReleases:
    """What batches were released as, in their order; public."""

    paths: list[tuple[int, ...] | None]  # None where nothing was released
    codes: list[Ints]  # the reproductions; empty where nothing was released
    epsilons: Floats
    replayed: NDArray[np.bool_]
    leakages: Floats  # what each batch told by itself; nan where nothing was drawn in this call


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
        self.made.replayed[k] = True

    def play(self, plan: Plan, group: Places, slots: Slots, live: Live, coins: Coins | KeyedCoins) -> Entry:
        source = _coins_of(coins, self.names, self.seqs)
        for places in plan.rounds:
            at, who = group[places], slots[places]
            if plan.skips is not None:
                _skip(live, who, plan.skips[places])
            times = None if self.times is None else self.times[at]
            part = fleet.take(live.state, who)
            released, after = stream.step(self.setting, part, self.raw[at], rows(source, at), times)
            fleet.put(live.state, who, after)
            self.made.codes[at], self.made.epsilons[at] = released.codes, released.epsilons
        at, who = group[plan.fresh], slots[plan.fresh]
        codes = self.made.codes[at]
        live.count_releases(who[codes >= 0])
        codec = SymbolCodec(self.setting)
        packed = codec.pack(codes, self.made.epsilons[at], None if self.times is None else self.times[at])
        pieces = np.stack([live.ids(who), np.full(who.size, codec.size), np.ones(who.size, np.int64)], axis=1)
        if plan.skips is not None:
            records = [packed[k * codec.size : (k + 1) * codec.size] for k in range(who.size)]
            packed, pieces = _with_gaps(codec, records, pieces, plan.skips[plan.fresh])
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
        made.codes[k] = np.array(stored.codes, np.int64)

    def copy(self, k: int, first: int) -> None:
        made = self.made
        made.paths[k], made.codes[k], made.epsilons[k] = made.paths[first], made.codes[first], made.epsilons[first]
        made.replayed[k] = True

    def play(self, plan: Plan, group: Places, slots: Slots, live: Live, coins: Coins | KeyedCoins) -> Entry:
        source, codec = _coins_of(coins, self.names, self.seqs), BatchCodec(self.setting)
        records = []
        for place in plan.fresh.tolist():
            at, who = group[[place]], slots[[place]]
            if plan.skips is not None:
                _skip(live, who, plan.skips[[place]])
            records.append(self._send(codec, int(at[0]), who, live, rows(source, at)))
        who = slots[plan.fresh]
        sizes = np.array([len(record) for record in records], np.int64)
        pieces = np.stack([live.ids(who), sizes, np.ones(who.size, np.int64)], axis=1)
        packed = b"".join(records)
        if plan.skips is not None:
            packed, pieces = _with_gaps(codec, records, pieces, plan.skips[plan.fresh])
        return _entry(live, who, pieces, packed)

    def _send(self, codec: BatchCodec, k: int, who: Slots, live: Live, coins: Coins) -> bytes:
        state, time = fleet.take(live.state, who), None if self.times is None else float(self.times[k])
        epsilon = float(allowance(self.setting, state, None if time is None else np.array([time]))[0][0])
        sent, after = batches.step(self.setting, state, self.raw[k], coins, time)
        fleet.put(live.state, who, after)
        self.made.epsilons[k] = epsilon
        if sent is not None:
            live.count_releases(who)
            self.made.paths[k], self.made.codes[k] = sent.path, np.asarray(sent.codes, np.int64)
            self.made.leakages[k] = max(sent.most, -sent.least)
        return codec.pack_one(sent, self.raw[k].size, epsilon, time)


def _coins_of(coins: Coins | KeyedCoins, users: list[User], seqs: Ints) -> Coins:
    return coins.of(users, seqs) if isinstance(coins, KeyedCoins) else coins


def _skip(live: Live, slots: Slots, counts: Ints) -> None:
    while (waiting := counts > 0).any():
        live.skip(slots[waiting])
        slots, counts = slots[waiting], counts[waiting] - 1


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
