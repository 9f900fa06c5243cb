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
from itertools import count
from typing import Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import InputError, needs_extra
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.declared import Compiled
from seqveil.evaluate.attack.features import Windows
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
    >>> posteriors(seen, model, ever(1, epsilon=1.0, window="first 3").over(model.alphabet), first).round(4).tolist()
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
    """Releases of people side by side, longest streams first, as the believer in a model weighs them.

    As a sequence it is the columns Q(y_t|·) of every step, one row a person: ones where there is no release, and where
    the model rules out what was released, which tells its believer nothing.
    """

    def __init__(self, table: Floats, index: Ints, lengths: Ints, model: MarkovModel) -> None:
        self._table, self._index, self._lengths, self._model = table, index, lengths, model
        self._silent = np.zeros(index.shape, bool)

    def __len__(self) -> int:
        return self._index.shape[1]

    def __getitem__(self, t: int) -> Floats:
        return self._columns(np.arange(self._lengths.size), np.full(self._lengths.size, t))

    def values(self, secret: Compiled, owners: Ints, begins: Ints, length: int | None) -> Floats:
        """Probability of each value of the secret in each window, given all releases."""
        automaton = secret.automaton
        spans = self._lengths[owners] if length is None else np.full(owners.size, length)
        order = np.argsort(-spans, kind="stable")
        owners, begins, spans = owners[order], begins[order], spans[order]
        before = self._before(owners, begins)  # which finds what the model rules out
        inside, after = self._inside(secret, before, owners, begins, spans), self._after(owners, begins + spans)
        held = np.einsum("aws,ws->wa", inside, after)
        values = np.stack([held[:, automaton.labels == value].sum(1) for value in range(automaton.values)], axis=1)
        out = np.empty_like(values)
        out[order] = values / values.sum(1, keepdims=True)
        return out

    def _columns(self, people: Ints, times: Ints) -> Floats:
        """Q(y|x) of the release of each of these people at its time: (people, n)."""
        last = len(self) - 1
        none = (times >= self._lengths[people]) | self._silent[people, np.minimum(times, last)]
        return np.where(none[:, None], 1.0, self._table[self._index[people, np.minimum(times, last)]])

    def _inside(self, secret: Compiled, before: Floats, owners: Ints, begins: Ints, spans: Ints) -> Floats:
        """Distribution (A, W, S) of automaton and state at the end of each window, given the releases up to there."""
        automaton, model, place = secret.automaton, self._model, count()

        def read(distribution: Floats, column: Floats) -> Floats:
            tick = int(secret.clock[next(place) % len(secret.clock)])
            return (
                filtering.read(distribution, automaton.moves[:, model.newest + model.n * tick])
                * column[:, model.newest]
            )

        going = [int((spans > k).sum()) for k in range(int(spans.max()))]
        columns = (self._columns(owners[:now], begins[:now] + k) for k, now in enumerate(going))
        distribution = np.zeros((automaton.size, *before.shape))
        distribution[0] = before
        ends = np.empty_like(distribution)
        steps = filtering.forward(
            read(distribution, next(columns)),
            columns,
            lambda distribution, said: read(model.advance(distribution), said),
        )
        for (distribution, _), after in zip(steps, [*going[1:], 0], strict=True):
            ends[:, after : distribution.shape[1]] = distribution[:, after:]
        return ends

    def _before(self, owners: Ints, begins: Ints) -> Floats:
        """The posterior of the state in which each window begins, given the releases before it."""
        model, out = self._model, np.empty((owners.size, self._model.size))
        states = filtering.start(model, self._lengths.size)
        for t in range(max(len(self), int(begins.max()) + 1)):  # a window may begin after the last release
            out[begins == t] = filtering.clear(states)[owners[begins == t]]
            column = self[t]
            silent = (filtering.symbols(model, states) * column).sum(1) <= 0
            column[silent] = 1.0
            self._silent[:, t : t + 1] = silent[:, None]  # past the last release there is nothing to mark
            states, _ = filtering.move(model, states, column)
        return out

    def _after(self, owners: Ints, ends: Ints) -> Floats:
        """The likelihood of the releases after each window, by the state in which it ends, up to a factor."""
        later, out = np.ones((self._lengths.size, self._model.size)), np.ones((owners.size, self._model.size))
        for t, _ in filtering.back(self._model, later, self):
            out[ends == t + 1] = later[owners[ends == t + 1]]
        return out
