"""Kill `seqveil release --state` with kill -9 again and again, then count what is lost, doubled, changed or uncharged.

So is whatever takes events as they come: the service, the bridges (MQTT with restarts of its broker), and Spark from
its first second on. A kill counts where it ended a process that was alive, and what ended before is begun anew. Under a
key event k of a user must be what a run that is not killed releases, blocks and what secrets remember included.

`python -m benchmarks.kills` is the whole trial: 200 kills over files, then 200 of the live ones (`--live`);
`python -m benchmarks kills` is a short one.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import bridge, live_kills
from benchmarks.live_kills import KINDS, Kills, judged, key_in, options
from benchmarks.store import SYMBOLS, chain
from seqveil.interfaces.spark.sessions import has_java


def run(
    data: Path | None, kills: int = 9, events: int = 20_000, users: int = 2_000, live: int = 12
) -> dict[str, float]:
    print(f"{kills} kills of releases of {events:,} events of {users:,} users, n={SYMBOLS}, then {live} live ones")
    found = dict[str, float]()
    for at, kind in enumerate(KINDS):
        figures = files((kills + at) // len(KINDS), kind, events, users)
        print(f"  files, {kind}: " + ", ".join(f"{key} {value:,.0f}" for key, value in figures.items()), flush=True)
        found |= {f"files {kind} {key}": value for key, value in figures.items()}
    return found | live_trials(live)


def live_trials(kills: int) -> dict[str, float]:
    """Three tenths of the kills for the service and each bridge, the rest for Spark, which starts slowly."""
    some = kills * 3 // 10
    trials: dict[str, tuple[bool, int, Callable[[int], dict[str, float]]]] = {
        "service": (True, some, live_kills.service),
        "MQTT": (bridge.PROGRAM is not None, some, bridge.kill_trials),
        "Kafka": (True, some, live_kills.kafka),
        "Spark": (has_java(), kills - 3 * some, live_kills.spark),
    }
    found: dict[str, float] = {}
    for name, (there, count, trial) in trials.items():
        if not there or not count:
            print(f"  {name}: nothing was killed; mosquitto or Java is missing, or no kills were left for it")
            continue
        verdict = trial(count)
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


def files(kills: int, kind: str, events: int, users: int) -> dict[str, float]:
    """Kill the release of one kind, of as many files as that needs, and look at what each run left in the end."""
    done, rounds, found = Kills(), 0, dict[str, float]()
    while done.hits < kills:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare(folder, events, users)
            command = [sys.executable, "-m", "seqveil", "release", "data.csv", *options(folder, kind)]
            command += ["--out", "out.csv"]
            kill_again_and_again(folder, command, events, kills, done, random.Random(f"{kind} {rounds}"))
            subprocess.run(command, cwd=folder, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            rounds += 1
            found = {key: found.get(key, 0) + value for key, value in verdict(folder, kind).items()}
    return {**done.figures(), "when all was released": done.late, "files": rounds, **found}


def kill_again_and_again(
    folder: Path, command: list[str], events: int, kills: int, done: Kills, chance: random.Random
) -> None:
    """Kill it as it starts and as it releases, at last twice as it writes the output; until one run ends by itself."""
    stride, output, most = 2 * events / kills, folder / "out.csv", done.late + 2
    while done.hits < kills and done.late < most and not output.exists():
        before, begun = released(folder), time.monotonic()
        target = before + chance.random() * stride if chance.random() < 0.8 else 0
        running = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while running.poll() is None and released(folder) < min(target, events):
            time.sleep(0.001)
        time.sleep(chance.random() * (4.0 if target == 0 or target >= events else 0.05))
        after, hits = released(folder), done.hits
        done.kill(running, after == before < events, time.monotonic() - begun)
        done.late += after >= events and done.hits > hits


def released(folder: Path) -> int:
    """How many releases the state file has by now, and the few other changes, as what lies beside it says."""
    lock = folder / "state.db-lock"
    return int.from_bytes(lock.read_bytes()[:8], "big") if lock.exists() else 0


def verdict(folder: Path, kind: str) -> dict[str, int]:
    """Rows lost or doubled, releases that differ, and users whose account is not what a receiver computes."""
    import polars as pl

    data, out = (pl.read_csv(folder / f"{name}.csv") for name in ("data", "out"))
    rows = np.bincount(out["seq"].to_numpy(), minlength=data.height)
    moved = int((out["user"] != data["user"]).sum()) if out.height == data.height else data.height
    counts = {"lost": int((rows == 0).sum()), "doubled": int((rows > 1).sum()), "out of place": moved}
    raw, codes = (frame["value"].to_numpy().astype(np.int64) for frame in (data, out))
    setting = KINDS[kind].on(chain())
    return counts | judged(folder / "state.db", setting, out["user"].to_list(), raw, codes, key_in(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--live", type=int, default=200, help="kills of service, bridges and Spark in all")
    chosen = parser.parse_args()
    if chosen.kills:
        run(None, chosen.kills, chosen.events, chosen.users, chosen.live)
    else:
        live_trials(chosen.live)
