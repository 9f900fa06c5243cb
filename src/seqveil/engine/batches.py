"""One batch as a pure step, and the paths that are published for it.

The release is the path; the reproduction, the next belief and the account all follow from it, so a receiver who has the
model and the paths has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from seqveil.core import filtering, mechanisms
from seqveil.core.bulk import took_step
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side, pass_over
from seqveil.core.mechanisms import Batch, BatchMechanism, Sent
from seqveil.core.randomness import Randomness
from seqveil.engine.budget import GONE
from seqveil.engine.stream import UNKNOWN, State, Terms, allowance, drawn, gate


def step(
    setting: Terms, state: State, codes: Ints, randomness: Randomness, times: Floats | None = None
) -> tuple[Sent | None, State]:
    """Release one user's batch and charge it; None where the budget is spent and its policy is to stop.

    The batch may be shorter than the setting's: it costs as much, and what decides its length must be public.

    *Guarantee*: for a sound mechanism the lifts of all batches are within the ε used, in or out of the model's
    support, and a budget is never passed. The same holds of a batch with values outside the alphabet (UNKNOWN, see
    `hidden`).
    """
    truth = gate(codes, setting.model.n)

    def send(mechanism: BatchMechanism, batch: Batch) -> Sent:
        """Draw for the truth, where what is outside the alphabet has been replaced."""
        return mechanism.rule(batch).draw(hidden(setting, state, truth, randomness), randomness)

    return _advance(setting, state, truth.size, send, times)


def hidden(setting: Terms, state: State, codes: Ints, randomness: Randomness) -> Ints:
    """The batch to draw for: each UNKNOWN is replaced by a symbol of the chain, given the releases so far and the
    symbols before it in the batch, by one more draw of the event.

    The release is then a mixture of rows Q(·|x'), over batches x' that agree with the known symbols, so every bound on
    the lifts of all batches, and on the ratio of any two, holds for it. Of nothing but UNKNOWN the lift is 1.
    """
    if not (codes == UNKNOWN).any():
        return codes
    filled, states, model = codes.copy(), state.states, setting.model
    for place, code in enumerate(codes.tolist()):
        if code == UNKNOWN:
            filled[place] = drawn(filtering.symbols(model, states), randomness.draw(1))[0]
        here = (np.arange(model.n) == filled[place]).astype(np.float64)
        states = filtering.predict(model, filtering.condition(model, states, here[None])[0])
    return filled


def observe(
    setting: Terms, state: State, path: tuple[int, ...] | None, length: int, times: Floats | None = None
) -> tuple[Sent | None, State]:
    """The same step as a receiver sees it: the path (None: nothing was sent) is given, nothing private is needed."""
    sent, after = _advance(
        setting, state, length, lambda mechanism, batch: mechanism.rule(batch).read(path or ()), times
    )
    if (sent is None) != (path is None):
        raise DataError("a batch stands where the budget allows none, or is missing; check epsilon and budget")
    return sent, after


def encode_path(path: tuple[int, ...]) -> str:
    """A path as short text: turns left and right as one hexadecimal number, anything else as numbers.

    >>> encode_path((0, 1, 1)), encode_path((12,)), encode_path(())
    ('xb', '12', 'x1')
    >>> [decode_path(text) for text in ("xb", "12", "x1")]
    [(0, 1, 1), (12,), ()]
    """
    if len(path) != 1 and all(turn in (0, 1) for turn in path):
        return f"x{int('1' + ''.join(map(str, path)), 2):x}"
    return ".".join(map(str, path))


def decode_path(text: str) -> tuple[int, ...]:
    """The path behind the text."""
    try:
        if text.startswith("x"):
            return tuple(int(turn) for turn in bin(int(text[1:], 16))[3:])
        return tuple(int(part) for part in text.split("."))
    except ValueError:
        raise DataError("expected a path as `release` writes it; the path column has been changed") from None


def smooth(setting: Terms, sent: Sequence[Sent | None]) -> Floats:
    """Distributions of all symbols given all batches of a stream, (T, n): forward–backward over the batches.

    Over a batch that was left out (None) later ones count as seen through the chain; its own rows are zeros.
    """
    model, later, distributions = setting.model, np.ones(setting.model.size), []
    for each in reversed(sent):
        if each is None:
            distributions.append(np.zeros((setting.batch, model.n)))
            for _ in range(setting.batch):
                later = filtering.pull(model, later[None])[0]
            continue
        distribution, first = each.smooth(later)
        distributions.append(distribution)
        later = filtering.pull(model, (first / first.max())[None])[0]
    return np.concatenate(distributions[::-1])


def filtered(setting: Terms, sent: Sequence[Sent | None]) -> Floats:
    """Distributions of all symbols, each given the batches up to its own; zeros where a batch was left out."""
    ones, nothing = np.ones(setting.model.size), np.zeros((setting.batch, setting.model.n))
    return np.concatenate([nothing if each is None else each.smooth(ones)[0] for each in sent])


def _advance(
    setting: Terms, state: State, length: int, send: Callable[[BatchMechanism, Batch], Sent], times: Floats | None
) -> tuple[Sent | None, State]:
    took_step(length)
    if not 1 <= length <= setting.batch:
        raise InputError(f"expected a batch of 1 to {setting.batch} symbols, got {length}")
    epsilons, gone = allowance(setting, state, times)
    if gone[0] and setting.budget.when_spent == "stop":
        passed, nothing = pass_over(setting.model, state.states, state.account, length), np.zeros(1)
        return None, state.charged(setting, *passed, nothing, times, lambda: nothing)
    blurred = bool(state.account.blurred[0]) and setting.mechanism.sound
    # where the belief is no longer known, what keeps ε under any belief
    epsilon = float(epsilons[0]) / (setting.mechanism.ldp if blurred else 1.0)
    batch = Batch(setting.model, filtering.clear(state.states)[0], length, epsilon, setting.distortion)
    # a batch that may cost nothing is the tree's constant release
    mechanism = mechanisms.tree if batch.epsilon < GONE else setting.mechanism
    assert isinstance(mechanism, BatchMechanism)  # or the policy was refused
    sent = send(mechanism, batch)
    most, least = np.array([sent.most]), np.array([sent.least])
    cost = most - least if blurred else larger_side(most, least)
    states = sent.ahead[None, :].copy()
    account = state.account.charge_batch(most, least)
    account = account.blur(filtering.lost(setting.model, state.states, length, states))
    return sent, state.charged(setting, states, account, epsilons, times, lambda: cost)
