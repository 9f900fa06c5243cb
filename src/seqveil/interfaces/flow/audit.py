"""Audit a released file: recompute the exact leakage of every user and compare it with what was promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seqveil.core.errors import DataError
from seqveil.core.kernel import Floats
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.core.secrets.watch import LONGEST
from seqveil.interfaces.files import Columns
from seqveil.interfaces.flow import meta as side
from seqveil.interfaces.flow.meta import Digest
from seqveil.interfaces.flow.received import Batch, Received, receive
from seqveil.interfaces.flow.rows import CHUNK_ROWS, FilePath, Progress
from seqveil.receive.audit import Asked, Audit, Report
from seqveil.release.stream import Setting


def audit_file(
    released: FilePath,
    model: MarkovModel,
    setting: Setting | None = None,
    *,
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    delta: float = 1e-6,
    chunk: int = CHUNK_ROWS,
    memory: int = 1 << 30,
    progress: Progress | None = None,
    secrets: Sequence[Secret] | None = None,
    promised: bool = True,
    longest: int = LONGEST,
) -> Report:
    """What the releases of a file leaked, exactly, from the file and the model alone.

    The setting comes from the side file; `setting` is for a file that has none. A model that is not the release's, and
    a release that the setting cannot have made, are refused. Where the file has the column `epsilon` it is compared
    with what the setting spent, and where the side file has a digest of the rows, with the rows. Of a release in
    batches everything is recomputed from the paths, the values too. A release that its side file calls seeded does not
    pass, whatever the figures: whoever knows the seed can undo it.

    `secrets` are accounted for exactly, whatever the mechanism; by default those that the release was to keep. Where
    nothing was `promised` about them their ε is not checked; `longest` is the most events of a stream where a secret
    needs an end.
    """
    received = receive(released, model, setting, meta, columns, format, chunk=chunk)
    asked = Asked.of(received.setting, secrets, promised, longest)
    audit = Audit(received.setting, memory, asked)
    digest = (_batches if received.setting.in_batches else _one_by_one)(received, audit, progress)
    claimed = None if received.meta is None else received.meta.get("digest")
    report = audit.report(delta, None if claimed is None else claimed == digest.hex())
    return replace(report, unseeded=side.unseeded(received.meta))


def _one_by_one(received: Received, audit: Audit, progress: Progress | None) -> Digest:
    digest = Digest()
    for batch in received.batches(progress):
        try:
            used = audit.take(batch.users, batch.codes, batch.times, batch.epsilons)
        except DataError as error:
            rows = f"rows {batch.chunk.row(0)} to {batch.chunk.row(batch.chunk.n - 1)}"
            raise DataError(f"{received.source.name}: {rows}: {error}") from None
        _note(digest, batch, used)
    return digest


def _batches(received: Received, audit: Audit, progress: Progress | None) -> Digest:
    digest, whole = Digest(), np.zeros(received.setting.batch, np.int64)  # only full batches are left out
    for portion in received.portions(progress):
        for sealed in portion.sealed:
            try:
                for _ in range(sealed.skipped):
                    audit.take_batch(sealed.user, None, whole, time=sealed.skipped_at)
                audit.take_batch(sealed.user, sealed.path, sealed.codes, sealed.epsilons, sealed.time)
            except DataError as error:
                rows = f"rows {sealed.rows[0] + 1} to {sealed.rows[-1] + 1}"
                raise DataError(f"{received.source.name}: {rows}: {error}") from None
        told = zip(portion.batches, portion.paths, strict=True)
        digest.add(portion.users, portion.codes, portion.epsilons, told)
    return digest


def _note(digest: Digest, batch: Batch, used: Floats) -> None:
    """Add the rows to the digest as the file has them; where it lacks ε, with what was spent."""
    rows = np.flatnonzero(batch.row_of >= 0)
    claimed = used if batch.epsilons is None else batch.epsilons
    digest.add(batch.chunk.users, batch.codes[rows], claimed[rows])
