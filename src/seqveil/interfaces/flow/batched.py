"""Rows in, rows out: each event released as it comes, or when it fills its user's batch.

What waits of a batch, at most `batch` - 1 raw symbols a user, waits in memory and is never written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.coins import Coins
from seqveil.core.errors import BudgetSpent, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import Batch, Sent, choose
from seqveil.interfaces.files import Chunk
from seqveil.interfaces.flow.meta import BATCH, EVENT, PATH, SAME_PATH
from seqveil.interfaces.flow.rows import Rows
from seqveil.receive.audit import ROUNDING
from seqveil.release import batches
from seqveil.release.accounting import GONE
from seqveil.release.releases import Releases, Standings
from seqveil.release.secrets import SecretTotal
from seqveil.release.state import State
from seqveil.release.store import Memory
from seqveil.release.stream import NOTHING, Setting
from seqveil.release.streams import Streams

if TYPE_CHECKING:
    import polars as pl

CHUNK_ROWS = 1000  # rows between two signs of progress: a batch may take milliseconds


@dataclass
class Waiting:
    """The rows of a user whose batch is not full. Raw symbols wait in memory alone."""

    user: Any
    codes: list[int] = field(default_factory=list, repr=False)
    order: list[Any] = field(default_factory=list, repr=False)
    time: float | None = None  # of the last one
    place: int = -1  # of the row that filled the batch, among those read with it


class Buffer:
    """Collects the rows of each user until a batch is full."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.waiting: dict[Hashable, Waiting] = {}

    def fill(self, part: Chunk, codes: Ints, times: Floats | None, left_out: set[Hashable]) -> list[Waiting]:
        """The batches that these rows fill, in this order; rows of the users left out are passed over."""
        order = None if part.order is None else part.order.to_physical().to_list()
        full = []
        for k, user in enumerate(part.users.to_list()):
            if user in left_out:
                continue
            held = self.waiting.setdefault(user, Waiting(user))
            held.codes.append(int(codes[k]))
            if order is not None:
                held.order.append(order[k])
            held.time = None if times is None else float(times[k])
            if len(held.codes) == self._batch:
                held.place = k
                full.append(self.waiting.pop(user))
        return full


def batch_rows(like: Chunk, full: Sequence[Waiting], made: Releases) -> Rows:
    """The rows of batches that were released, one after another: the first one of each has its ε and path."""
    import polars as pl

    assert made.sent is not None
    users: list[Any] = []
    order: list[Any] = []
    codes: list[int] = []
    epsilons: list[float] = []
    numbers: list[int] = []
    paths: list[str] = []
    for held, sent, epsilon, seq in zip(full, made.sent, made.epsilons.tolist(), made.seqs.tolist(), strict=False):
        if sent is None:
            continue
        path, told = sent
        length = len(held.codes)
        users += [held.user] * length
        order += held.order
        codes += told.tolist()
        epsilons += [epsilon] + [0.0] * (length - 1)
        numbers += [seq] * length
        paths += [batches.encode_path(path)] + [SAME_PATH] * (length - 1)
    more = {BATCH: np.array(numbers, np.int64), PATH: np.array(paths, np.str_)}
    names = pl.Series(like.users.name, users, dtype=like.users.dtype)
    return Rows(names, order_column(like, order), np.array(codes, np.int64), np.array(epsilons, np.float64), more)


def order_column(like: Chunk, values: list[Any]) -> pl.Series | None:
    """The order column of these rows, of the type that it was read with."""
    import polars as pl

    if like.order is None:
        return None
    kind = like.order.to_physical().dtype
    return pl.Series(like.order.name, values, dtype=kind).cast(like.order.dtype)


class Releaser(ABC):
    """Releases the rows of a file, and counts what becomes of them.

    *Guarantee*: each user's stream is released as by a `Session` of its own, whoever else is in the file.
    """

    choices: dict[str, dict[str, Any]]  # of the chooser: how often which mechanism, and why (the first reason)

    def __init__(self, setting: Setting, coins: Coins, memory: int) -> None:
        self.setting, self.choices = setting, {}
        watch = self._note_choice if setting.mechanism.name == "auto" else None
        self._streams = Streams(setting, Memory(setting, releases=False), coins, memory=memory, watch=watch)
        self.events = self.held = self.stopped = self.refused = 0
        self.failure: SeqveilError | None = None  # why no more can be released; what was stands
        self._spent: set[Hashable] = set()  # users whose rows are taken no more
        self._drawn = False

    @abstractmethod
    def take(self, part: Chunk, codes: Ints, times: Floats | None) -> Rows:
        """The rows that come of these."""

    @abstractmethod
    def finish(self) -> Rows | None:
        """The rows that still come at the end of the file."""

    def standings(self) -> Standings:
        return self._streams.standings()

    def secrets(self) -> list[SecretTotal]:
        return self._streams.secrets()

    def _release(self, users: list[Any], raw: Any, times: Any) -> Releases:
        """What these events were released as; those refused are marked so, and their users' rows taken no more."""
        try:
            made = self._streams.release(users, raw, None, times)
        except SeqveilError as error:
            if not isinstance(error.made, Releases):
                raise
            made = error.made
            if not isinstance(error, BudgetSpent):
                if not self._drawn and made.refused.all():
                    raise  # nothing to keep
                self.failure = error
        self._drawn = True
        self._spent.update(users[k] for k in np.flatnonzero(made.refused))
        return made

    def _note_choice(self, state: State, sent: Sent, epsilon: float) -> None:
        if epsilon < GONE:
            return
        law = filtering.clear(state.states)[0]
        picked, why = choose(Batch(self.setting.model, law, len(sent.codes), epsilon, self.setting.distortion))
        entry = self.choices.setdefault(picked.name, {"batches": 0, "why": why})
        entry["batches"] += 1


class OneByOne(Releaser):
    """Releases each row as it comes."""

    def take(self, part: Chunk, codes: Ints, times: Floats | None) -> Rows:
        users = part.users.to_list()
        left = np.array([k for k, user in enumerate(users) if user not in self._spent], np.intp)
        made = self._release([users[k] for k in left], codes[left], None if times is None else times[left])
        told = np.flatnonzero(made.codes >= 0)
        self.events += part.n
        self.held += int((made.epsilons[told] == 0).sum())
        self.stopped += int((made.codes == NOTHING).sum())
        self.refused += part.n - left.size + int(made.refused.sum())
        at = left[told]
        order = None if part.order is None else part.order.gather(at)
        more = {EVENT: made.seqs[told]} if gaps(self.setting) else {}
        return Rows(part.users.gather(at), order, made.codes[told], made.epsilons[told], more)

    def finish(self) -> None:
        """Nothing waits."""


class Batcher(Releaser):
    """Collects each user's rows into batches and releases a batch when it is full, the short ones at the end."""

    def __init__(self, setting: Setting, coins: Coins, memory: int) -> None:
        super().__init__(setting, coins, memory)
        self._buffer = Buffer(setting.batch)
        self._like: Chunk | None = None

    def take(self, part: Chunk, codes: Ints, times: Floats | None) -> Rows:
        self._like = part
        self.refused += sum(user in self._spent for user in part.users.to_list()) if self._spent else 0
        self.events += part.n
        return self._send(self._buffer.fill(part, codes, times, self._spent))

    def finish(self) -> Rows:
        waiting, self._buffer.waiting = self._buffer.waiting, {}
        return self._send(list(waiting.values()))

    def _send(self, full: list[Waiting]) -> Rows:
        assert self._like is not None  # a file without rows is refused before
        times = None if not full or full[0].time is None else [held.time for held in full]
        made = self._release([held.user for held in full], [np.array(held.codes, np.int64) for held in full], times)
        sizes = np.array([len(held.codes) for held in full], np.int64)
        self.stopped += int(sizes[made.codes == NOTHING].sum())
        self.held += int((made.leakages <= ROUNDING).sum())
        if self.failure is None:
            self.refused += int(sizes[made.refused].sum())
            for user in self._spent & self._buffer.waiting.keys():
                self.refused += len(self._buffer.waiting.pop(user).codes)
        return batch_rows(self._like, full, made)


def gaps(setting: Setting) -> bool:
    """Whether events may go without a release, so that a receiver must be told of them."""
    return setting.budget.limited and setting.budget.when_spent == "stop"
