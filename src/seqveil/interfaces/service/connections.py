"""Connections to the service: how many there may be, and what a client may do with one before anything is released.

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
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = 32 << 10  # bytes of a request before its body
PENALTY = 2.0  # seconds until a refusal, or whoever breaks these rules would be back at once
DRAIN = 2.0  # seconds for the rest of a body that was answered before it had come
BARE = b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BrokenRule(Exception):
    """Ends the parsing of what a client sent."""


@dataclass(eq=False)
class Connections:
    """Which connections there are.

    Parameters:
        most: connections in all.
        of_one: connections from one address.
        seconds: in which one must bring a request to its end.
    """

    most: int
    of_one: int
    seconds: float
    _open: dict[Connection, None] = field(default_factory=dict)  # the one whose latest request is oldest first
    _counts: Counter[str] = field(default_factory=Counter)

    def enter(self, new: Connection) -> None:
        """Let a connection in; where there are too many, another one goes, or else this one does."""
        self._open[new] = None
        self._counts[new.address] += 1
        if len(self._open) > self.most:
            idle = (each for each in self._open if each.idle and each is not new)
            next(idle, new).drop()
        if self._counts[new.address] > self.of_one:
            new.refuse(b"503 Service Unavailable")

    def served(self, one: Connection) -> None:
        """A request came to its end on this connection: others make room first."""
        if one in self._open:
            del self._open[one]
            self._open[one] = None

    def leave(self, gone: Connection) -> None:
        """A connection is closed."""
        if gone in self._open:
            del self._open[gone]
            self._counts[gone.address] -= 1
            if not self._counts[gone.address]:
                del self._counts[gone.address]

    def protocol(self) -> type[Connection]:
        """The protocol of connections that are counted here."""
        return type("CountedConnection", (Connection,), {"all": self})


class Connection(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, by the rules above."""

    all: Connections
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
        """Count the connection, and wait for its first request."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._end_after(self.all.seconds)
        self.all.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room."""
        if self._end is not None:
            self._end.cancel()
        self.all.leave(self)
        super().connection_lost(exc)

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
        self.all.served(self)
        self._end_after(DRAIN if self._in_body else self.all.seconds)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused as all else is; uvicorn calls this, also after a rule was broken."""
        self.refuse(b"400 Bad Request")

    def drop(self) -> None:
        """Close the connection at once, with what it still had to be sent."""
        self.connections.discard(self)
        self.all.leave(self)
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
            self.loop.call_later(PENALTY, self._leave, status)

    def _leave(self, status: bytes | None) -> None:
        if status is not None and not self.transport.is_closing():
            self.transport.write(BARE % status)
            self.transport.close()
        self._end_after(DRAIN)
