"""Counts with confidence intervals behind a released file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core.model import MarkovModel
from seqveil.interfaces.files import Columns
from seqveil.interfaces.flow.received import receive
from seqveil.interfaces.flow.rows import CHUNK_ROWS, FilePath, Progress
from seqveil.interfaces.flow.verdict import Verdict, verdict_of
from seqveil.receive.statistics import Summary, summarise
from seqveil.release.stream import Setting


@dataclass(frozen=True, eq=False)
class Counted:
    """A summary of a released file, whether its releases fit the model, and whether the summary has intervals."""

    summary: Summary
    verdict: Verdict
    intervals: bool


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
) -> Counted:
    """What the releases of a file say about the streams behind them; see `seqveil.statistics.summarise`.

    The releases are asked first whether they fit the model. If they speak against it, intervals that rest on a chain
    are left out: the estimates lean on it themselves, so no spread around them would say how far off they are.
    Intervals by "design" rest on no model and stay. The codes of all releases are held in memory.
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
    found = summarise(received.setting, users, told, stamps, **options)  # type: ignore[arg-type]
    verdict = verdict_of(received, progress)
    supported = found.method == "design" or verdict.fits is not False
    return Counted(found if supported else found.without_intervals(), verdict, supported)
