"""Begin with nothing but a stream and ε: release without a model, learn one from the releases, move on to it."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqveil.core import mechanisms
from seqveil.core.alphabet import Symbols
from seqveil.core.coins import coins, known_as
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel, symbols_of
from seqveil.engine.accounting import Budget, Schedule
from seqveil.engine.releases import Standings
from seqveil.engine.state import Rows, rounds
from seqveil.engine.stream import REFUSED, Mask, budget_spent, raw_codes
from seqveil.receiver.follow import turns
from seqveil.receiver.learn import Chain, Evidence, Learned, learn
from seqveil.receiver.learn.learner import LARGEST, check_types
from seqveil.receiver.versions import Version, VersionedStreams, Versions, first_version, next_version


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
        """The points among the first so many events."""
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


class _Follower:
    """What a cold start and its receiver have in common."""

    def __init__(self, versions: Versions) -> None:
        self.versions = versions
        self.streams = VersionedStreams(versions[0])

    @property
    def events(self) -> int:
        """Releases so far, of all users."""
        return self.streams.events

    @property
    def worst_release(self) -> float:
        """The most that one release moved a belief under its own version."""
        return self.streams.worst_release

    def accounts(self) -> Standings:
        """Where every user stands, exactly, under the version in force."""
        return self.streams.standings()


class ColdStart(_Follower):
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

    Parameters:
        alphabet: the symbols, or how many there are.
        epsilon: the bound of one release.
        mechanism: of the versions that are learned.
        distortion: what a wrong symbol costs.
        schedule: a period or a `Schedule`, that of all versions.
        start: the mechanism of version 0.
        order: of the learned chains.
        types: how many types of people a learned version may have; a mixture must foretell better than one chain.
        points: when to learn.
        budget: a total, or a `Budget` without window.
        seed: for research only.

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
        types: int = 1,
    ) -> None:
        if isinstance(alphabet, int) and alphabet < 2:
            raise InputError("expected an alphabet, or the number of symbols, at least 2")
        names = symbols_of(None, alphabet) if isinstance(alphabet, int) else symbols_of(alphabet, None)
        if names.n ** (order + 1) > LARGEST:  # now, not at the first point, when releases wait for it
            raise InputError(f"a chain of order {order} over {names.n} symbols is too large to be learned; use fewer")
        begin = first_version(names, start, epsilon, distortion, schedule, budget)
        chosen = mechanisms.find(mechanism)
        if isinstance(chosen, mechanisms.BatchMechanism) or not chosen.sound:
            raise InputError(f'expected a sound mechanism that releases one by one, got "{chosen.name}"')
        self._mechanism, self._order, self._types = chosen.name, order, check_types(types, order)
        self._points = points or Points()
        super().__init__(Versions([begin]))
        self._coins = coins(seed)
        self.tried: list[tuple[int, Learned]] = []  # all that was learned, after how many events
        self._rival: Chain | MarkovModel = Chain.uniform(names.n)

    @property
    def private(self) -> bool:
        """False where it is seeded: anyone with the seed can undo it."""
        return self._coins.private

    def release(self, user: Hashable, value: Any) -> Any:
        """The release of one event of one user."""
        return self.release_many([user], [value])[0]

    def release_many(self, users: Sequence[Hashable], values: Sequence[Any]) -> list[Any]:
        """The releases of events of named users, in their order; a budget that is spent: as in `release_codes`."""
        alphabet = self.versions.alphabet
        codes, _, _ = self.release_codes(users, alphabet.encode(list(values)))
        return list(alphabet.decode(codes))

    def release_codes(self, users: Sequence[Hashable], codes: Ints) -> tuple[Ints, Floats, Ints]:
        """Released codes, the ε used and the number of the version, event by event.

        A call that cannot be is refused before anything is drawn. What was drawn stands: whatever ends a call early, no
        belief has moved by a release that nobody sees, because the error has all three arrays in `made`, with the code
        REFUSED for what was not released. Where a user's budget is spent and the policy is "error", that event and the
        user's later ones are refused: everything else is released, then BudgetSpent is raised.
        """
        raw = raw_codes(codes, self.versions.alphabet.n)
        if len(users) != raw.size:
            raise InputError(f"expected a user for each of {raw.size} events, got {len(users)}")
        rows = self.streams.rows([known_as(user) for user in users])
        made = np.full(rows.size, REFUSED, np.int64), np.zeros(rows.size), np.zeros(rows.size, np.int64)
        spent = np.zeros(len(self.streams), bool)  # whose events are taken no more
        try:
            at = 0
            while at < rows.size:
                part, before = slice(at, min(rows.size, at + self._room())), self.events
                made[2][part] = self.versions.last.number
                self._release(rows[part], raw[part], spent, made[0][part], made[1][part])
                at = part.stop
                if self.events > before and self.events in self._points.upto(self.events):
                    self.learn()
                    if self._points.after(self.events) is None:
                        self.streams.close()
        except Exception as error:
            error.made = made  # type: ignore[attr-defined]  # what was drawn before it, whatever failed
            raise
        if spent.any():
            raise budget_spent(self.versions.last.setting, made[0] == REFUSED, made)
        return made

    def _release(self, rows: Rows, raw: Ints, spent: Mask, codes: Ints, epsilons: Floats) -> None:
        """Release events under the version in force, and write down what came of each."""
        for turn in rounds(rows):
            left = turn[~spent[rows[turn]]]
            if not left.size:
                break
            made = self.streams.release(rows[left], raw[left], self._coins)
            codes[left], epsilons[left] = made.codes, made.epsilons
            spent[rows[left[made.codes == REFUSED]]] = True

    def _room(self) -> int:
        """Events until the next chain is learned."""
        point = self._points.after(self.events)
        return 1 << 62 if point is None else point - self.events

    def learn(self) -> Version | None:
        """Learn from all releases so far; the new version where it earned its place, else None."""
        now = self.versions.last
        evidence = self.streams.evidence()
        learned = learn(evidence, self.versions.alphabet, self._order, rival=self._rival, types=self._types)
        self.tried.append((self.events, learned))
        if learned.held_out is None or not learned.held_out.earned:
            return None
        version = next_version(now, learned, self._mechanism, now.setting.schedule, self.events)
        self.streams.switch(version)
        self.versions.add(version)
        self._rival = learned.chain if learned.types is None else learned.model
        return version

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the versions, models included, to one public file."""
        self.versions.save(path)

    def __repr__(self) -> str:
        users, n = len(self.streams.users), self.versions.alphabet.n
        return f"ColdStart({n} symbols, {users} users, {self.events} events, {self.versions!r})"


class Receiver(_Follower):
    """The same streams as a receiver sees them, from the versions and the releases alone: nothing private.

    *Guarantee*: after the same events, belief and account of every user are those of the cold start, to the last bit.

    `keep` keeps the log of releases (`evidence()`) after the last version has come into force.
    """

    def __init__(self, versions: Versions, keep: bool = False) -> None:
        super().__init__(versions)
        self._keep = keep
        self._seen: list[Rows] = [np.zeros(0, np.intp)]  # whose each release is, as they came

    def observe(self, users: Sequence[Hashable], codes: Ints) -> tuple[Floats, Floats]:
        """The ε that each release used and the most it moved a belief; refuses what the versions cannot have made."""
        rows = self.streams.rows([known_as(user) for user in users])
        if self._keep:
            self._seen.append(rows)
        epsilons, costs, at = np.empty(rows.size), np.empty(rows.size), 0
        while at < rows.size:
            self._come_into_force()
            part = slice(at, min(rows.size, at + self._room()))
            for turn, some, told, _ in turns(rows[part], codes[part]):
                seen = self.streams.observe(some, told)
                epsilons[part][turn], costs[part][turn] = seen.epsilons, seen.costs
            at = part.stop
        self._come_into_force()
        return epsilons, costs

    def evidence(self) -> Evidence:
        """All releases as what can be learned from, in the order they were observed; for a receiver that keeps them."""
        return self.streams.evidence().arranged(np.concatenate(self._seen))

    def _come_into_force(self) -> None:
        number = self.streams.version.number + 1
        if number < len(self.versions) and self.versions[number].after == self.events:
            self.streams.switch(self.versions[number])
            self._come_into_force()
        elif number == len(self.versions) and not self._keep:
            self.streams.close()

    def _room(self) -> int:
        """Events until the next version comes into force."""
        number = self.streams.version.number + 1
        return 1 << 62 if number >= len(self.versions) else self.versions[number].after - self.events
