"""The people of a file as streams of codes, some of them drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

import numpy as np

from seqveil.core.bulk import numbered
from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.interfaces.files import Columns
from seqveil.interfaces.files.placing import located
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.rows import Progress, Source


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
    alphabet = model.alphabet
    columns = located(data, Columns()) if alphabet.on_map else Columns()
    source = Source.released(data, columns, missing=alphabet.missing, slots=alphabet.slots)
    names: dict[Hashable, int] = {}
    who, codes = list[Ints](), list[Ints]()
    for part in source.coded(alphabet.with_policy("error"), progress):
        who.append(numbered(names, part.chunk.users.to_list()))
        codes.append(part.codes)
    owners = np.concatenate(who)
    found = np.split(np.concatenate(codes)[np.argsort(owners, kind="stable")], np.cumsum(np.bincount(owners))[:-1])
    keys = [hashlib.sha256(f"{seed} {name}".encode()).digest() for name in names]
    drawn = sorted(range(len(found)), key=lambda k: keys[k])[:people]
    return [found[k][:first] for k in drawn]
