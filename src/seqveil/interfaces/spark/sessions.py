"""A Spark session with the settings that a private release wants."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from seqveil.core.errors import InputError, needs_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS = 32  # groups of users in a stream; a checkpoint depends on it
PARTITIONS = "spark.sql.shuffle.partitions"
STORE = "spark.sql.streaming.stateStore"
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
TRIES = 2  # of a task before a query ends: more would make whoever sent a bad row wait longer to hear of it
_LOCAL = re.compile(r"local(?:\[(\*|\d+)\])?")


def session_conf() -> dict[str, str]:
    """The settings by name, for a session of your own, spark-submit or spark-defaults.conf.

    What is shuffled or spilled to local disks is raw data: it is encrypted. State lies in RocksDB and is checkpointed
    as a log of changes.
    """
    return {
        "spark.io.encryption.enabled": "true",  # shuffle files and spills hold raw symbols, also after a crash
        "spark.io.encryption.keySizeBits": "256",
        f"{STORE}.providerClass": PROVIDER,
        f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.worker.reuse": "true",  # a worker keeps the model and its kernels between micro-batches
    }


@contextmanager
def session(
    master: str | None = None, conf: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[SparkSession]:
    """A session with `session_conf`, then `conf`, and with this Python for the workers, ended whatever happens: by
    default where spark-submit says, else on all cores of this machine. Spark's own messages go to `log`."""
    needs_spark()
    from pyspark.sql import SparkSession

    if (running := SparkSession.getActiveSession()) is not None:
        yield running  # somebody else's to end
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has decided where to run
    settings = {PARTITIONS: str(BUCKETS if submitted else min(BUCKETS, 2 * (os.cpu_count() or 1)))} | session_conf()
    settings |= {"spark.ui.showConsoleProgress": "false"}
    builder = SparkSession.builder.appName("seqveil")
    if master is not None or not submitted:
        builder, settings = builder.master(patient(master or "local[*]")), settings | {"spark.ui.enabled": "false"}
    for name, value in (settings | dict(conf or {})).items():
        builder = builder.config(name, value)
    before = signal.getsignal(signal.SIGINT)
    with nullcontext() if submitted else _aside(log or Path(os.devnull)):
        made: SparkSession = builder.getOrCreate()
    with suppress(ValueError):  # not the main thread: Spark has set no handler there
        signal.signal(signal.SIGINT, before)
    try:
        yield made
    finally:
        with suppress(Exception):  # interrupted amid a call, it may not answer any more; it ends with this process
            made.stop()


def patient(master: str) -> str:
    """The same place to run, where a task that failed is run once more: on one machine Spark does not do so by itself,
    and a worker that was killed for memory would end the query."""
    found = _LOCAL.fullmatch(master)
    return master if found is None else f"local[{found[1] or 1},{TRIES}]"


@contextmanager
def _aside(log: Path) -> Iterator[None]:
    """Start what is started here with its standard error in a file."""
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
