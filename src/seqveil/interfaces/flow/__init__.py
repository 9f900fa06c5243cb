"""Files of many users' streams through the pure step, in bounded memory: fit, release, audit, decode.

Each function reads a file in chunks and keeps O(users) of state; only `decode_file` keeps a few bytes an event, because
the best estimate of a symbol uses the releases after it.
"""

from seqveil.interfaces.files import Columns
from seqveil.interfaces.flow.audit import audit_file
from seqveil.interfaces.flow.decode import Decoded, decode_file
from seqveil.interfaces.flow.fit import Fitted, fit_file
from seqveil.interfaces.flow.meta import stored_setting
from seqveil.interfaces.flow.release import Released, guarantee, release_file
from seqveil.interfaces.flow.rows import Source

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
