"""Files through the pure step: the same streams, accounts and estimates as one user at a time, in any chunking."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from filed import audit_file, decode_file, fit_file, release_file
from seqveil import Budget, MarkovModel
from seqveil.core.errors import DataError
from seqveil.engine.policy import Policy

WORDS = ["bed", "kitchen", "office"]


def model_of(names=WORDS):
    n = len(names)
    moves = np.full((n, n), 0.3 / (n - 1))
    np.fill_diagonal(moves, 0.7)
    return MarkovModel(np.full(n, 1 / n), moves, alphabet=names)


def streams(model, users=15, longest=20, seed=3):
    """A frame of streams in order of time, with times that are unevenly spaced."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        length = 1 + user * (longest - 1) // max(1, users - 1)
        codes, at = model.sample(length, 1, seed + user)[0], np.cumsum(rng.exponential(10.0, length)).round(3)
        rows += [(f"u{user}", float(t), value) for t, value in zip(at, model.alphabet.decode(codes), strict=True)]
    frame = pl.DataFrame(rows, schema=["user", "time", "value"], orient="row")
    return frame.sort("time", maintain_order=True)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.csv"
    streams(model_of()).write_csv(path)
    return path


BATCHES = {"mechanism": "tree", "epsilon": 2.0, "batch": 3}
SETTINGS = {
    "plain": {"epsilon": 1.0},
    "without a model": {"epsilon": 0.5, "budget": Budget(ldp_total=6.0)},
    "order two budgets": {"epsilon": 1.0, "budget": Budget(total=6.0, per_window=2.0, releases=4)},
    "total hold": {"epsilon": 1.0, "budget": Budget(total=3.0)},
    "total stop": {"epsilon": 1.0, "budget": Budget(total=3.0, when_spent="stop")},
    "blocks stop": {"epsilon": 2.0, "block": 4, "budget": Budget(total=5.0, when_spent="stop")},
    "window stop": {"epsilon": 1.0, "budget": Budget(per_window=2.0, releases=5, when_spent="stop")},
    "seconds hold": {"epsilon": 1.0, "budget": Budget(per_window=2.0, seconds=60.0)},
    "seconds stop": {"epsilon": 1.0, "budget": Budget(per_window=2.0, seconds=60.0, when_spent="stop")},
    "crr": {"epsilon": 1.0, "mechanism": "crr"},
    "batches hold": {**BATCHES, "budget": Budget(total=3.0, ldp_total=30.0)},
    "batches window": {**BATCHES, "budget": Budget(per_window=2.0, releases=2, when_spent="stop")},
    "batches seconds": {**BATCHES, "budget": Budget(per_window=3.0, seconds=55.0, when_spent="stop")},
    "batches unsound": {**BATCHES, "mechanism": "batch_descent"},
    "batches of one": {**BATCHES, "batch": 1},
}


SLOW = {"batches unsound": pytest.mark.slow, "batches of one": pytest.mark.slow}


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        pytest.param(name, suffix, marks=SLOW.get(name, ()))
        for name, suffix in zip(SETTINGS, ["csv", "parquet", "jsonl"] * 5, strict=True)
    ],
)
def test_a_receiver_follows_every_setting(data, tmp_path, name, suffix):
    model, out = model_of(), tmp_path / f"out.{suffix}"
    setting = Policy(**SETTINGS[name]).on(model)
    account = release_file(data, setting, out, seed=4)
    report = audit_file(out, model)
    assert report.leakage == pytest.approx(account.leakage, rel=1e-12)
    assert report.composition == pytest.approx(account.composition, rel=1e-12)
    assert (report.releases, report.held) == (account.releases, account.held)
    assert report.epsilons is True
    assert report.unchanged is True
    assert not report.passed  # it is seeded
    assert replace(report, unseeded=None).passed or not setting.mechanism.sound
    assert (account.stopped > 0) is (setting.budget.when_spent == "stop")
    for online in (False, True):
        decoded = decode_file(out, model, tmp_path / f"decoded{online}.csv", online=online)
        assert decoded.rows == account.events - account.stopped


@pytest.mark.parametrize("wrong", [-1, 0.5, 10**9])
def test_a_wrong_event_number_is_refused(data, tmp_path, wrong):
    model, out = model_of(), tmp_path / "out.csv"
    budget = Budget(total=3.0, when_spent="stop")
    release_file(data, Policy(epsilon=1.0, budget=budget).on(model), out)
    frame = pl.read_csv(out)
    frame.drop("event").write_csv(out)
    with pytest.raises(DataError, match="event"):
        audit_file(out, model)
    events = pl.Series("event", [*frame["event"].to_list()[:-1], float(wrong)], dtype=pl.Float64)
    frame.with_columns(events).write_csv(out)
    with pytest.raises(DataError, match=f"row {frame.height}: column 'event'"):
        audit_file(out, model)


def numbers_file(tmp_path, values):
    path = tmp_path / "numbers.csv"
    pl.DataFrame({"user": [f"u{k % 3}" for k in range(len(values))], "value": values}).write_csv(path)
    return path


def test_bins_of_a_width_have_round_edges_and_hold_all(tmp_path):
    rng = np.random.default_rng(1)
    for width in (0.1, 0.3, 7.0):
        values = (rng.integers(-50, 50, 200) * width).tolist()  # numbers that lie on edges
        alphabet = fit_file(numbers_file(tmp_path, values), bins=width).model.alphabet
        assert alphabet.edges / width == pytest.approx(np.round(alphabet.edges / width), abs=1e-6)
        alphabet.encode(values)
    # one ulp off a multiple: the division alone would put it outside the outer edge
    fit_file(numbers_file(tmp_path, [3521.9599999999996, 3600.0]), bins=3.38)


def test_codes_read_as_text_or_numbers_alike(tmp_path):
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=["007", "42"])
    data = tmp_path / "data.csv"
    data.write_text("user,value\nu,42\nu,007\nu,42\n")
    release_file(data, Policy(epsilon=1.0).on(model), tmp_path / "out.csv")
    assert audit_file(tmp_path / "out.csv", model).passed
    numbers = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=[7, 42])
    release_file(data, Policy(epsilon=1.0).on(numbers), tmp_path / "out.jsonl")
    assert set(pl.read_ndjson(tmp_path / "out.jsonl")["value"]) <= {7, 42}


@pytest.mark.parametrize("batch", [1, 2])
def test_a_released_file_keeps_the_type_of_its_users(tmp_path, batch):
    table = pl.DataFrame({"user": pl.Series([7, 8] * 4, dtype=pl.Int32), "value": [0, 1, 2, 0] * 2})
    table.write_parquet(tmp_path / "data.parquet")
    setting = Policy(epsilon=1.0, batch=batch, mechanism="optimal" if batch == 1 else "tree").on(model_of([0, 1, 2]))
    release_file(tmp_path / "data.parquet", setting, tmp_path / "out.parquet", seed=1)
    assert pl.read_parquet(tmp_path / "out.parquet")["user"].dtype == pl.Int32
