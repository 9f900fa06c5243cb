"""Move a stopped query on to another model: a cold start for Structured Streaming.

A checkpoint keeps its setting for good, so a move makes a new one. What it begins with follows from the rows that were
released, which are public: every user's state under the new chain, as `store/upgrade.py` computes it for a state file,
and the number of its next event. Spark hands these states to the new query before its first row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.spark import replay
from seqveil.interfaces.spark.conf import needs_spark
from seqveil.interfaces.spark.frames import Columns
from seqveil.interfaces.spark.guard import told
from seqveil.interfaces.spark.job import CHUNK_ROWS, SEQ, USER
from seqveil.interfaces.spark.ledger import account, facts_of
from seqveil.interfaces.spark.places import facts_in, joined, make_folder, names_in, resolved, write_facts
from seqveil.interfaces.spark.replay import BEFORE, MOVED
from seqveil.receive.learn import Evidence
from seqveil.release.store.packing import nats
from seqveil.release.stream import Setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CARRIED, FACTS, STATES = "carried", "facts.json", "states"  # inside a new checkpoint
GONE = "moved.json"  # inside an old one: where its users went
MOST = 1_500_000  # releases that are learned from
SHARES = 1 << 20


@dataclass(frozen=True, eq=False)
class Carried:
    """What a new query begins with: pass it to `release` whenever that query is started."""

    states: DataFrame  # one row a user
    facts: dict[str, Any]  # public: the setting, the settings before, buckets, the mark of the key


@dataclass(frozen=True)
class Moved:
    """How many users moved, to which version, and what the worst of them leaked under the old and the new chain."""

    users: int
    version: int
    before: float
    after: float


@dataclass(frozen=True)
class Query:
    """A stopped query: its checkpoint, what it released (the output of every query before it, too) and how.

    Parameters: `released` are frames of rows as `release` makes them, read with Spark; a row may come twice. `settings`
    are all that these were released with, the first one first.
    """

    checkpoint: str
    released: Sequence[DataFrame]
    settings: Sequence[Setting]
    columns: Columns = field(default_factory=Columns)


def evidence_of(spark: SparkSession, query: Query, most: int = MOST) -> Evidence:
    """The releases of a query as what can be learned from, on this machine.

    Parameters: `most` is about how many; of more, whole users are taken, chosen by a hash of their name.
    """
    from pyspark.sql import functions as F

    replay.refuse_unmovable(query.settings, query.settings[-1])
    _at_rest(spark, query)
    with told():
        rows = _rows(spark, query)
        share = min(1.0, most / max(1, rows.count()))
        some = rows.where(F.pmod(F.xxhash64(F.col(USER), F.lit("learn")), F.lit(SHARES)) < int(share * SHARES))
        found: Any = some.orderBy(USER, SEQ).toPandas()
    parts = (found.iloc[at : at + CHUNK_ROWS] for at in range(0, len(found), CHUNK_ROWS))
    return replay.evidence(query.settings, parts)


def move(spark: SparkSession, query: Query, new: Setting, to: str) -> Moved:
    """Make a new checkpoint `to`, from which a query under `new` goes on where the old one stopped.

    *Guarantee*: nothing is drawn. Every user goes on with the number after its last release, so that no event that was
    released is drawn again; its account is from now on the exact leakage of all its releases under the new chain. It
    may be killed at any point and called again. The ledger of the old checkpoint must count the rows to the last one,
    else nothing moves.

    Parameters: one by one, no batches; the same symbols and budget before and after, no window; the old query must be
    stopped, and must never be started again. The new one needs a new folder for its output.
    """
    needs_spark()
    replay.refuse_unmovable(query.settings, new)
    place = joined(to, CARRIED)
    facts = facts_in(spark, joined(place, FACTS))
    _refuse_others(spark, query, new, to, facts)
    if facts is None:
        last = _at_rest(spark, query)
        make_folder(spark, place)  # from now on a release refuses to begin here without the states
        _write(spark, query, new, joined(place, STATES))
        if _at_rest(spark, query) != last:
            raise DataError("the old query released more meanwhile; stop it, and move again")
        write_facts(spark, joined(query.checkpoint, GONE), {"to": resolved(to)})
        write_facts(spark, joined(place, FACTS), _facts(spark, query, new))
    return _summary(spark, joined(place, STATES), len(query.settings))


def _facts(spark: SparkSession, query: Query, new: Setting) -> dict[str, Any]:
    """Buckets and the mark of the key as they were, the setting as it is to be, and all settings before."""
    before = [each.to_dict(costs=True) for each in query.settings]
    return (facts_of(spark, query.checkpoint) or {}) | {"setting": new.to_dict(costs=True), "before": before}


def _refuse_others(spark: SparkSession, query: Query, new: Setting, to: str, facts: dict[str, Any] | None) -> None:
    """Refuse a new checkpoint that has other users or another setting, and users who went elsewhere."""
    gone = facts_in(spark, joined(query.checkpoint, GONE))
    if gone is not None and gone["to"] != resolved(to):
        raise DataError(f"the users of this checkpoint have moved on already, to {gone['to']}; go on from there")
    taken = bool(names_in(spark, joined(to, "offsets"))) if facts is None else gone is None
    if taken or (facts is not None and facts["setting"] != new.to_dict(costs=True)):
        raise DataError("the new checkpoint was begun with something else; name a folder that is not there")


def carried(spark: SparkSession, checkpoint: str) -> Carried | None:
    """What a checkpoint was made with by `move`; None for one that begins with nothing."""
    needs_spark()
    if (gone := facts_in(spark, joined(checkpoint, GONE))) is not None:
        raise DataError(f"the users of this checkpoint have moved on; use {gone['to']} with the model in force there")
    place = joined(checkpoint, CARRIED)
    facts = facts_in(spark, joined(place, FACTS))
    if facts is None:
        if CARRIED in names_in(spark, checkpoint):
            raise DataError("the move to this checkpoint was not finished; run it again")
        return None
    with told():
        return Carried(spark.read.parquet(joined(place, STATES)), facts)


def versions_of(spark: SparkSession, checkpoint: str) -> int:
    """How many settings the users of a checkpoint were released with so far."""
    facts = facts_in(spark, joined(checkpoint, CARRIED, FACTS))
    return 1 if facts is None else len(facts["before"]) + 1


def _at_rest(spark: SparkSession, query: Query) -> int:
    """The last micro-batch of a query that has finished it, and was released with the settings named."""
    begun, done = (_last(spark, joined(query.checkpoint, name)) for name in ("offsets", "commits"))
    if done < 0:
        raise DataError("the checkpoint holds no release yet; let the query finish a micro-batch")
    if begun != done:
        # its rows may have been seen, and only the old query can make the same ones again
        raise DataError("the query was stopped amid a micro-batch; start it once more as it was, until that is done")
    before = facts_in(spark, joined(query.checkpoint, CARRIED, FACTS)) or {"before": []}
    known = [*before["before"], (facts_of(spark, query.checkpoint) or {}).get("setting")]
    if known != [each.to_dict(costs=True) for each in query.settings]:
        count = f"{len(known)} setting{'s' * (len(known) != 1)}"
        raise InputError(f"the checkpoint was released with {count}, other than those named; name all in their order")
    return done


def _last(spark: SparkSession, folder: str) -> int:
    return max((int(name) for name in names_in(spark, folder) if name.isdecimal()), default=-1)


def _rows(spark: SparkSession, query: Query) -> DataFrame:
    """All released rows under the names of a job, users typed as in the checkpoint, with the numbers of their moves."""
    from pyspark.sql import DataFrame as Frame
    from pyspark.sql import functions as F

    names = query.columns
    wanted = {USER: names.user, SEQ: names.seq, **{f"v{k}": name for k, name in enumerate(names.values)}}
    if not query.released:
        raise InputError("expected the released rows, a frame for each output folder")
    for frame in query.released:
        if missing := sorted(set(wanted.values()) - set(frame.columns)):
            raise DataError(
                f"the released rows have no column {missing[0]!r}; name the columns with columns=Columns(…)"
            )
    parts = [frame.select(*(F.col(f"`{name}`").alias(inner) for inner, name in wanted.items()))
             for frame in query.released]  # fmt: skip
    rows = reduce(Frame.unionByName, parts)
    kind = account(spark, query.checkpoint).schema[USER].dataType
    rows = rows.withColumn(USER, F.col(USER).try_cast(kind)).withColumn(SEQ, F.col(SEQ).try_cast("bigint"))
    if len(query.settings) == 1:
        return rows
    before = spark.read.parquet(joined(query.checkpoint, CARRIED, STATES)).select(USER, MOVED)
    return rows.join(before, USER, "left")


def _write(spark: SparkSession, query: Query, new: Setting, place: str) -> None:
    """Compute what is carried, write it, and compare it with the ledger of the old checkpoint."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    with told():
        rows, ledger = _rows(spark, query), account(spark, query.checkpoint)
        counts = [T.StructField(name, T.LongType()) for name in ("events", "releases", "spent", "most", "least")]
        more = [("state", T.BinaryType()), (MOVED, T.ArrayType(T.LongType())), (BEFORE, T.LongType())]
        fields = [T.StructField(USER, rows.schema[USER].dataType), *counts, *(T.StructField(*each) for each in more)]
        parts = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
        # a fixed number of parts: adaptive execution would be free to cut a user's rows in two
        ordered = rows.repartition(parts, USER).sortWithinPartitions(USER, SEQ)
        made = ordered.mapInPandas(partial(replay.carry_sorted, list(query.settings), new), T.StructType(fields))
        made.write.mode("overwrite").parquet(place)
        ours = spark.read.parquet(place).select(USER, "events", "releases", "spent", F.col(BEFORE).alias("leakage"))
        names = ["events", "releases", "spent", "leakage"]
        theirs = ledger.select(USER, *(F.col(name).alias(f"old_{name}") for name in names))
        alike = reduce(lambda a, b: a & b, (F.col(name).eqNullSafe(F.col(f"old_{name}")) for name in names))
        off = ours.join(theirs, USER, "full").where(~alike).count()
    if off:
        raise DataError(
            f"the accounts of {off} users are not those of the released rows; name the output folders of this query "
            "and of all before it"
        )


def _summary(spark: SparkSession, place: str, version: int) -> Moved:
    from pyspark.sql import functions as F

    with told():
        worst = F.max(F.greatest(F.col("most"), -F.col("least"), F.lit(0)))
        users, before, after = spark.read.parquet(place).select(F.count(USER), F.max(BEFORE), worst).first()  # type: ignore[misc]
    return Moved(int(users), version, nats(int(before or 0)), nats(int(after or 0)))
