"""Streams of many users whose model changes on the way, with an exact account under whichever model is in force.

Every release leaves its column Q(y|·) in a log. When a new version comes into force, each user's belief and account are
computed anew under its chain from those very columns: exact, whatever model had chosen the kernels. A column of an
ε-LDP kernel has all lifts within ε under every chain; one of a sound kernel chosen under another model within 2ε.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.bulk import Layout
from seqveil.core.coins import Coins
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.core.leakage import Account
from seqveil.core.model import MarkovModel
from seqveil.receive.coldstart.versions import Version
from seqveil.receive.learn import Evidence
from seqveil.receive.learn.evidence import BELIEF_FREE
from seqveil.release import stream
from seqveil.release.stream import Released, State

Rows = NDArray[np.intp]


class Lanes:
    """One row a user under the version in force.

    >>> from seqveil.core.alphabet import Alphabet
    >>> from seqveil.core.coins import SeededCoins
    >>> from seqveil.receive.coldstart.versions import first_version
    >>> lanes = Lanes(first_version(Alphabet(["a", "b"]), "randomized_response", 1.0))
    >>> lanes.grow(2)
    >>> lanes.release(np.array([0, 1]), np.array([0, 1]), SeededCoins(1)).codes.shape, lanes.evidence()
    ((2,), Evidence(2 users, 2 releases, 2 symbols))
    """

    def __init__(self, version: Version) -> None:
        self.version = version
        self.state = State.start(version.setting, 0)
        self._log: _Log | None = _Log(version.setting.model.n)

    def __len__(self) -> int:
        return len(self.state)

    def grow(self, users: int) -> None:
        """Make room for rows 0..users-1."""
        self.state = self.state.grown(self.version.setting, users)

    def release(self, rows: Rows, codes: Ints, coins: Coins) -> Released:
        """Release one symbol for each of the rows named; no row twice. Rows refused have the code REFUSED."""
        return self._noted(rows, lambda part: stream.step(self.version.setting, part, codes, coins))

    def observe(self, rows: Rows, codes: Ints) -> Released:
        """Take in one release for each of the rows named, as a receiver does."""
        return self._noted(rows, lambda part: stream.observe(self.version.setting, part, codes))

    def skip(self, rows: Rows) -> None:
        """Pass over an event of each of these rows that nobody released: the belief moves on, nothing is charged."""
        part = self.state.take(rows)
        model = self.version.setting.model
        moved = replace(part, states=filtering.predict(model, part.states), account=part.account.skip(model))
        self.state.put(rows, replace(moved, steps=part.steps + 1))
        if self._log is not None:
            self._log.skip(rows)

    def _noted(self, rows: Rows, act: Callable[[State], tuple[Released, State]]) -> Released:
        made, self.state = self.state.move(rows, act)
        if self.version.number == 0:
            self._charge_for_every_chain()
        if self._log is not None:
            taken = np.flatnonzero(made.codes != stream.REFUSED)
            self._log.add(rows[taken], made.take(taken), self.version)
        return made

    def _charge_for_every_chain(self) -> None:
        """Account for ε-LDP releases by Σε: the exact figure of a chain nobody believes in would promise too much."""
        state = self.state
        most, least = state.spent.copy(), -state.spent
        account = Account(most, least, most[:, None].copy(), least[:, None].copy())
        self.state = replace(state, account=account)

    def switch(self, version: Version) -> None:
        """Put the next version in force: belief and account of every user as its chain sees all releases so far."""
        if self._log is None:
            raise InputError("the log was closed, so no other version can come into force")
        if version.number != self.version.number + 1:
            raise InputError(f"expected version {self.version.number + 1}, got {version.number}")
        states, account = self._log.weigh(version.setting.model, len(self))
        self.version, self.state = version, replace(self.state, states=states, account=account)

    def evidence(self) -> Evidence:
        """All releases so far as what can be learned from: columns and whose they are, nothing else."""
        if self._log is None:
            raise InputError("the log was closed, so there is nothing left to learn from")
        return self._log.evidence()

    def close(self) -> None:
        """Forget the log: no further version will come into force."""
        self._log = None


class _Log:
    """Columns of all releases in their order; equal ones are kept once where that is easy to see."""

    def __init__(self, n: int) -> None:
        self._columns = [np.full((1, n), DENOMINATOR, np.int64)]  # row 0 tells nothing
        self._count = 1
        self._known: dict[tuple[int, float, int], int] = {}
        self._users: list[Rows] = []
        self._index: list[Ints] = []

    def add(self, rows: Rows, made: Released, version: Version) -> None:
        columns = made.columns
        silent = (columns == columns[:, :1]).all(1)
        index = np.zeros(len(rows), np.int64)
        if version.setting.mechanism.name in BELIEF_FREE:
            for epsilon in np.unique(made.epsilons[~silent]).tolist():
                same = np.flatnonzero(~silent & (made.epsilons == epsilon))
                codes, first, back = np.unique(made.codes[same], return_index=True, return_inverse=True)
                places = [self._place(version.number, epsilon, code, columns[same[at]])
                          for code, at in zip(codes.tolist(), first.tolist(), strict=True)]  # fmt: skip
                index[same] = np.array(places)[back]
        else:
            own = np.flatnonzero(~silent)
            index[own] = self._count + np.arange(own.size)
            self._columns.append(columns[own])
            self._count += own.size
        self._users.append(np.asarray(rows, np.intp).copy())
        self._index.append(index)

    def skip(self, rows: Rows) -> None:
        """An event of each of these users that tells nothing."""
        self._users.append(np.asarray(rows, np.intp).copy())
        self._index.append(np.zeros(len(rows), np.int64))

    def _place(self, number: int, epsilon: float, code: int, column: Ints) -> int:
        key = (number, epsilon, code)
        if key not in self._known:
            self._known[key] = self._count
            self._columns.append(column[None].copy())
            self._count += 1
        return self._known[key]

    def _joined(self) -> tuple[Ints, Rows, Ints]:
        self._columns = [np.concatenate(self._columns)]
        if self._users:
            self._users, self._index = [np.concatenate(self._users)], [np.concatenate(self._index)]
            return self._columns[0], self._users[0], self._index[0]
        return self._columns[0], np.zeros(0, np.intp), np.zeros(0, np.int64)

    def evidence(self) -> Evidence:
        table, users, index = self._joined()
        return Evidence(table / float(DENOMINATOR), users.astype(np.int64), index)

    def weigh(self, model: MarkovModel, users: int) -> tuple[Floats, Account]:
        """Law of the next state and exact account of every user under a chain, from the columns."""
        table, whose, index = self._joined()
        states, account = filtering.start(model, users), Account.start(model, users)
        for places in Layout.of(whose).steps():
            rows = whose[places]
            moved, charged, _ = stream.charge(model, states[rows], account.take(rows), table[index[places]])
            states[rows] = moved
            for f in fields(Account):
                getattr(account, f.name)[rows] = getattr(charged, f.name)
        return states, account
