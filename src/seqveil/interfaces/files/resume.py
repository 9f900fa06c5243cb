"""Release a file with a state file: killed at any point and started again, it goes on where it was.

A transaction holds the releases of some rows, how far the input was read, and the very text that these rows add to the
output; only then is the text appended. So whatever a kill leaves of it is written again from the state file: no row is
lost, none is there twice, and none was drawn twice. Whether the input is still the one that was begun is seen by its
public columns alone (users and order): a digest of the values would be a fingerprint of raw data.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from types import TracebackType
from typing import IO, TYPE_CHECKING

import numpy as np

from seqveil.core.alphabet import WITHHELD, OnUnknown, Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Ints
from seqveil.core.randomness import KeyedRandomness, User
from seqveil.core.replacing import settle
from seqveil.engine.releases import Releases
from seqveil.engine.store import Erased
from seqveil.engine.stream import NOTHING, Terms
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.files.reading import Chunk, FilePath, file_name, output_format, read
from seqveil.interfaces.files.received import Received
from seqveil.interfaces.files.release import ReleaseRun, Target
from seqveil.interfaces.files.rows import Coded, Events, Progress, Rows, Source
from seqveil.interfaces.files.writing import ColumnDigest, Digest, as_text, place, same_file, taken, text_bytes

if TYPE_CHECKING:
    import polars as pl

WHERE, TEXT = "release: position", "release: text"
BLOCK = 1 << 20
LONGEST = 0.5  # seconds that a transaction may take
SLOW = 64  # rows of the first one where batches are released


@contextmanager
def resumed(
    source: Source,
    setting: Terms,
    on_unknown: OnUnknown | None,
    target: Target,
    state: FilePath,
    key: bytes | None,
    seed: int | None,
    group: int,
) -> Iterator[ReleaseRun]:
    """A run over a state file, with what an earlier one left of the output put right."""
    if key is not None and seed is not None:
        raise InputError("pass a key or a seed, not both: a seeded release is not private")
    alphabet = setting.model.alphabet.tracked(on_unknown)
    target.refuse_overwriting(state)
    read(source.path, source.columns, format=source.format)  # refuses what is no file before anything is made
    randomness = None if seed is None else KeyedRandomness.seeded(seed)
    output = Appended(target.out, (*target.inputs, state), (place(target.out, target.meta),))
    with CodeStreams.open(state, setting, key=key, randomness=randomness) as streams, output:
        yield Resumed(source, alphabet, seed, streams, output, group)


@dataclass(frozen=True)
class Position:
    """How far a run has come; public. `offset` and `written` are of the output before the last transaction's text."""

    rows: int = 0  # of the input that were taken
    seen: str = ""  # digest of their public columns
    offset: int = 0
    written: str = ""  # digest of the output so far
    held: int = 0
    stopped: int = 0
    withheld: int = 0
    flushed: int = 0  # short last batches that are out
    finished: bool = False


class Resumed(ReleaseRun):
    """Goes on where an earlier run was: what that one did is passed over."""

    def __init__(
        self, source: Source, alphabet: Symbols, seed: int | None, streams: CodeStreams, output: Appended, group: int
    ) -> None:
        super().__init__(source, streams.setting, alphabet, streams, seed)
        self._streams, self._output = streams, output
        # rows of the next transaction, and short batches of one at the end: where each takes long, few of them, so that
        # a run that is killed often still comes to the end of one
        self._pace, self._most = (min(group, SLOW), group) if streams.setting.in_batches else (group, group)
        self._group = self._pace
        self.private = self.private and streams.private  # an earlier run may have been seeded: its rows are there too
        self._read = 0  # rows of the input so far
        self._seen = ColumnDigest()  # of the public columns, however the rows were cut into chunks
        self._following: dict[User, int] = {}  # the sequence number that comes next
        saved, text = streams.position(WHERE), streams.position(TEXT)
        if isinstance(saved, str) and isinstance(text, bytes):
            self._position = Position(**json.loads(saved))
            output.resume(self._position.offset, self._position.written, text)
        else:
            self._position = Position()
            output.begin()
        self._begin = self.earlier = self._position.rows

    def go(self, progress: Progress | None) -> None:
        """Read to the end; all that was drawn is written."""
        try:
            super().go(progress)
        except Erased as error:
            raise DataError(
                f"{self.source.name}: after row {self._position.rows} it has rows of somebody who was erased from the "
                "state file, and with declared secrets or states this large nothing more can be released of them; take "
                "these new rows out (not the earlier ones), and the same command goes on with all others"
            ) from error
        now = self._position
        self.events, self.held, self.stopped, self.withheld = now.rows, now.held, now.stopped, now.withheld

    def take(self, part: Coded) -> None:
        """Pass over the rows of earlier runs, check that they are the same, and release the new ones in groups."""
        done = min(part.n, max(0, self._begin - self._read))
        if done:
            self._take(part.take(slice(0, done)), passed=True)
            if self._read == self._begin and self._seen.hex() != self._position.seen:
                self._refuse()
        while done < part.n:
            end = min(done + self._pace, part.n)
            begin = perf_counter()
            self._take(part.take(slice(done, end)), passed=False)
            self._keep_pace(end - done, perf_counter() - begin)
            done = end

    def _keep_pace(self, rows: int, took: float) -> None:
        """Have the next transaction take no longer than half a second, whatever rows cost."""
        if took > LONGEST:
            self._pace = max(1, int(rows * LONGEST / took))
        elif took < LONGEST / 4 and rows == self._pace:
            self._pace = min(self._most, 2 * self._pace)

    def _take(self, part: Coded, passed: bool) -> None:
        """Release these rows, or pass over them where an earlier run did."""
        if not passed and self.setting.in_batches and (self._position.flushed or self._position.finished):
            raise DataError(
                f"{self.source.name}: has more rows than when its last, short batches went out; release them with a "
                "new state file and output"
            )
        self._read += part.n
        self._seen.add(*_public(part.chunk))
        events = self.collector.take(part)
        seqs = self._numbered(events)
        if not passed and len(events):
            self._send(events, seqs, self._position.flushed)

    def finish(self) -> None:
        """Release the batches that are not full, and note that the file was read to its end."""
        if self._read < self._begin:
            self._refuse()
        at = self._position.flushed
        while (some := self.collector.rest(at, self._group - at % self._group)) is not None:
            at += len(some)
            self._send(some, self._numbered(some), at)
        if self._position.rows < self._read or not self._position.finished:
            where = replace(self._now(at), finished=True)
            self._streams.release([], [], [], [], {WHERE: json.dumps(asdict(where))})
            self._position = where
        self._output.sync()

    def _now(self, flushed: int) -> Position:
        """Where the run is when all rows read so far are taken, and so many short batches are out."""
        return replace(self._position, rows=self._read, seen=self._seen.hex(), flushed=flushed)

    def _numbered(self, events: Events) -> Ints:
        """The sequence number of each event."""
        seqs = np.empty(len(events), np.int64)
        for k, user in enumerate(names_of(events.users)):
            seqs[k] = following = self._following.get(user, 0)
            self._following[user] = following + 1
        return seqs

    def _send(self, events: Events, seqs: Ints, flushed: int) -> None:
        """Release events and publish them; then so many short batches are out."""
        text, position = b"", self._position

        def note(made: Releases) -> dict[str, str | bytes]:
            """What is committed beside the releases: the text that they add, and where that leaves the run."""
            nonlocal text, position
            text = self._output.text(self.frame(Rows.of(events, made, self.setting)))
            position = replace(
                self._now(flushed),
                held=self._position.held + self.quiet(made),
                stopped=self._position.stopped + int(events.sizes[made.codes == NOTHING].sum()),
                withheld=self._position.withheld + int((made.codes == WITHHELD).sum()),
                offset=self._output.size,
                written=self._output.digest,
                finished=False,
            )
            return {WHERE: json.dumps(asdict(position)), TEXT: text}

        self._output.sync()  # the text before this one can then be forgotten
        made = self._streams.release(names_of(events.users), events.raw, seqs, events.times, note)
        self.show(events, made)
        # the transaction stands: now, and not before, its rows may be seen
        self._position = position
        self._output.append(text)

    def _refuse(self) -> None:
        raise DataError(
            f"{self.source.name}: its first {self._position.rows} rows are not those that were released before; put "
            "the input of the earlier run back, or begin with a new state file and output"
        )

    def digest(self) -> Digest:
        """Of the rows in the output, read back as an audit reads them: earlier runs wrote some of them."""
        digest, out = Digest(), self._output.path
        if _holds_rows(out):
            columns = replace(self.source.columns, time=self._order)
            received = Received(Source(out, columns), self.setting, None)
            if self.setting.in_batches:
                for portion in received.portions():
                    portion.add_to(digest)
            else:
                for batch in received.batches():
                    batch.add_to(digest, np.full(batch.codes.size, self.setting.epsilon))
        return digest


class Appended:
    """A CSV, TSV or JSON lines file to append to.

    What it must hold before the next text is known from the state file, by length and digest. Less, other or more than
    that is refused: it would mean that somebody else wrote to it, or that the state file is older than the output, so
    that going on would draw rows again that are out already. `beside` are files that come with a finished output: one
    that is there before the first row is of an earlier release.
    """

    def __init__(self, path: FilePath, inputs: Sequence[FilePath] = (), beside: Sequence[FilePath] = ()) -> None:
        self.path, self._name, self._beside = os.fspath(path), file_name(path), beside
        if self.path == "-":
            raise InputError("standard output cannot be gone on with after a stop; name an output file beside --state")
        self._format = output_format(path, None)
        if self._format == "parquet":
            raise InputError(f"{self._name}: Parquet cannot be appended to; write .csv or .jsonl and convert it then")
        if any(same_file(path, other) for other in inputs):
            raise DataError(f"{self._name}: is read and written at once; choose another output")
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> Appended:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def digest(self) -> str:
        """Of all that was written."""
        return self._digest.hexdigest()

    def begin(self) -> None:
        """Start an output of which the state file knows nothing yet."""
        for path in filter(taken, (self.path, *self._beside)):
            raise DataError(
                f"{file_name(path)}: is there already, and the state file does not know it: a second release of the "
                "same data is a second spend; name the state file of its run, or another output"
            )

    def resume(self, size: int, digest: str, text: bytes) -> None:
        """Go on with an output that held so much, with this digest, when `text` was committed to be added to it."""
        if size == 0 and not os.path.exists(self.path):
            return self.append(text)  # stopped before the file was made, and all of it is known
        if not os.path.isfile(self.path):
            raise DataError(f"{self._name}: the output of the earlier run is missing; put it back under this name")
        self._file = self._opened("rb+")
        while self.size < size and (block := self._file.read(min(BLOCK, size - self.size))):
            self._digest.update(block)
            self.size += len(block)
        rest = self._file.read(len(text) + 1)
        if self.size < size or self.digest != digest or not text.startswith(rest):
            raise DataError(
                f"{self._name}: is not what the state file says was written; put back the output of the earlier run, "
                "or, where the state file is the older one, its newer copy"
            )
        self._file.seek(size)
        return self.append(text)

    def append(self, text: bytes) -> None:
        """Write at the end; `sync` waits for the disk."""
        if self._file is None:
            self._file = self._opened("ab")
            settle(os.path.dirname(os.path.abspath(self.path)))  # or a power cut could take the file's name away
        self._file.write(text)
        self._file.flush()
        self._digest.update(text)
        self.size += len(text)

    def sync(self) -> None:
        """Wait until all of it is on the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def text(self, frame: pl.DataFrame) -> bytes:
        """The rows as they will stand in the file."""
        return as_text(frame, self._format, header=self.size == 0)

    def _opened(self, mode: str) -> IO[bytes]:
        try:
            return open(self.path, mode)
        except OSError as error:
            raise DataError(f"{self._name}: cannot be opened ({error.strerror}); check the path") from None


def _public(part: Chunk) -> list[bytes]:
    """The public columns of rows: who, and the order where there is one."""
    return [*text_bytes(part.users), *(() if part.order is None else text_bytes(part.order))]


def names_of(users: pl.Series) -> list[User]:
    """Text and whole numbers as they are; anything else as text."""
    import polars as pl

    plain = users.dtype == pl.String or users.dtype.is_integer()
    return (users if plain else users.cast(pl.String)).to_list()


def _holds_rows(out: FilePath) -> bool:
    """Whether the output has more than its header; where the first row was refused, it has not."""
    with open(out, "rb") as lines:
        return sum(1 for _ in zip(lines, range(2), strict=False)) > (output_format(out, None) != "jsonl")
