"""Expected error before anything is released: the public name of `seqveil.receiver.planning`."""

from seqveil.receiver.planning import (
    Plan,
    PlanRow,
    SecretRow,
    best_period,
    plan,
    simulate,
    simulate_batches,
    simulate_secrets,
    smoothed,
)

__all__ = [
    "Plan",
    "PlanRow",
    "SecretRow",
    "best_period",
    "plan",
    "simulate",
    "simulate_batches",
    "simulate_secrets",
    "smoothed",
]
