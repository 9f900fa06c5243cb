"""GRR of multi-freq-ldpy: counts of its outputs for every input, or its speed. JSON in, JSON out."""

import json
import sys
import time
from importlib.metadata import version

import numpy as np
from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Client
from numba import njit


@njit(boundscheck=True)
def tally(symbol, n, epsilon, draws):
    counts = np.zeros(n, np.int64)
    for _ in range(draws):
        counts[GRR_Client(symbol, n, epsilon)] += 1
    return counts


@njit
def compiled(symbols, n, epsilon):
    out = np.empty_like(symbols)
    for at in range(symbols.size):
        out[at] = GRR_Client(symbols[at], n, epsilon)
    return out


def speed(n, epsilon, events):
    """Events a second: called from Python once an event, and in a compiled loop around it."""
    symbols = np.random.default_rng(1).integers(0, n, events)
    compiled(symbols[:10], n, epsilon)
    start = time.perf_counter()
    compiled(symbols, n, epsilon)
    between = time.perf_counter()
    for symbol in symbols.tolist():
        GRR_Client(symbol, n, epsilon)
    return {"compiled loop": events / (between - start), "per call": events / (time.perf_counter() - between)}


job = json.load(sys.stdin)
answer = {"version": version("multi-freq-ldpy")}
if "cases" in job:
    answer["counts"] = [
        [tally(symbol, case["n"], case["epsilon"], case["draws"]).tolist() for symbol in range(case["n"])]
        for case in job["cases"]
    ]
if "speed" in job:
    GRR_Client(0, 2, 1.0)
    answer["speed"] = [speed(**case) for case in job["speed"]]
json.dump(answer, sys.stdout)
