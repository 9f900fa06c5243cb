"""The filter's step for many users, compiled: `SIDE` of them share one pass over the chain.

It does what `filtering` does by numpy and scipy, and takes every sum in the same order, so that both give the same
numbers to the last bit, whoever else is in the call (tests compare them). This second form of the step stays because it
pays: over 5,135 states it takes a quarter of the time, and most of the time of a file is spent here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.bulk import in_parts
from seqveil.core.compiled import compiled, form, ready
from seqveil.core.kernel import Floats, Ints

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel

SIDE = 8  # users who go side by side: `_products` names each of them
NARROW = 128  # states up to which a few users may leave lanes empty


def update(model: MarkovModel, states: Floats, columns: Ints | Floats) -> tuple[Floats, Floats] | None:
    """Next states and marginals (B,) after releases, from linear probabilities; None where numpy has to do it."""
    users = len(states)
    if not ready(users) or not users or (model.size > NARROW and 2 * users <= SIDE):
        return None
    code, distribution = form(move), np.ascontiguousarray(states)
    ahead, marginal = np.empty(states.shape), np.empty(users)

    def some(part: slice) -> None:
        code(distribution[part], columns[part], *model.inward, ahead[part], marginal[part])

    in_parts(users, some, model.size)
    return (ahead, marginal) if marginal.all() else None


@compiled
def move(
    states: Any, columns: Any, newest: Any, pointers: Any, sources: Any, chances: Any, base_state: Any, base: Any,
    ahead: Any, marginal: Any,
) -> None:  # fmt: skip
    """`filtering.move` for chains that come by targets (`MarkovModel.inward`); fills in next states and marginals.

    A marginal of 0 says that a belief ruled its release out.
    """
    users, size = states.shape
    distributions, led, sums = np.empty((size, SIDE)), np.empty((size + 1, SIDE)), np.empty((1, SIDE))
    everything, order, ones = np.array([0, size], np.uint32), np.arange(size).astype(np.uint32), np.ones(size)
    for begin in range(0, users, SIDE):
        for u in range(SIDE):  # lanes that nobody is in repeat the last user
            distribution, column = states[min(begin + u, users - 1)], columns[min(begin + u, users - 1)]
            for s in range(size):
                distributions[s, u] = distribution[s] * float(column[newest[s] if newest.size else s])
        _products(distributions, everything, order, ones, sums)
        for u in range(min(SIDE, users - begin)):
            marginal[begin + u] = sums[0, u]
        for s in range(size):
            for u in range(SIDE):
                distributions[s, u] /= sums[0, u]
        _products(distributions, pointers, sources, chances, led)
        for k in range(base.size):
            target = base_state[k] if base_state.size else k
            for u in range(SIDE):
                led[target, u] += led[size, u] * base[k]
        _products(led, everything, order, ones, sums)
        for s in range(size):
            for u in range(SIDE):
                led[s, u] /= sums[0, u]
        for u in range(min(SIDE, users - begin)):
            row = ahead[begin + u]
            for s in range(size):
                row[s] = led[s, u]


@compiled
def _products(distributions: Any, pointers: Any, sources: Any, chances: Any, out: Any) -> None:
    """Sparse product for `SIDE` distributions side by side: each target's sum over its sources, in their order."""
    for t in range(len(pointers) - 1):
        e0, e1, e2, e3, e4, e5, e6, e7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(pointers[t], pointers[t + 1]):
            chance, distribution = chances[k], distributions[sources[k]]
            e0 += chance * distribution[0]
            e1 += chance * distribution[1]
            e2 += chance * distribution[2]
            e3 += chance * distribution[3]
            e4 += chance * distribution[4]
            e5 += chance * distribution[5]
            e6 += chance * distribution[6]
            e7 += chance * distribution[7]
        out[t, 0], out[t, 1], out[t, 2], out[t, 3] = e0, e1, e2, e3
        out[t, 4], out[t, 5], out[t, 6], out[t, 7] = e4, e5, e6, e7


def pull(model: MarkovModel, values: Floats, jump: Floats) -> Floats | None:
    """`filtering.pull` over many states, where `jump` (B,) is what the base expects; None where numpy has to."""
    if not ready(len(values)) or 2 * len(values) <= SIDE:
        return None
    code, distributions, out = form(pull_back), np.ascontiguousarray(values), np.empty(values.shape)

    def some(part: slice) -> None:
        code(distributions[part], *model.outward, model.backoff, jump[part], out[part])

    in_parts(len(distributions), some, model.size)
    return out


@compiled
def pull_back(values: Any, pointers: Any, targets: Any, chances: Any, backoff: Any, jump: Any, out: Any) -> None:
    """`filtering.pull`: each source's sum over its targets, and what the base distribution expects."""
    users, size = values.shape
    distributions, led = np.empty((size, SIDE)), np.empty((size, SIDE))
    for begin in range(0, users, SIDE):
        for u in range(SIDE):
            distribution = values[min(begin + u, users - 1)]
            for s in range(size):
                distributions[s, u] = distribution[s]
        _products(distributions, pointers, targets, chances, led)
        for u in range(min(SIDE, users - begin)):
            for s in range(size):
                out[begin + u, s] = led[s, u] + backoff[s] * jump[begin + u]
