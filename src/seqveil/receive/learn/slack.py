"""What a credible region of the model does to the guarantee, release by release.

Let β be the belief under the learned chain, β' under the truth, τ ≥ TV(β, β'), and f the lifts of a release under the
learned chain, low ≤ f ≤ high. Then

    |p'(y)/p(y) - 1| = |Σ (β'-β) f| ≤ τ (high - low),

so the true log lift of any x is log f(x) moved by at most -log(1 - τ (high - low)). This is docs/theory.md, section
3(c), with what was realised in place of ε. And never more than log(high/low) ≤ 2ε, as p'(y) is a mean of Q(y|·)
whatever the truth is.

The distance travels. Conditioning: with μ = β f and ν = β' f, TV of the normalised is at most Σ(μ-ν)⁺ / max(|μ|, |ν|) ≤
high · τ, and trivially at most 1. Moving on: with c the contraction of the learned chain (the largest distance of two
of its rows) and r_s the rows' radii, TV ≤ c·d + min(max r, Σ post(s) r_s + d · max r).
"""

from __future__ import annotations

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import extremes
from seqveil.core.model import MarkovModel
from seqveil.receive.learn.region import Region
from seqveil.release import stream


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
    rows = np.asarray(model.chain.todense()) + model.backoff[:, None] * model.base
    return max(float(np.abs(rows - row).sum(1).max()) / 2 for row in rows)


def _radii(rows: Region | Floats, first: float | None) -> tuple[Floats, float]:
    if isinstance(rows, Region):
        return rows.rows, rows.first
    if first is None:
        raise InputError("radii of the rows come with the radius of the first law; pass first=")
    return np.asarray(rows, np.float64), float(first)
