"""An attack on real people that needs no model of ours: is a promise broken for them?

Every whole window of every person is attacked. People are split in two. From the releases and the truth of one half,
classifiers learn to guess a secret from releases alone, those of the window and all others of the same person, and the
one guess that seems to reveal most is picked: a set R of releases, "score at least c" or "at most c". On the other
half, whose people had no part in picking it, the guess is scored once. If the promise holds for people, then

    Pr(R | E) ≤ e^ε Pr(R | not E)      (both sides: also with E and not E exchanged)

for every set R and every window. `bounds` has the lower bound on ε that the other half gives: people are taken as
independent draws, windows of one person are not, and nothing else is assumed.

One guess is scored, however many attackers there were to pick it from, and several splits of the people share the
false-alarm rate. So a promise that holds is called broken with a probability of at most `false_alarm`. A promise that
is broken may go unnoticed, where the attackers are too weak or the people too few. Hence three verdicts:

 - *broken*: the lower bound is above ε;
 - *not refuted*: the estimate is within ε, and a leak of twice ε would have been noticed with these people;
 - *not decided*: the estimate is above ε and the bound is not, or there are too few people.
"""

from seqveil.evaluate.attack.finding import AttackerGuess, Finding, Findings
from seqveil.evaluate.attack.guess import FALSE_ALARM, attack_labels, attack_secret, windows_of

__all__ = [
    "FALSE_ALARM",
    "AttackerGuess",
    "Finding",
    "Findings",
    "attack_labels",
    "attack_secret",
    "windows_of",
]
