"""What a realised stream has leaked, exactly: max-plus and min-plus filtering of the lifts.

For a release y_k with lifts ρ_k, and C the model's transitions,
V_k(x) = log ρ_k(x) + max over x' with C(x|x') > 0 of V_{k-1}(x')
is the largest log Pr(x_1..x_k | y) / Pr(x_1..x_k) over sequences that end in x (the same with min for the smallest), so
max_x V_k(x) and min_x V_k(x) are the two sides of the sequence leakage (SIL) of what was released. Each step costs
O(transitions), whatever the length of the stream.

`pass_over` goes over k symbols of which nothing was disclosed at once, by powers T, T², T⁴, … of the chain. Chains that
are too large for that, or whose powers would leave the floats, are moved step by step, until a step changes nothing.

Reference: docs/theory.md, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.bulk import ByUser
from seqveil.core.kernel import UNIT, Floats, Ints, outward, slack
from seqveil.core.model import MarkovModel

FEW = 64  # steps that are simply taken
LARGEST = 512  # states of a chain whose powers are kept
POWERS = 64  # of chains that are kept
SIDES = np.array([[-1.0], [1.0]])  # down for the least, up for the largest


def log_lifts(column: Ints, marginal: Floats, terms: int, least: Ints | None = None) -> tuple[Floats, Floats]:
    """Logs of the lifts of a released output, rounded down and up: two (B, n) arrays.

    `column` (B, n) holds the weights of Q(y|x), `marginal` (B,) their mean under the belief, a sum of `terms` products.
    Where they depend on what came before x too, `column` holds the largest of each x and `least` the least. A release
    that is equally likely whatever the truth is has lift 1 exactly; weights alike over x alone do not make it so.
    """
    least = column if least is None else least
    silent = ((column == column[:, :1]) & (least == column[:, :1])).all(1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        most, logs = (
            np.nan_to_num(np.log(side / marginal[:, None]), nan=0.0, posinf=np.inf, neginf=-np.inf)
            for side in (column, least)
        )
    down, up = outward(logs, slack(terms), -1), outward(most, slack(terms), +1)
    return np.where(silent, 0.0, down), np.where(silent, 0.0, up)


def weight_range(column: Ints, possible: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Least and largest weight over the possible symbols: two (B,) arrays."""
    return np.where(possible, column, np.iinfo(np.int64).max).min(1), np.where(possible, column, 0).max(1)


def between(low: Ints, high: Ints, marginal: Floats, terms: int) -> Floats:
    """Logs of the least and largest lift from the least and largest weight, rounded as by `outward`: (2, B)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.array((low, high)) / marginal)
        moved = logs + SIDES * (slack(terms) + 8 * UNIT * np.abs(logs))
    return np.where(low == high, 0.0, np.where(np.isinf(logs), logs, moved))


def cost(low: Ints, high: Ints, marginal: Floats, terms: int) -> Floats:
    """What a release costs: the most that it moved the belief in a symbol, |log lift|, either way, rounded up: (B,).

    `low` and `high` are the least and largest weight over the symbols that the model allows (`weight_range` of
    `filtering.possible`), `marginal` their mean under the belief, a sum of `terms` products. A release that the belief
    ruled out (an unsound mechanism's) reveals everything.

    >>> cost(np.array([1, 2]), np.array([3, 2]), np.array([2.0, 2.0]), 2).round(3).tolist()
    [0.693, 0.0]
    """
    least, most = between(low, high, marginal, terms)
    return np.where(marginal > 0, larger_side(most, least), np.inf)


def larger_side(most: Floats | float, least: Floats | float) -> Floats:
    """The larger of the two sides, log largest and minus log least lift: what a batch cost, or a stream leaked."""
    return np.maximum(most, np.negative(least)) + 0.0  # no -0


@dataclass(frozen=True, eq=False)
class Leakages(ByUser):
    """Both sides of the exact leakage of what was released so far, one row a user.

    `ahead_most` and `ahead_least` hold, for every state, the extremes over all sequences that can come to it next; for
    a chain in which anything can follow anything they are one number a user. `most` and `least` are the account itself.
    """

    most: Floats  # (B,) max over sequences of log posterior/prior
    least: Floats  # (B,) min
    ahead_most: Floats  # (B, S) or (B, 1)
    ahead_least: Floats

    @classmethod
    def start(cls, chain: MarkovModel, users: int, in_batches: bool = False) -> Leakages:
        """The account of users of whom nothing was released yet.

        A batch charges all states alike (`charge_batch`), so that one number a side is enough for any chain.
        """
        most, least = np.zeros(users), np.zeros(users)
        if in_batches or chain.full_support:
            return cls(most, least, np.zeros((users, 1)), np.zeros((users, 1)))
        possible = np.broadcast_to(chain.initial > 0, (users, chain.initial.size))
        return cls(most, least, np.where(possible, 0.0, -np.inf), np.where(possible, 0.0, np.inf))

    def charge(
        self,
        chain: MarkovModel,
        column: Ints,
        marginal: Floats,
        low: Ints,
        high: Ints,
        least_column: Ints | None = None,
    ) -> Leakages:
        """The account after a release with weights `column` (B, n) and their mean `marginal` (B,) under the belief.

        `low` and `high` (B,) are the extremes of the weights over the symbols that the model allows (`weight_range`).
        Where a symbol's weight depends on what came before it, and is `least_column` at least, this is a bound.
        """
        terms = chain.newest.size
        if chain.full_support:
            costs = between(low, high, marginal, terms)[:, :, None]
            least, most = _add(np.array((self.ahead_least, self.ahead_most)), costs, SIDES[:, :, None])
            ahead_most, ahead_least = most, least
        else:
            down, up = log_lifts(column, marginal, terms, least_column)
            most = _extend(self.ahead_most, up[:, chain.newest], -np.inf)
            least = _extend(self.ahead_least, down[:, chain.newest], np.inf)
            ahead_most, ahead_least = chain.spread(most, True), chain.spread(least, False)
        # a release the belief ruled out (an unsound mechanism's) reveals everything, for good
        disclosed_all = np.isinf(self.most) | (marginal == 0)
        after = Leakages(most.max(1), least.min(1), ahead_most, ahead_least)
        if not disclosed_all.any():
            return after
        everything = np.full(len(marginal), np.inf)
        return Leakages(everything, -everything, self.ahead_most, self.ahead_least).where(disclosed_all, after)

    def skip(self, chain: MarkovModel) -> Leakages:
        """The account after a symbol of which nothing was disclosed: sequences go on, and nothing is charged."""
        if self.ahead_most.shape[1] == 1:
            return self
        ahead = chain.spread(self.ahead_most, True), chain.spread(self.ahead_least, False)
        return Leakages(self.most, self.least, *ahead)

    def charge_batch(self, most: Floats, least: Floats) -> Leakages:
        """The account after a batch whose lifts lie between exp(least) and exp(most), (B,) each.

        From above: whichever sequence came before is taken to go on with the batch that was moved furthest. Where the
        belief is no longer known (`blur`), a batch is charged what it reveals under any belief: log largest over least.
        """
        up, down = self.ahead_most.max(1), self.ahead_least.min(1)
        if self.blurred.any():
            anyhow = _add(most, -least, np.inf)
            up, down = np.where(self.blurred, self.most, up), np.where(self.blurred, self.least, down)
            most, least = np.where(self.blurred, anyhow, most), np.where(self.blurred, -anyhow, least)
        up, down = _add(up, most, np.inf), _add(down, least, -np.inf)
        wide = (len(up), self.ahead_most.shape[1])
        after = Leakages(up, down, *(np.broadcast_to(side[:, None], wide).copy() for side in (up, down)))
        return after.blur(self.blurred)

    @property
    def blurred(self) -> NDArray[np.bool_]:
        """Whose sequences can no longer be weighed one against another, for good."""
        return np.isposinf(self.ahead_most[:, 0])

    def blur(self, users: NDArray[np.bool_]) -> Leakages:
        """The same account of users whose belief was too faint for a float somewhere: from now on any belief counts."""
        if not users.any():
            return self
        ahead = np.where(users[:, None], np.inf, self.ahead_most), np.where(users[:, None], -np.inf, self.ahead_least)
        return Leakages(self.most, self.least, *ahead)

    @property
    def worst(self) -> Floats:
        """SIL of what was released: the larger side, one number a user."""
        return larger_side(self.most, self.least)


def _extend(ahead: Floats, logs: Floats, impossible: float) -> Floats:
    """ahead + logs where a sequence can end there."""
    return np.where(ahead == impossible, impossible, _add(ahead, logs, -impossible))


def _add(total: Floats, cost: Floats, towards: Floats | float) -> Floats:
    """total + cost, rounded outward; exact where the cost is 0."""
    with np.errstate(invalid="ignore"):
        sums = total + cost
        moved = sums + np.copysign(2 * UNIT, towards) * np.abs(sums)
    return np.where((cost == 0) | np.isinf(sums), sums, moved)


@lru_cache(maxsize=POWERS)
def _power(model: MarkovModel, j: int) -> Floats | None:
    """T^(2^j) as probabilities; None where a product of two of them could be too small for a float."""
    half = _power(model, j - 1) if j else None
    if j and half is None:
        return None
    chances = model.advance(np.eye(model.size)) if half is None else half @ half
    chances /= chances.sum(1, keepdims=True)
    return None if filtering.faint(chances).any() else chances


def pass_over(model: MarkovModel, states: Floats, account: Leakages, steps: int) -> tuple[Floats, Leakages]:
    """The distribution of the state and the account after so many symbols of which nothing was disclosed."""
    if steps <= FEW or model.size > LARGEST or filtering.faint(states).any():
        return _step_by_step(model, states, account, steps)
    distribution, after = states, account
    for j in range(steps.bit_length()):
        power = _power(model, j)
        if power is None:
            return _step_by_step(model, states, account, steps)
        if steps >> j & 1:
            # row by row: a product of all at once may depend, to the last bit, on who else is there
            distribution = np.array([row @ power for row in distribution]).reshape(states.shape)
            distribution /= distribution.sum(-1, keepdims=True)
            after = _reached(after, power > 0)
    if filtering.faint(distribution).any():
        return _step_by_step(model, states, account, steps)
    return distribution, after


def _reached(account: Leakages, reach: NDArray[np.bool_]) -> Leakages:
    """The account after steps that can lead from one state to another as `reach` says."""
    if account.ahead_most.shape[1] == 1:
        return account
    most = np.stack([np.where(reach, row[:, None], -np.inf).max(0) for row in account.ahead_most])
    least = np.stack([np.where(reach, row[:, None], np.inf).min(0) for row in account.ahead_least])
    return Leakages(account.most, account.least, most, least)


def _step_by_step(model: MarkovModel, states: Floats, account: Leakages, steps: int) -> tuple[Floats, Leakages]:
    for _ in range(steps):
        after = filtering.predict(model, states), account.skip(model)
        same = (after[0] == states).all() and (after[1].ahead_most == account.ahead_most).all()
        if same and (after[1].ahead_least == account.ahead_least).all():
            break
        states, account = after
    return states, account
