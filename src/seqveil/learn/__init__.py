"""A model learned from the releases themselves: post-processing, so it costs no budget.

`Evidence` holds what was released as likelihoods, `learn` and `Learner` find the chain behind it, `Region` says how far
off it may be, and `slack_along` what that does to the guarantee.
"""

from seqveil.learn.evidence import Evidence
from seqveil.learn.expect import Chain, Statistics, expect, likelihoods
from seqveil.learn.learner import HeldOut, Learned, Learner, held_out, learn
from seqveil.learn.region import Region, region
from seqveil.learn.slack import slack_along
from seqveil.learn.sparse import sparse_learn

__all__ = [
    "Chain",
    "Evidence",
    "HeldOut",
    "Learned",
    "Learner",
    "Region",
    "Statistics",
    "expect",
    "held_out",
    "learn",
    "likelihoods",
    "region",
    "slack_along",
    "sparse_learn",
]
