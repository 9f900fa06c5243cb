"""The application, and from a configuration to a running server and back to a closed store."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from seqveil import __version__
from seqveil.core import compiled
from seqveil.core.errors import InputError
from seqveil.engine.coded import CodeStreams
from seqveil.engine.stream import Terms
from seqveil.engine.upkeep import key_for
from seqveil.interfaces.commands.terminal import ARRIVAL, tell_hidden
from seqveil.interfaces.events import check_begun
from seqveil.interfaces.service.config import ServeConfig
from seqveil.interfaces.service.gate import Gate
from seqveil.interfaces.service.hosting import UNTRACED, listen, quiet
from seqveil.interfaces.service.messages import invalid, refused
from seqveil.interfaces.service.monitoring import Observed, begin_log, log
from seqveil.interfaces.service.routes import describe, routers
from seqveil.interfaces.service.writer import Service

# seconds after which a thread that reads lets the event loop go on, if that waits; Python's own 5 ms would be felt
SWITCH = 0.0002
BEGINS = "the state file was missing or empty; if it should not have been, stop and restore it from a backup"


def create_app(store: CodeStreams, setting: Terms, config: ServeConfig) -> FastAPI:
    """The service as an ASGI application over an open store, which stays the caller's to close.

    Parameters:
        store: where events are released.
        setting: that of the store.
        config: what the service takes at its start.

    *Guarantee*: what is answered was committed and synced before. No value, user or token is logged, counted or
    disclosed in a refusal.

    >>> import tempfile
    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil import Policy
    >>> setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> with tempfile.TemporaryDirectory() as folder, CodeStreams.open(f"{folder}/state.db", setting) as store:
    ...     sorted(create_app(store, setting, ServeConfig(no_auth=True)).openapi()["paths"])[:3]
    ['/healthz', '/livez', '/metrics']
    """
    service = Service(store, setting, config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.writer.start(asyncio.get_running_loop())
        yield
        await asyncio.to_thread(service.writer.stop)

    app = FastAPI(
        title="seqveil",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # both pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy the address would be plain HTTP, and values and tokens go there
        exception_handlers={HTTPException: refused, RequestValidationError: invalid},
        **UNTRACED,
    )
    app.state.service, app.state.guard = service, service.guard
    for router in routers(service):
        app.include_router(router)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    app.add_middleware(Observed, metrics=service.metrics, log_users=config.log_users)
    return app


def serve(setting: Terms, config: ServeConfig) -> None:
    """Serve until a signal says stop; what was accepted by then is released and answered."""
    config.check()
    _check_certificate(config)
    if config.state is None:
        raise InputError("expected --state FILE, where releases are kept")
    with ExitStack() as opened:
        opened.callback(begin_log(config.log_level))
        check_begun(config.state, config.begin)
        secret = key_for(config.state, config.key)
        how: Any = {"key": secret, "gaps": config.gaps, "must_exist": not config.begin}
        store = opened.enter_context(CodeStreams.open(config.state, setting, **how))
        app = create_app(store, setting, config)
        opened.callback(lambda: tell_hidden(app.state.service.hidden))
        _warm(setting)
        sys.setswitchinterval(SWITCH)
        gc.freeze()  # what is loaded stays: looking through it for garbage would stop everything for tens of ms
        with listen(config.host, config.port) as listener:
            _announce(config, listener.getsockname()[1])
            if store.begun:
                log.warning("a ledger begins at zero", extra={"facts": {"file": config.state.name, "detail": BEGINS}})
            server(app, config).run(sockets=[listener])


def _check_certificate(config: ServeConfig) -> None:
    """Refuse a certificate that cannot be served before anything is opened."""
    if config.tls_cert is None or config.tls_key is None:
        return
    try:  # an empty passphrase: nobody is there to type one
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key, password="")
    except OSError:
        both = f"{config.tls_cert.name}, {config.tls_key.name}"
        raise InputError(f"{both}: expected a certificate and its own key, as PEM without a passphrase") from None


def server(app: FastAPI, config: ServeConfig) -> uvicorn.Server:
    """The HTTP server of an application: quiet, and patient at the end."""
    gate = Gate(config.max_connections, config.max_per_address, config.timeout)
    options = quiet(
        app,
        proxy_headers=False,
        lifespan="on",
        http=gate.protocol(),
        limit_concurrency=config.max_connections + 1,  # beyond that all of them have requests in progress
        timeout_graceful_shutdown=math.ceil(config.grace),
        ssl_certfile=None if config.tls_cert is None else os.fspath(config.tls_cert),
        ssl_keyfile=None if config.tls_key is None else os.fspath(config.tls_key),
    )
    return uvicorn.Server(options)


def _warm(setting: Terms) -> None:
    """Release something of nobody, in memory: what is loaded at the first release is loaded before a caller waits."""
    compiled.load()
    raw: Any = [[0]] if setting.in_batches else [0]
    CodeStreams(setting).release(["nobody"], raw, times=[0.0])


def _announce(config: ServeConfig, port: int) -> None:
    scheme = "https" if config.tls else "http"
    host = f"[{config.host}]" if ":" in config.host else config.host
    log.info("listening", extra={"facts": {"url": f"{scheme}://{host}:{port}"}})
    log.info(ARRIVAL)
    if config.no_auth:
        log.warning("no tokens are asked for: whoever can reach this machine's loopback can release for any user")
    if not config.tls and not config.loopback:
        log.warning(
            "NO TLS ON A NETWORK ADDRESS: raw symbols and tokens are readable unless something in front does it"
        )
