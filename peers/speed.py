"""Events per second of the peers' randomised response beside our fleet, in the same run.

The peers draw one output for one input. The fleet also keeps every user's belief and exact account, draws from the
operating system's randomness (multi-freq-ldpy and pure-ldp use Mersenne twisters) and checks each table before drawing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from peers.environments import MULTI_FREQ, OPENDP, PURE, Unavailable, ask, set_up
from peers.response import speed_cases
from seqveil import MarkovModel
from seqveil.core import bulk
from seqveil.core.randomness import SystemRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State, step

SIZES = (17, 100)
EPSILON = 1.0
EVENTS = 200_000  # of a peer; OpenDP gets a twentieth
STREAMS = {17: (100_000, 5), 100: (10_000, 5)}  # users and events each of the fleet
MECHANISMS = ("randomized_response", "crr", "optimal")
ROUNDS = 3  # everything in turn, the quickest counts: the machine's other work then weighs on all alike


def measure() -> dict[str, Any]:
    """{"epsilon", "versions", "skipped", "events_per_second": {n: {name: figure}}}; peers as `package (how)`."""
    versions: dict[str, str] = {}
    skipped: dict[str, str] = {}
    figures: dict[str, dict[str, float]] = {str(n): {} for n in SIZES}
    bulk.load()
    jobs = speed_cases(SIZES, EPSILON, EVENTS)
    for peer in (MULTI_FREQ, PURE, OPENDP):
        try:
            set_up(peer)
        except Unavailable as reason:
            skipped[peer.name] = str(reason)
    for _ in range(ROUNDS):
        for peer in (MULTI_FREQ, PURE, OPENDP):
            if peer.name not in skipped:
                answer = ask(peer, {"speed": jobs[peer.name]})
                versions[peer.name] = answer["version"]
                for n, found in zip(SIZES, answer["speed"], strict=True):
                    keep(figures[str(n)], {f"{peer.name} ({how})": rate for how, rate in found.items()})
        for n in SIZES:
            keep(figures[str(n)], fleet_rates(n))
    return {"epsilon": EPSILON, "versions": versions, "skipped": skipped, "events_per_second": figures}


def keep(best: dict[str, float], found: dict[str, float]) -> None:
    for name, rate in found.items():
        best[name] = max(rate, best.get(name, 0.0))


def fleet_rates(n: int) -> dict[str, float]:
    """Events a second of our fleet on a sticky chain, by mechanism."""
    rng, (users, events) = np.random.default_rng(n), STREAMS[n]
    sticky = 0.6 * np.eye(n) + 0.4 * rng.dirichlet(np.full(n, 0.5), n) + 1e-4
    model = MarkovModel(np.full(n, 1 / n), sticky / sticky.sum(1, keepdims=True))
    codes = np.ascontiguousarray(model.sample(events, users, seed=n).T)
    rates = {}
    for mechanism in MECHANISMS:
        setting, randomness = Policy(epsilon=EPSILON, mechanism=mechanism).on(model), SystemRandomness()
        state = State.start(setting, users)
        spent = []
        for event in codes:
            start = time.perf_counter()
            _, state = step(setting, state, event, randomness)
            spent.append(time.perf_counter() - start)
        rates[f"seqveil {mechanism}"] = users / min(spent)
    return rates


def show(found: dict[str, Any]) -> None:
    """Events a second, and how many times as quick as our randomised response, optimal and crr each is."""
    print(f"events per second at ε={found['epsilon']:g}; then as a multiple of ours")
    for n, figures in found["events_per_second"].items():
        print(f"\n| n = {n} | events/s | " + " | ".join(f"× {name}" for name in MECHANISMS) + " |")
        print("|---" * (2 + len(MECHANISMS)) + "|")
        for name, rate in sorted(figures.items(), key=lambda item: -item[1]):
            ratios = " | ".join(f"{rate / figures[f'seqveil {mechanism}']:.3g}" for mechanism in MECHANISMS)
            print(f"| {name} | {rate:,.0f} | {ratios} |")
    for name, reason in found["skipped"].items():
        print(f"skipped {name}: it could not be installed ({reason})")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m peers.speed", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    as_json = parser.parse_args().json
    found = measure()
    if as_json:
        json.dump(found, sys.stdout, indent=1)
    else:
        show(found)


if __name__ == "__main__":
    main()
