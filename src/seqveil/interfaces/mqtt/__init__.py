"""MQTT at the edge: raw topics in, released topics out, each event released once. Needs `paho-mqtt` (extra `mqtt`)."""

from seqveil.interfaces.mqtt.bridge import Bridge, Counts
from seqveil.interfaces.mqtt.link import Broker, BrokerError, Link, address
from seqveil.interfaces.mqtt.messages import REASONS, Payloads, Topics

__all__ = ["REASONS", "Bridge", "Broker", "BrokerError", "Counts", "Link", "Payloads", "Topics", "address"]
