"""Tables of a few different rows, and the check of them from their integers.

Symbol x has a *kind*; all symbols of a kind put the same weight on their own label, and the same weights on the labels
that are shared:

    Q(y|x)  =  disclosed(kind of x) · [y is x's own label]  +  spread(kind of x, y).

A symbol that is released as it is, one that is moved by the common distribution, and one row for each of a few others:
that is all there is where one secret is kept, so that a table over 10⁴ symbols is made, checked and drawn from in time
linear in their number, and never written out. A table of a linear program has a kind for every symbol.

*Check.* For a row of numbers r with Σ_x r(x) Q(y|x) ≤ 0 promised, the sum at a label is r(x) disclosed(kind of x) for
the symbol x that it belongs to, plus Σ over kinds of spread(kind, y) · Σ of r over the symbols of the kind: every label
is covered, from the integers that are drawn from, every rounding going outward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqveil.core.alphabet import WITHHELD
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels
from seqveil.core.secrets.bounds import Bounds

WRITABLE = 25_000_000  # numbers of a table that is written out in full
ONE = float(DENOMINATOR)


@dataclass(frozen=True, eq=False)
class Draft:
    """A table in floats, what no table can go below, and the label distribution it is mixed with where it fails."""

    outputs: Ints  # (K,) codes, WITHHELD among them where that is allowed
    kinds: Ints  # (n,) of each symbol
    disclosed: Floats  # (R,) probability that a symbol of this kind is released as it is
    shared: Ints  # (J,) places in `outputs` of the labels that symbols share
    spread: Floats  # (R, J)
    least: float
    towards: Floats | None = None  # (K,) None: the marginal

    def distribution(self, belief: Floats) -> Floats:
        """The distribution of labels that it is mixed with."""
        if self.towards is not None:
            return self.towards
        distribution = np.zeros(self.outputs.size)
        by_kind = _by_kind(belief[None], self.kinds, self.disclosed.size)[0]
        distribution[self.shared] = (by_kind[:, None] * self.spread).sum(0)  # no BLAS: the same bits on every machine
        own = np.flatnonzero(self.outputs != WITHHELD)
        codes = self.outputs[own]
        distribution[own] += belief[codes] * self.disclosed[self.kinds[codes]]
        return np.asarray(distribution / distribution.sum())

    def mixed(self, share: float, distribution: Floats) -> Draft:
        """The table mixed with one distribution for all."""
        spread = np.zeros((self.disclosed.size, self.outputs.size))
        spread[:, self.shared] = (1.0 - share) * self.spread
        spread += share * distribution
        places = np.arange(self.outputs.size)
        return Draft(self.outputs, self.kinds, (1.0 - share) * self.disclosed, places, spread, self.least, distribution)

    def full(self) -> Floats:
        """Q(y|x) written out: (n, K)."""
        table = np.zeros((self.kinds.size, self.outputs.size))
        table[:, self.shared] = self.spread[self.kinds]
        own = np.flatnonzero(self.outputs != WITHHELD)
        table[self.outputs[own], own] += self.disclosed[self.kinds[self.outputs[own]]]
        return table


def constant(n: int, label: int) -> Draft:
    """The same release whatever the truth is."""
    zero, one = np.zeros(1, np.int64), np.ones(1)
    return Draft(np.array([label]), np.zeros(n, np.int64), np.zeros(1), zero, one[None], -np.inf, one)


@dataclass(frozen=True, eq=False)
class GuardingTable:
    """An integer table over the labels in use; every row sums to 2**62."""

    outputs: Ints  # (K,) codes, WITHHELD among them where that is allowed
    kinds: Ints  # (n,)
    disclosed: Ints  # (R,)
    shared: Ints  # (J,)
    spread: Ints  # (R, J)
    belief: Floats
    costs: Distortion
    bound: float = -np.inf  # what no table of these bounds can go below; -inf where it was not computed

    @classmethod
    def of(cls, draft: Draft, belief: Floats, costs: Distortion) -> GuardingTable:
        """Weights rounded down; what that leaves of a row goes to its largest weight."""
        disclosed, spread = (draft.disclosed * ONE).astype(np.int64), (draft.spread * ONE).astype(np.int64)
        spread[draft.disclosed >= 1.0] = 0
        left = DENOMINATOR - disclosed - np.add.reduce(spread, 1)
        moved = (draft.disclosed < 1.0).nonzero()[0]
        if moved.size:
            spread[moved, spread[moved].argmax(1)] += left[moved]
        return cls(draft.outputs, draft.kinds, disclosed, draft.shared, spread, belief, costs, draft.least)

    @cached_property
    def _own(self) -> tuple[Ints, Ints]:
        """Places of the labels that are symbols, and the weight with which each is released as it is."""
        places = (self.outputs != WITHHELD).nonzero()[0]
        return places, self.disclosed[self.kinds[self.outputs[places]]]

    def pick(self, code: int, uniform: int) -> int:
        """Place in `outputs` that a draw, an integer in [0, 2**62), picks for a symbol."""
        kind = int(self.kinds[code])
        disclosed = int(self.disclosed[kind])
        if uniform < disclosed:
            return int(np.flatnonzero(self.outputs == code)[0])
        return int(self.shared[np.cumsum(self.spread[kind]).searchsorted(uniform - disclosed, side="right")])

    def column(self, index: int) -> Ints:
        """Weights (n,) that each symbol puts on an output."""
        place = np.flatnonzero(self.shared == index)
        column = self.spread[:, place[0]][self.kinds] if place.size else np.zeros(self.kinds.size, np.int64)
        code = int(self.outputs[index])
        if code != WITHHELD:
            column[code] += self.disclosed[self.kinds[code]]
        return column

    def full(self) -> Ints:
        """All weights, (n, K), written out."""
        if self.kinds.size * self.outputs.size > WRITABLE:
            raise InputError(
                f"a table of {self.kinds.size} × {self.outputs.size} weights is too large to write out; "
                "release without looking at it"
            )
        table = np.zeros((self.kinds.size, self.outputs.size), np.int64)
        table[:, self.shared] = self.spread[self.kinds]
        places, disclosed = self._own
        table[self.outputs[places], places] += disclosed
        return table

    def kernels(self) -> Kernels:
        """The same as a stack of one kernel, written out."""
        outputs = self.outputs[None]
        return Kernels(self.kinds.size, outputs, np.zeros_like(outputs), self.full()[None])

    @cached_property
    def error(self) -> float:
        """The expected cost under the belief; a release that says nothing costs 1."""
        codes = self.outputs[self.shared]
        said = codes != WITHHELD
        by_kind = _by_kind(self.belief[None], self.kinds, self.disclosed.size)[0]
        nothing = float(by_kind @ self.spread[:, ~said].sum(1)) / ONE
        if self.costs.is_hamming:
            wrong = float(by_kind @ self.spread[:, said].sum(1))
            right = float(self.belief[codes[said]] @ self.spread[self.kinds[codes[said]], said.nonzero()[0]])
            return max(0.0, wrong - right) / ONE + nothing
        x = np.flatnonzero(self.belief)
        own = self.costs.between(x, x) * self.disclosed[self.kinds[x]]
        moved = self.costs.between(x[:, None], codes[said][None, :]) * self.spread[:, said][self.kinds[x]]
        return float(self.belief[x] @ (own + moved.sum(1))) / ONE + nothing

    def keeps(self, bounds: Bounds) -> bool:
        """Whether every label keeps to every bound, from the integers, rounded outward."""
        if self.disclosed.size == 1 and not self.disclosed[0]:
            return True  # the same whatever the truth is: nothing moves
        rows = bounds.promised
        if not len(rows):
            return True
        places, disclosed = self._own
        sums = np.zeros((len(rows), self.outputs.size))
        sums[:, places] = rows[:, self.outputs[places]] * disclosed
        sums[:, self.shared] += _by_kind(rows, self.kinds, self.disclosed.size) @ self.spread.astype(np.float64)
        return bool(np.maximum.reduce(sums, None) <= 0.0)

    def within(self, epsilon: float) -> bool:
        """Whether every lift over the whole alphabet is within ε, and the table 2ε-LDP."""
        made = self.kernels()
        return bool(made.leakage(self.belief[None], True)[0] <= epsilon and made.ldp()[0] <= 2 * epsilon)


def _by_kind(numbers: Floats, kinds: Ints, count: int) -> Floats:
    """Sums of rows of numbers (I, n) over the symbols of each kind: (I, count).

    Row by row, or symbol by symbol where there are more rows: both add in the order of the symbols, to the same bits.
    """
    if len(numbers) > kinds.size:
        columns = np.zeros((count, len(numbers)))
        for kind, column in zip(kinds.tolist(), np.ascontiguousarray(numbers.T), strict=True):
            columns[kind] += column
        return columns.T
    sums = np.empty((len(numbers), count))
    for i, row in enumerate(numbers):
        sums[i] = np.bincount(kinds, row, minlength=count)
    return sums
