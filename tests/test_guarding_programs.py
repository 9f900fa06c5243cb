"""The programs behind `guarded` for models with many types: nearly all of their vertices fall together."""

from __future__ import annotations

import numpy as np
import pytest

from seqveil import MarkovModel, Setting, Streams, secrets
from seqveil.core import programs
from seqveil.core.coins import SeededCoins


def types(seed: int, size: int = 12, count: int = 12) -> MarkovModel:
    """A mixture of chains that each like to stay where they are."""
    rng = np.random.default_rng(seed)
    chains = []
    for _ in range(count):
        table = rng.dirichlet(np.full(size, 0.15), size=size) + 0.6 * np.eye(size) + 1e-3
        table /= table.sum(1, keepdims=True)
        chains.append(MarkovModel(rng.dirichlet(np.full(size, 0.5)), table))
    return MarkovModel.mixture(chains, rng.dirichlet(np.ones(count)))


def released(model: MarkovModel, seed: int, users: int, length: int) -> tuple[np.ndarray, Streams]:
    setting = Setting.of(model, "guarded", secrets=[secrets.ever(0, window=20, epsilon=0.5)])
    streams, raw = Streams(setting, coins=SeededCoins(seed)), model.sample(length, users, seed=seed)
    told = [streams.release(np.arange(users), raw[:, t]).codes for t in range(length)]
    return np.stack(told, axis=1), streams


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_program_of_a_mixture_is_solved(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, gaps, solve = [], list[float](), programs.bounded

    def watched(*given: np.ndarray) -> programs.Solution:
        asked.append(given)
        found = solve(*given)  # raises where it is not solved
        gaps.append(found.error - found.bound)
        return found

    monkeypatch.setattr(programs, "bounded", watched)
    _, streams = released(types(seed), seed, users=8, length=20)
    assert len(gaps) == len(asked) > 50
    assert max(gaps) < 5e-3
    assert streams.secrets()[0].log_odds_worst <= 0.5


@pytest.mark.slow
def test_a_program_that_does_not_end_is_given_up_and_the_secret_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "ITERATIONS", 0)
    codes, streams = released(types(0), 0, users=4, length=12)
    assert codes.shape == (4, 12)
    assert streams.secrets()[0].log_odds_worst <= 0.5
