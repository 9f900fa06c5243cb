"""Finite automata that recognise a secret: what has to be remembered of a window to know, at its end, what it was.

An automaton over n symbols has moves δ(a, x) and a label for every state; it starts in state 0. The value of a window
x_1..x_N is the label of δ(…δ(δ(0, x_1), x_2)…, x_N): 1 (it happened) or 0 for a single secret, the number of a
combination for several at once. All automata here are minimal, and numbered in the order in which the symbols reach
their states, so two that give the same labels are equal array by array.

Every secret is a *pattern* (`recognised`), in a small language of regular expressions: symbols separated by spaces,
`"quoted"` where a name holds spaces or signs, with

    .            any symbol                 a | b        one or the other
    ( )          grouping                   a* a+ a?     any number, at least one, at most one
    a{m,n}       m to n times ({m}, {m,})   ^ $          where the window begins, where it ends

Without `^` and `$` the pattern may occur anywhere in the window. A state of the automaton is what is left to match, and
states that act alike become one. All symbols that the pattern does not tell apart are one letter meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.alphabet import Codes
from seqveil.core.errors import InputError

LARGEST = 64  # states
_LARGEST_BEFORE = 4096  # states of a product before it is minimised
_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<times>\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    |(?P<sign>[.|()*+?^$])
    |(?P<name>[^\s.|()*+?{}^$"']+))""",
    re.VERBOSE,
)
_DEEPEST = 30

Node = tuple[object, ...]  # the kind of a pattern, and its parts
ANYTHING: Node = ("repeat", ("any",), 0, None)
VALUES: Node = ("symbol", "values")
THEN: Node = ("symbol", "then")


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton: `moves` (A, n) and `labels` (A,) in 0..values-1; it starts in state 0.

    >>> health = recognised(VALUES, {"values": 2}, n=3)
    >>> health.moves.tolist(), health.labels.tolist()
    ([[0, 0, 1], [1, 1, 1]], [0, 1])
    >>> health.read([0, 2, 1]), health.read([0, 0])
    (1, 0)
    """

    moves: Codes
    labels: Codes
    values: int = 2

    @property
    def size(self) -> int:
        """How many states there are."""
        return len(self.labels)

    def read(self, codes: Sequence[int]) -> int:
        """The label of a window."""
        state = 0
        for code in codes:
            state = int(self.moves[state, code])
        return int(self.labels[state])


def product(parts: Sequence[Automaton]) -> Automaton:
    """All parts at once: the label is the combination of theirs, the first part's counting fastest."""
    return reduce(_pair, parts)


def _pair(one: Automaton, two: Automaton) -> Automaton:
    if one.size * two.size > _LARGEST_BEFORE:
        check_size(one.size * two.size)
    stacked, place = _columns(np.concatenate([one.moves, two.moves]))
    first, second = stacked[: one.size], stacked[one.size :]
    moves = (first[:, None, :] * two.size + second[None, :, :]).reshape(one.size * two.size, -1)
    labels = (one.labels[:, None] + one.values * two.labels[None, :]).ravel()
    small = minimal(moves, labels, one.values * two.values)
    return Automaton(small.moves[:, place], small.labels, small.values)


def minimal(moves: Codes, labels: Codes, values: int = 2) -> Automaton:
    """The smallest automaton with the same labels: states that can be reached, those that act alike made one.

    Moore's refinement: two states are distinguished by their labels, then by the classes they move to, until nothing
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
    order = _reached(classes[columns[member]], int(classes[0]))
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


def recognised(tree: Node, sets: Mapping[str, ArrayLike], n: int) -> Automaton:
    """The automaton of a pattern over n symbols; `sets` holds the codes that each of its names stands for.

    >>> meal = recognised(parsed("a b* c"), {"a": 0, "b": [1, 3], "c": 2}, n=4)
    >>> meal.read([1, 0, 1, 3, 2]), meal.read([0, 0, 1])
    (1, 0)
    """
    marked = np.zeros((len(sets) + 1, n), np.int64)
    for row, codes in zip(marked, sets.values(), strict=False):
        row[np.asarray(codes, np.int64)] = 1
    columns, place = _columns(marked)  # symbols with the same names are one letter
    letters = [frozenset(name for name, there in zip(sets, column, strict=False) if there) for column in columns.T]
    small = minimal(*_determined(tree, letters))
    return Automaton(small.moves[:, place], small.labels)


def parsed(text: str) -> Node:
    """The pattern as a tree of tuples; one line for a pattern that cannot be read."""
    tokens = _tokens(text)
    if not tokens:
        raise InputError("a pattern needs at least one symbol; got none, write for instance 'home clinic'")
    tree, after = _either(tokens, 0, 0)
    if after < len(tokens):
        raise InputError(f"the pattern has a ')' without its '(' at part {after + 1}; check the brackets")
    return tree


def names(tree: Node) -> list[str]:
    """The names a pattern holds, each once, in order."""
    if tree[0] == "symbol":
        return [str(tree[1])]
    below = [part for part in tree[1:] if isinstance(part, tuple)]
    return list(dict.fromkeys(name for part in below for name in names(part)))


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, place, end = [], 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise InputError(f"the pattern cannot be read at character {place + 1}; quote names that hold signs")
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind]))
        place = match.end()
    return tokens


def _either(tokens: list[tuple[str, str]], place: int, depth: int) -> tuple[Node, int]:
    """Alternatives, up to a closing bracket or the end."""
    if depth > _DEEPEST:
        raise InputError(f"the pattern has more than {_DEEPEST} brackets within each other; make it flatter")
    choices = []
    while True:
        one, place = _row(tokens, place, depth)
        choices.append(one)
        if place == len(tokens) or tokens[place] != ("sign", "|"):
            return (choices[0] if len(choices) == 1 else ("either", *choices)), place
        place += 1


def _row(tokens: list[tuple[str, str]], place: int, depth: int) -> tuple[Node, int]:
    """One thing after another, up to `|`, a closing bracket or the end."""
    parts: list[Node] = []
    while place < len(tokens) and tokens[place] not in (("sign", "|"), ("sign", ")")):
        kind, text = tokens[place]
        if kind == "times" or (kind == "sign" and text in "*+?"):
            if not parts:
                raise InputError(
                    f"the pattern repeats nothing at part {place + 1}; put a symbol or a bracket before it"
                )
            parts[-1] = ("repeat", parts[-1], *_times(text))
        elif (kind, text) == ("sign", "("):
            inner, place = _either(tokens, place + 1, depth + 1)
            if place == len(tokens):
                raise InputError("the pattern has a '(' without its ')'; check the brackets")
            parts.append(inner)
        else:
            parts.append(_leaf(kind, text))
        place += 1
    return ("row", *parts), place


def _leaf(kind: str, text: str) -> Node:
    if kind == "sign":
        return ({".": "any", "^": "begin", "$": "end"}[text],)
    return "symbol", re.sub(r"\\(.)", r"\1", text[1:-1]) if kind == "quoted" else text


def _times(text: str) -> tuple[int, int | None]:
    signs: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    if text in signs:
        return signs[text]
    low, comma, high = text.strip("{} ").partition(",")
    if len(low.strip()) > 4 or len(high.strip()) > 4:
        check_size(10_000)
    least, most = int(low), (int(high) if high.strip() else None) if comma else int(low)
    if most is not None and most < least:
        raise InputError(f"the pattern repeats from {least} up to {most} times; write the smaller number first")
    return least, most


_EMPTY: Node = ("row",)  # matches the empty word alone
_NOTHING: Node = ("either",)  # matches no word


def _rows(*parts: Any) -> Node:
    """One thing after another, brackets taken off."""
    flat = [each for part in parts for each in (part[1:] if part[0] == "row" else (part,))]
    return _NOTHING if _NOTHING in flat else flat[0] if len(flat) == 1 else ("row", *flat)


def _choice(parts: Iterable[Any]) -> Node:
    """One or the other, each once, in one order, so that there are few different ones."""
    flat = {each for part in parts for each in (part[1:] if part[0] == "either" else (part,))}
    return flat.pop() if len(flat) == 1 else ("either", *sorted(flat, key=hash))


def _empty(node: Any, first: bool, last: bool) -> bool:
    """Whether the empty word matches where the window begins (`first`) or ends (`last`)."""
    kind = node[0]
    if kind in ("either", "row"):
        return (any if kind == "either" else all)(_empty(part, first, last) for part in node[1:])
    if kind == "repeat":
        return node[2] == 0 or _empty(node[1], first, last)
    return (kind == "begin" and first) or (kind == "end" and last)


@lru_cache(maxsize=1 << 14)  # states share most of what is left to match
def _after(node: Any, letter: frozenset[str], first: bool) -> Node:
    """What is left to match once a letter, which has these names, was read: the derivative of the pattern.

    Reference: Brzozowski, *Derivatives of regular expressions*, JACM 1964.
    """
    kind, *parts = node
    if kind == "either":
        return _choice(_after(part, letter, first) for part in parts)
    if kind == "row":
        reached = next((k for k, part in enumerate(parts) if not _empty(part, first, False)), len(parts) - 1)
        return _choice(_rows(_after(parts[k], letter, first), *parts[k + 1 :]) for k in range(reached + 1))
    if kind == "repeat":
        part, least, most = parts
        if most == 0:
            return _NOTHING
        rest = ("repeat", part, max(least - 1, 0), None if most is None else most - 1)
        skipped = [_after(rest, letter, first)] if least and _empty(part, first, False) else []
        return _choice([_rows(_after(part, letter, first), rest), *skipped])
    return _EMPTY if kind == "any" or (kind == "symbol" and parts[0] in letter) else _NOTHING


def _determined(tree: Node, letters: list[frozenset[str]]) -> tuple[Codes, Codes]:
    """Moves and labels of the pattern anywhere in a window; the first state is where the window begins."""
    order = [(_rows(ANYTHING, tree, ANYTHING), True)]
    number = {order[0]: 0}
    moves, accepting = [], []
    for node, first in order:
        accepting.append(_empty(node, first, True))
        for letter in letters:
            key = _after(node, letter, first), False
            if key not in number:
                if len(order) == _LARGEST_BEFORE // 2:
                    check_size(len(order))
                number[key] = len(order)
                order.append(key)
            moves.append(number[key])
    return np.array(moves, np.int64).reshape(len(order), -1), np.array(accepting, np.int64)
