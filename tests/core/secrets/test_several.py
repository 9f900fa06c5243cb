"""The dual simplex method for several windows, against the whole program, in both of its forms."""

from __future__ import annotations

import numpy as np
import pytest

from compiling import restored, use  # noqa: F401 -- it restores after every test
from reference.guarding import least_cost
from seqveil.core.bulk import form
from seqveil.core.secrets.several import fewer, least_for_all


def random_program(rng):
    """Masses of sources of a few symbols, and bounds that saying nothing keeps, some of them nearly alike."""
    n, rows = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    mass, own = rng.dirichlet(np.ones(n * rows)), np.tile(np.arange(n), rows)
    bounds = rng.uniform(-1.0, 1.0, (int(rng.integers(1, 6)), n * rows))
    if rng.random() < 0.5:
        bounds = np.concatenate([bounds, bounds[:1] + 1e-6 * rng.uniform(-1.0, 1.0, (8, n * rows))])
    mean = bounds @ mass
    return mass, own, bounds - np.maximum(mean + rng.choice([0.0, 0.1]), 0.0)[:, None], n


@pytest.mark.parametrize("joined", [False, True])
def test_the_least_cost_is_found_and_every_bound_is_kept_compiled_or_not(joined):
    rng, solved = np.random.default_rng(3), 0
    for _ in range(40):
        mass, own, bounds, n = random_program(rng)
        found, size = [], mass.size
        for translated in (False, True):
            use(translated)
            rows, table = bounds.copy(), np.zeros((size, n))
            given = (mass, own, rows, n, size) if translated else (mass.tolist(), own.tolist(), rows, n, size)
            count = form(fewer)(given[0], rows, size, len(bounds)) if joined else len(bounds)
            made = form(least_for_all)(*given, count, table)
            found.append((made, count, table))
        (made, count, plain), (again, as_many, translated) = found
        assert (made, count, plain.tolist()) == (again, as_many, translated.tolist())
        if made:
            moved, solved = plain, solved + 1
            assert moved.sum(1) == pytest.approx(mass, abs=1e-13)
            assert (bounds @ moved).max() <= 1e-13
            cost = mass.sum() - moved[np.arange(size), own].sum()
            best = least_cost(mass, bounds * mass, 1.0 - np.equal.outer(own, np.arange(n)))
            assert cost >= best - 1e-8
            assert joined or cost == pytest.approx(best, abs=1e-6)
    assert solved >= 38  # what is given up goes to another solver
