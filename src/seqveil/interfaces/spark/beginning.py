"""A checkpoint before its first micro-batch is done: whether a run that was killed or refused there can go on.

Spark writes down which rows its first micro-batch has, runs it, lets the sink list its files, and notes that it is
done. Until then the checkpoint does not say what it is for, so a note beside it does: setting, buckets and the mark of
the key. A run with the same ones makes the same rows again, and goes on wherever it was cut. Another one must not,
once rows may have been seen.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import DataError, InputError, SeqveilError
from seqveil.interfaces.spark.checkpoint import facts_in, joined, make_folder, names_in, write_facts
from seqveil.release.setting import refuse_other

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGUN = "begun.json"  # in the checkpoint: what its first run was for


def done(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a micro-batch of this checkpoint is done."""
    return any(name.isdecimal() for name in names_in(spark, joined(checkpoint, "commits")))


def published(spark: SparkSession, out: str) -> bool:
    """Whether a folder has rows that somebody may have seen: listed by the sink, or there and not listed yet."""
    listed = any(name.isdecimal() for name in names_in(spark, joined(out, "_spark_metadata")))
    return listed or any(name.startswith("part-") for name in names_in(spark, out))


def begin(spark: SparkSession, checkpoint: str, out: str, facts: dict[str, Any]) -> None:
    """Note what a checkpoint is for ahead of its first micro-batch, or refuse to go on with it as something else.

    Parameters:
        spark: the session.
        checkpoint: of the query that is about to start.
        out: where its rows go.
        facts: what it is for, as `seqveil.interfaces.spark.job.facts_of_job` says it.
    """
    if done(spark, checkpoint):
        return
    facts = json.loads(json.dumps(facts))  # as it is read back
    known, planned = facts_in(spark, joined(checkpoint, BEGUN)), names_in(spark, joined(checkpoint, "offsets"))
    if known == facts:
        return
    if planned:
        _refuse(checkpoint, out, known, facts, published(spark, out))
    make_folder(spark, checkpoint)
    write_facts(spark, joined(checkpoint, BEGUN), facts)


def _refuse(checkpoint: str, out: str, known: dict[str, Any] | None, facts: dict[str, Any], seen: bool) -> None:
    if not seen:
        raise DataError(
            f"{_name(checkpoint)}: a run that was not this one ended in its first micro-batch, and published nothing; "
            f"remove the folder {_name(checkpoint)} and run this again"
        )
    if known is not None:
        parts = [each.get("setting", {}) | {"buckets": each["buckets"], "key": each["key"]} for each in (known, facts)]
        refuse_other(parts[0], parts[1], _name(checkpoint), "new folders and a new key, which spends again")
    raise InputError(
        f"{_name(checkpoint)}: its first micro-batch may have been seen in {_name(out)}, and does not say what it was "
        "made with; go on with the version of seqveil that began it"
    )


def with_remedy(spark: SparkSession, checkpoint: str, out: str, error: SeqveilError) -> SeqveilError:
    """The error that ended a query, with what to do where it ended in its first micro-batch."""
    if done(spark, checkpoint) or not names_in(spark, joined(checkpoint, "offsets")):
        return error
    if any(name.isdecimal() for name in names_in(spark, joined(out, "_spark_metadata"))):
        return error
    remedy = "nothing was published, so put the files right, or take them out, and run the same command again"
    error.args = (f"{error}; {remedy}",)
    return error


def _name(folder: str) -> str:
    return os.path.basename(folder.rstrip("/"))
