"""Secrets by enumeration: every sequence of a small chain, its probability, and what releases tell about windows."""

from __future__ import annotations

import numpy as np

from reference.guarding import asked
from seqveil import secrets
from seqveil.core.alphabet import Alphabet
from seqveil.core.model import MarkovModel, validate
from seqveil.core.secrets import SecretTracker, SecretTrackers
from seqveil.core.states import States

SECRETS = [
    secrets.ever(1, window=3, epsilon=1.0),
    secrets.ever(0, window="event", epsilon=1.0),
    secrets.always(0, window=2, epsilon=1.0),
    secrets.count(1, 2, window="first 4", epsilon=1.0),
    secrets.followed_by(0, 1, window=3, one_sided=True, epsilon=1.0),
    secrets.pattern("0 . 1 | 1 1", window="first 5", epsilon=1.0),
    secrets.ever(1, epsilon=1.0),
    secrets.count(0, 2, epsilon=1.0),
    secrets.joint(secrets.ever(0, window=3, epsilon=1.0), secrets.ever(1, window=3, epsilon=1.0)),
    secrets.joint(secrets.ever(0, epsilon=1.0), secrets.followed_by(1, 0, epsilon=1.0)),
]
LENGTH = 6


class Enumerated:
    """All sequences of `length` symbols with their probabilities, from paths over the chain's states."""

    def __init__(self, model: MarkovModel, length: int) -> None:
        step = model.advance(np.eye(model.size))
        total: dict[tuple[int, ...], np.ndarray] = {}
        for code in range(model.n):
            total[(code,)] = np.where(model.newest == code, model.initial, 0.0)
        for _ in range(length - 1):
            total = {
                (*word, code): np.where(model.newest == code, distribution @ step, 0.0)
                for word, distribution in total.items()
                for code in range(model.n)
            }
        self.words = list(total)
        self.array = np.array(self.words)
        self.distribution = np.array([distribution.sum() for distribution in total.values()])

    def values(self, compiled, first: int, events: int, place: int = 0) -> np.ndarray:
        """Value of the window in every sequence; its first event stands at this place of it."""
        return np.array([compiled.read(word[first : first + events], place) for word in self.words])

    def prior(self, values: np.ndarray, count: int) -> np.ndarray:
        return np.bincount(values, self.distribution, minlength=count)

    def likelihoods(self, columns: list[np.ndarray]) -> np.ndarray:
        """Pr(y_1..t | sequence) for the columns Q(y_k|·) of what was released."""
        like = np.ones(len(self.words))
        for k, column in enumerate(columns):
            like = like * column[self.array[:, k]]
        return like

    def given(self, values: np.ndarray, count: int, columns: list[np.ndarray]) -> np.ndarray:
        """Pr(y_1..t | v) for every value; nan where a value cannot occur."""
        prior = self.prior(values, count)
        both = np.bincount(values, self.distribution * self.likelihoods(columns), minlength=count)
        with np.errstate(invalid="ignore"):
            return both / prior

    def log_odds(self, values: np.ndarray, count: int, columns: list[np.ndarray]) -> float:
        given = self.given(values, count, columns)
        if count == 2:
            with np.errstate(divide="ignore"):  # disclosed for certain: allowed on one side, and by other mechanisms
                return float(np.log(given[1] / given[0]))
        given = given[~np.isnan(given)]
        return float(np.log(given.max() / given.min()))


def random_model(rng: np.random.Generator, n: int, order: int = 1, spread: float = 1.0) -> MarkovModel:
    rows = rng.dirichlet(np.full(n, spread), n**order)
    first = rng.dirichlet(np.ones(n**order)).reshape((n,) * order)
    return MarkovModel(first, rows, order=order)


def typed_model(rng: np.random.Generator, types: int, n: int) -> MarkovModel:
    """A chain for every type of person; the type stays. States are (type, symbol)."""
    from scipy import sparse

    blocks = [rng.dirichlet(np.ones(n), n) for _ in range(types)]
    chain = sparse.csr_array(sparse.block_diag(blocks))
    chain.sort_indices()
    weights = rng.dirichlet(np.full(types, 3.0))
    initial = np.concatenate([weight * rng.dirichlet(np.ones(n)) for weight in weights])
    newest = np.tile(np.arange(n), types)
    states = States(2, n, initial, chain, np.zeros(types * n), np.full(n, 1 / n), np.arange(n), newest)
    validate(states)
    return MarkovModel._of(states, Alphabet(range(n)))


def one(trackers: SecretTrackers) -> SecretTracker:
    """The account of the first secret under the first model."""
    return trackers.rows[0][0]


def kept_kernel(trackers, table: np.ndarray) -> np.ndarray:
    """A kernel (n, K) mixed with its own marginal until every constraint holds for every label: the obvious mechanism.

    With β of several models there are several marginals; the first model's is mixed in, which keeps all.
    """
    rows = [(tracker.belief[0], asked(tracker).linear()) for row in trackers.rows for tracker in row]
    constant = trackers.rows[0][0].belief[0] @ table

    def broken(share: float) -> bool:
        mixed = (1 - share) * table + share * constant
        return any((row @ (belief[:, None] * mixed) > 0).any() for belief, row in rows if len(row))

    low, high = 0.0, 1.0
    if not broken(0.0):
        return table
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if broken(middle) else (low, middle)
    return (1 - high) * table + high * constant


def small_models(seed: int) -> list[MarkovModel]:
    rng = np.random.default_rng(seed)
    return [random_model(rng, 2), random_model(rng, 3), random_model(rng, 2, order=2), typed_model(rng, 2, 2)]


def random_columns(seed: int, n: int, length: int = LENGTH) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.full(3, 0.7), n)[:, 0] + 1e-3 for _ in range(length)]
