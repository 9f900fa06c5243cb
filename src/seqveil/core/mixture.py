"""Mixtures of chains: people of several types, each type with a chain of its own, found by expectation–maximisation.

    Pr(x_1..x_T) = Σ_k w_k · π_k(x_1) · Π_t A_k(x_t | x_{t-m}..x_{t-1})

A stream enters by its counts of runs alone, so one round of EM is two sparse products: streams × runs times
runs × types, and back. With C_k(j) the expected count of run j in streams of type k, N_k of all runs with its context
and q(j) the distribution of the common chain, each type's distribution is (C_k(j) + κ·q(j)) / (N_k + κ): few streams
say little, and what a type has hardly seen it does as everyone does. That is the largest posterior under a Dirichlet
prior of κ pseudo-counts around the common chain, so likelihood times prior never falls from one round to the next.

A *trait* is a question about people that the type answers (`fit_trait`): the mixture of the mixtures of each answer's
people, who never change to a type of another answer.

The model is public. A type that few people make up would describe them, so a type that is the likeliest one of fewer
than 50 people is merged into the type nearest to it, and an answer of fewer is refused.

Reference: Cadez, Heckerman, Meek, Smyth, White, *Model-based clustering and visualization of navigation patterns on a
web site*, Data Mining and Knowledge Discovery 7, 2003.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.alphabet import Codes, Floats, Symbols, symbols_of
from seqveil.core.errors import DataError, ModelError
from seqveil.core.filtering import log_likelihoods
from seqveil.core.fitting import SMOOTHING, RunCounts
from seqveil.core.kernel import Ints
from seqveil.core.states import States, Trait, from_contexts, mixture

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel

PSEUDO = 5.0  # pseudo-counts of the common chain in each row of a type
LEAST_PEOPLE = 50  # people that a type must be the likeliest one of
SWITCH = 1e-4  # chance a step that a stream goes on as somebody else, by default
SWITCHES = (SWITCH, 1 / 300, 1 / 100, 1 / 30)  # those that are tried where it is to be estimated
STARTS = 6  # beginnings of EM that are tried for a few rounds
TRIAL_ROUNDS, ROUNDS = 12, 200
ENOUGH = 5e-6  # nats an event that a round must gain for another to follow
TRIED_TYPES = (1, 4, 16)  # of an answer to a trait, where their number is not given
MOST_ANSWERS = 64  # to a trait
COMPARED = 300  # people whose streams tell how often types change
_AT_ONCE = 1 << 22  # responsibilities held at once

Progress = Callable[[float], None]  # called with the share of the work that is done


class TypeCounts(RunCounts):
    """Fit a mixture of chains chunk by chunk: counts of runs for every stream by itself.

    Parameters:
      n: symbols of the alphabet.
      order: order of each type's chain.
      switch: chance a step that a stream goes on as somebody else; above 1/1000, types are those of pieces of
        1/`switch` events, else of whole streams.

    Memory is O(distinct runs of each stream), at most one entry an event.

    >>> counts = TypeCounts(n=2)
    >>> counts.add(np.repeat(np.arange(60), 3), np.tile([0, 0, 1, 1, 1, 0], 30))
    >>> counts.model(types=1)
    MarkovModel(order=1, 2 symbols, 4 transitions)
    """

    def __init__(self, n: int, order: int = 1, switch: float = SWITCH) -> None:
        super().__init__(n, order)
        self.switch = switch
        self.piece = round(1 / switch) if 1e-3 <= switch < 1 else 0
        self._offsets = np.cumsum([0, *(n**length for length in range(1, order + 2))])
        self._seen = np.zeros(0, np.int64)
        self._places = np.zeros(0, np.int64)
        self._parts: list[tuple[Codes, Codes, Codes, Codes]] = []
        self._waiting = 0

    def _note(self, back: int, rows: Codes, runs: Codes) -> None:
        """Keep the full runs, and those that open a stream."""
        if back == 0:
            self._seen = np.pad(self._seen, (0, max(0, len(self._slots) - len(self._seen))))
            begins = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
            lengths = np.diff(np.append(begins, rows.size))
            self._places = self._seen[rows] + np.arange(rows.size) - np.repeat(begins, lengths)
            self._seen[rows[begins]] += lengths
        place = self._places[self._places >= back]
        kept = slice(None) if back == self.order else place == back
        piece = place[kept] // self.piece if self.piece else np.zeros(place[kept].size, np.int64)
        self._parts.append(_merged([(rows[kept], piece, self._offsets[back] + runs[kept], np.ones(piece.size, int))]))
        self._waiting += piece.size
        if self._waiting > 1 << 23:
            self._parts, self._waiting = [_merged(self._parts)], 0

    def streams(self) -> tuple[Any, Codes, Codes]:
        """How often each run (J) occurs in each stream, or piece of one (P): a sparse table, whose each row is, and the
        numbers of the runs, shorter ones first."""
        from scipy import sparse

        person, piece, feature, count = _merged(self._parts)
        features, column = np.unique(feature, return_inverse=True)
        pieces = int(piece.max(initial=0)) + 1
        rows, row = np.unique(person * pieces + piece, return_inverse=True)
        table = sparse.csr_array((count.astype(np.float64), (row, column)), shape=(rows.size, features.size))
        return table, rows // pieces, features

    def model(
        self,
        types: int,
        alphabet: Symbols | Sequence[Any] | None = None,
        smoothing: float = SMOOTHING,
        prior: str | ArrayLike = "data",
        seed: int = 0,
        least_people: int = LEAST_PEOPLE,
        progress: Progress | None = None,
    ) -> MarkovModel:
        """The mixture of what was counted so far; `origin` records how many people make it up.

        Parameters:
          types: how many types to begin with; those of too few people are merged.
          alphabet: names of the symbols.
          smoothing: pseudo-count of the common chain, as in `MarkovModel.fit`.
          prior: as in `MarkovModel.fit`; what is not "data" holds for all types alike.
          seed: of the beginnings; the fit is repeatable.
          least_people: people that each type must be the likeliest one of.
          progress: called with the share that is done, 0 to 1.
        """
        from seqveil.core.model import MarkovModel

        blocks, weights, people = self.blocks(types, smoothing, prior, seed, least_people, progress)
        states = mixture(blocks, weights, self.switch)
        told = _origin(people, len(self._slots), least_people, self.switch) | {"types_asked": types}
        return MarkovModel._of(states, symbols_of(alphabet, self.n)).with_origin(told)

    def blocks(
        self, types: int, smoothing: float, prior: str | ArrayLike, seed: int, least_people: int,
        progress: Progress | None = None,
    ) -> tuple[list[States], Floats, list[int]]:  # fmt: skip
        """The chain of each type, its share, and how many people it is the likeliest of; parameters as in `model`."""
        _check(types, self.switch, least_people)
        if not self.events or self.runs()[1][0].size == 0:
            raise DataError(
                "types are distinguished by how symbols follow one another; got no stream of two or more events"
            )
        table, person, features = self.streams()
        people = int(np.unique(person).size)
        if people < types:
            raise DataError(f"a mixture of {types} types needs at least as many people; got {people}")
        base = self.base(smoothing)
        common = _Common(self, smoothing, self.prior(prior, smoothing, base), base)
        search = _Search(table, common.distributions(features), progress)
        fitted = search.merged(search.begin(types, np.random.default_rng(seed)), person, least_people)
        own_first = isinstance(prior, str) and prior == "data"
        blocks = [common.block(features, counted, own_first) for counted in fitted.expected]
        if progress is not None:
            progress(1.0)
        return blocks, fitted.weights, fitted.people


def _origin(members: list[int], people: int, least_people: int, switch: float) -> dict[str, Any]:
    """The public record of a mixture of these people, whose types are the likeliest of so many of them."""
    return {
        "kind": "mixture",
        "private": False,
        "types": len(members),
        "people": people,
        "fewest_people_of_a_type": min(members),
        "least_people": least_people,
        "switch": switch,
        "note": f"{len(members)} types of people, none the likeliest of fewer than {min(members)}; "
        "fitted to raw data, not private",
    }


def _merged(parts: list[tuple[Codes, Codes, Codes, Codes]]) -> tuple[Codes, Codes, Codes, Codes]:
    """Counts by person, piece and feature, those of the same three added up."""
    person, piece, feature, count = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((feature, piece, person))
    person, piece, feature = person[order], piece[order], feature[order]
    new = np.append(True, (np.diff(person) != 0) | (np.diff(piece) != 0) | (np.diff(feature) != 0))[: person.size]
    begins = np.flatnonzero(new)
    counts = np.add.reduceat(count[order], begins) if begins.size else count
    return person[begins], piece[begins], feature[begins], counts


def fit_mixture(
    users: Any, codes: Codes, order: int, switch: float | str, types: int, alphabet: Symbols, *distribution: Any
) -> MarkovModel:
    """The mixture of `TypeCounts.model` for a whole log; where `switch` is "estimate", the likeliest of some.

    Each candidate has its own types, since they are those of pieces of 1/switch events; streams of fewer than two such
    pieces cannot tell. Compared are the likelihoods of some people's streams under the model that follows.
    """
    if isinstance(switch, str) and switch != "estimate":
        raise ModelError(f'switch must be a probability a step or "estimate"; got {switch!r}')
    _, rows, lengths = np.unique(users, return_inverse=True, return_counts=True)
    tried = SWITCHES if isinstance(switch, str) else (switch,)
    made = []
    for each in tried:
        if each == tried[0] or each * lengths.max() >= 2:
            counts = TypeCounts(alphabet.n, order, each)
            counts.add(rows, codes)
            made.append(counts.model(types, alphabet, *distribution))
    some = rows < COMPARED
    return made[0] if len(made) == 1 else max(made, key=lambda m: log_likelihoods(m, rows[some], codes[some]).sum())


def fit_trait(
    name: str,
    labels: Sequence[Any],
    users: Ints,
    codes: Codes,
    order: int,
    switch: float | str,
    types: int | Mapping[str, int] | None,
    alphabet: Symbols,
    smoothing: float = SMOOTHING,
    prior: str | ArrayLike = "data",
    seed: int = 0,
    least_people: int = LEAST_PEOPLE,
    progress: Progress | None = None,
) -> MarkovModel:
    """The mixture whose types answer a question about people: each answer has types of its own.

    Parameters:
      name: of the trait.
      labels: the answer of each person, None where it is not known: such people are left out, and counted in `origin`.
      users: the number of the person of each event, from 0 on; codes: its symbol.
      types: how many of each answer, one number for all or one by answer; None: as many as predict held-out people.
      order, switch, alphabet, smoothing, prior, seed, least_people, progress: as in `MarkovModel.fit`.
    """
    from seqveil.core.model import MarkovModel

    answers, of_person = _answers(labels, int(users.max(initial=-1)) + 1, least_people)
    if isinstance(switch, str):
        raise ModelError(f"the switch of a trait's types is a probability a step; got {switch!r}")
    if isinstance(types, Mapping) and set(types) != set(answers):
        raise ModelError("types by answer need a number for each answer of the trait, and no other")
    found: list[tuple[list[States], Floats, list[int]]] = []
    for number, answer in enumerate(answers):
        here = of_person[users] == number
        asked = types.get(answer) if isinstance(types, Mapping) else types
        streams = users[here], codes[here], alphabet.n, order, float(switch)
        how = smoothing, prior, seed, least_people
        found.append(_counted(*streams).blocks(_types_for(streams, how) if asked is None else asked, *how))
        if progress is not None:
            progress((number + 1) / len(answers))
    shares = np.bincount(of_person[of_person >= 0]) / np.count_nonzero(of_person >= 0)
    of_types = tuple(number for number, (blocks, _, _) in enumerate(found) for _ in blocks)
    weights = np.concatenate([share * part for share, (_, part, _) in zip(shares, found, strict=True)])
    states = mixture([each for blocks, _, _ in found for each in blocks], weights, float(switch),
                     Trait(name, answers, of_types))  # fmt: skip
    members, people = [count for _, _, counts in found for count in counts], int((of_person >= 0).sum())
    told = _origin(members, people, least_people, float(switch))
    told |= {"trait": name, "people_without_answer": of_person.size - people}
    return MarkovModel._of(states, alphabet).with_origin(told)


def _answers(labels: Sequence[Any], people: int, least_people: int) -> tuple[tuple[str, ...], Ints]:
    """The answers in order, and which one each person gives: -1 for none."""
    texts = ["" if label is None or label != label else str(label).strip() for label in labels]
    if len(texts) != people:
        raise DataError(f"a trait has one label for each of the {people} streams; got {len(texts)}")
    answers = tuple(sorted(set(texts) - {""}))
    if len(answers) < 2:
        raise DataError(f"a trait needs people with two or more answers; got {len(answers)}, check the labels")
    if len(answers) > MOST_ANSWERS:
        raise DataError(f"a trait has at most {MOST_ANSWERS} answers; got {len(answers)}, take several together")
    found = np.array([answers.index(text) if text else -1 for text in texts])
    if np.bincount(found[found >= 0]).min() < least_people:
        raise DataError(
            f"each answer to a trait must rest on at least {least_people} people, since the model shows how they "
            "behave; take rare answers together, or leave those people without a label"
        )
    return answers, found


def one_answer_each(users: Iterable[Hashable], labels: Iterable[Any]) -> dict[Hashable, Any]:
    """Each user's label from those of all rows, None where none is there; refused where somebody has two.

    >>> one_answer_each(["ann", "bob", "ann"], ["gas", None, "gas"])
    {'ann': 'gas', 'bob': None}
    """
    found: dict[Hashable, Any] = {}
    for user, label in zip(users, labels, strict=True):
        before = found.setdefault(user, label)
        if before is None:
            found[user] = label
        elif label is not None and label != before:
            raise DataError("somebody has two answers to the trait; a trait never changes, so give each user one label")
    return found


def _counted(users: Ints, codes: Codes, n: int, order: int, switch: float) -> TypeCounts:
    counts = TypeCounts(n, order, switch)
    counts.add(users, codes)
    return counts


def _types_for(streams: tuple[Ints, Codes, int, int, float], how: tuple[Any, ...]) -> int:
    """The fewest types that predict held-out people of one answer within a standard error of the best."""
    users, codes, *more = streams
    smoothing, prior, seed, least_people = how
    people = np.unique(users)
    held = np.isin(users, np.random.default_rng(seed).permutation(people)[: people.size // 5])
    counts, tried = _counted(users[~held], codes[~held], *more), list[tuple[int, Floats]]()
    for types in TRIED_TYPES:
        if types == 1 or types * least_people <= people.size - people.size // 5:
            model = counts.model(types, None, smoothing, prior, seed, least_people)
            tried.append((types, log_likelihoods(model, users[held], codes[held])))
    _, best = max(tried, key=lambda one: one[1].sum())
    for types, scores in tried:
        less = best - scores
        if less.sum() <= less.std() * np.sqrt(less.size):
            return types
    return 1


def _check(types: int, switch: float, least_people: int) -> None:
    for name, number in (("types", types), ("least_people", least_people)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
            raise ModelError(f"{name} must be a whole number >= 1; got {number!r}")
    if not (np.isfinite(switch) and 0 <= switch < 1):
        raise ModelError(f"switch must be a probability a step, at least 0 and below 1; got {switch}")
    if least_people < LEAST_PEOPLE:
        warnings.warn(
            f"a type may now be made up of {least_people} people, and the model shows how they behave; "
            "publish it only where their data could be published",
            UserWarning,
            stacklevel=3,
        )


class _Common:
    """The chain of all people together, which every type is shrunk to."""

    def __init__(self, counts: RunCounts, smoothing: float, first: Floats, base: Floats) -> None:
        self.n, self.order, self.smoothing = counts.n, counts.order, smoothing
        self.first, self.base, self.runs = first, base, counts.runs()
        self.offsets = np.cumsum([0, *(self.n**length for length in range(1, self.order + 2))])
        self.contexts = {1: np.arange(self.n)}
        self.contexts |= {length: self.runs[length - 1][0] for length in range(2, self.order + 1)}

    def distributions(self, features: Codes) -> tuple[Floats, Codes]:
        """Probability of each run's last symbol in the common chain (J,), and the number of its context (J,)."""
        distribution, context = np.empty(features.size), np.empty(features.size, np.int64)
        for back in range(self.order + 1):
            here = (features >= self.offsets[back]) & (features < self.offsets[back + 1])
            run = features[here] - self.offsets[back]
            context[here] = self.offsets[back] + run // self.n
            if back == 0:
                distribution[here] = self.first[run]
                continue
            seen, place, total = self._totals(back)
            at = np.searchsorted(seen, run)
            added = self.smoothing * self.base[run % self.n]
            distribution[here] = (self.runs[back][1][at] + added) / total[place[at]]
        return distribution, np.unique(context, return_inverse=True)[1]

    def _totals(self, back: int) -> tuple[Codes, Codes, Floats]:
        """Runs of back+1 symbols, the place of each one's context, and how often each context went on, smoothed."""
        run, count = self.runs[back]
        place = np.searchsorted(self.contexts[back], run // self.n).astype(np.int64)
        total = np.bincount(place, count, minlength=len(self.contexts[back])) + self.smoothing
        return run, place, total.astype(np.float64)

    def block(self, features: Codes, expected: Floats, own_first: bool) -> States:
        """A type's chain from the expected counts (J,) of its streams."""
        starts, entered = self._of_length(features, expected, 0), np.zeros(self.n)
        first = (starts + PSEUDO * self.first) / (starts.sum() + PSEUDO) if own_first else self.first
        edges, backoff = [], []
        for back in range(1, self.order + 1):
            run, place, total = self._totals(back)
            counted = self._of_length(features, expected, back)
            own = np.bincount(place, counted, minlength=total.size) + PSEUDO
            weight = (counted + PSEUDO * self.runs[back][1] / total[place]) / own[place]
            target = (back + 1, run) if back < self.order else (self.order, run % self.n**self.order)
            edges.append((back, run // self.n, *target, weight))
            lacking = np.divide(PSEUDO * self.smoothing, total * own, out=np.ones(total.size), where=total > 0)
            backoff.append(lacking)
            entered += np.bincount(run % self.n, counted, minlength=self.n)
        base = (entered + starts + PSEUDO * self.base) / (entered.sum() + starts.sum() + PSEUDO)
        return from_contexts(self.order, self.n, self.contexts, edges, first, base, np.concatenate(backoff))

    def _of_length(self, features: Codes, expected: Floats, back: int) -> Floats:
        """The expected counts of runs of back+1 symbols, in the order of `runs` (of all symbols where back is 0)."""
        here = (features >= self.offsets[back]) & (features < self.offsets[back + 1])
        run = features[here] - self.offsets[back]
        out = np.zeros(self.n if back == 0 else self.runs[back][0].size)
        out[run if back == 0 else np.searchsorted(self.runs[back][0], run)] = expected[here]
        return out


@dataclass(frozen=True, eq=False)
class _Types:
    """Where EM stands."""

    expected: Floats  # (K, J) expected counts of each run in streams of each type
    members: Floats  # (K,) expected streams of each type
    path: list[float]
    people: list[int]

    @property
    def weights(self) -> Floats:
        """Each type's share, with one stream of each to begin with."""
        return np.asarray((self.members + 1) / (self.members + 1).sum())


class _Search:
    """EM over a table of streams."""

    def __init__(self, table: Any, distributions: tuple[Floats, Codes], progress: Progress | None) -> None:
        self.counts, self.progress = table, progress
        self.distribution, self.context = distributions
        self.contexts = int(self.context.max()) + 1
        self.events = float(table.sum())
        self.unseen = 1.0 - np.bincount(self.context, self.distribution, minlength=self.contexts)
        self.unseen[self.unseen < 1e-12] = 0.0
        self.rounds, self.planned = 0, STARTS * TRIAL_ROUNDS + ROUNDS

    def begin(self, types: int, generator: np.random.Generator) -> _Types:
        """The most promising of some beginnings, led on until it hardly gains."""
        tried = [self._run(self._seeded(types, generator), TRIAL_ROUNDS) for _ in range(STARTS)]
        return self._run(max(tried, key=lambda found: found.path[-1]), ROUNDS)

    def _seeded(self, types: int, generator: np.random.Generator) -> _Types:
        """Types that each begin as one stream, drawn at random, longer ones more often."""
        lengths = np.asarray(self.counts.sum(1)).ravel()
        keys = generator.random(lengths.size) ** (1.0 / np.minimum(lengths, 50.0))
        chosen = np.argsort(-keys, kind="stable")[:types]
        expected = np.asarray(self.counts[chosen].todense(), dtype=np.float64)
        return _Types(expected, np.ones(len(expected)), [], [])

    def _run(self, found: _Types, rounds: int) -> _Types:
        path = list[float]()
        while len(path) < rounds and (len(path) < 3 or path[-1] - path[-2] > ENOUGH * self.events):
            found, score, _ = self._round(found)
            path.append(score)
            self.rounds += 1
            if self.progress is not None:
                self.progress(min(0.99, self.rounds / self.planned))
        return _Types(found.expected, found.members, path, [])

    def _logs(self, expected: Floats) -> tuple[Floats, float]:
        """Log-distribution of every type (K, J), and the log-density of the prior at it."""
        totals = np.stack([np.bincount(self.context, row, minlength=self.contexts) for row in expected]) + PSEUDO
        logs = np.log((expected + PSEUDO * self.distribution) / totals[:, self.context])
        # what the types lack is a fixed share of the pseudo-counts: κ·u / (N + κ), spread as in the common chain
        return logs, float(PSEUDO * ((logs @ self.distribution).sum() - (np.log(totals) @ self.unseen).sum()))

    def _round(self, found: _Types) -> tuple[_Types, float, Codes]:
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
        return _Types(expected, members, found.path, []), score, likeliest

    def merged(self, found: _Types, person: Codes, least_people: int) -> _Types:
        """The types with those of too few people merged into their nearest, and EM led on."""
        while True:
            after, _, likeliest = self._round(found)
            pairs = np.unique(np.stack([likeliest, person], axis=1), axis=0)
            people = np.bincount(pairs[:, 0], minlength=len(found.members))
            if len(people) == 1 or people.min() >= least_people:
                return _Types(found.expected, found.members, found.path, people.tolist())
            while len(people) > 1 and people.min() < least_people:
                after, people = self._without(after, people)
            found = self._run(after, TRIAL_ROUNDS)

    def _without(self, found: _Types, people: Codes) -> tuple[_Types, Codes]:
        """The smallest type merged into the one whose distribution expects its counts best."""
        smallest = int(people.argmin())
        logs, _ = self._logs(found.expected)
        fits = logs @ found.expected[smallest]
        fits[smallest] = -np.inf
        nearest = int(fits.argmax())
        expected, members, kept = found.expected.copy(), found.members.copy(), people.copy()
        for parts in (expected, members, kept):
            parts[nearest] += parts[smallest]
        left = np.arange(len(people)) != smallest
        return _Types(expected[left], members[left], found.path, []), kept[left]
