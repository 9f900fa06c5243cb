"""Who attacks: classifiers that learn from what was counted of people, and believers in a model of their own.

A Bayes attacker knows how each release was made, so that release y tells Q(y|x) of every symbol x. For a window that
begins with the posterior f of the model's state s, given all releases before it, and for the state a of the secret's
automaton,

    J(a', s') ∝ Q(y | x(s')) · Σ_{a, s: a moves to a' on x(s')} J(a, s) · P(s'|s),      J(start, s) = f(s),

and with b(s), the likelihood of all releases after the window, Pr(v | all releases) ∝ Σ J(a, s)·b(s) over the automaton
states labelled v. Cases that nobody sees (`evidence`) are followed, too. It is exact under the attacker's model,
whatever model the release was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import InputError, needs_extra
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.declared import Compiled
from seqveil.evaluate.attack.features import Windows
from seqveil.receiver.evidence import Evidence, Says, backward

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


def beliefs(
    models: Mapping[str, MarkovModel], evidence: Evidence | None, secret: Compiled, windows: Windows
) -> list[dict[str, Floats]]:
    """For each value of the secret, how likely each Bayes attacker holds it to be in each window."""
    if models and evidence is None:
        raise InputError("a Bayes attacker needs evidence=, what each release tells of the truth (`Evidence.of`)")
    held = {name: posteriors(evidence, one, secret, windows) for name, one in models.items() if evidence is not None}
    values = range(secret.automaton.values)
    return [{f"Bayes with {name}": found[:, value] for name, found in held.items()} for value in values]


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
    part = part.renumbered(ids[part.users])
    lengths = np.bincount(part.users, minlength=people.size)
    order = np.argsort(-lengths, kind="stable")  # as the blocks have them
    spans = np.broadcast_to(lengths[owner] if windows.length is None else windows.length, owner.shape)
    out, done, states = np.empty((owner.size, secret.automaton.values)), 0, model.size * part.cases
    room = max(1, NUMBERS // (states * secret.automaton.size * int(np.bincount(owner).max())))
    for places, lengths in part.layout.blocks(max(1, NUMBERS // states), room):
        place = np.full(people.size, -1)
        place[order[done : done + lengths.size]] = np.arange(lengths.size)
        own = np.flatnonzero(place[owner] >= 0)
        steps = int((windows.begins + spans)[own].max(initial=places.shape[1]))
        said = _Said([part.says(places, lengths, t, model.newest) for t in range(steps)])
        out[own] = _values(said, model, secret, place[owner[own]], windows.begins[own], spans[own])
        done += lengths.size
    return out


class _Said:
    """What all releases of people say, step by step."""

    def __init__(self, said: list[Says]) -> None:
        self.first, self.rows = said[0], np.stack([one.rows for one in said])  # (T, B, K, S)
        none = np.zeros(len(said[0]), np.int64)  # past the longest stream
        self.links = np.stack([none if one.links is None else one.links for one in said])

    def at(self, steps: int | Ints, people: Ints | slice = slice(None)) -> Says:
        """What the events at these steps say."""
        links = None if self.first.links is None else self.links[steps, people]
        return replace(self.first, rows=self.rows[steps, people], links=links)


def _values(said: _Said, model: MarkovModel, secret: Compiled, owners: Ints, begins: Ints, spans: Ints) -> Floats:
    """Probability of each value of the secret in each window."""
    before, after, automaton = _before(said, model), _after(said, model), secret.automaton
    inside = np.zeros((automaton.size, owners.size, *before.shape[2:]))
    inside[0] = before[begins, owners]
    for k in range(int(spans.max())):
        going = np.flatnonzero(spans > k)
        here = said.at(begins[going] + k, owners[going])
        now = here.onward(model.advance(inside[:, going]) if k else inside[:, going])
        letters = model.newest + model.n * int(secret.clock[k % len(secret.clock)])
        flat = now.reshape(automaton.size, -1, model.size)
        now = filtering.read(flat, automaton.moves[:, letters]).reshape(now.shape) * here.rows
        inside[:, going] = now / now.sum((0, 2, 3))[:, None, None]
    held = np.einsum("awks,wks->wa", inside, after[begins + spans, owners])
    values = np.stack([held[:, automaton.labels == value].sum(1) for value in range(automaton.values)], axis=1)
    return np.asarray(values / values.sum(1, keepdims=True))


def _before(said: _Said, model: MarkovModel) -> Floats:
    """The distribution of case and state before each event, given the releases before it: (T, B, K, S).

    Where the model rules out what was released, that tells its believer nothing: ones stand there.
    """
    before, now = np.empty(said.rows.shape), np.zeros(said.rows.shape[1:])
    now[:, 0] = model.initial
    for t in range(len(before)):
        says = said.at(t)
        before[t], moved = now, says.onward(now)
        says.rows[(moved * says.rows).sum((1, 2)) <= 0] = 1.0
        joint = moved * says.rows
        now = model.advance(joint / joint.sum((1, 2), keepdims=True))
    return before


def _after(said: _Said, model: MarkovModel) -> Floats:
    """The likelihood of the releases from each event on, by case and state at the event before it: (T + 1, B, K, S)."""
    steps, *shape = said.rows.shape
    after = np.ones((steps + 1, *shape))
    for t, later in backward(model, [said.at(t) for t in range(steps)]):
        after[t + 1] = later
    return after
