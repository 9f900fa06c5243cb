"""An attack on real people that needs no model of ours: is a promise broken for them?

From one half of the people classifiers learn to guess a secret from releases alone, and the one guess that seems to
reveal most is picked: a set R of releases. It is scored once, on the other half. If the promise holds, then

    Pr(R | E) ≤ e^ε Pr(R | not E)      (both sides: also with E and not E exchanged)

for every set R and every window. So a promise that holds is called broken with a probability of at most `false_alarm`.

 - *broken*: the lower bound on ε (`bounds`) is above what was promised;
 - *not refuted*: the estimate is within it, and a leak of twice ε would have been noticed with these people;
 - *not decided*: the estimate is above it and the bound is not, or there are too few people.

Reference: docs/contexts.md, "Is the promise broken for real people?".
"""

from seqveil.evaluate.attack.finding import AttackerGuess, Finding, Findings
from seqveil.evaluate.attack.guess import FALSE_ALARM, attack_labels, attack_secret

__all__ = [
    "FALSE_ALARM",
    "AttackerGuess",
    "Finding",
    "Findings",
    "attack_labels",
    "attack_secret",
]
