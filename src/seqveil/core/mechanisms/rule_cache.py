"""Rules that more than one user needs, kept while they fit a given memory.

Users who are alike in model and releases have the same public context, and so the same rule: it is built once for all
of them. What is large is kept only from the second time on, so that a single stream, whose context never comes back,
keeps nothing of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache, update_wrapper
from threading import Lock
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats
from seqveil.core.mechanisms.base import Batch

MEMORY = 128 << 20  # bytes of all large rules that a cache keeps
MOST = 1024  # rules that it keeps
SEEN = 1 << 16  # contexts remembered as seen once


class Sized(Protocol):
    """What is kept: it knows how much memory it has come to, about."""

    @property
    def memory(self) -> int:
        """Bytes that it takes, by which the cache decides what to let go."""


Kept = TypeVar("Kept", bound=Sized)


class RuleCache(Generic[Kept]):
    """`build(batch, keep)` for each public context, where `keep` says whether what it gives stays; latest used longest.

    `small` says which contexts (none given: all) are kept when they first come, whatever memory they take; others from
    the second time on, while they fit `memory` together.
    """

    def __init__(
        self,
        build: Callable[[Batch, bool], Kept],
        small: Callable[[Batch], bool] | None = None,
        memory: int = MEMORY,
    ) -> None:
        self._build, self._small, self._memory = build, small, memory
        self.clear()
        update_wrapper(self, build)

    def clear(self) -> None:
        """Forget every rule."""
        self._kept: OrderedDict[Hashable, tuple[Kept, bool, Floats]] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = Lock()

    def __getstate__(self) -> dict[str, object]:
        """How rules are built, for another process (Spark's): what is kept stays here."""
        return {name: value for name, value in vars(self).items() if name not in ("_kept", "_seen", "_lock")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self.clear()

    def __call__(self, batch: Batch) -> Kept:
        """The rule of this batch: the one that is kept for its public context, or a new one."""
        key = _key(batch)
        with self._lock:
            known = self._kept.get(key)
            if known is not None and np.array_equal(known[2], batch.states):
                self._kept.move_to_end(key)
                return known[0]
            small = self._small is None or self._small(batch)
            keep = key in self._seen or small
            self._seen[key] = None
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
        if not keep:
            return self._build(batch, False)
        states = batch.states.copy()
        made = self._build(replace(batch, states=states), True)
        with self._lock:
            self._kept[key] = made, small, states
            total = sum(0 if light else each.memory for each, light, _ in self._kept.values())
            while len(self._kept) > 1 and (total > self._memory or len(self._kept) > MOST):
                gone, light, _ = self._kept.popitem(last=False)[1]
                total -= 0 if light else gone.memory
        return made

    def __len__(self) -> int:
        return len(self._kept)


def _key(batch: Batch) -> Hashable:
    """What tells contexts apart, short enough to remember many: of the states only a sum of their bits, by weight.

    Two distributions of states that share it are one in 2^64, and whether the states are the same is looked at as well.
    """
    states = np.ascontiguousarray(batch.states)
    mark = int(np.dot(states.view(np.uint64), _weights(states.size)))
    return batch.model.fingerprint, batch.length, batch.epsilon, batch.distortion.content, mark


@lru_cache(maxsize=8)
def _weights(size: int) -> NDArray[np.uint64]:
    return np.random.default_rng(size).integers(0, 2**64, size, np.uint64) | np.uint64(1)
