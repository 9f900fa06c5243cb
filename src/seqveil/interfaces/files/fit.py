"""Fit a model to a file or a frame: `sv.fit` and `seqveil fit`.

A private fit takes a public alphabet, bounds what each user gives, and counts with noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any, TypedDict, Unpack

import numpy as np

from seqveil.core.alphabet import MISSING, Alphabet, OnMissing, OnUnknown, Symbols
from seqveil.core.errors import DataError, InputError, option
from seqveil.core.fitting import fit_codes
from seqveil.core.geography import Cells
from seqveil.core.kernel import Ints
from seqveil.core.model import SMOOTHING, MarkovModel, Names, Reading
from seqveil.core.private import CONTRIBUTION, CUT, BoundedCounts, origin_in_words
from seqveil.core.randomness import randomness
from seqveil.core.states import label_of
from seqveil.core.times import NOTHING, Slots
from seqveil.core.words import Line, Result, count, plain
from seqveil.interfaces.choosing import Choice, CodedEvents, Context, choose
from seqveil.interfaces.files import cuts
from seqveil.interfaces.files.events import Events, ValueType, read_events, value_type_of
from seqveil.interfaces.files.table import as_polars

FOR_FIT = "check the value column, or add the value to the alphabet"
WAYS = ("bins", "grid", "cell_metres")  # to cut numbers, points and places
EMPTY = ("nothing", "hold")  # what may stand in a slot without events


class ColumnWords(TypedDict, total=False):
    """What the columns are called; by default user, value, and seq or a name of times where there is one."""

    user: Names  # or several that name a person together: "firm,badge"
    value: Names  # "x,y" for points, "lat,lon" for places
    time: str | None


class ValueWords(ColumnWords, total=False):
    """How a file is read, and how its values become symbols."""

    format: str | None  # of a file whose name does not tell
    missing: OnMissing | None  # rows without a value: "drop", "hold" or "symbol"; the model remembers it
    every_seconds: float | None  # one symbol for each slot of so many seconds; the model remembers it
    slot: str | None  # what stands for several events, "last", "mean" or "most"; with "pad", "hold", "nothing" behind
    utc_offset: float | None  # hours by which the clock of `during` and of days is ahead of UTC
    bins: float | str | None  # cut numbers into bins of this width; "auto": some 20 over their bulk
    grid: str | None  # cut points into a grid such as "10x10", or "auto"
    cell_metres: float | None  # cut the map around the bulk of the places into cells of this size
    range: str | None  # "LO,HI", "X0,X1,Y0,Y1" or "SOUTH,NORTH,WEST,EAST", where it is not taken from the data
    alphabet: Any  # the values there are: a list, an `Alphabet`, or a file of them; else those that occur
    other: int | None  # take values that fewer people have together as the symbol "other"
    on_unknown: OnUnknown | None  # what later commands do with values outside the alphabet


@dataclass(frozen=True, eq=False)
class CodedValues:
    """The events of a file with the codes of their values."""

    events: Events
    alphabet: Symbols
    codes: Ints
    pooled: int = 0  # values that were taken together as "other"
    clamped: int = 0  # events outside the cells, counted to those at the edge


def slots_of(every_seconds: float | None, slot: str | None = None, utc_offset: float | None = None) -> Slots | None:
    """The slots that were asked for; `slot` is the rule, and behind commas whether to pad and what an empty one is.

    >>> slots_of(60, "mean,pad")
    Slots(seconds=60.0, rule='mean', pad=True, empty=None, utc_offset=0.0)
    """
    if every_seconds is None:
        if slot is not None or utc_offset is not None:
            named = f"{option('slot')} and {option('utc_offset')}"
            raise InputError(f"{named} are about slots of time; pass {option('every_seconds')} with them")
        return None
    rule, *more = [part.strip() for part in (slot or "last").split(",")]
    empty = [part for part in more if part in EMPTY]
    if set(more) - {"pad", *EMPTY} or len(empty) > 1:
        raise InputError(
            f"expected {option('slot')} as last, mean or most, with pad, hold or nothing behind a comma; got {slot!r}"
        )
    return Slots(every_seconds, rule, "pad" in more, empty[0] if empty else None, utc_offset or 0.0)  # type: ignore[arg-type]


def read_values(data: Any, *, public: bool = False, **words: Unpack[ValueWords]) -> CodedValues:
    """The events of a file or a frame, and the codes of their values by an alphabet that is named or found.

    `public` refuses whatever looks at the data to find the alphabet, as a private fit must.
    """
    known = ValueWords.__annotations__
    if strange := sorted(words.keys() - known.keys()):
        raise InputError(f"{strange[0]!r} is not known here; expected {', '.join(known)}")
    given: Any = SimpleNamespace(**dict.fromkeys(known) | words)
    slots = slots_of(given.every_seconds, given.slot, given.utc_offset)
    ways = {name: words[name] for name in WAYS if words.get(name) is not None}  # type: ignore[literal-required]
    named = _named(given, ways, public)
    on_map = "cell_metres" in ways or (named is not None and named.on_map)
    if on_map and slots is not None:
        slots = replace(slots, empty=slots.empty or "hold")
    names: ValueType = "text" if given.other is not None or slots is not None else "auto"
    kind = value_type_of(named) if named is not None else "number" if ways else names
    reading = Reading().but(given.user, given.value, given.time)
    how: dict[str, Any] = {"format": given.format, "missing": given.missing, "slots": slots, "on_map": on_map}
    events, pooled = read_events(as_polars(data), reading, kind, **how), 0
    if named is None:
        named, pooled = _found(events, ways, given.other, given.missing, slots)
    alphabet = cuts.in_slots(named, slots)
    usual: OnUnknown = "other" if given.other is not None else alphabet.on_unknown
    alphabet = alphabet.with_policy(given.on_unknown or usual).with_missing(given.missing).with_slots(slots)
    clamped = 0
    if alphabet.on_unknown == "nearest" and not isinstance(alphabet, Alphabet):
        clamped = int((alphabet.with_policy("hide").encode(events.values) < 0).sum())
    counted = alphabet if alphabet.on_unknown in ("other", "nearest") else alphabet.strict
    return CodedValues(events, alphabet, events.codes(counted, FOR_FIT), pooled, clamped)


def _named(given: Any, ways: Mapping[str, Any], public: bool) -> Symbols | None:
    """The alphabet that is spelled out without a look at the data; None where the data have to say it.

    Refuses what does not go together.
    """
    several = [*ways, *(name for name in ("alphabet", "other") if getattr(given, name) is not None)]
    if len(several) > 1:
        raise InputError(
            f"expected at most one of {', '.join(map(option, several))}, which all say what the symbols are; leave the "
            "others out"
        )
    if given.range is not None and not ways:
        named = " or ".join(option(way) for way in WAYS)
        raise InputError(f"{option('range')} goes with {named}; add one of them, or leave it out")
    if given.alphabet is not None:
        return cuts.named_alphabet(given.alphabet)
    if public and given.range is None:
        raise InputError(
            "a private fit needs a public alphabet, since collecting it from the data would show who had what; pass "
            f"{option('alphabet')}, or {option('bins')}, {option('grid')} or {option('cell_metres')} with "
            f"{option('range', 'LO,HI')}"
        )
    return None if given.range is None else cuts.cut(*next(iter(ways.items())), None, given.range)


def _found(
    events: Events, ways: Mapping[str, Any], other: int | None, missing: OnMissing | None, slots: Slots | None
) -> tuple[Symbols, int]:
    """The alphabet of what is in a file, and how many values were pooled in it."""
    pairs = len(events.reading.value_columns) == 2
    if pairs != bool(ways.keys() & {"grid", "cell_metres"}):
        raise InputError(
            f"cells need two columns, and two columns need cells; pass {option('cell_metres', 500)} with "
            f"{option('value', 'lat,lon')} for places on the map, or {option('grid', 'auto')} with "
            f"{option('value', 'x,y')} for points"
        )
    if ways:
        return cuts.cut(*next(iter(ways.items())), np.asarray(events.values, np.float64), name=events.name), 0
    values = events.frame["value"]
    seen, pooled = cuts.distinct(values, events.users, events.name, other)
    more = {MISSING} if missing == "symbol" else set()
    more |= {NOTHING} if slots is not None and slots.empty != "hold" else set()
    return Alphabet.of(seen | more), pooled


@dataclass(frozen=True, eq=False, repr=False)
class Fitted(Result):
    """A model and how much it was fitted on."""

    model: MarkovModel
    events: int
    users: int
    read: Mapping[str, Any] | None = None  # how the rows were read, as plain values; None for a private fit
    read_as: str = ""  # the same in a line
    choice: Choice | None = None  # where contexts were compared
    pooled: int = 0
    smoothing: float | None = None  # pseudo-events of each context; None for a private fit, which has noise
    clamped: int = 0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        model, origin = self.model, self.model.origin
        facts: dict[str, Any] = {
            "fingerprint": model.fingerprint, "order": model.order, "symbols": model.n,
            "transitions": model.transitions, "types": model.types, "events": self.events, "users": self.users,
            "pooled": self.pooled, "clamped": self.clamped, "smoothing": self.smoothing, "rules_out": model.rules_out,
            "private": bool(origin and origin["private"]), "origin": origin, "reading": self.read, "read": self.read_as,
        }  # fmt: skip
        return dict(plain(facts))

    def lines(self) -> list[Line]:
        """What was fitted, and whether that is private."""
        model, choice, origin = self.model, self.choice, self.model.origin
        noisy = "about " if origin is not None and origin.get("kind") == "private fit" else ""
        types = f"{model.types} types, " if model.types > 1 else ""
        size = f"{count(model.n, 'symbol')}, {count(model.transitions, 'transition')}"
        taken = f"{noisy}{count(self.events, 'event')} of {noisy}{count(self.users, 'user')}"
        said = [
            *([("read", self.read_as)] if self.read_as else []),
            ("model", f"{types}order {model.order}, {size}"),
            ("from", taken + " (noisy counts)" * bool(noisy)),
        ]
        if self.smoothing:
            added = f"{self.smoothing:g} event{'s' * (self.smoothing != 1)}"
            said.append(("added", f"{added} to each context, spread as all are: nothing is called impossible"))
        elif self.smoothing == 0:
            why = "what nobody did is called impossible, and every account assumes that nobody ever does it"
            said.append(("added", f"nothing: {why}"))
        if self.pooled:
            said.append(("other", f"{self.pooled} values that too few people have are one symbol, other"))
        if self.clamped:
            said.append(("clamped", f"{self.clamped:,} events outside the cells count to those at the edge"))
        if isinstance(model.alphabet, Cells):
            size = f"{model.alphabet.metres:.10g} m"
            said.append(("places", f"cells of {size}, named by their centres; distortion metres"))
        if model.trait is not None and origin is not None:
            made = origin.get("mixture", origin)
            types_of = zip(model.trait.answers, model.trait.types, strict=True)
            answers = ", ".join(f"{answer} ({own})" for answer, own in types_of)
            left_out = f"{made['people_without_answer']:,} users without an answer are left out"
            said.append(("trait", f"{model.trait.name}, by answer (types): {answers}; {left_out}"))
        if choice is not None:
            said += [("compared", line) for line in choice.lines()]
            said.append(("context", choice.note))
        if noisy and origin is not None and self.events < CUT * origin["sensitivity"] / origin["epsilon"] * model.n:
            said.append(("warning", "the model is mostly noise; fit it to more people, or to fewer symbols"))
        raw = "the fit is not private: the model may reveal something about the people it was fitted to"
        return [*said, ("note", origin_in_words(origin) if noisy and origin is not None else raw)]


def fit(data: Any, **words: Any) -> MarkovModel:
    """Fit a model to a frame or a file, as `seqveil fit` does. A plain fit is not itself private.

    Parameters: those of `fit_table`, and in `words` those of `ValueWords`.

    >>> import polars as pl
    >>> fit(pl.DataFrame({"user": ["ann"] * 4, "value": ["home", "home", "work", "home"]})).n
    2
    """
    return fit_table(data, **words).model


def fit_table(
    data: Any,
    *,
    smoothing: float = SMOOTHING,
    context: str | None = None,
    trait: str | None = None,
    private: float | None = None,
    contribution: int | None = None,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
    **words: Unpack[ValueWords],
) -> Fitted:
    """Fit a model to a file or a frame. Without `private` the fit itself is **not** private.

    Parameters:
        smoothing: as in `MarkovModel.fit`.
        context: what the next symbol depends on ("auto", "order:2", "types:16"), checked on held-out people.
        trait: a column with one label for each user; each label gets types of its own, as many as `context` says.
        private: fit with differential privacy at this ε for each user. Users and events are noisy then too: nothing
            that comes back reveals more than the model does.
        contribution: with `private`, the most transitions of one user that count.
        seed: with `private`, makes the noise repeatable, and the fit not private.
        progress: called with the share that is done where contexts are compared.
    """
    _check_private(private, context or trait, smoothing, (contribution, seed), words)
    found = read_values(data, public=private is not None, **words)
    if private is not None:
        return _fit_private(found, private, contribution, seed)
    people, who = found.events.people
    by_name = np.argsort(np.argsort(np.array(people, object).astype(str), kind="stable"))
    who, choice = by_name[who], None  # the same people are held out whatever the order of rows
    how: dict[str, Any] = {"smoothing": smoothing, "progress": progress}
    coded, labels = CodedEvents.of(who, found.codes), list[str | None]()
    if trait is not None:
        answers = answers_of(data, found.events.reading, trait, words.get("format"))
        labels = [answers.get(name) for name in sorted(map(str, people))]
        coded = replace(coded, trait=trait, labels=labels)
    if context is not None and (coded.enough or (trait is None and context == "auto")):
        choice = choose(coded, found.alphabet, context, **how)
        model = choice.model
    elif trait is not None and context in (None, "auto"):  # as many types of each answer as predict others
        model = fit_codes(coded.rows, coded.codes, found.alphabet, trait=(trait, labels), **how)
    else:  # nothing to choose, or too few to hold any out
        wanted = Context() if context is None else Context.parse(context)
        model = coded.fit(wanted, found.alphabet, np.zeros(0, np.int64), **how)
    return Fitted(
        model.with_reading(replace(found.events.reading, time=words.get("time"))),  # an order by name is found again
        found.codes.size,
        len(people),
        asdict(found.events.taken),
        found.events.taken.sentence,
        choice,
        found.pooled,
        smoothing,
        found.clamped,
    )


def answers_of(data: Any, reading: Reading, column: str, format: str | None = None) -> dict[str, str]:
    """Each user's label in a column of a file, where there is one; somebody with two labels is refused."""
    if isinstance(data, str) and data == "-":
        raise InputError("a trait is read from a column of a file, beside the values; got a pipe, name the file")
    try:
        events = read_events(as_polars(data), reading.but(value=column), "text", format=format, holes="empty")
    except DataError as error:  # where a message names the option of the column, it is that of the trait
        raise DataError(str(error).replace(option("value"), option("trait"))) from None
    found: dict[str, str] = {}
    for user, given in zip(events.users.to_list(), events.frame["value"].to_list(), strict=True):
        label = label_of(given)
        if label and found.setdefault(str(user), label) != label:
            raise DataError("somebody has two answers to the trait; a trait never changes, so give each user one label")
    return found


def _check_private(
    private: float | None, beyond: str | None, smoothing: float, bounds: Sequence[int | None], words: Mapping[str, Any]
) -> None:
    """Refuse what a fit with differential privacy cannot do, and what only such a one can.

    `beyond` is a context or a trait; `bounds`, what is said about the noise.
    """
    if private is None:
        if any(each is not None for each in bounds):
            raise InputError(
                f"{option('contribution')} and {option('seed')} are for a private fit; pass {option('private')} as well"
            )
        return
    if beyond is not None:
        raise InputError(
            "a private fit is of one chain: noise for n² counts hides a person, noise for each type's would hide the "
            f"types; leave {option('context')} and {option('trait')} out, or fit it to data that may be published"
        )
    if smoothing != SMOOTHING:
        raise InputError(f"a private fit smooths by its noise; leave {option('smoothing')} out")
    if "pad" in (words.get("slot") or ""):
        raise InputError("padding shows when others begin and end, which noise does not hide; leave pad out")


def _fit_private(found: CodedValues, epsilon: float, contribution: int | None, seed: int | None) -> Fitted:
    """A chain of order 1 that is ε-differentially private for each user; see `BoundedCounts`."""
    most = CONTRIBUTION if contribution is None else contribution
    counts = BoundedCounts.of(found.events.people[1], found.codes, found.alphabet.n, most)
    model = counts.model(epsilon, randomness(seed), found.alphabet).with_reading(found.events.reading)
    noisy: Any = model.origin  # counts of raw rows have no noise
    return Fitted(model, noisy["events"], noisy["users"], read_as=found.events.taken.public)
