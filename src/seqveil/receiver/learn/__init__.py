"""A model learned from the releases themselves: post-processing, so it costs no budget.

`Evidence` holds what was released as likelihoods, `learn` finds the chain behind it, `Region` says how far off it is.
"""

from seqveil.receiver.learn.evidence import Evidence
from seqveil.receiver.learn.expected import Chain, ExpectedStatistics, expect, likelihoods
from seqveil.receiver.learn.learner import HeldOut, Learned, held_out, learn
from seqveil.receiver.learn.model_error import Region, region

__all__ = [
    "Chain",
    "Evidence",
    "ExpectedStatistics",
    "HeldOut",
    "Learned",
    "Region",
    "expect",
    "held_out",
    "learn",
    "likelihoods",
    "region",
]
