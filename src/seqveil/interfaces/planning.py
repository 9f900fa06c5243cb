"""What a policy costs, before anything is released, and the policy that keeps to what somebody wants.

Both use streams simulated from the model (`trial`), never private data; `realised` holds a plan against people whose
data one has. A policy is solved from what people can answer (`advise`):

- *From odds*: "a suspicion of 10 % must stay under 30 %" gives the ε of each declared secret, or, without secrets, the
  total of a stream. Of all ways to spend that total (at every m-th event, in batches) the one that errs least is taken.
- *From accuracy*: the least ε whose expected error stays under what is tolerated, which is the largest protection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from seqveil.core import filtering, html, mechanisms
from seqveil.core.bulk import Layout
from seqveil.core.distortion import Distortion
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Ints
from seqveil.core.mechanisms import Mechanism
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets import Secret
from seqveil.core.secrets.ahead import LONGEST
from seqveil.core.words import DisclosedSecret, Risk, leakage_for, log_odds_for, made_public, percent
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.secrets import guarded_table, totals
from seqveil.engine.terms import Terms
from seqveil.interfaces import trial

PERIODS = (1, 2, 3, 4, 6, 8, 12, 16)
HIGHEST = 12.0  # ε of one pulse beyond which spending more at once buys nothing
REFERENCE = "randomized_response"  # shown beside every mechanism: it needs no model


@dataclass(frozen=True)
class PlanRow:
    """One line of a plan: means over simulated releases, each given its whole public past.

    `error` is the expected distortion of the release as it stands (one that says nothing counts as wrong),
    `decoded_error` after the receiver's online filter, `smoothed_error` with all releases of the stream (None: not
    computed), `truth` the probability that the release is the truth, `paid_truth` that of the releases that carry ε
    alone (None where none does), `constant_error` the error of the best guess with no release at all, `withheld` the
    share of releases that say nothing, `leakage` and `disclosed` the most that any simulated stream revealed about
    everything and about any declared secret (None without one).

    All of these hold under the model. `realised_error` and `realised_decoded` are what releases and the receiver's best
    guesses cost real people, where there was data to measure it on (`realised`).
    """

    setting: Terms = field(repr=False, compare=False)
    error: float
    decoded_error: float
    truth: float
    paid_truth: float | None
    withheld: float
    constant_error: float
    leakage: float
    disclosed: float | None
    smoothed_error: float | None = None
    realised_error: float | None = None
    realised_decoded: float | None = None

    @property
    def epsilon(self) -> float | None:
        """The ε of one event on average: a batch spends batch · ε. None where nothing is promised about everything."""
        return None if self.setting.unbounded else float(f"{self.setting.epsilon / self.batch:.12g}")

    @property
    def mechanism(self) -> str:
        """The name of the mechanism."""
        return self.setting.mechanism.name

    @property
    def period(self) -> int:
        """Every how many releases one carries ε."""
        return self.setting.schedule

    @property
    def batch(self) -> int:
        """How many events are released together."""
        return self.setting.batch

    @property
    def delay(self) -> int:
        """Events that a symbol waits for at most before its batch is released."""
        return self.batch - 1

    @property
    def totals(self) -> tuple[float, ...]:
        """What is promised about each declared secret."""
        return tuple(secret.total for secret in self.setting.secrets)

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values."""
        about = ("epsilon", "mechanism", "period", "batch", "delay", "totals")
        return {name: getattr(self, name) for name in (*about, *(each.name for each in fields(self)[1:]))}


@dataclass(frozen=True)
class Plan:
    """What several policies cost in error on one model: a row for each."""

    rows: tuple[PlanRow, ...]
    length: int
    distortion: str
    symbols: int
    realised_people: int | None = None  # whom the realised errors are of

    def _repr_html_(self) -> str:
        facts = [("simulated releases a stream", str(self.length)), ("symbols", str(self.symbols))]
        heads = ["epsilon", "mechanism", "period", "batch", "error", "decoded_error", "truth", "leakage"]
        rows = [[getattr(row, head) for head in heads] for row in self.rows]
        return html.page("Plan", facts, html.records(f"expected {self.distortion} error", heads, rows))


def plan(
    model: MarkovModel,
    epsilons: Sequence[float],
    mechanism: str | Mechanism = "optimal",
    distortion: str | Distortion = "hamming",
    length: int = 50,
    users: int | None = None,
    seed: int = 0,
    *,
    period: int | None = 1,
    batch_sizes: Sequence[int] = (),
) -> Plan:
    """Expected utility against ε for this model: one row for each ε and way to release, and one for a reference.

    `period` pulses the mechanism's budget (None: the best period is found by simulation). `batch_sizes` adds, for each
    ε and size w, a row with w·ε for a batch, so that all rows of one ε spend the same on a symbol; then every row has
    its `smoothed_error`. `users` is as in `simulate`.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> row = plan(model, [1.0], length=10, users=50).rows[0]
    >>> row.error < row.constant_error
    True
    """
    if not epsilons:
        raise InputError("expected at least one epsilon to plan for; try 0.5,1,2")
    chosen = mechanisms.get(mechanism)
    policies = []
    for epsilon in epsilons:
        every = period if period is not None else best_period(model, epsilon, chosen, distortion, length, users, seed)
        policies += [Policy(epsilon, mechanism=chosen, distortion=distortion, every=m) for m in sorted({1, every})]
        if chosen.name != REFERENCE:
            policies.append(Policy(epsilon, mechanism=REFERENCE, distortion=distortion))
        policies += [Policy(w * epsilon, batch=w, mechanism="auto", distortion=distortion) for w in batch_sizes]
    return compared([policy.on(model) for policy in policies], length, users, seed)


def compared(settings: Sequence[Terms], length: int = 50, users: int | None = None, seed: int = 0) -> Plan:
    """A row for each of several policies, on one model; with its `smoothed_error` where one of them releases batches.

    A batch sees a little of the future, so only with hindsight do all rows know the same.
    """
    hindsight = any(setting.in_batches for setting in settings)
    rows = tuple(simulate(setting, length, users, seed, hindsight) for setting in settings)
    return Plan(rows, length, settings[0].distortion.name, settings[0].model.n)


def best_period(
    model: MarkovModel,
    epsilon: float,
    mechanism: str | Mechanism = "optimal",
    distortion: str | Distortion = "hamming",
    length: int = 50,
    users: int | None = None,
    seed: int = 0,
) -> int:
    """The period m of least expected error: m·ε at every m-th release, else 0 (docs/theory.md, section 11)."""
    mechanisms.check_epsilon(epsilon)
    tried = [m for m in PERIODS if m == 1 or (m * epsilon <= HIGHEST and 2 * m <= length)]
    errors = {}
    for m in tried:
        setting = Policy(epsilon=epsilon, mechanism=mechanism, distortion=distortion, every=m).on(model)
        errors[m] = simulate(setting, length, users, seed).error
    return min(errors, key=lambda m: errors[m])


def simulate(
    setting: Terms, length: int = 50, users: int | None = None, seed: int = 0, hindsight: bool = False
) -> PlanRow:
    """Release streams sampled from the model, and average what every release is expected to cost.

    Parameters:
        setting: what they are released with.
        length: events of a simulated stream.
        users: how many streams are simulated; by default 200, 20 where a release takes a program, and of batches as
            many as make 100, from 8 to 40.
        seed: of the simulation; the same seed gives the same figures.
        hindsight: whether to decode with all releases of a stream, too.

    >>> from seqveil.core.secrets import ever
    >>> model = MarkovModel([0.5, 0.4, 0.1], [[0.6, 0.35, 0.05], [0.4, 0.55, 0.05], [0.3, 0.2, 0.5]])
    >>> row = simulate(Policy(secrets=ever(2, epsilon=0.5, window=5)).on(model), length=10, users=5)
    >>> row.error < row.constant_error, row.disclosed <= 0.5
    (True, True)
    """
    many = _usual_users(setting, length) if users is None else users
    if min(length, many) < 1:
        raise InputError(f"expected a length and a number of users ≥ 1, got {length} and {many}")
    found = trial.measure(setting, setting.model.sample(length, many, seed), seed + 1, hindsight)
    trackers = [each for state in found.ends if state.trackers is not None for each in state.trackers]
    promised = [secret.total for secret in setting.secrets]
    disclosed = [total.log_odds_worst for total in totals(setting.secrets, trackers, promised)] if promised else []
    return PlanRow(
        setting,
        found.error,
        found.decoded_error,
        found.truth,
        found.paid_truth,
        found.withheld,
        best_guess_error(setting, length),
        max(float(state.account.worst.max()) for state in found.ends),
        max(disclosed) if disclosed else None,
        found.smoothed_error,
    )


def _usual_users(setting: Terms, length: int) -> int:
    """How many streams are simulated unless somebody says so."""
    if setting.in_batches:
        return min(40, max(8, 100 * setting.batch // max(1, length)))
    return 20 if setting.guards or not setting.distortion.is_hamming else 200


def best_guess_error(setting: Terms, length: int) -> float:
    """Expected cost of the best guess of each symbol with no release at all."""
    return float(setting.distortion.expected(filtering.unseen(setting.model, length)).min(1).mean())


def realised(made: Plan, users: Ints, codes: Ints, people: int = 200, seed: int = 0) -> Plan:
    """The plan held against people: what each of its rows really costs them, over their first `made.length` events.

    Whoever runs it holds the raw data. Nothing is protected by it: the figures are means over these people.

    Parameters:
      made: the plan, on a model that should not have been fitted to them.
      users: whose each event is, each user's events in their order.
      codes: their symbols, as codes of the model's alphabet.
      people: how many of them are released at most, spread over all; of batches at most 40.
      seed: of the randomness.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> streams = model.sample(10, 300, seed=1)
    >>> found = realised(plan(model, [2.0], length=10), np.repeat(np.arange(300), 10), streams.ravel())
    >>> abs(found.rows[0].realised_error - found.rows[0].error) < 0.03, found.realised_people
    (True, 200)
    """
    if not users.size:
        raise DataError("there is nobody to release: the data hold no events")
    layout = Layout.of(users)
    taken = np.unique(np.linspace(0, layout.lengths.size - 1, min(people, layout.lengths.size)).astype(np.int64))
    streams = [
        codes[layout.order[layout.begins[at] : layout.begins[at] + min(layout.lengths[at], made.length)]]
        for at in taken
    ]
    streams.sort(key=len, reverse=True)

    def held_against(row: PlanRow) -> PlanRow:
        some = streams[:: max(1, len(streams) // 40)] if row.batch > 1 else streams
        found = trial.measure(row.setting, some, seed)
        return replace(row, realised_error=found.realised_error, realised_decoded=found.realised_decoded)

    return replace(made, rows=tuple(map(held_against, made.rows)), realised_people=len(streams))


SEEN_BY = {  # who sees what is released: a suspicion and what it may become at most, where nobody says so
    "public": (0.10, 0.15),
    "partner": (0.10, 0.25),
    "team": (0.10, 0.40),
}
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
    distortion: str | Distortion = "hamming"

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
    wrong = wishes.wrong if accuracy else None
    solved = (_for_secrets if wishes.secrets else _for_stream)(model, wishes, wrong, seed)
    if solved is None:
        more = "" if wishes.secrets else ", or let releases wait for later events"
        raise InputError(
            f"no setting is expected to err by {wishes.wrong:g} or less on streams that follow this model; "
            f"tolerate more{more}"
        )
    policy, error, risk, over = solved
    guess = best_guess_error(policy.on(model), min(wishes.length, SIMULATED))
    notes = _notes(wishes, error, guess, over if accuracy else None)
    return Advice(policy, error, guess, risk, "accuracy" if accuracy else "odds", notes)


Solved = tuple[Policy, float, Risk, float]  # with its error, and what it reveals as a share of what the odds allow


def _for_secrets(model: MarkovModel, wishes: Wishes, wrong: float | None, seed: int) -> Solved | None:
    """The ε of every declared secret, all alike."""
    events = model.sample(min(wishes.length, SIMULATED // 2), FEW, seed)

    def kept(epsilon: float) -> Policy:
        return Policy(secrets=[replace(each, epsilon=epsilon) for each in wishes.secrets], distortion=wishes.distortion)

    def error(epsilon: float) -> float:
        return guarded_cost(kept(epsilon).on(model), events, seed)

    allowed = _rounded(log_odds_for(wishes.suspicion, wishes.limit), math.floor)
    epsilon = allowed if wrong is None else _first(error, wrong)
    if epsilon is None:
        return None
    risk = Risk(math.inf, secrets=tuple(DisclosedSecret.of(secret, epsilon) for secret in wishes.secrets))
    return kept(epsilon), error(epsilon), risk, epsilon / allowed


def guarded_cost(setting: Terms, streams: Ints, seed: int) -> float:
    """The mean expected cost of the kernels that keep declared secrets, along simulated streams (B, T).

    Cheaper than `simulate` at the same precision: nothing is left to the draw of the release that is averaged.
    """
    total = 0.0
    for step in trial.one_by_one(setting, streams, SeededRandomness(seed)):
        assert step.before.trackers is not None
        tables = {id(each): guarded_table(setting, each) for each in step.before.trackers}
        total += sum(tables[id(each)].error for each in step.before.trackers)
    return total / streams.size


@dataclass(frozen=True)
class _Way:
    """One way to spend a total over a stream: at every `period`-th event, or in batches."""

    period: int = 1
    batch: int = 1

    def spends(self, length: int) -> int:
        """How often it spends something."""
        return math.ceil(length / (self.period * self.batch))

    def policy(self, wishes: Wishes, total: float) -> Policy:
        """The policy that spends the total and no more."""
        rate = total / self.spends(wishes.length) / self.period
        return Policy(rate, batch=self.batch, every=self.period, distortion=wishes.distortion)

    def row(self, model: MarkovModel, wishes: Wishes, total: float, seed: int) -> PlanRow:
        """What it is expected to err."""
        length, users = min(wishes.length, SIMULATED), 60 if wishes.distortion == "hamming" else 5
        if self.batch > 1:
            length, users = min(length, 3 * self.batch), FEW
        return simulate(self.policy(wishes, total).on(model), length, users, seed)

    def least(self, model: MarkovModel, wishes: Wishes, wrong: float, most: float | None, seed: int) -> float | None:
        """The least total, rounded up, whose error is at most `wrong`; None where it takes more than the `most`."""

        def error(total: float) -> float:
            return self.row(model, wishes, total, seed).error

        # beyond that a release that carries ε is all but the truth
        high = min(HIGHEST * self.batch, LARGEST) * self.spends(wishes.length) if most is None else most
        if error(high) > wrong:
            return None
        return LEAST if error(LEAST) <= wrong else _halved(error, wrong, LEAST, high, STEPS)


def _for_stream(model: MarkovModel, wishes: Wishes, wrong: float | None, seed: int) -> Solved | None:
    """The total of a stream, and the way to spend it that errs least."""
    ways = [_Way(period) for period in PERIODS if period <= min(wishes.length, 8)]
    ways += [_Way(batch=size) for size in BATCHES if size <= min(wishes.wait + 1, wishes.length)]
    allowed = _rounded(leakage_for(wishes.suspicion, wishes.limit), math.floor)
    total: float | None = allowed
    if wrong is not None:
        total, best = None, list[_Way]()
        for way in ways:
            found = way.least(model, wishes, wrong, total, seed)
            if found is not None and (total is None or found < total):
                total, best = found, [way]
        ways = best
    if total is None:
        return None
    way, row = min(((way, way.row(model, wishes, total, seed)) for way in ways), key=lambda tried: tried[1].error)
    exact = way.policy(wishes, total)
    rate = exact.epsilon or 0.0
    policy = replace(exact, epsilon=float(f"{rate:.6g}"), budget=Budget(total))
    ldp = 2 * rate * wishes.length if model.rules_out else None  # of any sound mechanism
    one = min(rate * way.period, total)
    risk = Risk(total, one_release=one, truth=row.paid_truth, period=way.period, size=way.batch, ldp=ldp)
    return policy, row.error, risk, total / allowed


def _notes(wishes: Wishes, error: float, guess: float, over: float | None) -> tuple[str, ...]:
    """What does not go together, and what becomes public; `over` is None where the odds decided."""
    notes = []
    odds = f"a suspicion of {percent(wishes.suspicion)} under {percent(wishes.limit)}"
    if over is not None and over > 1 + 1e-9:
        notes.append(f"this accuracy does not keep {odds}; it tells {over:.3g} times as much, in nats")
    if over is None and wishes.wrong is not None and error > wishes.wrong:
        notes.append(f"keeping {odds} costs more error than the {wishes.wrong:g} that is tolerated")
    if not wishes.secrets and error > 0.9 * guess:
        notes.append(
            "this is hardly better than the best guess with no release at all: declare what must stay secret, and all "
            "else can be released truthfully"
        )
    return (*notes, *(text for text in [made_public(wishes.secrets)] if text))


def _first(error: Callable[[float], float], wrong: float) -> float | None:
    """The least ε of a secret whose error is at most `wrong`, rounded up; None where even the largest is not.

    A larger ε need not err less, since every release is the best for itself and not for those that follow: so they are
    tried from below, and only between the first that will do and the one before is it halved.
    """
    before = None
    for epsilon in RUNGS:
        if error(epsilon) <= wrong:
            return epsilon if before is None else _halved(error, wrong, before, epsilon, 3)
        before = epsilon
    return None


def _halved(error: Callable[[float], float], wrong: float, low: float, high: float, steps: int) -> float:
    """An ε between one that errs too much and one that will do, nearer to the first, rounded up to three figures."""
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if error(middle) <= wrong else (middle, high)
    return _rounded(high, math.ceil)


def _rounded(value: float, how: Callable[[float], int]) -> float:
    """To three figures: down, so that a bound is kept, or up."""
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return float(f"{how(round(value * scale, 6)) / scale:.3g}")
