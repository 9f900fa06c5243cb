"""Which context describes people: candidates fitted to some people and checked on others.

Every promise of this package is about a model. Whether the model is true of people is a question that data can answer:
some people are held out of the fit, and their streams are foretold, one symbol after another.

- *log-likelihood a symbol*: how well what came was foretold, 0 at best; its standard error is over people.
- *error*: how many released symbols are wrong (`optimal`, ε = 1), as the model predicts it and as it turned out.
- *calibration*: of all symbols foretold with 60 to 70 %, how many came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.alphabet import Symbols
from seqveil.core.bulk import Layout
from seqveil.core.coins import SeededCoins
from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import MOST_STATES
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mixture import LEAST_PEOPLE, SWITCH
from seqveil.core.model import Counts, HourCounts, MarkovModel, fit_mixture
from seqveil.core.times import Hours
from seqveil.release import stream

AUTO = ("order:1", "hours", "order:2", "types:4", "types:16", "types:48")
DAY = "24"  # bands of hours where nobody says how many
HELD_OUT, MOST_HELD_OUT = 0.2, 5_000  # share of the people, and how many at most
FEWEST_PEOPLE = 10  # with fewer there is nobody to hold out
LONGEST = 500  # events of a person that are foretold
RELEASED_PEOPLE, RELEASED_EVENTS, WIDEST = 500, 50, 200  # for the error; alphabets wider than that are left out
EPSILON = 1.0
SMOOTHING = 1.0  # what nobody did in the fit, others may do
MOST_CONTEXTS = 2_000_000  # runs of three symbols up to which order 2 is tried
BINS = 10  # of calibration
TOLD = ("context", "people", "symbols", "log_likelihood", "standard_error", "predicted_error", "realised_error")
NO_TIMES = "hours of the day need a time for each event; add a column time, or name it with --time-column"
_NUMBERS = 1 << 21

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Context:
    """What the next symbol may depend on: the last `order` symbols, and a type of person or the hour of the day.

    `hours` are bands of the day as `core.times.Hours` reads them; with `per_day` events come evenly, so many a day,
    from the hour `starts` on.

    >>> Context.parse("types:16")
    Context(order=1, types=16, switch=0.0001, hours=None, per_day=None, starts=0.0)
    >>> Context.parse("order:2,types:4").title
    '4 types, order 2'
    >>> Context.parse("hours:night=22-6,day=6-22").title
    'order 1, 2 hour bands'
    """

    order: int = 1
    types: int = 1
    switch: float | str = SWITCH
    hours: str | None = None
    per_day: int | None = None
    starts: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Context:
        """The context that a text names, such as order:2, types:16, order:2,types:16,switch:0.01 or hours:24."""
        given: dict[str, Any] = {}
        for name, value in _parts(text):
            try:
                if name == "hours":
                    given[name] = str(Hours.parse(value or DAY))
                elif name in ("switch", "starts"):
                    given[name] = value if (name, value) == ("switch", "estimate") else float(value)
                else:
                    given[name] = int(value)
            except InputError:
                raise
            except ValueError:
                name = ""
            if name not in cls.__dataclass_fields__:
                raise InputError(f"expected a context such as auto, order:2, types:16 or hours, got {text!r}")
        found = cls(**given)
        found._check_hours()
        if found.order < 1 or found.types < 1 or not (found.switch == "estimate" or 0 <= float(found.switch) < 1):
            raise InputError(f"a context has order and types of 1 and more, and switch below 1; got {text!r}")
        if "switch" in given and found.types == 1:
            raise InputError(f"switch is between types of people, as in types:16,switch:0.01; got {text!r} without any")
        return found

    @property
    def name(self) -> str:
        """The context as `parse` reads it."""
        if self.hours is not None:
            evenly = "" if self.per_day is None else f",per_day:{self.per_day},starts:{self.starts:g}"
            return f"hours:{self.hours}{evenly}"
        parts = [f"types:{self.types}"] if self.types > 1 else []
        parts = [f"order:{self.order}", *parts] if self.order > 1 or not parts else parts
        switch = self.switch if isinstance(self.switch, str) else f"{self.switch:g}"
        return ",".join([*parts, *([f"switch:{switch}"] if self.switch != SWITCH else [])])

    @property
    def title(self) -> str:
        """The context in words."""
        if self.hours is not None:
            evenly = "" if self.per_day is None else f", {self.per_day} a day"
            return f"order 1, {Hours.parse(self.hours).count} hour bands{evenly}"
        if self.types == 1:
            return f"order {self.order}"
        switch = self.switch if isinstance(self.switch, str) else f"{self.switch:g}"
        changing = "" if self.switch == SWITCH else f", switch {switch}"
        return f"{self.types} types, order {self.order}{changing}"

    def fit(
        self,
        users: Ints,
        codes: Ints,
        alphabet: Symbols,
        smoothing: float = SMOOTHING,
        prior: Any = "data",
        seed: int = 0,
        least_people: int = LEAST_PEOPLE,
        progress: Progress | None = None,
        times: Floats | None = None,
    ) -> MarkovModel:
        """The model of this context fitted to streams: users and codes of all events, and their times in seconds."""
        if self.hours is not None:
            return self._fit_hours(users, codes, alphabet, smoothing, prior, times)
        if self.types == 1:
            counts = Counts(alphabet.n, self.order)
            counts.add(users, codes)
            return counts.model(alphabet, smoothing, prior)
        law = (smoothing, prior, seed, least_people, progress)
        return fit_mixture(users, codes, self.order, self.switch, self.types, alphabet, *law)

    def _fit_hours(
        self, users: Ints, codes: Ints, alphabet: Symbols, smoothing: float, prior: Any, times: Floats | None
    ) -> MarkovModel:
        assert self.hours is not None
        if times is None:
            raise DataError(NO_TIMES)
        bands = HourCounts(alphabet.n, Hours.parse(self.hours))
        bands.add(users, codes, times)
        model = bands.model(alphabet, smoothing, prior)
        if self.per_day is None:
            return model
        even = model.scheduled(self.per_day, self.starts)
        assert even.hours is not None
        layout = Layout.of(np.unique(users, return_inverse=True)[1])
        seqs = np.empty(users.size, np.int64)
        seqs[layout.order] = np.arange(users.size) - np.repeat(layout.begins, layout.lengths)
        if ((even.hours.begins.index(self.starts) + seqs) % self.per_day != even.hours.of(times)).any():
            raise DataError(
                f"expected {self.per_day} events a day, evenly spread, in streams that begin at {self.starts:g} "
                "o'clock; some come at other times: fill the gaps, or leave per_day out"
            )
        return even

    def _check_hours(self) -> None:
        if (self.hours is None and self.per_day is not None) or (self.per_day is None and self.starts):
            raise InputError("per_day and starts go with hours of the day, as in hours:24,per_day:96")
        if self.hours is not None and (self.order, self.types, self.switch) != (1, 1, SWITCH):
            raise InputError("hours of the day go with order 1 and without types; name hours alone, or leave them out")
        if self.per_day is not None:
            Hours.equal(self.per_day)


def _parts(text: str) -> list[tuple[str, str]]:
    """Names and values of a context; bands of hours have commas of their own."""
    found: list[tuple[str, str]] = []
    for part in text.split(","):
        name, colon, value = part.strip().partition(":")
        if not colon and "=" in name and found and found[-1][0] == "hours":
            found[-1] = "hours", f"{found[-1][1]},{name}"
        else:
            found.append((name, value))
    return found


@dataclass(frozen=True)
class Check:
    """How a model did on people whom it was not fitted to."""

    context: str
    title: str
    types: int  # that there are: some may have been merged
    transitions: int
    people: int
    symbols: int
    log_likelihood: float  # a symbol
    standard_error: float
    predicted_error: float | None  # None: the alphabet is too wide to measure
    realised_error: float | None
    foretold: list[list[float]]  # for each tenth of probability: how many were foretold so, with what mean; share come

    @property
    def calibration(self) -> float | None:
        """Of the symbols foretold with 60 to 70 %, the share that came; None where none was."""
        count, _, came = self.foretold[6]
        return came if count else None

    @property
    def miscalibration(self) -> float:
        """Mean distance of what was foretold from what came, over all that was foretold with 5 % and more."""
        rows = np.array(self.foretold)
        return float((rows[:, 0] * np.abs(rows[:, 1] - rows[:, 2])).sum() / max(1.0, rows[:, 0].sum()))


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


def candidates(
    text: str, n: int, people: int, least_people: int = LEAST_PEOPLE, times: Floats | None = None
) -> list[Context]:
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
        if (each.hours is None or _tells_hours(times, n, each.hours))
        and (each.types == 1 or each.types * least_people <= people)
        and (each.order == 1 or n**3 <= MOST_CONTEXTS)
    ]


def _tells_hours(times: Floats | None, n: int, hours: str) -> bool:
    """Whether these times fall in more than one band of hours, few enough for the alphabet."""
    bands = Hours.parse(hours)
    return times is not None and bands.count * n <= MOST_STATES // 4 and np.unique(bands.of(times)).size > 1


def choose(
    users: Ints,
    codes: Ints,
    alphabet: Symbols,
    text: str = "auto",
    *,
    people: Ints | None = None,
    smoothing: float = SMOOTHING,
    prior: Any = "data",
    seed: int = 0,
    least_people: int = LEAST_PEOPLE,
    progress: Progress | None = None,
    times: Floats | None = None,
) -> Choice:
    """Compare contexts on held-out people, and fit the one taken to everyone.

    A fifth of the people, 5,000 at most, are held out of the fits that are compared. `auto` takes the model of fewest
    transitions whose log-likelihood is within one standard error of the best; a context that was named is taken.

    Parameters:
      users: the user of every event, each user's events in their order.
      codes: their symbols.
      alphabet: the alphabet of the codes.
      text: "auto", or a context (`Context.parse`).
      people: the person of every event, where `users` names streams and a person has several: people are held out.
      smoothing: pseudo-count of the common chain, as in `MarkovModel.fit`.
      prior: as in `MarkovModel.fit`.
      seed: of the split and the fits; the table is repeatable.
      least_people: people that each type must have.
      progress: told the share that is done, 0 to 1.
      times: the time of every event in seconds, where there are times; hours of the day need them.
    """
    law: dict[str, Any] = {"smoothing": smoothing, "prior": prior, "seed": seed, "least_people": least_people}
    return choose_among(Events.of(users, codes, people, times), alphabet, text, progress, **law)


class People(Protocol):
    """The people whom contexts are compared on, numbered 0, 1, …: in memory, or counted elsewhere."""

    @property
    def count(self) -> int:
        """How many there are."""

    def fit(self, context: Context, alphabet: Symbols, without: Ints, **law: Any) -> MarkovModel:
        """The model of a context, fitted to everyone but these people."""

    def streams(self, chosen: Ints) -> tuple[Ints, Ints]:
        """Who and which code, event by event, of these people: one after another, the first LONGEST events of each."""


@dataclass(frozen=True, eq=False)
class Events:
    """People whose events are all in memory."""

    rows: Ints  # the stream of each event; where everyone has one, the person
    codes: Ints
    count: int
    owner: Ints | None = None  # the person of each stream, where some have several
    times: Floats | None = None  # in seconds, where there are times

    @classmethod
    def of(cls, users: Ints, codes: Ints, people: Ints | None = None, times: Floats | None = None) -> Events:
        """People numbered in the order of their names."""
        names, first, rows = np.unique(users, return_index=True, return_inverse=True)
        if people is None:
            return cls(rows, codes, int(names.size), times=times)
        persons, whose = np.unique(people, return_inverse=True)
        return cls(rows, codes, int(persons.size), whose[first], times)

    def _of_people(self, chosen: Ints) -> NDArray[np.bool_]:
        """Which events are of these people."""
        return np.isin(self.rows if self.owner is None else self.owner[self.rows], chosen)

    def fit(self, context: Context, alphabet: Symbols, without: Ints, **law: Any) -> MarkovModel:
        """The model of a context, fitted to everyone but these people."""
        kept = ~self._of_people(without)
        times = None if self.times is None else self.times[kept]
        return context.fit(self.rows[kept], self.codes[kept], alphabet, times=times, **law)

    def streams(self, chosen: Ints) -> tuple[Ints, Ints]:
        """Who and which code, event by event, of these people."""
        kept = self._kept(chosen)
        return self.rows[kept], self.codes[kept]

    def moments(self, chosen: Ints) -> Floats | None:
        """When these events of `streams` came."""
        return None if self.times is None else self.times[self._kept(chosen)]

    def _kept(self, chosen: Ints) -> Ints:
        kept = np.flatnonzero(self._of_people(chosen))
        kept = kept[np.argsort(self.rows[kept], kind="stable")]
        rows = self.rows[kept]
        begins = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
        place = np.arange(rows.size) - np.repeat(begins, np.diff(np.append(begins, rows.size)))
        return np.asarray(kept[place < LONGEST], np.int64)


def choose_among(people: People, alphabet: Symbols, text: str, progress: Progress | None, **law: Any) -> Choice:
    """The choice of `choose` for people wherever their events are; `law` is what a fit takes, all of it."""
    if people.count < FEWEST_PEOPLE:
        raise DataError(f"a context is checked on people held out, of {FEWEST_PEOPLE} and more; got {people.count}")
    held = people_held_out(people.count, law["seed"])
    times, later = (people.times, people.moments(held)) if isinstance(people, Events) else (None, None)
    found = candidates(text, alphabet.n, people.count - held.size, law["least_people"], times)
    streams, owner = people.streams(held), getattr(people, "owner", None)
    whose = None if owner is None else owner[streams[0]]
    told = _Shares(progress, len(found) + 1)
    table = []
    for each in found:
        model = people.fit(each, alphabet, held, progress=told.part, **law)
        table.append(check(model, *streams, each, law["seed"], later, whose))
        told.next()
    taken = table[-1] if text != "auto" else _smallest(table)
    nobody = np.zeros(0, np.int64)
    model = people.fit(found[table.index(taken)], alphabet, nobody, progress=told.part, **law)
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
        if self._progress is not None:
            self._progress((self._done + share) / self._parts)

    def next(self) -> None:
        self._done += 1
        self.part(0.0)


def _smallest(table: Sequence[Check]) -> Check:
    best = max(table, key=lambda row: row.log_likelihood)
    near = [row for row in table if row.log_likelihood >= best.log_likelihood - best.standard_error]
    return min(near, key=lambda row: row.transitions)


def _record(model: MarkovModel, taken: Check, table: Sequence[Check]) -> dict[str, Any]:
    """What the model's file keeps: public, like the model."""
    made = dict(model.origin or {})
    people = f"checked on {taken.people:,} held-out people"
    merged = {} if model.types == 1 else {"mixture": made}
    note = f"{taken.title if model.types == 1 else f'{model.types} types, order {model.order}'}, {people}; not private"
    return {
        "kind": "context",
        "private": False,
        "context": taken.context,
        "note": note,
        "checked": asdict(taken),
        "compared": [asdict(row) for row in table],
        **merged,
    }


def held_out_check(model: MarkovModel) -> dict[str, Any] | None:
    """How the model did on people whom it was not fitted to, as its file tells; None where nobody looked."""
    checked = (model.origin or {}).get("checked")
    return {name: checked[name] for name in TOLD if name in checked} if isinstance(checked, dict) else None


def said_of_check(model: MarkovModel) -> str:
    """Whether the model was checked on people held out, in words that follow "the model was".

    >>> said_of_check(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    'never checked on people held out'
    """
    found = held_out_check(model)
    if found is None:
        return "never checked on people held out"
    return (
        f"checked on {found['people']:,} held-out people: log-likelihood {found['log_likelihood']:.4f} a symbol, "
        f"± {found['standard_error']:.4f}"
    )


def check(
    model: MarkovModel,
    users: Ints,
    codes: Ints,
    context: Context | None = None,
    seed: int = 0,
    times: Floats | None = None,
    people: Ints | None = None,
) -> Check:
    """How well a model foretells the streams of people whom it was not fitted to.

    Parameters:
      model: the model.
      users: the user of every event, each user's events in their order.
      codes: their symbols, as codes of the model's alphabet.
      context: what to call the model.
      seed: of the releases whose errors are counted.
      times: when they came, in seconds, for a model by the hour of the day.
      people: the person of every event, where `users` names streams and a person has several.
    """
    if model.hours is not None and times is None:
        raise DataError(NO_TIMES)
    bands = None if model.hours is None or times is None else model.hours.of(times)
    named = context or Context(model.order, model.types, hours=None if model.hours is None else str(model.hours))
    _, rows = np.unique(users, return_inverse=True)
    layout = Layout.of(rows)
    streams, lengths = layout.lengths.size, np.minimum(layout.lengths, LONGEST)
    totals, hits = np.zeros(streams), np.zeros((3, BINS))
    at = 0
    for places, long in layout.blocks(most=max(1, _NUMBERS // model.size)):
        short = np.minimum(long, LONGEST)
        places = places[:, : int(short.max())]
        for laws, truth in filtering.foresee(model, codes[places], short, None if bands is None else bands[places]):
            told = laws[np.arange(truth.size), truth]
            with np.errstate(divide="ignore"):
                totals[at : at + truth.size] += np.log(told)
            hits += _hits(laws, told)
        at += long.size
    symbols = int(lengths.sum())
    mean = float(totals.sum() / symbols)
    # a ratio of sums over people: each person's part of it moves both
    spread = (totals - mean * lengths) if np.isfinite(mean) else np.zeros(streams)
    if people is not None:
        owners = np.unique(people[layout.order[layout.begins]], return_inverse=True)[1]
        spread = np.bincount(owners, spread).astype(np.float64)
    count = spread.size
    error = float(np.sqrt((spread**2).sum() * count / max(1, count - 1)) / symbols)
    predicted, realised = _errors(model, layout, codes, seed, times)
    foretold = np.stack([hits[0], *(hits[1:] / np.maximum(hits[0], 1))], axis=1).tolist()
    size = (int(model.types), model.transitions, count, symbols)
    return Check(named.name, named.title, *size, mean, error, predicted, realised, foretold)


def _hits(laws: Floats, told: Floats) -> Floats:
    """For each tenth of probability: how many symbols were foretold so, the sum of it, and how many came: (3, 10).

    Symbols foretold with less than 5 % are left out: there are many, and none tells much.
    """
    shown, came = laws[laws >= 0.05], told[told >= 0.05]
    place, hit = (np.minimum((part * BINS).astype(int), BINS - 1) for part in (shown, came))
    sums = np.bincount(place, shown, BINS)
    return np.stack([np.bincount(place, minlength=BINS), sums, np.bincount(hit, minlength=BINS)])


def _errors(
    model: MarkovModel, layout: Layout, codes: Ints, seed: int, times: Floats | None
) -> tuple[float | None, float | None]:
    """Share of wrong symbols of `optimal` at ε = 1, as the model expects it and as it is, on some of the people.

    Given all that is public after a release y, the model expects it to be wrong with probability 1 - post(y).
    """
    if model.n > WIDEST or model.n == 1:
        return None, None
    setting, coins = stream.Setting.of(model, "optimal", EPSILON), SeededCoins(seed)
    step = max(1, layout.lengths.size // RELEASED_PEOPLE)
    begins, lengths = layout.begins[::step], np.minimum(layout.lengths[::step], RELEASED_EVENTS)
    state, expected, wrong = stream.State.start(setting, begins.size), 0.0, 0
    for t in range(int(lengths.max())):
        now = int((lengths > t).sum())
        events = layout.order[begins[:now] + t]
        truth, stamps = codes[events], None if times is None else times[events]
        state = stream.located(setting, state.take(np.arange(now)), stamps)
        released, after = stream.step(setting, state, truth, coins, stamps)
        post, _ = filtering.condition(model, state.states, released.columns)
        shown = filtering.symbols(model, post)
        expected += float((1.0 - shown[np.arange(now), released.codes]).sum())
        wrong += int((released.codes != truth).sum())
        state = after
    total = int(lengths.sum())
    return expected / total, wrong / total
