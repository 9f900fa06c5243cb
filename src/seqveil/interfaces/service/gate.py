"""Connections: how many there may be, from one address and in all, and how long and large a request's head may be.

Nobody needs a token to connect, so nobody may be kept out by those who only do that. A connection without a request in
progress can go at any time: where there are too many, the one that has been silent longest makes room for the next.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = 32 << 10  # bytes of a request before its body
PENALTY = 0.5  # seconds that whoever sends a larger one waits for the answer, or it would be back at once
CHUNK = 16  # bytes that say how large a chunk of a body is
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass(eq=False)
class Gate:
    """Which connections there are.

    Parameters:
        most: connections in all.
        from_one: connections from one address.
        seconds: in which the head of a request has to come.
        head: bytes that it may have.
    """

    most: int
    from_one: int
    seconds: float
    head: int = HEAD
    turned_away: int = 0  # connections that made room for others
    _open: dict[Gated, None] = field(default_factory=dict)  # the one silent longest first
    _counts: dict[str, int] = field(default_factory=dict)

    def enter(self, new: Gated) -> None:
        """Let a connection in, and another one go where there are too many."""
        self._open[new] = None
        self._counts[new.address] = self._counts.get(new.address, 0) + 1
        if self._counts[new.address] > self.from_one:
            self._make_room(new, new.address)
        if len(self._open) > self.most:
            self._make_room(new, None)

    def leave(self, gone: Gated) -> None:
        """A connection is closed."""
        if gone in self._open:
            del self._open[gone]
            self._counts[gone.address] -= 1
            if not self._counts[gone.address]:
                del self._counts[gone.address]

    def heard(self, one: Gated) -> None:
        """A connection has been of use: others go first."""
        if one in self._open:
            del self._open[one]
            self._open[one] = None

    def _make_room(self, new: Gated, address: str | None) -> None:
        for each in self._open:
            if each.idle and each is not new and address in (None, each.address):
                self.turned_away += 1
                each.drop()
                return

    def protocol(self) -> type[Gated]:
        """The protocol of connections that go through this gate."""
        return type("GatedHere", (Gated,), {"gate": self})


class Gated(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, with an eye on the heads of requests."""

    gate: Gate
    address = ""
    _head = 0  # bytes of the present request's head
    _in_body = False  # whether the body of a request is still to come, answered or not
    _beside = 0  # bytes that came with a body and are none of it: sizes of chunks, what follows the last of them
    _refused = False
    _leaving = False  # whether the connection is closed with the end of the body
    _timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def connection_made(self, transport: Any) -> None:
        """Go through the gate, and wait for the head of a request."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.gate.enter(self)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room."""
        self._stop_waiting()
        self.gate.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes before the head of a request is whole."""
        if self.transport.is_closing():
            return
        if not self._in_body:
            self._head += len(data)
            if self._timer is None:
                self._wait()
        else:
            self._beside += len(data)
        super().data_received(data)
        if not self._in_body and self._head > self.gate.head:
            self._refuse_later()
        elif self._in_body and self._beside > self.gate.head:
            self.drop()  # headers after the body have no end, and would be kept until they have

    def on_headers_complete(self) -> None:
        """The head has come in time; one that came at once may still be too large."""
        self._stop_waiting()
        self._head, self._beside, self._in_body = 0, 0, True
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self.gate.head:
            self._refuse_later()
        if not self._refused:
            super().on_headers_complete()
            if self.cycle is not None:
                self.cycle.transport = Answering(self)

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on, unless the request was refused for its head."""
        self._beside = max(0, self._beside - len(body) - CHUNK)
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is whole; what comes next is the head of another request."""
        self._in_body = False
        if not self._refused:
            super().on_message_complete()
        if self._leaving:
            self.transport.close()

    def on_response_complete(self) -> None:
        """The connection was of use. Of a request that was answered early the rest of the body is read and dropped, for
        whoever still sends it would not see the answer else; but not for ever."""
        self.gate.heard(self)
        super().on_response_complete()
        if self._in_body and self._timer is None and not self.pipeline:
            self._timer = self.loop.call_later(self.gate.seconds, self.transport.close)

    def leave(self) -> None:
        """Close the connection once the body has come, too: whoever still sends it would not see the answer else."""
        if self._in_body:
            self._leaving = True  # and `on_response_complete` sees to it that this ends
        else:
            self.transport.close()

    def drop(self) -> None:
        """Make room for another connection."""
        self.connections.discard(self)
        self.gate.leave(self)
        self.transport.abort()

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.gate.seconds, self._refuse, TOO_SLOW)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_later(self) -> None:
        """Refuse a head that is too large, and read no more of it: each of those who send one again and again, over a
        new connection each time, would take as much of the one event loop as a hundred senders of events."""
        self._stop_waiting()
        if not self._refused and not self.transport.is_closing():
            self._refused = True
            self.transport.pause_reading()
            self._timer = self.loop.call_later(PENALTY, self._refuse, TOO_LARGE)

    def _refuse(self, answer: bytes) -> None:
        self._stop_waiting()
        self._refused = True
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()


class Answering(asyncio.Transport):
    """The connection as an answer sees it, which may be complete before the body of its request has come."""

    def __init__(self, connection: Gated) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: Any) -> None:
        """Send a part of the answer."""
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return bool(self._connection.transport.is_closing())

    def close(self) -> None:
        """There is no more to send."""
        self._connection.leave()
