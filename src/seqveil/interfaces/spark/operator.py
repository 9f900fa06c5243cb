"""The stateful operator of Structured Streaming: one bucket of users a group, their state in Spark's state store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_type_hints

from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, DataType, DoubleType, LongType, StringType, StructField, StructType

from seqveil.core.randomness import User
from seqveil.engine.packing import small
from seqveil.engine.terms import refuse_other
from seqveil.interfaces.spark.checkpoint import FACTS, TOLD, USERS, parts
from seqveil.interfaces.spark.job import SparkJob
from seqveil.interfaces.spark.sessions import SparkFailed, guarded
from seqveil.interfaces.spark.store import Kept, KeptUsers

if TYPE_CHECKING:
    import pandas as pd

TYPES = {bytes: BinaryType(), int: LongType(), float: DoubleType()}
KEPT = StructType([StructField(name, TYPES[kind]) for name, kind in get_type_hints(Kept).items()])


class ReleaseProcessor(StatefulProcessor):
    """Releases the rows of each bucket as they come.

    *Guarantee*: the state and the rows of a micro-batch follow from the state before it, its input, the key and the id
    of the query alone, so that Spark may run it as often as it must. Spark draws the id when a checkpoint is made and
    keeps it there: no two checkpoints share randomness, though they share the key. The state holds no raw symbol but
    the sealed ones of open batches.

    Parameters:
        job: the release.
        user: the type of the users' column.
        salt: in place of the id of the query, where no query runs.
    """

    def __init__(self, job: SparkJob, user: DataType, salt: bytes | None = None) -> None:
        self._job, self._user, self._salt = job, user, salt

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the states of a bucket; Spark calls it once a partition and micro-batch."""
        name = StructField("user", self._user)
        self._users = handle.getMapState(USERS, StructType([name]), KEPT)
        self._facts = handle.getValueState(FACTS, StructType([StructField("facts", StringType())]))
        self._disclosed = None
        if not small(self._job.setting):
            place = StructType([name, StructField("chunk", LongType())])
            self._disclosed = handle.getMapState(TOLD, place, StructType([StructField("records", BinaryType())]))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Release the events of a bucket; Spark calls it with all its rows of a micro-batch."""
        import pandas as pd

        with guarded():
            self._agree()
            users = _InStateStore(self._users, self._disclosed, self._salt or _query_id())
            released = self._job.release(pd.concat(list(rows), ignore_index=True), users)
            users.save()
        yield released

    def close(self) -> None:
        """Nothing is open."""

    def _agree(self) -> None:
        """Note what the checkpoint is for, or refuse to use it for something else."""
        known, facts = self._facts.get(), self._job.facts
        if known is None:
            self._facts.update((facts,))
        else:
            refuse_other(parts(json.loads(known[0])), parts(json.loads(facts)), "the checkpoint", "a new checkpoint")


def _query_id() -> bytes:
    """The id of the query that this worker works for, which its checkpoint keeps: random, and of no other query."""
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise SparkFailed("a worker does not know the id of its query, which randomness is drawn with; report it")
    return found.encode()


class _InStateStore(KeptUsers):
    """Users kept in Spark's state store: each is asked for once, and written once by `save`."""

    def __init__(self, users: Any, disclosed: Any, salt: bytes) -> None:
        super().__init__(salt)
        self._users, self._records = users, disclosed
        self._changed: dict[User, Kept] = {}

    def get(self, user: User) -> Kept | None:
        if user not in self._kept:
            row = self._users.getValue((user,))
            self._kept[user] = None if row is None else _kept(row)
        return self._kept[user]

    def put(self, user: User, kept: Kept) -> None:
        self._kept[user] = self._changed[user] = kept

    def save(self) -> None:
        for user, kept in self._changed.items():
            self._users.updateValue((user,), tuple(kept))

    def disclosed(self, user: User, chunk: int) -> bytes:
        row = self._records.getValue((user, chunk))
        return b"" if row is None else bytes(row[0])

    def tell(self, user: User, chunk: int, records: bytes) -> None:
        self._records.updateValue((user, chunk), (records,))


def _kept(row: Any) -> Kept:
    kept = Kept(*row)
    return kept._replace(state=bytes(kept.state), waiting=bytes(kept.waiting))
