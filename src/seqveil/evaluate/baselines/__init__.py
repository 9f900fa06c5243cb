"""Mechanisms of other people, to compare with. Where this layer is installed, `mechanisms.find` knows them by name."""

from seqveil.evaluate.baselines import mutual_information as _mutual_information
from seqveil.evaluate.baselines import optimal_ldp as _optimal_ldp
from seqveil.evaluate.baselines import temporal as _temporal
from seqveil.evaluate.baselines import topl as _topl

optimal_ldp = _optimal_ldp.MECHANISM
mutual_information = _mutual_information.MECHANISM
topl = _topl.MECHANISM
temporal = _temporal.MECHANISM
temporal_restricted = _temporal.RESTRICTED

MECHANISMS = (optimal_ldp, mutual_information, topl, temporal, temporal_restricted)
