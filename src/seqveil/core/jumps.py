"""Many symbols of which nothing was told, passed over in one step.

After k of them the law of the state is π · T^k and the account of a chain with impossible transitions is spread over
what k steps can reach. Both follow from powers of the chain by repeated squaring: T, T², T⁴, … are kept of the chains
in use, and each jump takes at most log₂ k of them. Chains that are too large for that, or whose powers would leave the
floats, are moved step by step, until a step changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.kernel import Floats
from seqveil.core.leakage import Account
from seqveil.core.model import MarkovModel

FEW = 64  # steps that are simply taken
LARGEST = 512  # states of a chain whose powers are kept
CHAINS = 4  # whose powers are kept at a time
LEAST = 1e-280  # what is less in a power is no longer to be trusted


@dataclass(frozen=True, eq=False)
class _Power:
    """T^(2^j) as probabilities, and which states it can lead to which."""

    chances: Floats
    reach: NDArray[np.bool_]

    def squared(self) -> _Power | None:
        """The next power; None where a float cannot hold it."""
        reach = (self.reach.astype(np.float64) @ self.reach.astype(np.float64)) > 0
        chances = self.chances @ self.chances
        chances /= chances.sum(1, keepdims=True)
        return None if (chances[reach] < LEAST).any() else _Power(np.where(reach, chances, 0.0), reach)


_kept: OrderedDict[str, list[_Power]] = OrderedDict()


def _powers(model: MarkovModel, count: int) -> list[_Power] | None:
    """T, T², T⁴, … as far as this many steps need; None where they cannot be had."""
    if model.size > LARGEST:
        return None
    powers = _kept.setdefault(model.fingerprint, [])
    _kept.move_to_end(model.fingerprint)
    while len(_kept) > CHAINS:
        _kept.popitem(last=False)
    if not powers:
        chances = model.advance(np.eye(model.size))
        powers.append(_Power(chances, chances > 0))
    while len(powers) < count.bit_length():
        further = powers[-1].squared()
        if further is None:
            return None
        powers.append(further)
    return [powers[j] for j in range(count.bit_length()) if count >> j & 1]


def pass_over(model: MarkovModel, states: Floats, account: Account, steps: int) -> tuple[Floats, Account]:
    """The law of the state and the account after so many symbols of which nothing was told.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.3, 0.7]])
    >>> law, _ = pass_over(model, np.array([[1.0, 0.0]]), Account.start(model, 1), 10_000)
    >>> law.round(6).tolist()
    [[0.75, 0.25]]
    """
    powers = None if steps <= FEW or filtering.faint(states).any() else _powers(model, steps)
    if powers is None:
        return _step_by_step(model, states, account, steps)
    law = states
    for power in powers:
        # row by row: a product of all at once may depend, to the last bit, on who else is there
        law = np.stack([row @ power.chances for row in law]) if len(law) else law
        law = law / law.sum(-1, keepdims=True)
    if filtering.faint(law).any():
        return _step_by_step(model, states, account, steps)
    return law, _spread(account, powers)


def _spread(account: Account, powers: list[_Power]) -> Account:
    most, least = account.ahead_most, account.ahead_least
    if most.shape[1] == 1:
        return account
    for power in powers:
        most = np.stack([np.where(power.reach, row[:, None], -np.inf).max(0) for row in most])
        least = np.stack([np.where(power.reach, row[:, None], np.inf).min(0) for row in least])
    return Account(account.most, account.least, most, least)


def _step_by_step(model: MarkovModel, states: Floats, account: Account, steps: int) -> tuple[Floats, Account]:
    for _ in range(steps):
        after = filtering.predict(model, states), account.skip(model)
        same = (after[0] == states).all() and (after[1].ahead_most == account.ahead_most).all()
        if same and (after[1].ahead_least == account.ahead_least).all():
            break
        states, account = after
    return states, account
