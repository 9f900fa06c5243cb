"""A fair race between mechanisms: the same streams, chain, distortion and budget for all, and what each really leaks.

It is an evaluation of data that one holds: it looks at the truth, its randomness is seeded, and nothing it makes is a
private release.
"""

from seqveil.evaluate.baselines.mutual_information import rate_distortion
from seqveil.evaluate.comparison.arena import KEEPERS, Arena, Contestant, Keeper, line_up, line_up_for_secrets
from seqveil.evaluate.comparison.pictures import picture
from seqveil.evaluate.comparison.race import constant, converse, race
from seqveil.evaluate.comparison.rows import ComparisonRow, SecretFigures

__all__ = [
    "KEEPERS",
    "Arena",
    "ComparisonRow",
    "Contestant",
    "Keeper",
    "SecretFigures",
    "constant",
    "converse",
    "line_up",
    "line_up_for_secrets",
    "picture",
    "race",
    "rate_distortion",
]
