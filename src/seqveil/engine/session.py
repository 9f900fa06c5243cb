"""One user's stream, released as it happens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from seqveil.core import filtering, html
from seqveil.core.composition import Composition, compose
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints, Kernel
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import randomness
from seqveil.core.secrets import SecretTrackers
from seqveil.core.times import Time, seconds
from seqveil.core.words import ASKED, moved, percent, percent_up
from seqveil.engine import batches, stream
from seqveil.engine.policy import Policy, policy_of
from seqveil.engine.releases import Account, Figures
from seqveil.engine.secrets import guarded_table
from seqveil.engine.state import Private
from seqveil.engine.step import step
from seqveil.engine.terms import NO_BOUND, Terms


class Session:
    """Releases one stream symbol by symbol, and keeps the exact account of what that disclosed.

    *Guarantee*: with a sound mechanism each release moves an observer's belief about the whole sequence by a factor in
    [e^-ε, e^ε], where the observer knows the model and all releases; without trusting the model, T releases are
    2Tε-LDP. `leakage` is the exact figure for the stream as realised and never passes the budget. Threads may share a
    session: one release is made at a time, and each is charged.

    Parameters:
        model: how such streams usually run.
        policy: what is promised.
        seed: for research only: a seeded session is marked not private.
        shorthand: the fields of a `Policy` in place of one: `Session(model, epsilon=1.0)`.

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
        self,
        model: MarkovModel,
        policy: Policy | None = None,
        *,
        seed: int | None = None,
        **shorthand: Any,
    ) -> None:
        self._setting = policy_of(policy, shorthand).on(model)
        self._state, self._private = stream.State.start(self._setting), Private.start(self._setting)
        self._randomness = randomness(seed)
        self._released = 0
        self._paths: list[tuple[int, ...] | None] = []
        self._waiting: list[int] = []
        self._lock = threading.RLock()  # around whatever reads or moves the state

    @property
    def policy(self) -> Policy:
        """What is promised."""
        return self._setting.policy

    @property
    def setting(self) -> Terms:
        """What the policy means for the model: the mechanism and all else that is fixed for the stream."""
        return self._setting

    @property
    def private(self) -> bool:
        """False for a seeded session: anyone with the seed can undo it."""
        return self._randomness.private

    @property
    def belief(self) -> Floats:
        """What an observer of the releases believes about the next symbol, before it is released."""
        with self._lock:
            distribution = filtering.symbols(self._setting.model, self._state.states)[0].copy()
        distribution.flags.writeable = False
        return distribution

    @property
    def trackers(self) -> SecretTrackers | None:
        """The accounts under the models of all observers; None where no secret is declared."""
        with self._lock:
            found: SecretTrackers | None = None if self._state.trackers is None else self._state.trackers[0]
            return found

    @property
    def leakage(self) -> float:
        """Exact leakage (SIL) of the releases so far, both sides, rounded up."""
        with self._lock:
            return float(self._state.account.worst[0])

    @property
    def paths(self) -> list[tuple[int, ...] | None]:
        """What was published of each batch so far (None: nothing): all that a receiver needs besides the setting."""
        with self._lock:
            return list(self._paths)

    def kernel(self, time: Time | None = None) -> Kernel:
        """The kernel of the next release: it depends on the model and the releases so far, never on raw data."""
        with self._lock:
            if self._setting.in_blocks:
                raise InputError("a release in a block follows the block's hidden bit, so it has no kernel of its own")
            state = stream.located(self._setting, self._state, _row(time))
            if self._setting.guards and state.trackers is not None:
                stack = guarded_table(self._setting, state.trackers[0]).by_symbol()
                return stack.one(0, self._setting.model.alphabet)
            epsilons, _ = stream.allowance(self._setting, self._state, _row(time))
            beliefs = filtering.symbols(self._setting.model, self._state.states)
            stack = stream.kernels(self._setting, beliefs, float(epsilons[0]))
        return stack.one(0, self._setting.model.alphabet)

    def release(self, symbol: Any, time: Time | None = None) -> Any:
        """The released symbol; None where the budget is spent and its policy is "stop", or where it is withheld."""
        if self._setting.in_batches:
            if self._setting.batch > 1:
                raise InputError(f"this session releases batches of {self._setting.batch}; use release_batch or push")
            made = self.release_batch([symbol], time)
            return None if made is None else made[0]
        return self._one(self._setting.model.alphabet.encode_one(symbol), time)

    def _one(self, code: int, time: Time | None) -> Any:
        with self._lock:
            raw, before = np.array([code], np.int64), (self._state, self._private)
            made, self._state, self._private = step(self._setting, *before, raw, self._randomness, _row(time))
            out = int(made.codes[0])
            self._released += out >= 0
        return None if out < 0 else self._setting.model.alphabet.decode_one(out)

    @property
    def position(self) -> tuple[int, int]:
        """How many blocks are over, and how many events the running one has had: public, and receivers need both."""
        with self._lock:
            running = self._state.blocks
        if running is None:
            raise InputError("this session does not release in blocks; pass block=20")
        return int(running.numbers[0]), int(running.places[0])

    def release_batch(self, symbols: Sequence[Any], time: Time | None = None) -> list[Any] | None:
        """The reproduction of a batch of exactly `batch` symbols; None where the budget is spent and the policy "stop".

        What is published is the path (`paths`); the reproduction is the best estimate that follows from it.
        """
        if len(symbols) != self._setting.batch:
            raise InputError(
                f"expected a batch of {self._setting.batch} symbols, got {len(symbols)}; push symbols one by one and "
                "flush at the end for a short last batch"
            )
        if not self._setting.in_batches:
            made = self.release(symbols[0], time)
            return None if made is None else [made]
        return self._send(self._setting.model.alphabet.encode(symbols), time)

    def push(self, symbol: Any, time: Time | None = None) -> list[Any] | None:
        """Take one symbol in; the reproduction of the whole batch when it is full, an empty list until then.

        Where that batch cannot be released (its time is missing, say), the symbol counts as if it had not come: it may
        be pushed again later.
        """
        code = self._setting.model.alphabet.encode_one(symbol)
        with self._lock:
            waiting = [*self._waiting, code]
            if len(waiting) < self._setting.batch:
                self._waiting = waiting
                return []
            return self._send_off(waiting, time)

    def flush(self, time: Time | None = None) -> list[Any] | None:
        """Release the symbols that wait as a short batch: the end of the stream."""
        with self._lock:
            return self._send_off(self._waiting, time) if self._waiting else []

    def _send_off(self, codes: list[int], time: Time | None) -> list[Any] | None:
        """Release these symbols; only then does none wait."""
        if self._setting.in_batches:
            made = self._send(np.array(codes, np.int64), time)
        else:  # a batch of one
            released = self._one(codes[0], time)
            made = None if released is None else [released]
        self._waiting = []
        return made

    def _send(self, codes: Ints, time: Time | None) -> list[Any] | None:
        stamp = None if time is None else float(seconds([time])[0])
        with self._lock:
            sent, self._state = batches.step(self._setting, self._state, codes, self._randomness, stamp)
            self._paths.append(None if sent is None else sent.path)
            if sent is None:
                return None
            self._released += codes.size
        return self._setting.model.alphabet.decode(sent.codes)

    @property
    def account(self) -> Account:
        """What was disclosed so far: exact leakage and both its sides, Σε, the LDP level without a model, the secrets.

        Its `releases` are the symbols released, those of batches one by one.
        """
        with self._lock:
            state, released, trackers = self._state, self._released, self.trackers
        sides = float(state.account.most[0]), float(state.account.least[0])
        figures = Figures(int(state.steps[0]), released, *sides, float(state.spent[0]), float(state.ldp[0]))
        return Account.of(self._setting, None, figures, self.private, () if trackers is None else trackers.worst())

    def compose(self, releases: int, delta: float = 1e-6) -> Composition:
        """What `releases` releases add up to in advance, by the paper's theorems and by tighter ones."""
        if self._setting.unbounded:
            raise InputError(f"{NO_BOUND}; give the session an epsilon as well")
        return compose(self._setting.epsilon, -(-releases // self._setting.policy.block), delta)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuses `copy` and `pickle`: two of one stream would release it twice, and each count its own releases."""
        raise InputError("a session cannot be copied, as each copy would count its own releases alone; make a new one")

    def __repr__(self) -> str:
        setting, kept = self._setting, len(self._setting.secrets)
        bound = setting.whole_sequence or f"ε={setting.epsilon:g}"
        secrets = "" if not kept else f"{kept} secret{'s' if kept > 1 else ''}, "
        account = self.account
        becomes = "became" if setting.whole_sequence else "becomes at most"
        after = percent_up(moved(ASKED, account.risk.log_odds))
        return (
            f"Session({setting.mechanism.name}, {secrets}{bound}, {setting.model.n} symbols, "
            f"a suspicion of {percent(ASKED)} {becomes} {after}, {account.releases} released, "
            f"leakage {account.leakage:.4g})"
        )

    def _repr_html_(self) -> str:
        rows = [] if self.trackers is None else self.trackers.rows[0]
        unfinished = [tracker.in_first_window or tracker.in_later_window for tracker in rows]
        return html.session(self._setting, self.account, unfinished)


def _row(time: Time | None) -> Floats | None:
    return None if time is None else seconds([time])
