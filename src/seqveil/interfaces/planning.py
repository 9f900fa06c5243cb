"""What a policy costs before anything is released, and the policy that does what somebody wants of it.

Each policy is tried on people (`trial`): on those whose data one holds, if the model was not fitted to them, else on
streams simulated from the model. A plan compares totals and ways to spend them: one by one, in blocks, in batches where
a release may wait. It recommends a policy from what people can answer:

- *From odds*: "a suspicion of 10 % must stay under 30 %" gives the ε of each declared secret, or, without secrets, the
  total of a stream. Of all ways to spend that total the one of least error is taken.
- *From accuracy*: the least ε whose error stays within what is tolerated, which is the largest protection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.distortion import Distortion, error_name, error_size
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms.blocks import LARGEST
from seqveil.core.model import MarkovModel
from seqveil.core.results import Line, Result, ResultTable, plain
from seqveil.core.secrets import Secret
from seqveil.core.secrets.ahead import LONGEST
from seqveil.core.words import Risk, count, leakage_for, log_odds_for, made_public, moved, percent
from seqveil.core.words import percent_up as at_most
from seqveil.engine import toml
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.terms import Terms
from seqveil.interfaces import trial

SEEN_BY = {  # who sees what is released: a suspicion, and what it may become at most where nobody says so
    "public": (0.10, 0.15),
    "partner": (0.10, 0.25),
    "team": (0.10, 0.40),
}
TOTALS = (1.0, 2.0, 5.0, 10.0, 20.0)  # of a stream, that a plan shows
SECRET_TOTALS = (0.25, 0.5, 1.0, 2.0)
LADDER = tuple(float(f"{10 ** (k / 6):.2g}") for k in range(-6, 16))  # totals tried for an accuracy: 0.1 to 320
BLOCKS, BATCHES = (5, 10, 20, 40), (2, 5, 10, 20)  # events
NEAR = 1.05  # a shorter block is proposed where its error is within 5 % of the least
HIGHEST = 12.0  # ε of one release beyond which it is all but the truth
BLOCK = (
    "the events of a block share one ε, and each is answered at once; one release alone can reveal all of that ε, and "
    "given the earlier ones of its block twice as much"
)
EXAMPLE = 0.10  # the suspicion that a table follows
Progress = Callable[[str, float], None]  # what is under way, and how many rows are done


@dataclass(frozen=True)
class Wishes:
    """What somebody wants of a release.

    Parameters:
        odds: how likely an observer thinks something before the release, and may think it at most afterwards.
        wrong: the error that is tolerated; it decides where it is given.
        wait: how many later events a release may wait for.
        epsilons: of an event, or of each secret, to compare; None for the usual ones.
        blocks: the lengths of blocks to choose from.
        secrets: what must stay secret; their ε is looked for.
        distortion: the cost of a wrong release.
        policy: one whose error is asked for; its secrets and distortion take the place of the two before.
    """

    odds: tuple[float, float] | None = None
    wrong: float | None = None
    wait: int = 0
    epsilons: tuple[float, ...] | None = None
    blocks: tuple[int, ...] = BLOCKS
    secrets: tuple[Secret, ...] = ()
    distortion: str | Distortion = "hamming"
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.odds is not None and not 0 < self.odds[0] < self.odds[1] < 1:
            raise InputError("expected a suspicion and a larger one that it must stay under, both between 0 and 100 %")
        if self.wrong is not None and not (self.wrong > 0 and math.isfinite(self.wrong)):
            raise InputError("expected the error that is tolerated as a number above 0; try 0.2, for one in five")
        if self.wait < 0 or any(size < 2 for size in self.blocks):
            raise InputError("expected a wait of 0 events or more, and blocks of 2 events or more")
        if self.distortion == "hamming" and self.wrong is not None and self.wrong >= 1:
            raise InputError("a release cannot be wrong more often than always; write 0.2 or 20% for one in five")
        if self.policy is not None:
            object.__setattr__(self, "secrets", tuple(self.policy.secrets))
            object.__setattr__(self, "distortion", self.policy.distortion)

    @property
    def allowed(self) -> float:
        """The total that the odds allow, of each secret or of a stream; rounded down to three figures."""
        assert self.odds is not None
        value = log_odds_for(*self.odds) if self.secrets else leakage_for(*self.odds)
        return _down(value, figures=3)

    def secrets_at(self, epsilon: float) -> tuple[Secret, ...]:
        """The secrets, each with this ε."""
        return tuple(replace(secret, epsilon=epsilon) for secret in self.secrets)


@dataclass(frozen=True)
class PlanRow:
    """One policy and what it cost the people of the trial.

    `total` is what a whole stream may reveal, or each secret; `error` the mean cost of a release as it is,
    `decoded_error` that of the receiver's best estimate given the releases up to each (for blocks the same: their
    labels are best guesses), `withheld` the share of releases that say nothing, `leakage` the most that a stream of
    the trial revealed. `with_secret` and `without_secret` are the errors in windows of people who have a declared
    secret and of those who do not (None where nobody is on that side).
    """

    policy: Policy
    total: float
    error: float
    standard_error: float | None
    decoded_error: float
    withheld: float
    leakage: float
    with_secret: float | None = None
    without_secret: float | None = None

    @property
    def way(self) -> str:
        """How events are released, in words."""
        if self.policy.secrets:
            return "keeping the secrets"
        if self.policy.block > 1:
            return f"blocks of {self.policy.block}"
        return f"batches of {self.policy.batch}" if self.policy.batch > 1 else "one by one"

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values."""
        return {"way": self.way} | vars(self) | {"policy": self.policy.to_dict()}


@dataclass(frozen=True, repr=False)
class Plan(Result):
    """What policies cost on one model, and the one that is recommended (`chosen`, where something was asked for).

    `guess` is the error of the best guess with no release at all; `held_out` says whether the people of the trial are
    real ones, whom the model was not fitted to.
    """

    rows: tuple[PlanRow, ...]
    chosen: PlanRow | None
    wishes: Wishes
    model: MarkovModel = field(repr=False)
    length: int
    people: int
    held_out: bool
    guess: float

    @property
    def policy(self) -> Policy | None:
        """The recommended policy."""
        return None if self.chosen is None else self.chosen.policy

    @property
    def risk(self) -> Risk | None:
        """What the recommended policy means for a person."""
        if self.chosen is None:
            return None
        risk = Risk.promised(self.chosen.policy.on(self.model))
        sound = 2 * self.chosen.total  # the LDP level of any sound mechanism
        return risk if risk.ldp is None or self.wishes.secrets else replace(risk, ldp=min(risk.ldp, sound))

    def lines(self) -> list[Line]:
        """The people, the recommended policy, what it costs and what it means."""
        whom = "held-out people" if self.held_out else "people simulated from the model (others fare worse)"
        said = [("tried on", f"{self.people:,} {whom}, {count(self.length, 'event')} each at most")]
        if self.chosen is not None and self.risk is not None:
            said += [
                ("policy", "; ".join(toml.written(self.chosen.policy.to_dict()).replace("\n\n", "\n").splitlines())),
                ("error", self._error(self.chosen)),
                *(("promise", text) for text in self.chosen.policy.sentences),
                *(("means", text) for text in self.risk.sentences),
                ("grade", self.risk.grade.text),
            ]
        if any(row.policy.block > 1 for row in self.rows):
            said.append(("blocks", BLOCK))
        return [*said, *(("note", text) for text in self.notes)]

    def _error(self, row: PlanRow) -> str:
        cost, guess = self._cost(row.error), self._cost(self.guess)
        what = f"{cost} of the events are released wrong" if self._hamming else f"{cost} an event"
        by_secret = ""
        if row.with_secret is not None and row.without_secret is not None:
            with_, without = self._cost(row.with_secret), self._cost(row.without_secret)
            by_secret = f" ({with_} for people with the secret, {without} without)"
        return f"{what}{by_secret}; the best guess with no release at all: {guess}"

    @property
    def distortion(self) -> str:
        """What an error is measured by."""
        return str(getattr(self.wishes.distortion, "name", self.wishes.distortion))

    @property
    def _hamming(self) -> bool:
        return self.distortion == "hamming"

    def _cost(self, error: float) -> str:
        return percent(error) if self._hamming else error_size(error, self.distortion)

    @property
    def notes(self) -> tuple[str, ...]:
        """What does not go together, and what becomes public."""
        found, wishes, row = [], self.wishes, self.chosen
        if row is not None and wishes.odds is not None:
            odds = f"a suspicion of {percent(wishes.odds[0])} under {percent(wishes.odds[1])}"
            if row.total > wishes.allowed:
                times = row.total / wishes.allowed
                found.append(f"this does not keep {odds}; it reveals {times:.3g} times as much, in nats")
        if row is not None and not wishes.secrets and row.error > 0.9 * self.guess:
            found.append(
                "this is hardly better than the best guess with no release at all: declare what must stay secret, and "
                "everything else can be released truthfully"
            )
        return (*found, *(text for text in [made_public(wishes.secrets)] if text))

    def tables(self) -> list[ResultTable]:
        """The errors of all policies."""
        caption = "share of wrong releases" if self._hamming else f"{error_name(self.distortion)} of a release"
        becomes = f"{percent(EXAMPLE)} becomes at most"
        if self.wishes.secrets:
            kinds = {"error": "error", "with the secret": "with_secret", "without it": "without_secret"}
            rows = [
                (
                    f"{row.total:g}",
                    at_most(moved(EXAMPLE, row.total)),
                    *(self._cell(getattr(row, kinds[k])) for k in kinds),
                )
                for row in self.rows
            ]
            return [ResultTable(caption, ("ε of the secret", becomes, *kinds), rows)]
        ways = list(dict.fromkeys(row.way for row in self.rows))
        errors = {(row.total, row.way): row.error for row in self.rows}
        rows = [
            (f"{total:g}", f"{total / self.length:.3g}", at_most(moved(EXAMPLE, 2 * total)),
             *(self._cell(errors.get((total, way))) for way in ways))
            for total in sorted({row.total for row in self.rows})
        ]  # fmt: skip
        heads = ("total of a stream", "ε an event", becomes, *ways)
        return [ResultTable(f"{caption}; the best guess with no release: {self._cell(self.guess)}", heads, rows)]

    def _cell(self, error: float | None) -> str:
        return "" if error is None else f"{error:.3f}" if self._hamming else error_size(error, self.distortion)

    def to_dict(self) -> dict[str, Any]:
        """Everything that is shown, as plain values."""
        kept = ("rows", "length", "people", "held_out", "guess", "notes", "policy")
        risk = self.risk
        more = {} if risk is None else {"words": list(risk.sentences), "grade": risk.grade.colour}
        error = None if self.chosen is None else self.chosen.error
        facts = {name: getattr(self, name) for name in kept} | more
        found: dict[str, Any] = plain(facts | {"error": error, "distortion": self.distortion})
        return found


def plan(
    model: MarkovModel,
    wishes: Wishes | None = None,
    *,
    length: int = 50,
    streams: Sequence[Ints] | None = None,
    people: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Plan:
    """The error to expect of policies on this model, and the policy that does what is wished.

    Parameters:
        model: how streams usually run.
        wishes: what is wanted; without odds and an accuracy nothing is recommended.
        length: events of a stream, at most.
        streams: codes of people whom the model was not fitted to; None: they are simulated.
        people: how many are tried; by default 200, for secrets 60, in batches at most 40, and 20 where a release takes
            a program.
        seed: of people and randomness; the same seed gives the same figures.
        progress: called with what is under way, and how many policies were tried.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> found = plan(model, Wishes(odds=(0.1, 0.3), blocks=(5, 10)), length=10)
    >>> found.policy.budget.total, found.chosen.way, found.risk.grade.colour
    (0.674, 'blocks of 10', 'unchecked')
    """
    asked = wishes or Wishes()
    if length < 1 or (people is not None and people < 1):
        raise InputError("expected streams of 1 event or more, and 1 person or more")
    if any(secret.window is None for secret in asked.secrets) and length > LONGEST:
        raise InputError(
            f"a secret about a whole stream has {LONGEST} events at most, and these streams have {length}; "
            "give it a window, such as a day or a number of events"
        )
    tried = _Tried(model, length, streams, people, seed, progress)
    rows, chosen = _searched(tried, asked)
    guess = best_guess_error(rows[0].policy.on(model), length)
    return Plan(tuple(rows), chosen, asked, model, length, max(tried.people), streams is not None, guess)


def best_guess_error(setting: Terms, length: int) -> float:
    """Expected cost of the best guess of each symbol with no release at all."""
    return float(setting.distortion.expected(filtering.unseen(setting.model, length)).min(1).mean())


def simulate(setting: Terms, length: int = 50, people: int | None = None, seed: int = 0) -> trial.Measured:
    """Release streams sampled from the model, and compare them with the truth.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> simulate(Policy(epsilon=16.0).on(model), length=5, people=10).error
    0.0
    """
    many = usual_people(setting, length) if people is None else people
    return trial.measure(setting, setting.model.sample(length, many, seed), seed + 1)


def usual_people(setting: Terms, length: int) -> int:
    """How many people a policy is tried on unless somebody says so."""
    if setting.in_batches:
        return min(40, max(8, 100 * setting.batch // max(1, length)))
    return 200 if setting.distortion.is_hamming and not setting.guards else 60 if setting.guards else 20


@dataclass(frozen=True)
class _Tried:
    """The people of a plan, and what policies cost them."""

    model: MarkovModel
    length: int
    given: Sequence[Ints] | None
    most: int | None
    seed: int
    progress: Progress | None
    people: list[int] = field(default_factory=list)  # of each trial so far

    def row(self, policy: Policy, total: float) -> PlanRow:
        """What a policy costs."""
        setting = policy.on(self.model)
        people = self._people(usual_people(setting, self.length) if self.most is None else self.most)
        found = trial.measure(setting, people, self.seed + 1)
        self.people.append(len(people))
        if self.progress is not None:
            self.progress(f"at a total of {total:g}", len(self.people))
        costs = (found.error, found.standard_error, found.decoded_error, found.withheld, found.leakage)
        return PlanRow(policy, total, *costs, *_by_secret(setting, people, found.costs))

    def _people(self, many: int) -> list[Ints]:
        if self.given is None:
            return [*self.model.sample(self.length, many, self.seed)]
        places = np.unique(np.linspace(0, len(self.given) - 1, min(many, len(self.given))).astype(int))
        return sorted((self.given[k][: self.length] for k in places.tolist()), key=len, reverse=True)


def _searched(tried: _Tried, wishes: Wishes) -> tuple[list[PlanRow], PlanRow | None]:
    """All rows of a plan, and the one that is recommended."""
    length, own = tried.length, wishes.policy
    if own is not None:
        whole = own.budget.exact_total or (own.rate or 0.0) * length
        row = tried.row(own, max((secret.total for secret in own.secrets), default=whole))
        return [row], row
    usual = SECRET_TOTALS if wishes.secrets else TOTALS
    totals = usual if wishes.epsilons is None else wishes.epsilons
    if wishes.epsilons is not None and not wishes.secrets:
        totals = tuple(epsilon * length for epsilon in wishes.epsilons)
    allowed = None if wishes.odds is None else wishes.allowed
    policies = _ways(tried, wishes, allowed or totals[len(totals) // 2])

    def rows_at(total: float) -> list[PlanRow]:
        found = (policy(total) for policy in policies)
        return [tried.row(policy, total) for policy in found if policy is not None]

    if wishes.wrong is not None:
        most = HIGHEST if wishes.secrets else HIGHEST * length
        rows, chosen = _least(rows_at, wishes, [total for total in LADDER if total <= most])
    else:
        rows = [row for total in sorted({*totals, *([] if allowed is None else [allowed])}) for row in rows_at(total)]
        if allowed is None:
            return rows, None
        chosen = min((row for row in rows if row.total == allowed), key=_error)
    if wishes.secrets:
        return rows, chosen
    return rows, replace(chosen, policy=replace(chosen.policy, budget=Budget(chosen.total)))


def _ways(tried: _Tried, wishes: Wishes, total: float) -> list[Callable[[float], Policy | None]]:
    """The policies to try at each total: those that keep the secrets, or all ways to spend it over a stream."""
    if wishes.secrets:
        return [lambda epsilon: Policy(secrets=wishes.secrets_at(epsilon), distortion=wishes.distortion)]

    def way(block: int = 1, batch: int = 1) -> Callable[[float], Policy | None]:
        def policy(total: float) -> Policy | None:
            epsilon = _down(total / math.ceil(tried.length / (block * batch)), figures=6)
            if epsilon > (LARGEST if block > 1 else HIGHEST):
                return None  # so much at once is the truth, or slow
            return Policy(epsilon, block=block, batch=batch, distortion=wishes.distortion)

        return policy

    ways = [way(), *(way(batch=size) for size in BATCHES if size <= min(wishes.wait + 1, tried.length))]
    blocks = {size: way(size) for size in sorted({min(size, tried.length) for size in wishes.blocks} - {1})}
    made = {size: policy for size in blocks if (policy := blocks[size](total)) is not None}
    errors = {size: tried.row(policy, total).error for size, policy in made.items()}
    near = [size for size in errors if errors[size] <= NEAR * min(errors.values())]
    return [*ways, *(blocks[size] for size in near[:1])]


def _least(
    rows_at: Callable[[float], list[PlanRow]], wishes: Wishes, totals: Sequence[float]
) -> tuple[list[PlanRow], PlanRow]:
    """Rows of totals that halve the ladder, and the one of the least total whose error is tolerated."""
    rows, found, low, high = list[PlanRow](), None, 0, len(totals)
    while low < high:
        middle = (low + high) // 2
        now = rows_at(totals[middle])
        best = min(now, key=_error)
        enough = best.error <= (wishes.wrong or 0.0)
        found, low, high = (best, low, middle) if enough else (found, middle + 1, high)
        rows += now
    if found is None:
        more = "" if wishes.secrets else ", or let releases wait for later events"
        raise InputError(f"no policy errs by {wishes.wrong:g} or less on these people; tolerate more{more}")
    return sorted(rows, key=lambda row: row.total), found


def _error(row: PlanRow) -> float:
    return row.error


def _down(value: float, figures: int) -> float:
    """Rounded down to so many figures, so that a bound is kept."""
    scale = 10.0 ** (figures - 1 - math.floor(math.log10(value)))
    return float(f"{math.floor(round(value * scale, 6)) / scale:.{figures}g}")


def _by_secret(setting: Terms, people: Sequence[Ints], costs: Sequence[Floats]) -> tuple[float | None, float | None]:
    """The mean cost in windows of people who have a declared secret, and in those of people who do not."""
    sides: tuple[list[Floats], list[Floats]] = ([], [])
    secrets = [secret for secret in setting.secrets if secret.kind != "trait"]  # which no event shows
    for codes, spent in zip(people, costs, strict=True):
        for secret in secrets:
            for part, held in _windows(secret, setting.model, codes):
                sides[not held].append(spent[part])
    with_, without = (float(np.concatenate(side).mean()) if side else None for side in sides)
    return with_, without


def _windows(secret: Secret, model: MarkovModel, codes: Ints) -> Iterator[tuple[slice, bool]]:
    """The windows of a secret in a stream, and whether it has the secret in each."""
    compiled = secret.over(model.alphabet)
    length = compiled.length or len(codes)
    for begin in range(0, len(codes) if secret.repeats else length, length):
        part = slice(begin, min(begin + length, len(codes)))
        yield part, bool(compiled.read(codes[part].tolist(), begin))
