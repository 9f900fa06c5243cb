"""Direct encoding (GRR) of pure-ldp: counts of its outputs for every input, or its speed. JSON in, JSON out."""

import json
import sys
import time
from collections import Counter
from importlib.metadata import version

import numpy as np
from pure_ldp.frequency_oracles.direct_encoding import DEClient


def client(n, epsilon):
    return DEClient(epsilon, n, index_mapper=int)  # its default mapper takes 1..n in and gives 0..n-1 out


def tally(n, epsilon, draws):
    release = client(n, epsilon).privatise
    for symbol in range(n):
        seen = Counter(release(symbol) for _ in range(draws))
        yield [seen.pop(code, 0) for code in range(n)]


def speed(n, epsilon, events):
    symbols, release = np.random.default_rng(1).integers(0, n, events).tolist(), client(n, epsilon).privatise
    start = time.perf_counter()
    for symbol in symbols:
        release(symbol)
    return {"per call": events / (time.perf_counter() - start)}


job = json.load(sys.stdin)
answer = {"version": version("pure-ldp")}
if "cases" in job:
    answer["counts"] = [list(tally(**case)) for case in job["cases"]]
if "speed" in job:
    answer["speed"] = [speed(**case) for case in job["speed"]]
json.dump(answer, sys.stdout)
