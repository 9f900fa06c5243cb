"""A released file as its receiver sees it: the setting, and every release in order, those left out included."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

import numpy as np

from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.engine.batches import decode_path, encode_path
from seqveil.engine.policy import saved_terms
from seqveil.engine.stream import NOTHING
from seqveil.engine.terms import OTHER_MODEL, Terms
from seqveil.interfaces.files import writing as side
from seqveil.interfaces.files.columns import Columns, ValueType
from seqveil.interfaces.files.reading import Chunk, FilePath, file_name, read
from seqveil.interfaces.files.rows import (
    CHUNK_ROWS,
    OTHER_RELEASE,
    Coded,
    Progress,
    Source,
    columns_for,
    gaps,
)
from seqveil.interfaces.files.writing import BATCH, EPSILON, EVENT, PATH, SAME_PATH, Digest

if TYPE_CHECKING:
    import polars as pl


ADOPTED = (
    "the release went on with another model after `seqveil state adopt`, so no one model says how it was drawn; its "
    "account is in the state file: run `seqveil state account`"
)
MOST_LEFT_OUT = 1_000_000  # events of one user that one row may skip
BATCH_ROWS = 1000  # rows between two signs of progress where batches are read


class Where(TypedDict, total=False):
    """How to find and read a released file; every function that reads one takes these."""

    meta: FilePath | Mapping[str, Any] | None  # its side file, or what stands in it, where that is not beside it
    columns: Columns | None  # other names than the side file gives
    format: str | None  # where its name does not tell
    chunk: int  # rows read at a time
    observers: Sequence[MarkovModel]  # models of further observers that the release was made for


@dataclass(frozen=True, eq=False)
class ReceivedBatch:
    """Consecutive events. `row_of` gives the chunk's row of each event, -1 for an event that went without a release."""

    chunk: Chunk
    users: list[object]
    codes: Ints
    times: Floats | None
    epsilons: Floats | None
    row_of: Ints

    @property
    def where(self) -> str:
        """The rows, for messages."""
        return f"rows {self.chunk.row(0)} to {self.chunk.row(self.chunk.n - 1)}"

    def add_to(self, digest: Digest, used: Floats | None = None) -> None:
        """Add the rows to a digest as the file has them; where it lacks ε, with what was used."""
        rows = np.flatnonzero(self.row_of >= 0)
        claimed = used if self.epsilons is None else self.epsilons
        assert claimed is not None
        digest.add(self.chunk.users, self.codes[rows], claimed[rows])


@dataclass(frozen=True, eq=False)
class Sealed:
    """One batch of a user, whole; one that went without a release has no path, and as many rows -1 as it had events."""

    user: Hashable
    path: tuple[int, ...] | None
    codes: Ints
    epsilons: Floats
    rows: Ints  # places in the file, from 0
    time: float | None  # of the last row; of the user's last release before it, where nothing was released
    where: str  # the rows that disclosed of it, for messages


@dataclass(frozen=True, eq=False)
class Portion:
    """Consecutive rows of a file of batches, as they stand there, and the batches that were whole with them."""

    users: pl.Series
    codes: Ints
    epsilons: Floats
    batches: list[int]
    paths: list[str]
    sealed: list[Sealed]

    def add_to(self, digest: Digest) -> None:
        """Add the rows to a digest as the file has them."""
        digest.add(self.users, self.codes, self.epsilons, zip(self.batches, self.paths, strict=True))


@dataclass(frozen=True)
class Received:
    """A released file, the setting it was made with, and its side file where there is one."""

    source: Source
    setting: Terms
    meta: side.Meta | None

    @property
    def with_times(self) -> Received:
        """The same, read with the times of releases, whether the setting needs them or not."""
        return replace(self, source=replace(self.source, columns=replace(self.source.columns, clock=True)))

    @contextmanager
    def naming(self, where: str | None = None) -> Iterator[None]:
        """Say in a refusal which file it is about, and where in it."""
        try:
            yield
        except DataError as error:
            places = self.source.name if where is None else f"{self.source.name}: {where}"
            raise DataError(f"{places}: {error}") from None

    def unchanged(self, digest: Digest) -> bool | None:
        """Whether the rows are those that the side file tells of; None where it does not tell."""
        claimed = None if self.meta is None else self.meta.get("digest")
        return None if claimed is None else claimed == digest.hex()

    def batches(self, progress: Progress | None = None) -> Iterator[ReceivedBatch]:
        """The events of a release one by one."""
        extras = self._extras()
        follow = _Follow(self.source.name) if gaps(self.setting) else None
        for part in self._coded(self.source, progress):
            claimed = None if extras is None else next(extras)
            epsilons = None if claimed is None else claimed[:, 0]
            users, rows = part.chunk.users.to_list(), np.arange(part.n)
            batch = ReceivedBatch(part.chunk, users, part.codes, part.times, epsilons, rows)
            yield batch if follow is None or claimed is None else follow.fill(batch, claimed[:, 1])

    def portions(self, progress: Progress | None = None) -> Iterator[Portion]:
        """The rows of a release in batches, and the batches they make up."""
        source = replace(self.source, chunk=min(self.source.chunk, BATCH_ROWS))
        binder = _Binder(self.setting, source.name)
        missing = (
            f"a release in batches has the columns {EPSILON!r}, {BATCH!r} and {PATH!r}; keep all columns of the "
            "release, and give the --batch it was made with"
        )
        numbers = _beside(source, f"{EPSILON},{BATCH}", "number", missing)
        texts = _beside(source, PATH, "text", missing)
        last: Portion | None = None
        for part in self._coded(source, progress):
            claimed, paths = np.asarray(next(numbers).values, np.float64), list(next(texts).values)
            sealed = binder.bind(part, claimed, paths)
            disclosed = claimed[:, 1].astype(np.int64).tolist()
            last = Portion(part.chunk.users, part.codes, claimed[:, 0], disclosed, paths, sealed)
            yield last
        assert last is not None  # a file without rows is refused
        none = np.zeros(0, np.int64)
        yield Portion(last.users.clear(), none, none.astype(np.float64), [], [], binder.end())

    def _coded(self, source: Source, progress: Progress | None) -> Iterator[Coded]:
        alphabet = self.setting.model.alphabet.with_policy("error")
        return source.coded(alphabet, progress, OTHER_RELEASE, self.setting.withhold)

    def _extras(self) -> Iterator[Floats] | None:
        """The column ε and, where rows may be left out, event; None: no column ε."""
        if gaps(self.setting):
            missing = (
                f'the policy "stop" leaves rows out, which only the column {EVENT!r} beside {EPSILON!r} tells; keep '
                "both columns of the release"
            )
            found = _beside(self.source, f"{EPSILON},{EVENT}", "number", missing)
            return (np.asarray(chunk.values, np.float64) for chunk in found)
        found = _beside(self.source, EPSILON, "number", "")
        try:
            first = next(found)
        except InputError:
            return None
        return (np.asarray(chunk.values, np.float64)[:, None] for chunk in chain([first], found))


def _beside(source: Source, names: str, kind: ValueType, missing: str) -> Iterator[Chunk]:
    """Further columns of the file, chunk for chunk; where one is missing, a refusal that says this."""
    try:
        yield from read(source.path, replace(source.columns, value=names), source.chunk, source.format, kind)
    except DataError as error:
        if "no column" not in str(error):
            raise
        raise DataError(f"{source.name}: {missing}") from None


@dataclass
class _Open:
    """A batch of which rows may still come."""

    number: int
    path: tuple[int, ...]
    skipped: int  # full batches before it that went without a release
    begins: int  # the file's row, for messages
    codes: list[int] = field(default_factory=list, repr=False)
    epsilons: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    time: float | None = None


class _Binder:
    """Puts the rows of batches together again, user by user; refuses what `release` does not write."""

    def __init__(self, setting: Terms, name: str) -> None:
        self._setting, self._name = setting, name
        self._open: dict[Hashable, _Open] = {}
        self._next: dict[Hashable, tuple[int, float | None]] = {}  # number of the next batch, time of the last
        self._at = 0

    def bind(self, part: Coded, claimed: Floats, paths: list[str]) -> list[Sealed]:
        """The batches that these rows make whole."""
        sealed: list[Sealed] = []
        for k, user in enumerate(part.chunk.users.to_list()):
            row, number = part.chunk.row(k), float(claimed[k, 1])
            if paths[k] != SAME_PATH:
                if user in self._open:
                    held = self._open[user]
                    self._refuse(row, f"a batch begins while that of row {held.begins} has {len(held.codes)} rows only")
                self._open[user] = self._begin(user, number, paths[k], row)
            if user not in self._open or self._open[user].number != number:
                self._refuse(row, f"no batch of its user has room for it, with {self._setting.batch} rows to a batch")
            held = self._open[user]
            held.codes.append(int(part.codes[k]))
            held.epsilons.append(float(claimed[k, 0]))
            held.rows.append(self._at + k)
            held.time = None if part.times is None else float(part.times[k])
            if len(held.codes) == self._setting.batch:
                sealed += self._seal(user)
        self._at += part.n
        return sealed

    def end(self) -> list[Sealed]:
        """The short last batches."""
        return [sealed for user in list(self._open) for sealed in self._seal(user)]

    def _begin(self, user: Hashable, number: float, text: str, row: int) -> _Open:
        gap = number - self._next.get(user, (0, None))[0]
        if not (0 <= gap <= MOST_LEFT_OUT and gap.is_integer()) or (gap and not gaps(self._setting)):
            self._refuse(row, f"column {BATCH!r} does not count its user's batches")
        try:
            path = decode_path(text)
            changed = encode_path(path) != text
        except DataError:
            changed = True
        if changed:
            self._refuse(row, f"column {PATH!r} holds no path as `release` writes it")
        return _Open(int(number), path, int(gap), row)

    def _seal(self, user: Hashable) -> list[Sealed]:
        """The batch of a user that is open, after those before it that went without a release."""
        held, before = self._open.pop(user), self._next.get(user, (0, None))[1]
        self._next[user] = (held.number + 1, held.time)
        codes, rows = np.array(held.codes, np.int64), np.array(held.rows, np.int64)
        where = f"rows {held.rows[0] + 1} to {held.rows[-1] + 1}"
        none = np.full(self._setting.batch, -1, np.int64)
        silent = Sealed(user, None, none, np.zeros(none.size), none, before, where)
        return [silent] * held.skipped + [
            Sealed(user, held.path, codes, np.array(held.epsilons), rows, held.time, where)
        ]

    def _refuse(self, row: int, problem: str) -> NoReturn:
        raise DataError(
            f"{self._name}: row {row}: {problem}; check that --batch is that of the release, and that no row was "
            "changed or lost"
        )


class _Follow:
    """Puts the events that went without a release back where they were."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: dict[object, tuple[int, float]] = {}  # events so far, time of the last one

    def fill(self, batch: ReceivedBatch, events: Floats) -> ReceivedBatch:
        skipped, before = np.zeros(len(batch.users), np.int64), np.zeros(len(batch.users))
        for k, user in enumerate(batch.users):
            count, last = self._seen.get(user, (0, -np.inf))
            gap = float(events[k]) - count
            if not (0 <= gap <= MOST_LEFT_OUT and gap.is_integer()):
                row = batch.chunk.row(k)
                raise DataError(f"{self._name}: row {row}: column {EVENT!r} does not count its user's events")
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
        return ReceivedBatch(batch.chunk, users, codes, times, epsilons, row_of)


def receive(
    released: FilePath | pl.DataFrame,
    model: MarkovModel,
    setting: Terms | None = None,
    meta: FilePath | Mapping[str, Any] | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    chunk: int = CHUNK_ROWS,
    observers: Sequence[MarkovModel] = (),
) -> Received:
    """A released file with the setting that its side file gives; `setting` is for files that have none.

    A release that was made for further `observers` needs their models too, in any order, and no others.
    """
    path = released if isinstance(released, str | os.PathLike) else None
    if path is not None and str(path) == "-":
        raise InputError("a released file is read more than once, so it cannot come from a pipe; name a file")
    found = side.load_release_meta(released, meta)
    if found is not None:
        if found.get("model") != model.fingerprint:
            raise ModelError(OTHER_MODEL)
        if found.get("models", 1) > 1:
            raise DataError(ADOPTED)
        if setting is not None and found.get("setting") != setting.to_dict():
            raise InputError("the side file gives another setting than the options; leave the options out")
        setting = setting or saved_terms(found.get("setting", {}), model, observers)
    elif setting is None:
        if path is None:
            raise InputError("the frame says nothing of how it was released; pass what `release` gave back, or meta=")
        if not Path(path).exists():
            raise DataError(f"{file_name(released)}: no such file; check the path")
        raise InputError(
            f"{file_name(released)} has no side file; expected a file of `seqveil release` with its .meta.json"
            " beside it: pass --meta FILE, or --mechanism, --epsilon and the rest where the command takes them"
        )
    if {each.fingerprint for each in observers} - {each.fingerprint for each in setting.observers}:
        raise InputError("the release was not made for this observer; leave it out")
    named = columns_for(setting, columns or side.stored_columns(found))
    source = Source(released, named, format, chunk=chunk)
    if found is None and not setting.in_batches and _in_batches(source):
        raise InputError(f"{source.name} was released in batches; pass the --batch and --mechanism of the release")
    return Received(source, setting, found)


def _in_batches(source: Source) -> bool:
    """Whether a file without a side file looks like a release in batches."""
    try:
        next(read(source.path, replace(source.columns, value=f"{EPSILON},{BATCH}"), 1, source.format, "number"))
    except (DataError, InputError):
        return False
    return True
