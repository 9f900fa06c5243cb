"""Files of events for tests: written as they are given, and read back as one frame."""

from pathlib import Path

import polars as pl

from seqveil.interfaces.files import read

FORMATS = ["csv", "tsv", "jsonl", "ndjson", "parquet"]


def frame_of(path, columns=None, **options):
    """All chunks of a file as one frame, with the chunks' own numbering checked on the way."""
    parts, row = [], 1
    for chunk in read(path, columns, **options):
        assert chunk.rows.tolist() == list(range(row, row + chunk.n))
        row += chunk.n
        held = {"user": chunk.users, "value": chunk.values}
        parts.append(pl.DataFrame(held if chunk.order is None else held | {chunk.order.name: chunk.order}))
    return pl.concat(parts)


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
