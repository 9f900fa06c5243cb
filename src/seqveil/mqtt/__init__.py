"""MQTT at the edge: raw topics in, released topics out, each event released once. Needs `paho-mqtt` (extra `mqtt`)."""

from seqveil.mqtt.bridge import Bridge, Counts
from seqveil.mqtt.link import Broker, BrokerError, Link, address
from seqveil.mqtt.messages import REASONS, Payloads, Topics

__all__ = ["REASONS", "Bridge", "Broker", "BrokerError", "Counts", "Link", "Payloads", "Topics", "address"]
