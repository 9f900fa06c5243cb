"""Figures of a process that releases, for Prometheus: its state file, its disk, and what a bridge counts.

No figure names a user, a topic or a value. Times are moments in seconds since 1970, as Prometheus expects them: how
long ago a commit was is `time() - seqveil_last_commit_timestamp_seconds`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
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

    def __init__(self, store: CodeStreams, path: str | os.PathLike[str] | None) -> None:
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
        with suppress(OSError):  # a disk that is gone has no figure
            free = "seqveil_disk_free_bytes", "Bytes free on the disk of the state file."
            yield GaugeMetricFamily(*free, value=float(free_bytes(self._path)))


COUNTED = {
    "received": "Messages that were looked at, each time they came.",
    "released": "Events drawn.",
    "repeated": "Events that had been released before.",
    "acknowledged": "Messages that the broker was asked to forget.",
    "unreliable": "Messages that may get lost on the way, being sent at QoS 0.",
    "cleared": "Retained raw messages taken off the broker.",
    "states": "Messages that said what was the case and were no event.",
}


class CountFigures(Collector):
    """The counts of a bridge as metrics: whatever is counted there is reported here.

    Parameters:
        counts: a dataclass of whole numbers, and `refused` by reason.
        waiting: messages that wait to be released.
    """

    def __init__(self, counts: Any, waiting: Callable[[], int]) -> None:
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
            else:
                disclosed = COUNTED.get(each.name, f"Messages {each.name}.")
                yield CounterMetricFamily(f"seqveil_bridge_{each.name}", disclosed, value=float(value))
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
