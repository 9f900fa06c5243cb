"""A released file as its receiver sees it: the setting, and every release in order, those left out included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from seqveil.errors import DataError, InputError
from seqveil.files import Chunk, Columns, read
from seqveil.flow import meta as side
from seqveil.flow.meta import EPSILON, EVENT
from seqveil.flow.release import gaps
from seqveil.flow.rows import CHUNK_ROWS, FilePath, Progress, Source, seconds
from seqveil.kernel import Floats, Ints
from seqveil.model import MarkovModel
from seqveil.stream import NOTHING, Setting

MOST_LEFT_OUT = 1_000_000  # events of one user that one row may skip


@dataclass(frozen=True, eq=False)
class Batch:
    """Consecutive events. `row_of` gives the chunk's row of each event, -1 for an event that went without a release."""

    chunk: Chunk
    users: list[object]
    codes: Ints
    times: Floats | None
    epsilons: Floats | None
    row_of: Ints


@dataclass(frozen=True)
class Received:
    """A released file, the setting it was made with, and its side file where there is one."""

    source: Source
    setting: Setting
    meta: side.Meta | None

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        extras = self._extras()
        follow = _Follow(self.setting) if gaps(self.setting) else None
        for chunk, codes in self.source.coded(self.setting.model.alphabet.with_policy("error"), progress):
            claimed = None if extras is None else next(extras)
            times = seconds(chunk, self.source.name) if self.setting.budget.seconds is not None else None
            users = chunk.users.to_list()
            epsilons = None if claimed is None else claimed[:, 0]
            if follow is None or claimed is None:
                yield Batch(chunk, users, codes, times, epsilons, np.arange(chunk.n))
            else:
                batch = Batch(chunk, users, codes, times, epsilons, np.arange(chunk.n))
                yield follow.fill(self.source.name, batch, claimed[:, 1])

    def _extras(self) -> Iterator[Floats] | None:
        """The columns ε and, where rows may be left out, event: read beside the values, chunk for chunk."""
        names = self.source.columns
        wanted = f"{EPSILON},{EVENT}" if gaps(self.setting) else EPSILON
        try:
            columns = replace(names, value=wanted)
            found = read(self.source.path, columns, self.source.chunk, self.source.format, "number")
            first = next(found)
        except (InputError, StopIteration):
            if gaps(self.setting):
                raise DataError(
                    f'{self.source.name}: the policy "stop" leaves rows out, which only the column {EVENT!r} beside '
                    f"{EPSILON!r} tells; keep both columns of the release"
                ) from None
            return None

        def columns_of(chunk: Chunk) -> Floats:
            values = np.asarray(chunk.values, np.float64)
            return values[:, None] if values.ndim == 1 else values

        def each() -> Iterator[Floats]:
            yield columns_of(first)
            yield from map(columns_of, found)

        return each()


class _Follow:
    """Puts the events that went without a release back where they were."""

    def __init__(self, setting: Setting) -> None:
        self._timed = setting.budget.seconds is not None
        self._seen: dict[object, tuple[int, float]] = {}  # events so far, time of the last one

    def fill(self, name: str, batch: Batch, events: Floats) -> Batch:
        skipped, before = np.zeros(len(batch.users), np.int64), np.zeros(len(batch.users))
        for k, user in enumerate(batch.users):
            count, last = self._seen.get(user, (0, -np.inf))
            gap = float(events[k]) - count
            if not (0 <= gap <= MOST_LEFT_OUT and gap.is_integer()):
                raise DataError(f"{name}: row {batch.chunk.row(k)}: column {EVENT!r} does not count its user's events")
            skipped[k], before[k] = gap, last
            self._seen[user] = (count + int(gap) + 1, float(batch.times[k]) if batch.times is not None else 0.0)
        at = np.cumsum(skipped + 1) - 1
        size = int(at[-1]) + 1
        owner = np.repeat(np.arange(len(at)), skipped + 1)
        codes, row_of, epsilons = np.full(size, NOTHING, np.int64), np.full(size, -1, np.int64), np.full(size, np.nan)
        codes[at], row_of[at] = batch.codes, np.arange(len(at))
        if batch.epsilons is not None:
            epsilons[at] = batch.epsilons
        times = None
        if batch.times is not None:
            # an event without a release came after its user's last one: at that time the budget was gone already
            times = before[owner]
            times[at] = batch.times
        users = [batch.users[k] for k in owner.tolist()]
        return Batch(batch.chunk, users, codes, times, epsilons, row_of)


def receive(
    released: FilePath,
    model: MarkovModel,
    setting: Setting | None = None,
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    sort: bool = False,
    chunk: int = CHUNK_ROWS,
) -> Received:
    """A released file with the setting that its side file gives; `setting` is for files that have none."""
    if str(released) == "-":
        raise InputError("a released file is read more than once, so it cannot come from a pipe; name a file")
    found = side.load(released, meta)
    if found is None and setting is None:
        raise InputError(
            f"{Source(released).name} has no side file; pass --mechanism, --epsilon and the rest as in the release, or "
            "--meta FILE"
        )
    if found is not None:
        side.check_model(found, model)
        if setting is not None and found.get("setting") != setting.describe():
            raise InputError("the side file gives another setting than the options; leave the options out")
    chosen = setting or side.stored_setting(found or {}, model)
    source = Source(released, columns or side.stored_columns(found), format, sort, chunk)
    return Received(source, chosen, found)
