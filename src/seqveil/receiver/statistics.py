"""What a receiver may say about the truth behind a set of released streams: counts with confidence intervals.

Everything is computed from releases and public parameters, so it is post-processing and costs no privacy. There are
three ways to an interval; docs/receiver.md says what each assumes.

*By design*: each release is inverted to an unbiased estimate of its symbol's indicator (`inversion`).

*Learned*, where that cannot be: chains that explain the releases about as well are drawn from the posterior of one that
is learned from them (`learn`), and under each of them truths for every stream, by filtering forward and sampling
backward. The counts of these truths vary as much as the releases leave open.

*Under the model*, for releases that identify no chain, as they keep a secret, or about which a single one may be far
off: truths are drawn under the model of the release, and an interval is what all but the outermost have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.bulk import places_within
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.engine.blocks import Made
from seqveil.engine.stream import Rows, Terms
from seqveil.receiver.evidence import Chain, Evidence
from seqveil.receiver.inversion import Indicators, histogram, indicators, transitions
from seqveil.receiver.learn import mode, posterior

DRAWN = 80  # truths drawn where releases cannot be inverted: of 80 the second from either side ends 95 %
EACH = 2  # of them are drawn under one learned chain: following the releases takes most of the time
ROOM = 1 << 24  # numbers that are held of a block of streams under several chains
BESIDE = 2_000  # streams under one chain each that go side by side: of more, a step no longer fits the cache
STRENGTH = 2.0  # pseudo-moves a row that the model of the release counts for
LONGEST = 60  # symbols up to which a chain is learned with its uncertainty
MOST_STATES = 2000  # states of a model up to which truths are drawn under it
# a symbol of which a guarded release reveals less is counted by the model, not by the releases
ENOUGH = 0.5
DESIGN = "nothing about the data, except that rows outside the alphabet count as draws from the belief"
LEARNED = "users are independent and follow one chain of order 1, which is learned from the releases"
HIDDEN = "releases that keep a secret identify no chain: any value may stand for the one they hide"
MODEL = "users are independent and follow the model of the release, as the promise about the secrets does"


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimates with their standard errors and confidence intervals; NaN where nothing can be said."""

    value: Floats
    error: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class Summary:
    """What the releases say about these streams. Counts are of the streams themselves, not of a wider population."""

    users: int
    events: int
    confidence: float
    method: str  # "design", "learned" or "model"
    assumes: str
    histogram: Estimate  # (n,) how often each symbol occurred
    over_time: Estimate  # (W, n) the same in each window
    in_window: Ints  # (W,) events there are in each window: public
    transitions: Estimate  # (n, n) how often each symbol followed each
    disclosed: Floats | None = None  # (n,) of "guarded" releases: mean probability of a symbol where it is the truth

    @property
    def undisclosed(self) -> tuple[int, ...]:
        """Codes that guarded releases reveal so little of that their counts are those of the model."""
        return () if self.disclosed is None else tuple(np.flatnonzero(self.disclosed < ENOUGH).tolist())

    def known(self, intervals: bool) -> Summary:
        """What may be said of it; without `intervals` the estimates alone.

        A symbol that guarded releases hardly reveal has no estimate (NaN): it would be the model's guess. Its interval
        holds everything that is possible.
        """
        gone = np.isin(np.arange(self.histogram.value.size), self.undisclosed)
        most: dict[str, Any] = {
            "histogram": self.events,
            "over_time": self.in_window[:, None],
            "transitions": self.events - self.users,
        }
        found = dict[str, Any]()
        for name, highest in most.items():
            was = getattr(self, name)
            unknown = gone[:, None] | gone if name == "transitions" else np.broadcast_to(gone, was.value.shape)
            value, error = np.where(unknown, np.nan, was.value), np.where(unknown, np.nan, was.error)
            ends = np.where(unknown, 0.0, was.low), np.where(unknown, highest, was.high)
            nothing = np.full(value.shape, np.nan)
            found[name] = Estimate(value, error, *ends) if intervals else Estimate(value, nothing, nothing, nothing)
        return replace(self, **found)


def summarise(
    setting: Terms,
    users: ArrayLike,
    codes: Ints,
    times: Floats | None = None,
    epsilons: Floats | None = None,
    *,
    confidence: float = 0.95,
    window: int | None = None,
    method: str = "auto",
    seen: Callable[[Rows, Made], None] | None = None,
) -> Summary:
    """Counts behind released streams with confidence intervals, from releases and public parameters alone.

    `method` "auto" takes "design" where every release can be inverted and no few events outweigh the others, "model"
    for "guarded" releases, and for blocks under a model that is more than one chain of order 1, and else "learned".

    Users (names or numbers) and codes stand event by event, in time order within each user; `epsilons` are as in
    `Evidence.of_streams`, and so is `seen`, unless releases are inverted; `window` counts the events of a stream that
    make one window of the histogram over time (one window by default).

    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.policy import Policy
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> setting = Policy(epsilon=2.0, mechanism="randomized_response").on(model)
    >>> found = summarise(setting, ["ann"] * 6 + ["bob"] * 4, np.array([0, 0, 0, 1, 1, 0, 0, 0, 0, 1]))
    >>> found.method, found.histogram.value.round(1).tolist(), found.events
    ('design', [7.6, 2.4], 10)

    Reference: Kairouz, Bonawitz, Ramage 2016 (inversion); Carter, Kohn 1994 (forward filtering, backward sampling).
    """
    if setting.in_batches:
        raise InputError("intervals are for releases one by one or in blocks; decode a release in batches instead")
    if not setting.mechanism.sound:
        raise InputError(f'mechanism "{setting.mechanism.name}" is not sound; use one that is, such as "optimal"')
    if np.size(users) != codes.size or not codes.size:
        raise InputError(f"expected a user for each of at least one release, got {np.size(users)} for {codes.size}")
    if method not in ("auto", "design", "learned", "model"):
        raise InputError('expected method "auto", "design", "learned" or "model"')
    if not 0.5 <= confidence < 1:
        raise InputError(f"expected a confidence from 0.5 up to 1, got {confidence}")
    if method == "learned" and setting.guards:
        raise InputError(f"{HIDDEN}; use method model, which reads them under the model of the release")
    if window is not None and window < 1:
        raise InputError(f"expected a window of at least 1 event, got {window}")
    people, who = np.unique(users, return_inverse=True)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    slots = places_within(np.bincount(who)) // (window or codes.size)  # the window of every event, events in user order
    found = indicators(setting, who, codes, times) if method in ("auto", "design") else None
    if method == "auto" and found is not None and found.heavy:
        found = None
    if found is None and method == "design":
        raise InputError(
            "some releases cannot be inverted: fewer outputs than symbols, held at ε = 0, in blocks, or to keep "
            "secrets; use method model, or learned where there are no secrets"
        )
    disclosed = None
    if found is not None:
        parts, way = _design(found, slots, z), ("design", DESIGN)
    else:
        several = setting.in_blocks and setting.model.size > setting.model.n
        under_model = method == "model" or (method == "auto" and (setting.guards or several))
        _check_size(setting.model, under_model)
        order = np.argsort(who, kind="stable")
        stamps, used = (None if each is None else each[order] for each in (times, epsilons))
        evidence = Evidence.of_streams(setting, who[order], codes[order], stamps, used, seen)
        drawn = _drawn(setting.model, evidence, slots, under_model)
        parts = drawn.estimates(evidence, z, _ranked if under_model else _spread)
        way = ("model", MODEL) if under_model else ("learned", LEARNED)
        disclosed = drawn.disclosed if setting.guards else None
    histogram, over_time, transitions = parts
    about = (people.size, codes.size, confidence, *way)
    return Summary(*about, histogram, over_time, np.bincount(slots), transitions, disclosed)


Parts = tuple[Estimate, Estimate, Estimate]  # histogram, over time, transitions
Spread = Callable[[Floats, float, float | Floats], Estimate]


def _design(found: Indicators, slots: Ints, z: float) -> Parts:
    counts, spread = histogram(found, slots, int(slots.max()) + 1)
    size = np.bincount(slots).astype(np.float64)
    moves, moved = transitions(found)
    return (
        _interval(counts.sum(0), spread.sum(0), z, float(size.sum())),
        _interval(counts, spread, z, size[:, None]),
        _interval(moves, moved, z, float((found.place > 0).sum())),
    )


def _interval(value: Floats, variance: Floats, z: float, most: float | Floats) -> Estimate:
    error = np.sqrt(np.maximum(variance, 0.0))
    low, high = np.clip(value - z * error, 0.0, most), np.clip(value + z * error, 0.0, most)
    return Estimate(np.clip(value, 0.0, most), error, low, high)


class _Draws:
    """Counts in truths drawn so many times `each` under so many `chains`."""

    def __init__(self, window: Ints, n: int, each: int, chains: int) -> None:
        """`window` (E,) numbers the windows of all events, in user order."""
        self.window, self.size = window, np.bincount(window).astype(np.float64)
        self.histograms = np.zeros((each, chains, self.size.size, n))
        self.moves = np.zeros((each, chains, n, n))
        self.twice = np.zeros(n)  # how often two truths that were drawn apart have the symbol at the same event

    def count(self, truth: Ints, at: tuple[slice, slice], events: Ints, lengths: Ints) -> None:
        """Count what is within a block of streams, in some of its truths, (T, each, chains, U)."""
        (steps, each, chains, users), (windows, n) = truth.shape, self.histograms.shape[2:]
        many, truth = each * chains, truth.reshape(steps, each * chains, users)
        inside = np.broadcast_to((np.arange(steps)[:, None] < lengths)[:, None], truth.shape)
        number, window = np.arange(many)[:, None], self.window[events.T][:, None]
        seen = np.bincount(((number * windows + window) * n + truth)[inside], minlength=many * windows * n)
        self.histograms[at] += seen.reshape(each, chains, windows, n)
        moved = np.bincount(((number * n + truth[:-1]) * n + truth[1:])[inside[1:]], minlength=many * n * n)
        self.moves[at] += moved.reshape(each, chains, n, n)
        same = (truth == np.roll(truth, 1, axis=1)) & inside  # neighbours are of different chains, if there are several
        self.twice += np.bincount(truth[same], minlength=n)

    @property
    def disclosed(self) -> Floats:
        """The mean probability of a symbol at the events where it is the truth, (n,): 1 where the releases say it."""
        events = self.histograms.sum((0, 1, 2))
        return np.asarray(self.twice / np.where(events > 0, events, np.nan))

    def estimates(self, evidence: Evidence, z: float, spread: Spread) -> Parts:
        """What the drawn truths have in common, and how far they differ."""
        histograms, moves = (counts.reshape(-1, *counts.shape[2:]) for counts in (self.histograms, self.moves))
        return (
            spread(histograms.sum(1), z, float(evidence.events)),
            spread(histograms, z, self.size[:, None]),
            spread(moves, z, float(evidence.events - evidence.people)),
        )


def _check_size(model: MarkovModel, under_model: bool) -> None:
    """Refuse, before anything is followed, what would take too long."""
    if under_model and model.size > MOST_STATES:
        raise InputError(
            f"counts under the model take at most {MOST_STATES} states, the model has {model.size}; decode the "
            "releases and count what comes out"
        )
    if not under_model and model.n > LONGEST:
        raise InputError(
            f"intervals from a learned chain take at most {LONGEST} symbols, the model has {model.n}; use method "
            "model, or fit with fewer: wider bins, a coarser grid, a larger --cell-metres"
        )


def _drawn(model: MarkovModel, evidence: Evidence, window: Ints, under_model: bool) -> _Draws:
    """Truths that the releases leave open, drawn under chains learned from them or under the model of the release.

    The generator is seeded: no privacy rests on it, and the same releases give the same intervals.
    """
    if under_model:
        chains = Chain(model.states.initial[None], model.advance(np.eye(model.size))[None])
        newest, each = model.states.newest, DRAWN
    else:
        centre = Chain.of(model)
        centre = Chain(*(0.99 * part + 0.01 / model.n for part in (centre.first, centre.rows)))  # rules nothing out
        top = mode(evidence, centre, STRENGTH)[0].chain
        chains, newest, each = posterior(top, evidence, STRENGTH, DRAWN // EACH), np.arange(model.n), EACH
    found, generator = _Draws(window, model.n, each, len(chains.first)), np.random.default_rng(0)
    for walk in evidence.blocks(newest=newest):
        users, events = walk.places.shape
        room = ROOM // max(users * events * walk.cases * chains.n, found.moves[0, 0].size, found.histograms[0, 0].size)
        at_once = max(2, min(room, BESIDE // users))
        for some in _parts(len(chains.first), at_once):
            walk.forward(chains.part(some))
            for draws in _parts(each, max(1, at_once // (some.stop - some.start))):
                truth = newest[walk.sample(generator, draws.stop - draws.start)]
                found.count(truth, (draws, some), walk.places, walk.lengths)
    return found


def _parts(whole: int, most: int) -> list[slice]:
    """So many in parts of like size, of so many at most."""
    ends = np.linspace(0, whole, -(-whole // most) + 1).astype(np.int64).tolist()
    return [slice(begin, end) for begin, end in pairwise(ends)]


def _spread(drawn: Floats, z: float, most: float | Floats) -> Estimate:
    """Mean and interval of drawn values, (S, …), widened for there being so few chains behind them.

    The last factor makes z the quantile of Student's t, up to terms of the order of 1/chains².
    """
    fewer = EACH / len(drawn)
    wider = (1 + fewer) * (1 + (z**2 + 1) / 4 * fewer) ** 2
    return _interval(drawn.mean(0), drawn.var(0, ddof=1) * wider, z, most)


def _ranked(drawn: Floats, z: float, most: float | Floats) -> Estimate:
    """Mean of drawn values, (S, …), and as the ends of its interval the k-th value from either side.

    Under the model the truth is one draw more. Of S + 1 values in any order, it is one of the k outermost on either
    side with a probability of at most 2k / (S + 1), whatever their distribution: counts of rare symbols are far from
    normal.
    """
    found, ordered = _spread(drawn, z, most), np.sort(drawn, axis=0)
    outer = int(NormalDist().cdf(-z) * (len(drawn) + 1) + 1e-9)
    if outer:
        low, high = np.minimum(ordered[outer - 1], found.value), np.maximum(ordered[-outer], found.value)
    else:  # further out than there are draws
        low, high = np.minimum(ordered[0], found.low), np.maximum(ordered[-1], found.high)
    return replace(found, low=low, high=high)
