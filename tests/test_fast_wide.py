"""Over many symbols, too, the compiled `optimal` gives numpy's very integers, or leaves the belief to numpy."""

from __future__ import annotations

import numpy as np
import pytest

from compiling import restored  # noqa: F401 -- it restores after every test
from seqveil import MarkovModel, errors, mechanisms
from seqveil.core import bulk, fast, filtering
from seqveil.core.alphabet import UNKNOWN
from seqveil.core.coins import SeededCoins
from seqveil.core.distortion import hamming
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.mechanisms import optimal
from seqveil.engine.policy import Policy
from seqveil.engine.state import State
from seqveil.engine.stream import observe, step

pytest.importorskip("numba", reason="the compiled path needs numba (pip install -e '.[fast]')")
USERS = 12


def beliefs_of(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Beliefs of one kind: nearly sure, spread out, with zeros, or with many ties."""
    laws = rng.dirichlet(np.full(n, {"sure": 0.002, "spread": 2.0}.get(kind, 0.2)), USERS) + 1e-300
    if kind == "zeros":
        laws[:, rng.random(n) < 0.6] = 0.0
    if kind == "ties":
        laws = np.round(laws, 3)
        laws[0] = 1.0
    laws[:, 3] += 1e-9
    return laws / laws.sum(1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("n", [129, 300, 2000])
@pytest.mark.parametrize("kind", ["sure", "spread", "zeros", "ties"])
def test_the_same_integers_as_numpy(n, kind):
    assert fast.load()
    rng, left = np.random.default_rng(n), 0
    for epsilon in (0.1, 1.0, 3.0, 5.0):
        beliefs = beliefs_of(kind, n, rng)
        truths, thrown = rng.integers(0, n, USERS), rng.integers(0, DENOMINATOR, USERS)
        made = fast.release(optimal, beliefs, epsilon, hamming(), truths, thrown)
        if made is None:
            assert 4 * mechanisms.optimum.columns(n, epsilon) + 1 >= n  # hardly fewer rows than symbols
            continue
        kernels = optimal.kernels(beliefs, epsilon)
        drawn = kernels.pick(truths, thrown)
        done = np.setdiff1d(np.arange(USERS), made.left)
        codes, columns = kernels.outputs[np.arange(USERS), drawn], kernels.column(drawn)
        assert (made.codes == codes)[done].all()
        assert (made.columns == columns)[done].all()
        told = fast.release(optimal, beliefs, epsilon, hamming(), given=codes)
        assert not told.impossible
        assert (told.columns == columns)[done].all()
        left += made.left.size
    assert left < USERS


@pytest.mark.slow
def test_streams_are_the_same_to_the_last_bit_and_can_be_read():
    rng = np.random.default_rng(4)
    model = MarkovModel.fit([rng.zipf(1.5, 300) % 1100 for _ in range(6)], n=1100, smoothing=0.5)
    setting, found = Policy(epsilon=2.0).on(model), []
    truths = rng.integers(0, model.n, (8, 5))
    for loaded in (False, True):
        fast._loaded = False
        assert not loaded or (setattr(fast, "_loaded", None) or fast.load())
        state, coins, made = State.start(setting, 5), SeededCoins(9), []
        for codes in truths:
            released, state = step(setting, state, codes, coins)
            made.append(released.codes)
        found.append((np.array(made), state))
    (plain, before), (quick, after) = found
    assert (plain == quick).all()
    assert np.array_equal(before.states, after.states)
    assert np.array_equal(before.account.most, after.account.most)
    read = State.start(setting, 5)
    for codes in quick:
        _, read = observe(setting, read, codes)
    assert np.array_equal(read.states, after.states)


def test_a_release_that_cannot_have_been_made_is_refused():
    assert fast.load()
    model = MarkovModel.fit([np.arange(400)], n=400, smoothing=1.0)
    setting = Policy(epsilon=1.0).on(model)
    state = State.start(setting, 1)
    likely = optimal.kernels(filtering.symbols(model, state.states), 1.0).outputs[0]
    with pytest.raises(errors.DataError, match="cannot have come from this mechanism"):
        observe(setting, state, np.setdiff1d(np.arange(400), likely)[:1])


@pytest.mark.slow
def test_laws_of_large_chains_do_not_depend_on_who_else_is_led_on():
    rng = np.random.default_rng(1)
    for n in (40, 1500):
        model = MarkovModel.fit([rng.integers(0, n, 3000)], n=n, smoothing=1.0)
        laws = rng.dirichlet(np.full(n, 0.1), 20)
        assert np.array_equal(model.advance(laws), np.concatenate([model.advance(law[None]) for law in laws]))
        dense = model.chain.toarray() + model.backoff[:, None] * np.bincount(model.base_state, model.base, n)
        assert np.allclose(model.advance(laws), laws @ dense, atol=1e-15)
        assert np.allclose(filtering.pull(model, laws), laws @ dense.T, atol=1e-15)


@pytest.mark.parametrize("users", [1, 4, 5, 8, 21])
@pytest.mark.parametrize("order", [1, 2])
def test_laws_are_led_on_and_back_to_the_last_bit_however_many_go_together(users, order):
    rng = np.random.default_rng(users)
    n = 1200 if order == 1 else 130
    model = MarkovModel.fit([rng.zipf(1.4, 3000) % n], order, n=n, smoothing=0.3 * order - 0.3)
    laws = rng.dirichlet(np.full(model.size, 0.1), users)
    laws[:, 5] = 0.0
    laws[-1] = 1.0 / model.size
    columns = rng.integers(1, DENOMINATOR >> 4, (users, model.n))
    found = []
    for loaded in (False, None):
        fast._loaded = loaded
        assert loaded is False or fast.load()
        found.append((*filtering.move(model, laws, columns), filtering.pull(model, laws)))
    quick = fast.update(model, laws, columns)
    assert quick is not None
    (ahead, marginal, back), (_, _, again) = found
    assert np.array_equal(quick[0], ahead) or model.barely or filtering.faint(ahead).any()
    assert np.array_equal(quick[1], marginal)
    assert np.array_equal(back, again)
    weights = columns[:, model.newest]
    assert np.array_equal(quick[2], np.where(laws > 0, weights, DENOMINATOR).min(1))
    assert np.array_equal(quick[3], np.where(laws > 0, weights, 0).max(1))


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    assert fast.load()
    rng = np.random.default_rng(6)
    model = MarkovModel.fit([rng.zipf(1.5, 2000) % 1100], n=1100, smoothing=0.5)
    setting, found = Policy(epsilon=2.0).on(model), []
    truths = rng.integers(0, model.n, (2, 300))
    truths[:, 7] = UNKNOWN  # a value outside the alphabet
    for count in (1, 3):
        monkeypatch.setattr(bulk, "threads", lambda count=count: count)
        state, coins, made = State.start(setting, 300), SeededCoins(9), []
        for codes in truths:
            released, state = step(setting, state, codes, coins)
            made.append(released.codes)
        found.append((np.array(made), state.states, state.account.most))
    for one, three in zip(*found, strict=True):
        assert np.array_equal(one, three)
