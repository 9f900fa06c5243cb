"""The exact leakage of what was released, from the model and the releases alone, against what was promised."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import Sent
from seqveil.release import batches
from seqveil.release.accounting import Budget, Composition, compose
from seqveil.release.roster import Accounts, Roster
from seqveil.release.stream import NOTHING, Released, Setting, State, allowance

ROUNDING = 1e-9  # sums of floats may pass a bound by this much of it


@dataclass(frozen=True)
class Report:
    """What an audit found. A check is True (kept), False (broken) or None (nothing of the kind was promised).

    A release is one symbol, or one batch.
    """

    users: int
    releases: int
    held: int  # releases that leak nothing: at ε = 0, or a batch whose ε buys no cell
    leakage: float  # of the user with the most; `most` and `least` are its two sides
    most: float
    least: float
    worst_user: Hashable
    composition: float  # Σε of the user with the most
    worst_release: float  # most that a single release moved a belief
    worst_window: float | None  # most that was realised in one window of the budget
    ldp: float  # without any model
    each_release: bool  # every release within its ε
    each_stream: bool  # every stream within its Σε
    total: bool | None
    window: bool | None
    epsilons: bool | None  # the file's ε are those the setting spent
    unchanged: bool | None  # the rows are those that the release wrote
    composed: Composition | None  # (ε, δ), where ε was fixed and unlimited
    values: bool | None = None  # for batches: the values are those that follow from the paths
    batch: int = 1
    exact: bool = True  # False for batches: their extremes are added up, so the totals are from above
    ldp_total: bool | None = None  # every stream within the budget that needs no model
    unseeded: bool | None = None  # no seed is known to have made the coins; with one, all of it can be undone

    @property
    def passed(self) -> bool:
        promises = (self.each_release, self.each_stream, self.total, self.window, self.ldp_total, self.unseeded)
        return all(check is not False for check in (*promises, self.epsilons, self.values, self.unchanged))


def within_ldp(budget: Budget, accounts: Accounts) -> bool | None:
    """Whether every stream kept to the budget that needs no model; None where there is none."""
    if budget.ldp_total is None:
        return None
    return bool(accounts.ldp.max() <= budget.ldp_total * (1 + ROUNDING))


class _Tally:
    """What single releases add up to."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._releases = self._held = 0
        self._worst_release, self._worst_window = 0.0, 0.0
        self._within = True
        self._epsilons: bool | None = None
        self._values: bool | None = None
        self._recent: dict[Hashable, deque[tuple[float, float]]] = {}
        self._counts: dict[Hashable, int] = {}

    def _count(self, users: Sequence[Hashable], costs: Floats, used: Floats, times: Floats | None) -> None:
        """Add the costs of these releases, each of which used so much ε."""
        self._worst_release = max(self._worst_release, float(costs.max(initial=0.0)))
        self._within &= bool((costs <= used + ROUNDING * (1 + used)).all())
        if self.setting.budget.span is not None:
            self._look_back(users, costs, times, self.setting.budget.span)

    def _compare(self, claimed: Floats, used: Floats) -> None:
        same = np.isnan(claimed) | (np.abs(claimed - used) <= ROUNDING * (1 + used))
        self._epsilons = bool(same.all()) and self._epsilons is not False

    def _look_back(self, users: Sequence[Hashable], costs: Floats, times: Floats | None, span: float) -> None:
        """The largest sum of realised costs in any window, by a queue of its own for each user."""
        for k, user in enumerate(users):
            recent = self._recent.setdefault(user, deque())
            count = self._counts[user] = self._counts.get(user, -1) + 1
            now = float(count) if self.setting.budget.seconds is None or times is None else float(times[k])
            recent.append((now, float(costs[k])))
            while now - recent[0][0] >= span:
                recent.popleft()
            self._worst_window = max(self._worst_window, math.fsum(cost for _, cost in recent))

    def _report(self, accounts: Accounts, delta: float, unchanged: bool | None) -> Report:
        setting, leaked, budget = self.setting, accounts.leakage, self.setting.budget
        worst = int(leaked.argmax())
        spent = float(accounts.spent.max())
        window = None if budget.per_window is None else self._worst_window
        return Report(
            users=len(accounts.users),
            releases=self._releases,
            held=self._held,
            leakage=float(leaked[worst]),
            most=float(accounts.most[worst]),
            least=float(accounts.least[worst]),
            worst_user=accounts.users[worst],
            composition=spent,
            worst_release=self._worst_release,
            worst_window=window,
            ldp=float(accounts.ldp.max()),
            each_release=self._within,
            each_stream=bool((leaked <= accounts.spent + ROUNDING * (1 + accounts.spent)).all()),
            total=None if budget.total is None else bool(leaked[worst] <= budget.total * (1 + ROUNDING)),
            window=None
            if window is None or budget.per_window is None
            else window <= budget.per_window * (1 + ROUNDING),
            epsilons=self._epsilons,
            unchanged=unchanged,
            composed=self._composed(accounts, delta),
            values=self._values,
            batch=setting.batch,
            exact=not setting.in_batches,
            ldp_total=within_ldp(budget, accounts),
        )

    def _composed(self, accounts: Accounts, delta: float) -> Composition | None:
        setting = self.setting
        if setting.budget.limited or setting.schedule.threshold is not None or not setting.mechanism.sound:
            return None
        pulses = -(-int(accounts.events.max()) // setting.schedule.period)
        return compose(setting.epsilon * setting.schedule.period, pulses, delta)


class Audit(_Tally):
    """Takes releases in the order they were made and accounts for them exactly.

    With V_k the max-plus filter of `seqveil.leakage`, each user's leakage is the larger side of max_x V_k(x) and
    min_x V_k(x): the largest factor by which the releases moved the belief in any sequence.

    *Guarantee*: nothing private is used, and nothing that the release claims is believed: ε, leakage and budget are all
    recomputed. A release that the setting cannot have made is refused.

    >>> from seqveil.core.model import MarkovModel
    >>> setting = Setting.of(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), epsilon=1.0)
    >>> audit = Audit(setting)
    >>> _ = audit.take(["ann", "ann", "bob"], np.array([0, 1, 0]))
    >>> report = audit.report()
    >>> report.passed, report.worst_user, report.composition, report.leakage <= 2.0
    (True, 'ann', 2.0, True)

    Reference: docs/theory.md, sections 7 and 8.
    """

    def __init__(self, setting: Setting, memory: int = 1 << 30) -> None:
        super().__init__(setting)
        self._roster = _Watched(setting, memory)

    def take(
        self,
        users: Sequence[Hashable],
        codes: Ints,
        times: Floats | None = None,
        epsilons: Floats | None = None,
    ) -> Floats:
        """Account for these releases (NOTHING where an event went without) and return the ε each one used.

        `epsilons` are those the file claims, NaN where it claims none.
        """
        _, used = self._roster.observe(users, codes, times)
        costs = self._roster.costs
        made = codes != NOTHING
        self._releases += int(made.sum())
        self._held += int((used[made] == 0).sum())
        self._count(users, costs, used, times)
        if epsilons is not None:
            self._compare(epsilons, used)
        return used

    def report(self, delta: float = 1e-6, unchanged: bool | None = None) -> Report:
        """Everything found so far; `unchanged` is what the caller knows of the file."""
        return self._report(self._roster.accounts(), delta, unchanged)


class Streams(Protocol):
    """Keeps the public state of every user by name."""

    def state(self, user: Hashable) -> State: ...
    def keep(self, user: Hashable, state: State, made: bool = True) -> None: ...
    def accounts(self) -> Accounts: ...


def told_nothing(sent: Sent) -> bool:
    """Whether the batch was the same whatever the truth is: its ε bought no cell, or there was none."""
    return max(sent.most, -sent.least) <= ROUNDING


class BatchAudit(_Tally):
    """The same for releases in batches, from their paths: lifts, reproduction and ε all follow from the path.

    The most and the least lift of each batch are exact up to rounding; added up over a stream they bound its leakage
    from above.

    *Guarantee*: as for `Audit`: nothing private is used, nothing that the release claims is believed.

    >>> from seqveil import MarkovModel, Session
    >>> from seqveil.interfaces.flow.batched import Streams
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> session = Session(model, epsilon=2.0, batch=2, seed=1)
    >>> values = [session.release_batch(symbols) for symbols in ([0, 0], [0, 1])]
    >>> audit = BatchAudit(session.setting, Streams(session.setting))
    >>> [audit.take("ann", path, np.array(codes)) for path, codes in zip(session.paths, values)]
    [2.0, 2.0]
    >>> report = audit.report()
    >>> report.passed, report.releases, report.composition, report.leakage <= 4.0
    (True, 2, 4.0, True)
    """

    def __init__(self, setting: Setting, streams: Streams) -> None:
        super().__init__(setting)
        self._streams = streams

    def take(
        self,
        user: Hashable,
        path: tuple[int, ...],
        codes: Ints,
        epsilons: Floats | None = None,
        time: float | None = None,
    ) -> float:
        """Account for a user's next batch, released as this path with these values; returns the ε it used.

        `epsilons` are those the file claims: the batch's ε on its first row, 0 on the others.
        """
        setting, state = self.setting, self._streams.state(user)
        stamps = None if time is None else np.array([time])
        used = allowance(setting, state, stamps)[0]
        sent, after = batches.observe(setting, state, path, codes.size, time)
        assert sent is not None  # `observe` refuses a path where the budget allows none
        self._streams.keep(user, after)
        self._releases += 1
        self._held += told_nothing(sent)
        self._count([user], np.array([max(sent.most, -sent.least)]), used, stamps)
        self._values = bool((sent.codes == codes).all()) and self._values is not False
        if epsilons is not None:
            self._compare(epsilons, np.concatenate([used, np.zeros(codes.size - 1)]))
        return float(used[0])

    def skip(self, user: Hashable, time: float | None = None) -> None:
        """Account for a user's next batch, a full one, that went without a release."""
        state = self._streams.state(user)
        _, after = batches.observe(self.setting, state, None, self.setting.batch, time)
        self._streams.keep(user, after, made=False)
        self._count([user], np.zeros(1), np.zeros(1), None if time is None else np.array([time]))

    def report(self, delta: float = 1e-6, unchanged: bool | None = None) -> Report:
        """Everything found so far; `unchanged` is what the caller knows of the file."""
        return self._report(self._streams.accounts(), delta, unchanged)


class _Watched(Roster):
    """A roster that keeps what each release of the last call moved the belief in a symbol by, at most."""

    costs: Floats

    def observe(self, users: Sequence[Hashable], codes: Ints, times: Floats | None = None) -> tuple[Ints, Floats]:
        self.costs = np.zeros(len(codes))

        def play(rows: NDArray[np.intp], events: NDArray[np.intp]) -> Released:
            made = self._live.observe(rows, codes[events], None if times is None else times[events])
            self.costs[events] = made.costs
            return made

        return self._play(users, play, times)
