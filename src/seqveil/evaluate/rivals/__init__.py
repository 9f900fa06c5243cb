"""Mechanisms of other people, to compare with. Where this room is installed, `mechanisms.find` knows them by name."""

from seqveil.evaluate.rivals import mutual_information as _mutual_information
from seqveil.evaluate.rivals import optimal_ldp as _optimal_ldp
from seqveil.evaluate.rivals import temporal as _temporal
from seqveil.evaluate.rivals import topl as _topl

optimal_ldp = _optimal_ldp.MECHANISM
mutual_information = _mutual_information.MECHANISM
topl = _topl.MECHANISM
temporal = _temporal.MECHANISM
temporal_restricted = _temporal.RESTRICTED

MECHANISMS = (optimal_ldp, mutual_information, topl, temporal, temporal_restricted)
