"""Learn from what a query released, and move it on where that is earned."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from seqveil.interfaces.spark.moving import MOST, Query, evidence_of, move, versions_of
from seqveil.receive.learn import learn
from seqveil.receive.versions import Versions, next_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def advance(
    spark: SparkSession,
    query: Query,
    versions: Versions,
    file: str | os.PathLike[str],
    to: str,
    mechanism: str = "optimal",
    most: int = MOST,
) -> tuple[bool, str]:
    """Add the next version where the releases of a query earn it, and move the query to it; whether it moved, and why.

    The versions are written to `file` before anything moves. Killed after that, the next call moves what is there.
    """
    settings = query.settings
    if versions_of(spark, query.checkpoint) == len(settings) - 1:
        done = move(spark, replace(query, settings=settings[:-1]), settings[-1], to)
        return True, f"put in force for {done.users} users, as the run before had begun to"
    evidence = evidence_of(spark, query, most)
    rival = None if len(settings) == 1 else settings[-1].model
    learned = learn(evidence, versions.alphabet, rival=rival)
    found = learned.held_out
    if found is None or not found.earned:
        return False, f"kept: nothing learned from {evidence.events} releases foretells others beyond chance"
    now = versions.last
    version = next_version(now, learned, mechanism, now.setting.schedule, max(evidence.events, now.after))
    versions.add(version)
    versions.save(file)  # first: states under a model that nobody has would be lost
    done = move(spark, query, version.setting, to)
    gain = f"gains {found.gain:.4f} ± {found.error:.4f} nats an event"
    of = f"learned from {evidence.events} releases of {evidence.people} users"
    return True, f"{of}, {gain}; {done.users} users moved"
