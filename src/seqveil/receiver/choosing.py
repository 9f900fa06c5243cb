"""Which context describes people: candidates fitted to some people and checked on others, and the one that is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Symbols
from seqveil.core.bulk import places_within
from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import SMOOTHING
from seqveil.core.kernel import Ints
from seqveil.core.mixture import LEAST_PEOPLE
from seqveil.core.model import MarkovModel
from seqveil.receiver.contexts import LONGEST, Check, Context, Progress, check

AUTO = ("order:1", "order:2", "types:4", "types:16", "types:48")
HELD_OUT, MOST_HELD_OUT = 0.2, 5_000  # share of the people, and how many at most
FEWEST_PEOPLE = 10  # with fewer there is nobody to hold out
MOST_CONTEXTS = 2_000_000  # runs of three symbols up to which order 2 is tried


@dataclass(frozen=True)
class Choice:
    """The context taken, the model of it fitted to everyone, and the table that it was chosen from."""

    model: MarkovModel
    taken: Check
    table: list[Check]

    def lines(self) -> list[str]:
        """The table as it is printed."""
        head = ("log-likelihood", "s.e.", "wrong", "predicted", "60–70 % came", "transitions")
        return [f"{'':<32}" + _cells(head), *(_line(row, row is self.taken) for row in self.table)]


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"{text:>{width}}" for text, width in zip(texts, (14, 8, 8, 11, 14, 13), strict=True))


def _line(row: Check, taken: bool) -> str:
    shares = ["–" if s is None else f"{s:.3f}" for s in (row.realised_error, row.predicted_error, row.calibration)]
    texts = (f"{row.log_likelihood:.4f}", f"{row.standard_error:.4f}", *shares, f"{row.transitions:,}")
    return f"{row.title:<32}{_cells(texts)}{'  taken' if taken else ''}"


def candidates(text: str, n: int, people: int, least_people: int = LEAST_PEOPLE) -> list[Context]:
    """The contexts to compare: those of `auto` that so many people allow, or the one named beside a plain chain.

    >>> [each.name for each in candidates("auto", 17, 1000)]
    ['order:1', 'order:2', 'types:4', 'types:16']
    """
    if text != "auto":
        named = Context.parse(text)
        return [named] if named == Context() else [Context(), named]
    found = [Context.parse(each) for each in AUTO]
    return [
        each
        for each in found
        if (each.types == 1 or each.types * least_people <= people) and (each.order == 1 or n**3 <= MOST_CONTEXTS)
    ]


def choose(
    users: Ints,
    codes: Ints,
    alphabet: Symbols,
    text: str = "auto",
    *,
    smoothing: float = SMOOTHING,
    prior: Any = "data",
    seed: int = 0,
    least_people: int = LEAST_PEOPLE,
    progress: Progress | None = None,
) -> Choice:
    """Compare contexts on held-out people, and fit the one taken to everyone.

    A fifth of the people, 5,000 at most, are held out of the fits that are compared. `auto` takes the model of fewest
    transitions whose log-likelihood is within one standard error of the best; a context that was named is taken.

    Parameters:
      users: the user of every event, each user's events in their order.
      codes: their symbols.
      alphabet: the alphabet of the codes.
      text: "auto", or a context (`Context.parse`).
      smoothing: pseudo-count of the common chain, as in `MarkovModel.fit`; above 0, as people held out do what nobody
        else did.
      prior: as in `MarkovModel.fit`.
      seed: of the split and the fits; the table is repeatable.
      least_people: people that each type must have.
      progress: called with the share that is done, 0 to 1.
    """
    distribution: dict[str, Any] = {"smoothing": smoothing, "prior": prior, "seed": seed, "least_people": least_people}
    return choose_among(CodedEvents.of(users, codes), alphabet, text, progress, **distribution)


class People(Protocol):
    """The people whom contexts are compared on, numbered 0, 1, …: in memory, or counted elsewhere."""

    @property
    def count(self) -> int:
        """How many there are."""

    def fit(self, context: Context, alphabet: Symbols, without: Ints, **distribution: Any) -> MarkovModel:
        """The model of a context, fitted to everyone but these people."""

    def streams(self, chosen: Ints) -> tuple[Ints, Ints]:
        """Who and which code, event by event, of these people: one after another, the first LONGEST events of each."""


@dataclass(frozen=True, eq=False)
class CodedEvents:
    """People whose events are all in memory."""

    rows: Ints  # the person of each event
    codes: Ints
    count: int

    @classmethod
    def of(cls, users: Ints, codes: Ints) -> CodedEvents:
        """People numbered in the order of their names."""
        names, rows = np.unique(users, return_inverse=True)
        return cls(rows, codes, int(names.size))

    def fit(self, context: Context, alphabet: Symbols, without: Ints, **distribution: Any) -> MarkovModel:
        """The model of a context, fitted to everyone but these people."""
        kept = ~np.isin(self.rows, without)
        return context.fit(self.rows[kept], self.codes[kept], alphabet, **distribution)

    def streams(self, chosen: Ints) -> tuple[Ints, Ints]:
        """Who and which code, event by event, of these people."""
        kept = np.flatnonzero(np.isin(self.rows, chosen))
        kept = kept[np.argsort(self.rows[kept], kind="stable")]
        kept = kept[places_within(np.bincount(self.rows[kept])) < LONGEST]
        return self.rows[kept], self.codes[kept]


def choose_among(
    people: People, alphabet: Symbols, text: str, progress: Progress | None, **distribution: Any
) -> Choice:
    """The choice of `choose` for people wherever their events are; `distribution` is what a fit takes, all of it."""
    if people.count < FEWEST_PEOPLE:
        raise DataError(f"a context is checked on people held out, of {FEWEST_PEOPLE} and more; got {people.count}")
    if not distribution["smoothing"] > 0:
        raise InputError("a context is checked on people held out, who do what nobody else did; expected smoothing > 0")
    held = people_held_out(people.count, distribution["seed"])
    found = candidates(text, alphabet.n, people.count - held.size, distribution["least_people"])
    streams = people.streams(held)
    disclosed = _Shares(progress, len(found) + 1)
    table = []
    for each in found:
        model = people.fit(each, alphabet, held, progress=disclosed.part, **distribution)
        table.append(check(model, *streams, each, distribution["seed"]))
        disclosed.next()
    taken = table[-1] if text != "auto" else _smallest(table)
    nobody = np.zeros(0, np.int64)
    model = people.fit(found[table.index(taken)], alphabet, nobody, progress=disclosed.part, **distribution)
    return Choice(model.with_origin(_record(model, taken, table)), taken, table)


def people_held_out(people: int, seed: int = 0) -> Ints:
    """Who of so many people is held out, a fifth of them."""
    count = min(MOST_HELD_OUT, max(2, round(HELD_OUT * people)))
    return np.random.default_rng(seed).permutation(people)[:count]


def held_out(people: Ints, seed: int = 0) -> NDArray[np.bool_]:
    """Which events are of people held out, a fifth of them: (E,). `people` is who each event is of."""
    names, rows = np.unique(people, return_inverse=True)
    return np.isin(rows, people_held_out(names.size, seed))


class _Shares:
    """Progress of several works of about one size as one."""

    def __init__(self, progress: Progress | None, parts: int) -> None:
        self._progress, self._parts, self._done = progress, parts, 0

    def part(self, share: float) -> None:
        """So much of the present work is done."""
        if self._progress is not None:
            self._progress((self._done + share) / self._parts)

    def next(self) -> None:
        """The next work begins."""
        self._done += 1
        self.part(0.0)


def _smallest(table: Sequence[Check]) -> Check:
    best = max(table, key=lambda row: row.log_likelihood)
    near = [row for row in table if row.log_likelihood >= best.log_likelihood - best.standard_error]
    return min(near, key=lambda row: row.transitions)


def called(model: MarkovModel, taken: Check) -> str:
    """The context of a fitted model in words, and where types were merged how many there are."""
    asked = Context.parse(taken.context).types
    if model.types >= asked:
        return taken.title
    left = f"{model.types} types, order {model.order}" if model.types > 1 else f"one type, order {model.order}"
    return f"{left} ({asked} types were tried; those of too few people are merged)"


def _record(model: MarkovModel, taken: Check, table: Sequence[Check]) -> dict[str, Any]:
    """What the model's file keeps: public, like the model."""
    made = dict(model.origin or {})
    people = f"checked on {taken.people:,} held-out people"
    merged = {} if model.types == 1 else {"mixture": made}
    note = f"{called(model, taken)}, {people}; not private"
    return {
        "kind": "context",
        "private": False,
        "context": taken.context,
        "note": note,
        "checked": asdict(taken),
        "compared": [asdict(row) for row in table],
        **merged,
    }
