"""Finite automata that recognise a secret: what has to be remembered of a window to know, at its end, what it was.

An automaton over n symbols is a start state, moves δ(a, x) and a label for every state. The value of a window x_1..x_N
is the label of δ(…δ(δ(start, x_1), x_2)…, x_N): 1 (it happened) or 0 for a single secret, the number of a combination
for several at once. All automata here are minimal, and numbered in the order in which the symbols reach their states,
so two that give the same labels are equal array by array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core.alphabet import Codes
from seqveil.core.errors import InputError

LARGEST = 64  # states
_LARGEST_BEFORE = 4096  # states of a product before it is minimised


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton: `moves` (A, n), `labels` (A,) in 0..values-1, and the start state.

    >>> health = ever([2], n=3)
    >>> health.moves.tolist(), health.accepting.tolist()
    ([[0, 0, 1], [1, 1, 1]], [False, True])
    >>> health.read([0, 2, 1]), health.read([0, 0])
    (1, 0)
    """

    moves: Codes
    labels: Codes
    values: int = 2
    start: int = 0

    @property
    def accepting(self) -> NDArray[np.bool_]:
        """Whether the secret is true when a window ends in each state (for secrets that are true or not)."""
        return self.labels == 1

    @property
    def size(self) -> int:
        """How many states there are."""
        return len(self.labels)

    def read(self, codes: Sequence[int]) -> int:
        """The label of a window."""
        state = self.start
        for code in codes:
            state = int(self.moves[state, code])
        return int(self.labels[state])

    def on_letters(self, letters: Codes) -> Automaton:
        """The automaton that takes symbol x as this one takes `letters[x]`; -1 is a symbol that is passed over."""
        passed = np.broadcast_to(np.arange(self.size)[:, None], (self.size, len(letters)))
        return minimal(np.where(letters >= 0, self.moves[:, letters], passed), self.labels, self.values, self.start)


def ever(codes: ArrayLike, n: int) -> Automaton:
    """At least one event of the window is among the codes."""
    return count(codes, 1, n)


def each(codes: ArrayLike, n: int) -> Automaton:
    """Every event of the window is among the codes.

    >>> each([0], n=2).read([0, 0]), each([0], n=2).read([0, 1])
    (1, 0)
    """
    inside = _marked(codes, n)
    return minimal(np.stack([np.where(inside, 0, 1), np.ones(n, np.int64)]), np.array([1, 0]))


def count(codes: ArrayLike, at_least: int, n: int) -> Automaton:
    """At least `at_least` events of the window are among the codes.

    >>> count([1], 2, n=2).read([1, 0, 1]), count([1], 2, n=2).read([1, 0, 0])
    (1, 0)
    """
    check_size(at_least + 1)
    so_far = np.arange(at_least + 1)
    more = np.minimum(so_far + 1, at_least)
    moves = np.where(_marked(codes, n)[None, :], more[:, None], so_far[:, None])
    moves[-1] = at_least
    return minimal(moves, (so_far == at_least).astype(np.int64))


def visit(first: ArrayLike, then: ArrayLike, n: int) -> Automaton:
    """An event among `first`, and at some later event one among `then`.

    >>> visit([0], [1], n=2).read([0, 0, 1]), visit([0], [1], n=2).read([1, 1, 0])
    (1, 0)
    """
    before = np.where(_marked(first, n), 1, 0)
    after = np.where(_marked(then, n), 2, 1)
    return minimal(np.stack([before, after, np.full(n, 2)]), np.array([0, 0, 1]))


def product(parts: Sequence[Automaton]) -> Automaton:
    """All parts at once: the label is the combination of theirs, the first part's counting fastest.

    >>> both = product([ever([0], n=3), ever([1], n=3)])
    >>> both.values, both.read([2]), both.read([0, 2]), both.read([1]), both.read([1, 0])
    (4, 0, 1, 2, 3)
    """
    whole = parts[0]
    for part in parts[1:]:
        whole = _pair(whole, part)
    return whole


def _pair(one: Automaton, two: Automaton) -> Automaton:
    if one.size * two.size > _LARGEST_BEFORE:
        check_size(one.size * two.size)
    stacked, place = _columns(np.concatenate([one.moves, two.moves]))
    first, second = stacked[: one.size], stacked[one.size :]
    moves = (first[:, None, :] * two.size + second[None, :, :]).reshape(one.size * two.size, -1)
    labels = (one.labels[:, None] + one.values * two.labels[None, :]).ravel()
    small = minimal(moves, labels, one.values * two.values, one.start * two.size + two.start)
    return Automaton(small.moves[:, place], small.labels, small.values)


def minimal(moves: Codes, labels: Codes, values: int = 2, start: int = 0) -> Automaton:
    """The smallest automaton with the same labels: states that can be reached, those that act alike made one.

    Moore's refinement: two states are told apart by their labels, then by the classes they move to, until nothing
    changes. Symbols that act alike in every state are one column meanwhile, so an alphabet of 10,000 costs little.
    """
    columns, place = _columns(np.asarray(moves, dtype=np.int64))
    classes = np.unique(labels, return_inverse=True)[1].ravel()
    found = 0
    while classes.max() + 1 > found:
        found = int(classes.max()) + 1
        key = np.concatenate([classes[:, None], classes[columns]], axis=1)
        classes = np.unique(key, axis=0, return_inverse=True)[1].ravel()
    member = np.zeros(found, np.int64)
    member[classes] = np.arange(len(classes))
    order = _reached(classes[columns[member]], int(classes[start]))
    check_size(len(order))
    number = np.full(found, -1)
    number[order] = np.arange(len(order))
    kept = member[order]
    return Automaton(number[classes[columns[kept]]][:, place], np.asarray(labels, np.int64)[kept], values)


def check_size(states: int) -> None:
    """Refuse a secret that needs too much memory of the past."""
    if states > LARGEST:
        raise InputError(
            f"a secret may need {LARGEST} states to be recognised; this one needs {states} or more, "
            "make the count, the pattern or the combination smaller"
        )


def _reached(moves: Codes, start: int) -> list[int]:
    """States reached from the start, in the order of a breadth-first walk."""
    order, known = [start], {start}
    for state in order:
        for target in moves[state].tolist():
            if target not in known:
                known.add(target)
                order.append(target)
    return order


def _columns(moves: Codes) -> tuple[Codes, Codes]:
    """The distinct columns of a table in the order of their first symbol, and the column of each symbol."""
    _, first, place = np.unique(moves, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return moves[:, first[order]], rank[place.ravel()]


def _marked(codes: ArrayLike, n: int) -> NDArray[np.bool_]:
    inside = np.zeros(n, bool)
    inside[np.asarray(codes, dtype=np.int64)] = True
    return inside
