"""Files and frames of many people's streams: fit, release, audit, decode, inspect.

`table` reads any file, `events` makes people's events of it, `cuts` turns values into symbols, `writing` writes; a
command's function is in the module of its name: `fit`, `release` (`resume` with a state file), `receive` (audit,
decode, stats, learn), `inspection`.
"""
