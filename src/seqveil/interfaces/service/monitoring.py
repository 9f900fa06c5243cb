"""What an operator sees of requests: Prometheus metrics and log lines. Neither holds a user, a token or a value."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.requests import Request

from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.figures import StateFigures
from seqveil.interfaces.logs import log
from seqveil.interfaces.service.tokens import Token

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
NATS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, np.inf)
METHODS = ("GET", "POST", "DELETE")
EVERY = 1.0  # seconds between two lines about those who have no token, or ask for too much


@dataclass
class HttpCall:
    """One request: who asks for what, and what its log line and the metrics say."""

    request: Request
    route: str = "none"  # the template of the address, which names no user
    user: str = ""  # that the address names
    token: Token | None = None  # once it is known to be good
    reason: str | None = None  # why it was refused
    events: int = 0
    replayed: int = 0

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self.request.client.host if self.request.client else ""


class Metrics:
    """The metrics of one service, in a registry of their own, and its log of requests.

    Every request that came with a token has a line, unless there were too many of that token; all others together have
    one a second. Figures over all users take a look at each, so they hold for `refresh` seconds.
    """

    def __init__(self, store: CodeStreams, refresh: float, waiting: Callable[[], int]) -> None:
        self.registry, self._store, self._refresh = CollectorRegistry(), store, refresh
        shared: Any = {"registry": self.registry}
        self._releases = Counter("seqveil_releases", "Events released and on the disk.", **shared)
        self._replays = Counter("seqveil_replays", "Events answered with the release made before.", **shared)
        self._refusals = Counter("seqveil_refusals", "Requests refused, by reason.", ["reason"], **shared)
        labels = ["method", "route", "status"]
        about = "seqveil_request_seconds", "Time from the first byte to the answer."
        self._latency = Histogram(*about, labels, buckets=SECONDS, **shared)
        about = "seqveil_waiting_events", "Events accepted and not yet on the disk."
        Gauge(*about, **shared).set_function(waiting)
        self._users = Gauge("seqveil_users", "Users with at least one event.", **shared)
        about = "seqveil_damaged_users", "Users whose records are damaged, as last looked up."
        self._damaged = Gauge(*about, **shared)
        about = "seqveil_user_leakage_nats_bucket", "Users whose streams have leaked at most so much so far, exactly."
        self._leakage = Gauge(*about, ["le"], **shared)
        self.registry.register(StateFigures(store, store.file))
        ProcessCollector(registry=self.registry)
        self._uninvited, self._logged, self._looked = 0, float("-inf"), float("-inf")

    def note(self, call: HttpCall, status: int, seconds: float) -> None:
        """Count one answered request and log it."""
        method = call.request.method if call.request.method in METHODS else "other"
        self._latency.labels(method, call.route, str(status)).observe(seconds)
        facts: dict[str, object] = {"route": call.route, "status": status, "ms": round(1000 * seconds, 2)}
        if call.events:
            self._replays.inc(call.replayed)
            self._releases.inc(call.events - call.replayed)
            facts |= {"events": call.events, "replayed": call.replayed}
        if call.reason is not None:
            self._refusals.labels(call.reason).inc()
            facts["reason"] = call.reason
        if call.token is not None and call.reason != "too-many":
            log("request", **facts)
        elif call.reason is not None:
            self._uninvited += 1
            now = time.monotonic()
            if now - self._logged >= EVERY:
                log("refused: without a token, or too many of one", **facts, since_last=self._uninvited)
                self._uninvited, self._logged = 0, now

    def text(self) -> bytes:
        """All metrics as Prometheus reads them, for one reader at a time."""
        if time.monotonic() - self._looked >= self._refresh:
            leakages, damaged = self._store.leakages()
            self._users.set(leakages.size)
            self._damaged.set(damaged)
            for edge in NATS:
                self._leakage.labels("+Inf" if edge == np.inf else str(edge)).set((leakages <= edge).sum())
            self._looked = time.monotonic()
        return generate_latest(self.registry)
