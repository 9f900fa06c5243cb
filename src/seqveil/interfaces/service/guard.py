"""Who may come in: token, scope, rate and size are looked at before a body is read, let alone understood."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.routing import APIRoute

from seqveil.interfaces.service.config import ServeConfig, is_loopback
from seqveil.interfaces.service.limits import Buckets, limited, too_large
from seqveil.interfaces.service.problems import Problem
from seqveil.interfaces.service.tokens import ANYBODY, Keyring, Token

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Guard:
    """Tokens and limits of one service."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._ring = None if config.tokens is None else Keyring(config.tokens)
        self._buckets = Buckets(config.rate)

    def admit(self, request: Request, scope: str | None) -> Token:
        """The caller's token, if it has this scope (None: any token will do) and has not asked too much."""
        token = self._known(request)
        if scope is not None and not token.may(scope):
            raise Problem("forbidden", f"expected a token with the scope {scope}")
        self.charge(token, 1)
        return token

    def charge(self, token: Token, events: int) -> None:
        if events > 0:
            self._buckets.take(token.id, token.rate, events)

    def _known(self, request: Request) -> Token:
        if self._ring is None:
            # a page in the browser of this machine may be made to call us; it cannot forge the Host it was loaded from
            if not is_loopback(_name(request.headers.get("host", ""))):
                raise Problem("forbidden", "without tokens the service answers to a loopback host name alone")
            return ANYBODY
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not secret:
            raise Problem("unauthorised", "expected the header Authorization: Bearer TOKEN")
        token = self._ring.find(secret.strip())
        if token is None:
            raise Problem("unauthorised", "the token is not known, or was revoked")
        return token

    def body(self, request: Request) -> Request:
        """The request with a body that is JSON and ends in time and size."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem("wrong-type", "expected the header Content-Type: application/json")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._config.max_body:
            raise too_large(self._config.max_body)
        return Request(request.scope, limited(request.receive, self._config.max_body, self._config.timeout))


def _name(host: str) -> str:
    """The name in a Host header, without a port.

    >>> _name("localhost:8713"), _name("[::1]:8713"), _name("[")
    ('localhost', '::1', '')
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def covered(token: Token, users: Iterable[str]) -> None:
    """Refuse unless the token is for all of these users."""
    if token.user is None:
        return
    for place, user in enumerate(users):
        if not token.covers(user):
            raise Problem("forbidden", f"the token is not for the user of event {place}", position=place)


def guarded(scope: str | None) -> type[APIRoute]:
    """Routes that let a caller in with this scope."""

    class Guarded(APIRoute):
        def get_route_handler(self) -> Handler:
            inner = super().get_route_handler()

            async def handle(request: Request) -> Response:
                guard: Guard = request.app.state.service.guard
                request.state.token = guard.admit(request, scope)
                return await inner(guard.body(request) if request.method == "POST" else request)

            return handle

    return Guarded
