"""What is killed while events flow in: the service, and Spark from its first second on. The bridge is in `bridge`."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.spark import write
from benchmarks.store import EPSILON, SYMBOLS, chain
from seqveil.core.randomness import KeyedRandomness, key_file
from seqveil.engine.policy import Policy
from seqveil.engine.store import Memory
from seqveil.engine.streams import CodeStreams

MECHANISM, USERS, AT_ONCE = "balanced", 50, 20
POLICY = f'epsilon = {EPSILON}\nmechanism = "{MECHANISM}"\n'


class Sender(threading.Thread):
    """Sends requests one after another, each until it is answered, whatever happens to the service."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port, self._chance, self._ending = port, random.Random(6), threading.Event()
        self.answers: list[tuple[str, str]] = []  # each request and its answer

    def run(self) -> None:
        while not self._ending.is_set():
            first = len(self.answers) * AT_ONCE
            numbers = range(first, first + AT_ONCE)
            rows = [{"user": f"u{k % USERS}", "seq": k // USERS, "value": self._value()} for k in numbers]
            body = json.dumps({"events": rows})
            while (answer := self.asked(body)) is None and not self._ending.is_set():
                time.sleep(0.02)
            if answer is not None:
                self.answers.append((body, answer))

    def _value(self) -> int:
        return self._chance.randrange(SYMBOLS)

    def asked(self, body: str) -> str | None:
        with suppress(OSError, http.client.HTTPException):
            line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            try:
                line.request("POST", "/v1/release", body, {"Content-Type": "application/json"})
                answer = line.getresponse()
                content = answer.read().decode()
                return content if answer.status == 200 else None
            finally:
                line.close()
        return None

    def end(self) -> None:
        self._ending.set()
        self.join()


def service(kills: int) -> dict[str, float]:
    """Kill `seqveil serve` while requests come; then ask for everything again."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        chain().save(Path(folder, "model"))
        Path(folder, "policy.toml").write_text(POLICY)
        files = ["--model", f"{folder}/model", "--policy", f"{folder}/policy.toml", "--state", f"{folder}/state.db"]
        command = [sys.executable, "-m", "seqveil", "serve", "--begin", *files, "--port", f"{port}", "--no-auth"]
        sender, chance = Sender(port), random.Random(7)
        sender.start()
        for _ in range(kills):
            running, before = subprocess.Popen(command, stderr=subprocess.DEVNULL), len(sender.answers)
            awaited(lambda before=before: len(sender.answers) > before, running)
            time.sleep(chance.random() * 0.3)
            running.kill()
            running.wait()
        running, before = subprocess.Popen(command, stderr=subprocess.DEVNULL), len(sender.answers)
        awaited(lambda: len(sender.answers) > before, running)
        sender.end()
        disclosed = [(values(answer), values(sender.asked(body))) for body, answer in sender.answers]
        running.terminate()
        running.wait()
        setting = Policy(epsilon=EPSILON, mechanism=MECHANISM).on(chain())
        with CodeStreams.open(Path(folder, "state.db"), setting) as store:
            there = int(store.accounts().events.sum())
    sent = len(sender.answers) * AT_ONCE
    return {
        "kills": kills,
        "sent": sent,
        "lost": max(0, sent - there),
        "drawn twice": sum(first != again for first, again in disclosed) + max(0, there - sent),
    }


def values(answer: str | None) -> list[Any]:
    """The releases of an answer, without what says that they were there before."""
    return [] if answer is None else [(row["seq"], row["value"]) for row in json.loads(answer)["releases"]]


def awaited(condition: Any, running: subprocess.Popen[bytes], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end or running.poll() is not None:
            raise RuntimeError(f"no progress; the process ended with {running.poll()}")
        time.sleep(0.005)


def spark(kills: int, events: int = 8_000, users: int = 400, files: int = 8) -> dict[str, float]:
    """Kill `seqveil spark release --checkpoint` from its first second on; then let it finish and read what it lists."""
    with tempfile.TemporaryDirectory() as name:
        folder, chance, early = Path(name), random.Random(8), 0
        write(folder / "all", events, users, files)
        coming = sorted((folder / "all").glob("*.parquet"))
        (folder / "in").mkdir()
        chain().save(folder / "model")
        (folder / "policy.toml").write_text(POLICY)
        options = "--model model --policy policy.toml --key key --checkpoint state --out out --log spark.log"
        command = [sys.executable, "-m", "seqveil", "spark", "release", "in", *options.split(), "--master", "local[2]"]
        for kill in range(kills):
            arrived(folder, coming[: 1 + kill * files // kills])
            running = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True)
            moment(folder, running, chance)
            early += not any((folder / "state" / "commits").glob("[0-9]*"))
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        arrived(folder, coming)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            log = (folder / "spark.log").read_text().splitlines()
            said = [line for line in log if "ERROR" in line or "Caused by" in line or "Exception: " in line]
            raise RuntimeError("\n".join([done.stderr, *said[-20:]]))  # the data are made up: Spark may show them
        return {"kills": kills, "before the first commit": early, "sent": events, **rows_of(folder)}


def arrived(folder: Path, coming: list[Path]) -> None:
    """Have these files in the folder that is released."""
    for path in coming:
        if not (folder / "in" / path.name).exists():
            os.link(path, folder / "in" / path.name)


def moment(folder: Path, running: subprocess.Popen[bytes], chance: random.Random) -> None:
    """Wait for a moment to kill: at first within the start, or as soon as some part of a micro-batch is there."""
    count = sum(1 for _ in (folder / "state" / "commits").glob("[0-9]*"))
    stages = ("seqveil.json", f"offsets/{count}", f"state/0/0/{count + 1}.changelog", f"commits/{count}")
    stage = chance.choice(stages[1:] if count else stages)
    wait, end = chance.random() * 6, time.monotonic() + 240
    if chance.random() < 0.3:
        time.sleep(wait)
        return
    while not (folder / "state" / stage).exists() and running.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
    time.sleep(chance.random() * 0.1)


def rows_of(folder: Path) -> dict[str, float]:
    """What the sink lists, beside what streams in memory release with the same key and salt."""
    import polars as pl

    logs = sorted((folder / "out" / "_spark_metadata").glob("[0-9]*"))
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()[1:]]
    listed = {line["path"].rpartition("/")[2] for line in lines if line["action"] == "add"}
    got = pl.concat(pl.read_parquet(folder / "out" / part) for part in sorted(listed))
    raw = pl.concat(pl.read_parquet(path) for path in sorted((folder / "in").glob("*.parquet")))
    setting = Policy(epsilon=EPSILON, mechanism=MECHANISM).on(chain())
    store = Memory()
    store.salt = json.loads((folder / "state" / "metadata").read_text())["id"].encode()
    streams = CodeStreams(setting, store, KeyedRandomness(key_file(folder / "key")))
    made = streams.release(raw["user"].to_list(), raw["value"].to_numpy(), raw["seq"].to_numpy())
    right = dict(zip(zip(raw["user"], raw["seq"], strict=True), made.codes.tolist(), strict=True))
    seen = Counter(zip(got["user"], got["seq"], strict=True))
    return {
        "lost": len(right.keys() - seen.keys()),
        "doubled": sum(count - 1 for count in seen.values()),
        "drawn otherwise": int(
            np.sum([right[user, seq] != value for user, seq, value in got.select("user", "seq", "value").iter_rows()])
        ),
    }
