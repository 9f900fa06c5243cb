"""How work grows with the alphabet n, the batch w and the length T, counted from real runs.

Work is counted, not timed: cells of the tables that are built, transitions that are walked, quilts that are weighed.
Counts are the same on every machine and in every run. Seconds are not, so they are measured beside and go to the file
of timings only.
"""

from __future__ import annotations

import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments import markov_quilt as quilt
from experiments.arimoto import arimoto
from seqveil import MarkovModel, distortion, mechanisms
from seqveil.core import filtering
from seqveil.core.kernel import Kernels
from seqveil.core.mechanisms import Batch, trees
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State

EPSILON = 1.0
TRIES = 3  # of which the quickest is taken
DIGITS = 6  # of an exponent; further ones depend on how a machine sums
Line = dict[str, Any]
Act = Callable[[], int]  # does the work, and says how much it was
Prepare = Callable[[int], Act]  # for a size; what it does is not part of the work


def exponent(sizes: Sequence[int], work: Sequence[float]) -> tuple[float, float]:
    """Slope of log work against log size by least squares, and the half-width of its 95 % interval.

    >>> [round(value, 6) + 0.0 for value in exponent([1, 2, 4, 8], [3, 12, 48, 192])]
    [2.0, 0.0]
    """
    return _slope(np.log(sizes), np.log(np.maximum(work, 1e-12)))


def factor(sizes: Sequence[int], work: Sequence[float]) -> float:
    """By how much one more multiplies the work.

    >>> round(factor([1, 2, 3], [4, 16, 64]), 6)
    4.0
    """
    return math.exp(_slope(np.asarray(sizes, float), np.log(work))[0])


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    from scipy.stats import t

    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    rest = y - y.mean() - slope * x
    error = math.sqrt(float(rest @ rest) / max(len(x) - 2, 1) / float(x @ x))
    return slope, float(t.ppf(0.975, max(len(x) - 2, 1)) * error)


@dataclass(frozen=True)
class Plan:
    """Sizes to try and what to do at each; `power` says that one more multiplies the work."""

    sizes: Sequence[int]
    prepare: Prepare
    power: bool = False
    timed: bool = True

    def line(self, name: str, seconds: dict[str, float]) -> Line:
        """Work at each size and how it grows; `seconds` gets how the processor's time grew in this run."""
        acts = [self.prepare(size) for size in self.sizes]
        counted = [act() for act in acts]
        if self.timed:
            times = [min(_seconds(act) for _ in range(TRIES)) for act in acts]
            found = (factor(self.sizes, times), 0.0) if self.power else exponent(self.sizes, times)
            kind = "factor" if self.power else "exponent"
            start = f"table1.seconds of {name}"
            seconds |= {f"{start}: {kind}": found[0], f"{start}: half-width": found[1]}
        grown: Line = {"sizes": list(self.sizes), "work": counted}
        if self.power:
            return grown | {"factor": round(factor(self.sizes, counted), DIGITS)}
        found = exponent(self.sizes, counted)
        return grown | {"exponent": round(found[0], DIGITS), "ci": round(found[1], DIGITS)}


def _seconds(act: Act) -> float:
    begun = time.process_time()
    act()
    return max(time.process_time() - begun, 1e-9)


def ring(n: int, followers: int | None = None) -> MarkovModel:
    """A chain on a ring: to each of the next few symbols alike (None: stay with .8, or go anywhere)."""
    if followers is None:
        return MarkovModel(np.full(n, 1 / n), 0.8 * np.eye(n) + 0.2 / n)
    from scipy import sparse

    parts = [sparse.eye_array(n, k=k - wrap) for k in range(followers) for wrap in (0, n) if abs(k - wrap) < n]
    return MarkovModel(np.full(n, 1 / n), sparse.csr_array(sum(parts) / followers))


def response(n: int) -> Act:
    """Randomised response: cells of the kernel of one release."""
    belief_of = np.full((1, n), 1 / n)
    return lambda: _cells(mechanisms.randomized_response.kernels(belief_of, EPSILON))


def instantaneous(name: str, followers: int | None) -> Prepare:
    """One release as a function of n: cells of the kernel, and transitions of the belief's update."""
    return lambda n: _releases(ring(n, followers), name, 1)


def stream(name: str) -> Prepare:
    """A stream as a function of T."""
    model = ring(40, 4)
    return lambda length: _releases(model, name, length)


def _releases(model: MarkovModel, name: str, length: int) -> Act:
    mechanism = mechanisms.get(name)
    model.advance(model.initial)  # the chain by target is made once

    def act() -> int:
        states, randomness, done = model.initial[None], SeededRandomness(1), 0
        for _ in range(length):
            kernels = mechanism.kernels(filtering.symbols(model, states), EPSILON, distortion.hamming())
            drawn = kernels.pick(np.zeros(1, np.int64), randomness.draw(1))
            after, _ = filtering.condition(model, states, kernels.column(drawn))
            states = filtering.predict(model, after)
            done += _cells(kernels) + model.chain.nnz
        return done

    return act


def _cells(kernels: Kernels) -> int:
    return int(kernels.base.size + kernels.extra.size)


def tree(n: int, width: int, length: int) -> Act:
    """Batches of `width` by the tree: transitions walked by all its passes, over a stream of `length`."""
    model = ring(n, 4)
    unkept = inspect.unwrap(trees.tree)  # a tree that is kept from another run takes no work
    anew = replace(mechanisms.tree, rule=unkept)
    costs = distortion.absolute(np.arange(n))
    setting = Policy(epsilon=EPSILON * width, batch=width, mechanism=anew, distortion=costs).on(model)
    truth = model.sample(length, 1, seed=1)[0]

    def walked(*_: Any) -> int:
        return int(model.chain.nnz)

    def act() -> int:
        state, randomness = State.start(setting), SeededRandomness(2)
        with tallied(MarkovModel, ("advance",), walked) as ahead, tallied(filtering, ("pull",), walked) as back:
            for begin in range(0, length, width):
                _, state = batches.step(setting, state, truth[begin : begin + width], randomness)
        return ahead[0] + back[0]

    return act


def descent(width: int) -> Act:
    """The paper's Algorithm 2 on a binary chain: cells of its table over all batches."""
    model, tries = MarkovModel([0.5, 0.5], [[0.8, 0.2], [0.2, 0.8]]), itertools.count()

    def act() -> int:
        epsilon = 0.5 + 1e-6 * next(tries)  # a table for an ε is computed once, so each try has its own
        batch = Batch(model, model.initial, width, epsilon, distortion.hamming())
        sent = mechanisms.batch_descent.rule(batch).draw(np.zeros(width, np.int64), SeededRandomness(1))
        return int(sent.book.table.size)  # type: ignore[attr-defined]

    return act


def whole_sequences(n: int, length: int) -> Act:
    """The mutual-information kernel over whole sequences: cells of its table."""
    every = np.indices((n,) * length).reshape(length, -1).T
    costs = (every[:, None] != every[None]).sum(2).astype(float)
    distribution = np.full((1, len(every)), 1.0 / len(every))
    return lambda: int(arimoto(distribution, 0.1, costs).size)


def quilts(n: int, length: int) -> Act:
    """The exact Markov quilt as we search it: quilts weighed, each for every pair of symbols."""
    model, original = ring(n), quilt._quilts

    def act() -> int:
        seen = [0]

        def counting(*arguments: Any) -> Iterator[Any]:
            for found in original(*arguments):
                seen[0] += 1
                yield found

        with _replaced(quilt, {"_quilts": counting}):
            quilt.scale(model, length, EPSILON)
        return seen[0] * n * n

    return act


def every_quilt(n: int, length: int) -> Act:
    """The same as published: every quilt of every event, every pair of symbols, every symbol at an end; not run."""
    # each end is absent, or at one of the places on its side
    return lambda: sum(node * (length - node + 1) for node in range(1, length + 1)) * n**3


@contextmanager
def tallied(owner: Any, names: Sequence[str], worth: Callable[..., int]) -> Iterator[list[int]]:
    """Add up what calls of some methods are worth."""
    total = [0]

    def tracker(method: Callable[..., Any]) -> Callable[..., Any]:
        def tracked(*arguments: Any) -> Any:
            total[0] += worth(*arguments)
            return method(*arguments)

        return tracked

    with _replaced(owner, {name: tracker(getattr(owner, name)) for name in names}):
        yield total


@contextmanager
def _replaced(owner: Any, attributes: dict[str, Any]) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def measured(quick: bool, seconds: dict[str, float]) -> dict[str, Line]:
    """Every line of the table's column "complexity"."""
    wide = (10_000, 40_000, 160_000) if quick else (10_000, 40_000, 160_000, 640_000)
    dense = (200, 400, 800) if quick else (400, 800, 1600, 3200)
    long = (10, 20, 40) if quick else (20, 40, 80, 160)
    short = (2, 3, 4, 5) if quick else (4, 5, 6, 7)
    small = (2, 4, 8) if quick else (2, 4, 8, 16)
    plans = {
        "LDP, n": Plan(wide, response),
        "SIP published, n, every transition possible": Plan(dense, instantaneous("crr", None)),
        "SIP published, n, four followers": Plan(wide, instantaneous("crr", 4)),
        "SIP sound, n, every transition possible": Plan(dense, instantaneous("optimal", None)),
        "SIP sound, n, four followers": Plan(wide, instantaneous("optimal", 4)),
        "SIP sound, T": Plan(long, stream("optimal")),
        "SIP batched published, w (binary)": Plan((1, 2, 3, 4), descent, power=True),
        "SIP batched sound, n": Plan(dense, lambda n: tree(n, 4, 8)),
        "SIP batched sound, w": Plan((2, 4, 8, 16), lambda w: tree(400, w, w)),
        "SIP batched sound, T": Plan(long[:3], lambda length: tree(400, 5, length)),
        "MIP whole sequences, T (binary)": Plan(short, lambda length: whole_sequences(2, length), power=True),
        "MIP whole sequences, n (T = 2)": Plan((2, 3, 4, 5), lambda n: whole_sequences(n, 2)),
        "MIP symbol by symbol, n": Plan((200, 400, 800), instantaneous("mutual_information", 4)),
        "Pufferfish as published, T": Plan((50, 100, 200), lambda length: every_quilt(4, length), timed=False),
        "Pufferfish as published, n": Plan(small, lambda n: every_quilt(n, 50), timed=False),
        "Pufferfish as we search, T": Plan(long, lambda length: quilts(4, length)),
        "Pufferfish as we search, n": Plan(small, lambda n: quilts(n, 40)),
    }
    return {name: plan.line(name, seconds) for name, plan in plans.items()}
