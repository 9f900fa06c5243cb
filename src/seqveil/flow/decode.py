"""Decode a released file: for every row the receiver's best estimate of the truth, from model and releases alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqveil import belief, stream
from seqveil.decode import decode_codes
from seqveil.distortion import Distortion, resolve
from seqveil.errors import DataError, InputError
from seqveil.files import Columns, Writer
from seqveil.flow.meta import CONFIDENCE
from seqveil.flow.received import Received, receive
from seqveil.flow.rows import CHUNK_ROWS, FilePath, Progress, Table, symbol_columns, value_type_of
from seqveil.kernel import Floats, Ints
from seqveil.model import MarkovModel
from seqveil.stream import Setting

TOGETHER = 1 << 24  # numbers that the laws of one batch of streams may take
LONGEST = 1 << 29  # numbers that the laws of one stream may take


@dataclass(frozen=True, eq=False)
class Decoded:
    """How much was decoded, the mean probability of the estimates, and how often each symbol is expected to occur."""

    rows: int
    users: int
    confidence: float
    histogram: Floats


def decode_file(
    released: FilePath,
    model: MarkovModel,
    out: FilePath,
    setting: Setting | None = None,
    *,
    online: bool = False,
    distortion: str | Distortion | None = None,
    histogram: FilePath | None = None,
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    out_format: str | None = None,
    inputs: tuple[FilePath, ...] = (),
    chunk: int = CHUNK_ROWS,
    progress: Progress | None = None,
) -> Decoded:
    """Write the best estimate of each row's true value and its probability (`confidence`), in the order of the rows.

    It is post-processing and costs no privacy. `online` uses the releases up to each row only, else all of its user's;
    `distortion` is the loss the estimate minimises (by default the release's); `histogram` names a file for how often
    each symbol is expected to have occurred. Users of equal length are decoded together.
    """
    received = receive(released, model, setting, meta, columns, format, chunk=chunk)
    loss = received.setting.distortion if distortion is None else resolve(distortion, model.alphabet)
    log = _Log.of(received, progress)
    estimates, confidence, expected = _decode(received, log, loss, online)
    table, source = Table(model.alphabet, received.source.columns), received.source
    at = 0
    with Writer(out, out_format, (released, *inputs)) as writer:
        for part in source.chunks(value_type_of(model.alphabet), progress, again=True):
            rows = slice(at, at + part.n)
            writer.write(table.frame(part, estimates[rows].astype(np.int64), {CONFIDENCE: confidence[rows]}))
            at += part.n
        if histogram is not None:
            _write_histogram(histogram, model, source.columns, expected, (released, *inputs))
    return Decoded(at, log.users, float(confidence.mean(dtype=np.float64)), expected)


@dataclass(frozen=True, eq=False)
class _Log:
    """All events of a file, in a few bytes each: user, code, time, and the row (-1 for an event without a release)."""

    ids: Ints
    codes: Ints
    times: Floats | None
    rows: Ints
    users: int

    @classmethod
    def of(cls, received: Received, progress: Progress | None) -> _Log:
        index: dict[Hashable, int] = {}
        ids, codes, times, rows, at = [], [], [], [], 0
        for batch in received.batches(progress):
            ids.append(np.array([index.setdefault(user, len(index)) for user in batch.users], np.int32))
            codes.append(batch.codes.astype(np.int32))
            if batch.times is not None:
                times.append(batch.times)
            rows.append(np.where(batch.row_of < 0, -1, batch.row_of + at))
            at += batch.chunk.n
        stamps = np.concatenate(times) if times else None
        return cls(np.concatenate(ids), np.concatenate(codes), stamps, np.concatenate(rows), len(index))

    def groups(self, width: int, online: bool) -> Iterator[Ints]:
        """Positions of the events of users with streams of one length, (users, length), as many as fit together."""
        order = np.argsort(self.ids, kind="stable")
        lengths = np.bincount(self.ids, minlength=self.users)
        begins = np.cumsum(lengths) - lengths
        for length in np.unique(lengths).tolist():
            numbers = width * (1 if online else length)
            if numbers > LONGEST:
                raise InputError(f"a stream of {length} rows over {width} numbers is too long to smooth; pass --online")
            members, size = np.flatnonzero(lengths == length), max(1, TOGETHER // numbers)
            for first in range(0, members.size, size):
                yield order[begins[members[first : first + size], None] + np.arange(length)]


def _decode(
    received: Received, log: _Log, loss: Distortion, online: bool
) -> tuple[NDArray[np.int32], NDArray[np.float32], Floats]:
    """Estimate and its probability for every row, and the expected number of times each symbol occurred."""
    setting, count = received.setting, int(log.rows.max()) + 1
    estimates, confidence = np.zeros(count, np.int32), np.zeros(count, np.float32)
    expected = np.zeros(setting.model.n)
    for places in log.groups(2 * setting.model.size + 2 * setting.model.n, online):
        codes, times = log.codes[places].astype(np.int64), None if log.times is None else log.times[places]
        try:
            for steps, laws in (_filtered if online else _smoothed)(setting, codes, times):
                at = log.rows[places[:, steps]]
                best = loss.best_guess(laws)
                sure = np.take_along_axis(laws, best[..., None], -1)[..., 0]
                estimates[at[at >= 0]], confidence[at[at >= 0]] = best[at >= 0], sure[at >= 0]
                expected += laws[at >= 0].sum(0)
        except DataError as error:
            raise DataError(f"{received.source.name}: {error}") from None
    return estimates, confidence, expected


def _smoothed(setting: Setting, codes: Ints, times: Floats | None) -> Iterator[tuple[slice, Floats]]:
    yield slice(None), decode_codes(setting, codes, times)


def _filtered(setting: Setting, codes: Ints, times: Floats | None) -> Iterator[tuple[slice, Floats]]:
    """Laws step by step, each given the releases up to it: only one step is held at a time."""
    model, state = setting.model, stream.State.start(setting, len(codes))
    for t in range(codes.shape[1]):
        seen, after = stream.observe(setting, state, codes[:, t], None if times is None else times[:, t])
        posterior, _ = belief.condition(model, state.states, seen.columns)
        yield slice(t, t + 1), belief.symbols(model, posterior)[:, None]
        state = after


def _write_histogram(
    path: FilePath, model: MarkovModel, columns: Columns, expected: Floats, inputs: tuple[FilePath, ...]
) -> None:
    import polars as pl

    with Writer(path, inputs=inputs) as writer:
        writer.write(
            pl.DataFrame([*symbol_columns(model.alphabet, columns.value_columns), pl.Series("expected", expected)])
        )
