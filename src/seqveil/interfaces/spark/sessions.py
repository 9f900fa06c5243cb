"""A Spark session with the settings a private release wants, and its errors as one line that holds no data.

Spark writes the traceback and message of a failed Python function to its logs. Whatever goes wrong inside ours is
therefore raised again as `Refused`, without its cause: our own messages hold no raw symbol, those of others might.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqveil.core import errors
from seqveil.core.errors import DataError, InputError, SeqveilError, needs_extra
from seqveil.engine.calls import OutOfOrder
from seqveil.engine.store import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = "spark.sql.shuffle.partitions"
STORE = "spark.sql.streaming.stateStore"
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MARK = "seqveil refused: "
DEEP = 8  # causes of an error that are named, at most
TRIES = 2  # of a task before a query ends: more would make whoever sent a bad row wait longer to hear of it
_LOCAL = re.compile(r"local(?:\[(\*|\d+)\])?")
_SAID = re.compile(re.escape(MARK) + r"(\w+): ([^\n]*)")


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
        builder = builder.master(patient(master or "local[*]")).config("spark.ui.enabled", "false")
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


def patient(master: str) -> str:
    """The same place to run, where a task that failed is run once more: by itself Spark does not do so here.

    A worker that was killed for memory, or came too late, would otherwise end the query. The task makes the same rows.

    >>> patient("local[2]"), patient("local"), patient("local[2,8]"), patient("spark://head:7077")
    ('local[2,2]', 'local[1,2]', 'local[2,8]', 'spark://head:7077')
    """
    found = _LOCAL.fullmatch(master)
    return master if found is None else f"local[{found[1] or 1},{TRIES}]"


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


class Refused(SeqveilError):
    """Raised inside a worker; the driver turns it back into the error it stands for."""


class SparkFailed(StoreError):
    """Spark itself failed; what was committed before stands."""


@contextmanager
def guarded() -> Iterator[None]:
    """Around everything that sees raw rows on a worker."""
    try:
        yield
    except SeqveilError as error:
        said = f"{MARK}{type(error).__name__}: {' '.join(str(error).split())}"
    except Exception as error:
        said = f"{MARK}SparkFailed: {type(error).__name__} in {_where(error)} (no data shown)"
    else:
        return
    raise Refused(said) from None


def _where(error: Exception) -> str:
    """File and line of our innermost frame."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "seqveil" in frame.filename]
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "a worker"


@contextmanager
def disclosed() -> Iterator[None]:
    """On the driver, around whatever runs a job: errors of Spark as ours, in one line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise translated(error) from None


def translated(error: Exception) -> SeqveilError:
    """What an error of Spark says, without whatever data it may quote."""
    found = _SAID.search(str(error))
    if found is None:
        condition = getattr(error, "getCondition", lambda: None)() or type(error).__name__
        why = " < ".join(dict.fromkeys([condition, *_causes(error)]))
        return SparkFailed(f"Spark failed ({why}); its log says more (--log), and may show data")
    kind, text = found.groups()
    if kind == "OutOfOrder":
        return OutOfOrder(-1, text)
    known = getattr(errors, kind, SparkFailed)
    return known(text) if issubclass(known, SeqveilError) else DataError(text)


def _causes(error: Exception) -> list[str]:
    """What lies behind an error of Spark, the outermost first: names of conditions and classes, which hold no data."""
    names: list[str] = []
    with suppress(Exception):  # the driver may be gone
        cause = error._origin.getCause()  # type: ignore[attr-defined]
        while cause is not None and len(names) < DEEP:
            names.append(_name_of(cause))
            cause = cause.getCause()
    return names


def _name_of(cause: Any) -> str:
    """The condition that a Java exception of Spark stands for, or else its class."""
    with suppress(Exception):  # others have none
        if condition := cause.getCondition():
            return str(condition)
    return str(cause.getClass().getSimpleName())
