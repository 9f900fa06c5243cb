"""A fair comparison of ways to release: the same people, model, distortion and budget, and what each really leaks.

It is an evaluation of data that one holds: it looks at the truth, its randomness is seeded, and nothing it makes is a
private release.
"""

from seqveil.evaluate.compare.comparison import Comparison, compare
from seqveil.evaluate.compare.measure import ComparisonRow, constant, measured
from seqveil.evaluate.compare.ways import Arena, Way, ways

__all__ = ["Arena", "Comparison", "ComparisonRow", "Way", "compare", "constant", "measured", "ways"]
