"""Mechanisms of other people, to compare with. Where this layer is installed, `mechanisms.find` knows them by name."""

from seqveil.evaluate.baselines.mutual_information import MECHANISM as mutual_information
from seqveil.evaluate.baselines.optimal_ldp import MECHANISM as optimal_ldp
from seqveil.evaluate.baselines.temporal import MECHANISM as temporal

MECHANISMS = (optimal_ldp, mutual_information, temporal)
