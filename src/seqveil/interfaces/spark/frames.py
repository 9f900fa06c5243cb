"""Frames: files read as frames with types that fit the model, and frames released, at once or as they stream."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from seqveil.core.alphabet import Alphabet, OnUnknown, Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.randomness import KEY_BYTES
from seqveil.engine.calls import Gaps
from seqveil.engine.stream import Terms
from seqveil.interfaces.files.events import value_type_of
from seqveil.interfaces.files.writing import BATCH, EPSILON, PATH
from seqveil.interfaces.spark.checkpoint import last_name
from seqveil.interfaces.spark.job import SEQ, TIME, USER, Key, SparkJob, release_sorted
from seqveil.interfaces.spark.sessions import PARTITIONS, disclosed, needs_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


BUCKETS = 32
FORMATS = ("parquet", "csv", "json", "orc")
_TYPED = ("parquet", "orc")
_NAMED = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json", ".orc": "orc"}


@dataclass(frozen=True)
class FrameColumns:
    """The names of the columns: the user, the value (two for points and places), the order of events, and the time.

    `seq` numbers each user's events 0, 1, 2, … in a stream; in a frame that is released at once it may be anything that
    orders them. `time` is needed for a budget in seconds and for secrets that follow the clock: a number of seconds,
    or a timestamp.
    """

    user: str = "user"
    value: str | tuple[str, str] = "value"
    seq: str = "seq"
    time: str | None = None

    @property
    def values(self) -> tuple[str, ...]:
        """The columns of the value: one, or two for places in a plane."""
        return (self.value,) if isinstance(self.value, str) else tuple(self.value)

    def refuse_missing(self, frame: DataFrame, time: bool = False) -> None:
        """Refuse a frame that has not all of these columns.

        Parameters:
            frame: the one to look at.
            time: whether the column of the time is needed.
        """
        for name in (self.user, self.seq, *self.values, *((self.time,) if time else ())):
            if name is not None and name not in frame.columns:
                raise DataError(f"the frame has no column {name!r}; name the columns with columns=Columns(…)")


def release(
    frame: DataFrame,
    setting: Terms,
    key: Key,
    *,
    columns: FrameColumns | None = None,
    gaps: Gaps = "refuse",
    on_unknown: OnUnknown | None = None,
    buckets: int = BUCKETS,
) -> DataFrame:
    """Release the rows of a frame, streaming or not: user, order, released value(s), ε; batches add batch and path.

    *Guarantee*: each user's stream is released exactly as by `seqveil.Streams`. Tasks may be run again, on other
    machines: an event has the same randomness wherever it is drawn for this frame, or for the checkpoint of a stream,
    and in a stream an event that was released is never drawn again. Frames and checkpoints never share randomness.

    Parameters: `key` is 32 secret bytes, which travel to the workers, or a path that every worker can read. **A
    frame is to be released once**: passed here again it is drawn anew, and both releases together disclose more.
    `gaps`: a number that leaves others out stops the query ("refuse") or gives those up ("skip"; single symbols
    only). `on_unknown`, in place of the model's policy for values outside the alphabet: "hide" releases a draw from
    the public belief in their place, "nearest" moves numbers, "error" stops. A stream hides where the model says
    "error" and takes no other word for it: receivers would see where it stopped.
    `buckets`: groups of users in a stream; a checkpoint keeps those of its first run.

    In a stream a batch goes out when it is full; a frame released at once ends with short batches.
    """
    needs_spark()
    names = columns or FrameColumns()
    alphabet = setting.model.alphabet
    if frame.isStreaming:
        alphabet = alphabet.tracked(on_unknown)
    elif on_unknown is not None:
        alphabet = alphabet.with_policy(on_unknown)
    job = SparkJob(setting, alphabet, key, (names.user, names.seq, *names.values), gaps, buckets)
    _check(job, names)
    rows = _rows(frame, job, names)
    if not frame.isStreaming:
        return _at_once(rows, job, names)
    from pyspark.sql import functions as F

    from seqveil.interfaces.spark.operator import ReleaseProcessor

    kind = rows.schema[USER].dataType
    bucket = F.pmod(F.xxhash64(F.col(USER)), F.lit(buckets)).alias("bucket")
    return (
        rows.withColumn("bucket", bucket)
        .groupBy("bucket")
        .transformWithStateInPandas(
            statefulProcessor=ReleaseProcessor(job, kind),
            outputStructType=_schema(kind, rows.schema[SEQ].dataType, job, names),
            outputMode="append",
            timeMode="none",
        )
    )


def _at_once(rows: DataFrame, job: SparkJob, names: FrameColumns) -> DataFrame:
    schema = _schema(rows.schema[USER].dataType, rows.schema[SEQ].dataType, job, names)
    return by_user(rows).mapInPandas(partial(release_sorted, job), schema)


def by_user(rows: DataFrame) -> DataFrame:
    """Rows sorted by user and order, in a fixed number of parts: adaptive execution could cut a user's rows in two."""
    parts = int(rows.sparkSession.conf.get(PARTITIONS) or 200)
    return rows.repartition(parts, USER).sortWithinPartitions(USER, SEQ)


def _check(job: SparkJob, names: FrameColumns) -> None:
    setting = job.setting
    if isinstance(job.key, bytes) and len(job.key) != KEY_BYTES:
        raise InputError(f"expected a key of {KEY_BYTES} random bytes; make one with seqveil.randomness.key_file")
    if not isinstance(job.key, (bytes, str, os.PathLike)):
        raise InputError("expected a key of 32 bytes or the path of one; make one with seqveil.randomness.key_file")
    if job.gaps not in ("refuse", "skip"):
        raise InputError(f'expected gaps to be "refuse" or "skip", got {job.gaps!r}')
    if job.gaps == "skip" and setting.in_batches:
        raise InputError('batches need every event: use gaps="refuse" with them')
    if isinstance(job.buckets, bool) or not isinstance(job.buckets, int) or job.buckets < 1:
        raise InputError(f"expected buckets to be a whole number ≥ 1, got {job.buckets}")
    if len(names.values) != job.alphabet.width:
        raise InputError("two value columns and a model of places or of a grid go together; name the right columns")
    if setting.timed and names.time is None:
        wanted = "secrets that follow the clock need" if setting.clocked else "a budget per seconds needs"
        raise InputError(f"{wanted} the time of each event; name its column in columns=Columns(time=…)")
    added = {EPSILON, *((BATCH, PATH) if setting.in_batches else ())}
    if taken := added & set(job.names):
        raise InputError(f"a column is named {min(taken)!r}, which is what the output adds; rename it")


def _rows(frame: DataFrame, job: SparkJob, names: FrameColumns) -> DataFrame:
    """The columns that are needed, under the names of a job; no other leaves the source."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    timed = job.setting.timed
    wanted = {USER: names.user, SEQ: names.seq, **{f"v{k}": name for k, name in enumerate(names.values)}}
    wanted |= {TIME: names.time} if timed and names.time is not None else {}
    names.refuse_missing(frame, time=timed)
    kinds = {inner: frame.schema[name].dataType for inner, name in wanted.items()}
    whole = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
    if not isinstance(kinds[USER], (T.StringType, *whole)):
        raise DataError(f"expected users that are text or whole numbers, got {kinds[USER].simpleString()}; cast them")
    if frame.isStreaming and not isinstance(kinds[SEQ], whole):
        raise DataError(f"expected whole numbers 0, 1, 2, … in {names.seq!r}, got {kinds[SEQ].simpleString()}")
    if timed and not isinstance(kinds[TIME], (T.TimestampType, T.NumericType)):
        raise DataError(f"expected seconds or a timestamp in {names.time!r}, got {kinds[TIME].simpleString()}")
    chosen = [F.col(f"`{name}`").alias(inner) for inner, name in wanted.items() if inner != TIME]
    # widening casts alone: one that can fail would quote the value in its message
    if timed:
        chosen.append(F.col(f"`{wanted[TIME]}`").cast("double").alias(TIME))
    rows = frame.select(*chosen)
    if isinstance(kinds[USER], whole):
        rows = rows.withColumn(USER, F.col(USER).cast("bigint"))
    return rows.withColumn(SEQ, F.col(SEQ).cast("bigint")) if isinstance(kinds[SEQ], whole) else rows


def _schema(user: DataType, order: DataType, job: SparkJob, names: FrameColumns) -> StructType:
    """Of what comes out."""
    from pyspark.sql import types as T

    fields: list[tuple[str, Any]] = [(names.user, user), (names.seq, order)]
    fields += [(name, _value_type(job)) for name in names.values]
    fields.append((EPSILON, T.DoubleType()))
    if job.setting.in_batches:
        fields += [(BATCH, T.LongType()), (PATH, T.StringType())]
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


def _value_type(job: SparkJob) -> DataType:
    from pyspark.sql import types as T

    alphabet = job.alphabet
    if not isinstance(alphabet, Alphabet) or len(job.names) == 4:  # user, order and two coordinates
        return T.DoubleType()
    for kind, spark in ((str, T.StringType), (bool, T.BooleanType), (int, T.LongType)):
        if all(type(value) is kind for value in alphabet.values):
            return spark()
    if all(type(value) in (int, float) for value in alphabet.values):
        return T.DoubleType()
    raise InputError("the model's symbols are of several kinds, which no column can hold; fit on text or on numbers")


def format_of(path: str, given: str | None) -> str:
    """The format of a file or of a folder's files.

    >>> format_of("clicks.jsonl", None), format_of("clicks", "csv")
    ('json', 'csv')
    """
    if given is not None:
        if given not in FORMATS:
            raise InputError(f"expected a format of {', '.join(FORMATS)}, got {given!r}")
        return given
    names = [path.rstrip("/")]
    if os.path.isdir(path):
        names += sorted(name for name in os.listdir(path) if name[0] not in "._")
    for name in names:
        if (ending := os.path.splitext(name)[1]) in _NAMED:
            return _NAMED[ending]
    raise InputError(f"the format of {os.path.basename(names[0])} is not known by its name; pass --format")


def read(
    spark: SparkSession,
    path: str,
    format: str,
    columns: FrameColumns,
    alphabet: Symbols | None = None,
    streaming: bool = False,
    files: int | None = None,
) -> DataFrame:
    """The rows of a file or folder; of a folder as it fills, where `streaming`, at most `files` at a time.

    Users of text formats are text. Values are what the alphabet wants; what cannot be read as a number is NaN, and no
    message tells its text.
    """
    if "://" not in path and not os.path.exists(path):
        raise DataError(f"{last_name(path)}: no such file or folder; check the path")
    if streaming and os.path.isfile(path):
        raise DataError(f"{last_name(path)}: a checkpoint needs a folder of files, as more may come; name it")
    options = {"header": "true", "sep": "\t" if path.endswith(".tsv") else ","} if format == "csv" else {}
    with disclosed():
        schema = _file_schema(spark, path, format, options, columns, alphabet)
        reader: Any = spark.readStream if streaming else spark.read
        if streaming and files is not None:
            options["maxFilesPerTrigger"] = str(files)
        frame = reader.format(format).options(**options).schema(schema).load(path)
        return frame if format in _TYPED or alphabet is None else _numbers(frame, alphabet, columns)


def _numbers(frame: DataFrame, alphabet: Symbols, columns: FrameColumns) -> DataFrame:
    """Text as the numbers an alphabet wants: NaN for what is none, null only for what is not there."""
    from pyspark.sql import functions as F

    if not _as_numbers(alphabet) and len(columns.values) < 2:
        return frame
    for name in columns.values:
        text = F.col(f"`{name}`")
        number = F.coalesce(text.try_cast("double"), F.lit(float("nan")))
        frame = frame.withColumn(name, F.when(text.isNotNull(), number))
    return frame


def _as_numbers(alphabet: Symbols) -> bool:
    return value_type_of(alphabet) != "text" and alphabet.points is not None


def _file_schema(
    spark: SparkSession,
    path: str,
    format: str,
    options: dict[str, str],
    columns: FrameColumns,
    alphabet: Symbols | None,
) -> Any:
    from pyspark.sql import types as T

    reader = spark.read.format(format).options(**options)
    if format in _TYPED:
        return reader.load(path).schema
    found = reader.option("inferSchema", "true").load(path).schema
    forced: dict[str, Any] = {columns.user: T.StringType()}
    if alphabet is not None:
        as_text = value_type_of(alphabet) == "text" or _as_numbers(alphabet)
        forced |= {name: T.StringType() if as_text else None for name in columns.values}
    fields = [T.StructField(f.name, forced.get(f.name) or f.dataType) for f in found.fields]
    return T.StructType(fields)
