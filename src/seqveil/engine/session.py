"""One user's stream, released as it happens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints, Kernel
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import randomness
from seqveil.core.secrets import SecretTrackers
from seqveil.core.times import Time, seconds
from seqveil.core.words import ASKED, moved, percent, percent_up
from seqveil.engine import stream
from seqveil.engine.policy import Policy, policy_of
from seqveil.engine.secrets import guarded_table
from seqveil.engine.store import Account, UserRow


class Session:
    """Releases one stream symbol by symbol, and keeps the account of what that disclosed.

    *Guarantee*: with a sound mechanism each release moves an observer's belief about the whole sequence by a factor in
    [e^-ε, e^ε], where the observer knows the model and all releases; without trusting the model, T releases (batches,
    blocks) at ε are 2Tε-LDP. `leakage` is about the stream as realised and never passes the budget. Threads may share a
    session: one release is made at a time, and each is charged. A seeded one is for research, and marked not private.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> session = Session(model, epsilon=1.0, seed=1)
    >>> released = [session.release(x) for x in [0, 0, 0, 1, 1]]
    >>> session.leakage <= 5.0, session.private
    (True, False)

    >>> session = Session(model, epsilon=5.0, batch=5, seed=1)
    >>> session.release_batch([0, 0, 0, 1, 1])
    [0, 0, 0, 1, 1]

    >>> session = Session(model, epsilon=5.0, block=5, seed=1)
    >>> [session.release(x) for x in [0, 0, 0, 1, 1]], session.leakage <= 5.0
    ([0, 0, 0, 1, 1], True)
    """

    def __init__(
        self, model: MarkovModel, policy: Policy | None = None, *, seed: int | None = None, **shorthand: Any
    ) -> None:
        self.policy = policy_of(policy, shorthand)
        self.setting = self.policy.on(model)  # the mechanism and all else that is fixed for the stream
        self._state, self._randomness = stream.State.start(self.setting), randomness(seed)
        self.private = self._randomness.private  # False for a seeded session: anyone with the seed can undo it
        self._released = 0
        self._paths: list[tuple[int, ...] | None] = []
        self._lock = threading.RLock()  # around whatever reads or moves the state

    @property
    def belief(self) -> Floats:
        """What an observer of the releases believes about the next symbol, before it is released."""
        with self._lock:
            distribution = filtering.symbols(self.setting.model, self._state.states)[0].copy()
        distribution.flags.writeable = False
        return distribution

    @property
    def trackers(self) -> SecretTrackers | None:
        """The accounts under the models of all observers; None where no secret is declared."""
        with self._lock:
            return None if self._state.trackers is None else self._state.trackers[0]

    @property
    def leakage(self) -> float:
        """Leakage of the releases so far, both sides; for batches, and kernels that remember, an upper bound."""
        with self._lock:
            return float(self._state.account.worst[0])

    @property
    def paths(self) -> list[tuple[int, ...] | None]:
        """What was published of each batch so far (None: nothing)."""
        with self._lock:
            return list(self._paths)

    def kernel(self, time: Time | None = None) -> Kernel:
        """The kernel of the next release: it depends on the model and the releases so far, never on raw data."""
        if self.setting.in_blocks:
            raise InputError("a release in a block follows the block's hidden bit, so it has no kernel of its own")
        stamp = None if time is None else seconds([time])
        with self._lock:
            state = stream.located(self.setting, self._state, stamp)
            if state.trackers is not None:
                stack = guarded_table(self.setting, state.trackers[0]).by_symbol()
            else:
                epsilons, _ = stream.allowance(self.setting, state, stamp)
                beliefs = filtering.symbols(self.setting.model, state.states)
                stack = stream.kernels(self.setting, beliefs, float(epsilons[0]))
        return stack.one(0, self.setting.model.alphabet)

    def release(self, symbol: Any, time: Time | None = None) -> Any:
        """The released symbol; None where the budget is spent and its policy is "stop", or where it is withheld."""
        if self.setting.batch > 1:
            raise InputError(f"this session releases batches of {self.setting.batch}; use release_batch")
        made = self._made([self.setting.model.alphabet.encode_one(symbol)], time)
        return None if made is None else made[0]

    def release_batch(self, symbols: Sequence[Any], time: Time | None = None) -> list[Any] | None:
        """The reproduction of a batch, the best estimate that follows from the published path (`paths`); None where the
        budget is spent and the policy "stop". A shorter batch costs as much, and its length is public."""
        if not 1 <= len(symbols) <= self.setting.batch:
            raise InputError(
                f"expected a batch of {self.setting.batch} symbols, or a shorter one at the end of a stream; got "
                f"{len(symbols)}"
            )
        return self._made(self.setting.model.alphabet.encode(symbols), time)

    def _made(self, codes: Sequence[int] | Ints, time: Time | None) -> list[Any] | None:
        """The values that these symbols, one or a batch, are released as; None where nothing is."""
        raw, stamp = np.asarray(codes, np.int64), None if time is None else seconds([time])
        with self._lock:
            made, self._state = stream.step(self.setting, self._state, raw, self._randomness, stamp)
            if self.setting.in_batches:
                self._paths.append(None if made is None else made.path)
            released = [] if made is None else [code for code in made.codes.tolist() if code >= 0]
            self._released += bool(released)
        return self.setting.model.alphabet.decode(released) or None

    @property
    def account(self) -> Account:
        """What was disclosed so far."""
        with self._lock:
            state, released, trackers = self._state, self._released, self.trackers
        sides = float(state.account.most[0]), float(state.account.least[0])
        row = UserRow(0, int(state.steps[0]), released, float(state.spent[0]), *sides, float(state.ldp[0]), b"")
        return Account.of(self.setting, None, row, self.private, trackers)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuses `copy` and `pickle`: two of one stream would release it twice, and each count its own releases."""
        raise InputError("a session cannot be copied, as each copy would count its own releases alone; make a new one")

    def __repr__(self) -> str:
        setting, account, kept = self.setting, self.account, len(self.setting.secrets)
        bound = setting.whole_sequence or f"ε={setting.epsilon:g}"
        secrets = "" if not kept else f"{kept} secret{'s' if kept > 1 else ''}, "
        becomes = "became" if setting.whole_sequence and not kept else "becomes at most"
        after = percent_up(moved(ASKED, account.risk.log_odds))
        return (
            f"Session({setting.mechanism.name}, {secrets}{bound}, {setting.model.n} symbols, "
            f"a suspicion of {percent(ASKED)} {becomes} {after}, {account.releases} released, "
            f"leakage {account.leakage:.4g})"
        )
