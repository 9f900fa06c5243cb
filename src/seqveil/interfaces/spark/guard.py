"""Errors between a worker and the driver, as one line that holds no data.

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
from seqveil.release.calls import OutOfOrder
from seqveil.release.store import StoreError

MARK = "seqveil refused: "
_SAID = re.compile(re.escape(MARK) + r"(\w+): ([^\n]*)")


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
def told() -> Iterator[None]:
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
        return SparkFailed(f"Spark failed ({condition}); its log says more, and may show data")
    kind, text = found.groups()
    if kind == "OutOfOrder":
        return OutOfOrder(-1, text)
    known = getattr(errors, kind, SparkFailed)
    return known(text) if issubclass(known, SeqveilError) else DataError(text)
