"""A released file as its receiver sees it: the setting, and every release in order, those left out included."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.interfaces.files import Chunk, Columns, read
from seqveil.interfaces.flow import batched
from seqveil.interfaces.flow import meta as side
from seqveil.interfaces.flow.batched import gaps
from seqveil.interfaces.flow.meta import BATCH, EPSILON, EVENT, PATH, SAME_PATH
from seqveil.interfaces.flow.rows import CHUNK_ROWS, FilePath, Progress, Source, ValueType, columns_for, seconds
from seqveil.release.batches import decode_path, encode_path
from seqveil.release.stream import NOTHING, Setting

if TYPE_CHECKING:
    import polars as pl

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


@dataclass(frozen=True, eq=False)
class Sealed:
    """One released batch of a user, whole; `skipped` full batches before it went without a release."""

    user: Hashable
    path: tuple[int, ...]
    skipped: int
    skipped_at: float | None  # the time of the user's last release, where times count
    codes: Ints
    epsilons: Floats
    rows: Ints  # places in the file, from 0
    time: float | None


@dataclass(frozen=True, eq=False)
class Portion:
    """Consecutive rows of a file of batches, as they stand there, and the batches that were whole with them."""

    users: pl.Series
    codes: Ints
    epsilons: Floats
    batches: list[int]
    paths: list[str]
    sealed: list[Sealed]


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

    def portions(self, progress: Progress | None = None) -> Iterator[Portion]:
        """The rows of a release in batches, and the batches they make up."""
        source = replace(self.source, chunk=min(self.source.chunk, batched.CHUNK_ROWS))
        binder = _Binder(self.setting, source.name)
        numbers, texts = (self._beside(source, *what) for what in ((f"{EPSILON},{BATCH}", "number"), (PATH, "text")))
        last: Portion | None = None
        for chunk, codes in source.coded(self.setting.model.alphabet.with_policy("error"), progress):
            claimed, paths = np.asarray(next(numbers).values, np.float64), list(next(texts).values)
            times = seconds(chunk, source.name) if self.setting.budget.seconds is not None else None
            sealed = binder.bind(chunk, codes, claimed, paths, times)
            last = Portion(chunk.users, codes, claimed[:, 0], claimed[:, 1].astype(np.int64).tolist(), paths, sealed)
            yield last
        assert last is not None  # a file without rows is refused
        none = np.zeros(0, np.int64)
        yield Portion(last.users.clear(), none, none.astype(np.float64), [], [], binder.end())

    def _beside(self, source: Source, names: str, kind: ValueType) -> Iterator[Chunk]:
        """Further columns of the file, chunk for chunk."""
        try:
            yield from read(source.path, replace(source.columns, value=names), source.chunk, source.format, kind)
        except DataError as error:
            if "no column" not in str(error):
                raise
            raise DataError(
                f"{source.name}: a release in batches has the columns {EPSILON!r}, {BATCH!r} and {PATH!r}; keep all "
                "columns of the release, and give the --batch it was made with"
            ) from None

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


@dataclass
class _Open:
    """A batch of which rows may still come."""

    number: int
    path: tuple[int, ...]
    skipped: int
    skipped_at: float | None
    begins: int  # the file's row, for messages
    codes: list[int] = field(default_factory=list, repr=False)
    epsilons: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    time: float | None = None


class _Binder:
    """Puts the rows of batches together again, user by user; refuses what `release` does not write."""

    def __init__(self, setting: Setting, name: str) -> None:
        self._setting, self._name = setting, name
        self._open: dict[Hashable, _Open] = {}
        self._next: dict[Hashable, tuple[int, float | None]] = {}  # number of the next batch, time of the last
        self._at = 0

    def bind(self, chunk: Chunk, codes: Ints, claimed: Floats, paths: list[str], times: Floats | None) -> list[Sealed]:
        """The batches that these rows make whole."""
        sealed: list[Sealed] = []
        for k, user in enumerate(chunk.users.to_list()):
            row, number = chunk.row(k), float(claimed[k, 1])
            if paths[k] != SAME_PATH:
                if user in self._open:
                    self._refuse_short(row, user)
                self._open[user] = self._begin(user, number, paths[k], row)
            held = self._open.get(user)
            if held is None or held.number != number:
                self._refuse(row, f"no batch of its user has room for it, with {self._setting.batch} rows to a batch")
            held.codes.append(int(codes[k]))
            held.epsilons.append(float(claimed[k, 0]))
            held.rows.append(self._at + k)
            held.time = None if times is None else float(times[k])
            if len(held.codes) == self._setting.batch:
                sealed.append(self._seal(user))
        self._at += chunk.n
        return sealed

    def end(self) -> list[Sealed]:
        """The short last batches."""
        return [self._seal(user) for user in list(self._open)]

    def _begin(self, user: Hashable, number: float, text: str, row: int) -> _Open:
        expected, last = self._next.get(user, (0, None))
        gap = number - expected
        if not (0 <= gap <= MOST_LEFT_OUT and gap.is_integer()) or (gap and not gaps(self._setting)):
            self._refuse(row, f"column {BATCH!r} does not count its user's batches")
        try:
            path = decode_path(text)
            changed = encode_path(path) != text
        except DataError:
            changed = True
        if changed:
            self._refuse(row, f"column {PATH!r} holds no path as `release` writes it")
        return _Open(int(number), path, int(gap), last, row)

    def _seal(self, user: Hashable) -> Sealed:
        held = self._open.pop(user)
        self._next[user] = (held.number + 1, held.time)
        codes, rows = np.array(held.codes, np.int64), np.array(held.rows, np.int64)
        told = (held.path, held.skipped, held.skipped_at)
        return Sealed(user, *told, codes, np.array(held.epsilons), rows, held.time)

    def _refuse_short(self, row: int, user: Hashable) -> NoReturn:
        held = self._open[user]
        self._refuse(row, f"a batch begins while that of row {held.begins} has {len(held.codes)} rows only")

    def _refuse(self, row: int, problem: str) -> NoReturn:
        raise DataError(
            f"{self._name}: row {row}: {problem}; check that --batch is that of the release, and that no row was "
            "changed or lost"
        )


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
        if not Path(released).exists():
            raise DataError(f"{Source(released).name}: no such file; check the path")
        raise InputError(
            f"{Source(released).name} has no side file; expected a file of `seqveil release` with its .meta.json"
            " beside it: pass --meta FILE, or --mechanism, --epsilon and the rest where the command takes them"
        )
    if found is not None:
        side.check_model(found, model)
        if setting is not None and found.get("setting") != setting.to_dict():
            raise InputError("the side file gives another setting than the options; leave the options out")
    chosen = setting or side.stored_setting(found or {}, model)
    named = columns_for(chosen, columns or side.stored_columns(found))
    source = Source(released, named, format, sort, chunk)
    if found is None and not chosen.in_batches and _in_batches(source):
        raise InputError(f"{source.name} was released in batches; pass the --batch and --mechanism of the release")
    return Received(source, chosen, found)


def _in_batches(source: Source) -> bool:
    """Whether a file without a side file looks like a release in batches."""
    try:
        next(read(source.path, replace(source.columns, value=f"{EPSILON},{BATCH}"), 1, source.format, "number"))
    except (DataError, InputError):
        return False
    return True
