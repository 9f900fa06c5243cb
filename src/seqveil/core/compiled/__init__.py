"""The hot path of a release, compiled: by blocks of users, without an array for every intermediate result.

Each function does what a numpy function does, operation by operation and in the same order, so that its results are the
same to the last bit (`fast` makes sure of it before it uses them, and tests/test_fast.py over random chains). Rows that
the quick way does not cover are left undone and marked, for numpy to do.
"""

from seqveil.core.compiled.account import charge, charge_alike
from seqveil.core.compiled.optimal import IMPOSSIBLE, LEFT, optimal
from seqveil.core.compiled.response import parts, truth_or_draw
from seqveil.core.compiled.update import update

__all__ = ["IMPOSSIBLE", "LEFT", "charge", "charge_alike", "optimal", "parts", "truth_or_draw", "update"]
