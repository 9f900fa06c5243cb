"""The page by itself, for one person on one machine (`seqveil studio`)."""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from seqveil import __version__
from seqveil.interfaces.studio import routes
from seqveil.interfaces.studio.assets import HEADERS
from seqveil.interfaces.studio.desk import Desk

MOST_BYTES = 64 << 20  # of loaded data
STATUS = {
    "malformed": 400,
    "unauthorised": 401,
    "forbidden": 403,
    "not-found": 404,
    "wrong-method": 405,
    "too-large": 413,
    "wrong-type": 415,
    "internal": 500,
    "busy": 503,
}
BY_STATUS = {404: ("not-found", "there is no such thing"), 405: ("wrong-method", "this address takes another method")}

NEEDS = "Open the address that seqveil studio printed: it ends in the key. Or enter the key here"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Refusal(HTTPException):
    """A request that is refused, with a reason and one line that holds no data."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(STATUS[reason], detail)
        self.reason = reason


def create_app(desk: Desk, key: str) -> FastAPI:
    """The page as an ASGI application.

    *Guarantee*: answers only to a loopback host name and to whoever has the key, which is in the address that the
    command prints: neither another user of the machine nor a page from elsewhere gets at what is loaded. Nothing is
    logged.
    """
    app = FastAPI(
        title="seqveil studio",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        exception_handlers={HTTPException: _told},
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.include_router(routes.files("index.html", Refusal, NEEDS))
    app.include_router(routes.answers(desk, Refusal, _keyed(key)))
    return app


def _keyed(key: str) -> type[APIRoute]:
    class Keyed(APIRoute):
        def get_route_handler(self) -> Handler:
            inner = super().get_route_handler()

            async def handle(request: Request) -> Response:
                _admit(request, key)
                return await inner(_limited(request) if request.method == "POST" else request)

            return handle

    return Keyed


def _admit(request: Request, key: str) -> None:
    # a page from elsewhere may be made to call us; it cannot forge the Host it was loaded from
    if not _loopback(request.headers.get("host", "")):
        raise Refusal("forbidden", "the page answers to a loopback host name alone")
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
        raise Refusal("unauthorised", "expected the key that is in the address that `seqveil studio` printed")


def _limited(request: Request) -> Request:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal("wrong-type", "expected the header Content-Type: application/json")
    receive, size = request.receive, 0

    async def next_part() -> Any:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MOST_BYTES:
            raise Refusal("too-large", f"the data is larger than {MOST_BYTES >> 20} MB; load a part of it")
        return message

    return Request(request.scope, next_part)


def _loopback(host: str) -> bool:
    """Whether a Host header names this machine's own address.

    >>> [_loopback(host) for host in ("127.0.0.1:8714", "localhost", "[::1]:1", "evil.example", "", "[")]
    [True, True, True, False, False, False]
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def _told(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    reason, detail = BY_STATUS.get(status, ("malformed", "the request is not as expected"))
    if isinstance(error, Refusal):
        reason, detail = error.reason, str(error.detail)
    content = {"type": f"urn:problem:seqveil:{reason}", "title": reason, "status": status, "detail": detail}
    return Response(json.dumps(content), status, HEADERS, "application/problem+json")
