"""What a row says about one declared secret: what was promised, what was told, and what an attacker got out of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.secrets import Secret, Watches, words
from seqveil.evaluate import attack
from seqveil.release.secrets import totals

if TYPE_CHECKING:
    from seqveil.evaluate.comparison.arena import Arena

FEWEST_PEOPLE = 4 * attack.FEWEST  # half of them learn, and of each half some have the secret and some do not


@dataclass(frozen=True)
class Told:
    """One secret in one row. All figures are logs of the factor by which the odds of the secret move.

    `epsilon`: the total that the secret was declared with. `promised`: the most that the mechanism promises for a whole
    stream under the model; None where it promises nothing. `log_odds_worst`: the most that was told, of any released
    person, in any window, at any time: exact under the model, infinite where the secret was told for certain, None
    where there is no account (batches). `epsilon_at_least`, `verdict`, `people`, `people_needed`: what the attack found
    about the ε declared, on people and without a model; None and "" where there was no attack.

    >>> told = Told("ever:health", "whether health occurs", 0.5, promised=None, log_odds_worst=4.9)
    >>> told.kept, told.keeps_by_promise
    (False, False)
    """

    secret: str
    about: str
    epsilon: float
    sides: str = "both"
    promised: float | None = None
    log_odds_worst: float | None = None
    epsilon_at_least: float | None = None
    verdict: str = ""
    people: int = 0
    people_needed: int | None = None

    @property
    def kept(self) -> bool | None:
        """Whether what was told stayed within the ε declared; None where there is no account."""
        return None if self.log_odds_worst is None else self.log_odds_worst <= self.epsilon

    @property
    def keeps_by_promise(self) -> bool:
        """Whether the mechanism promises the ε declared, or less."""
        return self.promised is not None and self.promised <= self.epsilon

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Told:
        """What a saved row says; parts that this version does not know are passed over."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in content.items() if name in known})


def declared(secrets: Sequence[Secret], promised: Iterable[float | None]) -> tuple[Told, ...]:
    """The secrets with what a mechanism promises about each, before anything is measured."""
    return tuple(
        Told(secret.name, words.about(secret), secret.epsilon, secret.sides, promised=bound)
        for secret, bound in zip(secrets, promised, strict=True)
    )


def silent(secrets: Sequence[Secret]) -> tuple[Told, ...]:
    """What is told where nothing is released."""
    return tuple(replace(one, log_odds_worst=0.0) for one in declared(secrets, [0.0] * len(secrets)))


def accounted(found: Sequence[Told], secrets: Sequence[Secret], accounts: Iterable[Watches]) -> tuple[Told, ...]:
    """With the exact account of all people."""
    worst = [total.log_odds_worst for total in totals(secrets, accounts)]
    return tuple(replace(one, log_odds_worst=most) for one, most in zip(found, worst, strict=True))


def attacked(found: Sequence[Told], arena: Arena, releases: Sequence[Ints], truth: Sequence[Ints]) -> tuple[Told, ...]:
    """With what an attacker without a model shows about the ε declared, on half of the people.

    The chance of a false alarm is shared by the secrets of a row.
    """
    shared: dict[str, Any] = {"seed": arena.seed, "false_alarm": attack.FALSE_ALARM / len(found)}
    after = []
    for one, secret in zip(found, arena.secrets, strict=True):
        if max(len(codes) for codes in truth) < (secret.length or 1):  # none of the few whom batches were tried on
            after.append(replace(one, epsilon_at_least=0.0, verdict="not decided"))
            continue
        over = secret.over(arena.model.alphabet)
        seen = attack.attack_secret(releases, truth, over, secret.epsilon, **shared)
        needed = seen.people_needed
        one = replace(one, epsilon_at_least=seen.epsilon_at_least, verdict=seen.verdict)
        after.append(replace(one, people=seen.people, people_needed=needed))
    return tuple(after)


def check_attack(secrets: Sequence[Secret], streams: Sequence[Ints]) -> None:
    """Refuse an attack that cannot be made, before anything is released."""
    if not secrets:
        raise InputError("an attack is on declared secrets, and there is none; add --secret ever:VALUE")
    attack.classifiers(0)  # says which extra is missing
    lengths = np.array([len(codes) for codes in streams])
    for secret in secrets:
        whole = int((lengths >= (secret.length or 1)).sum())
        if whole < FEWEST_PEOPLE:
            raise InputError(
                f"an attack needs at least {FEWEST_PEOPLE} released people with a whole window of each secret, got "
                f"{whole}; release more with --test-users, take a shorter --secret-window, or leave --attack out"
            )
