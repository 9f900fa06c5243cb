"""How bulk work is done: by one source in two forms, plain and compiled by numba; by rows in parts for threads; and by
arrays with a row for each user.

A function marked `@compiled` is what it says, plain Python on lists or arrays. `form` gives the one to call: the very
same code compiled, once it is loaded, else the function itself. Nothing is reordered or fused on the way, so both give
the same numbers to the last bit.

numba comes with `pip install -e '.[fast]'`. Code that it kept of an earlier process takes half a second to load: with
the first release of a session, and in a file of many users once there were enough releases to be worth it. Else it is
compiled, which takes some seconds, once a process has made enough releases to be worth those, or at `load()`.
`SEQVEIL_COMPILED=0` in the environment keeps to plain Python.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

WORTH_IT = 20_000  # releases of a process after which the code is compiled where it has to be
WORTH_LOADING = 2_000  # releases after which it is loaded where it was kept
PART = 1 << 17  # numbers that are worth a thread: fewer cost more to hand out than they save
NARROW = 128  # numbers up to which a row is one of many that go side by side
LISTED = 1 << 20  # numbers made into lists at a time, about

ANY = 1 << 62  # no limit

Ints = NDArray[np.int64]
Source = TypeVar("Source")
Found = TypeVar("Found")

_sources: list[Any] = []
_used: bool | None = None  # whether compiled forms are used; None: not yet
_made = 0


def compiled(function: Source) -> Source:
    """Mark a function as one that numba can compile."""
    _sources.append(function)
    return function


def reals(count: int) -> Any:
    """Room for numbers: a list, or an array where the caller is compiled."""
    return [0.0] * count


def wholes(count: int) -> Any:
    """Room for whole numbers: a list, or an array where the caller is compiled."""
    return [0] * count


def grid(_rows: int, _columns: int) -> Any:
    """Room for numbers by two places: a dictionary, or an array where the caller is compiled."""
    return defaultdict(float)


def form(function: Any, releases: int = 1) -> Any:
    """The form of a function to call for so many releases: compiled where that is loaded, else itself."""
    return _forms()[function] if ready(releases) else function


def ready(releases: int = 1) -> bool:
    """Whether compiled forms are used, for so many releases more."""
    global _used, _made
    if _used is None:
        _made += releases
        soon = releases == 1 or _made >= WORTH_LOADING  # one release alone is a session's, which is expected to go on
        if _made >= WORTH_IT or (soon and _kept()):
            _used = os.environ.get("SEQVEIL_COMPILED") != "0" and find_spec("numba") is not None
            if _used:
                _take_steps()
    return bool(_used)


def load() -> bool:
    """Load the compiled forms now, and leave none to compile later; False where numba is missing or switched off."""
    return ready(WORTH_IT)


def row_by_row(function: Any, numbers: Sequence[Any], given: Sequence[Any], filled: Sequence[Any]) -> None:
    """Call a marked function for rows that are `given`, to have others `filled` in: (B, …) all of them.

    Compiled code gets arrays, in parts for threads; plain Python gets lists. An empty array stays empty.
    """
    rows = len(filled[0])
    code = form(function, rows)

    def some(part: slice) -> None:
        """Have compiled code fill one part of the arrays in place."""
        here = [np.ascontiguousarray(array[part]) for array in given]
        code(*numbers, *here, *(array[part] for array in filled))

    if code is not function:
        in_parts(rows, some, given[0][0].size)
        return
    shared = [each.tolist() if isinstance(each, np.ndarray) else each for each in numbers]
    step = max(1, LISTED // sum(array[:1].size for array in (*given, *filled)))
    for at in range(0, rows, step):
        here, made = ([array[at : at + step].tolist() for array in arrays] for arrays in (given, filled))
        function(*shared, *here, *made)
        for array, values in zip(filled, made, strict=True):
            array[at : at + step] = values


def _take_steps() -> None:
    """A release and the belief after it: so that nothing is left to compile later."""
    from numba import config

    from seqveil.core import distortion, filtering, mechanisms
    from seqveil.core.mechanisms.base import Asked
    from seqveil.core.model import MarkovModel

    numba: Any = config
    before, numba.SLP_VECTORIZE = numba.SLP_VECTORIZE, 1  # `SIDE` like operations become one, with the same results
    model, some = MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]), np.zeros(5, np.int64)
    distributions = filtering.start(model, 5)
    made = mechanisms.optimal.release(distributions, 1.0, distortion.hamming(), Asked(some, some))
    assert made is not None
    for columns in (made.columns, made.columns.astype(np.float64)):
        filtering.move(model, distributions, columns)
    numba.SLP_VECTORIZE = before


def _forms() -> dict[Any, Any]:
    """The compiled form of each function that was marked, whichever modules were imported since the last call."""
    if len(_known) < len(_sources):
        from numba import njit

        if not _known:
            _hear_compiling()
        # no fast-math: reordered sums or fused products would give other last bits; a call would cost more than it does
        translate = njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
        arrays = {"reals": np.empty, "wholes": translate(_array_of_wholes), "grid": translate(_array_of_rows)}
        for function in _sources[len(_known) :]:
            if function.__module__ not in _scopes:  # marked functions of other modules stand for their compiled forms
                named = {
                    name: _known.get(value, value) for name, value in function.__globals__.items() if callable(value)
                }
                _scopes[function.__module__] = {**function.__globals__, **named, **arrays}
            scope = _scopes[function.__module__]
            _known[function] = scope[function.__name__] = translate(FunctionType(function.__code__, scope))
    return _known


def _hear_compiling() -> None:
    """Say so whenever numba compiles something, rather than loads what it kept."""
    from numba.core import event

    class _Compiling(event.Listener):
        def on_start(self, _: Any) -> None:
            """Nothing was kept of this function."""
            took_step(0)

        def on_end(self, _: Any) -> None:
            """It is there now."""
            took_step(-1)

    event.register("numba:compile", _Compiling())  # type: ignore[no-untyped-call]


def _array_of_wholes(count: int) -> NDArray[np.int64]:
    return np.empty(count, np.int64)


def _array_of_rows(rows: int, columns: int) -> NDArray[np.float64]:
    return np.empty((rows, columns))


_known: dict[Any, Any] = {}
_scopes: dict[str, dict[str, Any]] = {}  # by module: its names, those of marked functions bound to compiled forms


@cache
def _kept() -> bool:
    """Whether numba has kept compiled code of this very version, beside it or in a folder of its own."""
    source, name = Path(__file__).parent / "mechanisms" / "closed_form.py", "closed_form.draw-*.nbi"
    found = list(source.parent.glob(f"__pycache__/{name}"))
    for folder in (os.environ.get("NUMBA_CACHE_DIR"), os.path.expanduser("~/.cache/numba")):
        found += [] if not folder else Path(folder).glob(f"{source.parent.name}_*/{name}")
    try:
        return any(path.stat().st_mtime >= source.stat().st_mtime for path in found)
    except OSError:  # a file that is gone again, or a package in an archive
        return False


_listening: list[Callable[[int], None]] = []


@contextmanager
def heard(hear: Callable[[int], None]) -> Iterator[None]:
    """Have each step of bulk work in the block disclosed, by how many streams took it: for signs of progress.

    0 is said when compiling begins, which takes a while and is kept for later processes, and -1 when it is over.

    >>> with heard(print):
    ...     took_step(3)
    3
    """
    _listening.append(hear)
    try:
        yield
    finally:
        _listening.remove(hear)


def took_step(rows: int) -> None:
    """Tell whoever listens that so many streams went one event on."""
    for hear in _listening:
        hear(rows)


@cache
def threads() -> int:
    """How many threads bulk work may use: one for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parts(rows: int, work: Callable[[slice], Found], width: int = 1) -> list[Found]:
    """What `work` gives for each part of the rows, which run side by side; `width` is how many numbers a row has.

    >>> in_parts(10, lambda part: part.stop - part.start)
    [10]
    """
    count = min(threads(), rows, rows * width // PART)
    if count <= 1:
        return [work(slice(0, rows))]
    size = -(-rows // count)
    parts = [slice(at, min(rows, at + size)) for at in range(0, rows, size)]
    return list(_pool().map(work, parts))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads(), "seqveil-core")


if hasattr(os, "register_at_fork"):  # the threads of a pool do not come along into a forked process
    os.register_at_fork(after_in_child=_pool.cache_clear)


class ByUser:
    """A dataclass of arrays that have a row for each user; and of others such. None stays None.

    >>> @dataclass
    ... class Figures(ByUser):
    ...     ages: Ints
    ...     pairs: Ints
    >>> both = Figures(np.array([3, 5]), np.array([[1, 2], [3, 4]]))
    >>> both.take(np.array([1]))
    Figures(ages=array([5]), pairs=array([[3, 4]]))
    >>> both.where(np.array([True, False]), both.take(np.array([1, 0]))).pairs.tolist()
    [[1, 2], [1, 2]]
    """

    def take(self, rows: NDArray[Any] | slice) -> Self:
        """Of some users."""
        return self.mapped(lambda mine: mine[rows])

    def put(self, rows: NDArray[Any] | slice, part: Self) -> None:
        """Write those of some users back in place."""
        self.mapped(lambda mine, other: mine.__setitem__(rows, other), part)

    def join(self, other: Self) -> Self:
        """Two groups of users as one."""
        return self.mapped(lambda mine, other: np.concatenate([mine, other]), other)

    def where(self, who: NDArray[np.bool_], other: Self) -> Self:
        """These for some users, the others for the rest; in arrays of their own."""
        return self.mapped(lambda mine, other: np.where(who.reshape(-1, *(1,) * (mine.ndim - 1)), mine, other), other)

    @property
    def nbytes(self) -> int:
        """What the arrays take, in bytes."""
        values = (getattr(self, name) for name in self.__dataclass_fields__)  # type: ignore[attr-defined]
        return sum(value.nbytes for value in values if value is not None)

    def mapped(self, act: Callable[..., Any], *others: Self) -> Self:
        """The result of `act` for each array and those of others like it."""
        made: list[Any] = []
        for name in self.__dataclass_fields__:  # type: ignore[attr-defined]
            value, rest = getattr(self, name), [getattr(other, name) for other in others]
            if isinstance(value, ByUser):
                made.append(value.mapped(act, *rest))
            else:
                made.append(None if value is None else act(value, *rest))
        return type(self)(*made)


def places_within(lengths: Ints) -> Ints:
    """0, 1, … within each stream, for streams of these lengths one after another.

    >>> places_within(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def row_entries(pointers: NDArray[Any], rows: Ints) -> tuple[Ints, Ints]:
    """How many entries each of some rows of a sparse matrix has, and where they all stand, row after row.

    >>> [part.tolist() for part in row_entries(np.array([0, 2, 2, 5]), np.array([2, 0, 1]))]
    [[3, 2, 0], [2, 3, 4, 0, 1]]
    """
    begins = pointers[rows].astype(np.int64)
    counts = pointers[rows + 1] - begins
    return counts, np.repeat(begins, counts) + places_within(counts)


@dataclass(frozen=True, eq=False)
class Layout:
    """The streams of a log, longest first; those of one length in the order of their users' numbers.

    >>> layout = Layout.of(np.array([0, 1, 1, 0, 1]))
    >>> [(places.tolist(), lengths.tolist()) for places, lengths in layout.blocks()]
    [([[1, 2, 4], [0, 3, 0]], [3, 2])]
    >>> [places.tolist() for places in layout.steps()]
    [[1, 0], [2, 3], [4]]
    """

    order: Ints  # (E,) positions of the events, user by user
    begins: Ints  # (U,) where each stream begins in it
    lengths: Ints  # (U,)

    @classmethod
    def of(cls, users: Ints) -> Layout:
        """Of the users of all events, each user's in their order."""
        order = np.argsort(users, kind="stable")
        _, begins, lengths = np.unique(users[order], return_index=True, return_counts=True)
        longest = np.argsort(-lengths, kind="stable")
        return cls(order, begins[longest], lengths[longest])

    def steps(self) -> Iterator[Ints]:
        """Positions of the t-th events of all streams that have one, longest first, for t = 0, 1, …"""
        going = np.searchsorted(-self.lengths, -np.arange(int(self.lengths.max(initial=0))))
        for t, count in enumerate(going.tolist()):
            yield self.order[self.begins[:count] + t]

    def parts(self, events: int = ANY, most: int = ANY) -> Iterator[Layout]:
        """The streams in parts of so many events and streams at most, longest first; one stream is never cut.

        >>> [part.lengths.tolist() for part in Layout.of(np.array([0, 1, 1, 0, 1, 2])).parts(events=4)]
        [[3], [2, 1]]
        """
        at, upto = 0, np.cumsum(self.lengths)
        while at < self.lengths.size:
            before = int(upto[at - 1]) if at else 0
            end = min(max(at + 1, int(np.searchsorted(upto, before + events, side="right"))), at + most)
            yield Layout(self.order, self.begins[at:end], self.lengths[at:end])
            at = end

    def blocks(self, numbers: int = ANY, most: int = ANY) -> Iterator[tuple[Ints, Ints]]:
        """Streams that go together: positions of their events (U, T), any past a stream's end, and lengths (U,).

        numbers: positions that a block may have.
        most: streams that a block may have; the shortest has at least half of the longest's events.
        """
        at = 0
        while at < self.lengths.size:
            longest = int(self.lengths[at])
            part = self.lengths[at : at + max(1, min(most, numbers // longest))]
            part = part[part * 2 >= longest]
            steps = np.arange(longest)
            inside = steps < part[:, None]
            yield self.order[np.where(inside, self.begins[at : at + part.size, None] + steps, 0)], part
            at += part.size


def numbered(index: dict[Hashable, int], users: Iterable[Hashable]) -> NDArray[np.intp]:
    """The number of each user; those who are not in the index yet get the next ones, in the order they come.

    >>> index = {"ann": 0}
    >>> numbered(index, ["bob", "ann", "bob"]).tolist(), index
    ([1, 0, 1], {'ann': 0, 'bob': 1})
    """
    return np.array([index.setdefault(user, len(index)) for user in users], np.intp)
