"""Pulses, which blocks took the place of: m·ε at every m-th event and the best guess in between, for comparison."""

from __future__ import annotations

import numpy as np

from seqveil import MarkovModel
from seqveil.core import filtering
from seqveil.core.kernel import Ints
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import stream
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State, skipped


def pulsed(model: MarkovModel, truth: Ints, epsilon: float, every: int, seed: int = 7) -> tuple[Ints, Ints]:
    """What `optimal` releases of streams side by side (B, T), and the receiver's best guess after each event."""
    setting, randomness = Policy(epsilon=epsilon * every, mechanism="optimal").on(model), SeededRandomness(seed)
    state, released, guesses = State.start(setting, len(truth)), [], []
    for t, codes in enumerate(truth.T):
        beliefs = filtering.symbols(model, state.states)
        if t % every:
            state = skipped(setting, state)
            released.append(setting.distortion.best_guess(beliefs))
        else:
            made, state = stream.step(setting, state, codes, randomness)
            beliefs = beliefs * made.columns
            released.append(made.codes)
        guesses.append(beliefs.argmax(1))
    return np.stack(released, axis=1), np.stack(guesses, axis=1)
