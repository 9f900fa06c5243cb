"""Mixtures of chains that are known, put together by hand: what a fit finds in people's streams."""

import numpy as np

from seqveil import MarkovModel
from seqveil.core import states


def mixture(models, weights, switch=0.0, trait=None):
    """Type k is drawn with probability weights[k], and with `switch` a step the stream goes on as somebody else.

    `trait` is a question about people, by name, and the answer of each type.
    """
    shares, blocks = np.asarray(weights, float), [each.states for each in models]
    if trait is None:
        return MarkovModel._of(states.mixture(blocks, shares, switch), models[0].alphabet)
    name, labels = trait
    answers = tuple(sorted(set(labels)))
    kinds = [[k for k, label in enumerate(labels) if label == answer] for answer in answers]
    priors = np.array([shares[some].sum() for some in kinds])
    parts = [
        states.mixture([blocks[k] for k in some], shares[some] / prior, switch)
        for some, prior in zip(kinds, priors, strict=True)
    ]
    return MarkovModel._of(states.answered(name, answers, parts, priors), models[0].alphabet)
