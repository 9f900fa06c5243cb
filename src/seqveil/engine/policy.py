"""What is promised about a stream, as one frozen object: the only thing besides a model that a release needs.

A policy is checked when it is made, and against a model when it meets one (`Policy.on`). It chooses the mechanism. What
goes together is decided here, in two tables, and nowhere else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seqveil.core import distortion as distortions
from seqveil.core import mechanisms
from seqveil.core.composition import whole_number
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.mechanisms import BatchMechanism, Mechanism
from seqveil.core.mechanisms.block_schedule import fingerprint
from seqveil.core.mechanisms.blocks import LONGEST
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret, from_dict
from seqveil.engine import toml
from seqveil.engine.budget import GONE, Budget
from seqveil.engine.terms import NO_BOUND, OTHER_MODEL, Terms

Observer = MarkovModel | str
_GUARDED, _BLOCKS = mechanisms.guarded.name, mechanisms.in_blocks.name


@dataclass(frozen=True)
class Policy:
    """What is promised: ε for each release or batch, declared secrets, a budget; it chooses the mechanism.

    No ε has a default: a policy has an ε, declared secrets, or a budget that chooses one (`Budget.over`).

    Parameters:
        epsilon: the most that one release, or one batch, moves what anyone who knows the model and all releases
            believes about the whole sequence, as a log factor, up or down. Beside secrets it may be left out: nothing
            is then promised about the whole sequence.
        batch: how many symbols are released at a time: more symbols, more delay, much less error.
        secrets: what `seqveil.secrets` declares; each is kept within its own total, by the mechanism "guarded".
        budget: a `Budget`, or a total.
        mechanism: a name or an object, where somebody insists; else "guarded" for secrets, "auto" for batches, and
            "optimal".
        distortion: the cost of a wrong release: a name, or a `Distortion`.
        withhold: with secrets, release the truth or nothing, never a wrong symbol.
        observers: with secrets, further models (or the files of models) under which every promise holds as well.
        block: how many events share one ε, each of them answered at once: the promise of a batch, without its delay.
        side_information: with secrets, the most that the release of an event adds about them for somebody who knows the
            true event, as a log factor: 0 for nothing, inf for no such bound; by default the least ε of the secrets.

    >>> print(Policy(epsilon=1.0))
    each release moves what anyone who knows the model believes about a user's whole sequence by at most a factor e^1 =
    2.72, up or down
    >>> Policy()
    Traceback (most recent call last):
    ...
    seqveil.core.errors.InputError: expected epsilon, secrets, or a budget with total and over, got none of them; say
    for instance epsilon=1.0
    """

    epsilon: float | None = None
    batch: int = field(default=1, kw_only=True)
    secrets: Sequence[Secret] = field(default=(), kw_only=True)
    budget: Budget = field(default=Budget(), kw_only=True)
    mechanism: str | Mechanism | BatchMechanism | None = field(default=None, kw_only=True)
    distortion: str | Distortion = field(default="hamming", kw_only=True)
    withhold: bool = field(default=False, kw_only=True)
    observers: Sequence[Observer] = field(default=(), kw_only=True)
    block: int = field(default=1, kw_only=True)
    side_information: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _settle(self)
        for amiss, message in _TOGETHER:
            if amiss(self):
                raise InputError(message.format(mechanism=self.found.name))
        if self.rate is not None:
            _check_rate(self.rate, self.found)

    @property
    def found(self) -> Mechanism | BatchMechanism:
        """The mechanism that is meant, before it meets a model."""
        usual = _GUARDED if self.secrets else "optimal" if self.batch == 1 else "auto"
        usual = _BLOCKS if self.block > 1 else usual
        return mechanisms.find(usual if self.mechanism is None else self.mechanism)

    @property
    def rate(self) -> float | None:
        """The ε of a release, on average: that which was given, or that which the budget chooses."""
        return self.epsilon if self.epsilon is not None else self.budget.epsilon

    def on(self, model: MarkovModel) -> Terms:
        """What the policy means for this model, checked against it.

        >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
        >>> Policy(epsilon=1.0).on(model).mechanism.name
        'optimal'
        """
        met = self.__dict__.get("_met")
        if met is None or met.model is not model:
            met = self._meet(model)
            object.__setattr__(self, "_met", met)
        return met

    def _meet(self, model: MarkovModel) -> Terms:
        if not isinstance(model, MarkovModel):
            raise InputError(f"expected a MarkovModel, as fit gives it; got {type(model).__name__}")
        costs = resolve(self.distortion, model.alphabet)
        chosen, rate = _chosen(self, model, costs), self.rate
        if rate is not None:
            _check_rate(rate, chosen)
        made = Terms(model, self, chosen, math.inf if rate is None else rate, costs, self.loaded_observers())
        for amiss, message in _MEETING:
            if amiss(made):
                raise InputError(message.format(mechanism=chosen.name))
        made.check_secrets()
        return made

    def loaded_observers(self) -> tuple[MarkovModel, ...]:
        """The models of further observers, those in files read."""
        return tuple(MarkovModel.load(each) if isinstance(each, str) else each for each in self.observers)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The promise, a sentence each: of every declared secret, then of the whole sequence."""
        kept = [f"in total over a user's stream: {secret.sentence}" for secret in self.secrets]
        if self.observers:
            kept.append(f"so it is for observers who believe one of {len(self.observers)} other models")
        if self.withhold:
            kept.append("a release is the truth or nothing")
        if not self.found.sound:
            return (*kept, f'nothing: "{self.found.name}" is not sound ({self.found.guarantee})')
        return (*kept, NO_BOUND) if self.rate is None else (*kept, *self.bounds(isinstance(self.found, BatchMechanism)))

    def bounds(self, in_batches: bool) -> list[str]:
        """What is promised about the whole sequence, in parts of a sentence: of one release, then of several."""
        rate, budget = self.rate or 0.0, self.budget
        what, many = ("batch", "batches") if in_batches else ("release", "releases")
        size = f" of {self.batch} events" if in_batches else ""
        if self.block > 1:
            what, many, size = "block", "blocks", f" of {self.block} events"
        said = (
            f"each {what}{size} moves what anyone who knows the model believes about a user's whole sequence by at "
            f"most a factor e^{rate:g} = {math.exp(rate):.3g}, up or down"
        )
        found = [said]
        if self.block > 1:
            found.append(
                f"one release alone by up to as much, and given the earlier ones of its block by up to e^{2 * rate:g}"
            )
        if budget.exact_total is not None:
            found.append(f"all {many} of a stream together by at most a factor e^{budget.exact_total:g}")
        if budget.composed:
            found.append(f"together they are {budget.composed}")
        if budget.per_window is not None:
            counted = f"{budget.releases} {many if in_batches else 'events'} in a row, whether released or not,"
            unit = counted if budget.releases else f"{budget.seconds:g} seconds"
            found.append(f"those in any {unit} by at most a factor e^{budget.per_window:g}")
        if budget.ldp_total is not None:
            found.append(f"without trust in any model, all {many} of a stream together are {budget.ldp_total:g}-LDP")
        return found

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The policy as plain values, objects by their names; for `Terms`, which add what these stand for."""
        found = {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }
        for name in ("mechanism", "distortion"):
            if name in found:
                found[name] = getattr(found[name], "name", found[name])
        if "budget" in found:
            found["budget"] = self.budget.to_dict()
        if "secrets" in found:
            del found["secrets"]
            found["secret"] = [secret.to_dict() for secret in self.secrets]
        return found

    def to_dict(self) -> dict[str, Any]:
        """The policy as plain values, without what is left at its default; `from_dict` gives it back.

        >>> Policy(epsilon=5.0, batch=5, budget=20.0).to_dict()
        {'epsilon': 5.0, 'batch': 5, 'budget': {'total': 20.0}}
        """
        named = {"mechanism": self.mechanism or "", "distortion": self.distortion}
        strange = next((name for name, value in named.items() if not isinstance(value, str)), None)
        if strange is not None or any(isinstance(each, MarkovModel) for each in self.observers):
            raise InputError(
                f"expected a policy to be saved to name its {strange or 'observers'}, got an object; use a registered "
                "name, or the path of a model file"
            )
        return self.plain | ({"observers": list(self.observers)} if self.observers else {})

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Policy:
        """The policy of a file, or of what `to_dict` gave.

        >>> Policy.from_dict({"secret": [{"ever": ["health"], "epsilon": 0.5}]}).secrets[0].name
        'ever:health'
        """
        known = {"secret" if each.name == "secrets" else each.name for each in fields(cls)}
        strange = sorted(str(name) for name in saved if name not in known)
        if strange:
            raise InputError(f"{strange[0][:40]!r} is no line of a policy; expected one of {', '.join(sorted(known))}")
        given = dict(saved)
        tables = given.pop("secret", [])
        if not isinstance(tables, list | tuple):
            raise InputError("expected each secret of a policy as a table [[secret]]; got something else")
        budget = Budget.from_dict(given.pop("budget")) if "budget" in given else Budget()
        return cls(secrets=tuple(map(from_dict, tables)), budget=budget, **given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy as TOML, over what stands there; observers by the paths of their models."""
        Path(path).write_text(toml.written(self.to_dict()), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from TOML; models of observers are named from the folder that the file is in."""
        file = Path(path)
        saved = toml.read(file, "policy")
        if isinstance(saved.get("observers"), list):
            saved["observers"] = [str(file.parent / str(each)) for each in saved["observers"]]
        try:
            return cls.from_dict(saved)
        except InputError as error:
            raise type(error)(f"{file.name}: {error}") from None


def policy_of(given: Policy | None, shorthand: Mapping[str, Any]) -> Policy:
    """The policy that was passed, or that its fields spell out where they were passed instead."""
    if given is None:
        known = [each.name for each in fields(Policy)]
        strange = next((name for name in shorthand if name not in known), None)
        if strange is not None:
            raise InputError(f"{strange[:40]!r} is no field of a Policy; expected one of {', '.join(known)}")
        return Policy(**shorthand)
    if not isinstance(given, Policy):
        number = isinstance(given, int | float | np.number)
        hint = f"; for ε write epsilon={given:g}" if number else ""
        hint = f'; for a mechanism write mechanism="{given}", with epsilon=' if isinstance(given, str) else hint
        raise InputError(f"expected a Policy{hint or f', got {type(given).__name__}'}")
    if shorthand:
        raise InputError(
            f"expected a Policy or its fields, got both; put {', '.join(sorted(shorthand))} into the Policy"
        )
    return given


def saved_terms(saved: Mapping[str, Any], model: MarkovModel, observers: Sequence[MarkovModel] = ()) -> Terms:
    """The terms that `Terms.to_dict` gave the values of, for the model they were made with and no other.

    `observers` are the models of further observers, in any order, where there are some.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> saved = Policy(epsilon=0.7, budget=3.0).on(model).to_dict()
    >>> saved_terms(saved, model).to_dict() == saved
    True
    """
    try:
        slots = model.alphabet.slots
        clock = None if slots is None else slots.to_json()
        if saved["model"] != model.fingerprint or saved.get("slots", clock) != clock:
            raise ModelError(OTHER_MODEL)
        known = {observer.fingerprint: observer for observer in observers}
        if not set(saved["observers"]) <= known.keys():
            raise ModelError(
                "the release was made for observers with models of their own; name the models of all of them"
            )
        chosen = {name: saved[name] for name in ("mechanism", "epsilon", "distortion")}
        chosen["observers"] = tuple(known[fingerprint] for fingerprint in saved["observers"])
        if "over" in saved.get("budget", {}):
            chosen["epsilon"] = None
        plain = {name: value for name, value in saved.items() if name not in ("model", "slots", "costs", "cells")}
        made = Policy.from_dict(plain | chosen).on(model)
        if made.in_blocks and saved["cells"] != fingerprint(made.rule):
            raise DataError("the blocks of the release were cut into other cells; use the version that made it")
        return made
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError):
        raise DataError("a part of the policy is missing or damaged; release the data again") from None


def _settle(policy: Policy) -> None:
    """Bring each field into its one form, or refuse what it is."""
    put: dict[str, Any] = {"secrets": _secrets(policy.secrets), "observers": _observers(policy.observers)}
    put["budget"] = policy.budget if isinstance(policy.budget, Budget) else Budget(total=policy.budget)
    put["distortion"] = _costs(policy.distortion)
    for name in ("batch", "block"):
        whole_number(name, getattr(policy, name))
        put[name] = int(getattr(policy, name))
    if not isinstance(policy.withhold, bool | np.bool_):
        raise InputError(f"expected withhold to be true or false, got {type(policy.withhold).__name__}")
    put["withhold"] = bool(policy.withhold)
    if policy.side_information is not None:
        put["side_information"] = _dial(policy.side_information)
    if policy.epsilon is not None:
        put["epsilon"] = mechanisms.check_epsilon(policy.epsilon, largest=math.inf)
    chosen = policy.mechanism
    if chosen is not None and not isinstance(chosen, str | Mechanism | BatchMechanism):
        raise InputError(f"expected the name of a mechanism, or a mechanism; got {type(chosen).__name__}")
    if isinstance(chosen, Mechanism | BatchMechanism) and chosen.name in mechanisms.names():
        put["mechanism"] = chosen.name if mechanisms.find(chosen.name) is chosen else chosen
    for name, value in put.items():
        object.__setattr__(policy, name, value)


def _dial(given: Any) -> float:
    number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
    if not number or not float(given) >= 0.0:
        raise InputError(
            f"expected side_information of at least 0 (inf for no bound), got {str(given)[:40]}; say for instance "
            "side_information=0.5, or leave it out"
        )
    return float(given)


def _secrets(given: Any) -> tuple[Secret, ...]:
    found = (given,) if isinstance(given, Secret) else tuple(given) if isinstance(given, Iterable) else (given,)
    if isinstance(given, str) or not all(isinstance(each, Secret) for each in found):
        raise InputError(
            'expected secrets as sv.secrets makes them, for instance sv.secrets.ever("health", epsilon=0.5); got others'
        )
    return found


def _observers(given: Any) -> tuple[Observer, ...]:
    several = given if isinstance(given, list | tuple) else [given]
    found = tuple(os.fspath(each) if isinstance(each, os.PathLike) else each for each in several)
    if not all(isinstance(each, MarkovModel | str) for each in found):
        raise InputError("expected observers as models, or as the paths of model files; got others")
    return found


def _costs(given: Any) -> str | Distortion:
    if isinstance(given, str):
        if given not in distortions.NAMES:
            raise InputError(f"expected a distortion among {', '.join(distortions.NAMES)}, got {given[:40]!r}")
        return given
    return given if isinstance(given, Distortion) else distortions.matrix(given)


def _chosen(policy: Policy, model: MarkovModel, costs: Distortion) -> Mechanism | BatchMechanism:
    """The mechanism, made for the model where it needs one."""
    found = policy.found
    if found is mechanisms.auto and policy.batch == 1:
        found = mechanisms.find(mechanisms.one_by_one(model.n, costs, policy.rate))
    if policy.batch > 1:
        found = mechanisms.get_batched(found)
    if isinstance(found, Mechanism) and found.for_model is not None:
        return replace(found, build=found.for_model(model))
    return found


def _check_rate(rate: float, mechanism: Mechanism | BatchMechanism) -> None:
    """Refuse an ε that the mechanism cannot keep to, and one with which every release would be the best guess."""
    mechanisms.check_epsilon(rate, largest=mechanism.largest)
    if rate < GONE:
        instead = "leave it out where the declared secrets are enough" if mechanism.name == _GUARDED else "release less"
        raise InputError(
            f"expected epsilon of at least {GONE:g}, got {rate:g}: with less a release only repeats the best "
            f"guess; use that much, or {instead}"
        )


# What goes together. Each row: what is amiss, and the line that says so; docs/choosing.md has the table for readers.
_TOGETHER: tuple[tuple[Callable[[Policy], bool], str], ...] = (
    (
        lambda p: p.found.name == _GUARDED and not p.secrets,
        '"guarded" keeps declared secrets and got none; pass secrets=[sv.secrets.ever(…, epsilon=0.5)]',
    ),
    (
        lambda p: p.rate is None and not p.secrets,
        "expected epsilon, secrets, or a budget with total and over, got none of them; say for instance epsilon=1.0",
    ),
    (
        lambda p: bool(p.secrets) and p.found.name != _GUARDED,
        'mechanism "{mechanism}" keeps no declared secrets; leave one of the two out (`audit` measures secrets that '
        "nothing keeps)",
    ),
    (
        lambda p: any(secret.epsilon is None for secret in p.secrets),
        "a declared secret has no epsilon, and nothing is released without one; say it, for instance epsilon=0.5",
    ),
    (
        lambda p: bool(p.secrets) and (p.batch != 1 or p.budget.limited),
        "declared secrets take no batch and no budget: each secret has its own total, for the whole stream",
    ),
    (
        lambda p: p.block > 1 and (p.batch != 1 or p.withhold or bool(p.secrets or p.observers)),
        "a block takes no batch, secrets, observers or withhold: its ε is one promise for all its events; drop one",
    ),
    (
        lambda p: (p.block > 1) != (p.found.name == _BLOCKS),
        'blocks are released by the mechanism "blocks" alone, and it needs their length; leave mechanism out, and say '
        "for instance block=20",
    ),
    (
        lambda p: p.block > LONGEST,
        f"expected a block of at most {LONGEST} events, got more; use shorter ones, whose ε add up",
    ),
    (
        lambda p: p.block > 1 and p.budget.over is not None,
        "a budget over so many releases chooses the ε of each, and a block has one for all its events; give epsilon",
    ),
    (
        lambda p: not p.secrets and (p.withhold or bool(p.observers) or p.side_information is not None),
        "withhold, observers and side_information say how declared secrets are kept; pass secrets with them",
    ),
    (
        lambda p: p.withhold and bool(p.side_information),
        "the truth or nothing (withhold=True) adds nothing for somebody who knows the event; leave side_information "
        "out",
    ),
    (
        lambda p: p.withhold and p.epsilon is not None,
        "the truth or nothing (withhold=True) cannot be sound at an epsilon as well, for the truth alone is released; "
        "leave one of them out",
    ),
    (
        lambda p: p.epsilon is not None and p.budget.over is not None,
        "a budget over so many releases chooses epsilon; leave out epsilon, or the budget's over",
    ),
    (
        lambda p: p.batch > 1 and not isinstance(p.found, BatchMechanism),
        f'"{{mechanism}}" releases one symbol at a time; for batches use one of {", ".join(mechanisms.batched())}',
    ),
)
_MEETING: tuple[tuple[Callable[[Terms], bool], str], ...] = (
    (
        lambda t: t.budget.limited and not t.mechanism.sound,
        'mechanism "{mechanism}" does not keep to its ε, so no budget can hold; use "optimal" or "balanced"',
    ),
    (
        lambda t: t.budget.ldp_total is not None and not math.isfinite(t.mechanism.ldp),
        'mechanism "{mechanism}" has no LDP level, so no budget without a model can hold; use "optimal"',
    ),
)
