"""What is promised about a stream, as one frozen object: the only thing besides a model that a release needs.

What goes together is decided in one table (`conflicts`). What a policy means for a model are its terms (`Policy.on`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seqveil.core import distortion as distortions
from seqveil.core import mechanisms
from seqveil.core.distortion import HAMMING, Distortion, resolve
from seqveil.core.errors import DataError, InputError, ModelError, option, unknown_setting, whole_number
from seqveil.core.mechanisms import BatchMechanism, Mechanism
from seqveil.core.mechanisms.blocks import LONGEST, BlockRule, block_rule, fingerprint
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret, SecretTrackers, from_dict
from seqveil.core.secrets.ahead import ROWS, ahead
from seqveil.core.secrets.declared import CLOCKLESS
from seqveil.core.times import Slots
from seqveil.core.words import side_knowledge
from seqveil.engine.budget import GONE, Budget, as_number

NO_BOUND = "no bound: nothing is promised about the whole sequence, only about the declared secrets"
OTHER_MODEL = "the model is not the one the release was made with; name the model file of the release"


@dataclass(frozen=True, eq=False)
class Terms:
    """Everything public about a stream's release but the releases themselves; `Policy.on` makes it."""

    model: MarkovModel
    policy: Policy
    mechanism: Mechanism | BatchMechanism  # the one that the policy chooses for the model
    epsilon: float  # of every release, on average; infinite where nothing is promised about the whole sequence
    distortion: Distortion  # over the model's alphabet
    observers: tuple[MarkovModel, ...] = ()  # further models under which declared secrets are kept as well

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
            return f'no bound: mechanism "{self.mechanism.name}" does not guarantee its ε, so nothing is promised'
        return NO_BOUND if self.unbounded else ""

    @property
    def lasts(self) -> str:
        """Says where the promises of secrets end, and with them the releases of a stream; empty where they never do."""
        if self.trackers is None or self.trackers.limit is None:
            return ""
        return f"at most {self.trackers.limit:,} events of a person; then releases are refused: {self.trackers.beyond}"

    @cached_property
    def trackers(self) -> SecretTrackers | None:
        """The accounts of the declared secrets before the first release, where secrets follow the clock of streams that
        begin at midnight; None where no secret is declared."""
        return self._trackers_at(0) if self.secrets else None

    def trackers_from(self, slot: int) -> SecretTrackers:
        """The accounts of the declared secrets for a stream that begins in this slot, before its first release."""
        return self._trackers_at(int(self.slots.place(slot)))

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another process; the accounts of secrets before the first release are found there again."""
        return {name: value for name, value in vars(self).items() if name not in ("_trackers_at", "trackers")}

    @cached_property
    def _trackers_at(self) -> Callable[[int], SecretTrackers]:
        models = [self.model, *self.observers]
        return cache(lambda place: SecretTrackers.start(models, self.secrets, True, place, self.remembered))

    @cached_property
    def side_information(self) -> float:
        """The most that the release of an event adds about the secrets for somebody who knows the true event."""
        given = self.policy.side_information
        return min(secret.total for secret in self.secrets) if given is None else given

    @cached_property
    def remembered(self) -> tuple[Secret, ...]:
        """The secrets whose automata, read along the raw stream, kernels go by; none where rows go by symbol alone."""
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

    def to_dict(self) -> dict[str, object]:
        """The terms as plain values, models by their fingerprints: all that a receiver needs besides the model."""
        chosen = {
            "mechanism": self.mechanism.name,
            "epsilon": None if self.unbounded else self.epsilon,
            "distortion": self.distortion.name,
            "observers": [observer.fingerprint for observer in self.observers],
        }
        found = {"model": self.model.fingerprint, **self.policy.to_dict(), **chosen}
        if self.clocked:
            found["slots"] = self.slots.to_json()
        if self.in_blocks:
            found["cells"] = fingerprint(self.rule)
        return found

    @cached_property
    def signature(self) -> str:
        """The terms as one line of text, which differs wherever two release differently."""
        costs = hashlib.sha256()  # of a distortion that the caller made, whose name does not say what it is
        for part in self.distortion.defining:
            costs.update(b"-" if part is None else np.ascontiguousarray(part, "<f8").tobytes())
        return json.dumps(self.to_dict() | {"costs": costs.hexdigest()}, sort_keys=True)


def refuse_other(before: Mapping[str, Any], now: Mapping[str, Any], name: str, instead: str) -> None:
    """Refuse to go on with what was begun on other terms, as `Terms.to_dict` gives them; `instead` is what to begin."""
    if before["model"] != now["model"]:
        raise ModelError(f"{name} belongs to another model; use the one that it had or adopted last, or {instead}")
    differing = sorted(part for part in before.keys() | now.keys() if before.get(part) != now.get(part))
    if differing:
        named = [part for part in differing if part not in ("cells", "costs")] or ["way to cut blocks, or distortion"]
        key = f" (with {option('key')}, where it had a key)" * ("side_information" in differing)
        raise InputError(
            f"{name} was begun with another {', '.join(named)}; use the policy of its first run{key}, or {instead}"
        )


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
    observers: Sequence[MarkovModel | str] = field(default=(), kw_only=True)
    block: int = field(default=1, kw_only=True)
    side_information: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _settle(self)
        for message in conflicts(self):
            raise InputError(message)
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
        """What the policy means for this model, checked against it before anything is drawn."""
        met: Terms | None = self.__dict__.get("_met")
        if met is not None and met.model is model:
            return met
        if not isinstance(model, MarkovModel):
            raise InputError(f"expected a MarkovModel, as fit gives it; got {type(model).__name__}")
        usual, chosen, rate = self.distortion == HAMMING.name, self.found, self.rate
        costs = HAMMING if usual else resolve(self.distortion, model.alphabet)
        if chosen is mechanisms.auto and self.batch == 1:
            chosen = mechanisms.find(mechanisms.one_by_one(model.n, costs, rate))
        if isinstance(chosen, Mechanism):
            chosen.check_distortion(costs)
            chosen = chosen if chosen.for_model is None else replace(chosen, build=chosen.for_model(model))
        _check_rate(rate, chosen)
        made = Terms(model, self, chosen, math.inf if rate is None else rate, costs, self.loaded_observers())
        if made.trackers is not None:  # made here, it refuses models of observers that do not go together
            for each, secret in itertools.product((model, *made.observers), made.secrets):
                ahead(each, secret).check_countable()
            made.trackers.check_room()
        object.__setattr__(self, "_met", made)
        return made

    def loaded_observers(self) -> tuple[MarkovModel, ...]:
        """The models of further observers, those in files read."""
        return tuple(MarkovModel.load(each) if isinstance(each, str) else each for each in self.observers)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The promise, a sentence each: of every declared secret, then of the whole sequence."""
        kept = [secret.sentence for secret in self.secrets]
        if any(secret.kind != "trait" and secret.window != "event" for secret in self.secrets) and not self.withhold:
            total = min(secret.total for secret in self.secrets)
            kept.append(side_knowledge(total if self.side_information is None else self.side_information))
        if self.observers:
            others = "the other model" if len(self.observers) == 1 else f"one of {len(self.observers)} other models"
            kept.append(f"the same holds for an observer who believes {others}, but not for one who is unsure which")
        if self.withhold:
            kept.append("a release is the truth or nothing")
        if not self.found.sound:
            return (*kept, f'nothing: "{self.found.name}" is not sound ({self.found.guarantee})')
        return (*kept, NO_BOUND) if self.rate is None else (*kept, *self.bounds(self.rate))

    def bounds(self, rate: float) -> list[str]:
        """What is promised about the whole sequence, in parts of a sentence: of one release, then of several."""
        budget, in_batches = self.budget, isinstance(self.found, BatchMechanism)
        what, many = ("batch", "batches") if in_batches else ("release", "releases")
        size = f" of {self.batch} events" if in_batches else ""
        if self.block > 1:
            what, many, size = "block", "blocks", f" of {self.block} events"
        found = [
            f"each {what}{size} moves what anyone who knows the model believes about a user's whole sequence by at "
            f"most a factor e^{rate:g} = {math.exp(rate):.3g}, up or down"
        ]
        if self.block > 1:
            found.append(
                f"one release alone by up to as much, and given the earlier ones of its block by up to e^{2 * rate:g}"
            )
        if budget.exact_total is not None:
            found.append(f"all {many} of a stream together by at most a factor e^{budget.exact_total:g}")
        if budget.composed:
            found.append(budget.composed)
        if budget.per_window is not None:
            counted = f"{budget.releases} {many if in_batches else 'events'} in a row, whether released or not,"
            unit = counted if budget.releases else f"stretch shorter than {budget.seconds:g} seconds"
            which = "the blocks, each as a whole, that reach into" if self.block > 1 else "those in"
            found.append(f"{which} any {unit} by at most a factor e^{budget.per_window:g}")
        if budget.ldp_total is not None:
            found.append(f"without trust in any model, all {many} of a stream together are {budget.ldp_total:g}-LDP")
        return found

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """The policy as plain values, without what is left at its default; `from_dict` gives it back, but for objects,
        which go by their names.

        >>> Policy(epsilon=5.0, batch=5, budget=20.0).to_dict()
        {'epsilon': 5.0, 'batch': 5, 'budget': {'total': 20.0}}
        """
        found = {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }
        for name in ("mechanism", "distortion"):
            if name in found:
                found[name] = getattr(found[name], "name", found[name])
        if "budget" in found:
            found["budget"] = self.budget.to_dict()
        if "observers" in found:
            found["observers"] = [each if isinstance(each, str) else each.fingerprint for each in self.observers]
        if found.get("side_information") == math.inf:
            found["side_information"] = "inf"
        if found.pop("secrets", ()):
            found["secret"] = [secret.to_dict() for secret in self.secrets]
        return found

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Policy:
        """The policy of a file, or of what `to_dict` gave.

        >>> Policy.from_dict({"secret": [{"ever": ["health"], "epsilon": 0.5}]}).secrets[0].name
        'ever:health'
        """
        known = {"secret" if each.name == "secrets" else each.name for each in fields(cls)}
        strange = sorted(str(name) for name in saved if name not in known)
        if strange:
            raise InputError(unknown_setting(strange[0], known))
        given = dict(saved)
        tables = given.pop("secret", [])
        if not isinstance(tables, list | tuple):
            raise InputError("expected each secret of a policy as a table [[secret]]; got something else")
        budget = Budget.from_dict(given.pop("budget")) if "budget" in given else Budget()
        return cls(secrets=tuple(map(from_dict, tables)), budget=budget, **given)

    def to_toml(self, comments: Iterable[str] = ()) -> str:
        """The policy as TOML, below comments; observers by the paths of their models.

        >>> print(Policy(epsilon=1.0, budget=3.0).to_toml(["mild"]), end="")
        # mild
        epsilon = 1.0
        budget = { total = 3.0 }
        """
        named: dict[str, Sequence[object]] = {
            "mechanism": [self.mechanism or ""],
            "distortion": [self.distortion],
            "observers": self.observers,
        }
        for name, values in named.items():
            if not all(isinstance(each, str) for each in values):
                raise InputError(
                    f"expected a policy to be saved to name its {name}, got an object; use a registered name, or the "
                    "path of a model file"
                )
        lines = self.to_dict()
        parts = [("", lines), *(("\n[[secret]]\n", table) for table in lines.pop("secret", ()))]
        text = [head + "".join(f"{name} = {_toml(value)}\n" for name, value in part.items()) for head, part in parts]
        said = "".join(f"# {' '.join(comment.split())}\n" for comment in comments)
        return said + "".join(text).lstrip("\n")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy as TOML, over what stands there."""
        Path(path).write_text(self.to_toml(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from TOML; models of observers are named from the folder that the file is in."""
        file = Path(path)
        try:
            saved = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{file.name}: no such policy file; check the path") from None
        except OSError:
            raise InputError(f"{file.name}: the policy file cannot be read; check the path") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            raise InputError(
                f"{file.name}: is not TOML; write lines such as epsilon = 1.0, each with its value"
            ) from None
        if isinstance(saved.get("observers"), list):
            saved["observers"] = [str(file.parent / str(each)) for each in saved["observers"]]
        try:
            return cls.from_dict(saved)
        except InputError as error:
            raise type(error)(f"{file.name}: {error}") from None


def _toml(value: Any) -> str:
    """A plain value in TOML."""
    if isinstance(value, bool | str):  # as in JSON, which leaves but one letter as it is that TOML does not
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {_toml(one)}' for name, one in value.items())} }}"
    if isinstance(value, int | float):
        return repr(value)
    raise InputError(f"a value of type {type(value).__name__} cannot be written as TOML; use texts and numbers")


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
        raise InputError(
            f"expected a Policy; for ε write epsilon={given:g}"
            if number
            else f"expected a Policy, got {type(given).__name__}; write mechanism=… for the name of one"
        )
    if shorthand:
        raise InputError(
            f"expected a Policy or its fields, got both; put {', '.join(sorted(shorthand))} into the Policy"
        )
    return given


def saved_terms(saved: Mapping[str, Any], model: MarkovModel) -> Terms:
    """The terms that `Terms.to_dict` gave the values of, for the model they were made with and no other."""
    try:
        slots = model.alphabet.slots
        clock = None if slots is None else slots.to_json()
        if saved["model"] != model.fingerprint or saved.get("slots", clock) != clock:
            raise ModelError(OTHER_MODEL)
        if saved["observers"]:
            raise ModelError(
                "the release was made for observers with models of their own; name the models of all of them"
            )
        chosen = {name: saved[name] for name in ("mechanism", "epsilon", "distortion")}
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


def several_secrets(given: Any) -> tuple[Secret, ...]:
    """Secrets of whoever names one or several; anything else is refused."""
    several = tuple(given) if isinstance(given, Iterable) and not isinstance(given, Secret | str) else (given,)
    if not all(isinstance(each, Secret) for each in several):
        raise InputError(
            'expected secrets as sv.secrets makes them, for instance sv.secrets.ever("health", epsilon=0.5); got others'
        )
    return several


def _settle(policy: Policy) -> None:
    """Bring each field into its one form, or refuse what it is."""
    observers, costs, chosen = policy.observers, policy.distortion, policy.mechanism
    put: dict[str, Any] = {"secrets": several_secrets(policy.secrets)}
    named = observers if isinstance(observers, list | tuple) else [observers]
    put["observers"] = tuple(os.fspath(each) if isinstance(each, os.PathLike) else each for each in named)
    if not all(isinstance(each, MarkovModel | str) for each in put["observers"]):
        raise InputError("expected observers as models, or as the paths of model files; got others")
    put["budget"] = policy.budget if isinstance(policy.budget, Budget) else Budget(total=policy.budget)
    put["distortion"] = costs if isinstance(costs, str | Distortion) else distortions.matrix(costs)
    if isinstance(costs, str) and costs not in distortions.NAMES:
        raise InputError(f"expected a distortion among {', '.join(distortions.NAMES)}, got {costs[:40]!r}")
    for name in ("batch", "block"):
        size = getattr(policy, name)
        if type(size) is not int or size < 1:
            whole_number(name, size)
        put[name] = int(size)
    if not isinstance(policy.withhold, bool | np.bool_):
        raise InputError(f"expected withhold to be true or false, got {type(policy.withhold).__name__}")
    put["withhold"] = bool(policy.withhold)
    if policy.side_information is not None:
        given: Any = policy.side_information
        put["side_information"] = dial = math.inf if given == "inf" else as_number(given)  # JSON has only its name
        if not (0.0 <= dial <= 100.0 or dial == math.inf):
            raise InputError(
                f"expected side_information from 0 to 100, or inf for none, got {str(policy.side_information)[:40]}; "
                "say for instance side_information=0.5, or leave it out"
            )
    if policy.epsilon is not None:
        put["epsilon"] = mechanisms.check_epsilon(policy.epsilon, largest=math.inf)
    if chosen is not None and not isinstance(chosen, str | Mechanism | BatchMechanism):
        raise InputError(f"expected the name of a mechanism, or a mechanism; got {type(chosen).__name__}")
    if not isinstance(chosen, str | None) and chosen.name in mechanisms.names():
        put["mechanism"] = chosen.name if mechanisms.find(chosen.name) is chosen else chosen
    for name, value in put.items():
        object.__setattr__(policy, name, value)


def _check_rate(rate: float | None, mechanism: Mechanism | BatchMechanism) -> None:
    """Refuse an ε that the mechanism cannot keep to, and one with which every release would be the best guess."""
    if rate is None:
        return
    mechanisms.check_epsilon(rate, largest=mechanism.largest)
    if rate < GONE:
        instead = "leave it out where the declared secrets are enough" if mechanism.name == _GUARDED else "release less"
        raise InputError(
            f"expected epsilon of at least {GONE:g}, got {rate:g}: with less a release only repeats the best "
            f"guess; use that much, or {instead}"
        )


def conflicts(p: Policy) -> Iterator[str]:
    """What goes together: a line for whatever is amiss with a policy; docs/choosing.md has the table for readers."""
    name, blocks, kept = p.found.name, p.block > 1, bool(p.secrets)
    if name == _GUARDED and not kept:
        yield '"guarded" keeps declared secrets and got none; pass secrets=[sv.secrets.ever(…, epsilon=0.5)]'
    if p.rate is None and not kept:
        yield (
            "expected epsilon, secrets, or a budget with total and over, got none of them; say for instance epsilon=1.0"
        )
    if kept and name != _GUARDED:
        yield (
            f'mechanism "{name}" keeps no declared secrets; leave one of the two out (`audit` measures secrets that '
            "nothing keeps)"
        )
    if any(secret.epsilon is None for secret in p.secrets):
        yield "a declared secret has no epsilon, and nothing is released without one; say it, for instance epsilon=0.5"
    if kept and (p.batch != 1 or p.budget.limited):
        yield "declared secrets take no batch and no budget: each secret has its own total, for its window"
    if blocks and (p.batch != 1 or p.withhold or kept or p.observers):
        yield (
            "a block takes no batch, secrets, observers or withhold: its ε is one promise for all its events; drop one"
        )
    if blocks != (name == _BLOCKS):
        yield (
            'blocks are released by the mechanism "blocks" alone, and it needs their length; leave mechanism out, and '
            "say for instance block=20"
        )
    if p.block > LONGEST:
        yield f"expected a block of at most {LONGEST} events, got more; use shorter ones, whose ε add up"
    if not kept and (p.withhold or p.observers or p.side_information is not None):
        yield "withhold, observers and side_information say how declared secrets are kept; pass secrets with them"
    if p.withhold and (p.side_information or p.epsilon is not None):
        yield (
            "the truth or nothing (withhold=True) takes no epsilon, at which the truth alone is not sound, and no "
            "side_information, for it adds nothing for somebody who knows the event; leave them out"
        )
    if p.budget.over is not None and (blocks or p.epsilon is not None):
        yield "a budget over so many releases chooses the epsilon of each; leave out epsilon and block, or its over"
    if p.batch > 1 and not isinstance(p.found, BatchMechanism):
        yield f'"{name}" releases one symbol at a time; for batches use one of {", ".join(mechanisms.batched())}'
    if p.budget.limited and not p.found.sound:
        yield f'mechanism "{name}" does not guarantee its ε, so no budget can rely on it; name a sound one'
    if p.budget.ldp_total is not None and not math.isfinite(p.found.ldp):
        yield f'mechanism "{name}" has no LDP level, so no budget without a model can hold; use "optimal"'
