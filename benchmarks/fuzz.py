"""Nonsense sent to the service: requests made from its own OpenAPI document, and bytes that are hardly HTTP.

Counted are answers of 500, and stalls: an honest event that took longer than a second while the nonsense went on.
SEQVEIL_FUZZ_SECONDS says how long each part takes (300).
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.abuse import CONTEXT, event, post
from benchmarks.service import serving

SECONDS = float(os.environ.get("SEQVEIL_FUZZ_SECONDS", "300"))
STALL = 1000.0  # milliseconds
SEED = 7


def run(data: Path | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, act in (("OpenAPI", from_schema), ("raw sockets", raw_bytes)):
        with serving("admin") as (port, token), Honest(port, token) as honest:
            answers = act(port, token, time.monotonic() + SECONDS)
        failures = sum(count for status, count in answers.items() if status == 500)
        stalls = sum(wait > STALL for wait in honest.waits)
        disclosed = (
            f"{sum(answers.values()):,} requests, {failures} answers of 500; {len(honest.waits):,} honest events, "
        )
        disclosed += f"{honest.refused} refused, {stalls} longer than a second (the longest {max(honest.waits):.0f} ms)"
        print(f"{name}, {SECONDS:g} s: {disclosed}", flush=True)
        print("  " + "  ".join(f"{status}: {count:,}" for status, count in sorted(answers.items())))
        found[name] = {"requests": sum(answers.values()), "500": failures, "stalls": stalls, "refused": honest.refused}
    return found


class Honest:
    """Somebody who sends an event every 50 ms meanwhile, in a process of its own, and how long each took."""

    def __init__(self, port: int, token: str) -> None:
        self._ending, self._disclosed = CONTEXT.Event(), CONTEXT.SimpleQueue()
        self._process = CONTEXT.Process(target=send_honestly, args=(port, token, self._ending, self._disclosed))
        self.waits: list[float] = []
        self.refused = 0

    def __enter__(self) -> Honest:
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self.waits, self.refused = self._disclosed.get()
        self._process.join()


def send_honestly(port: int, token: str, ending: Any, disclosed: Any) -> None:
    seq, refused, waits = 0, 0, list[float]()
    while not ending.wait(0.05):
        begin = time.perf_counter()
        if post(port, token, [event("honest", seq)]) == 200:
            seq += 1
        else:
            refused += 1
        waits.append(1000 * (time.perf_counter() - begin))
    disclosed.put((waits, refused))


def from_schema(port: int, token: str, end: float) -> Counter[int]:
    """Requests that fit the document, and requests that do not, in turn over all operations."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis.errors import Unsatisfiable

    document = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    answers: Counter[int] = Counter()
    headers = {"Authorization": f"Bearer {token}"}
    dice, few = random.Random(SEED), settings(max_examples=30, deadline=None, database=None)

    def try_all(operation: object, mode: schemathesis.GenerationMode) -> None:
        @seed(dice.randrange(1 << 30))
        @settings(few, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))  # type: ignore[attr-defined]
        def send(case: object) -> None:
            if time.monotonic() < end:
                answers[case.call(headers=headers, timeout=30).status_code] += 1  # type: ignore[attr-defined]

        send()

    impossible: set[tuple[int, str]] = set()
    while time.monotonic() < end:
        for k, operation in enumerate(operations):
            for mode in schemathesis.GenerationMode:
                if (k, str(mode)) in impossible or time.monotonic() > end:
                    continue
                try:
                    try_all(operation, mode)
                except Unsatisfiable:  # nothing about it can be wrong
                    impossible.add((k, str(mode)))
    return answers


def raw_bytes(port: int, token: str, end: float) -> Counter[int]:
    """Requests spoilt in every way that the list below has, several ways at once."""
    dice, answers = random.Random(SEED), Counter[int]()
    while time.monotonic() < end:
        content = request(token, dice)
        for _ in range(dice.randrange(4)):
            content = dice.choice(SPOILT)(content, dice)
        try:
            answers[exchange(port, content, dice)] += 1
        except OSError:
            answers[0] += 1  # closed on the way
    return answers


def request(token: str, dice: random.Random) -> bytes:
    body = json.dumps(dice.choice([{"events": [event(f"fuzz {k}", 0) for k in range(5)]}, event("fuzz", 0), [], "x"]))
    method, path = dice.choice([("POST", "/v1/release"), ("GET", "/v1/users/fuzz"), ("GET", "/readyz")])
    who = dice.choice([token, token, "sv_x_y", ""])
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {who}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def exchange(port: int, content: bytes, dice: random.Random) -> int:
    """Send it, whole or in pieces, and read the first status; 0 where none came."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
        cut = dice.randrange(len(content) + 1) if dice.random() < 0.3 else len(content)
        line.sendall(content[:cut])
        line.sendall(content[cut:])
        if dice.random() < 0.1:
            return 0  # gone before the answer
        line.settimeout(0.3)
        found = line.recv(12)
        return int(found[9:12]) if found.startswith(b"HTTP/1.1 ") and found[9:12].isdigit() else 0


def flip(content: bytes, dice: random.Random) -> bytes:
    some = bytearray(content)
    for _ in range(dice.randrange(1, 8)):
        some[dice.randrange(len(some))] = dice.randrange(256)
    return bytes(some)


def insert(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content))
    return content[:at] + dice.randbytes(dice.choice([1, 10, 1000, 50_000])) + content[at:]


def shorten(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(1, len(content) + 1)]


def lie_about_length(content: bytes, dice: random.Random) -> bytes:
    said = dice.choice([b"-1", b"999999999999", b"0", b"1e3", b"\xc2\xb2", b""])
    return content.replace(b"Content-Length: ", b"Content-Length: " + said + b"\r\nX: ", 1)


def chunked(content: bytes, dice: random.Random) -> bytes:
    head, _, body = content.partition(b"\r\n\r\n")
    size = dice.choice([b"%x" % len(body), b"ffffffffffffffff", b"zz", b"-5"])
    return head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + body + b"\r\n0\r\n\r\n"


def twice(content: bytes, dice: random.Random) -> bytes:
    return content * dice.randrange(2, 30)


def large_head(content: bytes, dice: random.Random) -> bytes:
    more = b"X: " + b"y" * dice.choice([100, 30_000, 40_000, 200_000]) + b"\r\n"
    return content.replace(b"\r\n", b"\r\n" + more, 1)


def odd_path(content: bytes, dice: random.Random) -> bytes:
    path = dice.choice([b"/v1/users/%ff%fe", b"/v1/users/" + b"%2F" * 500 + b"?since=-1", b"*", b"//", b"/%00"])
    return content.replace(b"/v1/release", path, 1)


def odd_json(content: bytes, dice: random.Random) -> bytes:
    head, _, _ = content.partition(b"\r\n\r\n")
    body = dice.choice(
        [
            b"[" * 100_000,
            b'{"events": ' + b"[" * 5000,
            b'{"user": "\\ud800", "seq": 0, "value": 1}',
            b'{"user": "a", "seq": 1e400, "value": NaN}',
            b'{"user": "a", "seq": ' + b"9" * 5000 + b', "value": 0}',
            b"\xff\xfe{}",
            b'{"user": "a", "user": "b", "seq": 0, "value": {"a": {}}}',
        ]
    )
    head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


SPOILT: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    insert,
    shorten,
    lie_about_length,
    chunked,
    twice,
    large_head,
    odd_path,
    odd_json,
)
