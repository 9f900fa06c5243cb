"""Release a file with a state file: killed at any point and started again, it goes on where it was.

A transaction holds the releases of some rows, how far the input was read, and the very text that these rows add to the
output; only then is the text appended. So whatever a kill leaves of it is written again from the state file: no row is
lost, none is there twice, and none was drawn twice. Whether the input is still the one that was begun is seen by its
public columns alone (users and order): a digest of the values would be a fingerprint of raw data.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import OnUnknown, Symbols
from seqveil.core.coins import KeyedCoins, User
from seqveil.core.errors import BudgetSpent, DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.interfaces.files import Chunk, Columns, read
from seqveil.interfaces.files.reading import format_of
from seqveil.interfaces.flow import meta as side
from seqveil.interfaces.flow.appending import Appended
from seqveil.interfaces.flow.batched import Buffer, Waiting, batch_rows, gaps
from seqveil.interfaces.flow.meta import EVENT, Digest
from seqveil.interfaces.flow.received import Received
from seqveil.interfaces.flow.release import (
    SEEDED,
    Released,
    account_of,
    added,
    disk_full,
    refuse_overwriting,
    refuse_withholding,
)
from seqveil.interfaces.flow.rows import FilePath, Progress, Rows, Source, Table, columns_for, seconds, times_read_as
from seqveil.receive.audit import ROUNDING
from seqveil.release.releases import Releases, Standings
from seqveil.release.secrets import SecretTotal
from seqveil.release.stream import UNKNOWN, Setting
from seqveil.release.streams import Streams

if TYPE_CHECKING:
    import polars as pl

GROUP = 1000  # events of a transaction
CHUNK_ROWS = 20_000  # rows read at a time
WHERE, TEXT = "release: position", "release: text"


@dataclass(frozen=True)
class Position:
    """How far a run has come; public. `offset` and `written` are of the output before the last transaction's text."""

    rows: int = 0  # of the input that were taken
    seen: str = ""  # digest of their public columns
    offset: int = 0
    written: str = ""  # digest of the output so far
    held: int = 0
    stopped: int = 0
    flushed: int = 0  # short last batches that are out
    drawn: int = 0  # rows that were handed to the store: more than were taken where one of them was refused
    finished: bool = False


def release_durably(
    data: FilePath,
    setting: Setting,
    out: FilePath,
    state: FilePath,
    *,
    key: bytes | None = None,
    seed: int | None = None,
    columns: Columns | None = None,
    on_unknown: OnUnknown | None = None,
    format: str | None = None,
    sort: bool = False,
    meta: FilePath | None = None,
    inputs: tuple[FilePath, ...] = (),
    progress: Progress | None = None,
    group: int = GROUP,
) -> Released:
    """Release every row of a file as `release_file` does, restartable through the state file.

    *Guarantee*: however often the run is killed and started again, the output ends up with each row once, as one
    uninterrupted run would have written it, and every release was on the disk before it was in the output. A finished
    run that is repeated changes nothing; rows added to the end of the input since are released after it (not for
    batches, whose short last ones are out). Where a row finds its user's budget spent and the policy is "error",
    BudgetSpent is raised: the output ends before that row and has its side file, all that was drawn stands, and a
    repeated run ends there again without drawing anything.

    Parameters: as for `release_file`, but values outside the alphabet are hidden, or moved to the nearest, and never
    refused: receivers may watch the output, and a run that stops shows them where; `state`, which no other run may have
    open; `key`, for coins that are the same if an event is drawn again (`seqveil.coins.key_file`); `group`, the events
    of a transaction. The output is a CSV, TSV or JSON lines file, which can be appended to; Parquet and standard output
    cannot.
    """
    if key is not None and seed is not None:
        raise InputError("pass a key or a seed, not both: a seeded release is not private")
    refuse_withholding(setting)
    source = Source(data, columns_for(setting, columns), format, sort, CHUNK_ROWS)
    alphabet = setting.model.alphabet.watched(on_unknown)
    refuse_overwriting(data, out, meta, (state, *inputs))
    read(data, source.columns, format=format)  # refuses what is no file before anything is made
    coins = None if seed is None else KeyedCoins.seeded(seed, setting.signature.encode())
    target = Appended(out, (data, state, *inputs), (side.place(out, meta),))
    with Streams.open(state, setting, key=key, coins=coins) as store, target:
        run = (_Batches if setting.in_batches else _OneByOne)(store, target, source, alphabet, group)
        refusal: BudgetSpent | None = None
        try:
            run.go(progress)
        except BudgetSpent as error:  # all that was drawn stands, so its side file does too
            refusal = error
        order = run.order
        account = replace(account_of(setting, run.counted(), seed), times=run.times)
        if account.private and not store.private:  # an earlier run was seeded, and its rows are in the output
            account = replace(account, private=False, warnings=(*account.warnings, SEEDED))
        digest = _digest(out, setting, replace(source.columns, time=order), account.releases)
        facts = disk_full(setting, source.columns, order, seed, account, digest)
        more = {} if refusal is None else {"unfinished": True}
        side.save(facts | {"private": account.private} | _across_versions(store) | more, out, meta)
    if refusal is not None:
        raise refusal
    return replace(account, unknown=run.unknown)


def _across_versions(store: Streams) -> dict[str, object]:
    """For a state file that moved on to another model: no single one made all rows, so none is named."""
    return {} if store.versions is None else {"model": "several", "versions": store.versions}


@dataclass
class _Counts:
    events: int
    held: int
    stopped: int
    store: Streams
    refused: int = 0
    choices: dict[str, dict[str, Any]] = field(default_factory=dict)

    def standings(self) -> Standings:
        return self.store.standings()

    def secrets(self) -> list[SecretTotal]:
        return self.store.secrets()


class _Run(ABC):
    """One pass over the input; what an earlier one did is passed over."""

    def __init__(self, store: Streams, target: Appended, source: Source, alphabet: Symbols, group: int) -> None:
        self.store, self.target, self.source, self.group = store, target, source, group
        self.setting = store.setting
        self.alphabet, self.table = alphabet, Table(alphabet, source.columns)
        self.seen, self.unknown = _Seen(), 0
        self._seen_upto: Callable[[int], _Seen] = lambda rows: self.seen
        self.times: str | None = None  # what they were read as
        self.order: str | None = None  # the name of the order column
        saved, text = store.position(WHERE), store.position(TEXT)
        if isinstance(saved, str) and isinstance(text, bytes):
            self.position = Position(**json.loads(saved))
            target.resume(self.position.offset, self.position.written, text)
        else:
            self.position = Position()
            target.begin()

    def go(self, progress: Progress | None) -> None:
        """Release what is left."""
        begin, read = self.position.rows, 0
        for part, codes in self.source.coded(self.alphabet, progress):
            times = seconds(part, self.source.name) if self.setting.budget.seconds is not None else None
            self.order = None if part.order is None else part.order.name
            self.times = None if times is None else times_read_as(part)
            done = min(part.n, max(0, begin - read))
            if done:
                self._see(*_cut(part, codes, times, 0, done), passed=True)
                if read + done == begin:
                    self._check_input()
            self.unknown += int((codes[done:] == UNKNOWN).sum())
            while done < part.n:
                end = min(done + self.group, part.n)
                if read + done < self.position.drawn:  # an earlier run was refused a row of these: no more than them
                    end = min(end, self.position.drawn - read)
                self._see(*_cut(part, codes, times, done, end), passed=False)
                done = end
            read += part.n
        if read < begin:
            self._refuse()
        self.finish()
        if not self.position.finished:
            self._commit_position(replace(self.position, finished=True))
        self.target.sync()

    def _see(self, part: Chunk, codes: Ints, times: Floats | None, passed: bool) -> None:
        before = self.seen.copy()
        self.seen.add(part)
        self._seen_upto = lambda rows: before.copy().add(_cut(part, codes, times, 0, rows)[0])
        self.take(part, codes, times, passed)

    @abstractmethod
    def take(self, part: Chunk, codes: Ints, times: Floats | None, passed: bool) -> None:
        """Release these rows, or pass over them where an earlier run did."""

    @abstractmethod
    def finish(self) -> None:
        """What is left to do at the end of the input."""

    def counted(self) -> _Counts:
        """What the account of the run is made of; a row that is refused ends it, so none is."""
        now = self.position
        return _Counts(now.rows, now.held, now.stopped, self.store)

    def note(self, rows: Rows, position: Position, seen: _Seen | None = None) -> dict[str, str | bytes]:
        """What is committed beside the releases of these rows: the text they add, and where that leaves the run.

        `seen`: the rows that it has taken, where these are not all that were read.
        """
        frame = self.table.frame(rows.chunk, rows.codes, added(self.setting, rows))
        self._text = self.target.text(frame)
        self._next = replace(
            position,
            seen=(seen or self.seen).hex(),
            offset=self.target.size,
            written=self.target.digest,
            finished=False,
        )
        return {WHERE: json.dumps(asdict(self._next)), TEXT: self._text}

    def committed(self) -> None:
        """The transaction stands: now, and not before, its rows may be seen."""
        self.position = self._next
        self.target.append(self._text)

    def release(self, call: Callable[[], object]) -> None:
        """Have the store release rows: what comes before the first one that is refused, if one is, is published."""
        self.target.sync()  # the text before this one can then be forgotten
        try:
            call()
        except BudgetSpent:
            self.committed()
            self.target.sync()
            raise BudgetSpent(
                f"{self.source.name}: the budget of a user is spent ({self.setting.budget.describe()}) at row "
                f"{self.position.rows + 1}; the output ends before it, and all that was drawn stands"
            ) from None
        self.committed()

    def _commit_position(self, position: Position) -> None:
        where = {WHERE: json.dumps(asdict(position))}
        self.store.release([], [], [], [], where)
        self.position = position

    def _check_input(self) -> None:
        if self.seen.hex() != self.position.seen:
            self._refuse()

    def _refuse(self) -> None:
        raise DataError(
            f"{self.source.name}: its first {self.position.rows} rows are not those that were released before; put the "
            "input of the earlier run back, or begin with a new state file and output"
        )


class _OneByOne(_Run):
    """Each row is an event."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._following: dict[User, int] = {}

    def take(self, part: Chunk, codes: Ints, times: Floats | None, passed: bool) -> None:
        users = names_of(part.users)
        seqs = np.empty(part.n, np.int64)
        for k, user in enumerate(users):
            seqs[k] = following = self._following.get(user, 0)
            self._following[user] = following + 1
        if passed:
            return

        def note(made: Releases) -> dict[str, str | bytes]:
            count = int(made.refused.argmax()) if made.refused.any() else part.n
            kept = np.flatnonzero(made.codes[:count] >= 0)
            more = {EVENT: seqs[kept]} if gaps(self.setting) else {}
            order = None if part.order is None else part.order.gather(kept)
            rows = Rows(part.users.gather(kept), order, made.codes[kept], made.epsilons[kept], more)
            now = self.position
            held, stopped = int((made.epsilons[kept] == 0).sum()), count - kept.size
            after = replace(now, rows=now.rows + count, drawn=now.rows + part.n)
            after = replace(after, held=now.held + held, stopped=now.stopped + stopped)
            return self.note(rows, after, self._seen_upto(count))

        self.release(lambda: self.store.release(users, codes, seqs, times, note))

    def finish(self) -> None:
        """Nothing waits."""


class _Batches(_Run):
    """Each batch that fills is an event; short ones go at the end of the input."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._buffer = Buffer(self.setting.batch)
        self._following: dict[User, int] = {}
        self._rows = 0
        self._like: Chunk | None = None

    def take(self, part: Chunk, codes: Ints, times: Floats | None, passed: bool) -> None:
        if not passed and (self.position.flushed or self.position.finished):
            raise DataError(
                f"{self.source.name}: has more rows than when its last, short batches went out; release them with a "
                "new state file and output"
            )
        self._like = part
        full = self._numbered(self._buffer.fill(part, codes, times, set()))
        before, self._rows = self._rows, self._rows + part.n
        if full and not passed:
            position = replace(self.position, rows=self._rows, drawn=self._rows)
            # a batch that is refused is not taken, nor the row that filled it
            self._send(full, position, [replace(position, rows=before + held.place) for held, _ in full])

    def _numbered(self, full: Iterable[Waiting]) -> list[tuple[Waiting, int]]:
        """These batches with the number of each in its user's stream."""
        numbered = []
        for held in full:
            seq = self._following.get(held.user, 0)
            self._following[held.user] = seq + 1
            numbered.append((held, seq))
        return numbered

    def finish(self) -> None:
        left = self._numbered(self._buffer.waiting.values())
        for at in range(self.position.flushed, len(left), self.group):
            some = left[at : at + self.group]
            position = replace(self.position, rows=self._rows, drawn=self._rows, flushed=at + len(some))
            self._send(some, position, [replace(position, flushed=at + k) for k in range(len(some))])
        if self.position.rows < self._rows:
            self._commit_position(replace(self.position, rows=self._rows, seen=self.seen.hex()))

    def _send(self, full: list[tuple[Waiting, int]], position: Position, short: list[Position]) -> None:
        """Release these batches; `position` is where that leaves the run, `short` where each leaves it if refused."""
        like, batches = self._like, [held for held, _ in full]
        assert like is not None

        def note(made: Releases) -> dict[str, str | bytes]:
            refused = bool(made.refused.any())
            count = int(made.refused.argmax()) if refused else len(full)
            quiet = int((made.leakages[:count] <= ROUNDING).sum())
            stopped = sum(len(held.codes) for held, code in zip(batches, made.codes[:count], strict=False) if code < 0)
            rows = batch_rows(like, batches[:count], made)
            after = short[count] if refused else position
            seen = self._seen_upto(batches[count].place) if refused and batches[count].place >= 0 else None
            return self.note(rows, replace(after, held=after.held + quiet, stopped=after.stopped + stopped), seen)

        users, seqs, raw = _names(like, batches), [seq for _, seq in full], [held.codes for held in batches]
        times = None if batches[0].time is None else [held.time or 0.0 for held in batches]
        self.release(lambda: self.store.release(users, raw, seqs, times, note))


def _names(like: Chunk, full: list[Waiting]) -> list[User]:
    import polars as pl

    return names_of(pl.Series([held.user for held in full], dtype=like.users.dtype))


class _Seen:
    """A digest of the public columns of the rows taken, however they were cut into chunks."""

    def __init__(self) -> None:
        self._parts = [hashlib.sha256() for _ in range(4)]

    def copy(self) -> _Seen:
        same = _Seen()
        same._parts = [part.copy() for part in self._parts]
        return same

    def add(self, part: Chunk) -> _Seen:
        import polars as pl

        for k, column in enumerate((part.users, part.order)):
            if column is not None:
                text = column.cast(pl.String)
                self._parts[2 * k].update("".join(text.to_list()).encode())
                self._parts[2 * k + 1].update(text.str.len_bytes().to_numpy().astype("<i8").tobytes())
        return self

    def hex(self) -> str:
        return hashlib.sha256(b"".join(part.digest() for part in self._parts)).hexdigest()


def _cut(part: Chunk, codes: Ints, times: Floats | None, begin: int, end: int) -> tuple[Chunk, Ints, Floats | None]:
    order = None if part.order is None else part.order[begin:end]
    some = Chunk(part.users[begin:end], part.values[begin:end], order, part.row(begin))
    return some, codes[begin:end], None if times is None else times[begin:end]


def names_of(users: pl.Series) -> list[User]:
    """Text and whole numbers as they are; anything else as text."""
    import polars as pl

    plain = users.dtype == pl.String or users.dtype.is_integer()
    return (users if plain else users.cast(pl.String)).to_list()


def _holds_rows(out: FilePath) -> bool:
    """Whether the output has more than its header; where the first row was refused, it has not."""
    with open(out, "rb") as lines:
        return sum(1 for _ in zip(lines, range(2), strict=False)) > (format_of(out, None) != "jsonl")


def _digest(out: FilePath, setting: Setting, columns: Columns, releases: int) -> Digest:
    """The digest of the rows in the output, read back as an audit reads them: earlier runs wrote some of them."""
    digest = Digest()
    if not releases or not _holds_rows(out):
        return digest
    received = Received(Source(out, columns), setting, None)
    if setting.in_batches:
        for portion in received.portions():
            told = zip(portion.batches, portion.paths, strict=True)
            digest.add(portion.users, portion.codes, portion.epsilons, told)
        return digest
    for batch in received.batches():
        rows = np.flatnonzero(batch.row_of >= 0)
        used = np.full(batch.codes.size, setting.epsilon) if batch.epsilons is None else batch.epsilons
        digest.add(batch.chunk.users, batch.codes[rows], used[rows])
    return digest
