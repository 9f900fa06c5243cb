"""Audit a released file against another chain than the one it was released with."""

from __future__ import annotations

import math

from seqveil.core.errors import DataError
from seqveil.core.model import MarkovModel
from seqveil.interfaces.files import Columns
from seqveil.interfaces.flow.received import Received, receive
from seqveil.interfaces.flow.rows import CHUNK_ROWS, FilePath, Progress
from seqveil.receive.reweigh import Against, Departure, check, merged
from seqveil.release.stream import Setting


def against_file(
    released: FilePath,
    model: MarkovModel,
    other: MarkovModel,
    setting: Setting | None = None,
    *,
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    chunk: int = CHUNK_ROWS,
    memory: int = 1 << 30,
    progress: Progress | None = None,
) -> Departure:
    """What the releases of a file leaked if the truth follows `other`, exactly, from public things alone.

    `model` is the one the file was released with; `other` is any chain over the same alphabet, of any order. Where the
    states of all users do not fit in `memory` bytes, the file is read once for each group of users that do.
    """
    received = receive(released, model, setting, meta, columns, format, chunk=chunk)
    check(received.setting, other)
    if received.setting.in_batches:
        return _batches(received, other, progress)
    numbers = sum(each.size * (1 if each.full_support else 3) for each in (model, other))
    room = max(1, memory // (16 * numbers))
    parts, users, first = [], math.inf, 0
    while first < users:
        found = _one_by_one(received, other, (first, room), progress)
        parts.append(found.report())
        users, first = found.users, first + room
    return merged(parts)


def _one_by_one(received: Received, other: MarkovModel, part: tuple[int, int], progress: Progress | None) -> Against:
    against = Against(received.setting, other, part)
    for batch in received.batches(progress):
        try:
            against.take(batch.users, batch.codes, batch.times)
        except DataError as error:
            rows = f"rows {batch.chunk.row(0)} to {batch.chunk.row(batch.chunk.n - 1)}"
            raise DataError(f"{received.source.name}: {rows}: {error}") from None
    return against


def _batches(received: Received, other: MarkovModel, progress: Progress | None) -> Departure:
    against, size = Against(received.setting, other), received.setting.batch
    for portion in received.portions(progress):
        for sealed in portion.sealed:
            try:
                for _ in range(sealed.skipped):
                    against.take_batch(sealed.user, None, size, sealed.skipped_at)
                against.take_batch(sealed.user, sealed.path, sealed.codes.size, sealed.time)
            except DataError as error:
                rows = f"rows {sealed.rows[0] + 1} to {sealed.rows[-1] + 1}"
                raise DataError(f"{received.source.name}: {rows}: {error}") from None
    return against.report()
