"""A setting solved from what people can answer: how far a suspicion may grow, or how wrong a release may be.

Both directions use streams simulated from the model (`planning`), never data.

- *From odds*: "a suspicion of 10 % must stay under 30 %" gives the ε of each declared secret, or, without secrets, the
  total of a stream. Of all ways to spend that total (at every m-th event, in batches) the one that errs least is taken.
- *From accuracy*: the least ε whose expected error stays under what is tolerated, which is the largest protection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.core.secrets.ahead import LONGEST
from seqveil.core.words import DisclosedSecret, Risk, leakage_for, log_odds_for, made_public, percent
from seqveil.engine.accounting import Budget
from seqveil.engine.policy import Policy
from seqveil.receiver import planning

SEEN_BY = {  # who sees what is released: a suspicion and what it may become at most, where nobody says so
    "public": (0.10, 0.15),
    "partner": (0.10, 0.25),
    "team": (0.10, 0.40),
}
PERIODS = (1, 2, 3, 4, 6, 8)
BATCHES = (2, 5, 10, 20)
LEAST = 0.05  # ε below which nothing is disclosed
RUNGS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # ε of a secret that are tried, in this order
LARGEST = 30.0  # ε of a batch
STEPS = 7  # halvings of that range, in logarithms
FEW = 6  # simulated streams where every release is a program
SIMULATED = 40  # events of a simulated stream, at most


@dataclass(frozen=True)
class Wishes:
    """What somebody wants of a release.

    Parameters:
        length: events of a stream.
        suspicion: how likely an observer thinks something before the release.
        limit: how likely they may think it afterwards, at most.
        wrong: the expected error that is tolerated; None: whatever the protection costs.
        wait: how many later events a release may wait for.
        secrets: what must stay secret; their ε is looked for.
        distortion: what a wrong release costs.
    """

    length: int
    suspicion: float
    limit: float
    wrong: float | None = None
    wait: int = 0
    secrets: tuple[Secret, ...] = ()
    distortion: str = "hamming"

    def __post_init__(self) -> None:
        if not 0 < self.suspicion < self.limit < 1:
            raise InputError("expected a suspicion and a larger one that it must stay under, both between 0 and 100 %")
        if self.wrong is not None and not (self.wrong > 0 and math.isfinite(self.wrong)):
            raise InputError("expected the error that is tolerated as a number above 0; try 0.2, for one in five")
        if self.length < 1 or self.wait < 0:
            raise InputError("expected a stream of 1 event or more, and a wait of 0 events or more")
        if self.distortion == "hamming" and self.wrong is not None and self.wrong >= 1:
            raise InputError("a release cannot be wrong more often than always; write 0.2 or 20% for one in five")
        if any(secret.window is None for secret in self.secrets) and self.length > LONGEST:
            raise InputError(
                f"a secret about a whole stream has {LONGEST} events at most, and these streams have {self.length}; "
                "give it a window, such as a day or a number of events"
            )


@dataclass(frozen=True)
class Advice:
    """A policy with what it costs and what it means.

    `error` is the expected error of a release, `guess` that of the best guess
    with no release at all; `solved_from` is "odds" or "accuracy"; `notes` say where the wishes do not go together, and
    what they make public.
    """

    policy: Policy
    error: float
    guess: float
    risk: Risk
    solved_from: str
    notes: tuple[str, ...] = ()


def advise(model: MarkovModel, wishes: Wishes, *, from_accuracy: bool | None = None, seed: int = 0) -> Advice:
    """The setting that keeps to the wishes: solved from accuracy where an error is tolerated, from odds where none is.

    Parameters:
        model: the chain that streams follow.
        wishes: what is wanted.
        from_accuracy: which of the two wishes decides, where both are there; the other one is compared with it.
        seed: of the simulation.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> found = advise(model, Wishes(length=10, suspicion=0.1, limit=0.3))
    >>> found.policy.budget.total, found.risk.grade.colour
    (0.674, 'unchecked')
    """
    accuracy = wishes.wrong is not None if from_accuracy is None else from_accuracy
    if accuracy and wishes.wrong is None:
        raise InputError("expected how wrong a release may be; try 0.2, for one in five")
    find = _for_secrets if wishes.secrets else _for_stream
    return find(model, wishes, accuracy, seed)


def _for_secrets(model: MarkovModel, wishes: Wishes, accuracy: bool, seed: int) -> Advice:
    """The ε of every declared secret, all alike."""
    events = model.sample(min(wishes.length, SIMULATED // 2), FEW, seed).T

    def error(epsilon: float) -> float:
        kept = [replace(secret, epsilon=epsilon) for secret in wishes.secrets]
        return planning.guarded_cost(
            Policy(secrets=kept, mechanism="guarded", distortion=wishes.distortion).on(model), events, seed
        )

    allowed = _down(log_odds_for(wishes.suspicion, wishes.limit))
    epsilon = _first(error, wishes.wrong) if accuracy and wishes.wrong is not None else allowed
    if epsilon is None:
        raise _unreachable(wishes)
    kept = [replace(secret, epsilon=epsilon) for secret in wishes.secrets]
    policy = Policy(secrets=kept, distortion=wishes.distortion)
    disclosed = tuple(DisclosedSecret.of(secret, epsilon) for secret in wishes.secrets)
    costs, guess = error(epsilon), _guess(model, wishes)
    return _disclosed(policy, costs, guess, Risk(math.inf, secrets=disclosed), accuracy, wishes, epsilon / allowed)


@dataclass(frozen=True)
class _Way:
    """One way to spend a total over a stream: at every `period`-th event, or in batches."""

    period: int = 1
    batch: int = 1

    def rate(self, total: float, length: int) -> float:
        """The ε of a release, on average, or of a batch, that spends the total and no more."""
        return total / math.ceil(length / (self.period * self.batch)) / self.period

    def most(self, length: int) -> float:
        """The total beyond which a release that carries ε is all but the truth."""
        once = min(planning.HIGHEST * self.batch, LARGEST)
        return once * math.ceil(length / (self.period * self.batch))

    def row(self, model: MarkovModel, wishes: Wishes, total: float, seed: int) -> planning.PlanRow:
        """What it is expected to err."""
        rate, length = self.rate(total, wishes.length), min(wishes.length, SIMULATED)
        if self.batch > 1:
            setting = Policy(epsilon=rate, batch=self.batch, mechanism="auto", distortion=wishes.distortion).on(model)
            return planning.simulate_batches(setting, min(length, 3 * self.batch), FEW, seed)
        setting = Policy(epsilon=rate, mechanism="optimal", distortion=wishes.distortion, every=self.period).on(model)
        return planning.simulate(setting, length, 60 if wishes.distortion == "hamming" else 5, seed)


def _for_stream(model: MarkovModel, wishes: Wishes, accuracy: bool, seed: int) -> Advice:
    """The total of a stream, and the way to spend it that errs least."""
    ways = [_Way(period) for period in PERIODS if period <= wishes.length]
    ways += [_Way(batch=size) for size in BATCHES if size <= min(wishes.wait + 1, wishes.length)]
    allowed = _down(leakage_for(wishes.suspicion, wishes.limit))
    total: float | None = allowed
    if accuracy and wishes.wrong is not None:
        total, ways = _cheapest(model, wishes, ways, wishes.wrong, seed)
    if total is None:
        raise _unreachable(wishes)
    rows = {way: way.row(model, wishes, total, seed) for way in ways}
    way = min(rows, key=lambda each: rows[each].error)
    row, rate = rows[way], way.rate(total, wishes.length)
    spent: dict[str, Any] = {"batch": way.batch, "every": way.period, "budget": Budget(total)}
    policy = Policy(float(f"{rate:.6g}"), distortion=wishes.distortion, **spent)
    one = min(rate * way.period, total)
    ldp = 2 * rate * wishes.length if model.rules_out else None  # of any sound mechanism
    risk = Risk(total, one_release=one, truth=row.paid_truth, period=way.period, size=way.batch, ldp=ldp)
    return _disclosed(policy, row.error, row.constant_error, risk, accuracy, wishes, total / allowed)


def _cheapest(
    model: MarkovModel, wishes: Wishes, ways: list[_Way], wrong: float, seed: int
) -> tuple[float | None, list[_Way]]:
    """The least total that any way needs to err by `wrong` at most, and that way; one that cannot beat it is left."""
    total, best = None, []
    for way in ways:
        most = way.most(wishes.length) if total is None else total

        def error(spent: float, way: _Way = way) -> float:
            return way.row(model, wishes, spent, seed).error

        found = _least(error, wrong, LEAST, most)
        if found is not None and (total is None or found < total):
            total, best = found, [way]
    return total, best


def _disclosed(
    policy: Policy,
    error: float,
    guess: float,
    risk: Risk,
    accuracy: bool,
    wishes: Wishes,
    over: float,
) -> Advice:
    """The advice, with what does not go together; `over` is what is disclosed, as a share of what the odds allow."""
    notes = []
    odds = f"a suspicion of {percent(wishes.suspicion)} under {percent(wishes.limit)}"
    if accuracy and over > 1 + 1e-9:
        notes.append(f"this accuracy does not keep {odds}; it tells {over:.3g} times as much, in nats")
    if not accuracy and wishes.wrong is not None and error > wishes.wrong:
        notes.append(f"keeping {odds} costs more error than the {wishes.wrong:g} that is tolerated")
    if not wishes.secrets and error > 0.9 * guess:
        notes.append(
            "this is hardly better than the best guess with no release at all: declare what must stay secret, and all "
            "else can be released truthfully"
        )
    notes += [text for text in [made_public(wishes.secrets)] if text]
    return Advice(policy, error, guess, risk, "accuracy" if accuracy else "odds", tuple(notes))


def _guess(model: MarkovModel, wishes: Wishes) -> float:
    """Expected error of the best guess with no release at all."""
    setting = Policy(epsilon=1.0, mechanism="optimal", distortion=wishes.distortion).on(model)
    return planning.best_guess_error(setting, min(wishes.length, SIMULATED))


def _least(error: Callable[[float], float], wrong: float, low: float, high: float) -> float | None:
    """The least ε whose error is at most `wrong`, rounded up to three figures; None where even the largest is not."""
    if error(high) > wrong:
        return None
    if error(low) <= wrong:
        return low
    return _halved(error, wrong, low, high, STEPS)


def _halved(error: Callable[[float], float], wrong: float, low: float, high: float, steps: int) -> float:
    """An ε between one that errs too much and one that will do, nearer to the first, rounded up to three figures."""
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if error(middle) <= wrong else (middle, high)
    return _rounded(high, math.ceil)


def _first(error: Callable[[float], float], wrong: float) -> float | None:
    """The least ε of a secret whose error is at most `wrong`, as `_least`.

    A larger ε need not err less, since every release is the best for itself and not for those that follow: so they are
    tried from below, and only between the first that will do and the one before is it halved.
    """
    before = None
    for epsilon in RUNGS:
        if error(epsilon) <= wrong:
            return epsilon if before is None else _halved(error, wrong, before, epsilon, 3)
        before = epsilon
    return None


def _unreachable(wishes: Wishes) -> InputError:
    more = "" if wishes.secrets else ", or let releases wait for later events"
    return InputError(
        f"no setting is expected to err by {wishes.wrong:g} or less on streams that follow this model; "
        f"tolerate more{more}"
    )


def _down(value: float) -> float:
    """Rounded down to three figures, so that a bound is kept."""
    return _rounded(value, math.floor)


def _rounded(value: float, how: Callable[[float], int]) -> float:
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return float(f"{how(round(value * scale, 6)) / scale:.3g}")
