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
from starlette.concurrency import run_in_threadpool

from seqveil.core.kernel import Floats
from seqveil.release.streams import Streams

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
NATS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
LOOK = 5.0  # seconds between looks at all users for a page that asks every other second
METHODS = ("GET", "POST", "HEAD", "OPTIONS")


class Metrics:
    """The metrics of one service, in a registry of their own."""

    def __init__(self, store: Streams, refresh: float) -> None:
        self.registry = CollectorRegistry()
        shared: Any = {"registry": self.registry}
        self.releases = Counter("seqveil_releases", "Events released and on the disk.", **shared)
        self.replays = Counter("seqveil_replays", "Events answered with the release made before.", **shared)
        self.unknown = Counter("seqveil_unknown_values", "Values outside the alphabet, hidden in releases.", **shared)
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
        self._standing = _Standing(store, refresh)
        self.registry.register(self._standing)
        self._began = time.monotonic()

    def request(self, method: str, route: str, status: int, seconds: float, reason: str | None) -> None:
        """Count one answered request."""
        known = method if method in METHODS else "other"
        self.latency.labels(known, route, str(status)).observe(seconds)
        if reason is not None:
            self.refusals.labels(reason).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)

    async def told(self, total: float | None) -> dict[str, Any]:
        """The figures for the operator's page; `total` is the budget of a stream, which the spread is then a share of.

        How users stand is looked up when the last look is old, off the event loop.
        """
        leakages, age = await run_in_threadpool(self._standing.look, LOOK)
        edges = [total * k / 10 for k in range(1, 11)] if total is not None else list(NATS)
        counts = np.histogram(leakages, [-np.inf, *(np.array(edges) * (1 + 1e-9)), np.inf])[0].tolist()
        refused = {labels["reason"]: value for labels, value in _totals(self.refusals)}
        return {
            "uptime": time.monotonic() - self._began,
            "releases": sum(value for _, value in _totals(self.releases)),
            "replays": sum(value for _, value in _totals(self.replays)),
            "refusals": refused,
            "seconds": _buckets(self.latency, "/v1/release"),
            "users": int(leakages.size),
            "spread": {"edges": edges, "counts": counts, "budget": total, "age": age},
        }


def _totals(counter: Counter) -> list[tuple[dict[str, str], float]]:
    return [(s.labels, s.value) for family in counter.collect() for s in family.samples if s.name.endswith("_total")]


def _buckets(histogram: Histogram, route: str) -> dict[str, float]:
    """How many requests of a route took at most so many seconds, whatever became of them."""
    found: dict[str, float] = {}
    for family in histogram.collect():
        for sample in family.samples:
            if sample.name.endswith("_bucket") and sample.labels["route"] == route:
                edge = sample.labels["le"]
                found[edge] = found.get(edge, 0.0) + sample.value
    return found


class _Standing(Collector):
    """How many users there are and how their leakage spreads, looked up at most every so many seconds."""

    def __init__(self, store: Streams, refresh: float) -> None:
        self._store, self._refresh = store, refresh
        self._lock = threading.Lock()
        self._looked, self._leakages = float("-inf"), np.zeros(0)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing beforehand: registering must not read the whole store."""
        return iter(())

    def look(self, least: float = 0.0) -> tuple[Floats, float]:
        """Every user's leakage, and how many seconds ago it was looked up; a look of `least` seconds ago will do."""
        with self._lock:
            if time.monotonic() - self._looked >= max(self._refresh, least):
                self._leakages, self._looked = self._store.standings().leakage, time.monotonic()
            return self._leakages, time.monotonic() - self._looked

    def collect(self) -> Iterator[GaugeMetricFamily | GaugeHistogramMetricFamily]:
        leakages, _ = self.look()
        yield GaugeMetricFamily("seqveil_users", "Users with at least one event.", float(leakages.size))
        counts = [(str(edge), float((leakages <= edge).sum())) for edge in NATS]
        finite = leakages[np.isfinite(leakages)]
        yield GaugeHistogramMetricFamily(
            "seqveil_user_leakage_nats",
            "Exact leakage of the users' streams so far.",
            buckets=[*counts, ("+Inf", float(leakages.size))],
            gsum_value=float(finite.sum()),
        )
