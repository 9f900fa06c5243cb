"""The client of the service: the public name of `seqveil.interfaces.client`."""

from seqveil.interfaces.client import Client, Event, ServiceError, Unreachable

__all__ = ["Client", "Event", "ServiceError", "Unreachable"]
