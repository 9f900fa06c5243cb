"""What an operator sees: Prometheus metrics, and log lines as JSON. Neither holds a user, a token or a value.

Labels of metrics are routes, statuses and reasons. With `--log-users` a request's users appear in the log as a keyed
hash, whose key is drawn anew at every start: the lines of one run can be distinguished by user, and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqveil.core.kernel import Floats
from seqveil.engine.coded import CodeStreams
from seqveil.interfaces.figures import StateFigures
from seqveil.interfaces.service.messages import Problem

log = logging.getLogger("seqveil.service")

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
NATS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
MOST_LOGGED = 20  # users of a request that its log line names
METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS")


class Metrics:
    """The metrics of one service, in a registry of their own."""

    def __init__(self, store: CodeStreams, refresh: float, state: Path | None = None) -> None:
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
        self.registry.register(StateFigures(store, state))
        self.damaged = Gauge("seqveil_damaged_users", "Users whose records are damaged, as last looked up.", **shared)
        ProcessCollector(registry=self.registry)
        self._standing = _Standing(store, refresh)
        self.damaged.set_function(lambda: self._standing.damaged)
        self.registry.register(self._standing)

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


class _Standing(Collector):
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


LOGGERS = ("seqveil.service", "uvicorn.error")


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


def begin_log(level: str = "info", stream: TextIO | None = None) -> Callable[[], None]:
    """Send the service's own lines and the server's to a stream (standard error) as JSON.

    Returns what puts the loggers back as they were: the stream may be closed once the service has ended.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())

    def put_back() -> None:
        for logger, handlers, propagate, was in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(was)

    return put_back


@dataclass
class LogFacts:
    """What the log line and the metrics of one request tell."""

    reason: str | None = None
    events: int = 0
    replayed: int = 0
    users: list[str] = field(default_factory=list)


def _hashed(key: bytes, user: str) -> str:
    return blake2b(user.encode(), key=key, digest_size=8, person=b"seqveil-log").hexdigest()


def _route(scope: Scope) -> str:
    """The template of the address, which names no user."""
    return getattr(scope.get("route"), "path_format", "none")


class Observed:
    """Around everything: times a request, logs and counts it, and turns what nobody foresaw into a bare 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log_users: bool) -> None:
        self._app, self._metrics = app, metrics
        self._key = os.urandom(32) if log_users else None  # of users in the log: they mean nothing outside this run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, then log and count what came of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0
        facts = scope["seqveil"] = LogFacts()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            where = f"{frame.f_globals.get('__name__')}:{line}"
            log.error("internal error", extra={"facts": {"error": type(error).__name__, "where": where}})
            facts.reason = "internal"
            if not status:
                answer = Problem("internal", "nothing is known to be released; send the same events again").answer()
                await answer(scope, receive, sending)
        self._note(scope, facts, status, time.perf_counter() - begin)

    def _note(self, scope: Scope, facts: LogFacts, status: int, seconds: float) -> None:
        route = _route(scope)
        self._metrics.request(scope["method"], route, status, seconds, facts.reason)
        disclosed: dict[str, Any] = {"route": route, "status": status, "ms": round(1000 * seconds, 2)}
        if facts.events:
            disclosed |= {"events": facts.events, "replayed": facts.replayed}
        if facts.reason is not None:
            disclosed["reason"] = facts.reason
        if self._key is not None and facts.users:
            disclosed["users"] = [_hashed(self._key, user) for user in list(dict.fromkeys(facts.users))[:MOST_LOGGED]]
        log.info("request", extra={"facts": disclosed})
