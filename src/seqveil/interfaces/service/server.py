"""From the options of the command to a running HTTP server, and back to a closed store."""

from __future__ import annotations

import gc
import math
import os
import resource
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import uvicorn

from seqveil.core import bulk
from seqveil.core.errors import InputError
from seqveil.engine.stream import Terms
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.commands.serve import ServeOptions
from seqveil.interfaces.commands.terminal import ARRIVAL
from seqveil.interfaces.events import open_state
from seqveil.interfaces.logs import log
from seqveil.interfaces.service.app import Service
from seqveil.interfaces.service.limits import Limits, protocol

# seconds after which a thread that reads lets the event loop go on, if that waits; Python's own 5 ms would be felt
SWITCH = 0.0002
# its own lines would stand between ours, and could hold data
QUIET: Any = {"log_config": None, "log_level": "critical", "server_header": False, "ws": "none"}


def serve(setting: Terms, state: Path, options: ServeOptions) -> None:
    """Serve until a signal says stop; what was accepted by then is released and answered."""
    options.check()
    _check_certificate(options)
    opened = (options.key, options.begin, options.gaps)
    with listen(options.host, options.port) as listener, open_state(state, setting, *opened) as store:
        service = Service(store, options)
        warm(setting)
        limits, (soft, hard) = Limits(), resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = 2 * limits.connections  # each is an open file, and shells allow a thousand
        wanted = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        sys.setswitchinterval(SWITCH)
        gc.freeze()  # what is loaded stays: looking through it for garbage would stop everything for tens of ms
        if setting.lasts:
            log("the promise ends", "warning", detail=setting.lasts)
        host = f"[{options.host}]" if ":" in options.host else options.host
        scheme = "http" if options.tls_cert is None else "https"
        log("listening", url=f"{scheme}://{host}:{listener.getsockname()[1]}")
        log(ARRIVAL)
        server(service, options, limits).run(sockets=[listener])


def server(service: Service, options: ServeOptions, limits: Limits) -> uvicorn.Server:
    """The HTTP server of a service: quiet, without headers that tell about it, and patient at the end."""
    settings = uvicorn.Config(
        service,
        proxy_headers=False,
        lifespan="on",
        http=protocol(limits),
        timeout_keep_alive=math.ceil(limits.connection),
        timeout_graceful_shutdown=math.ceil(limits.grace),
        ssl_certfile=None if options.tls_cert is None else os.fspath(options.tls_cert),
        ssl_keyfile=None if options.tls_key is None else os.fspath(options.tls_key),
        **QUIET,
    )
    return uvicorn.Server(settings)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or one clear line that says why it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(f"cannot listen on {host} port {port} ({error.strerror}); choose another") from None


def warm(setting: Terms) -> None:
    """Release something of nobody, in memory: what is loaded at the first release is loaded before a caller waits."""
    bulk.load()
    raw: Any = [[0]] if setting.in_batches else [0]
    CodeStreams(setting).release(["nobody"], raw, times=[0.0])


def _check_certificate(options: ServeOptions) -> None:
    """Refuse a certificate that cannot be served before anything is opened."""
    if options.tls_cert is None or options.tls_key is None:
        return
    try:  # an empty passphrase: nobody is there to type one
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.tls_cert, options.tls_key, password="")
    except OSError:
        both = f"{options.tls_cert.name}, {options.tls_key.name}"
        raise InputError(f"{both}: expected a certificate and its own key, as PEM without a passphrase") from None
