"""Prometheus metrics. Labels are routes, statuses and reasons: never a user, a token or a value."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from seqveil.store import Store

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
NATS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
METHODS = ("GET", "POST", "HEAD", "OPTIONS")


class Metrics:
    """The metrics of one service, in a registry of their own."""

    def __init__(self, store: Store, refresh: float) -> None:
        self.registry = CollectorRegistry()
        shared: Any = {"registry": self.registry}
        self.releases = Counter("seqveil_releases", "Events released and on the disk.", **shared)
        self.replays = Counter("seqveil_replays", "Events answered with the release made before.", **shared)
        self.refusals = Counter("seqveil_refusals", "Requests refused, by reason.", ["reason"], **shared)
        self.latency = Histogram(
            "seqveil_request_seconds",
            "Time from the first byte to the answer.",
            ["method", "route", "status"],
            buckets=SECONDS,
            **shared,
        )
        self.group = Histogram(
            "seqveil_request_events",
            "Events in a request to release.",
            buckets=(1, 10, 100, 1000, 10_000),
            **shared,
        )
        self.waiting = Gauge("seqveil_waiting_events", "Events accepted and not yet on the disk.", **shared)
        ProcessCollector(registry=self.registry)
        self.registry.register(_Standing(store, refresh))

    def request(self, method: str, route: str, status: int, seconds: float, reason: str | None) -> None:
        """Count one answered request."""
        known = method if method in METHODS else "other"
        self.latency.labels(known, route, str(status)).observe(seconds)
        if reason is not None:
            self.refusals.labels(reason).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Standing(Collector):
    """How many users there are and how their leakage spreads, looked up at most every so many seconds."""

    def __init__(self, store: Store, refresh: float) -> None:
        self._store, self._refresh = store, refresh
        self._lock = threading.Lock()
        self._looked, self._leakages = float("-inf"), np.zeros(0)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing beforehand: registering must not read the whole store."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily | GaugeHistogramMetricFamily]:
        with self._lock:
            if time.monotonic() - self._looked >= self._refresh:
                self._leakages, self._looked = self._store.accounts().leakage, time.monotonic()
            leakages = self._leakages
        yield GaugeMetricFamily("seqveil_users", "Users with at least one event.", float(leakages.size))
        counts = [(str(edge), float((leakages <= edge).sum())) for edge in NATS]
        finite = leakages[np.isfinite(leakages)]
        yield GaugeHistogramMetricFamily(
            "seqveil_user_leakage_nats",
            "Exact leakage of the users' streams so far.",
            buckets=[*counts, ("+Inf", float(leakages.size))],
            gsum_value=float(finite.sum()),
        )
