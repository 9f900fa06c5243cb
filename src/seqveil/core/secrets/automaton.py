"""Finite automata that recognise a secret: what has to be remembered of a window to know, at its end, what it was.

An automaton over n symbols is a start state, moves δ(a, x) and a label for every state. The value of a window x_1..x_N
is the label of δ(…δ(δ(start, x_1), x_2)…, x_N): 1 (it happened) or 0 for a single secret, the number of a combination
for several at once. All automata here are minimal, and numbered in the order in which the symbols reach their states,
so two that give the same labels are equal array by array.

*Patterns* (`of_pattern`) are a small language of regular expressions: symbols separated by spaces, `"quoted"` where a
name holds spaces or signs, with

    .            any symbol                 a | b        one or the other
    ( )          grouping                   a* a+ a?     any number, at least one, at most one
    a{m,n}       m to n times ({m}, {m,})   ^ $          where the window begins, where it ends

Without `^` and `$` the pattern may occur anywhere in the window. The way to the automaton is the classical one: the
pattern becomes a net of states (Thompson), sets of states become states (subset construction), and those that act alike
become one. All symbols that the pattern does not name are one letter meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
_DEEPEST, _LARGEST_NET, _LARGEST_SUBSETS = 30, 4096, 2048
_REST = -1  # the letter of every symbol that is not named

Node = tuple[object, ...]


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


def always(codes: ArrayLike, n: int) -> Automaton:
    """Every event of the window is among the codes.

    >>> always([0], n=2).read([0, 0]), always([0], n=2).read([0, 1])
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


def followed_by(first: ArrayLike, then: ArrayLike, n: int) -> Automaton:
    """An event among `first`, and at some later event one among `then`.

    >>> followed_by([0], [1], n=2).read([0, 0, 1]), followed_by([0], [1], n=2).read([1, 1, 0])
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


def of_pattern(text: str, code_of: Callable[[str], int], n: int) -> Automaton:
    """The automaton of a pattern over n symbols, whose names `code_of` turns into codes.

    >>> meal = of_pattern("a b* c", {"a": 0, "b": 1, "c": 2}.__getitem__, n=3)
    >>> meal.read([1, 0, 1, 1, 2]), meal.read([0, 0, 1])
    (1, 0)
    """
    tree = parsed(text)
    codes = {name: code_of(name) for name in names(tree)}
    net = _Net({name: int(code) for name, code in codes.items()})
    begin, end = net.state(), net.state()
    net.reads(begin, None, begin)
    net.reads(end, None, end)
    net.add(tree, begin, end)
    letters = sorted(set(codes.values()))
    if len(letters) < n:
        letters.append(_REST)
    moves, accepting = _subsets(net, begin, end, letters)
    place = np.full(n, len(letters) - 1)
    for column, code in enumerate(letters):
        if code != _REST:
            place[code] = column
    small = minimal(moves, accepting)
    return Automaton(small.moves[:, place], small.labels) if n else small


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


@dataclass
class _Net:
    """A net of states: silent edges, perhaps only where the window begins or ends, and edges that read a symbol."""

    codes: dict[str, int]
    silent: list[list[tuple[str, int]]] = field(default_factory=list)
    reading: list[list[tuple[int | None, int]]] = field(default_factory=list)  # None reads anything

    def state(self) -> int:
        if len(self.silent) == _LARGEST_NET:
            check_size(_LARGEST_NET)
        self.silent.append([])
        self.reading.append([])
        return len(self.silent) - 1

    def reads(self, source: int, code: int | None, target: int) -> None:
        self.reading[source].append((code, target))

    def add(self, node: Node, source: int, target: int) -> None:
        """Lay the ways of a tree between two states."""
        kind, parts = node[0], [part for part in node[1:] if isinstance(part, tuple)]
        if kind == "symbol":
            self.reads(source, self.codes[str(node[1])], target)
        elif kind == "any":
            self.reads(source, None, target)
        elif kind in ("begin", "end"):
            self.silent[source].append((str(kind), target))
        elif kind == "either":
            for part in parts:
                self.add(part, source, target)
        elif kind == "repeat":
            least, most = node[2], node[3]
            assert isinstance(least, int)
            assert most is None or isinstance(most, int)
            self._repeat(parts[0], least, most, source, target)
        else:
            for part in parts:
                source = self._after(part, source)
            self.silent[source].append(("", target))

    def _after(self, part: Node, source: int) -> int:
        """The state behind a part, with silent edges on both sides so that loops of several parts stay apart."""
        inside, behind = self.state(), self.state()
        self.silent[source].append(("", inside))
        self.add(part, inside, behind)
        return behind

    def _repeat(self, part: Node, least: int, most: int | None, source: int, target: int) -> None:
        for _ in range(least):
            source = self._after(part, source)
        if most is None:
            loop = self.state()
            self.silent[source].append(("", loop))
            self.silent[self._after(part, loop)].append(("", loop))
            source = loop
        for _ in range(0 if most is None else most - least):
            self.silent[source].append(("", target))
            source = self._after(part, source)
        self.silent[source].append(("", target))

    def closed(self, states: Iterable[int], *conditions: str) -> frozenset[int]:
        """All states that silent edges lead to, where the named conditions hold."""
        found = set(states)
        todo = list(found)
        while todo:
            for condition, target in self.silent[todo.pop()]:
                if (not condition or condition in conditions) and target not in found:
                    found.add(target)
                    todo.append(target)
        return frozenset(found)


def _subsets(net: _Net, begin: int, end: int, letters: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Moves and labels over sets of states of the net; the first is where a window begins, and nothing returns to it.

    The set at the beginning may use edges that ask for the beginning, every set those that ask for the end when it is
    asked whether a window that ends here is accepted.
    """
    first = net.closed([begin], "begin")
    number: dict[tuple[frozenset[int], bool], int] = {(first, True): 0}
    order = [(first, True)]
    moves, accepting = [], []
    for states, fresh in order:
        accepting.append(end in net.closed(states, "end", *(["begin"] if fresh else [])))
        row = []
        for letter in letters:
            targets = [t for s in states for code, t in net.reading[s] if code is None or code == letter]
            key = (net.closed(targets), False)
            if key not in number:
                if len(order) == _LARGEST_SUBSETS:
                    check_size(_LARGEST_SUBSETS)
                number[key] = len(order)
                order.append(key)
            row.append(number[key])
        moves.append(row)
    return np.array(moves, dtype=np.int64), np.array(accepting, dtype=np.int64)
