"""MarkovModel: counts against brute force, the sparse distribution against dense matrices, refusals."""

import contextlib
import itertools
import json
import math
import os
import pickle
from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

import seqveil as sv
from reference.batches import transitions
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import DataError, InputError, ModelError, UnknownSymbol
from seqveil.core.fitting import fit_codes
from seqveil.core.model import MarkovModel

STICKY = [[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.0, 0.5, 0.5]]


def random_streams(seed, n, users=8, longest=9):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, n, rng.integers(1, longest + 1)).tolist() for _ in range(users)]


streams_of_codes = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.lists(st.integers(0, n - 1), min_size=1, max_size=8), min_size=1, max_size=6)
    )
)
cases = st.tuples(streams_of_codes, st.integers(1, 3), st.sampled_from([0.0, 0.3, 2.0]))


def fitted(case):
    (n, streams), order, smoothing = case
    return MarkovModel.fit(streams, order=order, alphabet=range(n), smoothing=smoothing)


def counted_probability(streams, n, order, smoothing, sequence):
    """Brute force: Pr(sequence), summing over where back-offs happened (they shorten the context)."""
    events = [x for stream in streams for x in stream]
    base = [(events.count(x) + smoothing / n) / (len(events) + smoothing) for x in range(n)]
    firsts = Counter(stream[0] for stream in streams)
    runs = Counter(tuple(s[i : i + k]) for s in streams for k in range(2, order + 2) for i in range(len(s) - k + 1))

    def following(context, rest):
        if not rest:
            return 1.0
        x = rest[0]
        seen = sum(runs[(*context, y)] for y in range(n))
        back = smoothing / (seen + smoothing) if seen + smoothing > 0 else 1.0
        go_on = runs[(*context, x)] / (seen + smoothing) if runs[(*context, x)] else 0.0
        total = back * base[x] * following((x,), rest[1:]) if back else 0.0
        return total + (go_on * following((*context, x)[-order:], rest[1:]) if go_on else 0.0)

    x = sequence[0]
    first = (firsts[x] + smoothing * base[x]) / (len(streams) + smoothing)
    return first * following((x,), tuple(sequence[1:])) if first else 0.0


@settings(max_examples=40, deadline=None)
@given(cases, st.data())
def test_fit_agrees_with_brute_force_counts(case, data):
    (n, streams), order, smoothing = case
    model = fitted(case)
    chosen = st.lists(st.integers(0, n - 1), min_size=1, max_size=6) | st.sampled_from(streams)
    sequence = data.draw(chosen)
    expected = counted_probability(streams, n, order, smoothing, sequence)
    assert math.exp(model.log_likelihood(sequence)) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("order", [1, 2])
def test_constructor_means_what_it_says(order):
    rng = np.random.default_rng(order)
    table = rng.dirichlet(np.ones(3), size=(3,) * order)
    joint = rng.dirichlet(np.ones(3**order)).reshape((3,) * order)
    flat = table.reshape(-1, 3)
    for prior, rows in (
        (joint, table),
        (joint.ravel(), flat),
        (joint, sparse.csr_array(flat)),
        (joint, table.tolist()),
    ):
        model = MarkovModel(prior, rows, order=order)
        for sequence in itertools.product(range(3), repeat=order + 2):
            expected = joint[sequence[:order]]
            for k in range(order, len(sequence)):
                expected *= table[sequence[k - order : k + 1]]
            assert math.exp(model.log_likelihood(sequence)) == pytest.approx(expected, rel=1e-10)
    repeated = MarkovModel([0.2, 0.5, 0.3], table, order=order)
    for sequence in itertools.product(range(3), repeat=order + 1):
        history, expected = (sequence[0],) * order, [0.2, 0.5, 0.3][sequence[0]]
        for x in sequence[1:]:
            expected *= table[(*history, x)]
            history = (*history, x)[1:]
        assert math.exp(repeated.log_likelihood(sequence)) == pytest.approx(expected, rel=1e-10)


@settings(max_examples=30, deadline=None)
@given(cases, st.integers(0, 2**32))
def test_sparse_distribution_agrees_with_the_dense_one(case, seed):
    model = fitted(case)
    distribution = transitions(model)
    assert distribution.sum(axis=1) == pytest.approx(np.ones(model.size), abs=1e-12)
    rng = np.random.default_rng(seed)
    weights = rng.random((3, model.size))
    np.testing.assert_allclose(model.advance(weights), weights @ distribution, atol=1e-13)
    values = rng.normal(size=(3, model.size))
    values[0, rng.integers(model.size)] = -np.inf
    for largest, pick, nothing in ((True, max, -np.inf), (False, min, np.inf)):
        out = model.spread(values, largest)
        for row, target in itertools.product(range(3), range(model.size)):
            reached = [values[row, s] for s in range(model.size) if distribution[s, target] > 0]
            assert out[row, target] == pick(reached, default=nothing)
    symbols = np.stack([distribution[:, model.newest == x].sum(axis=1) for x in range(model.n)], axis=1)
    assert model.full_support == (model.size == model.n and bool((symbols > 0).all()))


def test_state_attributes():
    model = MarkovModel.fit(random_streams(2, 4), order=2, alphabet=range(4), smoothing=0.5)
    assert model.chain.format == "csr"
    assert np.array_equal(model.newest[model.base_state], np.arange(4))
    assert model.initial.sum() == pytest.approx(1)
    assert np.array_equal(model.prior, model.initial[model.base_state])
    with pytest.raises(ValueError, match="read-only"):
        model.prior[0] = 1


def test_rows_nearly_complete_are_completed():
    model = MarkovModel([0.5, 0.5], [[1 / 3 + 1e-8, 2 / 3], [0.5, 0.5]])
    assert abs(model.chain.sum(axis=1) - 1).max() < 1e-15
    assert model.backoff.tolist() == [0, 0]


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
@pytest.mark.parametrize(("n", "order"), [(5, 1), (7, 2), (300, 1)])
def test_advance_gives_the_same_bits_alone_and_in_company(n, order, smoothing):
    model = MarkovModel.fit(
        random_streams(1, n, users=60, longest=40), order=order, alphabet=range(n), smoothing=smoothing
    )
    weights = np.random.default_rng(0).random((1000, model.size))
    together = model.advance(weights)
    for row in (0, 1, 500, 999):
        alone = model.advance(weights[row])
        assert alone.tobytes() == together[row].tobytes()
        assert model.advance(weights[row : row + 1])[0].tobytes() == together[row].tobytes()
        assert model.advance(weights[[row, 0]])[0].tobytes() == together[row].tobytes()
        assert model.advance(np.asfortranarray(weights[[row, 3, 4]]))[0].tobytes() == together[row].tobytes()


def test_spread_in_chunks_equals_spread_at_once(monkeypatch):
    model = MarkovModel.fit(random_streams(1, 5), order=2, alphabet=range(5))
    values = np.random.default_rng(0).normal(size=(40, model.size))
    whole = model.spread(values, True)
    monkeypatch.setattr("seqveil.core.model._CHUNK", 3 * model.chain.nnz)
    assert np.array_equal(model.spread(values, True), whole)


@settings(max_examples=25, deadline=None)
@given(cases, st.integers(0, 2**32))
def test_the_order_of_rows_does_not_count(case, seed):
    (n, streams), order, smoothing = case
    turns = np.random.default_rng(seed).permutation([user for user, stream in enumerate(streams) for _ in stream])
    left = [list(stream) for stream in streams]
    users, codes = [f"u{user}" for user in turns], np.array([left[user].pop(0) for user in turns], np.int64)
    model = fit_codes(users, codes, Alphabet(range(n)), order=order, smoothing=smoothing)
    assert model.fingerprint == fitted(case).fingerprint


def test_grids_and_bins_as_alphabets():
    points = np.random.default_rng(2).random((60, 2))
    grid = Grid.regular(2, 2, (0, 1, 0, 1))
    frame = pl.DataFrame({"user": [0] * 30 + [1] * 30, "x": points[:, 0], "y": points[:, 1]})
    model = sv.fit(frame, alphabet=grid, value="x,y")
    assert model.fingerprint == MarkovModel.fit([points[:30], points[30:].tolist()], alphabet=grid).fingerprint
    bins = Bins([0, 0.5, 1])
    assert MarkovModel.fit([points[:, 0]], alphabet=bins).n == 2
    assert MarkovModel.fit([pd.Series(["a", "b"]), ("b", "a")]).alphabet == Alphabet(["a", "b"])
    assert MarkovModel.fit(np.array([[0, 1], [1, 1]])).n == 2


def test_priors_and_one_event_users():
    streams = [[0], [1, 2], [1]]
    assert MarkovModel.fit(streams, alphabet=range(3), smoothing=0).prior.tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    never = MarkovModel.fit(streams, alphabet=range(4), smoothing=0)
    assert never.backoff.tolist() == [1, 0, 1, 1]
    assert never.base.tolist() == [0.25, 0.5, 0.25, 0]
    smooth = MarkovModel.fit(streams, alphabet=range(4), smoothing=1e-3)
    assert smooth.full_support
    assert (smooth.prior > 0).all()


def test_samples_follow_the_distribution():
    """Chi-square over all sequences of length 4, with their exact probabilities; false alarm 1e-6 a case."""
    users, length = 20_000, 4
    model = MarkovModel.fit(random_streams(8, 3, users=6), order=2, alphabet=range(3), smoothing=0.4)
    drawn = Counter(map(tuple, model.sample(length, users, seed=12).tolist()))
    expected = {s: users * math.exp(model.log_likelihood(s)) for s in itertools.product(range(3), repeat=length)}
    rare = [s for s, mean in expected.items() if mean < 10]
    pooled = [(sum(drawn[s] for s in rare), sum(expected[s] for s in rare))] if rare else []
    cells = [(drawn[s], mean) for s, mean in expected.items() if mean >= 10] + pooled
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    assert statistic < stats.chi2.isf(1e-6, len(cells) - 1)


def test_samples_respect_impossible_steps_and_seeds():
    model = MarkovModel([0, 1, 0], STICKY)
    drawn = model.sample(200, 50, seed=3)
    assert set(drawn[:, 0]) == {1}
    assert all(STICKY[a][b] > 0 for row in drawn.tolist() for a, b in itertools.pairwise(row))
    assert np.array_equal(drawn, model.sample(200, 50, seed=3))
    assert MarkovModel.fit([[0, 1]], alphabet=range(2)).sample(5, 4, seed=0).shape == (4, 5)
    assert model.log_likelihood([1, 0, 2]) == -math.inf


def test_unreachable_contexts_may_stay_empty():
    table = np.zeros((4, 2))
    table[1] = table[2] = [0.5, 0.5]
    table[1, 1], table[1, 0] = 0, 1  # 01 -> 0 only
    table[2] = [0, 1]  # 10 -> 1 only, so 00 and 11 never occur
    model = MarkovModel([0, 0.5, 0.5, 0], table, order=2)
    assert math.exp(model.log_likelihood([0, 1, 0, 1, 0])) == pytest.approx(0.5)
    with pytest.raises(ModelError, match="row 0 of transitions is all zero"):
        MarkovModel([0.5, 0, 0.5, 0], table, order=2)
    with pytest.raises(ModelError, match="row 0 of transitions is all zero"):
        MarkovModel([0.5, 0.5], table, order=2)


SECRET = "s731"


@pytest.mark.parametrize(
    ("build", "kind", "message"),
    [
        (lambda: MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.3, 0.6]]), ModelError, "row 1 .* sums to 0.9"),
        (lambda: MarkovModel([0.5, 0.5], [[0.5, 0.5], [0, 0]]), ModelError, "row 1 .* sums to 0"),
        (lambda: MarkovModel([0.5, 0.5], [[0.5, 0.5], [1.5, -0.5]]), ModelError, "not negative; row 1"),
        (lambda: MarkovModel([0.5, 0.5], [[0.5, 0.5], [np.nan, 1]]), ModelError, "finite .* row 1"),
        (lambda: MarkovModel([0.5, 0.4], np.eye(2)), ModelError, "prior must sum to one; it sums to 0.9"),
        (lambda: MarkovModel([np.nan, 1], np.eye(2)), ModelError, "prior must be finite"),
        (lambda: MarkovModel([-1, 2], np.eye(2)), ModelError, "not negative; entry 0"),
        (lambda: MarkovModel([1], np.eye(2)), ModelError, "2 probabilities; got 1"),
        (lambda: MarkovModel([1], np.ones((2, 3))), ModelError, r"shape \(n, n\)"),
        (lambda: MarkovModel([1], [[1], [2, 3]]), ModelError, "ragged"),
        (lambda: MarkovModel([0.5, 0.5], np.eye(2), order=2), ModelError, "order 2 must have shape"),
        (
            lambda: MarkovModel([1 / 3] * 3, np.full((4, 2), 0.5), order=2),
            ModelError,
            "prior must hold 4 prob",
        ),
        (lambda: MarkovModel([0.5, 0.5], np.eye(2), order=0), ModelError, "expected order to be a whole number"),
        (lambda: MarkovModel([0.5, 0.5], np.eye(2), alphabet=[SECRET]), ModelError, "1 symbols but the model 2"),
        (lambda: MarkovModel.fit([[0]], alphabet=range(2), smoothing=-1), ModelError, "smoothing"),
        (lambda: MarkovModel.fit([[0]], alphabet=range(2), smoothing=math.nan), ModelError, "smoothing"),
        (lambda: MarkovModel.fit([[0]], alphabet=range(2), order=0), ModelError, "expected order to be"),
        (lambda: MarkovModel.fit([[0]], alphabet=range(50_000), order=4), ModelError, "lower the order"),
        (lambda: MarkovModel.fit([]), DataError, "nothing to fit"),
        (lambda: MarkovModel.fit([["a"], []]), DataError, "stream 1 has no events"),
        (lambda: MarkovModel.fit([SECRET]), DataError, "stream 0 must be a sequence"),
        (lambda: MarkovModel.fit([7, 31]), DataError, "wrap a single stream"),
        (lambda: MarkovModel.fit(SECRET), DataError, "list of sequences"),
        (lambda: MarkovModel.fit([["a"], ["a", SECRET]], alphabet=["a"]), UnknownSymbol, "stream 1, event 1: value 2"),
        (lambda: MarkovModel.fit(pl.DataFrame({"user": [1], "value": [1]})), DataError, "is fitted by sv.fit"),
        (lambda: MarkovModel([1, 0, 0], STICKY).sample(0), InputError, "must be >= 1"),
        (lambda: MarkovModel([1, 0, 0], STICKY).log_likelihood([]), InputError, "at least one event"),
        (lambda: MarkovModel([1, 0, 0], STICKY).log_likelihood([3]), InputError, r"outside 0\.\.2"),
        (lambda: fit_codes([1, 2], np.array([1]), Alphabet(range(2))), DataError, "2 users and 1 codes"),
        (lambda: fit_codes([], np.zeros(0, int), Alphabet(range(2))), DataError, "needs events"),
    ],
)
def test_refusals_are_one_line_and_show_no_value(build, kind, message):
    with pytest.raises(kind, match=message) as caught:
        build()
    assert "731" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("order", [1, 2])
def test_what_a_model_rules_out_is_what_has_no_probability(order):
    rng, found = np.random.default_rng(order), set()
    for _ in range(20):
        table = rng.dirichlet(np.ones(3), 3**order) * (rng.random((3**order, 3)) > (0.03 if order == 1 else 0.01))
        table = np.where(table.sum(1, keepdims=True) > 0, table, 1.0)
        model = MarkovModel(np.full((3,) * order, 3.0**-order), table / table.sum(1, keepdims=True), order)
        every = itertools.product(range(3), repeat=order + 1)
        impossible = any(model.log_likelihood(list(x)) == -math.inf for x in every)
        assert model.rules_out == impossible
        found.add(impossible)
    assert found == {False, True}
    assert MarkovModel([1.0, 0.0], [[0.5, 0.5]] * 2).rules_out  # at the start alone


@pytest.mark.parametrize("how", [{"order": 2}, {"types": 2, "least_people": 1}])
@pytest.mark.filterwarnings("ignore:a type may now be made up of")
def test_no_fit_rules_anything_out_unless_asked_to(how):
    streams = [[0, 1, 0, 1], [1, 1, 1, 1]] * 20
    assert not MarkovModel.fit(streams, alphabet=range(5), **how).rules_out
    assert MarkovModel.fit(streams, alphabet=range(5), smoothing=0, **how).rules_out


# saved models come back whole, or they are refused in one line


def saved(tmp_path, **options):
    model = MarkovModel.fit(random_streams(3, 4), order=2, alphabet=range(4), smoothing=0.3, **options)
    path = tmp_path / "chain.model"
    model.save(path)
    return model, path


@pytest.mark.parametrize("order", [1, 2, 3])
def test_saved_models_come_back_whole(tmp_path, order):
    streams = [[("é", "b", 3, 2.5, True, None, ("x", 1))[x] for x in s] for s in random_streams(1, 7)]
    alphabet = Alphabet(["é", "b", 3, 2.5, True, None, ("x", 1)])
    model = MarkovModel.fit(streams, order=order, alphabet=alphabet, smoothing=0.1)
    model.save(tmp_path / "m")
    again = MarkovModel.load(tmp_path / "m")
    assert again.fingerprint == model.fingerprint
    assert again.alphabet == alphabet
    for name in ("prior", "initial", "backoff", "base", "base_state", "newest"):
        assert getattr(again, name).tobytes() == getattr(model, name).tobytes()
    weights = np.random.default_rng(0).random(model.size)
    assert again.advance(weights).tobytes() == model.advance(weights).tobytes()
    assert pickle.loads(pickle.dumps(model)).fingerprint == model.fingerprint
    assert os.listdir(tmp_path) == ["m"]


def test_fingerprints_tell_models_apart(tmp_path):
    model, path = saved(tmp_path)
    first = path.read_bytes()
    model.save(path)
    assert path.read_bytes() == first
    others = [MarkovModel([0.5, 0.5], np.eye(2)), MarkovModel([0.4, 0.6], np.eye(2)),
              MarkovModel([0.5, 0.5], np.eye(2), alphabet="ab"), MarkovModel([0.5, 0.5], [[1, 0], [1, 0]])]  # fmt: skip
    assert len({other.fingerprint for other in others}) == 4


def test_cut_files_are_refused_and_flipped_bytes_never_load_as_another_model(tmp_path):
    model, path = saved(tmp_path)
    content = path.read_bytes()
    for cut in np.linspace(0, len(content) - 1, 12).astype(int):
        path.write_bytes(content[:cut])
        with pytest.raises(ModelError, match=r"chain\.model is (cut short|not a seqveil model)"):
            MarkovModel.load(path)
    for place in np.linspace(0, len(content) - 1, 60).astype(int):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        with contextlib.suppress(ModelError):  # any other exception is a failure
            assert MarkovModel.load(path).fingerprint == model.fingerprint


def rewrite(path, change):
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    header = json.loads(arrays.pop("header").tobytes())
    change(header, arrays)
    with open(path, "wb") as out:
        np.savez(out, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, arrays: header.update(version=99), "has model format 99, this seqveil reads 1"),
        (lambda header, arrays: header.update(format="other"), "not a seqveil model"),
        (lambda header, arrays: header.update(fingerprint="0"), "fingerprint does not match"),
        (lambda header, arrays: header.update(order=3), "fingerprint does not match"),
        (lambda header, arrays: header.update(origin={"private": True, "epsilon": 0.1}), "fingerprint does not match"),
        (lambda header, arrays: header.update(n=5), "or not its alphabet"),
        (lambda header, arrays: header["alphabet"].update(n=5), "alphabet has 5 symbols but the model 4"),
        (lambda header, arrays: arrays["base"].__setitem__(0, np.nan), "negative or non-finite"),
        (lambda header, arrays: arrays["backoff"].__setitem__(0, 0.9), "do not sum to one"),
        (lambda header, arrays: arrays["initial"].__imul__(2), "do not sum to one"),
        (lambda header, arrays: arrays["newest"].__setitem__(0, 4), "do not match its symbols"),
        (lambda header, arrays: arrays["base_state"].__setitem__(0, 1), "do not match its symbols"),
        (lambda header, arrays: arrays["chain_indices"].__setitem__(0, 10**6), "not a seqveil model, or is damaged"),
        (lambda header, arrays: arrays.update(initial=np.ones(3) / 3), "do not fit together"),
        (lambda header, arrays: arrays.pop("base"), "not a seqveil model, or is damaged"),
        (lambda header, arrays: arrays.update(base=np.array([{}], object)), "not a seqveil model, or is damaged"),
    ],
)
def test_altered_files_are_refused(tmp_path, change, message):
    _, path = saved(tmp_path)
    rewrite(path, change)
    with pytest.raises(ModelError, match=message) as caught:
        MarkovModel.load(path)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ModelError, match="cannot read the model file none"):
        MarkovModel.load(tmp_path / "none")
    (tmp_path / "other").write_bytes(pickle.dumps([1, 2, 3]))
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    for other in ("other", "other.npz"):
        with pytest.raises(ModelError, match=f"{other} is not a seqveil model"):
            MarkovModel.load(tmp_path / other)


def test_failed_save_leaves_nothing_and_keeps_the_old_file(tmp_path):
    model, path = saved(tmp_path)
    before = path.read_bytes()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").touch()
    with pytest.raises(OSError):
        model.save(tmp_path / "folder")
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["chain.model", "folder"]
