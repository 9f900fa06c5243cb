"""The exact leakage of what was released, from the model and the releases alone, against what was promised."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqveil.accounting import Composition, compose
from seqveil.kernel import Floats, Ints
from seqveil.leakage import extremes
from seqveil.roster import Accounts, Roster
from seqveil.stream import NOTHING, Released, Setting

ROUNDING = 1e-9  # sums of floats may pass a bound by this much of it


@dataclass(frozen=True)
class Report:
    """What an audit found. A check is True (kept), False (broken) or None (nothing of the kind was promised)."""

    users: int
    releases: int
    held: int  # releases at ε = 0
    leakage: float  # exact, of the user with the most; `most` and `least` are its two sides
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

    @property
    def passed(self) -> bool:
        checks = (self.each_release, self.each_stream, self.total, self.window, self.epsilons, self.unchanged)
        return all(check is not False for check in checks)


class Audit:
    """Takes releases in the order they were made and accounts for them exactly.

    With V_k the max-plus filter of `seqveil.leakage`, each user's leakage is the larger side of max_x V_k(x) and
    min_x V_k(x): the largest factor by which the releases moved the belief in any sequence.

    *Guarantee*: nothing private is used, and nothing that the release claims is believed: ε, leakage and budget are all
    recomputed. A release that the setting cannot have made is refused.

    >>> from seqveil.model import MarkovModel
    >>> setting = Setting.of(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), epsilon=1.0)
    >>> audit = Audit(setting)
    >>> _ = audit.take(["ann", "ann", "bob"], np.array([0, 1, 0]))
    >>> report = audit.report()
    >>> report.passed, report.worst_user, report.composition, report.leakage <= 2.0
    (True, 'ann', 2.0, True)

    Reference: theory §7, §8.
    """

    def __init__(self, setting: Setting, memory: int = 1 << 30) -> None:
        self.setting = setting
        self._roster = _Watched(setting, memory)
        self._releases = self._held = 0
        self._worst_release, self._worst_window = 0.0, 0.0
        self._within = True
        self._epsilons: bool | None = None
        self._recent: dict[Hashable, deque[tuple[float, float]]] = {}
        self._counts: dict[Hashable, int] = {}

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
        self._worst_release = max(self._worst_release, float(costs.max(initial=0.0)))
        self._within &= bool((costs <= used + ROUNDING * (1 + used)).all())
        if epsilons is not None:
            same = np.isnan(epsilons) | (np.abs(epsilons - used) <= ROUNDING * (1 + used))
            self._epsilons = bool(same.all()) and self._epsilons is not False
        if self.setting.budget.span is not None:
            self._look_back(users, costs, times, self.setting.budget.span)
        return used

    def _look_back(self, users: Sequence[Hashable], costs: Floats, times: Floats | None, span: float) -> None:
        """The largest sum of realised costs in any window, by a queue of its own for each user."""
        for k, user in enumerate(users):
            recent = self._recent.setdefault(user, deque())
            count = self._counts[user] = self._counts.get(user, -1) + 1
            now = float(count) if self.setting.budget.seconds is None or times is None else float(times[k])
            recent.append((now, float(costs[k])))
            while recent[0][0] <= now - span:
                recent.popleft()
            self._worst_window = max(self._worst_window, math.fsum(cost for _, cost in recent))

    def report(self, delta: float = 1e-6, unchanged: bool | None = None) -> Report:
        """Everything found so far; `unchanged` is what the caller knows of the file."""
        setting, accounts = self.setting, self._roster.accounts()
        leaked, budget = accounts.leakage, setting.budget
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
            ldp=setting.mechanism.ldp * spent if spent else 0.0,
            each_release=self._within,
            each_stream=bool((leaked <= accounts.spent + ROUNDING * (1 + accounts.spent)).all()),
            total=None if budget.total is None else bool(leaked[worst] <= budget.total * (1 + ROUNDING)),
            window=None
            if window is None or budget.per_window is None
            else window <= budget.per_window * (1 + ROUNDING),
            epsilons=self._epsilons,
            unchanged=unchanged,
            composed=self._composed(accounts, delta),
        )

    def _composed(self, accounts: Accounts, delta: float) -> Composition | None:
        setting = self.setting
        if setting.budget.limited or setting.schedule.threshold is not None or not setting.mechanism.sound:
            return None
        pulses = -(-int(accounts.events.max()) // setting.schedule.period)
        return compose(setting.epsilon * setting.schedule.period, pulses, delta)


class _Watched(Roster):
    """A roster that keeps what each release of the last call moved the belief in a symbol by, at most."""

    costs: Floats

    def observe(self, users: Sequence[Hashable], codes: Ints, times: Floats | None = None) -> tuple[Ints, Floats]:
        self.costs = np.zeros(len(codes))

        def play(rows: NDArray[np.intp], events: NDArray[np.intp]) -> Released:
            made = self._live.observe(rows, codes[events], None if times is None else times[events])
            marginal = (made.beliefs * made.columns).sum(1)
            least, most = extremes(made.columns, marginal, made.beliefs > 0, self.setting.model.size)
            # a release that the belief ruled out (an unsound mechanism's) tells all there is to tell
            cost = np.where(marginal > 0, np.maximum(most, -least), np.inf)
            self.costs[events] = np.where(made.codes == NOTHING, 0.0, cost)
            return made

        return self._play(users, play, times)
