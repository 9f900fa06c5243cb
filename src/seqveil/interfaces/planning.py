"""What a policy costs before anything is released, and the policy that does what somebody wants of it.

Each policy is tried (`trials`) on people whom the model was not fitted to, else on streams simulated from the model. A
plan compares totals and ways to spend them: one by one, in a block, in a batch where a release may wait. Either errs
less the longer it is, but beyond 20 events hardly less. It recommends a policy from what people can answer:

- *From odds*: "a suspicion of 10 % must stay under 30 %" gives the ε of each declared secret, or the total of a stream.
- *From accuracy*: the least ε whose error stays within what is tolerated, which is the largest protection.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seqveil.core import filtering, words
from seqveil.core.alphabet import Alphabet
from seqveil.core.distortion import Distortion, error_size
from seqveil.core.errors import InputError, option
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms.blocks import LARGEST
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.core.secrets.ahead import LONGEST
from seqveil.core.words import Line, Result, ResultTable, Risk
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import Terms
from seqveil.interfaces.trials import mean_cost, release

# who sees what is released: a suspicion, and what it may become at most where nobody says so
SEEN_BY = {"public": (0.10, 0.15), "partner": (0.10, 0.25), "team": (0.10, 0.40)}
TOTALS = (1.0, 2.0, 5.0, 10.0, 20.0)  # of a stream, that a plan shows
SECRET_TOTALS = (0.25, 0.5, 1.0, 2.0)
LADDER = tuple(float(f"{10 ** (k / 6):.2g}") for k in range(-6, 16))  # totals tried for an accuracy: 0.1 to 320
TOGETHER = 20  # events of a block, and of a batch at most
HIGHEST = 12.0  # ε of one release beyond which it is all but the truth
QUICK = 100  # states of a model up to which secrets in closed form are quick
EXAMPLE = 0.10  # the suspicion that a table follows
Progress = Callable[[str, float], None]  # what is under way, and the share that is done
Way = tuple[int, int]  # events of a block, and of a batch


@dataclass(frozen=True)
class Wishes:
    """What somebody wants of a release.

    Parameters:
        odds: how likely an observer thinks something before the release, and may think it at most afterwards.
        wrong: the error that is tolerated; it decides where it is given.
        wait: how many later events a release may wait for.
        epsilons: of an event, or of each secret, to compare; None for the usual ones.
        secrets: what must stay secret; their ε is looked for.
        distortion: the cost of a wrong release.
        policy: one whose error is asked for; its secrets and distortion take the place of the two before.
    """

    odds: tuple[float, float] | None = None
    wrong: float | None = None
    wait: int = 0
    epsilons: tuple[float, ...] | None = None
    secrets: tuple[Secret, ...] = ()
    distortion: str | Distortion = "hamming"
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.odds is not None and not 0 < self.odds[0] < self.odds[1] < 1:
            raise InputError("expected odds as a suspicion and a larger one that it must stay under, as (0.1, 0.3)")
        most = 1.0 if self.distortion == "hamming" else math.inf
        if self.wrong is not None and not 0 < self.wrong < most:
            raise InputError(f"expected a tolerated error above 0 and below {most:g}; try 0.2, for one in five")
        if self.wait < 0 or (self.wait and self.secrets):
            raise InputError("expected a wait of 0 events or more, and 0 with secrets, which are kept event by event")
        if self.policy is not None:
            if any((self.odds, self.wrong, self.wait, self.epsilons, self.secrets, self.distortion != "hamming")):
                drop = ", ".join(map(option, ("wrong", "secret", "distortion")))
                raise InputError(f"{option('policy')} already says what to promise; drop {drop} and other wishes")
            object.__setattr__(self, "secrets", tuple(self.policy.secrets))
            object.__setattr__(self, "distortion", self.policy.distortion)

    @property
    def allowed(self) -> float | None:
        """The total that the odds allow, of each secret or of a stream, rounded down to three figures; None: no odds"""
        if self.odds is None:
            return None
        return _down(words.log_odds_for(*self.odds) / (1 if self.secrets else 2), figures=3)

    def totals(self, length: int) -> tuple[float, ...]:
        """The totals to show, of each secret or of a stream."""
        if self.epsilons is not None:
            return tuple(epsilon * (1 if self.secrets else length) for epsilon in self.epsilons)
        return (() if self.odds else SECRET_TOTALS) if self.secrets else TOTALS

    def spending(self, total: float, way: Way, length: int) -> Policy | None:
        """The policy that spends a total in this way over a stream, or on each secret; None: it is the truth, or slow.

        >>> Wishes().spending(4.0, (5, 1), 10).epsilon
        2.0
        """
        if self.secrets:
            secrets = [replace(secret, epsilon=total) for secret in self.secrets]
            return Policy(secrets=secrets, distortion=self.distortion)
        block, batch = way
        epsilon = _down(total / math.ceil(length / (block * batch)), figures=6)
        if epsilon > (LARGEST if block > 1 else HIGHEST):
            return None
        return Policy(epsilon, block=block, batch=batch, distortion=self.distortion)


def _down(value: float, figures: int) -> float:
    """Rounded down to so many figures, so that a bound is kept."""
    scale = 10.0 ** (figures - 1 - math.floor(math.log10(value)))
    return float(f"{math.floor(round(value * scale, 6)) / scale:.{figures}g}")


@dataclass(frozen=True)
class PlanRow:
    """One policy and what it cost the people of the trial.

    `total` is what a whole stream may reveal, or each secret. `with_secret` and `without_secret` are the errors in
    windows of people who have a declared secret and of those who do not (None where nobody is on that side).
    """

    policy: Policy
    total: float
    error: float
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
    read: str = ""  # how the data were read and cut, where the model was fitted for the plan
    people_of: str = ""  # the file of the people whom it was tried on, where one was named

    @property
    def policy(self) -> Policy | None:
        """The recommended policy."""
        return None if self.chosen is None else self.chosen.policy

    @property
    def risk(self) -> Risk | None:
        """What the recommended policy means for a person."""
        return None if self.policy is None else Risk.promised(self.policy.on(self.model))

    @property
    def distortion(self) -> str:
        """What an error is measured by."""
        return str(getattr(self.wishes.distortion, "name", self.wishes.distortion))

    def lines(self) -> list[Line]:
        """The people, the recommended policy, what it costs and what it means."""
        people = words.count(self.people, "held-out person", "held-out people")
        if self.people_of:
            people = f"{words.count(self.people, 'person', 'people')} of {self.people_of}"
        if not self.held_out:
            people = f"{words.count(self.people, 'stream')} simulated from the model"
        said = [("read", self.read)] if self.read else []
        said.append(("tried on", f"{people}, {words.count(self.length, 'event')} each at most"))
        if self.chosen is not None and self.risk is not None:
            said += [
                ("policy", "; ".join(self.chosen.policy.to_toml().replace("\n\n", "\n").splitlines())),
                ("error", self._error(self.chosen)),
                *(("promise", text) for text in self.chosen.policy.sentences),
                *(("means", text) for text in self.risk.sentences),
                ("grade", self.risk.grade.text),
            ]
        else:
            said.append(("error", f"with no release at all {self._cost(self.guess)}"))
        lasts = self.rows[0].policy.on(self.model).lasts
        said += [("lasts", lasts)] if lasts else []
        return [*said, *(("note", text) for text in self.notes)]

    def _cost(self, error: float | None) -> str:
        """An error in words; of nobody where nobody was tried whom it would be of."""
        if error is None:
            return "nobody"
        return f"{words.percent(error)} wrong" if self.distortion == "hamming" else error_size(error, self.distortion)

    def _error(self, row: PlanRow) -> str:
        by_secret = ""
        if row.with_secret is not None and row.without_secret is not None:
            have, have_not = self._cost(row.with_secret), self._cost(row.without_secret)
            by_secret = f" ({have} for people who have the secret, {have_not} for those who do not)"
        return f"{self._cost(row.error)}{by_secret}; with no release at all {self._cost(self.guess)}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What does not go together, and what becomes public."""
        found, wishes, row = [], self.wishes, self.chosen
        if row is not None and wishes.odds is not None and row.total > (wishes.allowed or math.inf):
            before, after = map(words.percent, wishes.odds)
            found.append(f"this does not keep a suspicion of {before} under {after}")
        if row is not None and not wishes.secrets and row.error > 0.9 * self.guess:
            found.append("this is hardly better than no release at all: declare what must stay secret instead")
        alphabet = self.model.alphabet
        if self.distortion == "hamming" and alphabet.points is not None and not isinstance(alphabet, Alphabet):
            far = "metres" if alphabet.on_map else "euclidean" if alphabet.width == 2 else "absolute"
            found.append(f"this counts every wrong release alike; {option('distortion', far)} counts how far off it is")
        return (*found, *(text for text in [words.made_public(wishes.secrets, self.model.alphabet.on_map)] if text))

    def tables(self) -> list[ResultTable]:
        """The errors of all policies."""
        secrets = self.wishes.secrets
        by_secret = any((row.with_secret, row.without_secret) != (None, None) for row in self.rows)
        rows = []
        for row in self.rows:
            becomes = words.percent_up(words.moved(EXAMPLE, row.total * (1 if secrets else 2)))
            sides = (self._cost(row.with_secret), self._cost(row.without_secret)) if by_secret else ()
            rows.append((f"{row.total:g}", becomes, row.way, self._cost(row.error), *sides))
        heads = ["ε of the secret" if secrets else "total of a stream", f"{words.percent(EXAMPLE)} becomes at most"]
        heads += ["released", "error", *(["with the secret", "without it"] if by_secret else [])]
        return [ResultTable("", heads, rows)]

    def to_dict(self) -> dict[str, Any]:
        """Everything that is shown, as plain values."""
        kept = ("read", "rows", "length", "people", "held_out", "guess", "notes", "policy", "distortion")
        facts: dict[str, Any] = {name: getattr(self, name) for name in kept}
        facts["error"] = None if self.chosen is None else self.chosen.error
        if self.risk is not None:
            facts |= {"words": self.risk.sentences, "grade": self.risk.grade.colour}
        return dict(words.plain(facts))


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
        model, wishes: how streams usually run, and what is wanted; without odds and accuracy nothing is recommended.
        length: events of a stream, at most.
        streams: codes of people whom the model was not fitted to; None: they are simulated.
        people: how many are tried; by default 200, and fewer where a release takes long.
        seed: of people and randomness; the same seed gives the same figures.
        progress: called with what is under way, and the share that is done.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> found = plan(model, Wishes(odds=(0.1, 0.3)), length=10)
    >>> found.policy.budget.total, found.chosen.way, found.risk.grade.colour
    (0.674, 'blocks of 10', 'unchecked')
    """
    asked = wishes or Wishes()
    if length < 1 or (people is not None and people < 1):
        raise InputError("expected streams of 1 event or more, and 1 person or more")
    if any(secret.window is None and secret.kind != "trait" for secret in asked.secrets) and length > LONGEST:
        raise InputError(f"a secret about a whole stream has {LONGEST} events at most; give it a window, such as a day")
    tried = _Trials(model, length, streams, people, seed, progress or (lambda label, share: None))
    rows, chosen = _searched(tried, asked)
    unseen = rows[0].policy.on(model).distortion.expected(filtering.unseen(model, length))
    guess = float(unseen.min(1).mean())
    return Plan(tuple(rows), chosen, asked, model, length, max(tried.people), streams is not None, guess)


@dataclass
class _Trials:
    """The people of a plan, and what policies cost them."""

    model: MarkovModel
    length: int
    given: Sequence[Ints] | None
    most: int | None
    seed: int
    tell: Progress
    people: list[int] = field(default_factory=list)  # of each trial so far
    expected: int = 1  # trials in all

    def row(self, policy: Policy, total: float) -> PlanRow:
        """What a policy costs."""
        terms = policy.on(self.model)
        quick = terms.distortion.is_hamming and not terms.in_batches
        if terms.guards:  # a release takes tenths of a millisecond in closed form, else hundredths of a second
            quick = terms.in_closed_form and terms.model.size <= QUICK
        usual = min(200, max(5, (10_000 if quick else 400) // self.length))  # fewer where a release takes long
        people = self._people(usual if self.most is None else self.most)
        done = len(self.people)
        label = f"policy {done + 1} of {self.expected}, on {words.count(len(people), 'person', 'people')}"
        self.tell(label, done / self.expected)
        self.people.append(len(people))
        found = release(terms, people, self.seed + 1)
        return PlanRow(policy, total, mean_cost(found.costs)[0], *_by_secret(terms, people, found.costs))

    def _people(self, many: int) -> list[Ints]:
        if self.given is None:
            return [*self.model.sample(self.length, many, self.seed)]
        places = np.unique(np.linspace(0, len(self.given) - 1, min(many, len(self.given))).astype(int))
        return sorted((self.given[k][: self.length] for k in places.tolist()), key=len, reverse=True)


def _searched(tried: _Trials, wishes: Wishes) -> tuple[list[PlanRow], PlanRow | None]:
    """All rows of a plan, and the one that is recommended."""
    length, own, allowed = tried.length, wishes.policy, wishes.allowed
    if own is not None:
        whole = own.budget.exact_total or (own.rate or 0.0) * length
        row = tried.row(own, max((secret.total for secret in own.secrets), default=whole))
        return [row], row
    ways: list[Way] = [(1, 1)]
    if not wishes.secrets:
        together = {(1, min(wishes.wait + 1, length, TOGETHER)), (min(length, TOGETHER), 1)}
        ways += sorted(together - {(1, 1)})
    rows: dict[float, list[PlanRow]] = {}

    def best(total: float) -> PlanRow:
        """The row of least error of all ways to spend this total."""
        if total not in rows:
            found = (wishes.spending(total, way, length) for way in ways)
            rows[total] = [tried.row(policy, total) for policy in found if policy is not None]
        return min(rows[total], key=lambda row: row.error)

    most = HIGHEST * (1 if wishes.secrets else length)  # beyond it every release is the truth
    tolerated, wanted = wishes.wrong, allowed
    if tolerated is not None:  # the least total of the ladder that is enough, by halving
        ladder = [total for total in LADDER if total <= most]
        tried.expected = len(ways) * len(ladder).bit_length()
        place = bisect_left(ladder, True, key=lambda total: best(total).error <= tolerated)
        if place == len(ladder):
            more = "" if wishes.secrets else ", or let releases wait for later events"
            raise InputError(f"no policy errs by {tolerated:g} or less on these people; tolerate more{more}")
        wanted = ladder[place]
    else:
        totals = {total for total in (*wishes.totals(length), *([allowed] if allowed else [])) if total <= most}
        if not totals or (allowed or 0.0) > most:
            raise InputError(f"more than ε = {HIGHEST:g} an event or secret is all but the truth; ask for less")
        tried.expected = len(ways) * len(totals)
        for total in sorted(totals):
            best(total)
    chosen = None if wanted is None else best(wanted)
    if chosen is not None and not wishes.secrets:
        chosen = replace(chosen, policy=replace(chosen.policy, budget=Budget(chosen.total)))
    return [row for total in sorted(rows) for row in rows[total]], chosen


def _by_secret(terms: Terms, people: Sequence[Ints], costs: dict[int, Floats]) -> tuple[float | None, float | None]:
    """The mean cost in windows of people who have a declared secret, and in those of people who do not."""
    sides: tuple[list[Floats], list[Floats]] = ([], [])
    for secret in terms.secrets:
        if secret.kind == "trait":  # which no event shows
            continue
        compiled = secret.over(terms.model.alphabet)
        for place, codes in enumerate(people):
            length = compiled.length or len(codes)
            for begin in range(0, len(codes) if secret.repeats else length, length):
                part = slice(begin, min(begin + length, len(codes)))
                held = compiled.read(codes[part].tolist(), begin)
                sides[not held].append(costs[place][part])
    with_, without = (float(np.concatenate(side).mean()) if side else None for side in sides)
    return with_, without
