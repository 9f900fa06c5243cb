"""An adversary that knows the chain: how often it guesses the truth with the releases, and how often without them.

The adversary is the best there is under the model: it holds the exact distribution of every symbol given the releases
(up to the symbol, or all of them in hindsight) and names the most likely symbols. Scoring its guesses takes the
*truth*, so this is for simulated streams and for evaluations of data that one holds; an audit needs no truth.

With β the belief before a release at ε and S the m symbols likeliest under it, no rule that names m symbols after the
release is right with a probability above min(e^ε β(S), 1 - e^-ε (1 - β(S))) under the model (docs/theory.md, sections
3, 7 and 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import Sent
from seqveil.core.model import MarkovModel
from seqveil.engine import batches, stream

TOPS = (1, 10)  # how many symbols the adversary may name

Hits = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Laws:
    """Distributions of every symbol of B streams, (B, T, n) each: all that an adversary knows of them."""

    unseen: Floats  # from the chain alone
    before: Floats  # from the releases before the symbol's own
    online: Floats  # and its own
    hindsight: Floats  # from all releases of the stream


@dataclass(frozen=True, eq=False)
class Attack:
    """Whether each guess is right, and how likely it may be at most; arrays (K, B, T), one layer for each of `tops`.

    `without`, `online`, `hindsight`: hits from the chain alone, from the releases so far, from all releases.
    `step_bound`: what one release at its ε allows over the belief before it; `stream_bound`: what the exact leakage of
    the whole stream allows over the chain alone.
    """

    tops: tuple[int, ...]
    without: Hits
    online: Hits
    hindsight: Hits
    step_bound: Floats
    stream_bound: Floats


def score(
    known: Laws, truth: Ints, epsilons: Floats, most: Floats, least: Floats, tops: Sequence[int] = TOPS
) -> Attack:
    """Guesses from distributions against the truth (B, T); `epsilons` (B, T) of releases, account (B,) of streams.

    Where symbols are equally likely the one of the lowest code is named first.
    """
    without, online, hindsight = (
        np.stack([place < top for top in tops])
        for place in (ranks(distribution, truth) for distribution in (known.unseen, known.online, known.hindsight))
    )
    step = np.stack([ceiling(known.before, top, epsilons, -epsilons) for top in tops])
    whole = np.stack([ceiling(known.unseen, top, most[:, None], least[:, None]) for top in tops])
    return Attack(tuple(tops), without, online, hindsight, step, whole)


def ranks(distribution: Floats, truth: Ints) -> Ints:
    """How many symbols a distribution puts before the true one: (..., n), (...) → (...).

    >>> ranks(np.array([[0.2, 0.5, 0.3]]), np.array([2])).tolist()
    [1]
    """
    own = np.take_along_axis(distribution, truth[..., None], -1)
    tied = (distribution == own) & (np.arange(distribution.shape[-1]) < truth[..., None])
    return np.asarray(((distribution > own) | tied).sum(-1), np.int64)


def ceiling(distribution: Floats, top: int, most: Floats, least: Floats) -> Floats:
    """The most that the probability of naming the truth among `top` symbols can be when lifts keep to these bounds.

    >>> ceiling(np.array([0.5, 0.3, 0.2]), 1, np.log(1.5), -np.log(1.5)).round(4).item()
    0.6667
    """
    n = distribution.shape[-1]
    mass = (
        np.ones(distribution.shape[:-1])
        if top >= n
        else np.partition(distribution, n - top, axis=-1)[..., n - top :].sum(-1)
    )
    mass = np.minimum(mass, 1.0)
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(np.exp(most) * mass, 1.0 - np.exp(least) * (1.0 - mass)))


def distributions(model: MarkovModel, columns: Floats | Ints) -> Laws:
    """What releases imply from the weights Q(y_k | ·) of what was released: columns (T, B, n).

    A column of ones is a release that tells nothing, so streams of several lengths go together when padded with ones.
    """
    length, users = columns.shape[:2]
    weights = columns / columns.max(-1, keepdims=True)
    before, filtered = filtering.filtered(model, weights)
    parts = [filtering.symbols_of_streams(model, before), filtering.symbols_of_streams(model, filtered)]
    filtering.smooth(model, filtered, weights)
    parts.append(filtering.symbols_of_streams(model, filtered))
    alone = np.broadcast_to(filtering.unseen(model, length)[None], (users, length, model.n))
    return Laws(alone, *parts)


def batch_distributions(setting: stream.Terms, sent: Sequence[Sent]) -> Laws:
    """The same for one stream that was sent in batches: `before` is from the batches before the symbol's own."""
    model, states, before = setting.model, setting.model.initial[None, :], []
    for each in sent:
        for _ in range(each.codes.size):
            before.append(filtering.symbols(model, states)[0])
            states = filtering.predict(model, states)
        states = filtering.predict(model, each.posterior[None, :])
    online, late = batches.filtered(setting, list(sent)), batches.smooth(setting, list(sent))
    alone = filtering.unseen(model, len(before))
    return Laws(*(part[None] for part in (alone, np.stack(before), online, late)))
