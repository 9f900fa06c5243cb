"""Who attacks: classifiers that learn from what was counted of people, and believers in a model of their own.

A Bayes attacker knows how each release was made, so that release y reveals Q(y|x) of every symbol x. For a window that
begins with the posterior f of the model's state s, given all releases before it, and for the state a of the secret's
automaton,

    J(a', s') ∝ Q(y | x(s')) · Σ_{a, s: a moves to a' on x(s')} J(a, s) · P(s'|s),      J(start, s) = f(s),

and with b(s), the likelihood of all releases after the window, Pr(v | all releases) ∝ Σ J(a, s)·b(s) over the automaton
states labelled v. The case of a release that nobody sees (`evidence`) goes with the state. It is exact under the
attacker's model, whatever model the release was made with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import needs_extra
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.declared import Compiled
from seqveil.evaluate.attack.features import Windows
from seqveil.receiver.evidence import Evidence, Says, Walk

STRONGEST = 100  # columns that boosted trees look at

Attackers = dict[str, Callable[[], Any]]
Believer = Callable[[Compiled, Windows], Floats]  # the probability of each value of a secret in each window


def classifiers(seed: int, columns: int = STRONGEST) -> Attackers:
    """The attackers that learn from people, made new for each use; `columns` is how many there are to look at."""
    with needs_extra("the attack", "attack"):
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.feature_selection import SelectKBest
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler

    def strongest(most: int) -> Any:
        """Keeps the columns that go most with the labels."""
        return SelectKBest(_correlation, k=min(most, columns))

    def linear(most: int) -> Any:
        """Logistic regression on so many columns."""
        return make_pipeline(strongest(most), MaxAbsScaler(), LogisticRegression(C=0.3, max_iter=500))

    def boosted() -> Any:
        """Gradient boosting, which needs a dense table."""
        trees = HistGradientBoostingClassifier(max_iter=80, learning_rate=0.08, max_leaf_nodes=15, random_state=seed)
        dense = FunctionTransformer(methodcaller("toarray"), accept_sparse=True)
        return make_pipeline(strongest(STRONGEST), dense, trees)

    return {
        "logistic regression": partial(linear, columns),
        "logistic regression on a few columns": partial(linear, 20),
        "the strongest column": partial(linear, 1),
        "gradient boosting": boosted,
    }


def _correlation(found: Any, labels: Ints) -> Floats:
    """How strongly each column goes with the labels; columns that never vary not at all."""
    apart = labels - labels.mean()
    mean = np.asarray(found.mean(0)).ravel()
    spread = np.asarray(found.multiply(found).mean(0)).ravel() - mean**2
    return np.abs(found.T @ apart) / np.sqrt(np.maximum(spread, 1e-300)) * (spread > 1e-12)


def posteriors(evidence: Evidence, model: MarkovModel, secret: Compiled, windows: Windows) -> Floats:
    """Probability of each value of a secret in each window given all releases of its person: (windows, values).

    >>> from seqveil.core.secrets.declared import ever
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> seen = Evidence(np.array([[0.25, 0.75]]), np.array([0]), np.array([0]))
    >>> first = Windows(*np.zeros((4, 1), np.int64), length=3)
    >>> posteriors(seen, model, ever(1, epsilon=1.0, window="first 3").over(model.alphabet), first).round(4).tolist()
    [[0.2025, 0.7975]]
    """
    lengths = np.bincount(evidence.users)
    spans = lengths[windows.owners] if windows.length is None else np.full(windows.owners.size, windows.length)
    out = np.empty((spans.size, secret.automaton.values))
    for walk in evidence.blocks(model.newest):
        place = np.full(lengths.size, -1)
        place[evidence.users[walk.places[:, 0]]] = np.arange(walk.lengths.size)
        own = np.flatnonzero(place[windows.owners] >= 0)
        if own.size:
            out[own] = _in_block(walk, model, secret, place[windows.owners[own]], windows.begins[own], spans[own])
    return out


def _in_block(walk: Walk, model: MarkovModel, secret: Compiled, owners: Ints, begins: Ints, spans: Ints) -> Floats:
    """`posteriors` in windows of streams that lie side by side; an event past the last release says nothing."""
    automaton, steps = secret.automaton, max(len(walk.said), int((begins + spans).max()))
    rows = np.ones((steps, walk.lengths.size, walk.cases, model.size))
    links = np.zeros(rows.shape[:2], np.int64)
    for t, event in enumerate(walk.said):
        rows[t, : len(event)] = event.rows
        links[t, : len(event)] = 0 if event.links is None else event.links

    def says(*at: Any) -> Says:
        """What the events of these steps and streams say."""
        return Says(rows[at], links[at], walk.joins, walk.shown)

    before, now = np.empty(rows.shape), np.zeros(rows.shape[1:])  # of case and state, given the releases before
    now[:, 0] = model.initial
    for t in range(steps):
        before[t] = now
        now = says(t).onward(now)
        rows[t][(now * rows[t]).sum((1, 2)) <= 0] = 1.0  # what the model rules out reveals nothing to its believer
        now = now * rows[t]
        now = model.advance(now / now.sum((1, 2), keepdims=True))
    after = np.ones((steps + 1, *rows.shape[1:]))  # the likelihood of all releases from here on, by the state before
    for t in range(steps - 1, 0, -1):
        ahead = says(t).back(after[t + 1] * rows[t])
        ahead /= ahead.max((1, 2), keepdims=True)
        after[t] = filtering.pull(model, ahead.reshape(-1, model.size)).reshape(ahead.shape)
    inside = np.zeros((automaton.size, owners.size, *rows.shape[2:]))
    inside[0] = before[begins, owners]
    for k in range(int(spans.max())):
        going = np.flatnonzero(spans > k)
        here = says(begins[going] + k, owners[going])
        now = here.onward(model.advance(inside[:, going]) if k else inside[:, going])
        letters = model.newest + model.n * int(secret.clock[k % len(secret.clock)])
        flat = now.reshape(automaton.size, -1, model.size)
        now = filtering.read(flat, automaton.moves[:, letters]).reshape(now.shape) * here.rows
        inside[:, going] = now / now.sum((0, 2, 3))[:, None, None]
    held = np.einsum("awks,wks->wa", inside, after[begins + spans, owners])
    values = np.stack([held[:, automaton.labels == value].sum(1) for value in range(automaton.values)], axis=1)
    return np.asarray(values / values.sum(1, keepdims=True))
