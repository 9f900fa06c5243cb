"""The service while others abuse it: latency of honest events, how many were refused, and the service's memory.

Each attack runs in a process of its own and from another address of the loopback than the honest sender, who opens a
connection for every event. Beside each stands the same without an attack, from the same run. At the end all at once:
single events at a fixed rate, while readers page through a long stream and four connections send headers without end.
Latency then counts from when a request was due, as in `benchmarks.service`; beside it stands how many processors the
service kept busy: far below 1, the machine had none left for it.

A busy machine is known by `late`: how much later than asked the honest sender wakes up between two events, at p99,
which no service can change. What an attack costs the service is `processor`, its ms of processor time an honest event.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.service import CONNECTIONS, QUANTILES, RATE, TIMES, metric, processor, serving, single_events

SECONDS = 6.0  # of each attack
USERS = 20_000
HOME, AWAY = "127.0.0.1", "127.0.0.2"  # of the honest sender, and of all others
CONTEXT = multiprocessing.get_context("spawn")
HEAD = b"POST /v1/release HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

COLUMNS = ("p50", "p99", "p100", "late", "processor", "sent", "refused", "MB before", "MB after")
PAUSE = 0.01  # seconds between two honest events
TOGETHER = (*(f"p{q}" for q in QUANTILES), "processors")

Attack = Callable[[int, str, Any], None]


def run(data: Path | None) -> dict[str, object]:
    found: dict[str, object] = {}
    print(
        f"honest events one after another, each on a connection of its own, during {SECONDS:g} s of an attack: ms, MB"
    )
    print(f"{'attack':<38}" + "".join(f"{name:>10}" for name in COLUMNS))
    for name, attack, count in ATTACKS:
        with serving("admin", "release") as (port, token, other):
            fill(port, token)
            figures = measured(port, token, attack, count, other if attack is slow_body else token)
        found[name] = figures
        print(f"{name:<38}" + "".join(f"{figures[key]:>10,.1f}" for key in COLUMNS), flush=True)
    print(f"\n{RATE} single events a second on {CONNECTIONS} connections beside 16 readers and 4 endless headers, ms:")
    print("".join(f"{name:>12}" for name in TOGETHER))
    together = []
    for _ in range(TIMES):
        together.append(all_at_once())
        print("".join(f"{together[-1][name]:>12.2f}" for name in TOGETHER), flush=True)
    return found | {"all at once": together}


def all_at_once() -> dict[str, float]:
    """Single events at a fixed rate beside readers and abusers, and what the service's processor did meanwhile."""
    with serving("admin") as (port, token):
        fill(port, token)
        with Attacked(port, token, reading, 16), Attacked(port, token, endless_header, 4):
            before, begin = processor(port, token), time.perf_counter()
            waits = asyncio.run(single_events(port, token))
            busy = (processor(port, token) - before) / (time.perf_counter() - begin)
    return {f"p{q}": float(np.percentile(waits, q)) for q in QUANTILES} | {"processors": busy}


def fill(port: int, token: str) -> None:
    """Some users, and one of them with a long stream."""
    for begin in range(0, USERS, 1000):
        post(port, token, [event(f"user {begin + k}", 0) for k in range(1000)])
    for begin in range(0, 4000, 200):
        post(port, token, [event("long", begin + k) for k in range(200)])


def measured(port: int, token: str, attack: Attack, count: int, attacker: str) -> dict[str, float]:
    waits, late, refused, seq = list[float](), list[float](), 0, 0
    before = memory(port, token)
    with Attacked(port, attacker, attack, count):
        end, spent = time.monotonic() + SECONDS, processor(port, token)
        while time.monotonic() < end:
            begin = time.perf_counter()
            try:
                good = post(port, token, [event("ann", seq)], 10.0) == 200
            except (OSError, http.client.HTTPException):
                good = False
            waits.append(1000 * (time.perf_counter() - begin))
            seq, refused, begin = seq + good, refused + (not good), time.perf_counter()
            time.sleep(PAUSE)
            late.append(1000 * (time.perf_counter() - begin - PAUSE))
        busy = 1000 * (processor(port, token) - spent) / len(waits)
    after = memory(port, token)
    figures = {f"p{q}": float(np.percentile(waits, q)) for q in (50, 99, 100)}
    figures |= {"late": float(np.percentile(late, 99)), "processor": busy}
    return figures | {"sent": len(waits), "refused": refused, "MB before": before, "MB after": after}


def memory(port: int, token: str) -> float:
    """Of the service, in millions of bytes; it may take a while until it answers."""
    for _ in range(10):
        with suppress(OSError, http.client.HTTPException):
            return metric(port, token, "process_resident_memory_bytes") / 1e6
    return float("nan")


def event(user: str, seq: int) -> dict[str, object]:
    return {"user": user, "seq": seq, "value": 0}


def post(port: int, token: str, events: list[dict[str, object]], timeout: float = 60.0) -> int:
    return asked(port, token, "POST", "/v1/release", json.dumps({"events": events}), HOME, timeout)


def asked(
    port: int, token: str, method: str, path: str, body: str | None, address: str = AWAY, timeout: float = 60.0
) -> int:
    connection = http.client.HTTPConnection(HOME, port, timeout=timeout, source_address=(address, 0))
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


class Attacked:
    """So many threads of another process that do the same again and again."""

    def __init__(self, port: int, token: str, attack: Attack, count: int) -> None:
        self._ending, begun = CONTEXT.Event(), CONTEXT.Event()
        given = (port, token, attack.__name__, count, begun, self._ending)
        self._process, self._begun = CONTEXT.Process(target=attacking, args=given), begun

    def __enter__(self) -> Attacked:
        self._process.start()
        self._begun.wait(60)
        time.sleep(1.0)  # until they are all at it
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._process.join(30)


def attacking(port: int, token: str, name: str, count: int, begun: Any, ending: Any) -> None:
    attack: Attack = globals()[name]

    def again() -> None:
        while not ending.is_set():
            with suppress(OSError, http.client.HTTPException):
                attack(port, token, ending)

    threads = [threading.Thread(target=again, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    begun.set()
    ending.wait()


def connected(port: int) -> socket.socket:
    return socket.create_connection((HOME, port), timeout=5, source_address=(AWAY, 0))


def nothing(port: int, token: str, ending: Any) -> None:
    ending.wait()


def endless_header(port: int, token: str, ending: Any) -> None:
    with connected(port) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nX-Long: ")
        while not ending.is_set():
            line.sendall(b"x" * 65_536)
            time.sleep(0.001)


def silent(port: int, token: str, ending: Any) -> None:
    held(port, ending, 1000, b"", b"")


def slow_head(port: int, token: str, ending: Any) -> None:
    held(port, ending, 200, b"GET /healthz HTTP/1.1\r\nX-Long: ", b"x")


def slow_body(port: int, token: str, ending: Any) -> None:
    """With a good token, and a body that never comes to its end."""
    head = HEAD + f"Authorization: Bearer {token}\r\n".encode() + b"Content-Length: 5000\r\n\r\n"
    held(port, ending, 1200, head, b" ")


def held(port: int, ending: Any, count: int, first: bytes, then: bytes) -> None:
    """Connections that say something at first and then a little every second; one that is closed is opened again."""
    lines = [opened(port, first) for _ in range(count)]
    while not ending.wait(1.0):
        for k, line in enumerate(lines):
            try:
                with suppress(BlockingIOError):
                    if not line.recv(65_536):
                        raise ConnectionResetError
                line.send(then)
            except OSError:
                line.close()
                with suppress(OSError):
                    lines[k] = opened(port, first)


def opened(port: int, first: bytes) -> socket.socket:
    line = connected(port)
    line.sendall(first)
    line.setblocking(False)
    return line


def unread(port: int, token: str, ending: Any) -> None:
    """Requests by the thousand whose answers nobody reads, without a token."""
    content, lines = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3000, selectors.DefaultSelector()
    for _ in range(150):
        lines.register(opened(port, b""), selectors.EVENT_WRITE)
    while not ending.is_set():
        for key, _ in lines.select(0.1):
            try:
                key.fileobj.send(content)  # type: ignore[union-attr]
            except BlockingIOError:
                pass
            except OSError:
                lines.unregister(key.fileobj)
                with suppress(OSError):
                    lines.register(opened(port, b""), selectors.EVENT_WRITE)
        time.sleep(0.01)


def tiny_chunks(port: int, token: str, ending: Any) -> None:
    """A body of chunks of one byte, without a token."""
    with connected(port) as line:
        line.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            line.sendall(b"1\r\nx\r\n" * 11_000)
        line.recv(100)


def without_token(port: int, token: str, ending: Any) -> None:
    asked(port, "sv_no_one", "POST", "/v1/release", '{"events": []}')


def reading(port: int, token: str, ending: Any) -> None:
    asked(port, token, "GET", "/v1/users/long?since=0&limit=1000", None)


def out_of_order(port: int, token: str, ending: Any) -> None:
    asked(port, token, "POST", "/v1/release", json.dumps({"events": [event("user 1", 100)]}))


def scraping(port: int, token: str, ending: Any) -> None:
    asked(port, token, "GET", "/metrics", None)


ATTACKS: tuple[tuple[str, Attack, int], ...] = (
    ("nobody", nothing, 1),
    ("4 endless headers", endless_header, 4),
    ("200 slow heads", slow_head, 1),
    ("1,000 silent connections", silent, 1),
    ("150 connections that read no answer", unread, 1),
    ("4 bodies of one-byte chunks", tiny_chunks, 4),
    ("16 callers without a token", without_token, 16),
    ("1,200 slow bodies of one token", slow_body, 1),
    ("16 readers", reading, 16),
    ("8 senders out of order", out_of_order, 8),
    ("4 scrapers", scraping, 4),
)
