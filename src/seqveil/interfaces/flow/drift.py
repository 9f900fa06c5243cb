"""Look for drift in a released file."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from seqveil.core.errors import DataError
from seqveil.core.model import MarkovModel
from seqveil.interfaces.files import Columns
from seqveil.interfaces.flow.received import receive
from seqveil.interfaces.flow.rows import CHUNK_ROWS, FilePath, Progress
from seqveil.receive.drift import Drift
from seqveil.release.stream import Setting

SHOWN = 20  # users named, at most


@dataclass(frozen=True)
class Drifted:
    """What the releases of a file say against their model."""

    events: int
    users: int
    alpha: float  # Pr(alarm) is at most this if the model is right
    alarm: bool
    alarm_at: int | None  # events until the alarm
    log_e_value: float  # at the end of the file; the alarm is at log(1/alpha)
    log_likelihood: float  # of all releases under the model, an event
    users_alarmed: int  # users whose own stream is evidence enough, allowing for how many users there are
    worst_users: tuple[tuple[Hashable, float], ...]  # of those, the first few and their log e-values


def drift_file(
    released: FilePath,
    model: MarkovModel,
    setting: Setting | None = None,
    *,
    alpha: float = 0.01,
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    chunk: int = CHUNK_ROWS,
    progress: Progress | None = None,
) -> Drifted:
    """Bet against the model with the releases of a file, in the order of its rows; see `seqveil.drift.Drift`.

    Alarms for single users are at level alpha over all of them together.
    """
    received = receive(released, model, setting, meta, columns, format, chunk=chunk)
    drift = Drift(received.setting, alpha)
    for batch in received.batches(progress):
        try:
            drift.update(batch.users, batch.codes, batch.times)
        except DataError as error:
            rows = f"rows {batch.chunk.row(0)} to {batch.chunk.row(batch.chunk.n - 1)}"
            raise DataError(f"{received.source.name}: {rows}: {error}") from None
    own = drift.user_log_e_values()
    limit = math.log(len(own) / alpha)
    over = sorted(((user, value) for user, value in own.items() if value >= limit), key=lambda pair: -pair[1])
    return Drifted(
        events=drift.events,
        users=len(own),
        alpha=alpha,
        alarm=drift.alarm,
        alarm_at=drift.alarm_at,
        log_e_value=drift.log_e_value,
        log_likelihood=drift.log_likelihood / max(1, drift.events),
        users_alarmed=len(over),
        worst_users=tuple((user, float(np.round(value, 4))) for user, value in over[:SHOWN]),
    )
