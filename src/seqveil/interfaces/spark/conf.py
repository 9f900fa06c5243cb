"""A Spark session with the settings a private release wants."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from seqveil.core.errors import InputError

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
        settings["spark.sql.shuffle.partitions"] = str(partitions)
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


def needs_spark() -> None:
    """Say in one line what is missing to run Spark here."""
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise InputError(f"Spark needs the package {error.name}; pip install 'seqveil[spark]'") from None
    if not has_java():
        raise InputError("Spark needs Java 17 or later; install it (Debian: openjdk-17-jre-headless) or set JAVA_HOME")


def has_java() -> bool:
    """Whether a Java runtime is there."""
    home = os.environ.get("JAVA_HOME")
    return os.access(os.path.join(home, "bin", "java"), os.X_OK) if home else shutil.which("java") is not None
