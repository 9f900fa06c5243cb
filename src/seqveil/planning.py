"""What a budget buys, before anything is released: streams simulated from the model, never private data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqveil import belief, mechanisms, stream
from seqveil.accounting import Schedule
from seqveil.coins import SeededCoins
from seqveil.distortion import Distortion
from seqveil.errors import InputError
from seqveil.kernel import Floats
from seqveil.mechanisms import Mechanism
from seqveil.model import MarkovModel

PERIODS = (1, 2, 3, 4, 6, 8, 12, 16)
HIGHEST = 12.0  # ε of one pulse beyond which spending more at once buys nothing
PROGRAM = 40  # symbols up to which the exact optimum of any distortion is quick


@dataclass(frozen=True)
class Row:
    """One line of a plan: means over simulated releases, each given its whole public past.

    `error` is the expected distortion of the release as it stands, `decoded_error` after the receiver's online filter,
    `truth` the probability that the release is the truth, `constant_error` that of the best guess with no release at
    all, `gap` how far the kernel's expected cost lies above the exact optimum for the same beliefs (None: not known).
    """

    epsilon: float
    mechanism: str
    period: int
    error: float
    decoded_error: float
    truth: float
    constant_error: float
    gap: float | None
    leakage: float


@dataclass(frozen=True)
class Plan:
    rows: tuple[Row, ...]
    length: int
    distortion: str
    symbols: int

    def sentence(self, epsilon: float) -> str:
        """The guarantee at ε in plain words."""
        factor = math.exp(epsilon)
        return (
            f"at ε = {epsilon:g} each release moves what anyone who knows the model believes about a user's whole "
            f"sequence by at most a factor {factor:.3g}, up or down; {self.length} releases together by at most "
            f"e^{epsilon * self.length:g}; and whatever the truth's law is, one release tells any two symbols apart by "
            f"at most a factor {factor**2:.3g}"
        )


def plan(
    model: MarkovModel,
    epsilons: Sequence[float],
    mechanism: str | Mechanism = "optimal",
    distortion: str | Distortion = "hamming",
    length: int = 50,
    users: int = 200,
    seed: int = 0,
    *,
    period: int | None = 1,
    references: Sequence[str] = ("randomized_response",),
) -> Plan:
    """Expected utility against ε for this model: one row for each ε and mechanism.

    `period` pulses the mechanism's budget (None: the best period is found by simulation); `references` are mechanisms
    to show beside it, releasing at every step.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> row = plan(model, [1.0], length=10, users=50).rows[0]
    >>> row.error < row.constant_error
    True
    """
    if length < 1 or users < 1:
        raise InputError(f"expected a length and a number of users ≥ 1, got {length} and {users}")
    chosen = mechanisms.get(mechanism)
    if not epsilons:
        raise InputError("expected at least one epsilon to plan for; try 0.5,1,2")
    rows = []
    for epsilon in epsilons:
        every = period if period is not None else best_period(model, epsilon, chosen, distortion, length, users, seed)
        shown = [(chosen, every)] if every == 1 else [(chosen, 1), (chosen, every)]
        shown += [(mechanisms.get(name), 1) for name in references if name != chosen.name]
        for each, pulse in shown:
            setting = stream.Setting.of(model, each, epsilon, distortion, Schedule(pulse))
            rows.append(simulate(setting, length, users, seed, compare=pulse == 1))
    name = distortion if isinstance(distortion, str) else distortion.name
    return Plan(tuple(rows), length, name, model.n)


def best_period(
    model: MarkovModel,
    epsilon: float,
    mechanism: str | Mechanism = "optimal",
    distortion: str | Distortion = "hamming",
    length: int = 50,
    users: int = 200,
    seed: int = 0,
) -> int:
    """The period of least expected error of the release: spend m·ε at every m-th, nothing in between (theory §11)."""
    mechanisms.check_epsilon(epsilon)
    tried = [m for m in PERIODS if m == 1 or (m * epsilon <= HIGHEST and 2 * m <= length)]
    errors = {}
    for m in tried:
        setting = stream.Setting.of(model, mechanism, epsilon, distortion, Schedule(m))
        errors[m] = simulate(setting, length, users, seed).error
    return min(errors, key=lambda m: errors[m])


def simulate(setting: stream.Setting, length: int, users: int, seed: int = 0, compare: bool = False) -> Row:
    """Release streams sampled from the model and average the exact conditional expectations of every release.

    Given all that is public after a release y, its expected cost is Σ post(x) D(x, y) and that of the best estimate
    min_r Σ post(x) D(x, r): averaging these instead of realised costs leaves only the noise of the histories.
    """
    model, distortion = setting.model, setting.distortion
    codes = model.sample(length, users, seed)
    coins, state = SeededCoins(seed + 1), stream.State.start(setting, users)
    totals, gaps = np.zeros(4), []
    silent = model.initial[None, :]
    for t in range(length):
        if compare and setting.mechanism.sound and t in (0, 1, length // 2, length - 1):
            gaps.append(_gap(setting, belief.symbols(model, state.states[:25])))
        made, state = stream.step(setting, state, codes[:, t], coins)
        post = made.beliefs * made.columns
        post /= post.sum(1, keepdims=True)
        costs = distortion.expected(post)
        rows = np.arange(users)
        unseen = float(distortion.expected(belief.symbols(model, silent)).min())
        totals += [costs[rows, made.codes].mean(), costs.min(1).mean(), post[rows, made.codes].mean(), unseen]
        silent = belief.predict(model, silent)
    error, decoded, truth, constant = totals / length
    known = [gap for gap in gaps if gap is not None]
    return Row(
        setting.epsilon,
        setting.mechanism.name,
        setting.schedule.period,
        float(error),
        float(decoded),
        float(truth),
        float(constant),
        float(np.mean(known)) if known else None,
        float(state.account.worst.max()),
    )


def _gap(setting: stream.Setting, beliefs: Floats) -> float | None:
    """Mean expected cost above the exact optimum on these beliefs, at the setting's ε."""
    if not setting.distortion.is_hamming and setting.model.n > PROGRAM:
        return None
    best = replace(setting, mechanism=mechanisms.optimal)
    mine, least = (
        stream.kernels(each, beliefs, setting.epsilon).error(beliefs, setting.distortion) for each in (setting, best)
    )
    return float((mine - least).mean())
