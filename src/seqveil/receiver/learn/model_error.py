"""How far off a learned chain may be, and what that does to the guarantee.

Write the rows as P(·|s) = softmax(θ_s). User u's releases have the score g_u = expected moves - expected visits · P,
and the curvature of log likelihood + log prior at the top is about

    A = Σ_u g_u g_uᵀ + strength · Σ_s (diag P_s - P_s P_sᵀ),

the observed information by users (their streams are independent) plus the prior's. The posterior of θ is then about
N(θ̂, A⁻¹), carried over to the rows by their derivative. It counts what the noise of the release hides: expected counts
alone would look far too sure.

The region is about chance: where one chain of this order is behind all users, it holds that chain as often as it says.
Where people differ or remember more, no chain is the truth, and no region of chains holds it.

What the region means for a release: let β be the belief under the learned chain, β' under the truth, τ ≥ TV(β, β'), and
f the lifts of a release under the learned chain, low ≤ f ≤ high. Then

    |p'(y)/p(y) - 1| = |Σ (β'-β) f| ≤ τ (high - low),

so the true log lift of any x is log f(x) moved by at most -log(1 - τ (high - low)). This is docs/theory.md, section
3(c), with what was realised in place of ε. And never more than log(high/low) ≤ 2ε, as p'(y) is a mean of Q(y|·)
whatever the truth is.

The distance travels. Conditioning: with μ = β f and ν = β' f, TV of the normalised is at most Σ(μ-ν)⁺ / max(|μ|, |ν|) ≤
high · τ, and trivially at most 1. Moving on: with c the contraction of the learned chain (the largest distance of two
of its rows) and r_s the rows' radii, TV ≤ c·d + min(max r, Σ post(s) r_s + d · max r).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import extremes
from seqveil.core.model import MarkovModel
from seqveil.engine import stream
from seqveil.receiver.learn.evidence import Evidence
from seqveil.receiver.learn.expected import Chain, by_user
from seqveil.receiver.learn.learner import Learned

DRAWS = 2000
LARGEST = 3000  # parameters whose information is a full matrix


@dataclass(frozen=True, eq=False)
class Region:
    """Radii in total variation: with posterior probability `confidence` every row is within its own, all at once.

    `rows` (n^m,) are the contexts' radii and `first` that of the law of the first symbols.
    """

    confidence: float
    rows: Floats
    first: float
    learned: Learned
    spread: Floats  # (K, K) a root of the covariance of θ: rows first, then the first symbols

    def plausible(self, count: int, seed: int = 0) -> list[MarkovModel]:
        """Chains drawn from the posterior: weigh a release under each (`receive.reweigh`) to see what it may leak."""
        names = self.learned.model.alphabet
        return [chain.model(names) for chain in self.chains(count, seed)]

    def chains(self, count: int, seed: int = 0) -> list[Chain]:
        """The same chains as tables."""
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
    if learned.types is not None:
        raise InputError("a region is that of one chain, not of a mixture; learn without types to see how sure it is")
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


def _moved(law: Floats, move: Floats) -> Floats:
    """law + (diag law - law lawᵀ) · move, cut off at 0: rare symbols are far from log-normal, and nearer to this."""
    middle = (law * move).sum(-1, keepdims=True)
    weights = np.maximum(law * (1.0 + move - middle), 1e-12)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def _distances(chain: Chain, other: Chain) -> Floats:
    rows = np.abs(chain.rows - other.rows).sum(1) / 2
    return np.append(rows, np.abs(chain.first - other.first).sum() / 2)


def slack_along(setting: stream.Setting, rows: Region | Floats, codes: Ints, first: float | None = None) -> Floats:
    """(B, T): the most that each release can have leaked if every row of the true chain is within its radius.

    *Guarantee*: for every chain of order 1 whose rows (and first law) lie within the radii of the setting's model, the
    exact |log lift| of release k under that chain is at most entry k; their sum bounds the stream's leakage. Each is
    between the realised leakage under the model and min(2ε, ε - log(1 - τ(e^ε - e^-ε))).

    Parameters: the setting of the release, whose model is the learned one; its `Region`, or radii (n,) with `first`;
    released codes (B, T).

    >>> model = MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]])
    >>> setting = stream.Setting.of(model, epsilon=1.0)
    >>> slack_along(setting, np.zeros(2), np.array([[0, 0, 1]]), first=0.0).round(3).tolist()
    [[1.0, 1.0, 1.0]]
    >>> slack_along(setting, np.full(2, 0.05), np.array([[0, 0, 1]]), first=0.05).round(3).tolist()
    [[1.065, 1.077, 1.108]]
    """
    model = setting.model
    radii, start = _radii(rows, first)
    if model.size != model.n or radii.shape != (model.n,):
        raise InputError(f"expected a chain of order 1 and one radius for each of its {model.n} rows")
    shrink, widest = contraction(model), float(radii.max())
    state, apart = stream.State.start(setting, len(codes)), np.full(len(codes), start)
    out = np.empty(codes.shape)
    for t in range(codes.shape[1]):
        seen, after = stream.observe(setting, state, codes[:, t])
        posterior, marginal = filtering.condition(model, state.states, seen.columns)
        anything = np.ones(seen.columns.shape, bool)  # the truth may give weight to what the model does not
        least, most = extremes(seen.columns, marginal, anything, model.size)
        inside = np.maximum(0.0, 1.0 - apart * (np.exp(most) - np.exp(least)))
        with np.errstate(divide="ignore"):
            out[:, t] = np.minimum(most - least, np.maximum(most, -least) - np.log(inside))
        told = np.minimum(1.0, np.exp(most) * apart)
        fresh = np.minimum(widest, posterior @ radii + told * widest)
        apart, state = np.minimum(1.0, shrink * told + fresh), after
    return out


def contraction(model: MarkovModel) -> float:
    """The largest total variation between two rows of a chain of order 1 (Dobrushin's coefficient)."""
    rows = model.advance(np.eye(model.n))
    return max(float(np.abs(rows - row).sum(1).max()) / 2 for row in rows)


def _radii(rows: Region | Floats, first: float | None) -> tuple[Floats, float]:
    if isinstance(rows, Region):
        return rows.rows, rows.first
    if first is None:
        raise InputError("radii of the rows come with the radius of the first law; pass first=")
    return np.asarray(rows, np.float64), float(first)
