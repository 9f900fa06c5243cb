"""Health and figures of a process that releases: what all of them tell alike, and a small listener for bridges.

No figure names a user, a topic or a value. Times are moments in seconds since 1970, as Prometheus expects them: how
long ago a commit was is `time() - seqveil_last_commit_timestamp_seconds`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from seqveil.core.errors import InputError
from seqveil.engine.streams import Streams

LOOPBACK = "127.0.0.1"
PATIENCE = 10.0  # seconds for a request to the listener
MIN_FREE = 64 << 20  # bytes that a disk should have free

Trouble = Callable[[], list[str]]  # why a process is not ready, in plain words; nothing: it is


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes free on the disk of a file (of what it leads to, where it is a link), for whoever is not root."""
    return shutil.disk_usage(Path(os.path.realpath(path)).parent).free


def disk_trouble(path: str | os.PathLike[str], least: int = MIN_FREE) -> str | None:
    """Why there is too little room beside a file, or None.

    >>> disk_trouble(".", 0) is None, "free" in disk_trouble(".", 1 << 62)
    (True, True)
    """
    try:
        free = free_bytes(path)
    except OSError as error:
        return f"the disk of the state file cannot be looked at ({error.strerror}); check the path"
    if free >= least:
        return None
    if free >> 20 == least >> 20:  # a figure in MiB would not show the difference
        return f"the disk of the state file has {free:,} bytes free, of at least {least:,}; free some space"
    return f"the disk of the state file has {free >> 20} MiB free, of at least {least >> 20}; free some space"


def state_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes of a state file with what SQLite keeps beside it."""
    total = 0
    for end in ("", "-wal", "-shm"):
        with suppress(OSError):
            total += os.stat(f"{os.fspath(path)}{end}").st_size
    return total


class StateFigures(Collector):
    """What a state file and its disk tell, looked up whenever somebody asks.

    Parameters:
        store: the open streams.
        path: of the file; None where they are in memory.
    """

    def __init__(self, store: Streams, path: str | os.PathLike[str] | None) -> None:
        self._store, self._path = store, path

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        store = self._store
        began = "seqveil_ledger_began_timestamp_seconds", "When the ledger began; 0: not known."
        yield GaugeMetricFamily(*began, value=store.began or 0.0)
        new = "seqveil_ledger_new", "Whether the ledger began at zero with this process."
        yield GaugeMetricFamily(*new, value=float(store.begun))
        last = "seqveil_last_commit_timestamp_seconds", "When something was last committed; 0: not yet."
        yield GaugeMetricFamily(*last, value=store.committed or 0.0)
        if self._path is None:
            return
        size = "seqveil_state_file_bytes", "Size of the state file with what SQLite keeps beside it."
        yield GaugeMetricFamily(*size, value=float(state_bytes(self._path)))
        with suppress(OSError):  # a disk that is gone has no figure; /readyz says so
            free = "seqveil_disk_free_bytes", "Bytes free on the disk of the state file."
            yield GaugeMetricFamily(*free, value=float(free_bytes(self._path)))


COUNTED = {
    "received": "Messages that were looked at, each time they came.",
    "released": "Events drawn.",
    "repeated": "Events that had been released before.",
    "acknowledged": "Messages that the broker was told to forget.",
    "unreliable": "Messages that may get lost on the way, being sent at QoS 0.",
    "cleared": "Retained raw messages taken off the broker.",
    "states": "Messages that said what was the case and were no event.",
    "unknown": "Values outside the alphabet, hidden in releases.",
}


class CountFigures(Collector):
    """The counts of a bridge as metrics: whatever is counted there is told here.

    Parameters:
        counts: a dataclass of whole numbers, and `refused` by reason.
        waiting: messages that wait to be released, where that is known.
    """

    def __init__(self, counts: Any, waiting: Callable[[], int] | None = None) -> None:
        self._counts, self._waiting = counts, waiting

    def collect(self) -> Iterator[Metric]:
        """The counts as they are now."""
        for each in fields(self._counts):
            value = getattr(self._counts, each.name)
            if isinstance(value, Mapping):
                family = CounterMetricFamily("seqveil_bridge_refusals", "Events refused, by reason.", labels=["reason"])
                for reason, count in dict(value).items():
                    family.add_metric([reason], float(count))
                yield family
            elif each.name != "stalled":
                told = COUNTED.get(each.name, f"Messages {each.name}.")
                yield CounterMetricFamily(f"seqveil_bridge_{each.name}", told, value=float(value))
        stalled = "seqveil_bridge_stalled_streams", "Streams that wait for events which did not come."
        yield GaugeMetricFamily(*stalled, value=float(getattr(self._counts, "stalled", 0)))
        if self._waiting is not None:
            yield GaugeMetricFamily(
                "seqveil_waiting_events", "Events accepted and not yet on the disk.", value=float(self._waiting())
            )


def registry_of(*collectors: Collector) -> CollectorRegistry:
    """A registry with these figures and the process's own: processor, memory, open files."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for each in collectors:
        registry.register(each)
    return registry


class _Handler(BaseHTTPRequestHandler):
    """Answers /livez, /readyz, /healthz and /metrics, and nothing else."""

    registry: CollectorRegistry
    trouble: Trouble
    timeout = PATIENCE
    server_version, sys_version = "seqveil", ""

    def do_GET(self) -> None:
        """One answer, in which no more is told than was asked for."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, generate_latest(self.registry), CONTENT_TYPE_LATEST)
        elif path == "/livez":
            self._answer(200, b'{"status":"ok"}')
        elif path in ("/readyz", "/healthz"):
            why = type(self).trouble()
            told = {"status": "not ready", "reasons": why} if why else {"status": "ok"}
            self._answer(503 if why else 200, json.dumps(told).encode())
        else:
            self._answer(404, b'{"status":"there is /livez, /readyz, /healthz and /metrics"}')

    def _answer(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *given: Any) -> None:
        """Nothing: whoever looks every few seconds would fill the log."""


class _Server(ThreadingHTTPServer):
    """One thread a connection; where there are too many, the oldest makes room."""

    daemon_threads = True
    MOST = request_queue_size = 32

    def __init__(self, *given: Any) -> None:
        self._open: dict[socket.socket, None] = {}
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer; the oldest connection goes where there are too many."""
        self._open[request] = None
        while len(self._open) > self.MOST:
            oldest = next(iter(self._open))
            self._open.pop(oldest, None)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever went away while being answered is not worth a line."""


@contextmanager
def listening(
    port: int | None, registry: CollectorRegistry, trouble: Trouble, host: str = LOOPBACK
) -> Iterator[int | None]:
    """Answer for health and figures on a thread of its own while the block runs; its port, or None where none is asked.

    Parameters:
        port: 0 takes a free one; None: do not listen.
        registry: the figures.
        trouble: why the process is not ready, in plain words.
        host: this machine's own address unless told otherwise.
    """
    if port is None:
        yield None
        return
    handler = type("Handler", (_Handler,), {"registry": registry, "trouble": staticmethod(trouble)})
    try:
        server = _Server((host, port), handler)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "no such address"
        raise InputError(f"cannot listen for health and metrics on {host}:{port} ({why}); choose another") from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="seqveil-health", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def stalled_for(committed: float | None, waiting: int, longest: float = 60.0) -> str | None:
    """Why nothing moves although something waits, or None.

    >>> stalled_for(None, 0) is None, stalled_for(0.0, 3).startswith("3 events wait")
    (True, True)
    """
    if not waiting or committed is None or time.time() - committed < longest:
        return None
    return f"{waiting} events wait and none was released for {longest:g} seconds; see the log"
