"""Expected errors of a whole stream by enumeration of everything that can be released. For small alphabets and streams.

For each mechanism: `released` is the expected share of wrong releases, `online` that of the best guess from what was
released up to each symbol (its own batch included), `hindsight` that of the best guess from all of it, and `leakage`
the largest true leakage of one release or batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core import filtering
from seqveil.core.distortion import hamming
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.mechanisms import Batch, BatchMechanism, Mechanism
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness

Errors = dict[str, float]
RARE = 1e-15  # a history less likely than this adds nothing


def one_by_one(model: MarkovModel, mechanism: Mechanism, epsilon: float, length: int) -> Errors:
    """All histories of single releases side by side; the model is of order 1."""
    chances, states = np.ones(1), model.initial[None, :]
    filtered: list[np.ndarray] = []  # distribution of symbol t after release t, a row a history
    columns: list[np.ndarray] = []
    wrong = guessed = leak = 0.0
    for _ in range(length):
        kernels = mechanism.kernels(states, epsilon, hamming())
        leak = max(leak, float(kernels.leakage(states)[chances > 0].max()))
        outputs = kernels.outputs.shape[1]
        history = np.repeat(np.arange(len(chances)), outputs)
        drawn = np.tile(np.arange(outputs), len(chances))
        stack = [kernels.column(np.full(len(chances), j)) / DENOMINATOR for j in range(outputs)]
        column = np.stack(stack, axis=1).reshape(-1, model.n)
        joint = chances[history, None] * states[history] * column
        released = kernels.outputs[history, drawn]
        mass = joint.sum(1)
        wrong += float((mass - joint[np.arange(len(joint)), released]).sum())
        guessed += float((mass - joint.max(1)).sum())
        kept = mass > RARE
        filtered = [distribution[history[kept]] for distribution in filtered]
        columns = [each[history[kept]] for each in columns]
        chances = mass[kept]
        filtered.append(joint[kept] / chances[:, None])
        columns.append(column[kept])
        states = filtering.predict(model, filtered[-1])
    late = _hindsight(model, chances, filtered, columns)
    return {"released": wrong / length, "online": guessed / length, "hindsight": late / length, "leakage": leak}


def _hindsight(model: MarkovModel, chances: np.ndarray, filtered: list[np.ndarray], columns: list[np.ndarray]) -> float:
    later, wrong = np.ones((len(chances), model.n)), 0.0
    for distribution, column in zip(reversed(filtered), reversed(columns), strict=True):
        smooth = distribution * later
        smooth /= smooth.sum(1, keepdims=True)
        wrong += float(chances @ (1.0 - smooth.max(1)))
        later = filtering.pull(model, column * later)
    return wrong


@dataclass(frozen=True, eq=False)
class _History:
    chance: float
    states: np.ndarray
    sent: tuple[object, ...]


def in_batches(model: MarkovModel, mechanism: BatchMechanism, epsilon: float, size: int, length: int) -> Errors:
    """All histories of batches of `size`, each with ε for each of its symbols; the last batch may be shorter."""
    histories = [_History(1.0, model.initial, ())]
    totals = {"released": 0.0, "online": 0.0, "hindsight": 0.0}
    leak, books = 0.0, {}
    for begin in range(0, length, size):
        span = min(size, length - begin)
        grown = []
        for history in histories:
            key = (span, history.states.round(12).tobytes())
            if key not in books:
                books[key] = _outcomes(Batch(model, history.states, span, epsilon * span, hamming()), mechanism)
            for outcome in books[key]:
                chance = history.chance * outcome.chance
                totals["released"] += chance * outcome.wrong
                totals["online"] += chance * outcome.guessed
                leak = max(leak, outcome.leakage)
                grown.append(_History(chance, outcome.states, (*history.sent, outcome.sent)))
        histories = [history for history in grown if history.chance > RARE]
    totals["hindsight"] = sum(history.chance * _late(model, history.sent) for history in histories)
    return {name: value / length for name, value in totals.items()} | {"leakage": leak}


@dataclass(frozen=True, eq=False)
class _Outcome:
    chance: float
    wrong: float
    guessed: float
    leakage: float
    states: np.ndarray
    sent: object


def _outcomes(batch: Batch, mechanism: BatchMechanism) -> list[_Outcome]:
    """Everything one batch can release, from the table of its codebook."""
    walk = np.full(batch.length, int(batch.states.argmax()), np.int64)
    book = mechanism.rule(batch).draw(walk, SeededRandomness(0)).book  # type: ignore[attr-defined]
    joint = book.rows.mass[:, None] * book.table
    costs, ones, found = book.rows.costs(book.labels), np.ones(batch.model.size), []
    for index in np.flatnonzero(joint.sum(0) > RARE):
        sent = book.read((int(index),))
        chance = float(joint[:, index].sum())
        wrong = float((joint[:, index] * costs[:, index]).sum() / chance)
        guessed = float((1.0 - sent.smooth(ones)[0].max(1)).sum())
        ahead = filtering.predict(batch.model, sent.posterior[None, :])[0]
        found.append(_Outcome(chance, wrong, guessed, max(sent.most, -sent.least), ahead, sent))
    return found


def _late(model: MarkovModel, sent: tuple[object, ...]) -> float:
    later, wrong = np.ones(model.size), 0.0
    for each in reversed(sent):
        distributions, first = each.smooth(later)  # type: ignore[attr-defined]
        wrong += float((1.0 - distributions.max(1)).sum())
        later = filtering.pull(model, (first / first.max())[None, :])[0]
    return wrong


def silent(model: MarkovModel, length: int) -> float:
    """Expected share of wrong best guesses where nothing is released."""
    distribution, wrong = model.initial[None, :], 0.0
    for _ in range(length):
        wrong += float(1.0 - distribution.max())
        distribution = filtering.predict(model, distribution)
    return wrong / length
