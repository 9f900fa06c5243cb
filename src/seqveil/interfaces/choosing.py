"""Which context describes people: what the next symbol depends on, how well that predicts other people, and the choice.

Every promise of this package is about a model. Whether the model is true of people is a question that data can answer:
some people are held out of the fit, and their streams are predicted, one symbol after another. `choose` takes the
context of the greatest log-likelihood a symbol (0 at best), whose standard error is over people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.alphabet import Symbols
from seqveil.core.bulk import places_within
from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import fit_codes
from seqveil.core.kernel import Ints
from seqveil.core.model import LEAST_PEOPLE, SMOOTHING, SWITCH, MarkovModel, Progress
from seqveil.core.words import ResultTable
from seqveil.interfaces.trials import error_of_mean

AUTO = ("order:1", "order:2", "types:4", "types:16", "types:48")
HELD_OUT, MOST_HELD_OUT = 0.2, 5_000  # share of the people, and how many at most
FEWEST_PEOPLE = 10  # with fewer there is nobody to hold out
MOST_CONTEXTS = 2_000_000  # runs of three symbols up to which order 2 is tried
LONGEST = 500  # events of a person that are predicted


@dataclass(frozen=True)
class Context:
    """What the next symbol may depend on: the last `order` symbols, and a type of person.

    >>> Context.parse("types:16")
    Context(order=1, types=16, switch=0.0001)
    >>> Context.parse("types:4,order:2").name
    'order:2,types:4'
    """

    order: int = 1
    types: int = 1
    switch: float = SWITCH

    @classmethod
    def parse(cls, text: str) -> Context:
        """The context that a text names, such as order:2, types:16 or order:2,types:16,switch:0.01."""
        parts = [part.strip().partition(":") for part in text.split(",")]
        try:
            given: dict[str, Any] = {name: float(value) if name == "switch" else int(value) for name, _, value in parts}
            found = cls(**given)
        except (ValueError, TypeError):
            raise InputError(f"expected a context such as auto, order:2 or types:16, got {text!r}") from None
        if len(given) < len(parts) or found.order < 1 or found.types < 1 or not 0 <= found.switch < 1:
            raise InputError(f"a context has order and types of 1 and more, and switch below 1, once; got {text!r}")
        if "switch" in given and found.types == 1:
            raise InputError(f"switch is between types of people, as in types:16,switch:0.01; got {text!r} without any")
        return found

    @property
    def name(self) -> str:
        """The context as `parse` reads it."""
        order = [f"order:{self.order}"] if self.order > 1 or self.types == 1 else []
        types = [f"types:{self.types}"] if self.types > 1 else []
        return ",".join([*order, *types, *([f"switch:{self.switch}"] if self.switch != SWITCH else [])])


@dataclass(frozen=True)
class Check:
    """How a model did on people whom it was not fitted to."""

    context: str
    types: int  # that there are: some may have been merged
    transitions: int
    people: int
    symbols: int
    log_likelihood: float  # a symbol
    standard_error: float


def held_out_check(model: MarkovModel) -> dict[str, Any] | None:
    """How the model did on people whom it was not fitted to, as its file says; None where nobody checked."""
    checked = (model.origin or {}).get("checked")
    return checked if isinstance(checked, dict) else None


def said_of_check(model: MarkovModel) -> str:
    """Whether the model was checked on people held out, in words that follow "the model was"."""
    found = held_out_check(model)
    if found is None:
        return "never checked on held-out people when it was fitted"
    return (
        f"checked on {found['people']:,} held-out people: log-likelihood {found['log_likelihood']:.4f} a symbol, "
        f"± {found['standard_error']:.4f}"
    )


def check(model: MarkovModel, users: Ints, codes: Ints, context: Context) -> Check:
    """How well a model, called by its context, predicts the streams of people whom it was not fitted to.

    `users` and `codes` are of every event, each user's in their order.
    """
    rows = np.unique(users, return_inverse=True)[1]
    totals, lengths = filtering.log_likelihoods(model, rows, codes), np.bincount(rows)
    mean = float(totals.sum() / codes.size)
    error = error_of_mean(totals, lengths) if np.isfinite(mean) else 0.0
    size = (int(model.types), model.transitions, lengths.size, codes.size)
    return Check(context.name, *size, mean, error)


@dataclass(frozen=True)
class Choice:
    """The context chosen, its model fitted to everyone, and the table that it was chosen from."""

    model: MarkovModel
    taken: Check
    table: list[Check]
    note: str  # the context in words, and whom it was checked on

    def lines(self) -> list[str]:
        """The comparison on held-out people as it is printed."""
        heads = ("context", "log-likelihood", "s.e.", "transitions", "")
        rows = []
        for row in self.table:
            figures = f"{row.log_likelihood:.4f}", f"{row.standard_error:.4f}", f"{row.transitions:,}"
            rows.append((called(row.context, row.types), *figures, "taken" if row is self.taken else ""))
        return str(ResultTable("", heads, rows)).splitlines()


def candidates(text: str, n: int, people: int) -> list[Context]:
    """The contexts to compare: those of `auto` that so many people allow, or the one named beside a plain chain.

    >>> [each.name for each in candidates("auto", 17, 1000)]
    ['order:1', 'order:2', 'types:4', 'types:16']
    """
    if text != "auto":
        named = Context.parse(text)
        return [named] if named == Context() else [Context(), named]
    found = [Context.parse(each) for each in AUTO]
    enough = [each for each in found if each.types == 1 or each.types * LEAST_PEOPLE <= people]
    return [each for each in enough if each.order == 1 or n**3 <= MOST_CONTEXTS]


@dataclass(frozen=True, eq=False)
class CodedEvents:
    """The people whom contexts are compared on, numbered 0, 1, …, and their events.

    Where each has an answer to a question (`trait`, and `labels`, None where it is not known), each answer has types of
    its own.
    """

    rows: Ints  # the person of each event
    codes: Ints
    count: int
    trait: str | None = None
    labels: Sequence[str | None] = ()

    @classmethod
    def of(cls, users: Ints, codes: Ints) -> CodedEvents:
        """People numbered in the order of their names."""
        names, rows = np.unique(users, return_inverse=True)
        return cls(rows, codes, int(names.size))

    @property
    def enough(self) -> bool:
        """Whether some of them can be held out, and each answer rests on enough people without those."""
        if self.trait is None:
            return self.count >= FEWEST_PEOPLE
        left = Counter(self._labels_without(people_held_out(self.count)))
        return min((left[label] for label in self.labels if label is not None), default=0) >= LEAST_PEOPLE

    def fit(self, context: Context, alphabet: Symbols, without: Ints, **how: Any) -> MarkovModel:
        """The model of a context, fitted to everyone but these people; `how` as in `fit_codes`."""
        if self.trait is not None:
            trait = self.trait, self._labels_without(without)
            return fit_codes(self.rows, self.codes, alphabet, trait=trait, **asdict(context), **how)
        kept = ~np.isin(self.rows, without)
        asked = asdict(context) | {"types": None if context.types == 1 else context.types}
        return fit_codes(self.rows[kept], self.codes[kept], alphabet, **asked, **how)

    def _labels_without(self, people: Ints) -> list[str | None]:
        left_out = set(people.tolist())
        return [None if k in left_out else label for k, label in enumerate(self.labels)]

    def streams(self, chosen: Ints) -> tuple[Ints, Ints]:
        """Who and which code, event by event, of these people: one after another, the first LONGEST events of each."""
        kept = np.flatnonzero(np.isin(self.rows, chosen))
        kept = kept[np.argsort(self.rows[kept], kind="stable")]
        kept = kept[places_within(np.bincount(self.rows[kept])) < LONGEST]
        return self.rows[kept], self.codes[kept]


def choose(
    people: CodedEvents,
    alphabet: Symbols,
    text: str = "auto",
    *,
    smoothing: float = SMOOTHING,
    progress: Progress | None = None,
) -> Choice:
    """Compare contexts on held-out people, and fit the one taken to everyone.

    A fifth of the people, 5,000 at most, are held out of the fits that are compared. "auto" takes the model of fewest
    transitions whose log-likelihood is within one standard error of the best; a context that was named is taken.
    `smoothing` is above 0, as people held out do what nobody else did; `progress` hears the share that is done.
    """
    if people.count < FEWEST_PEOPLE:
        raise DataError(f"a context is checked on people held out, of {FEWEST_PEOPLE} and more; got {people.count}")
    if not smoothing > 0:
        raise InputError("a context is checked on people held out, who do what nobody else did; expected smoothing > 0")
    held = people_held_out(people.count)
    found = candidates(text, alphabet.n, people.count - held.size)
    streams, table = people.streams(held), list[Check]()

    def part(share: float) -> None:
        """Tell how far it is, with this share of the candidate under way."""
        if progress is not None:
            progress((len(table) + share) / (len(found) + 1))

    how: dict[str, Any] = {"smoothing": smoothing, "progress": part}
    for each in found:
        table.append(check(people.fit(each, alphabet, held, **how), *streams, each))
        part(0.0)
    best = max(table, key=lambda row: row.log_likelihood)
    near = [row for row in table if row.log_likelihood >= best.log_likelihood - best.standard_error]
    taken = table[-1] if text != "auto" else min(near, key=lambda row: row.transitions)
    context = found[table.index(taken)]
    model = people.fit(context, alphabet, held[:0], **how)
    note = f"{called(taken.context, model.types)}, checked on {taken.people:,} held-out people"
    record = {  # what the model's file keeps: public, like the model
        "kind": "context",
        "private": False,
        "context": taken.context,
        "note": f"{note}; not private",
        "checked": asdict(taken),
        "compared": [asdict(row) for row in table],
        **({} if model.types == 1 else {"mixture": dict(model.origin or {})}),
    }
    return Choice(model.with_origin(record), taken, table, note)


def people_held_out(people: int) -> Ints:
    """Who of so many people is held out, a fifth of them, always the same."""
    many = min(MOST_HELD_OUT, max(2, round(HELD_OUT * people)))
    return np.random.default_rng(0).permutation(people)[:many]


def called(context: str, types: int) -> str:
    """A context, and where types of too few people were merged how many are left."""
    return f"{context} ({types} types left)" if types < Context.parse(context).types else context
