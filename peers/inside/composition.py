"""dp-accounting: what k releases that are each ε-DP cost together, by its own accountants. JSON in, JSON out.

The worst ε-DP release has privacy loss ±ε, as binary randomised response at ε has: that is what is composed.
"""

import json
import math
import sys
from importlib.metadata import version

import dp_accounting
from dp_accounting import pld, rdp
from dp_accounting.pld import common, privacy_loss_distribution

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


def response(epsilon):
    """Binary randomised response at ε: a fair coin in place of the truth with probability 2/(1+e^ε)."""
    return dp_accounting.RandomizedResponseDpEvent(2 / (1 + math.exp(epsilon)), 2)


def renyi(epsilon, releases, orders):
    accountant = rdp.RdpAccountant(orders=orders, neighboring_relation=REPLACE)
    accountant.compose(response(epsilon), releases)
    return accountant


def totals(epsilon, releases, delta, orders, step):
    """ε(δ) by privacy loss distribution and by Rényi orders, the Rényi curve, and ε(0) both ways."""
    pure = common.DifferentialPrivacyParameters(epsilon, 0)
    single = privacy_loss_distribution.from_privacy_parameters(pure, value_discretization_interval=step)
    together = single.self_compose(releases, tail_mass_truncation=0)
    accountant = renyi(epsilon, releases, orders)
    return {
        "pld": together.get_epsilon_for_delta(delta),
        "pld_at_0": together.get_epsilon_for_delta(0),
        "rdp": accountant.get_epsilon(delta),
        "curve": accountant.rdp.tolist(),
        "rdp_at_0": float(renyi(epsilon, releases, [math.inf]).rdp[0]),
    }


def counted(epsilon, releases, delta):
    """ε(δ) of its PLD accountant for the same releases given at once, with their count, and one by one."""
    at_once, singly = pld.PLDAccountant(REPLACE), pld.PLDAccountant(REPLACE)
    at_once.compose(response(epsilon), releases)
    for _ in range(releases):
        singly.compose(response(epsilon))
    return {"at_once": at_once.get_epsilon(delta), "singly": singly.get_epsilon(delta)}


job = json.load(sys.stdin)
json.dump(
    {
        "version": version("dp-accounting"),
        "totals": [totals(**case) for case in job["totals"]],
        "counted": [counted(**case) for case in job["counted"]],
    },
    sys.stdout,
)
