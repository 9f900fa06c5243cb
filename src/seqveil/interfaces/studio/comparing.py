"""A few mechanisms side by side at the same promise: what each is expected to err over several streams of a source.

And the other way round: the promise that a tolerated error leaves, as `seqveil plan --wrong` finds it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqveil.core.errors import InputError
from seqveil.interfaces.planning import SEEN_BY, Wishes, advise
from seqveil.interfaces.studio.ask import Ask, offers, slow
from seqveil.interfaces.studio.picture import PictureRun
from seqveil.interfaces.studio.sources import StudioSource

STREAMS, FEW = 8, 2  # that an error is the mean over; where each release takes a program or a tree of its own
EVENTS = 100  # of each, at most
PULSE, BATCH = 4, 5  # of the pulsed and the batched way


def from_accuracy(source: StudioSource, ask: Ask, wrong: float) -> dict[str, Any]:
    """The smallest ε whose expected error stays under what is tolerated, and the pulses that it goes with.

    With a secret it is the secret's total. Without one `epsilon` is for an event and `total` for all events together.

    >>> from seqveil.interfaces.studio.sources import builtin
    >>> found = from_accuracy(builtin("clicks"), Ask("clicks", events=20), 0.3)
    >>> found["every"], 0.5 < found["epsilon"] < 2, round(found["total"] / found["epsilon"])
    (3, True, 21)
    """
    secrets = tuple(ask.declared(source.model))
    if slow("optimal", ask.distortion):
        raise InputError("with this cost of an error it takes too long to watch; `seqveil plan --wrong` finds it")
    suspicion, limit = SEEN_BY["partner"]
    wishes = Wishes(ask.events, suspicion, limit, wrong, 0, secrets, ask.distortion)
    found = advise(source.model, wishes, from_accuracy=True)
    if secrets:
        return {"secret_epsilon": found.policy.secrets[0].epsilon, "error": found.error}
    facts = {"epsilon": found.policy.epsilon, "total": found.policy.budget.total, "error": found.error}
    return facts | {"every": found.policy.every}


@dataclass
class Way:
    """One way to release at the promise, and what came of it."""

    label: str
    ask: Ask
    chosen: bool = False
    error: float | None = None
    decoded: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As the page shows it; `late` is for how many later events a release waits."""
        facts = {"label": self.label, "mechanism": self.ask.mechanism, "late": self.ask.batch - 1}
        return facts | {"chosen": self.chosen, "error": self.error, "decoded": self.decoded}


class Comparison:
    """The chosen way and a few others that promise the same, worked out one after another.

    >>> from seqveil.interfaces.studio.sources import builtin
    >>> found = Comparison(builtin("clicks"), Ask("clicks", events=30, epsilon=1.0))
    >>> found.go()
    >>> [way.label for way in found.ways]
    ['optimal', 'optimal, with all its ε in one release of 4', 'tree, in batches of 5', 'randomized_response']
    """

    def __init__(self, source: StudioSource, ask: Ask) -> None:
        self.source = source
        events = min(ask.events, EVENTS, *(len(codes) for codes in source.streams))
        plain = replace(ask, source=source.name, events=events, stream=0, seed=1)
        if ask.budget is not None and math.isclose(ask.rate * ask.events, ask.budget, rel_tol=0.01):
            plain = replace(plain, epsilon=ask.budget / events)  # a total that is spread over the stream stays so
        self.ways = [each for each in _ways(plain, ask.events) if _fits(source, each.ask)]
        self.lock = threading.Lock()
        self._run: PictureRun | None = None  # of the first way that is not worked out

    @property
    def complete(self) -> bool:
        """Whether every way is worked out."""
        return all(way.error is not None for way in self.ways)

    def go(self, seconds: float = math.inf, stop: Callable[[], bool] = lambda: False) -> None:
        """Work for so long, or until somebody else waits."""
        end = time.perf_counter() + seconds
        while not self.complete:
            way = next(way for way in self.ways if way.error is None)
            self._run = run = self._run or PictureRun(self.source, way.ask, _streams(way.ask))
            run.go(end - time.perf_counter(), stop)
            if run.complete:
                self._finish(way, run)
            if time.perf_counter() > end or stop():
                return

    def _finish(self, way: Way, run: PictureRun) -> None:
        costs, truth, released = run.setting.distortion, run.raw.ravel(), run.released.ravel()
        guesses = costs.best_guess(run.online.reshape(truth.size, -1))
        made = released >= 0
        way.decoded = float(costs.between(truth, guesses).mean())
        way.error = float(costs.between(truth[made], released[made]).mean()) if made.any() else way.decoded
        self._run = None

    def to_json(self) -> dict[str, Any]:
        """What is known so far, with the error of the best guess from the chain alone."""
        return {"complete": self.complete, "ways": [way.to_json() for way in self.ways], "silent": self._silent()}

    def _silent(self) -> float:
        ask = self.ways[0].ask
        costs = ask.setting(self.source.model).distortion
        guess = self.source.guesses(costs)[: ask.events]
        truth = [codes[: ask.events] for codes in self.source.streams[: _streams(ask)]]
        return float(np.concatenate([costs.between(codes, guess) for codes in truth]).mean())


def _streams(ask: Ask) -> int:
    return FEW if ask.secret is not None or slow(ask.mechanism, ask.distortion) else STREAMS


def _fits(source: StudioSource, ask: Ask) -> bool:
    try:
        return not next(each.why_not for each in offers(source, ask) if each.name == ask.mechanism)
    except InputError:
        return False


def _ways(ask: Ask, shown: int) -> list[Way]:
    """The chosen way first, then the others; the same one is not named twice."""
    found = [Way(_label(ask), ask, chosen=True)]
    if ask.secret is None or ask.secret_epsilon is None:
        found += _for_events(ask)
    else:
        found += _for_secret(ask, shown, ask.secret_epsilon / 2)
    return [way for k, way in enumerate(found) if way.ask not in [other.ask for other in found[:k]]]


def _label(ask: Ask) -> str:
    """A way in words.

    >>> _label(Ask("clicks", every=3)), _label(Ask("clicks", mechanism="tree", batch=5))
    ('optimal, with all its ε in one release of 3', 'tree, in batches of 5')
    """
    text = ask.mechanism
    text += f", with all its ε in one release of {ask.every}" if ask.every > 1 else ""
    return text + (f", in batches of {ask.batch}" if ask.batch > 1 else "")


def _for_events(ask: Ask) -> list[Way]:
    """The same ε an event, and the same budgets."""
    plain = replace(ask, mechanism="optimal", batch=1, every=1)
    tree = replace(plain, mechanism="tree", batch=BATCH, when_spent="hold")
    others = [plain, replace(plain, every=PULSE), tree, replace(plain, mechanism="randomized_response")]
    return [Way(_label(each), each) for each in others]


def _for_secret(ask: Ask, shown: int, total: float) -> list[Way]:
    """What keeps the same secret as well by protecting everything: half its ε in total, since odds move by e^2ε."""
    span = ask.secret_window
    budget: dict[str, Any] = {"window": total, "window_releases": min(span, shown)} if span else {"budget": total}
    spread = total / (span or ask.events)
    plain = replace(Ask(ask.source, events=ask.events, distortion=ask.distortion, epsilon=spread), **budget)
    at_once = replace(plain, epsilon=total)
    return [
        Way("optimal, protecting everything, a little at each event", plain),
        Way("optimal, protecting everything, all ε at once", at_once),
        Way("randomized_response, protecting everything", replace(plain, mechanism="randomized_response")),
    ]
