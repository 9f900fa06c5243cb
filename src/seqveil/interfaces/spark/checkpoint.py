"""What a checkpoint is for, noted before its first micro-batch, and its ledger, read while the query runs or after.

Spark writes down which rows a micro-batch has, runs it, lets the sink list its files, and notes that it is done. A run
with the same model, policy and key makes the same rows again, and goes on wherever it was cut; another one must not,
once a micro-batch was planned: its rows may have been seen.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import key_mark
from seqveil.engine.budget import Budget
from seqveil.engine.packing import unpack
from seqveil.engine.policy import Terms, refuse_other, saved_terms
from seqveil.engine.store import SecretAccount, UserRow, left_of
from seqveil.interfaces.spark.failures import SparkFailed, driver_errors
from seqveil.interfaces.spark.sessions import BUCKETS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLANNED, DONE, LISTED = "offsets", "commits", "_spark_metadata"  # micro-batches: of a checkpoint; and of the file sink
NOTE, MODEL = "seqveil.json", "seqveil.model"  # in the checkpoint: what it is for
USERS = "users"  # the name of the state, for whoever reads a checkpoint
VERSION = 1  # of what a checkpoint keeps
BESIDE = ("version", "buckets", "key")  # the terms in the note


def begin(spark: SparkSession, checkpoint: str, terms: Terms, key: bytes) -> None:
    """Note what a checkpoint is for ahead of its first micro-batch, or refuse to go on with it as something else."""
    mine = {**json.loads(terms.signature), "version": VERSION, "buckets": BUCKETS, "key": key_mark(key)}
    with driver_errors():
        known, name = noted(spark, checkpoint), os.path.basename(checkpoint.rstrip("/"))
        if known == mine:
            return
        if names_in(spark, checkpoint, PLANNED):
            if known is None:
                raise InputError(f"{name}: belongs to a query that is not seqveil's; name a new folder")
            refuse_other(known, mine, f"{name}:", "new folders for checkpoint and output, which spends again")
        _write(spark, f"{checkpoint.rstrip('/')}/{MODEL}", terms.model.to_bytes())
        _write(spark, f"{checkpoint.rstrip('/')}/{NOTE}", json.dumps(mine, indent=1).encode())


def _write(spark: SparkSession, place: str, content: bytes) -> None:
    """Write a file anew, all of it or nothing."""
    files, path = _at(spark, place)
    _, part = _at(spark, f"{place}.part")
    stream = files.create(part, True)
    stream.write(bytearray(content))
    stream.close()
    files.delete(path, False)
    if not files.rename(part, path):
        raise SparkFailed("a file beside the checkpoint could not be written; check its rights, and run it again")


def noted(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """What a checkpoint is for; None where it does not say so."""
    if NOTE not in names_in(spark, checkpoint):
        return None
    return json.loads(spark.read.text(f"{checkpoint}/{NOTE}", wholetext=True).first()[0])  # type: ignore[index]


def names_in(spark: SparkSession, *folder: str) -> list[str]:
    """The names in a folder, wherever Spark has it; none where it is not there."""
    with driver_errors():
        files, path = _at(spark, "/".join(folder))
        return [str(each.getPath().getName()) for each in files.listStatus(path)] if files.exists(path) else []


def _at(spark: SparkSession, place: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path


def account(spark: SparkSession, checkpoint: str) -> DataFrame:
    """The ledger of a checkpoint as a frame: one row a user, in nats.

    Columns: user, events, releases, spent, most, least, ldp, leakage (the larger side).
    """
    from pyspark.sql import functions as F

    rows = _kept(spark, checkpoint).select("user", "events", "releases", "spent", "most", "least", "ldp")
    return rows.withColumn("leakage", F.greatest(F.col("most"), -F.col("least"), F.lit(0)))


def _kept(spark: SparkSession, checkpoint: str) -> DataFrame:
    """All that a checkpoint keeps of each user."""
    with driver_errors():
        if not any(name.isdecimal() for name in names_in(spark, checkpoint, DONE)):
            raise DataError("the checkpoint holds no release yet; let the query finish a micro-batch")
        state = spark.read.format("statestore").option("path", checkpoint).option("stateVarName", USERS).load()
        return state.select("user_map_key.user", "user_map_value.*")


def secrets_of(spark: SparkSession, checkpoint: str, users: list[str]) -> dict[str, list[SecretAccount]]:
    """What was disclosed about each declared secret by these users' releases; nothing where none is declared."""
    from pyspark.sql import functions as F

    known = noted(spark, checkpoint) or {}
    if not known.get("secret"):
        return {}
    with driver_errors():
        [[content]] = spark.read.format("binaryFile").load(f"{checkpoint}/{MODEL}").select("content").collect()
        rows = _kept(spark, checkpoint).where(F.col("user").isin(users)).collect()
    promised = {name: value for name, value in known.items() if name not in BESIDE}
    terms, found = saved_terms(promised, MarkovModel.from_bytes(bytes(content))), {}
    for user, *ledger, state, _ in rows:
        trackers = unpack(terms, [UserRow(*(0, *ledger, bytes(state)))]).trackers
        assert trackers is not None
        found[user] = list(map(SecretAccount.of, trackers[0].worst()))
    return found


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


def total(spark: SparkSession, checkpoint: str) -> Total:
    """All users together."""
    from pyspark.sql import functions as F

    rows = account(spark, checkpoint)
    with driver_errors():
        sums = [F.coalesce(F.sum(name), F.lit(0)) for name in ("events", "releases")]
        tops = [F.coalesce(F.max(name), F.lit(0)) for name in ("leakage", "spent", "ldp")]
        users, events, releases, *figures = rows.select(F.count("user"), *sums, *tops).first()  # type: ignore[misc]
        setting = noted(spark, checkpoint) or {}
    leaked, spent, ldp = map(float, figures)
    left = left_of(Budget.from_dict(setting.get("budget")).exact_total, leaked)
    return Total(setting, users, events, releases, leaked, spent, ldp, left)
