"""What an observer believes, from the model and the releases alone: one step forward and back, and whole streams.

`move` is the whole step of the filter, `condition` and `predict` its two halves, `pull` one step of the way back.

A distribution of states is an array of probabilities, but where one is below FAINT its logarithm stands in its place, a
number below zero: on a chain that does not mix, a sequence that one stretch of releases all but rules out may come back
by another, hundreds of nats later, and no float would remember it. Zero is what the model itself rules out.

For many users at once the step has a second form, compiled, in which `SIDE` of them share one pass over the chain. Both
take every sum in the same order and give the same numbers to the last bit (tests compare them); over 5,135 states the
second takes a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core.bulk import NARROW, Layout, compiled, form, in_parts, ready
from seqveil.core.kernel import Floats, Ints, grouped_sum

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel

TINY = 1e-300
FAINT = 1e-140  # what is less is kept as a logarithm: far enough from 1e-308 that no step between can lose it
GONE = 1e-280  # what is less is no longer to be trusted where only floats carry it on, as through a batch
CHUNK = 1 << 22  # numbers gathered at once
SIDE = 8  # users who go side by side: `_products` names each of them
CLEAR = 1e-120  # what is more hears nothing of the faint ones


def advance(model: MarkovModel, weights: ArrayLike) -> Floats:
    """weights · P for weights over states, (S,) or (B, S).

    *Guarantee*: every sum is taken in the order of the sparse structure, never by a blocked dense product: a row's
    result does not depend, to the last bit, on what other rows it was computed with.
    """
    rows = np.asarray(weights, np.float64)
    moved = model.inflow @ np.ascontiguousarray(rows.reshape(-1, model.size).T)
    out, again = np.ascontiguousarray(moved[: model.size].T), moved[model.size :].T
    out += again[:, model.answers] * model.anew
    return out.reshape(rows.shape)


def start(model: MarkovModel, users: int) -> Floats:
    """The distribution of the first state, one row a user."""
    return np.tile(_with_faint(model.initial, as_logs(model.initial)), (users, 1))


def clear(states: Floats) -> Floats:
    """The distribution as probabilities alone, what is too faint for a float as 0."""
    return np.where(states < 0, np.exp(np.minimum(states, 0.0)), states) if states.min(initial=0.0) < 0 else states


def faint(states: Floats) -> NDArray[np.bool_]:
    """Which rows have, or are about to lose, a state too faint for a float."""
    if states.min(initial=1.0) >= FAINT:  # the usual case, and the quickest to see
        return np.zeros(len(states), bool)
    small = (states < FAINT) & (states != 0)
    return small.any(-1) if small.any() else np.zeros(len(states), bool)  # by rows is many times slower


def move(model: MarkovModel, states: Floats, column: Floats | Ints) -> tuple[Floats, Floats]:
    """The filter's whole step: distribution of the next state after a release, and the marginal (B,) of it."""
    plain = model.full_support or not (model.barely or states.min(initial=0.0) < 0)
    quick = move_compiled(model, states, column) if plain else None
    if quick is not None and (model.full_support or not faint(quick[0]).any()):
        return quick
    posterior, marginal = condition(model, states, column)
    return _onward(model, states, posterior, column, marginal), marginal


def predict(model: MarkovModel, posterior: Floats) -> Floats:
    """Distribution of the next state: posterior · transitions, one row a user."""
    ones = np.broadcast_to(1.0, (len(posterior), model.n))
    return _onward(model, posterior, clear(posterior), ones, ones[:, 0])


def _onward(model: MarkovModel, states: Floats, posterior: Floats, column: Floats | Ints, marginal: Floats) -> Floats:
    """One step on from `posterior`, and from the faint ones of the `states` that it was conditioned from."""
    ahead = advance(model, posterior)
    ahead /= total(ahead)[:, None]
    return ahead if model.full_support else _mended(model, ahead, states, column, marginal)


def _mended(
    model: MarkovModel, ahead: Floats, states: Floats, column: Floats | Ints, marginal: Floats | float
) -> Floats:
    """`ahead`, one step on from `states` by `column` / `marginal`, with what is faint led on by its logarithm."""
    rows = np.flatnonzero((model.barely | faint(states) | faint(ahead)) & (marginal > 0))
    if rows.size:
        weights = np.broadcast_to(column, (len(states), model.n))[rows]
        with np.errstate(divide="ignore"):
            weights = np.log(weights / np.broadcast_to(marginal, len(states))[rows, None])
        logs = as_logs(states[rows]) + weights[:, model.newest]
        ahead[rows] = _with_faint(ahead[rows], _advance_logs(model, logs))
    return ahead


def _with_faint(ahead: Floats, logs: Floats) -> Floats:
    """Each state by its probability, or by its logarithm where that is faint."""
    near = np.where(logs < np.log(FAINT), np.where(np.isneginf(logs), 0.0, logs), np.exp(np.minimum(logs, 0.0)))
    return np.where(ahead >= CLEAR, ahead, near)


def _advance_logs(model: MarkovModel, logs: Floats) -> Floats:
    """`advance` in the log domain: (B, S) → (B, S)."""
    inflow = model.inflow
    reached, begins = model.entered
    counts = np.diff(begins, append=inflow.nnz)
    out = np.full((len(logs), inflow.shape[0]), -np.inf)
    step = max(1, CHUNK // inflow.nnz)
    with np.errstate(divide="ignore"):
        chances = np.log(inflow.data)
        for low in range(0, len(logs), step):
            terms = logs[low : low + step, inflow.indices] + chances
            most = np.maximum.reduceat(terms, begins, axis=1)
            most[np.isneginf(most)] = 0.0  # nothing comes here
            sums = np.add.reduceat(np.exp(terms - np.repeat(most, counts, axis=1)), begins, axis=1)
            out[low : low + step, reached] = most + np.log(sums)
        return np.logaddexp(out[:, : model.size], out[:, model.size :][:, model.answers] + np.log(model.anew))


def condition(model: MarkovModel, states: Floats, column: Floats | Ints) -> tuple[Floats, Floats]:
    """The state after a release, post(s) ∝ states(s) · Q(y | newest symbol of s), and the marginal (B,) of y.

    `column` (B, n) may be Q(y|·), its integer weights or the lifts: only proportions matter. A release that the belief
    rules out (only an unsound mechanism can make one) starts the belief anew from the states that could have made it.
    """
    weights = column if model.size == model.n else column[:, model.newest]
    post = clear(states) * weights
    marginal = sums = total(post)
    if not marginal.all():
        post = np.where(marginal[:, None] > 0, post, weights.astype(np.float64))
        sums = total(post)
    post /= sums[:, None]
    return post, marginal


def total(distributions: Floats) -> Floats:
    """Sums of rows, strictly from left to right, as compiled code takes them."""
    return np.cumsum(distributions, axis=-1)[..., -1]


def symbols(model: MarkovModel, states: Floats) -> Floats:
    """Distribution of the newest symbol from the distribution of the state: (B, S) → (B, n)."""
    distribution = states if model.full_support else clear(states)
    if model.size == model.n:
        return distribution
    return grouped_sum(np.broadcast_to(model.newest, distribution.shape), distribution, model.n)


def possible(model: MarkovModel, states: Floats) -> NDArray[np.bool_]:
    """Which symbols the model allows next, however faint: (B, n)."""
    return symbols(model, (states != 0).astype(np.float64)) > 0


def lost(model: MarkovModel, states: Floats, steps: int, ahead: Floats) -> NDArray[np.bool_]:
    """Which rows, led from `states` to `ahead` by a batch, have a state that the model allows and no float can hold."""
    if model.full_support or (ahead > 0).all():
        return np.zeros(len(states), bool)
    allowed = states != 0
    for _ in range(steps):
        allowed = advance(model, allowed) > 0
    return (allowed & ((ahead == 0) | ((ahead < 0) & (ahead < np.log(GONE))))).any(1)


def pull(model: MarkovModel, values: Floats) -> Floats:
    """Σ_s' P(s'|s) values(s') for every state s: the way back that `predict` is the way forward of. (B, S) → (B, S)."""
    weighed, answers = values[:, model.base_state] * model.base, range(model.restart_rows)
    anew = np.stack([total(weighed[:, model.base_answer == answer]) for answer in answers], axis=1)
    onward: Floats = (model.chain @ np.ascontiguousarray(values.T)).T
    return onward + model.backoff * anew[:, model.answers]


def move_compiled(model: MarkovModel, states: Floats, columns: Ints | Floats) -> tuple[Floats, Floats] | None:
    """Next states and marginals (B,) after releases, from linear probabilities; None where numpy has to do it."""
    users = len(states)
    if not ready(users) or not users or (model.size > NARROW and 2 * users <= SIDE):
        return None
    code, distribution = form(move_side_by_side), np.ascontiguousarray(states)
    ahead, marginal = np.empty(states.shape), np.empty(users)
    in_parts(
        users,
        lambda part: code(distribution[part], columns[part], *model.inward, ahead[part], marginal[part]),
        model.size,
    )
    return (ahead, marginal) if marginal.all() else None


@compiled
def move_side_by_side(
    states: Any, columns: Any, newest: Any, pointers: Any, sources: Any, chances: Any, base: Any, answers: Any,
    ahead: Any, marginal: Any,
) -> None:  # fmt: skip
    """`move` for chains that come by targets (`MarkovModel.inward`); fills in next states and marginals.

    A marginal of 0 says that a belief ruled its release out.
    """
    users, size = states.shape
    distributions, led, sums = np.empty((size, SIDE)), np.empty((len(pointers) - 1, SIDE)), np.empty((1, SIDE))
    everything, order, ones = np.array([0, size], np.uint32), np.arange(size).astype(np.uint32), np.ones(size)
    for begin in range(0, users, SIDE):
        for u in range(SIDE):  # lanes that nobody is in repeat the last user
            distribution, column = states[min(begin + u, users - 1)], columns[min(begin + u, users - 1)]
            for s in range(size):
                distributions[s, u] = distribution[s] * float(column[newest[s]])
        _products(distributions, everything, order, ones, sums)
        for u in range(min(SIDE, users - begin)):
            marginal[begin + u] = sums[0, u]
        for s in range(size):
            for u in range(SIDE):
                distributions[s, u] /= sums[0, u]
        _products(distributions, pointers, sources, chances, led)
        for s in range(size):
            for u in range(SIDE):
                led[s, u] += led[size + answers[s], u] * base[s]
        _products(led, everything, order, ones, sums)
        for s in range(size):
            for u in range(SIDE):
                led[s, u] /= sums[0, u]
        for u in range(min(SIDE, users - begin)):
            row = ahead[begin + u]
            for s in range(size):
                row[s] = led[s, u]


@compiled
def _products(distributions: Any, pointers: Any, sources: Any, chances: Any, out: Any) -> None:
    """Sparse product for `SIDE` distributions side by side: each target's sum over its sources, in their order."""
    for t in range(len(pointers) - 1):
        e0, e1, e2, e3, e4, e5, e6, e7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(pointers[t], pointers[t + 1]):
            chance, distribution = chances[k], distributions[sources[k]]
            e0 += chance * distribution[0]
            e1 += chance * distribution[1]
            e2 += chance * distribution[2]
            e3 += chance * distribution[3]
            e4 += chance * distribution[4]
            e5 += chance * distribution[5]
            e6 += chance * distribution[6]
            e7 += chance * distribution[7]
        out[t, 0], out[t, 1], out[t, 2], out[t, 3] = e0, e1, e2, e3
        out[t, 4], out[t, 5], out[t, 6], out[t, 7] = e4, e5, e6, e7


def foresee(model: MarkovModel, codes: Ints, lengths: Ints) -> Iterator[tuple[Floats, Ints]]:
    """For each step, distributions (B, n) of the next symbols from the true ones before them, and these symbols (B,).

    `codes` has true streams side by side (U, T), longest first (`Layout.blocks`), and `lengths` (U,) their events.
    """
    states, symbol = start(model, len(codes)), np.arange(model.n)
    for t in range(codes.shape[1]):
        now = int((lengths > t).sum())
        states, truth = states[:now], codes[:now, t]
        yield symbols(model, states), truth
        if t + 1 < codes.shape[1]:
            states = move(model, states, np.equal.outer(truth, symbol).astype(np.float64))[0]


def log_likelihoods(model: MarkovModel, users: Ints, codes: Ints) -> Floats:
    """Log-likelihood of each stream of a log, (U,) in the order of the users' numbers; -inf where it cannot occur."""
    _, rows = np.unique(users, return_inverse=True)
    out = np.zeros(int(rows.max(initial=-1)) + 1)
    for places, lengths in Layout.of(rows).blocks(most=max(1, CHUNK // model.size)):
        who = rows[places[:, 0]]
        with np.errstate(divide="ignore"):
            for distributions, truth in foresee(model, codes[places], lengths):
                out[who[: truth.size]] += np.log(distributions[np.arange(truth.size), truth])
    return out


def unseen(model: MarkovModel, length: int) -> Floats:
    """Distributions (T, n) of a stream's symbols from the chain alone."""
    found, states = np.empty((length, model.n)), start(model, 1)
    for t in range(length):
        found[t], states = symbols(model, states)[0], predict(model, states)
    return found


def as_logs(distribution: Floats) -> Floats:
    """The distribution as logarithms alone, -inf for what the model rules out."""
    with np.errstate(divide="ignore"):
        return np.where(distribution < 0, distribution, np.log(np.abs(distribution)))


def mixed(model: MarkovModel, first: Floats, second: Floats, share: Floats) -> Floats:
    """share · first + (1-share) · second for distributions of states (B, S) and shares (B, 1)."""
    sums = share * clear(first) + (1.0 - share) * clear(second)
    if model.full_support or sums.min(initial=1.0) >= FAINT:
        return sums
    with np.errstate(divide="ignore"):
        return _with_faint(sums, np.logaddexp(np.log(share) + as_logs(first), np.log1p(-share) + as_logs(second)))


def carry(model: MarkovModel, distributions: Floats, column: Floats) -> Floats:
    """Each row (R, S) times what its symbols give the release, one step of the chain on; nothing is divided.

    `column` is one for all rows (n,), or one for each (R, n).
    """
    moved = advance(model, clear(distributions) * column[..., model.newest])
    return _mended(model, moved, distributions, column, 1.0)


def gathered(places: Ints, distribution: Floats, size: int) -> Floats:
    """Sums of a distribution by place: (size,).

    >>> gathered(np.array([0, 0, 1]), np.array([-800.0, -800.0, 0.5]), 2).round(4).tolist()
    [-799.3069, 0.5]
    """
    sums = np.bincount(places, clear(distribution), minlength=size).astype(np.float64, copy=False)
    if distribution.min(initial=0.0) >= 0.0:
        return sums
    exact = np.full(size, -np.inf)
    np.logaddexp.at(exact, places, as_logs(distribution))
    return _with_faint(sums, exact)


def read(distribution: Floats, target: Ints) -> Floats:
    """A distribution of automaton and state, (A, S) or (A, B, S), after the symbol of the state moved the automaton.

    `target` (A, S) is the state of the automaton that each goes to.

    >>> read(np.array([[0.5, 0.25], [0.25, 0.0]]), np.array([[0, 1], [1, 1]])).tolist()
    [[0.5, 0.0], [0.25, 0.25]]
    """
    inner = np.arange(distribution[0].size).reshape(-1, distribution.shape[-1])
    places = target[:, None, :] * inner.size + inner
    return gathered(places.ravel(), distribution.ravel(), distribution.size).reshape(distribution.shape)


def shared(distribution: Floats, total: Floats | float) -> Floats:
    """The distribution over a total; what is faint no more by that stands there as a probability again.

    >>> shared(np.array([np.log(1e-150), 0.0, -800.0]), 1e-150).round(4).tolist()
    [1.0, 0.0, -454.6122]
    """
    if distribution.min(initial=0.0) >= 0.0:
        return distribution / total
    logs = distribution - np.log(total)
    near = np.where(logs < np.log(FAINT), logs, np.exp(np.minimum(logs, 0.0)))
    return np.where(distribution < 0, near, distribution / total)
