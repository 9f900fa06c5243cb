"""Blocks: the promise of a batch of w events, with every event answered at once.

A block has one budget L. When it begins, **one hidden bit** is drawn: *fake* with probability e^-L, else *real*. At
each event the releases of the block so far give a public channel f_k(y | x_k) from symbols to labels, its cells. If the
bit is real, the label is drawn from f_k(· | x_k); if it is fake, from its probability under the public belief given the
path. For a path y put f(y|x) = Π f_k(y_k|x_k), q(y) = Σ_x P(x) f(y|x) and F(y) = Π max_x f_k(y_k|x). Then

    Q(y|x) = e^-L q(y) + (1-e^-L) f(y|x)  has the marginal q and lifts  e^-L + (1-e^-L) f(y|x)/q(y).

**Guarantee.** Lifts are at least e^-L, and at most e^L where q(y) ≥ κ F(y), κ = 1/(1+e^L). So the leakage of the block
is at most L on both sides, at every prefix and for every sequence of symbols, and the block is 2L-LDP whatever the
truth's distribution is, as F is the maximum over all sequences. Blocks draw fresh bits, so their leakages add up.

**Belief.** Real and fake paths have the same distribution, so the bit stays as it was: the belief is
e^-L · (the first belief moved on freely) + (1-e^-L) · (the belief given the path), two ordinary filters.

**In integers.** The bit, the cells and the fake draws are tables over 2**62. A fake draw has weights ŝ(y) that differ
from q in the last places, so Π ŝ/q, the skew, is followed too, and every bound is checked with it: for each label that
might be drawn, outward, before the draw.

**Cells.** What is left of L after a path is log(ρ/κ), ρ = q/F; a label costs log(max_x f(y|x) / Pr(y | path)) of it.
For Hamming distortion the cells of an event that may use a part r of what is left are the channel that the closed form
of the optimum finds with the cap e^r on its lifts (`closed_form`); for distances they are sets of neighbours. With some
probability any symbol may pass for the likeliest label: what is not disclosed now costs nothing now, and makes what is
disclosed later likelier, hence cheaper. Which events are asked, for which part of what is left, and how often the cell
is named is the schedule of the block (`block_schedule`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.compiled import compiled, form, in_parts, reals, wholes
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints, slack, to_weights
from seqveil.core.leakage import Leakages, larger_side, weight_range
from seqveil.core.mechanisms.base import Asked
from seqveil.core.mechanisms.closed_form import DONE, IMPOSSIBLE, LEFT, ONE, Row, pick, room_for, table
from seqveil.core.mechanisms.neighbours import centres, neighbours
from seqveil.core.model import MarkovModel

LONGEST = 1000  # events of a block
LARGEST = 40.0  # L of a block: the weight of a fake bit, e^-L · 2**62, must not be lost in rounding
WIDEST = 256  # labels of an event
EIGHTHS = 8
LEAST = 1e-8  # probability of a label below which its integer weight would be too coarse
MARGIN = 1e-9  # of L that rounding may use
ENTRIES = 64  # states up to which the account of a chain with impossible steps is exact over several blocks
UNSAID = -1  # the code of an event of which nothing was disclosed, until the best guess stands there
NEVER = 1e-200  # in place of a weight of 0 where logarithms are added up
# by how many axes both sides of an account have: up for the largest lifts, down for the least
OUTWARD = {2: np.array([[1.0], [-1.0]]), 3: np.array([[[1.0]], [[-1.0]]])}
ARRAYS = ("levels", "places", "numbers", "free", "given", "ratios", "skews")
LISTED = 1024  # users whose beliefs are made into lists at a time

Mask = NDArray[np.bool_]
Rows = NDArray[np.intp] | slice


def kernels(beliefs: Floats, epsilon: float, distortion: Distortion) -> NoReturn:
    """Refuses: a release in a block follows the block's hidden bit, so no table says alone how it is drawn.

    *Guarantee*: all releases of a block together move an observer's belief about the whole sequence by a factor in
    [e^-ε, e^ε]; without trusting the model a block is 2ε-LDP. One release alone may take all of that.

    >>> import seqveil as sv
    >>> model = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> session = sv.Session(model, epsilon=3.0, block=6)
    >>> [session.release(0) in (0, 1) for _ in range(6)].count(True), session.leakage <= 3.0
    (6, True)

    Reference: docs/theory.md, section 19.
    """
    raise InputError('"blocks" has no kernel of its own: a block follows a hidden bit; pass block=20, with a Session')


class Question(NamedTuple):
    """What an event of a block may use and tell, both in eighths: of what is left, and of the time."""

    share: int  # of what is left; 0: the best guess is released
    named: int  # how often the cell is named; else the likeliest label


class Level(NamedTuple):
    """What follows from the L of a block."""

    bit: int  # weight of a fake bit, over 2**62
    fake: float  # its probability
    kappa: float  # what q/F must not fall below, with room for rounding
    ceiling: float  # e^L and e^-L, less what rounding may have done
    floor: float


@lru_cache(maxsize=4096)
def level_numbers(level: float, states: int, length: int) -> Level:
    """The numbers of a block of L = `level`; its bounds keep away from e^±L by what so many roundings can do."""
    loose = (length + 2) * 4 * slack(states)
    aim = max(0.0, level - MARGIN - 4 * loose)
    bit = min(DENOMINATOR, math.ceil(math.exp(-aim) * ONE))
    fake = bit / ONE
    # the largest lift that the bit leaves is that of κ: fake + (1-fake)/ρ ≤ e^L
    room = math.exp(aim) - fake
    kappa = min(1.0, (1.0 - fake) / room) if room > 0 and fake < 1 else 1.0
    return Level(bit, fake, kappa, math.exp(level) * (1.0 - loose), math.exp(-level) * (1.0 + loose))


@dataclass(frozen=True, eq=False)
class BlockRule:
    """All that is public of blocks before the first release: model, length w, L, costs, and the schedule.

    `schedule` has a question for each of the w events.
    """

    model: MarkovModel
    level: float
    length: int
    distortion: Distortion
    schedule: tuple[Question, ...]

    @cached_property
    def width(self) -> int:
        """How many labels an event may have."""
        return min(self.model.n, WIDEST, math.ceil(1.0 + math.exp(self.level)))

    @cached_property
    def entries(self) -> int:
        """By how many first states the account of a block is kept apart: 1 where any state can follow any."""
        apart = not self.model.full_support and self.model.size <= ENTRIES
        return self.model.size if apart else 1

    def numbers(self, levels: Floats) -> Floats:
        """fake, κ, e^L and e^-L of each block: (B, 4)."""
        if levels.size == 1:  # a session's
            return self._row(float(levels[0]))
        if levels.size and (levels == levels[0]).all():
            return np.broadcast_to(self._row(float(levels[0])), (levels.size, 4))
        return np.array([self._level(each)[1:] for each in levels.tolist()]).reshape(-1, 4)

    def bits(self, levels: Floats, thrown: Ints) -> Mask:
        """Whether the hidden bit of each block is real, by one draw each."""
        return thrown >= np.array([self._level(each).bit for each in levels.tolist()], np.int64)

    def _level(self, level: float) -> Level:
        return level_numbers(level, self.model.size, self.length)

    def _row(self, level: float) -> Floats:
        if level not in self._rows:
            self._rows[level] = np.array([self._level(level)[1:]])
        return self._rows[level]

    @cached_property
    def _rows(self) -> dict[float, Floats]:
        return {}

    @cached_property
    def asks(self) -> Ints:
        """The schedule as an array: (w, 2)."""
        return np.array(self.schedule, np.int64)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Public state of the running blocks of B users; where none runs, level and place are 0."""

    levels: Floats  # (B,) L
    places: Ints  # (B,) events so far
    numbers: Ints  # (B,) blocks before it
    free: Floats  # (B, S) the first belief moved on freely
    given: Floats  # (B, S) the belief given the path
    ratios: Floats  # (B,) ρ = q/F
    skews: Floats  # (B,) Π ŝ/q
    before: Leakages  # the account when it began
    inside: Leakages  # extremes of log f/q along it, a row for each user and entry

    @classmethod
    def start(cls, rule: BlockRule, users: int) -> Blocks:
        """Of users of whom nothing was released yet."""
        nothing, whole = np.zeros(users), (np.zeros(users, np.int64), np.zeros(users, np.int64))
        states, account = filtering.start(rule.model, users), Leakages.start(rule.model, users)
        ones, inside = (np.ones(users), np.ones(users)), _fresh(rule, users)
        return cls(nothing, *whole, states, states.copy(), *ones, account, inside)

    def begin(self, rule: BlockRule, who: Mask, levels: Floats, states: Floats, account: Leakages) -> Blocks:
        """A block begins for some users, with the belief and the account that they have now."""
        if not who.any():
            return self
        if who.all():
            whole = np.zeros(len(who), np.int64), self.numbers, states, states
            before = Leakages(*(getattr(account, each.name).copy() for each in fields(Leakages)))
            return Blocks(levels, *whole, np.ones(len(who)), np.ones(len(who)), before, _fresh(rule, len(who)))
        column = who[:, None]
        return Blocks(
            np.where(who, levels, self.levels),
            np.where(who, 0, self.places),
            self.numbers,
            np.where(column, states, self.free),
            np.where(column, states, self.given),
            np.where(who, 1.0, self.ratios),
            np.where(who, 1.0, self.skews),
            either(who, account, self.before),
            either(np.repeat(who, rule.entries), _fresh(rule, len(who)), self.inside),
        )

    def end(self, who: Mask) -> Blocks:
        """The blocks of some users are over, at their length or cut before."""
        if not who.any():
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

    def left(self, rule: BlockRule) -> Floats:
        """What is left of L in each block: log ρ/κ."""
        return np.log(np.maximum(self.ratios / rule.numbers(self.levels)[:, 1], 1.0))

    def costs(self, rule: BlockRule) -> Floats:
        """What each running block has cost so far: the larger side of its own leakage."""
        up, down = _lifts(rule, self, self.inside.most, self.inside.least)
        shape = (len(self.levels), rule.entries)
        most, least = up.reshape(shape).max(1), down.reshape(shape).min(1)
        return np.where(self.running & (self.places > 0), larger_side(most, least), 0.0)

    def take(self, rows: Rows) -> Blocks:
        """Of some users."""
        users = self._numbers(rows)
        arrays: dict[str, Any] = {name: getattr(self, name)[users] for name in ARRAYS}
        return Blocks(**arrays, before=self.before.take(users), inside=self.inside.take(self._inner(users)))

    def put(self, rows: Rows, part: Blocks) -> None:
        """Write those of some users back in place."""
        users = self._numbers(rows)
        for name in ARRAYS:
            getattr(self, name)[users] = getattr(part, name)
        for each in fields(Leakages):
            getattr(self.before, each.name)[users] = getattr(part.before, each.name)
            getattr(self.inside, each.name)[self._inner(users)] = getattr(part.inside, each.name)

    def join(self, other: Blocks) -> Blocks:
        """Two groups of users as one."""
        arrays: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in ARRAYS}
        before, inside = (
            Leakages(*(np.concatenate([getattr(one, f.name), getattr(two, f.name)]) for f in fields(Leakages)))
            for one, two in ((self.before, other.before), (self.inside, other.inside))
        )
        return Blocks(**arrays, before=before, inside=inside)

    def _numbers(self, rows: Rows) -> NDArray[np.intp]:
        whole = isinstance(rows, np.ndarray) and rows.dtype.kind in "iu"
        return rows if whole else np.arange(len(self.levels))[rows]  # type: ignore[return-value]

    def _inner(self, users: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows of these users in the account inside."""
        entries = len(self.inside.most) // max(1, len(self.levels))
        return (users[:, None] * entries + np.arange(entries)).ravel()


class Disclosed(NamedTuple):
    """What an event of B blocks made public."""

    codes: Ints  # (B,)
    columns: Ints  # (B, n) f(released | x) · 2**62
    drawn: Ints  # (B,) weight of the fake draw, over 2**62
    impossible: Mask  # (B,) which releases given cannot have been made


def release(
    rule: BlockRule, blocks: Blocks, states: Floats, asked: Asked, real: Mask | None = None, asks: Ints | None = None
) -> Disclosed:
    """One event of each running block: by raw codes, a draw each and the hidden bits, or read from releases `given`.

    `states` (B, S) is the public belief. Every label that might be drawn is checked before the draw (`kept`). `asks`
    (B, 2) are other questions than those of the schedule, where schedules are tried.
    """
    users, n = len(states), rule.model.n
    codes = np.full(users, UNSAID, np.int64)
    columns, drawn = np.full((users, n), DENOMINATOR, np.int64), np.full(users, DENOMINATOR, np.int64)
    numbers = rule.numbers(blocks.levels)
    asks = rule.asks[blocks.places] if asks is None else asks
    caps = numbers[:, 1] / blocks.ratios
    some = np.flatnonzero((asks[:, 0] > 0) & (caps < 1.0 - 1e-6) & blocks.running)
    given, impossible = asked.given, np.zeros(users, bool)
    if some.size:
        if some.size == users:
            part, chosen, truth = blocks, asked, real
        else:
            part, truth = blocks.take(some), None if real is None else real[some]
            chosen = Asked(*(each[some] if each.size else each for each in asked))
        beliefs = filtering.symbols(rule.model, part.given)
        bits = np.zeros(some.size, bool) if truth is None else truth
        filled = codes[some], columns[some], drawn[some]
        impossible[some] = _ask(rule, (beliefs, numbers[some], caps[some], asks[some]), part, chosen, bits, filled)
        codes[some], columns[some], drawn[some] = filled
    rest = np.flatnonzero(codes == UNSAID)
    if rest.size:
        codes[rest] = rule.distortion.best_guess(filtering.symbols(rule.model, states[rest]))
    return Disclosed(codes, columns, drawn, impossible | (given != codes) if given.size else impossible)


def after(rule: BlockRule, blocks: Blocks, made: Disclosed, account: Leakages) -> tuple[Floats, Leakages, Blocks]:
    """Belief, account and blocks after an event of each running block.

    A block that has had all its events is not ended here: its cost is charged first (`Blocks.costs`, `Blocks.end`).
    """
    states, moved, marginal = follow(rule, blocks, made)
    disclosing = made.columns.min(1) != made.columns.max(1)
    if not disclosing.any() and rule.model.full_support:
        return states, account, moved
    inside = blocks.inside.skip(rule.model)
    if disclosing.any():  # each user as if alone: nothing disclosed is nothing charged, not even for rounding
        inside = either(np.repeat(disclosing, rule.entries), _charged(rule, blocks, made.columns, marginal), inside)
    moved = replace(moved, inside=inside)
    return states, _joined(rule, moved), moved


def follow(rule: BlockRule, blocks: Blocks, made: Disclosed) -> tuple[Floats, Blocks, Floats]:
    """Belief and blocks after an event, all but their account, and what the filter expected of the release: (B,)."""
    model, columns, users = rule.model, made.columns, len(made.codes)
    both, ones = np.concatenate([blocks.given, blocks.free]), np.full(columns.shape, DENOMINATOR, np.int64)
    ahead, marginal = filtering.move(model, both, np.concatenate([columns, ones]))
    given, free, marginal = ahead[:users], ahead[users:], marginal[:users]
    high = columns.max(1)
    silent = columns.min(1) == high
    ratios = np.where(silent, blocks.ratios, blocks.ratios * (marginal / high))
    skews = np.where(silent, blocks.skews, blocks.skews * (made.drawn / marginal))
    moved = replace(blocks, places=blocks.places + 1, free=free, given=given, ratios=ratios, skews=skews)
    return mixed(free, given, _fake(rule, moved)), moved, marginal


def posterior(rule: BlockRule, blocks: Blocks, made: Disclosed) -> Floats:
    """What an observer believes about the symbol of an event after its release: (B, n); `blocks` are those before."""
    named = filtering.symbols(rule.model, blocks.given) * made.columns
    marginal = filtering.total(named)
    fake = _fake(rule, replace(blocks, skews=blocks.skews * (made.drawn / marginal)))[:, None]
    return fake * filtering.symbols(rule.model, blocks.free) + (1.0 - fake) * named / marginal[:, None]


def _fake(rule: BlockRule, blocks: Blocks) -> Floats:
    """Probability that the bit is fake, given the path: (B,)."""
    fake = rule.numbers(blocks.levels)[:, 0]
    return fake * blocks.skews / (fake * blocks.skews + (1.0 - fake))


def _charged(rule: BlockRule, blocks: Blocks, columns: Ints, marginal: Floats) -> Leakages:
    """The extremes of log f/q after an event; a weight of 0 rules nothing out, as the bit may be fake."""
    weights: Any = np.maximum(columns, NEVER)
    low, high = weight_range(weights, filtering.possible(rule.model, blocks.free))  # the path itself rules nothing out
    if rule.entries > 1:
        weights, marginal, low, high = (np.repeat(each, rule.entries, 0) for each in (weights, marginal, low, high))
    return blocks.inside.charge(rule.model, weights, marginal, low, high)


def mixed(first: Floats, second: Floats, weight: Floats) -> Floats:
    """weight · first + (1-weight) · second, faint probabilities by their logarithms, as `filtering` keeps them."""
    share = weight[:, None]
    sums = share * filtering.clear(first) + (1.0 - share) * filtering.clear(second)
    if sums.min(initial=1.0) >= filtering.FAINT:
        return sums
    with np.errstate(divide="ignore"):
        logs = np.logaddexp(np.log(share) + filtering.as_logs(first), np.log1p(-share) + filtering.as_logs(second))
    near = np.where(np.isneginf(logs), 0.0, logs)
    return np.where(sums >= filtering.FAINT, sums, near)


def _fresh(rule: BlockRule, users: int) -> Leakages:
    """The inner account of blocks that begin: one row a user, or one for each first state."""
    if rule.entries == 1:
        flat = Leakages.start(rule.model, users)
        if rule.model.full_support:
            return flat
        ahead = np.zeros((users, rule.model.size))  # from whichever state it begins
        return Leakages(flat.most, flat.least, ahead, ahead.copy())
    at = np.tile(np.eye(rule.entries, dtype=bool), (users, 1))
    return Leakages(np.zeros(len(at)), np.zeros(len(at)), np.where(at, 0.0, -np.inf), np.where(at, 0.0, np.inf))


def either(who: Mask, one: Leakages, other: Leakages) -> Leakages:
    """The accounts of one kind for some users, of the other for the rest."""
    column = who[:, None]
    return Leakages(
        np.where(who, one.most, other.most),
        np.where(who, one.least, other.least),
        np.where(column, one.ahead_most, other.ahead_most),
        np.where(column, one.ahead_least, other.ahead_least),
    )


def _lifts(rule: BlockRule, blocks: Blocks, up: Floats, down: Floats) -> Floats:
    """Logs of the block's lifts from logs of f/q, (B·E,) or (B·E, S), rounded outward; what cannot be stays infinite.

    The lift is (fake · skew + (1-fake) · f/q) / (fake · skew + 1-fake). Both sides come in one array.
    """
    fake = rule.numbers(blocks.levels)[:, 0]
    guess, named = fake * blocks.skews, 1.0 - fake
    if rule.entries > 1:
        guess, named = np.repeat(guess, rule.entries), np.repeat(named, rule.entries)
    if up.ndim > 1:
        guess, named = guess[:, None], named[:, None]
    loose = (rule.length + 2) * 4 * slack(rule.model.size)
    sides = np.array((up, down))
    possible = np.isfinite(sides)
    logs = np.log((guess + named * np.exp(np.where(possible, sides, 0.0))) / (guess + named))
    logs = np.where(sides == 0, 0.0, logs + OUTWARD[logs.ndim] * (loose + 8 * UNIT * np.abs(logs)))
    return np.where(possible, logs, sides)


def _joined(rule: BlockRule, blocks: Blocks) -> Leakages:
    """The account with the running blocks in it: for each first state what came before plus what the block adds.

    Where first states are not kept apart and some cannot follow others this is a bound from above.
    """
    users, entries, inside, before = len(blocks.levels), rule.entries, blocks.inside, blocks.before
    if entries == 1 and not rule.model.full_support:
        first = np.array((before.ahead_most.max(1), before.ahead_least.min(1)))
    else:
        first = np.array((before.ahead_most.ravel(), before.ahead_least.ravel()))
    most, least = _add(first, _lifts(rule, blocks, inside.most, inside.least))
    if rule.model.full_support:
        return Leakages(most, least, most[:, None], least[:, None])
    up, down = _add(first[:, :, None], _lifts(rule, blocks, inside.ahead_most, inside.ahead_least))
    shape, wide = (users, entries), (users, entries, rule.model.size)
    return Leakages(
        most.reshape(shape).max(1), least.reshape(shape).min(1), up.reshape(wide).max(1), down.reshape(wide).min(1)
    )


def _add(total: Floats, part: Floats) -> Floats:
    """Logs added on both sides, rounded outward; what cannot be stays infinite, and nothing added is exact."""
    sums: Floats = total + part
    size = np.where((part == 0) | np.isinf(sums), 0.0, np.abs(sums))
    return sums + OUTWARD[sums.ndim] * (2 * UNIT * size)


def _ask(
    rule: BlockRule, public: tuple[Any, ...], blocks: Blocks, asked: Asked, real: Mask, filled: tuple[Ints, ...]
) -> Mask:
    """Fill in the releases of events that are asked, by cells that are checked; which given ones are impossible."""
    if rule.distortion.points is not None:
        return _ask_near(rule, public, blocks, asked, real, filled)
    users, n = public[0].shape
    codes, columns, drawn = filled
    state, code = np.empty(users, np.int64), form(ask, users)
    truths, thrown = (asked.truths, asked.randomness) if not asked.given.size else (codes, codes)
    given = (*public, blocks.ratios, blocks.skews, real.astype(np.int64), truths, thrown)

    def some(part: slice) -> None:
        here, known = [np.ascontiguousarray(array[part]) for array in given], asked.given[part]
        made = codes[part], columns[part], drawn[part], state[part]
        if code is not ask:
            code(rule.width, *here, known, *made)
            return
        lists = [array.tolist() for array in made]
        ask(rule.width, *(array.tolist() for array in here), known.tolist(), *lists)
        for array, values in zip(made, lists, strict=True):
            array[:] = values

    if code is ask:
        for at in range(0, users, LISTED):
            some(slice(at, at + LISTED))
    else:
        in_parts(users, some, n)
    return np.asarray(state == IMPOSSIBLE)


def _ask_near(
    rule: BlockRule, public: tuple[Any, ...], blocks: Blocks, asked: Asked, real: Mask, filled: tuple[Ints, ...]
) -> Mask:
    """`_ask` where a wrong symbol costs by its distance: the cells are sets of neighbours."""
    codes, columns, drawn = filled
    impossible = np.zeros(len(codes), bool)
    points = np.asarray(rule.distortion.points).reshape(rule.model.n, -1)
    for user, (belief, number, whole, ask) in enumerate(zip(*public, strict=True)):
        named = DENOMINATOR // EIGHTHS * int(ask[1])
        cap, fine, everything = max(part_of(float(whole), int(ask[0])), LEAST) * (1 + MARGIN), False, belief.sum()
        while not fine and cap < 1.0:
            cells, masses = neighbours(belief, points, cap * everything)
            base = np.where(np.arange(masses.size) == 0, DENOMINATOR - named, 0)
            mean, high = masses * named + everything * base, base + named
            hats = to_weights(mean / mean.sum())
            lists = mean.tolist(), high.tolist(), hats.tolist()
            fine = kept(float(blocks.ratios[user]), float(blocks.skews[user]), float(everything), number, *lists)
            cap *= 2.0
        if not fine or masses.size == 1:
            continue
        labels = centres(belief, points, cells, masses.size)
        if asked.given.size:
            label = int((labels == asked.given[user]).argmax())
            impossible[user] = labels[label] != asked.given[user]
        elif real[user]:
            label = int(cells[asked.truths[user]]) if asked.randomness[user] < named else 0
        else:
            label = int((np.cumsum(hats) <= asked.randomness[user]).sum())
        codes[user], drawn[user] = labels[label], hats[label]
        columns[user] = base[label] + named * (cells == label)
    return impossible


@compiled
def ask(
    width: int, beliefs: Any, numbers: Any, caps: Row, asks: Any, ratios: Row, skews: Row, real: Row, truths: Row,
    randomness: Row, given: Row, codes: Row, columns: Any, drawn: Row, state: Row,
) -> None:  # fmt: skip
    """Make each user's cells, check them, and draw from them; or find the column of the release given.

    A cap that leaves a label too rare for its weight, or outside of a bound, is raised until none is. Where nothing can
    be said, what stands in `codes`, `columns` and `drawn` is left.
    """
    rows, entries, plan = room_for(len(beliefs[0]), width)
    (labels, base, classes, masses), (owners, places, extras, known) = rows, entries
    top, after, share, filling, borders, marginal = plan
    mean, high, hats, of_row = reals(width), wholes(width), wholes(width), wholes(len(masses))
    for user in range(len(beliefs)):
        belief, column, number = beliefs[user], columns[user], numbers[user]
        cap = max(part_of(caps[user], asks[user][0]), LEAST) * (1.0 + MARGIN)
        first = float(EIGHTHS - asks[user][1]) / EIGHTHS
        made, fine = 0, False
        while not fine and cap < 1.0:
            made, everything, _ = table(
                belief, (number[0], 1.0 - number[0], cap, 0.0, first), labels, base, classes, masses, owners, places,
                extras, known, top, after, share, filling, borders, marginal,
            )  # fmt: skip
            fake_weights(made, everything, base, masses, owners, places, extras, mean, high, hats)
            fine = kept(ratios[user], skews[user], everything, number, mean, high, hats)
            cap *= 2.0
        state[user], label = LEFT, 0
        if not fine or hats[0] == DENOMINATOR:
            continue  # one label, which says nothing
        if len(given):
            while label < width and labels[label] != given[user]:
                label += 1
        elif real[user]:
            label = pick(classes[truths[user]], randomness[user], made, base, owners, places, extras)
        else:
            uniform = randomness[user]
            while uniform >= hats[label]:
                uniform -= hats[label]
                label += 1
        state[user] = IMPOSSIBLE
        if label < width and hats[label] > 0:
            codes[user], drawn[user], state[user] = labels[label], hats[label], DONE
            for row in range(owners[made - 1] + 1):
                of_row[row] = base[label]
            for entry in range(made):
                of_row[owners[entry]] += extras[entry] if places[entry] == label else 0
            for x in range(len(belief)):
                column[x] = of_row[classes[x]]


@compiled
def part_of(cap: float, eighths: int) -> float:
    """cap^(eighths/8) by square roots and products alone, which every machine rounds alike."""
    if eighths == EIGHTHS:
        return cap
    root, out = math.sqrt(math.sqrt(math.sqrt(cap))), 1.0
    for _ in range(eighths):
        out *= root
    return out


@compiled
def fake_weights(
    made: int, everything: float, base: Row, masses: Row, owners: Row, places: Row, extras: Row, mean: Row, high: Row,
    hats: Row,
) -> None:  # fmt: skip
    """Fill in for each label its expected and largest weight, and the weight of its fake draw; these sum to 2**62."""
    width = len(mean)
    for k in range(width):
        mean[k], high[k] = everything * float(base[k]), base[k]
    for entry in range(made):
        k = places[entry]
        high[k] = max(high[k], base[k] + extras[entry])
        mean[k] += masses[owners[entry]] * float(extras[entry])
    left, best = DENOMINATOR, 0
    for k in range(width):
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
        if high[k] > 0:
            expected = mean[k] / everything
            guess = number[0] * (skew * (float(hats[k]) / expected) if expected > 0.0 else 0.0)
            most = named * (float(high[k]) / (ratio * expected)) if expected > 0.0 else ONE
            bounded = guess + most <= number[2] * (guess + named) and guess >= number[3] * (guess + named)
            if not (bounded and expected >= 0.5 * LEAST * ONE):
                return False
    return True
