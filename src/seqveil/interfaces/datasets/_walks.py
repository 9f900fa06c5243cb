"""Synthetic walks on a grid: gaze that rests and jumps, and people between home, work and other places."""

from __future__ import annotations

import numpy as np

from seqveil.core.alphabet import Floats, Grid
from seqveil.core.distortion import euclidean
from seqveil.interfaces.datasets._dataset import Content, rectangle

SPEEDS = (0.075, 0.3, 0.75)  # kilometres a minute on foot, by bus and by car
TRIPS = (0.08, 0.27, 0.65)  # how common each is
WIDE, HIGH = 38.4, 38.9  # kilometres of the box over inner Beijing


def gaze(users: int, length: int, seed: int, *, side: int = 100) -> Content:
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
    return Content(*rectangle(codes), grid, euclidean(grid.points))


def places(users: int, length: int, seed: int, *, side: int = 40) -> Content:
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
    return Content(*rectangle(codes), grid, euclidean(grid.points))


def _looked_at(rng: np.random.Generator, count: int) -> Floats:
    """Points people look at: about the middle mostly, all round now and then, near the horizon."""
    round_about = rng.random(count) < 0.55
    x = np.where(round_about, rng.random(count), rng.normal(0.5, 0.09, count)) % 1.0
    wide = rng.random(count) < 0.4
    y = np.clip(rng.normal(0.49, np.where(wide, 0.2, 0.085), count), 0.02, 0.98)
    return np.stack([x, y], axis=1)


def _speeds(rng: np.random.Generator, count: int) -> Floats:
    return rng.choice(SPEEDS, count, p=TRIPS) * rng.lognormal(0.0, 0.3, count)
