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
    spans = np.bincount(part.users, minlength=people.size)[owner] if windows.length is None else windows.length
    spans = np.broadcast_to(spans, owner.shape)
    out, done, several = np.empty((owner.size, secret.automaton.values)), 0, int(np.bincount(owner).max())
    room = max(1, NUMBERS // (model.size * secret.automaton.size * several))
    for index, lengths in part.blocks(max(1, NUMBERS // model.size), room):
        place = np.full(people.size, -1)
        place[order[done : done + lengths.size]] = np.arange(lengths.size)
        own = np.flatnonzero(place[owner] >= 0)
        seen = np.ones((int((windows.begins + spans)[own].max(initial=index.shape[1])), lengths.size, model.n))
        for t in range(min(index.shape[1], len(seen))):
            seen[t, lengths > t] = part.table[index[lengths > t, t]]
        out[own] = _values(seen, model, secret, place[owner[own]], windows.begins[own], spans[own])
        done += lengths.size
    return out


def _values(seen: Floats, model: MarkovModel, secret: Compiled, owners: Ints, begins: Ints, spans: Ints) -> Floats:
    """Probability of each value of the secret in each window, from Q(y_t|·) of all releases of people: (T, B, n).

    Where the model rules out what was released, that tells its believer nothing: ones stand there, as where nothing was
    released.
    """
    steps, users, _ = seen.shape
    before, states = np.empty((steps, users, model.size)), filtering.start(model, users)
    for t in range(steps):
        before[t] = filtering.clear(states)
        seen[t, (filtering.symbols(model, states) * seen[t]).sum(1) <= 0] = 1.0
        states, _ = filtering.move(model, states, seen[t])
    after, later = np.ones((steps + 1, users, model.size)), np.ones((users, model.size))
    for t, _ in filtering.back(model, later, seen):
        after[t + 1] = later
    automaton = secret.automaton
    inside = np.zeros((automaton.size, owners.size, model.size))
    inside[0] = before[begins, owners]
    for k in range(int(spans.max())):
        going = np.flatnonzero(spans > k)
        now = model.advance(inside[:, going]) if k else inside[:, going]
        letters = model.newest + model.n * int(secret.clock[k % len(secret.clock)])
        now = filtering.read(now, automaton.moves[:, letters]) * seen[begins[going] + k, owners[going]][:, model.newest]
        inside[:, going] = now / now.sum((0, 2))[:, None]
    held = np.einsum("aws,ws->wa", inside, after[begins + spans, owners])
    values = np.stack([held[:, automaton.labels == value].sum(1) for value in range(automaton.values)], axis=1)
    return np.asarray(values / values.sum(1, keepdims=True))
