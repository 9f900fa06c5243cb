"""Releases on Spark: the public name of `seqveil.interfaces.spark`."""

from seqveil.interfaces.spark import (
    Carried,
    Columns,
    Moved,
    Query,
    Standing,
    Total,
    account,
    carried,
    evidence_of,
    fit,
    move,
    release,
    session,
    session_conf,
    total,
)

__all__ = [
    "Carried",
    "Columns",
    "Moved",
    "Query",
    "Standing",
    "Total",
    "account",
    "carried",
    "evidence_of",
    "fit",
    "move",
    "release",
    "session",
    "session_conf",
    "total",
]
