"""What an attack found: the verdict with its figures, in words and as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from seqveil.core.words import DisclosedSecret, Grade, Line, Result, Risk, count, percent, plain

Verdict = Literal["not refuted", "broken", "not decided"]
_WORST_FIRST: tuple[Verdict, ...] = ("broken", "not decided", "not refuted")


@dataclass(frozen=True)
class AttackerGuess:
    """The set of releases that was picked on one half of the people, and how it did on the windows of the other half.

    `share_true`, `share_false`: how many of the windows were in the set of those where the guess is true, and of the
    others, windows of one number compared with one another.
    """

    attacker: str
    target: str
    says: Literal["has it", "has it not"]
    share_true: float
    share_false: float
    likelihood_ratio: float  # how much likelier the set is where the guess is true
    unit: str = "windows"  # what is singled out: "people" where each has one window

    @property
    def sentence(self) -> str:
        """How the guess did on the people who had no part in picking it."""
        true, false = ("with", "without") if self.says == "has it" else ("without", "with")
        return (
            f"{self.attacker} singles out {percent(self.share_true)} of the {self.unit} {true} {self.target} and "
            f"{percent(self.share_false)} of those {false}, {self.likelihood_ratio:.3g} times as often"
        )


@dataclass(frozen=True)
class Finding:
    """What one attack found.

    `epsilon_at_least` is a lower bound on the realised ε at the stated false-alarm rate, `epsilon_estimate` what the
    guess showed, `epsilon_noticeable` the smallest leak that these people would have shown to be above ε.
    """

    about: str
    verdict: Verdict
    epsilon_claimed: float | None
    epsilon_at_least: float
    epsilon_estimate: float | None
    epsilon_noticeable: float | None
    people: int
    windows: int
    false_alarm: float
    people_needed: int | None = None  # to decide, or to attack it at all, where that is a number
    guess: AttackerGuess | None = None
    red: str = ""  # why the release was graded red already, if it was

    @property
    def sentence(self) -> str:
        """The verdict as a person can read it."""
        said = "nothing was promised" if self.epsilon_claimed is None else f"promised ε = {self.epsilon_claimed:.3g}"
        if self.epsilon_estimate is not None:
            sure = f"at least {self.epsilon_at_least:.3g}, {percent(1 - self.false_alarm)} sure"
            said += f", the attack shows {self.epsilon_estimate:.3g} ({sure})"
        said = f"{self.verdict}: {said}, on {count(self.people, 'person', 'people')}"
        said += f" with {count(self.windows, 'window')}" if self.windows != self.people else ""
        if self.verdict != "broken" and self.epsilon_noticeable is not None:
            said += f"; a leak of {self.epsilon_noticeable:.3g} would have been noticed"
        if self.epsilon_estimate is None:
            said += "; too few of them have the secret, or have it not"
        if self.people_needed is not None:
            aim = "attack it" if self.epsilon_estimate is None else "decide"
            said += f"; it would take about {self.people_needed:,} people to {aim}"
        return said

    @property
    def grade(self) -> Grade | None:
        """Of what was promised, by what the attack and the release itself found; None where nothing was promised."""
        if self.epsilon_claimed is None:
            return None
        people = count(self.people, "person", "people")
        undone = f"the promise is broken for {people}" if self.verdict == "broken" else self.red
        doubts = (f"an attack on {people} decided nothing",) if self.verdict == "not decided" else ()
        support = f"an attack on {people} did not refute it"
        promised = (DisclosedSecret(self.about, self.epsilon_claimed),)
        return Risk(0.0, secrets=promised, doubts=doubts, support=support, undone=undone).grade

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain values."""
        colour = None if self.grade is None else self.grade.colour
        return dict(plain(asdict(self) | {"sentence": self.sentence, "grade": colour}))


@dataclass(frozen=True, repr=False)
class Findings(Result):
    """What an attack found, one finding for each secret."""

    attacks: tuple[Finding, ...]

    @property
    def worst(self) -> Finding:
        """The finding to heed first: broken before not decided before not refuted, then the largest lower bound."""
        return min(self.attacks, key=lambda one: (_WORST_FIRST.index(one.verdict), -one.epsilon_at_least))

    def lines(self) -> list[Line]:
        """What was found, line by line."""
        said = []
        for one in self.attacks:
            said += [("attacked", one.about), ("verdict", one.sentence)]
            said += [] if one.grade is None else [("grade", f"of what was promised: {one.grade.text}")]
            if one.guess is not None:
                times = one.guess.likelihood_ratio  # odds of 1 : 9 became times : 9
                side = f"{'with' if one.guess.says == 'has it' else 'without'} {one.guess.target}"
                means = f"for one of the {one.guess.unit} singled out, a suspicion of 10 % to be {side} becomes"
                said += [("guess", one.guess.sentence), ("means", f"{means} {percent(times / (times + 9))}")]
        return said

    def to_dict(self) -> dict[str, Any]:
        """The worst finding, and all of them under `attacks`."""
        return self.worst.to_dict() | {"attacks": [one.to_dict() for one in self.attacks]}
