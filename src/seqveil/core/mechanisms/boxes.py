"""Soft boxes of batches, and the chain over one batch: how likely a box is, and how likely each state inside it.

A soft box is f(o) = Π_t φ_t(o_t) with weights φ_t(x) ∈ [0, 1]. Its mass E f and its state distributions come from one
pass forward and one backward over the chain, with the weights put on at each position; nothing lists the batches.

    α_1 = π·φ_1,  α_{t+1} = (α_t P)·φ_{t+1},  b_w = 1,  b_t = P (φ_{t+1}·b_{t+1}),  E[f; state_t = s] = α_t(s) b_t(s)

`BatchWindow` holds the chain, cut to the states that carry nearly all of the belief where those are few; `forward` and
`backward` run over the whole chain, for what must be exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.core.model import MarkovModel

if TYPE_CHECKING:
    from seqveil.core.mechanisms.samples import Sample

Box = dict[int, Floats]
"""Weights φ_t (n,) by position; a position that is missing has weight one everywhere."""

MOST = 0.1  # share of the states up to which a window is worth opening
SPARSE = 0.2  # a vector with fewer entries than this takes only its own rows of the chain
WHOLE = 20_000  # a chain with fewer states and transitions than this a position is never cut


@dataclass(frozen=True, eq=False)
class Split:
    """One public question: is the symbol at `position` to the left? Yes with probability left(x) / 2**62."""

    position: int
    left: Ints  # (n,) each 0, 2**62, or one value in between
    mass: float  # of the left side, inside the node
    rest: float  # of the right side
    leftward: Floats  # (n,) left / 2**62, exact

    @property
    def fresh(self) -> int:
        """Weight out of 2**62 with which a fresh draw from the node goes left.

        The smaller side is rounded, so that a cell of e^-32 keeps its chance to many digits.
        """
        smaller = round(DENOMINATOR * (min(self.mass, self.rest) / (self.mass + self.rest)))
        return smaller if self.mass <= self.rest else DENOMINATOR - smaller

    def chance(self, side: int) -> float:
        """Probability of a fresh draw from the node to go to that side."""
        return (DENOMINATOR - self.fresh if side else self.fresh) / float(DENOMINATOR)

    def share(self, side: int) -> Floats:
        """Probability (n,) that each symbol goes to that side (0: left, 1: right); exact in float64."""
        return 1.0 - self.leftward if side else self.leftward


def forward(model: MarkovModel, states: Floats, length: int, box: Box) -> Floats:
    """α_t of the box for every position over the whole chain: (w, S)."""
    out = np.empty((length, model.size))
    for position in range(length):
        distribution = model.advance(out[position - 1]) if position else states
        out[position] = distribution * box[position][model.newest] if position in box else distribution
    return out


def backward(model: MarkovModel, later: Floats, length: int, box: Box) -> Floats:
    """b_t of the box for every position over the whole chain, from `later` at the last one: (w, S)."""
    out = np.empty((length, model.size))
    out[-1] = later
    for position in range(length - 1, 0, -1):
        value = out[position] * box[position][model.newest] if position in box else out[position]
        out[position - 1] = filtering.pull(model, value[None])[0]
    return out


@dataclass(frozen=True, eq=False)
class BatchWindow:
    """The chain over one batch, cut at each position to the states that carry nearly all of the belief.

    *Guarantee*: the mass of any box under the window is at most its true mass, and short of it by at most what was cut.
    """

    model: MarkovModel
    distributions: list[Floats]  # weights of the kept states at each position, before any box
    kept: list[Ints]  # the kept states, by position
    symbols: list[Ints]  # newest symbol of each kept state, by position
    steps: list[Any]  # sparse transitions between kept states, by position
    restarts: list[Floats]  # back-off weight of each kept state
    bases: list[Floats]  # where the back-off leads among the kept states of the next position
    whole: bool  # nothing was cut
    inflow: Any = None  # transitions by target, where all positions share them

    @cached_property
    def length(self) -> int:
        """Symbols in the window."""
        return len(self.symbols)

    @cached_property
    def flows(self) -> list[Any]:
        """The steps transposed; they share their arrays."""
        known: dict[int, Any] = {}
        for step in self.steps:
            if id(step) not in known:
                known[id(step)] = step.T
        return [known[id(step)] for step in self.steps]

    def everywhere(self, position: int, values: Floats) -> Floats:
        """Values of the kept states at `position` among all states, zero elsewhere: (S,)."""
        if len(values) == self.model.size:
            return values
        out = np.zeros(self.model.size)
        out[self.kept[position]] = values
        return out

    def root(self) -> Node:
        """The whole batch as a node: weight one everywhere."""
        known: dict[int, Floats] = {}  # positions with as many states share their ones
        ones = [known.setdefault(len(symbols), np.ones(len(symbols))) for symbols in self.symbols]
        behind = ones[::-1] if self.whole else ones[-1:]
        return Node(self, {}, (), float(self.distributions[-1].sum()), ones, list(self.distributions), behind)

    def onward(self, position: int, distribution: Floats) -> Floats:
        """Weights at `position`, one step on."""
        restart = float((distribution * self.restarts[position]).sum()) if self.model.restarts else 0.0
        step = self.steps[position]
        if len(present := np.flatnonzero(distribution)) < SPARSE * len(distribution):
            moved = np.asarray(step[present].T @ distribution[present])
        else:
            moved = np.asarray(self.flows[position] @ distribution)
        return moved + restart * self.bases[position] if restart else moved

    def back(self, position: int, value: Floats) -> Floats:
        """Values at `position` + 1, seen from `position`."""
        restart = float((self.bases[position] * value).sum()) if self.model.restarts else 0.0
        step, way = self.steps[position], self.inflow
        if way is not None and len(present := np.flatnonzero(value)) < SPARSE * len(value):
            seen = np.asarray(way[present].T @ value[present])
        else:
            seen = np.asarray(step @ value)
        return seen + restart * self.restarts[position] if restart else seen

    def totals(self, position: int, values: Floats) -> Floats:
        """Values of the kept states at `position`, summed by symbol: (n,)."""
        if self.whole and self.model.size == self.model.n:
            return values
        return np.bincount(self.symbols[position], values, self.model.n).astype(np.float64, copy=False)


def open_window(model: MarkovModel, states: Floats, length: int, spare: float) -> BatchWindow:
    """The window that leaves out at most `spare` of the belief; small chains are kept whole."""
    base, everything, flow = _base(model)
    small = model.size + model.chain.nnz <= WHOLE
    kept = everything if small else _carriers(states, spare / length, everything)
    distributions, all_kept, steps = [states[kept]], [kept], []
    for _ in range(length - 1):
        all_of_it = len(kept) == model.size
        rows = model.chain if all_of_it else model.chain[kept]
        arrived = np.asarray((flow if all_of_it else rows.T) @ distributions[-1])
        if model.restarts:
            arrived += float((distributions[-1] * model.backoff[kept]).sum()) * base
        kept = all_kept[0] if small else _carriers(arrived, spare / length, everything)
        steps.append(rows if len(kept) == model.size else rows[:, kept])
        distributions.append(arrived[kept])
        all_kept.append(kept)
    whole = all(len(states) == model.size for states in all_kept)
    return BatchWindow(
        model,
        distributions,
        all_kept,
        [model.newest if len(k) == model.size else model.newest[k] for k in all_kept],
        steps,
        [model.backoff[k] for k in all_kept[:-1]],
        [base[k] for k in all_kept[1:]],
        whole,
        _by_target(model) if whole and not small else None,
    )


@lru_cache(maxsize=4)
def _base(model: MarkovModel) -> tuple[Floats, Ints, Any]:
    """The distribution that back-off draws from, over states; all states; and the chain transposed."""
    base = np.bincount(model.base_state, model.base, model.size).astype(np.float64)
    return base, np.arange(model.size), model.chain.T


@lru_cache(maxsize=4)
def _by_target(model: MarkovModel) -> Any:
    return model.chain.T.tocsr()


def _carriers(distribution: Floats, spare: float, everything: Ints) -> Ints:
    """States that carry all but `spare` of a distribution: those above the largest of a few cuts that loses no more.

    Where more than a tenth is kept all are: copying that much of the chain takes longer than it saves.
    """
    cut, total = 1024.0 * spare / len(distribution), float(distribution.sum())
    while True:
        found = np.flatnonzero(distribution > cut)
        if len(found) > MOST * len(distribution):
            return everything
        if total - float(distribution[found].sum()) <= spare:
            return found
        cut /= 4.0


@dataclass(eq=False)
class Node:
    """A soft box inside a window. Passes are made only as far as a distribution is asked for."""

    window: BatchWindow
    box: Box
    path: tuple[int, ...]
    mass: float
    weights: list[Floats]  # φ_t on the kept states
    ahead: list[Floats]  # α_t of the first positions, as far as known
    behind: list[Floats]  # b_t of the last positions, as far as known, the last position first
    batches: Sample | None = None  # drawn with the public seed
    asked: int = 0  # position of the last question
    kept: tuple[int, Floats] | None = None  # the symbol distribution last asked for
    chance: float = 1.0  # that a fresh draw comes here

    def forward(self, position: int) -> Floats:
        """α_t over the kept states."""
        for known in range(len(self.ahead), position + 1):
            self.ahead.append(self.window.onward(known - 1, self.ahead[known - 1]) * self.weights[known])
        return self.ahead[position]

    def backward(self, position: int) -> Floats:
        """b_t over the kept states."""
        last = self.window.length - 1
        for known in range(last + 1 - len(self.behind), position, -1):
            self.behind.append(self.window.back(known - 1, self.behind[-1] * self.weights[known]))
        return self.behind[last - position]

    def distribution(self, position: int) -> Floats:
        """E[f; state] over the kept states at `position`."""
        return self.forward(position) * self.backward(position)

    def symbol_distribution(self, position: int) -> Floats:
        """E[f; symbol]: (n,)."""
        if self.kept is None or self.kept[0] != position:
            self.kept = (position, self.window.totals(position, self.distribution(position)))
        return self.kept[1]

    def symbol_distributions(self) -> Floats:
        """E[f; symbol] at every position: (w, n)."""
        return np.stack([self.symbol_distribution(position) for position in range(self.window.length)])

    def child(self, split: Split, side: int) -> Node:
        """The part of the node on one side of a split; what the split does not change is shared."""
        place, share, last = split.position, split.share(side), self.window.length - 1
        one_each = self.window.whole and self.window.model.size == self.window.model.n
        local = share if one_each else share[self.window.symbols[place]]
        box = {**self.box, place: self.box[place] * share if place in self.box else share}
        weights = [*self.weights[:place], self.weights[place] * local, *self.weights[place + 1 :]]
        ahead = [*self.ahead[:place], self.forward(place) * local]
        behind = self.behind[: last - place + 1]
        node = Node(self.window, box, (*self.path, side), split.rest if side else split.mass, weights, ahead, behind)
        node.asked, node.chance = place, self.chance * split.chance(side)
        if self.batches is not None:  # the part of the sample on that side serves the child too
            node.batches = self.batches.part(np.flatnonzero(share[self.batches.codes[:, place]] >= 0.5))
        return node
