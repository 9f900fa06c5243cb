"""The page on a port of this machine, until a signal ends it."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Sequence

import uvicorn

from seqveil.core import fast
from seqveil.core.errors import InputError
from seqveil.interfaces.studio.app import create_app
from seqveil.interfaces.studio.desk import Desk
from seqveil.interfaces.studio.source import Source

HOST = "127.0.0.1"


def serve(own: Sequence[Source], port: int, announce: Callable[[str], None]) -> None:
    """Serve on loopback; `announce` gets the address with the key in its fragment, which no request carries."""
    desk, key = Desk(own), secrets.token_urlsafe(24)
    app = create_app(desk, key)
    try:
        listener = socket.create_server((HOST, port), backlog=64)
    except OSError as error:
        raise InputError(f"cannot listen on port {port} ({error.strerror}); choose another with --port") from None
    with listener:
        threading.Thread(target=_warm, args=(desk,), daemon=True).start()
        announce(f"http://{HOST}:{listener.getsockname()[1]}/#key={key}")
        options = uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",  # a traceback may show data
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        uvicorn.Server(options).run(sockets=[listener])


def _warm(desk: Desk) -> None:
    """Load what a first picture loads before somebody waits for it."""
    first = desk.begin()["first"]
    start = desk.source({"source": first})["start"]
    desk.show({"source": first, **start, "events": 20})
    fast.load()  # half a second, and some more the first time on a machine: pictures come without it, later
