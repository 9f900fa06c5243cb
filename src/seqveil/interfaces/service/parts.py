"""A large request, released in parts between which the requests of others go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from seqveil.engine.releases import Releases
from seqveil.engine.stream import Setting, budget_spent
from seqveil.interfaces.events import Job

PART, PART_BATCHES, PART_SECRETS = 200, 20, 20  # events of one user that a part of a large request has


@dataclass(eq=False)
class Parts:
    """A job in parts that each take the writer for a moment, and what has come of them so far.

    A user whose budget turns out to be spent is left out of the later parts, as the later events of that user are
    refused in one transaction too.

    Parameters:
        job: the whole.
        setting: of the releases.
        most: events of a part.
    """

    job: Job
    setting: Setting
    most: int
    done: int = 0  # events that were looked at
    _refused: dict[str, int] = field(default_factory=dict)  # the first number that was refused, of each such user
    _under_way: list[int] | None = None  # the places of the part that is being released

    @cached_property
    def made(self) -> Releases:
        """What was released so far; whatever was not is as if it were refused."""
        return Releases.none(np.array(self.job.seqs, np.int64), self.setting.in_batches)

    def __iter__(self) -> Iterator[tuple[list[int], Job]]:
        """The places of each part in the job, and the part; `take` what came of one before the next."""
        for begin, end in self._cuts():
            places = [k for k in range(begin, end) if not self._shut(k)]
            if places:
                self._under_way = places
                yield places, self._part(places)
            self.done = end
        self.job.raw = []

    def place(self, position: int) -> int:
        """The place in the job of what stands at this position of the part that is being released."""
        return position if self._under_way is None else self._under_way[position]

    def _shut(self, k: int) -> bool:
        """Whether an event comes after one of its user that was refused."""
        first = self._refused.get(self.job.users[k])
        return first is not None and self.job.seqs[k] >= first

    def _cuts(self) -> Iterator[tuple[int, int]]:
        rounds, begin, counts = self._rounds, 0, dict[str, int]()
        for k, user in enumerate(self.job.users):
            if k - begin >= self.most or counts.get(user, 0) >= rounds:
                yield begin, k
                begin, counts = k, {}
            counts[user] = counts.get(user, 0) + 1
        yield begin, self.job.size

    @property
    def _rounds(self) -> int:
        each = PART if self.setting.watches is None else PART_SECRETS
        return min(each, PART_BATCHES) if self.setting.in_batches else each

    @property
    def several(self) -> bool:
        """Whether there is more than one part."""
        job = self.job
        if job.size <= min(self._rounds, self.most):
            return False
        return job.size > self.most or max(Counter(job.users).values()) > self._rounds

    def _part(self, places: list[int]) -> Job:
        job = self.job
        times = None if job.times is None else [job.times[k] for k in places]
        return Job([job.users[k] for k in places], [job.seqs[k] for k in places], [job.raw[k] for k in places], times)

    def take(self, places: list[int], made: Releases) -> None:
        """Note what came of a part."""
        whole = self.made
        for name in ("codes", "epsilons", "replayed", "leakages"):
            getattr(whole, name)[places] = getattr(made, name)
        if whole.sent is not None and made.sent is not None:
            for k, sent in zip(places, made.sent, strict=True):
                whole.sent[k] = sent
        for at in np.flatnonzero(made.refused).tolist():
            user, seq = self.job.users[places[at]], self.job.seqs[places[at]]
            self._refused[user] = min(seq, self._refused.get(user, seq))

    def result(self) -> Releases:
        """What the whole was released as; `BudgetSpent` where events were refused for their budget."""
        if self.made.refused.any():
            raise budget_spent(self.setting, self.made.refused, self.made)
        return self.made
