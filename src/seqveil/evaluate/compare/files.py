"""The people of a file as streams of codes, some of them drawn."""

from __future__ import annotations

import hashlib

from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.interfaces.files.events import Progress, model_events
from seqveil.interfaces.files.table import FilePath


def read_streams(
    data: FilePath,
    model: MarkovModel,
    people: int | None = None,
    first: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Ints]:
    """The codes of each person's events, the first ones where so many are asked for.

    Of more people some are drawn. Who that is follows from the seed and the names alone, not from the file.
    """
    for name, value in (("people", people), ("first", first)):
        if value is not None and value < 1:
            raise InputError(f"expected --{name} of at least 1, got {value}")
    if seed < 0:
        raise InputError(f"expected a seed that is a whole number ≥ 0, got {seed}")
    events = model_events(data, model)
    streams = events.streams(model.alphabet.with_policy("error"))
    if progress is not None:
        progress(events.n)
    names, found = list(streams), list(streams.values())
    keys = [hashlib.sha256(f"{seed} {name}".encode()).digest() for name in names]
    drawn = sorted(range(len(found)), key=lambda k: keys[k])[:people]
    return [found[k][:first] for k in drawn]
