"""The service while others abuse it: latency of single events and of /healthz, beside the same without them.

Each attack runs from threads of this process against a service in a process of its own; figures are milliseconds. At
the end all at once: single events at a fixed rate, while readers page through a long stream and four connections abuse
it, both from processes of their own. Latency then counts from when a request was due, as in `benchmarks.service`;
beside it stands how many processors the service kept busy: far below 1, the machine had none left for it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.service import CONNECTIONS, QUANTILES, RATE, TIMES, processor, serving, single_events

SECONDS = 3.0  # of each attack
SILENT = 1000  # connections that say nothing
USERS = 20_000
CROWD = (("readers", 16), ("headers", 4))
CONTEXT = multiprocessing.get_context("spawn")

Attack = Callable[[int, str, threading.Event], None]


def run(data: Path | None) -> dict[str, object]:
    found: dict[str, object] = {}
    print("single events and /healthz during an attack, ms:")
    for name, attack, count in ATTACKS:
        with serving("admin") as (port, token):
            fill(port, token)
            with attacked(port, token, attack, count):
                time.sleep(0.3)
                found[name] = measured(port, token)
        disclosed = found[name]
        assert isinstance(disclosed, dict)
        print(f"  {name:<24} " + "  ".join(f"{key} {value:.1f}" for key, value in disclosed.items()), flush=True)
    found["all at once"] = [all_at_once() for _ in range(TIMES)]
    return found


def all_at_once() -> dict[str, float]:
    """Single events at a fixed rate beside readers and abusers, and what the service's processor did meanwhile."""
    with serving("admin") as (port, token):
        fill(port, token)
        ending = CONTEXT.Event()
        crowd = [CONTEXT.Process(target=attacking, args=(port, token, *each, ending)) for each in CROWD]
        for process in crowd:
            process.start()
        time.sleep(3.0)  # until they are all at it
        before, begin = processor(port, token), time.perf_counter()
        waits = asyncio.run(single_events(port, token))
        busy = (processor(port, token) - before) / (time.perf_counter() - begin)
        ending.set()
        for process in crowd:
            process.join(30)
    disclosed = {f"p{q}": float(np.percentile(waits, q)) for q in QUANTILES} | {"processors": busy}
    print(
        f"  {RATE} events/s, {CONNECTIONS} connections, 16 readers, 4 endless headers: "
        + "  ".join(f"{key} {value:.2f}" for key, value in disclosed.items()),
        flush=True,
    )
    return disclosed


def attacking(port: int, token: str, name: str, count: int, ending: Any) -> None:
    """So many threads of a process that do the same until it is to end."""
    with attacked(port, token, {"readers": reading, "headers": endless_header}[name], count):
        ending.wait()


def fill(port: int, token: str) -> None:
    """Some users, and one of them with a long stream."""
    for begin in range(0, USERS, 5000):
        post(port, token, [event(f"user {begin + k}", 0) for k in range(5000)])
    for begin in range(0, 4000, 1000):
        post(port, token, [event("long", begin + k) for k in range(1000)])


def measured(port: int, token: str) -> dict[str, float]:
    single, health, seq, end = [], [], 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        single.append(timed(lambda seq=seq: post(port, token, [event("ann", seq)])))
        health.append(timed(lambda: get(port, token, "/healthz")))
        seq += 1
        time.sleep(0.01)
    figures = (("event", single), ("health", health))
    return {f"{name} p{q}": float(np.percentile(times, q)) for name, times in figures for q in (50, 99)}


def timed(act: Callable[[], int]) -> float:
    begin = time.perf_counter()
    status = act()
    if status != 200:
        raise RuntimeError(f"the service answered {status}")
    return 1000 * (time.perf_counter() - begin)


def event(user: str, seq: int) -> dict[str, object]:
    return {"user": user, "seq": seq, "value": 0}


def post(port: int, token: str, events: list[dict[str, object]]) -> int:
    body = json.dumps({"events": events})
    return asked(port, token, "POST", "/v1/release", body)


def get(port: int, token: str, path: str) -> int:
    return asked(port, token, "GET", path, None)


def asked(port: int, token: str, method: str, path: str, body: str | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@contextmanager
def attacked(port: int, token: str, attack: Attack, count: int) -> Iterator[None]:
    ending = threading.Event()

    def again() -> None:
        while not ending.is_set():
            with suppress(OSError, http.client.HTTPException):
                attack(port, token, ending)

    threads = [threading.Thread(target=again, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join(10)


def nothing(port: int, token: str, ending: threading.Event) -> None:
    ending.wait()


def endless_header(port: int, token: str, ending: threading.Event) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nX-Long: ")
        while not ending.is_set():
            line.sendall(b"x" * 65_536)
            time.sleep(0.001)


def silence(port: int, token: str, ending: threading.Event) -> None:
    crowd = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(SILENT)]
    ending.wait()
    for line in crowd:
        line.close()


def reading(port: int, token: str, ending: threading.Event) -> None:
    get(port, token, "/v1/users/long/releases?since=0&limit=1000")


def out_of_order(port: int, token: str, ending: threading.Event) -> None:
    post(port, token, [event(f"user {threading.get_ident() % 1000}", 100)])


def scraping(port: int, token: str, ending: threading.Event) -> None:
    get(port, token, "/metrics")


ATTACKS: tuple[tuple[str, Attack, int], ...] = (
    ("nobody", nothing, 1),
    ("4 endless headers", endless_header, 4),
    ("1000 silent connections", silence, 1),
    ("16 readers", reading, 16),
    ("8 out of order", out_of_order, 8),
    ("4 scrapers", scraping, 4),
)
