"""Figures of a process that releases, for Prometheus: its state file, its disk, and what a bridge counts.

No figure names a user, a topic or a value. Times are moments in seconds since 1970, as Prometheus expects them: how
long ago a commit was is `time() - seqveil_last_commit_timestamp_seconds`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from seqveil.core.errors import InputError
from seqveil.engine.streams import CodeStreams

MOST_PORT = 65_535


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes free on the disk of a file (of what it leads to, where it is a link), for whoever is not root."""
    return shutil.disk_usage(Path(os.path.realpath(path)).parent).free


class StateFigures(Collector):
    """What is known about a state file (None: in memory) and its disk, looked up at every request."""

    def __init__(self, store: CodeStreams, path: str | os.PathLike[str] | None) -> None:
        self._store, self._path = store, path

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        store, path = self._store, self._path
        found = {
            "account_began_timestamp_seconds": (store.began or 0.0, "When the accounts began; 0: not known."),
            "account_new": (float(store.begun), "Whether the accounts began at zero with this process."),
            "last_commit_timestamp_seconds": (store.committed or 0.0, "When something was last committed; 0: not yet."),
        }
        if path is not None:
            files = [Path(f"{os.fspath(path)}{end}") for end in ("", "-wal", "-shm")]
            with suppress(OSError):  # a disk that is gone has no figure
                size = sum(file.stat().st_size for file in files if file.exists())
                found["state_file_bytes"] = size, "Size of the state file with what SQLite keeps beside it."
                found["disk_free_bytes"] = free_bytes(path), "Bytes free on the disk of the state file."
        for name, (value, what) in found.items():
            yield GaugeMetricFamily(f"seqveil_{name}", what, value=float(value))


COUNTED = {
    "received": "Messages that were looked at, each time they came.",
    "released": "Events drawn.",
    "repeated": "Events that had been released before.",
    "acknowledged": "Messages that the broker was asked to forget.",
    "states": "Messages that said what was the case and were no event.",
}


class CountFigures(Collector):
    """The counts of a bridge as metrics: those of `COUNTED`, refusals by reason, and messages that wait."""

    def __init__(self, counts: Any, waiting: Callable[[], int]) -> None:
        self._counts, self._waiting = counts, waiting

    def collect(self) -> Iterator[Metric]:
        """The counts as they are now."""
        for name, what in COUNTED.items():
            yield CounterMetricFamily(f"seqveil_bridge_{name}", what, value=float(getattr(self._counts, name)))
        refused = CounterMetricFamily("seqveil_bridge_refusals", "Events refused, by reason.", labels=["reason"])
        for reason, many in dict(self._counts.refused).items():
            refused.add_metric([reason], float(many))
        yield refused
        waiting = "seqveil_waiting_events", "Events accepted and not yet on the disk."
        yield GaugeMetricFamily(*waiting, value=float(self._waiting()))


@contextmanager
def serving(where: str) -> Iterator[tuple[CollectorRegistry, int]]:
    """Serve figures to anyone at `[HOST:]PORT`, on this machine alone unless a host is named: the registry to add them
    to, which has the process's own (processor, memory, open files), and the port."""
    match = re.fullmatch(r"(?:\[?([^\[\]]+)\]?:)?(\d{1,5})", where)
    if match is None or int(match[2]) > MOST_PORT:
        raise InputError(f"expected --metrics as PORT or HOST:PORT, with a port from 0 to {MOST_PORT}")
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(int(match[2]), match[1] or "127.0.0.1", registry)
    except OSError as error:
        raise InputError(f"cannot serve metrics on {where} ({error.strerror}); choose another") from None
    try:
        yield registry, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
