"""Who keeps declared secrets in a race: `guarded`, and the other ways that people take to keep one.

- `guarded`: the least error under the totals of the secrets;
- `total`: a promise about the whole sequence, `optimal` with the secrets' ε as its budget, spent at once or spread;
- `halving`: randomised response whose ε is halved until the secret is kept;
- `utility_optimised`: randomised response that protects the sensitive symbols alone, at the ε of an event;
- `suppression`: the sensitive symbols are never released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seqveil.core import mechanisms
from seqveil.core.errors import InputError
from seqveil.evaluate.comparison.arena import Arena, Contestant, line_up
from seqveil.evaluate.rivals import declared as rivals
from seqveil.release.accounting import Budget
from seqveil.release.stream import Setting

KEEPERS = ("guarded", "total", "halving", "utility_optimised", "suppression")
_LABELS = {"halving": "randomized_response, halved", "suppression": "suppression of the named symbols"}


@dataclass(frozen=True)
class Keeper(Contestant):
    """One of `KEEPERS`. But for `utility_optimised` it has no ε an event: a race gives it None.

    `spread`: the budget of `total` is spread over the events of a typical stream, else spent at once.

    >>> Keeper("guarded").label, Keeper("total", spread=True).label
    ('guarded', 'optimal, total ε, spread')
    """

    spread: bool = False

    @property
    def in_batches(self) -> bool:
        """Never: all of them release symbol by symbol."""
        return False

    @property
    def by_event(self) -> bool:
        """Whether it has an ε an event."""
        return self.mechanism == "utility_optimised"

    @property
    def label(self) -> str:
        """What the row is called."""
        if self.mechanism == "total":
            return f"optimal, total ε, {'spread' if self.spread else 'at once'}"
        return _LABELS.get(self.mechanism, self.mechanism)

    def setting(self, arena: Arena, epsilon: float | None) -> Setting:
        """What it releases with. Only where it looks at the account of the secrets are they in the setting."""
        model, costs = arena.model, arena.distortion
        if not arena.secrets:
            raise InputError(f'"{self.mechanism}" is about declared secrets; pass secrets to the arena')
        if self.mechanism == "guarded":
            return arena.guarding()
        if self.mechanism == "total":
            return self._total(arena)
        if self.mechanism == "halving":
            kept = {"secrets": arena.secrets, "longest": arena.longest}
            return Setting.of(model, "randomized_response", rivals.BEGINS, costs, **kept)  # type: ignore[arg-type]
        make = rivals.utility_optimised if self.by_event else rivals.suppression
        return Setting.of(model, make(model.alphabet, arena.secrets), 1.0 if epsilon is None else epsilon, costs)

    def _total(self, arena: Arena) -> Setting:
        total = least(arena)
        name = mechanisms.one_by_one(arena.model.n, arena.distortion, total)
        name = "balanced" if name == "tree" else name
        if not self.spread:
            return Setting.of(arena.model, name, total, arena.distortion, budget=total)
        horizon = max(1, min(arena.longest_stream, round(arena.typical_length)))
        return Setting.of(arena.model, name, None, arena.distortion, budget=Budget(total, horizon))

    def promises(self, arena: Arena, setting: Setting) -> list[float | None]:
        """A total L about the whole sequence moves the odds of any secret by at most e^2L (docs/secrets.md)."""
        if self.mechanism in ("guarded", "halving"):
            return [secret.epsilon for secret in arena.secrets]
        return [2 * least(arena) if self.mechanism == "total" else None for _ in arena.secrets]


def least(arena: Arena) -> float:
    """The ε of the secret that is to be kept best."""
    return min(secret.epsilon for secret in arena.secrets)


def line_up_for_secrets(names: Sequence[str] = ("all",), batches: Sequence[int] = (1, 5)) -> tuple[Contestant, ...]:
    """As `line_up`, and those that keep secrets: the ones that are named, or all where none of them is.

    >>> [each.label for each in line_up_for_secrets(["crr", "guarded"])]
    ['crr', 'guarded']
    """
    others, chosen = [name for name in names if name not in KEEPERS], [name for name in names if name in KEEPERS]
    forms: list[Contestant] = []
    for name in dict.fromkeys(chosen or KEEPERS):
        forms += [Keeper(name, spread=spread) for spread in ((False, True) if name == "total" else (False,))]
    return (*(line_up(others, batches) if others or not chosen else ()), *forms)


def promised(arena: Arena, contestant: Contestant, setting: Setting) -> list[float | None]:
    """What a contestant promises about the odds of each secret, for the longest stream that is released.

    A mechanism whose releases at ε are c·ε-LDP moves them by at most e^(c·Σε), whatever the model; one that is sound at
    ε is 2ε-LDP or bounds the leakage of the sequence by Σε, hence the odds by e^(2Σε).
    """
    if isinstance(contestant, Keeper):
        return contestant.promises(arena, setting)
    level = min(setting.mechanism.ldp, 2.0 if setting.mechanism.sound else math.inf)
    longest = max(len(codes) for codes in arena.of_contestant(contestant))
    period = setting.schedule.period
    spent = setting.epsilon / setting.batch * period * math.ceil(longest / period)
    return [None if math.isinf(level) else level * spent for _ in arena.secrets]
