"""Files of events for tests: written as they are given, read back, and the functions that take terms."""

from pathlib import Path

import polars as pl
import pytest

import seqveil as sv
from seqveil.core.model import Reading
from seqveil.interfaces.files import release
from seqveil.interfaces.files.events import read_events
from seqveil.interfaces.files.fit import fit_table as fit_file  # noqa: F401 -- for tests

FORMATS = ["csv", "tsv", "jsonl", "ndjson", "parquet"]


def release_file(data, setting, out, group=release.GROUP, chunk=release.CALL_ROWS, **how):
    """The account of a release on given terms, with so many events to a transaction, so many rows to a call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "GROUP", group)
        patch.setattr(release, "CALL_ROWS", chunk)
        return sv.release(data, setting.model, setting.policy, out=out, **how).account


def audit_file(released, model, **how):
    """The report of an audit."""
    return sv.audit(released, model, **how)


def decode_file(released, model, out, **how):
    """Estimates, written to a file."""
    return sv.decode(released, model, out=out, **how)


def frame_of(path, reading=None, kind="auto", **how):
    """The events of a file as one frame: user, value and the order under its own name."""
    events = read_events(path, reading or Reading(), kind, **how)
    values = [name for name in events.frame.columns if name.startswith("value")]
    order = [] if events.order is None else [events.order]
    return events.frame.select("user", *values).with_columns(*order)


def in_public_order(frame):
    """Rows as a release orders them: by time or number where there is one, then by user; else user by user."""
    order = [name for name in ("time", "seq") if name in frame.columns]
    return frame.sort(*order, pl.col("user").cast(pl.String), maintain_order=True)  # names are text in a file


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def streams_of(frame: pl.DataFrame) -> list[list[object]]:
    """The values of each user of a frame, users in the order of their names, events by `time` or `seq`."""
    order = next((name for name in ("time", "seq") if name in frame.columns), None)
    ordered = frame if order is None else frame.sort(order, maintain_order=True)
    grouped = ordered.sort("user", maintain_order=True).group_by("user", maintain_order=True)
    return grouped.agg("value")["value"].to_list()
