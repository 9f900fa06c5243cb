"""The page over HTTP: in the service, and by itself for one person on one machine (`seqveil studio`).

*Guarantee*: the sandbox has no way to the store: it knows the model and the public setting, and nothing of any user.
Its files are for everyone, and no secret is in them; its answers need what the application's guard asks for.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import anyio
import uvicorn
from anyio import to_thread
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from seqveil import __version__
from seqveil.core import fast
from seqveil.core.distortion import NAMES
from seqveil.core.errors import InputError, SeqveilError
from seqveil.engine.stream import Setting
from seqveil.interfaces.service.access import KeyGuard, guarded
from seqveil.interfaces.service.messages import Problem, refused
from seqveil.interfaces.service.writer import Service
from seqveil.interfaces.studio.sandbox import Gone, Sandbox
from seqveil.interfaces.studio.sources import MOST_SYMBOLS, Source, sampled

HOST = "127.0.0.1"
MOST_BYTES, SECONDS = 64 << 20, 60.0  # of loaded data, where the page is by itself
THREADS, WAITING = 4, 32  # of the page's own, so that whoever shares the process does not wait for it

TOKEN_NEEDED = "Enter any token of this service, as made by seqveil tokens add"
KEY_NEEDED = "Open the address that seqveil studio printed: it ends in the key. Or enter the key here"

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


def serve(own: Sequence[Source], port: int, announce: Callable[[str], None]) -> None:
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
    app.state.guard = KeyGuard(key, MOST_BYTES, SECONDS)
    app.include_router(files(KEY_NEEDED))
    app.include_router(answers(sandbox))
    return app


async def _refused(request: Request, error: Exception) -> Response:
    answer = await refused(request, error)
    answer.headers.update(HEADERS)
    return answer


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


def _warm(sandbox: Sandbox) -> None:
    """Load what a first picture loads before somebody waits for it."""
    first = sandbox.begin()["first"]
    start = sandbox.source({"source": first})["start"]
    sandbox.show({"source": first, **start, "events": 20})
    fast.load()  # half a second, and some more the first time on a machine: pictures come without it, later


def pages(service: Service) -> list[APIRouter]:
    """The page's routes; none where it is switched off."""
    if not service.config.shows_page:
        return []
    model = service.setting.model
    own = [] if model.n > MOST_SYMBOLS or model.hours is not None else [_of_model(service.setting)]
    sandbox = Sandbox(own, service=service.setting.model.fingerprint)
    return [files(None if service.config.no_auth else TOKEN_NEEDED), answers(sandbox)]


def _of_model(setting: Setting) -> Source:
    """Streams sampled from the service's model, to begin with released as the service does, where the page can."""
    size, budget = setting.batch, setting.budget
    start: dict[str, Any] = {"batch": size}
    if not setting.guards:
        start |= {"mechanism": setting.mechanism.name, "epsilon": setting.epsilon / size}
    start |= {"every": setting.schedule.period, "budget": budget.total, "window": budget.per_window}
    start |= {"window_releases": budget.releases, "when_spent": "hold"}
    if budget.seconds is not None:
        start["window"] = None  # the page has no clock
    if setting.distortion.name in NAMES:
        start["distortion"] = setting.distortion.name
    return sampled(setting.model, start)


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


def files(needs: str | None) -> APIRouter:
    """The page at /, its files under /page/; `needs` says what a visitor must enter before the page gets answers."""
    router = APIRouter(include_in_schema=False)

    def entry() -> Response:
        return _json({"needs": needs})

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
    router.add_api_route("/page/entry.json", entry, methods=["GET"])
    router.add_api_route("/page/{name}", file, methods=["GET"])
    return router


def answers(sandbox: Sandbox) -> APIRouter:
    """What the page asks for while somebody uses it."""
    router = APIRouter(prefix="/v1/page", route_class=guarded(None), include_in_schema=False)
    line = _Line()

    def answering(act: Callable[[Any], dict[str, Any]]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                given = json.loads(await request.body())
            except (ValueError, RecursionError):
                raise Problem("malformed", "expected a body that is JSON") from None
            return await line.told(lambda: act(given))

        return answer

    async def begin(request: Request) -> Response:
        return await line.told(sandbox.begin)

    router.add_api_route("/begin", begin, methods=["GET"])
    for name in ("source", "inspect", "load", "show", "curve", "compare", "advise"):
        router.add_api_route(f"/{name}", answering(getattr(sandbox, name)), methods=["POST"], name=name)
    return router


class _Line:
    """Requests that wait for their turn on a few threads; when too many do, the next is sent away."""

    def __init__(self) -> None:
        self._waiting = 0
        self._limiter: anyio.CapacityLimiter | None = None  # is of one event loop, so made there

    async def told(self, act: Callable[[], dict[str, Any]]) -> Response:
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
