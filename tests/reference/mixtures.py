"""Mixtures of chains that are known, put together by hand: what a fit finds in people's streams."""

from seqveil import MarkovModel

mixture = MarkovModel.mixture
