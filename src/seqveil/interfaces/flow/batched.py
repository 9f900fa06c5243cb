"""Many users' streams in batches: who waits for what, each user's public state, and the rows that come of it.

What is kept: at most `batch` - 1 raw symbols a user until their batch is full, and the law of the user's next state, S
numbers. Laws beyond the memory given lie in a temporary file without a name; they follow from the releases, so nothing
in it is private. The raw symbols that wait are never written.
"""

from __future__ import annotations

import tempfile
import weakref
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.coins import Coins, known_as
from seqveil.core.errors import BudgetSpent, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import Account
from seqveil.core.mechanisms import Batch
from seqveil.core.mechanisms.auto import choose
from seqveil.interfaces.files import Chunk
from seqveil.interfaces.flow.meta import BATCH, PATH, SAME_PATH
from seqveil.interfaces.flow.rows import Rows
from seqveil.receive.audit.exact import told_nothing
from seqveil.release import batches
from seqveil.release.accounting import GONE
from seqveil.release.roster import Accounts
from seqveil.release.stream import Setting, State, allowance

if TYPE_CHECKING:
    import polars as pl

CHUNK_ROWS = 1000  # rows between two signs of progress: a batch may take milliseconds


class Streams:
    """The public state of every user by name, in bounded memory.

    >>> from seqveil.core.coins import SeededCoins
    >>> from seqveil.core.model import MarkovModel
    >>> setting = Setting.of(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), "tree", 2.0, batch=2)
    >>> streams = Streams(setting, memory=16)  # room for one user's law; the other's lies in a file
    >>> for user in ("ann", "bob"):
    ...     _, after = batches.step(setting, streams.state(user), np.array([0, 0]), SeededCoins(1))
    ...     streams.keep(user, after)
    >>> ann, bob = (streams.state(user).states for user in ("ann", "bob"))
    >>> bool((ann == bob).all()), streams.accounts().spent.tolist()
    (True, [2.0, 2.0])
    """

    def __init__(self, setting: Setting, memory: int = 1 << 30) -> None:
        self._setting = setting
        self._width = 8 * setting.model.size
        self._room = max(1, memory // self._width)
        self._ends: dict[Hashable, State] = {}  # all of a state but its law
        self._laws: dict[Hashable, Floats] = {}
        self._places: dict[Hashable, int] = {}
        self._file: Any = None
        self._left_out: Counter[Hashable] = Counter()

    def state(self, user: Hashable) -> State:
        """Where the user stands; at the start, for a new one."""
        user = known_as(user)
        if user not in self._ends:
            # batches charge one number a side, so the account needs no entry for each state of the chain
            account = Account(np.zeros(1), np.zeros(1), np.zeros((1, 1)), np.zeros((1, 1)))
            return replace(State.start(self._setting), account=account)
        if user in self._laws:
            law = self._laws[user]
        else:
            self._file.seek(self._places[user] * self._width)
            law = np.frombuffer(self._file.read(self._width))[None]
        return replace(self._ends[user], states=law)

    def keep(self, user: Hashable, state: State, made: bool = True) -> None:
        """Where the user stands now; `made`: whether a batch was released on the way."""
        user = known_as(user)
        self._ends[user] = replace(state, states=np.zeros((1, 0)))
        self._left_out[user] += not made
        if user in self._laws or (len(self._laws) < self._room and user not in self._places):
            self._laws[user] = state.states
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- it lives as long as the streams
            weakref.finalize(self, self._file.close)
        self._file.seek(self._places.setdefault(user, len(self._places)) * self._width)
        self._file.write(np.ascontiguousarray(state.states, np.float64).tobytes())

    def accounts(self) -> Accounts:
        """Where every user stands; events and releases are batches here."""
        ends = list(self._ends.values())
        steps = np.array([int(end.steps[0]) for end in ends], np.int64)
        left_out = np.array([self._left_out[user] for user in self._ends], np.int64)
        table = [(end.spent[0], end.account.most[0], end.account.least[0], end.ldp[0]) for end in ends]
        spent, most, least, ldp = np.array(table, np.float64).reshape(-1, 4).T
        return Accounts(list(self._ends), steps, steps - left_out, spent, most, least, ldp)


@dataclass
class _Waiting:
    """The rows of a user whose batch is not full."""

    codes: list[int] = field(default_factory=list, repr=False)
    order: list[Any] = field(default_factory=list, repr=False)
    time: float | None = None  # of the last one


@dataclass
class _Columns:
    """Rows that are ready to be written, column by column."""

    users: list[Hashable] = field(default_factory=list)
    order: list[Any] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    epsilons: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


class Batcher:
    """Collects each user's events into batches and releases a batch when it is full, the short ones at the end.

    *Guarantee*: each user's stream is released as by a `Session` with this batch size, whoever else is in the file.
    """

    def __init__(self, setting: Setting, coins: Coins, memory: int) -> None:
        self.setting = setting
        self.streams = Streams(setting, memory)
        self.events = self.held = self.stopped = self.refused = 0
        self.failure: SeqveilError | None = None  # why no more can be released; what was stands
        self._spent: set[Hashable] = set()  # users whose rows are taken no more
        self._drawn = False
        self.choices: dict[str, dict[str, Any]] = {}  # of the chooser: how often, and why (the first reason)
        self._coins = coins
        self._waiting: dict[Hashable, _Waiting] = {}
        self._like: Chunk | None = None

    def take(self, part: Chunk, codes: Ints, times: Floats | None) -> Rows:
        """The rows of all batches that these events fill."""
        self._like = part
        order = None if part.order is None else part.order.to_physical().to_list()
        made = _Columns()
        for k, user in enumerate(part.users.to_list()):
            if user in self._spent:
                self.refused += 1
                continue
            held = self._waiting.setdefault(user, _Waiting())
            held.codes.append(int(codes[k]))
            if order is not None:
                held.order.append(order[k])
            held.time = None if times is None else float(times[k])
            if len(held.codes) == self.setting.batch:
                self._send(user, self._waiting.pop(user), made)
        self.events += part.n
        return self._rows(made)

    def finish(self) -> Rows:
        """The rows of the short batches that still wait, at the end of the file."""
        made = _Columns()
        for user in list(self._waiting):
            self._send(user, self._waiting.pop(user), made)
        return self._rows(made)

    def accounts(self) -> Accounts:
        return self.streams.accounts()

    def _send(self, user: Hashable, held: _Waiting, made: _Columns) -> None:
        setting, state, length = self.setting, self.streams.state(user), len(held.codes)
        if self.failure is not None:
            return
        try:
            stamp = None if held.time is None else np.array([held.time])
            epsilon = float(allowance(setting, state, stamp)[0][0])
            sent, after = batches.step(setting, state, np.array(held.codes, np.int64), self._coins, held.time)
        except BudgetSpent:
            self._spent.add(user)
            self.refused += length
            return
        except SeqveilError as error:
            if not self._drawn:
                raise
            self.failure = error
            return
        self._drawn = True
        self.streams.keep(user, after, sent is not None)
        if sent is None:
            self.stopped += length
            return
        self._note_choice(state, length, epsilon)
        self.held += told_nothing(sent)
        made.users += [user] * length
        made.order += held.order
        made.codes += sent.codes.tolist()
        made.epsilons += [epsilon] + [0.0] * (length - 1)
        made.batches += [int(state.steps[0])] * length
        made.paths += [batches.encode_path(sent.path)] + [SAME_PATH] * (length - 1)

    def _note_choice(self, state: State, length: int, epsilon: float) -> None:
        if self.setting.mechanism.name != "auto" or epsilon < GONE:
            return
        law = filtering.clear(state.states)[0]
        picked, why = choose(Batch(self.setting.model, law, length, epsilon, self.setting.distortion))
        entry = self.choices.setdefault(picked.name, {"batches": 0, "why": why})
        entry["batches"] += 1

    def _rows(self, made: _Columns) -> Rows:
        import polars as pl

        like = self._like
        assert like is not None  # a file without rows is refused before
        users = pl.Series(like.users.name, made.users, dtype=like.users.dtype)
        more = {BATCH: np.array(made.batches, np.int64), PATH: np.array(made.paths, np.str_)}
        return Rows(
            users, order_column(like, made.order), np.array(made.codes, np.int64), np.array(made.epsilons), more
        )


def order_column(like: Chunk, values: list[Any]) -> pl.Series | None:
    """The order column of these rows, of the type that it was read with."""
    import polars as pl

    if like.order is None:
        return None
    kind = like.order.to_physical().dtype
    return pl.Series(like.order.name, values, dtype=kind).cast(like.order.dtype)
