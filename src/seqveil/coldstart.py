"""Begin without a model: the public name of `seqveil.receive.coldstart`."""

from seqveil.receive.coldstart import ColdStart, Lanes, Points, Receiver, Version, Versions, first_version

__all__ = ["ColdStart", "Lanes", "Points", "Receiver", "Version", "Versions", "first_version"]
