"""Versions of the model that streams are released with, and the streams, whose accounts stay exact as it changes.

Versions are public and numbered, each in force from a recorded event on. Version 0 has no context: an ε-LDP mechanism
and a chain in which all symbols are alike. Later ones are learned from the releases before them. One file holds them
all, models included, so that a receiver needs nothing else.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.core.bulk import Layout
from seqveil.core.coins import Coins
from seqveil.core.errors import InputError, ModelError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import Account
from seqveil.core.model import MarkovModel
from seqveil.core.replacing import replacing
from seqveil.engine import stream
from seqveil.engine.accounting import Budget, Schedule
from seqveil.engine.live import skipped
from seqveil.engine.releases import Standings
from seqveil.engine.state import Rows, State
from seqveil.engine.store.packing import small
from seqveil.engine.store.protocol import GAP
from seqveil.engine.stream import Released, Setting
from seqveil.receiver.follow import Followed, charged
from seqveil.receiver.learn import Evidence, Learned
from seqveil.receiver.learn.evidence import Log

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
        """The version as a side file or a ledger holds it."""
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
    if setting.budget.per_window is not None or setting.budget.when_spent == "stop":
        raise InputError("a cold start takes a budget with a total and the policy hold or error, and no window")
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
    why |= {"types": learned.model.types} if learned.types is not None else {}
    if told is not None:
        why |= {"held_out_users": told.users, "gain": told.gain, "error": told.error, "log_evidence": told.log_evidence}
    return Version(before.number + 1, setting, after, why)


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
        """The version in use."""
        return self._all[-1]

    @property
    def alphabet(self) -> Symbols:
        """The alphabet, which all versions share."""
        return self._all[0].setting.model.alphabet

    def add(self, version: Version) -> None:
        """Add a version after the last; a number or a start that is out of order is refused."""
        self._all = Versions([*self._all, version])._all  # checked as a whole

    def at(self, event: int) -> Version:
        """The version in force for the release after `event` others."""
        return next(v for v in reversed(self._all) if v.after <= event)

    def describe(self) -> list[dict[str, Any]]:
        """All versions as a side file or a ledger holds them."""
        return [version.describe() for version in self._all]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all versions with their models to one file, all or nothing; nothing in it is executable."""
        with replacing(path) as part:
            part.write_bytes(self._packed())

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


class VersionedStreams(Followed):
    """Streams of users under the version in force, a row each, with an exact account when another takes over.

    Every release leaves its column Q(y|·) in a log. When a new version comes into force, each user's belief and account
    are computed anew under its chain from those very columns: exact, whatever model had chosen the kernels. A column of
    an ε-LDP kernel has all lifts within ε under every chain; one of a sound kernel chosen under another model within
    2ε. Under version 0 releases are charged Σε, which holds under every chain: the exact figure of a chain that nobody
    believes in would promise too much.

    >>> from seqveil.core.alphabet import Alphabet
    >>> from seqveil.core.coins import SeededCoins
    >>> streams = VersionedStreams(first_version(Alphabet(["a", "b"]), "randomized_response", 1.0))
    >>> rows = streams.rows(["ann", "bob"])
    >>> streams.release(rows, np.array([0, 1]), SeededCoins(1)).codes.shape, streams.evidence()
    ((2,), Evidence(2 users, 2 releases, 2 symbols))
    """

    def __init__(self, version: Version) -> None:
        super().__init__(version.setting)
        self.version = version
        self.events, self.worst_release = 0, 0.0  # releases so far, and the most that one moved a belief
        self._log: Log | None = Log(version.setting.model.n)

    def release(self, rows: Rows, codes: Ints, coins: Coins) -> Released:
        """Release one symbol for each of these rows; no row twice. Rows refused have the code REFUSED."""
        return self._move(rows, lambda part: stream.step(self.setting, part, codes, coins))

    def observe(self, rows: Rows, codes: Ints, times: Floats | None = None, begins: Any = None) -> Released:
        """Take in one release for each of these rows, as a receiver does; no row twice. Each user has one stream."""
        return self._move(rows, lambda part: stream.observe(self.setting, part, codes, times))

    def _move(self, rows: Rows, act: Callable[[State], tuple[Released, State]]) -> Released:
        made, self.state = self.state.move(rows, act if self.version.number else _charged_by_sum(act))
        taken = np.flatnonzero(made.codes != stream.REFUSED)
        self.events += taken.size
        self.worst_release = max(self.worst_release, float(made.costs.max(initial=0.0)))
        if self._log is not None:
            self._log.add(rows[taken], made.take(taken), self.setting, self.version.number)
        return made

    def skip(self, rows: Rows) -> None:
        """Pass over an event of each of these rows that nobody released: the belief moves on, nothing is charged."""
        self.state.put(rows, skipped(self.setting, self.state.take(rows)))
        if self._log is not None:
            self._log.skip(rows)

    def switch(self, version: Version) -> None:
        """Put the next version in force: belief and account of every user as its chain sees all releases so far."""
        if self._log is None:
            raise InputError("the log was closed, so no other version can come into force")
        if version.number != self.version.number + 1:
            raise InputError(f"expected version {self.version.number + 1}, got {version.number}")
        table, users, index = self._log.joined()
        seen = State.start(version.setting, len(self))
        for places in Layout.of(users).steps():
            _, seen = charged(version.setting.model, seen, users[places], table[index[places]])
        self.version, self.setting = version, version.setting
        self.state = replace(self.state, states=seen.states, account=seen.account)

    def evidence(self) -> Evidence:
        """All releases so far as what can be learned from: columns and whose they are, nothing else."""
        if self._log is None:
            raise InputError("the log was closed, so there is nothing left to learn from")
        return self._log.evidence()

    def close(self) -> None:
        """Forget the log: no further version will come into force."""
        self._log = None

    def standings(self) -> Standings:
        """Where every user stands, exactly, under the version in force."""
        users = self.users
        state = self.state.take(np.arange(len(users)))
        figures = (state.spent, state.account.most, state.account.least, state.ldp)
        return Standings(users, state.steps, state.steps, *figures)


def _charged_by_sum(act: Callable[[State], tuple[Released, State]]) -> Callable[[State], tuple[Released, State]]:
    """The same step with Σε for an account."""

    def step(part: State) -> tuple[Released, State]:
        made, after = act(part)
        most, least = after.spent.copy(), -after.spent
        return made, replace(after, account=Account(most, least, most[:, None].copy(), least[:, None].copy()))

    return step


def replayed(settings: Sequence[Setting], codes: Ints, lengths: Ints, moved: Ints) -> VersionedStreams:
    """Users as the last of these settings sees them after all their releases; exact accounts from the first on.

    Parameters:
        settings: those that were in force, the first one first.
        codes: releases user after user, GAP where an event's place was given up.
        lengths: events of each user.
        moved: (users, settings after the first) the event at which each of those came into force for a user.
    """
    streams = VersionedStreams(Version(1, settings[0], 0))  # not 0, which is charged Σε
    streams.grow(lengths.size)
    starts = np.cumsum(lengths) - lengths
    edges = np.column_stack([np.zeros_like(lengths), np.minimum(moved, lengths[:, None]), lengths])
    for number, setting in enumerate(settings):
        if number:
            streams.switch(Version(number + 1, setting, 0))
        begin, end = edges[:, number], edges[:, number + 1]
        for step in range(int((end - begin).max(initial=0))):
            rows = np.flatnonzero(begin + step < end)
            told = codes[starts[rows] + begin[rows] + step]
            gone = told == GAP
            if gone.any():
                streams.skip(rows[gone])
            if not gone.all():
                streams.observe(rows[~gone], told[~gone])
    return streams


def refuse_unmovable(settings: Sequence[Setting], new: Setting, what: str) -> None:
    """Refuse settings between which a state file, or whatever else `what` is, cannot move."""
    if not settings:
        raise InputError(f"expected the settings that the {what} was released with, the first one first")
    every = (*settings, new)
    if len({each.model.alphabet.fingerprint() for each in every}) > 1:
        raise InputError(f"the new model must number the same symbols; learn it with the alphabet of the {what}'s")
    if any(each.in_batches or each.budget.per_window is not None for each in every):
        raise InputError(f"a {what} of batches, or with a window budget, cannot move on to another model")
    if any(each.secrets for each in every):
        raise InputError(f"a {what} with declared secrets cannot move on: what it promised is about its own model")
    if any(each.budget != new.budget for each in every):
        raise InputError("expected the same budget before and after; a model changes no promise")
    if not new.mechanism.sound or not all(small(each) for each in every):
        raise InputError(f"expected a sound mechanism and a model whose state is small enough for the {what} to keep")
