"""The schedule of a block: which events are asked, how much of what is left each may use, how often it reveals it.

It is a function of model, L, w and costs alone, so every receiver finds the same one. Schedules that ask every m-th
event, from one of the first on, are tried on simulated paths, the best ones on more of them, and the best is improved
event by event. A path needs no stream: releases have the same distribution whether the hidden bit is real or fake, so
all bits are fake, and what a release costs is what the belief after it expects of it.
"""

from __future__ import annotations

import hashlib
import itertools
from functools import lru_cache

import numpy as np

from seqveil.core import filtering
from seqveil.core.compiled import load
from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.core.leakage import Leakages
from seqveil.core.mechanisms.base import Asked
from seqveil.core.mechanisms.blocks import EIGHTHS, BlockRule, Blocks, Disclosed, Question, follow, posterior, release
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness

PERIODS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 25, 30, 40, 50)
ROUNDS = ((64, 12), (256, 4), (1024, 1))  # paths for each schedule, and how many schedules go on
CHANGES = (Question(0, EIGHTHS), *(Question(EIGHTHS, named) for named in (8, 7, 6, 5)))  # tried in place of a question
IMPROVING = 200_000  # events simulated to improve a schedule
PATHS = 128  # for each change at least
GAIN = 1e-3  # of the cost, that a change must gain
SMALL = 1000  # steps of the chain up to which so much is simulated; of larger ones less in proportion
SHORT = 40  # events of a block, likewise

Schedule = tuple[Question, ...]


def candidates(length: int) -> list[Schedule]:
    """Schedules to try for blocks of so many events, each once: all of what is left at every m-th event.

    >>> [[each.share for each in schedule] for schedule in candidates(3)]
    [[8, 8, 8], [8, 0, 8], [0, 8, 0], [8, 0, 0], [0, 0, 8]]
    """
    found: dict[Schedule, None] = {}
    for period in PERIODS:
        for first in sorted({0, 1, 2, 3, period // 2, period - 1}):
            if first < period <= length:
                asked = range(first, length, period)
                found[tuple(Question(EIGHTHS * (place in asked), EIGHTHS) for place in range(length))] = None
    return list(found)


@lru_cache(maxsize=64)
def _chosen(model: MarkovModel, level: float, length: int, distortion: Distortion) -> Schedule:
    load()  # so much is simulated that compiled code is worth its loading
    going = candidates(length)
    rule = BlockRule(model, level, length, distortion, going[0])
    thin = min(1.0, SMALL / (model.chain.nnz + model.n), SHORT / length)
    for paths, stay in ROUNDS:
        costs = _mean_costs(rule, going, max(4, int(thin * paths)))
        going = [going[place] for place in np.argsort(costs, kind="stable")[:stay].tolist()]
    return _improved(rule, going[0], int(thin * IMPROVING))


def _improved(rule: BlockRule, schedule: Schedule, events: int) -> Schedule:
    """The schedule with the change of one event that gains most, again and again, as far as so many events allow."""
    while events > 0:
        tried = [schedule]
        for place, change in itertools.product(range(rule.length), CHANGES):
            tried.append((*schedule[:place], change, *schedule[place + 1 :]))
        paths = max(PATHS, min(1024, events // (4 * len(tried) * rule.length)))
        events -= paths * len(tried) * rule.length
        if events < 0:
            break
        costs = _mean_costs(rule, tried, paths)
        best = int(costs.argmin())
        if costs[best] > (1.0 - GAIN) * costs[0]:
            break
        schedule = tried[best]
    return schedule


def _mean_costs(rule: BlockRule, schedules: list[Schedule], paths: int) -> Floats:
    """What an event is expected to cost by each schedule, all with the same draws.

    Rounded, so that no machine's order of summing decides between schedules that are alike.
    """
    costs = _simulated(rule, np.repeat(np.array(schedules, np.int64), paths, axis=0), paths)
    return costs.mean(0).reshape(len(schedules), paths).mean(1).round(9)


def block_rule(model: MarkovModel, level: float, length: int, distortion: Distortion) -> BlockRule:
    """The rule of blocks of this length and L: with the schedule that simulated paths choose."""
    return BlockRule(model, level, length, distortion, _chosen(model, level, length, distortion))


def fingerprint(rule: BlockRule) -> str:
    """What tells one rule from another, in 16 hexadecimal digits."""
    said = f"{rule.model.fingerprint} {rule.level!r} {rule.length} {rule.distortion.name} {rule.schedule}"
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def expected_costs(rule: BlockRule, paths: int) -> Floats:
    """What each event of simulated blocks is expected to cost: (w, paths)."""
    return _simulated(rule, np.repeat(np.array(rule.schedule, np.int64)[None], paths, axis=0), paths)


def _simulated(rule: BlockRule, asks: Ints, paths: int) -> Floats:
    """What each event of as many blocks is expected to cost, with these questions (B, w, 2) in place of the rule's.

    Every `paths` blocks have the same draws again.
    """
    users, length = asks.shape[:2]
    randomness, everyone = SeededRandomness(1), np.ones(users, bool)
    states, account = filtering.start(rule.model, users), Leakages.start(rule.model, users)
    blocks = Blocks.start(rule, users).begin(rule, everyone, np.full(users, rule.level), states, account)
    costs, nobody = [], np.zeros(users, np.int64)
    for place in range(length):
        drawn = np.tile(_spread(randomness.draw(paths)), users // paths)
        made = release(rule, blocks, states, Asked(nobody, drawn), ~everyone, asks[:, place])
        costs.append(_expected(rule, blocks, made))
        states, blocks, _ = follow(rule, blocks, made)
    return np.array(costs)


def _spread(drawn: Ints) -> Ints:
    """Draws moved to where each part of [0, 2**62) has one of them: the means of so many vary much less."""
    part = DENOMINATOR // drawn.size
    return np.argsort(drawn, kind="stable") * part + drawn % part


def _expected(rule: BlockRule, blocks: Blocks, made: Disclosed) -> Floats:
    """What the belief after the release of an event expects that it costs: (B,)."""
    beliefs = posterior(rule, blocks, made)
    if rule.distortion.is_hamming:
        return 1.0 - beliefs[np.arange(len(beliefs)), made.codes]
    everything = np.arange(rule.model.n)
    return (beliefs * rule.distortion.between(everything[None, :], made.codes[:, None])).sum(1)
