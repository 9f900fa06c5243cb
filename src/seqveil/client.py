"""The client of the service: the public name of `seqveil.interfaces.client`."""

from seqveil.engine.releases import Account, Release
from seqveil.interfaces.client import Client, Event, ServiceError, Unreachable

__all__ = ["Account", "Client", "Event", "Release", "ServiceError", "Unreachable"]
