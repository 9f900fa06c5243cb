"""Everything public about a stream's release: model, mechanism, ε, distortion, schedule, budget, batch, secrets.

A setting is written down as plain values in side files, state files, checkpoints and answers of the service, always by
`Setting.to_dict`, and read back by `Setting.from_dict`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from seqveil.core import mechanisms
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import BatchMechanism, Mechanism
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret, Watches, from_dict
from seqveil.core.secrets.ahead import ahead
from seqveil.core.secrets.declared import CLOCKLESS
from seqveil.core.slots import Slots
from seqveil.engine.accounting import GONE, Budget, whole_number

NO_BOUND = "no bound: nothing is promised about the whole sequence, only about the declared secrets"
_ALONE = '"guarded" takes no batch, budget or schedule: each secret has its own total, for the whole stream'
OTHER_MODEL = "the model is not the one the release was made with; name the model file of the release"


class SecretTerms(TypedDict, total=False):
    """What `Setting.of` takes about declared secrets, by name; whatever makes a setting takes these."""

    secrets: Secret | Sequence[Secret]
    observers: MarkovModel | Sequence[MarkovModel]
    withhold: bool


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything public about a stream's release but the releases themselves.

    `schedule` m spends m·ε at every m-th release and nothing in between (docs/theory.md, section 11): the total and the
    delay stay the same, and on a correlated stream the error falls.

    `secrets` are kept, each within its own total, by the mechanism "guarded", which they choose; another one is refused
    beside them. What else is for "guarded": `observers`, further models under which every promise holds as well;
    `withhold`, the truth or nothing, never a wrong symbol. The ε of every release is infinite where "guarded" was given
    none: nothing is then promised about the whole sequence.
    """

    model: MarkovModel
    mechanism: Mechanism | BatchMechanism
    epsilon: float
    distortion: Distortion
    schedule: int = 1
    budget: Budget = field(default_factory=Budget)
    batch: int = 1
    secrets: tuple[Secret, ...] = ()
    observers: tuple[MarkovModel, ...] = ()
    withhold: bool = False

    @classmethod
    def of(
        cls,
        model: MarkovModel,
        mechanism: str | Mechanism | BatchMechanism | None = None,
        epsilon: float | None = None,
        distortion: str | Distortion = "hamming",
        schedule: int = 1,
        budget: Budget | float | None = None,
        batch: int = 1,
        *,
        secrets: Secret | Sequence[Secret] = (),
        observers: MarkovModel | Sequence[MarkovModel] = (),
        withhold: bool = False,
    ) -> Setting:
        """A checked setting from what a person types: names, a period, a total, a batch size, secrets.

        Where nobody names a mechanism it is "guarded" for declared secrets, "auto" for batches, and else "optimal".
        """
        whole_number("batch", batch)
        whole_number("schedule", schedule)
        declared = (secrets,) if isinstance(secrets, Secret) else tuple(secrets)
        if mechanism is None:
            mechanism = mechanisms.guarded if declared else "optimal" if batch == 1 else "auto"
        if declared and mechanism not in (mechanisms.guarded, mechanisms.guarded.name):
            raise InputError(
                f'mechanism "{mechanisms.find(mechanism).name}" keeps no declared secrets; leave one of the two out '
                "(`audit` measures secrets that nothing keeps)"
            )
        costs = resolve(distortion, model.alphabet)
        chosen = _chosen(mechanism, model, costs, epsilon, batch)
        limits = budget if isinstance(budget, Budget) else Budget(total=budget)
        _check_budget(limits, chosen)
        others = (observers,) if isinstance(observers, MarkovModel) else tuple(observers)
        if chosen is mechanisms.guarded:
            _check_guarded(declared, limits, schedule, epsilon, withhold)
            rate = math.inf if epsilon is None else mechanisms.check_epsilon(epsilon)
            _check_not_faint(rate, schedule, "leave it out where the declared secrets are enough")
        else:
            if withhold or others:
                raise InputError("withhold and observers say how declared secrets are kept; pass secrets with them")
            rate = _rate(epsilon, schedule, chosen)
        kept = (declared, others, bool(withhold))
        made = cls(model, chosen, rate, costs, int(schedule), limits, int(batch), *kept)
        made._check_secrets()
        return made

    def _check_secrets(self) -> None:
        """Refuse secrets that cannot be kept, before anything is drawn."""
        if self.watches is None:  # made here, it refuses models of observers that do not go together
            return
        for model, secret in itertools.product((self.model, *self.observers), self.secrets):
            ahead(model, secret).check_countable()
        self.watches.check_room()

    @property
    def guards(self) -> bool:
        """Whether secrets are declared, and so kept."""
        return self.mechanism is mechanisms.guarded

    @property
    def timed(self) -> bool:
        """Whether every event needs its time: for a budget per seconds, or secrets that follow the clock."""
        return self.budget.seconds is not None or self.clocked

    @cached_property
    def clocked(self) -> bool:
        """Whether a secret follows the clock, so that each event must come in the slot after that of the one before."""
        return any(secret.follows_clock for secret in self.secrets)

    @property
    def slots(self) -> Slots:
        """The slots of time of the model; only where the setting is `clocked`."""
        slots = self.model.alphabet.slots
        if slots is None:
            raise InputError(CLOCKLESS)
        return slots

    @property
    def unbounded(self) -> bool:
        """Whether no release has an ε: nothing is promised about the whole sequence."""
        return math.isinf(self.epsilon)

    @property
    def whole_sequence(self) -> str:
        """Says in words where nothing is promised about the whole sequence; empty where something is."""
        if not self.mechanism.sound:
            return f'no bound: mechanism "{self.mechanism.name}" does not keep to its ε, so nothing is promised'
        return NO_BOUND if self.unbounded else ""

    @cached_property
    def watches(self) -> Watches | None:
        """The accounts of the declared secrets before the first release; None where no secret is declared.

        Where secrets follow the clock these are the accounts of streams that begin at midnight (`watches_from`).
        """
        return self._watches_at(0) if self.secrets else None

    def watches_from(self, slot: int) -> Watches:
        """The accounts of the declared secrets for a stream that begins in this slot, before its first release."""
        place = int(self.slots.place(slot))
        if place not in self._beginnings:
            self._beginnings[place] = self._watches_at(place)
        return self._beginnings[place]

    @cached_property
    def _beginnings(self) -> dict[int, Watches]:
        return {}

    def _watches_at(self, place: int) -> Watches:
        return Watches([self.model, *self.observers], self.secrets, kept=True, place=place)

    @property
    def in_batches(self) -> bool:
        """Whether releases are batches (of one symbol, perhaps), published as paths."""
        return isinstance(self.mechanism, BatchMechanism)

    def to_dict(self, costs: bool = False) -> dict[str, object]:
        """The setting as plain values, the model by its fingerprint: all that a receiver needs besides the model.

        `costs` adds a digest of what the distortion charges for every wrong symbol, which its name does not tell of one
        that the caller made.
        """
        told: dict[str, object] = {
            "model": self.model.fingerprint,
            "mechanism": self.mechanism.name,
            "epsilon": None if self.unbounded else self.epsilon,
            "distortion": self.distortion.name,
            "batch": self.batch,
            "schedule": self.schedule,
            "budget": asdict(self.budget),
        }
        if self.secrets:
            told |= {
                "secrets": [secret.to_dict() for secret in self.secrets],
                "observers": [observer.fingerprint for observer in self.observers],
                "withhold": self.withhold,
            }
        if self.clocked:
            told["slots"] = self.slots.to_json()
        return told | {"costs": _digest(self.distortion)} if costs else told

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any], model: MarkovModel, observers: Sequence[MarkovModel] = ()) -> Setting:
        """The setting that `to_dict` gave the values of, for the model it was made with and no other.

        `observers` are the models of further observers, in any order, where the setting has some.

        >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
        >>> saved = Setting.of(model, "optimal", 0.7, budget=3.0).to_dict()
        >>> Setting.from_dict(saved, model).to_dict() == saved
        True
        """
        try:
            slots = model.alphabet.slots
            clock = None if slots is None else slots.to_json()
            if saved["model"] != model.fingerprint or saved.get("slots", clock) != clock:
                raise ModelError(OTHER_MODEL)
            plain = {name: saved[name] for name in ("mechanism", "epsilon", "distortion", "schedule", "batch")}
            return cls.of(model, budget=Budget(**saved["budget"]), **plain, **_declared(saved, observers))
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError):
            raise DataError("a part of the setting is missing or damaged; release the data again") from None

    @cached_property
    def signature(self) -> str:
        """The setting as one line of text, which differs wherever two settings release differently."""
        return json.dumps(self.to_dict(costs=True), sort_keys=True)

    def wanted(self, steps: Ints) -> Floats:
        """ε of the releases at these steps, before any budget: m·ε at every m-th, where `schedule` is m.

        >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
        >>> Setting.of(model, epsilon=1.0, schedule=4).wanted(np.arange(5)).tolist()
        [4.0, 0.0, 0.0, 0.0, 4.0]
        """
        return np.where(steps % self.schedule == 0, self.schedule * self.epsilon, 0.0)

    def ldp_cost(self, epsilons: Floats) -> Floats:
        """What releases at these ε add to the LDP level of a stream, whatever model is true."""
        spent = epsilons > 0
        if np.count_nonzero(spent) == spent.size:
            return self.mechanism.ldp * epsilons
        return np.where(spent, self.mechanism.ldp * np.where(spent, epsilons, 1.0), 0.0)


def refuse_other(before: Mapping[str, Any], now: Mapping[str, Any], name: str, instead: str) -> None:
    """Refuse to go on with what was begun with another setting; both are as `Setting.to_dict` gives them, or more.

    `name` is what was begun, `instead` what may be begun anew.

    >>> refuse_other({"model": "m", "epsilon": 1.0}, {"model": "m", "epsilon": 2.0}, "s.db:", "a new one")
    Traceback (most recent call last):
    ...
    seqveil.core.errors.InputError: s.db: was begun with another epsilon; use the setting of its first run, or a new one
    """
    if before["model"] != now["model"]:
        raise ModelError(f"{name} belongs to another model; use the model of its first run, or {instead}")
    differing = sorted(part for part in before.keys() | now.keys() if before.get(part) != now.get(part))
    if differing:
        raise InputError(
            f"{name} was begun with another {' and '.join(differing)}; use the setting of its first run, or {instead}"
        )


def _chosen(
    mechanism: str | Mechanism | BatchMechanism,
    model: MarkovModel,
    costs: Distortion,
    epsilon: float | None,
    batch: int,
) -> Mechanism | BatchMechanism:
    """The mechanism that is meant, made for the model where it needs one."""
    if mechanism == "auto" and batch == 1:
        mechanism = mechanisms.one_by_one(model.n, costs, epsilon)
    if batch != 1 and mechanism in (mechanisms.guarded, mechanisms.guarded.name):
        raise InputError(_ALONE)
    chosen = mechanisms.find(mechanism) if batch == 1 else mechanisms.get_batched(mechanism)
    if isinstance(chosen, Mechanism) and chosen.for_model is not None:
        return replace(chosen, build=chosen.for_model(model))
    return chosen


def _check_budget(budget: Budget, chosen: Mechanism | BatchMechanism) -> None:
    """Refuse a budget that the mechanism cannot keep."""
    if budget.limited and not chosen.sound:
        raise InputError(
            f'mechanism "{chosen.name}" does not keep to its ε, so no budget can hold; use "optimal" or "balanced"'
        )
    if budget.ldp_total is not None and not math.isfinite(chosen.ldp):
        raise InputError(
            f'mechanism "{chosen.name}" has no LDP level, so no budget without a model can hold; use "optimal"'
        )


def _check_guarded(
    secrets: tuple[Secret, ...],
    budget: Budget,
    schedule: int,
    epsilon: float | None,
    withhold: bool,
) -> None:
    """Refuse what does not go together with keeping declared secrets."""
    name = mechanisms.guarded.name
    if not secrets:
        raise InputError(f'"{name}" keeps declared secrets and got none; pass secrets=[sv.secrets.ever(…)]')
    if any(secret.epsilon is None for secret in secrets):
        raise InputError(
            "a declared secret has no epsilon, and nothing is released without one; say it, for instance epsilon=0.5 "
            "(in TOML the line epsilon = 0.5)"
        )
    if budget.limited or schedule != 1:
        raise InputError(_ALONE)
    if withhold and epsilon is not None:
        raise InputError(
            "the truth or nothing (withhold=True) cannot be sound at an epsilon as well, for the truth alone is told; "
            "leave one of them out"
        )


def _rate(epsilon: float | None, schedule: int, chosen: Mechanism | BatchMechanism) -> float:
    """The ε of a release, on average."""
    if epsilon is None:
        raise InputError("expected epsilon, the bound for one release or batch, got none; try epsilon=1.0")
    rate = mechanisms.check_epsilon(epsilon, largest=chosen.largest)
    mechanisms.check_epsilon(rate * schedule, "epsilon × period", chosen.largest)
    _check_not_faint(rate, schedule, "release less often")
    return rate


def _check_not_faint(rate: float, schedule: int, instead: str) -> None:
    """Refuse an ε with which every release would be the best guess."""
    if rate * schedule < GONE:
        raise InputError(
            f"expected epsilon of at least {GONE / schedule:g}, got {rate:g}: with less a release tells nothing "
            f"at all, it only repeats the best guess; use that much, or {instead}"
        )


def _declared(saved: Mapping[str, Any], observers: Sequence[MarkovModel]) -> dict[str, Any]:
    """What a saved setting says about secrets."""
    if "secrets" not in saved:
        return {}
    known = {observer.fingerprint: observer for observer in observers}
    if not set(saved["observers"]) <= known.keys():
        raise ModelError("the release was made for observers with models of their own; name the models of all of them")
    return {
        "secrets": [from_dict(secret) for secret in saved["secrets"]],
        "observers": [known[fingerprint] for fingerprint in saved["observers"]],
        "withhold": saved["withhold"],
    }


def _digest(distortion: Distortion) -> str:
    costs = hashlib.sha256()
    for part in distortion.defining:
        costs.update(b"-" if part is None else np.ascontiguousarray(part, "<f8").tobytes())
    return costs.hexdigest()
