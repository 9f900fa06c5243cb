"""Release a file or a frame of many people's streams: `sv.release` and `seqveil release`.

Events are put into an order that reveals nothing of the file, then released by `Streams`: so rows come out in public
order, and neither they nor the draws depend on how the raw rows stood. With a state file rows are written as they come
(`files.resume`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import WITHHELD, Alphabet, OnMissing, OnUnknown, Symbols
from seqveil.core.errors import InputError, SeqveilError, option
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import randomness
from seqveil.core.reading import Reading
from seqveil.core.results import Line, Result, cell_text, plain
from seqveil.core.words import Risk, count, made_public
from seqveil.engine.batches import encode_path
from seqveil.engine.policy import Policy, policy_of
from seqveil.engine.releases import Releases
from seqveil.engine.secrets import SecretTotal
from seqveil.engine.store import Memory
from seqveil.engine.stream import NOTHING, Terms, check_times
from seqveil.engine.streams import CodeStreams
from seqveil.engine.terms import NO_BOUND
from seqveil.interfaces.choosing import held_out_check, said_of_check
from seqveil.interfaces.files import writing
from seqveil.interfaces.files.changes import changed
from seqveil.interfaces.files.events import Events, Progress, read_events, value_type_of
from seqveil.interfaces.files.frames import as_kind, as_polars, chain_of
from seqveil.interfaces.files.table import FilePath
from seqveil.interfaces.files.writing import BATCH, EPSILON, EVENT, PATH, SAME_PATH, Meta
from seqveil.receiver.audit import ROUNDING
from seqveil.receiver.drift import NOT_ASKED, Drift, ModelCheck

if TYPE_CHECKING:
    import polars as pl

CALL_ROWS = 200_000  # rows of one call
BATCH_ROWS = 1000  # the same where batches are released: one may take milliseconds
THIS_FILE = "the trait's total covers this file only; released elsewhere too, a person's totals add up"
SEEDED = "seeded, so NOT private: whoever knows the seed can undo the release"
ARRIVAL = "releases are written in the order in which events arrive, and whoever reads them sees it"
CHECK_ON_PEOPLE = "`seqveil attack RELEASED --truth RAW` tries to break the promise for real people"
Shown = Callable[[list[Line]], None]


@dataclass(frozen=True)
class ReleasedFile:
    """The account of a release. Public: it holds nothing but counts and what the releases imply.

    A release is one symbol, or one batch.
    """

    events: int
    users: int
    releases: int
    held: int  # releases that are the best guess, which leaks nothing: at ε = 0, or a batch whose ε buys no cell
    stopped: int  # events that the policy "stop" left out
    leakage: float  # of the user with the most: exact, or, for batches, from above
    composition: float  # Σε of the user with the most
    ldp: float  # without any model, of the user with the most
    private: bool
    guarantee: str
    warnings: tuple[str, ...]
    batch: int = 1
    exact: bool = True  # whether the leakage is
    withheld: int = 0  # rows whose value is empty, because saying nothing kept a secret
    earlier: int = 0  # rows that an earlier run with the same state file had released
    times: str | None = None  # what the times were read as, where a budget counts in seconds
    secrets: tuple[SecretTotal, ...] = ()  # what was disclosed about each declared secret, worst over users
    whole_sequence: str = ""  # says in words where nothing is promised about the whole sequence
    made_public: str = ""  # says what a declaration makes public, where that is a place
    model_check: str = ""  # with declared secrets: whether the model was checked on people held out, in words
    words: tuple[str, ...] = ()  # what all that means for a person, a sentence each
    grade: str = ""  # by what a suspicion of 1 % may become (`seqveil.core.words`)
    grade_why: str = ""
    check: ModelCheck = NOT_ASKED  # whether the releases fit the model
    tracked: bool = False  # rows were written as they came, so that their order is the order of arrival
    warning: str = ""  # one line with the remedy, where the grade is not green
    read: str = ""  # how the rows were read and ordered, in words


@dataclass(frozen=True, eq=False, repr=False)
class ReleasedRows(Result):
    """Released rows, and all that is public about them.

    `frame` has a row for each release, or is the path of the file that has them: by time or number where there is one,
    then by user, else user by user. Its order and its types come from public things, so nothing of the rows that came
    is in it but users and order. `account` is what was spent and leaked; `meta` is what stands in the side file, and
    what a receiver needs beside the frame and the model.
    """

    frame: Any
    account: ReleasedFile
    meta: Meta = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The account as plain values, with the setting."""
        return dict(plain(asdict(self.account))) | {"setting": plain(self.meta.get("setting"))}

    def lines(self, warned: bool = False) -> list[Line]:
        """The account, line by line; whoever is `warned` already hears no warning that little protects."""
        account = self.account
        said = [("read", account.read), ("released", _how_much(account))]
        said += [("earlier", _earlier(account))] if account.earlier else []
        said += [("guarantee", account.guarantee), *(("means", sentence) for sentence in account.words)]
        said += [("realised", _realised(account))] if _realised(account) else []
        for each in account.secrets:
            if each.kept is not None:
                said.append(("secret", f"{each.name}: its log odds moved by at most {each.log_odds_worst:.4g}"))
        said += [("public", account.made_public)] if account.made_public else []
        said += [("model", account.model_check)] if account.model_check else []
        said += [("order", ARRIVAL)] if account.tracked else []
        said += [("times", f"read as {account.times}")] if account.times is not None else []
        said += [] if account.warning else [("grade", f"{account.grade}: {account.grade_why}")]
        said += [("warning", text) for text in account.warnings]
        said += [("warning", account.warning)] if account.warning and not warned else []
        return said + ([("people", CHECK_ON_PEOPLE)] if account.secrets else [])


def _how_much(account: ReleasedFile) -> str:
    extra = [f"{account.held:,} held at the best guess"] if account.held else []
    extra += [f"{account.withheld:,} with an empty value, to keep a secret"] if account.withheld else []
    extra += [f"{count(account.stopped, 'event')} left out, the budget being spent"] if account.stopped else []
    what = f"{account.releases:,} of"
    if account.batch > 1:
        what = f"{count(account.releases, 'batch', 'batches')} of at most {account.batch} from"
    return ", ".join([f"{what} {count(account.events, 'event')}, {count(account.users, 'user')}", *extra])


def _earlier(account: ReleasedFile) -> str:
    """What of it an earlier run with the same state file had released."""
    new = account.events - account.earlier
    if new > 0:
        return f"{account.earlier} of the rows were released by an earlier run and stand as they were; {new} are new"
    return (
        "nothing new: all rows were released by an earlier run, and stand as they were; rows are known by their "
        "users and order alone, so give another input a state file of its own, or add its rows to the end of this one"
    )


def _realised(account: ReleasedFile) -> str:
    """What was leaked, and what holds beside it; empty where the guarantee says it all."""
    if not np.isfinite(account.leakage):
        return ""
    total = f"worst total over a stream {'' if account.exact else 'at most '}{account.leakage:.4g}"
    if account.whole_sequence:
        return f"{total}, measured, not promised"
    charged = f"composition charges {account.composition:.4g}"
    return f"{total} ({charged}); without any model {cell_text(account.ldp)}{'-LDP' * bool(np.isfinite(account.ldp))}"


def release(
    data: Any,
    model: MarkovModel | FilePath,
    policy: Policy | FilePath | None = None,
    *,
    out: FilePath | None = None,
    seed: int | None = None,
    missing: OnMissing | None = None,
    on_unknown: OnUnknown | None = None,
    format: str | None = None,
    meta: FilePath | None = None,
    force: bool = False,
    state: FilePath | None = None,
    key: FilePath | bytes | None = None,
    must_exist: bool = False,
    inputs: Sequence[FilePath] = (),
    progress: Progress | None = None,
    shown: Shown | None = None,
    user: str | None = None,
    value: str | None = None,
    time: str | None = None,
    **fields: Any,
) -> ReleasedRows:
    """Release every row of a frame or a file, into a frame of the kind that came, or a file.

    Rows come out in an order that reveals nothing of the file's: by time or number where there is one, then by user;
    else user by user. With a state file they are written as they come. In batches, a batch's first row carries its ε
    and its path (columns `epsilon` and `path`), the others 0 and "-", and all its number in the user's stream
    (`batch`). With a budget whose policy is "stop" the rows left out are known by a column `event`, each user's count
    of events before the row, or by a gap in `batch`. A release that says nothing to keep a declared secret is a row
    with an empty value.

    *Guarantee*: each user's stream is released as by a `Session` of its own, with the same draws from the same seed.
    Columns other than user, order and value are dropped. The output and its side file (`OUT.meta.json`, or `meta`)
    appear whole or not at all, except on standard output. Where an error comes after draws were made, what was drawn is
    in the output, or in the error's `made`.

    *Guarantee with a state file*: however often the run is killed and started again, the output ends up with each row
    once, as one uninterrupted run would have written it, and every release was on the disk before it was in the output.
    A finished run that is repeated changes nothing; rows added to the end of the input since are released after it (not
    for batches, whose short last ones are out).

    Parameters:
        data: a polars, pandas or Arrow frame, the path of a file, or ``-`` for standard input.
        model: the model, or the path of one.
        policy: what is promised, or the path of it.
        out: where to write; ``-`` for standard output. With a state file a CSV, TSV or JSON lines file.
        seed: for research; it marks the release as not private.
        missing: what to do with rows without a value, where that is not what the model says.
        on_unknown: what to do with values outside the alphabet, where that is not what the model says: "error",
            "nearest", or "hide", which releases a draw from the public belief in their place. With a state file, which
            receivers may watch as it goes, "error" means "hide".
        format: of standard input and output, or of a file whose name does not say it.
        meta: where to write the side file.
        force: draw again over an earlier release, a second spend.
        state: a state file, which no other run may have open: the same call goes on after a stop or a crash.
        key: with a state file, a secret key or the file of one, for draws that are the same if an event is drawn again.
        must_exist: refuse a state file that is missing or empty, rather than begin one.
        inputs: further files that `out` must not replace.
        progress: called with the number of rows done.
        shown: is given, in lines, what was changed: it follows from raw data, so only the operator's terminal may see
            it.
        user, value, time: the columns, where they are not those of the file that the model was fitted to.
        fields: those of a `Policy` in place of one.
    """
    chain = chain_of(model)
    terms = policy_of(loaded_policy(policy), fields).on(chain)
    job = _Job(
        terms, as_polars(data), format, missing, on_unknown, Reading.but(chain.reading or Reading(), user, value, time)
    )
    files = [data, *inputs, *(each for each in (model, policy) if isinstance(each, str | os.PathLike))]
    if out is not None:
        writing.check_place(out, files, format if out == "-" else None)
        _refuse_overwriting(out, meta, [*files, *([state] if state is not None else [])])
    if state is not None:
        from seqveil.interfaces.files.resume import resumed

        if force or out is None:
            raise InputError(
                f"{option('state')} goes on with the output of its own earlier run; name it by {option('out')}, and "
                f"leave {option('force')} out"
            )
        return resumed(job, out, state, key, seed, meta, must_exist, files, progress, shown)
    if key is not None or must_exist:
        what = option("must_exist") if key is None else option("key")
        raise InputError(
            f"{what} is about a release that can be gone on with; name its state file by {option('state')}"
        )
    if out is not None and not force:
        writing.refuse_second(out, meta)
    run = _Whole(job, seed)
    run.go(progress)
    found = ReleasedRows(out if out is not None else None, run.account(), run.facts())
    if out is not None:
        writing.write_frame(out, run.frame, format if out == "-" else None, found.meta, meta)
    else:
        found = ReleasedRows(as_kind(data, run.frame), found.account, found.meta)
    if shown is not None:
        shown(run.changed())
    if run.failure is not None:
        run.failure.made = found
        raise run.failure
    return found


def loaded_policy(policy: Any) -> Any:
    """A policy, or anything else, as it is; from a file where a path is given."""
    is_path = isinstance(policy, os.PathLike) or (isinstance(policy, str) and policy.endswith(".toml"))
    return Policy.load(policy) if is_path else policy


def _refuse_overwriting(out: FilePath, meta: FilePath | None, others: Sequence[Any]) -> None:
    """Refuse a side file that would take the place of another file of the release."""
    taken = {os.path.realpath(path) for path in (out, *others) if isinstance(path, str | os.PathLike) and path != "-"}
    if meta is not None and os.path.realpath(meta) in taken:
        raise InputError("the side file would replace another file of this release; choose another name for it")


@dataclass(frozen=True, eq=False)
class _Job:
    """What to release, and how it is read."""

    setting: Terms
    data: Any
    format: str | None
    missing: OnMissing | None
    on_unknown: OnUnknown | None
    reading: Reading

    def alphabet(self, tracked: bool = False) -> Symbols:
        """With the policy for raw values; where receivers watch as it goes, nothing may be refused for its value."""
        alphabet = self.setting.model.alphabet
        if tracked:
            return alphabet.tracked(self.on_unknown)
        return alphabet if self.on_unknown is None else alphabet.with_policy(self.on_unknown)

    def events(self, alphabet: Symbols) -> Events:
        """The events of the data, in the order in which they happened."""
        if self.setting.withhold:
            _refuse_empty_symbol(alphabet)
        missing = alphabet.missing if self.missing is None else self.missing
        if missing == "symbol":
            alphabet.with_missing(missing)  # refuses it where there is no such symbol
        return read_events(
            self.data,
            self.reading,
            value_type_of(alphabet),
            format=self.format,
            missing=missing,
            slots=alphabet.slots,
            clock=self.setting.timed,
            holes="any" if alphabet.hides else "none",
            on_map=alphabet.on_map,
        )


def _refuse_empty_symbol(alphabet: Symbols) -> None:
    """Refuse an alphabet with a value that a file writes like one that is not there."""
    if isinstance(alphabet, Alphabet) and any(value is None or value == "" for value in alphabet.values):
        raise InputError(
            "the alphabet has an empty value, which in a file would look like a release that says nothing; rename it, "
            "or leave out withhold"
        )


@dataclass(frozen=True, eq=False)
class Units:
    """What is released at a time, in the order of release: single events, or batches of a user's events."""

    users: list[Any] = field(repr=False)
    raw: Ints | list[Ints] = field(repr=False)  # the code of each event, or the codes of each batch
    times: Floats | None  # of each unit: when its last event was
    places: Ints  # where the events of all units, one after another, stand among all events
    ends: Ints  # how many events there are up to the end of each unit
    full: int  # how many of them no later event could belong to: the others are short last batches

    @classmethod
    def of(cls, events: Events, codes: Ints, setting: Terms) -> Units:
        """The units of events in their order: full batches as they fill up, then those that are short at the end."""
        times = events.seconds() if setting.timed else None
        if not setting.in_batches:
            users, places = names_of(events.users), np.arange(codes.size)
            return cls(users, codes, times, places, places + 1, codes.size)
        who = events.people[1]
        places = np.argsort(who, kind="stable")
        lengths = np.bincount(who)
        within = np.arange(who.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        starts = np.flatnonzero(within % setting.batch == 0)
        sizes = np.diff(starts, append=who.size)
        short = sizes < setting.batch
        order = np.lexsort([np.where(short, places[starts], places[starts + sizes - 1]), short])
        places = np.concatenate([places[starts[k] : starts[k] + sizes[k]] for k in order.tolist()])
        ends = np.cumsum(sizes[order])
        last = places[ends - 1]
        return cls(
            names_of(events.users.gather(last)),
            np.split(codes[places], ends[:-1]),
            None if times is None else times[last],
            places,
            ends,
            int((~short).sum()),
        )

    def __len__(self) -> int:
        return self.ends.size

    @property
    def sizes(self) -> Ints:
        """How many events each has."""
        return np.diff(self.ends, prepend=0)

    def part(self, begin: int, end: int) -> Units:
        """Those from one to another."""
        first = int(self.ends[begin - 1]) if begin else 0
        places = self.places[first : int(self.ends[end - 1])] if end > begin else self.places[:0]
        times = None if self.times is None else self.times[begin:end]
        full = max(0, min(self.full - begin, end - begin))
        return Units(self.users[begin:end], self.raw[begin:end], times, places, self.ends[begin:end] - first, full)

    def parts(self, rows: int) -> Iterator[Units]:
        """All of them in parts of about so many rows."""
        begin = 0
        while begin < len(self):
            before = int(self.ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(self.ends, before + rows, side="right")))
            yield self.part(begin, end)
            begin = end


@dataclass(frozen=True, eq=False)
class MadeRows:
    """What events were released as, one entry an event; `more` are columns beside user, order, value and ε."""

    places: Ints  # of the events
    codes: Ints  # NOTHING where an event was left out
    epsilons: Floats
    more: Mapping[str, Any]

    @classmethod
    def of(cls, units: Units, made: Releases, setting: Terms) -> MadeRows:
        """What was released of some units; the first row of a batch has its ε and path."""
        if made.sent is None:
            more = {EVENT: made.seqs} if gaps(setting) else {}
            return cls(units.places, made.codes, made.epsilons, more)
        sizes, rows = units.sizes, int(units.places.size)
        starts, spent, texts = units.ends - sizes, np.zeros(rows), np.full(rows, SAME_PATH, object)
        codes = np.full(rows, NOTHING, np.int64)
        for start, size, sent in zip(starts.tolist(), sizes.tolist(), made.sent, strict=True):
            if sent is not None:
                texts[start], codes[start : start + size] = encode_path(sent[0]), sent[1]
        spent[starts] = made.epsilons
        return cls(units.places, codes, spent, {BATCH: np.repeat(made.seqs, sizes), PATH: texts})

    @classmethod
    def joined(cls, parts: Sequence[MadeRows]) -> MadeRows:
        """All of them, in the order of the events."""
        places = np.concatenate([part.places for part in parts])
        order = np.argsort(places, kind="stable")
        columns = [np.concatenate([getattr(part, name) for part in parts])[order] for name in ("codes", "epsilons")]
        more = {name: np.concatenate([part.more[name] for part in parts])[order] for name in parts[0].more}
        return cls(places[order], columns[0], columns[1], more)

    @property
    def disclosed(self) -> Ints:
        """Which of them have a row in the output."""
        return np.flatnonzero((self.codes >= 0) | (self.codes == WITHHELD))

    def frame(self, events: Events, setting: Terms) -> pl.DataFrame:
        """The rows as they are written, with the ε of each where there is one."""
        kept = self.disclosed
        own = events.at(self.places[kept])
        used = {} if setting.unbounded else {EPSILON: self.epsilons[kept]}
        more = used | {name: values[kept] for name, values in self.more.items()}
        return writing.rows_frame(events.reading, own.users, own.order, setting.model.alphabet, self.codes[kept], more)

    def digest(self, events: Events) -> str:
        """Of the rows that are written."""
        import polars as pl

        kept = self.disclosed
        batches = [pl.Series(self.more[name][kept].tolist()) for name in (BATCH, PATH) if PATH in self.more]
        users = events.users.gather(self.places[kept])
        return writing.released_digest(users, self.codes[kept], self.epsilons[kept], *batches)


def gaps(setting: Terms) -> bool:
    """Whether events may go without a release, so that a receiver must hear of them."""
    return setting.budget.limited and setting.budget.when_spent == "stop"


def names_of(users: pl.Series) -> list[Any]:
    """Text and whole numbers as they are; anything else as text."""
    import polars as pl

    plain = users.dtype == pl.String or users.dtype.is_integer()
    return (users if plain else users.cast(pl.String)).to_list()


class Run:
    """What a release made and what it cost; the two ways to write it fill it in."""

    def __init__(self, setting: Terms, streams: CodeStreams, seed: int | None) -> None:
        self.setting, self.streams, self.seed = setting, streams, seed
        self.private = seed is None and streams.private
        self.held = self.stopped = self.withheld = self.earlier = 0
        self.failure: SeqveilError | None = None  # why no more can be released; what was released is kept
        self.check, self.tracked = NOT_ASKED, False
        self.events: Events
        self.digest = ""

    def count(self, units: Units, made: Releases) -> None:
        """Count what came of some units."""
        if self.setting.in_batches:
            self.held += int((made.leakages <= ROUNDING).sum())
        else:
            self.held += int(made.held.sum())
        self.withheld += int((made.codes == WITHHELD).sum())
        self.stopped += int(units.sizes[made.codes == NOTHING].sum())

    def account(self) -> ReleasedFile:
        """What was released, and what that leaked."""
        setting, found = self.setting, self.streams.accounts()
        disclosed, traits = tuple(self.streams.secrets()), any(secret.kind == "trait" for secret in setting.secrets)
        undone = self.check.rejection if self.private else SEEDED
        risk = Risk.of(setting, found, disclosed, doubts=self.check.doubts, support=self.check.support, undone=undone)
        return ReleasedFile(
            events=self.events.n,
            users=len(found),
            releases=int(found.releases.sum()),
            held=self.held,
            stopped=self.stopped,
            leakage=float(found.leakage.max(initial=0.0)),
            composition=float(found.epsilon_spent.max(initial=0.0)),
            ldp=float(found.ldp.max(initial=0.0)),
            private=self.private,
            guarantee="; ".join([guarantee(setting), *([THIS_FILE] if traits else [])]),
            warnings=tuple(self._warnings(found)),
            batch=setting.batch,
            exact=not setting.in_batches,
            withheld=self.withheld,
            earlier=self.earlier,
            times=f"{self.events.taken.unit} (column {self.events.taken.order!r})" if setting.timed else None,
            secrets=disclosed,
            whole_sequence=setting.whole_sequence,
            made_public=made_public(setting.secrets),
            model_check=_model_check(setting),
            words=risk.sentences,
            grade=risk.grade.colour,
            grade_why=risk.grade.why,
            check=self.check,
            tracked=self.tracked,
            warning=risk.warning,
            read=self.events.taken.public,
        )

    def _warnings(self, found: Any) -> Iterator[str]:
        setting = self.setting
        if not setting.mechanism.sound:
            worst = int((found.leakage - found.epsilon_spent).argmax())
            nominal, true = found.epsilon_spent[worst], found.leakage[worst]
            yield (
                f'mechanism "{setting.mechanism.name}" does not keep to its ε: the worst stream leaked {true:.4g}, '
                f"nominally {nominal:.4g}; use {'tree or auto' if setting.in_batches else 'optimal or balanced'} for a "
                "guarantee"
            )
        if not self.private:
            yield SEEDED

    def facts(self) -> Meta:
        """What the side file says."""
        account, events = self.account(), self.events
        facts = writing.header(self.setting, events.reading, events.taken.order, self.seed)
        if self.streams.models > 1:  # no receiver can weigh these releases by one model
            facts["models"] = self.streams.models
        shown = plain(asdict(account))
        for name in ("events", "users", "releases", "held", "stopped", "private", "leakage", "composition"):
            facts[name] = shown[name]
        for name in ("withheld", "times", "whole_sequence"):
            facts |= {name: shown[name]} if shown[name] else {}
        slots = self.setting.model.alphabet.slots
        facts |= {} if slots is None else {"slots": slots.to_json()}
        missing = self.setting.model.alphabet.missing
        facts |= {} if missing is None else {"missing": missing}
        facts |= {name: shown[name] for name in ("words", "guarantee", "grade", "grade_why", "check")}
        facts |= {"unfinished": True} if self.failure is not None else {}
        if account.secrets:
            facts |= {"secrets": shown["secrets"], "held_out_check": held_out_check(self.setting.model)}
        return facts | {"digest": self.digest}


class _Whole(Run):
    """All rows at once, in public order."""

    def __init__(self, job: _Job, seed: int | None) -> None:
        alphabet = job.alphabet()
        super().__init__(job.setting, CodeStreams(job.setting, Memory(releases=False), randomness(seed)), seed)
        self.events = job.events(alphabet).in_public_order(together=job.setting.in_batches)
        self._codes = self.events.codes(alphabet)
        self._units = Units.of(self.events, self._codes, self.setting)
        self._parts: list[MadeRows] = []

    def go(self, progress: Progress | None) -> None:
        """Release everything, or up to where that fails; then ask the releases whether they fit the model."""
        units = self._units
        if units.times is not None:  # what is refused follows from times alone, before anything is drawn
            who = self.events.people[1]
            check_times(self.setting, who.astype(np.intp), self.events.seconds(), np.full(who.size, -np.inf))
        for part in units.parts(BATCH_ROWS if self.setting.in_batches else CALL_ROWS):
            made = self._release(part)
            self.count(part, made)
            self._parts.append(MadeRows.of(part, made, self.setting))
            if progress is not None:
                progress(int(part.places.size))
            if self.failure is not None:
                break
        self._made = MadeRows.joined(self._parts)
        self.frame = self._made.frame(self.events, self.setting)
        self.digest = self._made.digest(self.events)
        who, times = self.events.people[1], None if units.times is None else self.events.seconds()
        places = self._made.places
        self.check = model_check(self.setting, who[places], self._made.codes, None if times is None else times[places])

    def _release(self, part: Units) -> Releases:
        """What some units were released as; where that failed in the middle, those that were not taken say so."""
        try:
            return self.streams.release(part.users, part.raw, None, part.times)
        except SeqveilError as error:
            if not isinstance(error.made, Releases) or (not self._parts and error.made.refused.all()):
                raise  # nothing to keep
            self.failure = error
            return error.made

    def changed(self) -> list[Line]:
        """What was changed, for the operator alone."""
        people, who = self.events.people
        places = self._made.places
        lines = changed(self.setting, len(people), who[places], self._codes[places], self._made.codes)
        return [*([("missing", self.events.taken.holes)] if self.events.taken.holes else []), *lines]


def model_check(setting: Terms, who: Ints, codes: Ints, times: Floats | None) -> ModelCheck:
    """Whether releases fit the model they were made with; people as numbers, NOTHING where nothing was released."""
    if setting.in_batches or setting.in_blocks or not setting.mechanism.sound:
        return ModelCheck.none("that takes releases one by one, by a sound mechanism")
    drift = Drift(setting)
    drift.update(who.tolist(), codes, times)
    return ModelCheck.of(drift)


def _model_check(setting: Terms) -> str:
    """Whether the model that a promise about secrets rests on was checked, in a sentence; empty without secrets."""
    if not setting.secrets:
        return ""
    said = said_of_check(setting.model)
    if held_out_check(setting.model) is not None:
        return said
    return f"{said}, and the promise is about people who follow it; `seqveil fit --context auto` checks one"


def guarantee(setting: Terms) -> str:
    """What the setting promises, in plain words.

    >>> from seqveil.core.model import MarkovModel
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> guarantee(Policy(epsilon=1.0).on(model))[:70]
    'each release moves what anyone who knows the model believes about a us'
    """
    if not setting.mechanism.sound:
        return (
            f'none: "{setting.mechanism.name}" is not sound ({setting.mechanism.guarantee}); its true leakage stands '
            "beside the nominal one"
        )
    kept = "; ".join(secret.sentence for secret in setting.secrets)
    assumed = "; totals are for people who never do what the model calls impossible" * setting.model.rules_out
    if setting.unbounded:
        return f"in total over a user's stream: {kept}; {NO_BOUND}{assumed}"
    text, budget = "; ".join(setting.policy.bounds(setting.in_batches)), setting.budget
    text += assumed if kept or budget.exact_total is not None or budget.per_window is not None else ""
    return f"in total over a user's stream: {kept}; and {text}" if kept else text
