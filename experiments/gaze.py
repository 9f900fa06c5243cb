"""What the gaze figures share: the data, people to learn from, and the streams of others."""

from __future__ import annotations

import numpy as np

from experiments.context import Context
from experiments.generated import Dataset
from experiments.streams import Codes
from seqveil import MarkovModel
from seqveil.core.errors import DataError

FRAMES = 25  # samples a second, nominally
LEARNT_FROM = 40  # of 45 people; the streams are of the rest


def side(context: Context) -> int:
    return 20 if context.quick else 100


def samples(context: Context) -> int:
    """Ten seconds, four where it must be quick; a multiple of every batch size used."""
    return 100 if context.quick else 250


def load(context: Context) -> Dataset:
    # synthetic people watch as long as 40 people of the real set do, so that the chain is about as well known
    users, length = (45, 2_000) if context.quick else (1_800, 2_000)
    return context.dataset("gaze_vr", users, length, side=side(context))


def model_and_streams(context: Context, data: Dataset, order: int, count: int) -> tuple[MarkovModel, Codes]:
    """A chain fitted to most people, and the beginnings of `count` streams of the others, evenly chosen."""
    people = data.people
    known = people[: len(people) * LEARNT_FROM // 45]
    length = samples(context)
    rest = data.arrays(length, people[len(known) :])
    if not rest:
        raise DataError(f"no stream of {length} samples is left to release; load more people")
    chosen = np.linspace(0, len(rest) - 1, min(count, len(rest))).astype(int)
    return data.model(order, smoothing=0.5, people=known), np.stack([rest[k][:length] for k in chosen])
