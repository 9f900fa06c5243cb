"""A stream released under one setting, weighed under another model: what it leaked if that chain is the truth.

The kernels come from the setting's own public belief, so Q(y_k | x) is known to anyone. Conditioning another chain on
those very columns gives, with β' its belief before the release,

    ρ'_y(x) = Q(y|x) / Σ_z β'(z) Q(y|z),

and the telescoping and the max-plus account (docs/theory.md, sections 1 and 7) hold for it word for word: the columns
depend on past releases only, whoever's belief chose them. Nothing private is used.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.coins import Coins
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, outward, slack
from seqveil.core.leakage import Account, larger_side
from seqveil.core.mechanisms import Sent
from seqveil.core.model import MarkovModel
from seqveil.release import batches, stream
from seqveil.release.state import check_rows, rounds

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Shadowed:
    """Public state of B streams: what the releases imply under the setting, and what under the other model."""

    own: stream.State
    states: Floats  # (B, S') law of the next state of the other chain
    account: Account  # under the other chain

    @classmethod
    def start(cls, setting: stream.Setting, model: MarkovModel, users: int = 1) -> Shadowed:
        check(setting, model)
        return cls(stream.State.start(setting, users), *_fresh(model, users))

    def __len__(self) -> int:
        return len(self.own)


@dataclass(frozen=True, eq=False)
class Weighed:
    """One step as both sides see it: the release itself, and under the other model belief, marginal and cost."""

    released: stream.Released
    beliefs: Floats  # (B, n) of the other model, before the release
    marginal: Floats  # (B,) probability of the release under the other model
    costs: Floats  # (B,) the most it moved the other model's belief in a symbol, |log lift|, rounded up


def check(setting: stream.Setting, model: MarkovModel) -> None:
    """Refuse a model that is not over the setting's symbols. Order and support may differ."""
    if setting.model.n != model.n:
        raise InputError(
            f"expected a model over the release's {setting.model.n} symbols, got {model.n}; fit it with that alphabet"
        )
    if setting.model.alphabet.fingerprint() != model.alphabet.fingerprint():
        raise InputError("the other model numbers its symbols differently; fit it with the alphabet of the release")


def observe(
    setting: stream.Setting, model: MarkovModel, state: Shadowed, codes: Ints, times: Floats | None = None
) -> tuple[Weighed, Shadowed]:
    """Take in one release for each user, made under `setting`, and charge it under `model` too.

    *Guarantee*: where `model` is the truth, the result's `account` is the exact leakage of the releases so far, both
    sides, rounded outward. It may pass the setting's budget, which is kept under the setting's own model.

    >>> mine = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> truth = MarkovModel([0.9, 0.1], [[0.9, 0.1], [0.9, 0.1]])
    >>> setting = stream.Setting.of(mine, epsilon=1.0)
    >>> seen, after = observe(setting, truth, Shadowed.start(setting, truth), np.array([1]))
    >>> seen.costs.round(3).tolist(), after.account.worst.round(3).tolist(), after.own.account.worst.round(3).tolist()
    ([1.194], [1.194], [1.0])
    """
    return _move(model, state, lambda own: stream.observe(setting, own, codes, times))


def step(
    setting: stream.Setting, model: MarkovModel, state: Shadowed, codes: Ints, coins: Coins, times: Floats | None = None
) -> tuple[Weighed, Shadowed]:
    """Release one symbol for each user under `setting`, and charge it under `model` too."""
    if setting.budget.limited and setting.budget.when_spent == "error":
        raise InputError('a release that is weighed under two models takes the policy "hold" or "stop"')
    return _move(model, state, lambda own: stream.step(setting, own, codes, coins, times))


def observe_batch(
    setting: stream.Setting,
    model: MarkovModel,
    state: Shadowed,
    path: tuple[int, ...] | None,
    length: int,
    time: float | None = None,
) -> tuple[float, Shadowed]:
    """Take in one user's batch; returns the most it moved the other model's belief in a batch.

    The law of a batch given its path is a(y|o) = c + λ·Π_t φ_t(o_t), which any chain can weigh. Both extremes of a are
    taken over all batches, as under the setting's own model, so totals are from above. Only `tree` and `tree_ldp`
    publish such a path; the tables of `batch_lp`, `tree_refined` and `batch_descent` are refused.
    """
    sent, own = batches.observe(setting, state.own, path, length, time)
    ahead, cost, account = state.states, 0.0, state.account
    if sent is None:
        for _ in range(length):
            ahead = filtering.predict(model, ahead)
    else:
        posterior, most, least = _weigh_batch(model, filtering.clear(ahead)[0], sent, length)
        ahead, cost = filtering.predict(model, posterior[None]), float(larger_side(most, least))
        account = account.charge_batch(np.array([most]), np.array([least]))
        account = account.blur(filtering.lost(model, state.states, length, ahead))
    return cost, Shadowed(own, ahead, account)


class Shadow:
    """Streams of many users, one row each or by name, weighed under another model.

    >>> mine = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> truth = MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]])
    >>> shadow = Shadow(stream.Setting.of(mine, epsilon=1.0), truth)
    >>> shadow.take(["ann", "bob", "ann"], np.array([0, 1, 0])).shape, shadow.users
    ((3,), ['ann', 'bob'])
    >>> shadow.state.account.worst.shape
    (2,)
    """

    def __init__(self, setting: stream.Setting, model: MarkovModel, users: int = 0) -> None:
        self.setting, self.model = setting, model
        self.state = Shadowed.start(setting, model, users)
        self._index: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.state)

    @property
    def users(self) -> list[Hashable]:
        """The names that `take` was given, in the order of their rows."""
        return list(self._index)

    def grow(self, users: int) -> None:
        """Make room for rows 0..users-1."""
        if users > len(self):
            self.state = _join(self.state, Shadowed.start(self.setting, self.model, users - len(self)))

    def observe(self, rows: Rows, codes: Ints, times: Floats | None = None) -> Weighed:
        """Take in one release for each of the rows named; no row twice."""
        return self._act(rows, lambda part: observe(self.setting, self.model, part, codes, times))

    def release(self, rows: Rows, codes: Ints, coins: Coins, times: Floats | None = None) -> Weighed:
        """Release one symbol for each of the rows named; no row twice."""
        return self._act(rows, lambda part: step(self.setting, self.model, part, codes, coins, times))

    def take(self, users: Sequence[Hashable], codes: Ints, times: Floats | None = None) -> Floats:
        """Take in releases of named users in their order (NOTHING where there was none); the cost of each."""
        ids = np.array([self._index.setdefault(user, len(self._index)) for user in users], np.intp)
        self.grow(len(self._index))
        costs = np.empty(ids.size)
        for turn in rounds(ids):
            stamps = None if times is None else times[turn]
            costs[turn] = self.observe(ids[turn], codes[turn], stamps).costs
        return costs

    def _act(self, rows: Rows, act: Callable[[Shadowed], tuple[Weighed, Shadowed]]) -> Weighed:
        check_rows(rows, len(self))
        weighed, after = act(_take(self.state, rows))
        _put(self.state, rows, after)
        return weighed


def _fresh(model: MarkovModel, users: int) -> tuple[Floats, Account]:
    return filtering.start(model, users), Account.start(model, users)


def _move(
    model: MarkovModel, state: Shadowed, act: Callable[[stream.State], tuple[stream.Released, stream.State]]
) -> tuple[Weighed, Shadowed]:
    released, own = act(state.own)
    beliefs = filtering.symbols(model, state.states)
    ahead, account, weights = stream.charge(model, state.states, state.account, released.columns)
    return Weighed(released, beliefs, weights.marginal / DENOMINATOR, weights.costs), Shadowed(own, ahead, account)


def _weigh_batch(model: MarkovModel, states: Floats, sent: Sent, length: int) -> tuple[Floats, float, float]:
    """The other chain's law of the last state given the batch, and the logs of its largest and least lift."""
    from seqveil.core.mechanisms.boxes import forward
    from seqveil.core.mechanisms.trees import TreeRelease

    if not isinstance(sent, TreeRelease):
        raise InputError(
            "a batch released by a table over whole batches cannot be weighed under another model; only tree and "
            "tree_ldp publish a path that can"
        )
    whole, inside = (forward(model, states, length, box)[-1] for box in ({}, sent.box))
    joint = sent.rest * sent.fresh * whole + sent.told * inside
    marginal = float(joint.sum())
    if not sent.path:
        return joint / marginal, 0.0, 0.0
    extent = [np.prod([pick(weights) for weights in sent.box.values()]) for pick in (np.max, np.min)]
    high, low = (np.log((sent.rest * sent.fresh + sent.told * value) / marginal) for value in extent)
    terms = slack(model.size * length)
    return joint / marginal, float(outward(high, terms, +1)), float(outward(low, terms, -1))


def _take(state: Shadowed, rows: Rows) -> Shadowed:
    return Shadowed(state.own.take(rows), state.states[rows], state.account.take(rows))


def _put(state: Shadowed, rows: Rows, part: Shadowed) -> None:
    state.own.put(rows, part.own)
    state.states[rows] = part.states
    for f in fields(Account):
        getattr(state.account, f.name)[rows] = getattr(part.account, f.name)


def _join(first: Shadowed, second: Shadowed) -> Shadowed:
    both = [(getattr(first.account, f.name), getattr(second.account, f.name)) for f in fields(Account)]
    account = Account(*(np.concatenate(pair) for pair in both))
    return Shadowed(first.own.join(second.own), np.concatenate([first.states, second.states]), account)
