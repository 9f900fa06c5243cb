"""The log of what runs for long: one JSON object a line on standard error, without users, values, topics and tokens."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

Level = Literal["info", "warning", "error"]


def log(event: str, level: Level = "info", /, **facts: object) -> None:
    """Write one line; a full disk, or a terminal that was closed, is no reason to end."""
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": level, "event": event, **facts}
    with suppress(OSError):
        sys.stderr.write(json.dumps(line, default=str) + "\n")
        sys.stderr.flush()
