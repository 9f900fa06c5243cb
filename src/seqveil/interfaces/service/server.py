"""From a configuration to a running server, and back to a closed store."""

from __future__ import annotations

import gc
import math
import os
import socket

import numpy as np
import uvicorn

from seqveil.core import fast
from seqveil.core.coins import SystemCoins, key_file
from seqveil.core.errors import InputError
from seqveil.interfaces.service import logs
from seqveil.interfaces.service.app import create_app
from seqveil.interfaces.service.config import ServeConfig
from seqveil.interfaces.service.writer import log
from seqveil.release import batches, stream
from seqveil.release.stream import Setting
from seqveil.release.streams import Streams


def serve(setting: Setting, config: ServeConfig) -> None:
    """Serve until a signal says stop; what was accepted by then is released and answered."""
    config.check()
    if config.state is None:
        raise InputError("expected --state FILE, where releases are kept")
    logs.begin(config.log_level)
    secret = None if config.key is None else key_file(config.key, create=True)
    with Streams.open(config.state, setting, key=secret, gaps=config.gaps) as store:
        app = create_app(store, setting, config)
        _warm(setting)
        gc.freeze()  # what is loaded stays: looking through it for garbage would stop everything for tens of ms
        with _listen(config.host, config.port) as listener:
            _announce(config, listener.getsockname()[1])
            server(app, config).run(sockets=[listener])


def server(app: object, config: ServeConfig) -> uvicorn.Server:
    """The HTTP server of an application: quiet, without headers that tell about it, and patient at the end."""
    options = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        limit_concurrency=config.max_connections,
        timeout_graceful_shutdown=math.ceil(config.grace),
        ssl_certfile=None if config.tls_cert is None else os.fspath(config.tls_cert),
        ssl_keyfile=None if config.tls_key is None else os.fspath(config.tls_key),
    )
    return uvicorn.Server(options)


def _warm(setting: Setting) -> None:
    """Release something of nobody, in memory: what is loaded at the first release is loaded before a caller waits."""
    fast.load()
    state, code = stream.State.start(setting), np.zeros(1, np.int64)
    if setting.in_batches:
        batches.step(setting, state, code, SystemCoins(), 0.0)
    else:
        stream.step(setting, state, code, SystemCoins(), np.zeros(1))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(f"cannot listen on {host} port {port} ({error.strerror}); choose another") from None


def _announce(config: ServeConfig, port: int) -> None:
    scheme = "https" if config.tls else "http"
    host = f"[{config.host}]" if ":" in config.host else config.host
    log.info("listening", extra={"facts": {"url": f"{scheme}://{host}:{port}"}})
    if config.no_auth:
        log.warning("no tokens are asked for: whoever can reach this machine's loopback can release for any user")
    if not config.tls and not config.loopback:
        log.warning(
            "NO TLS ON A NETWORK ADDRESS: raw symbols and tokens are readable unless something in front does it"
        )
