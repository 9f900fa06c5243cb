"""What a receiver may say about the truth behind a set of released streams: counts with confidence intervals.

Everything is computed from releases and public parameters, so it is post-processing and costs no privacy. There are
three ways to an interval.

*By design*, where every release can be inverted: each release is an unbiased estimate of its symbol's indicator,
whatever the distribution of the data (`inversion`); only the randomness is random.

*Learned*, where they cannot: a chain of order 1 is learned from the releases (`seqveil.learn`), chains that explain
them about as well are drawn from its posterior, and under each of them one truth is drawn for every stream, by
filtering forward and sampling backward. The counts of these truths vary as much as the releases leave open. That
assumes that users are independent, and that one chain of order 1 describes them all. Which one is learned; where the
releases say little about it, the model of the release fills in.

*Under the model*, for "guarded" releases whose model is of a higher order or of several types: truths are drawn under
that very model, and an interval is what all but the outermost of them have in common. The releases tell so little about
the secrets that a single chain learned from them may be far off.
What `Summary.disclosed` says of a symbol is how much of its count the releases tell, and how much the model fills in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from seqveil.core.bulk import numbered, places_within
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.engine.state import Rows
from seqveil.engine.stream import Terms
from seqveil.receiver.evidence import Walk
from seqveil.receiver.inversion import Indicators, dwell, histogram, indicators, transitions
from seqveil.receiver.learn import Chain, Evidence, learn, region

DRAWN = 200  # truths drawn where releases cannot be inverted
STRENGTH = 2.0  # pseudo-moves a row that the model of the release counts for
BLOCK = 4_000_000  # numbers held at once
LONGEST = 60  # symbols up to which a chain is learned with its uncertainty
MOST_STATES = 2000  # states of a model up to which truths are drawn under it
TOLD = 0.5  # a symbol that a guarded release tells less of is counted by the chain or the model, not by the releases
DESIGN = "nothing about the data, except that rows outside the alphabet count as draws from the belief"
LEARNED = "users are independent and follow one chain of order 1, which is learned from the releases"
MODEL = "users are independent and follow the model of the release, as the promise about the secrets does"


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimates with their standard errors and confidence intervals; NaN where nothing can be said."""

    value: Floats
    error: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class TopSymbol:
    """One of the most frequent symbols: its share, and whether it is among them for sure, all symbols together."""

    code: int
    share: float
    low: float
    high: float
    sure: bool


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
    dwell: Estimate  # (n,) mean length of a symbol's runs
    top: tuple[TopSymbol, ...]
    maybe_top: tuple[int, ...]  # codes that may be among the top as well
    disclosed: Floats | None = (
        None  # (n,) of "guarded" releases: the mean probability of a symbol where it is the truth
    )

    @property
    def undisclosed(self) -> tuple[int, ...]:
        """Codes that guarded releases tell so little of that their counts are those of a chain or model."""
        return () if self.disclosed is None else tuple(np.flatnonzero(self.disclosed < TOLD).tolist())

    def without_intervals(self) -> Summary:
        """The estimates alone, for where what they assume does not hold: no interval, and no symbol surely on top.

        A symbol that guarded releases hardly tell has no estimate either (NaN): it would be a guess.
        """
        gone = np.isin(np.arange(self.histogram.value.size), self.undisclosed)
        return replace(
            self,
            histogram=_bare(self.histogram, gone),
            over_time=_bare(self.over_time, gone),
            transitions=_bare(self.transitions, gone[:, None] | gone),
            dwell=_bare(self.dwell, gone),
            top=tuple(
                replace(each, low=math.nan, high=math.nan, sure=False) for each in self.top if not gone[each.code]
            ),
            maybe_top=(),
        )


def _bare(estimate: Estimate, gone: NDArray[np.bool_]) -> Estimate:
    nothing = np.full(estimate.value.shape, np.nan)
    return Estimate(np.where(gone, np.nan, estimate.value), nothing, nothing, nothing)


def summarise(
    setting: Terms,
    users: Sequence[Hashable],
    codes: Ints,
    times: Floats | None = None,
    *,
    confidence: float = 0.95,
    window: int | None = None,
    top: int = 5,
    method: str = "auto",
) -> Summary:
    """Counts behind released streams with confidence intervals, from releases and public parameters alone.

    Where every release can be inverted (`randomized_response`, any kernel with as many outputs as symbols, at ε > 0
    throughout) and no few events outweigh the others, the intervals assume nothing about the data: "design". Else a
    chain is learned from the releases and truths are drawn from what they leave open: "learned". The model of the
    release is trusted in neither, though the second leans on it where the releases say little. "guarded" releases under
    a model that is more than one chain of order 1 are read under that model, which is trusted then: "model".

    Parameters: users and released codes, event by event, in time order within each user; `window` counts events of a
    stream that make one window of the histogram over time (one window by default); `method` is "auto", "design",
    "learned" or "model".

    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.policy import Policy
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> setting = Policy(epsilon=2.0, mechanism="randomized_response").on(model)
    >>> found = summarise(setting, ["ann"] * 6 + ["bob"] * 4, np.array([0, 0, 0, 1, 1, 0, 0, 0, 0, 1]))
    >>> found.method, found.histogram.value.round(1).tolist(), found.events
    ('design', [7.6, 2.4], 10)

    Reference: Kairouz, Bonawitz, Ramage 2016 (inversion); Carter, Kohn 1994 (forward filtering, backward sampling).
    """
    _check(setting, users, codes, confidence, window, top, method)
    index: dict[Hashable, int] = {}
    who = numbered(index, users)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    slots = places_within(np.bincount(who)) // (window or codes.size)  # the window of every event, events in user order
    size = np.bincount(slots)
    found = indicators(setting, who, codes, times) if method in ("auto", "design") else None
    if method == "auto" and found is not None and found.heavy:
        found = None
    if found is None and method == "design":
        raise InputError(NO_DESIGN_GUARDED if setting.guards else NO_DESIGN)
    if found is not None:
        parts, way, disclosed = _design(found, slots, z), ("design", DESIGN), None
    else:
        parts, way, disclosed = _drawn(setting, (who, codes, times), slots, z, method)
    histogram, over_time, transitions, dwell = parts
    leading, others = _top(histogram, codes.size, top, confidence, z)
    about = (len(index), codes.size, confidence, *way)
    return Summary(*about, histogram, over_time, size, transitions, dwell, leading, others, disclosed)


NO_DESIGN = (
    "some releases cannot be inverted: fewer outputs than symbols, or held at ε = 0; use method learned, or "
    "release with randomized_response"
)
NO_DESIGN_GUARDED = (
    "releases that keep declared secrets cannot be inverted, because they tell too little about them; use method "
    "learned or model"
)


def _check(
    setting: Terms,
    users: Sequence[Hashable],
    codes: Ints,
    confidence: float,
    window: int | None,
    top: int,
    method: str,
) -> None:
    """Refuse what intervals cannot be had for, and options that mean nothing."""
    if setting.in_batches or setting.in_blocks:
        raise InputError("intervals are for releases one by one; decode a release in batches or blocks instead")
    if not setting.mechanism.sound:
        raise InputError(f'mechanism "{setting.mechanism.name}" is not sound; use one that is, such as "optimal"')
    if len(users) != codes.size or not codes.size:
        raise InputError(f"expected a user for each of at least one release, got {len(users)} for {codes.size}")
    if not 0.5 <= confidence < 1:
        raise InputError(f"expected a confidence from 0.5 up to 1, got {confidence}")
    if (window is not None and window < 1) or top < 1:
        raise InputError("expected a window and a number of top symbols of at least 1")
    if method not in ("auto", "design", "learned", "model"):
        raise InputError('expected method "auto", "design", "learned" or "model"')


def _design(found: Indicators, slots: Ints, z: float) -> Parts:
    counts, spread = histogram(found, slots, int(slots.max()) + 1)
    size = np.bincount(slots).astype(np.float64)
    moves, moved = transitions(found)
    mean, low, high = dwell(found, z)
    return (
        _interval(counts.sum(0), spread.sum(0), z, 0.0, float(size.sum())),
        _interval(counts, spread, z, 0.0, size[:, None]),
        _interval(moves, moved, z, 0.0, float(len(found.follows()))),
        Estimate(mean, (high - low) / (2 * z), low, high),
    )


def _interval(value: Floats, variance: Floats, z: float, least: float, most: float | Floats) -> Estimate:
    error = np.sqrt(np.maximum(variance, 0.0))
    low, high = np.clip(value - z * error, least, most), np.clip(value + z * error, least, most)
    return Estimate(np.clip(value, least, most), error, low, high)


Parts = tuple[Estimate, Estimate, Estimate, Estimate]  # histogram, over time, transitions, dwell
Spread = Callable[[Floats, float, float, float | Floats], Estimate]
Said = tuple[Rows, Ints, Floats | None]  # users, codes, times


def _drawn(
    setting: Terms, said: Said, slots: Ints, z: float, method: str
) -> tuple[Parts, tuple[str, str], Floats | None]:
    """Estimates from drawn truths, the method with what it assumes, and how much guarded releases tell of symbols."""
    several = setting.guards and setting.model.size > setting.model.n
    under_model = method == "model" or (method == "auto" and several)
    drawn = (_model_draws if under_model else _learned_draws)(setting, said, slots)
    way = ("model", MODEL) if under_model else ("learned", LEARNED)
    parts = _counted(drawn, said, slots, z, _ranked if under_model else _spread)
    return parts, way, drawn.disclosed() if setting.guards else None


def _counted(drawn: _Draws, said: Said, slots: Ints, z: float, spread: Spread) -> Parts:
    """What the drawn truths have in common, and how far they differ."""
    size, codes = np.bincount(slots).astype(np.float64), said[1]
    runs = drawn.runs()
    mean = drawn.histogram.sum(1) / np.where(runs > 0, runs, np.nan)
    pairs = float(codes.size - len(np.unique(said[0])))
    return (
        spread(drawn.histogram.sum(1), z, 0.0, float(size.sum())),
        spread(drawn.histogram, z, 0.0, size[:, None]),
        spread(drawn.transitions, z, 0.0, pairs),
        spread(mean, z, 1.0, math.inf),
    )


@dataclass(frozen=True, eq=False)
class _Draws:
    """Counts in each of S drawn truths."""

    histogram: Floats  # (S, W, n)
    transitions: Floats  # (S, n, n)
    squares: Floats  # (n,) Σ over events of the squared share of the truths that have the symbol there

    @classmethod
    def empty(cls, window: Ints, n: int) -> _Draws:
        """Nothing counted yet; `window` numbers the windows of all events."""
        shape = (DRAWN, int(window.max()) + 1, n)
        return cls(np.zeros(shape), np.zeros((DRAWN, n, n)), np.zeros(n))

    def disclosed(self) -> Floats:
        """The mean probability of a symbol at the events where it is the truth, (n,): 1 where the releases say it."""
        events = self.histogram.sum(1).mean(0)
        return np.asarray(self.squares / np.where(events > 0, events, np.nan))

    def runs(self) -> Floats:
        """How many runs each symbol has, (S, n)."""
        return np.asarray(self.histogram.sum(1) - np.diagonal(self.transitions, axis1=1, axis2=2))

    def add(self, number: int, truth: Ints, lengths: Ints, window: Ints) -> None:
        """Count what is within the streams of one drawn truth."""
        (_, windows, n), inside = self.histogram.shape, np.arange(truth.shape[1]) < lengths[:, None]
        seen = np.bincount((window * n + truth)[inside], minlength=windows * n)
        self.histogram[number] += seen.reshape(windows, n)
        moved = np.bincount((truth[:, :-1] * n + truth[:, 1:])[inside[:, 1:]], minlength=n * n)
        self.transitions[number] += moved.reshape(n, n)

    def count_block(self, truths: Iterable[Ints], lengths: Ints, window: Ints) -> None:
        """Count all truths of a block of streams, drawn one after another."""
        n = self.squares.size
        inside = np.arange(window.shape[1]) < lengths[:, None]
        often = np.zeros((int(inside.sum()), n))
        events = np.arange(len(often))
        for number, truth in enumerate(truths):
            self.add(number, truth, lengths, window)
            often[events, truth[inside]] += 1
        self.squares[:] += ((often / DRAWN) ** 2).sum(0)


def _evidence(setting: Terms, said: Said) -> Evidence:
    """The releases as evidence, stream by stream."""
    users, codes, times = said
    order = np.argsort(users, kind="stable")
    return Evidence.of_streams(setting, users[order], codes[order], None if times is None else times[order])


def _learned_draws(setting: Terms, said: Said, window: Ints) -> _Draws:
    """Counts of truths that the releases leave open; `window` (E,) numbers the windows, events in user order.

    The generator is seeded: no privacy rests on it, and the same releases give the same intervals.
    """
    model = setting.model
    if model.n > LONGEST:
        raise InputError(
            f"intervals from a learned chain take at most {LONGEST} symbols, the model has {model.n}; use wider bins "
            "or a coarser grid, or release with randomized_response"
        )
    evidence = _evidence(setting, said)
    learned = learn(evidence, model.alphabet, start=_full(model), strength=STRENGTH)
    generator = np.random.default_rng(0)
    found = _Draws.empty(window, model.n)
    chains = region(learned, evidence).chains(DRAWN)
    for events, lengths in evidence.layout.blocks(BLOCK // model.n):
        walks = (Walk(chain, evidence.table, evidence.index[events], lengths) for chain in chains)
        found.count_block((_walked(walk).sample(generator) for walk in walks), lengths, window[events])
    return found


def _walked(walk: Walk) -> Walk:
    walk.forward()
    return walk


def _model_draws(setting: Terms, said: Said, window: Ints) -> _Draws:
    """The same with truths drawn under the model of the release, whatever its order and its types."""
    model = setting.model
    if model.size > MOST_STATES:
        raise InputError(
            f"counts under the model take at most {MOST_STATES} states, the model has {model.size}; decode "
            "them into a histogram instead, or use method learned"
        )
    chain, newest = Chain(model.states.initial, model.advance(np.eye(model.size))), model.states.newest
    evidence, generator = _evidence(setting, said), np.random.default_rng(0)
    found = _Draws.empty(window, model.n)
    for events, lengths in evidence.layout.blocks(max(1, BLOCK // model.size)):
        rows, index = np.unique(evidence.index[events], return_inverse=True)
        walk = _walked(Walk(chain, evidence.table[rows][:, newest], index.reshape(events.shape), lengths))
        found.count_block((newest[walk.sample(generator)] for _ in range(DRAWN)), lengths, window[events])
    return found


def _full(model: MarkovModel) -> Chain:
    """The model as a chain of order 1 that rules nothing out."""
    n = model.n
    table = model.advance(np.eye(n)) if model.size == n else np.tile(model.base_distribution, (n, 1))
    return Chain(0.99 * model.prior + 0.01 / n, 0.99 * table + 0.01 / n)


def _spread(drawn: Floats, z: float, least: float, most: float | Floats) -> Estimate:
    """Mean and interval of drawn values, (S, …), widened for there being S of them only."""
    count = len(drawn)
    return _interval(drawn.mean(0), drawn.var(0, ddof=1) * (1 + 1 / count), z, least, most)


def _ranked(drawn: Floats, z: float, least: float, most: float | Floats) -> Estimate:
    """Mean of drawn values, (S, …), and as the ends of its interval the k-th value from either side.

    Under the model the truth is one draw more. Of S + 1 values in any order, it is one of the k outermost on either
    side with a probability of at most 2k / (S + 1), whatever their distribution: counts of rare symbols are far from
    normal.
    """
    found, ordered = _spread(drawn, z, least, most), np.sort(drawn, axis=0)
    outer = int(NormalDist().cdf(-z) * (len(drawn) + 1) + 1e-9)
    if outer:
        low, high = np.minimum(ordered[outer - 1], found.value), np.maximum(ordered[-outer], found.value)
    else:  # further out than there are draws
        low, high = np.minimum(ordered[0], found.low), np.maximum(ordered[-1], found.high)
    gone = np.isnan(found.value)
    return replace(found, low=np.where(gone, np.nan, low), high=np.where(gone, np.nan, high))


def _top(
    histogram: Estimate, events: int, top: int, confidence: float, z: float
) -> tuple[tuple[TopSymbol, ...], tuple[int, ...]]:
    """The most frequent symbols; who is surely or maybe among them holds for all symbols at once (Bonferroni)."""
    n = histogram.value.size
    wide = NormalDist().inv_cdf(1 - (1 - confidence) / (2 * n)) * histogram.error
    low, high = histogram.value - wide, histogram.value + wide
    order = np.argsort(-histogram.value, kind="stable")
    alternatives: NDArray[np.bool_] = high[None, :] >= low[:, None]  # others that may be as frequent
    np.fill_diagonal(alternatives, False)
    sure = alternatives.sum(1) < top
    maybe = (low[None, :] > high[:, None]).sum(1) < top
    shares = (histogram.value / events, histogram.low / events, histogram.high / events)
    share, least, most = shares
    leading = tuple(
        TopSymbol(int(x), float(share[x]), float(least[x]), float(most[x]), bool(sure[x])) for x in order[:top]
    )
    return leading, tuple(int(x) for x in order[top:] if maybe[x])
