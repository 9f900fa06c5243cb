"""What a kernel has to keep at one event: for every live window of a secret, weights of the symbols and a bound.

Let w_v(x) = Pr(v | X = x, what was released before) and π_v the prior of value v of a window. A release y by a kernel Q
moves the window's odds to Σ_x β(x) w_v(x) Q(y|x) / π_v against the same for v', so the promise is, for every label y,

    Σ_x β(x) [w_v(x)/π_v - e^ε w_v'(x)/π_v'] Q(y|x) ≤ 0      for every pair (v, v') that is bounded.

For a secret that is true or not this is a box for the weight σ = w_1 of every label: lo ≤ Σ β σ Q / Σ β Q ≤ hi with
lo = o e^-ε/(1 + o e^-ε), hi = o e^ε/(1 + o e^ε), o = π/(1-π) (one side: lo = 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, Ints
from seqveil.core.secrets.declared import Sides


@dataclass(frozen=True, eq=False)
class Guarded:
    """The constraints of W live windows of one secret under one model, over n symbols.

    `weights` (W, V, n) are Pr(v | X = x, y_<k), `prior` (W, V) the windows' own priors under the model, `epsilon` what
    a kernel should aim at, `error` the relative error of the weights, from above. Symbols the belief rules out have the
    window's present weights: they forbid nothing. Values with prior 0 cannot occur and bound nothing.
    """

    windows: Ints  # (W,) the number of each window; of its events, where windows are the first T events
    weights: Floats
    prior: Floats
    epsilon: float
    sides: Sides
    error: float

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, chosen: int | slice | NDArray[np.bool_] | Ints) -> Guarded:
        part = slice(chosen, chosen + 1) if isinstance(chosen, int) else chosen
        return Guarded(self.windows[part], self.weights[part], self.prior[part], self.epsilon, self.sides, self.error)

    @property
    def is_box(self) -> bool:
        """Whether the secret is true or not, so that `sigma`, `low` and `high` say it all."""
        return self.prior.shape[1] == 2

    @property
    def sigma(self) -> Floats:
        """σ(x) = Pr(E | X = x, y_<k): (W, n)."""
        return self.weights[:, 1]

    @property
    def low(self) -> Floats:
        """Least weight a label may have, (W,); 0 where only one side is bounded."""
        return self._box(-self.epsilon) if self.sides == "both" else np.zeros(len(self))

    @property
    def high(self) -> Floats:
        """Largest weight a label may have: (W,)."""
        return self._box(self.epsilon)

    def _box(self, log_odds: float) -> Floats:
        yes, no = self.prior[:, 1] * np.exp(log_odds), self.prior[:, 0]
        return yes / (yes + no)

    def pairs(self) -> list[tuple[int, int]]:
        """Pairs (v, v') whose ratio Pr(y|v)/Pr(y|v') is bounded."""
        if self.sides == "up":
            return [(1, 0)]
        values = range(self.prior.shape[1])
        return [(one, two) for one in values for two in values if one != two]

    def linear(self) -> Floats:
        """Rows c (C, n) with Σ_x β(x) c(x) Q(y|x) ≤ 0 for every label y: the promise, whatever kind of secret it is.

        >>> weights, prior = np.array([[[0.81, 0.0], [0.19, 1.0]]]), np.array([[0.405, 0.595]])
        >>> box = Guarded(np.array([0]), weights, prior, 0.5, "both", 0.0)
        >>> box.low.round(4).tolist(), box.high.round(4).tolist()
        ([0.4712], [0.7078])
        >>> bool((box.linear() @ [0.5, 0.5] <= 0).all())  # both told alike
        True
        """
        plus, minus = self.two_sides()
        return plus - minus

    def two_sides(self) -> tuple[Floats, Floats]:
        """What every row of `linear` is the difference of: two arrays (C, n) of numbers that are not negative."""
        lifts = np.divide(
            self.weights, self.prior[:, :, None], out=np.zeros_like(self.weights), where=self.prior[:, :, None] > 0
        )
        plus, minus = [np.zeros((0, self.weights.shape[2]))], [np.zeros((0, self.weights.shape[2]))]
        for one, two in self.pairs():
            bounded = (self.prior[:, one] > 0) & (self.prior[:, two] > 0)
            plus.append(lifts[bounded, one])
            minus.append(np.exp(self.epsilon) * lifts[bounded, two])
        return np.concatenate(plus), np.concatenate(minus)

    def free(self) -> NDArray[np.bool_]:
        """Whether each symbol may be told as it is, as far as it alone is concerned: (n,)."""
        return np.asarray((self.linear() <= 0).all(0))

    def binding(self) -> NDArray[np.bool_]:
        """Whether some symbol, told as it is, would break each window's promise: (W,). The others bind no kernel."""
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(self.weights / self.prior[:, :, None])
        found = np.zeros(len(self), bool)
        for one, two in self.pairs():
            with np.errstate(invalid="ignore"):
                found |= (logs[:, one] - logs[:, two] > self.epsilon).any(1)
        return found
