"""What a batched mechanism is: w symbols in, one public path out, and everything a receiver needs computed from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from seqveil.core.coins import Coins
from seqveil.core.distortion import Distortion
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms._base import LARGEST
from seqveil.core.model import MarkovModel


@dataclass(frozen=True, eq=False)
class Batch:
    """The public context of one batch: all of it follows from the model and the releases so far."""

    model: MarkovModel
    states: Floats  # (S,) law of the state at the batch's first symbol
    length: int  # w
    epsilon: float
    distortion: Distortion


class Sent(Protocol):
    """One batch as it was made public, and what follows from it for anyone who has the model."""

    @property
    def path(self) -> tuple[int, ...]:
        """The release itself; everything else is computed from it."""

    @property
    def codes(self) -> Ints:
        """(w,) the reproduction: the best estimate of the batch from this release and the belief before it."""

    @property
    def posterior(self) -> Floats:
        """(S,) law of the state at the batch's last symbol, given this release too."""

    @property
    def ahead(self) -> Floats:
        """(S,) law of the state at the next batch's first symbol, given this release too."""

    @property
    def least(self) -> float:
        """Log of the least lift over all batches, in or out of the support, rounded down."""

    @property
    def most(self) -> float:
        """Log of the largest lift over all batches, rounded up."""

    def smooth(self, later: Floats) -> tuple[Floats, Floats]:
        """Laws of the w symbols (w, n) and the likelihood as a function of the first state (S,).

        `later` (S,) is the likelihood of all later releases as a function of the batch's last state (ones: filtering).
        """


@dataclass(frozen=True)
class BatchMechanism:
    """A rule from a batch's public context to a release, with its promise written on it; see `Mechanism`."""

    name: str
    summary: str
    guarantee: str
    trusts: str
    cost: str
    reference: str
    sound: bool
    ldp: float
    draw: Callable[[Batch, Ints, Coins], Sent]
    read: Callable[[Batch, tuple[int, ...]], Sent]
    expected: Callable[[Batch], float | None]
    largest: float = LARGEST  # ε a batch may have
