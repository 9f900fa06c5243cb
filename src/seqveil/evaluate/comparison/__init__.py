"""A fair race between mechanisms: the same streams, chain, distortion and budget for all, and what each really leaks.

It is an evaluation of data that one holds: it looks at the truth, its coins are seeded, and nothing it makes is a
private release.
"""

from seqveil.evaluate.comparison.arena import Arena
from seqveil.evaluate.comparison.contestants import Contestant, line_up
from seqveil.evaluate.comparison.limits import constant, converse, rate_distortion
from seqveil.evaluate.comparison.race import race
from seqveil.evaluate.comparison.row import Row

__all__ = ["Arena", "Contestant", "Row", "constant", "converse", "line_up", "race", "rate_distortion"]
