"""What releases say of their users under another model: states to go on with, made from public rows alone.

Nothing here knows Spark; a worker gets rows sorted by user and number, and gives back what is to be kept of each user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.core.coins import User
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.kernel import Ints
from seqveil.interfaces.spark.guard import guarded
from seqveil.interfaces.spark.job import SEQ, USER, whole_users
from seqveil.receive import versions
from seqveil.receive.learn import Evidence
from seqveil.receive.versions import Version, VersionedStreams
from seqveil.release.calls import MOST_SKIPPED
from seqveil.release.store.packing import pack, units
from seqveil.release.store.records import GAP
from seqveil.release.stream import Setting

if TYPE_CHECKING:
    import pandas as pd

MOVED, BEFORE = "moved", "before"  # columns: numbers at which a user moved on; leakage under the chain before


@dataclass(frozen=True, eq=False)
class Streams:
    """Releases of some users: codes user after user, GAP where a number was given up."""

    users: list[User]
    codes: Ints
    lengths: Ints
    releases: Ints
    moved: Ints  # (users, versions after the first): the number at which each of them came into force


def refuse_unmovable(settings: Sequence[Setting], new: Setting) -> None:
    """Refuse settings between which a query cannot move."""
    versions.refuse_unmovable(settings, new, "query")
    if new.budget.when_spent == "stop":
        raise InputError("events that a spent budget left out are not in the output; only hold and error can move on")


def streams(rows: pd.DataFrame, alphabet: Symbols, versions: int) -> Streams:
    """Rows sorted by user and number, whole users: a row that came out twice counts once.

    `moved` has, for users who were there before, the numbers of their moves; who came later was never under an earlier
    version. `versions` is how many there were so far.
    """
    if rows[[USER, SEQ]].isna().any(axis=None) or int(rows[SEQ].min()) < 0:
        raise DataError("a released row has no user, or no number from 0 on; name the folders and columns of a release")
    codes, seqs, users = _codes(rows, alphabet), rows[SEQ].to_numpy().astype(np.int64), rows[USER].to_numpy()
    first = np.r_[True, users[1:] != users[:-1]]
    left_out = np.where(first, seqs, np.diff(seqs, prepend=0) - 1)
    if int(left_out.max()) > MOST_SKIPPED:
        raise DataError(f"a released row leaves more than {MOST_SKIPPED} numbers out; check the column of the numbers")
    again = ~first & (seqs == np.r_[-1, seqs[:-1]])
    if (codes[again] != codes[np.flatnonzero(again) - 1]).any():
        raise DataError("an event was released as two different values; name the folders of one query and no other")
    starts = np.flatnonzero(first)
    whose = np.cumsum(first) - 1
    lengths = seqs[np.r_[starts[1:], len(seqs)] - 1] + 1
    begins = np.cumsum(lengths) - lengths
    dense = np.full(int(lengths.sum()), GAP, np.int64)
    dense[begins[whose] + seqs] = codes
    moved = np.zeros((starts.size, versions - 1), np.int64)
    if versions > 1:
        for k, numbers in enumerate(rows[MOVED].iloc[starts]):
            moved[k] = 0 if numbers is None else numbers
    names: list[User] = rows[USER].iloc[starts].tolist()
    return Streams(names, dense, lengths, np.bincount(whose[~again], minlength=starts.size), moved)


def _codes(rows: pd.DataFrame, alphabet: Symbols) -> Ints:
    values: Any = rows["v0"] if "v1" not in rows else rows[["v0", "v1"]].to_numpy(np.float64)
    try:
        return alphabet.strict.encode(values)
    except UnknownSymbol:
        n = alphabet.n
        raise DataError(f"a released value is not in the model's alphabet ({n} symbols); check the columns") from None


def replayed(settings: Sequence[Setting], told: Streams) -> VersionedStreams:
    """The users as the last of these settings sees them, after all their releases; exact accounts from the first on."""
    return versions.replayed(settings, told.codes, told.lengths, told.moved)


def carry_sorted(settings: Sequence[Setting], new: Setting, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """A partition sorted by user and number: what is to be kept of each user under the new setting."""
    with guarded():
        for rows in whole_users(frames):
            yield carry(settings, new, streams(rows, new.model.alphabet, len(settings)))


def carry(settings: Sequence[Setting], new: Setting, told: Streams) -> pd.DataFrame:
    """One row a user: ledger and state under the new chain, the numbers of its moves, and its leakage before."""
    import pandas as pd

    seen = replayed(settings, told)
    before = units(np.maximum(seen.state.account.worst, 0.0))
    seen.switch(Version(len(settings) + 1, new, 0))
    state, everyone = seen.state, np.arange(len(told.users))
    packed = pack(state)
    width = len(packed) // max(1, everyone.size)
    moves = np.column_stack([told.moved, told.lengths])
    columns = {
        USER: pd.Series(told.users, dtype=object if isinstance(told.users[0], str) else np.int64),
        "events": told.lengths,
        "releases": told.releases,
        "spent": units(state.spent),
        "most": units(state.account.most),
        "least": -units(-state.account.least),
        "state": [packed[k * width : (k + 1) * width] for k in everyone.tolist()],
        MOVED: moves.tolist(),
        BEFORE: before,
    }
    return pd.DataFrame(columns)


def evidence(settings: Sequence[Setting], frames: Iterator[pd.DataFrame]) -> Evidence:
    """All releases in rows sorted by user and number, as what can be learned from."""
    found: Evidence | None = None
    for rows in whole_users(frames):
        part = replayed(settings, streams(rows, settings[-1].model.alphabet, len(settings))).evidence()
        found = part if found is None else found + part
    if found is None:
        raise DataError("the folders hold no releases yet; release something first")
    return found
