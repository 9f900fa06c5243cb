"""Synthetic streams of people, which need no download.

>>> KINDS
('clicks', 'gaze', 'power')
>>> synthetic("clicks", users=3, length=5, seed=1).codes.shape
(3, 5)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Alphabet, Codes, Floats, Grid, Symbols
from seqveil.core.distortion import Distortion, absolute, euclidean, hamming
from seqveil.core.errors import InputError
from seqveil.core.fitting import fit_codes
from seqveil.core.model import MarkovModel

KINDS = ("clicks", "gaze", "power")
# MSNBC: how likely a click stays in its category, and where a click that leaves goes, per category
STAYS = (0.55, 0.63, 0.56, 0.71, 0.86, 0.53, 0.61, 0.90, 0.56, 0.63, 0.41, 0.65, 0.74, 0.80, 0.30, 0.91, 0.33)
GOES = (19.1, 11.9, 5.4, 8.6, 2.2, 8.4, 9.7, 3.0, 4.0, 4.0, 4.1, 6.1, 2.7, 7.0, 2.8, 0.2, 0.9)
DAY = 96  # quarters of an hour


@dataclass(frozen=True, eq=False)
class Generated:
    """Streams of codes of one length, a row for each person, with all that a release of them needs."""

    codes: Codes = field(repr=False)
    alphabet: Symbols
    distortion: Distortion

    def model(self, people: Iterable[int] | None = None) -> MarkovModel:
        """A chain of order 1 fitted to the streams of some people, all by default."""
        chosen = self.codes if people is None else self.codes[list(people)]
        return fit_codes(np.repeat(np.arange(len(chosen)), chosen.shape[1]), chosen.ravel(), self.alphabet)


def synthetic(kind: str, users: int, length: int, seed: int = 0, **options: Any) -> Generated:
    """Streams of one kind from a seed: `users` streams of `length` symbols. For research; no privacy rests on them.

    Each maker's docstring states the statistics it reproduces. Options: `side` of the grid of a gaze (100).
    """
    if kind not in KINDS:
        raise InputError(f"expected a kind of stream among {', '.join(KINDS)}, got {kind!r}")
    if users < 1 or length < 1:
        raise InputError(f"users and length must be >= 1; got {users} and {length}")
    return globals()[kind](users, length, seed, **options)


def clicks(users: int, length: int, seed: int) -> Generated:
    """Sticky page categories, like MSNBC.

    Reproduces: 17 categories; 65 % of clicks stay in their category, from 30 % to 91 % by category; entropy of a click
    3.7 bits, of a click given the one before 2.0 bits. Not: a user's own taste, which the chain does not have.
    """
    stay, go = np.array(STAYS), np.array(GOES)
    leave = np.tile(go, (len(go), 1))
    np.fill_diagonal(leave, 0.0)
    leave *= ((1 - stay) / leave.sum(1))[:, None]
    chain = leave + np.diag(stay)
    distribution = np.full(len(go), 1 / len(go))
    for _ in range(500):
        distribution = distribution @ chain
    alphabet = Alphabet([f"category{k + 1:02d}" for k in range(len(go))])
    codes = MarkovModel(distribution / distribution.sum(), chain).sample(length, users, seed)
    return Generated(codes, alphabet, hamming())


def power(users: int, length: int, seed: int) -> Generated:
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
    edges = [-1.2816, -0.8416, -0.5244, -0.2533, 0.0, 0.2533, 0.5244, 0.8416, 1.2816]  # tenths of the normal
    codes = np.searchsorted(edges, score)
    return Generated(codes.astype(np.int64), Alphabet(range(10)), absolute(np.arange(10)))


def _pieces(rng: np.random.Generator, shape: tuple[int, int], hold: float) -> Floats:
    """Standard normal values that each stay for a while: a fresh one with probability 1 - hold at every step."""
    fresh = rng.random(shape) >= hold
    fresh[:, 0] = True
    source: NDArray[np.int64] = np.maximum.accumulate(np.where(fresh, np.arange(shape[1]), 0), axis=1)
    return np.take_along_axis(rng.standard_normal(shape), source, axis=1)


def gaze(users: int, length: int, seed: int, *, side: int = 100) -> Generated:
    """Gaze in a panorama at 25 to 30 samples a second: slow drift in fixations, bursts of saccades to new targets.

    Reproduces, for steps in hundredths of the panorama: median 0.2, nine in ten below 2, one in a hundred above 10 (a
    log-normal speed that stays high or low for a while); on a 10 × 10 grid 91 % of steps stay in their cell and the
    entropy of a sample is 5.4 bits, on 100 × 100 61 % stay and 4 % go five cells or more. Not: the videos' content.
    """
    rng = np.random.default_rng(seed)
    at, target = _looked_at(rng, users), _looked_at(rng, users)
    speed = rng.standard_normal(users)
    out = np.empty((users, length, 2))
    for t in range(length):
        out[:, t] = at
        speed = 0.75 * speed + np.sqrt(1 - 0.75**2) * rng.standard_normal(users)
        step = np.exp(-1.55 + 1.75 * speed) / 100
        renewed = rng.random(users) < 0.02
        target[renewed] = _looked_at(rng, int(renewed.sum()))
        gap = target - at
        gap[:, 0] = (gap[:, 0] + 0.5) % 1.0 - 0.5  # the short way round
        far = np.sqrt((gap**2).sum(1))
        towards = np.arctan2(gap[:, 1], gap[:, 0]) + rng.normal(0.0, 0.5, users)
        angle = np.where(far > step, towards, rng.uniform(-np.pi, np.pi, users))
        at = at + step[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        at = np.stack([at[:, 0] % 1.0, 1.0 - np.abs(1.0 - np.abs(at[:, 1]) % 2.0)], axis=1)
    grid = Grid.regular(side, side, (0, side, 0, side), "nearest")
    codes = grid.encode((side * out).reshape(-1, 2)).reshape(users, length)
    return Generated(codes, grid, euclidean(grid.points))


def _looked_at(rng: np.random.Generator, count: int) -> Floats:
    """Points people look at: about the middle mostly, all round now and then, near the horizon."""
    round_about = rng.random(count) < 0.55
    x = np.where(round_about, rng.random(count), rng.normal(0.5, 0.09, count)) % 1.0
    wide = rng.random(count) < 0.4
    y = np.clip(rng.normal(0.49, np.where(wide, 0.2, 0.085), count), 0.02, 0.98)
    return np.stack([x, y], axis=1)
