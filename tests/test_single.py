"""One symbol in plain numbers is released as by numpy, to the last bit, and what is in doubt is left to numpy."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiling import (
    restored,  # noqa: F401 -- it restores after every test
    use,
)
from seqveil import Budget, MarkovModel, Session, errors
from seqveil.core import fast, single
from seqveil.core.distortion import hamming
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.mechanisms import optimal
from seqveil.engine import stream

# made before there was another way than numpy's and the compiled one
STORED = [1, 12, 8, 13, 13, 12, 12, 12, 12, 5, 4, 4, 5, 8, 7, 10, 2, 7, 2, 3, 4, 4, 5, 5]


def near_model(n: int = 17) -> MarkovModel:
    """A chain that goes to near symbols more often, and anywhere at times."""
    places = np.arange(n)
    rows = 1.0 / (1.0 + (places[:, None] - places[None, :]) ** 2)
    return MarkovModel(np.full(n, 1 / n), rows / rows.sum(1, keepdims=True))


def belief_of(rng: np.random.Generator, n: int, kind: str) -> np.ndarray:
    law = rng.dirichlet(np.full(n, float(rng.choice([0.03, 0.3, 3.0]))))
    if kind == "ties":
        law = np.round(law * 8)
    if kind == "holes":
        law[rng.random(n) < 0.5] = 0.0
    law = np.ones(n) if kind == "even" or not law.sum() else law
    return law / law.sum()


def by_numpy(belief: np.ndarray, epsilon: float, truth: int, coin: int) -> tuple[int, list[int]]:
    kernels = optimal.kernels(belief[None], epsilon, hamming())
    drawn = kernels.pick(np.array([truth]), np.array([coin]))
    return int(kernels.outputs[0, drawn[0]]), kernels.column(drawn)[0].tolist()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    n=st.sampled_from([2, 3, 5, 8, 17, 40]),
    epsilon=st.sampled_from([1e-3, 0.1, 0.5, 1.0, 2.0, 4.0]),
    kind=st.sampled_from(["any", "ties", "holes", "even"]),
)
def test_same_release_and_column_as_numpy(seed, n, epsilon, kind):
    rng = np.random.default_rng(seed)
    belief, numbers = belief_of(rng, n, kind), fast.labels_and_bounds(epsilon, n)
    truth = int(rng.integers(n))
    for coin in (0, DENOMINATOR - 1, int(rng.integers(DENOMINATOR))):
        found = single.optimal(belief, *numbers, truth, coin)
        if found is not None:  # else it is numpy that releases
            assert found == by_numpy(belief, epsilon, truth, coin)
            assert single.optimal(belief, *numbers, 0, 0, given=found[0]) == found


def test_every_coin_on_a_border_picks_what_numpy_picks():
    belief = belief_of(np.random.default_rng(3), 6, "any")
    numbers = fast.labels_and_bounds(1.0, 6)
    row = optimal.kernels(belief[None], 1.0, hamming()).one(0).weights[2].tolist()
    for border in accumulate(row[:-1]):
        for coin in (border - 1, border):
            assert single.optimal(belief, *numbers, 2, coin) == by_numpy(belief, 1.0, 2, coin)


def test_a_table_out_of_bounds_is_left_to_the_exact_check():
    belief = belief_of(np.random.default_rng(0), 5, "any")
    width, numbers, _ = fast.labels_and_bounds(1.0, 5)
    assert single.optimal(belief, width, numbers, (1.0, 1.0, 1.0), 0, 0) is None


def test_a_release_that_cannot_be_is_refused():
    use(compiled=False)
    model = MarkovModel([0.7, 0.2, 0.1], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    setting = Session(model, epsilon=0.2).setting
    with pytest.raises(errors.DataError, match="cannot have come from"):
        stream.observe(setting, stream.State.start(setting), np.array([2]))


def test_a_session_releases_what_it_always_did():
    use(compiled=False)
    session = Session(near_model(), epsilon=1.0, seed=5)
    assert [session.release((3 * t * t + t) % 17) for t in range(24)] == STORED


NO_TWO = MarkovModel([0.6, 0.4, 0.0], np.full((3, 3), 1 / 3))  # its first symbol is never 2


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (near_model(9), {}),
        (near_model(9), {"budget": 6.0}),
        (near_model(9), {"every": 3}),
        (near_model(9), {"budget": Budget(total=3.0, when_spent="stop")}),
        (NO_TWO, {}),
    ],
)
def test_beliefs_and_accounts_are_those_of_numpy(model, options, monkeypatch):
    use(compiled=False)
    symbols = [(5 * t) % model.n for t in range(12)]
    plain = Session(model, epsilon=0.9, seed=2, **options)
    made = [plain.release(x) for x in symbols]
    monkeypatch.setattr(fast, "_alone", lambda *of: None)
    monkeypatch.setattr(fast, "_moved", lambda *of: None)
    other = Session(model, epsilon=0.9, seed=2, **options)
    assert [other.release(x) for x in symbols] == made
    assert other.belief.tobytes() == plain.belief.tobytes()
    assert other.account == plain.account
