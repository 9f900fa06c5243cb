"""The client of the service: the public name of `seqveil.interfaces.client`."""

from seqveil.engine.releases import Account
from seqveil.interfaces.client import Client, Event, Release, ServiceError, Unreachable

__all__ = ["Account", "Client", "Event", "Release", "ServiceError", "Unreachable"]
