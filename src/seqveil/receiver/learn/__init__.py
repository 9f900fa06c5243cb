"""A model learned from the releases themselves: post-processing, so it costs no budget.

`Evidence` holds what was released as likelihoods, `learn` and `Learner` find the chain behind it, `Region` says how far
off it may be, and `slack_along` what that does to the guarantee.
"""

from seqveil.receiver.learn.evidence import Evidence
from seqveil.receiver.learn.expected import Chain, Statistics, expect, likelihoods
from seqveil.receiver.learn.learner import HeldOut, Learned, Learner, held_out, learn, sparse_learn
from seqveil.receiver.learn.model_error import Region, region, slack_along

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
