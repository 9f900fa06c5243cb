"""What a set is once it is read: streams of codes, their alphabet, and where they come from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core.alphabet import Codes, Symbols
from seqveil.core.distortion import Distortion
from seqveil.core.errors import FILES, DataError, needs_extra
from seqveil.core.fitting import SMOOTHING
from seqveil.core.model import Counts, MarkovModel

if TYPE_CHECKING:
    import polars as pl


class Content(NamedTuple):
    """What a loader or a generator makes."""

    streams: pl.DataFrame
    listing: pl.DataFrame  # becomes `Dataset.index`
    alphabet: Symbols
    distortion: Distortion


@dataclass(frozen=True, eq=False)
class Dataset:
    """Streams of codes with everything an experiment needs to know of them.

    `streams` has a row an event, in order: `user`, the number of the stream, and `value`, a code of `alphabet`.
    `index` has a row a stream: `user`, the `person` it is of, the `recording` of that person, and its `length`. A
    stream is what a chain may be fitted along; a person with several recordings has several streams.
    """

    name: str
    streams: pl.DataFrame
    index: pl.DataFrame
    alphabet: Symbols
    distortion: Distortion
    order_is_real: bool
    licence: str
    citation: str
    source: str
    note: str

    @property
    def people(self) -> list[Any]:
        """The people, in the order of their first stream."""
        return list(self.index["person"].unique(maintain_order=True).to_list())

    def arrays(self, at_least: int = 1, people: Collection[Any] | None = None) -> list[Codes]:
        """The streams of at least so many symbols as arrays of codes, in order."""
        lengths = self.index["length"].to_numpy()
        begins = np.cumsum(lengths) - lengths
        values = self.streams["value"].to_numpy()
        kept = np.flatnonzero((lengths >= at_least) & self._of(people))
        return [values[begins[k] : begins[k] + lengths[k]].astype(np.int64) for k in kept]

    def model(
        self,
        order: int = 1,
        smoothing: float = SMOOTHING,
        prior: str | ArrayLike = "data",
        people: Collection[Any] | None = None,
    ) -> MarkovModel:
        """A chain fitted to the streams of some people (all by default); see `MarkovModel.fit`."""
        import polars as pl

        chosen = self.streams
        if people is not None:
            kept = self.index.filter(pl.Series(self._of(people)))["user"]
            chosen = chosen.filter(pl.col("user").is_in(kept.implode()))
        counts = Counts(self.alphabet.n, order)
        counts.add(chosen["user"].to_numpy(), chosen["value"].to_numpy())
        return counts.model(self.alphabet, smoothing, prior)

    def _of(self, people: Collection[Any] | None) -> NDArray[np.bool_]:
        if people is None:
            return np.ones(len(self.index), bool)
        return np.asarray(self.index["person"].is_in(list(people)).to_numpy(), dtype=np.bool_)

    def __repr__(self) -> str:
        return f"Dataset({self.name}, {len(self.index)} streams, {len(self.streams)} events, {self.alphabet.n} symbols)"


def gather(person: NDArray[Any], recording: NDArray[Any], value: NDArray[Any]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Streams and index from columns in order: a stream ends where person or recording changes."""
    with needs_extra(*FILES):
        import polars as pl

    if not len(value):
        raise DataError("no events are left after filtering; ask for more users")
    new = np.r_[True, (person[1:] != person[:-1]) | (recording[1:] != recording[:-1])]
    begins = np.flatnonzero(new)
    stream = np.cumsum(new, dtype=np.int32) - 1
    streams = pl.DataFrame({"user": stream, "value": value})
    lengths = np.diff(np.r_[begins, len(value)])
    content = {"user": np.arange(len(begins), dtype=np.int32), "person": person[begins], "recording": recording[begins]}
    return streams, pl.DataFrame({**content, "length": lengths.astype(np.int64)})


def rectangle(codes: Codes) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Streams and index from (users, length) codes: one stream a person."""
    users, length = codes.shape
    person = np.repeat(np.arange(users, dtype=np.int32), length)
    return gather(person, np.zeros(users * length, np.int32), codes.ravel().astype(np.int32))
