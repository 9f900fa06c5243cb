"""The one guess that reveals most on half of the people, scored on the other half."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from seqveil.core import words
from seqveil.core.bulk import places_within
from seqveil.core.errors import InputError, needs_extra
from seqveil.core.kernel import Floats, Ints
from seqveil.core.secrets.declared import Compiled, Sides
from seqveil.evaluate.attack.attackers import Attackers, Believer, classifiers
from seqveil.evaluate.attack.bounds import AttackSample, Flags, Ratio, noticeable, times_needed
from seqveil.evaluate.attack.features import Windows, features
from seqveil.evaluate.attack.finding import AttackerGuess, Finding, Verdict

FALSE_ALARM = 0.05
SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)  # of the windows: how many a guess may single out
FOLDS = 5
FEWEST = 10  # people with and without the secret, in each half, below which nothing is decided
LEARNERS = 5_000  # people, and windows of theirs, whom the classifiers learn from at most; all others score them
MOST_WINDOWS = 30_000  # that are attacked; of more so many are drawn


def attack_secret(
    releases: Sequence[Ints],
    truth: Sequence[Ints],
    secret: Compiled,
    epsilon: float | None,
    *,
    times: Sequence[Floats] | None = None,
    skipped: Ints | None = None,
    believers: Mapping[str, Believer] | None = None,
    seed: int = 0,
    **more: Any,
) -> Finding:
    """Attack what was promised about a secret (`epsilon`; None where nothing was, and only the bound is wanted).

    `releases` and `truth` are the codes of each person, negative where nothing was released, and outside the alphabet:
    windows with such a truth are left out. `times` are in seconds; `skipped` are the events of each person before the
    first window, where windows follow the clock. `believers` are Bayes attackers by name (`posteriors`).
    """
    windows = windows_of(secret, truth, times, skipped, seed)
    held = {who: believer(secret, windows) for who, believer in (believers or {}).items()}
    values = secret.automaton.values
    named = {"the secret": 1} if values == 2 else {f"combination {value}": value for value in range(values)}
    return attack_labels(
        _seen(releases, secret.n, windows, times),
        windows,
        {name: windows.values == value for name, value in named.items()},
        epsilon,
        about=words.about(secret.secret),
        sides=secret.secret.sides,
        scores={name: {who: found[:, value] for who, found in held.items()} for name, value in named.items()},
        seed=seed,
        **more,
    )


def attack_trait(
    releases: Sequence[Ints],
    answers: Sequence[Hashable | None],
    n: int,
    epsilon: float | None,
    *,
    about: str,
    times: Sequence[Floats] | None = None,
    **more: Any,
) -> Finding:
    """Attack a label of the person from everything that was released; people without one (None) are left out."""
    known = np.array([k for k, answer in enumerate(answers) if answer is not None], np.int64)
    nothing = np.zeros_like(known)
    kinds = sorted({str(answers[k]) for k in known})
    if len(kinds) < 2:
        raise InputError(f"an attack on a label needs people with two answers at least, got {len(kinds)}")
    mine = np.array([str(answers[k]) for k in known])
    targets = {kind: mine == kind for kind in (kinds[1:] if len(kinds) == 2 else kinds)}
    windows = Windows(known, nothing, nothing, nothing, None)
    return attack_labels(_seen(releases, n, windows, times), windows, targets, epsilon, about=about, **more)


def _seen(releases: Sequence[Ints], n: int, windows: Windows, times: Sequence[Floats] | None) -> Any:
    """What the attacker counts, of the people who have a window."""
    people, owners = np.unique(windows.owners, return_inverse=True)
    stamps = None if times is None else [times[k] for k in people]
    return features([releases[k] for k in people], n, replace(windows, owners=owners), stamps)


def draws(seed: int) -> np.random.Generator:
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
    owners, numbers = np.repeat(np.arange(sizes.size), counts), places_within(counts)
    if owners.size > MOST_WINDOWS:
        drawn = np.sort(draws(seed).choice(owners.size, MOST_WINDOWS, replace=False))
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
    windows: Windows,
    targets: Mapping[str, Flags],
    epsilon: float | None,
    *,
    about: str,
    sides: Sides = "both",
    scores: Mapping[str, Mapping[str, Floats]] | None = None,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
    attackers: Attackers | None = None,
) -> Finding:
    """Attack labels of windows, `targets` by name, from what was released: `found`, a row a window (`features`).

    scores: attackers that need no training, one number a window, by label and name.
    attackers: makers of classifiers in scikit-learn's manner, by name; by default those of `classifiers`.
    """
    if not 0 < false_alarm < 1:
        raise InputError(f"a false-alarm rate lies between 0 and 1; got {false_alarm:g}")
    rows, people = windows.owners.size, int(np.unique(windows.owners).size)
    samples = {name: AttackSample(windows.owners, windows.numbers, flags) for name, flags in targets.items()}
    usable = {name: one for name, one in samples.items() if min(one.people_with()) >= 2 * FEWEST}
    if not usable:
        rarest = max(min(one.people_with()) for one in samples.values())
        needed = math.ceil(people * 2 * FEWEST / rarest) if rarest else None
        return Finding(about, "not decided", epsilon, 0.0, None, None, people, rows, false_alarm, needed)
    with needs_extra("the attack", "attack"):
        from threadpoolctl import threadpool_limits  # comes with scikit-learn
    with threadpool_limits(1):  # threads gain nothing with so few people, and wait for one another on a busy machine
        rule = _pick(found, usable, sides, false_alarm, scores or {}, seed, attackers)
    guess, ratio = rule.scored()
    low = max(ratio.low(false_alarm), 0.0)
    estimate = max(low, ratio.estimate)
    if epsilon is None:
        return Finding(about, "not decided", None, low, estimate, None, people, rows, false_alarm, None, guess)
    someone = ratio.true + ratio.false > 0
    noticed = noticeable(ratio, epsilon, sides, false_alarm) if someone else None
    times = times_needed(ratio, epsilon, sides, false_alarm) if someone else None  # as many people as there are
    verdict: Verdict = "not decided" if times != 1 else "broken" if low > epsilon else "not refuted"
    needed = math.ceil(people * times) if times is not None and times > 1 else None
    return Finding(about, verdict, epsilon, low, estimate, noticed, people, rows, false_alarm, needed, guess)


@dataclass(frozen=True, eq=False)
class _Rule:
    """A guess fixed in advance: whose score, of which label, above or below which threshold."""

    attacker: str
    target: str
    up: bool
    threshold: float
    scores: Floats  # of the windows of the other people, by classifiers that did not see them
    held: AttackSample  # those windows

    def inside(self, scores: Floats) -> Flags:
        """Which windows are in the set."""
        return scores >= self.threshold if self.up else scores <= self.threshold

    def scored(self) -> tuple[AttackerGuess, Ratio]:
        """The guess, and how much likelier its set is where it is true."""
        ratio = self.held.ratio(self.inside(self.scores), self.up)
        says: Literal["has it", "has it not"] = "has it" if self.up else "has it not"
        times = math.exp(ratio.estimate)
        unit = "windows" if np.unique(self.held.owners).size < self.held.owners.size else "people"
        return AttackerGuess(self.attacker, self.target, says, ratio.true, ratio.false, times, unit), ratio


def _pick(
    found: Any,
    samples: Mapping[str, AttackSample],
    sides: Sides,
    rate: float,
    scores: Mapping[str, Mapping[str, Floats]],
    seed: int,
    attackers: Attackers | None,
) -> _Rule:
    """The guess that revealed most on half of the people, each scored by classifiers that had not seen them."""
    makers = classifiers(seed, int(found.shape[1])) if attackers is None else attackers
    best: tuple[float, _Rule] | None = None
    for target, sample in samples.items():
        half = _half(sample, seed)
        learned, held = _some(half, seed), sample.at(~half)
        known = sample.at(learned)
        trained = {name: _trained(make, found, sample, learned, ~half, seed) for name, make in makers.items()}
        for name, score in {**trained, **scores.get(target, {})}.items():
            for up in (True,) if sides == "up" else (True, False):
                for threshold in _thresholds(score[learned], up):
                    rule = _Rule(name, target, up, threshold, score[~half], held)
                    low = known.ratio(rule.inside(score[learned]), up).low(rate)
                    if best is None or low > best[0]:
                        best = (low, rule)
    assert best is not None
    return best[1]


def _thresholds(seen: Floats, up: bool) -> Iterator[float]:
    """Where a guess may begin: at the score that singles out each share of the windows, and half-way towards it.

    The surest scores of other people are often a little less sure, so a threshold among them may single out nobody;
    half-way it still separates those whom the classifier is sure of.
    """
    edges = np.quantile(seen, [1 - share if up else share for share in SHARES])
    yield from edges.tolist()
    yield from ((edges + np.median(seen)) / 2).tolist()


def _half(sample: AttackSample, seed: int) -> Flags:
    """The windows of half of the people, of those who ever have the label and of the others; fewer of very many."""
    people, ids = np.unique(sample.owners, return_inverse=True)
    ever = np.bincount(ids, sample.truth, people.size) > 0
    draw, share, chosen = draws(seed).random(people.size), min(0.5, LEARNERS / people.size), np.zeros(people.size, bool)
    for label in (True, False):
        own = np.flatnonzero(ever == label)
        many = max(int(own.size * share), min(FEWEST, own.size // 2))
        chosen[own[np.argsort(draw[own], kind="stable")[:many]]] = True
    return chosen[ids]


def _some(half: Flags, seed: int) -> Flags:
    """As many of these windows as the classifiers learn from."""
    there = np.flatnonzero(half)
    if there.size <= LEARNERS:
        return half
    some = np.zeros(half.size, bool)
    some[draws(seed).choice(there, LEARNERS, replace=False)] = True
    return some


def _trained(
    make: Callable[[], Any], found: Any, sample: AttackSample, learned: Flags, held: Flags, seed: int
) -> Floats:
    """Scores of windows, by classifiers that saw none of their person: each leaves a part of those learned from out.

    Each of the other people is scored by one of these classifiers, too, so that their scores are comparable with those
    that a threshold was picked by. Of people who all have the label, or none, there is nothing to learn.
    """
    rows = learned | held
    people, ids = np.unique(sample.owners[rows], return_inverse=True)
    fold = np.full(rows.size, -1)
    fold[rows] = (draws(seed).permutation(people.size) % FOLDS)[ids]
    score = np.full(rows.size, np.nan)
    for k in range(FOLDS):
        own, rest = fold == k, learned & (fold != k)
        labels = sample.truth[rest]
        if labels.all() or not labels.any():
            score[own] = labels.mean()
        else:
            score[own] = make().fit(found[rest], labels).predict_proba(found[own])[:, 1]
    return score
