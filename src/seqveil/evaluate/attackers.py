"""Who attacks: classifiers that learn from what was counted of people, and believers in a model of their own.

A Bayes attacker knows how each release was made, so that release y tells Q(y|x) of every symbol x. For a window that
begins with the posterior f of the model's state s, given all releases before it, and for the state a of the secret's
automaton,

    J(a', s') ∝ Q(y | x(s')) · Σ_{a, s: a moves to a' on x(s')} J(a, s) · P(s'|s),      J(start, s) = f(s),

and with b(s), the likelihood of all releases after the window, Pr(v | all releases) ∝ Σ J(a, s)·b(s) over the automaton
states labelled v. It is exact under the attacker's model, whatever model the release was made with. The better that
model describes people, the better the guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import InputError, needs_extra
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.declared import Compiled
from seqveil.evaluate.attack_features import Windows
from seqveil.receiver.learn import Evidence

STRONGEST = 100  # columns that boosted trees look at
NUMBERS = 1 << 22  # of the posteriors held at once

Attackers = dict[str, Callable[[], Any]]


def classifiers(seed: int, columns: int = STRONGEST) -> Attackers:
    """The attackers that learn from people, made new for each use; `columns` is how many there are to look at."""
    with needs_extra("the attack", "attack"):
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.feature_selection import SelectKBest
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler

    def strongest(most: int) -> Any:
        return SelectKBest(_correlation, k=min(most, columns))

    def linear(most: int) -> Any:
        return make_pipeline(strongest(most), MaxAbsScaler(), LogisticRegression(C=0.3, max_iter=500))

    def boosted() -> Any:
        trees = HistGradientBoostingClassifier(max_iter=80, learning_rate=0.08, max_leaf_nodes=15, random_state=seed)
        dense = FunctionTransformer(_dense, accept_sparse=True)
        return make_pipeline(strongest(STRONGEST), dense, trees)

    return {
        "logistic regression": partial(linear, columns),
        "logistic regression on a few columns": partial(linear, 20),
        "the strongest column": partial(linear, 1),
        "gradient boosting": boosted,
    }


def _dense(found: Any) -> Floats:
    return found.toarray()


def _correlation(found: Any, labels: Ints) -> Floats:
    """How strongly each column goes with the labels; columns that never vary not at all."""
    apart = labels - labels.mean()
    mean = np.asarray(found.mean(0)).ravel()
    spread = np.asarray(found.multiply(found).mean(0)).ravel() - mean**2
    return np.abs(found.T @ apart) / np.sqrt(np.maximum(spread, 1e-300)) * (spread > 1e-12)


def beliefs(
    models: Mapping[str, MarkovModel], evidence: Evidence | None, secret: Compiled, windows: Windows
) -> list[dict[str, Floats]]:
    """For each value of the secret, how likely each Bayes attacker holds it to be in each window."""
    if not models:
        return [{} for _ in range(secret.automaton.values)]
    if evidence is None:
        raise InputError("a Bayes attacker needs evidence=, what each release tells of the truth (`Evidence.of`)")
    found = {f"Bayes with {name}": posteriors(evidence, model, secret, windows) for name, model in models.items()}
    return [{name: held[:, value] for name, held in found.items()} for value in range(secret.automaton.values)]


def posteriors(evidence: Evidence, model: MarkovModel, secret: Compiled, windows: Windows) -> Floats:
    """Probability of each value of a secret in each window given all releases of its person: (windows, values).

    >>> from seqveil.core.secrets.declared import ever
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> seen = Evidence(np.array([[0.25, 0.75]]), np.array([0]), np.array([0]))
    >>> first = Windows(*np.zeros((4, 1), np.int64), length=3)
    >>> posteriors(seen, model, ever(1, epsilon=1.0, window="first 3").compile(model), first).round(4).tolist()
    [[0.2025, 0.7975]]
    """
    if evidence.n != model.n:
        raise InputError(f"the attacker's model has {model.n} symbols, the release {evidence.n}; fit it to such values")
    people, owner = np.unique(windows.owners, return_inverse=True)
    ids = np.full(int(evidence.users.max(initial=-1)) + 1, -1)
    ids[people] = np.arange(people.size)
    part = evidence.of_users(ids >= 0)
    part = Evidence(part.table, ids[part.users], part.index)
    order = np.argsort(-np.bincount(part.users, minlength=people.size), kind="stable")  # as the blocks have them
    several = int(np.bincount(owner).max())
    out, done = np.empty((owner.size, secret.automaton.values)), 0
    for index, lengths in part.blocks(NUMBERS, max(1, NUMBERS // (model.size * secret.automaton.size * several))):
        place = np.full(people.size, -1)
        place[order[done : done + lengths.size]] = np.arange(lengths.size)
        own = np.flatnonzero(place[owner] >= 0)
        seen = _Seen(part.table, index, lengths, model)
        out[own] = seen.values(secret, place[owner[own]], windows.begins[own], windows.length)
        done += lengths.size
    return out


class _Seen:
    """Releases of people side by side, as the believer in a model weighs them."""

    def __init__(self, table: Floats, index: Ints, lengths: Ints, model: MarkovModel) -> None:
        self._table, self._index, self._lengths, self._model = table, index, lengths, model
        self._silent = np.zeros(index.shape, bool)  # what the model rules out tells its believer nothing

    def values(self, secret: Compiled, owners: Ints, begins: Ints, length: int | None) -> Floats:
        """Probability of each value of the secret in each window, given all releases."""
        automaton, model = secret.automaton, self._model
        spans = self._lengths[owners] if length is None else np.full(owners.size, length)
        before = self._before(owners, begins)
        after = self._after(owners, begins + spans)
        law = np.zeros((owners.size, automaton.size, model.size))
        law[:, automaton.start] = before
        for k in range(int(spans.max())):
            going = spans > k
            now = law[going]
            if k:
                now = model.advance(now.reshape(-1, model.size)).reshape(now.shape)
            now = _read(now, automaton.moves[:, model.newest + model.n * int(secret.clock[k % len(secret.clock)])])
            now *= self._weights(owners[going], begins[going] + k)[:, None]
            law[going] = now / now.sum((1, 2), keepdims=True)
        held = np.einsum("was,ws->wa", law, after)
        values = np.stack([held[:, automaton.labels == value].sum(1) for value in range(automaton.values)], axis=1)
        return values / values.sum(1, keepdims=True)

    def _weights(self, people: Ints, times: Ints) -> Floats:
        """Q(y|x(s)) of the release of each of these people at its time; ones where there is none."""
        last = self._index.shape[1] - 1
        weights = self._table[self._index[people, np.minimum(times, last)]][:, self._model.newest]
        none = (times >= self._lengths[people]) | self._silent[people, np.minimum(times, last)]
        return np.where(none[:, None], 1.0, weights)

    def _before(self, owners: Ints, begins: Ints) -> Floats:
        """The posterior of the state in which each window begins, given the releases before it."""
        everybody = np.arange(self._lengths.size)
        law = np.repeat(self._model.initial[None], everybody.size, axis=0)
        out = np.empty((owners.size, self._model.size))
        for t in range(max(self._index.shape[1], int(begins.max()) + 1)):  # a window may begin after the last release
            law = self._model.advance(law) if t else law
            out[begins == t] = law[owners[begins == t]]
            after = law * self._weights(everybody, np.full(everybody.size, t))
            total = after.sum(1, keepdims=True)
            law = np.where(total > 0, after / np.where(total > 0, total, 1.0), law)
            if t < self._index.shape[1]:
                self._silent[:, t] = total[:, 0] <= 0
        return out

    def _after(self, owners: Ints, ends: Ints) -> Floats:
        """The likelihood of the releases after each window, by the state in which it ends, up to a factor."""
        everybody = np.arange(self._lengths.size)
        law = np.ones((everybody.size, self._model.size))
        out = np.ones((owners.size, self._model.size))
        for t in range(self._index.shape[1] - 1, -1, -1):
            out[ends == t + 1] = law[owners[ends == t + 1]]
            law = filtering.pull(self._model, law * self._weights(everybody, np.full(everybody.size, t)))
            law /= law.max(1, keepdims=True)
        return out


def _read(law: Floats, moves: Ints) -> Floats:
    """Each automaton state moved on by the symbol that the model's state shows: `moves` is (A, S)."""
    after = np.zeros_like(law)
    for state, targets in enumerate(moves):
        for target in np.unique(targets):
            same = targets == target
            after[:, target, same] += law[:, state, same]
    return after
