"""Everything public about a stream's release: model, mechanism, ε, distortion, schedule, budget and batch.

A setting is written down as plain values in side files, state files, checkpoints and answers of the service, always by
`Setting.to_dict`, and read back by `Setting.from_dict`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seqveil.core import mechanisms
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.kernel import Floats
from seqveil.core.mechanisms import BatchMechanism, Mechanism
from seqveil.core.model import MarkovModel
from seqveil.release.accounting import Budget, Schedule

OTHER_MODEL = "the model is not the one the release was made with; name the model file of the release"


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything public about a stream's release but the releases themselves."""

    model: MarkovModel
    mechanism: Mechanism | BatchMechanism
    epsilon: float
    distortion: Distortion
    schedule: Schedule = field(default_factory=Schedule)
    budget: Budget = field(default_factory=Budget)
    batch: int = 1

    @classmethod
    def of(
        cls,
        model: MarkovModel,
        mechanism: str | Mechanism | BatchMechanism = "optimal",
        epsilon: float | None = 0.5,
        distortion: str | Distortion = "hamming",
        schedule: Schedule | int | None = None,
        budget: Budget | float | None = None,
        batch: int = 1,
    ) -> Setting:
        """A checked setting from what a person types: names, a period, a total, a batch size."""
        if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or batch < 1:
            raise InputError(f"expected a batch of a whole number of symbols ≥ 1, got {batch}")
        costs = resolve(distortion, model.alphabet)
        if mechanism == "auto" and batch == 1:
            mechanism = mechanisms.one_by_one(model.n, costs, epsilon)
        chosen = mechanisms.find(mechanism) if batch == 1 else mechanisms.get_batched(mechanism)
        if isinstance(chosen, Mechanism) and chosen.for_model is not None:
            chosen = replace(chosen, build=chosen.for_model(model))
        purse = budget if isinstance(budget, Budget) else Budget(total=budget)
        if purse.limited and not chosen.sound:
            raise InputError(
                f'mechanism "{chosen.name}" does not keep to its ε, so no budget can hold; use "optimal" or "balanced"'
            )
        if purse.ldp_total is not None and not math.isfinite(chosen.ldp):
            raise InputError(
                f'mechanism "{chosen.name}" has no LDP level, so no budget without a model can hold; use "optimal"'
            )
        plan = schedule if isinstance(schedule, Schedule) else Schedule(1 if schedule is None else schedule)
        if epsilon is None and purse.total is not None and purse.horizon is not None:
            epsilon = min(purse.total, chosen.largest / plan.period)  # the horizon spreads it
        if epsilon is None:
            raise InputError("expected epsilon, the bound for one release, or a budget with total and horizon")
        rate = mechanisms.check_epsilon(epsilon, largest=chosen.largest)
        mechanisms.check_epsilon(rate * plan.period, "epsilon × period", chosen.largest)
        return cls(model, chosen, rate, costs, plan, purse, int(batch))

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
            "epsilon": self.epsilon,
            "distortion": self.distortion.name,
            "batch": self.batch,
            "schedule": {"period": self.schedule.period, "threshold": self.schedule.threshold},
            "budget": self.budget.to_json(),
        }
        return told | {"costs": _digest(self.distortion)} if costs else told

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any], model: MarkovModel) -> Setting:
        """The setting that `to_dict` gave the values of, for the model it was made with and no other.

        >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
        >>> saved = Setting.of(model, "optimal", 0.7, budget=3.0).to_dict()
        >>> Setting.from_dict(saved, model).to_dict() == saved
        True
        """
        try:
            if saved["model"] != model.fingerprint:
                raise ModelError(OTHER_MODEL)
            schedule, budget = Schedule(**saved["schedule"]), Budget(**saved["budget"])
            named = saved["mechanism"], saved["epsilon"], saved["distortion"]
            return cls.of(model, *named, schedule, budget, saved.get("batch", 1))
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError):
            raise DataError("a part of the setting is missing or damaged; release the data again") from None

    @property
    def signature(self) -> str:
        """The setting as one line of text, which differs wherever two settings release differently."""
        return json.dumps(self.to_dict(costs=True), sort_keys=True)

    def ldp_cost(self, epsilons: Floats) -> Floats:
        """What releases at these ε add to the LDP level of a stream, whatever model is true."""
        return np.where(epsilons > 0, self.mechanism.ldp * np.where(epsilons > 0, epsilons, 1.0), 0.0)


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


def _digest(distortion: Distortion) -> str:
    costs = hashlib.sha256()
    for part in (distortion.points, distortion.table):
        costs.update(b"-" if part is None else np.ascontiguousarray(part, "<f8").tobytes())
    return costs.hexdigest()
