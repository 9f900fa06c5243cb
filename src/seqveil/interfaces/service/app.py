"""The application: endpoints, refusals, log lines and metrics around one store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from seqveil import __version__
from seqveil.interfaces.service.config import ServeConfig
from seqveil.interfaces.service.documents import describe
from seqveil.interfaces.service.page import pages
from seqveil.interfaces.service.problems import Problem, invalid, refused
from seqveil.interfaces.service.routes import routers
from seqveil.interfaces.service.state import Facts, Service
from seqveil.interfaces.service.writer import log
from seqveil.release.stream import Setting
from seqveil.release.streams import Streams

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def create_app(store: Streams, setting: Setting, config: ServeConfig) -> FastAPI:
    """The service as an ASGI application over an open store, which stays the caller's to close.

    *Guarantee*: what is answered was committed and synced before. No value, user or token is logged, counted or told
    in a refusal.

    >>> import tempfile
    >>> from seqveil.core.model import MarkovModel
    >>> setting = Setting.of(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), epsilon=1.0)
    >>> with tempfile.TemporaryDirectory() as folder, Streams.open(f"{folder}/state.db", setting) as store:
    ...     sorted(create_app(store, setting, ServeConfig(no_auth=True)).openapi()["paths"])[:3]
    ['/healthz', '/metrics', '/v1/model']
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
        exception_handlers={HTTPException: refused, RequestValidationError: invalid},
        # FastAPI hands paths, bodies and exception texts to OpenTelemetry where a process has it: those are private
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.state.service = service
    for router in (*routers(service), *pages(service)):
        app.include_router(router)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    app.add_middleware(Observed, service=service)
    return app


class Observed:
    """Around everything: times a request, logs and counts it, and turns what nobody foresaw into a bare 500."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0
        facts = scope["seqveil"] = Facts()

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = "" if trace is None else f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}"
            log.error("internal error", extra={"facts": {"error": type(error).__name__, "where": where}})
            facts.reason = "internal"
            if not status:
                answer = Problem("internal", "nothing is known to be released; send the same events again").answer()
                await answer(scope, receive, sending)
        self._note(scope, facts, status, time.perf_counter() - begin)

    def _note(self, scope: Scope, facts: Facts, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path_format", "none")
        self._service.metrics.request(scope["method"], route, status, seconds, facts.reason)
        told: dict[str, Any] = {"route": route, "status": status, "ms": round(1000 * seconds, 2)}
        if facts.events:
            told |= {"events": facts.events, "replayed": facts.replayed}
        if facts.reason is not None:
            told["reason"] = facts.reason
        if self._service.pseudonyms is not None and facts.users:
            told["users"] = self._service.pseudonyms.of(facts.users)
        elif facts.unknown:  # never beside users: that a value was outside says something about it
            told["unknown"] = facts.unknown
        log.info("request", extra={"facts": told})
