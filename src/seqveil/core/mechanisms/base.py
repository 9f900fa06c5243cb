"""What a mechanism is: a rule from public things to a release, with its promise written on it.

`Mechanism` releases one symbol at a time and gives a kernel for each belief. `BatchMechanism` releases w symbols at a
time and gives a `Rule` for each batch. Below them stand the register, and pieces of kernels that several share.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, wraps
from importlib.metadata import entry_points
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.distortion import Distortion, hamming
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, usable
from seqveil.core.randomness import Randomness

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel

LARGEST = 16.0  # ε of one release; beyond it 62-bit weights cannot keep the promise, and nothing is protected
PLUGINS = "seqveil.mechanisms"  # the group of entry points under which other packages offer tuples of mechanisms
APART = ("guarded", "blocks")  # mechanisms that need more than an ε: declared secrets, a block
MEMORY = 128 << 20  # bytes of all rules of batches that are kept, about
VECTORS = 24  # numbers for each state and position that a rule comes to, about: a few nodes of a tree
MOST_RULES = 1024

NOBODY: Ints = np.empty(0, np.int64)


class Asked(NamedTuple):
    """What is to be released: raw codes and a draw for each, (B,); or releases that were made, to be read again."""

    truths: Ints = NOBODY
    randomness: Ints = NOBODY
    given: Ints = NOBODY

    def take(self, some: NDArray[np.intp]) -> Asked:
        """Of some users."""
        return Asked(*(part[some] if part.size else part for part in self))


@dataclass(frozen=True, eq=False)
class Made:
    """Releases, each from a table that was checked, and which rows are left for `Kernels` to make and check."""

    codes: Ints  # (B,)
    columns: Ints  # (B, n)
    left: Ints = field(default_factory=lambda: NOBODY)
    impossible: bool = False  # some release given cannot have been made


Build = Callable[[Floats, float, Distortion], Kernels]
Quick = Callable[[Floats, float, Distortion, Asked], Made | None]


@dataclass(frozen=True)
class Promise:
    """What a mechanism says of itself; nothing is promised where `sound` and `ldp` are left out.

    `sound`: every lift over the whole alphabet is within ε, checked on each integer table before anything is drawn.
    `ldp`: the LDP level it has without trusting any model, as a multiple of ε (inf: none).
    `largest`: the ε that one release, or one batch, may have at most.
    """

    name: str
    summary: str
    guarantee: str
    trusts: str
    sound: bool = field(default=False, kw_only=True)
    ldp: float = field(default=math.inf, kw_only=True)
    largest: float = field(default=LARGEST, kw_only=True)


@dataclass(frozen=True)
class Mechanism(Promise):
    """A kernel for every belief, and what it promises.

    `build`: the kernels for beliefs (B, n) at one ε under a distortion.
    `hamming_only`: it is the optimum for wrong symbols, and refuses every other distortion.
    `quick`: the same releases without a stack of kernels, where that is sooner.
    `for_model`: the rule for a given model, where more of it is needed than its belief; `build` is then the rule for
    independent events.
    """

    build: Build
    hamming_only: bool = False
    quick: Quick | None = None
    for_model: Callable[[MarkovModel], Build] | None = None

    def kernels(self, beliefs: Floats, epsilon: float, distortion: Distortion | None = None) -> Kernels:
        """One kernel for each row of `beliefs`, verified from its integers; ε too small to use gives the constant."""
        costs = distortion or hamming()
        self.check_distortion(costs)
        if usable(epsilon, beliefs.shape[1]) == 0.0 or beliefs.shape[1] == 1:
            return constant(beliefs, costs)
        built = self.build(beliefs, epsilon, costs)
        return built.made_sound(beliefs, epsilon, self.ldp * epsilon) if self.sound else built

    def check_distortion(self, distortion: Distortion) -> None:
        """Refuse a distortion that the mechanism has no kernels for."""
        if self.hamming_only and not distortion.is_hamming:
            raise InputError(
                f'"{self.name}" counts wrong symbols, got distortion "{distortion.name}"; use '
                'mechanism="randomized_response", or distortion "hamming"'
            )

    def release(self, beliefs: Floats, epsilon: float, distortion: Distortion, asked: Asked) -> Made | None:
        """One release for each user without a stack of kernels; None where only `kernels` can make it."""
        if self.quick is None or not len(beliefs) or beliefs.shape[1] == 1 or usable(epsilon, beliefs.shape[1]) == 0.0:
            return None
        return self.quick(beliefs, epsilon, distortion, asked)


@dataclass(frozen=True, eq=False)
class Batch:
    """The public context of one batch: all of it follows from the model and the releases so far."""

    model: MarkovModel
    states: Floats  # (S,) distribution of the state at the batch's first symbol
    length: int  # w
    epsilon: float
    distortion: Distortion


@dataclass(frozen=True, eq=False)
class Sent(ABC):
    """One batch as it was made public, and what follows from it for anyone who has the model."""

    batch: Batch
    path: tuple[int, ...]  # the release itself; everything else is computed from it
    codes: Ints  # (w,) the reproduction: the best estimate of the batch from this release and the belief before it
    posterior: Floats  # (S,) distribution of the state at the batch's last symbol, given this release too
    least: float  # log of the least lift over all batches, in or out of the support, rounded down
    most: float  # log of the largest, rounded up

    @cached_property
    def ahead(self) -> Floats:
        """(S,) distribution of the state at the next batch's first symbol, given this release too."""
        return filtering.predict(self.batch.model, self.posterior[None])[0]

    @abstractmethod
    def smooth(self, later: Floats) -> tuple[Floats, Floats]:
        """Distributions of the w symbols (w, n) and the likelihood as a function of the first state (S,).

        `later` (S,) is the likelihood of all later releases as a function of the batch's last state (ones: filtering).
        """


class Rule(Protocol):
    """How one batch is released, from its public context alone: the sender draws, and anyone can read."""

    def draw(self, codes: Ints, randomness: Randomness) -> Sent:
        """Release a batch."""

    def read(self, path: tuple[int, ...]) -> Sent:
        """What `draw` returned, from the path alone."""


@dataclass(frozen=True)
class BatchMechanism(Promise):
    """A rule for every batch, and what it promises."""

    rule: Callable[[Batch], Rule]


_registered: dict[str, Mechanism | BatchMechanism] = {}


def register(*mechanisms: Mechanism | BatchMechanism) -> None:
    """Let mechanisms be found by their names."""
    _registered.update({mechanism.name: mechanism for mechanism in mechanisms})


@cache
def plugged() -> dict[str, Mechanism]:
    """Mechanisms that an installed package offers by an entry point, by name, such as the baselines of `evaluate`."""
    return {each.name: each for point in entry_points(group=PLUGINS) for each in point.load()}


def names() -> list[str]:
    """Names of all mechanisms: one symbol at a time, then batches, then those for declared secrets and for blocks."""
    return [*instantaneous(), *batched(), *APART]


def instantaneous() -> list[str]:
    """Names of the mechanisms that release one symbol at a time, and need neither secrets nor blocks.

    >>> from seqveil.core import mechanisms
    >>> mechanisms.instantaneous()
    ['optimal', 'balanced', 'randomized_response', 'crr', 'optimal_ldp', 'mutual_information', 'temporal']
    """
    ours = [name for name, each in _registered.items() if isinstance(each, Mechanism) and name not in APART]
    return [*ours, *plugged()]


def batched() -> list[str]:
    """Names of the mechanisms that release w symbols at a time (w = 1 included).

    >>> from seqveil.core import mechanisms
    >>> mechanisms.batched()
    ['auto', 'tree', 'batch_lp', 'batch_descent']
    """
    return [name for name, each in _registered.items() if isinstance(each, BatchMechanism)]


def find(mechanism: str | Mechanism | BatchMechanism) -> Mechanism | BatchMechanism:
    """A mechanism of either kind by name; an object passes through."""
    if not isinstance(mechanism, str):
        return mechanism
    found = _registered.get(mechanism) or plugged().get(mechanism)
    if found is None:
        raise InputError(f"expected a mechanism among {', '.join(names())}, got {mechanism!r}")
    return found


def get(mechanism: str | Mechanism | BatchMechanism) -> Mechanism:
    """A mechanism that releases one symbol at a time."""
    found = find(mechanism)
    if isinstance(found, Mechanism):
        return found
    raise InputError(f'"{found.name}" releases batches; expected one of {", ".join(instantaneous())}')


Kept = TypeVar("Kept", bound=Rule)


def rules_kept(build: Callable[[Batch], Kept]) -> Callable[[Batch], Kept]:
    """The rule of each batch, kept for its public context as long as it was used of late: users who are alike in model
    and releases share one. How many are kept depends on their size.
    """
    kept: OrderedDict[Hashable, Kept] = OrderedDict()
    lock = Lock()

    @wraps(build)
    def rule(batch: Batch) -> Kept:
        """The rule kept for such a batch, or a new one, which takes the place of those longest unused."""
        content = batch.distortion.content, batch.states.tobytes()
        key = batch.model.fingerprint, batch.length, batch.epsilon, *content
        with lock:
            made = kept.pop(key, None)
        if made is None:
            made = build(replace(batch, states=batch.states.copy()))
        room = max(1, min(MOST_RULES, MEMORY // (VECTORS * batch.length * batch.states.nbytes)))
        with lock:
            kept[key] = made
            while len(kept) > room:
                kept.popitem(last=False)
        return made

    return rule


def constant(beliefs: Floats, distortion: Distortion) -> Kernels:
    """Release the best guess under the belief whatever the truth is: leaks nothing."""
    users, n = beliefs.shape
    outputs = distortion.best_guess(beliefs)[:, None].astype(np.int64)
    base = np.full((users, 1), DENOMINATOR, np.int64)
    nothing, one_class = np.zeros((users, 1, 1), np.int64), np.zeros((users, n), np.int64)
    return Kernels(n, outputs, base, nothing, None, one_class)


def parts(distribution: Floats, total: Ints) -> Ints:
    """Integers proportional to each row of `distribution` that sum to its total, rounded up at the cost of the largest.

    What has a positive probability keeps a positive weight, so that it never comes to reveal more than it should.
    """
    shares = np.ceil(distribution * total[:, None].astype(np.float64)).astype(np.int64)
    shares[np.arange(len(distribution)), shares.argmax(1)] += total - shares.sum(1)
    return shares


def truth_or_draw(disclosed: Ints, base: Ints) -> Kernels:
    """Tell the truth with weight `disclosed` (B,), else draw by the weights `base` (B, n); all sum to 2**62."""
    users, n = base.shape
    outputs = np.broadcast_to(np.arange(n), (users, n))
    extra = np.broadcast_to(disclosed[:, None, None], (users, n, 1))
    return Kernels(n, outputs, base, extra, outputs[:, :, None])


def check_epsilon(epsilon: float, largest: float = LARGEST) -> float:
    """ε as a float, or one clear line."""
    number = isinstance(epsilon, (int, float, np.integer, np.floating)) and not isinstance(epsilon, bool)
    if not number or not (epsilon > 0 and math.isfinite(epsilon)):
        shown = epsilon if number else type(epsilon).__name__
        raise InputError(f"expected epsilon to be a finite number above 0, got {shown}; try 1.0")
    if epsilon > largest:
        raise InputError(
            f"expected epsilon of at most {largest:g}, got {float(epsilon):g}: beyond it nothing is protected"
        )
    return float(epsilon)
