"""Trials: people's streams released under some terms with seeded randomness, and what that cost and disclosed.

Errors, lifts and leakage are those of what was released, from the integers that it was drawn from. Nothing that a trial
releases is private.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import between
from seqveil.core.mechanisms import Sent
from seqveil.core.model import MarkovModel, Reading
from seqveil.core.randomness import Randomness, SeededRandomness
from seqveil.core.secrets import SecretTrackers
from seqveil.engine import batches
from seqveil.engine.blocks import Made
from seqveil.engine.stream import Released, State, Terms, observed, step
from seqveil.receiver.decode import decode_seen

PART = 1_000_000  # numbers of one array over the people who are released at once

Streams = Sequence[Ints] | Ints


@dataclass(eq=False)
class Trial:
    """What became of people's streams, by their places; costs are event by event, and a release that says nothing
    costs 1. Where releases are decoded, `filtered` and `smoothed` are the costs of the receiver's best guess given the
    releases up to each event, and given all."""

    released: dict[int, Ints] = field(default_factory=dict)
    costs: dict[int, Floats] = field(default_factory=dict)
    filtered: dict[int, Floats] = field(default_factory=dict)
    smoothed: dict[int, Floats] = field(default_factory=dict)
    trackers: list[SecretTrackers] = field(default_factory=list)  # the accounts of secrets after each stream
    most: float = 0.0  # both sides of what a whole stream disclosed, for the one that disclosed most
    least: float = 0.0
    spent: float = 0.0  # what basic composition charges the stream that spent most
    lift_most: float = 0.0  # of single releases
    lift_least: float = 0.0
    ldp: float = 0.0
    seconds: float = 0.0  # of processor time, to release

    def saw(self, most: float, least: float, ldp: float) -> None:
        """Widen the extremes of single releases."""
        self.lift_most, self.lift_least = max(self.lift_most, most), min(self.lift_least, least)
        self.ldp = max(self.ldp, ldp)

    def ended(self, state: State) -> None:
        """Take in the accounts of streams that are over."""
        self.most = max(self.most, float(state.account.most.max()))
        self.least = min(self.least, float(state.account.least.min()))
        self.spent = max(self.spent, float(state.spent.max()))


def mean_cost(costs: dict[int, Floats]) -> tuple[float, float | None]:
    """The mean over all events, and its standard error over people; None for a single person."""
    sums, counts = (np.array([each(own) for own in costs.values()]) for each in (np.sum, len))
    return float(sums.sum() / counts.sum()), error_of_mean(sums, counts) if counts.size > 1 else None


def error_of_mean(sums: Floats, counts: Ints) -> float:
    """The standard error of a mean over all events, from the sum and the number of each person's.

    It is that of a ratio of sums over people: each person's part of it moves both.
    """
    people, apart = sums.size, sums - sums.sum() / counts.sum() * counts
    return float(np.sqrt((apart**2).sum() * people / max(1, people - 1)) / counts.sum())


def release(
    terms: Terms,
    streams: Streams,
    seed: int = 0,
    *,
    decoded: bool = False,
    follow: SecretTrackers | None = None,
    shared: bool = False,
) -> Trial:
    """Release streams, the true codes of each person, with seeded randomness, and compare them with the truth.

    With `decoded` the receiver's guesses are made as well. `follow` are accounts of secrets that the
    terms do not keep, before the first release. `shared`: a short last batch gets its events' share of ε, instead of
    that of a whole one.
    """
    if terms.budget.seconds is not None or (terms.in_batches and terms.budget.when_spent == "stop"):
        raise InputError("a trial has neither times nor gaps; take a budget per number of releases, when_spent = hold")
    trial, randomness = Trial(), SeededRandomness(seed)
    if terms.in_batches:
        for place, codes in enumerate(streams):
            _in_batches(trial, terms, place, codes, randomness, decoded, shared)
        return trial
    for places in together(streams, max(terms.model.size, terms.model.n)):
        _side_by_side(trial, terms, places, [streams[k] for k in places], randomness, decoded, follow)
    return trial


def read_people(data: Any, model: MarkovModel, **columns: Any) -> dict[Any, Ints]:
    """The codes of each person's events in a file, people in the order of their names."""
    from seqveil.interfaces.files.events import symbol_events

    alphabet = model.alphabet
    events = symbol_events(data, alphabet, (model.reading or Reading()).but(**columns))
    kept = alphabet if alphabet.on_unknown in ("other", "nearest") else alphabet.strict
    return dict(sorted(events.streams(kept).items(), key=lambda one: str(one[0])))


def together(streams: Streams, width: int) -> Iterator[list[int]]:
    """Positions of streams that are released at once: of like length, longest first, and few enough to stay in memory.

    >>> streams = [np.zeros(length, int) for length in (3, 400_000, 4)]
    >>> list(together(streams, 2))
    [[1], [2, 0]]
    """
    order = sorted(range(len(streams)), key=lambda k: -len(streams[k]))
    while order:
        many = max(1, PART // (len(streams[order[0]]) * width))
        yield order[:many]
        order = order[many:]


def steps(terms: Terms, streams: Sequence[Ints], randomness: Randomness) -> Iterator[tuple[Ints, State, Made, State]]:
    """Streams released event by event, the longest first: truth, state before, release and state after of those that
    have got so far. By the clock of secrets that follow one, all begin at midnight."""
    lengths, state = np.array([len(own) for own in streams]), State.start(terms, len(streams))
    for t in range(int(lengths[0])):
        before = state.take(slice(0, int((lengths > t).sum())))
        truth = np.array([own[t] for own in streams[: len(before)]])
        stamps = np.full(truth.size, terms.slots.since_midnight(t)) if terms.clocked else None
        made, state = step(terms, before, truth, randomness, stamps)
        yield truth, before, made, state


def _side_by_side(
    trial: Trial,
    terms: Terms,
    places: Sequence[int],
    streams: Sequence[Ints],
    randomness: Randomness,
    decoded: bool,
    follow: SecretTrackers | None,
) -> None:
    """Release streams event by event, the longest first."""
    lengths, best_guess = np.array([len(codes) for codes in streams]), terms.distortion.best_guess
    kept_apart = follow is not None and not terms.secrets and not terms.in_blocks  # blocks have no account of secrets
    trackers = np.full(len(streams), follow, object) if kept_apart else None
    seen, released, guesses = list[tuple[State, Made]](), list[Ints](), list[Ints]()
    began = time.process_time()
    for t, (truth, before, made, after) in enumerate(steps(terms, streams, randomness)):
        trial.seconds += time.process_time() - began
        released.append(made.codes)
        if decoded:
            guesses.append(best_guess(made.posterior))
            seen.append((before, made))
        _look(trial, made)
        if trackers is not None and isinstance(made, Released):
            trackers[: truth.size] = observed(trackers[: truth.size], made.columns)
        over = slice(int((lengths > t + 1).sum()), truth.size)
        if over.start < over.stop:
            trial.ended(after.take(over))
            accounts = after.trackers if trackers is None else trackers
            trial.trackers += [] if accounts is None else list(accounts[over])
        began = time.process_time()
    late = [best_guess(guess) for guess in decode_seen(terms, seen)]
    for row, place in enumerate(places):
        kinds = (released, guesses, late) if decoded else (released,)
        codes = (np.array([step[row] for step in kind[: lengths[row]]]) for kind in kinds)
        _compare(trial, terms, place, streams[row], *codes)


def _look(trial: Trial, made: Made) -> None:
    """The lifts of releases, and how far apart they tell any two symbols and pasts, allowed by the model or not."""
    if not isinstance(made, Released):
        trial.saw(float(made.costs.max()), -float(made.costs.max()), 0.0)
        return
    least, most = between(made.low, made.high, made.marginal, made.terms)
    with np.errstate(divide="ignore"):
        apart = np.log(made.remembered.max(1) / made.remembered.min(1).astype(np.float64))
    trial.saw(float(most.max()), float(least.min()), float(apart.max()))


def _in_batches(
    trial: Trial, terms: Terms, place: int, codes: Ints, randomness: Randomness, decoded: bool, shared: bool
) -> None:
    """Release one stream batch by batch."""
    state, sent, size = State.start(terms), list[Sent](), terms.batch
    for begin in range(0, len(codes), size):
        part = codes[begin : begin + size]
        own = replace(terms, epsilon=terms.epsilon * part.size / size) if shared else terms
        began = time.process_time()
        one, state = batches.step(own, state, part, randomness)
        trial.seconds += time.process_time() - began
        assert one is not None  # nothing is left out, as no budget stops
        trial.saw(one.most, one.least, one.most - one.least)
        sent.append(one)
    trial.ended(state)
    known = (batches.filtered, batches.smooth) if decoded else ()
    guesses: Any = (terms.distortion.best_guess(of(terms, sent)) for of in known)
    _compare(trial, terms, place, codes, np.concatenate([one.codes for one in sent]), *guesses)


def _compare(trial: Trial, terms: Terms, place: int, truth: Ints, released: Ints, *guesses: Ints) -> None:
    """Keep what was released of a stream, and what that and the receiver's guesses cost."""
    cost = terms.distortion.between
    trial.released[place] = released
    trial.costs[place] = np.where(released < 0, 1.0, cost(truth, np.maximum(released, 0)))
    for kept, guess in zip((trial.filtered, trial.smoothed), guesses, strict=False):
        kept[place] = cost(truth, guess)
