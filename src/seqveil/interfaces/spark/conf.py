"""A Spark session with the settings a private release wants."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import InputError, needs_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = "spark.sql.shuffle.partitions"
STORE = "spark.sql.streaming.stateStore"
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session_conf(partitions: int | None = None) -> dict[str, str]:
    """The settings by name, for a session of your own, spark-submit or spark-defaults.conf.

    What is shuffled or spilled to local disks is raw data: it is encrypted. State lies in RocksDB and is checkpointed
    as a log of changes. `partitions` is the number of parallel parts; a checkpoint keeps that of its first run.

    >>> session_conf()["spark.io.encryption.enabled"]
    'true'
    """
    settings = {
        "spark.io.encryption.enabled": "true",  # shuffle files and spills hold raw symbols, also after a crash
        "spark.io.encryption.keySizeBits": "256",
        f"{STORE}.providerClass": PROVIDER,
        f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.worker.reuse": "true",  # a worker keeps the model and its kernels between micro-batches
    }
    if partitions is not None:
        if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
            raise InputError(f"expected partitions to be a whole number ≥ 1, got {partitions}")
        settings[PARTITIONS] = str(partitions)
    return settings


def session(name: str = "seqveil", partitions: int | None = None, **more: str) -> Any:
    """A builder with `session_conf`, and with this Python for the workers: `.master("local[2]").getOrCreate()`.

    Parameters: `more` are further settings, dots written as two underscores (`spark__ui__enabled="false"`).
    """
    needs_spark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in (session_conf(partitions) | {k.replace("__", "."): v for k, v in more.items()}).items():
        builder = builder.config(key, value)
    return builder


@contextmanager
def quiet_session(
    master: str | None = None, partitions: int | None = None, log: Path | None = None
) -> Iterator[SparkSession]:
    """A session whose own messages stay out of the way, ended whatever happens."""
    needs_spark()
    from pyspark.sql import SparkSession

    from seqveil.interfaces.spark.frames import BUCKETS

    if (running := SparkSession.getActiveSession()) is not None:
        yield running  # somebody else's to end
        return
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has decided where to run
    builder = session(partitions=partitions or (None if submitted else 2 * (os.cpu_count() or 1)))
    if master is not None or not submitted:
        builder = builder.master(master or "local[*]").config("spark.ui.enabled", "false")
    before = signal.getsignal(signal.SIGINT)
    with _aside(None if submitted else log or Path(os.devnull)):
        made: SparkSession = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    with suppress(ValueError):  # not the main thread: Spark has set no handler there
        signal.signal(signal.SIGINT, before)
    if submitted and partitions is None and not made.sparkContext.getConf().contains(PARTITIONS):
        made.conf.set(PARTITIONS, BUCKETS)  # more than buckets would stay empty
    try:
        yield made
    finally:
        with suppress(Exception):  # interrupted amid a call, it may not answer any more; it ends with this process
            made.stop()


@contextmanager
def _aside(log: Path | None) -> Iterator[None]:
    """Start what is started here with its standard error in a file."""
    if log is None:
        yield
        return
    kept, file = os.dup(2), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)


def needs_spark() -> None:
    """Say in one line what is missing to run Spark here."""
    with needs_extra("Spark", "spark"):
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    if not has_java():
        raise InputError("Spark needs Java 17 or later; install it (Debian: openjdk-17-jre-headless) or set JAVA_HOME")


def has_java() -> bool:
    """Whether a Java runtime is there."""
    home = os.environ.get("JAVA_HOME")
    return os.access(os.path.join(home, "bin", "java"), os.X_OK) if home else shutil.which("java") is not None
