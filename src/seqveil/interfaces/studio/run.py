"""One stream released step by step, as far as there is time: what a slow mechanism has made so far can be shown.

The steps are those of a `Session` with the same seed, so a release with the exported configuration comes out the same.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import cached_property

import numpy as np

from seqveil.core import filtering
from seqveil.core.coins import SeededCoins
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side
from seqveil.core.mechanisms import Sent
from seqveil.interfaces.studio.ask import Ask
from seqveil.interfaces.studio.source import Source
from seqveil.release import batches, stream


class Run:
    """A stream of a source under way. Rows of the arrays are events; after a batch all of its events have its figures.

    >>> from seqveil.interfaces.studio.source import builtin
    >>> run = Run(builtin("clicks"), Ask("clicks", events=10))
    >>> run.go()
    >>> run.complete, bool(run.leakage[-1] <= run.spent[-1])
    (True, True)
    """

    def __init__(self, source: Source, ask: Ask) -> None:
        self.source, self.ask = source, ask
        self.setting = ask.setting(source.model)
        self.raw = source.codes(ask.stream, ask.events)
        self.lock = threading.Lock()
        self.done = 0  # events
        self._state, self._coins = stream.State.start(self.setting), SeededCoins(ask.seed)
        count, n = self.raw.size, source.model.n
        self._released = np.full(count, stream.NOTHING, np.int64)
        self._figures = np.zeros((6, count))  # ε, leakage, its two sides, Σε, LDP level
        self._costs = np.zeros(count)
        self._columns, self._beliefs = np.ones((count, n), np.int64), np.zeros((count, n))
        self._sent: list[Sent] = []
        self._filtered: list[Floats] = []

    @property
    def complete(self) -> bool:
        return self.done == self.raw.size

    def go(self, seconds: float = math.inf, stop: Callable[[], bool] = lambda: False) -> None:
        """Release on until the end, until the time is over, or until somebody else waits; one step is always made."""
        step, end = self._batch if self.setting.in_batches else self._symbol, time.perf_counter() + seconds
        while not self.complete:
            step()
            if time.perf_counter() > end or stop():
                break

    def _symbol(self) -> None:
        t, before = self.done, self._state.spent[0]
        made, self._state = stream.step(self.setting, self._state, self.raw[t : t + 1], self._coins)
        self._released[t] = made.codes[0]
        self._columns[t], self._beliefs[t], self._costs[t] = made.columns[0], made.beliefs[0], made.costs[0]
        self._note(slice(t, t + 1), self._state.spent[0] - before if made.epsilons[0] else 0.0)
        self._figures[0, t] = made.epsilons[0]
        self.done = t + 1

    def _batch(self) -> None:
        part = slice(self.done, min(self.raw.size, self.done + self.setting.batch))
        before = self._state.spent[0]
        sent, self._state = batches.step(self.setting, self._state, self.raw[part], self._coins)
        assert sent is not None  # the page offers batches with the policy hold alone
        self._sent.append(sent)
        self._filtered.append(sent.smooth(np.ones(self.setting.model.size))[0])
        self._released[part] = sent.codes
        self._note(part, 0.0)
        self._figures[0, part.start] = self._state.spent[0] - before
        self._costs[part.start] = larger_side(sent.most, sent.least)
        self.done = part.stop

    def _note(self, part: slice, used: float) -> None:
        state, account = self._state, self._state.account
        told = (used, account.worst[0], account.most[0], account.least[0], state.spent[0], state.ldp[0])
        self._figures[:, part] = np.array(told)[:, None]

    # what was made so far

    @property
    def released(self) -> Ints:
        return self._released[: self.done]

    @property
    def epsilons(self) -> Floats:
        """ε of each event's release; that of a batch stands at its first event."""
        return self._figures[0, : self.done]

    @property
    def leakage(self) -> Floats:
        return self._figures[1, : self.done]

    @property
    def most(self) -> Floats:
        return self._figures[2, : self.done]

    @property
    def least(self) -> Floats:
        return self._figures[3, : self.done]

    @property
    def spent(self) -> Floats:
        return self._figures[4, : self.done]

    @property
    def ldp(self) -> Floats:
        return self._figures[5, : self.done]

    @property
    def costs(self) -> Floats:
        """The most that each release moved a belief; that of a batch stands at its first event."""
        return self._costs[: self.done]

    @property
    def online(self) -> Floats:
        """What an observer believes of each symbol (T, n) from the releases up to it."""
        if self.setting.in_batches:
            return np.concatenate(self._filtered)
        columns, beliefs = self._columns[: self.done], self._beliefs[: self.done]
        laws = beliefs * columns
        ruled_out = laws.sum(1) == 0  # only an unsound mechanism releases it: what could have made it is believed
        laws[ruled_out] = columns[ruled_out]
        return laws / laws.sum(1, keepdims=True)

    @cached_property
    def hindsight(self) -> Floats:
        """The same from all releases, once they are made."""
        assert self.complete
        if self.setting.in_batches:
            return batches.smooth(self.setting, self._sent)
        model, columns = self.setting.model, self._columns[:, None, :]
        return filtering.laws(model, columns / columns.max(-1, keepdims=True))[0]
