"""Trees that more than one user needs, kept while they fit a given memory.

Users who are alike in model and releases have the same public tree. A context seen for the second time is kept, so that
a single stream, whose context never comes back, keeps nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from seqveil.core.kernel import Floats
from seqveil.core.mechanisms._batch import Batch

MEMORY = 128 << 20  # bytes of all trees that are kept
SEEN = 1 << 16  # contexts remembered as seen once


class Grown(Protocol):
    """What is kept: it knows its context, and how much memory it has come to."""

    @property
    def batch(self) -> Batch: ...
    @property
    def memory(self) -> int: ...


Kept = TypeVar("Kept", bound=Grown)


class Shelf(Generic[Kept]):
    """`build(batch, keep)`, built once more when a context comes again and then kept, the latest used longest."""

    def __init__(self, build: Callable[[Batch, bool], Kept], memory: int = MEMORY) -> None:
        self._build, self._memory = build, memory
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = Lock()

    def get(self, batch: Batch) -> Kept:
        key = _key(batch)
        with self._lock:
            known = self._kept.get(key)
            if known is not None and np.array_equal(known.batch.states, batch.states):
                self._kept.move_to_end(key)
                return known
            again = key in self._seen
            self._seen[key] = None
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
        if not again:
            return self._build(batch, False)
        made = self._build(replace(batch, states=batch.states.copy()), True)
        with self._lock:
            self._kept[key] = made
            total = sum(each.memory for each in self._kept.values())
            while total > self._memory and len(self._kept) > 1:
                total -= self._kept.popitem(last=False)[1].memory
        return made

    def __len__(self) -> int:
        return len(self._kept)


def _key(batch: Batch) -> tuple[Any, ...]:
    # quicker than hashing all of it (the states are compared); no BLAS, whose threads would be woken for it
    mark = float((batch.states * _marks(batch.states.size)).sum())
    return batch.model.fingerprint, batch.length, batch.epsilon, batch.distortion, mark


@lru_cache(maxsize=8)
def _marks(size: int) -> Floats:
    return np.random.default_rng(size).random(size)
