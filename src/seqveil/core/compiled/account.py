"""The exact account, compiled: `leakage.Account.charge`. Logarithms come from numpy, all else is done here."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from seqveil.core.compiled.sums import compiled
from seqveil.core.kernel import UNIT


@compiled
def _outward(log, relative, sign, silent):
    """`kernel.outward` of one number, 0 for a release that tells nothing."""
    if silent:
        return 0.0
    return log if np.isinf(log) else log + sign * (relative + 8 * UNIT * abs(log))


@compiled
def _add(running, cost, sign):
    """`leakage._add` of two numbers: rounded outward, exact where the cost is 0."""
    both = running + cost
    return both if cost == 0.0 or np.isinf(both) else both + sign * (2 * UNIT) * abs(both)


@compiled
def charge_alike(logs, silent, ahead_most, ahead_least, relative, most, least):
    """`Account.charge_alike`: both sides after a release with these least and largest log lifts (B, 2)."""
    for user in range(len(logs)):
        up = _outward(logs[user, 1], relative, 1.0, silent[user])
        down = _outward(logs[user, 0], relative, -1.0, silent[user])
        most[user, 0] = _add(ahead_most[user, 0], up, 1.0)
        least[user, 0] = _add(ahead_least[user, 0], down, -1.0)


@compiled
def charge(logs, columns, ahead, relative, newest, pointers, targets, backoff, base_state, base, most, least, further):
    """`Account.charge` for a chain in which not everything follows everything; `logs` (B, n) are of the lifts.

    `ahead` and `further` are pairs: the upper side (B, S) and the lower one.
    """
    ahead_most, ahead_least = ahead
    further, nearer = further
    users, size = ahead_most.shape
    n = columns.shape[1]
    ups, downs = np.empty(n), np.empty(n)
    for user in range(users):
        silent = True
        for x in range(1, n):
            silent = silent and columns[user, x] == columns[user, 0]
        for x in range(n):
            ups[x] = _outward(logs[user, x], relative, 1.0, silent)
            downs[x] = _outward(logs[user, x], relative, -1.0, silent)
        most[user], least[user], further[user], nearer[user] = -np.inf, np.inf, -np.inf, np.inf
        restart_most, restart_least = -np.inf, np.inf
        for s in range(size):
            up, down = ahead_most[user, s], ahead_least[user, s]
            up = up if up == -np.inf else _add(up, ups[newest[s]], 1.0)
            down = down if down == np.inf else _add(down, downs[newest[s]], -1.0)
            most[user], least[user] = max(most[user], up), min(least[user], down)
            for k in range(pointers[s], pointers[s + 1]):
                t = targets[k]
                further[user, t], nearer[user, t] = max(further[user, t], up), min(nearer[user, t], down)
            if backoff.size and backoff[s] > 0.0:
                restart_most, restart_least = max(restart_most, up), min(restart_least, down)
        if backoff.size:
            for k in range(base_state.size):
                if base[k] > 0.0:
                    t = base_state[k]
                    further[user, t] = max(further[user, t], restart_most)
                    nearer[user, t] = min(nearer[user, t], restart_least)
