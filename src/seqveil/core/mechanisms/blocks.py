"""Blocks: the promise of a batch of w events, with every event answered at once.

A block has one budget L and **one hidden bit**: *fake* with probability e^-L, else *real*. At each event the releases
of the block so far give a public channel f_k(y | x_k) from symbols to labels, its cells. The label is drawn from
f_k(· | x_k) if the bit is real, else from its probability under the public belief given the path. For a path y put
f(y|x) = Π f_k(y_k|x_k), q(y) = Σ_x P(x) f(y|x), F(y) = Π max_x f_k(y_k|x), ρ = q/F and κ = 1/(1+e^L).

*Guarantee*: where ρ ≥ κ for every path that may be drawn, the leakage of the block is at most L on both sides, at every
prefix and for every sequence of symbols, and the block is 2L-LDP whatever the truth's distribution is. Leakages of
blocks add up.

The belief is a mixture of two filters, the first belief moved on freely and the belief given the path. The bit, the
cells and the fake draws are tables over 2**62. A fake draw has weights ŝ(y) that differ from q in the last places, so
Π ŝ/q, the skew, is followed too, and every bound is checked with it: for each label that might be drawn, outward,
before the draw.

The cells of an event may use all of what is left: no label is rarer than κ/ρ. They are those of the closed form of the
optimum (`closed_form`), for distances pieces of a line that goes from neighbour to neighbour (`neighbours`). With some
probability any symbol may pass for the likeliest label. Which events are asked, and how often the cell is named, is
**the schedule** of the block, a function of model, L, w and costs alone, so that every receiver finds the same one.
Schedules that ask every m-th event are tried on simulated paths, and the best is improved event by event. A path needs
no stream, as fake paths have the same distribution: what a release costs is what the belief after it expects of it.

Reference: docs/theory.md, section 19.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.bulk import ByUser, compiled, load, reals, row_by_row, wholes
from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints, slack
from seqveil.core.leakage import Leakages, larger_side
from seqveil.core.mechanisms.base import Asked
from seqveil.core.mechanisms.closed_form import ONE, Row, pick, room_for, table, weigh, write_column
from seqveil.core.mechanisms.neighbours import line, near_table
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness

LONGEST = 1000  # events of a block
LARGEST = 40.0  # L of a block: the weight of a fake bit, e^-L · 2**62, must not be lost in rounding
WIDEST = 256  # labels of an event
EIGHTHS = 8
LEAST = 1e-8  # probability of a label below which its integer weight would be too coarse
MARGIN = 1e-9  # of L that rounding may use
ENTRIES = 64  # states up to which the account of a chain with impossible steps is exact over several blocks
UNSAID = -1  # the code of an event of which nothing was disclosed, until the best guess stands there
NEVER = 1e-200  # in place of a weight of 0 where logarithms are added up
PERIODS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 25, 30, 40, 50)  # of schedules that are tried
ROUNDS = ((64, 12), (256, 4), (1024, 1))  # paths for each schedule, and how many schedules go on
IMPROVING = 200_000  # events simulated to improve a schedule
PATHS = 128  # for each change at least
GAIN = 1e-3  # of the cost, that a change must gain
SMALL = 500  # steps of the chain up to which so much is simulated; of larger ones less in proportion
SHORT = 40  # events of a block, likewise
OUTWARD = np.array([1.0, -1.0])  # for both sides of an account: up for the largest lifts, down for the least

Mask = NDArray[np.bool_]


Schedule = tuple[int, ...]
"""How often the cell of each event is named, else the likeliest label, in eighths; 0: the best guess is released."""
CHANGES = (0, 8, 7, 6, 5)  # that are tried in place of what an event has


@lru_cache(maxsize=4096)
def level_numbers(level: float, states: int, length: int) -> tuple[int, Floats]:
    """The weight of a fake bit of a block of L = `level`, over 2**62; its probability, κ, e^L and e^-L: (1, 4).

    κ is what q/F must not fall below. All bounds keep away from theirs by what so many roundings can do.
    """
    loose = (length + 2) * 4 * slack(states)
    aim = max(0.0, level - MARGIN - 4 * loose)
    bit = min(DENOMINATOR, math.ceil(math.exp(-aim) * ONE))
    fake = bit / ONE
    # the largest lift that the bit leaves is that of κ: fake + (1-fake)/ρ ≤ e^L
    room = math.exp(aim) - fake
    kappa = min(1.0, (1.0 - fake) / room) if room > 0 and fake < 1 else 1.0
    return bit, np.array([[fake, kappa, math.exp(level) * (1.0 - loose), math.exp(-level) * (1.0 + loose)]])


@dataclass(frozen=True, eq=False)
class BlockRule:
    """All that is public of blocks before the first release: model, length w, L, costs, and the schedule."""

    model: MarkovModel
    level: float
    length: int
    distortion: Distortion
    schedule: Schedule

    @cached_property
    def width(self) -> int:
        """How many labels an event may have; neighbours need no table, so they may have many."""
        widest = WIDEST if self.distortion.points is None else self.model.n
        return min(self.model.n, widest, math.ceil(1.0 + math.exp(self.level)))

    @cached_property
    def places(self) -> tuple[Floats, Ints]:
        """Where symbols lie, and their order, axis by axis, both (d·n,); empty where a wrong one costs 1 anywhere."""
        if self.distortion.points is None:
            return np.empty(0), np.empty(0, np.int64)
        points = self.distortion.points.reshape(self.model.n, -1)
        return points.T.ravel(), line(points)

    @cached_property
    def entries(self) -> int:
        """By how many first states the account of a block is kept apart: 1 where any state can follow any."""
        apart = not self.model.full_support and self.model.size <= ENTRIES
        return self.model.size if apart else 1

    def numbers(self, levels: Floats) -> Floats:
        """fake, κ, e^L and e^-L of each block: (B, 4)."""
        known = levels[:1] if (levels == levels[:1]).all() else levels
        each = [level_numbers(level, self.model.size, self.length)[1] for level in known.tolist()]
        if levels.size == 1:
            return each[0]
        return np.broadcast_to(np.concatenate([np.zeros((0, 4)), *each]), (levels.size, 4))

    def bits(self, levels: Floats, thrown: Ints) -> Mask:
        """Whether the hidden bit of each block is real, by one draw each."""
        fake = [level_numbers(level, self.model.size, self.length)[0] for level in levels.tolist()]
        return thrown >= np.array(fake, np.int64)


@dataclass(frozen=True, eq=False)
class Blocks(ByUser):
    """Public state of the running blocks of B users; where none runs, level and place are 0."""

    levels: Floats  # (B,) L
    places: Ints  # (B,) events so far
    numbers: Ints  # (B,) blocks before it
    given: Floats  # (B, S) the belief given the path
    free: Floats  # (B, S) the first belief moved on freely
    ratios: Floats  # (B,) ρ = q/F
    skews: Floats  # (B,) Π ŝ/q
    before: Leakages  # the account when it began
    inside: Leakages  # extremes of log f/q along it, for each first state apart: (B, E) and (B, E, S)

    @classmethod
    def start(cls, rule: BlockRule, users: int) -> Blocks:
        """Of users of whom nothing was released yet."""
        states, account = filtering.start(rule.model, users), Leakages.start(rule.model, users)
        return cls._new(rule, np.zeros(users), np.zeros(users, np.int64), states, account)

    @classmethod
    def _new(cls, rule: BlockRule, levels: Floats, numbers: Ints, states: Floats, before: Leakages) -> Blocks:
        users, ones = len(levels), np.ones(len(levels))
        if rule.entries == 1:  # from whichever state
            off = np.zeros((users, 1, 1 if rule.model.full_support else rule.model.size))
        else:  # for each first state apart
            off = np.tile(np.where(np.eye(rule.entries, dtype=bool), 0.0, np.inf), (users, 1, 1))
        inside = Leakages(np.zeros(off.shape[:2]), np.zeros(off.shape[:2]), -off, off)
        places = np.zeros(users, np.int64)
        return cls(levels, places, numbers, states.copy(), states.copy(), ones, ones.copy(), before, inside)

    def begin(self, rule: BlockRule, who: Mask, levels: Floats, states: Floats, account: Leakages) -> Blocks:
        """A block begins for some users, with the belief and the account that they have now."""
        before = account.where(who, account)  # which nobody else writes to
        begun = self._new(rule, levels, self.numbers, states, before)
        return begun if who.all() else begun.where(who, self)

    def end(self, who: Mask) -> Blocks:
        """The blocks of some users are over, at their length or cut before."""
        if not np.count_nonzero(who):
            return self
        return replace(
            self,
            levels=np.where(who, 0.0, self.levels),
            places=np.where(who, 0, self.places),
            numbers=self.numbers + who,
        )

    @property
    def running(self) -> Mask:
        """Whose block has begun and has events left."""
        return self.levels > 0

    def costs(self, rule: BlockRule) -> Floats:
        """What each running block has cost so far: the larger side of its own leakage."""
        up, down = _lifts(rule, self, np.zeros((2, 1, 1)), self.inside.most, self.inside.least)
        return np.where(self.running & (self.places > 0), larger_side(up.max(1), down.min(1)), 0.0)


@dataclass(frozen=True, eq=False)
class Disclosed:
    """What an event of B blocks made public."""

    codes: Ints  # (B,)
    columns: Ints  # (B, n) f(released | x) · 2**62
    weights: Ints  # (B, 3) the least and the largest f(released | x), and the weight of the fake draw, over 2**62
    impossible: Mask  # (B,) which releases given cannot have been made

    @classmethod
    def nothing(cls, users: int, n: int) -> Disclosed:
        """Events of which nothing was disclosed."""
        columns, weights = (np.full((users, size), DENOMINATOR, np.int64) for size in (n, 3))
        return cls(np.full(users, UNSAID, np.int64), columns, weights, np.zeros(users, bool))

    @property
    def drawn(self) -> Ints:
        """The weight of the fake draw: (B,)."""
        return self.weights[:, 2]

    @property
    def silent(self) -> Mask:
        """Of which events nothing was disclosed: (B,)."""
        return np.asarray(self.weights[:, 0] == self.weights[:, 1])


def release(
    rule: BlockRule, blocks: Blocks, states: Floats, asked: Asked, real: Mask | None = None, asks: Ints | None = None
) -> Disclosed:
    """One event of each running block: by raw codes, a draw each and the hidden bits, or read from releases `given`.

    `states` (B, S) is the public belief. Every label that might be drawn is checked before the draw (`kept`). `asks`
    (B,) stands for the schedule where schedules are tried; what is not said is then UNSAID.
    """
    made, numbers = Disclosed.nothing(len(states), rule.model.n), rule.numbers(blocks.levels)
    codes, given = made.codes, asked.given
    tried, asks = asks is not None, np.array(rule.schedule)[blocks.places] if asks is None else asks
    caps = numbers[:, 1] / blocks.ratios
    some = ((asks > 0) & (caps < 1.0 - 1e-6) & blocks.running).nonzero()[0]
    if some.size:
        hidden = (codes,) * 3 if real is None else (real.astype(np.int64), asked.truths, asked.randomness)
        known = (numbers, caps, asks, blocks.ratios, blocks.skews, *hidden)
        beliefs = filtering.symbols(rule.model, blocks.given[some])
        filled = codes[some], made.columns[some], made.weights[some], made.impossible[some]
        here = beliefs, *(each[some] for each in known), given[some] if given.size else given
        row_by_row(ask, (rule.width, *rule.places), here, filled)
        codes[some], made.columns[some], made.weights[some], made.impossible[some] = filled
    rest = (codes == UNSAID).nonzero()[0]
    if rest.size and not tried:
        codes[rest] = rule.distortion.best_guess(filtering.symbols(rule.model, states[rest]))
    return replace(made, impossible=made.impossible | (given != codes)) if given.size else made


def after(rule: BlockRule, blocks: Blocks, made: Disclosed, account: Leakages) -> tuple[Floats, Leakages, Blocks]:
    """Belief, account and blocks after an event of each running block.

    A block that has had all its events is not ended here: its cost is charged first (`Blocks.costs`, `Blocks.end`).
    """
    moved, marginal = follow(rule, blocks, made)
    states = filtering.mixed(rule.model, moved.free, moved.given, _fake(rule, moved)[:, None])
    if made.silent.all() and rule.model.full_support:  # nothing was disclosed, and anything can follow anything
        return states, account, moved
    flat = blocks.inside.mapped(lambda side: side.reshape(-1, *side.shape[2:]))
    # the extremes of log f/q after the event; a weight of 0 rules nothing out, as the bit may be fake
    weights: tuple[Any, ...] = (np.maximum(made.columns, NEVER), marginal, *np.maximum(made.weights[:, :2].T, NEVER))
    charged = flat.charge(rule.model, *(np.repeat(each, rule.entries, 0) for each in weights))
    inside = charged.mapped(lambda side: side.reshape(len(marginal), rule.entries, *side.shape[1:]))
    moved = replace(moved, inside=inside)
    return states, _joined(rule, moved), moved


def follow(rule: BlockRule, blocks: Blocks, made: Disclosed) -> tuple[Blocks, Floats]:
    """Blocks after an event, but for their account, and the marginal (B,) of what was released."""
    given, marginal = filtering.move(rule.model, blocks.given, made.columns)
    free, _ = filtering.move(rule.model, blocks.free, np.ones(made.columns.shape))
    said = ~made.silent  # nothing disclosed is nothing charged, not even for rounding
    ratios = blocks.ratios * np.where(said, marginal / made.weights[:, 1], 1.0)
    skews = blocks.skews * np.where(said, made.drawn / marginal, 1.0)
    return replace(blocks, places=blocks.places + 1, given=given, free=free, ratios=ratios, skews=skews), marginal


def posterior(rule: BlockRule, blocks: Blocks, made: Disclosed) -> Floats:
    """What an observer believes about the symbol of an event after its release: (B, n); `blocks` are those before."""
    named = filtering.symbols(rule.model, blocks.given) * made.columns
    marginal = filtering.total(named)
    fake = _fake(rule, replace(blocks, skews=blocks.skews * (made.drawn / marginal)))[:, None]
    named *= 1.0 - fake
    named /= marginal[:, None]
    named += fake * filtering.symbols(rule.model, blocks.free)
    return named


def _fake(rule: BlockRule, blocks: Blocks) -> Floats:
    """Probability that the bit is fake, given the path: (B,)."""
    fake = rule.numbers(blocks.levels)[:, 0]
    return fake * blocks.skews / (fake * blocks.skews + (1.0 - fake))


def _lifts(rule: BlockRule, blocks: Blocks, first: Floats, up: Floats, down: Floats) -> Floats:
    """Both sides of the account with the blocks in it: `first`, what came before them, and the logs of their lifts.

    `up` and `down` are logs of f/q, (B, E) or (B, E, S); the lift is (fake · skew + (1-fake) · f/q) / (fake · skew +
    1-fake). Sums are rounded outward; what cannot be stays infinite, and nothing added is exact.
    """
    alike = -1, *(1,) * (up.ndim - 1)
    fake = rule.numbers(blocks.levels)[:, 0].reshape(alike)
    guess, named = fake * blocks.skews.reshape(alike), 1.0 - fake
    sides, loose = np.array((up, down)), (rule.length + 2) * 4 * slack(rule.model.size)
    never = np.isinf(sides)
    logs = np.log((guess + named * np.exp(np.where(never, 0.0, sides))) / (guess + named))
    sums = first + np.where(never, sides, logs)
    size = loose + UNIT * (8.0 * np.abs(logs) + 2.0 * np.abs(sums))
    outward = OUTWARD.reshape(-1, *alike[1:], 1) * np.where(np.isinf(sums), 0.0, size)
    return np.where(sides == 0.0, first, sums + outward)


def _joined(rule: BlockRule, blocks: Blocks) -> Leakages:
    """The account with the running blocks in it: for each first state what came before plus what the block adds.

    Where first states are not kept apart and some cannot follow others this is a bound from above.
    """
    inside, before = blocks.inside, blocks.before
    first = np.array((before.ahead_most, before.ahead_least))
    if rule.entries == 1 and not rule.model.full_support:
        first = np.array((before.ahead_most.max(1), before.ahead_least.min(1)))[:, :, None]
    most, least = _lifts(rule, blocks, first, inside.most, inside.least)
    if rule.model.full_support:
        return Leakages(most[:, 0], least[:, 0], most, least)
    up, down = _lifts(rule, blocks, first[..., None], inside.ahead_most, inside.ahead_least)
    return Leakages(most.max(1), least.min(1), up.max(1), down.min(1))


@compiled
def ask(
    width: int, points: Row, ranks: Row, beliefs: Any, numbers: Any, caps: Row, asks: Row, ratios: Row, skews: Row,
    real: Row, truths: Row, randomness: Row, given: Row, codes: Row, columns: Any, weights: Any, impossible: Row,
) -> None:  # fmt: skip
    """Make each user's cells, check them, and draw from them; or find the column of the release given.

    The cells are those of the closed form, or neighbours where symbols have `points`.

    A cap that leaves a label too rare for its weight, or outside of a bound, is raised until none is. Where nothing can
    be said, what stands in `codes`, `columns` and `weights` is left.
    """
    rows, entries, plan = room_for(len(beliefs[0]), width)
    labels, base, classes, masses = rows
    mean, high, hats, of_row = reals(width), reals(width), wholes(width), wholes(len(masses))
    for user in range(len(beliefs)):
        belief, column, weight, number = beliefs[user], columns[user], weights[user], numbers[user]
        cap, first = max(caps[user], LEAST) * (1.0 + MARGIN), float(EIGHTHS - asks[user]) / EIGHTHS
        made, fine = 0, False
        while not fine and cap < 1.0:
            if len(points):
                made, everything = near_table(belief, points, ranks, cap, first, rows, entries)
            else:
                known = number[0], 1.0 - number[0], cap, 0.0, first
                made, everything, _ = table(belief, known, rows, entries, plan)
            weigh(made, everything, rows, entries, mean, high)
            fake_weights(everything, mean, hats)
            fine = kept(ratios[user], skews[user], everything, number, mean, high, hats)
            cap *= 2.0
        label = 0
        if not fine or hats[0] == DENOMINATOR:
            continue  # one label, which says nothing
        if len(given):
            while label < width and labels[label] != given[user]:
                label += 1
        elif real[user]:
            label = pick(classes[truths[user]], randomness[user], made, base, entries)
        else:
            uniform = randomness[user]
            while uniform >= hats[label]:
                uniform -= hats[label]
                label += 1
        impossible[user] = label == width or hats[label] == 0
        if not impossible[user]:
            codes[user], weight[1], weight[2] = labels[label], 0, hats[label]
            write_column(label, made, rows, entries, of_row, column)
            for x in range(len(column)):
                weight[0], weight[1] = min(weight[0], column[x]), max(weight[1], column[x])


@compiled
def fake_weights(everything: float, mean: Row, hats: Row) -> None:
    """Fill in for each label the weight of its fake draw; these sum to 2**62."""
    left, best = DENOMINATOR, 0
    for k in range(len(mean)):
        hats[k] = int(mean[k] / everything)
        left -= hats[k]
        if mean[k] > mean[best]:
            best = k
    hats[best] += left


@compiled
def kept(ratio: float, skew: float, everything: float, number: Row, mean: Row, high: Row, hats: Row) -> bool:
    """Whether each label that may be drawn keeps both bounds of the block, and is not too rare for its weight."""
    named = 1.0 - number[0]
    for k in range(len(mean)):
        if high[k] > 0.0:
            expected = mean[k] / everything
            guess = number[0] * (skew * (float(hats[k]) / expected) if expected > 0.0 else 0.0)
            most = named * (high[k] / (ratio * expected)) if expected > 0.0 else ONE
            bounded = guess + most <= number[2] * (guess + named) and guess >= number[3] * (guess + named)
            if not (bounded and expected >= 0.5 * LEAST * ONE):
                return False
    return True


def candidates(length: int) -> list[Schedule]:
    """Schedules to try for blocks of so many events, each once: all of what is left at every m-th event.

    >>> candidates(3)
    [(8, 8, 8), (8, 0, 8), (0, 8, 0), (8, 0, 0), (0, 0, 8)]
    """
    found: dict[Schedule, None] = {}
    for period in PERIODS:
        for first in sorted({0, 1, 2, 3, period // 2, period - 1}):
            if first < period <= length:
                asked = range(first, length, period)
                found[tuple(EIGHTHS * (place in asked) for place in range(length))] = None
    return list(found)


@lru_cache(maxsize=64)
def block_rule(model: MarkovModel, level: float, length: int, distortion: Distortion) -> BlockRule:
    """The rule of blocks of this length and L: with the schedule that simulated paths choose."""
    load()  # so much is simulated that compiled code is worth its loading
    going = candidates(length)
    rule = BlockRule(model, level, length, distortion, going[0])
    thin = min(1.0, SMALL / (model.chain.nnz + model.n), SHORT / length)
    for paths, stay in ROUNDS:
        costs = mean_costs(rule, going, max(8, int(thin * paths)))
        going = [going[place] for place in np.argsort(costs, kind="stable")[:stay].tolist()]
    schedule, events = going[0], int(thin * IMPROVING)
    while events > 0:  # the change of one event that gains most, again and again, as far as so many events allow
        tried = [schedule]
        for place, change in itertools.product(range(rule.length), CHANGES):
            tried.append((*schedule[:place], change, *schedule[place + 1 :]))
        paths = max(PATHS, min(1024, events // (4 * len(tried) * rule.length)))
        events -= paths * len(tried) * rule.length
        if events < 0:
            break
        costs = mean_costs(rule, tried, paths)
        best = int(costs.argmin())
        if costs[best] > (1.0 - GAIN) * costs[0]:
            break
        schedule = tried[best]
    return replace(rule, schedule=schedule)


def mean_costs(rule: BlockRule, schedules: list[Schedule], paths: int) -> Floats:
    """What an event is expected to cost by each schedule, on so many paths, all with the same draws.

    Means are rounded, so that no machine's order of summing decides between schedules that are alike.
    """
    randomness, costs, begun = SeededRandomness(1), np.zeros(len(schedules)), list[Schedule]([()])
    states, account = filtering.start(rule.model, paths), Leakages.start(rule.model, paths)
    blocks, levels = Blocks.start(rule, paths), np.full(paths, rule.level)
    blocks = blocks.begin(rule, levels > 0, levels, states, account)
    for place in range(rule.length):
        thrown = randomness.draw(paths)  # each part of [0, 2**62) has one of them: means of so many vary much less
        spread = np.argsort(thrown, kind="stable") * (DENOMINATOR // paths) + thrown % (DENOMINATOR // paths)
        before, begun = begun, list(dict.fromkeys(schedule[: place + 1] for schedule in schedules))
        parents = np.array([before.index(part[:-1]) for part in begun])  # schedules that begin alike go together
        blocks = blocks.take((paths * parents[:, None] + np.arange(paths)).ravel())
        asked = Asked(np.zeros(parents.size * paths, np.int64), np.tile(spread, parents.size))
        asks = np.repeat([part[-1] for part in begun], paths)
        made = release(rule, blocks, blocks.given, asked, asked.truths > 0, asks)
        found = _expected(rule, blocks, made).reshape(-1, paths).mean(1)
        costs += found[[begun.index(schedule[: place + 1]) for schedule in schedules]]
        blocks, _ = follow(rule, blocks, made)
    return (costs / rule.length).round(9)


def fingerprint(rule: BlockRule) -> str:
    """What tells one rule from another, in 16 hexadecimal digits."""
    said = f"{rule.model.fingerprint} {rule.level!r} {rule.length} {rule.distortion.name} {rule.schedule}"
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _expected(rule: BlockRule, blocks: Blocks, made: Disclosed) -> Floats:
    """What the belief after the release of an event expects that it costs: (B,); the least there is if nothing is said.

    All rows at once: the last digits depend on who else is there, which rounding takes away again.
    """
    beliefs, codes = posterior(rule, blocks, made), made.codes.copy()
    unsaid = codes == UNSAID
    codes[unsaid] = rule.distortion.best_guess(beliefs[unsaid])
    return (beliefs * rule.distortion.held(rule.model.n, np.arange(rule.model.n), codes[:, None])).sum(1)
