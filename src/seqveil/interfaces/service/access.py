"""Who may come in: token, scope, rate and size are looked at before a body is read, let alone understood."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from seqveil.interfaces.client import is_loopback
from seqveil.interfaces.service.messages import USER, Problem, wrong_field
from seqveil.interfaces.service.tokens import ANYBODY, Keyring, Token

BURST = 2.0  # seconds of its rate that a token may use at once

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Bucket:
    """An allowance that fills at `rate` a second up to `burst`; what costs more than is in it may still go once it is
    full, and is paid back before anything else goes.

    >>> bucket = Bucket(rate=2.0, burst=4.0, now=0.0)
    >>> bucket.take(3, now=0.0), bucket.take(3, now=0.0), bucket.take(3, now=1.0), bucket.take(9, now=3.0)
    (0.0, 1.0, 0.0, 0.0)
    >>> bucket.take(1, now=3.0)
    3.0
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate, self._burst, self._level, self._at = rate, burst, burst, now

    def take(self, cost: float, now: float, paid: float = 0.0) -> float:
        """Take the cost out and return 0, or take nothing and return the seconds to wait; what was paid a moment ago
        for the same thing counts as if it were there."""
        self._level, self._at = min(self._burst, self._level + (now - self._at) * self.rate), now
        short = min(cost, self._burst - paid) - self._level
        if short > 0:
            return short / self.rate
        self._level -= cost
        return 0.0


class Guard:
    """Lets callers in: those with a token of the ring, or where there is none those on this machine.

    Parameters:
        ring: the tokens; None asks for none.
        rate: events a second of a token that says nothing else.
        most: bytes of a body.
        seconds: in which a body has to come.
    """

    shorter = "send fewer events at once"

    def __init__(self, ring: Keyring | None, rate: float, most: int, seconds: float) -> None:
        self._ring, self._rate, self._most, self._seconds = ring, rate, most, seconds
        self._buckets: dict[str, Bucket] = {}

    def admit(self, request: Request, scope: str | None) -> Token:
        """The caller's token, if it has this scope (None: any token will do) and has not asked too much."""
        token = self._known(request)
        if scope is not None and not token.may(scope):
            raise Problem("forbidden", f"expected a token with the scope {scope}")
        self.charge(token, 1)
        return token

    def charge(self, token: Token, events: int, paid: int = 0, left_out: int = 0) -> None:
        """Charge a token for so many events, of which some are paid for, and for the numbers they leave out; or refuse
        with the time to wait. More events than it may ever send at once are refused with how many that is. Numbers left
        out may be more than that: they are paid back before anything else goes."""
        cost = events - paid + left_out
        if cost <= 0:
            return
        now, rate = time.monotonic(), token.rate or self._rate
        burst = max(1.0, rate * BURST)
        if events > burst:
            detail = (
                f"this token may send {rate:g} events a second, so at most {int(burst)} at once; send them in parts"
            )
            raise Problem("too-large", detail, most=int(burst))
        bucket = self._buckets.get(token.id)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[token.id] = Bucket(rate, burst, now)
        wait = bucket.take(cost, now, paid)
        if wait:
            raise Problem("too-many", f"this token may send {rate:g} events a second; wait", wait=wait)

    def _known(self, request: Request) -> Token:
        if self._ring is None:
            self._check_host(request, "without tokens the service")
            return ANYBODY
        secret = _bearer(request)
        if not secret:
            raise Problem("unauthorised", "expected the header Authorization: Bearer TOKEN")
        token = self._ring.find(secret)
        if token is None and self._ring.trouble is not None:
            raise Problem(
                "tokens", "the file of tokens cannot be read, so no token is good; ask whoever runs it", wait=5
            )
        if token is None:
            raise Problem("unauthorised", "the token is not known, or was revoked")
        if token.expired():
            raise Problem("unauthorised", f"the token expired at {token.expires}; ask whoever made it for a new one")
        return token

    def _check_host(self, request: Request, who: str) -> None:
        """A page in the browser of this machine may be made to call us; it cannot forge the Host it was loaded from."""
        if not is_loopback(_name(request.headers.get("host", ""))):
            raise Problem("forbidden", f"{who} answers to a loopback host name alone")

    def body(self, request: Request) -> Request:
        """The request with a body that is JSON and ends in time and size."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem("wrong-type", "expected the header Content-Type: application/json")
        if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise Problem("wrong-type", "expected a body that is not compressed, without the header Content-Encoding")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._most:
            raise self._too_large()
        return Request(request.scope, self._limited(request.receive))

    def _limited(self, receive: Receive) -> Receive:
        """The same body, refused where it grows too large or has not ended in time."""
        end, size = asyncio.get_running_loop().time() + self._seconds, 0

        async def next_part() -> Message:
            nonlocal size
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                detail = f"the body had not come after {self._seconds:g} seconds; send it again"
                raise Problem("too-slow", detail) from None
            size += len(message.get("body", b""))
            if size > self._most:
                raise self._too_large()
            return message

        return next_part

    def _too_large(self) -> Problem:
        return Problem("too-large", f"the body is larger than {self._most} bytes; {self.shorter}")


def _bearer(request: Request) -> str:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


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


def guarded(scope: str | None, form: TypeAdapter[Any] | None = None) -> type[APIRoute]:
    """Routes that let a caller in with this scope, by the guard of their application.

    Parameters:
        scope: which a token needs; None: any token will do.
        form: of the body, where the endpoint takes the request and that alone. A body that fits is then handed over at
            once: what FastAPI does around a call takes as long as all the rest of one event. Of any other body FastAPI
            says what is wrong with it.
    """

    class Guarded(APIRoute):
        def get_route_handler(self) -> Handler:
            inner = super().get_route_handler()

            async def handle(request: Request) -> Response:
                guard: Guard = request.app.state.guard
                if "user" in request.path_params and "seqveil" in request.scope:  # whoever asks, and may not, is named
                    request.scope["seqveil"].users = [request.path_params["user"][:256]]
                request.state.token = guard.admit(request, scope)
                if "user" in request.path_params and request.scope["path"].endswith("\n"):
                    raise wrong_field("user", USER)  # a route takes the path for one without it: that of somebody else
                if request.method != "POST":
                    return await inner(request)
                limited = guard.body(request)
                body = None if form is None else await _fitting(limited, form)
                if body is None:
                    return await inner(limited)
                answer: Response = await self.endpoint(limited, body)
                return answer

            return handle

    return Guarded


async def _fitting(request: Request, form: TypeAdapter[Any]) -> Any | None:
    """The body of a request, if it has this form."""
    try:
        return form.validate_json(await request.body())
    except (ValidationError, ClientDisconnect):
        return None
