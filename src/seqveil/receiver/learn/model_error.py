"""How far off a learned chain may be.

Write the rows as P(·|s) = softmax(θ_s). User u's releases have the score g_u = expected moves - expected visits · P,
and the curvature of log likelihood + log prior at the top is about

    A = Σ_u g_u g_uᵀ + strength · Σ_s (diag P_s - P_s P_sᵀ),

the observed information by users (their streams are independent) plus the prior's. The posterior of θ is then about
N(θ̂, A⁻¹), carried over to the rows by their derivative. It counts what the noise of the release hides: expected counts
alone would look far too sure.

The region is about chance: where one chain of this order is behind all users, it holds that chain as often as it says.
Where people differ or remember more, no chain is the truth, and no region of chains holds it.

"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats
from seqveil.receiver.learn.evidence import Evidence
from seqveil.receiver.learn.expected import Chain, by_user
from seqveil.receiver.learn.learner import Learned

DRAWS = 2000
LARGEST = 3000  # parameters whose information is a full matrix


@dataclass(frozen=True, eq=False)
class Region:
    """Radii in total variation: with posterior probability `confidence` every row is within its own, all at once.

    `rows` (n^m,) are the contexts' radii and `first` that of the distribution of the first symbols.
    """

    confidence: float
    rows: Floats
    first: float
    learned: Learned
    spread: Floats  # (K, K) a root of the covariance of θ: rows first, then the first symbols

    def chains(self, count: int, seed: int = 0) -> list[Chain]:
        """Chains drawn from the posterior, as tables."""
        return _draws(self.learned.chain, self.spread, count, seed)

    def __repr__(self) -> str:
        largest, usual = float(self.rows.max()), float(np.average(self.rows, weights=self._visits))
        return f"Region({self.confidence:.0%}: rows within {usual:.3f} on average over visits, {largest:.3f} at most)"

    @property
    def _visits(self) -> Floats:
        return self.learned.found.moves.sum(1) + 1e-12


def region(learned: Learned, evidence: Evidence, confidence: float = 0.95) -> Region:
    """The credible region of a chain learned from `evidence`.

    Radii are found by drawing chains from the posterior: each row's radius is proportional to its median distance, and
    the common factor is such that all rows are inside together with probability `confidence`.

    Reference: Louis, *Finding the observed information matrix when using the EM algorithm*, JRSS B 1982.
    """
    if not 0 < confidence < 1:
        raise InputError(f"expected a confidence between 0 and 1, got {confidence}")
    chain = learned.chain
    size = chain.rows.size + chain.first.size
    if size > LARGEST:
        raise InputError(
            f"the region of {size} probabilities is too large to compute (at most {LARGEST}); draw on fewer symbols or "
            "a lower order"
        )
    spread = _spread(learned, evidence)
    apart = np.stack([_distances(chain, other) for other in _draws(chain, spread, DRAWS, 1)])
    usual = np.maximum(np.median(apart, axis=0), 1e-9)
    factor = float(np.quantile((apart / usual).max(1), confidence))
    radii = np.minimum(1.0, factor * usual)
    return Region(confidence, radii[:-1], float(radii[-1]), learned, spread)


def _spread(learned: Learned, evidence: Evidence) -> Floats:
    """A root R of the posterior covariance of θ: R Rᵀ = A⁺."""
    chain = learned.chain
    firsts, moves = (np.concatenate(part) for part in zip(*by_user(evidence, chain), strict=True))
    scores = np.concatenate(
        [
            (moves - moves.sum(2, keepdims=True) * chain.rows).reshape(len(moves), -1),
            firsts - chain.first,
        ],
        axis=1,
    )
    information = scores.T @ scores
    n, at = chain.n, chain.rows.size
    for s, row in enumerate(chain.rows):
        part = slice(s * n, (s + 1) * n)
        information[part, part] += learned.strength * (np.diag(row) - np.outer(row, row))
    information[at:, at:] += learned.strength * (np.diag(chain.first) - np.outer(chain.first, chain.first))
    values, vectors = np.linalg.eigh(information)
    # a row's logits may all rise together without changing it: those directions have no curvature and no effect
    seen = values > 1e-9 * max(1e-300, float(values.max()))
    return vectors[:, seen] / np.sqrt(values[seen])


def _draws(chain: Chain, spread: Floats, count: int, seed: int) -> list[Chain]:
    generator, at = np.random.default_rng(seed), chain.rows.size
    moved = generator.standard_normal((count, spread.shape[1])) @ spread.T
    return [
        Chain(_moved(chain.first, move[at:]), _moved(chain.rows, move[:at].reshape(chain.rows.shape))) for move in moved
    ]


def _moved(distribution: Floats, move: Floats) -> Floats:
    """p + (diag p - p pᵀ) · move, cut off at 0: rare symbols are far from log-normal, and nearer to this."""
    middle = (distribution * move).sum(-1, keepdims=True)
    weights = np.maximum(distribution * (1.0 + move - middle), 1e-12)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def _distances(chain: Chain, other: Chain) -> Floats:
    rows = np.abs(chain.rows - other.rows).sum(1) / 2
    return np.append(rows, np.abs(chain.first - other.first).sum() / 2)
