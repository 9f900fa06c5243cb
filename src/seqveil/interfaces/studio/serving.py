"""The page over HTTP, for one person on one machine (`seqveil studio`).

Its files are for everyone, and no secret is in them; its answers need the key.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from seqveil.core import bulk
from seqveil.core.errors import SeqveilError
from seqveil.interfaces.service.limits import bearer, from_loopback
from seqveil.interfaces.service.server import QUIET, listen
from seqveil.interfaces.studio.answers import Studio
from seqveil.interfaces.studio.upload import here

HOST = "127.0.0.1"
PAGE = Path(__file__).with_name("page")
MOST_BYTES = 64 << 20  # of a request
GRACE = 1  # seconds that answers on their way have when the page ends
ANSWERS = ("begin", "look", "load", "source", "show", "offers", "attack")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {  # that keep a browser to the page's own files
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class PageServer(uvicorn.Server):
    """The page on a port of the loopback.

    *Guarantee*: answers only to a loopback host name and to whoever has the key, which is in the address that the
    command prints: neither another user of the machine nor a page from elsewhere gets at what is loaded. Nothing is
    logged.
    """

    def __init__(self, studio: Studio, port: int = 0, key: str | None = None) -> None:
        self.studio, self.key = studio, key or secrets.token_urlsafe(24)
        self.listener = listen(HOST, port)
        files = Mount("/", StaticFiles(directory=PAGE, html=True))
        routes = [Route("/v1/page/{name}", self.answer, methods=["POST"]), files]
        page = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
        headers = list(HEADERS.items())
        super().__init__(
            uvicorn.Config(page, lifespan="off", timeout_graceful_shutdown=GRACE, headers=headers, **QUIET)
        )

    @property
    def url(self) -> str:
        """The address with the key in its fragment, which no request carries."""
        return f"http://{HOST}:{self.listener.getsockname()[1]}/#key={self.key}"

    def serve_forever(self) -> None:
        """Serve until a signal comes, or `should_exit` is set."""
        with self.listener:
            self.run(sockets=[self.listener])

    async def answer(self, request: Request) -> Response:
        """An answer to whoever has the key."""
        self._admit(request)
        name, kind = request.path_params["name"], request.headers.get("Content-Type", "").partition(";")[0].strip()
        file = request.query_params.get("file", "")[:200]
        if name == "upload" and kind == "application/octet-stream":
            return JSONResponse(await run_in_threadpool(_answered, self.studio.upload, await request.body(), file))
        if name not in ANSWERS:
            raise HTTPException(404, "the page has no such answer")
        if kind != "application/json":
            raise HTTPException(415, "expected a body of application/json")
        try:
            asked: dict[str, Any] = {**json.loads(await request.body())}
        except (ValueError, TypeError, RecursionError):
            raise HTTPException(400, "expected a body that is an object in JSON") from None
        return JSONResponse(await run_in_threadpool(_answered, getattr(self.studio, name), **asked))

    def _admit(self, request: Request) -> None:
        if not from_loopback(request):
            raise HTTPException(403, "the page answers to 127.0.0.1 and localhost alone; open it there")
        if not hmac.compare_digest(bearer(request).encode(), self.key.encode()):
            raise HTTPException(401, "expected the key that is in the address that `seqveil studio` printed")
        # a body of unknown length may be of any; the server itself refuses what is no number
        if int(request.headers.get("Content-Length", MOST_BYTES + 1)) > MOST_BYTES:
            raise HTTPException(413, f"the body is larger than {MOST_BYTES >> 20} MB; load a part of the data")


def serve(studio: Studio, port: int, announce: Callable[[str], None]) -> None:
    """Serve until a signal comes; `announce` gets the address."""
    server = PageServer(studio, port)
    threading.Thread(target=_warm, daemon=True).start()
    announce(server.url)
    server.serve_forever()


def _warm() -> None:
    """Load what a first picture loads before somebody waits for it."""
    Studio().show("clicks", {"epsilon": 1.0}, person=0, events=20, seed=1)
    bulk.load()  # half a second, and some more the first time on a machine: pictures come without it, later


def _answered(answer: Callable[..., dict[str, Any]], *given: Any, **asked: Any) -> dict[str, Any]:
    try:
        return answer(*given, **asked)
    except SeqveilError as error:
        raise HTTPException(400, here(str(error))) from None
    except Exception as error:  # its message may hold anything, so it goes nowhere
        raise HTTPException(500, f"{type(error).__name__}; change the setting, or load other data") from None


def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, HTTPException)
    return JSONResponse({"detail": refusal.detail}, refusal.status_code)
