"""Releases that keep declared secrets, and what the streams of many users reveal about them in all.

The kernel of a release is a function of the accounts of the secrets, which are public (`State.trackers`), so a receiver
who knows the setting and the releases comes to the same one.

*Guarantee*, for an observer who believes the model (or one of `observers`): for every secret, at every time and for
every outcome, Pr(y_1..t | E) / Pr(y_1..t | not E) lies between e^-ε and e^ε of that secret (on one side where it is
declared so). It is a total: it does not grow with the length of the stream. Without `epsilon` nothing is promised about
the whole sequence, nor without a model. With `epsilon` every release is also sound at ε, hence 2ε-LDP.

A table is checked from its integers before anything is drawn (docs/theory.md, section 18).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seqveil.core import words
from seqveil.core.alphabet import WITHHELD
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms.base import Asked
from seqveil.core.secrets import Secret, SecretTrackers
from seqveil.core.secrets.account import TrackedUsers, together
from seqveil.core.secrets.pools import IMPOSSIBLE, LEFT, WRITABLE
from seqveil.core.secrets.solving import guarded, released
from seqveil.core.secrets.tables import Bounds, Dial, GuardingTable
from seqveil.engine.policy import Terms

NOTHING = -1  # the code of a release that was not made, because the budget is spent and the policy says stop
OTHER_SECRETS = (
    "a release cannot have come from this mechanism with this model and these secrets; check that model, secrets, "
    "observers, side_information, epsilon and withhold are those of the release"
)


def guarded_table(setting: Terms, trackers: SecretTrackers) -> GuardingTable:
    """The integer table of the next release: a function of what is public alone, checked before anything is drawn.

    Parameters:
        setting: one whose mechanism is "guarded".
        trackers: the accounts of its secrets so far, those of the state of one user.

    >>> from seqveil import MarkovModel, secrets
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> from seqveil.engine.policy import Policy
    >>> setting = Policy(secrets=secrets.ever(1, epsilon=0.5, window="first 3"), mechanism="guarded").on(model)
    >>> guarded_table(setting, setting.trackers).outputs.tolist()
    [0, 1]
    """
    trackers.check_room()
    dial = dial_of(setting, trackers.forgot >= 0)
    if setting.in_closed_form and dial.n**2 * dial.rows > WRITABLE:
        raise InputError(
            f"a table of {dial.n * dial.rows} × {dial.n} weights is too large to write out; release without it"
        )
    return _table(setting, trackers.alone, dial)


def _table(setting: Terms, user: TrackedUsers, dial: Dial) -> GuardingTable:
    epsilon = None if setting.unbounded else setting.epsilon
    return guarded(Bounds.of(user, dial), setting.distortion, not setting.withhold, epsilon, dial)


def dial_of(setting: Terms, forgot: bool = False) -> Dial:
    """How many rows a symbol has in the tables of these terms, and how far they may differ."""
    trackers = setting.trackers
    rows = 1 if trackers is None or forgot else trackers.users.memories
    return Dial(setting.model.n, rows, setting.side_information)


def release_each(
    setting: Terms, trackers: NDArray[np.object_], asked: Asked, memory: Ints | None
) -> tuple[Ints, Ints, NDArray[np.object_], Ints | None]:
    """The release of each user where declared secrets are kept, its column Q(y|x, m) (B, Z), the accounts after it, and
    what is remembered of the raw streams then (`Private.memory`; an observer has none).

    Every table is checked before anything is drawn from it.
    """
    n, width = setting.model.n, setting.model.n * dial_of(setting).rows
    codes, columns = np.empty(len(trackers), np.int64), np.empty((len(trackers), width), np.int64)
    after, memory = np.empty(len(trackers), object), None if memory is None else memory.copy()
    tables: dict[tuple[int, int, bool], GuardingTable] = {}  # those who stand alike have the same
    for places, users in together(trackers):
        for forgot in np.unique(users.forgot >= 0).tolist():
            rows = np.flatnonzero((users.forgot >= 0) == forgot)
            some, at = users if rows.size == len(users) else users.take(rows), places[rows]
            dial, begins = dial_of(setting, forgot), np.zeros(at.size, np.int64)
            if memory is not None and dial.rows > 1:
                memory[at] = some.automata.read(memory[at], asked.truths[at], some.step)
                begins = some.automata.row(memory[at]) * n
            left = np.arange(at.size)
            if setting.in_closed_form:
                here = asked.take(at)
                drawn = (begins + here.truths, here.randomness, None) if here.truths.size else (None, None, here.given)
                status, codes[at], found = released(some, dial, *drawn)
                if (here.given < 0).any() or (status == IMPOSSIBLE).any():
                    raise DataError(OTHER_SECRETS)
                columns[at], left = np.tile(found, width // found.shape[1]), np.flatnonzero(status == LEFT)
            for k in left.tolist():
                each, user = trackers[at[k]], int(at[k])
                key = id(each.users), each.row, forgot
                if key not in tables:
                    tables[key] = _table(setting, some.take([k]), dial)
                made = tables[key]
                if asked.truths.size:
                    place = made.pick(int(begins[k] + asked.truths[user]), int(asked.randomness[user]))
                else:
                    code = WITHHELD if asked.given[user] == NOTHING else asked.given[user]
                    if code not in made.outputs:
                        raise DataError(OTHER_SECRETS)
                    place = int(np.flatnonzero(made.outputs == code)[0])
                found = made.column(place)
                codes[user], columns[user] = made.outputs[place], np.tile(found, width // found.size)
        after[places] = users.observe(columns[places]).each()
    return codes, columns, after, memory


def joint_beliefs(trackers: NDArray[np.object_]) -> Floats:
    """What is believed of each user's next source, symbol and memory: (B, Z)."""
    found = np.empty((len(trackers), trackers[0].users.n * trackers[0].users.memories))
    for places, users in together(trackers):
        found[places] = users.own[0].belief
    return found


def histories(trackers: NDArray[np.object_], sources: Ints) -> tuple[Ints, Ints]:
    """The symbol of each user's source (B,), and states of the automata that reading it leads to the source's memory
    from: (B, J)."""
    users = trackers[0].users
    codes, before = sources % users.n, np.empty((len(trackers), len(users.automata.plans)), np.int64)
    for places, some in together(trackers):
        reached = some.automata.by_symbol(some.step)[:, codes[places]]
        before[places] = some.automata.states[:, (reached == sources[places] // some.n).argmax(0)].T
    return codes, before


def states_of(trackers: NDArray[np.object_]) -> Floats:
    """The distribution of what is remembered and of each user's next state of the chain: (B, M, S)."""
    first = trackers[0].users.own[0]
    found = np.empty((len(trackers), *first.states.shape[1:]))
    for places, users in together(trackers):
        found[places] = users.own[0].states
    return found


@dataclass(frozen=True)
class SecretTotal:
    """What was disclosed about one declared secret, to the observer who learned most, by any user's stream.

    log B is the factor by which the odds of the secret moved, as a logarithm: `lowest` and `highest` bound it over
    all users, windows and times. Of a window that no later release can break, what they could still reveal is counted.
    """

    name: str  # as the command line spells it
    sentence: str  # what was promised, or that it was measured and not promised
    epsilon: float | None  # what was promised; None where nothing was
    users: int
    log_odds_worst: float  # bounds |log B| (on one side log B) of every user, in every window, at any time
    lowest: float
    highest: float
    without_window: int = 0  # streams that end before their first window is over
    inside_window: int = 0  # streams that have a whole window, and end before their last one is over

    @property
    def kept(self) -> bool | None:
        """Whether the promise was kept in every whole window; None where there was no promise, or no such window."""
        if self.epsilon is None:
            return None
        if self.log_odds_worst > self.epsilon:
            return False
        return None if self.users and self.without_window == self.users else True

    @property
    def unkept(self) -> str:
        """Says of how many streams nothing is promised, because they end inside a window; empty where none does."""
        if self.epsilon is None:
            return ""
        said = []
        if self.without_window:
            which = "these" if self.without_window == self.users else f"{self.without_window} of"
            said.append(f"the first window of {which} {self.users} streams is not over")
        if self.inside_window:
            said.append(f"the last window of {self.inside_window} of {self.users} streams is not over")
        return "; ".join(said) + ": the bound is about the whole window, not about the part so far" * bool(said)


def totals(
    secrets: Sequence[Secret], accounts: Iterable[SecretTrackers | None], promised: Sequence[float | None]
) -> list[SecretTotal]:
    """The totals of these secrets over the accounts of all users.

    `promised` is the ε that the mechanism keeps each secret within; None where it keeps none, so that it is measured.
    """
    users, most, counts = 0, np.zeros((len(secrets), 3)), np.zeros((len(secrets), 2), np.int64)
    for each in accounts:
        if each is None:
            continue
        users += 1
        counts += [tracker.inside_window for tracker in each.rows[0]]
        for row in each.rows:
            found = ((one.worst, one.secret.sides) for one in row)
            most = np.maximum(most, [(worst.worst(sides), -worst.lowest, worst.highest) for worst, sides in found])
    made, figures = [], zip(secrets, promised, most.tolist(), counts.tolist(), strict=True)
    for secret, epsilon, (worst, low, high), ended in figures:
        if epsilon is None:
            said = words.measured(secret, None if secret.epsilon is None else worst <= secret.epsilon)
        else:
            said = replace(secret, epsilon=epsilon).sentence
        made.append(SecretTotal(secret.name, said, epsilon, users, worst, 0.0 - low, high, *ended))
    return made
