"""Files of many users' streams through the pure step, in bounded memory: fit, release, audit, decode.

Each function reads a file in chunks and keeps O(users) of state; only `decode_file` keeps a few bytes an event, because
the best estimate of a symbol uses the releases after it.
"""

from seqveil.files import Columns
from seqveil.flow.audit import audit_file
from seqveil.flow.decode import Decoded, decode_file
from seqveil.flow.fit import Fitted, fit_file
from seqveil.flow.meta import stored_setting
from seqveil.flow.release import Released, guarantee, release_file
from seqveil.flow.rows import Source

__all__ = [
    "Columns",
    "Decoded",
    "Fitted",
    "Released",
    "Source",
    "audit_file",
    "decode_file",
    "fit_file",
    "guarantee",
    "release_file",
    "stored_setting",
]
