"""Lower bounds on ε from the counts of an attack, by privacy-estimates. JSON in, JSON out."""

import json
import sys
from importlib.metadata import version

from privacy_estimates import compute_eps_lo
from privacy_estimates.utils import AttackResults


def bound(method, alpha, **counts):
    return compute_eps_lo(AttackResults(**counts), delta=0.0, alpha=alpha, method=method)


job = json.load(sys.stdin)
answer = {"version": version("privacy-estimates"), "bounds": [bound(**case) for case in job["cases"]]}
json.dump(answer, sys.stdout)
