"""Counts where releases cannot be inverted: a chain learned from them, and truths drawn from what they leave open.

A chain of order 1 is learned from the releases (`seqveil.learn`), chains that explain them about as well are drawn from
its posterior, and under each of them one truth is drawn for every stream, by filtering forward and sampling backward.
The counts of these truths vary as much as the releases leave open.

*Assumes*: users are independent, and one chain of order 1 describes them all. Which one is learned; where the releases
say little about it, the model of the release fills in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.receive.learn import Chain, Evidence, learn, region
from seqveil.receive.learn.walk import FullWalk
from seqveil.receive.statistics.unbiased import places
from seqveil.release import stream

STRENGTH = 2.0  # pseudo-moves a row that the model of the release counts for
BLOCK = 4_000_000  # numbers held at once
LONGEST = 60  # symbols up to which a chain is learned with its uncertainty


@dataclass(frozen=True, eq=False)
class Draws:
    """Counts in each of S drawn truths."""

    histogram: Floats  # (S, W, n)
    transitions: Floats  # (S, n, n)

    def runs(self) -> Floats:
        """How many runs each symbol has, (S, n)."""
        return np.asarray(self.histogram.sum(1) - np.diagonal(self.transitions, axis1=1, axis2=2))


def draws(
    setting: stream.Setting, users: Ints, codes: Ints, times: Floats | None, window: Ints, count: int, seed: int = 0
) -> Draws:
    """Counts of `count` truths that the releases leave open; `window` (E,) numbers the windows, events in user order.

    The generator is seeded: no privacy rests on it, and the same releases give the same intervals.
    """
    model = setting.model
    if model.n > LONGEST:
        raise InputError(
            f"intervals from a learned chain take at most {LONGEST} symbols, the model has {model.n}; use wider bins "
            "or a coarser grid, or release with randomized_response"
        )
    order = np.argsort(users, kind="stable")
    bounds = np.flatnonzero(np.diff(users[order])) + 1
    stamps = None if times is None else np.split(times[order], bounds)
    evidence = Evidence.of(setting, np.split(codes[order], bounds), stamps)
    learned = learn(evidence, model.alphabet, start=_full(model), strength=STRENGTH)
    plausible = region(learned, evidence).plausible(count, seed)
    chains = [Chain(each.prior, each.advance(np.eye(model.n))) for each in plausible]
    generator = np.random.default_rng(seed)
    windows = int(window.max()) + 1
    found = Draws(np.zeros((count, windows, model.n)), np.zeros((count, model.n, model.n)))
    for events, lengths in evidence.layout.blocks(BLOCK // model.n):
        for number, chain in enumerate(chains):
            walk = FullWalk(chain, evidence.table, evidence.index[events], lengths)
            walk.forward()
            _tally(found, number, walk.sample(generator), lengths, window[events])
    return found


def _full(model: MarkovModel) -> MarkovModel:
    """The model as a chain of order 1 that rules nothing out."""
    n = model.n
    if model.size == n:
        table, prior = model.advance(np.eye(n)), model.prior
    else:
        table, prior = np.tile(model.base_law, (n, 1)), model.prior
    return MarkovModel(0.99 * prior + 0.01 / n, 0.99 * table + 0.01 / n, alphabet=model.alphabet)


def _tally(found: Draws, number: int, truth: Ints, lengths: Ints, window: Ints) -> None:
    n, length = found.transitions.shape[1], truth.shape[1]
    inside = np.arange(length) < lengths[:, None]
    windows = found.histogram.shape[1]
    seen = np.bincount((window * n + truth)[inside], minlength=windows * n)
    found.histogram[number] += seen.reshape(windows, n)
    moved = np.bincount((truth[:, :-1] * n + truth[:, 1:])[inside[:, 1:]], minlength=n * n)
    found.transitions[number] += moved.reshape(n, n)


def windows_of(users: Ints, size: int | None) -> Ints:
    """The window of every event, events in user order: every `size` events of a stream are one."""
    return np.zeros(users.size, np.int64) if size is None else places(users) // size
