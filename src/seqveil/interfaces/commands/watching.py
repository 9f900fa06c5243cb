"""Options for those who watch a bridge: health and Prometheus figures on a port of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from seqveil.core.errors import InputError, needs_extra
from seqveil.interfaces.commands import options as o

if TYPE_CHECKING:
    from seqveil.engine.streams import Streams

MOST_PORT = 65_535


@dataclass(frozen=True)
class MetricsOptions:
    """Where health and figures are to be had."""

    metrics_port: Annotated[
        int | None, o.option("N", "Serve /livez, /readyz and /metrics here; 0 takes a free one  [default: nowhere]")
    ] = None
    metrics_host: Annotated[str, o.option("ADDRESS", "Address for that; they ask for no token.")] = "127.0.0.1"

    def __post_init__(self) -> None:
        """Refuse what is no port before anything is opened."""
        if self.metrics_port is not None and not 0 <= self.metrics_port <= MOST_PORT:
            raise InputError(f"expected --metrics-port to be a port from 0 to {MOST_PORT}")

    @contextmanager
    def serving(self, working: Any, store: Streams, state: Path) -> Iterator[int | None]:
        """Answer for the health and the figures of a bridge while it works; the port, or None where none is asked."""
        if self.metrics_port is None:
            yield None
            return
        with needs_extra("--metrics-port", "mqtt"):
            from seqveil.interfaces import health

        def waiting() -> int:
            return int(getattr(working, "waiting", 0))

        def trouble() -> list[str]:
            connected = None if getattr(working, "connected", True) else "the broker cannot be reached; see the log"
            stalled = health.stalled_for(store.committed, waiting())
            return [why for why in (connected, health.disk_trouble(state), stalled) if why is not None]

        figures = health.registry_of(health.StateFigures(store, state), health.CountFigures(working.counts, waiting))
        with health.listening(self.metrics_port, figures, trouble, self.metrics_host) as port:
            yield port
