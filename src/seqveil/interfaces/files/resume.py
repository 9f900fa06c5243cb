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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from seqveil.core.errors import DataError, InputError, option
from seqveil.core.kernel import Ints
from seqveil.core.randomness import KeyedRandomness
from seqveil.core.replacing import settle
from seqveil.engine.releases import Releases
from seqveil.engine.store import Erased
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import key_for
from seqveil.interfaces.files import writing
from seqveil.interfaces.files.changes import changed
from seqveil.interfaces.files.events import Events, Progress
from seqveil.interfaces.files.received import received_events
from seqveil.interfaces.files.release import MadeRows, ReleasedRows, Run, Shown, Units
from seqveil.interfaces.files.table import FilePath, file_name
from seqveil.interfaces.files.writing import Digest, as_text, output_format, same_file, taken
from seqveil.receiver.drift import ModelCheck

if TYPE_CHECKING:
    import polars as pl

    from seqveil.interfaces.files.release import _Job

WHERE, TEXT = "release: position", "release: text"
BLOCK = 1 << 20
GROUP = 1000  # events of a transaction
SLOW = 64  # events of the first one where batches are released
LONGEST = 0.5  # seconds that a transaction may take


def resumed(
    job: _Job,
    out: FilePath,
    state: FilePath,
    key: FilePath | bytes | None,
    seed: int | None,
    meta: FilePath | None,
    must_exist: bool,
    inputs: Sequence[Any],
    progress: Progress | None,
    shown: Shown | None,
) -> ReleasedRows:
    """Release what an earlier run did not, after what it left of the output was put right."""
    if job.setting.model.alphabet.slots is not None:
        raise InputError(
            "slots need the whole file, since its last slot may go on later: a release in slots cannot be gone on "
            f"with; leave {option('state')} out"
        )
    if key is not None and seed is not None:
        raise InputError("pass a key or a seed, not both: a seeded release is not private")
    alphabet = job.alphabet(tracked=True)
    events = job.events(alphabet)
    kept = [writing.side_of(out, meta), *([key] if isinstance(key, str | os.PathLike) else [])]
    output = Appended(out, [*inputs, state, *kept[1:]], kept[:1])
    secret = key if isinstance(key, bytes) else key_for(Path(state), None if key is None else Path(key))
    drawn = None if seed is None else KeyedRandomness.seeded(seed)
    with (
        CodeStreams.open(state, job.setting, key=secret, randomness=drawn, must_exist=must_exist) as streams,
        output,
    ):
        run = Resumed(events, events.codes(alphabet), streams, output, seed)
        run.go(progress)
        found = ReleasedRows(out, run.account(), run.facts())
        writing.write_text(writing.side_of(out, meta), writing.as_json(found.meta))
        if shown is not None:
            shown(run.changed())
    return found


@dataclass(frozen=True)
class RunPosition:
    """How far a run has come; public. `offset` and `written` are of the output before the last transaction's text."""

    rows: int = 0  # of the input that were taken
    units: int = 0  # releases that are out
    seen: str = ""  # digest of the public columns of the rows
    offset: int = 0
    written: str = ""  # digest of the output so far
    held: int = 0
    stopped: int = 0
    withheld: int = 0
    flushed: bool = False  # whether short last batches began to go out
    finished: bool = False


class Resumed(Run):
    """Goes on where an earlier run was: what that one did is passed over."""

    def __init__(self, events: Events, codes: Ints, streams: CodeStreams, output: Appended, seed: int | None) -> None:
        super().__init__(streams.setting, streams, seed)
        self.events, self._codes, self._output = events, codes, output
        self._units = Units.of(events, codes, self.setting)
        self.tracked = True
        self.check = ModelCheck.none("rows were written as they came; audit the file they are in")
        self._made: list[MadeRows] = []
        saved, text = streams.position(WHERE), streams.position(TEXT)
        self._at = RunPosition()
        if isinstance(saved, str) and isinstance(text, bytes):
            self._at = RunPosition(**json.loads(saved))
            output.resume(self._at.offset, self._at.written, text)
        else:
            output.begin()
        self.earlier = self._at.rows
        self._seen = Digest()

    def go(self, progress: Progress | None) -> None:
        """Release all that is left; all that was drawn is written."""
        self._check_input()
        try:
            self._release_rest(progress)
        except Erased as error:
            raise DataError(
                f"{self.events.name}: after row {self._at.rows} it has rows of somebody who was erased from the state "
                "file, and with declared secrets or states this large nothing more can be released of them; take these "
                "new rows out (not the earlier ones), and the same command goes on with all others"
            ) from error
        self.held, self.stopped, self.withheld = self._at.held, self._at.stopped, self._at.withheld
        self.digest = self._digest()

    def _check_input(self) -> None:
        """Refuse an input whose first rows are not those that were released before, or one that came too late."""
        rows, units = self._at.rows, self._units
        if self.events.n < rows or self._see(0, rows) != self._at.seen:
            raise DataError(
                f"{self.events.name}: its first {rows} rows are not those that were released before; put the input of "
                "the earlier run back; a new state file and output begin accounts at zero, which add up with these"
            )
        if (self._at.finished or self._at.flushed) and self.setting.in_batches and rows < self.events.n:
            raise DataError(
                f"{self.events.name}: has more rows than when its last, short batches went out; release them with a "
                "new state file and output"
            )
        self._seqs = _numbered(units.users)

    def _see(self, begin: int, end: int) -> str:
        """The digest of the public columns of all rows up to one of them."""
        if end > begin:
            some = self.events.at(slice(begin, end))
            self._seen.add(some.users, *([] if some.order is None else [some.order]))
        return self._seen.hex() if end else ""

    def _release_rest(self, progress: Progress | None) -> None:
        pace, most = (min(SLOW, GROUP), GROUP) if self.setting.in_batches else (GROUP, GROUP)
        if progress is not None:
            progress(self._at.rows)
        while self._at.units < len(self._units):
            begin = self._at.units
            end = min(begin + pace, len(self._units))
            if begin < self._units.full:
                end = min(end, self._units.full)  # short batches only when all is read
            began, rows = perf_counter(), self._at.rows
            self._send(begin, end)
            took = perf_counter() - began
            if took > LONGEST:  # no transaction takes much longer, so that a run that is killed often comes to an end
                pace = max(1, int((end - begin) * LONGEST / took))
            elif took < LONGEST / 4:
                pace = min(most, 2 * pace)
            if progress is not None:
                progress(self._at.rows - rows)
        if not self._at.finished or self._at.rows < self.events.n:
            seen = self._see(self._at.rows, self.events.n)
            self._at = replace(self._at, rows=self.events.n, seen=seen, finished=True)
            self.streams.release([], [], [], [], {WHERE: json.dumps(asdict(self._at))})
        self._output.sync()

    def _send(self, begin: int, end: int) -> None:
        """Release some units and publish them."""
        units, text, now = self._units.part(begin, end), b"", self._at
        rows = self.events.n if end > self._units.full else max(self._at.rows, int(units.places.max()) + 1)
        seen = self._see(self._at.rows, rows)

        def note(made: Releases) -> dict[str, str | bytes]:
            """What is committed beside the releases: the text that they add, and where that leaves the run."""
            nonlocal text, now
            self.held, self.stopped, self.withheld = self._at.held, self._at.stopped, self._at.withheld
            self.count(units, made)
            self._made.append(MadeRows.of(units, made, self.setting))
            text = self._output.text(self._made[-1].frame(self.events, self.setting))
            now = RunPosition(
                rows, end, seen, self._output.size, self._output.digest, self.held, self.stopped, self.withheld,
                end > self._units.full,
            )  # fmt: skip
            return {WHERE: json.dumps(asdict(now)), TEXT: text}

        self._output.sync()  # the text before this one can then be forgotten
        self.streams.release(units.users, units.raw, self._seqs[begin:end], units.times, note)
        # the transaction stands: now, and not before, its rows may be seen
        self._at = now
        self._output.append(text)

    def _digest(self) -> str:
        """Of the rows in the output, read back as an audit reads them: earlier runs wrote some of them."""
        if not _holds_rows(self._output.path):
            return ""
        reading = replace(self.events.reading, time=self.events.taken.order)
        return received_events(self._output.path, reading, self.setting).digest()

    def changed(self) -> list[Any]:
        """What was changed by this run, for the operator alone."""
        if not self._made:
            return []
        made = MadeRows.joined(self._made)
        people, who = self.events.people
        return changed(self.setting, len(people), who[made.places], self._codes[made.places], made.codes)


def _numbered(users: list[Any]) -> Ints:
    """The sequence number of each release: how many of its user came before."""
    following: dict[Any, int] = {}
    seqs = np.empty(len(users), np.int64)
    for k, user in enumerate(users):
        seqs[k] = following.get(user, 0)
        following[user] = int(seqs[k]) + 1
    return seqs


class Appended:
    """A CSV, TSV or JSON lines file to append to.

    What it must hold before the next text is known from the state file, by length and digest. Less, other or more than
    that is refused: it would mean that somebody else wrote to it, or that the state file is older than the output, so
    that going on would draw rows again that are out already. `beside` are files that come with a finished output: one
    that is there before the first row is of an earlier release.
    """

    def __init__(self, path: FilePath, inputs: Sequence[Any] = (), beside: Sequence[FilePath] = ()) -> None:
        self.path, self._name, self._beside = os.fspath(path), file_name(path), beside
        if self.path == "-":
            raise InputError(
                f"standard output cannot be gone on with after a stop; name an output file beside {option('state')}"
            )
        self._format = output_format(path)
        if self._format == "parquet":
            raise InputError(f"{self._name}: Parquet cannot be appended to; write .csv or .jsonl and convert it then")
        if any(same_file(path, other) for other in inputs if isinstance(other, str | os.PathLike)):
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


def _holds_rows(out: FilePath) -> bool:
    """Whether the output has more than its header; where the first row was refused, it has not."""
    if not os.path.exists(out):
        return False
    with open(out, "rb") as lines:
        return sum(1 for _ in zip(lines, range(2), strict=False)) > (output_format(out) != "jsonl")
