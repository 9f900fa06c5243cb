"""The exact leakage of what was released, from the model and the releases alone, against what was promised."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from seqveil.core.bulk import numbered
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side
from seqveil.core.private import origin_in_words
from seqveil.core.randomness import known_as
from seqveil.core.secrets import Secret, SecretTrackers
from seqveil.core.words import CHECK_ON_PEOPLE, Grade, Line, Result, Risk, cell_text, count, moved, percent
from seqveil.engine import batches
from seqveil.engine.secrets import SecretTotal, totals
from seqveil.engine.stream import (
    NOTHING,
    TIMELESS_SECRETS,
    Mask,
    Terms,
    allowance,
    check_room,
    check_slots,
    observed,
)
from seqveil.receiver.drift import Drift, ModelCheck
from seqveil.receiver.evidence import Followed

ROUNDING = 1e-9  # sums of floats may pass a bound by this much of it
CHECKS = {  # what an audit checks, by the names of its report
    "each_release": "every release within its ε",
    "each_stream": "every stream within its Σε",
    "total": "every stream within the total budget",
    "window": "every window within its budget",
    "ldp_total": "every stream within the budget that needs no model",
    "declared": "every declared secret within its ε under the model, in every whole window",
    "epsilons": "the ε of every row is what the policy spends there",
    "values": "the values are those that follow from the paths",
    "unchanged": "the rows are those that the release wrote",
    "unseeded": "the side file names no seed",
}


@dataclass(frozen=True, repr=False)
class Report(Result):
    """What an audit found. A check is True (kept), False (broken) or None (nothing of the kind was promised).

    A release is one symbol, or one batch; of blocks every block is within its ε (`each_release`).
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
    each_release: bool | None  # every release within its ε
    each_stream: bool | None  # every stream within its Σε
    total: bool | None
    window: bool | None
    epsilons: bool | None  # the file's ε are those the setting spent
    unchanged: bool | None  # the rows are those that the release wrote
    values: bool | None  # for batches: the values are those that follow from the paths
    batch: int
    ldp_total: bool | None  # every stream within the budget that needs no model
    secrets: tuple[SecretTotal, ...]  # what was disclosed about those that were kept, then those only measured
    declared: bool | None  # every declared secret within its ε
    whole_sequence: str  # says in words where nothing is promised about the whole sequence
    words: tuple[str, ...]  # what all that means for a person, a sentence each
    bound_grade: Grade  # if every promise was kept
    check: ModelCheck  # whether the releases fit the model
    origin: Mapping[str, Any] | None  # how the model was made
    unseeded: bool | None = None  # no seed is known to have made the randomness; with one, all of it can be undone
    read: str = ""  # how the rows were read and ordered, in words, where they came from a file

    @property
    def graded(self) -> Grade:
        """By what a suspicion of 1 % may become, with the reason; red where a promise is broken."""
        return self.bound_grade if self.passed else Grade("red", "a promise is broken, or the randomness can be known")

    @property
    def passed(self) -> bool:
        """Whether nothing was found that breaks a promise; what could not be checked does not count against it."""
        return all(getattr(self, name) is not False for name in CHECKS)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, its checks together."""
        facts, grade = super().to_dict(), self.graded
        checks = {name: facts.pop(name) for name in CHECKS}
        return {"passed": self.passed, "checks": checks, **facts, "grade": grade.colour, "grade_why": grade.why}

    def lines(self, named: bool = True) -> list[Line]:
        """What was found, line by line; with the name of the user of whom most was disclosed, unless it is hidden."""
        held = f", {percent(self.held / self.releases)} held at the best guess" if self.held else ""
        words = ("release", "releases") if self.batch == 1 else ("batch", "batches")
        most = "" if self.batch == 1 else f" of at most {self.batch}"
        said = [
            ("read", self.read),
            ("audited", f"{count(self.releases, *words)}{most} of {count(self.users, 'user')}{held}"),
            *(("means", sentence) for sentence in self.words),
            ("grade", f"{self.graded.text} (docs/guarantee.md)"),
            ("leakage", _leaked(self, named)),
            ("no model", f"{cell_text(self.ldp)}-LDP over a stream" if math.isfinite(self.ldp) else "no LDP bound"),
        ]
        said += [("secret", _disclosed(total)) for total in self.secrets]
        if self.worst_window is not None:
            said.append(("window", f"at most {self.worst_window:.4g} realised in any one window"))
        checks, good = {text: getattr(self, name) for name, text in CHECKS.items()}, "kept"
        if self.unseeded is False:  # then no promise is kept, whatever its figures
            checks |= {CHECKS["unseeded"]: None, "the release was seeded: whoever knows the seed can undo it": False}
            good = "seed apart"
        said += [(good if held else "BROKEN", text) for text, held in checks.items() if held is not None]
        said.append(self.check.said)
        if self.origin is not None:
            said.append(("model", origin_in_words(self.origin)))
        return said + ([("people", CHECK_ON_PEOPLE)] if self.secrets else [])


def _leaked(report: Report, named: bool) -> str:
    composed = report.whole_sequence or f"composition charges {report.composition:.4g}"
    if not math.isfinite(report.leakage):
        return composed
    bound, one = ("at most", "release") if report.batch == 1 else ("batches added up, at most", "batch")
    user = f"; user {report.worst_user!r}" if named else ""
    sides = f"up {cell_text(report.most)}, down {cell_text(report.least)}{user}"
    return (
        f"{bound} {report.leakage:.4g} over a stream ({sides}); {composed}; one {one} at most "
        f"{cell_text(report.worst_release)}"
    )


def _disclosed(total: SecretTotal) -> str:
    """What the releases disclosed about a secret."""
    figures = f"worst over {count(total.users, 'user')} (between {total.lowest:.4g} and {total.highest:.4g})"
    if total.epsilon is None:
        became = percent(moved(0.10, max(0.0, total.highest)))
        means = f"the log odds moved by {total.log_odds_worst:.4g}, so that a suspicion of 10 % became {became}"
        return f"{total.sentence}: {means}, {figures}"
    if total.kept is None:
        return f"{total.sentence}. But {total.unkept}"
    beside = f"; {total.unkept}" if total.unkept else ""
    moves = f"The log odds moved by {total.log_odds_worst:.4g} of at most {total.epsilon:g}"
    return f"{total.sentence}. {moves}, {figures}{beside}"


def _trackers(setting: Terms, secrets: tuple[Secret, ...], place: int = 0) -> SecretTrackers:
    """The accounts of streams before their first release, by what the kernels of the setting go by."""
    return SecretTrackers.start([setting.model, *setting.observers], secrets, place=place, memory=setting.remembered)


class _Clock:
    """Where streams stand by the clock, for secrets that follow it: a release in each slot, from the first one on."""

    def __init__(self, setting: Terms, secrets: tuple[Secret, ...]) -> None:
        self._slots = setting.model.alphabet.slots
        self._at = lru_cache(None)(partial(_trackers, setting, secrets))  # who begin in one slot of a day stand alike
        self._begun: dict[Hashable, tuple[int, int]] = {}  # the first slot of each user, and how many events there were

    def begun(self, users: Sequence[Hashable], times: Floats | None) -> dict[Hashable, SecretTrackers]:
        """The accounts of those who begin with these events; one that does not lie in its slot is refused."""
        if times is None or self._slots is None:
            raise InputError(TIMELESS_SECRETS)
        here, found, places = self._slots.numbers(times), dict[Hashable, SecretTrackers](), list[tuple[int, int]]()
        for user, slot in zip(map(known_as, users), here.tolist(), strict=True):
            if user not in self._begun:
                found[user] = self._at(int(self._slots.place(slot)))
            first, events = self._begun.get(user, (slot, 0))
            places.append((first, events))
            self._begun[user] = first, events + 1
        starts, seqs = np.array(places, np.int64).reshape(-1, 2).T
        check_slots(starts, seqs, here)
        return found


def within(found: Floats, bound: Floats) -> bool:
    """Whether each figure keeps to its bound, up to the rounding of sums."""
    return bool((found <= bound + ROUNDING * (1 + bound)).all())


def _kept(found: float, limit: float | None) -> bool | None:
    """Whether a figure keeps to a budget; None where there is none."""
    return None if limit is None else bool(found <= limit * (1 + ROUNDING))


class Audit:
    """Takes releases in the order they were made and accounts for them exactly.

    With V_k the max-plus filter of `seqveil.leakage`, each user's leakage is the larger side of max_x V_k(x) and
    min_x V_k(x): the largest factor by which the releases moved the belief in any sequence. Of a batch, lifts,
    reproduction and ε all follow from its path. The most and the least lift of each batch are exact up to rounding;
    added up over a stream they bound its leakage from above.

    `secrets` that the setting does not keep are measured, exactly, beside those that it keeps; `drift` sees all that is
    taken of releases one by one.

    *Guarantee*: nothing private is used, and nothing that the release claims is believed: ε, leakage and budget are all
    recomputed. A release that the setting cannot have made is refused.

    >>> from seqveil import MarkovModel
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> from seqveil.engine.policy import Policy
    >>> audit = Audit(Policy(epsilon=1.0).on(model))
    >>> _ = audit.take(["ann", "ann", "bob"], np.array([0, 1, 0]))
    >>> report = audit.report()
    >>> report.passed, report.worst_user, report.composition, report.leakage <= 2.0
    (True, 'ann', 2.0, True)

    Reference: docs/theory.md, sections 7 and 8.
    """

    def __init__(self, setting: Terms, secrets: Sequence[Secret] = (), drift: Drift | None = None) -> None:
        self.setting, self._drift = setting, drift
        kept = {replace(secret, epsilon=None) for secret in setting.secrets}
        asked = [each for each in secrets if each not in kept and each not in setting.secrets]
        if asked and (setting.in_batches or setting.in_blocks):
            raise InputError("secrets are measured where symbols are released one by one; leave them out")
        self._secrets = (*setting.secrets, *asked)
        self._first = _trackers(setting, self._secrets) if self._secrets else None
        self._accounts: dict[Hashable, SecretTrackers] = {}
        self._clock = _Clock(setting, self._secrets) if any(one.follows_clock for one in self._secrets) else None
        self._index: dict[Hashable, int] = {}  # the row of each user among those followed
        self._followed = Followed(setting)
        self._releases = self._held = 0
        self._worst_release = self._worst_window = 0.0
        self._each_release = True
        self._epsilons: bool | None = None
        self._values: bool | None = None
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
        if self.setting.in_blocks and (epsilons is None or np.isnan(epsilons).any()):
            raise DataError("expected the ε of every release, which says where blocks begin and end; keep its column")
        if self._clock is not None:
            self._accounts |= self._clock.begun(users, times)
        names, blocks = list(map(known_as, users)), self.setting.in_blocks
        who, used = numbered(self._index, names), np.zeros(len(names))
        costs, levels, inside = (np.zeros(len(names)) for _ in range(3))
        for turn, made in self._followed.observe(who, codes, times, epsilons if blocks else None):
            used[turn], costs[turn], levels[turn] = made.epsilons, made.costs, made.epsilons
            if blocks:
                levels[turn], inside[turn] = made.running.levels, made.places > 0
            if self._first is not None:
                here, before = [names[k] for k in turn.tolist()], np.empty(turn.size, object)
                before[:] = [self._accounts.get(user, self._first) for user in here]
                check_room(before)
                self._accounts.update(zip(here, observed(before, made.remembered), strict=True))
            if self._drift is not None:
                self._drift.take(who[turn], made)
        self._releases += int((codes != NOTHING).sum())
        self._held += int(((codes >= 0) & (levels == 0)).sum())
        self._count(names, costs, levels, times, inside > 0)
        self._compare(epsilons, used)
        return used

    def take_batch(
        self,
        user: Hashable,
        path: tuple[int, ...] | None,
        codes: Ints,
        epsilons: Floats | None = None,
        time: float | None = None,
    ) -> float:
        """Account for a user's next batch, released as this path with these values; returns the ε it used.

        Where the path is None the batch went without a release, and the codes say only how many symbols it had.
        `epsilons` are those the file claims: the batch's ε on its first row, 0 on the others.
        """
        stamps, followed, setting = None if time is None else np.array([time]), self._followed, self.setting
        row = numbered(self._index, [known_as(user)])
        if row[0] >= len(followed.state):
            followed.state = followed.state.grown(setting, 2 * len(self._index))
        used = allowance(setting, followed.state.take(row), stamps)[0]
        sent, followed.state = followed.state.move(
            row, lambda state: batches.observe(setting, state, path, codes.size, stamps)
        )
        cost = np.zeros(1) if sent is None else np.array([larger_side(sent.most, sent.least)])
        if sent is not None:
            self._releases += 1
            self._held += int(cost[0] <= ROUNDING)  # the same whatever the truth is
            self._values = bool((sent.codes == codes).all()) and self._values is not False
        self._count([known_as(user)], cost, used, stamps, np.zeros(1, bool))
        self._compare(epsilons, np.concatenate([used, np.zeros(codes.size - 1)]))
        return float(used[0])

    def _count(
        self, users: Sequence[Hashable], costs: Floats, levels: Floats, times: Floats | None, inside: Mask
    ) -> None:
        """Add what these releases cost, each at so much ε; those `inside` a block go on with it."""
        self._worst_release = max(self._worst_release, float(costs.max(initial=0.0)))
        self._each_release &= within(costs, levels)
        budget = self.setting.budget
        if budget.span is None:
            return
        for k, user in enumerate(users):  # what was realised in a window, by a queue of its own for each user
            recent = self._recent.setdefault(user, deque())
            count = self._counts[user] = self._counts.get(user, -1) + 1
            now = float(count) if budget.seconds is None or times is None else float(times[k])
            if inside[k] and recent:
                recent.pop()  # a block counts once, by what it has cost so far
            recent.append((now, float(costs[k])))
            while now - recent[0][0] >= budget.span:
                recent.popleft()
            self._worst_window = max(self._worst_window, math.fsum(cost for _, cost in recent))

    def _compare(self, claimed: Floats | None, used: Floats) -> None:
        if claimed is not None:
            same = np.isnan(claimed) | (np.abs(claimed - used) <= ROUNDING * (1 + used))
            self._epsilons = bool(same.all()) and self._epsilons is not False

    def report(self, unchanged: bool | None = None) -> Report:
        """Everything found so far; `unchanged` is what the caller knows of the file."""
        check = ModelCheck.of(self._drift)
        users, setting, budget = list(self._index), self.setting, self.setting.budget
        state = self._followed.state.take(slice(len(users)))
        leaked, (most, least) = state.account.worst, (state.account.most, state.account.least)
        accounts = SimpleNamespace(most=most, least=least, ldp=state.ldp)
        worst = int(leaked.argmax())
        promised = [secret.total for secret in setting.secrets]
        asked = [None] * (len(self._secrets) - len(promised))
        disclosed = tuple(totals(self._secrets, self._accounts.values(), [*promised, *asked]))
        checks = [total.kept for total in disclosed if total.kept is not None]
        risk = Risk.of(setting, accounts, disclosed, doubts=check.doubts, support=check.support, undone=check.rejection)
        return Report(
            users=len(users),
            releases=self._releases,
            held=self._held,
            leakage=float(leaked[worst]),
            most=float(most[worst]),
            least=float(least[worst]),
            worst_user=users[worst],
            composition=float(state.spent.max()),
            worst_release=self._worst_release,
            worst_window=None if budget.per_window is None else self._worst_window,
            ldp=float(state.ldp.max()),
            each_release=self._promised(self._each_release),
            each_stream=self._promised(within(leaked, state.spent)),
            total=_kept(leaked[worst], budget.exact_total),
            window=_kept(self._worst_window, budget.per_window),
            epsilons=self._epsilons,
            unchanged=unchanged,
            values=self._values,
            batch=setting.batch,
            ldp_total=_kept(float(state.ldp.max()), budget.ldp_total),
            secrets=disclosed,
            declared=all(checks) if checks else None,
            whole_sequence=setting.whole_sequence,
            words=risk.sentences,
            bound_grade=risk.grade,
            check=check,
            origin=setting.model.origin,
        )

    def _promised(self, within: bool) -> bool | None:
        """Whether a promise about the whole sequence was kept; None where there was none, unless its ε was passed."""
        return None if self.setting.unbounded or (within and self.setting.whole_sequence) else within
