"""An attack on real people that needs no model of ours: does a promise about a secret hold for them?

People are split in two. From the releases and the truth of one half, classifiers learn to guess a secret from releases
alone, and the one guess that seems to tell most is picked: a set R of releases, "score at least c" or "at most c". On
the other half, whose people had no part in picking it, the guess is scored once. If the promise holds for people, then

    Pr(R | E) ≤ e^ε Pr(R | not E)      (both sides: also with E and not E exchanged)

for every set R. With k1 of n1 people who have the secret in R, and k0 of n0 who do not, exact binomial bounds give

    ε ≥ log(low(k1, n1) / high(k0, n0)),      each bound wrong with a probability of at most `false_alarm` / 2.

One guess is scored, however many attackers there were to pick it from: beside the classifiers, Bayes attackers with
models of their own (`attackers`). So a promise that holds is called broken with a probability of at most `false_alarm`,
whatever the law of the data is:
people are taken as independent draws, and nothing else is assumed. A promise that is broken may go unnoticed, where the
classifiers are too weak or the people too few: `Finding.verdict` says "not decided" where even a leak of twice ε, in
the surest tenth of people, would have gone unnoticed, and how many people it would take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import words
from seqveil.core.secrets.declared import Compiled
from seqveil.evaluate.attackers import Attackers, beliefs, classifiers, features
from seqveil.receiver.learn import Evidence

__all__ = [
    "FALSE_ALARM",
    "Attackers",
    "Finding",
    "Guess",
    "attack_identity",
    "attack_labels",
    "attack_secret",
    "classifiers",
    "features",
    "worst",
]

Flags = NDArray[np.bool_]
Verdict = Literal["holds", "broken", "not decided"]

FALSE_ALARM = 0.05
SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)  # of the people: how many a guess may single out
FOLDS = 5
FEWEST = 20  # people with and without the secret, in each half, below which nothing is decided
SUREST = 0.1
LEARNERS = 5_000  # people whom the classifiers learn from at most; all others score them
MOST_PEOPLE = 1 << 40
_WORST_FIRST: tuple[Verdict, ...] = ("broken", "not decided", "holds")


@dataclass(frozen=True)
class Guess:
    """The set of releases that was picked on one half of the people, and how it did on the other half."""

    attacker: str
    target: str
    says: Literal["has it", "has it not"]
    right: int  # of those of whom it is true, how many were in the set
    of_true: int
    wrong: int  # of the others
    of_false: int

    @property
    def likelihood_ratio(self) -> float:
        """How much likelier the set is where the guess is true than where it is not, as counted."""
        true, false = self.right / self.of_true, self.wrong / self.of_false
        return math.inf if false == 0 < true else true / false if false else 1.0


@dataclass(frozen=True)
class Finding:
    """What an attack found. `epsilon_at_least` is a lower bound on the realised ε, at the stated false-alarm rate."""

    about: str
    verdict: Verdict
    epsilon_claimed: float | None
    epsilon_at_least: float
    people: int
    false_alarm: float
    people_needed: int | None = None  # to decide, where it is not decided and a number can be named
    guess: Guess | None = None
    curve: tuple[tuple[float, float, float], ...] = field(default=(), repr=False)  # log ratio: seen, low, high

    @property
    def sentence(self) -> str:
        """The verdict as a person can read it."""
        claim = "nothing was promised" if self.epsilon_claimed is None else f"promised ε = {self.epsilon_claimed:.3g}"
        seen = f"the attack shows at least {self.epsilon_at_least:.3g} ({1 - self.false_alarm:.0%} sure)"
        said = f"{self.verdict}: {claim}, {seen}, on {self.people} people"
        if self.verdict == "not decided" and self.people_needed is not None:
            said += f"; it would take about {self.people_needed} people to decide"
        return said


def worst(findings: Sequence[Finding]) -> Finding:
    """The finding to heed first: broken before not decided before holds, and of those the largest lower bound."""
    return min(findings, key=lambda one: (_WORST_FIRST.index(one.verdict), -one.epsilon_at_least))


def attack_secret(
    releases: Sequence[Ints],
    truth: Sequence[Ints],
    secret: Compiled,
    epsilon: float | None,
    *,
    times: Sequence[Floats] | None = None,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
    models: Mapping[str, MarkovModel] | None = None,
    evidence: Evidence | None = None,
    attackers: Attackers | None = None,
    heard: Callable[[], None] | None = None,
) -> Finding:
    """Attack what was promised about a secret.

    releases: the released codes of each person, in order.
    truth: the true codes of each person; of repeating windows the first whole one is attacked, of windows of one
        event an event of each person drawn by the seed.
    secret: the secret over the codes, `Secret.over(alphabet)`.
    epsilon: what was promised; None where nothing was, and only the bound is wanted.
    times: when the releases were made, in seconds, where that is known to the attacker.
    seed: splits the people and makes the classifiers.
    false_alarm: how likely a promise that holds may be called broken.
    models: models of Bayes attackers by name, who guess by the probability of the secret given all releases. They must
        not have been fitted to the people who are attacked.
    evidence: what each release tells of the truth, people numbered as in `releases`; Bayes attackers need it.
    attackers: makers of classifiers, as in `attack_labels`.
    heard: called whenever a classifier is about to learn, for signs of progress.
    """
    targets, kept, at = _targets(secret, truth, seed)
    seen = [releases[k] for k in kept]
    stamps = None if times is None else [times[k] for k in kept]
    found = features(seen, secret.n, stamps, at)
    held = beliefs(models or {}, evidence, secret, kept, at, list(targets))
    shared: dict[str, Any] = {"seed": seed, "false_alarm": false_alarm, "attackers": attackers, "heard": heard}
    about, sides = words.about(secret.secret), secret.secret.sides
    return attack_labels(found, targets, epsilon, about=about, sides=sides, target_scores=held, **shared)


def _coins(seed: int) -> np.random.Generator:
    """Draws of the attack's own: a split that shares its draws with a seeded stream would not be independent of it."""
    return np.random.default_rng([seed, *b"attack"])


def _targets(secret: Compiled, truth: Sequence[Ints], seed: int) -> tuple[dict[str, Flags], list[int], Ints | None]:
    """For every value of the secret who has it; the people whose stream is long enough; the events of each, if any."""
    length = secret.length
    kept = [k for k, codes in enumerate(truth) if len(codes) >= (length or 1) and min(codes) >= 0]
    if not kept:
        raise InputError(f"an attack on this secret needs streams of at least {length or 1} events; got none")
    at = None
    if length == 1 and secret.secret.repeats:
        draw = _coins(seed).random(len(kept))
        at = np.array([int(u * len(truth[k])) for u, k in zip(draw, kept, strict=True)], np.int64)
        values = np.array([secret.read([int(truth[k][i])]) for k, i in zip(kept, at, strict=True)])
    else:
        values = np.array([secret.read(truth[k][:length].tolist()) for k in kept])
    if secret.automaton.values == 2:
        return {"the secret": values == 1}, kept, at
    return {f"combination {value}": values == value for value in range(secret.automaton.values)}, kept, at


def attack_labels(
    found: Any,
    targets: dict[str, Flags],
    epsilon: float | None,
    *,
    about: str,
    sides: Literal["both", "up"] = "both",
    scores: dict[str, Floats] | None = None,
    attackers: Attackers | None = None,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
    target_scores: Mapping[str, Mapping[str, Floats]] | None = None,
    heard: Callable[[], None] | None = None,
) -> Finding:
    """Attack labels of people from what was released of them.

    found: a sparse table, one row a person, of what the attacker sees (`features`).
    targets: labels by name, one truth value a person; the promise is about each of them.
    epsilon: what was promised about the odds of each label; None where nothing was.
    about: what the labels say, for the reader.
    sides: "up" where only growing suspicion was promised.
    scores: further attackers that need no training, one number a person, for each name.
    attackers: makers of classifiers in scikit-learn's manner, by name; logistic regression and gradient boosting.
    seed, false_alarm, heard: as in `attack_secret`.
    target_scores: further attackers of single labels, by the label's name.
    """
    if not 0 < false_alarm < 1:
        raise InputError(f"a false-alarm rate lies between 0 and 1; got {false_alarm:g}")
    people = int(found.shape[0])
    usable = {name: flags for name, flags in targets.items() if _enough(flags)}
    if not usable:
        rarest = max(min(int(flags.sum()), people - int(flags.sum())) for flags in targets.values())
        needed = None if rarest == 0 else math.ceil(people * 2 * FEWEST / rarest)
        return Finding(about, "not decided", epsilon, 0.0, people, false_alarm, needed)
    makers = classifiers(seed) if attackers is None else attackers
    if heard is not None:
        makers = {name: partial(_heard, make, heard) for name, make in makers.items()}
    ready = {name: {**(scores or {}), **(target_scores or {}).get(name, {})} for name in usable}
    rule = _pick(found, usable, sides, makers, ready, seed, false_alarm)
    held = ~rule.learned_on
    score, truth = rule.scores[held], usable[rule.target][held]
    guess, low = rule.scored(score, truth, false_alarm)
    needed = None if epsilon is None else people_needed(people, truth, epsilon, sides, false_alarm)
    verdict: Verdict = "holds"
    if epsilon is None or low <= epsilon:
        verdict = "holds" if needed is not None and needed <= people else "not decided"
    else:
        verdict = "broken"
    needed = needed if verdict == "not decided" else None
    curve = _curve(score, truth, false_alarm)
    return Finding(about, verdict, epsilon, max(low, 0.0), people, false_alarm, needed, guess, curve)


def _heard(make: Callable[[], Any], heard: Callable[[], None]) -> Any:
    heard()
    return make()


def _enough(flags: Flags) -> bool:
    return min(int(flags.sum()), int((~flags).sum())) >= 2 * FEWEST


@dataclass(frozen=True, eq=False)
class _Rule:
    """A guess fixed in advance: whose score, of which label, above or below which threshold."""

    attacker: str
    target: str
    up: bool
    threshold: float
    scores: Floats  # of all people; those of `learned_on` by classifiers that did not see them
    learned_on: Flags

    def scored(self, scores: Floats, truth: Flags, false_alarm: float) -> tuple[Guess, float]:
        """The guess with its counts, and the lower bound on ε that they give."""
        inside = scores >= self.threshold if self.up else scores <= self.threshold
        true = truth if self.up else ~truth
        counts = (int((inside & true).sum()), int(true.sum()), int((inside & ~true).sum()), int((~true).sum()))
        says: Literal["has it", "has it not"] = "has it" if self.up else "has it not"
        return Guess(self.attacker, self.target, says, *counts), log_ratio_low(*counts, false_alarm)


def _pick(
    found: Any,
    targets: dict[str, Flags],
    sides: str,
    makers: Attackers,
    scores: dict[str, dict[str, Floats]],
    seed: int,
    false_alarm: float,
) -> _Rule:
    """The guess that told most on half of the people, each scored by classifiers that had not seen them."""
    best: tuple[float, _Rule] | None = None
    for target, truth in targets.items():
        learned_on = _half(truth, seed)
        trained = {name: _trained(make, found, truth, learned_on, seed) for name, make in makers.items()}
        for name, score in {**trained, **scores[target]}.items():
            seen, labels = score[learned_on], truth[learned_on]
            for up in (True,) if sides == "up" else (True, False):
                for threshold in _thresholds(seen, up):
                    rule = _Rule(name, target, up, threshold, score, learned_on)
                    low = rule.scored(seen, labels, false_alarm)[1]
                    if best is None or low > best[0]:
                        best = (low, rule)
    assert best is not None
    return best[1]


def _thresholds(seen: Floats, up: bool) -> list[float]:
    """Where a guess may begin: at the score that singles out each share of the people, and half-way towards it.

    The surest scores of other people are often a little less sure, so a threshold among them may single out nobody;
    half-way it still separates those whom the classifier is sure of.
    """
    edges = np.quantile(seen, [1 - share if up else share for share in SHARES])
    return [*edges.tolist(), *((edges + np.median(seen)) / 2).tolist()]


def _half(truth: Flags, seed: int) -> Flags:
    """Half of the people with the label and half of those without, by the seed; fewer where there are very many."""
    draw = _coins(seed).random(truth.size)
    share = min(0.5, LEARNERS / truth.size)
    chosen = np.zeros(truth.size, bool)
    for label in (True, False):
        own = np.flatnonzero(truth == label)
        chosen[own[np.argsort(draw[own], kind="stable")[: max(int(own.size * share), FEWEST)]]] = True
    return chosen


def _trained(make: Callable[[], Any], found: Any, truth: Flags, learned_on: Flags, seed: int) -> Floats:
    """Scores of all people: of those learned from out of fold, of the others by a classifier of all learned from."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    known, labels = found[learned_on], truth[learned_on]
    score = np.empty(truth.size)
    score[learned_on] = cross_val_predict(make(), known, labels, cv=folds, method="predict_proba")[:, 1]
    score[~learned_on] = make().fit(known, labels).predict_proba(found[~learned_on])[:, 1]
    return score


def log_ratio_low(right: int, of_true: int, wrong: int, of_false: int, false_alarm: float) -> float:
    """A lower bound on log(Pr(R | true) / Pr(R | false)), wrong with a probability of at most `false_alarm`.

    Clopper and Pearson's exact bounds, one for each of the two probabilities; -inf where nobody was right.

    >>> round(log_ratio_low(90, 100, 10, 100, 0.05), 3)
    1.542
    """
    low = share_low(right, of_true, false_alarm / 2)
    high = 1 - share_low(of_false - wrong, of_false, false_alarm / 2)
    return math.log(low / high) if low > 0 else -math.inf


def share_low(count: int, of: int, wrong: float) -> float:
    """Clopper and Pearson's lower bound on a share, wrong with a probability of at most `wrong`.

    >>> round(share_low(10, 10, 0.05), 4)
    0.7411
    """
    from scipy.stats import beta

    return float(beta.ppf(wrong, count, of - count + 1)) if count else 0.0


def people_needed(people: int, truth: Flags, epsilon: float, sides: str, false_alarm: float) -> int | None:
    """How many people in all it takes to notice a leak of twice ε in the surest tenth, with this share of the label."""
    true, false = int(truth.sum()), int((~truth).sum())
    rarer = min(true, false)
    if rarer == 0:
        return None
    scale, smallest = 1.0, people / rarer  # the least that leaves one person of the rarer kind
    while not _noticed(true * scale, false * scale, epsilon, sides, false_alarm):
        scale *= 1.25
        if people * scale > MOST_PEOPLE:
            return None
    while scale > smallest / people and _noticed(
        true * scale / 1.05, false * scale / 1.05, epsilon, sides, false_alarm
    ):
        scale /= 1.05
    return math.ceil(people * scale)


def _noticed(true: float, false: float, epsilon: float, sides: str, false_alarm: float) -> bool:
    """Whether a set that is e^(2ε) times likelier for one kind of people gives a bound above ε, on every side."""
    ratio = math.exp(min(2 * epsilon, 600.0))
    wrong = min(SUREST, 0.9 / ratio)
    for yes, no in ((true, false),) if sides == "up" else ((true, false), (false, true)):
        counts = (round(yes * wrong * ratio), max(round(yes), 1), round(no * wrong), max(round(no), 1))
        if log_ratio_low(*counts, false_alarm) <= epsilon:
            return False
    return True


def _curve(scores: Floats, truth: Flags, false_alarm: float, parts: int = 10) -> tuple[tuple[float, float, float], ...]:
    """For the picture: log ratio with its bounds in each tenth of the scored people, from the lowest scores up."""
    order = np.argsort(scores, kind="stable")
    points = []
    for part in np.array_split(order, parts):
        inside = int(truth[part].sum()), int(truth.sum()), int((~truth[part]).sum()), int((~truth).sum())
        low = log_ratio_low(*inside, false_alarm)
        high = -log_ratio_low(inside[2], inside[3], inside[0], inside[1], false_alarm)
        seen = math.log((inside[0] + 0.5) / (inside[1] + 1)) - math.log((inside[2] + 0.5) / (inside[3] + 1))
        points.append((seen, low, high))
    return tuple(points)


def attack_identity(
    releases: Sequence[Ints],
    truth: Sequence[Ints],
    n: int,
    epsilon: float | None,
    *,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
    most: int = 2000,
) -> Finding:
    """Attack who it is: match the release of the second half of each stream to the raw first half of one of N people.

    The attacker knows the raw first halves of all N people. From other people it learned how often each symbol is
    released for each true one; a person's release is matched to the person whose past makes it likeliest. If each
    release may move a belief by e^ε in total, a match is right with a probability of at most e^ε / N.

    epsilon: the total of a whole stream that was promised; None where nothing was.
    most: people among whom a match is sought.
    """
    long = [k for k in range(len(truth)) if len(truth[k]) >= 4 and len(truth[k]) == len(releases[k])]
    usable = [k for k in long if min(truth[k]) >= 0]
    order = [usable[k] for k in _coins(seed).permutation(len(usable))]
    half = min(len(order) // 2, most)
    if half < FEWEST:
        return Finding("who it is", "not decided", epsilon, 0.0, len(order), false_alarm, 2 * FEWEST)
    learned, sought = order[half:], order[:half]
    channel = _channel(releases, truth, learned, n)
    past = np.stack([np.bincount(truth[k][: len(truth[k]) // 2], minlength=n) for k in sought]).astype(np.float64)
    common = past.sum(0) + 1.0
    profile = past + 2.0 * common / common.sum()
    expected = np.log(profile / profile.sum(1, keepdims=True) @ channel)
    seen = np.stack([np.bincount(releases[k][len(truth[k]) // 2 :], minlength=n) for k in sought]).astype(np.float64)
    match = (seen @ expected.T).argmax(1)
    hits = int((match == np.arange(half)).sum())
    low = math.log(max(half * share_low(hits, half, false_alarm), 1.0))
    verdict: Verdict = "not decided" if epsilon is None else "broken" if low > epsilon else "holds"
    if verdict == "holds" and epsilon is not None and math.log(half) <= epsilon:
        verdict = "not decided"  # nobody could be surer than certain among so few
    needed = math.ceil(2 * math.exp(epsilon)) if verdict == "not decided" and epsilon is not None else None
    needed = None if needed is not None and needed > MOST_PEOPLE else needed
    guess = Guess("likeliest past", f"who it is, among {half}", "has it", hits, half, half - hits, half)
    return Finding("who it is", verdict, epsilon, low, len(order), false_alarm, needed, guess)


def _channel(releases: Sequence[Ints], truth: Sequence[Ints], learned: Sequence[int], n: int) -> Floats:
    """How often each symbol was released for each true one, among these people; rare ones lean to the common law."""
    true, out = (np.concatenate([streams[k] for k in learned]) for streams in (truth, releases))
    table = np.zeros((n, n))
    np.add.at(table, (true, out), 1.0)
    common = (table.sum(0) + 0.5) / (table.sum() + 0.5 * n)
    table += 2.0 * common
    return table / table.sum(1, keepdims=True)
