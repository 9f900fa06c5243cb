"""Declared secrets: a total promise about what matters, and the exact account of it for any mechanism.

>>> import seqveil as sv
>>> secret = sv.secrets.ever("clinic", epsilon=0.5, window="first 20")
>>> model = sv.MarkovModel([0.8, 0.2], [[0.9, 0.1], [0.6, 0.4]], alphabet=["home", "clinic"])
>>> tracker = sv.secrets.SecretTracker.start(model, secret)
>>> tracker = tracker.observe([0.6, 0.4])  # something was released that home makes likelier than the clinic does
>>> tracker.lowest <= tracker.log_odds < 0
True
"""

from seqveil.core.secrets.account import SecretTracker, SecretTrackers
from seqveil.core.secrets.declared import (
    Secret,
    always,
    count,
    during,
    ever,
    followed_by,
    from_dict,
    joint,
    pattern,
    trait,
    zone,
)  # fmt: skip

__all__ = [
    "Secret",
    "SecretTracker",
    "SecretTrackers",
    "always",
    "count",
    "during",
    "ever",
    "followed_by",
    "from_dict",
    "joint",
    "pattern",
    "trait",
    "zone",
]
