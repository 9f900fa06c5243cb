"""Randomised response of OpenDP: counts for every input, its privacy map, or its speed. JSON in, JSON out.

A case gives `truth`, the probability of telling the truth, because that is what OpenDP asks for.
"""

import json
import sys
import time
from collections import Counter
from importlib.metadata import version

import opendp.prelude as dp

dp.enable_features("contrib")


def tally(n, truth, draws):
    release = dp.m.make_randomized_response(list(range(n)), prob=truth)
    for symbol in range(n):
        seen = Counter(release(symbol) for _ in range(draws))
        yield [seen[code] for code in range(n)]


def speed(n, truth, events):
    release = dp.m.make_randomized_response(list(range(n)), prob=truth)
    start = time.perf_counter()
    for event in range(events):
        release(event % n)
    return {"per call": events / (time.perf_counter() - start)}


def level(n, truth):
    """The ε that OpenDP proves for one symbol in place of another."""
    return dp.m.make_randomized_response(list(range(n)), prob=truth).map(1)


job = json.load(sys.stdin)
answer = {"version": version("opendp")}
if "cases" in job:
    answer["counts"] = [list(tally(**case)) for case in job["cases"]]
if "levels" in job:
    answer["levels"] = [level(**case) for case in job["levels"]]
if "speed" in job:
    answer["speed"] = [speed(**case) for case in job["speed"]]
json.dump(answer, sys.stdout)
