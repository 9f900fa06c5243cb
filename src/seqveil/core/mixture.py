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
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Codes, Floats, Symbols, symbols_of
from seqveil.core.errors import DataError, ModelError
from seqveil.core.filtering import log_likelihoods
from seqveil.core.fitting import SMOOTHING, RunCounts
from seqveil.core.kernel import Ints
from seqveil.core.states import States, answered, mixture

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel

PSEUDO = 5.0  # pseudo-counts of the common chain in each row of a type
LEAST_PEOPLE = 50  # people that a type must be the likeliest one of
SWITCH = 1e-4  # chance a step that a stream goes on as somebody else, by default
SWITCHES = (SWITCH, 1 / 300, 1 / 100, 1 / 30)  # those that are tried where it is to be estimated
STARTS = 6  # beginnings of EM that are tried for a few rounds
TRIAL_ROUNDS, ROUNDS = 12, 200
ENOUGH = 5e-6  # nats an event that a round must gain for another to follow
TRIED_TYPES = (1, 2, 4, 8, 16)  # of an answer to a trait, where their number is not given
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
        self._parts: list[tuple[Codes, Codes, Codes, Codes]] = []
        self._waiting = 0

    def _note(self, back: int, rows: Codes, runs: Codes, places: Codes) -> None:
        """Keep the full runs, and those that open a stream, of each stream by itself."""
        super()._note(back, rows, runs, places)
        kept = np.full(places.size, True) if back == self.order else places == back
        piece = places[kept] // max(1, self.piece) * bool(self.piece)
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
        seed: int = 0,
        least_people: int = LEAST_PEOPLE,
        progress: Progress | None = None,
    ) -> MarkovModel:
        """The mixture of what was counted so far; `origin` records how many people make it up.

        Parameters as in `MarkovModel.fit`; `smoothing` is that of the common chain.
        """
        from seqveil.core.model import MarkovModel

        for name, number in (("types", types), ("least_people", least_people)):
            if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
                raise ModelError(f"{name} must be a whole number >= 1; got {number!r}")
        if not (np.isfinite(self.switch) and 0 <= self.switch < 1):
            raise ModelError(f"switch must be a probability a step, at least 0 and below 1; got {self.switch}")
        if least_people < LEAST_PEOPLE:
            said = f"a type may now be made up of {least_people} people, and the model shows how they behave"
            warnings.warn(f"{said}; publish it only where their data could be published", UserWarning, stacklevel=2)
        if not self.events or self.runs()[1][0].size == 0:
            raise DataError(
                "types are distinguished by how symbols follow one another; got no stream of two or more events"
            )
        table, person, features = self.streams()
        people = int(np.unique(person).size)
        if people < types:
            raise DataError(f"a mixture of {types} types needs at least as many people; got {people}")
        common = CommonChain(self, self.states(smoothing), features)
        search = TypeSearch(table, common.distributions(), progress)
        fitted, fewest = search.merged(search.begin(types, np.random.default_rng(seed)), person, least_people)
        blocks = [common.block(counted) for counted in fitted.expected]
        states = mixture(blocks, fitted.weights, self.switch)
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
            "switch": self.switch,
            "note": f"{states.types} types of people, none the likeliest of fewer than {fewest}; "
            "fitted to raw data, not private",
        }
        return MarkovModel._of(states, symbols_of(alphabet, self.n)).with_origin(origin)


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
      order, switch, alphabet, smoothing, seed, least_people, progress: as in `MarkovModel.fit`.
    """
    answers, of_person = answers_among(labels, int(users.max(initial=-1)) + 1, least_people)
    if isinstance(types, Mapping) and set(types) != set(answers):
        raise ModelError("types by answer need a number for each answer of the trait, and no other")

    def fitted(some: NDArray[np.bool_], types: int) -> MarkovModel:
        """So many types fitted to some of the rows."""
        chain = users[some], codes[some], order, switch, types, alphabet
        return fit_mixture(*chain, smoothing, seed, least_people)

    parts: list[MarkovModel] = []
    for number, answer in enumerate(answers):
        here = of_person[users] == number
        asked = types.get(answer) if isinstance(types, Mapping) else types
        parts.append(
            fitted(here, _types_for(fitted, users, codes, here, seed, least_people) if asked is None else asked)
        )
        if progress is not None:
            progress((number + 1) / len(answers))
    return side_by_side(name, answers, of_person, parts)


def side_by_side(name: str, answers: tuple[str, ...], of_person: Ints, parts: Sequence[MarkovModel]) -> MarkovModel:
    """The model of a trait from those of the people of each answer; `of_person` has everybody's, -1 for none."""
    from seqveil.core.model import MarkovModel

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
        "note": f"{states.types} types for {len(answers)} answers, none the likeliest of fewer than {fewest} people; "
        "fitted to raw data, not private",
    }
    return MarkovModel._of(states, parts[0].alphabet).with_origin(origin)


def answers_among(labels: Sequence[Any], people: int, least_people: int = LEAST_PEOPLE) -> tuple[tuple[str, ...], Ints]:
    """The answers in order, and which one each person gives: -1 for none."""
    texts = label_texts(labels)
    if len(texts) != people:
        raise DataError(f"a trait has one label for each of the {people} streams; got {len(texts)}")
    answers = tuple(sorted(set(texts) - {""}))
    if len(answers) < 2:
        raise DataError(f"a trait needs people with two or more answers; got {len(answers)}, check the labels")
    found = np.array([answers.index(text) if text else -1 for text in texts])
    if np.bincount(found[found >= 0]).min() < least_people:
        raise DataError(
            f"each answer to a trait must rest on at least {least_people} people, since the model shows how they "
            "behave; take rare answers together, or leave those people without a label"
        )
    return answers, found


def named_labels(trait: Any) -> tuple[str, list[Any]]:
    """The name of a trait and its labels, from what a caller gave.

    >>> named_labels(("heating", ["gas", "electric"]))
    ('heating', ['gas', 'electric'])
    """
    try:
        name, labels = trait
        if isinstance(name, str) and name.strip():
            return name, list(labels)
    except (TypeError, ValueError):
        pass
    raise ModelError("expected a trait as its name and the labels, as in trait=('heating', ['gas', 'electric', …])")


def label_texts(labels: Iterable[Any]) -> list[str]:
    """Labels as texts, "" where one is missing: None, not a number, or what pandas calls NA."""

    def missing(label: Any) -> bool:
        """Whether a label is none: None, not a number or NA."""
        try:
            return label is None or bool(label != label)
        except TypeError:  # comparing with pandas' NA gives NA, which is neither true nor false
            return True

    return ["" if missing(label) else str(label).strip() for label in labels]


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


def _types_for(
    fitted: Callable[..., MarkovModel], users: Ints, codes: Codes, here: NDArray[np.bool_], seed: int, least_people: int
) -> int:
    """The fewest types that predict held-out people of one answer within a standard error of the best."""
    people = np.random.default_rng(seed).permutation(np.unique(users[here]))
    held, tried = here & np.isin(users, people[: people.size // 5]), list[tuple[int, Floats]]()
    for types in TRIED_TYPES:
        if types == 1 or types * least_people <= people.size - people.size // 5:
            tried.append((types, log_likelihoods(fitted(here & ~held, types), users[held], codes[held])))
    _, best = max(tried, key=lambda one: one[1].sum())
    lost = ((types, best - scores) for types, scores in tried)
    return next(types for types, less in lost if less.sum() <= less.std() * np.sqrt(less.size))


class CommonChain:
    """The chain of all people together, which every type is shrunk to, by the runs that streams are counted in.

    A run of one symbol opens a stream; a longer one is a step of the chain, from one context to the next.
    """

    def __init__(self, counts: RunCounts, states: States, features: Codes) -> None:
        self.states, n, order, size = states, states.n, states.order, len(states.newest)
        contexts = counts.contexts()
        begins = dict(zip(contexts, np.cumsum([0, *map(len, contexts.values())]).tolist(), strict=False))
        offsets = np.cumsum([0, *(n**length for length in range(1, order + 2))])
        length = np.searchsorted(offsets, features, side="right")
        run = features - offsets[length - 1]
        self.opening, self.first = length == 1, run[length == 1]
        source, target = np.zeros((2, features.size), np.int64)
        for back, numbers in contexts.items():
            here, ahead = length == back + 1, min(back + 1, order)
            source[here] = begins[back] + np.searchsorted(numbers, run[here] // n)
            target[here] = begins[ahead] + np.searchsorted(contexts[ahead], run[here] % n**ahead)
        self.row = np.repeat(np.arange(size), np.diff(states.chain.indptr))
        self.step = np.searchsorted(self.row * size + states.chain.indices, source * size + target)
        self.source = source

    def distributions(self) -> tuple[Floats, Codes]:
        """Probability of each run's last symbol in the common chain (J,), and the number of its context (J,)."""
        states, step = self.states, self.step[~self.opening]
        distribution, context = np.empty(self.step.size), np.where(self.opening, -1, self.source)
        distribution[self.opening] = states.initial[self.first]
        again = states.backoff[self.row[step]] * states.base[states.newest[states.chain.indices[step]]]
        distribution[~self.opening] = states.chain.data[step] + again
        return distribution, np.unique(context, return_inverse=True)[1]

    def block(self, expected: Floats) -> States:
        """A type's chain from the expected counts (J,) of its streams."""
        from scipy import sparse

        states, n, size = self.states, self.states.n, len(self.states.newest)
        starts, counted = np.zeros(n), np.zeros(self.row.size)
        starts[self.first], counted[self.step[~self.opening]] = expected[self.opening], expected[~self.opening]
        initial = np.pad((starts + PSEUDO * states.initial[:n]) / (starts.sum() + PSEUDO), (0, size - n))
        own = np.bincount(self.row, counted, minlength=size) + PSEUDO
        weights = (counted + PSEUDO * states.chain.data) / own[self.row]
        chain = sparse.csr_array((weights, states.chain.indices, states.chain.indptr), shape=(size, size))
        entered = np.bincount(states.newest[states.chain.indices], counted, minlength=n) + starts
        base = (entered + PSEUDO * states.base) / (entered.sum() + PSEUDO)
        return replace(states, initial=initial, chain=chain, backoff=PSEUDO * states.backoff / own, base=base)


class Types(NamedTuple):
    """Where EM stands."""

    expected: Floats  # (K, J) expected counts of each run in streams of each type
    members: Floats  # (K,) expected streams of each type

    @property
    def weights(self) -> Floats:
        """Each type's share, with one stream of each to begin with."""
        return np.asarray((self.members + 1) / (self.members + 1).sum())


class TypeSearch:
    """EM over a table of streams; `distributions` are those of the common chain."""

    def __init__(self, table: Any, distributions: tuple[Floats, Codes], progress: Progress | None) -> None:
        self.counts, self.progress = table, progress
        self.distribution, self.context = distributions
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

    def merged(self, found: Types, person: Codes, least_people: int) -> tuple[Types, int]:
        """The types with those of too few people merged into their nearest, and EM led on; the fewest people of one."""
        while True:
            after, _, likeliest = self._round(found)
            pairs = np.unique(np.stack([likeliest, person], axis=1), axis=0)
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
