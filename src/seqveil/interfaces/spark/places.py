"""Small files beside a checkpoint, on whatever file system Spark has it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from seqveil.interfaces.spark.guard import SparkFailed, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def names_in(spark: SparkSession, folder: str) -> list[str]:
    """The names in a folder; none where it is not there."""
    with _reached():
        files, path = _at(spark, folder)
        return [str(each.getPath().getName()) for each in files.listStatus(path)] if files.exists(path) else []


def make_folder(spark: SparkSession, folder: str) -> None:
    with _reached():
        files, path = _at(spark, folder)
        files.mkdirs(path)


def facts_in(spark: SparkSession, file: str) -> dict[str, Any] | None:
    """What `write_facts` wrote; None where nothing is there."""
    with _reached():
        files, path = _at(spark, file)
        if not files.exists(path):
            return None
        found: dict[str, Any] = json.loads(spark.read.text(file, wholetext=True).first()[0])  # type: ignore[index]
        return found


def write_facts(spark: SparkSession, file: str, facts: dict[str, Any]) -> None:
    """Write a small file, whole or not at all."""
    with _reached():
        files, path = _at(spark, file)
        _, part = _at(spark, f"{file}.part")
        stream = files.create(part, True)
        stream.write(bytearray(json.dumps(facts, indent=1).encode()))
        stream.close()
        files.delete(path, False)
        if not files.rename(part, path):
            raise SparkFailed("a file beside the checkpoint could not be written; check its rights, and run it again")


def joined(folder: str, *names: str) -> str:
    return "/".join([folder.rstrip("/"), *names])


def resolved(place: str) -> str:
    """A place by a name that does not depend on where this process runs."""
    return place.rstrip("/") if "://" in place else os.path.abspath(place)


@contextmanager
def _reached() -> Iterator[None]:
    """Errors of the file system in one line."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        with told():
            yield
    except Py4JJavaError as error:
        kind = str(error.java_exception.getClass().getSimpleName())
        raise SparkFailed(f"the files of a checkpoint cannot be reached ({kind}); check path and rights") from None


def _at(spark: SparkSession, place: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path
