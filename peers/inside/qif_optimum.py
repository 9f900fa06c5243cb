"""qif: the least expected loss of all ε-LDP channels, and its randomised response. JSON in, JSON out."""

import json
import sys
from importlib.metadata import version

import numpy as np
import qif


def least_loss(prior, epsilon, costs):
    """Σ π(x) C(y|x) D(x,y) of qif's best channel, how far its rows are from one, and the ε it really has."""
    prior, costs = np.array(prior), np.array(costs)
    n = len(prior)
    channel = qif.mechanism.d_privacy.min_loss_given_d(
        prior, n, lambda x, y: epsilon * (x != y), lambda x, y: float(costs[x, y])
    )
    used = channel[:, channel.max(0) > 0]
    with np.errstate(divide="ignore"):
        level = float(np.log(used.max(0) / used.min(0)).max())
    return {
        "loss": float((prior[:, None] * channel * costs).sum()),
        "level": level if np.isfinite(level) else None,
        "rows": float(np.abs(channel.sum(1) - 1).max()),
    }


job = json.load(sys.stdin)
json.dump(
    {
        "version": version("qif"),
        "optima": [least_loss(**case) for case in job["optima"]],
        "responses": [
            qif.mechanism.d_privacy.randomized_response(case["n"], case["epsilon"]).tolist()
            for case in job["responses"]
        ],
    },
    sys.stdout,
)
