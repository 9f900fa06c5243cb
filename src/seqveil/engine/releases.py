"""What was released, and the accounts of it: the records that every way to release gives back. All of it is public."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side
from seqveil.core.randomness import User
from seqveil.core.words import DisclosedSecret, Risk
from seqveil.engine.stream import REFUSED, Mask

if TYPE_CHECKING:
    from seqveil.core.alphabet import Symbols
    from seqveil.core.secrets import SecretTracker, SecretTrackers
    from seqveil.engine.store import Stored, UserRow
    from seqveil.engine.terms import Terms

Path = tuple[int, ...]
EARLIER = -4  # the code of an event that was released before, where the store does not keep what as


@dataclass(frozen=True, eq=False)
class InBlocks:
    """Where events stand in blocks of their users' streams; -1 outside of any, and for a release that was there before.

    The ε of a block stands at its first event and 0 at the others, so the same follows from a user's releases in order.
    """

    numbers: Ints  # of the block, from 0
    places: Ints  # of the event in it, from 0
    levels: Floats  # the ε of the block


@dataclass(frozen=True, eq=False)
class Releases:
    """What events were released as, in their order. An event is one symbol, or a batch of them.

    A single symbol is a batch of one: its path is its code alone.
    """

    # of a single symbol; of a batch 0 where it was sent. Else NOTHING where the budget's policy is to stop, GAP where
    # the event's place was given up before, EARLIER, and in the `made` of an error REFUSED
    codes: Ints
    seqs: Ints  # the sequence number of each event
    epsilons: Floats
    replayed: Mask  # whether the release was there already
    # what each release disclosed by itself, where that was computed: batches, and whatever was observed
    leakages: Floats
    sent: list[tuple[Path, Ints] | None] | None  # the path and the reproduction of each batch; None for single symbols
    alphabet: Symbols | None = None  # what the codes stand for, where that is known
    blocks: InBlocks | None = None  # where events share an ε

    def __len__(self) -> int:
        return self.codes.size

    @property
    def refused(self) -> Mask:
        """Which events were not taken, because the call ended before."""
        return self.codes == REFUSED

    @property
    def held(self) -> Mask:
        """Which releases only repeat the best guess, because the budget is gone."""
        shared = self.epsilons if self.blocks is None else self.blocks.levels
        return (self.codes >= 0) & (shared == 0)

    @property
    def paths(self) -> list[Path | None]:
        """What was published of each event; None where nothing was released."""
        if self.sent is not None:
            return [None if each is None else each[0] for each in self.sent]
        return [(code,) if code >= 0 else None for code in self.codes.tolist()]

    def disclosed(self, k: int) -> tuple[list[int], Path | None]:
        """The released symbols of one event and what was published of it: one item of `symbols` and of `paths`."""
        return self.symbols[k].tolist(), self.paths[k]

    @property
    def values(self) -> list[Any]:
        """What was released of each event: its value, or those of a batch; None where nothing was."""
        if self.alphabet is None:
            raise InputError("these releases are codes; decode them by the model's alphabet")
        shown = [self.alphabet.decode(codes) for codes in self.symbols]
        return [None if not own else own if self.sent is not None else own[0] for own in shown]

    @property
    def symbols(self) -> list[Ints]:
        """The released symbols of each event, a batch's reproduction; empty where nothing was released."""
        nothing = np.zeros(0, np.int64)
        if self.sent is not None:
            return [nothing if each is None else each[1] for each in self.sent]
        return [self.codes[k : k + 1] if code >= 0 else nothing for k, code in enumerate(self.codes.tolist())]


@dataclass(frozen=True)
class Release:
    """One release; public. `status` is "released", "withheld" (the budget is spent, or a declared secret needs it) or
    "given-up" (a later event came first); "erased" (it was released before, and the state file no longer has it).

    `value` holds a single symbol; `values` and `path` a batch.
    """

    user: str
    seq: int
    status: str
    epsilon: float | None  # None where nothing is promised about the whole sequence
    value: Any = None
    values: tuple[Any, ...] | None = None
    path: tuple[int, ...] | None = None
    events: int = 1
    time: float | None = None
    replayed: bool | None = None

    @classmethod
    def of(cls, user: str, stored: Stored, terms: Terms) -> Release:
        """A release as a store has it, with its values."""
        shown: dict[str, Any] = {}
        if stored.released:
            values = tuple(terms.model.alphabet.decode(np.array(stored.codes, np.int64)))
            shown = {"values": values, "path": stored.path} if terms.in_batches else {"value": values[0]}
        epsilon = None if terms.unbounded else stored.epsilon
        return cls(user, stored.seq, stored.status, epsilon, events=stored.events, time=stored.time, **shown)


@dataclass(frozen=True)
class SecretAccount:
    """What a user's releases disclosed about a declared secret, as plain values; `SecretTracker` explains the words."""

    name: str
    sentence: str
    epsilon: float
    log_odds: float  # of the window that holds the latest event; so are the extremes and the probabilities
    lowest: float
    highest: float
    prior: Any
    posterior: Any
    worst: float  # the most that the log odds moved in any window at any time, on the sides that are bounded

    @classmethod
    def of(cls, tracker: SecretTracker) -> SecretAccount:
        """The figures of a secret, without the filter that computes them."""
        own = {each.name: getattr(tracker, each.name) for each in fields(cls)}
        return cls(**own | {"worst": tracker.worst.worst(tracker.secret.sides)})


@dataclass(frozen=True)
class Account:
    """What one user's releases have disclosed so far, exactly, and what is left. Leakage is in nats."""

    user: User | None  # None for a session, which has one user alone
    events: int  # so many so far, which is the sequence number that comes next
    releases: int
    leakage: float
    most: float
    least: float
    epsilon_spent: float  # Σ ε used: what basic composition charges
    ldp: float  # Σ of (LDP level · ε): what holds without any model
    budget_left: float | None
    private: bool
    whole_sequence: str = ""  # says in words where nothing is promised about the whole sequence
    secrets: tuple[SecretAccount, ...] = ()  # in the order of declaration
    composed: str = ""  # the (ε, δ) total that the budget promises, and by which theorem
    rules_out: bool = False  # whether the model calls something impossible, which leakage and budget then assume

    @property
    def risk(self) -> Risk:
        """What the figures mean for the person."""
        disclosed = tuple(DisclosedSecret(each.name, max(0.0, each.worst), "so far") for each in self.secrets)
        ldp = self.ldp if self.rules_out else None
        return Risk(max(0.0, self.most), -self.least, secrets=disclosed, measured=bool(self.whole_sequence), ldp=ldp)

    @classmethod
    def of(
        cls, terms: Terms, user: User | None, figures: UserRow, private: bool, trackers: SecretTrackers | None
    ) -> Account:
        """The account of a user from the figures of the stream, and the filters of its declared secrets."""
        leakage = max(figures.most, -figures.least, 0.0)
        secrets = () if trackers is None else tuple(map(SecretAccount.of, trackers.worst()))
        left = left_of(terms.budget.exact_total, leakage)
        return cls(
            user, figures.events, figures.releases, leakage, figures.most, figures.least, figures.spent, figures.ldp,
            left, private, terms.whole_sequence, secrets, terms.budget.composed, terms.model.rules_out,
        )  # fmt: skip

    @property
    def sentences(self) -> tuple[str, ...]:
        """The same in words: of every declared secret, of the whole stream, and of the total over many releases."""
        return (*self.risk.sentences, *([f"all releases together are {self.composed}"] if self.composed else []))

    @property
    def sentence(self) -> str:
        """All of them in one line."""
        return "; ".join(self.sentences)


@dataclass(frozen=True, eq=False)
class Accounts:
    """The accounts of all users, in the order they came: a column for each figure of an `Account`."""

    users: list[Any]  # in memory anything hashable may be one
    events: Ints
    releases: Ints
    epsilon_spent: Floats
    most: Floats
    least: Floats
    ldp: Floats

    @classmethod
    def of(cls, users: list[Any], counts: Ints, figures: Floats) -> Accounts:
        """From the events and releases (B, 2) of these users, and their Σε, both sides of the leakage and LDP level."""
        return cls(users, *counts.T.copy(), *figures.T.copy())

    @property
    def leakage(self) -> Floats:
        """(B,) exact leakage of every stream so far, the larger of both sides."""
        return larger_side(self.most, self.least)

    def __len__(self) -> int:
        return len(self.users)


def left_of(total: float | None, leakage: float) -> float | None:
    """What is left of a total budget after this leakage; None where there is no total."""
    return None if total is None else max(0.0, total - leakage)
