"""The page over HTTP, for one person on one machine (`seqveil studio`).

Its files are for everyone, and no secret is in them; its answers need the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import anyio
import uvicorn
from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from seqveil import __version__
from seqveil.core import compiled
from seqveil.core.errors import SeqveilError
from seqveil.interfaces.service.limits import bearer, body_of, check_host
from seqveil.interfaces.service.messages import REASONS, Problem
from seqveil.interfaces.service.server import listen, quiet
from seqveil.interfaces.studio.sandbox import Gone, Sandbox
from seqveil.interfaces.studio.sources import StudioSource

HOST = "127.0.0.1"
MOST_BYTES, SECONDS = 64 << 20, 60.0  # of loaded data
THREADS, WAITING = 4, 32
# FastAPI hands paths, bodies and exception texts to OpenTelemetry where a process has it: those are private
UNTRACED: dict[str, Any] = {
    "telemetry": dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
}

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {  # that keep a browser to the page's own files
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
PRIVATE = {**HEADERS, "Cache-Control": "no-store"}


def serve(own: Sequence[StudioSource], port: int, announce: Callable[[str], None]) -> None:
    """Serve on loopback; `announce` gets the address with the key in its fragment, which no request carries."""
    sandbox, key = Sandbox(own), secrets.token_urlsafe(24)
    with listen(HOST, port) as listener:
        threading.Thread(target=_warm, args=(sandbox,), daemon=True).start()
        announce(f"http://{HOST}:{listener.getsockname()[1]}/#key={key}")
        # a traceback may show data
        options = quiet(create_app(sandbox, key), log_level="critical", timeout_graceful_shutdown=2)
        uvicorn.Server(options).run(sockets=[listener])


def create_app(sandbox: Sandbox, key: str) -> FastAPI:
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
        exception_handlers={HTTPException: _refused},
        **UNTRACED,
    )
    app.include_router(files())
    app.include_router(answers(sandbox, key))
    return app


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, Problem):
        reason = {404: "not-found", 405: "wrong-method"}.get(getattr(error, "status_code", 500), "malformed")
        error = Problem(reason, REASONS[reason][1])
    answer = error.answer()
    answer.headers.update(HEADERS)
    return answer


def _warm(sandbox: Sandbox) -> None:
    """Load what a first picture loads before somebody waits for it."""
    first = sandbox.begin()["first"]
    start = sandbox.source({"source": first})["start"]
    sandbox.show({"source": first, **start, "events": 20})
    compiled.load()  # half a second, and some more the first time on a machine: pictures come without it, later


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    kind: str
    tag: str


@lru_cache(maxsize=1)
def assets() -> dict[str, Asset]:
    """Every file of the page by its name; nothing else can be asked for.

    >>> sorted(assets())[:2]
    ['account.js', 'api.js']
    """
    found = {}
    for file in resources.files("seqveil.interfaces.studio").joinpath("page").iterdir():
        kind = KINDS.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            content = file.read_bytes()
            found[file.name] = Asset(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


def files() -> APIRouter:
    """The page at /, its files under /page/."""
    router = APIRouter(include_in_schema=False)

    def page(request: Request) -> Response:
        return file(request, "index.html")

    def file(request: Request, name: str) -> Response:
        found = assets().get(name)
        if found is None:
            raise Problem("not-found", "the page has no such file")
        headers = {**HEADERS, "ETag": found.tag, "Cache-Control": "no-cache"}
        if found.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.kind)

    router.add_api_route("/", page, methods=["GET"])
    router.add_api_route("/page/{name}", file, methods=["GET"])
    return router


def answers(sandbox: Sandbox, key: str) -> APIRouter:
    """What the page asks for while somebody uses it, on this machine and with the one key."""

    def admit(request: Request) -> None:
        check_host(request, "the page")
        if not hmac.compare_digest(bearer(request).encode(), key.encode()):
            raise Problem("unauthorised", "expected the key that is in the address that `seqveil studio` printed")

    router = APIRouter(prefix="/v1/page", dependencies=[Depends(admit)], include_in_schema=False)
    line = _WaitingLine()

    def answering(act: Callable[[Any], dict[str, Any]]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            content = await body_of(request, MOST_BYTES, SECONDS, "load a part of the data")
            try:
                given = json.loads(content)
            except (ValueError, RecursionError):
                raise Problem("malformed", "expected a body that is JSON") from None
            return await line.disclosed(lambda: act(given))

        return answer

    async def begin(request: Request) -> Response:
        return await line.disclosed(sandbox.begin)

    router.add_api_route("/begin", begin, methods=["GET"])
    for name in ("source", "inspect", "load", "show", "curve", "compare", "advise"):
        router.add_api_route(f"/{name}", answering(getattr(sandbox, name)), methods=["POST"], name=name)
    return router


class _WaitingLine:
    """Requests that wait for their turn on a few threads; when too many do, the next is sent away."""

    def __init__(self) -> None:
        self._waiting = 0
        self._limiter: anyio.CapacityLimiter | None = None  # is of one event loop, so made there

    async def disclosed(self, act: Callable[[], dict[str, Any]]) -> Response:
        if self._waiting >= WAITING:
            raise Problem("busy", "too many pictures are being made; ask again in a moment")
        self._limiter = self._limiter or anyio.CapacityLimiter(THREADS)
        self._waiting += 1
        try:
            content = await to_thread.run_sync(act, limiter=self._limiter)
        except Gone as error:
            raise Problem("not-found", str(error)) from None
        except SeqveilError as error:
            raise Problem("malformed", str(error)) from None
        except Exception as error:  # its message may hold anything, so it goes nowhere
            raise Problem("internal", f"{type(error).__name__}; change the setting, or load other data") from None
        finally:
            self._waiting -= 1
        return _json(content)


def _json(content: dict[str, Any]) -> Response:
    return Response(json.dumps(content, allow_nan=False), headers=PRIVATE, media_type="application/json")
