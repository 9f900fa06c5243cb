"""Frames released, at once or as they stream into a checkpoint, and what a worker does with their rows."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Alphabet, Symbols
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness, key_file
from seqveil.core.times import seconds
from seqveil.engine.policy import Policy, Terms
from seqveil.engine.store import SALT_BYTES, Memory, StateStore
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.files.writing import EPSILON
from seqveil.interfaces.spark.checkpoint import begin
from seqveil.interfaces.spark.failures import worker_errors
from seqveil.interfaces.spark.frames import SEQ, TIME, USER, FrameColumns, needed
from seqveil.interfaces.spark.sessions import BUCKETS, PARTITIONS

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

Key = bytes | str | os.PathLike[str]
MEMORY = 1 << 28  # bytes that live states may take at once
LAST = 64  # jobs a worker remembers
_SHOWN = {USER: "user", SEQ: "order", TIME: "time", "v0": "value", "v1": "value"}


def release(
    frame: DataFrame, model: MarkovModel, policy: Policy, *, key: Key, columns: FrameColumns | None = None
) -> DataFrame:
    """Release the rows of a frame at once: user, order, released value(s), ε.

    *Guarantee*: each user's stream is released exactly as by `seqveil.Streams`. Tasks may be run again, on other
    machines: an event has the same randomness wherever it is drawn for this frame, and no two frames share it.

    Parameters: `key` is 32 secret bytes, which travel to the workers, or a path that every worker can read. **A
    frame is to be released once**: passed here again it is drawn anew, and both releases together disclose more.
    """
    if frame.isStreaming:
        raise InputError("a stream is released into a checkpoint, which says what was released before; use stream(…)")
    names, terms = columns or FrameColumns(), policy.on(model)
    job = _job(terms, model.alphabet, key, names)
    rows = needed(frame, names, job.alphabet, terms.timed)
    parts = int(frame.sparkSession.conf.get(PARTITIONS) or 200)
    return _in_buckets(rows, parts).applyInPandas(lambda own: job.release_whole(own), _schema(rows, job))


def stream(
    frame: DataFrame,
    model: MarkovModel,
    policy: Policy,
    *,
    key: Key,
    checkpoint: str,
    columns: FrameColumns | None = None,
) -> DataStreamWriter:
    """Release the rows of a streaming frame as they come; start the writer with a sink of your choice.

    *Guarantee*: as for `release`; and an event that was released is never drawn again, however often its micro-batch is
    run, killed from its first second on, or sent once more with another value. No two checkpoints share randomness.

    Values outside the alphabet are hidden where the model would refuse them: receivers would see where a stream ended.
    A number that leaves others out ends the query, and nothing of its micro-batch happens.

    Parameters: as for `release`; `seq` numbers each user's events 0, 1, 2, …, and `checkpoint` is the folder that says
    what was released, and keeps model, policy and key of its first run.
    """
    from seqveil.interfaces.spark.operator import ReleaseProcessor

    if not frame.isStreaming:
        raise InputError("a checkpoint is for a source that goes on; read it with spark.readStream")
    names, terms = columns or FrameColumns(), policy.on(model)
    job = _job(terms, model.alphabet.tracked(), key, names)
    rows = needed(frame, names, job.alphabet, terms.timed)
    begin(frame.sparkSession, checkpoint, terms, job.secret)
    buckets, released = _in_buckets(rows, BUCKETS), _schema(rows, job)
    made = buckets.transformWithStateInPandas(ReleaseProcessor(job), released, "append", "none")
    return made.writeStream.option("checkpointLocation", checkpoint)


def _in_buckets(rows: DataFrame, count: int) -> GroupedData:
    """Rows in groups of users; those of a group are in one worker's memory."""
    from pyspark.sql import functions as F

    return rows.withColumn("bucket", F.pmod(F.xxhash64(F.col(USER)), F.lit(count))).groupBy("bucket")


def _job(terms: Terms, alphabet: Symbols, key: Key, names: FrameColumns) -> SparkJob:
    job = SparkJob(terms, alphabet, key, (names.user, names.seq, *names.values))
    if isinstance(key, bytes) or not key:
        _ = job.secret  # refused now rather than on a worker
    if terms.timed and names.time is None:
        wanted = "secrets that follow the clock need" if terms.clocked else "a budget per seconds needs"
        raise InputError(f"{wanted} the time of each event; name its column in columns=FrameColumns(time=…)")
    if EPSILON in job.names:
        raise InputError(f"a column is named {EPSILON!r}, which is what the output adds; rename it")
    return job


def _schema(rows: DataFrame, job: SparkJob) -> StructType:
    """Of what comes out."""
    from pyspark.sql import types as T

    user, order, *values = job.names
    fields: list[tuple[str, Any]] = [(user, rows.schema[USER].dataType), (order, rows.schema[SEQ].dataType)]
    kind: Any = T.DoubleType
    if isinstance(job.alphabet, Alphabet) and job.alphabet.width == 1:
        kinds = {type(value) for value in job.alphabet.values}
        known = {str: T.StringType, bool: T.BooleanType, int: T.LongType, float: T.DoubleType}
        if (len(kinds) > 1 and not kinds <= {int, float}) or not kinds <= known.keys():
            raise InputError("the model's symbols are of several kinds, which no column can hold; fit on one of them")
        kind = known[kinds.pop()] if len(kinds) == 1 else T.DoubleType
    fields += [(name, kind()) for name in values]
    return T.StructType([T.StructField(name, kind) for name, kind in [*fields, (EPSILON, T.DoubleType())]])


@dataclass(frozen=True, eq=False)
class SparkJob:
    """A release as it travels to the workers. The key travels with it, unless it is a path they can read."""

    terms: Terms
    alphabet: Symbols  # the model's, with what is done about unknown values
    key: Key = field(repr=False)
    names: tuple[str, ...]  # of the columns that come out: user, order, value(s)
    # of a frame that is released at once; it travels along, so that a task that Spark repeats draws the same
    salt: bytes = field(default_factory=lambda: os.urandom(SALT_BYTES), repr=False)

    def __post_init__(self) -> None:
        if self.terms.in_batches:  # raw values of a stream would wait on Spark's disks
            name = self.terms.mechanism.name
            raise InputError(f"{name} releases in batches, which Spark does not take; use another, or block")
        if self.terms.withhold:  # rows that are not there would look like no event
            raise InputError("Spark writes no row for a release that says nothing; leave out withhold")

    def __reduce__(self) -> tuple[Callable[[bytes], SparkJob], tuple[bytes]]:
        """Workers build a job once and keep it, with the kernels it has found, however often it is sent."""
        from pyspark import cloudpickle

        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return _remembered, (cloudpickle.dumps(parts),)  # type: ignore[no-untyped-call]

    @cached_property
    def secret(self) -> bytes:
        """The key, read where it lies."""
        key = key_file(self.key) if isinstance(self.key, str | os.PathLike) else self.key
        KeyedRandomness(key)  # refuses what is no key
        return key

    def release(self, rows: pd.DataFrame, store: StateStore) -> pd.DataFrame:
        """The released rows of events that are numbered; of one that was released before there is none."""
        _refuse_holes(rows, (USER, SEQ, TIME))
        codes = self._codes(rows)
        order = _order(rows, codes)
        rows, codes = rows.iloc[order], codes[order]
        seqs = rows[SEQ].to_numpy().astype(np.int64)
        if seqs.size and int(seqs.min()) < 0:
            raise DataError("a sequence number is below 0; number each user's events from 0")
        return self._released(rows, codes, seqs, store)

    def release_whole(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The released rows of some users' whole streams, sorted by user and order; the order may be anything."""
        with worker_errors():
            _refuse_holes(rows, (USER, SEQ, TIME) if self.alphabet.hides else _SHOWN)
            if rows.duplicated([USER, SEQ]).any():
                raise DataError("two events of a user have the same order, so which is first is not known; number them")
            rows, store = rows.sort_values([USER, SEQ], ignore_index=True), Memory(releases=False)
            store.salt = self.salt
            return self._released(rows, self._codes(rows), rows.groupby(USER).cumcount().to_numpy(), store)

    def _released(self, rows: pd.DataFrame, codes: Ints, seqs: Ints, store: StateStore) -> pd.DataFrame:
        """The released rows; randomness follows from the key and the salt of the store."""
        import pandas as pd

        streams = CodeStreams(self.terms, store, KeyedRandomness(self.secret), memory=MEMORY)
        users = [str(user) for user in rows[USER].tolist()]  # a whole number is the same user as its digits
        times = seconds(rows[TIME].to_numpy().astype(np.float64)) if TIME in rows else None
        made = streams.release(users, codes, seqs, times)
        at = np.flatnonzero(~made.replayed & (made.codes >= 0))
        user, order, *values = self.names
        shown = {user: rows[USER].to_numpy()[at], order: rows[SEQ].to_numpy()[at]}
        shown |= {name: column[made.codes[at]] for name, column in zip(values, self._values, strict=True)}
        return pd.DataFrame(shown | {EPSILON: made.epsilons[at]})

    def _codes(self, rows: pd.DataFrame) -> Ints:
        """A code for each row: a symbol's, or UNKNOWN where that is hidden."""
        try:
            return self.alphabet.encode(rows["v0"] if "v1" not in rows else rows[["v0", "v1"]].to_numpy(np.float64))
        except UnknownSymbol:
            said = f"a value is not in the model's alphabet ({self.alphabet.n} symbols)"
            raise UnknownSymbol(f"{said}; check the value column, or fit with --on-unknown hide") from None

    @cached_property
    def _values(self) -> list[NDArray[Any]]:
        """What the codes stand for, a column for each value column."""
        alphabet = self.alphabet
        if isinstance(alphabet, Alphabet) and alphabet.width == 1:
            plain = np.array(list(alphabet.values))
            return [plain if plain.dtype.kind in "iub" else np.array(list(alphabet.values), object)]
        assert alphabet.points is not None
        return list(alphabet.points.reshape(alphabet.n, -1).T)


@lru_cache(maxsize=LAST)
def _remembered(content: bytes) -> SparkJob:
    return SparkJob(**pickle.loads(content))


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
