"""Figures of a Spark release for Prometheus, in a text file that node_exporter's textfile collector reads.

Spark has its own metrics for clusters; these say what an operator of a release asks: does it go on, when was the last
micro-batch committed, how many rows and users are there. They hold no user and no value.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from seqveil.core.errors import InputError
from seqveil.interfaces.figures import free_bytes

EVERY = 2.0  # seconds between looks at how far a query has come


class SparkFigures(Collector):
    """What the micro-batches of a query disclosed, written to a file after each of them.

    Parameters:
        path: the file, replaced whole each time; its name should end in .prom.
        checkpoint: of the release, whose disk is looked at where it is on this machine.
    """

    def __init__(self, path: str | os.PathLike[str], checkpoint: str) -> None:
        self._path, self._checkpoint = Path(path), checkpoint
        self._seen, self._looked = -1, 0.0
        self._rows = self._users = self._seconds = 0.0
        self._last: float | None = None
        self.running, self.failed = True, False
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def take(self, progress: Iterable[Mapping[str, Any]]) -> None:
        """Take in what Spark says of its latest micro-batches, in any order and more than once."""
        for batch in sorted(progress, key=lambda each: each["batchId"]):
            if batch["batchId"] <= self._seen or "addBatch" not in batch.get("durationMs", {}):
                continue  # seen before, or nothing was there to do
            self._seen, self._last = batch["batchId"], time.time()
            self._rows += batch["numInputRows"]
            self._seconds = batch["durationMs"].get("triggerExecution", 0) / 1000.0
            self._users = float(sum(each["numRowsTotal"] for each in batch["stateOperators"]))

    @property
    def due(self) -> bool:
        """Whether it is time for another look."""
        now = time.monotonic()
        if now - self._looked < EVERY:
            return False
        self._looked = now
        return True

    def write(self) -> None:
        """Replace the file."""
        try:
            write_to_textfile(os.fspath(self._path), self._registry)
        except OSError as error:
            raise InputError(
                f"{self._path.name}: the figures cannot be written ({error.strerror}); check --metrics-file"
            ) from None

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        yield GaugeMetricFamily("seqveil_spark_running", "Whether the release goes on.", value=float(self.running))
        failed = "seqveil_spark_failed", "Whether the latest run ended with an error."
        yield GaugeMetricFamily(*failed, value=float(self.failed))
        rows = "seqveil_spark_rows", "Rows taken in by this run."
        yield CounterMetricFamily(*rows, value=self._rows)
        state = "seqveil_spark_state_rows", "Rows of Spark's state: users, and one for each group of them."
        yield GaugeMetricFamily(*state, value=self._users)
        took = "seqveil_spark_batch_seconds", "How long the latest micro-batch took."
        yield GaugeMetricFamily(*took, value=self._seconds)
        last = "seqveil_last_commit_timestamp_seconds", "When something was last committed; 0: not yet."
        yield GaugeMetricFamily(*last, value=self._last or 0.0)
        if "://" not in self._checkpoint and os.path.isdir(self._checkpoint):
            free = "seqveil_disk_free_bytes", "Bytes free on the disk of the checkpoint."
            yield GaugeMetricFamily(*free, value=float(free_bytes(os.path.join(self._checkpoint, "."))))
