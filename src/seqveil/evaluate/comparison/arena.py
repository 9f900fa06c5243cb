"""Who takes part in a race, and where it is held: a chain fitted on some users, and the streams of others.

Where secrets are declared, those take part too who keep one: `guarded`, and the other ways that people take.

- `guarded`: the least error under the totals of the secrets;
- `total`: a promise about the whole sequence, `optimal` with the secrets' ε as its budget, spent at once;
- `halving`: randomised response whose ε is halved until the secret is kept;
- `utility_optimised`: randomised response that protects the sensitive symbols alone, at the ε of an event;
- `suppression`: the sensitive symbols are never released.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from seqveil.core import mechanisms
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret, SecretTrackers
from seqveil.engine.accounting import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import Terms
from seqveil.evaluate.baselines import declared
from seqveil.evaluate.comparison.rows import check_attack
from seqveil.interfaces import planning

PART = 1_000_000  # numbers of one array over the users that are released at once
LONGEST_PLAN = 50  # symbols of a simulated stream
DOUBLED = ("randomized_response", "optimal_ldp")  # ε-SIP is 2ε-LDP, so these are shown at the level it has, too
LIMITS = ("optimal_ldp",)  # at ε and 2ε it marks the field that every mechanism sound at ε lies in
PULSED = ("optimal",)
IN_BATCHES = ("auto", "tree", "tree_ldp")
KEEPERS = ("guarded", "total", "halving", "utility_optimised", "suppression")
_LABELS = {
    "total": "optimal, total ε",
    "halving": "randomized_response, halved",
    "suppression": "suppression of the named symbols",
}


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
        """Its name in tables and figures: the mechanism and what is special about how it is run."""
        parts = [self.mechanism if self.factor == 1 else f"{self.mechanism} at {self.factor:g}ε"]
        if self.batch > 1:
            parts.append(f"{self.batch} at a time")
        if self.period != 1:
            parts.append("pulsed")
        return ", ".join(parts)

    @property
    def by_event(self) -> bool:
        """Whether it spends so much an event; else it runs once, whatever ε an event the others have."""
        return True

    def setting(self, arena: Arena, epsilon: float | None) -> Terms:
        """What it releases with in an arena, when an event may cost ε on average."""
        if epsilon is None:
            raise InputError(f'expected epsilon, what an event may cost, for "{self.mechanism}"; got none')
        return arena.setting(self, epsilon)


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


@dataclass(frozen=True, eq=False)
class Arena:
    """The same for every contestant: chain, distortion, streams, randomness.

    `streams` are the codes of the users who are released, `fitted` of those the chain was fitted on; no user is in
    both. `batched_users` is how many of the streams, from the first, contestants that take batches get (None: all).
    `secrets` are accounted for in every row, and kept by those who keep secrets; with `attack` a guesser without a
    model tries them on the releases. `guarded` keeps them from `observers` with models of their own as well;
    accounts are those of somebody who has the arena's model. The repr shows no data.
    """

    model: MarkovModel
    streams: Sequence[Ints] = field(repr=False)
    distortion: Distortion
    seed: int = 0
    batched_users: int | None = None
    fitted: Sequence[Ints] = field(default=(), repr=False)
    secrets: tuple[Secret, ...] = ()
    attack: bool = False
    observers: tuple[MarkovModel, ...] = ()

    @classmethod
    def of(
        cls,
        model: MarkovModel,
        streams: Sequence[Ints],
        distortion: str | Distortion = "hamming",
        seed: int = 0,
        batched_users: int | None = None,
        fitted: Sequence[Ints] = (),
        secrets: Secret | Sequence[Secret] = (),
        attack: bool = False,
        observers: Sequence[MarkovModel] = (),
    ) -> Arena:
        """A checked arena; a secret that the model cannot have, and an attack on too few people, are refused here."""
        if not streams or not all(len(codes) for codes in streams):
            raise InputError("expected at least one stream to release, and an event in each")
        if batched_users is not None and batched_users < 1:
            raise InputError(f"expected at least 1 user for batches, got {batched_users}")
        costs, wanted = resolve(distortion, model.alphabet), (secrets,) if isinstance(secrets, Secret) else secrets
        made = cls(model, streams, costs, seed, batched_users, fitted, tuple(wanted), attack, tuple(observers))
        if any(secret.follows_clock for secret in made.secrets):
            raise InputError(
                "a comparison has no clock, so it takes no secret that follows one (during, a window of a day); give a "
                "window of events"
            )
        limit = None if made.trackers is None else made.trackers.limit
        if limit is not None and made.longest_stream > limit:
            raise InputError(
                f"a secret is for streams of at most {limit} events here, got one of {made.longest_stream}; release "
                f"the --first {limit}, or give a --secret-window"
            )
        if made.secrets and observers:  # refused here rather than in the row that needs it
            made.guarding()
        if made.trackers is not None:
            made.trackers.check_room()
        if attack:
            check_attack(made.secrets, streams)
        return made

    def guarding(self) -> Terms:
        """What `guarded` releases with."""
        return Policy(secrets=self.secrets, distortion=self.distortion, observers=self.observers).on(self.model)

    @cached_property
    def trackers(self) -> SecretTrackers | None:
        """The exact accounts of the secrets before the first release; None where no secret is declared."""
        return SecretTrackers(self.model, self.secrets) if self.secrets else None

    @cached_property
    def longest_stream(self) -> int:
        """Events of the longest stream that is released."""
        return max(len(codes) for codes in self.streams)

    def setting(self, contestant: Contestant, epsilon: float) -> Terms:
        """What the contestant releases with when an event may cost ε on average."""
        rate = epsilon * contestant.factor * contestant.batch
        period = contestant.period
        if period is None:
            period = self._best_period(contestant.mechanism, rate)
        return Policy(
            epsilon=rate,
            batch=contestant.batch,
            mechanism=contestant.mechanism,
            distortion=self.distortion,
            every=period,
        ).on(self.model)

    def _best_period(self, mechanism: str, epsilon: float) -> int:
        length = min(LONGEST_PLAN, max(2, round(self.typical_length)))
        users = 100 if self.distortion.is_hamming else 30  # other costs take a program for each kernel
        return planning.best_period(self.model, epsilon, mechanism, self.distortion, length, users, self.seed)

    @cached_property
    def typical_length(self) -> float:
        """Events of a stream, from the users the chain was fitted on: the length in which an event mostly lies."""
        lengths = np.array([len(codes) for codes in self.fitted or self.streams], np.float64)
        return float((lengths**2).sum() / lengths.sum())

    def of_contestant(self, contestant: Contestant) -> Sequence[Ints]:
        """The streams that a contestant gets."""
        return self.streams[: self.batched_users] if contestant.in_batches else self.streams

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all that the results depend on besides the contestant and ε."""
        limits = f"{self.model.fingerprint} {self.distortion.name} {self.seed} {self.batched_users}"
        digest = hashlib.sha256(limits.encode())
        for costs in self.distortion.defining:
            digest.update(b" none " if costs is None else np.ascontiguousarray(costs, "<f8").tobytes())
        for streams in (self.streams, self.fitted):
            digest.update(f" {len(streams)} ".encode())
            for codes in streams:
                digest.update(f"{len(codes)} ".encode() + np.ascontiguousarray(codes, "<i8").tobytes())
        declared = [secret.to_dict() for secret in self.secrets]
        others = [observer.fingerprint for observer in self.observers]
        digest.update(json.dumps([declared, self.attack, others], sort_keys=True).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Keeper(Contestant):
    """One of `KEEPERS`. But for `utility_optimised` it has no ε an event: a race gives it None.

    >>> Keeper("guarded").label, Keeper("total").label
    ('guarded', 'optimal, total ε')
    """

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
        return _LABELS.get(self.mechanism, self.mechanism)

    def setting(self, arena: Arena, epsilon: float | None) -> Terms:
        """What it releases with. Only where it keeps the secrets are they in the setting."""
        model, costs = arena.model, arena.distortion
        if not arena.secrets:
            raise InputError(f'"{self.mechanism}" is about declared secrets; pass secrets to the arena')
        if self.mechanism == "guarded":
            return arena.guarding()
        if self.mechanism == "total":
            return self._total(arena)
        if self.mechanism == "halving":
            return Policy(secrets=arena.secrets, distortion=costs).on(model)  # for the accounts that it looks at
        make = declared.utility_optimised if self.by_event else declared.suppression
        return Policy(
            epsilon=1.0 if epsilon is None else epsilon, mechanism=make(model.alphabet, arena.secrets), distortion=costs
        ).on(model)

    def _total(self, arena: Arena) -> Terms:
        total = least(arena)
        name = mechanisms.one_by_one(arena.model.n, arena.distortion, total)
        name = "balanced" if name == "tree" else name
        return Policy(epsilon=total, budget=Budget(total), mechanism=name, distortion=arena.distortion).on(arena.model)

    def promises(self, arena: Arena, setting: Terms) -> list[float | None]:
        """A total L about the whole sequence moves the odds of any secret by at most e^2L (docs/secrets.md)."""
        if self.mechanism in ("guarded", "halving"):
            return [secret.epsilon for secret in arena.secrets]
        return [2 * least(arena) if self.mechanism == "total" else None for _ in arena.secrets]


def least(arena: Arena) -> float:
    """The ε of the secret that is to be kept best."""
    return min(secret.total for secret in arena.secrets)


def line_up_for_secrets(names: Sequence[str] = ("all",), batches: Sequence[int] = (1, 5)) -> tuple[Contestant, ...]:
    """As `line_up`, and those that keep secrets: the ones that are named, or all where none of them is.

    >>> [each.label for each in line_up_for_secrets(["crr", "guarded"])]
    ['crr', 'guarded']
    """
    others, chosen = [name for name in names if name not in KEEPERS], [name for name in names if name in KEEPERS]
    keepers = [Keeper(name) for name in dict.fromkeys(chosen or KEEPERS)]
    return (*(line_up(others, batches) if others or not chosen else ()), *keepers)


def promised(arena: Arena, contestant: Contestant, setting: Terms) -> list[float | None]:
    """What a contestant promises about the odds of each secret, for the longest stream that is released.

    A mechanism whose releases at ε are c·ε-LDP moves them by at most e^(c·Σε), whatever the model; one that is sound at
    ε is 2ε-LDP or bounds the leakage of the sequence by Σε, hence the odds by e^(2Σε).
    """
    if isinstance(contestant, Keeper):
        return contestant.promises(arena, setting)
    level = min(setting.mechanism.ldp, 2.0 if setting.mechanism.sound else math.inf)
    longest = max(len(codes) for codes in arena.of_contestant(contestant))
    period = setting.schedule
    spent = setting.epsilon / setting.batch * period * math.ceil(longest / period)
    return [None if math.isinf(level) else level * spent for _ in arena.secrets]


def together(streams: Sequence[Ints], width: int) -> Iterator[list[int]]:
    """Positions of streams that are released at once: of like length, longest first, and few enough to stay in memory.

    >>> streams = [np.zeros(length, int) for length in (3, 400_000, 4)]
    >>> list(together(streams, 2))
    [[1], [2, 0]]
    """
    order = sorted(range(len(streams)), key=lambda k: -len(streams[k]))
    begin = 0
    while begin < len(order):
        many = max(1, PART // (len(streams[order[begin]]) * width))
        yield order[begin : begin + many]
        begin += many
