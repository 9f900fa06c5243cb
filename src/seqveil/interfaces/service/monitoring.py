"""What an operator sees: Prometheus metrics, and log lines as JSON. Neither holds a user, a token or a value.

Labels of metrics are routes, statuses and reasons.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from seqveil.core.kernel import Floats
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.figures import StateFigures

log = logging.getLogger("seqveil.service")

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
NATS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
METHODS = ("GET", "POST", "DELETE")
EVERY = 1.0  # seconds between two lines about those who have no token


class Metrics:
    """The metrics of one service, in a registry of their own."""

    def __init__(self, store: CodeStreams, refresh: float) -> None:
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
        self.registry.register(StateFigures(store, store.file))
        self.damaged = Gauge("seqveil_damaged_users", "Users whose records are damaged, as last looked up.", **shared)
        ProcessCollector(registry=self.registry)
        self._all = _AllUsers(store, refresh)
        self.damaged.set_function(lambda: self._all.damaged)
        self.registry.register(self._all)

    def request(self, method: str, route: str, status: int, seconds: float, reason: str | None) -> None:
        """Count one answered request."""
        known = method if method in METHODS else "other"
        self.latency.labels(known, route, str(status)).observe(seconds)
        if reason is not None:
            self.refusals.labels(reason).inc()

    def released(self, events: int, replayed: int) -> None:
        """Count the events of a request, and those among them released before."""
        self.group.observe(events)
        self.replays.inc(replayed)
        self.releases.inc(events - replayed)

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        return generate_latest(self.registry)


class _AllUsers(Collector):
    """How many users there are and how their leakage spreads, looked up at most every so many seconds."""

    def __init__(self, store: CodeStreams, refresh: float) -> None:
        self._store, self._refresh = store, refresh
        self._lock = threading.Lock()
        self._looked, self._leakages, self.damaged = float("-inf"), np.zeros(0), 0

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing beforehand: registering must not read the whole store."""
        return iter(())

    def _look(self) -> Floats:
        """Every user's leakage."""
        with self._lock:
            if time.monotonic() - self._looked >= self._refresh:
                (self._leakages, self.damaged), self._looked = self._store.leakages(), time.monotonic()
            return self._leakages

    def collect(self) -> Iterator[GaugeMetricFamily | GaugeHistogramMetricFamily]:
        leakages = self._look()
        yield GaugeMetricFamily("seqveil_users", "Users with at least one event.", float(leakages.size))
        counts = [(str(edge), float((leakages <= edge).sum())) for edge in NATS]
        finite = leakages[np.isfinite(leakages)]
        yield GaugeHistogramMetricFamily(
            "seqveil_user_leakage_nats",
            "Exact leakage of the users' streams so far.",
            buckets=[*counts, ("+Inf", float(leakages.size))],
            gsum_value=float(finite.sum()),
        )


def stamp(moment: float) -> str:
    """A moment in seconds since 1970 as logs have it, to the millisecond.

    >>> stamp(0.0625)
    '1970-01-01T00:00:00.062Z'
    """
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))}.{int(moment % 1 * 1000):03d}Z"


class JsonLines(logging.Formatter):
    """A record as one line of JSON. Of an exception only its type is said: its message may hold anything.

    >>> facts = {"msg": "request", "levelname": "INFO", "created": 0.0, "facts": {"status": 200}}
    >>> JsonLines().format(logging.makeLogRecord(facts))
    '{"time": "1970-01-01T00:00:00.000Z", "level": "info", "event": "request", "status": 200}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON; of an error it tells the class, never the message, which could hold data."""
        line: dict[str, Any] = {
            "time": stamp(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line)


def begin_log(stream: TextIO | None = None) -> Callable[[], None]:
    """Send the service's own lines, and the server's errors, to a stream (standard error) as JSON.

    Returns what puts the loggers back as they were: the stream may be closed once the service has ended.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    loggers = {logging.getLogger("seqveil.service"): logging.INFO, logging.getLogger("uvicorn.error"): logging.ERROR}
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in loggers]
    for logger, level in loggers.items():
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)

    def put_back() -> None:
        for logger, handlers, propagate, was in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(was)

    return put_back


@dataclass
class RequestFacts:
    """What the log line and the metrics of one request say."""

    route: str = "none"  # the template of the address, which names no user
    status: int = 0
    reason: str | None = None
    events: int = 0
    replayed: int = 0
    known: bool = False  # whether it came with a good token


class RequestLog:
    """Counts and logs requests: each that came with a token, and all others together, at most once a second."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._refused, self._logged = 0, float("-inf")

    def note(self, method: str, facts: RequestFacts, seconds: float) -> None:
        """Count one answered request and log it."""
        self._metrics.request(method, facts.route, facts.status, seconds, facts.reason)
        disclosed: dict[str, Any] = {"route": facts.route, "status": facts.status, "ms": round(1000 * seconds, 2)}
        if facts.events:
            disclosed |= {"events": facts.events, "replayed": facts.replayed}
        if facts.reason is not None:
            disclosed["reason"] = facts.reason
        if facts.known:
            log.info("request", extra={"facts": disclosed})
        elif facts.reason is not None:
            self._refused += 1
            now = time.monotonic()
            if now - self._logged >= EVERY:
                log.info("refused without a token", extra={"facts": disclosed | {"since_last": self._refused}})
                self._refused, self._logged = 0, now
