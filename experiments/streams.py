"""Release real or generated streams by a mechanism, and measure what arrives: as released, and after the decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.generated import Dataset
from seqveil import MarkovModel
from seqveil.core.distortion import Distortion
from seqveil.core.mechanisms import BatchMechanism, find
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches
from seqveil.engine.policy import Terms
from seqveil.engine.stream import State
from seqveil.engine.streams import CodeStreams
from seqveil.receiver.decode import decode_codes

Codes = np.ndarray
TOGETHER = 5_000_000  # numbers of a table of distributions that may be in memory at once


def hold_out(data: Dataset, length: int, count: int, seed: int) -> tuple[Codes, list[Any]]:
    """The first `length` symbols of `count` people's streams drawn at random, and the people left to fit a model to."""
    lengths = data.index["length"].to_numpy()
    able = np.flatnonzero(lengths >= length)
    chosen = np.sort(np.random.default_rng(seed).choice(able, min(count, max(1, len(able) // 2)), replace=False))
    begins, values = np.cumsum(lengths) - lengths, data.streams["value"].to_numpy()
    truth = np.stack([values[begins[k] : begins[k] + length] for k in chosen]).astype(np.int64)
    people = data.index["person"].to_numpy()
    rest = np.setdiff1d(people, people[chosen])
    return truth, rest.tolist()


def rarer_order(data: Dataset) -> float:
    """Share of steps between two different symbols that go the rarer way of the two; 0 for sets in a fixed order."""
    value, stream, n = (
        data.streams["value"].to_numpy().astype(np.int64),
        data.streams["user"].to_numpy(),
        data.alphabet.n,
    )
    step = (stream[1:] == stream[:-1]) & (value[1:] != value[:-1])
    a, b = value[:-1][step], value[1:][step]
    pairs, counts = np.unique(a * n + b, return_counts=True)
    back = (pairs % n) * n + pairs // n
    place = np.minimum(np.searchsorted(pairs, back), len(pairs) - 1)
    reverse = np.where(pairs[place] == back, counts[place], 0)
    return float(np.minimum(counts, reverse).sum() / 2 / counts.sum())


def largest(mechanism: str) -> float:
    """The most ε that one release or batch may have."""
    return find(mechanism).largest


def release(setting: Terms, truth: Codes, seed: int, decode: bool = True) -> dict[str, Any]:
    """Released and best guesses in hindsight for streams (B, T), and the largest true leakage of a stream."""
    if isinstance(setting.mechanism, BatchMechanism):
        return _in_batches(setting, truth, seed, decode)
    many, rows = CodeStreams(setting, randomness=SeededRandomness(seed)), np.arange(len(truth))
    made = np.stack([many.release(rows, symbols).codes for symbols in truth.T], axis=1)
    found: dict[str, Any] = {"released": made, "leakage": float(many.accounts().leakage.max())}
    if decode:
        together = max(1, TOGETHER // (made.shape[1] * setting.model.size))
        parts = [made[k : k + together] for k in range(0, len(made), together)]
        found["hindsight"] = np.concatenate([setting.distortion.best_guess(decode_codes(setting, p)) for p in parts])
    return found


def _in_batches(setting: Terms, truth: Codes, seed: int, decode: bool) -> dict[str, Any]:
    made, late, randomness, leakage = np.empty_like(truth), np.empty_like(truth), SeededRandomness(seed), 0.0
    for row, codes in enumerate(truth):
        state, sent = State.start(setting), []
        for begin in range(0, len(codes), setting.batch):
            part = codes[begin : begin + setting.batch]
            # a short last batch has the budget of its own symbols only
            own = replace(setting, epsilon=setting.epsilon * len(part) / setting.batch)
            one, state = batches.step(own, state, part, randomness)
            sent.append(one)
        made[row] = np.concatenate([one.codes for one in sent])
        if decode:
            late[row] = setting.distortion.best_guess(batches.smooth(setting, sent))
        leakage = max(leakage, float(state.account.worst[0]))
    return {"released": made, "leakage": leakage} | ({"hindsight": late} if decode else {})


def errors(truth: Codes, found: dict[str, Any], distortion: Distortion) -> dict[str, Any]:
    """Mean cost of each way to read the releases, with the half-width of its 95 % interval over streams."""
    out: dict[str, Any] = {"leakage": found["leakage"]}
    for way in ("released", "hindsight"):
        if way in found:
            each = distortion.between(truth, found[way]).mean(1)
            out[way] = float(each.mean())
            out[f"{way}_ci"] = float(1.96 * each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else 0.0
    return out


def restricted_response(model: MarkovModel, truth: Codes, epsilon: float, seed: int) -> Codes:
    """The paper's "temporal LDP": randomised response over the symbols that can follow the *true* previous one.

    The support is chosen by raw data, so this is not LDP: where the support is small it gives the place away. It is
    here to be compared with. The chain is of order 1; a symbol that never followed is added to the support.
    """
    rng, made = np.random.default_rng(seed), truth.copy()
    chain = model.chain
    for row, codes in enumerate(truth):
        for t, symbol in enumerate(codes):
            able = (
                np.arange(model.n)
                if t == 0
                else chain.indices[chain.indptr[codes[t - 1]] : chain.indptr[codes[t - 1] + 1]]
            )
            others = able[able != symbol]
            if rng.random() >= np.exp(epsilon) / (np.exp(epsilon) + len(others)):
                made[row, t] = others[rng.integers(len(others))]
    return made
