"""Mixtures of chains: people of several types, each type with a chain of its own, found by expectation–maximisation.

    Pr(x_1..x_T) = Σ_k w_k · π_k(x_1) · Π_t A_k(x_t | x_{t-m}..x_{t-1})

A stream enters by its counts of runs alone, so one round of EM is two sparse products: streams × runs times
runs × types, and back. With C_k(j) the expected count of run j in streams of type k, N_k of all runs with its context
and q(j) the distribution of the common chain, each type's distribution is (C_k(j) + κ·q(j)) / (N_k + κ): the largest
posterior under a Dirichlet prior around the common chain, so likelihood times prior never falls.

A *trait* is a question about people that the type answers: the mixture of the mixtures of each answer's people, who
never change to a type of another answer. The model is public, so a type that is the likeliest one of fewer than 50
people is merged into the type nearest to it, and an answer of fewer is refused.

Reference: Cadez, Heckerman, Meek, Smyth, White, *Model-based clustering and visualization of navigation patterns on a
web site*, Data Mining and Knowledge Discovery 7, 2003.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seqveil.core.alphabet import Codes, Floats, Symbols
from seqveil.core.errors import DataError, ModelError, whole_number
from seqveil.core.kernel import Ints
from seqveil.core.model import LEAST_PEOPLE, MarkovModel, Progress
from seqveil.core.states import States, answered, mixture

if TYPE_CHECKING:
    from seqveil.core.fitting import RunCounts

PSEUDO = 5.0  # pseudo-counts of the common chain in each row of a type
STARTS = 6  # beginnings of EM that are tried for a few rounds
TRIAL_ROUNDS, ROUNDS = 12, 200
ENOUGH = 5e-6  # nats an event that a round must gain for another to follow
_AT_ONCE = 1 << 22  # responsibilities held at once


def piece_of(switch: float) -> int:
    """Events of the pieces whose types are found: 1/switch, or 0, the whole stream, where types hardly ever change."""
    if not isinstance(switch, int | float) or not 0 <= switch < 1:
        raise ModelError(f"switch must be a probability a step, at least 0 and below 1; got {switch}")
    return round(1 / switch) if switch >= 1e-3 else 0


def fit_types(
    runs: RunCounts,
    alphabet: Symbols,
    types: int,
    switch: float,
    smoothing: float,
    seed: int,
    least_people: int,
    progress: Progress | None,
) -> MarkovModel:
    """The mixture of so many types, from runs in pieces of `piece_of(switch)` events; its `origin` records how many
    people make it up. `smoothing` is that of the common chain."""
    whole_number("types", types, kind=ModelError)
    whole_number("least_people", least_people, kind=ModelError)
    if least_people < LEAST_PEOPLE:
        said = f"a type may now be made up of {least_people} people, and the model shows how they behave"
        warnings.warn(f"{said}; publish it only where their data could be published", UserWarning, stacklevel=2)
    if not runs.back.any():
        raise DataError(
            "types are distinguished by how symbols follow one another; got no stream of two or more events"
        )
    people = int(np.unique(runs.person).size)
    search = TypeSearch(runs, runs.states(smoothing), progress)
    fitted, fewest = search.merged(search.begin(types, np.random.default_rng(seed)), least_people)
    states = mixture([search.block(counted) for counted in fitted.expected], fitted.weights, switch)
    if progress is not None:
        progress(1.0)
    origin = {
        "kind": "mixture",
        "private": False,
        "types": states.types,
        "types_asked": types,
        "people": people,
        "fewest_people_of_a_type": fewest,
        "least_people": least_people,
        "switch": switch,
        "note": f"{states.types} types of people, each fits at least {fewest} people best; "
        "fitted to raw data, not private",
    }
    return MarkovModel._of(states, alphabet, origin)


def side_by_side(name: str, answers: tuple[str, ...], of_person: Ints, parts: Sequence[MarkovModel]) -> MarkovModel:
    """The model of a trait from those of the people of each answer; `of_person` has everybody's, -1 for none."""
    labelled = np.bincount(of_person[of_person >= 0])
    states = answered(name, answers, [part.states for part in parts], labelled / labelled.sum())
    fewest = min((part.origin or {})["fewest_people_of_a_type"] for part in parts)
    origin = {
        "kind": "trait",
        "private": False,
        "trait": name,
        "people": int(labelled.sum()),
        "people_without_answer": int((of_person < 0).sum()),
        "fewest_people_of_a_type": fewest,
        "answers": [part.origin for part in parts],
        "note": f"{states.types} types for {len(answers)} answers, each fits at least {fewest} people best; "
        "fitted to raw data, not private",
    }
    return MarkovModel._of(states, parts[0].alphabet, origin)


def answers_among(labels: Sequence[str], people: int, least_people: int) -> tuple[tuple[str, ...], Ints]:
    """The answers in order, and which one each person gives: -1 for none, where a label is empty."""
    if len(labels) != people:
        raise DataError(f"a trait has one label for each of the {people} streams; got {len(labels)}")
    answers = tuple(sorted(set(labels) - {""}))
    if len(answers) < 2:
        raise DataError(f"a trait needs people with two or more answers; got {len(answers)}, check the labels")
    found = np.array([answers.index(label) if label else -1 for label in labels])
    if np.bincount(found[found >= 0]).min() < least_people:
        raise DataError(
            f"each answer to a trait must rest on at least {least_people} people, since the model shows how they "
            "behave; take rare answers together, or leave those people without a label"
        )
    return answers, found


class Types(NamedTuple):
    """Where EM stands."""

    expected: Floats  # (K, J) expected counts of each run in streams of each type
    members: Floats  # (K,) expected streams of each type

    @property
    def weights(self) -> Floats:
        """Each type's share, with one stream of each to begin with."""
        return np.asarray((self.members + 1) / (self.members + 1).sum())


class TypeSearch:
    """EM over streams, or pieces of them, by the steps of the chain of all people together that they take.

    Every type is shrunk to this common chain, `states`. A run of one symbol opens a stream; a longer one is a step from
    one context to the next.
    """

    def __init__(self, runs: RunCounts, states: States, progress: Progress | None) -> None:
        from scipy import sparse

        steps, column = np.unique(runs.steps(states), return_inverse=True)
        pieces = int(runs.piece.max()) + 1
        streams, row = np.unique(runs.person * pieces + runs.piece, return_inverse=True)
        table = sparse.csr_array((runs.count.astype(np.float64), (row, column)), shape=(streams.size, steps.size))
        table.sum_duplicates()
        self.counts, self.person, self.progress, self.states = table, streams // pieces, progress, states
        self.first, self.entry = steps[steps < states.n], steps[steps >= states.n] - states.n
        self.source = np.repeat(np.arange(len(states.newest)), np.diff(states.chain.indptr))
        source, target = self.source[self.entry], states.chain.indices[self.entry]
        again = states.backoff[source] * states.base[states.newest[target]]
        self.distribution = np.concatenate([states.initial[self.first], states.chain.data[self.entry] + again])
        self.context = np.unique(np.append(np.full(self.first.size, -1), source), return_inverse=True)[1]
        self.contexts = int(self.context.max()) + 1
        self.events = float(table.sum())
        self.unseen = 1.0 - np.bincount(self.context, self.distribution, minlength=self.contexts)
        self.unseen[self.unseen < 1e-12] = 0.0
        self.rounds, self.planned = 0, STARTS * TRIAL_ROUNDS + ROUNDS

    def begin(self, types: int, generator: np.random.Generator) -> Types:
        """The most promising of some beginnings, led on until it hardly gains."""
        tried = [self.led_on(self.seeded(types, generator), TRIAL_ROUNDS) for _ in range(STARTS)]
        return self.led_on(max(tried, key=lambda one: one[1][-1])[0], ROUNDS)[0]

    def seeded(self, types: int, generator: np.random.Generator) -> Types:
        """Types that each begin as one stream, drawn at random, longer ones more often."""
        lengths = np.asarray(self.counts.sum(1)).ravel()
        keys = generator.random(lengths.size) ** (1.0 / np.minimum(lengths, 50.0))
        chosen = np.argsort(-keys, kind="stable")[:types]
        return Types(np.asarray(self.counts[chosen].todense(), dtype=np.float64), np.ones(chosen.size))

    def led_on(self, found: Types, rounds: int) -> tuple[Types, list[float]]:
        """So many rounds of EM, fewer where they hardly gain; and likelihood times prior before each."""
        path = list[float]()
        while len(path) < rounds and (len(path) < 3 or path[-1] - path[-2] > ENOUGH * self.events):
            found, score, _ = self._round(found)
            path.append(score)
            self.rounds += 1
            if self.progress is not None:
                self.progress(min(0.99, self.rounds / self.planned))
        return found, path

    def _logs(self, expected: Floats) -> tuple[Floats, float]:
        """Log-distribution of every type (K, J), and the log-density of the prior at it."""
        totals = np.stack([np.bincount(self.context, row, minlength=self.contexts) for row in expected]) + PSEUDO
        logs = np.log((expected + PSEUDO * self.distribution) / totals[:, self.context])
        # what the types lack is a fixed share of the pseudo-counts: κ·u / (N + κ), spread as in the common chain
        return logs, float(PSEUDO * ((logs @ self.distribution).sum() - (np.log(totals) @ self.unseen).sum()))

    def _round(self, found: Types) -> tuple[Types, float, Codes]:
        """One round of EM: the next types, likelihood times prior of the present ones, everyone's likeliest type."""
        logs, score = self._logs(found.expected)
        shares = np.log(found.weights)
        score += float(shares.sum())
        expected, members = np.zeros(logs.shape), np.zeros(len(logs))
        likeliest = np.empty(self.counts.shape[0], np.int64)
        step = max(1, _AT_ONCE // len(logs))
        for low in range(0, likeliest.size, step):
            part = self.counts[low : low + step]
            chances = part @ logs.T + shares
            likeliest[low : low + step] = chances.argmax(1)
            most = chances.max(1, keepdims=True)
            np.exp(chances - most, out=chances)
            sums = chances.sum(1, keepdims=True)
            chances /= sums
            score += float((most + np.log(sums)).sum())
            expected += (part.T @ chances).T
            members += chances.sum(0)
        return Types(expected, members), score, likeliest

    def merged(self, found: Types, least_people: int) -> tuple[Types, int]:
        """The types with those of too few people merged into their nearest, and EM led on; the fewest people of one."""
        while True:
            after, _, likeliest = self._round(found)
            pairs = np.unique(np.stack([likeliest, self.person], axis=1), axis=0)
            people = np.bincount(pairs[:, 0], minlength=len(found.members))
            if len(people) == 1 or people.min() >= least_people:
                return found, int(people.min())
            while len(people) > 1 and people.min() < least_people:
                after, people = self._without(after, people)
            found, _ = self.led_on(after, TRIAL_ROUNDS)

    def _without(self, found: Types, people: Codes) -> tuple[Types, Codes]:
        """The smallest type merged into the one whose distribution expects its counts best."""
        smallest = int(people.argmin())
        fits = self._logs(found.expected)[0] @ found.expected[smallest]
        fits[smallest] = -np.inf
        expected, members, kept = (part.copy() for part in (*found, people))
        for parts in (expected, members, kept):
            parts[int(fits.argmax())] += parts[smallest]
        left = np.arange(len(people)) != smallest
        return Types(expected[left], members[left]), kept[left]

    def block(self, expected: Floats) -> States:
        """A type's chain from the expected counts (J,) of its streams."""
        from scipy import sparse

        states, n, size = self.states, self.states.n, len(self.states.newest)
        starts, counted = np.zeros(n), np.zeros(self.source.size)
        starts[self.first], counted[self.entry] = np.split(expected, [self.first.size])
        initial = np.pad((starts + PSEUDO * states.initial[:n]) / (starts.sum() + PSEUDO), (0, size - n))
        own = np.bincount(self.source, counted, minlength=size) + PSEUDO
        weights = (counted + PSEUDO * states.chain.data) / own[self.source]
        chain = sparse.csr_array((weights, states.chain.indices, states.chain.indptr), shape=(size, size))
        entered = np.bincount(states.newest[states.chain.indices], counted, minlength=n) + starts
        base = (entered + PSEUDO * states.base) / (entered.sum() + PSEUDO)
        return replace(states, initial=initial, chain=chain, backoff=PSEUDO * states.backoff / own, base=base)
