"""What must hold of every label of the next release, for all declared secrets and all observers at once.

A release y by a kernel Q moves the odds of a window to Σ_x m_v(x) Q(y|x) / π_v against the same for v', where m_v(x) =
Pr(v, X = x | y_<k) and π_v is the window's prior. So every promise is a row of numbers with

    Σ_x [m_v(x)/π_v - e^ε m_v'(x)/π_v'] Q(y|x) ≤ 0      for every label y.

The rows *promised* are what integers are checked against. The rows *aimed* at are a little tighter, so that a solver's
error and the rounding to integers stay within the promise; where the last release came to rest between the two, they
are as loose as it takes for saying nothing to be allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, slack
from seqveil.core.secrets import Guarded, Watches

TIGHTER = 1e-6  # of ε: how much less than promised is aimed at
UNLIKELY = 1e-9  # symbols below this probability that may not be told as they are get a draw from what is released


@dataclass(frozen=True, eq=False)
class Bounds:
    """Rows (I, n) with Σ_x row(x) Q(y|x) ≤ 0 for every label y, under a belief (n,).

    `doubt` (I, n) is how far each number of the promised rows may be off. `possible` are the symbols that no observer
    rules out; the others are never told. `box` is there for a single window of a single secret under a single model:
    its weights and the box aimed at.
    """

    belief: Floats
    promised: Floats
    doubt: Floats
    aimed: Floats
    possible: NDArray[np.bool_]
    box: tuple[Floats, float, float] | None = None

    @classmethod
    def of(cls, watches: Watches) -> Bounds:
        """Of all live windows of all secrets, as every observer sees them."""
        return cls.of_guarded(
            [(belief, one) for belief, row in watches.weights(every=True) for one in row], watches.rows[0][0].belief
        )

    @classmethod
    def of_guarded(cls, promises: Sequence[tuple[Floats, Guarded]], belief: Floats) -> Bounds:
        """Of these promises, each with its observer's belief; `belief` is that of the stream's own model.

        >>> weights, prior = np.array([[[0.81, 0.0], [0.19, 1.0]]]), np.array([[0.405, 0.595]])
        >>> belief = np.array([0.5, 0.5])
        >>> bounds = Bounds.of_guarded([(belief, Guarded(np.array([0]), weights, prior, 0.5, "both", 0.0))], belief)
        >>> bounds.promised.shape, [round(edge, 5) for edge in bounds.box[1:]]
        ((2, 2), [0.4712, 0.70779])
        """
        n = belief.size
        parts = [_rows(seen, one) for seen, one in promises]
        promised, doubt, aimed = (np.concatenate([np.zeros((0, n)), *(part[k] for part in parts)]) for k in range(3))
        possible = np.logical_and.reduce([belief > 0.0, *(seen > 0.0 for seen, _ in promises)])
        tight = [(seen, _tighter(one)) for seen, one in promises]
        tight = [(seen, one[one.binding()]) for seen, one in tight]
        binding = [(seen, one) for seen, one in tight if len(one)]
        alone = len(binding) == 1 and len(binding[0][1]) == 1 and binding[0][1].is_box and binding[0][0] is belief
        return cls(belief, promised, doubt, aimed, possible, _box(*binding[0]) if alone else None)

    def free(self) -> NDArray[np.bool_]:
        """Symbols that may be told as they are: alone on their label they keep every bound."""
        return np.asarray((self.aimed <= 0.0).all(0))

    def told_apart(self) -> Bounds:
        """The same over the symbols that are told at all; the others are released by a draw from the marginal of these.

        A symbol that is released by that draw adds the same to every label, in proportion to the label's probability,
        so that its rows may be shared out over the others by their belief.
        """
        taken = self.possible & (self.free() | (self.belief >= UNLIKELY))
        if not taken.any():
            taken = self.belief == self.belief.max()
        belief = np.where(taken, self.belief, 0.0)
        belief = belief / belief.sum()
        rest = self.aimed[:, ~taken].sum(1)
        aimed = np.where(taken, self.aimed + np.multiply.outer(rest, belief), 0.0)
        box = self.box if self.box is None or not self.belief[~taken].any() else None
        return replace(self, belief=belief, aimed=aimed, possible=taken, box=box)


def _tighter(one: Guarded) -> Guarded:
    """The same promise with the ε that a solver aims at."""
    room = max(TIGHTER * one.epsilon, 4 * (one.error + slack(one.weights.shape[2])))
    return replace(one, epsilon=max(0.0, one.epsilon - room))


def _rows(belief: Floats, one: Guarded) -> tuple[Floats, Floats, Floats]:
    """Promised rows, their doubt and the rows aimed at, of the windows that some symbol could break."""
    tight = _tighter(one)
    chosen = tight.binding()
    (plus, minus), (up, down) = one[chosen].two_sides(), tight[chosen].two_sides()
    aimed = belief * (up - down)
    aimed = aimed - np.multiply.outer(np.maximum(aimed.sum(1), 0.0), belief / belief.sum())
    return belief * (plus - minus), belief * (plus + minus) * (2 * one.error + slack(belief.size)), aimed


def _box(belief: Floats, one: Guarded) -> tuple[Floats, float, float]:
    weights = one.sigma[0]
    mean = float(belief @ weights) / float(belief.sum())
    return weights, min(float(one.low[0]), mean), max(float(one.high[0]), mean)
