"""Move a stopped query on to another model: a cold start for Structured Streaming.

A checkpoint keeps its setting for good, so a move makes a new one. What it begins with follows from the rows that were
released, which are public: every user's state under the new chain, as `receive/upgrade.py` computes it for a state
file, and the number of its next event. Spark hands these states to the new query before its first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.core.coins import User
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.kernel import Ints
from seqveil.engine.calls import MOST_SKIPPED
from seqveil.engine.store.packing import nats, pack, units
from seqveil.engine.store.protocol import GAP
from seqveil.engine.stream import Setting
from seqveil.interfaces.spark.checkpoint import (
    DONE,
    NO_RELEASE,
    PLANNED,
    account,
    facts_in,
    facts_of,
    joined,
    last_in,
    make_folder,
    names_in,
    resolved,
    write_facts,
)
from seqveil.interfaces.spark.frames import Columns, by_user
from seqveil.interfaces.spark.job import CHUNK_ROWS, SEQ, USER, whole_users
from seqveil.interfaces.spark.sessions import guarded, needs_spark, told
from seqveil.receiver import versions
from seqveil.receiver.learn import Evidence
from seqveil.receiver.versions import Version, VersionedStreams

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

CARRIED, FACTS, STATES = "carried", "facts.json", "states"  # inside a new checkpoint
GONE = "moved.json"  # inside an old one: where its users went
MOST = 1_500_000  # releases that are learned from
SHARES = 1 << 20
MOVED, BEFORE = "moved", "before"  # columns: numbers at which a user moved on; leakage under the chain before


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

    refuse_unmovable(query.settings, query.settings[-1])
    _at_rest(spark, query)
    with told():
        rows = _rows(spark, query)
        share = min(1.0, most / max(1, rows.count()))
        some = rows.where(F.pmod(F.xxhash64(F.col(USER), F.lit("learn")), F.lit(SHARES)) < int(share * SHARES))
        found: Any = some.orderBy(USER, SEQ).toPandas()
    parts = (found.iloc[at : at + CHUNK_ROWS] for at in range(0, len(found), CHUNK_ROWS))
    return evidence(query.settings, parts)


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
    refuse_unmovable(query.settings, new)
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
    taken = bool(names_in(spark, joined(to, PLANNED))) if facts is None else gone is None
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
    begun, done = (last_in(spark, joined(query.checkpoint, name)) for name in (PLANNED, DONE))
    if done < 0:
        raise DataError(NO_RELEASE)
    if begun != done:
        # its rows may have been seen, and only the old query can make the same ones again
        raise DataError("the query was stopped amid a micro-batch; start it once more as it was, until that is done")
    before = facts_in(spark, joined(query.checkpoint, CARRIED, FACTS)) or {"before": []}
    known = [*before["before"], (facts_of(spark, query.checkpoint) or {}).get("setting")]
    if known != [each.to_dict(costs=True) for each in query.settings]:
        count = f"{len(known)} setting{'s' * (len(known) != 1)}"
        raise InputError(f"the checkpoint was released with {count}, other than those named; name all in their order")
    return done


def _rows(spark: SparkSession, query: Query) -> DataFrame:
    """All released rows under the names of a job, users typed as in the checkpoint, with the numbers of their moves."""
    from pyspark.sql import DataFrame as Frame
    from pyspark.sql import functions as F

    names = query.columns
    wanted = {USER: names.user, SEQ: names.seq, **{f"v{k}": name for k, name in enumerate(names.values)}}
    if not query.released:
        raise InputError("expected the released rows, a frame for each output folder")
    for frame in query.released:
        names.refuse_missing(frame, "released rows have")
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
        counts = [T.StructField(name, T.LongType()) for name in ("events", "releases", "spent", "most", "least", "ldp")]
        more = [("state", T.BinaryType()), (MOVED, T.ArrayType(T.LongType())), (BEFORE, T.LongType())]
        fields = [T.StructField(USER, rows.schema[USER].dataType), *counts, *(T.StructField(*each) for each in more)]
        made = by_user(rows).mapInPandas(partial(carry_sorted, list(query.settings), new), T.StructType(fields))
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


@dataclass(frozen=True, eq=False)
class ReleasedStreams:
    """Releases of some users: codes user after user, GAP where a number was given up."""

    users: list[User]
    codes: Ints
    lengths: Ints
    releases: Ints
    moved: Ints  # (users, versions after the first): the number at which each of them came into force

    def seen_by(self, settings: Sequence[Setting]) -> VersionedStreams:
        """The users as the last of these settings sees them after all releases; exact accounts from the first on."""
        return versions.replayed(settings, self.codes, self.lengths, self.moved)


def refuse_unmovable(settings: Sequence[Setting], new: Setting) -> None:
    """Refuse settings between which a query cannot move."""
    versions.refuse_unmovable(settings, new, "query")
    if new.budget.when_spent == "stop":
        raise InputError("events that a spent budget left out are not in the output; only hold and error can move on")


def streams(rows: pd.DataFrame, alphabet: Symbols, versions: int) -> ReleasedStreams:
    """Rows sorted by user and number, whole users: a row that came out twice counts once.

    `moved` has, for users who were there before, the numbers of their moves; who came later was never under an earlier
    version. `versions` is how many there were so far.
    """
    if rows[[USER, SEQ]].isna().any(axis=None) or int(rows[SEQ].min()) < 0:
        raise DataError("a released row has no user, or no number from 0 on; name the folders and columns of a release")
    codes, seqs, users = _codes(rows, alphabet), rows[SEQ].to_numpy().astype(np.int64), rows[USER].to_numpy()
    first = np.r_[True, users[1:] != users[:-1]]
    left_out = np.where(first, seqs, np.diff(seqs, prepend=0) - 1)
    if int(left_out.max()) > MOST_SKIPPED:
        raise DataError(f"a released row leaves more than {MOST_SKIPPED} numbers out; check the column of the numbers")
    again = ~first & (seqs == np.r_[-1, seqs[:-1]])
    if (codes[again] != codes[np.flatnonzero(again) - 1]).any():
        raise DataError("an event was released as two different values; name the folders of one query and no other")
    starts = np.flatnonzero(first)
    whose = np.cumsum(first) - 1
    lengths = seqs[np.r_[starts[1:], len(seqs)] - 1] + 1
    begins = np.cumsum(lengths) - lengths
    dense = np.full(int(lengths.sum()), GAP, np.int64)
    dense[begins[whose] + seqs] = codes
    moved = np.zeros((starts.size, versions - 1), np.int64)
    if versions > 1:
        for k, numbers in enumerate(rows[MOVED].iloc[starts]):
            moved[k] = 0 if numbers is None else numbers
    names: list[User] = rows[USER].iloc[starts].tolist()
    return ReleasedStreams(names, dense, lengths, np.bincount(whose[~again], minlength=starts.size), moved)


def _codes(rows: pd.DataFrame, alphabet: Symbols) -> Ints:
    values: Any = rows["v0"] if "v1" not in rows else rows[["v0", "v1"]].to_numpy(np.float64)
    try:
        return alphabet.strict.encode(values)
    except UnknownSymbol:
        n = alphabet.n
        raise DataError(f"a released value is not in the model's alphabet ({n} symbols); check the columns") from None


def carry_sorted(settings: Sequence[Setting], new: Setting, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """A partition sorted by user and number: what is to be kept of each user under the new setting."""
    with guarded():
        for rows in whole_users(frames):
            yield carry(settings, new, streams(rows, new.model.alphabet, len(settings)))


def carry(settings: Sequence[Setting], new: Setting, told: ReleasedStreams) -> pd.DataFrame:
    """One row a user: ledger and state under the new chain, the numbers of its moves, and its leakage before."""
    import pandas as pd

    seen = told.seen_by(settings)
    before = units(np.maximum(seen.state.account.worst, 0.0))
    seen.switch(Version(len(settings) + 1, new, 0))
    state, everyone = seen.state, np.arange(len(told.users))
    packed = pack(state)
    width = len(packed) // max(1, everyone.size)
    moves = np.column_stack([told.moved, told.lengths])
    columns = {
        USER: pd.Series(told.users, dtype=object if isinstance(told.users[0], str) else np.int64),
        "events": told.lengths,
        "releases": told.releases,
        "spent": units(state.spent),
        "most": units(state.account.most),
        "least": -units(-state.account.least),
        "ldp": units(state.ldp),
        "state": [packed[k * width : (k + 1) * width] for k in everyone.tolist()],
        MOVED: moves.tolist(),
        BEFORE: before,
    }
    return pd.DataFrame(columns)


def evidence(settings: Sequence[Setting], frames: Iterator[pd.DataFrame]) -> Evidence:
    """All releases in rows sorted by user and number, as what can be learned from."""
    found: Evidence | None = None
    for rows in whole_users(frames):
        part = streams(rows, settings[-1].model.alphabet, len(settings)).seen_by(settings).evidence()
        found = part if found is None else found + part
    if found is None:
        raise DataError("the folders hold no releases yet; release something first")
    return found
