"""Who takes part: a mechanism with the share of the budget that it gets and the way it spends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqveil.core import mechanisms
from seqveil.core.errors import InputError

DOUBLED = ("randomized_response", "optimal_ldp")  # ε-SIP is 2ε-LDP, so these are shown at the level it has, too
LIMITS = ("optimal_ldp",)  # at ε and 2ε it marks the field that every mechanism sound at ε lies in
PULSED = ("optimal",)
IN_BATCHES = ("auto", "tree", "tree_ldp")


@dataclass(frozen=True)
class Contestant:
    """A mechanism, and how it spends ε an event: `factor` · ε, in batches of `batch` with that many times as much.

    `period` m spends m times as much at every m-th release and nothing in between; None: the period that planning
    finds best for the model. `limit`: shown to mark the field, not to win.

    >>> Contestant("tree", batch=5).label, Contestant("randomized_response", factor=2).label
    ('tree, 5 at a time', 'randomized_response at 2ε')
    """

    mechanism: str
    factor: float = 1.0
    batch: int = 1
    period: int | None = 1
    limit: bool = False

    @property
    def in_batches(self) -> bool:
        """Whether it is of the kind that takes batches, if of one symbol: slower, so it may get fewer users."""
        return isinstance(mechanisms.find(self.mechanism), mechanisms.BatchMechanism)

    @property
    def label(self) -> str:
        parts = [self.mechanism if self.factor == 1 else f"{self.mechanism} at {self.factor:g}ε"]
        if self.batch > 1:
            parts.append(f"{self.batch} at a time")
        if self.period != 1:
            parts.append("pulsed")
        return ", ".join(parts)


def line_up(names: Sequence[str] = ("all",), batches: Sequence[int] = (1, 5)) -> tuple[Contestant, ...]:
    """The contestants behind names of mechanisms; "all": those that release one by one, and three that take batches.

    A mechanism that takes batches comes once for each size. `optimal` comes pulsed as well, and the LDP mechanisms
    that a reader compares with at 2ε as well. For single symbols `auto` is one of the others, so "all" leaves it out.

    >>> [each.label for each in line_up(["optimal", "tree"], [1, 5])]
    ['optimal', 'optimal, pulsed', 'tree', 'tree, 5 at a time']
    """
    found: dict[Contestant, None] = {}
    for name in names:
        everyone = (*mechanisms.instantaneous(), *IN_BATCHES) if name == "all" else (name,)
        for each in everyone:
            found |= dict.fromkeys(_forms(each, batches, single=name != "all" or each != "auto"))
    if not found:
        raise InputError(
            f"expected all, or names of mechanisms, and batches for those that take them; got {len(names)}"
        )
    return tuple(found)


def _forms(name: str, batches: Sequence[int], single: bool) -> list[Contestant]:
    mechanism = mechanisms.find(name)
    if isinstance(mechanism, mechanisms.BatchMechanism):
        return [Contestant(name, batch=size) for size in batches if size > 1 or single]
    limit = name in LIMITS
    forms = [Contestant(name, limit=limit)]
    forms += [Contestant(name, factor=2.0, limit=limit)] if name in DOUBLED else []
    return forms + ([Contestant(name, period=None)] if name in PULSED else [])
