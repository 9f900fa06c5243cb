"""Learn a chain from a released file: what it says about its users, and nothing else, goes in."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel
from seqveil.interfaces.files import Columns
from seqveil.interfaces.flow import coldstart
from seqveil.interfaces.flow.received import receive
from seqveil.interfaces.flow.rows import CHUNK_ROWS, FilePath, Progress
from seqveil.receive.follow import Followed, turns
from seqveil.receive.learn import Evidence, Learned, Region, learn, region
from seqveil.receive.learn.evidence import Log
from seqveil.receive.learn.model_error import LARGEST
from seqveil.receive.versions import Versions
from seqveil.release.stream import Setting


@dataclass(frozen=True, eq=False)
class LearnedFile:
    """A chain learned from a file, and how far off it may be (None where that is too large to compute)."""

    learned: Learned
    region: Region | None


def learn_file(
    released: FilePath,
    model: MarkovModel | Versions,
    setting: Setting | None = None,
    *,
    order: int = 1,
    strength: float | None = None,
    confidence: float = 0.95,
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    progress: Progress | None = None,
) -> LearnedFile:
    """The chain behind a released file; `model` is what the release was made with, a chain or versions.

    *Guarantee*: post-processing of what is public already. The kernels are recomputed from the model and the releases,
    so a file that they cannot have made is refused.
    """
    if isinstance(model, Versions):
        options = {"meta": meta, "columns": columns, "format": format, "progress": progress}
        evidence, _ = coldstart.evidence_of(released, model, **options)  # type: ignore[arg-type]
        alphabet = model.alphabet
    else:
        evidence, _ = evidence_file(released, model, setting, meta, columns, format, progress=progress)
        alphabet = model.alphabet
    learned = learn(evidence, alphabet, order, strength=strength)
    small = learned.chain.rows.size + learned.chain.first.size <= LARGEST
    return LearnedFile(learned, region(learned, evidence, confidence) if small else None)


def evidence_file(
    released: FilePath,
    model: MarkovModel,
    setting: Setting | None = None,
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    chunk: int = CHUNK_ROWS,
    progress: Progress | None = None,
) -> tuple[Evidence, list[Hashable]]:
    """The releases of a file as evidence, event by event in its order, users numbered as they come, and their names."""
    received = receive(released, model, setting, meta, columns, format, chunk=chunk)
    if received.setting.in_batches:
        raise InputError("a release in batches cannot be learned from; release one by one what shall be")
    if received.setting.budget.seconds is not None:
        raise InputError("a release with a budget per seconds cannot be learned from; use a budget without a window")
    followed, log, whose = Followed(received.setting), Log(model.n), []
    for batch in received.batches(progress):
        everyone = followed.rows(batch.users)
        whose.append(everyone)
        try:
            for _, some, codes, _ in turns(everyone, batch.codes):
                log.add(some, followed.observe(some, codes), received.setting)
        except DataError as error:
            rows = f"rows {batch.chunk.row(0)} to {batch.chunk.row(batch.chunk.n - 1)}"
            raise DataError(f"{received.source.name}: {rows}: {error}") from None
    return log.evidence().arranged(np.concatenate(whose)), followed.users
