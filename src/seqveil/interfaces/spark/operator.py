"""The stateful operator of Structured Streaming: a bucket of users is a group, their state lies in Spark's store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from seqveil.core.kernel import Ints
from seqveil.engine.packing import Sealing
from seqveil.engine.store import Entry, Memory, UserRow
from seqveil.interfaces.spark.checkpoint import USERS
from seqveil.interfaces.spark.failures import SparkFailed, worker_errors
from seqveil.interfaces.spark.release import SparkJob

if TYPE_CHECKING:
    import pandas as pd

# what is kept of a user: a ledger in nats and the exact state, both public; and sealed what is private
KEPT = (
    "events BIGINT, releases BIGINT, spent DOUBLE, most DOUBLE, least DOUBLE, ldp DOUBLE, state BINARY, sealed BINARY"
)


class ReleaseProcessor(StatefulProcessor):
    """Releases the rows of each bucket as they come.

    *Guarantee*: the state and the rows of a micro-batch follow from the state before it, its input, the key and the id
    of the query alone, which Spark keeps in the checkpoint: it may run as often as it must, and no two checkpoints
    share randomness. The state holds no raw symbol, and what a mechanism remembers of them is sealed.
    """

    def __init__(self, job: SparkJob) -> None:
        self._job = job

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of a bucket; Spark calls it once a partition and micro-batch."""
        self._users = handle.getMapState(USERS, "user STRING", KEPT)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Release the events of a bucket; Spark calls it with all its rows of a micro-batch."""
        import pandas as pd

        with worker_errors():
            context: Any = TaskContext.get()
            query = context.getLocalProperty("sql.streaming.queryId")
            if not query:
                raise SparkFailed("a worker does not know the id of its query, which randomness is drawn with")
            store = SparkStore(self._users, query.encode(), self._job.secret)
            released = self._job.release(pd.concat(list(rows), ignore_index=True), store)
        yield released

    def close(self) -> None:
        """Nothing is open."""


class SparkStore(Memory):
    """The users of a bucket as a store of states, of which Spark keeps all of a micro-batch or nothing. Releases are in
    the output of the query alone. The salt is the same for every task that works for the checkpoint."""

    name, durable = "Spark's state store", True

    def __init__(self, users: Any, salt: bytes, key: bytes | None = None) -> None:
        super().__init__(releases=False)
        self._users, self.salt = users, salt
        self.sealing = None if key is None else Sealing(key, salt)

    def find(self, names: Sequence[str]) -> list[UserRow | None]:
        """Where these users stand; None for a new one. No id is needed: an entry has the names."""
        found: list[UserRow | None] = []
        for name in names:
            row = self._users.getValue((name,))
            if row is not None:
                *ledger, state, sealed = row
                row = UserRow(*(0, *ledger, bytes(state), None if sealed is None else bytes(sealed)))
            found.append(row)
        return found

    def append(self, entry: Entry) -> Ints:
        """Put what a call left into Spark's state, user by user; ids mean nothing here."""
        for name, kept in zip(entry.names, entry.rows, strict=True):
            self._users.updateValue((name,), kept)
        return entry.ids
