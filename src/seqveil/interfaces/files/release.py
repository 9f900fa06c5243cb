"""Release a file of many users' streams: rows in order, through `Streams`, into an output and its side file.

There is one loop for all files. Its parts: a `Source` gives rows with their codes; `OneByOne` or `InBatches` makes
events of them; `Streams` releases them, in memory or over a state file; and a `ReleaseRun` writes the rows, whole at
the end, or as it goes on with what an earlier run wrote (`files.resume`).
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.alphabet import WITHHELD, Alphabet, OnMissing, OnUnknown, Symbols
from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Floats
from seqveil.core.mechanisms import Batch, choose
from seqveil.core.randomness import randomness
from seqveil.core.slots import Slots
from seqveil.core.words import Risk, made_public
from seqveil.engine.budget import GONE
from seqveil.engine.calls import SentBatch
from seqveil.engine.releases import Releases
from seqveil.engine.secrets import SecretTotal
from seqveil.engine.store import Memory
from seqveil.engine.stream import NOTHING, Terms, check_times
from seqveil.engine.streams import CodeStreams
from seqveil.engine.terms import NO_BOUND
from seqveil.interfaces.choosing import held_out_check, said_of_check
from seqveil.interfaces.files import writing as side
from seqveil.interfaces.files.audit import checked
from seqveil.interfaces.files.changes import Changes
from seqveil.interfaces.files.columns import Columns
from seqveil.interfaces.files.ordering import goes_back
from seqveil.interfaces.files.placing import located
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.received import receive
from seqveil.interfaces.files.rows import (
    CHUNK_ROWS,
    Coded,
    Events,
    InBatches,
    OneByOne,
    Progress,
    Rows,
    Source,
    Table,
    columns_for,
    times_read_as,
)
from seqveil.interfaces.files.slots import NO_STATE
from seqveil.interfaces.files.writing import BATCH, EPSILON, PATH, Digest, Held, Writer
from seqveil.receiver.audit import ROUNDING
from seqveil.receiver.drift import NOT_ASKED, ModelCheck

if TYPE_CHECKING:
    import polars as pl

Choices = dict[str, dict[str, Any]]  # of mechanism auto: how often which, and why (the first reason)
MEMORY = 1 << 30
BATCH_ROWS = 1000  # rows between two signs of progress where batches are released: one may take milliseconds
STATE_ROWS = 20_000  # rows read at a time with a state file
GROUP = 1000  # events of a transaction
SEEDED = "seeded, so NOT private: whoever knows the seed can undo the release"


@dataclass(frozen=True)
class ReleasedFile:
    """The account of a released file. Public: it holds nothing but counts and what the releases imply.

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
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of mechanism auto: how often which, why
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


def release_file(
    data: FilePath,
    setting: Terms,
    out: FilePath,
    *,
    state: FilePath | None = None,
    key: bytes | None = None,
    seed: int | None = None,
    columns: Columns | None = None,
    on_unknown: OnUnknown | None = None,
    format: str | None = None,
    out_format: str | None = None,
    sort: bool = False,
    missing: OnMissing | None = None,
    slots: Slots | None = None,
    meta: FilePath | None = None,
    inputs: tuple[FilePath, ...] = (),
    force: bool = False,
    chunk: int = CHUNK_ROWS,
    group: int = GROUP,
    memory: int = MEMORY,
    changes: Changes | None = None,
    progress: Progress | None = None,
) -> ReleasedFile:
    """Release every row of a file and write user, order, released value and the ε it used.

    Rows come out in an order that reveals nothing of the file's: by time or number where there is one, then by user;
    else user by user. On standard output and with a state file they are written as they come. In batches (a setting
    with a batched mechanism) the rows of a batch stay together; a batch's first row carries its ε and its path
    (columns `epsilon` and `path`), the others 0 and "-", and all its number in the user's stream (`batch`). With a
    budget whose policy is "stop" the rows left out are known by a column `event`, each user's count of events before
    the row, or by a gap in `batch`. A release that says nothing to keep a declared secret is a row with an empty value.

    *Guarantee*: each user's stream is released as by a `Session` of its own;
    other columns of the file are dropped; the output and its side file (`OUT.meta.json`, or `meta`) appear whole or not
    at all, except on standard output. All that was drawn is in them.

    *Guarantee with a state file*: however often the run is killed and started again, the output ends up with each row
    once, as one uninterrupted run would have written it, and every release was on the disk before it was in the output.
    A finished run that is repeated changes nothing; rows added to the end of the input since are released after it (not
    for batches, whose short last ones are out).

    Parameters:
        data: the file, or ``-`` for standard input.
        setting: the model and how to release with it.
        out: where to write. With a state file, a CSV, TSV or JSON lines file, which can be appended to.
        state: the state file, which no other run may have open.
        key: with a state file, for draws that are the same if an event is drawn again
        (`seqveil.randomness.key_file`).
        seed: for research; it marks the release as not private.
        columns: the names of the columns.
        on_unknown: replaces the model's policy for values outside its alphabet: "error", "nearest", or "hide", which
            releases a draw from the public belief in their place. On standard output and with a state file, which
            receivers may watch as they go, "error" means "hide".
        format: of the input, where its name does not tell.
        out_format: of the output, where its name does not tell; without a state file.
        sort: whether to sort the rows by their order first.
        missing: what to do with rows without a value, where that is not what the model says: leave them out ("drop"),
            go on with the last value of their stream ("hold"), or "symbol", where the alphabet has one for them.
        slots: how events become one for each slot of time: as the model says, or it is refused; None follows the model.
        meta: where to write the side file.
        inputs: further files that `out` must not replace.
        force: draw again over an earlier release, a second spend.
        chunk: rows read at a time.
        group: with a state file, the events of a transaction.
        memory: bounds what the states of users may take, in bytes.
        changes: is shown raw events beside what came of them, for the operator's terminal.
        progress: called with the number of rows done.
    """
    if state is None and key is not None:
        raise InputError("a key is for a release that can be gone on with; name its state file")
    if state is not None and force:
        raise InputError("force does not go with a state file, which goes on with its own output; name another one")
    if state is not None and setting.model.alphabet.slots is not None:
        raise InputError(NO_STATE)
    most = STATE_ROWS if state is not None else BATCH_ROWS if setting.in_batches else CHUNK_ROWS
    source = source_for(data, setting, columns, format, sort, missing, slots, min(chunk, most))
    target = Target(out, out_format, meta, (data, *inputs), force)
    if state is not None:
        from seqveil.interfaces.files.resume import resumed

        opened = resumed(source, setting, on_unknown, target, state, key, seed, group)
    else:
        tracked = os.fspath(out) == "-"
        alphabet = raw_alphabet(setting, on_unknown, tracked)
        choices: Choices = {}
        streams = streams_in_memory(setting, seed, memory, choices)
        opened = _whole(Whole(source, setting, alphabet, streams, seed, choices, tracked=tracked), target)
    return _run_to_the_end(opened, target, changes, progress)


def source_for(
    data: FilePath | pl.DataFrame,
    setting: Terms,
    columns: Columns | None,
    format: str | None,
    sort: bool | None,
    missing: OnMissing | None,
    slots: Slots | None = None,
    chunk: int = CHUNK_ROWS,
) -> Source:
    """The rows to release, read as the setting and its model need them; what does not fit the model is refused.

    `sort`: None puts rows in order where they go back in time.
    """
    if setting.withhold:
        _refuse_empty_symbol(setting.model.alphabet)
    names, alphabet = columns_for(setting, columns), setting.model.alphabet
    if alphabet.on_map:
        names = located(data, names, format)
    disclosed = alphabet.missing if missing is None else missing
    if disclosed == "symbol":
        alphabet.with_missing(disclosed)  # refuses it where there is no such symbol
    arrange = goes_back(data, names, format) if sort is None else sort
    return Source(data, names, format, arrange, chunk, disclosed, _slots(alphabet, slots))


def _slots(alphabet: Symbols, asked: Slots | None) -> Slots | None:
    """The slots of the model; others than these are refused."""
    kept = alphabet.slots
    if asked is not None and kept is not None:
        asked = replace(asked, empty=asked.empty or kept.empty, utc_offset=kept.utc_offset)
    if asked is not None and asked != kept:
        of = "without slots" if kept is None else f"for {kept.describe()}"
        raise InputError(f"the model was fitted {of}, not for {asked.describe()}; fit one for these, or follow it")
    return kept


def _run_to_the_end(
    opened: AbstractContextManager[ReleaseRun], target: Target, changes: Changes | None, progress: Progress | None
) -> ReleasedFile:
    """Release all rows and write the side file; then raise what ended the run early."""
    with opened as run:
        run.changes = changes
        run.go(progress)
        run.close()
        account = run.account()
        side.save_meta(target.out, run.facts(account), target.meta)
    if changes is not None:
        changes.holes = run.source.taken.holes
    if run.failure is not None:
        raise run.failure
    return account


def _refuse_empty_symbol(alphabet: Symbols) -> None:
    """Refuse an alphabet with a value that a file writes like one that is not there."""
    if isinstance(alphabet, Alphabet) and any(value is None or value == "" for value in alphabet.values):
        raise InputError(
            "the alphabet has an empty value, which in a file would look like a release that says nothing; rename it, "
            "or leave out withhold"
        )


def raw_alphabet(setting: Terms, on_unknown: OnUnknown | None, tracked: bool = False) -> Symbols:
    """With the policy for raw values: a file appears whole or not at all, standard output is `watched` as it goes."""
    alphabet = setting.model.alphabet
    if tracked:
        return alphabet.tracked(on_unknown)
    return alphabet if on_unknown is None else alphabet.with_policy(on_unknown)


def streams_in_memory(setting: Terms, seed: int | None, memory: int, choices: Choices) -> CodeStreams:
    """Streams without a state file, which note what the mechanism auto chooses."""

    def note(_: object, made: object) -> None:
        if not isinstance(made, SentBatch) or made.sent is None or made.epsilon < GONE:
            return
        distribution, length = filtering.clear(made.before.states)[0], len(made.sent.codes)
        picked, why = choose(Batch(setting.model, distribution, length, made.epsilon, setting.distortion))
        choices.setdefault(picked.name, {"batches": 0, "why": why})["batches"] += 1

    seen = note if setting.mechanism.name == "auto" else None
    return CodeStreams(setting, Memory(releases=False), randomness(seed), memory=memory, seen=seen)


@dataclass(frozen=True)
class Target:
    """Where a release is written, and what it must not replace."""

    out: FilePath
    format: str | None
    meta: FilePath | None
    inputs: tuple[FilePath, ...]
    force: bool

    def refuse_overwriting(self, *more: FilePath) -> None:
        """Refuse a side file that would take the place of another file of the release."""
        taken = {os.path.realpath(path) for path in (self.out, *self.inputs, *more) if os.fspath(path) != "-"}
        if self.meta is not None and os.path.realpath(self.meta) in taken:
            raise InputError("the side file would replace another file of this release; choose another name for it")


class ReleaseRun(ABC):
    """One pass over a file: rows become events, events are released, and what comes of them is written."""

    def __init__(
        self,
        source: Source,
        setting: Terms,
        alphabet: Symbols,
        streams: CodeStreams,
        seed: int | None,
        choices: Choices | None = None,
    ) -> None:
        self.source, self.setting, self.alphabet, self.streams = source, setting, alphabet, streams
        self.collector = InBatches(setting.batch) if setting.in_batches else OneByOne()
        self.failure: SeqveilError | None = None  # why no more can be released; what was stands
        self.events = self.held = self.stopped = self.withheld = self.earlier = 0
        self.choices = {} if choices is None else choices
        self.seed, self.private = seed, seed is None
        self._table = Table(alphabet, source.columns)
        self.check, self.tracked = NOT_ASKED, True
        self.changes: Changes | None = None
        self._order: str | None = None  # the name of the order column
        self._times: str | None = None  # what they were read as

    def go(self, progress: Progress | None) -> None:
        """Release all rows that are left, or up to the one where that fails."""
        for part in self.source.coded(self.alphabet, progress):
            self._order = None if part.chunk.order is None else part.chunk.order.name
            self._times = None if part.times is None else times_read_as(part.chunk)
            self.take(part)
            if self.failure is not None:
                return
        self.finish()

    @abstractmethod
    def take(self, part: Coded) -> None:
        """Release these rows."""

    @abstractmethod
    def finish(self) -> None:
        """What is left to do at the end of the input."""

    def close(self) -> None:
        """Write what is not written yet; rows that were written as they came are left for an audit to check."""
        self.check = ModelCheck.none("rows were written as they came; audit the file they are in")

    @abstractmethod
    def digest(self) -> Digest:
        """Of all rows written."""

    def frame(self, rows: Rows) -> pl.DataFrame:
        """The rows as they are written, with the ε of each where there is one."""
        used = {} if self.setting.unbounded else {EPSILON: rows.epsilons}  # of which there is none to tell
        return self._table.frame(rows.users, rows.order, rows.codes, {**used, **rows.more})

    def show(self, events: Events, made: Releases) -> None:
        """Show the operator's terminal, where there is one, what came of these events."""
        if self.changes is None:
            return
        users = events.users.to_list()
        if made.sent is None:
            self.changes.take(users, np.asarray(events.raw, np.int64), made.codes)
            return
        for user, raw, sent in zip(users, events.raw, made.sent, strict=True):
            if sent is not None:
                self.changes.take([user] * len(sent[1]), np.asarray(raw, np.int64), np.asarray(sent[1], np.int64))

    def quiet(self, made: Releases) -> int:
        """How many of the releases disclose nothing."""
        if self.setting.in_batches:
            return int((made.leakages <= ROUNDING).sum())
        return int(made.held.sum())

    def account(self) -> ReleasedFile:
        """What was released, and what that leaked."""
        setting, found = self.setting, self.streams.accounts()
        warnings = []
        if not setting.mechanism.sound:
            worst = int((found.leakage - found.epsilon_spent).argmax())
            nominal, true = found.epsilon_spent[worst], found.leakage[worst]
            warnings.append(
                f'mechanism "{setting.mechanism.name}" does not keep to its ε: the worst stream leaked {true:.4g}, '
                f"nominally {nominal:.4g}; use {'tree or auto' if setting.in_batches else 'optimal or balanced'} for a "
                "guarantee"
            )
        if not self.private:
            warnings.append(SEEDED)
        disclosed = tuple(self.streams.secrets())
        undone = self.check.rejection if self.private else SEEDED
        risk = Risk.of(setting, found, disclosed, doubts=self.check.doubts, support=self.check.support, undone=undone)
        return ReleasedFile(
            events=self.events,
            users=len(found),
            releases=int(found.releases.sum()),
            held=self.held,
            stopped=self.stopped,
            leakage=float(found.leakage.max(initial=0.0)),
            composition=float(found.epsilon_spent.max(initial=0.0)),
            ldp=float(found.ldp.max(initial=0.0)),
            private=self.private,
            guarantee=guarantee(setting),
            warnings=tuple(warnings),
            batch=setting.batch,
            exact=not setting.in_batches,
            withheld=self.withheld,
            earlier=self.earlier,
            choices=self.choices,
            times=self._times,
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
            read=self.source.taken.public,
        )

    def facts(self, account: ReleasedFile) -> side.Meta:
        """What the side file says."""
        facts = side.header(self.setting, self.source.columns, self._order, self.seed)
        if self.streams.models > 1:  # no receiver can weigh these releases by one model
            facts["models"] = self.streams.models
        for name in ("events", "users", "releases", "held", "stopped", "private"):
            facts[name] = getattr(account, name)
        for name in ("leakage", "composition"):
            facts[name] = getattr(account, name) if math.isfinite(getattr(account, name)) else "inf"
        for name in ("choices", "withheld", "times", "whole_sequence"):
            facts |= {name: getattr(account, name)} if getattr(account, name) else {}
        facts |= {} if self.source.slots is None else {"slots": self.source.slots.to_json()}
        facts |= {"words": list(account.words), "guarantee": account.guarantee}
        facts |= {"grade": account.grade, "grade_why": account.grade_why, "check": asdict(account.check)}
        facts |= {"unfinished": True} if self.failure is not None else {}
        if account.secrets:
            facts["secrets"] = [asdict(total) for total in account.secrets]
            facts["held_out_check"] = held_out_check(self.setting.model)
        return facts | {"digest": self.digest().hex()}


class Whole(ReleaseRun):
    """Into an output that appears whole, in public order.

    On standard output, which is watched, rows are written as they come.
    """

    def __init__(self, *parts: Any, tracked: bool = False) -> None:
        super().__init__(*parts)
        self.tracked = tracked
        self.writer: Writer | Held = Held()
        self._clock = _RunClock(self.setting)
        self._digest = Digest()
        self._kept: list[Rows] = []
        self._drawn = False

    def digest(self) -> Digest:
        """The digest of all rows so far, which the side file holds."""
        return self._digest

    def take(self, part: Coded) -> None:
        """Release a part of the file."""
        self.events += part.n
        if part.times is not None:
            self._clock.check(part.chunk.users.to_list(), part.times)
        self._send(self.collector.take(part))

    def finish(self) -> None:
        """Release the batches that are not full at the file's end."""
        left = self.collector.rest(0)
        if left is not None:
            self._send(left)

    def _send(self, events: Events) -> None:
        made = self._release(events)
        self.show(events, made)
        self.held += self.quiet(made)
        self.withheld += int((made.codes == WITHHELD).sum())
        self.stopped += int(events.sizes[made.codes == NOTHING].sum())
        rows = Rows.of(events, made, self.setting)
        if self.tracked:
            self._write(rows)
        elif rows.codes.size:
            self._kept.append(rows)

    def _write(self, rows: Rows) -> pl.DataFrame:
        frame = self.frame(rows)
        self.writer.write(frame)
        paths = zip(rows.more[BATCH], rows.more[PATH], strict=True) if PATH in rows.more else None
        self._digest.add(rows.users, rows.codes, rows.epsilons, paths)
        return frame

    def close(self) -> None:
        """Write all rows in public order, and ask them whether they fit the model."""
        if self.tracked:
            super().close()
        elif self._kept:
            frame = self._write(Rows.joined(self._kept).in_public_order())
            columns = replace(self.source.columns, time=self._order)
            observers = self.setting.observers
            self.check = checked(receive(frame, self.setting.model, self.setting, columns=columns, observers=observers))

    def _release(self, events: Events) -> Releases:
        """What these events were released as; where that failed in the middle, those that were not taken say so."""
        try:
            made = self.streams.release(events.users.to_list(), events.raw, None, events.times)
        except SeqveilError as error:
            if not isinstance(error.made, Releases):
                raise
            made = error.made
            if not self._drawn and made.refused.all():
                raise  # nothing to keep
            self.failure = error
        self._drawn = True
        return made


@contextmanager
def _whole(run: Whole, target: Target) -> Iterator[ReleaseRun]:
    """The run with its output open, which takes its place when all went well."""
    writer = Writer(target.out, target.format, target.inputs)
    target.refuse_overwriting()
    with writer as run.writer:
        side.refuse_second(target.out, target.meta, force=target.force)
        yield run


class _RunClock:
    """Checks the times of a file's rows before any of them is released: what is refused follows from them alone."""

    def __init__(self, setting: Terms) -> None:
        self._setting = setting
        self._numbers: dict[object, int] = {}
        self._latest: list[float] = []

    def check(self, users: list[object], times: Floats) -> None:
        """Refuse times that the window cannot use, or that go back, of users whose budget is spent as well."""
        ids = np.array([self._numbers.setdefault(user, len(self._numbers)) for user in users], np.intp)
        self._latest += [-np.inf] * (len(self._numbers) - len(self._latest))
        latest = np.array(self._latest)
        check_times(self._setting, ids, times, latest[ids])
        np.maximum.at(latest, ids, times)
        self._latest = latest.tolist()


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
    >>> from seqveil.engine.policy import Policy
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
