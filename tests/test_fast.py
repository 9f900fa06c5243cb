"""The compiled path gives numpy's releases, beliefs and accounts to the last bit, and leaves to numpy what it must."""

from __future__ import annotations

import os
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiling import restored  # noqa: F401 -- it restores after every test
from reference_streams import Rows
from seqveil import Budget, MarkovModel, Session, errors, mechanisms
from seqveil.core import fast
from seqveil.core.coins import SeededCoins
from seqveil.engine.policy import Policy
from seqveil.engine.terms import Terms

pytest.importorskip("numba", reason="the compiled path needs numba (pip install -e '.[fast]')")

NAMES = ("optimal", "crr", "randomized_response")


def compiled() -> None:
    fast._loaded = None
    assert fast.load()


def plain() -> None:
    fast._loaded = False


def random_model(seed: int) -> MarkovModel:
    rng = np.random.default_rng(seed)
    n = int(rng.choice([2, 3, 5, 8, 17, 40, 100]))
    if seed % 3 == 0:  # fitted, with back-off, of order one or two, perhaps with gaps
        streams = [rng.integers(0, n, 30).tolist() for _ in range(4)]
        return MarkovModel.fit(streams, order=1 + seed % 2, n=n, smoothing=[0.0, 0.7][seed // 3 % 2])
    law = rng.dirichlet(np.full(n, float(rng.choice([0.05, 0.5, 3.0]))), n)
    law[rng.random((n, n)) < (0.5 if seed % 3 == 1 else 0.0)] = 0.0
    law[np.arange(n), np.arange(n)] += 0.1
    return MarkovModel(rng.dirichlet(np.full(n, 0.5)), law / law.sum(1, keepdims=True))


def run(setting: Terms, codes: np.ndarray, seed: int) -> tuple[Rows, list]:
    fleet, coins = Rows(setting, codes.shape[1]), SeededCoins(seed)
    rows = np.arange(codes.shape[1])
    return fleet, [fleet.release(rows, event, coins) for event in codes]


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


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(NAMES),
    epsilon=st.sampled_from([1e-12, 1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 9.0]),
    users=st.sampled_from([1, 5, 63, 64, 65, 130]),
)
def test_same_as_numpy_to_the_last_bit(seed, name, epsilon, users):
    model = random_model(seed)
    setting = replace(
        Policy(epsilon=1.0, mechanism=name).on(model), epsilon=epsilon
    )  # also one that a person may not ask for
    codes = np.random.default_rng(seed).integers(0, model.n, (4, users))
    compiled()
    quick, quick_made = run(setting, codes, seed + 1)  # another seed than the symbols': equal ones go together
    plain()
    slow, slow_made = run(setting, codes, seed + 1)
    assert_same(quick.state, slow.state)
    for one, two in zip(quick_made, slow_made, strict=True):
        assert_same(one, two)
    for able in (compiled, plain):  # a receiver of either kind follows
        able()
        receiver = Rows(setting, users)
        for made in quick_made:
            assert_same(receiver.observe(np.arange(users), made.codes), made)
        assert_same(receiver.state, slow.state)


def test_uniform_and_certain_beliefs():
    beliefs = np.array([[0.25] * 4, [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 1e-300, 1.0]])
    truths, thrown = np.array([3, 2, 1, 0]), np.array([1 << 61, (1 << 62) - 1, 0, 5])
    compiled()
    for epsilon in (0.3, 1.0, 3.0):
        kernels = mechanisms.get("optimal").kernels(beliefs, epsilon)
        made = fast.release(
            mechanisms.get("optimal"),
            beliefs,
            epsilon,
            Policy(epsilon=0.5).on(MarkovModel([1.0, 0, 0, 0], np.eye(4))).distortion,
            truths,
            thrown,
        )
        drawn = kernels.pick(truths, thrown)
        done = np.setdiff1d(np.arange(4), made.left)
        assert np.array_equal(made.columns[done], kernels.column(drawn)[done])
        assert np.array_equal(made.codes[done], kernels.outputs[np.arange(4), drawn][done])


def test_a_kernel_out_of_bounds_is_left_to_the_exact_check(monkeypatch):
    """With bounds that no kernel keeps, every row is in doubt and goes through numpy: same releases, none unchecked."""
    model = random_model(1)
    setting = Policy(epsilon=1.0, mechanism="optimal").on(model)
    codes = np.random.default_rng(0).integers(0, model.n, (3, 70))
    plain()
    slow, _ = run(setting, codes, 3)
    compiled()
    numbers = fast.labels_and_bounds
    monkeypatch.setattr(fast, "labels_and_bounds", lambda e, n: (*numbers(e, n)[:2], (1.0, 1.0, 1.0)))
    beliefs = np.random.default_rng(1).dirichlet(np.ones(model.n), 9)
    made = fast.release(setting.mechanism, beliefs, 1.0, setting.distortion, given=np.zeros(9, np.int64))
    assert made.left.size == 9
    quick, _ = run(setting, codes, 3)
    assert_same(quick.state, slow.state)


def test_a_release_that_cannot_be_is_refused_alike():
    model = MarkovModel([0.7, 0.2, 0.1], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    setting = Policy(epsilon=0.2, mechanism="optimal").on(model)
    compiled()
    with pytest.raises(errors.DataError, match="cannot have come from"):
        Rows(setting, 2).observe(np.arange(2), np.array([0, 2]))


@pytest.mark.slow
def test_budgets_and_schedules_alike():
    model = random_model(2)
    codes = np.random.default_rng(5).integers(0, model.n, (12, 80))
    for options in (
        {"budget": 3.0},
        {"budget": Budget(total=4.0, when_spent="stop")},
        {"every": 3},
        {"budget": Budget(per_window=2.0, releases=3)},
    ):
        setting = Policy(epsilon=1.0, mechanism="optimal", **options).on(model)
        compiled()
        quick, quick_made = run(setting, codes, 9)
        plain()
        slow, slow_made = run(setting, codes, 9)
        assert_same(quick.state, slow.state)
        for one, two in zip(quick_made, slow_made, strict=True):
            assert_same(one, two)


def test_sessions_alike_and_switching_midway():
    model = random_model(4)
    symbols = np.random.default_rng(8).integers(0, model.n, 40).tolist()
    plain()
    alone = Session(model, epsilon=0.7, seed=3)
    want = [alone.release(s) for s in symbols]
    session = Session(model, epsilon=0.7, seed=3)
    got = [session.release(s) for s in symbols[:20]]
    compiled()
    got += [session.release(s) for s in symbols[20:]]
    assert got == want
    assert session.leakage == alone.leakage


def test_loads_itself_when_worth_it_and_can_be_switched_off(monkeypatch):
    monkeypatch.setattr(fast, "_kept", lambda: False)
    fast._loaded, fast._made = None, 0
    assert fast._code(fast.WORTH_IT - 1) is None
    monkeypatch.setenv("SEQVEIL_COMPILED", "0")
    assert not fast.load()
    monkeypatch.delenv("SEQVEIL_COMPILED")
    assert fast._code(1) is not None


def test_code_that_was_kept_is_used_from_the_first_release_on(monkeypatch):
    assert fast.load()
    monkeypatch.setattr(fast, "_kept", lambda: True)
    fast._loaded, fast._made = None, 0
    assert fast._code(1) is not None


def test_code_that_was_kept_waits_in_a_short_file_of_many_users(monkeypatch):
    assert fast.load()
    monkeypatch.setattr(fast, "_kept", lambda: True)
    fast._loaded, fast._made = None, 0
    assert fast._code(fast.WORTH_LOADING - 1) is None
    assert fast._code(2) is not None


def test_what_numba_keeps_is_found_and_old_code_is_not_taken_for_new(monkeypatch, tmp_path):
    monkeypatch.setattr(fast, "__file__", str(tmp_path / "core" / "fast.py"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = fast._kept.__wrapped__
    assert not asked()
    for folder in (tmp_path / "core" / "__pycache__", tmp_path / "kept" / "core_ab12"):
        folder.mkdir(parents=True)
        (tmp_path / "core" / "compiled.py").write_text("")
        kept = folder / "compiled.optimal-1.py311.nbi"
        kept.write_text("")
        os.utime(kept, (1, 1))
        assert not asked()
        os.utime(kept)
        assert asked()
        kept.unlink()


def test_code_that_disagrees_with_numpy_is_not_used(monkeypatch):
    from seqveil.core import compiled as _compiled

    class Off:
        """The compiled functions with one last bit changed."""

        LEFT, IMPOSSIBLE = _compiled.LEFT, _compiled.IMPOSSIBLE
        optimal, parts, truth_or_draw = _compiled.optimal, _compiled.parts, _compiled.truth_or_draw

        @staticmethod
        def update(*arguments):
            ruled_out = _compiled.update(*arguments)
            ahead = arguments[-4]
            ahead[:] = np.nextafter(ahead, 1.0)
            return ruled_out

    assert fast._agrees(_compiled)
    assert not fast._agrees(Off)
