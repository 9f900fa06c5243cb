"""Counts with confidence intervals behind a released file."""

from __future__ import annotations

import numpy as np

from seqveil.files import Columns
from seqveil.flow.received import receive
from seqveil.flow.rows import CHUNK_ROWS, FilePath, Progress
from seqveil.model import MarkovModel
from seqveil.statistics import Summary, summarise
from seqveil.stream import Setting


def summarise_file(
    released: FilePath,
    model: MarkovModel,
    setting: Setting | None = None,
    *,
    confidence: float = 0.95,
    window: int | None = None,
    top: int = 5,
    method: str = "auto",
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    chunk: int = CHUNK_ROWS,
    progress: Progress | None = None,
) -> Summary:
    """What the releases of a file say about the streams behind them; see `seqveil.statistics.summarise`.

    The codes of all releases are held in memory.
    """
    received = receive(released, model, setting, meta, columns, format, chunk=chunk)
    users: list[object] = []
    codes, times = [], []
    if not received.setting.in_batches:
        for batch in received.batches(progress):
            users.extend(batch.users)
            codes.append(batch.codes)
            if batch.times is not None:
                times.append(batch.times)
    stamps = np.concatenate(times) if times else None
    told = np.concatenate(codes) if codes else np.zeros(0, np.int64)
    options = {"confidence": confidence, "window": window, "top": top, "method": method}
    return summarise(received.setting, users, told, stamps, **options)  # type: ignore[arg-type]
