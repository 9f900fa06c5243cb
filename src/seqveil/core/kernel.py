"""Kernels: integer tables that say with which probability each symbol is released as which.

A row's weights are integers that sum to 2**62, so drawing from it is exact, and what it leaks is computed from the very
integers that are drawn from, with every rounding going outward. Kernels come as a stack, one for each user of a fleet;
`Kernel` is a stack of one, with the alphabet's own values on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core.errors import GuaranteeError, InputError
from seqveil.core.randomness import BITS

if TYPE_CHECKING:
    from seqveil.core.alphabet import Symbols
    from seqveil.core.distortion import Distortion

DENOMINATOR = 1 << BITS
DROP = 1e-10  # outputs a solver leaves with less probability than this are its residue, not a choice
UNIT = 2.0**-53
EVEN = 1e-14  # a row whose sum is this close to one needs no dividing: rounding to integers sees to the rest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@lru_cache(maxsize=1024)
def slack(n: int) -> float:
    """Relative error that summing n products in float64 can make, doubled: what every ratio here is widened by."""
    return 2 * (n + 16) * UNIT


@lru_cache(maxsize=1024)
def usable(epsilon: float, n: int, power: int = 2) -> float:
    """The ε a solver may aim at so that float error and rounding to integers stay inside ε (0 where none is left).

    The least weight of a sound kernel is about e^-2ε · 2**62 (`power` 2), which rounds by one part in as many; a
    release that is drawn draw by draw rounds only the chance e^-ε of a fresh draw (`power` 1).
    """
    return max(0.0, epsilon - 1e-11 - 8 * slack(n) - 4.0 * float(np.exp(power * epsilon)) / DENOMINATOR)


@dataclass(frozen=True, eq=False)
class Kernels:
    """A stack of B kernels over n symbols with K outputs each.

    weight(x, y) = base(y) + extra(class of x, y): all symbols of one class share a row (`rows`; none: every symbol is a
    class of its own), and a class puts its extra weight either on all outputs (`places` is None) or on a few of them.
    This holds a table of 5 rows for 43,097 symbols as well as randomised response over them. Every class holds a proper
    row, also one that no symbol is in.
    """

    n: int
    outputs: Ints  # (B, K) codes
    base: Ints  # (B, K)
    extra: Ints  # (B, R, J)
    places: Ints | None = None  # (B, R, J) index of an output
    rows: Ints | None = None  # (B, n) class of each symbol

    @classmethod
    def from_tables(cls, outputs: Ints, tables: Floats, rows: Ints | None, beliefs: Floats) -> Kernels:
        """Integer kernels from float tables (B, R, K): residual columns are dropped, rows sum to 2**62 exactly."""
        masses = class_masses(beliefs, rows, tables.shape[1])
        tables = np.maximum(tables, 0.0)
        weak = (masses[:, :, None] * tables).sum(1) < DROP
        tables = np.where(weak[:, None, :], 0.0, tables)
        sums = tables.sum(2, keepdims=True)
        tables = np.where(np.abs(sums - 1.0) > EVEN, tables / sums, tables)
        return cls(beliefs.shape[1], outputs, np.zeros_like(outputs), to_weights(tables), None, rows)

    def made_sound(self, beliefs: Floats, epsilon: float, ldp: float) -> Kernels:
        """These kernels, once every lift over the whole alphabet is within ε and the LDP level within `ldp`.

        Tables that a solver's error or rounding left outside are mixed with their marginal (docs/theory.md, section 4),
        each try leaving more room for the rounding of outputs with little weight. Nearly always the first check passes.
        """
        made = self
        for room in (0.0, 1e-9, 1e-7, 1e-5, 1e-3, 0.1, 1.0):
            worst, level = made.leakage(beliefs, whole_alphabet=True), made.ldp()
            bad = np.flatnonzero(~((worst <= epsilon) & (level <= ldp)))
            if not bad.size:
                return made
            if self.places is not None:
                break
            masses = class_masses(beliefs, self.rows, self.extra.shape[1])[bad]
            tables = (made.extra[bad] + made.base[bad, None]) / DENOMINATOR
            base, extra = made.base.copy(), made.extra.copy()
            base[bad], extra[bad] = 0, to_weights(mix(tables, masses, usable(epsilon, self.n) * (1 - room)))
            made = replace(made, base=base, extra=extra)
        raise GuaranteeError(
            f"a kernel for ε={epsilon:g} came out with lift {worst.max():.12g} and LDP level {level.max():.12g}; "
            "nothing was released; please report the model and mechanism"
        )

    def __len__(self) -> int:
        return len(self.outputs)

    def pick(self, codes: Ints, uniform: Ints) -> Ints:
        """Index of the output that each draw, an integer in [0, 2**62), picks for each symbol by cumulative weights."""
        users = np.arange(len(self))
        classes = codes if self.rows is None else self.rows[users, codes]
        extra = self.extra[users, classes]
        steps = np.cumsum(extra, axis=1)
        place = (steps <= uniform[:, None]).sum(1)
        drawn = np.minimum(place, extra.shape[1] - 1)
        if self.places is not None:
            drawn = self.places[users, classes, drawn]
        shared = np.flatnonzero(uniform >= steps[:, -1])
        if shared.size:
            rest = (uniform - steps[:, -1])[shared]
            drawn[shared] = (np.cumsum(self.base[shared], axis=1) <= rest[:, None]).sum(1)
        return drawn

    def column(self, drawn: Ints) -> Ints:
        """Weights (B, n) that each symbol of the alphabet puts on the drawn output."""
        users = np.arange(len(self))
        if self.places is None:
            extra = self.extra[users, :, drawn]
        else:
            matches = self.extra * (self.places == drawn[:, None, None])
            extra = matches[:, :, 0] if matches.shape[2] == 1 else matches.sum(2)
        if self.rows is not None:
            extra = np.take_along_axis(extra, self.rows, axis=1)
        return extra + self.base[users, drawn][:, None]

    def marginal(self, beliefs: Floats) -> Floats:
        """p(y)·2**62 = Σ β(x) weight(x, y): shape (B, K)."""
        masses = class_masses(beliefs, self.rows, self.extra.shape[1])
        shared = self.base * masses.sum(1)[:, None]
        if self.places is None:
            return shared + (masses[:, :, None] * self.extra).sum(1)
        return shared + grouped_sum(self.places, masses[:, :, None] * self.extra, self.outputs.shape[1])

    @cached_property
    def whole(self) -> tuple[Ints, Ints]:
        """`extremes` over the whole alphabet."""
        return self.extremes()

    def extremes(self, present: NDArray[np.bool_] | None = None) -> tuple[Ints, Ints]:
        """Least and largest weight of every output over the symbols present (None: over all): two (B, K) arrays."""
        classes, outputs = self.extra.shape[1], self.outputs.shape[1]
        extra, top = self.extra, np.iinfo(np.int64).max
        taken = np.ones((len(self), classes), bool)
        if present is not None:
            taken = class_masses(present.astype(np.float64), self.rows, classes) > 0
        if self.places is None:
            low, high = np.where(taken[:, :, None], extra, top), np.where(taken[:, :, None], extra, 0)
            return self.base + low.min(1), self.base + high.max(1)
        used = (extra > 0) & taken[:, :, None]
        high = _scatter(np.maximum, self.places, np.where(used, extra, 0), outputs, 0)
        low = _scatter(np.minimum, self.places, np.where(used, extra, top), outputs, top)
        everyone = grouped_sum(self.places, used.astype(np.float64), outputs) == taken.sum(1)[:, None]
        return self.base + np.where(everyone, low, 0), self.base + high

    def lift_bounds(self, beliefs: Floats, whole_alphabet: bool = False) -> tuple[Floats, Floats]:
        """Logs of the least and largest lift of every output (B, K), rounded outward; 0 for outputs never released."""
        low, high = self.whole if whole_alphabet else self.extremes(beliefs > 0)
        marginal = self.marginal(beliefs)
        with np.errstate(divide="ignore", invalid="ignore"):
            least = np.where(high > 0, outward(np.log(low / marginal), slack(self.n), -1), 0.0)
            largest = np.where(high > 0, outward(np.log(high / marginal), slack(self.n), +1), 0.0)
        # released though the belief rules it out (an unsound kernel): tells all there is to tell
        ruled_out = (high > 0) & (marginal == 0)
        return np.where(ruled_out, -np.inf, least), np.where(ruled_out, np.inf, largest)

    def leakage(self, beliefs: Floats, whole_alphabet: bool = False) -> Floats:
        """IIL of each kernel, from above: max |log lift| over symbols with β > 0 (or all) and outputs."""
        least, largest = self.lift_bounds(beliefs, whole_alphabet)
        return np.maximum(-least.min(1), largest.max(1))

    def ldp(self) -> Floats:
        """LDP level of each kernel, from above: max over outputs of log(largest / least weight), over all symbols."""
        low, high = self.whole
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(high > low, outward(np.log(high / low), slack(1), +1), 0.0)
        return np.asarray(ratio.max(1))

    def one(self, index: int, alphabet: Symbols | None = None) -> Kernel:
        """The kernel of one user, as an object to look at."""
        part = slice(index, index + 1)
        places, rows = (None if a is None else a[part] for a in (self.places, self.rows))
        return Kernel(Kernels(self.n, self.outputs[part], self.base[part], self.extra[part], places, rows), alphabet)


class Kernel:
    """One kernel: row x of `probabilities` is the distribution of the release when the truth is symbol x.

    >>> from seqveil.core.mechanisms import randomized_response
    >>> kernel = randomized_response.kernels(np.array([[0.5, 0.5]]), np.log(3.0)).one(0)
    >>> kernel.probabilities.round(6).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    >>> round(kernel.ldp(), 6), round(kernel.leakage([0.5, 0.5]), 6)
    (1.098612, 0.693147)
    """

    denominator = DENOMINATOR

    def __init__(self, stack: Kernels, alphabet: Symbols | None = None) -> None:
        self._stack, self._alphabet = stack, alphabet
        self._kept = np.flatnonzero(stack.whole[1][0] > 0)

    @property
    def codes(self) -> Ints:
        """Codes of the outputs that can be released."""
        return self._stack.outputs[0, self._kept]

    @property
    def outputs(self) -> Any:
        """The outputs as the alphabet's own values (codes where there is no alphabet); None says nothing."""
        if self._alphabet is None:
            return self.codes
        values = iter(self._alphabet.decode(self.codes[self.codes >= 0]))
        return [next(values) if code >= 0 else None for code in self.codes.tolist()]

    @cached_property
    def weights(self) -> Ints:
        """The integer table, one row per symbol and one column per output; rows sum to `denominator`."""
        stack = self._stack
        if stack.n * self._kept.size > 100_000_000:
            raise InputError(f"{stack.n} × {self._kept.size} weights are too many to write out; use column(index)")
        return np.stack([stack.column(self._kept[[j]])[0] for j in range(self._kept.size)], axis=1)

    @property
    def probabilities(self) -> Floats:
        """(n, outputs) the integer weights as probabilities."""
        return self.weights / float(DENOMINATOR)

    def column(self, index: int) -> Ints:
        """Weights every symbol puts on `outputs[index]`."""
        return self._stack.column(self._kept[[index]])[0]

    def marginal(self, belief: ArrayLike) -> Floats:
        """p(y), the probability of each output as the adversary sees it."""
        return self._stack.marginal(self._row(belief))[0, self._kept] / DENOMINATOR

    def leakage(self, belief: ArrayLike, whole_alphabet: bool = False) -> float:
        """True instantaneous leakage under the belief, from the integers, rounded up."""
        return float(self._stack.leakage(self._row(belief), whole_alphabet)[0])

    def ldp(self) -> float:
        """LDP level over the whole alphabet, whatever the true distribution is; rounded up."""
        return float(self._stack.ldp()[0])

    def error(self, belief: ArrayLike, distortion: Distortion) -> float:
        """Expected distortion Σ β(x) Q(y|x) D(x, y) under the belief."""
        if not distortion.is_hamming and (self.codes < 0).any():
            raise InputError(
                "saying nothing has no cost under this distortion; count wrong symbols, or set a price for it"
            )
        row = self._row(belief)[0]
        support = np.flatnonzero(row)
        costs = distortion.between(support[:, None], self.codes[None, :])
        return float((row[support, None] * self.probabilities[support] * costs).sum())

    def _row(self, belief: ArrayLike) -> Floats:
        row = np.asarray(belief, dtype=np.float64)
        if row.shape != (self._stack.n,):
            raise InputError(f"expected a belief over {self._stack.n} symbols, got shape {row.shape}")
        return row[None, :]

    def __repr__(self) -> str:
        return f"Kernel({self._stack.n} symbols, {self._kept.size} outputs, LDP level {self.ldp():.4g})"


def class_masses(values: Floats, rows: Ints | None, classes: int) -> Floats:
    """Sum of `values` (B, n) over the symbols of each class: (B, R), each bin summed in the order of the symbols."""
    return values if rows is None else grouped_sum(rows, values, classes)


def grouped_sum(groups: Ints, values: Floats, count: int) -> Floats:
    """Sum of each user's values by group, (B, ...) → (B, count), each in order, whatever the stack is."""
    users = len(groups)
    bins = groups.reshape(users, -1) + count * np.arange(users)[:, None]
    spread = values if values.shape == groups.shape else np.broadcast_to(values, groups.shape)
    sums = np.bincount(bins.ravel(), spread.ravel(), users * count)
    return sums.reshape(users, count).astype(np.float64, copy=False)


def to_weights(tables: Floats) -> Ints:
    """Rows of probabilities (..., K) as integers that sum to 2**62; what rounding leaves goes to the largest entry."""
    weights = (tables * float(DENOMINATOR)).astype(np.int64)
    largest = weights.argmax(-1)[..., None]
    rest = DENOMINATOR - weights.sum(-1, keepdims=True)
    np.put_along_axis(weights, largest, np.take_along_axis(weights, largest, -1) + rest, -1)
    return weights


def outward(logs: Floats, relative: float, sign: int) -> Floats:
    """Logs of ratios with that relative error, moved to the safe side."""
    with np.errstate(invalid="ignore"):
        moved = logs + sign * (relative + 8 * UNIT * np.abs(logs))
    return np.where(np.isinf(logs), logs, moved)


def mix(tables: Floats, masses: Floats, epsilon: float) -> Floats:
    """Repair by mixing: (1-λ)·Q + λ·(draw from its marginal), with the least λ per kernel that brings all lifts in.

    The marginal stays as it is and lift ρ becomes (1-λ)ρ + λ, so some λ ≤ 1 always does (docs/theory.md, section 4).

    >>> mix(np.array([[[1.0, 0.0], [0.0, 1.0]]]), np.array([[0.5, 0.5]]), np.log(1.5)).round(6).tolist()
    [[[0.666667, 0.333333], [0.333333, 0.666667]]]
    """
    marginal = (masses[:, :, None] * tables).sum(1)
    lifts = np.divide(tables, marginal[:, None, :], out=np.ones_like(tables), where=(marginal > 0)[:, None, :])
    high, low = lifts.max((1, 2)), lifts.min((1, 2))
    ceiling, floor = np.exp(epsilon), np.exp(-epsilon)
    down = np.where(high > ceiling, (high - ceiling) / np.maximum(high - 1.0, UNIT), 0.0)
    up = np.where(low < floor, (floor - low) / np.maximum(1.0 - low, UNIT), 0.0)
    share = np.minimum(1.0, np.maximum(down, up))[:, None, None]
    return (1.0 - share) * tables + share * marginal[:, None, :]


def _scatter(combine: np.ufunc, places: Ints, values: Ints, outputs: int, start: int) -> Ints:
    users = len(places)
    out = np.full(users * outputs, start, dtype=np.int64)
    combine.at(out, (places + outputs * np.arange(users)[:, None, None]).ravel(), values.ravel())
    return out.reshape(users, outputs)
