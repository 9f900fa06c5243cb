"""What a mechanism is: a rule from belief, ε and distortion to a kernel, with its promise written on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from seqveil.core.distortion import Distortion, hamming
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, to_weights, usable

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel

LARGEST = 16.0  # ε of one release; beyond it 62-bit weights cannot keep the promise, and nothing is protected

Build = Callable[[Floats, float, Distortion], Kernels]


@dataclass(frozen=True)
class Mechanism:
    """A kernel for every belief, and what it promises.

    `sound`: every lift over the whole alphabet is within ε, checked on each integer table before anything is drawn.
    `ldp`: the LDP level it has without trusting any model, as a multiple of ε (inf: none).
    `wide`: a kernel may be a full table, a column for every symbol, so that few fit the memory at once.
    `for_model`: the rule for a given model, where more of it is needed than its belief; `build` is then the rule for
    independent events.
    """

    name: str
    summary: str
    guarantee: str
    trusts: str
    cost: str
    reference: str
    sound: bool
    ldp: float
    build: Build
    largest: float = LARGEST
    wide: bool = False
    for_model: Callable[[MarkovModel], Build] | None = None

    def kernels(self, beliefs: Floats, epsilon: float, distortion: Distortion | None = None) -> Kernels:
        """One kernel for each row of `beliefs`, verified from its integers; ε too small to use gives the constant."""
        costs = hamming() if distortion is None else distortion
        if usable(epsilon, beliefs.shape[1]) == 0.0 or beliefs.shape[1] == 1:
            return constant(beliefs, costs)
        built = self.build(beliefs, epsilon, costs)
        return built.made_sound(beliefs, epsilon, self.ldp * epsilon) if self.sound else built


def constant(beliefs: Floats, distortion: Distortion) -> Kernels:
    """Release the best guess under the belief whatever the truth is: leaks nothing."""
    users, n = beliefs.shape
    outputs = distortion.best_guess(beliefs)[:, None].astype(np.int64)
    base = np.full((users, 1), DENOMINATOR, np.int64)
    nothing, one_class = np.zeros((users, 1, 1), np.int64), np.zeros((users, n), np.int64)
    return Kernels(n, outputs, base, nothing, None, one_class)


def parts(law: Floats, total: Ints) -> Ints:
    """Integers proportional to each row of `law` that sum to its total, rounded up at the cost of the largest.

    What has a positive probability keeps a positive weight, so that it never comes to tell more than it should.
    """
    shares = np.ceil(law * total[:, None].astype(np.float64)).astype(np.int64)
    shares[np.arange(len(law)), shares.argmax(1)] += total - shares.sum(1)
    return shares


def respond(wanted: Ints, gain: float, outputs: Ints, told_as: Ints) -> Kernels:
    """k-ary randomised response over some symbols: base weight l on each, and gain · l more on the one told.

    wanted: (B,) how many of `outputs` (B, K) each user has; told_as: (B, n) which of them a symbol is told as. The base
    is rounded up, so that no weight passes (1 + gain) · l; where that leaves nothing to tell, the first output is all.
    """
    users, n = told_as.shape
    each = np.ceil(DENOMINATOR / (gain + wanted)).astype(np.int64)
    silent = wanted * each >= DENOMINATOR
    wanted, each = np.where(silent, 1, wanted), np.where(silent, DENOMINATOR // 2, each)
    base = np.where(np.arange(outputs.shape[1]) < wanted[:, None], each[:, None], 0)
    told = np.broadcast_to((DENOMINATOR - wanted * each)[:, None, None], (users, n, 1))
    return Kernels(n, outputs, base, told, np.where(silent[:, None], 0, told_as)[:, :, None])


def ldp_weights(table: Floats, epsilon: float) -> Ints:
    """Integers of a table that is LDP at usable(ε), for which they stay within ε; columns too thin are merged away.

    A weight of w units rounds by one part in w. Columns whose least weight could not bear that are added to the
    column before (the first: after), which is post-processing, and are left without weight.
    """
    aim = 1e-11 + 4.0 * math.exp(2 * epsilon) / DENOMINATOR
    thin = table.min(0) < 2.0 / (DENOMINATOR * aim)
    kept = np.flatnonzero(~thin)
    if thin.any():
        heir = kept[np.maximum(np.searchsorted(kept, np.arange(thin.size), side="right") - 1, 0)]
        merged = np.zeros_like(table)
        np.add.at(merged.T, heir, table.T)
        table = merged
    return to_weights(table / table.sum(1, keepdims=True))


def truth_or_draw(told: Ints, base: Ints, told_as: Ints | None = None) -> Kernels:
    """Tell the truth with weight `told` (B,), else draw by the weights `base` (B, n); together they sum to 2**62.

    `told_as` (B, n) lets a symbol be told as another one.
    """
    users, n = base.shape
    outputs = np.broadcast_to(np.arange(n), (users, n))
    extra = np.broadcast_to(told[:, None, None], (users, n, 1))
    return Kernels(n, outputs, base, extra, (outputs if told_as is None else told_as)[:, :, None])


def stack(kernels: list[Kernels]) -> Kernels:
    """Kernels of one shape family joined into one stack; missing outputs get weight 0."""
    if len(kernels) == 1:
        return kernels[0]
    if any(k.places is not None for k in kernels):
        raise InputError("only kernels with full tables can be stacked")
    most = max(k.outputs.shape[1] for k in kernels)
    classes = max(k.extra.shape[1] for k in kernels)
    n = kernels[0].n
    users = sum(len(k) for k in kernels)
    outputs, base = np.zeros((users, most), np.int64), np.zeros((users, most), np.int64)
    extra, rows = np.zeros((users, classes, most), np.int64), np.zeros((users, n), np.int64)
    at = 0
    for k in kernels:
        part, wide, high = slice(at, at + len(k)), k.outputs.shape[1], k.extra.shape[1]
        outputs[part, :wide], base[part, :wide] = k.outputs, k.base
        extra[part, :high, :wide], extra[part, high:, :wide] = k.extra, k.extra[:, :1]
        rows[part] = np.arange(n) if k.rows is None else k.rows
        at += len(k)
    return Kernels(n, outputs, base, extra, None, rows)


def check_epsilon(epsilon: float, what: str = "epsilon", largest: float = LARGEST) -> float:
    """ε as a float, or one clear line."""
    number = isinstance(epsilon, (int, float, np.integer, np.floating)) and not isinstance(epsilon, bool)
    if not number or not (epsilon > 0 and math.isfinite(epsilon)):
        shown = epsilon if number else type(epsilon).__name__
        raise InputError(f"expected {what} to be a finite number above 0, got {shown}; try 1.0")
    if epsilon > largest:
        raise InputError(
            f"expected {what} of at most {largest:g}, got {float(epsilon):g}: beyond it nothing is protected"
        )
    return float(epsilon)
