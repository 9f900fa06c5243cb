"""Counts where releases cannot be inverted: a chain learned from them, and truths drawn from what they leave open.

A chain of order 1 is learned from the releases (`seqveil.learn`), chains that explain them about as well are drawn from
its posterior, and under each of them one truth is drawn for every stream, by filtering forward and sampling backward.
The counts of these truths vary as much as the releases leave open.

*Assumes*: users are independent, and one chain of order 1 describes them all. Which one is learned; where the releases
say little about it, the model of the release fills in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.receive.learn import Evidence, learn, region
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
    chains = region(learned, evidence).plausible(count, seed)
    lengths = np.diff(np.concatenate([[0], bounds, [users.size]]))
    generator = np.random.default_rng(seed)
    windows = int(window.max()) + 1
    found = Draws(np.zeros((count, windows, model.n)), np.zeros((count, model.n, model.n)))
    for block in _blocks(evidence, lengths, window):
        for number, chain in enumerate(chains):
            _tally(found, number, _sample(chain, block, generator), block)
    return found


def _full(model: MarkovModel) -> MarkovModel:
    """The model as a chain of order 1 that rules nothing out."""
    n = model.n
    if model.size == n:
        table, prior = model.advance(np.eye(n)), model.prior
    else:
        table, prior = np.tile(model.base, (n, 1)), model.prior
    return MarkovModel(0.99 * prior + 0.01 / n, 0.99 * table + 0.01 / n, alphabet=model.alphabet)


@dataclass(frozen=True, eq=False)
class _Block:
    """Streams of like length: likelihoods (T, B, n), lengths (B,), longest first, and windows (B, T)."""

    says: Floats
    lengths: Ints
    window: Ints


def _blocks(evidence: Evidence, lengths: Ints, window: Ints) -> Iterator[_Block]:
    begins = np.cumsum(lengths) - lengths
    rows = evidence.arranged(np.repeat(np.arange(lengths.size), lengths)).index
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < order.size:
        longest = int(lengths[order[at]])
        chosen = order[at : at + max(1, BLOCK // (longest * evidence.n))]
        chosen = chosen[lengths[chosen] * 2 >= longest]
        steps = np.arange(longest)
        inside = steps < lengths[chosen][:, None]
        event = np.where(inside, begins[chosen][:, None] + steps, 0)
        yield _Block(evidence.table[rows[event.T]], lengths[chosen], window[event])
        at += chosen.size


def _sample(chain: MarkovModel, block: _Block, generator: np.random.Generator) -> Ints:
    """One truth for each stream, (B, T); what lies past a stream's end is not to be read."""
    table, length = chain.advance(np.eye(chain.n)), block.says.shape[0]
    laws = np.empty_like(block.says)
    ahead = np.broadcast_to(chain.prior, block.says.shape[1:])
    for t in range(length):
        law = ahead * block.says[t]
        laws[t] = law / law.sum(1, keepdims=True)
        ahead = laws[t] @ table
    truth = np.zeros((block.says.shape[1], length), np.int64)
    for t in range(length - 1, -1, -1):
        law = laws[t]
        if t < length - 1:
            inside = (block.lengths > t + 1)[:, None]
            law = np.where(inside, law * table[:, truth[:, t + 1]].T, law)
        running = np.cumsum(law, axis=1)
        coin = generator.random(len(law)) * running[:, -1]
        truth[:, t] = np.minimum((running <= coin[:, None]).sum(1), chain.n - 1)
    return truth


def _tally(found: Draws, number: int, truth: Ints, block: _Block) -> None:
    n, length = found.transitions.shape[1], truth.shape[1]
    inside = np.arange(length) < block.lengths[:, None]
    windows = found.histogram.shape[1]
    seen = np.bincount((block.window * n + truth)[inside], minlength=windows * n)
    found.histogram[number] += seen.reshape(windows, n)
    moved = np.bincount((truth[:, :-1] * n + truth[:, 1:])[inside[:, 1:]], minlength=n * n)
    found.transitions[number] += moved.reshape(n, n)


def windows_of(users: Ints, size: int | None) -> Ints:
    """The window of every event, events in user order: every `size` events of a stream are one."""
    return np.zeros(users.size, np.int64) if size is None else places(users) // size
