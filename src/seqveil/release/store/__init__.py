"""Releases that survive: every user's state, ledger and releases in one SQLite file, committed before anyone sees them.

The rule: the first release of an event (a user and a sequence number) is the only one. Asked again, with whatever
symbol, the store gives that release back; it keeps nothing of the symbol.
"""

from seqveil.release.store.database import Position, StoreBusy, StoreError
from seqveil.release.store.plan import OutOfOrder
from seqveil.release.store.play import BatchReleases, Releases, UserAccount, taken
from seqveil.release.store.records import GAP, Stored
from seqveil.release.store.store import Store
from seqveil.release.stream import NOTHING, REFUSED

__all__ = [
    "GAP",
    "NOTHING",
    "REFUSED",
    "BatchReleases",
    "OutOfOrder",
    "Position",
    "Releases",
    "Store",
    "StoreBusy",
    "StoreError",
    "Stored",
    "UserAccount",
    "taken",
]
