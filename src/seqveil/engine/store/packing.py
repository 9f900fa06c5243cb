"""States as bytes, and figures as whole numbers: what a store keeps of a user beside the releases.

A small state is kept as it is. A large one (an alphabet of thousands: a belief over 43,097 symbols is 340 KB) follows
from the releases, so a user who comes back may be replayed from them, which is exact and costs no budget.

The accounts of declared secrets are kept as numbers, to the last bit. What follows from model and secrets alone (the
tables of `core.secrets.ahead`) is not written: the setting has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seqveil.core.errors import DataError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import Leakages
from seqveil.core.secrets import Watch, Watches, WindowAccount
from seqveil.core.secrets.windows import Records
from seqveil.engine.accounting import Window
from seqveil.engine.state import State
from seqveil.engine.store.protocol import Row
from seqveil.engine.stream import Terms

SMALL = 4096  # bytes of state a user may have and still always be kept as it is
UNIT = 2.0**32  # ledgers count in 2**-32 nats
BOUNDLESS = 2**62  # what a ledger says of a leakage without bound (an unsound mechanism's)
OUTWARD = np.array([1, 1, -1, 1])  # of the figures of an `Entry`: the lower side of the leakage is rounded down
_HEAD = 6  # numbers before the account of a secret that say how long its parts are


def _sides(setting: Terms) -> int:
    return 1 if setting.in_batches or setting.model.full_support else setting.model.size


def width(setting: Terms) -> int:
    """Bytes of a user's belief and account; with declared secrets about as many as they come to."""
    secrets = 0 if setting.watches is None else 2 * account_numbers(setting.watches).size
    return 8 * (setting.model.size + 2 * _sides(setting) + secrets)


def carries(setting: Terms) -> int:
    """How many numbers of a state are belief and account ahead; 0 where the budget's own cannot be told apart."""
    return 0 if setting.watches is not None or not small(setting) else setting.model.size + 2 * _sides(setting)


def small(setting: Terms) -> bool:
    """Whether states are small enough to be kept as they are, whatever else is kept."""
    return width(setting) <= SMALL


def pack(state: State) -> bytes:
    """These states, exact, all of one size.

    The accounts of declared secrets stand at the end, and before all of it how many numbers a window takes: their
    length differs from user to user.
    """
    account, window = state.account, state.window
    numbers = (each[:, None] for each in (state.spent, account.most, account.least))
    ahead = (account.ahead_most, account.ahead_least)
    wide: tuple[Floats, ...] = (*numbers, state.states, *ahead, state.ldp[:, None], window.costs, window.stamps)
    if state.watches is not None:
        looks = np.full((len(state), 1), 2.0 * window.costs.shape[1])
        wide = (looks, state.first[:, None].astype(np.float64), *wide, packed_accounts(state.watches.tolist()))
    return np.concatenate(wide, axis=1).astype("<f8", copy=False).tobytes()


def unpack(setting: Terms, rows: Sequence[Row]) -> State:
    """The states of these users, all of one size."""
    table = np.frombuffer(b"".join(row.state for row in rows), "<f8").reshape(len(rows), -1)
    sides = _sides(setting)
    fixed = [1, 1, 1, setting.model.size, sides, sides, 1]
    watches, first = None, np.zeros(len(rows), np.int64)
    if setting.watches is not None:
        plain = 2 + sum(fixed) + int(table[0, 0])
        watches, first = np.empty(len(rows), object), table[:, 1].astype(np.int64)
        for k, numbers in enumerate(table[:, plain:]):
            begun = setting.watches_from(int(first[k])) if setting.clocked else setting.watches
            watches[k] = restored_accounts(begun, numbers)
        table = table[:, 2:plain]
    looks = table.shape[1] - sum(fixed)
    if looks < 0 or looks % 2:  # a window has two numbers a release
        raise DataError("a user's state does not fit this setting; restore the state file from a backup")
    places = np.cumsum([*fixed, looks // 2])
    spent, most, least, states, up, down, ldp, costs, stamps = np.split(table, places, axis=1)
    account = Leakages(most[:, 0], least[:, 0], up, down)
    steps = np.array([row.events for row in rows], np.int64)
    return State(states, steps, spent[:, 0], account, Window(costs, stamps), ldp[:, 0], first, watches)


def carried(state: bytes, numbers: int) -> bytes:
    """What is kept of the state of someone who is erased: the budget's own numbers, and nothing about the person.

    Those are Σε, both sides of the leakage, the LDP figure, and what windows still count. A state that is not kept, or
    has the accounts of declared secrets, leaves nothing that a new stream could go on from.

    Parameters:
        state: as packed.
        numbers: how many of its numbers are belief and account ahead; 0 where it cannot be carried.
    """
    if is_carried(state):
        return state
    table = np.frombuffer(state, "<f8")
    if not numbers or table.size < 3 + numbers:
        return np.array([np.nan], "<f8").tobytes()
    return np.concatenate([[np.nan], table[:3], table[3 + numbers :]]).astype("<f8").tobytes()


def is_carried(state: bytes) -> bool:
    """Whether a state is what was kept of someone who was erased: it begins with what is no number."""
    return len(state) >= 8 and bool(np.isnan(np.frombuffer(state[:8], "<f8")[0]))


def returned(setting: Terms, row: Row) -> State | None:
    """The state of someone who comes back after being erased: a new stream, whose account goes on with the old one's.

    None where what was kept is not enough to go on with.
    """
    table = np.frombuffer(row.state, "<f8")[None, 1:]
    if not table.size or setting.watches is not None or not small(setting):
        return None
    spent, most, least, ldp = table[0, :4]
    costs, stamps = np.split(table[:, 4:], 2, axis=1)
    start = State.start(setting)
    account = replace(start.account, most=np.array([most]), least=np.array([least])).restarted(setting.model)
    numbers = {"spent": np.array([spent]), "steps": np.array([row.events], np.int64)}
    return replace(start, **numbers, account=account, window=Window(costs.copy(), stamps.copy()), ldp=np.array([ldp]))


def units(values: Floats) -> Ints:
    """Nats as whole numbers of 2**-32, never less than they are.

    >>> units(np.array([1.0, 1e-20, -0.75, np.inf])).tolist()
    [4294967296, 1, -3221225472, 4611686018427387904]
    """
    within = np.minimum(np.maximum(values * UNIT, float(-BOUNDLESS)), float(BOUNDLESS))  # `clip` takes twice as long
    return np.ceil(within).astype(np.int64)


def ledger(figures: Floats) -> Ints:
    """Figures as an `Entry` has them, in units, each rounded outward: (K, 4)."""
    return units(figures * OUTWARD) * OUTWARD


def nats(count: int) -> float:
    """Units back as nats: exact below 2**21 nats, and never less than the truth above."""
    if abs(count) >= BOUNDLESS:
        return float("inf") if count > 0 else float("-inf")
    return count / UNIT if abs(count) < 2**53 else float(np.nextafter(count / UNIT, np.inf if count > 0 else -np.inf))


def nats_of(counts: Ints) -> Floats:
    """Units back as nats, as `nats` has them.

    >>> nats_of(np.array([2**32, -(2**31), 2**62])).tolist()
    [1.0, -0.5, inf]
    """
    values = counts / UNIT
    values = np.where(np.abs(counts) < 2**53, values, np.nextafter(values, np.where(counts > 0, np.inf, -np.inf)))
    return np.where(np.abs(counts) >= BOUNDLESS, np.where(counts > 0, np.inf, -np.inf), values)


def account_numbers(watches: Watches) -> Floats:
    """All that changes of the accounts of one user.

    >>> from seqveil import MarkovModel, secrets
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> first = Watches(model, secrets.ever(1, epsilon=1.0, window="first 3"))
    >>> told = first.observe([0.6, 0.4])
    >>> bool((account_numbers(restored_accounts(first, account_numbers(told))) == account_numbers(told)).all())
    True
    """
    return np.concatenate([_watch(watch) for row in watches.rows for watch in row])


def restored_accounts(first: Watches, packed: Floats) -> Watches:
    """The accounts behind these numbers; `first` are those before the first release, whatever else follows them."""
    after, at = object.__new__(Watches), 0
    rows = []
    for row in first.rows:
        found = []
        for watch in row:
            reader = _Reader(packed, at)
            found.append(_restored(watch, reader))
            at = reader.at
        rows.append(tuple(found))
    after.rows = tuple(rows)
    return after


def _watch(watch: Watch) -> Floats:
    found, gone = watch.records, watch.gone
    head = [watch.step, watch.told_all, len(watch.now), len(watch.ended), len(found.index), gone is not None]
    laws = (watch.states, watch.unseen, watch.now.ravel(), watch.ended.ravel())
    windows = (getattr(found, name).ravel() for name in Records.__dataclass_fields__)
    accounts = [_account(watch.latest), *([] if gone is None else [_account(gone)])]
    return np.concatenate([head, *laws, *windows, *accounts]).astype(np.float64, copy=False)


def _account(one: WindowAccount) -> list[float]:
    laws = [part for law in (one.prior, one.posterior) for part in (law if isinstance(law, tuple) else (law,))]
    return [one.first, one.events, *laws, one.log_odds, one.log_odds_low, one.log_odds_high, one.lowest, one.highest]


def _restored(first: Watch, reader: _Reader) -> Watch:
    plan, size = first.ahead, first.model.size
    step, told_all, open_rows, ended, windows, gone = (int(number) for number in reader.take(_HEAD))
    states, unseen = reader.take(size), reader.take(size)
    now, past = reader.take(open_rows, size), reader.take(ended, plan.values, size)
    index = reader.take(windows).astype(np.int64)
    laws = reader.take(windows, plan.values), reader.take(windows, plan.values)
    records = Records(index, *laws, *(reader.take(windows) for _ in range(3)))
    latest = _window(plan.values, reader)
    return replace(
        first,
        step=step,
        states=states,
        unseen=unseen,
        now=now,
        ended=past,
        records=records,
        latest=latest,
        gone=_window(plan.values, reader) if gone else None,
        told_all=bool(told_all),
    )


def _window(values: int, reader: _Reader) -> WindowAccount:
    first, events = reader.take(2).tolist()
    alone = values == 2  # of a secret that is true or not, one probability says both
    prior, posterior = (reader.take(1 if alone else values).tolist() for _ in range(2))
    laws = (prior[0], posterior[0]) if alone else (tuple(prior), tuple(posterior))
    return WindowAccount(int(first), int(events), *laws, *reader.take(5).tolist())


class _Reader:
    """Takes numbers one part after another."""

    def __init__(self, packed: Floats, at: int) -> None:
        self._packed, self.at = packed, at

    def take(self, *shape: int) -> Floats:
        count = int(np.prod(shape))
        part = self._packed[self.at : self.at + count]
        if part.size != count:
            raise DataError("a user's state does not fit this setting; restore the state file from a backup")
        self.at += count
        return part.reshape(shape).copy()


def packed_accounts(watches: Sequence[Watches]) -> Floats:
    """The numbers of several users, one row each, filled up with zeros to the longest."""
    rows = [account_numbers(each) for each in watches]
    table = np.zeros((len(rows), max((row.size for row in rows), default=0)))
    for k, row in enumerate(rows):
        table[k, : row.size] = row
    return table
