"""Kill `seqveil release --state` with kill -9 again and again, then count what is lost, doubled, or off in an account.

So is whatever takes events as they come: the bridge with restarts of its broker, the service, and Spark from its first
second on. `python -m benchmarks.kills` is the whole trial: 200 kills over 10^6 events of 10^5 users, then 200 of the
live ones (`--live`); `python -m benchmarks kills` is a short one.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np

from benchmarks import bridge, live_kills
from benchmarks.store import EPSILON, SYMBOLS, chain
from seqveil.core.bulk import numbered
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.receiver.evidence import Followed

MECHANISM = "balanced"


def run(
    data: Path | None, kills: int = 10, events: int = 50_000, users: int = 5_000, live: int = 12
) -> dict[str, float]:
    print(f"{kills} kills of the release of {events:,} events of {users:,} users, n={SYMBOLS}, {MECHANISM}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, events, users)
        start = time.perf_counter()
        done, early = kill_again_and_again(folder, kills)
        seconds = time.perf_counter() - start
        found = {"kills": done, "while starting": early, "seconds": seconds, **verdict(folder)}
    print("  " + ", ".join(f"{key} {value:,.0f}" for key, value in found.items()), flush=True)
    return found | live_trials(live)


def live_trials(kills: int) -> dict[str, float]:
    """Half of the kills for the bridge, four tenths for the service, the rest for Spark, which starts slowly."""
    from seqveil.interfaces.spark.sessions import has_java

    parts = {"bridge": kills // 2, "service": kills * 4 // 10}
    parts["spark"] = kills - sum(parts.values())
    trials: dict[str, Callable[[int], dict[str, float]]] = {"service": live_kills.service, "spark": live_kills.spark}
    if bridge.PROGRAM is not None:
        trials["bridge"] = bridge.kill_trials
    if not has_java():
        del trials["spark"]
    found: dict[str, float] = {}
    for name, count in parts.items():
        if name not in trials or not count:
            print(f"  {name}: nothing was killed; mosquitto or Java is missing, or no kills were left for it")
            continue
        verdict = trials[name](count)
        print(f"  {name}: " + ", ".join(f"{key} {value:,.0f}" for key, value in verdict.items()), flush=True)
        found |= {f"{name} {key}": value for key, value in verdict.items()}
    return found


def prepare(folder: Path, events: int, users: int) -> None:
    """A file whose order column numbers its rows, so that all rows of the output are distinct."""
    import polars as pl

    rng = np.random.default_rng(2)
    names = pl.Series("user", [f"user-{user}" for user in rng.integers(0, users, events)])
    values = pl.Series("value", rng.integers(0, SYMBOLS, events))
    pl.DataFrame([names, pl.Series("seq", range(events)), values]).write_csv(folder / "data.csv")
    chain().save(folder / "model.npz")


def command() -> list[str]:
    options = ["--model", "model.npz", "--epsilon", f"{EPSILON}", "--mechanism", MECHANISM]
    seqveil = [sys.executable, "-m", "seqveil", "release", "data.csv"]
    return [*seqveil, *options, "--out", "out.csv", "--state", "state.db"]


def kill_again_and_again(folder: Path, kills: int) -> tuple[int, int]:
    """Kill it as the output grows or, now and then, as it starts; then let it finish. How many, how many early."""
    chance, out, done, early = random.Random(3), folder / "out.csv", 0, 0
    stride = (folder / "data.csv").stat().st_size / kills  # what a run may add on average, so that all kills are needed
    for _ in range(kills):
        starting = chance.random() < 0.1
        target = (out.stat().st_size if out.exists() else 0) + chance.random() * 2 * stride
        running = subprocess.Popen(command(), cwd=folder, stderr=subprocess.DEVNULL)
        if starting:
            time.sleep(chance.random())
        while not starting and running.poll() is None and not (out.exists() and out.stat().st_size >= target):
            time.sleep(0.001)
        time.sleep(chance.random() * 0.02)
        running.kill()
        killed = running.wait() == -signal.SIGKILL
        done, early = done + killed, early + (killed and starting)
    subprocess.run(command(), cwd=folder, check=True, stderr=subprocess.DEVNULL)
    return done, early


def verdict(folder: Path) -> dict[str, int]:
    """Rows lost or doubled, and users whose account is not what a receiver computes from the output alone."""
    import polars as pl

    data, out = (pl.read_csv(folder / f"{name}.csv") for name in ("data", "out"))
    rows = np.bincount(out["seq"].to_numpy(), minlength=data.height)
    setting = Policy(epsilon=EPSILON, mechanism=MECHANISM).on(MarkovModel.load(folder / "model.npz"))
    receiver, index = Followed(setting), dict[Hashable, int]()
    for part in out.iter_slices(20_000):
        users, codes = numbered(index, part["user"].to_list()), part["value"].to_numpy().astype(np.int64)
        for _ in receiver.observe(users, codes):
            pass
    implied = receiver.state.take(slice(len(index)))
    with CodeStreams.open(folder / "state.db", setting) as store:
        kept = store.accounts()
    place = {user: k for k, user in enumerate(kept.users)}
    order = np.array([place[user] for user in index])
    off = (kept.events[order] != implied.steps) | (kept.epsilon_spent[order] != implied.spent)
    off |= (kept.most[order] != implied.account.most) | (kept.least[order] != implied.account.least)
    return {
        "lost": int((rows == 0).sum()),
        "doubled": int((rows > 1).sum()),
        "out of place": int((out["user"] != data["user"]).sum()) if out.height == data.height else data.height,
        "accounts off": int(off.sum()) + abs(len(kept.users) - len(implied)),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--live", type=int, default=200, help="kills of bridge, service and Spark in all")
    chosen = parser.parse_args()
    if chosen.kills:
        run(None, chosen.kills, chosen.events, chosen.users, chosen.live)
    else:
        live_trials(chosen.live)
