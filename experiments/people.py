"""People and their gaze, for re-identification: what of each is released, in two halves, and what a chain is fitted to.

Everybody is an identity to be found, so nobody can be kept apart to fit the public chain. It is fitted to the
recordings of all people that are *not* released: a model of the population, which has seen none of the released
streams. Real people's halves are of different videos (those of even and of odd number), so that knowing what a video
shows does not tell who watches it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments import datasets
from experiments.context import Context
from experiments.generated import Dataset
from seqveil import MarkovModel
from seqveil.core.alphabet import Grid
from seqveil.core.distortion import Distortion, euclidean
from seqveil.core.errors import DataError
from seqveil.core.fitting import RunCounts

Codes = np.ndarray


@dataclass(frozen=True)
class Sizes:
    """How much is released: at most `recordings` of each half of each person, `samples` of each from `skip` on.

    An adversary names the person behind each `window` of samples.
    """

    side: int
    people: int
    recordings: int
    samples: int
    skip: int
    window: int


@dataclass(frozen=True, eq=False)
class Crowd:
    """Streams (B, T) to release, whose they are (0..P-1), the half each is in (0 or 1), and others to learn from."""

    codes: Codes
    person: Codes
    half: Codes
    grid: Grid
    distortion: Distortion
    rest: tuple[Codes, Codes]  # stream and symbol of every event that is not released

    window: int

    @property
    def people(self) -> int:
        return int(self.person.max()) + 1

    def by_window(self, each: Codes) -> Codes:
        """What holds of each stream, for each of its windows."""
        return np.repeat(each, self.codes.shape[1] // self.window)

    def model(self, order: int) -> MarkovModel:
        """The public chain; a stream begins anywhere in a recording, so its first symbol is as frequent as any."""
        often = np.bincount(self.rest[1], minlength=self.grid.n) + 0.5
        states = RunCounts.of(*self.rest, self.grid.n, order).states(0.5)
        initial = np.pad(often / often.sum(), (0, states.initial.size - self.grid.n))
        return MarkovModel._of(replace(states, initial=initial), self.grid)


def crowd(context: Context, sizes: Sizes) -> Crowd:
    if context.synthetic:
        return generated(sizes, context.seed)
    data = datasets.load("gaze_vr", context.data, side=sizes.side)
    grid = data.alphabet
    assert isinstance(grid, Grid)
    stream, value = (data.streams[name].to_numpy() for name in ("user", "value"))
    return chosen(stream, value, _listing(context, data), grid, sizes)


def _listing(context: Context, data: Dataset) -> dict[str, Codes]:
    """Person, half and length of every stream."""
    import polars as pl

    folder = context.data or os.environ["SEQVEIL_DATA"]  # it was found there, and checked, by the loader
    videos = pl.read_parquet(os.path.join(folder, "gaze_vr", "recordings.parquet")).select("rec", "video")
    index = data.index.join(videos, left_on="recording", right_on="rec", how="left", maintain_order="left")
    numbers = {name: index[name].to_numpy().astype(np.int64) for name in ("person", "video", "length")}
    return {"person": numbers["person"], "half": numbers["video"] % 2, "length": numbers["length"]}


def chosen(stream: Codes, value: Codes, listing: dict[str, Codes], grid: Grid, sizes: Sizes) -> Crowd:
    """Recordings evenly spread over each half of each person's, and the rest."""
    person, half, length = (listing[name] for name in ("person", "half", "length"))
    begins = np.cumsum(length) - length
    picked: list[int] = []
    for one in np.unique(person)[: sizes.people]:
        for part in (0, 1):
            able = np.flatnonzero((person == one) & (half == part) & (length >= sizes.skip + sizes.samples))
            if not able.size:
                raise DataError(f"expected recordings of {sizes.skip + sizes.samples} samples in each half, found none")
            few = min(sizes.recordings, len(able))
            picked += able[np.linspace(0, len(able) - 1, few).astype(int)].tolist()
    places = begins[picked][:, None] + np.arange(sizes.skip, sizes.skip + sizes.samples)
    kept = ~np.isin(stream, picked)
    rest = (stream[kept], value[kept].astype(np.int64))
    whose = np.unique(person[picked], return_inverse=True)[1]
    codes = value[places].astype(np.int64)
    return Crowd(codes, whose, half[picked], grid, euclidean(grid.points), rest, sizes.window)


def generated(sizes: Sizes, seed: int, strength: float = 1.0) -> Crowd:
    """Synthetic gaze of people with habits: where each likes to look, and how widely.

    A recording is a generated gaze walk, seen through its person's habit: moved by a normal shift (standard deviation
    .12 of the panorama's width and of its height) and stretched about the middle by a log-normal factor (.3). The
    walk's own statistics hold before that. `strength` scales the habits; 0 makes everybody alike.
    """
    many = 4 * sizes.recordings  # half of them are released
    length, fine = sizes.skip + sizes.samples, 500
    walk = datasets.synthetic("gaze", sizes.people * many, length, seed, side=fine)
    at = walk.alphabet.points[walk.streams["value"].to_numpy()] / fine  # type: ignore[index]
    rng = np.random.default_rng([seed, 8])
    shift = strength * rng.normal(0.0, 0.12, (sizes.people, 2))
    stretch = np.exp(strength * rng.normal(0.0, 0.3, (sizes.people, 2)))
    person = np.repeat(np.arange(sizes.people), many)
    each = np.repeat(person, length)
    at = 0.5 + (at - 0.5) * stretch[each] + shift[each]
    at[:, 0] %= 1.0
    grid = Grid.regular(sizes.side, sizes.side, (0, sizes.side, 0, sizes.side), "nearest")
    listing = {"person": person, "half": np.arange(len(person)) % 2, "length": np.full(len(person), length)}
    return chosen(np.repeat(np.arange(len(person)), length), grid.encode(sizes.side * at), listing, grid, sizes)


def describe(sizes: Sizes) -> dict[str, Any]:
    """What a reader must know of the data, as plain values."""
    return {**vars(sizes), "chain fitted to": "all recordings that are not released, of everybody"}
