"""What a receiver may say about the truth behind a set of released streams: counts with confidence intervals.

Everything is computed from releases and public parameters, so it is post-processing and costs no privacy.
"""

from seqveil.receive.statistics.summary import Estimate, Summary, TopSymbol, summarise

__all__ = ["Estimate", "Summary", "TopSymbol", "summarise"]
