"""Worst lift on both sides and LDP level of every mechanism over 10,000 random beliefs, from the integer tables; and
what calls of several events leak, exactly, beside their budget and ledger."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks import calls
from seqveil import mechanisms
from tests.reference.checks import random_beliefs

BELIEFS = 10_000
EVENTS = 4


def run(data: Path | None) -> dict[str, dict[str, float]]:
    return _tables() | _calls()


def _calls() -> dict[str, dict[str, float]]:
    print(f"\nall calls of up to {EVENTS} events, a sticky chain of two states, ε=1")
    print(f"  {'budget':<34}{'policy':<9}{'leaked':>9}{'above budget or ledger':>25}")
    found, worst = {}, -np.inf
    with calls.scripted() as script, tempfile.TemporaryDirectory() as folder:
        for name in calls.BUDGETS:
            for policy in calls.POLICIES:
                setting = calls.setting_of(name, policy)
                stored = calls.InStore(Path(folder, f"{name}-{policy}.db"), setting)
                got = [
                    calls.worst_of_all(place, script, setting, length)
                    for place in (calls.InMemory(setting), stored)
                    for length in range(1, EVENTS + 1)
                ]
                stored.store.close()
                leaked, excess = max(each.leaked for each in got), max(each.excess for each in got)
                worst = max(worst, excess)
                found[f"calls, {name}, {policy}"] = {"leaked": leaked, "excess": excess}
                print(f"  {name:<34}{policy:<9}{leaked:>9.6f}{excess:>25.1e}")
    print(f"  worst excess of exact leakage: {worst:.1e} ({'none' if worst <= 1e-9 else 'NOT sound'})")
    return found


def _tables() -> dict[str, dict[str, float]]:
    print(f"{BELIEFS} beliefs (flat, peaked, with zeros, with 1e-12), n=2..24, ε=.05..5; sound means all at most 1")
    print(f"  {'mechanism':<22}{'upper/ε':>10}{'lower/ε':>10}{'LDP/2ε':>10}   declared")
    found = {}
    for name in mechanisms.instantaneous():
        chosen, rng, worst = mechanisms.get(name), np.random.default_rng(3), np.zeros(3)
        for _ in range(BELIEFS // 50):
            epsilon = float(rng.choice([0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0]))
            beliefs = random_beliefs(50, int(rng.integers(2, 25)), rng)
            kernels = chosen.kernels(beliefs, epsilon)
            least, largest = kernels.lift_bounds(beliefs, whole_alphabet=chosen.sound)
            level = kernels.ldp().max() / (2 * epsilon)
            worst = np.maximum(worst, [largest.max() / epsilon, -least.min() / epsilon, level])
        found[name] = dict(zip(("upper", "lower", "ldp"), map(float, worst), strict=True))
        declared = "sound" if chosen.sound else "NOT sound"
        declared += ", all at most 1" if (worst <= 1).all() else ", passes 1"
        print(f"  {name:<22}{worst[0]:>10.6f}{worst[1]:>10.6f}{worst[2]:>10.6f}   {declared}")
    return found
