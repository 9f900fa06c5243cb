"""A fleet on an accelerator beside the compiled fleet on one to all cores of the same machine: events a second,
and whether the releases are the same. Skipped where torch finds no CUDA device."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.scale import EPSILON, SYMBOLS, rate, sticky
from seqveil import Setting
from seqveil.core import bulk, fast
from seqveil.core.coins import SeededCoins, SystemCoins
from seqveil.engine.accelerated import DeviceFleet
from seqveil.engine.stream import State, step


def run(data: Path | None) -> list[dict[str, float]]:
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("skipped: torch finds no CUDA device here")
        return []
    how = "compiled" if fast.load() else "numpy"
    print(f"{torch.cuda.get_device_name()}, n={SYMBOLS}, optimal, ε={EPSILON:g}; events/s, coins and copies included")
    counts = sorted({count for count in (1, 2, 4, 8) if count < bulk.threads()} | {bulk.threads()})
    shown = "".join(f"{f'{how}, {count} cores':>20}" for count in counts)
    print(f"  {'users':>10}{'device':>14}{shown}{'all of device':>15}{'coins alone':>14}  same releases")
    rows = []
    for users in (10_000, 100_000, 1_000_000):
        row = {"users": users, "device": device_rate(users)}
        row |= {f"cores_{count}": _on_cores(users, count) for count in counts}
        start = time.perf_counter()
        SystemCoins().draw(users)
        row["coins"] = users / (time.perf_counter() - start)
        row["same"] = float(same(users))
        speeds = "".join(f"{row[f'cores_{count}']:>20,.0f}" for count in counts)
        share = row[f"cores_{counts[-1]}"] / row["device"]
        print(
            f"  {users:>10,}{row['device']:>14,.0f}{speeds}{share:>15.2f}{row['coins']:>14,.0f}"
            f"  {'yes' if row['same'] else 'NO'}"
        )
        rows.append(row)
    return rows


def _on_cores(users: int, count: int) -> float:
    """Events a second of the compiled fleet on so many cores."""
    with patch.object(bulk, "threads", lambda: count):
        return rate(sticky(SYMBOLS), "optimal", users)


def device_rate(users: int, events: int = 8) -> float:
    model = sticky(SYMBOLS)
    fleet, coins = DeviceFleet(Setting.of(model, "optimal", EPSILON), users), SystemCoins()
    codes = np.ascontiguousarray(model.sample(events, users, seed=1).T)
    spent = []
    for event in codes:
        start = time.perf_counter()
        fleet.release(event, coins)  # returns when the releases are on the host
        spent.append(time.perf_counter() - start)
    return users / min(spent[2:])


def same(users: int, events: int = 3) -> bool:
    """Whether device and core release the same codes and come to the same beliefs, to the last bit."""
    model = sticky(SYMBOLS)
    setting = Setting.of(model, "optimal", EPSILON)
    ours, theirs = DeviceFleet(setting, users), State.start(setting, users)
    mine, other = SeededCoins(5), SeededCoins(5)
    for event in np.ascontiguousarray(model.sample(events, users, seed=2).T):
        released, theirs = step(setting, theirs, event, other)
        if not np.array_equal(ours.release(event, mine), released.codes):
            return False
    return np.array_equal(ours.states(), theirs.states)
