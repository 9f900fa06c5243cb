"""Declared secrets: a total promise about what matters, and the exact account of it for any mechanism.

>>> import seqveil as sv
>>> secret = sv.secrets.ever("clinic", epsilon=0.5, window="first 20")
>>> model = sv.MarkovModel([0.8, 0.2], [[0.9, 0.1], [0.6, 0.4]], alphabet=["home", "clinic"])
>>> trackers = sv.secrets.SecretTrackers.start(model, secret)
>>> disclosed = trackers.observe([0.6, 0.4]).rows[0][0].latest  # home makes what was released likelier
>>> disclosed.lowest <= disclosed.log_odds < 0
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
