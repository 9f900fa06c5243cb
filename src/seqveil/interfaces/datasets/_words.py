"""Synthetic streams of categories: sticky clicks, items of a shop, and sorted sets."""

from __future__ import annotations

import numpy as np

from seqveil.core.alphabet import Alphabet, Codes, Floats
from seqveil.core.distortion import hamming
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.interfaces.datasets._dataset import Content, rectangle

# MSNBC: how likely a click stays in its category, and where a click that leaves goes, per category
STAYS = (0.55, 0.63, 0.56, 0.71, 0.86, 0.53, 0.61, 0.90, 0.56, 0.63, 0.41, 0.65, 0.74, 0.80, 0.30, 0.91, 0.33)
GOES = (19.1, 11.9, 5.4, 8.6, 2.2, 8.4, 9.7, 3.0, 4.0, 4.0, 4.1, 6.1, 2.7, 7.0, 2.8, 0.2, 0.9)
SHELF = 250  # items among which a shopper looks on
TOP = (0.61, 0.46, 0.37, 0.20)  # Kosarak: share of lines that hold each of the four most clicked items


def clicks(users: int, length: int, seed: int) -> Content:
    """Sticky page categories, like MSNBC.

    Reproduces: 17 categories; 65 % of clicks stay in their category, from 30 % to 91 % by category; entropy of a click
    3.7 bits, of a click given the one before 2.0 bits. Not: a user's own taste, which the chain does not have.
    """
    stay, go = np.array(STAYS), np.array(GOES)
    leave = np.tile(go, (len(go), 1))
    np.fill_diagonal(leave, 0.0)
    leave *= ((1 - stay) / leave.sum(1))[:, None]
    chain = leave + np.diag(stay)
    law = np.full(len(go), 1 / len(go))
    for _ in range(500):
        law = law @ chain
    alphabet = Alphabet([f"category{k + 1:02d}" for k in range(len(go))])
    codes = MarkovModel(law / law.sum(), chain).sample(length, users, seed)
    return Content(*rectangle(codes), alphabet, hamming())


def items(users: int, length: int, seed: int, *, n: int = 5_000) -> Content:
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
    return Content(*rectangle(out), Alphabet.codes(n), hamming())


def sets(users: int, length: int, seed: int, *, n: int = 2_000) -> Content:
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
    return Content(*rectangle(out), Alphabet.codes(n), hamming())


def _between(running: Floats, low: Floats, high: Floats, rng: np.random.Generator) -> Codes:
    """Items drawn by popularity among those whose running weight lies in [low, high)."""
    aim = low + rng.random(len(low)) * (high - low)
    return np.clip(np.searchsorted(running, aim, side="right") - 1, 0, len(running) - 2).astype(np.int64)
