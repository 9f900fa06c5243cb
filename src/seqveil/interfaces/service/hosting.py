"""What the service and the page share as HTTP servers: where they listen, and that they log and trace nothing."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

from seqveil.core.errors import InputError

# FastAPI hands paths, bodies and exception texts to OpenTelemetry where a process has it: those are private
UNTRACED: dict[str, Any] = {
    "telemetry": {
        "tracing": False,
        "metrics": False,
        "logs": False,
        "operation_spans": False,
        "auto_configure": False,
    }
}


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or one clear line that says why it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another with --port"
        ) from None


def quiet(app: FastAPI, **options: Any) -> uvicorn.Config:
    """The HTTP server's options for an application: no log of its own, no headers that tell about it."""
    return uvicorn.Config(app, log_config=None, access_log=False, server_header=False, ws="none", **options)
