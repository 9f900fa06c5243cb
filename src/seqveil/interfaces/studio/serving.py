"""The page over HTTP, for one person on one machine (`seqveil studio`).

Its files are for everyone, and no secret is in them; its answers need the key.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from seqveil.core import bulk
from seqveil.core.errors import InputError, SeqveilError
from seqveil.interfaces.studio.answers import Gone, Studio

HOST = "127.0.0.1"
LOOPBACK = {"127.0.0.1", "localhost"}
MOST_BYTES, SECONDS = 64 << 20, 60.0  # of a request
ANSWERS = ("begin", "look", "load", "source", "show", "offers", "expect", "attack")
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
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
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class _Refusal(Exception):
    """A status, and the line that says why."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class PageServer(ThreadingHTTPServer):
    """The page on a port of the loopback.

    *Guarantee*: answers only to a loopback host name and to whoever has the key, which is in the address that the
    command prints: neither another user of the machine nor a page from elsewhere gets at what is loaded. Nothing is
    logged.
    """

    daemon_threads = True

    def __init__(self, studio: Studio, port: int = 0, key: str | None = None) -> None:
        self.studio, self.key = studio, key or secrets.token_urlsafe(24)
        try:
            super().__init__((HOST, port), _Page)
        except OSError as error:
            detail = f"cannot listen on port {port} ({error.strerror}); choose another with --port"
            raise InputError(detail) from None

    @property
    def url(self) -> str:
        """The address with the key in its fragment, which no request carries."""
        return f"http://{HOST}:{self.server_address[1]}/#key={self.key}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody hung up; a traceback may show data."""


def serve(studio: Studio, port: int, announce: Callable[[str], None]) -> None:
    """Serve until a signal comes; `announce` gets the address."""
    with PageServer(studio, port) as server:
        threading.Thread(target=_warm, daemon=True).start()
        announce(server.url)
        server.serve_forever()


def _warm() -> None:
    """Load what a first picture loads before somebody waits for it."""
    Studio().show({"source": "clicks", "policy": {"epsilon": 1.0}, "person": 0, "events": 20, "seed": 1})
    bulk.load()  # half a second, and some more the first time on a machine: pictures come without it, later


@lru_cache(maxsize=1)
def assets() -> dict[str, tuple[bytes, str]]:
    """The content and the kind of every file of the page, by its name; nothing else can be asked for.

    >>> sorted(assets())[:2]
    ['account.js', 'api.js']
    """
    files = resources.files("seqveil.interfaces.studio").joinpath("page").iterdir()
    found = [(file, KINDS.get(file.name[file.name.rfind(".") :])) for file in files]
    return {file.name: (file.read_bytes(), kind) for file, kind in found if kind is not None}


class _Page(BaseHTTPRequestHandler):
    """One connection: the page at /, its files under /page/, its answers under /v1/page/."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    server_version, sys_version = "seqveil", ""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        """A file of the page."""
        path = urlsplit(self.path).path
        name = "index.html" if path == "/" else path.removeprefix("/page/") if path.startswith("/page/") else ""
        content, kind = assets().get(name, (b"", ""))
        if path.startswith("/v1/"):
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, {"detail": "expected POST"})
        elif kind:
            self._send(HTTPStatus.OK, content, kind)
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"detail": "the page has no such file"})

    def do_POST(self) -> None:
        """An answer to whoever has the key."""
        try:
            self._admit()
            self._answer(HTTPStatus.OK, self._answered(self._body()))
        except _Refusal as refusal:
            self.close_connection = True  # its body may not have been read
            self._answer(refusal.status, {"detail": str(refusal)})

    def _admit(self) -> None:
        host, _, port = self.headers.get("Host", "").rpartition(":")
        if (host if port.isdigit() else port) not in LOOPBACK:
            raise _Refusal(HTTPStatus.FORBIDDEN, "the page answers to 127.0.0.1 and localhost alone; open it there")
        kind, _, key = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), self.server.key.encode()):
            detail = "expected the key that is in the address that `seqveil studio` printed"
            raise _Refusal(HTTPStatus.UNAUTHORIZED, detail)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "expected a body with its length")
        if len(length) > 12 or int(length) > MOST_BYTES:
            detail = f"the body is larger than {MOST_BYTES >> 20} MB; load a part of the data"
            raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
        return self.rfile.read(int(length))

    def _answered(self, body: bytes) -> dict[str, Any]:
        address = urlsplit(self.path)
        name = address.path.removeprefix("/v1/page/")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        try:
            if name == "upload" and kind == "application/octet-stream":
                return self.server.studio.upload(body, parse_qs(address.query).get("file", [""])[0][:200])
            if name not in ANSWERS or not address.path.startswith("/v1/page/"):
                raise _Refusal(HTTPStatus.NOT_FOUND, "the page has no such answer")
            if kind != "application/json":
                raise _Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected a body of application/json")
            try:
                asked = json.loads(body)
            except (ValueError, RecursionError):
                raise _Refusal(HTTPStatus.BAD_REQUEST, "expected a body that is JSON") from None
            found: dict[str, Any] = getattr(self.server.studio, name)(asked)
            return found
        except Gone as error:
            raise _Refusal(HTTPStatus.NOT_FOUND, str(error)) from None
        except SeqveilError as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None
        except _Refusal:
            raise
        except Exception as error:  # its message may hold anything, so it goes nowhere
            detail = f"{type(error).__name__}; change the setting, or load other data"
            raise _Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, detail) from None

    def _answer(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._send(status, json.dumps(content, allow_nan=False).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
