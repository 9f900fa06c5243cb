"""What all compiled functions share: how they are compiled, and sums in numpy's own order."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

LANES = 64  # users that go side by side
BLOCK = 128  # values that numpy sums without halving

# No fast-math: reordered sums or fused products would give other last bits.
compiled: Any = njit(cache=True, nogil=True, error_model="numpy")


@compiled
def _block(values, begin, count):
    """Sum of up to 128 values in eight running sums, as numpy takes it."""
    if count < 8:
        running = 0.0
        for k in range(begin, begin + count):
            running += values[k]
        return running
    r0, r1, r2, r3 = values[begin], values[begin + 1], values[begin + 2], values[begin + 3]
    r4, r5, r6, r7 = values[begin + 4], values[begin + 5], values[begin + 6], values[begin + 7]
    whole = count - count % 8
    for k in range(begin + 8, begin + whole, 8):
        r0 += values[k]
        r1 += values[k + 1]
        r2 += values[k + 2]
        r3 += values[k + 3]
        r4 += values[k + 4]
        r5 += values[k + 5]
        r6 += values[k + 6]
        r7 += values[k + 7]
    running = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for k in range(begin + whole, begin + count):
        running += values[k]
    return running


@compiled
def total(values, count):
    """Sum of the first values as numpy sums a contiguous axis: blocks, added by halves of halves."""
    if count <= BLOCK:
        return _block(values, 0, count)
    begins, counts, sums = np.zeros(64, np.int64), np.zeros(64, np.int64), np.zeros(64)
    counts[0] = count
    waiting, found = 1, 0
    while waiting:  # no recursion: numba's cache cannot hold it
        waiting -= 1
        begin, many = begins[waiting], counts[waiting]
        if many < 0:  # both halves are there
            found -= 1
            sums[found - 1] += sums[found]
        elif many <= BLOCK:
            sums[found] = _block(values, begin, many)
            found += 1
        else:
            half = many // 2
            half -= half % 8
            counts[waiting] = -1
            begins[waiting + 1], counts[waiting + 1] = begin + half, many - half
            begins[waiting + 2], counts[waiting + 2] = begin, half
            waiting += 3
    return sums[0]


@compiled
def _lane_block(values, out):
    """`_block` down the first axis (…, lanes), lane by lane."""
    count, lanes = values.shape
    whole = count - count % 8
    if count < 8:
        out[:] = 0.0
        whole = 0
    else:
        parts = values[:8].copy()
        for k in range(8, whole):
            for u in range(lanes):
                parts[k % 8, u] += values[k, u]
        for u in range(lanes):
            out[u] = ((parts[0, u] + parts[1, u]) + (parts[2, u] + parts[3, u])) + (
                (parts[4, u] + parts[5, u]) + (parts[6, u] + parts[7, u])
            )
    for k in range(whole, count):
        for u in range(lanes):
            out[u] += values[k, u]


@compiled
def lane_sums(values, out):
    """`total` down the first axis (…, lanes), lane by lane."""
    count, lanes = values.shape
    if count <= BLOCK:
        _lane_block(values, out)
        return
    begins, counts, sums = np.zeros(64, np.int64), np.zeros(64, np.int64), np.zeros((64, lanes))
    counts[0] = count
    waiting, found = 1, 0
    while waiting:
        waiting -= 1
        begin, many = begins[waiting], counts[waiting]
        if many < 0:  # both halves are there
            found -= 1
            for u in range(lanes):
                sums[found - 1, u] += sums[found, u]
        elif many <= BLOCK:
            _lane_block(values[begin : begin + many], sums[found])
            found += 1
        else:
            half = many // 2
            half -= half % 8
            counts[waiting] = -1
            begins[waiting + 1], counts[waiting + 1] = begin + half, many - half
            begins[waiting + 2], counts[waiting + 2] = begin, half
            waiting += 3
    out[:] = sums[0]
