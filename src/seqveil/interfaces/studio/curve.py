"""Error against ε for one mechanism: the same streams at several ε, a little at a time, so that nobody waits for it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from seqveil.core import mechanisms
from seqveil.core.coins import SeededCoins
from seqveil.core.distortion import resolve
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side
from seqveil.interfaces.studio.ask import Ask
from seqveil.interfaces.studio.offer import offers
from seqveil.interfaces.studio.source import Source
from seqveil.release import batches, stream

EPSILONS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
STREAMS, EVENTS = 8, 40  # that a point is the mean over
FEW = 2  # streams where each release takes a program or a tree of its own
FEW_EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)  # and the ε at which


@dataclass(frozen=True)
class Point:
    """One mechanism at one ε an event: mean error as released and after the online decoder, and the worst release."""

    epsilon: float
    error: float
    decoded: float
    worst: float
    claimed: float


class Curve:
    """The points of one mechanism over a source, made one after another.

    >>> from seqveil.interfaces.studio.source import builtin
    >>> curve = Curve(builtin("clicks"), Ask("clicks", mechanism="balanced"))
    >>> curve.go()
    >>> errors = [point.error for point in curve.points]
    >>> errors[0] > errors[-1], max(point.worst - point.claimed for point in curve.points) < 1e-9
    (True, True)
    """

    def __init__(self, source: Source, ask: Ask) -> None:
        plain = Ask(source.name, distortion=ask.distortion, mechanism=ask.mechanism, batch=ask.batch, every=ask.every)
        self.ask, self.source = plain, source
        self.sound = mechanisms.find(ask.mechanism).sound
        self.slow = slow(ask.mechanism, ask.distortion)
        self.points: list[Point] = []
        self.complete = False
        self.lock = threading.Lock()
        self._work = self._make()

    def go(self, seconds: float = math.inf, stop: Callable[[], bool] = lambda: False) -> None:
        """Work on the points for so long, or until somebody else waits."""
        end = time.perf_counter() + seconds
        for point in self._work:
            if point is not None:
                self.points.append(point)
            if time.perf_counter() > end or stop():
                return
        self.complete = True

    def to_json(self) -> dict[str, Any]:
        rows = [
            [p.epsilon, p.error, p.decoded, p.worst if math.isfinite(p.worst) else None, p.claimed] for p in self.points
        ]
        facts = {"mechanism": self.ask.mechanism, "batch": self.ask.batch, "every": self.ask.every}
        return facts | {"sound": self.sound, "complete": self.complete, "points": rows, "silent": self.silent}

    @cached_property
    def silent(self) -> float:
        """Mean error of the best guess from the chain alone."""
        costs = resolve(self.ask.distortion, self.source.model.alphabet)
        guess = self.source.guesses(costs)
        errors = [costs.between(codes, guess[: codes.size]) for codes in self._truth(STREAMS)]
        return float(np.concatenate(errors).mean())

    def _make(self) -> Iterator[Point | None]:
        """The points; None now and then, to look at the clock."""
        for epsilon in FEW_EPSILONS if self.slow else EPSILONS:
            ask = replace(self.ask, epsilon=epsilon)
            if any(each.why_not for each in offers(self.source, ask) if each.name == ask.mechanism):
                continue
            try:
                setting = ask.setting(self.source.model)
                yield from self._batched(setting, epsilon) if setting.in_batches else self._one_by_one(setting, epsilon)
            except InputError:
                continue  # this ε is more than it takes

    def _truth(self, streams: int) -> list[Ints]:
        return [codes[:EVENTS] for codes in self.source.streams[:streams]]

    def _one_by_one(self, setting: stream.Setting, epsilon: float) -> Iterator[Point | None]:
        truth = self._truth(min(STREAMS, FEW * setting.schedule.period) if self.slow else STREAMS)
        length = min(map(len, truth))
        codes = np.stack([each[:length] for each in truth])
        state, coins, tally = stream.State.start(setting, len(codes)), SeededCoins(1), Tally(setting)
        for t in range(length):
            made, state = stream.step(setting, state, codes[:, t], coins)
            tally.add(made, codes[:, t])
            yield None
        yield tally.point(epsilon)

    def _batched(self, setting: stream.Setting, epsilon: float) -> Iterator[Point | None]:
        tally, coins = Tally(setting), SeededCoins(1)
        for codes in self._truth(min(STREAMS, FEW * setting.batch * setting.schedule.period)):
            state, ones = stream.State.start(setting), np.ones(setting.model.size)
            for begin in range(0, codes.size, setting.batch):
                part = codes[begin : begin + setting.batch]
                sent, state = batches.step(setting, state, part, coins)
                assert sent is not None  # nothing is left out without a budget
                guess = setting.distortion.best_guess(sent.smooth(ones)[0])
                tally.count(part, sent.codes, guess, float(larger_side(sent.most, sent.least)))
                yield None
        yield tally.point(epsilon)


def slow(mechanism: str, distortion: str) -> bool:
    """Whether each release takes milliseconds: a program, or a tree.

    >>> slow("optimal", "hamming"), slow("optimal", "absolute"), slow("tree", "hamming")
    (False, True, True)
    """
    program = mechanism in ("optimal", "optimal_ldp") and distortion != "hamming"
    return program or mechanism == "mutual_information" or mechanism in mechanisms.batched()


class Tally:
    """Errors and the worst release of what was released so far."""

    def __init__(self, setting: stream.Setting) -> None:
        self._setting = setting
        self._errors, self._events, self._worst = np.zeros(2), 0, 0.0

    def add(self, made: stream.Released, truth: Ints) -> None:
        """One symbol of each stream."""
        weights = made.beliefs * made.columns
        marginal = weights.sum(1)
        guess = self._setting.distortion.best_guess(np.where(marginal[:, None] > 0, weights, made.columns))
        self.count(truth, made.codes, guess, float(made.costs.max()))

    def count(self, truth: Ints, released: Ints, guess: Ints, worst: float) -> None:
        costs: list[Floats] = [self._setting.distortion.between(truth, each) for each in (released, guess)]
        self._errors += [each.sum() for each in costs]
        self._events += truth.size
        self._worst = max(self._worst, worst)

    def point(self, epsilon: float) -> Point:
        error, decoded = (self._errors / self._events).tolist()
        return Point(epsilon, error, decoded, self._worst, self._setting.epsilon * self._setting.schedule.period)
