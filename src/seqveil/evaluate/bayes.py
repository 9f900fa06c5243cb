"""A Bayes attacker with a model of their own: what the releases say of a secret to somebody who believes that model.

The attacker knows how each release was made, so that release y tells Q(y|x) of every symbol x. For the state a of the
secret's automaton and the state s of the model,

    J(a', s') ∝ Q(y | x(s')) · Σ_{a, s: a moves to a' on x(s')} J(a, s) · P(s'|s),

and after all releases Pr(v | y) is what lies on the automaton states labelled v. It is exact under the attacker's
model, whatever model the release was made with. The better that model describes people, the better the guess.
"""

from __future__ import annotations

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.declared import Compiled
from seqveil.receive.learn import Evidence

NUMBERS = 1 << 22  # of the laws held at once


def posteriors(evidence: Evidence, model: MarkovModel, secret: Compiled, at: Ints | None = None) -> Floats:
    """Probability of each value of a secret given all releases of a person: (people, values).

    Parameters:
      evidence: what the releases tell, people numbered 0, 1, …, each with at least one event.
      model: what the attacker believes of people.
      secret: the secret over the codes; of repeating windows the first whole one.
      at: the event of each person that is the window, for windows of one event.

    >>> from seqveil.core.secrets.declared import ever
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> told = Evidence(np.array([[0.25, 0.75]]), np.array([0]), np.array([0]))
    >>> posteriors(told, model, ever(1, window="first 3").compile(model)).round(4).tolist()
    [[0.2025, 0.7975]]
    """
    if evidence.n != model.n:
        raise InputError(f"the attacker's model has {model.n} symbols, the release {evidence.n}; fit it to such values")
    automaton = secret.automaton
    out = np.empty((evidence.people, automaton.values))
    lengths = np.bincount(evidence.users, minlength=evidence.people)
    order = np.argsort(-lengths, kind="stable")  # as the blocks have them: long streams first
    most = max(1, NUMBERS // (automaton.size * model.size))
    done = 0
    for index, long in evidence.blocks(NUMBERS, most):
        people = order[done : done + long.size]
        begins = np.zeros(long.size, np.int64) if at is None else at[people]
        law = _filtered(evidence.table, index, long, begins, model, secret)
        values = np.stack([law[:, automaton.labels == value].sum((1, 2)) for value in range(automaton.values)], axis=1)
        out[people] = values / values.sum(1, keepdims=True)
        done += long.size
    return out


def _filtered(table: Floats, index: Ints, lengths: Ints, begins: Ints, model: MarkovModel, secret: Compiled) -> Floats:
    """The joint law of the automaton's and the model's state after the last event that matters: (U, A, S)."""
    automaton, people = secret.automaton, lengths.size
    window = secret.secret.length
    window = index.shape[1] if window is None else window
    law = np.zeros((people, automaton.size, model.size))
    law[:, automaton.start] = model.initial
    for t in range(max(index.shape[1], int(begins.max()) + window)):
        if t:
            flat = model.advance(law.reshape(-1, model.size))
            law = flat.reshape(law.shape)
        place = t - begins
        reading = (place >= 0) & (place < window) if secret.secret.length is not None else lengths > t
        for clock in np.unique(secret.clock[place[reading] % len(secret.clock)]):
            now = reading & (secret.clock[place % len(secret.clock)] == clock)
            law[now] = _read(law[now], automaton.moves[:, model.newest + model.n * int(clock)])
        if t < index.shape[1]:  # a window may go on after the last release
            there = lengths > t
            law[there] = _told(law[there], table[index[there, t]][:, None, model.newest])
    return law


def _told(law: Floats, columns: Floats) -> Floats:
    """The law after releases; one that the model rules out tells its believer nothing."""
    after = law * columns
    total = after.sum((1, 2), keepdims=True)
    return np.where(total > 0, after / np.where(total > 0, total, 1.0), law)


def _read(law: Floats, moves: Ints) -> Floats:
    """Each automaton state moved on by the symbol that the model's state shows: `moves` is (A, S)."""
    after = np.zeros_like(law)
    for state, targets in enumerate(moves):
        for target in np.unique(targets):
            same = targets == target
            after[:, target, same] += law[:, state, same]
    return after
