"""Release rows into memory: what `release` writes to a file and its side file, as a frame and a dictionary.

Nothing is written to a disk, neither raw rows nor released ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import OnMissing, OnUnknown
from seqveil.core.errors import BudgetSpent
from seqveil.core.kernel import Ints
from seqveil.interfaces.files.columns import Columns
from seqveil.interfaces.files.ordering import goes_back, in_order
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.release import (
    BATCH_ROWS,
    MEMORY,
    Choices,
    Released,
    Whole,
    left_out,
    raw_alphabet,
    source_for,
    streams_in_memory,
)
from seqveil.interfaces.files.rows import CHUNK_ROWS, Progress, Rows
from seqveil.interfaces.files.writing import BATCH, PATH, Digest, Held, Meta
from seqveil.release.stream import Setting

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class HeldRelease:
    """Released rows in the order of the rows they came from, with what the side file of a release would say."""

    frame: pl.DataFrame = field(repr=False)
    rows: Ints = field(repr=False)  # the row of the data, from 0, that each one was released from; of slots none
    account: Released
    meta: Meta = field(repr=False)


def release_rows(
    data: FilePath | pl.DataFrame,
    setting: Setting,
    *,
    seed: int | None = None,
    columns: Columns | None = None,
    on_unknown: OnUnknown | None = None,
    format: str | None = None,
    sort: bool | None = None,
    missing: OnMissing | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> HeldRelease:
    """Release every row of a file or a frame, as `release_file` does, into memory.

    *Guarantee*: each user's stream is released as by a `Session` of its own, with the same draws as `release_file` from
    the same seed. Where a budget whose policy is "error" is spent, BudgetSpent is raised and what was drawn before is
    in its `made`; so it is with any other error that ends the run early.

    Parameters: as in `release_file`. With `sort` left out, rows that go back in time are put in order for the release.
    """
    size = BATCH_ROWS if setting.in_batches else CHUNK_ROWS
    source = source_for(data, setting, columns, format, sort, missing, chunk=size)
    choices: Choices = {}
    streams = streams_in_memory(setting, seed, memory, choices)
    run = _InMemory(source, setting, raw_alphabet(setting, on_unknown), streams, seed, choices)
    run.go(progress)
    account = run.account()
    found = HeldRelease(run.made, run.places, account, run.facts(account))
    if run.failure is not None:
        run.failure.made = found
        raise run.failure
    if account.refused:
        raise BudgetSpent(left_out(setting, account), found)
    return found


class _InMemory(Whole):
    """Keeps the rows, each with its place in the data."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._held, self._rows = Held(), list[Rows]()

    @property
    def in_slots(self) -> bool:
        """Whether a row is released for each slot of time, and not for each row of the data."""
        return self.source.slots is not None

    def keep(self, rows: Rows) -> None:
        """Keep these rows."""
        self._held.write(self.frame(rows))
        self._rows.append(rows)

    @property
    def _arranged(self) -> Ints:
        """Where the released rows stand in the order of the data; slots keep their own, which tells of no event."""
        if self.in_slots:
            return np.arange(self._read.size)
        return np.argsort(self._read, kind="stable")

    @property
    def _read(self) -> Ints:
        return np.concatenate([np.zeros(0, np.int64), *(part.rows for part in self._rows if part.rows is not None)])

    @property
    def places(self) -> Ints:
        """The row of the data that each released one came from; of slots none."""
        return np.zeros(0, np.int64) if self.in_slots else self._read[self._arranged]

    @property
    def made(self) -> pl.DataFrame:
        """The released rows in the order of the data."""
        return self._held.frame[self._arranged]

    def digest(self) -> Digest:
        """Of the rows as an audit of the frame reads them, which is not always the order of their release."""
        import polars as pl

        found, order = Digest(), self._arranged
        if not order.size:
            return found
        frame = self._held.frame[order]
        if goes_back(frame, self.source.columns):
            order = order[in_order(frame, self.source.columns)]
        keys = pl.concat([part.keys for part in self._rows])[order]
        codes, spent = (np.concatenate([getattr(part, name) for part in self._rows]) for name in ("codes", "epsilons"))
        paths = None
        if PATH in self._rows[0].more:
            more = [np.concatenate([part.more[name] for part in self._rows])[order].tolist() for name in (BATCH, PATH)]
            paths = zip(*more, strict=True)
        found.add(keys, codes[order], spent[order], paths)
        return found


__all__ = ["HeldRelease", "goes_back", "in_order", "release_rows"]
