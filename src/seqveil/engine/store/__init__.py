"""Where the users of `Streams` are kept: in memory, or in one SQLite file, committed before anyone sees a release."""

from seqveil.engine.store.memory import Memory
from seqveil.engine.store.protocol import GAP, Position, StateStore, StoreBusy, Stored, StoreError

__all__ = ["GAP", "Memory", "Position", "StateStore", "StoreBusy", "StoreError", "Stored"]
