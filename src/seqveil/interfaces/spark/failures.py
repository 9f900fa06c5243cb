"""Errors on their way from a worker to the driver, as one line that holds no data.

Spark writes the traceback and message of a failed Python function to its logs. Whatever goes wrong inside ours is
therefore raised again as `Refused`, without its cause: our own messages hold no raw symbol, those of others might.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from seqveil.core import errors
from seqveil.core.errors import DataError, SeqveilError
from seqveil.engine.store import StoreError

MARK = "seqveil refused: "
_LINE = re.compile(re.escape(MARK) + r"(\w+): ([^\n]*)")


class Refused(SeqveilError):
    """Raised inside a worker; the driver turns it back into the error it stands for."""


class SparkFailed(StoreError):
    """Spark itself failed; what was committed before stands."""


@contextmanager
def worker_errors() -> Iterator[None]:
    """Around everything that sees raw rows on a worker."""
    try:
        yield
    except SeqveilError as error:
        line = f"{MARK}{type(error).__name__}: {' '.join(str(error).split())}"
    except Exception as error:
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "seqveil" in frame.filename]
        where = f"{os.path.basename(ours[-1].filename)}:{ours[-1].lineno}" if ours else "a worker"
        line = f"{MARK}SparkFailed: {type(error).__name__} in {where} (no data shown)"
    else:
        return
    raise Refused(line) from None


@contextmanager
def driver_errors() -> Iterator[None]:
    """On the driver, around whatever runs a job or reaches for files: errors of Spark as ours, in one line."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise translated(error) from None
    except Py4JJavaError as error:
        kind = str(error.java_exception.getClass().getSimpleName())
        raise SparkFailed(f"the files of a checkpoint cannot be reached ({kind}); check path and rights") from None


def translated(error: Exception) -> SeqveilError:
    """What an error of Spark says, without whatever data it may quote."""
    found = _LINE.search(str(error))
    if found is None:
        why = getattr(error, "getCondition", lambda: None)() or type(error).__name__
        return SparkFailed(f"Spark failed ({why}); its log says more (--log), and may show data")
    kind, text = found.groups()
    return getattr(errors, kind, SparkFailed if kind == SparkFailed.__name__ else DataError)(text)
