"""The stateful operator of Structured Streaming: a bucket of users is a group, their state lies in Spark's store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.randomness import User
from seqveil.engine.store import Entry, Position, Stored, UserRow
from seqveil.interfaces.spark.checkpoint import USERS
from seqveil.interfaces.spark.failures import SparkFailed, worker_errors
from seqveil.interfaces.spark.job import SparkJob

if TYPE_CHECKING:
    import pandas as pd

# what is kept of a user, public: a ledger in nats, and the exact state
KEPT = "events BIGINT, releases BIGINT, spent DOUBLE, most DOUBLE, least DOUBLE, ldp DOUBLE, state BINARY"


class ReleaseProcessor(StatefulProcessor):
    """Releases the rows of each bucket as they come.

    *Guarantee*: the state and the rows of a micro-batch follow from the state before it, its input, the key and the id
    of the query alone, so that Spark may run it as often as it must. Spark draws the id when a checkpoint is made and
    keeps it there: no two checkpoints share randomness, though they share the key. The state holds no raw symbol.

    Parameters:
        job: the release.
        salt: in place of the id of the query, where no query runs.
    """

    def __init__(self, job: SparkJob, salt: bytes | None = None) -> None:
        self._job, self._salt = job, salt

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of a bucket; Spark calls it once a partition and micro-batch."""
        self._users = handle.getMapState(USERS, "user STRING", KEPT)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Release the events of a bucket; Spark calls it with all its rows of a micro-batch."""
        import pandas as pd

        with worker_errors():
            store = SparkStore(self._users, self._salt or _query_id())
            released = self._job.release(pd.concat(list(rows), ignore_index=True), store)
        yield released

    def close(self) -> None:
        """Nothing is open."""


def _query_id() -> bytes:
    """The id of the query that this worker works for, which its checkpoint keeps: random, and of no other query."""
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise SparkFailed("a worker does not know the id of its query, which randomness is drawn with; report it")
    return found.encode()


class SparkStore:
    """The users of a bucket as a store of states. Releases are not kept: the output of the query has them.

    Spark keeps all of a micro-batch or nothing, and drops what a failed try has kept; the next try draws the same.

    Parameters:
        users: Spark's map from a user's name to what is kept.
        salt: the same for every task that works for the checkpoint.
    """

    name, durable, keeps_releases, largest = "Spark's state store", True, False, math.inf

    def __init__(self, users: Any, salt: bytes) -> None:
        self._users, self.salt = users, salt

    def transaction(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    def find(self, names: Sequence[User]) -> list[UserRow | None]:
        """Where these users stand; None for a new one. No id is needed: an entry has the names."""
        rows = [self._users.getValue((str(name),)) for name in names]
        return [None if row is None else UserRow(*(0, *row[:-1], bytes(row[-1]))) for row in rows]

    def add(self, names: Sequence[User]) -> list[int]:
        """As many ids, which mean nothing here."""
        return list(range(len(names)))

    def name_again(self, row: UserRow, name: User) -> None:
        """Nothing: nobody is erased from here."""

    def append(self, entry: Entry) -> None:
        """Put what a call left into Spark's state, user by user."""
        for k, name in enumerate(entry.names):
            kept = (*entry.counts[k].tolist(), *entry.figures[k].tolist(), entry.state(k))
            self._users.updateValue((str(name),), kept)

    def releases(self, row: UserRow, since: int = 0) -> Iterator[Stored]:
        """Refused."""
        raise InputError("a checkpoint keeps no releases; read them from the output of the query")

    def everyone(self) -> tuple[list[User], Ints, Floats]:
        """Refused: a bucket does not know its users."""
        raise InputError("a bucket knows only the users it is asked for; read the ledger of the checkpoint")

    def position(self, source: str) -> Position | None:
        """None: Spark keeps how far its sources were read."""

    def set_positions(self, positions: Mapping[str, Position]) -> None:
        """Refused: Spark itself knows how far it has read."""
        raise InputError("Spark keeps how far its sources were read; pass no positions")

    def fact(self, name: str) -> str | None:
        """None: a note in the checkpoint says what it is for."""

    def close(self) -> None:
        """Nothing is open."""
