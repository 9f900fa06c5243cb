"""A large request, released in parts between which the requests of others go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqveil.engine.releases import Releases
from seqveil.engine.stream import Terms
from seqveil.interfaces.events import EventJob

PART, PART_BATCHES, PART_SECRETS = 200, 20, 20  # events of one user that a part of a large request has


@dataclass(eq=False)
class Parts:
    """A job in parts that each take the writer for a moment, and what has come of them so far.

    Parameters:
        job: the whole.
        setting: of the releases.
        most: events of a part.
    """

    job: EventJob
    setting: Terms
    most: int
    done: int = 0  # events that were released

    @cached_property
    def made(self) -> Releases:
        """What was released so far; whatever was not is marked as refused."""
        return Releases.none(np.array(self.job.seqs, np.int64), self.setting.in_batches)

    def __iter__(self) -> Iterator[EventJob]:
        """The parts; `take` what came of one before the next."""
        job = self.job
        for begin, end in self._cuts():
            part = slice(begin, end)
            times = None if job.times is None else job.times[part]
            yield EventJob(job.users[part], job.seqs[part], job.raw[part], times)
        job.raw = []

    def place(self, position: int) -> int:
        """The place in the job of what stands at this position of the part that is being released."""
        return self.done + position

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
        each = PART if self.setting.trackers is None else PART_SECRETS
        return min(each, PART_BATCHES) if self.setting.in_batches else each

    @property
    def several(self) -> bool:
        """Whether there is more than one part."""
        job = self.job
        if job.size <= min(self._rounds, self.most):
            return False
        return job.size > self.most or max(Counter(job.users).values()) > self._rounds

    def take(self, made: Releases) -> None:
        """Note what came of the part under way."""
        whole, part = self.made, slice(self.done, self.done + len(made))
        for name in ("codes", "epsilons", "replayed", "leakages"):
            getattr(whole, name)[part] = getattr(made, name)
        if whole.sent is not None and made.sent is not None:
            whole.sent[part] = made.sent
        self.done += len(made)
