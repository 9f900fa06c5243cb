"""When to learn, and when to move on to what was learned: the cold start itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import mechanisms
from seqveil.core.alphabet import Alphabet, Symbols
from seqveil.core.coins import Coins, coins, known_as
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.receive.coldstart.lanes import Lanes
from seqveil.receive.coldstart.versions import Version, Versions, first_version, next_version
from seqveil.receive.learn import Chain, Evidence, Learned, learn
from seqveil.receive.learn.learner import LARGEST
from seqveil.release.accounting import Budget, Schedule
from seqveil.release.releases import Standings
from seqveil.release.state import rounds
from seqveil.release.stream import REFUSED, Mask, Released, budget_spent, raw_codes

Act = Callable[[NDArray[np.intp], NDArray[np.intp]], Released]


@dataclass(frozen=True)
class Points:
    """The counts of events (of all users together) after which a chain is learned: first, first·factor, … up to last.

    >>> list(Points(5_000, 4, 100_000).upto(10**9))
    [5000, 20000, 80000]
    """

    first: int = 5_000
    factor: int = 4
    last: int = 1_500_000

    def __post_init__(self) -> None:
        if not (self.first >= 1 and self.factor >= 2 and self.last >= 0):
            raise InputError("expected a first point ≥ 1, a factor ≥ 2 and a last point ≥ 0")

    def upto(self, events: int) -> list[int]:
        found, point = [], self.first
        while point <= min(events, self.last):
            found.append(point)
            point *= self.factor
        return found

    def after(self, events: int) -> int | None:
        """The next point past so many events; none where there is no more."""
        point = self.first
        while point <= events:
            point *= self.factor
        return point if point <= self.last else None


class _Users:
    """Named users over lanes, events in their order, at most up to the next point of a change at a time."""

    def __init__(self, version: Version) -> None:
        self.lanes, self.events = Lanes(version), 0
        self._index: dict[Hashable, int] = {}
        self.worst_release = 0.0

    def rows(self, users: Sequence[Hashable]) -> NDArray[np.intp]:
        ids = np.array([self._index.setdefault(known_as(user), len(self._index)) for user in users], np.intp)
        self.lanes.grow(len(self._index))
        return ids

    def play(self, ids: NDArray[np.intp], act: Act, refused: Mask, codes: Ints, epsilons: Floats) -> Floats:
        """Fill in codes and ε, round by round; the cost of each. `refused` are users whose events are taken no more."""
        costs = np.zeros(ids.size)
        for turn in rounds(ids):
            left = turn[~refused[ids[turn]]]
            if not left.size:
                break
            made = act(ids[left], left)
            codes[left], epsilons[left] = made.codes, made.epsilons
            costs[left] = made.costs
            refused[ids[left[made.codes == REFUSED]]] = True
            self.events += int((made.codes != REFUSED).sum())
        self.worst_release = max(self.worst_release, float(costs.max(initial=0.0)))
        return costs

    def accounts(self) -> Standings:
        """Where every user stands, exactly, under the version in force."""
        state = self.lanes.state
        steps, account = state.steps.copy(), state.account
        figures = (state.spent, account.most, account.least, state.ldp)
        return Standings(list(self._index), steps, steps, *(figure.copy() for figure in figures))


class ColdStart:
    """Releases streams of many users from nothing but an alphabet and ε, and learns the model from its own releases.

    Version 0 is `start`, whose ε-LDP needs no model. After given counts of events a chain is learned from all releases
    so far (`seqveil.learn`: post-processing, free), and where it foretells the releases of held-out users better than
    what is in force, beyond chance, it becomes the next version: from the next event on every user is released by
    `mechanism` under it, with the belief that its chain has after all past releases.

    *Guarantee*: (a) every release is 2ε-LDP, those of version 0 ε-LDP, whatever the truth is; (b) under the chain of
    the version a release was made with, its lifts are within ε, and so are those of version 0 under every chain;
    (c) the account of each user is Σε while version 0 is in force, which holds under every chain, and from then on the
    exact leakage of all its releases under the chain now in force; (d) with a budget, no release carries that account
    past the total. A third version weighs releases of the second anew, each at up to 2ε. Which version made a release
    is public, and so is everything that decides it.

    Parameters: `schedule` (a period or a `Schedule`) is that of all versions; `order` of the learned chains; `points`,
    when to learn; `budget`, a total, or a `Budget` without window; `seed` for research only.

    >>> from seqveil.core.model import MarkovModel
    >>> truth = MarkovModel([0.5, 0.5], [[0.95, 0.05], [0.05, 0.95]]).sample(40, users=200, seed=1)
    >>> start = ColdStart(2, epsilon=1.0, points=Points(4_000), seed=2)
    >>> for step in truth.T:
    ...     released = start.release_many(range(200), step.tolist())
    >>> [(version.setting.mechanism.name, version.after) for version in start.versions]
    [('randomized_response', 0), ('optimal', 4000)]
    >>> bool((start.accounts().leakage <= 40.0).all())
    True
    """

    def __init__(
        self,
        alphabet: Symbols | Sequence[Any] | int,
        epsilon: float,
        mechanism: str = "optimal",
        distortion: str | Distortion = "hamming",
        *,
        schedule: Schedule | int | None = None,
        start: str = "randomized_response",
        order: int = 1,
        points: Points | None = None,
        budget: Budget | float | None = None,
        seed: int | None = None,
    ) -> None:
        names = _alphabet(alphabet)
        if names.n ** (order + 1) > LARGEST:  # now, not at the first point, when releases wait for it
            raise InputError(f"a chain of order {order} over {names.n} symbols is too large to be learned; use fewer")
        begin = first_version(names, start, epsilon, distortion, schedule, budget)
        chosen = mechanisms.find(mechanism)
        if isinstance(chosen, mechanisms.BatchMechanism) or not chosen.sound:
            raise InputError(f'expected a sound mechanism that releases one by one, got "{chosen.name}"')
        self._mechanism, self._order = chosen.name, order
        self._points = points or Points()
        self._users, self._coins = _Users(begin), coins(seed)
        self.versions = Versions([begin])
        self.tried: list[tuple[int, Learned]] = []  # all that was learned, after how many events
        self._chain = Chain.uniform(names.n)

    @property
    def events(self) -> int:
        """Releases so far, of all users."""
        return self._users.events

    @property
    def private(self) -> bool:
        """False where it is seeded: anyone with the seed can undo it."""
        return self._coins.private

    @property
    def worst_release(self) -> float:
        """The most that one release moved a belief under its own version."""
        return self._users.worst_release

    def release(self, user: Hashable, value: Any) -> Any:
        """The release of one event of one user."""
        return self.release_many([user], [value])[0]

    def release_many(self, users: Sequence[Hashable], values: Sequence[Any]) -> list[Any]:
        """The releases of events of named users, in their order; a budget that is spent: as in `release_codes`."""
        alphabet = self.versions.alphabet
        codes, _, _ = self.release_codes(users, alphabet.encode(list(values)))
        return list(alphabet.decode(codes))

    def release_codes(
        self, users: Sequence[Hashable], codes: Ints, thrown: Coins | None = None
    ) -> tuple[Ints, Floats, Ints]:
        """Released codes, the ε used and the number of the version, event by event.

        Where a user's budget is spent and the policy is "error", that event and the user's later ones are refused:
        everything else is released, then BudgetSpent is raised with all three arrays (the code REFUSED).
        """
        raw, source = raw_codes(codes, self.versions.alphabet.n), thrown or self._coins
        ids = self._users.rows(users)
        refused = np.zeros(len(self._users.lanes), bool)
        made = np.full(ids.size, REFUSED, np.int64), np.zeros(ids.size), np.zeros(ids.size, np.int64)
        at = 0
        try:
            while at < ids.size:
                part, before = slice(at, min(ids.size, at + self._room())), self.events
                made[2][part] = self.versions.last.number
                self._users.play(ids[part], self._releasing(raw[part], source), refused, made[0][part], made[1][part])
                at = part.stop
                if self.events > before and self.events in self._points.upto(self.events):
                    self.learn()
                    if self._points.after(self.events) is None:
                        self._users.lanes.close()
        except SeqveilError as error:
            error.made = made
            raise
        if refused.any():
            raise budget_spent(self.versions.last.setting, made[0] == REFUSED, made)
        return made

    def _releasing(self, truth: Ints, source: Coins) -> Act:
        return lambda rows, turn: self._users.lanes.release(rows, truth[turn], source)

    def _room(self) -> int:
        point = self._points.after(self.events)
        return 1 << 62 if point is None else point - self.events

    def learn(self) -> Version | None:
        """Learn from all releases so far; the new version where it earned its place, else None."""
        now = self.versions.last
        evidence = self._users.lanes.evidence()
        learned = learn(evidence, self.versions.alphabet, self._order, rival=self._chain)
        self.tried.append((self.events, learned))
        if learned.held_out is None or not learned.held_out.earned:
            return None
        schedule = now.setting.schedule
        version = next_version(now, learned, self._mechanism, schedule, self.events)
        self._users.lanes.switch(version)
        self.versions.add(version)
        self._chain = learned.chain
        return version

    def accounts(self) -> Standings:
        """Where every user stands, exactly, under the version in force."""
        return self._users.accounts()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the versions, models included, to one public file."""
        self.versions.save(path)

    def __repr__(self) -> str:
        users = len(self._users.lanes)
        return f"ColdStart({self.versions.alphabet.n} symbols, {users} users, {self.events} events, {self.versions!r})"


class Receiver:
    """The same streams as a receiver sees them, from the versions and the releases alone: nothing private.

    *Guarantee*: after the same events, belief and account of every user are those of the cold start, to the last bit.

    `keep` keeps the log of releases (`evidence()`) after the last version has come into force.
    """

    def __init__(self, versions: Versions, keep: bool = False) -> None:
        self.versions, self._keep = versions, keep
        self._users = _Users(versions[0])
        self._seen: list[NDArray[np.intp]] = []  # whose each release is, as they came

    @property
    def events(self) -> int:
        return self._users.events

    @property
    def lanes(self) -> Lanes:
        return self._users.lanes

    @property
    def worst_release(self) -> float:
        return self._users.worst_release

    def observe(self, users: Sequence[Hashable], codes: Ints) -> tuple[Floats, Floats]:
        """The ε that each release used and the most it moved a belief; refuses what the versions cannot have made."""
        ids = self._users.rows(users)
        if self._keep:
            self._seen.append(ids)
        epsilons, costs, at = np.empty(ids.size), np.empty(ids.size), 0
        while at < ids.size:
            self._come_into_force()
            part = slice(at, min(ids.size, at + self._room()))
            nobody = np.zeros(len(self.lanes), bool)
            seen = self._seeing(codes[part])
            costs[part] = self._users.play(ids[part], seen, nobody, codes[part].copy(), epsilons[part])
            at = part.stop
        self._come_into_force()
        return epsilons, costs

    def evidence(self) -> Evidence:
        """All releases as what can be learned from, in the order they were observed; for a receiver that keeps them."""
        return self.lanes.evidence().arranged(np.concatenate([np.zeros(0, np.intp), *self._seen]))

    def _seeing(self, codes: Ints) -> Act:
        return lambda rows, turn: self._users.lanes.observe(rows, codes[turn])

    def _come_into_force(self) -> None:
        number = self.lanes.version.number + 1
        if number < len(self.versions) and self.versions[number].after == self.events:
            self.lanes.switch(self.versions[number])
            self._come_into_force()
        elif number == len(self.versions) and not self._keep:
            self.lanes.close()

    def _room(self) -> int:
        number = self.lanes.version.number + 1
        return 1 << 62 if number >= len(self.versions) else self.versions[number].after - self.events

    def accounts(self) -> Standings:
        return self._users.accounts()


def _alphabet(given: Symbols | Sequence[Any] | int) -> Symbols:
    if isinstance(given, bool) or (isinstance(given, int) and given < 2):
        raise InputError("expected an alphabet, or the number of symbols, at least 2")
    if isinstance(given, int):
        return Alphabet.codes(given)
    return given if isinstance(given, Symbols) else Alphabet(given)
