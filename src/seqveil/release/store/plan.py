"""Which events of a call are new, which were released before, and which left others out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.release import fleet

Gaps = Literal["refuse", "skip"]
Places = NDArray[np.intp]
MOST_SKIPPED = 10_000  # events that one event may leave out


class OutOfOrder(InputError):
    """A sequence number that leaves others out, under the policy that refuses this; `position` is the event's place."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True, eq=False)
class Plan:
    """What to do with each event of a group, by its place in it."""

    fresh: Places  # to be drawn, in this order
    rounds: list[Places]  # the same, in rounds that hold each user once
    skips: Ints | None  # for each place, events of its user to give up first; None: nowhere any
    old: list[int]  # released in an earlier call
    twice: list[tuple[int, int]]  # and the place of the same event earlier in this call
    late: list[int]  # given up a moment ago, for a later event of this call


def plan_of(users: Places, seqs: Ints, upcoming: Ints, gaps: Gaps) -> Plan:
    """Sort the events of a group out; `upcoming` is the next sequence number of each event's user, before the call.

    >>> plan = plan_of(np.array([0, 1, 0, 1]), np.array([5, 2, 6, 2]), np.array([5, 3, 5, 3]), "refuse")
    >>> plan.fresh.tolist(), plan.old
    ([0, 2], [1, 3])
    """
    rounds = fleet.rounds(users)
    if all((seqs[at] == upcoming[at] + turn).all() for turn, at in enumerate(rounds)):
        return Plan(np.arange(users.size), rounds, None, [], [], [])
    return _sorted_out(users, seqs, upcoming, gaps)


def _sorted_out(users: Places, seqs: Ints, upcoming: Ints, gaps: Gaps) -> Plan:
    ahead: dict[int, int] = {}
    first: dict[tuple[int, int], int] = {}
    fresh: list[int] = []
    old: list[int] = []
    twice: list[tuple[int, int]] = []
    late: list[int] = []
    skips = np.zeros(users.size, np.int64)
    for k, (user, seq, known) in enumerate(zip(users.tolist(), seqs.tolist(), upcoming.tolist(), strict=True)):
        expected = ahead.get(user, known)
        if (user, seq) in first:
            twice.append((k, first[user, seq]))
        elif seq < known:
            old.append(k)
        elif seq < expected:
            late.append(k)
        else:
            if seq != expected:
                _check_gap(k, seq, expected, gaps)
                skips[k] = seq - expected
            ahead[user] = seq + 1
            first[user, seq] = k
            fresh.append(k)
    chosen = np.array(fresh, np.intp)
    rounds = [chosen[turn] for turn in fleet.rounds(users[chosen])]
    return Plan(chosen, rounds, skips if skips.any() else None, old, twice, late)


def _check_gap(place: int, seq: int, expected: int, gaps: Gaps) -> None:
    if gaps == "refuse":
        raise OutOfOrder(
            place, f"event {place} has sequence number {seq}, and {expected} is next; send the missing events first"
        )
    if seq - expected > MOST_SKIPPED:
        raise OutOfOrder(
            place, f"event {place} leaves {seq - expected} events out, of at most {MOST_SKIPPED}; check the numbers"
        )
