"""What a wrong release costs: Hamming, absolute, squared, Euclidean, metres on the map, or any matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core import geography
from seqveil.core.errors import InputError, option

if TYPE_CHECKING:
    from seqveil.core.alphabet import Symbols

FEW = 256  # symbols up to which all are tried as an estimate
STEPS = 8  # of the search for a centre
FAINT = 1e-3  # symbols that hold less than this share of a distribution are left out of its median
READ = 1 << 19  # distances that are held for a few; and numbers of distributions whose medians are searched at once
Floats = NDArray[np.float64]
NAMES = ("hamming", "absolute", "squared", "euclidean", "metres")
WHOLE = 2048  # symbols up to which all distances are held: 32 MB
TOGETHER = 2_000_000.0  # metres around their middle within which a flat map of places is true enough to search on


@dataclass(frozen=True, eq=False)
class Distortion:
    """D(x, y): the cost of releasing y when the truth is x, for codes x and y.

    `points` holds a position per symbol (none for Hamming), `table` a full matrix; exactly one rule applies by `name`.
    For metres on the map `places` are the latitudes and longitudes that distances are computed from, and `points` a
    flat map of them, which searches may use.

    >>> hamming().between([0, 1], [0, 2]).tolist()
    [0.0, 1.0]
    >>> absolute([10, 20, 40]).between([0, 1], [2, 1]).tolist()
    [30.0, 0.0]
    """

    name: str
    points: Floats | None = None
    table: Floats | None = None
    places: Floats | None = None

    @cached_property
    def is_hamming(self) -> bool:
        """Whether every wrong symbol costs 1, for which the optimum has a closed form."""
        return self.name == "hamming"

    @property
    def defining(self) -> tuple[Floats | None, Floats | None]:
        """The numbers that it was made from; those that follow from them may differ in a last digit by machine."""
        return (self.points if self.places is None else self.places), self.table

    @cached_property
    def _sphere(self) -> Floats:
        """Where the places lie in space, in metres: (n, 3)."""
        assert self.places is not None
        return geography.sphere(self.places)

    @cached_property
    def _together(self) -> bool:
        """Whether the points are a plane, or places close enough to take a flat map for the globe."""
        assert self.points is not None
        return self.places is None or float(np.abs(self.points).max()) < TOGETHER

    @cached_property
    def content(self) -> bytes:
        """A digest of its rule, points and table, which two distortions share where they give the same costs."""
        numbers = [b"" if part is None else part.tobytes() for part in self.defining]
        return blake2b(b" ".join([self.name.encode(), *numbers])).digest()

    def between(self, truth: ArrayLike, released: ArrayLike) -> Floats:
        """D elementwise over arrays of codes (they broadcast)."""
        x, y = np.asarray(truth), np.asarray(released)
        if self.table is not None:
            return self.table[x, y]
        if self.points is None:
            return (x != y).astype(np.float64)
        if self.places is not None:
            return geography.along(np.sqrt(((self._sphere[x] - self._sphere[y]) ** 2).sum(-1)))
        gap = self.points[x] - self.points[y]
        if self.name == "euclidean":
            return np.sqrt((gap**2).sum(-1))
        return gap**2 if self.name == "squared" else np.abs(gap)

    def held(self, n: int, truth: NDArray[np.int64], released: NDArray[np.int64]) -> Floats:
        """The same of n symbols, read from the matrix of all costs where it is worth holding."""
        worth = n * n <= max(READ, released.size) and n <= WHOLE
        return self.matrix(n)[truth, released] if worth else self.between(truth, released)

    def matrix(self, n: int) -> Floats:
        """The n × n matrix of D."""
        return _matrix(self, n) if n <= WHOLE else self.between(np.arange(n)[:, None], np.arange(n)[None, :])

    def expected(self, beliefs: Floats) -> Floats:
        """Expected cost Σ β(x) D(x, r) of every constant release r: shape (..., n)."""
        if self.is_hamming:
            return beliefs.sum(-1, keepdims=True) - beliefs
        if self.name == "squared" and self.points is not None:
            place = self.points - self.points.min()  # large numbers close together must not drown in their squares
            mass, mean = beliefs.sum(-1, keepdims=True), (beliefs * place).sum(-1, keepdims=True)
            return mass * place**2 - 2 * mean * place + (beliefs * place**2).sum(-1, keepdims=True)
        n = beliefs.shape[-1]
        if n <= WHOLE:
            # einsum without BLAS sums each row in a fixed order, so a row's result does not depend on the others
            return np.einsum("...x,xy->...y", beliefs, self.matrix(n), optimize=False)
        out = np.zeros((beliefs.size // n, n))
        for belief, found in zip(beliefs.reshape(-1, n), out, strict=True):
            support = np.flatnonzero(belief)
            for part in np.array_split(support, max(1, support.size * n // 4_000_000)):
                found += (belief[part, None] * self.between(part[:, None], np.arange(n)[None, :])).sum(0)
        return out.reshape(beliefs.shape)

    def best_guess(self, beliefs: Floats) -> NDArray[np.int64]:
        """The constant release of least expected cost under each belief (ties: the lowest code).

        For Euclidean costs over more than 256 symbols, and metres where the places lie together: the best of the few
        symbols nearest to the weighted geometric median, found by Weiszfeld's steps. Nothing but the quality of an
        estimate depends on it.
        """
        if self.is_hamming:
            return beliefs.argmax(-1)
        if self.name == "absolute" and self.points is not None:  # the weighted median by position
            order = np.argsort(self.points, kind="stable")
            cumulative = np.cumsum(beliefs[..., order], axis=-1)
            place = (cumulative < 0.5 * cumulative[..., -1:]).sum(-1)
            return order[np.minimum(place, order.size - 1)]
        if self.name in ("euclidean", "metres") and beliefs.shape[-1] > FEW and self._together:
            flat, some = beliefs.reshape(-1, beliefs.shape[-1]), max(1, READ // beliefs.shape[-1])
            found = [_geometric_medians(self, flat[at : at + some]) for at in range(0, len(flat), some)]
            return np.concatenate([np.empty(0, np.int64), *found]).reshape(beliefs.shape[:-1])
        return self.expected(beliefs).argmin(-1)


def _geometric_medians(distortion: Distortion, distributions: Floats) -> NDArray[np.int64]:
    """The best of the few symbols nearest to each geometric median, by Weiszfeld's steps: of each row on its own."""
    assert distortion.points is not None
    rows, kept = np.nonzero(distributions >= FAINT * distributions.max(1, keepdims=True))
    begins, everyone = np.searchsorted(rows, np.arange(len(distributions))), np.arange(len(distributions))
    places, weights = distortion.points[kept], distributions[rows, kept, None]
    pull = weights
    for _ in range(STEPS):
        centre = np.add.reduceat(places * pull, begins) / np.maximum(np.add.reduceat(pull, begins), 1e-300)
        pull = weights / np.maximum(np.sqrt(((places - centre[rows]) ** 2).sum(1, keepdims=True)), 1e-6)
    gaps, near = ((distortion.points - centre[:, None]) ** 2).sum(2), []
    for _ in range(4):
        near.append(gaps.argmin(1))
        gaps[everyone, near[-1]] = np.inf
    tried = np.stack([*near, distributions.argmax(1)])
    costs = weights[:, 0] * distortion.held(len(distributions[0]), kept, tried[:, rows])
    return tried[np.add.reduceat(costs, begins, axis=1).argmin(0), everyone]


@lru_cache(maxsize=2)
def _matrix(distortion: Distortion, n: int) -> Floats:
    """All costs, which take longer to find than to read; nobody writes into them."""
    found = distortion.between(np.arange(n)[:, None], np.arange(n)[None, :])
    found.flags.writeable = False
    return found


HAMMING = Distortion("hamming")


def hamming() -> Distortion:
    """1 where the release is wrong, 0 where it is right."""
    return HAMMING


def absolute(values: ArrayLike) -> Distortion:
    """|v(x) - v(y)| for one number per symbol."""
    return Distortion("absolute", points=_points(values, 1))


def squared(values: ArrayLike) -> Distortion:
    """(v(x) - v(y))² for one number per symbol."""
    return Distortion("squared", points=_points(values, 1))


def euclidean(points: ArrayLike) -> Distortion:
    """‖v(x) - v(y)‖ for one point per symbol (rows of an n × d array)."""
    return Distortion("euclidean", points=_points(points, 2))


def metres(places: ArrayLike) -> Distortion:
    """The distance along the ground in metres, for one pair (latitude, longitude) in degrees per symbol.

    >>> metres([(48.8566, 2.3522), (51.5074, -0.1278)]).between(0, 1).round(-3).item()
    344000.0
    """
    degrees = geography.checked(places)
    return Distortion("metres", points=geography.plane(degrees), places=degrees)


def matrix(costs: ArrayLike) -> Distortion:
    """Any square matrix of finite costs ≥ 0, one row per truth and one column per release."""
    table = np.array(costs, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not np.isfinite(table).all() or (table < 0).any():
        raise InputError(
            f"expected a square distortion matrix of finite costs ≥ 0, one row and one column per symbol; got one of "
            f"shape {table.shape}, or with NaN, inf or negative entries"
        )
    return Distortion("matrix", table=table)


def _points(values: ArrayLike, dimensions: int) -> Floats:
    points = np.array(values, dtype=np.float64)
    if points.ndim != dimensions or not len(points) or not np.isfinite(points).all():
        wanted = "one finite number" if dimensions == 1 else "one point with finite coordinates"
        raise InputError(f"expected {wanted} per symbol, got an array of shape {points.shape}")
    return points


def resolve(distortion: str | Distortion | Sequence[Sequence[float]], alphabet: Symbols) -> Distortion:
    """A Distortion from an object, a name (positions come from the alphabet) or a matrix, checked against the size."""
    found = distortion if isinstance(distortion, (str, Distortion)) else matrix(distortion)
    if isinstance(found, str):
        found = _by_name(found, alphabet)
    holder: Any = found.points if found.table is None else found.table
    if holder is not None and len(holder) != alphabet.n:
        raise InputError(
            f"expected a distortion over {alphabet.n} symbols, got one over {len(holder)}; give one entry per symbol"
        )
    return found


def error_name(distortion: str) -> str:
    """What an error under a distortion of this name is called."""
    return "error in metres" if distortion == "metres" else f"{distortion} error"


def error_size(error: float, distortion: str) -> str:
    """An error in words.

    >>> error_size(0.52, "absolute"), error_size(49.6, "metres"), error_size(1520.0, "metres")
    ('0.52', '50 m', '1.52 km')
    """
    if distortion != "metres":
        return f"{error:.4g}"
    if error < 1000:
        return f"{error:.0f} m"
    return f"{error / 1000:.3g} km" if error < 1e6 else f"{error / 1000:,.0f} km"


def _by_name(name: str, alphabet: Symbols) -> Distortion:
    if name == "hamming":
        return HAMMING
    if name not in NAMES:
        raise InputError(f"expected a distortion among {', '.join(NAMES)} or a matrix, got {name!r}")
    points, said = alphabet.points, f'distortion "{name}"'
    if name == "metres" and not alphabet.on_map:
        raise InputError(f"{said} needs cells of the map; fit with {option('cell_metres', 500)}")
    if name != "metres" and alphabet.on_map:
        raise InputError(f'{said} would measure in degrees, which are no distances; use "metres"')
    if points is None:
        raise InputError(f'{said} needs numbers, and this alphabet has none; use "hamming" or a matrix')
    if name in ("absolute", "squared") and points.ndim == 2:
        raise InputError(f'{said} is for one number per symbol, and this alphabet is a grid; use "euclidean"')
    made = {"absolute": absolute, "squared": squared, "euclidean": euclidean, "metres": metres}[name]
    return made(points[:, None] if name == "euclidean" and points.ndim == 1 else points)
