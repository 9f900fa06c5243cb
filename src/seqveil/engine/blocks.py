"""One event of blocks as a pure step: the block is the unit of account.

A block begins with the ε of the policy, or with what is left of the budget where that is less, and it has that ε to
itself until it is over: none other begins meanwhile. A window counts it once, whole, wherever the two overlap. When it
is over, or cut, only what it really cost stays charged.

The state is public. The hidden bits are not: they are handed in and out beside it, and stand in nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.compiled import took_step
from seqveil.core.errors import DataError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms.base import Asked
from seqveil.core.mechanisms.blocks import Blocks, Disclosed, after, either, release
from seqveil.core.randomness import Randomness, rows
from seqveil.engine.state import Private
from seqveil.engine.stream import NOTHING, State, Terms, allowance, gate, hidden, moment, raw_codes

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ReleasedInBlocks:
    """What one event made public, one row a user."""

    codes: Ints  # (B,) NOTHING where nothing was released
    epsilons: Floats  # (B,) the ε of a block at its first event, else 0
    numbers: Ints  # (B,) of the block, from 0
    places: Ints  # (B,) of the event in its block, from 0; -1 outside of any
    costs: Floats  # (B,) what a block cost in all, at its last event; else 0


def step(
    setting: Terms, state: State, private: Private, codes: Ints, randomness: Randomness, times: Floats | None = None
) -> tuple[ReleasedInBlocks, State, Private]:
    """Release one symbol for each user; a block that begins draws its bit first.

    *Guarantee*: the lifts of a block's releases together are within its ε, on both sides, after each of them; the
    account says exactly what all releases so far leak, and a budget is never passed. A code UNKNOWN is released like a
    symbol drawn from the public belief given the path.
    """
    truth = raw_codes(codes, setting.model.n, len(state))
    opened = _open(setting, state, times)
    bits, new = private.bits, np.flatnonzero(opened.begins)
    assert bits is not None
    if new.size:
        bits = bits.copy()
        bits[new] = setting.rule.bits(opened.blocks.levels[new], rows(randomness, new).draw(new.size))
    truth = hidden(setting, opened.blocks.given, truth, randomness)
    asked = Asked(truth, randomness.draw(truth.size))
    made = release(setting.rule, opened.blocks, state.states, asked, bits)
    released, moved = _close(setting, state, opened, made)
    return released, moved, replace(private, bits=bits)


def observe(setting: Terms, state: State, codes: Ints, times: Floats | None = None) -> tuple[ReleasedInBlocks, State]:
    """The same step as an observer sees it: the releases are given, nothing private is needed."""
    given = gate(codes, setting.model.n, len(state), (NOTHING,), DataError)
    opened = _open(setting, state, times)
    if ((given == NOTHING) != opened.silent).any():
        raise DataError("a release stands where the budget allows none, or is missing; check epsilon, block and budget")
    guess = release(setting.rule, opened.blocks, state.states, Asked(given=np.where(opened.silent, 0, given)))
    if (guess.impossible & ~opened.silent).any():
        raise DataError("a release cannot have come from these blocks; check that model, epsilon and block are its own")
    return _close(setting, state, opened, guess)


def cut(setting: Terms, state: State) -> State:
    """Every running block ends here, at what it cost so far: where its bit was lost. Raw data must not decide it."""
    blocks: Blocks = state.blocks
    running, window = blocks.running, state.window
    if setting.budget.span is not None and running.any():
        costs = np.where(running, blocks.costs(setting.rule), 0.0)
        last = window.latest
        window = window.push(np.where(np.isfinite(last), last, 0.0), costs, setting.budget.span)
    return replace(state, window=window, blocks=blocks.end(running))


@dataclass(frozen=True, eq=False)
class _Opened:
    """Blocks before an event, those that begin with it among them."""

    blocks: Blocks
    begins: Mask
    silent: Mask  # whose budget is gone, where nothing is released then
    now: Floats


def _open(setting: Terms, state: State, times: Floats | None) -> _Opened:
    took_step(len(state))
    before: Blocks = state.blocks
    levels, gone = allowance(setting, state, times)
    free = ~before.running
    begins, silent = free & (levels > 0), free & gone & (setting.budget.when_spent == "stop")
    blocks = before.begin(setting.rule, begins, levels, state.states, state.account)
    return _Opened(blocks, begins, silent, moment(setting, state, times))


def _close(setting: Terms, state: State, opened: _Opened, made: Disclosed) -> tuple[ReleasedInBlocks, State]:
    """Charge an event, and end the blocks that have had all of theirs."""
    rule, running = setting.rule, opened.blocks.running
    states, account, blocks = after(rule, opened.blocks, made, state.account)
    if not running.all():  # outside of a block nothing was disclosed
        states = np.where(running[:, None], states, filtering.predict(setting.model, state.states))
        account = either(running, account, state.account.skip(setting.model))
        blocks = replace(blocks, places=np.where(running, blocks.places, 0))
    over = running & (blocks.places == rule.length)
    costs = np.where(over, blocks.costs(rule), 0.0) if over.any() else np.zeros(len(over))
    places = np.where(running, opened.blocks.places, -1)
    codes = np.where(opened.silent, NOTHING, made.codes)
    began, spent, ldp = np.zeros(len(over)), state.spent, state.ldp
    if opened.begins.any():
        began = np.where(opened.begins, opened.blocks.levels, 0.0)
        spent, ldp = spent + began, ldp + setting.ldp_cost(began)
    window = state.window.push(opened.now, costs, setting.budget.span)
    after_all = State(states, state.steps + 1, spent, account, window, ldp, state.first, None, blocks.end(over))
    return ReleasedInBlocks(codes, began, opened.blocks.numbers, places, costs), after_all
