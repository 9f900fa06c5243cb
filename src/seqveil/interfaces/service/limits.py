"""Who may come in and how much they may ask for: looked at before a body is read, let alone understood."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from starlette.requests import Request

from seqveil.interfaces.client import is_loopback
from seqveil.interfaces.service.config import Limits
from seqveil.interfaces.service.connections import PENALTY
from seqveil.interfaces.service.messages import Problem
from seqveil.interfaces.service.tokens import ANYBODY, Keyring, Token

BURST = 2.0  # seconds of its rate that somebody may use at once
MOST_KNOWN = 10_000  # addresses that are remembered


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
        limits: of requests in progress and without a token.
    """

    def __init__(self, ring: Keyring | None, rate: float, limits: Limits) -> None:
        self._ring, self._rate, self._limits = ring, rate, limits
        self._buckets: dict[str, Bucket] = {}
        self._strangers: dict[str, Bucket] = {}
        self._tokens: Counter[str] = Counter()  # requests in progress
        self._addresses: Counter[str] = Counter()

    async def slow_down(self, address: str) -> None:
        """Let a request without a good token wait where more of them come from its address than are let through."""
        now = time.monotonic()
        if address not in self._strangers:
            if len(self._strangers) >= MOST_KNOWN:
                self._strangers.clear()
            self._strangers[address] = Bucket(self._limits.strangers, self._limits.strangers * BURST, now)
        if self._strangers[address].take(1, now):
            await asyncio.sleep(PENALTY)

    def admit(self, request: Request, scope: str) -> Token:
        """The caller's token, if it has this scope; an empty one is any token's."""
        token = self._known(request)
        if scope and not token.may(scope):
            raise Problem("forbidden", f"expected a token with the scope {scope}")
        return token

    @asynccontextmanager
    async def in_progress(self, token: Token, address: str) -> AsyncIterator[None]:
        """Count a request of a token while it goes on; refuse it where its token or its address has too many."""
        if self._tokens[token.id] >= self._limits.one_token or self._addresses[address] >= self._limits.one_address:
            await asyncio.sleep(self._limits.request / 2)  # or it would be back at once
            raise Problem("too-many", "too many requests of this token are in progress; wait for their answers", wait=1)
        self._tokens[token.id] += 1
        self._addresses[address] += 1
        try:
            yield
        finally:
            for counted, name in ((self._tokens, token.id), (self._addresses, address)):
                counted[name] -= 1
                if not counted[name]:
                    del counted[name]

    def charge(self, token: Token, events: int, paid: int = 0, left_out: int = 0) -> None:
        """Charge a token for so many events, of which some are paid for, and for the numbers they leave out, or refuse
        with the time to wait.

        More events than it may ever send at once are refused with how many that is. Numbers left out may be more than
        that: they are paid back before anything else goes.
        """
        now, rate = time.monotonic(), token.rate or self._rate
        burst = max(1.0, rate * BURST)
        if events > burst:
            detail = f"this token may send {rate:g} events a second, so at most {int(burst)} at once; send fewer"
            raise Problem("too-large", detail, most=int(burst))
        bucket = self._buckets.get(token.id)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[token.id] = Bucket(rate, burst, now)
        wait = bucket.take(events - paid + left_out, now, paid)
        if wait:
            raise Problem("too-many", f"this token may send {rate:g} events a second; wait", wait=wait)

    def _known(self, request: Request) -> Token:
        if self._ring is None:
            check_host(request, "without tokens the service")
            return ANYBODY
        secret = bearer(request)
        if not secret:
            raise Problem("unauthorised", "expected the header Authorization: Bearer TOKEN")
        token = self._ring.find(secret)
        if token is None and self._ring.trouble is not None:
            raise Problem(
                "tokens", "the file of tokens cannot be read, so no token is good; ask whoever runs it", wait=5
            )
        if token is None:
            raise Problem("unauthorised", "the token is not known, or was revoked")
        if token.expired:
            raise Problem("unauthorised", f"the token expired at {token.end}; ask whoever made it for a new one")
        return token


def bearer(request: Request) -> str:
    """The token that a request carries, or nothing."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def check_host(request: Request, who: str) -> None:
    """A page in the browser of this machine may be made to call us; it cannot forge the Host it was loaded from."""
    try:
        name = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        name = ""
    if not is_loopback(name):
        raise Problem("forbidden", f"{who} answers to a loopback host name alone")


async def body_of(request: Request, most: int, seconds: float, smaller: str) -> bytes:
    """The body of a request, if it is JSON and ends in time and size; `smaller` says what to do about its size."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem("wrong-type", "expected the header Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem("wrong-type", "expected a body that is not compressed, without the header Content-Encoding")
    too_large = Problem("too-large", f"the body is larger than {most} bytes; {smaller}")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise too_large
    found = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                found += part
                if len(found) > most:
                    raise too_large
    except TimeoutError:
        raise Problem("too-slow", f"the body had not come after {seconds:g} seconds; send it again") from None
    return bytes(found)
