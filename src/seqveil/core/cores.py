"""Bulk work on all cores: rows that do not depend on each other, cut into parts that threads fill in side by side.

Each row comes out the same to the last bit, however many parts there are. `SEQVEIL_THREADS` in the environment sets
how many threads there may be; by default as many as the cores this process may use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

PART = 8192  # rows that are worth a thread: fewer cost more to hand out than they save
BLOCK = 64  # compiled code takes rows in blocks of so many

Found = TypeVar("Found")


@cache
def threads() -> int:
    """How many threads bulk work may use."""
    asked = os.environ.get("SEQVEIL_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parts(rows: int, work: Callable[[slice], Found]) -> list[Found]:
    """What `work` gives for each part of the rows; the parts run side by side, and in one where there are few rows.

    >>> in_parts(10, lambda part: part.stop - part.start)
    [10]
    """
    count = min(threads(), rows // PART)
    if count <= 1:
        return [work(slice(0, rows))]
    size = -(-rows // (count * BLOCK)) * BLOCK
    parts = [slice(at, min(rows, at + size)) for at in range(0, rows, size)]
    return list(_pool().map(work, parts))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads(), "seqveil-core")


if hasattr(os, "register_at_fork"):  # the threads of a pool do not come along into a forked process
    os.register_at_fork(after_in_child=_pool.cache_clear)
