"""Begin without a model: the public name of `seqveil.receiver.coldstart`."""

from seqveil.receiver.coldstart import ColdStart, Points, Receiver
from seqveil.receiver.versions import Version, VersionedStreams, Versions, first_version

__all__ = ["ColdStart", "Lanes", "Points", "Receiver", "Version", "VersionedStreams", "Versions", "first_version"]

Lanes = VersionedStreams  # its name in 0.1
