"""Finite automata that recognise a secret: what has to be remembered of a window to know, at its end, what it was.

An automaton over n symbols has moves δ(a, x) and a label for every state; it starts in state 0. The value of a window
x_1..x_N is the label of δ(…δ(δ(0, x_1), x_2)…, x_N): 1 (it happened) or 0 for a single secret; of several at once, each
is a binary digit of the label, the first one the lowest. All automata here are minimal, and numbered in the order in
which the symbols reach their states, so two that give the same labels are equal array by array.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.alphabet import Codes
from seqveil.core.errors import InputError

LARGEST = 64  # states
_LARGEST_BEFORE = 4096  # states before those that act alike become one
_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<times>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    |(?P<bracket>[(|)])
    |(?P<sign>[.^$])
    |(?P<name>[^\s.|()*+?{}^$"']+)
    |(?P<unreadable>\S))""",
    re.VERBOSE,
)
_DEEPEST = 30

Node = tuple[object, ...]  # the kind of a pattern, and its parts
ANYTHING: Node = ("repeat", ("any",), 0, None)


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton: `moves` (A, n) and `labels` (A,) in 0..values-1; it starts in state 0.

    >>> health = recognised([("values", {"values": 2})], n=3)
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


def _reached(start: Any, letters: Iterable[Any], step: Callable[[Any, Any], Any]) -> tuple[list[Any], Codes]:
    """States reached from the start, in the order of a breadth-first walk, and where each letter leads from each."""
    order, number, moves, letters = [start], {start: 0}, list[int](), list(letters)
    for state in order:
        for letter in letters:
            target = step(state, letter)
            if target not in number:
                if len(order) == _LARGEST_BEFORE:
                    check_size(len(order))
                number[target] = len(order)
                order.append(target)
            moves.append(number[target])
    return order, np.array(moves, np.int64).reshape(len(order), -1)


def minimal(moves: Codes, labels: Codes, values: int = 2) -> Automaton:
    """The smallest automaton with the same labels: states that can be reached, those that act alike made one.

    Moore's refinement: two states are distinguished by their labels, then by the classes they move to, until nothing
    changes.
    """
    classes = np.unique(labels, return_inverse=True)[1].ravel()
    found = 0
    while classes.max() + 1 > found:
        found = int(classes.max()) + 1
        key = np.concatenate([classes[:, None], classes[moves]], axis=1)
        classes = np.unique(key, axis=0, return_inverse=True)[1].ravel()
    member = np.zeros(found, np.int64)
    member[classes] = np.arange(len(classes))
    moved = classes[moves[member]]
    order, small = _reached(int(classes[0]), range(moved.shape[1]), lambda state, letter: int(moved[state, letter]))
    check_size(len(order))
    return Automaton(small, labels[member[order]], values)


def check_size(states: int) -> None:
    """Refuse a secret that needs too much memory of the past."""
    if states > LARGEST:
        raise InputError(
            f"a secret may need {LARGEST} states to be recognised; this one needs {states} or more, "
            "make the count, the pattern or the combination smaller"
        )


def recognised(patterns: Sequence[tuple[str, Mapping[str, ArrayLike]]], n: int) -> Automaton:
    """The automaton of patterns over n symbols, read side by side, each with the codes that its names stand for.

    >>> meal = recognised([("a b* c", {"a": 0, "b": [1, 3], "c": 2})], n=4)
    >>> meal.read([1, 0, 1, 3, 2]), meal.read([0, 0, 1])
    (1, 0)
    """
    spelled = [[set[str]() for _ in patterns] for _ in range(n)]
    for place, (_, sets) in enumerate(patterns):
        for name, codes in sets.items():
            for code in np.ravel(codes).tolist():
                spelled[code][place].add(name)
    letters = [tuple(map(frozenset, names)) for names in spelled]
    column = {letter: k for k, letter in enumerate(dict.fromkeys(letters))}  # one for all symbols with the same names

    def step(state: Any, letter: tuple[frozenset[str], ...]) -> Any:
        """What is left to match after one more letter."""
        nodes, begins = state
        return tuple(_after(node, own, begins) for node, own in zip(nodes, letter, strict=True)), False

    # what is left to match, and whether the window begins here
    start = tuple(_rows(ANYTHING, parsed(text), ANYTHING) for text, _ in patterns), True
    order, moves = _reached(start, column, step)
    labels = [sum(_empty(node, begins, True) << place for place, node in enumerate(nodes)) for nodes, begins in order]
    small = minimal(moves, np.array(labels, np.int64), 1 << len(patterns))
    return Automaton(small.moves[:, [column[letter] for letter in letters]], small.labels, small.values)


def parsed(text: str) -> Node:
    """The pattern as a tree of tuples; one line for a pattern that cannot be read."""
    opened: list[list[list[Node]]] = [[[]]]  # the text, then each open bracket: its alternatives, each a row
    for match in _TOKEN.finditer(text.rstrip()):
        kind = str(match.lastgroup)
        token, row, where = match[kind], opened[-1][-1], f"at character {match.start(kind) + 1}"
        if kind == "unreadable":
            raise InputError(f"the pattern cannot be read {where}; quote names that hold signs")
        if token == "(":
            opened.append([[]])
            if len(opened) > _DEEPEST + 1:
                raise InputError(f"the pattern has more than {_DEEPEST} brackets within each other; make it flatter")
        elif token == "|":
            opened[-1].append([])
        elif token == ")":
            if len(opened) == 1:
                raise InputError(f"the pattern has a ')' without its '(' {where}; check the brackets")
            inner = _either(opened.pop())
            opened[-1][-1].append(inner)
        elif kind == "times":
            if not row or row[-1][0] == "repeat":
                raise InputError(f"the pattern repeats nothing {where}; put a symbol or a bracket before it")
            row[-1] = ("repeat", row[-1], *_times(token))
        elif kind == "sign":
            row.append(({".": "any", "^": "begin", "$": "end"}[token],))
        else:
            row.append(("symbol", re.sub(r"\\(.)", r"\1", token[1:-1]) if kind == "quoted" else token))
    if len(opened) > 1:
        raise InputError("the pattern has a '(' without its ')'; check the brackets")
    if opened == [[[]]]:
        raise InputError("a pattern needs at least one symbol; got none, write for instance 'home clinic'")
    return _either(opened[0])


def _either(choices: list[list[Node]]) -> Node:
    rows: list[Node] = [("row", *parts) for parts in choices]
    return rows[0] if len(rows) == 1 else ("either", *rows)


def names(tree: Node) -> list[str]:
    """The names a pattern holds, each once, in order."""
    if tree[0] == "symbol":
        return [str(tree[1])]
    return list(dict.fromkeys(name for part in tree[1:] if isinstance(part, tuple) for name in names(part)))


def _times(text: str) -> tuple[int, int | None]:
    low, comma, high = {"*": "0,", "+": "1,", "?": "0,1"}.get(text, text.strip("{} ")).partition(",")
    if len(low.strip()) > 4 or len(high.strip()) > 4:
        check_size(10_000)
    least, most = int(low), (int(high) if high.strip() else None) if comma else int(low)
    check_size(least + 1)
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
