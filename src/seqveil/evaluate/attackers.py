"""Who attacks: classifiers that count what was released of each person, and believers in a model of their own.

A Bayes attacker knows how each release was made, so that release y tells Q(y|x) of every symbol x. For the state a of
the secret's automaton and the state s of the model,

    J(a', s') ∝ Q(y | x(s')) · Σ_{a, s: a moves to a' on x(s')} J(a, s) · P(s'|s),

and after all releases Pr(v | y) is what lies on the automaton states labelled v. It is exact under the attacker's
model, whatever model the release was made with. The better that model describes people, the better the guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from seqveil.core.errors import InputError, needs_extra
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.declared import Compiled
from seqveil.receiver.learn import Evidence

PAIRS = 40  # symbols up to which transitions are looked at
SYMBOLS = 400  # the most frequent ones, which the attacker looks at
NUMBERS = 1 << 22  # of the laws held at once

Attackers = dict[str, Callable[[], Any]]


def classifiers(seed: int) -> Attackers:
    """The attackers that learn from people, made new for each use."""
    with needs_extra("the attack", "attack"):
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler

    def linear() -> Any:
        return make_pipeline(MaxAbsScaler(), LogisticRegression(C=0.3, max_iter=500))

    def boosted() -> Any:
        trees = HistGradientBoostingClassifier(max_iter=80, learning_rate=0.08, max_leaf_nodes=15, random_state=seed)
        return make_pipeline(FunctionTransformer(_dense, accept_sparse=True), trees)

    return {"logistic regression": linear, "gradient boosting": boosted}


def _dense(found: Any) -> Floats:
    return found.toarray()


def features(releases: Sequence[Ints], n: int, times: Sequence[Floats] | None = None, at: Ints | None = None) -> Any:
    """What an attacker counts in the releases of each person, as a sparse table with a row a person.

    Counts of every symbol and whether it occurs, the first three and last three releases, transitions (where symbols
    are few), the number of releases, and the hours of day and pauses where times are known. With `at`, the releases
    around that event as well. Only the most frequent symbols are looked at; the others count as one.
    """
    from scipy import sparse

    lengths = np.array([len(codes) for codes in releases], np.int64)
    people = len(releases)
    if not people or not lengths.all():
        raise InputError("an attack needs at least one release of every person; leave out people without any")
    codes = np.concatenate(releases)
    if (codes < 0).any():  # a release that says nothing counts as a symbol of its own
        codes, n = np.where(codes < 0, n, codes), n + 1
    symbols, m = _pooled(codes, n)
    begins = np.cumsum(lengths) - lengths
    who = np.repeat(np.arange(people), lengths)
    counts = _counted(who, symbols, people, m)
    parts = [counts, counts.sign(), sparse.csr_array(np.log1p(lengths)[:, None])]
    offsets = [begins + np.minimum(k, lengths - 1) for k in range(3)]
    offsets += [begins + np.maximum(lengths - 1 - k, 0) for k in range(3)]
    if at is not None:
        offsets += [begins + np.clip(at + k, 0, lengths - 1) for k in (-2, -1, 0, 1, 2)]
    parts += [_counted(np.arange(people), symbols[place], people, m) for place in offsets]
    if m <= PAIRS:
        inside = np.flatnonzero(np.diff(who) == 0)
        parts.append(_counted(who[inside], symbols[inside] * m + symbols[inside + 1], people, m * m))
    if times is not None:
        parts.append(sparse.csr_array(_clock(np.concatenate(times), who, people)))
    return sparse.csr_array(sparse.hstack(parts, format="csr"), dtype=np.float64)


def _pooled(codes: Ints, n: int) -> tuple[Ints, int]:
    """Codes renumbered so that the most frequent keep their own and the others share one."""
    if n <= SYMBOLS:
        return codes, n
    often = np.argsort(-np.bincount(codes, minlength=n), kind="stable")[:SYMBOLS]
    number = np.full(n, SYMBOLS)
    number[often] = np.arange(SYMBOLS)
    return number[codes], SYMBOLS + 1


def _counted(rows: Ints, columns: Ints, height: int, width: int) -> Any:
    from scipy import sparse

    return sparse.coo_array((np.ones(rows.size), (rows, columns)), shape=(height, width)).tocsr()


def _clock(times: Floats, who: Ints, people: int) -> Floats:
    """How many releases fall in each hour of the day, and the mean pause between two."""
    hours = np.zeros((people, 24))
    np.add.at(hours, (who, (times / 3600 % 24).astype(np.int64)), 1.0)
    first = np.full(people, np.inf)
    last = np.full(people, -np.inf)
    np.minimum.at(first, who, times)
    np.maximum.at(last, who, times)
    pause = np.log1p((last - first) / np.maximum(np.bincount(who, minlength=people) - 1, 1))
    return np.column_stack([hours, pause])


def beliefs(
    models: Mapping[str, MarkovModel],
    evidence: Evidence | None,
    secret: Compiled,
    kept: Sequence[int],
    at: Ints | None,
    targets: Sequence[str],
) -> dict[str, dict[str, Floats]]:
    """For each target, how likely each Bayes attacker holds it to be for each person."""
    if not models:
        return {}
    if evidence is None:
        raise InputError("a Bayes attacker needs evidence=, what each release tells of the truth (`Evidence.of`)")
    chosen = np.zeros(int(evidence.users.max(initial=-1)) + 1, bool)
    chosen[list(kept)] = True
    part = evidence.of_users(chosen)
    part = Evidence(part.table, np.unique(part.users, return_inverse=True)[1], part.index)
    values = [1] if secret.automaton.values == 2 else list(range(secret.automaton.values))
    told = {name: posteriors(part, model, secret, at) for name, model in models.items()}
    return {
        target: {f"Bayes with {name}": found[:, value] for name, found in told.items()}
        for target, value in zip(targets, values, strict=True)
    }


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
    >>> posteriors(told, model, ever(1, epsilon=1.0, window="first 3").compile(model)).round(4).tolist()
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
    window = index.shape[1] if secret.length is None else secret.length
    law = np.zeros((people, automaton.size, model.size))
    law[:, automaton.start] = model.initial
    for t in range(max(index.shape[1], int(begins.max()) + window)):
        if t:
            flat = model.advance(law.reshape(-1, model.size))
            law = flat.reshape(law.shape)
        place = t - begins
        reading = (place >= 0) & (place < window) if secret.length is not None else lengths > t
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
