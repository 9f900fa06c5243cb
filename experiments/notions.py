"""What four privacy notions promise, on examples small enough to enumerate every outcome of a few events."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments import markov_quilt
from experiments.arimoto import information
from experiments.temporal_leakage import leakage
from seqveil import MarkovModel, mechanisms
from seqveil.core import filtering
from seqveil.core.distortion import hamming
from seqveil.core.mechanisms import Mechanism
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams

Figures = dict[str, Any]
EPSILON, LENGTH = 0.5, 4
STICKY = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
UNEVEN = MarkovModel([0.8, 0.2], [[0.82, 0.18], [0.75, 0.25]])
MIXING = MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]])
INDEPENDENT = MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])


@dataclass(frozen=True, eq=False)
class Stream:
    """Everything a stream of a few events can be: distributions of sequences, and of releases given them."""

    distribution: np.ndarray  # (X,) of the sequences
    table: np.ndarray  # (X, Y) Pr(y | x)
    steps: np.ndarray  # (X, Y) Σ_t log lift of step t
    information: float  # Σ_t I(X_t; Y_t | what was released before)
    largest: float  # of the steps' information, over all histories

    @property
    def joint_information(self) -> float:
        return float(information(self.distribution[None], self.table[None])[0])

    @property
    def lifts(self) -> np.ndarray:
        """Logs of posterior over prior for all sequences and releases."""
        with np.errstate(divide="ignore"):
            return np.log(self.table) - np.log(self.distribution @ self.table)

    @property
    def leakage(self) -> float:
        """SIL: the largest |log lift| of a whole sequence."""
        return float(np.abs(self.lifts).max())


def enumerate_stream(model: MarkovModel, mechanism: Mechanism, epsilon: float, length: int) -> Stream:
    """All sequences of an order-1 chain, all releases, kernels made anew from the belief after each history."""
    every = np.array(list(itertools.product(range(model.n), repeat=length)))
    moves = model.advance(np.eye(model.n))
    distribution = model.initial[every[:, 0]] * np.prod(
        [moves[every[:, t - 1], every[:, t]] for t in range(1, length)], axis=0
    )
    columns, steps, total, largest = [], [], 0.0, 0.0
    for released in itertools.product(range(model.n), repeat=length):
        states, chance = model.initial[None], 1.0
        column, step = np.ones(len(every)), np.zeros(len(every))
        for t, symbol in enumerate(released):
            kernel = mechanism.kernels(states, epsilon, hamming()).one(0)
            table = np.zeros((model.n, model.n))
            table[:, kernel.codes] = kernel.probabilities
            own = float(information(states, table[None])[0])
            # each history is met once for every way to go on: take it once
            if not any(released[t:]):
                total, largest = total + chance * own, max(largest, own)
            likely, marginal = table[:, symbol], float(states[0] @ table[:, symbol])
            if marginal == 0:
                column = np.zeros(len(every))
                break
            with np.errstate(divide="ignore"):
                step = step + np.log(likely[every[:, t]] / marginal)
            column, chance = column * likely[every[:, t]], chance * marginal
            after, _ = filtering.condition(model, states, likely[None])
            states = filtering.predict(model, after)
        if column.any():
            columns.append(column)
            steps.append(step)
    return Stream(distribution, np.stack(columns, axis=1), np.stack(steps, axis=1), total, largest)


def ldp_composes() -> Figures:
    """Two ε-LDP releases: 2ε about the pair of events, and more than ε about the first one alone, where it lasts."""
    table = mechanisms.randomized_response.kernels(np.full((1, 2), 0.5), EPSILON).one(0).probabilities
    pair = np.einsum("ab,cd->acbd", table, table).reshape(4, 4)
    moves = STICKY.advance(np.eye(2))
    first = np.einsum("ab,ac,cd->abd", table, moves, table).reshape(2, 4)
    return {
        "of the pair, in ε": _ratio(pair) / EPSILON,
        "of the first event alone, in ε": _ratio(first) / EPSILON,
        "bound by temporal leakage, in ε": float(leakage(STICKY, [EPSILON, EPSILON])[2].max()) / EPSILON,
    }


def _ratio(table: np.ndarray) -> float:
    logs = np.log(table)
    return float((logs.max(0) - logs.min(0)).max())


def sip_composes() -> Figures:
    """Leakage of a stream of four at ε = 1 each, in sums of ε, where one symbol is rarer; and whether steps add up."""
    found: Figures = {}
    for name in ("optimal", "crr"):
        stream = enumerate_stream(UNEVEN, mechanisms.get(name), 1.0, LENGTH)
        found[f"{name}: leakage of the stream over Σε"] = stream.leakage / LENGTH
        found[f"{name}: sum of steps differs by at most"] = _tidy(np.abs(stream.lifts - stream.steps).max())
    even = enumerate_stream(INDEPENDENT, mechanisms.optimal, 1.0, LENGTH)
    found["optimal, fair independent bits: leakage over Σε"] = even.leakage / LENGTH
    return found


def mip_composes() -> Figures:
    """Information of a stream under kernels that see the present symbol and past releases only: it adds up exactly."""
    stream = enumerate_stream(STICKY, mechanisms.get("mutual_information"), 0.1, LENGTH)
    fair = np.array([[0.5, 0.5]])
    uniform = np.array([[[0.5, 0.0], [0.0, 0.5]], [[0.0, 0.5], [0.5, 0.0]]])  # Pr(Z, Z⊕X | X), Z a hidden fair coin
    each = max(float(information(fair, uniform.sum(axis)[None])[0]) for axis in (1, 2))
    return {
        "I(X;Y) of the stream": stream.joint_information,
        "Σ of its steps differs by at most": _tidy(abs(stream.joint_information - stream.information)),
        "largest step, ε = 0.1": stream.largest,
        "a hidden coin used twice: I of each release": _tidy(each),
        "a hidden coin used twice: I of both": float(information(fair, uniform.reshape(1, 2, 4))[0]),
    }


def _tidy(value: float) -> float:
    """A difference that is rounding only, as 0."""
    return 0.0 if value < 1e-9 else float(value)


def pufferfish_composes() -> Figures:
    """Quilt counts, one and two of them, for every event; and two releases that are private alone and not together."""
    model, length, epsilon = MIXING, 8, 1.0
    sigma = markov_quilt.scale(model, length, epsilon).sigma
    every = np.array(list(itertools.product((0, 1), repeat=length)))
    moves = model.advance(np.eye(2))
    distribution = model.initial[every[:, 0]] * np.prod(
        [moves[every[:, t - 1], every[:, t]] for t in range(1, length)], axis=0
    )
    # beyond the counts that can occur the ratios stay as they are
    noise = np.exp(-np.abs(np.arange(-1, length + 2)[None, :] - every.sum(1)[:, None]) / sigma)
    both = (noise[:, :, None] * noise[:, None, :]).reshape(len(every), -1)
    worst = {"one count": 0.0, "two counts": 0.0}
    for event in range(length):
        for name, table in (("one count", noise), ("two counts", both)):
            given = np.stack([distribution[every[:, event] == v] @ table[every[:, event] == v] for v in (0, 1)])
            given /= model.initial[:, None]  # the chain is in its stationary distribution: each event is even
            worst[name] = max(worst[name], _ratio(given))
    bits = np.array(list(itertools.product((0, 1), repeat=3)))
    one, two = bits[:, 0] ^ bits[:, 1], bits.sum(1) % 2
    return {
        "noise of the quilt, σ": sigma,
        **{f"{name}: leakage about an event, ε = 1": value for name, value in worst.items()},
        "X1⊕X2 of three fair bits: leakage about any bit": _about_a_bit(bits, one[:, None]),
        "X1⊕X2⊕X3: leakage about any bit": _about_a_bit(bits, two[:, None]),
        "both: leakage about a bit": _about_a_bit(bits, np.stack([one, two], axis=1)),
    }


def _about_a_bit(bits: np.ndarray, released: np.ndarray) -> float:
    """Largest log ratio of a release's probability between the two values of any of the bits."""
    worst = 0.0
    for bit, row in itertools.product(range(bits.shape[1]), np.unique(released, axis=0)):
        hit = (released == row).all(1)
        chances = sorted(hit[bits[:, bit] == value].mean() for value in (0, 1))
        worst = max(worst, math.inf if chances[0] == 0 else math.log(chances[1] / chances[0]))
    return worst


def guarantees(seed: int = 0) -> Figures:
    """The largest true leakage of one release over many beliefs, in ε; and of the mutual-information kernel."""
    beliefs = np.random.default_rng(seed).dirichlet(np.full(6, 0.5), 300)
    found: Figures = {}
    for name in ("randomized_response", "optimal", "crr"):
        kernels = mechanisms.get(name).kernels(beliefs, EPSILON, hamming())
        found[f"{name}: largest leakage over 300 beliefs, in ε"] = float(kernels.leakage(beliefs).max()) / EPSILON
    rare = np.array([[0.999, 0.001]])
    kernel = mechanisms.get("mutual_information").kernels(rare, 0.01, hamming())
    found["mutual_information: leakage at (.999, .001), ε = 0.01"] = float(kernel.leakage(rare)[0])
    return found


def correlation() -> Figures:
    """How much a kernel changes with the chain: total variation between its rows after the same release."""
    found: Figures = {}
    for name in ("randomized_response", "mutual_information", "optimal"):
        tables = []
        for model in (INDEPENDENT, STICKY):
            states = filtering.predict(model, np.array([[0.8, 0.2]]))
            kernel = mechanisms.get(name).kernels(states, EPSILON, hamming()).one(0)
            table = np.zeros((2, 2))
            table[:, kernel.codes] = kernel.probabilities
            tables.append(table)
        found[f"{name}: change"] = float(np.abs(tables[0] - tables[1]).sum(1).max()) / 2
    sigmas = [markov_quilt.scale(model, 50, 1.0).sigma for model in (INDEPENDENT, STICKY)]
    return found | {"quilt: σ for independent and for sticky events": sigmas}


def online() -> Figures:
    """Whether early releases stay as they are when later symbols change; and what a quilt must know beforehand."""
    codes = STICKY.sample(8, 1, seed=3)[0]
    changed = np.r_[codes[:4], 1 - codes[4:]]
    found: Figures = {}
    for name in ("randomized_response", "mutual_information", "optimal", "crr"):
        made = []
        for symbols in (codes, changed):
            many = CodeStreams(Policy(epsilon=EPSILON, mechanism=name).on(STICKY), randomness=SeededRandomness(1))
            made.append([int(many.release([0], s[None]).codes[0]) for s in symbols])
        found[f"{name}: early releases unchanged"] = made[0][:4] == made[1][:4]
    scales = {length: markov_quilt.scale(STICKY, length, 1.0).sigma for length in (5, 10, 20)}
    return found | {f"quilt: σ for a stream of {length}": sigma for length, sigma in scales.items()}
