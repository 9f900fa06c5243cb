"""Users by name: a fleet that takes events as they come, many a user, and stays within its memory.

Where a user's state is small all users stay live. Where it is large (an alphabet of thousands), only as many as fit do;
the others are remembered by their releases, which are all their state follows from, and are replayed when they return.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqveil.core.coins import Coins, known_as
from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.release import fleet, stream

SMALL = 4096  # bytes of state a user may have and still always stay live


@dataclass(frozen=True, eq=False)
class Accounts:
    """Where every user stands, in the order they came."""

    users: list[Hashable]
    events: Ints
    releases: Ints
    spent: Floats  # Σ ε used
    most: Floats  # exact leakage, upper side
    least: Floats  # lower side
    ldp: Floats  # Σ of (LDP level · ε): what holds without any model

    @property
    def leakage(self) -> Floats:
        return np.maximum(self.most, -self.least)


class Roster:
    """Releases (or, for a receiver, observes) events of named users in the order given.

    *Guarantee*: each user's stream is released exactly as by a `Session` of its own, whoever else is in the roster and
    however often its state was put aside. What was drawn stands: where a call has to stop in the middle, the error's
    `made` has what was released. A roster is for one thread.

    >>> from seqveil.core.coins import SeededCoins
    >>> from seqveil.core.model import MarkovModel
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> roster = Roster(stream.Setting.of(model, epsilon=1.0))
    >>> codes, epsilons = roster.release(["ann", "bob", "ann"], np.array([0, 1, 0]), SeededCoins(1))
    >>> epsilons.tolist(), roster.accounts().users, roster.accounts().events.tolist()
    ([1.0, 1.0, 1.0], ['ann', 'bob'], [2, 1])
    """

    def __init__(self, setting: stream.Setting, memory: int = 1 << 30) -> None:
        self.setting = setting
        size = 8 * setting.model.size
        width = size if setting.model.full_support else 3 * size
        self._capacity = None if width <= SMALL else max(1, memory // (4 * width))
        self._index: dict[Hashable, int] = {}
        self._live = fleet.Fleet(setting)
        self._slot: dict[int, int] = {}  # user → row of the fleet, least recently used first
        self._history: list[tuple[array[int], array[float]]] = []
        self._releases = np.zeros(0, np.int64)
        self._standing = np.zeros((0, 5))  # events, spent, most, least, ldp
        self._latest = np.zeros(0)  # time of the last event

    def release(
        self, users: Sequence[Hashable], codes: Ints, coins: Coins, times: Floats | None = None
    ) -> tuple[Ints, Floats]:
        """Released codes and the ε used, event by event; NOTHING where the budget's policy is to stop.

        Where a user's budget is spent and the policy is "error", that event and the user's later ones are refused:
        everything else is released, then BudgetSpent is raised with both arrays (the code REFUSED, ε 0).
        """
        raw = stream.raw_codes(codes, self.setting.model.n)

        def play(rows: NDArray[np.intp], events: NDArray[np.intp]) -> stream.Released:
            return self._live.attempt(rows, raw[events], coins, None if times is None else times[events])

        made = self._play(users, play, times)
        refused = made[0] == stream.REFUSED
        if refused.any():
            raise stream.budget_spent(self.setting, refused, made)
        return made

    def observe(self, users: Sequence[Hashable], codes: Ints, times: Floats | None = None) -> tuple[Ints, Floats]:
        """Take released codes in, as a receiver does; refuses releases that this setting cannot have made."""

        def play(rows: NDArray[np.intp], events: NDArray[np.intp]) -> stream.Released:
            return self._live.observe(rows, codes[events], None if times is None else times[events])

        return self._play(users, play, times)

    def accounts(self) -> Accounts:
        """Where every user stands."""
        events, *figures = self._standing[: len(self._index)].T.copy()
        releases = self._releases[: len(self._index)].copy()
        return Accounts(list(self._index), events.astype(np.int64), releases, *figures)

    def _play(self, users: Sequence[Hashable], play: fleet.Play, times: Floats | None) -> tuple[Ints, Floats]:
        """What can be refused at a glance is refused before the first event; what has been played then stands."""
        ids = self._numbered(users, times)
        codes, epsilons = np.full(ids.size, stream.REFUSED, np.int64), np.zeros(ids.size)
        refused = np.zeros(len(self._index), bool)
        for members in self._groups(ids):
            self._enter(members)
            events = np.flatnonzero(np.isin(ids, members)) if members.size < len(self._index) else np.arange(ids.size)
            try:
                for turn in fleet.rounds(ids[events]):
                    at = events[turn]
                    at = at[~refused[ids[at]]]
                    if not at.size:
                        break
                    made = play(self._rows(ids[at]), at)
                    codes[at], epsilons[at] = made.codes, made.epsilons
                    refused[ids[at[made.codes == stream.REFUSED]]] = True
            except SeqveilError as error:
                error.made = codes, epsilons
                raise
            finally:
                done = events[codes[events] != stream.REFUSED]
                self._note(members, ids[done], codes[done], None if times is None else times[done])
        return codes, epsilons

    def _numbered(self, users: Sequence[Hashable], times: Floats | None) -> NDArray[np.intp]:
        """The users' numbers, new ones entered, unless the times cannot be."""
        known = len(self._index)
        ids = np.array([self._index.setdefault(known_as(user), len(self._index)) for user in users], np.intp)
        self._make_room(len(self._index))
        try:
            stream.check_times(self.setting, ids, times, self._latest[ids])
        except InputError:
            for user in list(self._index)[known:]:
                del self._index[user]
            raise
        return ids

    def _rows(self, ids: NDArray[np.intp]) -> NDArray[np.intp]:
        return np.array([self._slot[user] for user in ids.tolist()], np.intp)

    def _make_room(self, users: int) -> None:
        if users > len(self._releases):
            more = max(users, 2 * len(self._releases)) - len(self._releases)
            self._releases = np.concatenate([self._releases, np.zeros(more, np.int64)])
            self._standing = np.concatenate([self._standing, np.zeros((more, 5))])
            self._latest = np.concatenate([self._latest, np.full(more, -np.inf)])
        if self._capacity is not None:
            self._history.extend((array("q"), array("d")) for _ in range(users - len(self._history)))

    def _groups(self, ids: NDArray[np.intp]) -> list[NDArray[np.intp]]:
        """The chunk's users in groups that can be live together, in the order they come."""
        distinct, first = np.unique(ids, return_index=True)
        distinct = distinct[np.argsort(first)]
        size = distinct.size if self._capacity is None else self._capacity
        return [distinct[at : at + size] for at in range(0, distinct.size, max(1, size))]

    def _enter(self, members: NDArray[np.intp]) -> None:
        """Make these users live, putting others aside where there is no room."""
        wanted = members.tolist()
        for user in wanted:
            if user in self._slot:
                self._slot[user] = self._slot.pop(user)  # now the most recently used
        missing = [user for user in wanted if user not in self._slot]
        free = self._capacity is None or len(self._slot) + len(missing) <= self._capacity
        rows: list[int] = []
        if not free:
            keep = set(wanted)
            leaving = [user for user in self._slot if user not in keep]
            rows = [self._slot.pop(user) for user in leaving[: len(missing)]]
        new = len(missing) - len(rows)
        at = len(self._live)
        self._live.grow(at + new)
        rows += range(at, at + new)
        self._live.reset(np.array(rows[: len(missing) - new], np.intp))
        for user, row in zip(missing, rows, strict=True):
            self._slot[user] = row
            self._replay(user, row)

    def _replay(self, user: int, row: int) -> None:
        if self._capacity is None:
            return
        codes, times = self._history[user]
        for k, code in enumerate(codes):
            stamp = np.array([times[k]]) if times else None
            self._live.observe(np.array([row], np.intp), np.array([code], np.int64), stamp)

    def _note(self, members: NDArray[np.intp], ids: NDArray[np.intp], codes: Ints, times: Floats | None) -> None:
        rows, state = self._rows(members), self._live.state
        account = state.account
        self._standing[members] = np.column_stack(
            [state.steps[rows], state.spent[rows], account.most[rows], account.least[rows], state.ldp[rows]]
        )
        np.add.at(self._releases, ids[codes != stream.NOTHING], 1)
        if times is not None:
            np.maximum.at(self._latest, ids, times)
        if self._capacity is not None:
            for k, user in enumerate(ids.tolist()):
                self._history[user][0].append(int(codes[k]))
                if times is not None:
                    self._history[user][1].append(float(times[k]))
