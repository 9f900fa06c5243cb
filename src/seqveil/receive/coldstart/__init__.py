"""Begin with nothing but a stream and ε: release without a model, learn one from the releases, move on to it."""

from seqveil.receive.coldstart.lanes import Lanes
from seqveil.receive.coldstart.policy import ColdStart, Points, Receiver
from seqveil.receive.coldstart.versions import Version, Versions, first_version

__all__ = ["ColdStart", "Lanes", "Points", "Receiver", "Version", "Versions", "first_version"]
