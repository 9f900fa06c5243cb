"""What a policy means for a model: the mechanism, the ε of each release, the accounts that a stream begins with.

`Policy.on(model)` makes it, and nothing else does. It is written down as plain values in side files, state files,
checkpoints and answers of the service, always by `Terms.to_dict`, and read back by `policy.saved_terms`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core import mechanisms
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError, ModelError
from seqveil.core.mechanisms import BatchMechanism, Mechanism
from seqveil.core.mechanisms.blocks import BlockRule, block_rule, fingerprint
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret, SecretTrackers
from seqveil.core.secrets.account import ROWS
from seqveil.core.secrets.ahead import ahead
from seqveil.core.secrets.declared import CLOCKLESS
from seqveil.core.times import Slots
from seqveil.engine.budget import Budget

if TYPE_CHECKING:
    from seqveil.engine.policy import Policy

NO_BOUND = "no bound: nothing is promised about the whole sequence, only about the declared secrets"
OTHER_MODEL = "the model is not the one the release was made with; name the model file of the release"


@dataclass(frozen=True, eq=False)
class Terms:
    """Everything public about a stream's release but the releases themselves; `Policy.on` makes it.

    Parameters:
        model: how such streams usually run.
        policy: what is promised.
        mechanism: the one that the policy chooses for the model.
        epsilon: of every release, on average; infinite where nothing is promised about the whole sequence.
        distortion: the cost of a wrong release, over the model's alphabet.
        observers: further models under which declared secrets are kept as well.
    """

    model: MarkovModel
    policy: Policy
    mechanism: Mechanism | BatchMechanism
    epsilon: float
    distortion: Distortion
    observers: tuple[MarkovModel, ...] = ()

    budget: Budget = field(init=False)  # what may be spent, and what happens when it is gone
    batch: int = field(init=False)  # how many symbols are released at a time
    secrets: tuple[Secret, ...] = field(init=False)  # the declared ones
    withhold: bool = field(init=False)  # whether a release is the truth or nothing
    in_batches: bool = field(init=False)  # whether releases are batches (of one symbol, perhaps), published as paths
    in_blocks: bool = field(init=False)  # whether several events share one ε and one hidden bit
    guards: bool = field(init=False)  # whether secrets are declared, and so kept
    unbounded: bool = field(init=False)  # whether no release has an ε: no promise about the whole sequence
    clocked: bool = field(init=False)  # whether a secret follows the clock: each event comes in the slot after the last
    timed: bool = field(init=False)  # whether every event needs its time: clocked, or for a budget per seconds

    def __post_init__(self) -> None:
        policy, name = self.policy, self.mechanism.name
        clocked = any(secret.follows_clock for secret in policy.secrets)
        self.__dict__.update(
            budget=policy.budget,
            batch=policy.batch,
            secrets=tuple(policy.secrets),
            withhold=policy.withhold,
            in_batches=isinstance(self.mechanism, BatchMechanism),
            in_blocks=name == mechanisms.in_blocks.name,
            guards=name == mechanisms.guarded.name,
            unbounded=math.isinf(self.epsilon),
            clocked=clocked,
            timed=clocked or policy.budget.seconds is not None,
        )

    @cached_property
    def rule(self) -> BlockRule:
        """How blocks are released: their cells follow from model, ε, length and distortion, and are found once."""
        return block_rule(self.model, self.epsilon, self.policy.block, self.distortion)

    def check_secrets(self) -> None:
        """Refuse secrets that cannot be kept, before anything is drawn."""
        if self.trackers is None:  # made here, it refuses models of observers that do not go together
            return
        for model, secret in itertools.product((self.model, *self.observers), self.secrets):
            ahead(model, secret).check_countable()
        self.trackers.check_room()

    @property
    def slots(self) -> Slots:
        """The slots of time of the model; only where the terms are `clocked`."""
        slots = self.model.alphabet.slots
        if slots is None:
            raise InputError(CLOCKLESS)
        return slots

    @property
    def whole_sequence(self) -> str:
        """Says in words where nothing is promised about the whole sequence; empty where something is."""
        if not self.mechanism.sound:
            return f'no bound: mechanism "{self.mechanism.name}" does not keep to its ε, so nothing is promised'
        return NO_BOUND if self.unbounded else ""

    @cached_property
    def trackers(self) -> SecretTrackers | None:
        """The accounts of the declared secrets before the first release; None where no secret is declared.

        Where secrets follow the clock these are the accounts of streams that begin at midnight (`trackers_from`).
        """
        return self._trackers_at(0) if self.secrets else None

    def trackers_from(self, slot: int) -> SecretTrackers:
        """The accounts of the declared secrets for a stream that begins in this slot, before its first release."""
        return self._trackers_at(int(self.slots.place(slot)))

    @cached_property
    def _trackers_at(self) -> Callable[[int], SecretTrackers]:
        models = [self.model, *self.observers]
        return cache(lambda place: SecretTrackers(models, self.secrets, True, place, self.remembered))

    @cached_property
    def side_information(self) -> float:
        """The most that the release of an event adds about the secrets for somebody who knows the true event."""
        given = self.policy.side_information
        return min(secret.total for secret in self.secrets) if given is None else given

    @cached_property
    def remembered(self) -> tuple[Secret, ...]:
        """The secrets whose automata, read along the raw stream, kernels go by; none where rows go by symbol alone.

        A trait has no automaton, and in a window of one event it stands where the symbol says: nothing to remember.
        """
        found = tuple(secret for secret in self.secrets if ahead(self.model, secret).length > 1)
        if self.withhold or not found or not self.side_information:
            return ()
        return found if math.prod(ahead(self.model, secret).memory for secret in found) <= ROWS else ()

    @property
    def by_symbol(self) -> Terms:
        """The same terms where nothing can be remembered of a raw stream: rows go by symbol alone, which is public."""
        return replace(self.policy, side_information=0.0).on(self.model) if self.remembered else self

    @cached_property
    def in_closed_form(self) -> bool:
        """Whether the closed form for secrets that are true or not may be the best kernel."""
        binary = all(ahead(self.model, secret).values == 2 for secret in self.secrets)
        return binary and self.distortion.is_hamming and not self.withhold and self.unbounded and not self.observers

    def to_dict(self, costs: bool = False) -> dict[str, object]:
        """The terms as plain values, models by their fingerprints: all that a receiver needs besides the model.

        They are those of the policy, and what it chose. `costs` adds a digest of what the distortion charges for every
        wrong symbol, which the name of one that the caller made does not say.
        """
        chosen = {
            "mechanism": self.mechanism.name,
            "epsilon": None if self.unbounded else self.epsilon,
            "distortion": self.distortion.name,
            "observers": [observer.fingerprint for observer in self.observers],
        }
        found = {"model": self.model.fingerprint, **self.policy.plain, **chosen}
        if self.clocked:
            found["slots"] = self.slots.to_json()
        if self.in_blocks:
            found["cells"] = fingerprint(self.rule)
        return found | {"costs": _digest(self.distortion)} if costs else found

    @cached_property
    def signature(self) -> str:
        """The terms as one line of text, which differs wherever two release differently."""
        return json.dumps(self.to_dict(costs=True), sort_keys=True)


def refuse_other(before: Mapping[str, Any], now: Mapping[str, Any], name: str, instead: str) -> None:
    """Refuse to go on with what was begun on other terms; both are as `Terms.to_dict` gives them, or more.

    `name` is what was begun, `instead` what may be begun anew.
    """
    if before["model"] != now["model"]:
        raise ModelError(f"{name} belongs to another model; use the one that it had or adopted last, or {instead}")
    differing = sorted(part for part in before.keys() | now.keys() if before.get(part) != now.get(part))
    if differing:
        named = [part for part in differing if part not in ("cells", "costs")] or ["way to cut blocks, or distortion"]
        raise InputError(
            f"{name} was begun with another {' and '.join(named)}; use the policy of its first run, or {instead}"
        )


def _digest(distortion: Distortion) -> str:
    costs = hashlib.sha256()
    for part in distortion.defining:
        costs.update(b"-" if part is None else np.ascontiguousarray(part, "<f8").tobytes())
    return costs.hexdigest()
