"""Where the users of `Streams` are kept: in memory, or in one SQLite file, committed before anyone sees a release."""

from seqveil.release.store.memory import Memory
from seqveil.release.store.protocol import Position, StateStore, StoreBusy, StoreError
from seqveil.release.store.records import GAP, Stored

__all__ = ["GAP", "Memory", "Position", "StateStore", "StoreBusy", "StoreError", "Stored"]
