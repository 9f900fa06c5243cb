"""Everything that calls of several events show, exactly: all raw sequences, all ways to cut them into calls, all draws.

A client sends a stream in calls. What it sees is a transcript t; its distribution Pr(t|x) for each raw sequence x
follows from playing every outcome of every draw, weighed by the very integers of the kernels. Then max |log
Pr(x|t)/Pr(x)| is what the calls leaked, whatever the ledger says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from seqveil.core import bulk
from seqveil.core.kernel import DENOMINATOR, Kernels
from seqveil.core.mechanisms import Mechanism
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import Randomness, SeededRandomness
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import Terms
from seqveil.engine.streams import CodeStreams

MODEL = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
BUDGETS = {"total": {"total": 1.8}, "window": {"per_window": 1.8, "releases": 3}}
POLICIES = ("hold", "stop")
Seen = tuple[int, ...]  # what a client sees of one call


class World(Protocol):
    """A place that releases, for one stream at a time."""

    def begin(self) -> None: ...
    def call(self, seqs: range, raw: list[int]) -> Seen: ...
    def ledger(self) -> float: ...


class Drawn(NamedTuple):
    """One draw: the symbol it was made for, and the weight that each symbol would give its outcome."""

    code: int
    weights: tuple[int, ...]


class Script:
    """Stands in for the picking of an output by a draw: plays one outcome of every draw after another."""

    def __init__(self) -> None:
        self._choices: list[int] = []
        self._widths: list[int] = []
        self.drawn: list[Drawn] = []

    def begin(self) -> None:
        self._widths, self.drawn = [], []

    def following(self) -> bool:
        """Whether there is another run, and its choices."""
        while self._choices and self._choices[-1] + 1 == self._widths[len(self._choices) - 1]:
            self._choices.pop()
        if self._choices:
            self._choices[-1] += 1
        return bool(self._choices)

    def pick(self, kernels: Kernels, codes: np.ndarray, randomness: np.ndarray) -> np.ndarray:
        users, width = kernels.outputs.shape
        columns = np.stack([kernels.column(np.full(users, k)) for k in range(width)], axis=1)
        return np.array([self._one(int(codes[row]), columns[row]) for row in range(users)], np.int64)

    def _one(self, code: int, columns: np.ndarray) -> int:
        possible = np.flatnonzero(columns.any(1))
        at = len(self._widths)
        self._widths.append(possible.size)
        if at == len(self._choices):
            self._choices.append(0)
        chosen = int(possible[self._choices[at]])
        self.drawn.append(Drawn(code, tuple(columns[chosen].tolist())))
        return chosen


@contextmanager
def scripted() -> Iterator[Script]:
    """Every draw of a release goes by the script."""
    bulk.load()  # first: loading takes a step, which must not be drawn by the script
    script, pick, release = Script(), Kernels.pick, Mechanism.release
    Mechanism.release = lambda *of: None  # type: ignore[method-assign]  # it draws by itself
    Kernels.pick = lambda self, codes, randomness: script.pick(self, codes, randomness)  # type: ignore[method-assign]
    try:
        yield script
    finally:
        Kernels.pick, Mechanism.release = pick, release  # type: ignore[method-assign]


def cuts(length: int) -> list[list[range]]:
    """All ways to cut events 0..length-1 into calls.

    >>> [[len(part) for part in cut] for cut in cuts(3)]
    [[3], [1, 2], [2, 1], [1, 1, 1]]
    """
    found = []
    for marks in itertools.chain.from_iterable(itertools.combinations(range(1, length), k) for k in range(length)):
        ends = [0, *marks, length]
        found.append([range(a, b) for a, b in itertools.pairwise(ends)])
    return found


def play(world: World, script: Script, raw: list[int], cut: list[range]) -> tuple[Seen, ...]:
    """What a client sees that sends these calls."""
    script.begin()
    world.begin()
    return tuple(world.call(part, [raw[k] for k in part]) for part in cut)


def distributions(
    world: World, script: Script, length: int, cut: list[range]
) -> Iterator[tuple[tuple[Seen, ...], float, np.ndarray]]:
    """Every transcript with what the ledger says after it and its probability for each raw sequence.

    What a place does depends on the raw symbols through the draws alone. So each run is played with symbols that spell
    the number of their event in binary: the draws then tell which event each was for, and with that the probability
    of the run for all sequences at once.
    """
    everything = np.array(list(itertools.product(range(MODEL.n), repeat=length)))
    going = True
    while going:
        events: list[int] = []
        for bit in range(max(1, (length - 1).bit_length())):
            said = play(world, script, [k >> bit & 1 for k in range(length)], cut)
            events = events or [0] * len(script.drawn)
            assert len(events) == len(script.drawn)
            events = [event | drawn.code << bit for event, drawn in zip(events, script.drawn, strict=True)]
        chances = np.ones(len(everything))
        for event, drawn in zip(events, script.drawn, strict=True):
            chances *= np.array(drawn.weights)[everything[:, event]] / DENOMINATOR
        yield said, world.ledger(), chances
        going = script.following()


def worst(world: World, script: Script, length: int, cut: list[range]) -> tuple[float, float]:
    """The largest leakage of a transcript, and the most by which one passes what the ledger says of it."""
    found: dict[tuple[Seen, ...], tuple[float, np.ndarray]] = {}
    for said, ledger, chances in distributions(world, script, length, cut):
        before = found.get(said)
        found[said] = (ledger, chances) if before is None else (min(ledger, before[0]), chances + before[1])
    prior = np.array([_prior(raw) for raw in itertools.product(range(MODEL.n), repeat=length)])
    assert abs(sum(chances for _, chances in found.values()) - 1.0).max() < 1e-9
    leaked = excess = -math.inf
    for ledger, chances in found.values():
        with np.errstate(divide="ignore"):
            here = float(np.abs(np.log(chances / (prior @ chances))).max())
        leaked, excess = max(leaked, here), max(excess, here - ledger)
    return leaked, excess


def _prior(raw: tuple[int, ...]) -> float:
    chain = MODEL.chain.toarray()
    return float(MODEL.initial[raw[0]]) * math.prod(float(chain[a, b]) for a, b in itertools.pairwise(raw))


def setting_of(budget: str, policy: str, epsilon: float = 1.0) -> Terms:
    """The sticky chain of two states under one of the budgets."""
    return Policy(epsilon=epsilon, budget=Budget(**BUDGETS[budget], when_spent=policy), mechanism="optimal").on(MODEL)  # type: ignore[arg-type]


class InStore:
    """A store; each stream is a new user's."""

    def __init__(self, path: Path, setting: Terms, randomness: Randomness | None = None) -> None:
        self.store, self._user = CodeStreams.open(path, setting, randomness=randomness or SeededRandomness(0)), 0

    def begin(self) -> None:
        self._user += 1

    @property
    def user(self) -> str:
        return f"u{self._user}"

    def call(self, seqs: range, raw: list[int]) -> Seen:
        return tuple(self.store.release([self.user] * len(raw), raw, list(seqs)).codes.tolist())

    def ledger(self) -> float:
        account = self.store.account(self.user)
        return 0.0 if account is None else account.leakage


class InMemory:
    """Streams in memory, new for each stream."""

    def __init__(self, setting: Terms) -> None:
        self._setting = setting

    def begin(self) -> None:
        self._streams = CodeStreams(self._setting, randomness=SeededRandomness(0))

    def call(self, seqs: range, raw: list[int]) -> Seen:
        return tuple(self._streams.release(["ann"] * len(raw), raw).codes.tolist())

    def ledger(self) -> float:
        leakage = self._streams.accounts().leakage
        return float(leakage.max(initial=0.0))


class Found(NamedTuple):
    """The worst of all calls: what they leaked, and by how much that passes the ledger, and the total if there is."""

    leaked: float
    excess: float


def worst_of_all(world: World, script: Script, setting: Terms, length: int) -> Found:
    """Over all ways to cut so many events into calls."""
    pairs = [worst(world, script, length, cut) for cut in cuts(length)]
    leaked, excess = (max(pair[k] for pair in pairs) for k in range(2))
    return Found(leaked, excess if setting.budget.total is None else max(excess, leaked - setting.budget.total))
