"""Frames released: at once, or as they stream into a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from seqveil.core.alphabet import Alphabet, Symbols
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.engine.terms import Terms
from seqveil.interfaces.files.writing import BATCH, EPSILON, PATH
from seqveil.interfaces.spark.checkpoint import begin
from seqveil.interfaces.spark.frames import SEQ, USER, FrameColumns, needed
from seqveil.interfaces.spark.job import Key, SparkJob, release_sorted
from seqveil.interfaces.spark.sessions import BUCKETS, PARTITIONS, needs_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import DataType, StructType


def release(
    frame: DataFrame, model: MarkovModel, policy: Policy, *, key: Key, columns: FrameColumns | None = None
) -> DataFrame:
    """Release the rows of a frame at once: user, order, released value(s), ε; batches add batch and path.

    *Guarantee*: each user's stream is released exactly as by `seqveil.Streams`. Tasks may be run again, on other
    machines: an event has the same randomness wherever it is drawn for this frame, and no two frames share it.

    Parameters: `key` is 32 secret bytes, which travel to the workers, or a path that every worker can read. **A
    frame is to be released once**: passed here again it is drawn anew, and both releases together disclose more.
    """
    needs_spark()
    if frame.isStreaming:
        raise InputError("a stream is released into a checkpoint, which says what was released before; use stream(…)")
    names, terms = columns or FrameColumns(), policy.on(model)
    job = _job(terms, model.alphabet, key, names)
    rows = needed(frame, names, job.alphabet, terms.timed)
    # a fixed number of parts: adaptive execution could cut a user's rows in two
    parts = int(frame.sparkSession.conf.get(PARTITIONS) or 200)
    sorted_rows = rows.repartition(parts, USER).sortWithinPartitions(USER, SEQ)
    return sorted_rows.mapInPandas(partial(release_sorted, job), _schema(rows, job))


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

    Parameters:
        frame: the source; its `seq` numbers each user's events 0, 1, 2, ….
        model: how such streams usually run.
        policy: what is promised. Batches would have raw values wait on Spark's disks: release in blocks instead.
        key: as for `release`.
        checkpoint: the folder that says what was released; it keeps model, policy and key of its first run.
        columns: what the columns are called.
    """
    needs_spark()
    from pyspark.sql import functions as F

    from seqveil.interfaces.spark.operator import ReleaseProcessor

    if not frame.isStreaming:
        raise InputError("a checkpoint is for a source that goes on; read it with spark.readStream")
    names, terms = columns or FrameColumns(), policy.on(model)
    if terms.in_batches:
        raise InputError(
            "a stream on Spark takes no batch, as raw values would wait on its disks; use block, which answers each "
            "event at once, or release a frame that ends"
        )
    job = _job(terms, model.alphabet.tracked(), key, names)
    rows = needed(frame, names, job.alphabet, terms.timed)
    begin(frame.sparkSession, checkpoint, terms, job.secret)
    bucket = F.pmod(F.xxhash64(F.col(USER)), F.lit(BUCKETS)).alias("bucket")
    released = (
        rows.withColumn("bucket", bucket)
        .groupBy("bucket")
        .transformWithStateInPandas(ReleaseProcessor(job), _schema(rows, job), "append", "none")
    )
    return released.writeStream.option("checkpointLocation", checkpoint)


def _job(terms: Terms, alphabet: Symbols, key: Key, names: FrameColumns) -> SparkJob:
    job = SparkJob(terms, alphabet, key, (names.user, names.seq, *names.values))
    if isinstance(key, bytes) or not key:
        _ = job.secret  # refused now rather than on a worker
    if terms.timed and names.time is None:
        wanted = "secrets that follow the clock need" if terms.clocked else "a budget per seconds needs"
        raise InputError(f"{wanted} the time of each event; name its column in columns=FrameColumns(time=…)")
    if taken := {EPSILON, *((BATCH, PATH) if terms.in_batches else ())} & set(job.names):
        raise InputError(f"a column is named {min(taken)!r}, which is what the output adds; rename it")
    return job


def _schema(rows: DataFrame, job: SparkJob) -> StructType:
    """Of what comes out."""
    from pyspark.sql import types as T

    user, order, *values = job.names
    fields: list[tuple[str, Any]] = [(user, rows.schema[USER].dataType), (order, rows.schema[SEQ].dataType)]
    fields += [(name, _value_type(job.alphabet)) for name in values]
    fields.append((EPSILON, T.DoubleType()))
    if job.terms.in_batches:
        fields += [(BATCH, T.LongType()), (PATH, T.StringType())]
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


def _value_type(alphabet: Symbols) -> DataType:
    from pyspark.sql import types as T

    if not isinstance(alphabet, Alphabet) or alphabet.width == 2:
        return T.DoubleType()
    for kind, spark in ((str, T.StringType), (bool, T.BooleanType), (int, T.LongType)):
        if all(type(value) is kind for value in alphabet.values):
            return spark()
    if all(type(value) in (int, float) for value in alphabet.values):
        return T.DoubleType()
    raise InputError("the model's symbols are of several kinds, which no column can hold; fit on text or on numbers")
