"""Streams of named users: each event released once and for all, in memory or on the disk before anyone sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.errors import DataError, UnknownSymbol
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness, User
from seqveil.core.times import Time
from seqveil.engine.calls import Gaps
from seqveil.engine.coded import MEMORY, Adopted, CodeStreams, Positions, randomness_for
from seqveil.engine.policy import Policy, policy_of
from seqveil.engine.releases import Account, Accounts, Release, Releases
from seqveil.engine.secrets import SecretTotal
from seqveil.engine.store import Position, StateStore
from seqveil.engine.stream import NOTHING

if TYPE_CHECKING:
    from seqveil.engine.upkeep import Verified


class Streams:
    """Releases events of named users, each stream exactly as by a `Session` of its own.

    *Guarantee*: that of `Streams`. Each event, a user and a sequence number that counts from 0, is drawn once:
    asked again, the same release is given back, whatever value comes with it, and nothing is charged. With a state file
    a release is committed and synced before `release` returns it, and no raw value, nor anything computed from one but
    its release, is ever written. Threads may share streams.

    Parameters:
        model: how such streams usually run.
        policy: what is promised.
        store: where users are kept: None for memory, the path of a state file (made if it is missing), or a store.
        key: with a state file, 32 secret bytes (`seqveil.randomness.key_file`) for draws that are the same if an event
            is drawn again after a crash. Blocks with a state file need one: the hidden bit of a block follows from it,
            and is never stored.
        gaps: what happens when a sequence number is left out: "refuse", or "skip", which gives the missing events up.
        memory: bytes that live states may take.
        must_exist: refuse a state file that is missing or empty, rather than begin one whose ledger starts at zero.
        seed: for research only, in memory: the streams are then marked not private.
        shorthand: the fields of a `Policy` in place of one.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=["home", "work"])
    >>> streams = Streams(model, epsilon=1.0, seed=1)
    >>> made = streams.release(["ann", "bob", "ann"], ["home", "work", "home"])
    >>> set(made.values) <= {"home", "work"}, streams.account("ann").epsilon_spent
    (True, 2.0)
    """

    def __init__(
        self,
        model: MarkovModel,
        policy: Policy | None = None,
        *,
        store: StateStore | str | os.PathLike[str] | None = None,
        key: bytes | None = None,
        gaps: Gaps = "refuse",
        memory: int = MEMORY,
        must_exist: bool = False,
        seed: int | None = None,
        **shorthand: Any,
    ) -> None:
        self._terms = policy_of(policy, shorthand).on(model)
        randomness = randomness_for(key, None if seed is None else SeededRandomness(seed))
        how: dict[str, Any] = {"gaps": gaps, "memory": memory}
        if isinstance(store, str | os.PathLike):
            how |= {"key": key} if key is not None else {"randomness": randomness}
            self._coded = CodeStreams.open(store, self._terms, must_exist=must_exist, **how)
        else:
            self._coded = CodeStreams(self._terms, store, randomness, **how)

    @property
    def policy(self) -> Policy:
        """What is promised."""
        return self._terms.policy

    @property
    def private(self) -> bool:
        """False for seeded streams: anyone with the seed can undo them."""
        return self._coded.private

    @property
    def file(self) -> str | None:
        """The path of the state file; None for streams that have none."""
        return self._coded.file

    def __enter__(self) -> Streams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others have the store. Nothing depends on it: a process may as well be killed."""
        self._coded.close()

    def release(
        self,
        users: Sequence[User],
        values: Sequence[Any],
        seqs: Sequence[int] | Ints | None = None,
        times: Sequence[Time] | None = None,
        positions: Positions | Callable[[Releases], Positions] | None = None,
    ) -> Releases:
        """Release one event for each user named, several of a user in a row where they come so, in one transaction.

        Parameters:
            users: text or whole numbers.
            values: of each event; where the policy releases batches, the values of each batch, at most as many as its
                `batch`. A shorter one costs as much, and its length is public: let it be the last of a stream.
            seqs: the sequence number of each event; without them each is the next one of its user.
            times: for a budget in seconds and for secrets that follow the clock: numbers or ISO 8601 text.
            positions: (how far some source was read, say) kept with the releases, where all were made; a function gets
                the releases first.
        """
        made = self._coded.release(users, self._encoded(values), seqs, times, positions)
        return replace(made, alphabet=self._terms.model.alphabet)

    def check(
        self,
        users: Sequence[User],
        values: Sequence[Any],
        seqs: Sequence[int] | Ints | None = None,
        times: Sequence[Time] | None = None,
    ) -> None:
        """Refuse what `release` would refuse before it draws anything (an order, a time, a length); nothing is drawn.

        Parameters:
            users: as for `release`.
            values: as for `release`.
            seqs: as for `release`.
            times: as for `release`.
        """
        self._coded.check(users, self._encoded(values), seqs, times)

    def observe(
        self,
        users: Sequence[User],
        released: Sequence[Any],
        times: Sequence[Time] | None = None,
        sizes: Sequence[int] | None = None,
        epsilons: Sequence[float] | None = None,
    ) -> Releases:
        """Take releases in, each the next one of its user, as a receiver does: nothing private is needed.

        Parameters:
            users: whose they are.
            released: values, None where nothing was released; for batches their paths.
            times: as for `release`.
            sizes: how many symbols each batch has; the policy's batch by default.
            epsilons: of blocks, the ε that the record has, which say where one was cut before its end.
        """
        disclosed = released if self._terms.in_batches else encode_released(self._terms.model, released)
        claimed = None if epsilons is None else np.asarray(epsilons, np.float64)
        made = self._coded.observe(users, disclosed, times, sizes, claimed)
        return replace(made, alphabet=self._terms.model.alphabet)

    def releases(self, user: User, since: int = 0, limit: int | None = None) -> list[Release]:
        """What was released of a user, from sequence number `since` on, at most `limit` of them."""
        found = self._coded.releases(user, since, limit)
        return [Release.of(str(user), stored, self._terms) for stored in found]

    def account(self, user: User) -> Account | None:
        """What a user's releases have disclosed; None for one who never came."""
        return self._coded.account(user)

    def accounts(self) -> Accounts:
        """The accounts of all users, in the order they came."""
        return self._coded.accounts()

    def secrets(self) -> list[SecretTotal]:
        """What the releases of all users disclosed about each declared secret at most, in the order of declaration."""
        return self._coded.secrets()

    def next_seqs(self, users: Sequence[User]) -> Ints:
        """The sequence number that comes next for each of these users: 0 for a new one."""
        return self._coded.next_seqs(users)

    def position(self, source: str) -> Position | None:
        """What was last kept as the position of this source."""
        return self._coded.position(source)

    def backup(self, path: str | os.PathLike[str]) -> Verified:
        """Copy the state file as it is committed now, and check the copy; nobody who releases waits for it."""
        return self._coded.backup(path)

    def erase(self, users: Sequence[User], forget_ledger: bool = False) -> tuple[int, list[str]]:
        """Take users out of the state file, as `seqveil state erase` does: releases, state and name.

        Parameters:
            users: all are erased, or none.
            forget_ledger: drop the ledgers too. Else their totals stay, each under a keyed hash of the name.
        """
        return self._coded.erase(users, forget_ledger)

    def adopt(self, model: MarkovModel) -> Adopted:
        """Go on with another model of the same values, fitted anew, say: the policy stays, and so do all budgets.

        Belief, leakage and the accounts of declared secrets become those of the new model, exact for the kernels that
        the releases so far were drawn from. Of releases that were erased only the LDP level goes on.
        """
        found = self._coded.adopt(model)
        self._terms = self._coded.setting
        return found

    def _encoded(self, values: Sequence[Any]) -> Any:
        alphabet = self._terms.model.alphabet
        return [alphabet.encode(batch) for batch in values] if self._terms.in_batches else alphabet.encode(values)


def encode_released(model: MarkovModel, released: Sequence[Any]) -> Ints:
    """Codes of released values; None becomes NOTHING."""
    codes = np.full(len(released), NOTHING, np.int64)
    made = [k for k, value in enumerate(released) if value is not None]
    try:
        codes[made] = model.alphabet.strict.encode([released[k] for k in made])
    except UnknownSymbol:
        raise DataError(
            "a released value is not in the model's alphabet; check that the model is the release's"
        ) from None
    return codes
