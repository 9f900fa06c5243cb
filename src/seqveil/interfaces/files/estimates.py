"""What a receiver makes of a released file, from model and releases alone: estimates of its rows, counts, a chain.

All of it is post-processing and costs no privacy.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Symbols
from seqveil.core.bulk import Layout, numbered
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.engine import batches
from seqveil.engine.stream import Released, Terms
from seqveil.interfaces.files.audit import checked, drift_of, said_of
from seqveil.interfaces.files.columns import Columns, Holes
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.received import Received, Where, receive
from seqveil.interfaces.files.rows import Progress, Source, Table, symbol_columns, value_type_of
from seqveil.interfaces.files.truth import paired
from seqveil.interfaces.files.writing import CONFIDENCE, Held, Writer
from seqveil.receiver.decode import decode_steps, observe_sized
from seqveil.receiver.drift import ModelCheck
from seqveil.receiver.statistics import Summary, summarise

if TYPE_CHECKING:
    import polars as pl

    from seqveil.receiver.learn import Evidence, Learned, Region

TOGETHER = 1 << 25  # numbers that the distributions of one batch of streams may take
WORTH_A_CALL = 1 << 14  # numbers of distributions that are turned into estimates together
LONGEST = 1 << 29  # numbers that the distributions of one stream may take


@dataclass(frozen=True, eq=False)
class Decoded:
    """How much was decoded, the mean probability of the estimates, and how often each symbol is expected to occur.

    Both hold under the model; the check says whether the releases fit it. `right` is the share of estimates that are
    the truth, where the truth was given.
    """

    rows: int
    users: int
    confidence: float
    histogram: Floats
    check: ModelCheck
    right: float | None = None
    away: float | None = None  # their mean cost, where the loss is a distance and the truth was given
    loss: str = ""  # the name of the loss that they minimise


def decode_file(
    released: FilePath | pl.DataFrame,
    model: MarkovModel,
    out: FilePath | Held,
    setting: Terms | None = None,
    *,
    online: bool = False,
    distortion: str | Distortion | None = None,
    histogram: FilePath | None = None,
    out_format: str | None = None,
    inputs: tuple[FilePath, ...] = (),
    progress: Progress | None = None,
    truth: FilePath | pl.DataFrame | None = None,
    **where: Unpack[Where],
) -> Decoded:
    """Write the best estimate of each row's true value and its probability (`confidence`), in the order of the rows.

    `online` uses the releases up to each row only, else all of its user's; `distortion` is the loss the estimate
    minimises (by default the release's); `histogram` names a file for how often each symbol is expected to have
    occurred. Users are decoded side by side, releases in batches user by user, where `online` uses the releases up to
    each row's batch. The releases are asked, too, whether they fit the model that all of this rests on.

    With `truth`, the raw file that was released, the share of estimates that are right is counted as well. Where `out`
    is `Held`, the rows stay in memory.
    """
    received = receive(released, model, setting, **where)
    alphabet, source = received.setting.model.alphabet, received.source
    holes: Holes = "empty" if received.setting.withhold else "none"
    disclosed = None
    if truth is not None:
        raw = Source.released(truth, source.columns, missing=alphabet.missing, slots=alphabet.slots)
        disclosed = paired(source, raw, alphabet, received.setting.batch, progress).codes
    loss = received.setting.distortion if distortion is None else resolve(distortion, alphabet)
    decode = _decode_batches if received.setting.in_batches else _decode_symbols
    users, sheet = decode(received, loss, online, progress)
    table, at = Table(alphabet, source.columns), 0
    read = tuple(path for path in (released, *inputs, truth) if isinstance(path, str | os.PathLike))
    with out if isinstance(out, Held) else Writer(out, out_format, read) as writer:
        for part in source.chunks(value_type_of(alphabet), progress, again=True, holes=holes):
            rows = slice(at, at + part.n)
            codes, sure = sheet.estimates[rows].astype(np.int64), sheet.confidence[rows]
            writer.write(table.frame(part.users, part.order, codes, {CONFIDENCE: sure}))
            at += part.n
        if histogram is not None:
            _write_histogram(histogram, alphabet, source.columns, sheet.expected, read)
    mean = float(sheet.confidence.mean(dtype=np.float64))
    known = disclosed is not None and (disclosed >= 0).any()
    found = Decoded(at, users, mean, sheet.expected, sheet.check)
    if disclosed is None or not known:
        return found
    true, guess = disclosed[disclosed >= 0], sheet.estimates[disclosed >= 0].astype(np.int64)
    away = None if loss.is_hamming else float(loss.between(true, guess).mean())
    return replace(found, right=float((guess == true).mean()), away=away, loss=loss.name)


class _Sheet:
    """Estimate and its probability for every row, and the expected number of times each symbol occurred."""

    def __init__(self, rows: int, loss: Distortion, n: int) -> None:
        self.estimates: NDArray[np.int32] = np.zeros(rows, np.int32)
        self.confidence: NDArray[np.float32] = np.zeros(rows, np.float32)
        self.expected: Floats = np.zeros(n)
        self.check = said_of(None)
        self._loss = loss

    def fill(self, at: Ints, distributions: Floats) -> None:
        """Enter the distributions of the rows `at`; -1 is no row."""
        best = self._loss.best_guess(distributions)
        sure = distributions[np.arange(len(distributions)), best]
        if at.size and at.min() < 0:
            at, best, sure, distributions = at[at >= 0], best[at >= 0], sure[at >= 0], distributions[at >= 0]
        self.estimates[at], self.confidence[at] = best, sure
        self.expected += distributions.sum(0)


@dataclass(frozen=True, eq=False)
class _Log:
    """All events of a file, in a few bytes each: user, code, time, and the row (-1 for an event without a release)."""

    ids: NDArray[np.int32]
    codes: NDArray[np.int32]
    times: Floats | None
    rows: Ints
    users: int
    epsilons: Floats | None  # of blocks, where the file has them

    @classmethod
    def of(cls, received: Received, progress: Progress | None) -> _Log:
        """The events of a release one by one, users numbered as they come."""
        index: dict[Hashable, int] = {}
        ids, codes, times, rows, used, at = [], [], [], [], [], 0
        for batch in received.batches(progress):
            ids.append(numbered(index, batch.users).astype(np.int32))
            codes.append(batch.codes.astype(np.int32))
            if batch.times is not None:
                times.append(batch.times)
            if received.setting.in_blocks and batch.epsilons is not None:
                used.append(batch.epsilons)
            rows.append(np.where(batch.row_of < 0, -1, batch.row_of + at))
            at += batch.chunk.n
        stamps, epsilons = (np.concatenate(each) if each else None for each in (times, used))
        return cls(np.concatenate(ids), np.concatenate(codes), stamps, np.concatenate(rows), len(index), epsilons)

    @property
    def events(self) -> tuple[NDArray[np.intp], Ints, Floats | None]:
        """Users, codes and times, as all that follows releases takes them."""
        return self.ids.astype(np.intp), self.codes.astype(np.int64), self.times


def groups(ids: Ints, width: int, online: bool) -> Iterator[list[Ints]]:
    """Streams that are decoded together, as many as fit: the positions of their t-th events for t = 0, 1, …

    `ids` are the users event by event, `width` the numbers that one event takes.
    """
    layout, room = Layout.of(ids), max(1, TOGETHER // width)
    longest = int(layout.lengths.max(initial=0))
    if not online and longest * width > LONGEST:
        raise InputError(f"a stream of {longest} rows over {width} numbers is too long to smooth; pass --online")
    parts = layout.parts(most=room) if online else layout.parts(events=room)
    return (list(part.steps()) for part in parts)


def _together(steps: list[Ints], found: Iterator[tuple[int, Floats]]) -> Iterator[tuple[Ints, Floats]]:
    """The distributions of several steps at once, with their places: short steps are not worth a call each."""
    places, distributions, held = list[Ints](), list[Floats](), 0
    for t, distribution in found:
        places.append(steps[t])
        distributions.append(distribution)
        held += distribution.size
        if held >= WORTH_A_CALL:
            yield np.concatenate(places), np.concatenate(distributions)
            places, distributions, held = [], [], 0
    if places:
        yield np.concatenate(places), np.concatenate(distributions)


def _decode_symbols(
    received: Received, loss: Distortion, online: bool, progress: Progress | None
) -> tuple[int, _Sheet]:
    setting, log = received.setting, _Log.of(received, progress)
    sheet, drift = _Sheet(int(log.rows.max()) + 1, loss, setting.model.n), drift_of(setting)
    for steps in groups(log.ids.astype(np.int64), setting.model.size + setting.model.n, online):

        def ask(t: int, seen: Released, steps: list[Ints] = steps) -> None:
            if drift is not None:
                drift.take(log.ids[steps[t]].astype(np.intp), seen)

        codes = [log.codes[places].astype(np.int64) for places in steps]
        times = None if log.times is None else [log.times[places] for places in steps]
        used = None if log.epsilons is None else [log.epsilons[places] for places in steps]
        with received.naming():
            found = decode_steps(setting, codes, times, not online, ask, used)
            for places, distributions in _together(steps, found):
                sheet.fill(log.rows[places], distributions)
        if progress is not None:
            progress(sum(places.size for places in steps))
    sheet.check = said_of(drift)
    return log.users, sheet


@dataclass
class _Paths:
    """One user's batches: path (None: left out), time, and the rows, all in a few bytes."""

    paths: list[tuple[int, ...] | None] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)
    rows: array[int] = field(default_factory=lambda: array("q"))  # -1 for an event without a release
    sizes: list[int] = field(default_factory=list)


def _decode_batches(
    received: Received, loss: Distortion, online: bool, progress: Progress | None
) -> tuple[int, _Sheet]:
    setting, users, count = received.setting, dict[Hashable, _Paths](), 0
    for portion in received.portions(progress):
        count += len(portion.paths)
        for sealed in portion.sealed:
            log = users.setdefault(sealed.user, _Paths())
            log.paths.append(sealed.path)
            log.times.append(sealed.time)
            log.rows.extend(sealed.rows.tolist())
            log.sizes.append(sealed.rows.size)
    sheet = _Sheet(count, loss, setting.model.n)
    for log in users.values():
        rows = np.array(log.rows, np.int64)
        if not online and rows.size * setting.model.n > LONGEST:
            raise InputError(f"a stream of {rows.size} rows is too long to smooth; pass --online")
        with received.naming():
            observed = observe_sized(setting, log.paths, log.sizes, log.times)
            if not online:
                sheet.fill(rows, batches.smooth(setting, list(observed)))
                continue
            parts = np.split(rows, np.cumsum(log.sizes)[:-1])
            for own, sent in zip(parts, observed, strict=True):
                sheet.fill(own, batches.filtered(setting, [sent]))
    return len(users), sheet


def _write_histogram(
    path: FilePath, alphabet: Symbols, columns: Columns, expected: Floats, inputs: tuple[FilePath, ...]
) -> None:
    import polars as pl

    with Writer(path, inputs=inputs) as writer:
        writer.write(pl.DataFrame([*symbol_columns(alphabet, columns.value_columns), pl.Series("expected", expected)]))


@dataclass(frozen=True, eq=False)
class Counted:
    """A summary of a released file, whether its releases fit the model, and whether the summary has intervals."""

    summary: Summary
    check: ModelCheck
    intervals: bool


def summarise_file(
    released: FilePath | pl.DataFrame,
    model: MarkovModel,
    setting: Terms | None = None,
    *,
    confidence: float = 0.95,
    window: int | None = None,
    top: int = 5,
    method: str = "auto",
    progress: Progress | None = None,
    **where: Unpack[Where],
) -> Counted:
    """What the releases of a file say about the streams behind them; see `seqveil.statistics.summarise`.

    The releases are asked first whether they fit the model. If they speak against it, or if the model is of a higher
    order or of several types, intervals that rest on one chain of order 1 are left out: the estimates lean on it
    themselves, so no spread around them would say how far off they are. Guarded releases are read under the model
    itself where it is more than one chain, and then have intervals unless they speak against it; without intervals, a
    symbol that they hardly tell has no estimate.
    Intervals by "design" rest on no model and stay. The codes of all releases are held in memory.
    """
    received = receive(released, model, setting, **where)
    log = None if received.setting.in_batches else _Log.of(received, progress)
    users, codes, stamps = (np.zeros(0, np.intp), np.zeros(0, np.int64), None) if log is None else log.events
    options: dict[str, Any] = {"confidence": confidence, "window": window, "top": top, "method": method}
    found = summarise(received.setting, users.tolist(), codes, stamps, **options)
    check = checked(received, progress)
    one_chain = model.size == model.n  # else the model itself says that one chain of order 1 does not describe people
    read_rightly = one_chain or found.method == "model"
    supported = found.method == "design" or (check.fits is not False and read_rightly)
    return Counted(found if supported else found.without_intervals(), check, supported)


@dataclass(frozen=True, eq=False)
class LearnedFile:
    """A chain learned from a file, and how far off it may be (None where that is too large to compute)."""

    learned: Learned
    region: Region | None


def learn_file(
    released: FilePath,
    model: MarkovModel,
    setting: Terms | None = None,
    *,
    order: int = 1,
    strength: float | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
    **where: Unpack[Where],
) -> LearnedFile:
    """The chain behind a released file; `model` is what the release was made with.

    *Guarantee*: post-processing of what is public already. The kernels are recomputed from the model and the releases,
    so a file that they cannot have made is refused.
    """
    from seqveil.receiver.learn import MOST_PARAMETERS, learn, region

    received = receive(released, model, setting, **where)
    evidence = evidence_of(received, progress)
    learned = learn(evidence, model.alphabet, order, strength=strength)
    small = learned.chain.rows.size + learned.chain.first.size <= MOST_PARAMETERS
    return LearnedFile(learned, region(learned, evidence, confidence) if small else None)


def evidence_of(received: Received, progress: Progress | None = None) -> Evidence:
    """What each release of a file tells of the truth, in the file's order; users numbered as they come."""
    from seqveil.receiver.learn import Evidence

    if received.setting.in_batches:
        raise InputError("a release in batches cannot be learned from; release one by one what shall be")
    if received.setting.budget.seconds is not None:
        raise InputError("a release with a budget per seconds cannot be learned from; use a budget without a window")
    log = _Log.of(received, progress)
    with received.naming():
        return Evidence.of_streams(received.setting, *log.events)
