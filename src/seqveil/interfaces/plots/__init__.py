"""Pictures (matplotlib, an extra): the ones of the page, from Python.

`tradeoff` of a plan, `comparison` of mechanisms, one `stream` with belief and account, `belief` and `account` alone,
and a path on a grid (`grid_path`). Each returns a matplotlib figure, shows itself in a notebook, and is saved where a
path is given. `blank` and `finish` begin and end a picture of your own in the same look.
"""

from seqveil.interfaces.plots._canvas import DECODED, LIMIT, RAW, RELEASED, blank, finish
from seqveil.interfaces.plots._comparison import comparison
from seqveil.interfaces.plots._grid_path import grid_path
from seqveil.interfaces.plots._stream import account, belief, stream
from seqveil.interfaces.plots._tradeoff import tradeoff

__all__ = [
    "DECODED",
    "LIMIT",
    "RAW",
    "RELEASED",
    "account",
    "belief",
    "blank",
    "comparison",
    "finish",
    "grid_path",
    "stream",
    "tradeoff",
]
