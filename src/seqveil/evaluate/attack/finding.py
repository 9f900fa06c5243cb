"""What an attack found: the verdict with its figures, in words, as plain values and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from seqveil.core.results import Line, Result, plain
from seqveil.core.words import count
from seqveil.interfaces.sentences import guess_means

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    right: int  # windows in the set where it is true
    of_true: int
    wrong: int  # windows in the set where it is not
    of_false: int
    share_true: float
    share_false: float
    likelihood_ratio: float  # how much likelier the set is where the guess is true

    @property
    def sentence(self) -> str:
        """How the guess did on the people who had no part in picking it."""
        true, false = ("with", "without") if self.says == "has it" else ("without", "with")
        return (
            f"{self.attacker} singles out {self.share_true:.2%} of the windows {true} {self.target} and "
            f"{self.share_false:.2%} of those {false}, {self.likelihood_ratio:.3g} times as often"
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
    people_needed: int | None = None  # to decide, where it is not decided and a number can be named
    guess: AttackerGuess | None = None
    curve: tuple[tuple[float, float, float], ...] = field(default=(), repr=False)  # log ratio: seen, low, high

    @property
    def sentence(self) -> str:
        """The verdict as a person can read it."""
        said = "nothing was promised" if self.epsilon_claimed is None else f"promised ε = {self.epsilon_claimed:.3g}"
        if self.epsilon_estimate is not None:
            sure = f"at least {self.epsilon_at_least:.3g}, {1 - self.false_alarm:.0%} sure"
            said += f", the attack shows {self.epsilon_estimate:.3g} ({sure})"
        said = f"{self.verdict}: {said}, on {count(self.people, 'person', 'people')}"
        said += f" with {count(self.windows, 'window')}" if self.windows != self.people else ""
        if self.verdict == "not refuted":
            said += f"; a leak of {self.epsilon_noticeable:.3g} would have been noticed"
        if self.verdict == "not decided" and self.people_needed is not None:
            said += f"; it would take about {self.people_needed:,} people to decide"
        return said

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain values, without the curve of the picture."""
        facts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "curve"}
        found: dict[str, Any] = plain(facts | {"sentence": self.sentence})
        return found


@dataclass(frozen=True, repr=False)
class Findings(Result):
    """What an attack found, one finding for each secret."""

    title: ClassVar[str] = "Attack"
    attacks: tuple[Finding, ...]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.attacks)

    def __len__(self) -> int:
        return len(self.attacks)

    def __getitem__(self, place: int) -> Finding:
        return self.attacks[place]

    @property
    def worst(self) -> Finding:
        """The finding to heed first: broken before not decided before not refuted, then the largest lower bound."""
        return min(self.attacks, key=lambda one: (_WORST_FIRST.index(one.verdict), -one.epsilon_at_least))

    @property
    def broken(self) -> bool:
        """Whether a promise is broken."""
        return self.worst.verdict == "broken"

    def lines(self) -> list[Line]:
        """What was found, line by line."""
        said = []
        for one in self.attacks:
            said += [("attacked", one.about), ("verdict", one.sentence)]
            if one.guess is not None:
                means = guess_means(one.guess.likelihood_ratio)
                said += [("guess", one.guess.sentence), *([("means", means)] if means else [])]
        return said

    def to_dict(self) -> dict[str, Any]:
        """The worst finding, and all of them under `attacks`."""
        return self.worst.to_dict() | {"attacks": [one.to_dict() for one in self.attacks]}

    def picture(self, path: str | Path | None = None) -> Figure:
        """Each tenth of the scored windows, from the least suspected to the most, against what was promised."""
        from seqveil.interfaces.plots import DECODED, LIMIT, RELEASED, blank, finish

        drawn = [one for one in self.attacks if one.curve]
        figure, tenths = blank((6.4, 1.2 + 2.2 * max(len(drawn), 1))), range(1, 11)
        for place, one in enumerate(drawn, 1):
            axes = figure.add_subplot(len(drawn), 1, place)
            seen, low, high = (np.clip(column, -4, 4) for column in zip(*one.curve, strict=True))
            axes.vlines(tenths, low, high, color=DECODED)
            axes.plot(tenths, seen, "o", color=RELEASED)
            if one.epsilon_claimed is not None:
                axes.axhspan(-one.epsilon_claimed, one.epsilon_claimed, color=LIMIT, alpha=0.1, lw=0)
            axes.set(title=f"{one.about}: {one.verdict}", ylabel="log of the factor")
            axes.set_xticks(tenths)
            if place == len(drawn):
                axes.set_xlabel("tenth of the windows, by how strongly the attacker suspects them")
        return finish(figure, path)
