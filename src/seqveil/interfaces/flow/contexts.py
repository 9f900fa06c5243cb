"""Fit a context to a file: compare candidates on held-out people, and fit the one taken to everyone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.interfaces.files import Chunk
from seqveil.interfaces.flow.rows import encode

if TYPE_CHECKING:
    from seqveil.receive.contexts import Choice


def choose_from(
    chunks: Iterable[Chunk],
    alphabet: Symbols,
    file: str,
    context: str,
    smoothing: float,
    prior: str,
    progress: Callable[[float], None] | None = None,
) -> tuple[Choice, int, int]:
    """The context chosen for the streams of a file, and how many events and users it has.

    The codes of all events are held in memory, since some people are held out and foretold one event after another.

    Parameters:
      chunks: the file, each user's events in their order.
      alphabet: its alphabet.
      file: its name, for messages.
      context: "auto", or a context such as "types:16".
      smoothing: pseudo-count of the common chain; 0 stands for 1, since others may do what nobody did in the fit.
      prior: as in `MarkovModel.fit`.
      progress: told the share that is done, 0 to 1, once the file is read.
    """
    from seqveil.receive.contexts import SMOOTHING, choose

    rows, codes, slots = [], [], dict[Hashable, int]()
    for part in chunks:
        listed = part.users.to_list()
        rows.append(np.fromiter((slots.setdefault(user, len(slots)) for user in listed), np.int64, len(listed)))
        codes.append(np.asarray(encode(part, alphabet.strict, file), np.int64))
    users, events = np.concatenate(rows), np.concatenate(codes)
    choice = choose(users, events, alphabet, context, smoothing=smoothing or SMOOTHING, prior=prior, progress=progress)
    return choice, events.size, len(slots)
