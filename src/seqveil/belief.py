"""The adversary's filter: what an observer believes, from the model and the releases alone. Two pure functions."""

from __future__ import annotations

import numpy as np

from seqveil.kernel import Floats, Ints, grouped_sum
from seqveil.model import MarkovModel


def predict(model: MarkovModel, posterior: Floats) -> Floats:
    """Law of the next state: posterior · transitions, one row a user."""
    ahead = model.advance(posterior)
    ahead /= ahead.sum(-1, keepdims=True)
    return ahead


def condition(model: MarkovModel, states: Floats, column: Floats | Ints) -> tuple[Floats, Floats]:
    """Law of the state after a release, post(s) ∝ states(s) · Q(y | newest symbol of s), and the marginal (B,) of y.

    `column` (B, n) may be Q(y|·), its integer weights or the lifts: only proportions matter. A release that the belief
    rules out (only an unsound mechanism can make one) starts the belief anew from the states that could have made it.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> post, marginal = condition(model, model.initial[None], np.array([[3.0, 1.0]]))
    >>> post.tolist(), marginal.tolist(), predict(model, post).round(3).tolist()
    ([[0.75, 0.25]], [2.0], [[0.7, 0.3]])
    """
    weights = column if model.size == model.n else column[:, model.newest]
    post = states * weights
    marginal = post.sum(-1)
    total = marginal[:, None]
    if not marginal.all():
        post = np.where(total > 0, post, weights.astype(np.float64))
        total = post.sum(-1, keepdims=True)
    post /= total
    return post, marginal


def symbols(model: MarkovModel, states: Floats) -> Floats:
    """Law of the newest symbol from the law of the state: (B, S) → (B, n)."""
    if model.size == model.n:
        return states
    return grouped_sum(np.broadcast_to(model.newest, states.shape), states, model.n)


def pull(model: MarkovModel, values: Floats) -> Floats:
    """Σ_s' P(s'|s) values(s') for every state s: the way back that `predict` is the way forward of. (B, S) → (B, S)."""
    jump = (values[:, model.base_state] * model.base).sum(1)
    onward: Floats = (model.chain @ values.T).T
    return onward + model.backoff * jump[:, None]
