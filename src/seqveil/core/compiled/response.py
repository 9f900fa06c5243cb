"""The truth or a draw, compiled: `crr` and randomised response."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from seqveil.core.compiled.sums import compiled


@compiled
def truth_or_draw(base, told, truths, coins, given, codes, columns):
    """The truth with weight `told`, else a draw by the weights `base` (B or 1, n): crr and randomised response."""
    n = base.shape[1]
    for user in range(codes.size):
        row = base[user if base.shape[0] > 1 else 0]
        if given.size:
            drawn = given[user]
        elif coins[user] < told:
            drawn = truths[user]
        else:
            drawn, rest = 0, coins[user] - told
            reached = row[0]
            while reached <= rest:
                drawn += 1
                reached += row[drawn]
        codes[user] = drawn
        for x in range(n):
            columns[user, x] = row[drawn]
        columns[user, drawn] += told


@compiled
def parts(laws, whole, shares):
    """`mechanisms._base.parts` with one total for all users."""
    users, n = laws.shape
    for user in range(users):
        largest, left = 0, whole
        for x in range(n):
            shares[user, x] = np.int64(np.ceil(laws[user, x] * float(whole)))
            left -= shares[user, x]
            if shares[user, x] > shares[user, largest]:
                largest = x
        shares[user, largest] += left
