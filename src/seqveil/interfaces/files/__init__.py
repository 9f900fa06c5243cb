"""Data files in and out: CSV, JSON lines and Parquet, read in chunks, written whole or not at all."""

from seqveil.interfaces.files.order import OrderCheck, sorted_chunks
from seqveil.interfaces.files.reading import Chunk, Columns, count_rows, read
from seqveil.interfaces.files.writing import Writer, load_meta, same_file, save_meta, taken, write_text

__all__ = [
    "Chunk",
    "Columns",
    "OrderCheck",
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
