"""Secrets kept on maps of many cells: rare cells share the row of the nearest likely one, and every bound holds."""

from __future__ import annotations

import numpy as np
import pytest

from reference_guarding import Guarded, bounds_of
from seqveil import Grid, MarkovModel, Setting, Streams, secrets
from seqveil.core.coins import SeededCoins
from seqveil.core.distortion import Distortion, euclidean, hamming
from seqveil.core.secrets import solving
from seqveil.core.secrets.bounds import Bounds


def square(size: int) -> Distortion:
    places = np.stack(np.meshgrid(np.arange(size), np.arange(size)), axis=-1).reshape(-1, 2)
    return euclidean(places.astype(np.float64))


def bounded(n: int, windows: int, seed: int, broad: float = 0.15, epsilon: float = 0.7) -> Bounds:
    """Bounds of a few windows that symbols tell about more or less, none of which has been told about."""
    rng = np.random.default_rng(seed)
    belief = rng.dirichlet(np.full(n, broad)) + 1e-6
    belief /= belief.sum()
    sigma = np.clip(rng.beta(0.3, 0.9, size=(windows, n)), 1e-3, 1 - 1e-3)
    weights, prior = np.stack([1 - sigma, sigma], axis=1), np.stack([(1 - sigma) @ belief, sigma @ belief], axis=1)
    return bounds_of([(belief, Guarded(np.arange(windows), weights, prior, epsilon, "both", 0.0))], belief)


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_rare_cells_cost_little_and_every_bound_is_kept(
    windows: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds, distance = bounded(100, windows, seed), square(10)
    made = solving.guarded(bounds, distance)
    assert made.keeps(bounds)
    assert (made.full().sum(1) == 2**62).all()
    monkeypatch.setattr(solving, "NEAR", 100)
    whole = solving.guarded(bounds, distance)
    assert whole.bound - 1e-6 <= whole.error <= made.error + 1e-6
    assert made.error <= 1.12 * whole.error


@pytest.mark.parametrize("windows", [1, 2])
def test_wrong_symbols_of_many_kinds_share_one_more_row(windows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "SMALL", 16)
    monkeypatch.setattr(solving, "LABELS", 8)
    for seed in range(3):
        bounds = bounded(40, windows, seed)
        made = solving.guarded(bounds, hamming())
        assert made.keeps(bounds)
        assert (made.full().sum(1) == 2**62).all()


def test_a_belief_in_one_cell_and_one_in_all_alike() -> None:
    distance = square(12)
    for broad in (1e-3, 1e3):
        bounds = bounded(144, 2, 5, broad)
        assert solving.guarded(bounds, distance).keeps(bounds)


@pytest.mark.slow
def test_a_zone_of_a_map_is_kept_event_by_event() -> None:
    rng, grid = np.random.default_rng(2), Grid.regular(9, 9, bounds=(0.0, 9.0, 0.0, 9.0))
    walks = np.clip(np.cumsum(rng.integers(-1, 2, size=(30, 40, 2)), axis=1) + 4, 0, 8) + 0.5
    model = MarkovModel.fit([list(map(tuple, walk.tolist())) for walk in walks], alphabet=grid)
    kept = secrets.zone(centre=(4.5, 4.5), radius=0.8, epsilon=0.8, window=4)
    setting = Setting.of(model, "guarded", None, "euclidean", secrets=kept)
    streams = Streams(setting, coins=SeededCoins(3))
    for t in range(4):
        streams.release(np.arange(2), grid.encode(list(map(tuple, walks[:2, t].tolist()))))
    assert streams.secrets()[0].log_odds_worst <= 0.8
