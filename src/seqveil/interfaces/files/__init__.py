"""Files and frames of many people's streams: fit, release, audit, decode, inspect.

`table` reads any file or frame, `events` makes people's events of it in the order that `ordering` finds, `cuts` turns
values into symbols, `writing` writes. A command's function is in the module of its name: `fit`, `release`, `receive`
(audit, decode, stats, learn, over what `received` reads), `inspection`.
"""

from seqveil.core.errors import FILES, needs_extra

with needs_extra(*FILES):
    import polars  # noqa: F401 -- which every module here reads and writes with
