"""Files of many users' streams, in bounded memory: read and write them, fit, release, audit, decode.

Each function reads a file in chunks and keeps O(users) of state; only `decode_file` keeps a few bytes an event, because
the best estimate of a symbol uses the releases after it. What reads and writes is here; a command's function is in the
module of its name: `fit`, `release` (`resume` with a state file), `audit` (and drift), `estimates` (decode, statistics,
learn).
"""

from seqveil.interfaces.files.columns import Columns, Taken
from seqveil.interfaces.files.ordering import OrderCheck, sorted_chunks
from seqveil.interfaces.files.reading import Chunk, count_rows, read
from seqveil.interfaces.files.writing import Writer, load_meta, same_file, save_meta, taken, write_text

__all__ = [
    "Chunk",
    "Columns",
    "OrderCheck",
    "Taken",
    "Writer",
    "count_rows",
    "load_meta",
    "read",
    "same_file",
    "save_meta",
    "sorted_chunks",
    "taken",
    "write_text",
]
