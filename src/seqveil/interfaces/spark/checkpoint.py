"""What a checkpoint holds: its state, read while the query runs or after, and small files, wherever Spark has it.

Spark writes down which rows its first micro-batch has, runs it, lets the sink list its files, and notes that it is
done. Until then the checkpoint does not say what it is for, so a note beside it does: setting, buckets and the mark of
the key. A run with the same ones makes the same rows again, and goes on wherever it was cut. Another one must not,
once rows may have been seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import DataError, InputError, SeqveilError
from seqveil.core.randomness import User
from seqveil.engine.budget import Budget
from seqveil.engine.releases import Account, left_of
from seqveil.engine.terms import refuse_other
from seqveil.interfaces.spark.sessions import SparkFailed, disclosed, needs_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_RELEASE = "the checkpoint holds no release yet; let the query finish a micro-batch"
PLANNED, DONE, LISTED = "offsets", "commits", "_spark_metadata"  # micro-batches: of a checkpoint; and of the sink
BEGUN = "begun.json"  # in the checkpoint: what its first run was for
USERS, TOLD, FACTS = "users", "disclosed", "facts"  # the names of the state, for whoever reads a checkpoint


@dataclass(frozen=True)
class Total:
    """Where all users of a checkpoint stand together."""

    setting: dict[str, Any]
    users: int
    events: int
    releases: int
    leakage: float  # of the user of whom most is known
    epsilon_spent: float  # largest Σε
    ldp: float  # largest level without any model
    budget_left: float | None  # least


def account(spark: SparkSession, checkpoint: str) -> DataFrame:
    """The ledger of a checkpoint as a frame: one row a user, in nats.

    Columns: user, events, releases, spent, most, least, ldp, leakage (the larger side). A user whose first batch is not
    full has no row in the ledger yet.
    """
    needs_spark()
    from pyspark.sql import functions as F

    with disclosed():
        kept = _state(spark, checkpoint, USERS).select(F.col("key"), F.col("user_map_key.user"), "user_map_value.*")
        rows = kept.where("events > 0").select("user", "events", "releases", "spent", "most", "least", "ldp")
        return rows.withColumn("leakage", F.greatest(F.col("most"), -F.col("least"), F.lit(0)))


def total(spark: SparkSession, checkpoint: str) -> Total:
    """All users together."""
    from pyspark.sql import functions as F

    rows = account(spark, checkpoint)
    with disclosed():
        sums = [F.coalesce(F.sum(name), F.lit(0)) for name in ("events", "releases")]
        tops = [F.coalesce(F.max(name), F.lit(0)) for name in ("leakage", "spent", "ldp")]
        users, events, releases, leaked, spent, ldp = rows.select(F.count("user"), *sums, *tops).first()  # type: ignore[misc]
        setting = _facts(spark, checkpoint)["setting"]
    left = left_of(_total(setting), float(leaked))
    return Total(setting, users, events, releases, float(leaked), float(spent), float(ldp), left)


def worst_accounts(spark: SparkSession, checkpoint: str, user: User | None = None, limit: int = 20) -> list[Account]:
    """The users of whom most is known, or one of them."""
    from pyspark.sql import functions as F

    rows = account(spark, checkpoint)
    with disclosed():
        if user is not None:
            rows = rows.where(F.col("user").cast("string") == str(user))
        facts = _facts(spark, checkpoint)
        found = rows.orderBy(F.desc("leakage"), "user").limit(limit).collect()
    return [_account(row, _total(facts["setting"])) for row in found]


def _account(row: Any, total: float | None) -> Account:
    figures = (row.leakage, row.most, row.least, row.spent, row.ldp)
    left = left_of(total, row.leakage)
    return Account(row.user, row.events, row.releases, *figures, left, private=True)


def _total(setting: dict[str, Any]) -> float | None:
    return Budget.from_dict(setting.get("budget", {})).exact_total


def _facts(spark: SparkSession, checkpoint: str) -> dict[str, Any]:
    facts = facts_of(spark, checkpoint)
    if facts is None:
        raise DataError(NO_RELEASE)
    return facts


def facts_of(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """What the checkpoint is for: setting, buckets, the mark of the key; None before its first micro-batch."""
    with disclosed():
        row = _state(spark, checkpoint, FACTS).select("value.facts").first()
    return None if row is None else json.loads(row[0])


def _state(spark: SparkSession, checkpoint: str, name: str) -> DataFrame:
    if last_in(spark, joined(checkpoint, DONE)) < 0:
        raise DataError(NO_RELEASE)
    return spark.read.format("statestore").option("path", checkpoint).option("stateVarName", name).load()


def parts(facts: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint is for, part by part."""
    whole: dict[str, Any] = facts["setting"]
    return whole | {name: value for name, value in facts.items() if name != "setting"}


def published(spark: SparkSession, out: str) -> bool:
    """Whether a folder has rows that somebody may have seen: listed by the sink, or there and not listed yet."""
    return last_in(spark, joined(out, LISTED)) >= 0 or any(name.startswith("part-") for name in names_in(spark, out))


def begin(spark: SparkSession, checkpoint: str, out: str, facts: dict[str, Any]) -> None:
    """Note what a checkpoint is for ahead of its first micro-batch, or refuse to go on with it as something else.

    Parameters:
        spark: the session.
        checkpoint: of the query that is about to start.
        out: where its rows go.
        facts: what it is for, as `seqveil.interfaces.spark.job.facts_of_job` says it.
    """
    if last_in(spark, joined(checkpoint, DONE)) >= 0:
        return
    facts = json.loads(json.dumps(facts))  # as it is read back
    known, planned = facts_in(spark, joined(checkpoint, BEGUN)), names_in(spark, joined(checkpoint, PLANNED))
    if known == facts:
        return
    if planned:
        _refuse_other_run(checkpoint, out, known, facts, published(spark, out))
    make_folder(spark, checkpoint)
    write_facts(spark, joined(checkpoint, BEGUN), facts)


def _refuse_other_run(
    checkpoint: str, out: str, known: dict[str, Any] | None, facts: dict[str, Any], seen: bool
) -> None:
    name = last_name(checkpoint)
    if not seen:
        raise DataError(
            f"{name}: a run that was not this one ended in its first micro-batch, and published nothing; remove the "
            f"folder {name} and run this again"
        )
    if known is not None:
        refuse_other(parts(known), parts(facts), name, "new folders, which spends again")
    raise InputError(
        f"{name}: its first micro-batch may have been seen in {last_name(out)}, and does not say what it was made "
        "with; go on with the query that began it"
    )


def with_remedy(spark: SparkSession, checkpoint: str, out: str, error: SeqveilError) -> SeqveilError:
    """The error that ended a query, with what to do where it ended in its first micro-batch."""
    planned = names_in(spark, joined(checkpoint, PLANNED))
    if not planned or any(last_in(spark, place) >= 0 for place in (joined(checkpoint, DONE), joined(out, LISTED))):
        return error
    remedy = "nothing was published, so put the files right, or take them out, and run the same command again"
    error.args = (f"{error}; {remedy}",)
    return error


def last_in(spark: SparkSession, folder: str) -> int:
    """The number of the last micro-batch that a folder has; -1 where it has none."""
    return max((int(name) for name in names_in(spark, folder) if name.isdecimal()), default=-1)


def names_in(spark: SparkSession, folder: str) -> list[str]:
    """The names in a folder; none where it is not there."""
    with _reached():
        files, path = _at(spark, folder)
        return [str(each.getPath().getName()) for each in files.listStatus(path)] if files.exists(path) else []


def make_folder(spark: SparkSession, folder: str) -> None:
    """Make a folder, and those above it, on whatever file system the cluster uses."""
    with _reached():
        files, path = _at(spark, folder)
        files.mkdirs(path)


def facts_in(spark: SparkSession, file: str) -> dict[str, Any] | None:
    """What `write_facts` wrote; None where nothing is there."""
    with _reached():
        files, path = _at(spark, file)
        if not files.exists(path):
            return None
        found: dict[str, Any] = json.loads(spark.read.text(file, wholetext=True).first()[0])  # type: ignore[index]
        return found


def write_facts(spark: SparkSession, file: str, facts: dict[str, Any]) -> None:
    """Write a small file, whole or not at all."""
    with _reached():
        files, path = _at(spark, file)
        _, part = _at(spark, f"{file}.part")
        stream = files.create(part, True)
        stream.write(bytearray(json.dumps(facts, indent=1).encode()))
        stream.close()
        files.delete(path, False)
        if not files.rename(part, path):
            raise SparkFailed("a file beside the checkpoint could not be written; check its rights, and run it again")


def joined(folder: str, *names: str) -> str:
    """A path below a folder, which may be a URL."""
    return "/".join([folder.rstrip("/"), *names])


def last_name(place: str) -> str:
    """The last part of a path, for messages."""
    return os.path.basename(place.rstrip("/"))


@contextmanager
def _reached() -> Iterator[None]:
    """Errors of the file system in one line."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        with disclosed():
            yield
    except Py4JJavaError as error:
        kind = str(error.java_exception.getClass().getSimpleName())
        raise SparkFailed(f"the files of a checkpoint cannot be reached ({kind}); check path and rights") from None


def _at(spark: SparkSession, place: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path
