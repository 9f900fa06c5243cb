"""The service under load from a second process over loopback: latency of single events, events per second in batches.

Latency counts from the moment a request was due, whether or not the load could send it then: a stalled server is not
spared the requests it kept waiting. Beside it stands the service's processor time, which a busy machine changes little.

`python -m benchmarks.service --memory` sends five million events and prints the service's memory along the way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

from benchmarks.store import EPSILON, GROUP, SYMBOLS, bare, chain, durable, events

RATE, SECONDS, CONNECTIONS = 500, 8, 16  # of single events
AT_ONCE = 2  # requests of a thousand events that wait at the same time
USERS, TIMES = 10_000, 3
QUANTILES = (50, 90, 99, 100)


def run(data: Path | None) -> dict[str, object]:
    stream = list(events(USERS))
    print(f"one event a request, {RATE} requests/s for {SECONDS} s on {CONNECTIONS} connections, n={SYMBOLS}, ms:")
    latencies = []
    for _ in range(TIMES):  # machines are noisy: all runs are shown
        with serving("admin") as (port, token):
            before = processor(port, token)
            waits = asyncio.run(single_events(port, token))
            busy = 1000 * (processor(port, token) - before) / (RATE * (SECONDS + 1))
        latencies.append({f"p{q}": float(np.percentile(waits, q)) for q in QUANTILES} | {"processor": busy})
        print("  " + "  ".join(f"{name} {wait:.2f}" for name, wait in latencies[-1].items()), flush=True)
    rates, busy = {"service": 0.0, "store": 0.0, "bare": 0.0}, float("inf")
    for _ in range(TIMES):  # in turn, the best of each
        with serving("admin") as (port, token):
            before = processor(port, token)
            rates["service"] = max(rates["service"], asyncio.run(in_batches(port, token, stream)))
            busy = min(busy, 1e6 * (processor(port, token) - before) / (GROUP * len(stream)))
        rates["store"] = max(rates["store"], durable(stream, "optimal"))
        rates["bare"] = max(rates["bare"], bare(stream))
    print(f"{GROUP} events a request, {AT_ONCE} requests at a time, {USERS:,} users, events/s, best of {TIMES}:")
    print(f"  service {rates['service']:,.0f}  store alone {rates['store']:,.0f}  bare map {rates['bare']:,.0f}")
    print(f"  processor time of the service {busy:.1f} µs an event: {1e6 / busy:,.0f} events/s of one processor")
    return {"single_ms": latencies, "events_per_second": rates, "processor_us_per_event": busy}


def memory(events: int, parts: int = 10) -> dict[str, float]:
    """Resident memory of the service along so many events, 1000 a request; each user has one event a round."""
    print(f"{events:,} events of {USERS:,} users, {GROUP} a request, n={SYMBOLS}: resident memory of the service, MB")
    seen: dict[str, float] = {}
    with serving("admin") as (port, token):
        for part in range(parts):
            rounds = range(part * events // USERS // parts, (part + 1) * events // USERS // parts)
            begin = time.perf_counter()
            asyncio.run(in_rounds(port, token, rounds))
            rate = len(rounds) * USERS / (time.perf_counter() - begin)
            done, held = rounds.stop * USERS, metric(port, token, "process_resident_memory_bytes") / 1e6
            seen[f"{done:,}"] = held
            print(f"  {done:>10,} events: {held:,.0f}  ({rate:,.0f} events/s)", flush=True)
    return seen


async def in_rounds(port: int, token: str, rounds: range) -> None:
    """One event of every user in each round."""
    connection, rng = await Connection(port, token).open(), np.random.default_rng(rounds.start)
    for seq in rounds:
        for first in range(0, USERS, GROUP):
            values = rng.integers(0, SYMBOLS, GROUP).tolist()
            rows = [{"user": f"user-{first + k}", "seq": seq, "value": value} for k, value in enumerate(values)]
            await connection.post(json.dumps({"events": rows}).encode())
    connection.close()


def processor(port: int, token: str) -> float:
    """Seconds of processor time that the service has used, as it tells itself."""
    return metric(port, token, "process_cpu_seconds_total")


def metric(port: int, token: str, name: str) -> float:
    """A figure that the service tells of itself."""
    asked = Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urlopen(asked, timeout=60) as answer:
        found = re.search(rf"^{name} (.*)$".encode(), answer.read(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@contextmanager
def serving(*scopes: str) -> Iterator[tuple[Any, ...]]:
    """A server in a process of its own: its port, and a token for each scope."""
    with tempfile.TemporaryDirectory() as folder:
        chain().save(Path(folder, "model"))
        seqveil = [sys.executable, "-m", "seqveil"]
        add, tokens = [*seqveil, "serve", "token", "add", f"{folder}/tokens", "--scope"], []
        for scope in scopes:
            made = subprocess.run([*add, scope], capture_output=True, text=True, check=True)
            tokens.append(made.stdout.strip())
        Path(folder, "policy.toml").write_text(f"epsilon = {EPSILON}\n")
        options = f"--policy {folder}/policy.toml --state {folder}/state.db --tokens {folder}/tokens --port 0"
        options += f" --model {folder}/model"
        with open(Path(folder, "log"), "w+") as log:
            server = subprocess.Popen([*seqveil, "serve", "--begin", *options.split()], stderr=log)
            try:
                yield _port(server, Path(folder, "log")), *tokens
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait(60)


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    for _ in range(3000):  # the first start compiles, which takes minutes on a busy machine
        found = re.search(r"http://[^:]*:(\d+)", log.read_text())
        if found:
            return int(found[1])
        if server.poll() is not None:
            raise RuntimeError("the server did not start")
        time.sleep(0.1)
    raise RuntimeError("the server did not start in five minutes")


class Connection:
    """One connection that is kept open."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = (
            f"POST /v1/release HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        )

    async def open(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        return self

    async def post(self, body: bytes) -> None:
        self._writer.write(f"{self._head}{len(body)}\r\n\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        size = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
        answer = await self._reader.readexactly(size)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())

    def close(self) -> None:
        self._writer.close()


async def single_events(port: int, token: str) -> np.ndarray:
    """Milliseconds of each request, from when it was due."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await Connection(port, token).open())
    rng, waits = np.random.default_rng(3), []

    async def one(number: int, due: float) -> None:
        connection = await free.get()
        event = {"user": f"single-{number}", "seq": 0, "value": int(rng.integers(SYMBOLS))}
        await connection.post(json.dumps({"events": [event]}).encode())
        waits.append(1000 * (time.perf_counter() - due))
        free.put_nowait(connection)

    async def load(first: int, count: int) -> None:
        begin, tasks = time.perf_counter() + 0.01, []
        for k in range(count):
            due = begin + k / RATE
            await asyncio.sleep(due - time.perf_counter())
            tasks.append(asyncio.create_task(one(first + k, due)))
        await asyncio.gather(*tasks)

    await load(0, RATE)  # a second to warm up
    waits.clear()
    await load(RATE, RATE * SECONDS)
    while not free.empty():
        free.get_nowait().close()
    return np.array(waits)


def bodies_of(number: int, stream: list[tuple[list[str], np.ndarray, np.ndarray]]) -> list[bytes]:
    """Every other transaction of the stream, as requests about users that no other connection has."""
    following: dict[str, int] = {}
    bodies = []
    for users, _, codes in stream[number::AT_ONCE]:
        rows = []
        for user, code in zip(users, codes.tolist(), strict=True):
            seq = following.get(user, 0)
            following[user] = seq + 1
            rows.append({"user": f"{number}-{user}", "seq": seq, "value": code})
        bodies.append(json.dumps({"events": rows}).encode())
    return bodies


async def in_batches(port: int, token: str, stream: list[tuple[list[str], np.ndarray, np.ndarray]]) -> float:
    """Events a second, with so many requests under way at a time."""
    work = [(await Connection(port, token).open(), bodies_of(number, stream)) for number in range(AT_ONCE)]

    async def send(connection: Connection, bodies: list[bytes]) -> None:
        for body in bodies:
            await connection.post(body)

    begin = time.perf_counter()
    await asyncio.gather(*(send(*each) for each in work))
    seconds = time.perf_counter() - begin
    for connection, _ in work:
        connection.close()
    return GROUP * len(stream) / seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--memory", action="store_true", help="the memory of the service along many events")
    parser.add_argument("--events", type=int, default=5_000_000, help="with --memory: how many")
    chosen = parser.parse_args()
    if chosen.memory:
        memory(chosen.events)
    else:
        run(None)
