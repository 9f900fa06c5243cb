"""Frames: files read as frames, and of a frame the columns that are needed, with types that fit the model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqveil.core.alphabet import Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.files.events import value_type_of
from seqveil.interfaces.spark.failures import driver_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USER, SEQ, TIME = "user", "seq", "time"  # the columns of `needed`; values are v0 and, for points and places, v1
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json"}


@dataclass(frozen=True)
class FrameColumns:
    """The names of the columns: the user, the value (two for points and places: x,y), the order of events, the time.

    `seq` numbers each user's events 0, 1, 2, … in a stream; in a frame that is released at once it may be anything that
    orders them. `time` is needed for a budget in seconds and for secrets that follow the clock: a timestamp, or a
    number of seconds, ms, µs or ns since 1970, recognised by its size.
    """

    user: str = "user"
    value: str = "value"
    seq: str = "seq"
    time: str | None = None

    @property
    def values(self) -> tuple[str, ...]:
        """The columns of the value: one, or two for places in a plane."""
        return tuple(self.value.split(","))


def needed(frame: DataFrame, columns: FrameColumns, alphabet: Symbols, timed: bool = False) -> DataFrame:
    """The columns that are needed, under names of our own; no other leaves the source.

    Numbers that an alphabet wants are NaN where a value is none. No cast can fail: its message would quote the value.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if len(columns.values) != alphabet.width:
        raise InputError("two value columns and a grid or cells of the map go together; name the right columns")
    wanted = {USER: columns.user, SEQ: columns.seq, **{f"v{k}": name for k, name in enumerate(columns.values)}}
    wanted |= {TIME: columns.time} if timed and columns.time is not None else {}
    for name in wanted.values():
        if name not in frame.columns:
            raise DataError(f"the frame has no column {name!r}; name the columns with columns=FrameColumns(…)")
    kinds = {inner: frame.schema[name].dataType for inner, name in wanted.items()}
    whole = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
    if not isinstance(kinds[USER], (T.StringType, *whole)):
        raise DataError(f"expected users that are text or whole numbers, got {kinds[USER].simpleString()}; cast them")
    if frame.isStreaming and not isinstance(kinds[SEQ], whole):
        raise DataError(f"expected whole numbers 0, 1, 2, … in {columns.seq!r}, got {kinds[SEQ].simpleString()}")
    if TIME in kinds and not isinstance(kinds[TIME], (T.TimestampType, T.NumericType)):
        raise DataError(f"expected a timestamp or a number in {columns.time!r}, got {kinds[TIME].simpleString()}")
    found = {inner: F.col(f"`{name}`") for inner, name in wanted.items()}
    numbers = alphabet.width == 2 or (value_type_of(alphabet) == "number" and alphabet.points is not None)
    for inner in found:
        if inner[0] == "v" and numbers:
            number = F.coalesce(found[inner].try_cast("double"), F.lit(float("nan")))
            found[inner] = F.when(found[inner].isNotNull(), number)
        elif inner == TIME:
            found[inner] = found[inner].cast("double")
        elif inner in (USER, SEQ) and isinstance(kinds[inner], whole):
            found[inner] = found[inner].cast("bigint")
    return frame.select(*(column.alias(inner) for inner, column in found.items()))


def format_of(path: str, given: str | None) -> str:
    """The format of a file or of a folder's files."""
    if given is not None:
        if given not in _FORMATS.values():
            raise InputError(f"expected a format of parquet, csv or json, got {given!r}")
        return given
    names = [path.rstrip("/"), *(sorted(os.listdir(path)) if os.path.isdir(path) else ())]
    known = [_FORMATS[ending] for name in names if (ending := os.path.splitext(name)[1]) in _FORMATS]
    if not known:
        raise InputError(f"the format of {os.path.basename(names[0])} is not known by its name; pass --format")
    return known[0]


def headed(format: str) -> dict[str, str]:
    """How files of a format are read and written: CSV has a line of names."""
    return {"header": "true"} if format == "csv" else {}


def read(
    spark: SparkSession, path: str, format: str, columns: FrameColumns, alphabet: Symbols | None, streaming: bool
) -> DataFrame:
    """The rows of a file or folder; of a folder as it fills, where `streaming`. In text formats users are text, and so
    are values that an alphabet is to understand, so that no message of Spark quotes what is no number among numbers."""
    from pyspark.sql import types as T

    name = os.path.basename(path.rstrip("/"))
    if "://" not in path and not os.path.exists(path):
        raise DataError(f"{name}: no such file or folder; check the path")
    if streaming and os.path.isfile(path):
        raise DataError(f"{name}: a checkpoint needs a folder of files, as more may come; name it")
    options = headed(format) | ({"sep": "\t"} if path.endswith(".tsv") else {})
    text = {columns.user, *(columns.values if alphabet is not None and value_type_of(alphabet) != "auto" else ())}
    with driver_errors():
        schema = spark.read.format(format).options(**options, inferSchema="true").load(path).schema
        if format != "parquet":
            fields = [T.StructField(f.name, T.StringType() if f.name in text else f.dataType) for f in schema.fields]
            schema = T.StructType(fields)
        reader: Any = spark.readStream if streaming else spark.read
        return reader.format(format).options(**options).schema(schema).load(path)
