"""Versions of the model a stream was released with: public, numbered, each in force from a recorded event on.

Version 0 has no context: an ε-LDP mechanism and a chain in which all symbols are alike. Later ones are learned from the
releases before them. One file holds them all, models included, so that a receiver needs nothing else.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import secrets
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.core.errors import InputError, ModelError
from seqveil.core.model import MarkovModel
from seqveil.receive.learn import Learned
from seqveil.release.accounting import Budget, Schedule
from seqveil.release.stream import Setting

FORMAT, EDITION = "seqveil-versions", 1
CONTENTS = "versions.json"


@dataclass(frozen=True, eq=False)
class Version:
    """A setting in force for every release after the first `after` of all users together.

    `why` says what it was learned from and what speaks for it; empty for version 0.
    """

    number: int
    setting: Setting
    after: int
    why: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        return {"version": self.number, "after": self.after, "setting": self.setting.to_dict(), "why": dict(self.why)}

    def __repr__(self) -> str:
        setting = self.setting
        gain = f", gain {self.why['gain']:.4f} nats an event" if "gain" in self.why else ""
        return f"Version({self.number}: {setting.mechanism.name}, ε={setting.epsilon:g}, after {self.after}{gain})"


def first_version(
    alphabet: Symbols,
    mechanism: str,
    epsilon: float,
    distortion: Any = "hamming",
    schedule: Schedule | int | None = None,
    budget: Budget | float | None = None,
) -> Version:
    """Version 0: no context, and a mechanism whose ε needs none."""
    n = alphabet.n
    none = MarkovModel(np.full(n, 1.0 / n), np.full((n, n), 1.0 / n), alphabet=alphabet)
    setting = Setting.of(none, mechanism, epsilon, distortion, schedule, budget)
    if setting.in_batches:
        raise InputError("a cold start releases one by one; batches cannot be learned from")
    if setting.mechanism.ldp != 1.0:
        raise InputError(
            f'a cold start begins with a mechanism that is ε-LDP, which "{setting.mechanism.name}" is not; use '
            '"randomized_response"'
        )
    _check_budget(setting)
    return Version(0, setting, 0)


def next_version(before: Version, learned: Learned, mechanism: str, schedule: Schedule, after: int) -> Version:
    """The version that a learned chain makes."""
    old, told = before.setting, learned.held_out
    setting = Setting.of(learned.model, mechanism, old.epsilon, old.distortion, schedule, old.budget)
    if not setting.mechanism.sound or setting.in_batches:
        raise InputError(f'expected a sound mechanism that releases one by one, got "{setting.mechanism.name}"')
    why: dict[str, Any] = {
        "users": learned.found.users,
        "releases": learned.found.events,
        "strength": learned.strength,
        "rounds": learned.rounds,
        "converged": learned.converged,
    }
    if told is not None:
        why |= {"held_out_users": told.users, "gain": told.gain, "error": told.error, "log_evidence": told.log_evidence}
    return Version(before.number + 1, setting, after, why)


def _check_budget(setting: Setting) -> None:
    if setting.budget.per_window is not None or setting.budget.when_spent == "stop":
        raise InputError("a cold start takes a budget with a total and the policy hold or error, and no window")


class Versions:
    """All versions so far, in order."""

    def __init__(self, versions: list[Version]) -> None:
        if not versions or [v.number for v in versions] != list(range(len(versions))):
            raise InputError("expected versions 0, 1, … in order")
        if any(later.after < earlier.after for earlier, later in itertools.pairwise(versions)):
            raise InputError("expected versions that come into force one after another")
        self._all = list(versions)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Version]:
        return iter(self._all)

    def __getitem__(self, number: int) -> Version:
        return self._all[number]

    @property
    def last(self) -> Version:
        return self._all[-1]

    @property
    def alphabet(self) -> Symbols:
        return self._all[0].setting.model.alphabet

    def add(self, version: Version) -> None:
        self._all = Versions([*self._all, version])._all  # checked as a whole

    def at(self, event: int) -> Version:
        """The version in force for the release after `event` others."""
        return next(v for v in reversed(self._all) if v.after <= event)

    def describe(self) -> list[dict[str, Any]]:
        return [version.describe() for version in self._all]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all versions with their models to one file, all or nothing; nothing in it is executable."""
        target = Path(path)
        beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            beside.write_bytes(self._packed())
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)

    def _packed(self) -> bytes:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as pack, tempfile.TemporaryDirectory() as folder:
            listed = {"format": FORMAT, "edition": EDITION, "versions": self.describe()}
            pack.writestr(CONTENTS, json.dumps(listed, indent=1, sort_keys=True))
            for version in self._all:
                model = Path(folder) / "model"
                version.setting.model.save(model)
                pack.writestr(f"{version.number}.model", model.read_bytes())
        return content.getvalue()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Versions:
        """Read what `save` wrote; a model that is not the one listed is refused."""
        name = Path(path).name
        try:
            with zipfile.ZipFile(path) as pack, tempfile.TemporaryDirectory() as folder:
                listed = json.loads(pack.read(CONTENTS))
                if listed["format"] != FORMAT or listed["edition"] != EDITION:
                    raise ModelError(f"{name}: expected a file of format {FORMAT} {EDITION}; release the data again")
                return cls([_read(pack, Path(folder), one) for one in listed["versions"]])
        except OSError as error:
            raise ModelError(f"cannot read the file of versions {name}: {error.strerror}; check the path") from None
        except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError):
            raise ModelError(f"{name} is not a file of versions, or is damaged; a cold start writes one") from None

    @staticmethod
    def is_one(path: str | os.PathLike[str]) -> bool:
        """Whether a file looks like versions rather than a single model."""
        try:
            with zipfile.ZipFile(path) as pack:
                return CONTENTS in pack.namelist()
        except (OSError, zipfile.BadZipFile):
            return False

    def __repr__(self) -> str:
        return f"Versions({', '.join(map(repr, self._all))})"


def _read(pack: zipfile.ZipFile, folder: Path, listed: dict[str, Any]) -> Version:
    number = int(listed["version"])
    place = folder / f"{number}"
    place.write_bytes(pack.read(f"{number}.model"))
    model = MarkovModel.load(place)
    return Version(number, Setting.from_dict(listed["setting"], model), int(listed["after"]), listed["why"])
