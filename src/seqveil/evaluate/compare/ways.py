"""The ways to release that a comparison tries, and what each promises about declared secrets (`KEEPERS` keep one)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqveil.core import mechanisms
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret, SecretTrackers
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy, Terms
from seqveil.evaluate.baselines.declared import suppression

DOUBLED = ("randomized_response", "optimal_ldp")  # ε-SIP is 2ε-LDP, so these are shown at the level it has, too
LIMITS = ("optimal_ldp",)  # at ε and 2ε it marks the field that every mechanism sound at ε lies in
IN_BATCHES = ("auto", "tree")
# `total` is a promise about the whole sequence: `optimal` with the secrets' ε as its budget, spent at once
KEEPERS = ("guarded", "total", "suppression")
PAPER = {  # what the paper calls them
    "crr": "instantaneous release, Algorithm 1 as published",
    "optimal": "instantaneous release, sound",
    "batch_descent": "batched release, Algorithm 2 as published",
    "tree": "batched release, sound",
    "auto": "batched release, sound",
    "blocks": "general mechanism a(y_k | x_1^k, y_1^k-1)",
    "randomized_response": "RR-LDP",
    "temporal": "temporal LDP",
    "mutual_information": "MIP",
    "guarded": "Pufferfish",
}
MEMORY = (None, 0.0, math.inf)  # what the release of a known event may reveal: as usual, nothing, anything
_LABELS = {
    "total": "optimal, total ε",
    "suppression": "suppression of the named symbols",
}


@dataclass(frozen=True, eq=False)
class Arena:
    """The same for every way: model, people's streams (codes), distortion, randomness; the repr shows no data.

    `secrets` are accounted for in every row, and kept by the ways that keep secrets; with `attack` classifiers try them
    on the releases. `guarded` keeps them from `observers` with models of their own as well; accounts are those of
    somebody who has the arena's model.
    """

    model: MarkovModel
    streams: Sequence[Ints] = field(repr=False)
    distortion: Distortion
    secrets: tuple[Secret, ...] = ()
    observers: tuple[MarkovModel, ...] = ()
    attack: bool = False
    seed: int = 0

    @classmethod
    def of(cls, model: MarkovModel, streams: Sequence[Ints], policy: Policy | None = None, **more: Any) -> Arena:
        """A checked arena; `policy` gives secrets, observers and distortion, `more` are the other fields."""
        if not len(streams) or not all(len(codes) for codes in streams):
            raise InputError("expected at least one stream to release, and an event in each")
        costs = resolve("hamming" if policy is None else policy.distortion, model.alphabet)
        secrets, others = ((), ()) if policy is None else (tuple(policy.secrets), policy.loaded_observers())
        if any(secret.follows_clock for secret in secrets):
            raise InputError(
                "a comparison has no clock, so it takes no secret that follows one (during, a window of a day); give a "
                "window of events"
            )
        made = cls(model, streams, costs, secrets, others, **more)
        trackers = made.trackers
        limit = None if trackers is None else trackers.limit
        if limit is not None and made.longest > limit:
            raise InputError(
                f"a secret is for streams of at most {limit} events here, got one of {made.longest}; release the first "
                f"{limit} of each, or give the secret a window"
            )
        if secrets:  # what cannot be kept is refused here rather than in the row that needs it
            made.keeping()
        return made

    def keeping(self, **more: Any) -> Terms:
        """What `guarded` releases with."""
        return Policy(secrets=self.secrets, distortion=self.distortion, observers=self.observers, **more).on(self.model)

    @property
    def trackers(self) -> SecretTrackers | None:
        """The exact accounts of the secrets before the first release; None where no secret is declared."""
        return SecretTrackers.start(self.model, self.secrets) if self.secrets else None

    @property
    def longest(self) -> int:
        """Events of the longest stream."""
        return max(len(codes) for codes in self.streams)

    @property
    def least(self) -> float:
        """The ε of the secret that is to be kept best."""
        return min(secret.total for secret in self.secrets)


@dataclass(frozen=True)
class Way:
    """A mechanism, and how it spends ε an event: `factor`·ε, in batches or blocks of so many events with as many times.

    `side_information` is that of a policy for `guarded`: how much memory of the raw stream may reveal to somebody who
    knows an event.

    >>> Way("tree", batch=5).label, Way("blocks", block=20).label, Way("randomized_response", factor=2).label
    ('tree, 5 at a time', 'blocks of 20', 'randomized_response at 2ε')
    """

    mechanism: str
    factor: float = 1.0
    batch: int = 1
    block: int = 1
    side_information: float | None = None

    @property
    def label(self) -> str:
        """Its name in tables and pictures: the mechanism and what is special about how it is used."""
        if self.block > 1:
            return f"blocks of {self.block}"
        if self.batch > 1:
            return f"{self.mechanism}, {self.batch} at a time"
        if self.side_information is not None:
            limited = "no memory" if self.side_information == 0 else "memory without limit"
            return f"{self.mechanism}, {limited}"
        name = _LABELS.get(self.mechanism, self.mechanism)
        return name if self.factor == 1 else f"{name} at {self.factor:g}ε"

    @property
    def by_event(self) -> bool:
        """Whether it spends an ε an event; else it is tried once, whatever ε an event the others have."""
        return self.mechanism not in KEEPERS

    def terms(self, arena: Arena, epsilon: float | None) -> Terms:
        """What it releases with, when an event may cost ε on average."""
        model, costs = arena.model, arena.distortion
        if self.mechanism in KEEPERS and not arena.secrets:
            raise InputError(f'"{self.mechanism}" is about declared secrets; name a policy that has some')
        if self.by_event and epsilon is None:
            raise InputError(f'expected epsilon, what an event may cost, for "{self.mechanism}"; got none')
        rate = self.factor * (epsilon or 1.0)
        if self.mechanism == "guarded":
            return arena.keeping(side_information=self.side_information)
        if self.mechanism == "total":
            name = mechanisms.one_by_one(model.n, costs, arena.least)
            name = "balanced" if name == "tree" else name
            return Policy(epsilon=arena.least, budget=Budget(arena.least), mechanism=name, distortion=costs).on(model)
        if self.mechanism in KEEPERS:
            left_out = suppression(model.alphabet, arena.secrets)
            return Policy(epsilon=rate, mechanism=left_out, distortion=costs).on(model)
        if self.block > 1:
            return Policy(epsilon=rate * self.block, block=self.block, distortion=costs).on(model)
        return Policy(epsilon=rate * self.batch, batch=self.batch, mechanism=self.mechanism, distortion=costs).on(model)

    def promised(self, arena: Arena, terms: Terms) -> list[float | None]:
        """What it promises about the odds of each secret, for the longest stream that is released.

        A mechanism whose releases at ε are c·ε-LDP moves them by at most e^(c·Σε), whatever the model; one that is
        sound at ε is 2ε-LDP or bounds the leakage of the sequence by Σε, hence the odds by e^(2Σε).
        """
        if self.mechanism == "guarded":
            return [secret.epsilon for secret in arena.secrets]
        level = min(terms.mechanism.ldp, 2.0 if terms.mechanism.sound else math.inf)
        if self.mechanism == "total":
            return [2 * arena.least] * len(arena.secrets)
        if math.isinf(level):
            return [None] * len(arena.secrets)
        together = max(self.batch, self.block)
        return [level * terms.epsilon * math.ceil(arena.longest / together)] * len(arena.secrets)


def ways(
    names: Sequence[str] = ("all",),
    batches: Sequence[int] = (5,),
    blocks: Sequence[int] = (5, 20),
    secrets: bool = False,
) -> list[Way]:
    """The ways behind names of mechanisms; "all": those that release one by one, blocks, and three that take batches.

    With declared secrets those too that keep one: the ones that are named, or all where none of them is.

    >>> [each.label for each in ways(["optimal", "blocks", "tree"], [5], [10, 20])]
    ['optimal', 'blocks of 10', 'blocks of 20', 'tree, 5 at a time']
    """
    keepers = [name for name in names if name in KEEPERS]
    others = [name for name in names if name not in KEEPERS] if keepers else names
    found = [way for name in others for way in _named(name, batches, blocks)]
    for name in (keepers or KEEPERS) * secrets:
        found += [Way(name, side_information=limit) for limit in (MEMORY if name == "guarded" else MEMORY[:1])]
    if not found:
        raise InputError(f"expected all, or names of mechanisms, with sizes for batches and blocks; got {len(names)}")
    return list(dict.fromkeys(found))


def _named(name: str, batches: Sequence[int], blocks: Sequence[int]) -> Iterator[Way]:
    if name == "all":
        for each in (*mechanisms.instantaneous(), "blocks", *IN_BATCHES):
            yield from _named(each, [size for size in batches if size > 1], blocks)
    elif isinstance(mechanisms.find(name), mechanisms.BatchMechanism):
        yield from (Way(name, batch=size) for size in batches)
    elif name == "blocks":
        yield from (Way(name, block=size) for size in blocks if size > 1)
    else:
        factors = (1.0, 2.0) if name in DOUBLED else (1.0,)
        yield from (Way(name, factor=factor) for factor in factors)
