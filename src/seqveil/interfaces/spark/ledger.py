"""Where the users of a checkpoint stand, read from Spark's state store while the query runs or after."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqveil.core.coins import User
from seqveil.core.errors import DataError
from seqveil.interfaces.spark.conf import needs_spark
from seqveil.interfaces.spark.guard import told
from seqveil.release.store.packing import nats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USERS, FACTS = "users", "facts"


@dataclass(frozen=True)
class Standing:
    """Where a user stands; public. Leakage is in nats, rounded outward to 2**-32."""

    user: User
    events: int
    releases: int
    leakage: float
    most: float
    least: float
    by_composition: float
    budget_left: float | None


@dataclass(frozen=True)
class Total:
    """Where all users of a checkpoint stand together."""

    setting: dict[str, Any]
    users: int
    events: int
    releases: int
    leakage: float  # of the user of whom most is known
    by_composition: float  # largest Σε
    budget_left: float | None  # least


def account(spark: SparkSession, checkpoint: str) -> DataFrame:
    """The ledger of a checkpoint as a frame: one row a user, in whole units of 2**-32 nats.

    Columns: user, events, releases, spent, most, least, leakage (the larger side). A user whose first batch is not full
    has no row in the ledger yet.
    """
    needs_spark()
    from pyspark.sql import functions as F

    with told():
        kept = _state(spark, checkpoint, USERS).select(F.col("key"), F.col("user_map_key.user"), "user_map_value.*")
        rows = kept.where("events > 0").select("user", "events", "releases", "spent", "most", "least")
        return rows.withColumn("leakage", F.greatest(F.col("most"), -F.col("least"), F.lit(0)))


def total(spark: SparkSession, checkpoint: str) -> Total:
    """All users together."""
    from pyspark.sql import functions as F

    rows = account(spark, checkpoint)
    with told():
        sums = [F.coalesce(F.sum(name), F.lit(0)) for name in ("events", "releases")]
        tops = [F.coalesce(F.max(name), F.lit(0)) for name in ("leakage", "spent")]
        users, events, releases, leaked, spent = rows.select(F.count("user"), *sums, *tops).first()  # type: ignore[misc]
        setting = setting_of(spark, checkpoint)
    worst = nats(int(leaked))
    return Total(setting, users, events, releases, worst, nats(int(spent)), _left(setting, worst))


def standings(spark: SparkSession, checkpoint: str, user: User | None = None, limit: int = 20) -> list[Standing]:
    """The users of whom most is known, or one of them."""
    from pyspark.sql import functions as F

    rows = account(spark, checkpoint)
    with told():
        if user is not None:
            rows = rows.where(F.col("user").cast("string") == str(user))
        setting = setting_of(spark, checkpoint)
        found = rows.orderBy(F.desc("leakage"), "user").limit(limit).collect()
    return [_standing(setting, row) for row in found]


def setting_of(spark: SparkSession, checkpoint: str) -> dict[str, Any]:
    """The public setting that the checkpoint's releases were made with."""
    facts = facts_of(spark, checkpoint)
    if facts is None:
        raise DataError("the checkpoint holds no release yet; let the query finish a micro-batch")
    setting: dict[str, Any] = facts["setting"]
    return setting


def facts_of(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """What the checkpoint is for: setting, buckets, the mark of the key; None before its first micro-batch."""
    with told():
        row = _state(spark, checkpoint, FACTS).select("value.facts").first()
    return None if row is None else json.loads(row[0])


def _state(spark: SparkSession, checkpoint: str, name: str) -> DataFrame:
    return spark.read.format("statestore").option("path", checkpoint).option("stateVarName", name).load()


def _standing(setting: dict[str, Any], row: Any) -> Standing:
    worst, spent = nats(row.leakage), nats(row.spent)
    return Standing(
        row.user, row.events, row.releases, worst, nats(row.most), nats(row.least), spent, _left(setting, worst)
    )


def _left(setting: dict[str, Any], worst: float) -> float | None:
    most = setting["budget"]["total"]
    return None if most is None else max(0.0, most - worst)
