"""Decode a released file: for every row the receiver's best estimate of the truth, from model and releases alone."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.bulk import Layout
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.interfaces.files import Columns, Writer
from seqveil.interfaces.flow.meta import CONFIDENCE
from seqveil.interfaces.flow.received import Received, receive
from seqveil.interfaces.flow.rows import CHUNK_ROWS, FilePath, Progress, Table, symbol_columns, value_type_of
from seqveil.interfaces.flow.verdict import Verdict, verdict_of
from seqveil.receive.decode import decode_codes, filter_codes, observe_paths
from seqveil.release import batches
from seqveil.release.stream import Setting

TOGETHER = 1 << 24  # numbers that the laws of one batch of streams may take
LONGEST = 1 << 29  # numbers that the laws of one stream may take


@dataclass(frozen=True, eq=False)
class Decoded:
    """How much was decoded, the mean probability of the estimates, and how often each symbol is expected to occur.

    Both hold under the model; the verdict says whether the releases fit it.
    """

    rows: int
    users: int
    confidence: float
    histogram: Floats
    verdict: Verdict


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
    each symbol is expected to have occurred. Users of equal length are decoded together, releases in batches user by
    user, where `online` uses the releases up to each row's batch. The releases are asked, too, whether they fit the
    model that all of this rests on.
    """
    received = receive(released, model, setting, meta, columns, format, chunk=chunk)
    loss = received.setting.distortion if distortion is None else resolve(distortion, model.alphabet)
    users, sheet = (_decode_batches if received.setting.in_batches else _decode)(received, loss, online, progress)
    table, source = Table(model.alphabet, received.source.columns), received.source
    at = 0
    with Writer(out, out_format, (released, *inputs)) as writer:
        for part in source.chunks(value_type_of(model.alphabet), progress, again=True):
            rows = slice(at, at + part.n)
            writer.write(
                table.frame(part, sheet.estimates[rows].astype(np.int64), {CONFIDENCE: sheet.confidence[rows]})
            )
            at += part.n
        if histogram is not None:
            _write_histogram(histogram, model, source.columns, sheet.expected, (released, *inputs))
    sure, verdict = float(sheet.confidence.mean(dtype=np.float64)), verdict_of(received, progress)
    return Decoded(at, users, sure, sheet.expected, verdict)


class _Sheet:
    """Estimate and its probability for every row, and the expected number of times each symbol occurred."""

    def __init__(self, rows: int, loss: Distortion, n: int) -> None:
        self.estimates: NDArray[np.int32] = np.zeros(rows, np.int32)
        self.confidence: NDArray[np.float32] = np.zeros(rows, np.float32)
        self.expected: Floats = np.zeros(n)
        self._loss = loss

    def fill(self, at: Ints, laws: Floats) -> None:
        """Enter the laws of the rows `at`; -1 is no row."""
        best = self._loss.best_guess(laws)
        sure = np.take_along_axis(laws, best[..., None], -1)[..., 0]
        self.estimates[at[at >= 0]], self.confidence[at[at >= 0]] = best[at >= 0], sure[at >= 0]
        self.expected += laws[at >= 0].sum(0)


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


def groups(ids: Ints, width: int, online: bool) -> Iterator[Ints]:
    """Positions of the events of users with streams of one length, (users, length), as many as fit together.

    `ids` are the users event by event, `width` the numbers that one event takes.
    """
    layout, room = Layout.of(ids), max(1, TOGETHER // width)
    longest = int(layout.lengths.max(initial=0))
    if not online and longest * width > LONGEST:
        raise InputError(f"a stream of {longest} rows over {width} numbers is too long to smooth; pass --online")
    blocks = layout.blocks(most=room, alike=True) if online else layout.blocks(numbers=room, alike=True)
    return (places for places, _ in blocks)


def _decode(received: Received, loss: Distortion, online: bool, progress: Progress | None) -> tuple[int, _Sheet]:
    setting, log = received.setting, _Log.of(received, progress)
    sheet = _Sheet(int(log.rows.max()) + 1, loss, setting.model.n)
    for places in groups(log.ids, 2 * setting.model.size + 2 * setting.model.n, online):
        codes, times = log.codes[places].astype(np.int64), None if log.times is None else log.times[places]
        try:
            for steps, laws in (_filtered if online else _smoothed)(setting, codes, times):
                sheet.fill(log.rows[places[:, steps]], laws)
        except DataError as error:
            raise DataError(f"{received.source.name}: {error}") from None
    return log.users, sheet


@dataclass
class _Paths:
    """One user's batches: path (None: left out), time, and the rows, all in a few bytes."""

    paths: list[tuple[int, ...] | None] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)
    rows: array[int] = field(default_factory=lambda: array("q"))  # -1 for an event without a release


def _decode_batches(
    received: Received, loss: Distortion, online: bool, progress: Progress | None
) -> tuple[int, _Sheet]:
    setting, users, count = received.setting, dict[Hashable, _Paths](), 0
    for portion in received.portions(progress):
        count += len(portion.paths)
        for sealed in portion.sealed:
            log = users.setdefault(sealed.user, _Paths())
            log.paths += [None] * sealed.skipped + [sealed.path]
            log.times += [sealed.skipped_at] * sealed.skipped + [sealed.time]
            log.rows.extend([-1] * (sealed.skipped * setting.batch) + sealed.rows.tolist())
    sheet = _Sheet(count, loss, setting.model.n)
    for log in users.values():
        rows = np.array(log.rows, np.int64)
        if not online and rows.size * setting.model.n > LONGEST:
            raise InputError(f"a stream of {rows.size} rows is too long to smooth; pass --online")
        try:
            for begin, laws in _batch_laws(setting, log, rows.size, online):
                sheet.fill(rows[begin : begin + len(laws)], laws)
        except DataError as error:
            raise DataError(f"{received.source.name}: {error}") from None
    return len(users), sheet


def _batch_laws(setting: Setting, log: _Paths, length: int, online: bool) -> Iterator[tuple[int, Floats]]:
    """Laws, and the row where they begin: online batch by batch, else of the whole stream at once."""
    observed = observe_paths(setting, log.paths, length, log.times)
    if not online:
        yield 0, batches.smooth(setting, list(observed))
        return
    for k, sent in enumerate(observed):
        yield k * setting.batch, batches.filtered(setting, [sent])


def _smoothed(setting: Setting, codes: Ints, times: Floats | None) -> Iterator[tuple[slice, Floats]]:
    yield slice(None), decode_codes(setting, codes, times)


def _filtered(setting: Setting, codes: Ints, times: Floats | None) -> Iterator[tuple[slice, Floats]]:
    """Laws step by step, each given the releases up to it: only one step is held at a time."""
    for t, (law, _) in enumerate(filter_codes(setting, codes, times)):
        yield slice(t, t + 1), filtering.symbols(setting.model, law)[:, None]


def _write_histogram(
    path: FilePath, model: MarkovModel, columns: Columns, expected: Floats, inputs: tuple[FilePath, ...]
) -> None:
    import polars as pl

    with Writer(path, inputs=inputs) as writer:
        writer.write(
            pl.DataFrame([*symbol_columns(model.alphabet, columns.value_columns), pl.Series("expected", expected)])
        )
