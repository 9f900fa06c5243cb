"""The commands as functions: frames of polars, pandas and Arrow in, the same kind out."""

import builtins
import io
import json
import os

import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pytest

import seqveil as sv
from policies import promise
from seqveil.interfaces.cli import main

USERS, EVENTS = 6, 10
STOPS = sv.Budget(total=3.0, when_spent="stop")


def rows(seed=0, numbers=False):
    """Six users in turn, two events at each time, and a column that nothing needs."""
    draw, count = np.random.default_rng(seed), USERS * EVENTS
    values = draw.integers(0, 3, count)
    return pl.DataFrame(
        {
            "user": [f"u{k % USERS}" for k in range(count)],
            "time": [k // USERS // 2 for k in range(count)],
            "value": values if numbers else [["home", "work", "gym"][v] for v in values],
            "note": list(range(count)),
        }
    )


ROWS = rows()
MODEL = sv.fit(ROWS, smoothing=1.0)
KINDS = {
    "polars": (lambda f: f, pl.DataFrame),
    "lazy": (pl.DataFrame.lazy, pl.LazyFrame),
    "pandas": (pl.DataFrame.to_pandas, pd.DataFrame),
    "arrow": (pl.DataFrame.to_arrow, pa.Table),
    "batch": (lambda f: pa.RecordBatch.from_pydict(f.to_dict(as_series=False)), pa.RecordBatch),
}


def plain(frame):
    """Any frame as polars has it."""
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    if isinstance(frame, pl.DataFrame):
        return frame
    return pl.from_pandas(frame) if isinstance(frame, pd.DataFrame) else pl.DataFrame(pl.from_arrow(frame))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in KINDS), ("polars", {"batch": 4}), ("pandas", {"budget": STOPS})],
    ids=str,
)
def test_memory_and_file_release_the_same_to_the_last_bit(kind, options, tmp_path):
    source, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    ROWS.write_csv(source)
    MODEL.save(tmp_path / "m.model")
    typed = ["release", str(source), "-m", str(tmp_path / "m.model"), "--seed", "3", *promise(epsilon=1.0, **options)]
    assert main([*typed, "--out", str(out)]) == 0
    made = sv.release(KINDS[kind][0](ROWS), MODEL, epsilon=1.0, seed=3, **options)
    assert isinstance(made.frame, KINDS[kind][1])
    written, got = pl.read_csv(out), plain(made.frame)
    assert got.columns == written.columns
    assert got.rows() == written.rows()
    assert json.loads((tmp_path / "out.csv.meta.json").read_text()) == made.meta


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_function_takes_every_kind_and_gives_it_back(kind):
    data = KINDS[kind][0](ROWS)
    model = sv.fit(data, smoothing=1.0)
    assert model.fingerprint == MODEL.fingerprint
    made = sv.release(data, model, epsilon=1.0)
    assert made.account.private
    assert sv.audit(made, model).passed
    assert sv.audit(made.frame, model, meta=made.meta).passed
    assert sv.audit(made.frame, model, policy=sv.Policy(1.0)).passed  # it stands for the side file
    found = sv.decode(made, model, truth=data)
    assert isinstance(found.frame, KINDS[kind][1])
    assert plain(found.frame).select("user", "time").rows() == plain(made.frame).select("user", "time").rows()
    assert 0 <= found.right <= 1
    table = sv.stats(made, model).frame
    assert plain(table)["value"].to_list() == list(MODEL.alphabet.values)
    findings = sv.attack(made, data, secrets=sv.secrets.ever("gym", epsilon=9.0))
    assert [one.people for one in findings.attacks] == [USERS]
    for shown in (made, sv.audit(made, model), found, sv.stats(made, model), findings):
        assert "<table" in shown._repr_html_()
        assert len(str(shown).splitlines()) >= 2


def test_one_row_and_no_row():
    one = ROWS[:1]
    made = sv.release(one, MODEL, epsilon=1.0)
    assert made.frame.height == made.account.events == 1
    assert sv.audit(made, MODEL).passed
    for empty in (ROWS[:0], ROWS[:0].to_pandas(), ROWS[:0].to_arrow()):
        for call in (sv.fit, lambda data: sv.release(data, MODEL, epsilon=1.0)):
            with pytest.raises(sv.errors.DataError, match="the frame: holds no rows"):
                call(empty)


def test_no_bound_is_refused_in_one_line():
    with pytest.raises(sv.errors.InputError, match="expected epsilon, secrets, or a budget") as disclosed:
        sv.release(ROWS, MODEL)
    assert "\n" not in str(disclosed.value)
    with pytest.raises(sv.errors.InputError, match="'epsilom' is no field of a Policy"):
        sv.release(ROWS, MODEL, epsilom=1.0)
    with pytest.raises(sv.errors.InputError, match="no side file says how it was released"):
        sv.audit(ROWS, MODEL)
    released = sv.release(ROWS, MODEL, epsilon=1.0)
    for call in (
        lambda: sv.audit(released, MODEL, secrets="ever:a"),
        lambda: sv.attack(released, ROWS, secrets=["ever:a"]),
    ):
        with pytest.raises(sv.errors.InputError, match=r"expected secrets as sv.secrets makes them"):
            call()
    with pytest.raises(sv.errors.InputError, match="polars, pandas or Arrow frame; got dict"):
        sv.fit({"user": ["a"], "value": [1]})
    with pytest.raises(sv.errors.InputError, match=r"expected a model, .* got DataFrame"):
        sv.release(MODEL, ROWS, epsilon=1.0)


def test_no_raw_value_stands_in_an_error():
    strange = ROWS.to_pandas()
    strange["value"] = strange["value"].astype(object)
    strange.loc[5, "value"] = b"SECRET"
    with pytest.raises(sv.SeqveilError) as disclosed:
        sv.release(strange, MODEL, epsilon=1.0)
    assert "SECRET" not in str(disclosed.value)
    unknown = ROWS.with_columns(value=pl.when(pl.col("note") == 9).then(pl.lit("SECRET")).otherwise("value"))
    with pytest.raises(sv.SeqveilError, match="row 10: the value is not in the model's alphabet") as disclosed:
        sv.release(unknown, MODEL, epsilon=1.0)
    assert "SECRET" not in str(disclosed.value)
    assert sv.release(unknown, MODEL, epsilon=1.0, on_unknown="hide").account.events == unknown.height
    with pytest.raises(sv.errors.InputError, match="two columns of the frame are called 'user'"):
        sv.fit(pd.DataFrame([["a", "b", "c"]], columns=["user", "user", "value"]))


def test_nothing_is_written(monkeypatch, tmp_path):
    """Neither raw rows nor released ones touch a disk."""
    monkeypatch.chdir(tmp_path)
    opened, before = [], builtins.open

    def tracker(file, mode="r", *more, **words):
        compiled = "__pycache__" in str(file)  # numba keeps its code there, which knows no rows
        opened.extend([file] if set(mode) & set("wax+") and not compiled else [])
        return before(file, mode, *more, **words)

    monkeypatch.setattr(builtins, "open", tracker)
    monkeypatch.setattr(io, "open", tracker)
    data = ROWS.to_pandas()
    made = sv.release(data, MODEL, epsilon=1.0)
    sv.decode(made, MODEL, truth=data)
    sv.audit(made, MODEL)
    assert opened == []
    assert os.listdir(tmp_path) == []


BERLIN = pl.datetime(2024, 1, 1, time_zone="Europe/Berlin")
TIMED = ROWS.with_columns((BERLIN + pl.duration(hours="time")).alias("time"))
ODD = {
    "times with a zone": (lambda f: f.to_pandas(), {}),
    "labels that repeat": (lambda f: f.to_pandas().set_index(pd.Index([0] * f.height)), {}),
    "labels of two parts": (lambda f: f.to_pandas().set_index(["note", "user"], drop=False), {}),
    "a window of seconds": (lambda f: f.to_pandas(), {"budget": sv.Budget(per_window=3.0, seconds=7200.0)}),
    "a dictionary": (lambda f: f.with_columns(pl.col("user", "value").cast(pl.Categorical)).to_arrow(), {}),
    "a column of that name": (lambda f: f.with_columns(epsilon=pl.lit("x")), {}),
    "rows left out": (lambda f: f.to_pandas(), {"budget": sv.Budget(total=3.0, when_spent="stop")}),
    "two columns of users": (lambda f: f.with_columns(a=pl.lit("x,y")), {"user": "a,user"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_odd_frames_are_released_and_audited(name):
    turn, words = ODD[name]
    data = turn(TIMED.sample(fraction=1, shuffle=True, seed=3))
    made = sv.release(data, MODEL, epsilon=1.0, **words)
    assert sv.audit(made, MODEL).passed
    found = sv.decode(made, MODEL).frame
    assert plain(found).select("user", "time").equals(plain(made.frame).select("user", "time"))


@pytest.mark.slow
def test_numbers_that_were_withheld_stay_whole_numbers():
    data = rows(numbers=True).to_pandas()
    model = sv.fit(data, smoothing=1.0)
    made = sv.release(data, model, secrets=sv.secrets.ever([1], epsilon=2.0), withhold=True)
    assert made.account.withheld == made.frame["value"].isna().sum() > 0
    assert made.frame["value"].dtype == "Int64"
    assert sv.audit(made, model).passed


def test_what_cannot_be_a_frame_is_refused():
    with pytest.raises(sv.errors.InputError, match="'user_colum' is not known here"):
        sv.fit(ROWS, user_colum="user")
    with pytest.raises(sv.errors.DataError, match="column 'user' must hold text or numbers"):
        sv.fit(pd.DataFrame({"user": [1, "a"], "value": ["x", "y"]}))
    with pytest.raises(sv.errors.InputError, match=r"index of the frame holds times.*reset_index\(\)"):
        sv.fit(TIMED.to_pandas().set_index("time"))
    made = sv.release(ROWS, MODEL, epsilon=1.0)
    changed = made.frame.with_columns(pl.col("value").reverse())
    assert not sv.audit(changed, MODEL, meta=made.meta).passed
