"""What a worker does with the rows of a bucket: encode, sort out, release, and give back the released rows."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Alphabet, Bins, Symbols
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.kernel import Floats, Ints
from seqveil.core.randomness import KEY_BYTES, KeyedRandomness, User, key_file
from seqveil.core.times import seconds
from seqveil.engine import batches
from seqveil.engine.calls import Gaps
from seqveil.engine.releases import Releases
from seqveil.engine.store import SALT_BYTES
from seqveil.engine.stream import Terms
from seqveil.interfaces.files.writing import BATCH, EPSILON, PATH, SAME_PATH
from seqveil.interfaces.spark.sessions import guarded
from seqveil.interfaces.spark.store import NEW, KeptUsers, MicroBatch, Seal, bucket, collect

if TYPE_CHECKING:
    import pandas as pd

Key = bytes | str | os.PathLike[str]
USER, SEQ, TIME = "user", "seq", "time"  # columns inside a job; values are v0 and, for a grid, v1
_SHOWN = {USER: "user", SEQ: "order", TIME: "time", "v0": "value", "v1": "value"}
CHUNK_ROWS = 50_000  # rows of a frame released together
VERSION = 1  # of what a checkpoint keeps
LAST = 64  # jobs a worker remembers


@dataclass(frozen=True, eq=False)
class SparkJob:
    """A release as it travels to the workers. The key travels with it, unless it is a path they can read."""

    setting: Terms
    alphabet: Symbols  # with the policy for unknown values
    key: Key = field(repr=False)
    names: tuple[str, ...]  # of the columns that come out: user, order, value(s)
    gaps: Gaps = "refuse"
    buckets: int = 32
    # of a frame that is released at once; it travels along, so that a task that Spark repeats draws the same
    salt: bytes = field(default_factory=lambda: os.urandom(SALT_BYTES), repr=False)

    def __post_init__(self) -> None:
        if self.setting.withhold:  # rows that are not there would look like no event
            raise InputError("Spark writes no row for a release that says nothing; leave out withhold")

    def __reduce__(self) -> tuple[Callable[[bytes, bytes], SparkJob], tuple[bytes, bytes]]:
        """Workers build a job once and keep it, with the kernels it has found, however often it is sent."""
        from pyspark import cloudpickle

        content: bytes = cloudpickle.dumps(  # type: ignore[no-untyped-call]
            {f.name: getattr(self, f.name) for f in fields(self)}
        )
        return _remembered, (hashlib.sha256(content).digest(), content)

    @cached_property
    def _secret(self) -> bytes:
        key = self.key if isinstance(self.key, bytes) else key_file(self.key)
        if len(key) != KEY_BYTES:
            raise InputError(f"expected a key of {KEY_BYTES} random bytes; make one with seqveil.randomness.key_file")
        return key

    @cached_property
    def randomness(self) -> KeyedRandomness:
        """The randomness of the job, which follow from its key and a salt: a task that Spark repeats draws the same."""
        return KeyedRandomness(self._secret)

    @cached_property
    def seal(self) -> Seal:
        """What seals waiting symbols before Spark's state store keeps them."""
        return Seal(self._secret)

    @cached_property
    def facts(self) -> str:
        """What a checkpoint is for, as public text: setting, buckets, and a mark of the key that does not tell it."""
        return json.dumps(facts_of_job(self.setting, self.buckets, self._secret))

    def release(self, rows: pd.DataFrame, kept_users: KeptUsers, end: bool = False) -> pd.DataFrame:
        """The released rows of these; `end`: short batches go out too."""
        _refuse_holes(rows, (USER, SEQ, TIME))
        codes = self._coded(rows)
        order = _order(rows, codes)
        rows, codes = rows.iloc[order], codes[order]
        users: list[User] = rows[USER].tolist()
        seqs = rows[SEQ].to_numpy().astype(np.int64)
        if seqs.size and int(seqs.min()) < 0:
            raise DataError("a sequence number is below 0; number each user's events from 0")
        times = seconds(rows[TIME].to_numpy().astype(np.float64)) if TIME in rows else None
        if self.setting.in_batches:
            return self._in_batches(users, seqs, codes, times, kept_users, end)
        made = bucket(self.setting, self.randomness, kept_users, users, self.gaps).release(users, codes, seqs, times)
        at = np.flatnonzero(~made.replayed & (made.codes >= 0))
        shown = rows[USER].to_numpy()[at]
        return self._frame(shown, seqs[at], made.codes[at], {EPSILON: made.epsilons[at]})

    def _coded(self, rows: pd.DataFrame) -> Ints:
        """A code for each row: a symbol's, or UNKNOWN where that is hidden."""
        try:
            return self.alphabet.encode(rows["v0"] if "v1" not in rows else rows[["v0", "v1"]].to_numpy(np.float64))
        except UnknownSymbol:
            n = self.alphabet.n
            raise UnknownSymbol(
                f"a value is not in the model's alphabet ({n} symbols); check the value column, refit the model, or "
                'pass on_unknown="hide"'
            ) from None

    def _in_batches(
        self, users: list[User], seqs: Ints, codes: Ints, times: Floats | None, kept_users: KeptUsers, end: bool
    ) -> pd.DataFrame:
        stamps: Iterable[float | None] = [None] * len(users) if times is None else times.tolist()
        events = zip(users, seqs.tolist(), codes.tolist(), stamps, strict=True)
        filled, waiting = collect(self.setting.batch, self.seal, kept_users, events, end)
        owners = [batch.user for batch in filled]
        numbers = np.array([batch.number for batch in filled], np.int64)
        at = None if times is None else np.array([batch.time for batch in filled])
        streams = bucket(self.setting, self.randomness, kept_users, owners)
        made = streams.release(owners, [batch.codes for batch in filled], numbers, at)
        for user, (symbols, sealed) in waiting.items():
            kept = kept_users.get(user) or NEW
            kept_users.put(user, kept._replace(symbols=symbols, waiting=sealed))
        return self._batch_frame(filled, made)

    def _batch_frame(self, filled: list[MicroBatch], made: Releases) -> pd.DataFrame:
        """One row a symbol; the first one of a batch has its ε and path, which tell all."""
        users: list[User] = []
        seqs, codes, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        epsilons: list[float] = []
        paths: list[str] = []
        for batch, path, symbols, epsilon in zip(filled, made.paths, made.symbols, made.epsilons, strict=True):
            if path is None:
                continue
            size = batch.codes.size
            users += [batch.user] * size
            seqs.append(batch.first + np.arange(size))
            codes.append(symbols)
            numbers.append(np.full(size, batch.number))
            epsilons += [epsilon] + [0.0] * (size - 1)
            paths += [batches.encode_path(path)] + [SAME_PATH] * (size - 1)
        more = {EPSILON: np.array(epsilons, np.float64), BATCH: np.concatenate(numbers), PATH: np.array(paths, object)}
        return self._frame(np.array(users, object), np.concatenate(seqs), np.concatenate(codes), more)

    def _frame(self, users: NDArray[Any], seqs: Ints, codes: Ints, more: dict[str, NDArray[Any]]) -> pd.DataFrame:
        import pandas as pd

        user, order, *values = self.names
        shown = {name: column[codes] for name, column in zip(values, self._values, strict=True)}
        return pd.DataFrame({user: users, order: seqs, **shown, **more})

    @cached_property
    def _values(self) -> list[NDArray[Any]]:
        """What the codes stand for, a column for each value column."""
        alphabet = self.alphabet
        if len(self.names) == 4:  # user, order and two coordinates
            assert alphabet.points is not None
            return [alphabet.points[:, 0], alphabet.points[:, 1]]
        if isinstance(alphabet, Bins):
            return [alphabet.points]
        assert isinstance(alphabet, Alphabet)
        plain = np.array(list(alphabet.values))
        return [plain if plain.dtype.kind in "iub" else np.array(list(alphabet.values), object)]


def facts_of_job(setting: Terms, buckets: int, secret: bytes) -> dict[str, Any]:
    """What a checkpoint is for; the mark of the key does not tell it."""
    mark = hashlib.blake2b(key=secret, digest_size=8, person=b"seqveil-mark").hexdigest()
    return {"version": VERSION, "setting": setting.to_dict(costs=True), "buckets": buckets, "key": mark}


_jobs: dict[bytes, SparkJob] = {}


def _remembered(digest: bytes, content: bytes) -> SparkJob:
    if digest not in _jobs:
        if len(_jobs) >= LAST:
            _jobs.clear()
        _jobs[digest] = SparkJob(**pickle.loads(content))
    return _jobs[digest]


def _order(rows: pd.DataFrame, codes: Ints) -> NDArray[np.intp]:
    """By the user's name and number: the order in which rows come may follow from their values, and rows leave in this
    one. Rows of the same number are ordered by what is in them: a shuffle may bring them in another order when a task
    runs again, and the one that counts must not change."""
    times = (rows[TIME].to_numpy(),) if TIME in rows else ()
    return np.lexsort((codes, *times, rows[SEQ].to_numpy(), rows[USER].factorize(sort=True)[0]))


def _refuse_holes(rows: pd.DataFrame, names: Iterable[str]) -> None:
    for name in names:
        if name in rows and rows[name].isna().any():
            raise DataError(f"{int(rows[name].isna().sum())} rows have no {_SHOWN[name]}; fill it or drop the rows")


def release_sorted(job: SparkJob, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Release a partition whose rows are sorted by user and order: whole users at a time, numbered as they come."""
    for rows in whole_users(frames):
        with guarded():
            released = _release_whole(job, rows)
        yield released


def whole_users(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Rows sorted by user in chunks, none of which cuts a user in two."""
    import pandas as pd

    held: list[pd.DataFrame] = []
    size = 0
    for frame in frames:
        held.append(frame)
        size += len(frame)
        if size < CHUNK_ROWS:
            continue
        rows = pd.concat(held, ignore_index=True)
        last = rows[USER].to_numpy() == rows[USER].iloc[-1]
        ready, held = rows[~last], [rows[last]]
        size = int(last.sum())
        if len(ready):
            yield ready.reset_index(drop=True)
    if size:
        yield pd.concat(held, ignore_index=True)


def _release_whole(job: SparkJob, rows: pd.DataFrame) -> pd.DataFrame:
    """Release the whole streams of some users; their own order column is given back."""
    _refuse_holes(rows, (USER, SEQ, TIME) if job.alphabet.hides else _SHOWN)
    users = rows[USER].to_numpy()
    new = np.r_[True, users[1:] != users[:-1]]
    order = rows[SEQ].to_numpy()
    if (~new[1:] & (order[1:] == order[:-1])).any():
        raise DataError("two events of a user have the same order, so which comes first is not known; number them")
    starts = np.flatnonzero(new)
    seqs = np.arange(len(rows)) - np.repeat(starts, np.diff(np.r_[starts, len(rows)]))
    released = job.release(rows.assign(**{SEQ: seqs}), KeptUsers(job.salt), end=True)
    user, name = job.names[:2]
    first = dict(zip(users[starts].tolist(), starts.tolist(), strict=True))
    at = np.array([first[u] for u in released[user].tolist()], np.intp) + released[name].to_numpy().astype(np.intp)
    return released.assign(**{name: order[at]})
