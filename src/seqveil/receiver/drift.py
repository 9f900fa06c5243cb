"""Does the truth still follow the model? Answered from releases alone, at any time, with a stated rate of false alarms.

Under the model release y_k has probability p(y_k) = Σ β(x) Q(y_k|x) given the releases before it. For any other
distribution q of the next release that is fixed before it comes, Π q(y_k)/p(y_k) is a martingale of mean 1 if the model
is right, and so is any mixture of such products: an e-process E, the odds of a bet against the model that began with
one unit. By Ville's inequality it ever reaches 1/α with a probability of at most α.

In a block p is the mixture of its two cases, real and fake, given the releases before. An alternative mixes them in the
same shares at each event, as if the bit were drawn anew: that is a distribution of the next release too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.words import UNCHECKED, count
from seqveil.engine.blocks import Made
from seqveil.engine.stream import Released, Rows, Terms
from seqveil.receiver.evidence import Chain, Followed

LEARNED = 300  # symbols up to which an alternative learns the whole chain
FIRM = 30.0  # transitions out of a symbol that the model counts for when an alternative begins to learn
PACE = (1.0, 4.0, 16.0)  # how far learning alternatives step: 1 is the EM step, slow where releases tell little
HABITS = np.array([2.0, 10.0])  # events beside which a person's own count, in two bets
LEAST = 1e-4  # probability that a learning alternative gives any step
EARLY = 1000.0  # events over which half of a bet's stake is put in
ALPHA = 0.01  # of a false alarm in a check, however many releases there are
FEWEST = 10  # people without whom a check that finds nothing says nothing
TOLERATED = 0.1  # of the ε that is promised, or of 1 where it is more: how far off an account may be, in nats


@dataclass(frozen=True)
class ModelCheck:
    """Whether releases fit the model they were made with; `fits` is None where that is not known.

    What is said "under the model" holds if people follow it. Before it is said, the releases are asked: they are the
    bets of `Drift`, which use releases alone and so cost no privacy. With very many people any model fails a test of
    significance, so what decides is by how much an account is off on average, in nats of a stream or of a window of a
    secret: between `off_least` (wrong with probability ALPHA) and `off_most` (as far as the alternatives reach). A lift
    is Q(y|x) / p(y), so it is off by p(y) under the model over p(y) in truth: what the bets win.
    """

    fits: bool | None
    log_e_value: float | None  # the highest on the way
    alarm: float  # its log at which the model is known not to be exactly right
    rule: str  # what decides, or why nothing does, in words
    users: int = 0
    off_least: float = 0.0
    off_most: float = math.inf

    @classmethod
    def none(cls, why: str) -> ModelCheck:
        """For releases that cannot be asked."""
        return cls(None, None, -math.log(ALPHA), why)

    @classmethod
    def of(cls, drift: Drift | None) -> ModelCheck:
        """What all bets together say; None where there are none."""
        if drift is None:
            return BY_ONE
        found, alarm, (epsilon, many) = drift.log_highest, -math.log(ALPHA), drift.promised
        least, most, tolerated = max(0.0, found - alarm) / many, (found + alarm) / many, TOLERATED * min(epsilon, 1.0)
        fits = False if least > tolerated else True if most <= tolerated and drift.users >= FEWEST else None
        rule = f"at most {tolerated:.2g} is tolerated, a tenth of what is promised or of 1"
        if fits is None:
            few = f"{count(drift.events, 'release')} of {count(drift.users, 'person', 'people')}"
            rule = f"{few} are too few to say whether accounts are off by more than {tolerated:.2g}"
        return cls(fits, found, alarm, rule, drift.users, least, most)

    @property
    def rejected(self) -> bool:
        """Whether the model is known not to be exactly right: what leans on it then has a bias, if a small one."""
        return self.log_e_value is not None and self.log_e_value >= self.alarm

    @property
    def doubts(self) -> tuple[str, ...]:
        """What keeps a small bound from being called green."""
        return () if self.fits else (UNCHECKED,)

    @property
    def support(self) -> str:
        """What a bound under the model rests on where the releases passed the check; empty where they did not."""
        if not self.fits:
            return ""
        return f"the releases of {self.users} people do not speak against the model; `seqveil attack` tries it on them"

    @property
    def rejection(self) -> str:
        """Says that these people do not follow the model; empty where they may."""
        if self.fits is not False:
            return ""
        return f"these people do not follow the model ({self._off}), so no promise under it is known to hold for them"

    @property
    def _off(self) -> str:
        return f"accounts are off by at least {self.off_least:.2g} on average, {self.rule}"

    @property
    def said(self) -> tuple[str, str]:
        """The check as a line: its name, and what there is to say."""
        if self.fits is None:
            return "model", f"whether the releases fit it is not known: {self.rule}"
        if self.fits:
            most = f"as far as bets can see, accounts are off by at most {self.off_most:.2g} on average"
            return "model", f"the releases fit it ({most}), which is no proof that it is right"
        return "warning", f"the releases do not fit the model ({self._off}): what is said under it need not hold"


NOT_ASKED = ModelCheck.none("the releases were not asked")
BY_ONE = ModelCheck.none("that takes releases one by one, by a sound mechanism")


class Drift:
    """Bets against the model with every release; see the module for what the stake means.

    *Guarantee*: if every stream follows the setting's model, and users are independent, the probability that `alarm`
    ever becomes true is at most ALPHA. Only releases and public parameters are used, so it is post-processing and
    costs no privacy. No alarm is no proof that the model is right.

    The alternatives are people who come back to what they did, which no chain knows, and, of one chain, others that are
    learned from the releases before. Each bet is spread over the times at which a change might have begun.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> from seqveil import Policy
    >>> drift = Drift(Policy(epsilon=2.0, mechanism="randomized_response").on(model), users=200)
    >>> for t in range(30):
    ...     drift.update(np.arange(200), np.full(200, t % 2))
    >>> drift.alarm, drift.events
    (True, 6000)

    Reference: Ville 1939; Ramdas, Grünwald, Vovk, Shafer, *Game-theoretic statistics and safe anytime-valid inference*,
    2023; Shin, Ramdas, Rinaldo, *E-detectors*, 2023.
    """

    def __init__(self, setting: Terms, users: int) -> None:
        if setting.in_batches:
            raise InputError("drift is measured on releases one by one; release a sample without batch")
        if not setting.mechanism.sound:
            raise InputError(f'mechanism "{setting.mechanism.name}" is not sound; use one that is, such as "optimal"')
        self.users, self.events, self._spent = users, 0, 0.0
        self._setting = setting
        self.log_highest = 0.0  # log of the highest e-value on the way
        self._alternatives, self._followed = alternatives_of(setting.model, users), Followed(setting)
        self._bets = sum(alternative.bets for alternative in self._alternatives)
        self._active = np.full(self._bets, -np.inf)  # log of what the stakes put in so far have become

    def update(self, users: Rows, codes: Ints, times: Floats | None = None, epsilons: Floats | None = None) -> None:
        """Take in releases of users numbered from 0, in the order they were made; as in `Followed.observe`."""
        for turn, seen in self._followed.observe(users, codes, times, epsilons):
            self.take(users[turn], seen)

    def take(self, rows: Rows, seen: Made) -> None:
        """Take in the next release of each of these users, as somebody saw it who follows them all."""
        columns, beliefs = weighed(seen)
        mine = (beliefs * columns).sum(1)
        gains = np.log(
            np.vstack([alternative.weigh(rows, columns, beliefs) for alternative in self._alternatives]) / mine
        )
        stake = math.log(_waiting(self.events) - _waiting(self.events + rows.size)) - math.log(self._bets)
        self._active = np.logaddexp(self._active, stake) + gains.sum(1)
        self.events += rows.size
        self._spent += float(seen.epsilons.sum())
        self.log_highest = max(self.log_highest, self.log_e_value)

    @property
    def log_e_value(self) -> float:
        """Log of what one unit, bet against the model from the start, has become."""
        return float(np.logaddexp.reduce([*self._active, math.log(_waiting(self.events))]))

    @property
    def promised(self) -> tuple[float, float]:
        """The ε of a stream on average, or of a window of a secret, and how many there are: what allows least."""
        setting = self._setting
        found = [] if setting.unbounded else [(self._spent / self.users, float(self.users))]
        for secret in setting.secrets:
            length = secret.length(setting.model.alphabet.slots)
            windows = self.events / length if secret.repeats and length else 0.0
            found.append((secret.total, max(windows, float(self.users))))
        return min(found, key=lambda each: min(each[0], 1.0) * each[1])

    @property
    def alarm(self) -> bool:
        """Whether the e-value ever reached 1/α."""
        return self.log_highest >= -math.log(ALPHA)


def weighed(seen: Made) -> tuple[Floats, Floats]:
    """What releases say of each symbol, (B, n), whatever nobody sees, and what the model expected of them, (B,)."""
    if isinstance(seen, Released):
        columns, beliefs = seen.columns / seen.columns.max(1)[:, None], seen.beliefs
    else:
        said, cases, _ = seen.cases
        cases[:, 1] *= seen.running.skews
        columns = (cases[:, :, None] * said).sum(1) / cases.sum(1)[:, None]
        beliefs = filtering.symbols(seen.rule.model, seen.running.given)
    return columns, beliefs


def _waiting(events: int) -> float:
    """Share of a stake that is not yet put in after so many events: what is bet on changes still to come."""
    return 1.0 / (1.0 + math.log2(1.0 + events / EARLY))


def alternatives_of(model: MarkovModel, users: int) -> list[Habits | Learning]:
    """The alternatives that `Drift` bets on, for so many users.

    Each is another distribution of the streams, fixed before each release and followed for every user, like the model.
    One that stands for several has so many `bets`, and gives a row for each.
    """
    found: list[Habits | Learning] = [Habits(model, users)]
    if model.order == 1 and model.n <= LEARNED:
        found += [Learning(Chain.of(model), users, *PACE)]
    return found


class Habits:
    """An alternative in which people come back to what they did, whatever the model: each symbol is so much likelier
    as a person's own releases show it oftener than the model expected there.
    """

    bets = HABITS.size

    def __init__(self, model: MarkovModel, users: int) -> None:
        self._seen = np.zeros((2, self.bets, users, model.n))  # of each symbol: found, and expected by the model

    def weigh(self, rows: Rows, columns: Floats, beliefs: Floats) -> Floats:
        """Probability of each release where beliefs are tilted by a person's habits; then learn those."""
        found, expected = self._seen[:, :, rows] + HABITS[:, None, None]
        ahead = beliefs * found / expected
        ahead /= ahead.sum(2, keepdims=True)
        joint = ahead * columns
        marginal = joint.sum(2)
        self._seen[0][:, rows] += joint / marginal[:, :, None]
        self._seen[1][:, rows] += beliefs
        return np.asarray(marginal)


class Learning:
    """An alternative that learns the chain from the releases, beginning with a given one; several, one a pace.

    With f the filtered distribution of the symbol before and ξ(x, x') the distribution of the pair given the release
    too, each step adds f·P + pace·(ξ - f·P) to pseudo-counts that began as FIRM·P; at pace 1 that is ξ, the EM step.
    Bad learning loses stakes, but it never makes false alarms.
    """

    def __init__(self, chain: Chain, users: int, *paces: float) -> None:
        self.bets, n = len(paces), chain.n
        self._paces = np.array(paces)[:, None, None]
        table = np.repeat(chain.rows[None], self.bets, axis=0)
        self._counts, self._first = FIRM * table, np.repeat(FIRM * chain.first[None], self.bets, axis=0)
        self._rows = table
        self._filtered = np.zeros((self.bets, users, n))  # zeros where a stream has not begun
        self._begun = np.zeros(users, bool)
        self._since = 0

    def weigh(self, rows: Rows, columns: Floats, beliefs: Floats) -> Floats:
        """Probability of each release under the chain learned so far, a row for each pace; then learn from it."""
        begun, before = self._begun[rows], self._filtered[:, rows]
        going, ahead = bool(begun.all()), before @ self._rows
        if not going:
            first = np.maximum(self._first, LEAST)
            ahead = np.where(begun[:, None], ahead, (first / first.sum(1, keepdims=True))[:, None])
        joint = ahead * columns
        marginal = joint.sum(2)
        scale = 1.0 / marginal[:, :, None]
        after = joint * scale
        disclosed = begun & (columns.min(1) < columns.max(1))  # a release that tells nothing teaches nothing
        share = 1.0 + self._paces * (columns * scale - 1.0)
        if not disclosed.all():
            share *= disclosed[:, None]
        self._counts += self._rows * (before.transpose(0, 2, 1) @ share)
        if not going:
            self._first += (after - ahead)[:, ~begun].sum(1)
        self._filtered[:, rows], self._begun[rows] = after, True
        self._since += rows.size
        if self._since >= self._rows.shape[1]:  # once in a while: predictable, as only releases before have entered
            self._since = 0
            counts = np.maximum(self._counts, LEAST * np.maximum(self._counts.sum(2, keepdims=True), FIRM))
            self._rows = counts / counts.sum(2, keepdims=True)
        return np.asarray(marginal)
