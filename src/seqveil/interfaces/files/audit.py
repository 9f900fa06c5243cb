"""Hold the releases of a file against what was promised: their exact leakage, and the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.engine.stream import Terms
from seqveil.interfaces.files import writing as side
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.received import Received, Where, receive
from seqveil.interfaces.files.rows import Progress
from seqveil.interfaces.files.writing import Digest
from seqveil.receiver.audit import Audit, Report
from seqveil.receiver.drift import Drift, ModelCheck

if TYPE_CHECKING:
    import polars as pl


def audit_file(
    released: FilePath | pl.DataFrame,
    model: MarkovModel,
    setting: Terms | None = None,
    *,
    delta: float = 1e-6,
    memory: int = 1 << 30,
    progress: Progress | None = None,
    secrets: Sequence[Secret] = (),
    **where: Unpack[Where],
) -> Report:
    """What the releases of a file leaked, exactly, from the file and the model alone.

    The setting comes from the side file; `setting` is for a file that has none. A model that is not the release's, and
    a release that the setting cannot have made, are refused. Where the file has the column `epsilon` it is compared
    with what the setting spent, and where the side file has a digest of the rows, with the rows. Of a release in
    batches everything is recomputed from the paths, the values too. A release that its side file calls seeded does not
    pass, whatever the figures: whoever knows the seed can undo it.

    The secrets that the release was to keep are held against their ε; `secrets` beside them are measured, exactly and
    whatever the mechanism, and nothing is promised about them.
    """
    received = receive(released, model, setting, **where)
    if any(secret.follows_clock for secret in secrets):
        received = received.with_times
    audit = Audit(received.setting, memory, secrets)
    digest = (_audit_batches if received.setting.in_batches else _audit_symbols)(received, audit, progress)
    report = audit.report(delta, received.unchanged(digest), checked(received, progress))
    return replace(report, unseeded=side.unseeded(received.meta), read=received.source.taken.sentence)


def _audit_symbols(received: Received, audit: Audit, progress: Progress | None) -> Digest:
    digest = Digest()
    for batch in received.batches(progress):
        with received.naming(batch.where):
            used = audit.take(batch.users, batch.codes, batch.times, batch.epsilons)
        batch.add_to(digest, used)
    return digest


def _audit_batches(received: Received, audit: Audit, progress: Progress | None) -> Digest:
    digest = Digest()
    for portion in received.portions(progress):
        for sealed in portion.sealed:
            with received.naming(sealed.where):
                claimed = None if sealed.path is None else sealed.epsilons
                audit.take_batch(sealed.user, sealed.path, sealed.codes, claimed, sealed.time)
        portion.add_to(digest)
    return digest


def checked(received: Received, progress: Progress | None = None) -> ModelCheck:
    """Whether the releases of a file fit the model they were made with; it is read once more."""
    drift = drift_of(received.setting)
    if drift is not None:
        for batch in received.batches(progress):
            with received.naming(batch.where):
                drift.update(batch.users, batch.codes, batch.times)
    return said_of(drift)


def drift_of(setting: Terms) -> Drift | None:
    """Bets against the model of a release; None where its releases cannot be asked."""
    one_by_one = not (setting.in_batches or setting.in_blocks)
    return Drift(setting) if one_by_one and setting.mechanism.sound else None


def said_of(drift: Drift | None) -> ModelCheck:
    """What the bets came to."""
    if drift is None:
        return ModelCheck.none("that takes releases one by one, by a sound mechanism")
    return ModelCheck.of(drift)
