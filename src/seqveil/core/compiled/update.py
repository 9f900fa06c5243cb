"""The adversary's filter, compiled: `filtering.condition` and `filtering.predict`.

Most goes by blocks of users, a lane each: the innermost loops run over lanes and have no branches, so that the compiler
turns them into vector instructions. Arrays are (…, lanes).
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from seqveil.core.compiled.sums import LANES, compiled, lane_sums, total

LARGEST_WEIGHT = np.iinfo(np.int64).max
WIDEST = 4096  # states up to which users go side by side: 64 laws of that many still fit a processor's own memory


@compiled
def _update_lanes(
    states, columns, newest, dense, pointers, targets, chances, backoff, base_state, base, ahead, marginal, low, high
):
    """`update` of all whole blocks of users, a lane each; whether a release was ruled out."""
    users, size = states.shape
    post, row, sums = np.empty((size, LANES)), np.empty((size, LANES)), np.empty(LANES)
    least, most, again = np.empty(LANES, np.int64), np.empty(LANES, np.int64), np.empty(LANES)
    for begin in range(0, users - users % LANES, LANES):
        least[:], most[:], again[:], row[:] = LARGEST_WEIGHT, 0, 0.0, 0.0
        for u in range(LANES):
            for s in range(size):
                weight = columns[begin + u, newest[s]]
                here = states[begin + u, s]
                post[s, u] = here * float(weight)
                least[u] = min(least[u], weight) if here > 0.0 else least[u]
                most[u] = max(most[u], weight) if here > 0.0 else most[u]
        lane_sums(post, sums)
        for u in range(LANES):
            if not sums[u] > 0.0:
                return True
            marginal[begin + u], low[begin + u], high[begin + u] = sums[u], least[u], most[u]
        for s in range(size):
            for u in range(LANES):
                post[s, u] /= sums[u]
        for s in range(size):
            if dense.size:
                for t in range(size):
                    for u in range(LANES):
                        row[t, u] += dense[s, t] * post[s, u]
            else:
                for k in range(pointers[s], pointers[s + 1]):
                    target, chance = row[targets[k]], chances[k]
                    for u in range(LANES):
                        target[u] += chance * post[s, u]
        if backoff.size:
            for s in range(size):
                for u in range(LANES):
                    again[u] += backoff[s] * post[s, u]
            for k in range(base_state.size):
                for u in range(LANES):
                    row[base_state[k], u] += again[u] * base[k]
        lane_sums(row, sums)
        for u in range(LANES):
            for s in range(size):
                ahead[begin + u, s] = row[s, u] / sums[u]
    return False


@compiled
def update(
    states, columns, newest, dense, pointers, targets, chances, backoff, base_state, base, ahead, marginal, low, high
):
    """`filtering.condition` and `filtering.predict` of every user, and the extremes of the released column.

    The chain is `dense` (S, S) where that is not empty, else compressed rows. Fills in the next states (B, S), which
    come as zeros, the marginals (B,), and least and largest weight over the symbols of positive belief (B,); says
    whether a belief ruled its release out, which is left to numpy.
    """
    users, size = states.shape
    side_by_side = 0
    if size <= WIDEST and users >= LANES:
        side_by_side = users - users % LANES
        chain = (dense, pointers, targets, chances, backoff, base_state, base)
        if _update_lanes(states, columns, newest, *chain, ahead, marginal, low, high):
            return True
    post = np.empty(size)
    for user in range(side_by_side, users):
        least, most = LARGEST_WEIGHT, 0
        for s in range(size):
            weight = columns[user, newest[s]]
            post[s] = states[user, s] * float(weight)
            if states[user, s] > 0.0:
                least, most = min(least, weight), max(most, weight)
        mean = total(post, size)
        if not mean > 0.0:
            return True
        marginal[user], low[user], high[user] = mean, least, most
        for s in range(size):
            post[s] /= mean
        row, again = ahead[user], 0.0
        for s in range(size):
            here = post[s]
            if dense.size:
                for t in range(size):
                    row[t] += dense[s, t] * here
            else:
                for k in range(pointers[s], pointers[s + 1]):
                    row[targets[k]] += chances[k] * here
            if backoff.size:
                again += backoff[s] * here
        if backoff.size:
            for k in range(base_state.size):
                row[base_state[k]] += again * base[k]
        everything = total(row, size)
        for s in range(size):
            row[s] /= everything
    return False
