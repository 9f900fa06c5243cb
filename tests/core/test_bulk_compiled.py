"""Compiled or plain, the same code gives the same integers, beliefs and accounts to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiling import restored, use  # noqa: F401 -- it restores after every test
from reference.mixtures import mixture
from reference.streams import Rows
from seqveil import MarkovModel, errors
from seqveil.core import bulk, filtering
from seqveil.core.distortion import hamming
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.mechanisms import closed_form, optimal, randomized_response
from seqveil.core.mechanisms.base import Asked
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import stream
from seqveil.engine.policy import Policy, Terms
from seqveil.engine.stream import State

pytest.importorskip("numba", reason="compiled forms need numba (pip install -e '.[fast]')")

KINDS = ("any", "sure", "ties", "holes", "even")


def beliefs_of(rng: np.random.Generator, users: int, n: int, kind: str) -> np.ndarray:
    """Beliefs of one kind: any, nearly sure, with many ties, with zeros, or all alike."""
    distributions = rng.dirichlet(np.full(n, 0.003 if kind == "sure" else float(rng.choice([0.03, 0.3, 3.0]))), users)
    if kind == "ties":
        distributions = np.round(distributions * 8)
    if kind == "holes":
        distributions[:, rng.random(n) < 0.5] = 0.0
    distributions[distributions.sum(1) == 0] = 1.0
    distributions = np.ones((users, n)) if kind == "even" else distributions
    return distributions / distributions.sum(1, keepdims=True)


def random_model(seed: int) -> MarkovModel:
    rng = np.random.default_rng(seed)
    n = int(rng.choice([2, 3, 5, 8, 17, 40, 100]))
    if seed % 3 == 0:  # fitted, with back-off, of order one or two, perhaps with gaps
        streams = [rng.integers(0, n, 30).tolist() for _ in range(4)]
        return MarkovModel.fit(streams, order=1 + seed % 2, alphabet=range(n), smoothing=[0.0, 0.7][seed // 3 % 2])
    if seed % 6 == 5:  # types of people, who switch now and then
        n = min(n, 17)
        parts = [MarkovModel(rng.dirichlet(np.ones(n)), rng.dirichlet(np.full(n, 0.5), n)) for _ in range(9)]
        return mixture(parts, rng.dirichlet(np.ones(9)), float(rng.choice([0.0, 1e-3])))
    distribution = rng.dirichlet(np.full(n, float(rng.choice([0.05, 0.5, 3.0]))), n)
    distribution[rng.random((n, n)) < (0.5 if seed % 3 == 1 else 0.0)] = 0.0
    distribution[np.arange(n), np.arange(n)] += 0.1
    return MarkovModel(rng.dirichlet(np.full(n, 0.5)), distribution / distribution.sum(1, keepdims=True))


def run(setting: Terms, codes: np.ndarray, seed: int) -> tuple[Rows, list]:
    fleet, randomness = Rows(setting, codes.shape[1]), SeededRandomness(seed)
    rows = np.arange(codes.shape[1])
    return fleet, [fleet.release(rows, event, randomness) for event in codes]


def assert_same(one: object, two: object) -> None:
    """Every array of two records is the same to the last bit."""
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if isinstance(a, np.ndarray):
            assert np.array_equal(a, b, equal_nan=True), field.name
        elif a is None or isinstance(a, int):
            assert a == b, field.name
        else:
            assert_same(a, b)


def tables(beliefs: np.ndarray, epsilon: float) -> list:
    """What is released of each belief for some symbols and randomness, and all of its table."""
    rng, (users, n) = np.random.default_rng(len(beliefs)), beliefs.shape
    asked = Asked(rng.integers(0, n, users), rng.integers(0, DENOMINATOR, users))
    made = optimal.release(beliefs, epsilon, hamming(), asked)
    stack, _ = closed_form.solve(beliefs, epsilon)
    assert made is not None
    again = optimal.release(beliefs, epsilon, hamming(), Asked(given=made.codes))
    done = np.setdiff1d(np.arange(users), made.left)
    assert (again.columns[done] == made.columns[done]).all()
    kernels = optimal.kernels(beliefs, epsilon)  # the very integers of the table that was drawn from
    drawn = kernels.pick(asked.truths, asked.randomness)
    assert (kernels.column(drawn)[done] == made.columns[done]).all()
    assert (kernels.outputs[np.arange(users), drawn][done] == made.codes[done]).all()
    return [made.left, made.codes[done], made.columns[done], stack.outputs, stack.base, stack.extra, stack.rows]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    n=st.sampled_from([2, 3, 5, 8, 17, 40, 129, 2000]),
    epsilon=st.sampled_from([1e-3, 0.1, 0.5, 1.0, 3.0, 5.0]),
    kind=st.sampled_from(KINDS),
)
def test_tables_are_the_same_integers(seed, n, epsilon, kind):
    beliefs, found = beliefs_of(np.random.default_rng(seed), 5, n, kind), []
    for translated in (True, False):
        use(translated)
        found.append(tables(beliefs, epsilon))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("translated", [True, False])
def test_every_uniform_on_a_border_picks_what_the_kernel_says(translated):
    use(translated)
    belief = beliefs_of(np.random.default_rng(3), 1, 6, "any")
    kernels = optimal.kernels(belief, 1.0)
    extra, base = kernels.extra[0, kernels.rows[0, 2]].tolist(), kernels.base[0].tolist()
    border = 0
    for weight in (*extra, *base):
        for uniform in (border, border + weight - 1) if weight else ():
            asked = Asked(np.array([2]), np.array([uniform]))
            made = optimal.release(belief, 1.0, hamming(), asked)
            drawn = kernels.pick(asked.truths, asked.randomness)
            assert made.codes[0] == kernels.outputs[0, drawn[0]]
            assert (made.columns == kernels.column(drawn)).all()
        border += weight
    assert border == DENOMINATOR


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(["optimal", "crr", "balanced", "randomized_response"]),
    epsilon=st.sampled_from([1e-12, 1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 9.0]),
    users=st.sampled_from([1, 5, 8, 9, 21]),
)
def test_streams_are_the_same_to_the_last_bit(seed, name, epsilon, users):
    model = random_model(seed)
    setting = replace(
        Policy(epsilon=1.0, mechanism=name).on(model), epsilon=epsilon
    )  # also one that a person may not ask for
    codes = np.random.default_rng(seed).integers(0, model.n, (4, users))
    use(True)
    quick, quick_made = run(setting, codes, seed + 1)  # another seed than the symbols': equal ones go together
    use(False)
    slow, slow_made = run(setting, codes, seed + 1)
    assert_same(quick.state, slow.state)
    for one, two in zip(quick_made, slow_made, strict=True):
        assert_same(one, two)
    for translated in (True, False):  # a receiver of either kind follows
        use(translated)
        receiver = Rows(setting, users)
        for made in quick_made:
            assert_same(receiver.observe(np.arange(users), made.codes), made)
        assert_same(receiver.state, slow.state)


@pytest.mark.parametrize("translated", [True, False])
def test_a_table_out_of_bounds_is_left_to_the_exact_check(monkeypatch, translated):
    """With bounds that no table keeps, every row is in doubt and made and checked as a kernel: none goes unchecked."""
    use(translated)
    setting = Policy(epsilon=1.0, mechanism="optimal").on(random_model(1))
    codes = np.random.default_rng(0).integers(0, setting.model.n, (3, 20))
    plain, _ = run(setting, codes, 3)
    numbers = closed_form.labels_and_bounds
    monkeypatch.setattr(closed_form, "labels_and_bounds", lambda e, n: (*numbers(e, n)[:2], (1.0, 1.0, 1.0)))
    beliefs = np.random.default_rng(1).dirichlet(np.ones(setting.model.n), 9)
    made = optimal.release(beliefs, 1.0, hamming(), Asked(given=np.zeros(9, np.int64)))
    assert made.left.size == 9
    checked, _ = run(setting, codes, 3)
    assert_same(plain.state, checked.state)


@pytest.mark.parametrize("translated", [True, False])
@pytest.mark.parametrize("n", [5, 400])
def test_a_release_that_cannot_be_is_refused(translated, n):
    use(translated)
    model = MarkovModel.fit([np.repeat(np.arange(n), 2)], alphabet=range(n), smoothing=1.0)
    setting = Policy(epsilon=0.2, mechanism="optimal").on(model)
    state = State.start(setting, 1)
    likely = optimal.kernels(filtering.symbols(model, state.states), 0.2).outputs[0]
    with pytest.raises(errors.DataError, match="cannot have come from"):
        stream.observe(setting, state, np.setdiff1d(np.arange(n), likely)[:1])


def test_responses_are_those_of_their_kernels():
    rng, n = np.random.default_rng(2), 5
    beliefs = np.full((400, n), 1 / n)
    asked = Asked(rng.integers(0, n, 400), rng.integers(0, DENOMINATOR, 400))
    made = randomized_response.release(beliefs, 1.0, hamming(), asked)
    kernels = randomized_response.kernels(beliefs, 1.0)
    drawn = kernels.pick(*asked[:2])
    assert (made.codes == drawn).all()
    assert (made.columns == kernels.column(drawn)).all()


def chain(n: int, order: int, smoothing: float, rng: np.random.Generator) -> MarkovModel:
    """A sparse chain that visits every symbol."""
    return MarkovModel.fit(
        [np.append(rng.permutation(n), rng.integers(0, n, 2 * n))], order, alphabet=range(n), smoothing=smoothing
    )


@pytest.mark.parametrize(("n", "order"), [(5, 1), (129, 1), (1031, 1), (40, 2)])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_beliefs_are_moved_on_and_back_as_by_numpy_however_many_go_together(n, order, smoothing):
    rng = np.random.default_rng(n)
    model = chain(n, order, smoothing, rng)
    distributions = rng.dirichlet(np.full(model.size, 0.5), 17)
    distributions[:, 2] = 0.0
    weights = rng.integers(1, DENOMINATOR >> 8, (17, n))
    use(False)
    back = filtering.pull(model, distributions)
    for columns in (weights, weights / weights.max(1, keepdims=True)):
        use(False)
        posterior, marginal = filtering.condition(model, distributions, columns)
        wanted = model.advance(posterior)
        wanted /= filtering.total(wanted)[:, None]
        use(True)
        for users in (1, 4, 5, 8, 9, 13, 17):
            found = filtering.move_compiled(model, distributions[:users], columns[:users])
            assert (found is None) == (model.size > bulk.NARROW and 2 * users <= filtering.SIDE)
            if found is not None:
                assert (found[0] == wanted[:users]).all()
                assert (found[1] == marginal[:users]).all()
            assert (filtering.pull(model, distributions[:users]) == back[:users]).all()
    dense = model.chain.toarray() + model.backoff[:, None] * np.bincount(model.base_state, model.base, model.size)
    assert np.allclose(model.advance(distributions), distributions @ dense, atol=1e-15)
    assert np.allclose(back, distributions @ dense.T, atol=1e-15)


@pytest.mark.slow
def test_a_belief_that_ruled_its_release_out_is_left_to_numpy():
    use(True)
    model = MarkovModel([1.0, 0.0], [[0.5, 0.5], [0.5, 0.5]])
    assert filtering.move_compiled(model, model.initial[None], np.array([[0, 1]])) is None


@pytest.mark.slow
def test_loads_itself_when_worth_it_and_can_be_switched_off():
    """In processes of their own: how many releases there were is of a process."""
    script = "from seqveil.core import bulk as c; print(c.ready(c.WORTH_LOADING - 1), c.ready(c.WORTH_IT), c.load())"
    for switch, found in (("1", "False True True"), ("0", "False False False")):
        environment = os.environ | {"SEQVEIL_COMPILED": switch}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.stdout.split() == found.split(), done.stderr


@pytest.mark.slow
def test_compiling_is_heard_and_what_was_kept_is_not(tmp_path):
    script = (
        "from seqveil.core import bulk as c; h = []; _ = c._listening.append(h.append); c.load(); print(h.count(0) > 0)"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    for found in ("True", "False"):
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.stdout.split() == [found], done.stderr
