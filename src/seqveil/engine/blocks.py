"""One event of blocks as a pure step: the block is the unit of account.

A block begins with the ε of the policy, or with what is left of the budget where that is less. A window counts it once,
whole, wherever the two overlap. When it is over, or cut, only what it really cost stays charged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from seqveil.core import filtering
from seqveil.core.bulk import took_step
from seqveil.core.errors import DataError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.core.leakage import pass_over
from seqveil.core.mechanisms.base import Asked
from seqveil.core.mechanisms.blocks import BlockRule, Blocks, Disclosed, after, posterior, release
from seqveil.core.randomness import EventRandomness, Randomness
from seqveil.engine.policy import Terms
from seqveil.engine.secrets import NOTHING
from seqveil.engine.stream import Mask, Private, Released, State, allowance, gate, hidden

HELD = 1e-300  # the ε that the record has of an event outside of any block: nothing, yet not the 0 of one inside


@dataclass(frozen=True, eq=False)
class ReleasedInBlocks:
    """What one event made public, one row a user."""

    codes: Ints  # (B,) NOTHING where nothing was released
    epsilons: Floats  # (B,) the ε of a block at its first event, HELD outside of any, else 0: the record shows cuts
    rule: BlockRule
    running: Blocks  # those before the event, those that begin with it among them
    after: Blocks  # and those after it, before any of them ends
    disclosed: Disclosed
    states: Floats  # (B, S) the public belief before the event

    @property
    def places(self) -> Ints:
        """Of each event in its block, from 0; -1 outside of any: (B,)."""
        return np.where(self.running.running, self.running.places, -1)

    @cached_property
    def costs(self) -> Floats:
        """What the block of each event has cost so far, with it; 0 outside of any: (B,)."""
        return self.after.costs(self.rule)

    @property
    def cases(self) -> tuple[Floats, Floats, Mask]:
        """What releases say of each symbol, (B, 2, n), and how likely it is when a block begins, (B, 2), that the block
        is real and that it is fake; and which events begin one. Outside of a block each event stands alone, and says
        nothing in either case.
        """
        running, columns = self.running.running, self.disclosed.columns
        said = np.stack([columns, np.broadcast_to(self.disclosed.drawn[:, None], columns.shape)], axis=1)
        fake = np.where(running, self.rule.numbers(self.running.levels)[:, 0], 0.5)
        return said / DENOMINATOR, np.stack([1.0 - fake, fake], axis=1), ~running | (self.running.places == 0)

    @property
    def posterior(self) -> Floats:
        """What anyone believes of each symbol once it is released: (B, n)."""
        inside, outside = self.running.running[:, None], filtering.symbols(self.rule.model, self.states)
        return np.where(inside, posterior(self.rule, self.running, self.disclosed), outside)


Made = Released | ReleasedInBlocks


def step(
    setting: Terms, state: State, codes: Ints, randomness: Randomness, times: Floats | None = None
) -> tuple[ReleasedInBlocks, State]:
    """Release one symbol for each user; a block that begins draws its bit first.

    *Guarantee*: the lifts of a block's releases together are within its ε, on both sides, after each of them; the
    account says exactly what all releases so far leak, and a budget is never passed. A code UNKNOWN is released like a
    symbol drawn from the public belief given the path. With the randomness of a key nobody has to keep the bit.
    """
    truth = gate(codes, setting.model.n, len(state))
    blocks = _open(setting, state, times)
    bits = _bits(setting, state, blocks, randomness)
    truth, _ = hidden(setting, replace(state, states=blocks.given), truth, randomness)
    asked = Asked(truth, randomness.draw(truth.size))
    made = release(setting.rule, blocks, state.states, asked, bits)
    return _close(setting, replace(state, private=Private(bits)), blocks, made, times)


def observe(
    setting: Terms, state: State, codes: Ints, times: Floats | None = None, epsilons: Floats | None = None
) -> tuple[ReleasedInBlocks, State]:
    """The same step as an observer sees it: the releases are given, nothing private is needed.

    Where `epsilons`, as the record has them, say that a block begins or that none runs, the one before was cut if it
    still ran.
    """
    given = gate(codes, setting.model.n, len(state), (NOTHING,), DataError)
    if epsilons is not None:
        state = cut(setting, state, epsilons > 0)
    blocks = _open(setting, state, times)
    silent = _silent(setting, blocks)
    if ((given == NOTHING) != silent).any():
        raise DataError("a release stands where the budget allows none, or is missing; check epsilon, block and budget")
    guess = release(setting.rule, blocks, state.states, Asked(given=np.where(silent, 0, given)))
    if (guess.impossible & ~silent).any():
        raise DataError("a release cannot have come from these blocks; check that model, epsilon and block are its own")
    return _close(setting, state, blocks, guess, times)


def cut(setting: Terms, state: State, who: Mask | None = None) -> State:
    """The running blocks of some users, or of all, end here, at what they cost so far: their bits are lost.

    Raw data must not decide it.
    """
    blocks: Blocks = state.blocks
    ending = blocks.running if who is None else blocks.running & who
    if not ending.any():
        return state
    window = state.window
    if setting.budget.span is not None:
        costs, stamps = (np.where(ending, blocks.costs(setting.rule), 0.0), np.where(ending, window.latest, -np.inf))
        window = window.push(stamps, costs, setting.budget.span)
    return replace(state, window=window, blocks=blocks.end(ending))


def passed(setting: Terms, state: State, events: int) -> State:
    """The state after events that nobody released: they count in the block that runs, and disclose nothing."""
    blocks: Blocks = state.blocks
    inside = np.where(blocks.running, np.minimum(events, setting.rule.length - blocks.places), 0)
    moved = state.take(np.arange(len(state)))
    for count in np.unique(inside).tolist():  # each user as if alone
        rows = np.flatnonzero(inside == count)
        moved.put(rows, _passed(setting, state.take(rows), count, events - count))
    return moved


def _passed(setting: Terms, state: State, inside: int, beyond: int) -> State:
    users, blocks, account, states = len(state), state.blocks, state.account, state.states
    nothing = Disclosed.nothing(users, setting.model.n)
    for _ in range(inside):
        states, account, blocks = after(setting.rule, blocks, nothing, account)
    window = state.window
    if inside and setting.budget.releases is not None:  # the block reaches to here, and so does what it cost
        window = window.push(np.asarray(state.steps + inside - 1, np.float64), np.zeros(users), setting.budget.releases)
    state = cut(setting, replace(state, blocks=blocks, window=window), blocks.places == setting.rule.length)
    states, account = pass_over(setting.model, states, account, beyond)
    return replace(state, states=states, steps=state.steps + inside + beyond, account=account)


def _open(setting: Terms, state: State, times: Floats | None) -> Blocks:
    """The blocks at an event, those that begin with it among them."""
    took_step(len(state))
    blocks: Blocks = state.blocks
    levels, outside = allowance(setting, state, times)[0], ~blocks.running
    begins = outside & (levels > 0)
    return blocks.begin(setting.rule, begins, levels, state.states, state.account) if begins.any() else blocks


def _silent(setting: Terms, blocks: Blocks) -> Mask:
    """Of which events nothing is released: the budget is gone, so that no block runs, and its policy is to stop."""
    return ~blocks.running & (setting.budget.when_spent == "stop")


def _bits(setting: Terms, state: State, blocks: Blocks, randomness: Randomness) -> Mask:
    """The hidden bit of each running block: derived from the key, or drawn where the block begins."""
    if isinstance(randomness, EventRandomness):
        return setting.rule.bits(blocks.levels, randomness.of_blocks(blocks.numbers))
    assert state.private.bits is not None
    bits, new = state.private.bits.copy(), (blocks.running & ~state.blocks.running).nonzero()[0]
    if new.size:
        bits[new] = setting.rule.bits(blocks.levels[new], randomness.draw(new.size))
    return bits


def _close(
    setting: Terms, state: State, opened: Blocks, made: Disclosed, times: Floats | None
) -> tuple[ReleasedInBlocks, State]:
    """Charge an event, and end the blocks that have had all of theirs."""
    rule, running, codes = setting.rule, opened.running, made.codes
    epsilons = np.where(running & ~state.blocks.running, opened.levels, 0.0)
    states, account, blocks = after(rule, opened, made, state.account)
    if not running.all():  # outside of a block nothing was disclosed
        states = np.where(running[:, None], states, filtering.predict(setting.model, state.states))
        account = account.where(running, state.account.skip(setting.model))
        blocks = replace(blocks, places=np.where(running, blocks.places, 0))
        codes = np.where(_silent(setting, opened), NOTHING, codes)
    over, said = running & (blocks.places == rule.length), np.where(running, epsilons, HELD)
    charged = setting, states, account, epsilons, times, lambda: np.where(over, blocks.costs(rule), 0.0)
    moved = state.charged(*charged, blocks=blocks.end(over))
    return ReleasedInBlocks(codes, said, rule, opened, blocks, made, state.states), moved
