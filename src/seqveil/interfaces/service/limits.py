"""Who may come in and how much they may ask for: connections, tokens and requests, before a body is understood.

Nobody needs a token to connect, so nobody may be kept out, or the others slowed down, by those who only do that. The
HTTP server limits none of it by its settings, so four rules stand here:

1. A connection brings a request to its end every so many seconds, or it is closed: silent, slow and unread ones alike.
2. Where there are too many, the one without a request for the longest time makes room; too many from one address are
   refused.
3. The head of a request has at most `HEAD` bytes.
4. A request waits for the answer to the one before (no pipelining), and says how long its body is (no chunks): of both
   one packet may hold thousands, which would be worked on one after another while everybody waits.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from seqveil.interfaces.client import is_loopback
from seqveil.interfaces.service.messages import Problem
from seqveil.interfaces.service.tokens import ANYBODY, Keyring, Token

HEAD = 32 << 10  # bytes of a request before its body
PENALTY = 2.0  # seconds until a refusal, or whoever breaks these rules would be back at once
DRAIN = 2.0  # seconds for the rest of a body that was answered before it had come
BARE = b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True)
class Limits:
    """How much there may be at a time, the same for every service; seconds where nothing else is said."""

    body: int = 4 << 20  # bytes
    events: int = 1000  # of a request, and those that a transaction is filled up to
    one_user: int = 200  # events of one user in a request: they are drawn one after another, and others wait
    one_user_slow: int = 20  # the same in batches or with declared secrets
    waiting: int = 100_000  # events accepted and not yet on the disk
    one_token: int = 64  # requests in progress
    one_address: int = 256  # the same, whatever the tokens
    connections: int = 2000
    connections_of_one: int = 1000  # from one address
    strangers: int = 100  # requests a second without a token, from one address; more are answered slowly
    request: float = 10.0  # for a body to come, and again for its release
    connection: float = 30.0  # in which a connection must bring a request to its end
    linger: float = 0.0005  # that a transaction waits for more events
    grace: float = 30.0  # at the end, for what was accepted
    figures: float = 60.0  # for which figures over all users hold
    free: int = 64 << 20  # bytes on the disk, below which the service is not ready


class BrokenRule(Exception):
    """Ends the parsing of what a client sent."""


def protocol(limits: Limits) -> type[Connection]:
    """The protocol of the connections of one service, which are counted together."""
    return type("CountedConnection", (Connection,), {"limits": limits, "known": {}, "counts": Counter()})


class Connection(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, by the rules above."""

    limits: Limits
    known: dict[Connection, None]  # all that are open, the one whose latest request is oldest first
    counts: Counter[str]  # of each address
    address = ""
    _head = 0  # bytes since the latest request
    _in_body = False
    _refused = False
    _end: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def connection_made(self, transport: Any) -> None:
        """Let a connection in; where there are too many, another one goes, or else this one does."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._end_after(self.limits.connection)
        self.known[self] = None
        self.counts[self.address] += 1
        if len(self.known) > self.limits.connections:
            idle = (each for each in self.known if each.idle and each is not self)
            next(idle, self).drop()
        if self.counts[self.address] > self.limits.connections_of_one:
            self.refuse(b"503 Service Unavailable")

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room."""
        if self._end is not None:
            self._end.cancel()
        self._leave()
        super().connection_lost(exc)

    def _leave(self) -> None:
        if self in self.known:
            del self.known[self]
            self.counts[self.address] -= 1
            if not self.counts[self.address]:
                del self.counts[self.address]

    def data_received(self, data: bytes) -> None:
        """Take what came, unless the connection is refused; a head that has no end is."""
        if self._refused:
            return
        if not self._in_body:
            self._head += len(data)
        super().data_received(data)
        if not self._in_body and self._head > HEAD:
            self.refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """Refuse a request that does not wait for its turn."""
        if not self.idle:
            self.refuse(None)
            raise BrokenRule
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Refuse a head that came at once and is too large, and a body of unknown length."""
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD:
            self.refuse(b"431 Request Header Fields Too Large")
        elif any(name == b"transfer-encoding" for name, _ in self.headers):
            self.refuse(b"411 Length Required")
        if self._refused:
            raise BrokenRule
        self._head, self._in_body = 0, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole; what comes next is the head of another request."""
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request came to its end. Of one that was answered early the rest of the body is dropped, for a while."""
        if self in self.known:  # others make room first
            self.known[self] = self.known.pop(self)
        self._end_after(DRAIN if self._in_body else self.limits.connection)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused as all else is; uvicorn calls this, also after a rule was broken."""
        self.refuse(b"400 Bad Request")

    def drop(self) -> None:
        """Close the connection at once, with what it still had to be sent."""
        self.connections.discard(self)
        self._leave()
        self.transport.abort()

    def _end_after(self, seconds: float) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = self.loop.call_later(seconds, self.drop)

    def refuse(self, status: bytes | None) -> None:
        """Read no more, and later answer and close; without a status there is an answer under way already."""
        if not self._refused and not self.transport.is_closing():
            self._refused = True
            self.transport.pause_reading()
            self.loop.call_later(PENALTY, self._answer_and_close, status)

    def _answer_and_close(self, status: bytes | None) -> None:
        if status is not None and not self.transport.is_closing():
            self.transport.write(BARE % status)
            self.transport.close()
        self._end_after(DRAIN)


def from_loopback(request: Request) -> bool:
    """Whether the address that was asked for is this machine's own."""
    try:
        return is_loopback(urlsplit(f"//{request.headers.get('host', '')}").hostname or "")
    except ValueError:
        return False


def bearer(request: Request) -> str:
    """The token that a request brings; empty for none."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


class Guard:
    """Lets callers in: those with a token of the ring, or where there is none those on this machine."""

    def __init__(self, ring: Keyring | None, limits: Limits) -> None:
        self._ring, self._limits = ring, limits
        self._second, self._strangers = 0, Counter[str]()  # requests without a good token in it, by address
        self._busy: Counter[tuple[str, str]] = Counter()  # requests in progress of each token and each address

    async def slow_down(self, address: str) -> None:
        """Let a request without a good token wait where more of them come from its address than are let through."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._strangers = second, Counter()
        self._strangers[address] += 1
        if self._strangers[address] > self._limits.strangers:
            await asyncio.sleep(PENALTY)

    def admit(self, request: Request, scope: str) -> Token:
        """The caller's token, if it has this scope."""
        if self._ring is None:
            # a page in the browser of this machine may be made to call us; it cannot forge the Host it was loaded from
            if not from_loopback(request):
                raise Problem("forbidden", "without tokens the service answers to a loopback host name alone")
            return ANYBODY  # who may do everything
        secret = bearer(request)
        if not secret:
            raise Problem("unauthorised", "expected the header Authorization: Bearer TOKEN")
        token = self._ring.find(secret)
        self.check_tokens()
        if token is None:
            raise Problem("unauthorised", "the token is not known, or was revoked")
        if not token.may(scope):
            raise Problem("forbidden", f"expected a token with the scope {scope}")
        return token

    def check_tokens(self) -> None:
        """Refuse everyone while the tokens cannot be read."""
        if self._ring is not None and self._ring.look():
            detail = "the file of tokens cannot be read, so no token is good; ask whoever runs the service"
            raise Problem("tokens", detail, wait=5)

    @asynccontextmanager
    async def in_progress(self, token: Token, address: str) -> AsyncIterator[None]:
        """Count a request of a token while it goes on; refuse it where its token or its address has too many."""
        most = {("token", token.id): self._limits.one_token, ("address", address): self._limits.one_address}
        if any(self._busy[who] >= limit for who, limit in most.items()):
            # or it would be back at once; at random, or a thousand that came at once would also be answered at once
            await asyncio.sleep(self._limits.request * random.uniform(0.25, 0.75))
            raise Problem("too-many", "too many requests of this token are in progress; wait for their answers", wait=1)
        self._busy.update(most.keys())
        try:
            yield
        finally:
            for who in most:
                self._busy[who] -= 1
                if not self._busy[who]:
                    del self._busy[who]
