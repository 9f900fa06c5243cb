"""The schedule of a block: which events are asked, and how many eighths of what is left each may use.

It is a function of model, L, w and costs alone, so every receiver finds the same one. Schedules that ask every m-th
event, from one of the first on, are tried on simulated paths, and the best ones on more of them. A path needs no
stream: releases have the same distribution whether the hidden bit is real or fake, so all bits are fake, and what a
release costs is what the belief after it expects of it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from seqveil.core import filtering
from seqveil.core.distortion import Distortion
from seqveil.core.kernel import Floats
from seqveil.core.leakage import Leakages
from seqveil.core.mechanisms.base import Asked
from seqveil.core.mechanisms.blocks import EIGHTHS, BlockRule, Blocks, Disclosed, after, posterior, release
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness

PERIODS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 25, 30, 40, 50)
PACES = (1.0, 2.0, 4.0)  # times an even share of what is left; besides these, all of it at every question
ROUNDS = ((24, 12), (96, 4), (384, 1))  # paths for each schedule, and how many schedules go on
EVENTS = 150_000  # that all rounds may simulate, by numbers of a small alphabet
SMALL = 32


def candidates(length: int) -> list[tuple[int, ...]]:
    """Schedules to try for blocks of so many events, each once.

    >>> candidates(2)
    [(8, 8), (4, 8), (0, 8), (8, 0)]
    """
    found: dict[tuple[int, ...], None] = {}
    for period in PERIODS:
        if period > length:
            break
        for first in sorted({0, 1, 2, period // 2, period - 1}):
            if first < period:
                for pace in (None, *PACES):
                    found[_asked(length, range(first, length, period), pace)] = None
    return list(found)


def _asked(length: int, places: range, pace: float | None) -> tuple[int, ...]:
    shares, count = [0] * length, len(places)
    for nth, place in enumerate(places):
        part = 1.0 if pace is None else min(1.0, pace / (count - nth))
        shares[place] = max(1, round(EIGHTHS * part))
    return tuple(shares)


@lru_cache(maxsize=64)
def _chosen(model: MarkovModel, level: float, length: int, distortion: Distortion) -> tuple[int, ...]:
    going = candidates(length)
    for paths, stay in ROUNDS:
        rules = [BlockRule(model, level, length, distortion, shares) for shares in going]
        costs = [float(expected_costs(rule, paths).mean()) for rule in rules]
        going = [going[place] for place in np.argsort(costs, kind="stable")[:stay].tolist()]
    return going[0]


def block_rule(model: MarkovModel, level: float, length: int, distortion: Distortion) -> BlockRule:
    """The rule of blocks of this length and L: with the schedule that simulated paths choose."""
    return BlockRule(model, level, length, distortion, _chosen(model, level, length, distortion))


def fingerprint(rule: BlockRule) -> str:
    """What tells one rule from another, in 16 hexadecimal digits."""
    said = f"{rule.model.fingerprint} {rule.level!r} {rule.length} {rule.distortion.name} {rule.shares}"
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def expected_costs(rule: BlockRule, paths: int, blocks: int = 1, seed: int = 1) -> Floats:
    """What each event of simulated blocks in a row is expected to cost: (events, paths)."""
    randomness = SeededRandomness(seed)
    states, account = filtering.start(rule.model, paths), Leakages.start(rule.model, paths)
    state, everyone, levels = Blocks.start(rule, paths), np.ones(paths, bool), np.full(paths, rule.level)
    costs = []
    for place in range(blocks * rule.length):
        if place % rule.length == 0:
            state = state.end(state.running).begin(rule, everyone, levels, states, account)
        fake = np.zeros(paths, np.int64)
        made = release(rule, state, states, Asked(fake, randomness.draw(paths)), ~everyone)
        costs.append(_expected(rule, state, made))
        states, account, state, _ = after(rule, state, made)
    return np.array(costs)


def _expected(rule: BlockRule, blocks: Blocks, made: Disclosed) -> Floats:
    """What the belief after the release of an event expects that it costs: (B,)."""
    beliefs = posterior(rule, blocks, made)
    if rule.distortion.is_hamming:
        return 1.0 - beliefs[np.arange(len(beliefs)), made.codes]
    everything = np.arange(rule.model.n)
    return (beliefs * rule.distortion.between(everything[None, :], made.codes[:, None])).sum(1)
