"""Laws over many states led on and back, compiled: `SIDE` users side by side share one pass over the chain.

Each sum is taken in the order in which scipy's sparse product takes it, user by user, so that the results are numpy's
to the last bit, whoever else is in the call. A few users are led on one by one.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from seqveil.core.compiled import LARGEST_WEIGHT, compiled, lane_sums, total

SIDE = 8  # users that go side by side, a line of the processor's memory for each state; `_led_on` names each of them
TILE = 128  # numbers that are divided at a time


@compiled
def _extremes(law, column):
    """Least and largest weight over what the law allows."""
    allowed, low, high = 0, LARGEST_WEIGHT, 0
    for s in range(law.size):
        allowed += 1 if law[s] > 0.0 else 0
    if allowed == law.size:  # the usual case, and many times quicker
        for s in range(law.size):
            low, high = min(low, column[s]), max(high, column[s])
        return low, high
    for s in range(law.size):
        if law[s] > 0.0:
            low, high = min(low, column[s]), max(high, column[s])
    return low, high


@compiled
def _divide(laws, sums, tile):
    """Laws (S, SIDE) by the sum of each, in pieces long enough for vector instructions."""
    flat = laws.reshape(-1)
    for i in range(TILE):
        tile[i] = sums[i % SIDE]
    whole = flat.size - flat.size % TILE
    for begin in range(0, whole, TILE):
        part = flat[begin : begin + TILE]
        for i in range(TILE):
            part[i] /= tile[i]
    for i in range(whole, flat.size):
        flat[i] /= tile[i % SIDE]


@compiled
def _led_on(post, pointers, sources, chances, row):
    """One step of the chain for laws (S, SIDE): each target's sum over its sources, in their order.

    The last row of the chain, and so of what is filled in, is the mass that goes on by the base law.
    """
    for t in range(row.shape[0]):
        a0, a1, a2, a3, a4, a5, a6, a7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(pointers[t], pointers[t + 1]):
            chance, s = chances[k], sources[k]
            a0 += chance * post[s, 0]
            a1 += chance * post[s, 1]
            a2 += chance * post[s, 2]
            a3 += chance * post[s, 3]
            a4 += chance * post[s, 4]
            a5 += chance * post[s, 5]
            a6 += chance * post[s, 6]
            a7 += chance * post[s, 7]
        row[t, 0], row[t, 1], row[t, 2], row[t, 3] = a0, a1, a2, a3
        row[t, 4], row[t, 5], row[t, 6], row[t, 7] = a4, a5, a6, a7


@compiled
def _restart(again, base_state, base, row):
    """Add what comes to each state of laws (S, SIDE) by the base law, which so much of each law leads to."""
    for k in range(base.size):
        target, chance = row[k if base_state.size == 0 else base_state[k]], base[k]
        for u in range(SIDE):
            target[u] += again[u] * chance


@compiled
def _one_on(post, pointers, sources, chances, base_state, base, row):
    """One step of the chain for one law, as `_led_on` and `_restart` take it, and divided by its sum."""
    for t in range(row.size):
        here = 0.0
        for k in range(pointers[t], pointers[t + 1]):
            here += chances[k] * post[sources[k]]
        row[t] = here
    if base.size:
        again = 0.0
        for k in range(pointers[-2], pointers[-1]):
            again += chances[k] * post[sources[k]]
        for k in range(base.size):
            row[k if base_state.size == 0 else base_state[k]] += again * base[k]
    everything = total(row, row.size)
    for t in range(row.size):
        row[t] /= everything


@compiled
def update_wide(
    states, columns, newest, pointers, sources, chances, base_state, base, ahead, marginal, low, high
):  # fmt: skip
    """`compiled.update` for a sparse chain, which comes by targets (`MarkovModel.inward`).

    Fills in all of `ahead`; says whether a belief ruled its release out, which is left to numpy.
    """
    users, size = states.shape
    flat, spread = np.zeros((SIDE, size)), np.empty(size if newest.size else 0, columns.dtype)
    post, led, sums, tile = np.empty((size, SIDE)), np.empty((size + 1, SIDE)), np.empty(SIDE), np.empty(TILE)
    row = led[:size]
    for begin in range(0, users, SIDE):
        here = min(SIDE, users - begin)
        alone = 2 * here <= SIDE  # so few that those beside them are not worth their time
        for u in range(here):
            user, column = begin + u, columns[begin + u]
            if newest.size:
                for s in range(size):
                    spread[s] = column[newest[s]]
                column = spread
            law, mine = states[user], flat[u]
            for s in range(size):
                mine[s] = law[s] * float(column[s])
            low[user], high[user] = _extremes(law, column)
            if alone:
                marginal[user] = total(mine, size)
                if not marginal[user] > 0.0:
                    return True
                for s in range(size):
                    mine[s] /= marginal[user]
                _one_on(mine, pointers, sources, chances, base_state, base, ahead[user])
        if alone:
            continue
        for s in range(size):
            for u in range(SIDE):
                post[s, u] = flat[u, s]
        lane_sums(post, sums)
        for u in range(here):
            if not sums[u] > 0.0:
                return True
            marginal[begin + u] = sums[u]
        _divide(post, sums, tile)
        _led_on(post, pointers, sources, chances, led)
        _restart(led[size], base_state, base, row)
        lane_sums(row, sums)
        _divide(row, sums, tile)
        for s in range(size):
            for u in range(here):
                ahead[begin + u, s] = row[s, u]
    return False


@compiled
def pull_wide(values, pointers, targets, chances, backoff, jump, out):
    """`filtering.pull` for a sparse chain: each source's sum over its targets, `SIDE` users side by side.

    `jump` (B,) is what the base law expects of the values. Fills in all of `out` (B, S).
    """
    users, size = values.shape
    laws, led = np.zeros((size, SIDE)), np.empty((size, SIDE))
    for begin in range(0, users, SIDE):
        here = min(SIDE, users - begin)
        if 2 * here <= SIDE:
            for user in range(begin, users):
                for s in range(size):
                    onward = 0.0
                    for k in range(pointers[s], pointers[s + 1]):
                        onward += chances[k] * values[user, targets[k]]
                    out[user, s] = onward + backoff[s] * jump[user]
            continue
        for s in range(size):
            for u in range(here):
                laws[s, u] = values[begin + u, s]
        _led_on(laws, pointers, targets, chances, led)
        for s in range(size):
            for u in range(here):
                out[begin + u, s] = led[s, u] + backoff[s] * jump[begin + u]
