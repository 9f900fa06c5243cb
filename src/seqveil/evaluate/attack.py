"""An attack on real people that needs no model of ours: is a promise about a secret broken for them?

Every whole window of every person is attacked. People are split in two. From the releases and the truth of one half,
classifiers learn to guess a secret from releases alone, those of the window and all others of the same person, and the
one guess that seems to reveal most is picked: a set R of releases, "score at least c" or "at most c". On the other
half, whose people had no part in picking it, the guess is scored once. If the promise holds for people, then

    Pr(R | E) ≤ e^ε Pr(R | not E)      (both sides: also with E and not E exchanged)

for every set R and every window. `attack_bounds` has the lower bound on ε that the other half gives: people are taken
as independent draws, windows of one person are not, and nothing else is assumed.

One guess is scored, however many attackers there were to pick it from: beside the classifiers, Bayes attackers with
models of their own (`attackers`). So a promise that holds is called broken with a probability of at most `false_alarm`.
A promise that is broken may go unnoticed, where the attackers are too weak or the people too few. Hence three verdicts:

 - *broken*: the lower bound is above ε;
 - *not refuted*: the estimate is within ε, and a leak of twice ε would have been noticed with these people;
 - *not decided*: the estimate is above ε and the bound is not, or there are too few people.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from seqveil.core import words
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.declared import Compiled, Secret
from seqveil.evaluate.attack_bounds import AttackSample, Flags, Ratio, Sides, noticeable, share_low, times_needed
from seqveil.evaluate.attack_features import Windows, features
from seqveil.evaluate.attackers import Attackers, beliefs, classifiers
from seqveil.receiver.learn import Evidence

__all__ = [
    "FALSE_ALARM",
    "AttackerGuess",
    "Attackers",
    "Finding",
    "attack_identity",
    "attack_labels",
    "attack_secret",
    "attack_trait",
    "classifiers",
    "windows_of",
    "worst",
]

Verdict = Literal["not refuted", "broken", "not decided"]

FALSE_ALARM = 0.05
SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)  # of the windows: how many a guess may single out
FOLDS = 5
FEWEST = 10  # people with and without the secret, in each half, below which nothing is decided
LEARNERS = 5_000  # people, and windows of theirs, whom the classifiers learn from at most; all others score them
MOST_WINDOWS = 30_000  # that are attacked; of more so many are drawn
MOST_PEOPLE = 1 << 40
_WORST_FIRST: tuple[Verdict, ...] = ("broken", "not decided", "not refuted")


@dataclass(frozen=True)
class AttackerGuess:
    """The set of releases that was picked on one half of the people, and how it did on the windows of the other half.

    `share_true`, `share_false`: how many of the windows were in the set of those where the guess is true, and of the
    others, windows of one number compared with one another.
    """

    attacker: str
    target: str
    says: Literal["has it", "has it not"]
    right: int  # windows in the set where it is true
    of_true: int
    wrong: int  # windows in the set where it is not
    of_false: int
    share_true: float
    share_false: float
    likelihood_ratio: float  # how much likelier the set is where the guess is true


@dataclass(frozen=True)
class Finding:
    """What an attack found.

    `epsilon_at_least` is a lower bound on the realised ε at the stated false-alarm rate, `epsilon_estimate` what the
    guess showed, `epsilon_noticeable` the smallest leak that these people would have shown to be above ε.
    """

    about: str
    verdict: Verdict
    epsilon_claimed: float | None
    epsilon_at_least: float
    epsilon_estimate: float | None
    epsilon_noticeable: float | None
    people: int
    windows: int
    false_alarm: float
    people_needed: int | None = None  # to decide, where it is not decided and a number can be named
    guess: AttackerGuess | None = None
    curve: tuple[tuple[float, float, float], ...] = field(default=(), repr=False)  # log ratio: seen, low, high

    @property
    def sentence(self) -> str:
        """The verdict as a person can read it."""
        said = "nothing was promised" if self.epsilon_claimed is None else f"promised ε = {self.epsilon_claimed:.3g}"
        if self.epsilon_estimate is not None:
            sure = f"at least {self.epsilon_at_least:.3g}, {1 - self.false_alarm:.0%} sure"
            said += f", the attack shows {self.epsilon_estimate:.3g} ({sure})"
        said = f"{self.verdict}: {said}, on {_many(self.people, 'people')}"
        said += f" with {_many(self.windows, 'windows')}" if self.windows != self.people else ""
        if self.verdict == "not refuted":
            said += f"; a leak of {self.epsilon_noticeable:.3g} would have been noticed"
        if self.verdict == "not decided" and self.people_needed is not None:
            said += f"; it would take about {self.people_needed:,} people to decide"
        return said


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}"


def worst(findings: Sequence[Finding]) -> Finding:
    """The finding to heed first: broken before not decided before not refuted, then the largest lower bound."""
    return min(findings, key=lambda one: (_WORST_FIRST.index(one.verdict), -one.epsilon_at_least))


def attack_secret(
    releases: Sequence[Ints],
    truth: Sequence[Ints],
    secret: Compiled,
    epsilon: float | None,
    *,
    times: Sequence[Floats] | None = None,
    skipped: Ints | None = None,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
    models: Mapping[str, MarkovModel] | None = None,
    evidence: Evidence | None = None,
    attackers: Attackers | None = None,
    heard: Callable[[], None] | None = None,
) -> Finding:
    """Attack what was promised about a secret.

    releases: the released codes of each person, in order; negative where nothing was released.
    truth: the true codes of each person, negative outside the alphabet: whether the secret is true of such a window
        nobody can say, so it is left out. All other whole windows are attacked.
    secret: the secret over the codes, `Secret.over(alphabet)`.
    epsilon: what was promised; None where nothing was, and only the bound is wanted.
    times: when the releases were made, in seconds, where that is known to the attacker.
    skipped: events of each person before the first window, where windows follow the clock.
    seed: splits the people and makes the classifiers.
    false_alarm: how likely a promise that holds may be called broken.
    models: models of Bayes attackers by name, who guess by the probability of the secret given all releases. They must
        not have been fitted to the people who are attacked.
    evidence: what each release tells of the truth, people numbered as in `releases`; Bayes attackers need it.
    attackers: makers of classifiers, as in `attack_labels`.
    heard: called whenever a classifier is about to learn, for signs of progress.
    """
    windows = windows_of(secret, truth, times, skipped, seed)
    held = beliefs(models or {}, evidence, secret, windows)
    people, owners = np.unique(windows.owners, return_inverse=True)
    own = Windows(owners, windows.numbers, windows.begins, windows.values, windows.length)
    stamps = None if times is None else [times[k] for k in people]
    found = features([releases[k] for k in people], secret.n, own, stamps)
    if secret.automaton.values == 2:
        named = [("the secret", 1)]
    else:
        named = [(f"combination {value}", value) for value in range(secret.automaton.values)]
    return attack_labels(
        found,
        {name: windows.values == value for name, value in named},
        epsilon,
        about=words.about(secret.secret),
        sides=secret.secret.sides,
        owners=owners,
        numbers=windows.numbers,
        target_scores={name: held[value] for name, value in named},
        seed=seed,
        false_alarm=false_alarm,
        attackers=attackers,
        heard=heard,
    )


def attack_trait(
    releases: Sequence[Ints],
    n: int,
    answers: Sequence[str | None],
    trait: Secret,
    epsilon: float | None,
    *,
    times: Sequence[Floats] | None = None,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
    attackers: Attackers | None = None,
    heard: Callable[[], None] | None = None,
) -> Finding:
    """Attack what was promised about a trait: who gives which answer, from all releases of a person.

    answers: of each person; None where nobody knows it: such people are left out.
    The others are as in `attack_secret`; n is the number of symbols.
    """
    known = [k for k, answer in enumerate(answers) if answer is not None]
    named, values = np.unique([str(answers[k]) for k in known], return_inverse=True)
    if named.size < 2:
        raise InputError(f"an attack on a trait needs people with two or more answers; got {named.size}")
    zeros = np.zeros(len(known), np.int64)
    whole = Windows(np.arange(len(known)), zeros, zeros, values, None)
    found = features([releases[k] for k in known], n, whole, None if times is None else [times[k] for k in known])
    targets = {answer: values == number for number, answer in enumerate(named.tolist())}
    if named.size == 2:
        del targets[str(named[0])]
    about, how = words.about(trait), {"seed": seed, "false_alarm": false_alarm, "attackers": attackers, "heard": heard}
    return attack_labels(found, targets, epsilon, about=about, **how)  # type: ignore[arg-type]


def _draws(seed: int) -> np.random.Generator:
    """Draws of the attack's own: a split that shares its draws with a seeded stream would not be independent of it."""
    return np.random.default_rng([seed, *b"attack"])


def windows_of(
    secret: Compiled,
    truth: Sequence[Ints],
    times: Sequence[Floats] | None = None,
    skipped: Ints | None = None,
    seed: int = 0,
) -> Windows:
    """All whole windows of people whose values are known, with the value of the secret; of very many some, drawn.

    Windows are numbered in their stream; those that follow the clock by the day of the week as well, since everybody
    knows that days differ.
    """
    length = secret.length
    sizes = np.array([len(codes) for codes in truth], np.int64)
    first = np.zeros_like(sizes) if skipped is None else skipped
    several = sizes >= 1 if length is None else np.maximum(sizes - first, 0) // length
    counts = np.asarray(several if secret.secret.repeats else np.minimum(several, 1), np.int64)
    if not counts.sum():
        raise InputError(f"an attack on this secret needs streams of at least {length or 1} events; got none")
    owners = np.repeat(np.arange(sizes.size), counts)
    numbers = np.arange(owners.size) - np.repeat(np.cumsum(counts) - counts, counts)
    if owners.size > MOST_WINDOWS:
        drawn = np.sort(_draws(seed).choice(owners.size, MOST_WINDOWS, replace=False))
        owners, numbers = owners[drawn], numbers[drawn]
    begins = first[owners] + numbers * (length or 0)
    spans = sizes[owners] if length is None else np.full(owners.size, length)
    at = (np.cumsum(sizes) - sizes)[owners] + begins
    if times is not None and secret.secret.follows_clock:
        numbers = numbers * 7 + (np.concatenate(times)[at] // 86_400 % 7).astype(np.int64)
    values = _values(secret, np.concatenate(truth), at, spans)
    known = values >= 0
    if not known.any():
        raise InputError("an attack needs windows whose values are all in the alphabet; got none, check the raw file")
    return Windows(owners[known], numbers[known], begins[known], values[known], length)


def _values(secret: Compiled, codes: Ints, at: Ints, spans: Ints) -> Ints:
    """The secret's value in the windows that begin at these places; -1 where a code is outside the alphabet."""
    automaton = secret.automaton
    state, known = np.full(at.size, 0), np.ones(at.size, bool)
    for k in range(int(spans.max())):
        going = np.flatnonzero(spans > k)
        seen = codes[at[going] + k]
        known[going] &= seen >= 0
        letters = np.maximum(seen, 0) + secret.n * int(secret.clock[k % len(secret.clock)])
        state[going] = automaton.moves[state[going], letters]
    return np.where(known, automaton.labels[state], -1)


def attack_labels(
    found: Any,
    targets: Mapping[str, Flags],
    epsilon: float | None,
    *,
    about: str,
    sides: Sides = "both",
    owners: Ints | None = None,
    numbers: Ints | None = None,
    scores: Mapping[str, Floats] | None = None,
    attackers: Attackers | None = None,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
    target_scores: Mapping[str, Mapping[str, Floats]] | None = None,
    heard: Callable[[], None] | None = None,
) -> Finding:
    """Attack labels of windows from what was released.

    found: a sparse table, one row a window, of what the attacker sees (`features`).
    targets: labels by name, one truth value a window; the promise is about each of them.
    epsilon: what was promised about the odds of each label; None where nothing was.
    about: what the labels say, for the reader.
    sides: "up" where only growing suspicion was promised.
    owners: whose each window is; by default every window is another person's.
    numbers: the place of each window in its stream; those of one number are compared with one another.
    scores: further attackers that need no training, one number a window, for each name.
    attackers: makers of classifiers in scikit-learn's manner, by name; by default those of `classifiers`.
    seed, false_alarm, heard: as in `attack_secret`.
    target_scores: further attackers of single labels, by the label's name.
    """
    if not 0 < false_alarm < 1:
        raise InputError(f"a false-alarm rate lies between 0 and 1; got {false_alarm:g}")
    rows = int(found.shape[0])
    whose = np.arange(rows) if owners is None else owners
    places = np.zeros(rows, np.int64) if numbers is None else numbers
    people = int(np.unique(whose).size)
    samples = {name: AttackSample(whose, places, flags) for name, flags in targets.items()}
    usable = {name: one for name, one in samples.items() if min(one.people_with()) >= 2 * FEWEST}
    if not usable:
        rarest = max(min(one.people_with()) for one in samples.values())
        needed = None if rarest == 0 else math.ceil(people * 2 * FEWEST / rarest)
        return Finding(about, "not decided", epsilon, 0.0, None, None, people, rows, false_alarm, needed)
    makers = classifiers(seed, int(found.shape[1])) if attackers is None else attackers
    if heard is not None:
        makers = {name: partial(_heard, make, heard) for name, make in makers.items()}
    ready = {name: {**(scores or {}), **(target_scores or {}).get(name, {})} for name in usable}
    with _one_thread():
        rule = _pick(found, usable, sides, makers, ready, seed, false_alarm)
    held = samples[rule.target].at(rule.held)
    guess, ratio = rule.scored(rule.scores[rule.held], held)
    curve = _curve(rule.scores[rule.held], held, false_alarm)
    estimate, low = max(ratio.estimate, 0.0), max(ratio.low(false_alarm), 0.0)
    if epsilon is None:
        return Finding(about, "not decided", None, low, estimate, None, people, rows, false_alarm, None, guess, curve)
    anybody = guess.right + guess.wrong > 0
    seen = noticeable(ratio, epsilon, sides, false_alarm) if anybody else None
    verdict, needed = _verdict(low, estimate, epsilon, seen), None
    if verdict == "not decided":
        times = times_needed(ratio, epsilon, sides, false_alarm)
        needed = None if times is None or times <= 1 else math.ceil(people * times)
    return Finding(about, verdict, epsilon, low, estimate, seen, people, rows, false_alarm, needed, guess, curve)


def _verdict(low: float, estimate: float, epsilon: float, noticed: float | None) -> Verdict:
    if low > epsilon:
        return "broken"
    if estimate > epsilon or noticed is None or noticed > 2 * epsilon:
        return "not decided"
    return "not refuted"


def _one_thread() -> AbstractContextManager[Any]:
    """Classifiers of so few people gain nothing by threads, and wait for one another where a machine is busy."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:  # it comes with scikit-learn, which attackers of one's own may do without
        return nullcontext()
    return threadpool_limits(1)


def _heard(make: Callable[[], Any], heard: Callable[[], None]) -> Any:
    heard()
    return make()


@dataclass(frozen=True, eq=False)
class _Rule:
    """A guess fixed in advance: whose score, of which label, above or below which threshold."""

    attacker: str
    target: str
    up: bool
    threshold: float
    scores: Floats  # of all windows, by classifiers that did not see their people
    held: Flags  # windows of the other people

    def inside(self, scores: Floats) -> Flags:
        """Which windows are in the set."""
        return scores >= self.threshold if self.up else scores <= self.threshold

    def scored(self, scores: Floats, sample: AttackSample) -> tuple[AttackerGuess, Ratio]:
        """The guess with its counts, and how much likelier its set is where it is true."""
        inside, true = self.inside(scores), sample.truth if self.up else ~sample.truth
        ratio = sample.ratio(inside, self.up)
        counts = (int((inside & true).sum()), int(true.sum()), int((inside & ~true).sum()), int((~true).sum()))
        says: Literal["has it", "has it not"] = "has it" if self.up else "has it not"
        times = math.exp(ratio.estimate)
        return AttackerGuess(self.attacker, self.target, says, *counts, ratio.true, ratio.false, times), ratio


def _pick(
    found: Any,
    samples: Mapping[str, AttackSample],
    sides: Sides,
    makers: Attackers,
    scores: Mapping[str, Mapping[str, Floats]],
    seed: int,
    false_alarm: float,
) -> _Rule:
    """The guess that revealed most on half of the people, each scored by classifiers that had not seen them."""
    best: tuple[float, _Rule] | None = None
    for target, sample in samples.items():
        half = _half(sample, seed)
        learned = _some(half, seed)
        known = sample.at(learned)
        trained = {name: _trained(make, found, sample, learned, ~half, seed) for name, make in makers.items()}
        for name, score in {**trained, **scores[target]}.items():
            seen = score[learned]
            for up in (True,) if sides == "up" else (True, False):
                for threshold in _thresholds(seen, up):
                    rule = _Rule(name, target, up, threshold, score, ~half)
                    low = known.ratio(rule.inside(seen), up).low(false_alarm)
                    if best is None or low > best[0]:
                        best = (low, rule)
    assert best is not None
    return best[1]


def _thresholds(seen: Floats, up: bool) -> list[float]:
    """Where a guess may begin: at the score that singles out each share of the windows, and half-way towards it.

    The surest scores of other people are often a little less sure, so a threshold among them may single out nobody;
    half-way it still separates those whom the classifier is sure of.
    """
    edges = np.quantile(seen, [1 - share if up else share for share in SHARES])
    return [*edges.tolist(), *((edges + np.median(seen)) / 2).tolist()]


def _half(sample: AttackSample, seed: int) -> Flags:
    """The windows of half of the people, of those who ever have the label and of the others; fewer of very many."""
    people, ids = np.unique(sample.owners, return_inverse=True)
    ever = np.bincount(ids, sample.truth, people.size) > 0
    draw = _draws(seed).random(people.size)
    share = min(0.5, LEARNERS / people.size)
    chosen = np.zeros(people.size, bool)
    for label in (True, False):
        own = np.flatnonzero(ever == label)
        chosen[own[np.argsort(draw[own], kind="stable")[: max(int(own.size * share), min(FEWEST, own.size // 2))]]] = (
            True
        )
    return chosen[ids]


def _some(half: Flags, seed: int) -> Flags:
    """As many of these windows as the classifiers learn from."""
    there = np.flatnonzero(half)
    if there.size <= LEARNERS:
        return half
    some = np.zeros(half.size, bool)
    some[_draws(seed).choice(there, LEARNERS, replace=False)] = True
    return some


def _trained(
    make: Callable[[], Any], found: Any, sample: AttackSample, learned: Flags, held: Flags, seed: int
) -> Floats:
    """Scores of windows, by classifiers that saw none of their person: each leaves a part of those learned from out.

    Each of the other people is scored by one of these classifiers, too, so that their scores are comparable with those
    that a threshold was picked by.
    """
    draws, rows = _draws(seed), learned | held
    people, ids = np.unique(sample.owners[rows], return_inverse=True)
    fold = np.full(rows.size, -1)
    fold[rows] = (draws.permutation(people.size) % FOLDS)[ids]
    score = np.full(rows.size, np.nan)
    for k in range(FOLDS):
        own, rest = fold == k, learned & (fold != k)
        score[own] = _fitted(make, found[rest], sample.truth[rest])(found[own])
    return score


def _fitted(make: Callable[[], Any], known: Any, labels: Flags) -> Callable[[Any], Floats]:
    """A classifier's probability of the label; of people who all have it, or none, there is nothing to learn."""
    if labels.all() or not labels.any():
        return lambda rows: np.full(rows.shape[0], labels.mean())
    fitted = make().fit(known, labels)
    return lambda rows: np.asarray(fitted.predict_proba(rows)[:, 1])


def _curve(scores: Floats, sample: AttackSample, false_alarm: float) -> tuple[tuple[float, float, float], ...]:
    """For the picture: log ratio with its bounds in each tenth of the windows, from the lowest scores up."""
    points = []
    for part in np.array_split(np.argsort(scores, kind="stable"), 10):
        inside = np.zeros(scores.size, bool)
        inside[part] = True
        up, down = sample.ratio(inside), sample.ratio(inside, up=False)
        points.append((up.estimate, up.low(false_alarm), -down.low(false_alarm)))
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
    about = "who it is"
    usable = [k for k in range(len(truth)) if len(truth[k]) >= 4 and min(truth[k]) >= 0]
    order = [usable[k] for k in _draws(seed).permutation(len(usable))]
    half, people = min(len(order) // 2, most), len(order)
    if half < FEWEST:
        return Finding(about, "not decided", epsilon, 0.0, None, None, people, people, false_alarm, 2 * FEWEST)
    learned, sought = order[half:], order[:half]
    channel = _channel(releases, truth, learned, n)
    past = np.stack([np.bincount(truth[k][: len(truth[k]) // 2], minlength=n) for k in sought]).astype(np.float64)
    common = past.sum(0) + 1.0
    profile = past + 2.0 * common / common.sum()
    expected = np.log(profile / profile.sum(1, keepdims=True) @ channel)
    later = [releases[k][len(truth[k]) // 2 :] for k in sought]
    seen = np.stack([np.bincount(codes[codes >= 0], minlength=n) for codes in later]).astype(np.float64)
    match = (seen @ expected.T).argmax(1)
    hits = int((match == np.arange(half)).sum())
    low = math.log(max(half * share_low(hits, half, false_alarm), 1.0))
    return _identified(about, hits, half, low, epsilon, people, false_alarm)


def _identified(
    about: str, hits: int, half: int, low: float, epsilon: float | None, people: int, false_alarm: float
) -> Finding:
    """The finding of an attack on who it is: so many of half of the people were recognised."""
    estimate, shares = math.log(max(hits, 1)), (hits / half, 1 / half)
    target = f"who it is, among {half}"
    guess = AttackerGuess("likeliest past", target, "has it", hits, half, half - hits, half, *shares, float(hits))
    found = (people, people, false_alarm)
    if epsilon is None:
        return Finding(about, "not decided", None, low, estimate, None, *found, None, guess)
    seen = next((hit for hit in range(1, half + 1) if half * share_low(hit, half, false_alarm) > math.exp(epsilon)), 0)
    noticed = math.log(seen) if seen else None
    undecided = estimate > epsilon or noticed is None  # among few people nobody can be surer than certain
    verdict: Verdict = "broken" if low > epsilon else "not decided" if undecided else "not refuted"
    needed = math.ceil(2 * math.exp(epsilon)) if noticed is None and 2 * math.exp(epsilon) <= MOST_PEOPLE else None
    return Finding(about, verdict, epsilon, low, estimate, noticed, *found, needed, guess)


def _channel(releases: Sequence[Ints], truth: Sequence[Ints], learned: Sequence[int], n: int) -> Floats:
    """How often each symbol was released for each true one, among these people; rare ones lean to the common share."""
    true, out = (np.concatenate([streams[k] for k in learned]) for streams in (truth, releases))
    table = np.zeros((n, n))
    np.add.at(table, (true[out >= 0], out[out >= 0]), 1.0)
    common = (table.sum(0) + 0.5) / (table.sum() + 0.5 * n)
    table += 2.0 * common
    return table / table.sum(1, keepdims=True)
