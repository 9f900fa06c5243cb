"""Streams of people with all that an experiment needs to know of them: the class, and synthetic streams in its form."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from seqveil.core.alphabet import Alphabet, Bins, Codes, Floats, Grid, Symbols
from seqveil.core.distortion import Distortion, absolute, euclidean, hamming
from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import fit_codes
from seqveil.core.model import SMOOTHING, MarkovModel
from seqveil.interfaces import datasets
from seqveil.interfaces.datasets import Generated

WARM_UP = 900  # seconds until the filters of a heart rate forget how they began
SHELF = 250  # items among which a shopper looks on
SPEEDS = (0.075, 0.3, 0.75)  # kilometres a minute on foot, by bus and by car
TRIPS = (0.08, 0.27, 0.65)  # how common each is
WIDE, HIGH = 38.4, 38.9  # kilometres of the box over inner Beijing
TOP = (0.61, 0.46, 0.37, 0.20)  # Kosarak: share of lines that hold each of the four most clicked items


@dataclass(frozen=True, eq=False)
class Dataset:
    """Streams of codes with everything an experiment needs to know of them.

    `streams` has a row an event, in order: `user`, the number of the stream, and `value`, a code of `alphabet`.
    `index` has a row a stream: `user`, the `person` it is of, the `recording` of that person, and its `length`. A
    stream is what a chain may be fitted along; a person with several recordings has several streams. `about` says what
    they are, under which terms, and what to cite.
    """

    streams: pl.DataFrame
    index: pl.DataFrame
    alphabet: Symbols
    distortion: Distortion
    name: str = ""
    about: str = ""

    @classmethod
    def of(
        cls, person: NDArray[Any], codes: NDArray[Any], alphabet: Symbols, distortion: Distortion, recording: Any = 0
    ) -> Dataset:
        """From columns in order: a stream ends where person or recording changes."""
        if not len(codes):
            raise DataError("no events are left after filtering; ask for more users")
        part = np.broadcast_to(np.asarray(recording, np.int32), len(codes))
        new = np.r_[True, (person[1:] != person[:-1]) | (part[1:] != part[:-1])]
        begins = np.flatnonzero(new)
        streams = pl.DataFrame({"user": np.cumsum(new, dtype=np.int32) - 1, "value": codes.astype(np.int32)})
        rows = {"user": np.arange(len(begins), dtype=np.int32), "person": person[begins], "recording": part[begins]}
        lengths = np.diff(np.r_[begins, len(codes)]).astype(np.int64)
        return cls(streams, pl.DataFrame(rows | {"length": lengths}), alphabet, distortion)

    @classmethod
    def of_rows(cls, codes: Codes, alphabet: Symbols, distortion: Distortion) -> Dataset:
        """From (users, length) codes: one stream a person."""
        person = np.repeat(np.arange(len(codes), dtype=np.int32), codes.shape[1])
        return cls.of(person, codes.ravel(), alphabet, distortion)

    @property
    def people(self) -> list[Any]:
        """The people, in the order of their first stream."""
        return list(self.index["person"].unique(maintain_order=True).to_list())

    def arrays(self, at_least: int = 1, people: Collection[Any] | None = None) -> list[Codes]:
        """The streams of at least so many symbols as arrays of codes, in order."""
        lengths = self.index["length"].to_numpy()
        begins = np.cumsum(lengths) - lengths
        values = self.streams["value"].to_numpy()
        kept = np.flatnonzero((lengths >= at_least) & self._of(people))
        return [values[begins[k] : begins[k] + lengths[k]].astype(np.int64) for k in kept]

    def model(self, order: int = 1, smoothing: float = SMOOTHING, people: Collection[Any] | None = None) -> MarkovModel:
        """A chain fitted to the streams of some people (all by default); see `MarkovModel.fit`."""
        chosen = self.streams
        if people is not None:
            kept = self.index.filter(pl.Series(self._of(people)))["user"]
            chosen = chosen.filter(pl.col("user").is_in(kept.implode()))
        users, codes = chosen["user"].to_numpy(), chosen["value"].to_numpy()
        return fit_codes(users, codes, self.alphabet, order=order, smoothing=smoothing)

    def _of(self, people: Collection[Any] | None) -> NDArray[np.bool_]:
        if people is None:
            return np.ones(len(self.index), bool)
        return np.asarray(self.index["person"].is_in(list(people)).to_numpy(), dtype=np.bool_)

    def __repr__(self) -> str:
        return f"Dataset({self.name}, {len(self.index)} streams, {len(self.streams)} events, {self.alphabet.n} symbols)"


def synthetic(kind: str, users: int, length: int, seed: int = 0, **options: Any) -> Dataset:
    """Streams of a kind of the package, or of one that only experiments need.

    Options: `n` items (5,000, of sets 2,000), `side` of the grid of places (40).
    """
    if kind not in KINDS:
        raise InputError(f"expected a kind of stream among {', '.join(KINDS)}, got {kind!r}")
    maker = OWN.get(kind) or getattr(datasets, kind)
    check_options(kind, maker, options)
    made = (
        maker(users, length, seed, **options)
        if kind in OWN
        else datasets.synthetic(kind, users, length, seed, **options)
    )
    found = Dataset.of_rows(made.codes, made.alphabet, made.distortion)
    return replace(found, name=f"synthetic {kind}", about=(inspect.getdoc(maker) or "").partition("\n")[0])


def check_options(name: str, maker: Callable[..., Any], options: dict[str, Any]) -> None:
    """Refuse options that a maker of streams does not have."""
    known = [key for key, p in inspect.signature(maker).parameters.items() if p.kind is p.KEYWORD_ONLY]
    strange = next((key for key in options if key not in known), None)
    if strange is not None:
        has = f"its options are {', '.join(known)}" if known else "it has none"
        raise InputError(f"{name} has no option {strange!r}; {has}")


def items(users: int, length: int, seed: int, *, n: int = 5_000) -> Generated:
    """Items of a large shop with popularity, shelves and revisits, like Diginetica.

    Reproduces: 9 % of clicks repeat the item before, 20 % return to an item of the same stream (that one included);
    the 1 % most clicked items have 13 % of the clicks, the 10 % most clicked 46 % (a log-normal popularity with σ 1.2);
    a new item is three times in five of the same shelf of 250. Not: the number of items (43,097; `n` is 5,000).
    """
    if n < 2 * SHELF:
        raise InputError(f"expected at least {2 * SHELF} items, two shelves; got {n}")
    rng = np.random.default_rng(seed)
    weights = np.exp(1.2 * rng.standard_normal(n))
    running = np.concatenate([[0.0], np.cumsum(weights)])
    ends = np.minimum(np.arange(0, n, SHELF) + SHELF, n)
    out = np.empty((users, length), np.int64)
    out[:, 0] = _between(running, np.zeros(users), np.full(users, running[-1]), rng)
    for t in range(1, length):
        now = out[:, t - 1]
        shelf = now // SHELF
        near = rng.random(users) < 0.6
        low = np.where(near, running[shelf * SHELF], 0.0)
        high = np.where(near, running[ends[shelf]], running[-1])
        fresh = _between(running, low, high, rng)
        earlier = out[np.arange(users), rng.integers(0, max(1, t - 1), users)]
        act = rng.random(users)
        out[:, t] = np.where(act < 0.08, now, np.where((act < 0.22) & (t > 1), earlier, fresh))
    return Generated(out, Alphabet(range(n)), hamming())


def sets(users: int, length: int, seed: int, *, n: int = 2_000) -> Generated:
    """Sets of different items written in one fixed order, like the lines of Kosarak.

    Reproduces: no item twice; no two items ever in both orders; with sets of eight (Kosarak's mean), the four most
    clicked items are in 61, 46, 37 and 20 % of the lines, and the ten most clicked hold a quarter of all entries. A
    chain fitted to these streams describes the sort order: that is the point of the kind.
    """
    if n < 2 * length + 8:
        raise InputError(f"expected at least {2 * length + 8} items for sets of {length}; got {n}")
    rng = np.random.default_rng(seed)
    rank = np.arange(1, n - len(TOP) + 1)
    rest = (rank + 8.0) ** -0.9
    chance = np.r_[TOP, rest * 6.36 / rest.sum()]
    weights = -np.log1p(-np.minimum(chance, 0.9))
    place = rng.permutation(n)  # the fixed order: item k stands at place[k]
    item = np.argsort(place)
    out = np.empty((users, length), np.int64)
    for begin in range(0, users, 1_000):
        part = slice(begin, min(begin + 1_000, users))
        count = out[part].shape[0]
        # the first arrivals of independent exponential clocks: a draw without replacement
        arrival = rng.exponential(size=(count, n)) / weights
        chosen = (
            np.argpartition(arrival, length, axis=1)[:, :length] if length < n else np.tile(np.arange(n), (count, 1))
        )
        out[part] = item[np.sort(place[chosen], axis=1)]
    return Generated(out, Alphabet(range(n)), hamming())


def places(users: int, length: int, seed: int, *, side: int = 40) -> Generated:
    """Places by the minute on a grid over a city of 38 by 39 km: home, work, three more, and the ways between them.

    Reproduces: 77 % of minutes stay in their cell of about one kilometre; half of the minutes move less than 0.09 km,
    one in ten more than 0.65 km, one in a hundred more than 1.4 km; a sample has 8 bits over everybody. Not: streets,
    and time of day.
    """
    rng = np.random.default_rng(seed)
    rows = np.arange(users)
    own = np.clip(rng.normal((WIDE / 2, HIGH * 0.6), (4.0, 4.0), (users, 5, 2)), 0.5, WIDE - 0.5)
    goal = rng.integers(0, 5, users)
    at, speed, rest = own[rows, goal].copy(), _speeds(rng, users), rng.geometric(1 / 9, users)
    out = np.empty((users, length, 2))
    for t in range(length):
        out[:, t] = at
        gap = own[rows, goal] - at
        far = np.sqrt((gap**2).sum(1))
        stride = np.minimum(far, speed * rng.gamma(4.0, 0.25, users))
        moving = (rest == 0) & (far > 1e-9)
        at = at + np.where(moving, stride / np.maximum(far, 1e-9), 0.0)[:, None] * gap
        at = np.clip(at + rng.normal(0.0, 0.02, (users, 2)), 0.0, (WIDE, HIGH))
        arrived = (rest == 0) & (far - stride < 0.06)
        rest = np.where(arrived, rng.geometric(1 / 9, users), np.maximum(rest - 1, 0))
        goal = np.where(arrived, rng.choice(5, users, p=(0.4, 0.3, 0.1, 0.1, 0.1)), goal)
        speed = np.where(arrived, _speeds(rng, users), speed)
    grid = Grid.regular(side, side, (0, WIDE, 0, HIGH), "nearest")
    codes = grid.encode(out.reshape(-1, 2)).reshape(users, length)
    return Generated(codes, grid, euclidean(grid.points))


def _speeds(rng: np.random.Generator, count: int) -> Floats:
    return rng.choice(SPEEDS, count, p=TRIPS) * rng.lognormal(0.0, 0.3, count)


def _between(running: Floats, low: Floats, high: Floats, rng: np.random.Generator) -> Codes:
    """Items drawn by popularity among those whose running weight lies in [low, high)."""
    aim = low + rng.random(len(low)) * (high - low)
    return np.clip(np.searchsorted(running, aim, side="right") - 1, 0, len(running) - 2).astype(np.int64)


def heart_rate(users: int, length: int, seed: int) -> Generated:
    """Heart rate once a second in bins of 5 beats, like a watch that smooths it.

    Reproduces: mean 80 beats a minute, standard deviation 12.7 over everybody and 8.5 between people; 0.36 from one
    second to the next, with correlation 0.55 between neighbouring changes; 96 % of seconds stay in their bin of 5.
    Not: the spells of stress, and the watch's first seconds.
    """
    rng = np.random.default_rng(seed)
    full = (users, length + WARM_UP)
    calm = 0.97 * _scaled(_low_pass(rng.standard_normal(full), 120.0), 120.0)
    unrest = np.exp(calm - 0.97**2)  # slow changes of how much the heart changes: most seconds are quiet
    fast = _low_pass(_low_pass(unrest * rng.standard_normal(full), 60.0), 10.0)
    shake = _low_pass(unrest * rng.standard_normal(full), 60.0)
    slow = _low_pass(_low_pass(rng.standard_normal(full), 300.0), 30.0)
    own = 80.0 + 8.5 * rng.standard_normal((users, 1))
    beats = own + 7.0 * _scaled(fast, 60.0, 10.0) + 6.0 * _scaled(slow, 300.0, 30.0) + 1.2 * _scaled(shake, 60.0)
    beats = beats[:, WARM_UP:]
    bins = Bins.of_width(45, 150, 5.0, "nearest")
    codes = bins.encode(beats.ravel()).reshape(beats.shape)
    return Generated(codes, bins, absolute(bins.points))


def _low_pass(noise: Floats, seconds: float) -> Floats:
    """Each row through y_t = a y_{t-1} + (1-a) x_t with that time constant."""
    from scipy.signal import lfilter

    keep = math.exp(-1.0 / seconds)
    return np.asarray(lfilter([1 - keep], [1, -keep], noise, axis=1), dtype=np.float64)


def _scaled(signal: Floats, first: float, second: float | None = None) -> Floats:
    """The filtered noise with variance one in the long run."""
    a = math.exp(-1.0 / first)
    if second is None:
        return signal / math.sqrt((1 - a) / (1 + a))
    b = math.exp(-1.0 / second)
    taps = np.arange(4_000)
    response = (1 - a) * (1 - b) * (a ** (taps + 1) - b ** (taps + 1)) / (a - b)
    return signal / math.sqrt(float((response**2).sum()))


OWN = {"heart_rate": heart_rate, "items": items, "places": places, "sets": sets}
KINDS = (*datasets.KINDS, *OWN)
