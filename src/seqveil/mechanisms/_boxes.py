"""Soft boxes of batches, and the chain over one batch: how likely a box is, and how likely each state inside it.

A soft box is f(o) = Π_t φ_t(o_t) with weights φ_t(x) ∈ [0, 1]. Its mass E f and its state laws come from one pass
forward and one backward over the chain, with the weights put on at each position; nothing lists the batches.

    α_1 = π·φ_1,   α_{t+1} = (α_t P)·φ_{t+1},   b_w = 1,   b_t = P (φ_{t+1}·b_{t+1}),   E[f; state_t = s] = α_t(s) b_t(s)

`Window` holds the chain cut to the states that carry nearly all of the belief, for growing a tree quickly; `forward` and
`backward` run over the whole chain, for what must be exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seqveil.kernel import DENOMINATOR, Floats, Ints
from seqveil.model import MarkovModel

Box = dict[int, Floats]
"""Weights φ_t (n,) by position; a position that is missing has weight one everywhere."""

WHOLE = 20_000  # a chain with fewer states and transitions than this a position is never cut


@dataclass(frozen=True, eq=False)
class Split:
    """One public question: is the symbol at `position` to the left? Yes with probability left(x) / 2**62."""

    position: int
    left: Ints  # (n,) each 0, 2**62, or one value in between
    mass: float  # of the left side, inside the node
    rest: float  # of the right side

    @property
    def fresh(self) -> int:
        """Weight out of 2**62 with which a fresh draw from the node goes left."""
        return round(DENOMINATOR * (self.mass / (self.mass + self.rest)))

    def share(self, side: int) -> Floats:
        """Probability (n,) that each symbol goes to that side (0: left, 1: right); exact in float64."""
        left = self.left / float(DENOMINATOR)
        return 1.0 - left if side else left


def forward(model: MarkovModel, states: Floats, length: int, box: Box) -> Floats:
    """α_t of the box for every position over the whole chain: (w, S)."""
    out = np.empty((length, model.size))
    for position in range(length):
        weights = model.advance(out[position - 1]) if position else states
        out[position] = weights * box[position][model.newest] if position in box else weights
    return out


def backward(model: MarkovModel, later: Floats, length: int, box: Box) -> Floats:
    """b_t of the box for every position over the whole chain, from `later` at the last one: (w, S)."""
    out = np.empty((length, model.size))
    out[-1] = later
    for position in range(length - 1, 0, -1):
        value = out[position] * box[position][model.newest] if position in box else out[position]
        restart = (model.base * value[model.base_state]).sum()
        out[position - 1] = np.asarray(model.chain @ value) + model.backoff * restart
    return out


@dataclass(frozen=True, eq=False)
class Window:
    """The chain over one batch, cut at each position to the states that carry nearly all of the belief.

    *Guarantee*: the mass of any box under the window is at most its true mass, and short of it by at most what was cut.
    """

    n: int
    first: Floats  # weights of the kept states at the first position
    symbols: list[Ints]  # newest symbol of each kept state, by position
    steps: list[Any]  # sparse transitions between kept states, by position
    restarts: list[Floats]  # back-off weight of each kept state
    bases: list[Floats]  # where the back-off leads among the kept states of the next position
    whole: bool  # nothing was cut
    mass: float = 1.0  # of the node it was opened for

    @property
    def length(self) -> int:
        return len(self.symbols)

    @cached_property
    def flows(self) -> list[Any]:
        """The steps transposed; they share their arrays."""
        known: dict[int, Any] = {}
        return [known.setdefault(id(step), step.T) for step in self.steps]

    @cached_property
    def entries(self) -> int:
        """Transitions in one pass."""
        return sum(step.nnz for step in self.steps)

    @cached_property
    def root(self) -> Node:
        """The whole batch as a node: weight one everywhere."""
        return self.node({}, (), [np.ones(len(symbols)) for symbols in self.symbols])

    def node(self, box: Box, path: tuple[int, ...], weights: list[Floats]) -> Node:
        """A box with both passes done from the start."""
        node = Node(self, box, path, weights, [self.first * weights[0]], [])
        return node._finish(0, self.length - 1, [np.ones(len(self.symbols[-1]))])

    def onward(self, position: int, law: Floats) -> Floats:
        """Weights at `position`, one step on."""
        moved = np.asarray(self.flows[position] @ law)
        restart = float((law * self.restarts[position]).sum())
        return moved + restart * self.bases[position] if restart else moved

    def back(self, position: int, value: Floats) -> Floats:
        """Values at `position` + 1, seen from `position`."""
        restart = float((self.bases[position] * value).sum())
        seen = np.asarray(self.steps[position] @ value)
        return seen + restart * self.restarts[position] if restart else seen

    def totals(self, position: int, values: Floats) -> Floats:
        """Values of the kept states at `position`, summed by symbol: (n,)."""
        return np.bincount(self.symbols[position], values, self.n).astype(np.float64, copy=False)


def open_window(model: MarkovModel, states: Floats, length: int, spare: float) -> Window:
    """The window that leaves out at most `spare` of the belief; small chains are kept whole."""
    everything, more = np.arange(model.size), length - 1
    base = np.bincount(model.base_state, model.base, model.size).astype(np.float64)
    if model.size + model.chain.nnz <= WHOLE:
        symbols, steps = [model.newest] * length, [model.chain] * more
        return Window(model.n, states, symbols, steps, [model.backoff] * more, [base] * more, whole=True)
    kept = _carriers(states, spare / length)
    law, all_kept, steps = states[kept], [kept], []
    for _ in range(more):
        rows = model.chain if len(kept) == model.size else model.chain[kept]
        arrived = np.asarray(rows.T @ law) + float((law * model.backoff[kept]).sum()) * base
        kept = _carriers(arrived, spare / length)
        steps.append(rows if len(kept) == model.size else rows[:, kept])
        law = arrived[kept]
        all_kept.append(kept)
    return Window(
        model.n,
        states[all_kept[0]],
        [model.newest if len(k) == len(everything) else model.newest[k] for k in all_kept],
        steps,
        [model.backoff[k] for k in all_kept[:-1]],
        [base[k] for k in all_kept[1:]],
        whole=False,
    )


def _carriers(law: Floats, spare: float, all_beyond: float = 0.4) -> Ints:
    """States that carry all but `spare` of a law: those above the largest of a few cuts that loses no more.

    Where most states are kept all are, so that the chain need not be copied.
    """
    cut = 1024.0 * spare / len(law)
    while True:
        kept = law > cut
        if float(law.sum(where=~kept)) <= spare:
            found = np.flatnonzero(kept)
            return np.arange(len(law)) if len(found) > all_beyond * len(law) else found
        cut /= 4.0


@dataclass(eq=False)
class Node:
    """A soft box inside a window, with its passes done."""

    window: Window
    box: Box
    path: tuple[int, ...]
    weights: list[Floats]  # φ_t on the kept states
    ahead: list[Floats]  # α_t
    behind: list[Floats]  # b_t
    batches: Ints | None = None  # (sample, w) codes, drawn with the public seed

    @cached_property
    def mass(self) -> float:
        return float(self.ahead[-1].sum())

    def narrowed(self, spare: float) -> Node:
        """The same box in a window cut to the states that carry all but `spare` of the node."""
        window, length = self.window, self.window.length
        kept = [_carriers(self.law(position), spare / length, 0.8) for position in range(length)]
        smaller = Window(
            window.n,
            window.first[kept[0]],
            [symbols[k] for symbols, k in zip(window.symbols, kept, strict=True)],
            [step[kept[t]][:, kept[t + 1]] for t, step in enumerate(window.steps)],
            [restarts[k] for restarts, k in zip(window.restarts, kept[:-1], strict=True)],
            [bases[k] for bases, k in zip(window.bases, kept[1:], strict=True)],
            whole=False,
            mass=self.mass,
        )
        node = smaller.node(self.box, self.path, [weights[k] for weights, k in zip(self.weights, kept, strict=True)])
        node.batches = self.batches
        return node

    def law(self, position: int) -> Floats:
        """E[f; state] over the kept states at `position`."""
        return self.ahead[position] * self.behind[position]

    def symbol_law(self, position: int) -> Floats:
        """E[f; symbol]: (n,)."""
        return self.window.totals(position, self.law(position))

    def child(self, split: Split, side: int) -> Node:
        """The part of the node on one side of a split; only what the split changes is computed again."""
        place, share = split.position, split.share(side)
        local = share[self.window.symbols[place]]
        box = {**self.box, place: self.box[place] * share if place in self.box else share}
        weights = [*self.weights[:place], self.weights[place] * local, *self.weights[place + 1 :]]
        ahead = [*self.ahead[:place], self.ahead[place] * local]
        return Node(self.window, box, (*self.path, side), weights, ahead, [])._finish(place, place, self.behind[place:])

    def _finish(self, known: int, start: int, behind: list[Floats]) -> Node:
        """Passes forward from position `known` and backward from `start`."""
        for position in range(known, self.window.length - 1):
            self.ahead.append(self.window.onward(position, self.ahead[position]) * self.weights[position + 1])
        values = behind[0]
        seen = []
        for position in range(start - 1, -1, -1):
            values = self.window.back(position, values * self.weights[position + 1])
            seen.append(values)
        self.behind = [*reversed(seen), *behind]
        return self

    def sample(self, generator: np.random.Generator, count: int) -> Ints:
        """Batches drawn from the node: codes (count, w). For utility only; nothing private rests on it."""
        window, out = self.window, np.empty((count, self.window.length), np.int64)
        running = np.cumsum(self.law(0))
        aim = (np.arange(count) + generator.random(count)) / count * running[-1]
        states = np.minimum(np.searchsorted(running, aim, side="right"), len(running) - 1)
        out[:, 0] = window.symbols[0][states]
        for position in range(window.length - 1):
            value = self.weights[position + 1] * self.behind[position + 1]
            states = _step(window, position, states, value, generator.random(count))
            out[:, position + 1] = window.symbols[position + 1][states]
        return out


def _step(window: Window, position: int, states: Ints, value: Floats, coins: Floats) -> Ints:
    """One step of sampled batches, towards states in proportion to transition × value."""
    step = window.steps[position]
    running = np.concatenate(([0.0], np.cumsum(step.data * value[step.indices])))
    low, high = running[step.indptr[states]], running[step.indptr[states + 1]]
    base = np.cumsum(window.bases[position] * value)
    restart = window.restarts[position][states] * base[-1]
    aim = coins * (high - low + restart)
    inside = aim < high - low
    place = np.searchsorted(running[1:], low + aim, side="right")
    place = np.clip(place, step.indptr[states], np.maximum(step.indptr[states + 1] - 1, step.indptr[states]))
    following = step.indices[np.minimum(place, len(step.indices) - 1)].astype(np.int64)
    if not inside.all():
        out = ~inside
        share = (aim - (high - low))[out] / np.where(restart[out] > 0, restart[out], 1.0)
        following[out] = np.searchsorted(base, share * base[-1], side="right")
    return np.minimum(following, len(value) - 1)

