"""Releases that keep declared secrets: what is told is as true as it can be while no secret's odds move too far.

A release is the pure step of `stream`, whose public state holds the accounts of the secrets too (`State.watches`): the
kernel is a function of these accounts, so a receiver who knows the setting and the releases comes to the same one.

*Guarantee*, for an observer who believes the model (or one of `observers`): for every secret, at every time and for
every outcome, Pr(y_1..t | E) / Pr(y_1..t | not E) lies between e^-ε and e^ε of that secret (on one side where it is
declared so). It is a total: it does not grow with the length of the stream. Without `epsilon` nothing is promised about
the whole sequence, nor without a model: what tells nothing about a secret is told as it is. With `epsilon` every
release is also sound at ε, hence 2ε-LDP, as those of any sound mechanism.

A table is checked from its integers before a coin is thrown; one that keeps every promise always exists, because saying
the same whatever the truth is leaves all odds as they are.
"""

from __future__ import annotations

from seqveil.core.secrets import Watches
from seqveil.core.secrets.bounds import Bounds
from seqveil.core.secrets.solving import Floor, guarded
from seqveil.core.secrets.tables import Table
from seqveil.release.setting import Setting


def table(setting: Setting, watches: Watches) -> Table:
    """The integer table of the next release: a function of what is public alone, checked before anything is drawn.

    Parameters:
        setting: one whose mechanism is "guarded".
        watches: the accounts of its secrets so far, those of the state of one user.

    >>> from seqveil import MarkovModel, secrets
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> setting = Setting.of(model, "guarded", secrets=secrets.ever(1, epsilon=0.5, window="first 3"))
    >>> table(setting, setting.watches).outputs.tolist()
    [0, 1]
    """
    watches.check_room()
    epsilon = None if setting.unbounded else setting.epsilon
    bounds = Bounds.of(watches, setting.opening)
    floor = None if setting.floor is None else Floor(setting.floor, setting.sensitive)
    return guarded(bounds, setting.distortion, setting.blank, not setting.withhold, epsilon, floor)
