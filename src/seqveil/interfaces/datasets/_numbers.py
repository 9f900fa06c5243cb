"""Synthetic streams of numbers cut into bins: heart rate, and the power a household draws."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Alphabet, Bins, Floats
from seqveil.core.distortion import absolute
from seqveil.interfaces.datasets._dataset import Content, rectangle

DAY = 96  # quarters of an hour
WARM_UP = 900  # seconds until the filters forget how they began


def heart_rate(users: int, length: int, seed: int) -> Content:
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
    return Content(*rectangle(codes), bins, absolute(bins.points))


def power(users: int, length: int, seed: int) -> Content:
    """Ten levels of a household's consumption by the quarter of an hour, with a habit by time of day.

    Reproduces, in levels: about as many readings at each (3.3 bits); 45 % stay from one quarter to the next, the mean
    step is 1.2; correlation in a household .58 after a quarter, .42 after a day, little after half a day; standard
    deviation 1.8 between households and 2.1 within. Not: weekends, seasons and the shape of an average day.
    """
    rng = np.random.default_rng(seed)
    habit = _pieces(rng, (users, DAY), 0.84)[:, np.arange(length) % DAY]
    chance = _pieces(rng, (users, length), 0.4)
    own = rng.standard_normal((users, 1))
    score = 0.68 * own + 0.73 * (math.sqrt(0.5) * habit + math.sqrt(0.5) * chance)
    score /= math.hypot(0.68, 0.73)
    edges = [-1.2816, -0.8416, -0.5244, -0.2533, 0.0, 0.2533, 0.5244, 0.8416, 1.2816]  # tenths of the normal law
    codes = np.searchsorted(edges, score)
    return Content(*rectangle(codes.astype(np.int64)), Alphabet.codes(10), absolute(np.arange(10)))


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


def _pieces(rng: np.random.Generator, shape: tuple[int, int], hold: float) -> Floats:
    """Standard normal values that each stay for a while: a fresh one with probability 1 - hold at every step."""
    fresh = rng.random(shape) >= hold
    fresh[:, 0] = True
    source: NDArray[np.int64] = np.maximum.accumulate(np.where(fresh, np.arange(shape[1]), 0), axis=1)
    return np.take_along_axis(rng.standard_normal(shape), source, axis=1)
