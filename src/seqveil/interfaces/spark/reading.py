"""Files as frames, with types that fit the model: what the commands read, at once or as files arrive."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import DataError, InputError
from seqveil.core.symbols import Symbols
from seqveil.interfaces.files.rows import value_type_of
from seqveil.interfaces.spark.frames import Columns
from seqveil.interfaces.spark.guard import told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json", "orc")
_TYPED = ("parquet", "orc")
_NAMED = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json", ".orc": "orc"}


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
    columns: Columns,
    alphabet: Symbols | None = None,
    streaming: bool = False,
    files: int | None = None,
) -> DataFrame:
    """The rows of a file or folder; of a folder as it fills, where `streaming`, at most `files` at a time.

    Users of text formats are text. Values are what the alphabet wants; what cannot be read as a number is NaN, and no
    message tells its text.
    """
    if "://" not in path and not os.path.exists(path):
        raise DataError(f"{os.path.basename(path.rstrip('/'))}: no such file or folder; check the path")
    if streaming and os.path.isfile(path):
        raise DataError(f"{os.path.basename(path)}: a checkpoint needs a folder of files, as more may come; name it")
    options = {"header": "true", "sep": "\t" if path.endswith(".tsv") else ","} if format == "csv" else {}
    with told():
        schema = _schema(spark, path, format, options, columns, alphabet)
        reader: Any = spark.readStream if streaming else spark.read
        if streaming and files is not None:
            options["maxFilesPerTrigger"] = str(files)
        frame = reader.format(format).options(**options).schema(schema).load(path)
        return frame if format in _TYPED or alphabet is None else _numbers(frame, alphabet, columns)


def _numbers(frame: DataFrame, alphabet: Symbols, columns: Columns) -> DataFrame:
    """Text as the numbers an alphabet wants: NaN for what is none, null only for what is not there."""
    from pyspark.sql import functions as F

    if not _as_numbers(alphabet):
        return frame
    for name in columns.values:
        text = F.col(f"`{name}`")
        number = F.coalesce(text.try_cast("double"), F.lit(float("nan")))
        frame = frame.withColumn(name, F.when(text.isNotNull(), number))
    return frame


def _as_numbers(alphabet: Symbols) -> bool:
    return value_type_of(alphabet) != "text" and alphabet.points is not None


def _schema(
    spark: SparkSession, path: str, format: str, options: dict[str, str], columns: Columns, alphabet: Symbols | None
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
