"""What the streams of many users tell about declared secrets, in one figure a secret."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from seqveil.core.secrets import Secret, Watches, words


@dataclass(frozen=True)
class SecretTotal:
    """What was told about one declared secret, to whomever of the observers learned most, by whichever user's stream.

    log B is the factor by which the odds of the secret moved, as a logarithm: `lowest` and `highest` are its extremes
    over all users, windows and times, rounded outward.
    """

    name: str  # as the command line spells it
    sentence: str
    epsilon: float | None  # what was promised; None where nothing was
    users: int
    log_odds_worst: float  # the largest |log B| (on one side the largest log B) of any user, in any window, at any time
    log_odds_last: float  # the largest |log B| that any stream ended with, in the window of its last event
    lowest: float
    highest: float

    @property
    def kept(self) -> bool | None:
        """Whether the promise was kept; None where there was none."""
        return None if self.epsilon is None else self.log_odds_worst <= self.epsilon


def totals(
    secrets: Sequence[Secret], accounts: Iterable[Watches | None], promised: Sequence[float | None] | None = None
) -> list[SecretTotal]:
    """The totals of these secrets over the accounts of all users.

    `promised` are what to compare with, where that is not the ε of each secret; None where there was no promise.
    """
    users = 0
    worst, last, lowest, highest = ([0.0] * len(secrets) for _ in range(4))
    for each in accounts:
        if each is None:
            continue
        users += 1
        for row in each.rows:
            for k, watch in enumerate(row):
                most = watch.worst
                worst[k] = max(worst[k], most.worst(watch.secret.sides))
                last[k] = max(last[k], abs(watch.log_odds))
                lowest[k], highest[k] = min(lowest[k], most.lowest), max(highest[k], most.highest)
    epsilons = [secret.epsilon for secret in secrets] if promised is None else promised
    columns = zip(secrets, epsilons, worst, last, lowest, highest, strict=True)
    return [
        SecretTotal(secret.name, _sentence(secret, epsilon), epsilon, users, *figures)
        for secret, epsilon, *figures in columns
    ]


def _sentence(secret: Secret, epsilon: float | None) -> str:
    return words.about(secret) if epsilon is None else replace(secret, epsilon=epsilon).sentence
