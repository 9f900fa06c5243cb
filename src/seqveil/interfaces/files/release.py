"""Release a file or a frame of many people's streams: `sv.release` and `seqveil release`.

Events are put into an order that reveals nothing of the file, then released by `CodeStreams`, in memory or over a state
file. A state file gives back what an earlier run drew, so that a run which is killed and started again ends with the
output of one run.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypedDict

import numpy as np
import polars as pl

from seqveil.core.alphabet import UNKNOWN, WITHHELD, Alphabet, OnUnknown, Symbols
from seqveil.core.bulk import places_within
from seqveil.core.errors import DataError, InputError, SeqveilError, option
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel, Reading
from seqveil.core.randomness import KeyedRandomness, randomness
from seqveil.core.words import Risk, made_public, plain
from seqveil.engine.batches import encode_path
from seqveil.engine.policy import Policy, policy_of
from seqveil.engine.store import Erased, Memory, Releases
from seqveil.engine.stream import NOTHING, Terms
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import key_for
from seqveil.interfaces.choosing import held_out_check, said_of_check
from seqveil.interfaces.files import writing
from seqveil.interfaces.files.events import Events, Progress, ranks, silent, symbol_events
from seqveil.interfaces.files.table import FilePath, as_kind, as_polars, chain_of
from seqveil.interfaces.files.writing import BATCH, EPSILON, EVENT, PATH, SAME_PATH, Meta, ReleasedFile, ReleasedRows
from seqveil.receiver.audit import ROUNDING
from seqveil.receiver.drift import NOT_ASKED, ModelCheck

CALL_ROWS = 200_000  # rows of one call
BATCH_ROWS = 1000  # the same where batches are released: one may take milliseconds
GROUP, SLOW_GROUP = 2000, 64  # rows of a transaction with a state file, and of batches: a kill takes one back
INPUT = "release: input"  # the position in a state file: what it was begun with
SEEDED = "seeded, so NOT private: whoever knows the seed can undo the release"
NOT_KEPT = {"earlier", "erased", "read", "made_public", "model_check", "warnings", "warning"}  # in the side file


class ReleaseWords(TypedDict, total=False):
    """How a release is read, written and kept, beside its policy."""

    user: str | None  # the columns, where they are not those of the file that the model was fitted to
    value: str | None
    time: str | None
    on_unknown: OnUnknown | None  # values outside the alphabet: "error", "nearest", or "hide", a draw from the belief
    format: str | None  # of standard input and output, or of a file whose name does not say it
    meta: FilePath | None  # where to write the side file, if not to OUT.meta.json
    force: bool  # draw again over an earlier release, a second spend
    state: FilePath | None  # a state file, which no other run may have open: the same call goes on after a kill
    key: FilePath | bytes | None  # of the state file: an event that is drawn again comes out the same
    must_exist: bool  # refuse a state file that is missing or empty, rather than begin one
    seed: int | None  # for research; it marks the release as not private
    progress: Progress | None  # called with how many more rows are done, and how many there are
    shown: writing.Shown | None  # is given, in lines, what follows from raw data, so that only a terminal shows it


def release(
    data: Any,
    model: MarkovModel | FilePath,
    policy: Policy | FilePath | None = None,
    *,
    out: FilePath | None = None,
    **words: Any,
) -> ReleasedRows:
    """Release every row of a frame or a file, into a frame of the kind that came, or a file.

    Rows come out in an order that reveals nothing of the file's: by time or number where there is one, then by user;
    else user by user. In batches, a batch's first row carries its ε and its path (columns `epsilon` and `path`), the
    others 0 and "-", and all its number in the user's stream (`batch`). With a budget whose policy is "stop" the rows
    left out are known by a column `event`, each user's count of events before the row, or by a gap in `batch`. A
    release that says nothing to keep a declared secret is a row with an empty value.

    *Guarantee*: each user's stream is released as by a `Session` of its own, with the same draws from the same seed.
    Columns other than user, order and value are dropped. The output and its side file appear whole or not at all. Where
    an error comes after draws were made, what was drawn is in the output, or in the error's `made`.

    *Guarantee with a state file*: every release was on the disk before it is in the output, and however often the run
    is killed and started again, what was drawn is drawn once: the output is that of one run. Rows added to the end of
    the input since are released with it (not for batches, whose short last ones are drawn).

    Parameters:
        data: a polars, pandas or Arrow frame, the path of a file, or ``-`` for standard input.
        model: the model, or the path of one.
        policy: what is promised, or the path of it.
        out: where to write; ``-`` for standard output.
        words: those of `ReleaseWords`, and the fields of a `Policy` in place of one.
    """
    run = Run(data, chain_of(model), loaded_policy(policy), out, words)
    run.refuse([each for each in (model, policy) if isinstance(each, str | os.PathLike)])
    with run.open_streams():
        return run.go()


def loaded_policy(policy: Any) -> Any:
    """A policy, or anything else, as it is; from a file where a path is given."""
    is_path = isinstance(policy, os.PathLike) or (isinstance(policy, str) and policy.endswith(".toml"))
    return Policy.load(policy) if is_path else policy


@dataclass(frozen=True, eq=False)
class Units:
    """What is released at a time, in the order of release: single events, or batches of a user's events."""

    places: Ints  # where the events of all units, one after another, stand among all events
    ends: Ints  # how many events there are up to the end of each unit
    seqs: Ints  # the number of each unit in its user's stream

    @classmethod
    def of(cls, who: Ints, batch: int) -> Units:
        """The units of events in their order: full batches as they fill up, then those that are short at the end."""
        if batch == 1:  # a tenth of the time of a release
            places = np.arange(who.size)
            return cls(places, places + 1, ranks(who))
        places, within = np.argsort(who, kind="stable"), places_within(np.bincount(who))
        starts = np.flatnonzero(within % batch == 0)
        sizes = np.diff(starts, append=who.size)
        short = sizes < batch
        order = np.lexsort([np.where(short, places[starts], places[starts + sizes - 1]), short])
        turns = np.repeat(np.argsort(order), sizes)  # of each event, the turn of its unit
        return cls(places[np.argsort(turns, kind="stable")], np.cumsum(sizes[order]), within[starts[order]] // batch)

    @property
    def sizes(self) -> Ints:
        """How many events each has."""
        return np.diff(self.ends, prepend=0)

    @property
    def last(self) -> Ints:
        """The place of the last event of each."""
        return self.places[self.ends - 1]

    def parts(self, rows: int) -> Iterator[Units]:
        """All of them in parts of about so many rows."""
        begin = before = 0
        while begin < self.ends.size:
            end = max(begin + 1, int(np.searchsorted(self.ends, before + rows, side="right")))
            beyond = int(self.ends[end - 1])
            yield Units(self.places[before:beyond], self.ends[begin:end] - before, self.seqs[begin:end])
            begin, before = end, beyond

    def where(self, kept: Any) -> Units:
        """Those that a mask has."""
        sizes = self.sizes
        return Units(self.places[np.repeat(kept, sizes)], np.cumsum(sizes[kept]), self.seqs[kept])


def rows_of(units: Units, made: Releases, setting: Terms) -> pl.DataFrame:
    """What events were released as, a row an event: its place, code and ε, and what rows of this setting have beside.

    The code is NOTHING where an event was left out. The first row of a batch has its ε and path.
    """
    if made.sent is None:
        columns = {"place": units.places, "code": made.codes, EPSILON: made.epsilons}
        return pl.DataFrame(columns | ({EVENT: made.seqs} if gaps(setting) else {}))
    sizes, rows = units.sizes, int(units.places.size)
    starts, spent, texts = units.ends - sizes, np.zeros(rows), [SAME_PATH] * rows
    codes = np.full(rows, NOTHING, np.int64)
    for start, size, sent in zip(starts.tolist(), sizes.tolist(), made.sent, strict=True):
        if sent is not None:
            texts[start], codes[start : start + size] = encode_path(sent[0]), sent[1]
    spent[starts] = made.epsilons
    batches = {BATCH: np.repeat(made.seqs, sizes), PATH: texts}
    return pl.DataFrame({"place": units.places, "code": codes, EPSILON: spent} | batches)


def gaps(setting: Terms) -> bool:
    """Whether events may go without a release, so that a receiver must hear of them."""
    return setting.budget.limited and setting.budget.when_spent == "stop"


class Run:
    """One release: what comes in, on which terms, what it made and what it cost."""

    events: Events
    streams: CodeStreams

    def __init__(self, data: Any, model: MarkovModel, policy: Any, out: FilePath | None, words: dict[str, Any]) -> None:
        names = ReleaseWords.__annotations__
        self.how: Any = SimpleNamespace(**{name: words.get(name) for name in names})
        fields = {name: value for name, value in words.items() if name not in names}
        self.setting = policy_of(policy, fields).on(model)
        self.given, self.data, self.out = data, as_polars(data), out
        self.side = None if out is None else writing.side_of(out, self.how.meta)
        self.out_format = self.how.format if out == "-" else None
        self.rows = 0  # of the input
        self.counted: dict[str, int] = {"held": 0, "stopped": 0, "withheld": 0}
        self.earlier = self.erased = 0
        self.failure: SeqveilError | None = None  # why no more can be released; what was released is kept
        self.check = NOT_ASKED
        self.marks: Meta = {}  # further facts of the side file

    def refuse(self, inputs: Sequence[FilePath]) -> None:
        """Refuse files that would replace one another, and what goes with a state file alone, or not with one."""
        state, key, seeded = self.how.state, self.how.key, self.how.seed is not None
        if state is None and (key is not None or self.how.must_exist):
            what = option("must_exist") if key is None else option("key")
            raise InputError(f"{what} is about a state file; name it by {option('state')}")
        if state is not None and self.how.force:
            raise InputError(f"a state file never draws again; leave {option('force')} out, or the state file")
        if key is not None and seeded:
            raise InputError("pass a key or a seed, not both: a seeded release is not private")
        if state is not None and self.setting.in_blocks and key is None and not seeded:
            raise InputError(
                "blocks with a state file need a key, from which the hidden bit of each block follows; add "
                f"{option('key', 'release.key')}, which is made if it is missing"
            )
        if self.out is None:
            return
        read = [each for each in (self.data, *inputs, state, key) if isinstance(each, str | os.PathLike)]
        writing.check_place(self.out, read, self.out_format)
        if self.how.meta is not None:
            writing.refuse_read(self.how.meta, [self.out, *read])
        there = [path for path in (self.out, self.side) if path is not None and writing.taken(path)]
        if there and state is None and not self.how.force:
            # whoever saw the first release and sees the second learns from both, and each spent the whole budget
            raise InputError(
                f"{os.path.basename(there[0])}: is there already, and a second release of the same data is a second "
                f"spend; name another file, or pass {option('force', True)} if nobody was ever shown the first"
            )

    def open_streams(self) -> CodeStreams:
        """The streams to release with: those of the state file, or new ones in memory."""
        state, key, seed = self.how.state, self.how.key, self.how.seed
        if state is None:
            self.streams = CodeStreams(self.setting, Memory(releases=False), randomness(seed))
        else:
            secret = key if isinstance(key, bytes) else key_for(Path(state), None if key is None else Path(key))
            drawn = None if seed is None else KeyedRandomness.seeded(seed)
            how: dict[str, Any] = {"key": secret, "randomness": drawn, "must_exist": bool(self.how.must_exist)}
            self.streams = CodeStreams.open(state, self.setting, **how)
        self.by_symbol = self.streams.setting is not self.setting  # as a state file without a key releases
        self.setting = self.streams.setting
        self.private = seed is None and self.streams.private
        return self.streams

    def go(self) -> ReleasedRows:
        """Release everything, or up to where that fails; then ask the releases whether they fit the model."""
        alphabet, model, how = self._alphabet(), self.setting.model, self.how
        reading = (model.reading or Reading()).but(how.user, how.value, how.time)
        words: dict[str, Any] = {"format": how.format, "clock": self.setting.timed}
        words["holes"] = "any" if alphabet.hides else "none"
        read = symbol_events(self.data, model.alphabet, reading, **words)
        if how.state is not None:
            self._go_on(read)
        self.events, self.rows = read.in_public_order(together=self.setting.in_batches), read.n
        self._codes, who = self.events.codes(alphabet), self.events.people[1]
        self._times = self.events.seconds() if self.setting.timed else None
        if self._times is not None:  # what is refused follows from times alone, before anything is drawn
            self.setting.budget.check_times(who.astype(np.intp), self._times, np.full(who.size, -np.inf))
        made = self._release_all(Units.of(who, self.setting.batch))
        places, codes = made["place"].to_numpy(), made["code"].to_numpy()
        if self.streams.models > 1:
            self.check = ModelCheck.none("the releases were drawn with several models, and no one of them weighs all")
        else:
            used = made[EPSILON].to_numpy() if self.setting.in_blocks else None  # where blocks were cut
            times = None if self._times is None else self._times[places]
            self.check = writing.model_check(self.setting, who[places], codes, times, used)
        found = self._written(made.filter((codes >= 0) | (codes == WITHHELD)))
        if how.shown is not None:
            hidden = int((self._codes == UNKNOWN).sum())
            raw = {"missing": self.events.taken.holes}
            raw["hidden"] = f"{hidden:,} values outside the alphabet" if hidden else ""
            how.shown([line for line in raw.items() if line[1]])
        if self.failure is not None:
            self.failure.made = found
            raise self.failure
        return found

    def _alphabet(self) -> Symbols:
        """The model's, with the policy for raw values."""
        alphabet, chosen = self.setting.model.alphabet, self.how.on_unknown
        values = alphabet.values if isinstance(alphabet, Alphabet) and self.setting.withhold else ()
        if any(value is None or value == "" for value in values):
            raise InputError(
                "the alphabet has an empty value, which in a file would look like a release that says nothing; rename "
                "it, or leave out withhold"
            )
        return alphabet if chosen is None else alphabet.with_policy(chosen)

    def _go_on(self, read: Events) -> None:
        """Refuse a state file that was begun with other rows, and an output that is not its own.

        Whether the input is the one that was begun is seen by its public columns alone, users and order: a digest of
        the values would be a fingerprint of raw data.
        """
        saved = self.streams.position(INPUT)
        if saved is None and len(self.streams.accounts()):
            raise InputError("the state file is that of a service or a bridge; begin one of its own for a file")
        begun: dict[str, Any] = {"name": secrets.token_hex(8)} if saved is None else json.loads(str(saved))
        rows = begun.get("rows", 0)
        there = [path for path in (self.out, self.side) if path is not None and writing.taken(path)]
        if there:
            meta = writing.load_meta(self.out, self.side) if saved is not None and self.side in there else None
            if meta is None or meta.get("state") != begun["name"]:
                raise DataError(
                    f"{os.path.basename(there[0])}: is there already, and the state file does not know it: a second "
                    "release of the same data is a second spend; name the state file of its run, or another output"
                )
        if read.n < rows or (rows and _seen(read, rows) != begun["seen"]):
            raise DataError(
                f"{read.name}: its first {rows} rows are not those that were released before; put the input of the "
                "earlier run back; a new state file and output begin accounts at zero, which add up with these"
            )
        if self.setting.in_batches and 0 < rows < read.n:
            raise DataError(
                f"{read.name}: has more rows than when its last, short batches were drawn; release them with a new "
                "state file and output"
            )
        self.counted |= {name: begun.get(name, 0) for name in self.counted}
        self._begun = {"name": begun["name"], "rows": read.n, "seen": _seen(read, read.n)}
        self.marks = {"state": begun["name"]}
        self.streams.release([], [], [], [], {INPUT: json.dumps(self._begun | self.counted)})

    def _release_all(self, units: Units) -> pl.DataFrame:
        """The rows of all units, or of those up to where it failed, in the order of the events."""
        parts: list[pl.DataFrame] = []
        sizes = (CALL_ROWS, BATCH_ROWS) if self.how.state is None else (GROUP, min(GROUP, SLOW_GROUP))
        progress, done = self.how.progress or silent, 0
        for part in units.parts(sizes[self.setting.in_batches]):
            progress(done, units.places.size)
            self._release(part, parts)
            done = part.places.size
            if self.failure is not None:
                break
        progress(done, units.places.size)
        return pl.concat(parts).sort("place", maintain_order=True)

    def _release(self, part: Units, parts: list[pl.DataFrame]) -> None:
        """Release some units; where that failed in the middle, those that were not taken say so."""
        kept, last = self.how.state is not None, part.last
        users, raw = self.events.users.gather(last), self._codes[part.places]
        if users.dtype != pl.String and not users.dtype.is_integer():
            users = users.cast(pl.String)
        codes = np.split(raw, part.ends[:-1]) if self.setting.in_batches else raw
        times = None if self._times is None else self._times[last]

        def note(made: Releases) -> Mapping[str, str]:
            """How far the input is released, saved in the transaction of the releases."""
            self._count(part, made)
            return {INPUT: json.dumps(self._begun | self.counted)} if kept else {}

        try:
            made = self.streams.release(users.to_list(), codes, part.seqs if kept else None, times, note)
        except Erased as error:  # whose rows are left out; all others go on
            gone = {str(user) for user in error.users}
            rest = part.where([str(user) not in gone for user in users.to_list()])
            self.erased += int(part.places.size - rest.places.size)
            if rest.ends.size:
                self._release(rest, parts)
            return
        except SeqveilError as error:
            if not isinstance(error.made, Releases) or (not parts and error.made.refused.all()):
                raise  # nothing to keep
            self.failure, made = error, error.made
            self._count(part, made)
        parts.append(rows_of(part, made, self.setting))

    def _count(self, units: Units, made: Releases) -> None:
        """Count what came of some units, those apart that an earlier run counted."""
        new, sizes = ~made.replayed, units.sizes
        held = made.leakages <= ROUNDING if self.setting.in_batches else made.held
        self.counted["held"] += int((held & new).sum())
        self.counted["withheld"] += int(((made.codes == WITHHELD) & new).sum())
        self.counted["stopped"] += int(sizes[(made.codes == NOTHING) & new].sum())
        self.earlier += int(sizes[made.replayed].sum())

    def _written(self, made: pl.DataFrame) -> ReleasedRows:
        """The rows that were disclosed where they were wanted, with their side file."""
        own, codes = self.events.at(made["place"].to_numpy()), made["code"].to_numpy()
        batches = [made[name] for name in (BATCH, PATH) if PATH in made.columns]
        digest = writing.digest(own.users, codes, made[EPSILON].to_numpy(), *batches)
        more = made.drop("place", "code", *([EPSILON] if self.setting.unbounded else [])).to_dict()
        frame = writing.rows_frame(own.reading, own.users, own.order, self.setting.model.alphabet, codes, more)
        meta = self._facts(digest)
        if self.out is not None:
            writing.write_frame(self.out, frame, self.out_format, meta, self.how.meta)
        return ReleasedRows(self.out if self.out is not None else as_kind(self.given, frame), self.account, meta)

    @cached_property
    def account(self) -> ReleasedFile:
        """What was released, and what that leaked."""
        setting, found = self.setting, self.streams.accounts()
        disclosed = tuple(self.streams.secrets())
        asked: dict[str, Any] = {}
        if self.check.fits is not None:
            asked = {"doubts": self.check.doubts, "support": self.check.support, "undone": self.check.rejection}
        risk = Risk.of(setting, found, disclosed, **asked | ({} if self.private else {"undone": SEEDED}))
        return ReleasedFile(
            events=self.rows,
            users=len(found),
            releases=int(found.releases.sum()),
            **self.counted,
            leakage=float(found.leakage.max(initial=0.0)),
            composition=float(found.epsilon_spent.max(initial=0.0)),
            ldp=float(found.ldp.max(initial=0.0)),
            private=self.private,
            guarantee="; ".join(promises(setting)),
            warnings=tuple(self._warnings()),
            batch=setting.batch,
            earlier=self.earlier,
            erased=self.erased,
            secrets=disclosed,
            whole_sequence=setting.whole_sequence,
            made_public=made_public(setting.secrets, setting.model.alphabet.on_map),
            model_check=_held_out(setting.model) if setting.secrets else "",
            words=risk.sentences,
            grade=risk.grade.colour,
            grade_why=risk.grade.why,
            check=self.check,
            warning=risk.warning,
            read=self.events.taken.public,
        )

    def _warnings(self) -> Iterator[str]:
        setting = self.setting
        if not setting.mechanism.sound:
            sound = "tree or auto" if setting.in_batches else "optimal or balanced"
            yield f'mechanism "{setting.mechanism.name}" does not guarantee its ε; use {sound} for a guarantee'
        if self.by_symbol:
            yield (
                f"without {option('key')} nothing of a raw stream can be kept in a state file, so secrets are kept by "
                "symbol alone, as with side_information = 0, which may cost accuracy"
            )
        if not self.private:
            yield SEEDED

    def _facts(self, digest: str) -> Meta:
        """What the side file says."""
        from seqveil import __version__

        model, reading, seed = self.setting.model, self.events.reading, self.how.seed
        facts: Meta = {
            "format": writing.FORMAT,
            "version": writing.EDITION,
            "seqveil": __version__,
            "setting": self.setting.to_dict(),
            "model": model.fingerprint,
            "alphabet": model.alphabet.to_json(),
            "columns": {"user": reading.user, "value": reading.value, "order": self.events.taken.order},
            "seed": seed,
        }
        shown = plain(asdict(self.account)).items()
        facts |= self.marks | {name: value for name, value in shown if name not in NOT_KEPT}
        if self.streams.models > 1:  # no receiver can weigh these releases by one model
            facts["models"] = self.streams.models
        if self.account.secrets:
            facts["held_out_check"] = held_out_check(self.setting.model)
        return facts | ({"unfinished": True} if self.failure is not None else {}) | {"digest": digest}


def promises(setting: Terms) -> Iterator[str]:
    """The promise of the policy, and what it assumes of these people."""
    yield from setting.policy.sentences
    if setting.lasts:
        yield f"lasts {setting.lasts}"
    budget = setting.budget
    totals = setting.secrets or budget.exact_total is not None or budget.per_window is not None
    if setting.model.rules_out and totals and setting.mechanism.sound:
        yield "totals are for people who never do what the model calls impossible"
    if any(secret.kind == "trait" for secret in setting.secrets):
        yield "the trait's total covers this file only; released elsewhere too, a person's totals add up"


def _held_out(model: MarkovModel) -> str:
    """Whether the model that a promise about secrets rests on was checked, in a sentence."""
    said = said_of_check(model)
    if held_out_check(model) is not None:
        return said
    return f"{said}, and the promise is about people who follow it; fit it with {option('context', 'auto')} to check it"


def _seen(events: Events, rows: int) -> str:
    """A digest of the public columns of the first rows, users and order, in the order in which they are handed out:
    that of the file may follow from the values."""
    some = events.at(slice(0, rows)).in_public_order(together=False)
    return writing.digest(some.users, *([] if some.order is None else [some.order]))
