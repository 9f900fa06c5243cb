"""Log lines as JSON, one an event, without private data: no values, no users, no tokens, no addresses.

With `users=True` a request's users appear as a keyed hash, whose key is drawn anew at every start: the lines of one run
can be told apart by user, and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, TextIO

LOGGERS = ("seqveil.service", "uvicorn.error")


class JsonLines(logging.Formatter):
    """A record as one line of JSON. Of an exception only its type is told: its message may hold anything.

    >>> facts = {"msg": "request", "levelname": "INFO", "created": 0.0, "facts": {"status": 200}}
    >>> JsonLines().format(logging.makeLogRecord(facts))
    '{"time": "1970-01-01T00:00:00.000Z", "level": "info", "event": "request", "status": 200}'
    """

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.created % 1 * 1000):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line)


def begin(level: str = "info", stream: TextIO | None = None) -> None:
    """Send the service's own lines and the server's to a stream (standard error) as JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


class Pseudonyms:
    """Users as short keyed hashes that mean nothing outside this run."""

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def of(self, users: Iterable[str], most: int = 20) -> list[str]:
        names = list(dict.fromkeys(users))[:most]
        return [blake2b(name.encode(), key=self._key, digest_size=8).hexdigest() for name in names]
