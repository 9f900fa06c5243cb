"""For whoever receives the stream: the best estimate of every symbol, from model and releases alone.

The lifts are public, so a released stream is a hidden Markov model with emission Q(y_k | x): forward filtering gives
the law of each symbol given the releases up to it, forward–backward given all of them. It is post-processing: it costs
no privacy, and any loss has its best estimate from the same laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seqveil import belief, stream
from seqveil.accounting import Budget, Schedule
from seqveil.distortion import Distortion, resolve
from seqveil.errors import DataError, UnknownSymbol
from seqveil.kernel import Floats, Ints
from seqveil.mechanisms import Mechanism
from seqveil.model import MarkovModel

TINY = 1e-300


def decode(
    model: MarkovModel,
    released: Sequence[Any],
    mechanism: str | Mechanism = "optimal",
    epsilon: float | None = 0.5,
    distortion: str | Distortion = "hamming",
    *,
    schedule: Schedule | int | None = None,
    budget: Budget | float | None = None,
    times: Sequence[float] | None = None,
    smooth: bool = True,
) -> Floats:
    """Law of every symbol given the releases: T × n. The other arguments are those the stream was released with.

    `smooth=False` uses the releases up to each symbol only (online), `smooth=True` all of them. A release that was not
    made (None) is stepped over.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> laws = decode(model, [0, 0, 1, 0, 0], "randomized_response", epsilon=1.0)
    >>> laws.argmax(1).tolist()
    [0, 0, 0, 0, 0]

    Reference: theory §9.
    """
    setting = stream.Setting.of(model, mechanism, epsilon, distortion, schedule, budget)
    if not len(released):
        return np.zeros((0, model.n))
    stamps = None if times is None else np.asarray(times, np.float64)[None, :]
    return decode_codes(setting, encode_released(model, released)[None, :], stamps, smooth)[0]


def encode_released(model: MarkovModel, released: Sequence[Any]) -> Ints:
    """Codes of released values; None becomes NOTHING."""
    codes = np.full(len(released), stream.NOTHING, np.int64)
    made = [k for k, value in enumerate(released) if value is not None]
    try:
        codes[made] = model.alphabet.encode([released[k] for k in made])
    except UnknownSymbol:
        raise DataError(
            "a released value is not in the model's alphabet; check that the model is the release's"
        ) from None
    return codes


def decode_codes(setting: stream.Setting, codes: Ints, times: Floats | None = None, smooth: bool = True) -> Floats:
    """`decode` for B streams of one length at once: codes (B, T) → laws (B, T, n)."""
    model, (users, length) = setting.model, codes.shape
    state = stream.State.start(setting, users)
    filtered, columns = np.empty((length, users, model.size)), np.empty((length, users, model.n))
    for t in range(length):
        seen, after = stream.observe(setting, state, codes[:, t], None if times is None else times[:, t])
        columns[t] = seen.columns / seen.columns.max(1, keepdims=True)
        filtered[t], _ = belief.condition(model, state.states, columns[t])
        state = after
    if smooth:
        _smooth(model, filtered, columns)
    return np.stack([belief.symbols(model, law) for law in filtered], axis=1)


def _smooth(model: MarkovModel, filtered: Floats, columns: Floats) -> None:
    """Forward–backward in place: each filtered law times the likelihood of what was released later."""
    later = np.ones(filtered.shape[1:])
    for t in range(len(filtered) - 2, -1, -1):
        ahead = later * columns[t + 1][:, model.newest]
        later = _pull(model, ahead / np.maximum(ahead.max(1, keepdims=True), TINY))
        law = filtered[t] * later
        total = law.sum(1, keepdims=True)
        # a release the model rules out (an unsound mechanism's) says nothing about what came before it
        later = np.where(total > 0, later, 1.0)
        filtered[t] = np.where(total > 0, law / np.maximum(total, TINY), filtered[t])


def _pull(model: MarkovModel, values: Floats) -> Floats:
    """Σ_s' P(s'|s) values(s') for every state s, one row a user."""
    jump = (values[:, model.base_state] * model.base).sum(1)
    onward: Floats = (model.chain @ values.T).T
    return onward + model.backoff * jump[:, None]


def estimates(laws: Floats, distortion: str | Distortion, model: MarkovModel) -> Ints:
    """The code of least expected distortion for every law: mode for Hamming, median for absolute, and so on."""
    return resolve(distortion, model.alphabet).best_guess(laws)


def histogram(laws: Floats) -> Floats:
    """Expected number of times each symbol occurred, from laws of any leading shape."""
    return laws.reshape(-1, laws.shape[-1]).sum(0)
