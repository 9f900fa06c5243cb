"""Releases inverted: an unbiased estimate of the truth behind each, whatever the distribution of the data.

For a kernel with table Q (n × K) of full row rank, G = Q diag(1/p) Qᵀ and v(y) = G⁻¹ Q(·|y)/p(y) have
Σ_y Q(y|x) v(y) = e_x for every x, so E[v(Y_t) | raw data, releases before] = e_{X_t}. Sums of v estimate counts, sums
of v_{t-1}(a)·v_t(b) transitions, and their variances have unbiased estimates of their own, as (e_x)² = e_x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core.bulk import places_within
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.engine import stream
from seqveil.receiver.evidence import Followed

WORST = 1e9  # condition of G beyond which a kernel counts as not invertible
WIDEST = 256  # symbols up to which tables are inverted


@dataclass(frozen=True, eq=False)
class Indicators:
    """Unbiased estimates of every event's symbol, user by user in order of time."""

    values: Floats  # (E, n)
    users: Ints  # (E,) non-decreasing
    place: Ints  # (E,) 0, 1, … within each stream

    @property
    def heavy(self) -> bool:
        """Whether a few events carry so much of a sum that its distribution is far from normal: kurtosis above 5n."""
        events, n = self.values.shape
        fourth, second = (self.values**4).sum(0), (self.values**2).sum(0)
        return bool((events * fourth > 5 * n * second**2).any())


def indicators(setting: stream.Terms, users: Ints, codes: Ints, times: Floats | None = None) -> Indicators | None:
    """The estimates for releases in order (users numbered from 0); None where some event has none.

    An event has none when its kernel has fewer outputs than symbols (`optimal` on a large alphabet), when it was held
    at ε = 0, when it went without a release, or when its kernel keeps declared secrets.
    """
    if setting.model.n > WIDEST or setting.in_batches or setting.in_blocks or setting.guards or (codes < 0).any():
        return None
    values = np.empty((codes.size, setting.model.n))
    for turn, seen in Followed(setting).observe(users, codes, times):
        found = _invert(setting, seen) if (seen.epsilons > 0).all() else None
        if found is None:
            return None
        values[turn] = found
    order = np.argsort(users, kind="stable")
    return Indicators(values[order], users[order], places_within(np.bincount(users)))


def _invert(setting: stream.Terms, seen: stream.Released) -> Floats | None:
    """v(y) for every release of a round, (B, n)."""
    values, n = np.empty(seen.beliefs.shape), setting.model.n
    # weights that never vanish where the belief does: any weights give an unbiased estimate
    weights = 0.9 * seen.beliefs + 0.1 / n
    for epsilon in np.unique(seen.epsilons):
        group = np.flatnonzero(seen.epsilons == epsilon)
        step = max(1, 4_000_000 // (n * n))
        for part in (group[at : at + step] for at in range(0, group.size, step)):
            built = stream.kernels(setting, seen.beliefs[part], float(epsilon))
            if built.outputs.shape[1] < n:
                return None
            columns = [built.column(np.full(part.size, k, np.int64)) for k in range(built.outputs.shape[1])]
            table = np.stack(columns, axis=2) / float(DENOMINATOR)  # probabilities of all outputs, (B, n, K)
            marginal = np.einsum("bx,bxy->by", weights[part], table)
            scaled = table / np.where(marginal > 0, marginal, 1.0)[:, None, :]
            gram = scaled @ table.transpose(0, 2, 1)
            if not (np.linalg.cond(gram) < WORST).all():
                return None
            which = (built.outputs == seen.codes[part][:, None]) & (marginal > 0)
            column = np.take_along_axis(scaled, which.argmax(1)[:, None, None], axis=2)
            values[part] = np.linalg.solve(gram, column)[:, :, 0]
    return values


def histogram(found: Indicators, window: Ints, windows: int) -> tuple[Floats, Floats]:
    """Counts of every symbol in each window (W, n), and their variances: Σ v and Σ (v² - v)."""
    n = found.values.shape[1]
    totals, squares = np.zeros((windows, n)), np.zeros((windows, n))
    np.add.at(totals, window, found.values)
    np.add.at(squares, window, found.values**2)
    return totals, squares - totals


def transitions(found: Indicators) -> tuple[Floats, Floats]:
    """Counts of every transition (n, n), and their variances.

    With w_t = v_{t-1}(a) v_t(b): Var Σ w = Σ (w_t² - w_t) + 2 Σ (w_t w_{t+1} - [a = b] v_{t-1}(a) v_t(a) v_{t+1}(a)) in
    expectation, because products two or more steps apart are uncorrelated given the data.
    """
    values, after = found.values, np.flatnonzero(found.place > 0)
    before, now = values[after - 1], values[after]
    totals = before.T @ now
    middle = after[found.place[after] > 1] - 1  # events with one before and one after
    first, second = values[middle - 1] * values[middle], values[middle] * values[middle + 1]
    shared = first.T @ second
    shared[np.diag_indices_from(shared)] -= (first * values[middle + 1]).sum(0)
    return totals, (before**2).T @ (now**2) - totals + 2 * shared
