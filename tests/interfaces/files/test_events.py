"""Rows as people's events: types, order and ties, times as people write them, what is missing, who a person is."""

import json
import os

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
from filed import FORMATS, fit_file, frame_of, write
from seqveil.core.errors import DataError, InputError
from seqveil.core.model import Reading
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.events import joined, parted, read_events
from seqveil.interfaces.files.writing import write_frame

SECRET = "Zq9secret"


def run(*args):
    return main([str(arg) for arg in args])


def values_of(path, **how):
    """Users and values of a file, and the record of how it was read."""
    events = read_events(path, how.pop("reading", Reading()), **how)
    return events.users.to_list(), np.asarray(events.values).tolist(), events.taken


@pytest.mark.parametrize(
    ("fields", "kind", "expected"),
    [
        (["1", "-2", "+3"], "auto", [1, -2, 3]),
        (["1", "2.5", "3e1"], "auto", [1.0, 2.5, 30.0]),
        (["1", "x", "3"], "auto", ["1", "x", "3"]),
        (["007", "8", "9"], "auto", ["007", "8", "9"]),
        (["0.5", "0", "-0.25"], "auto", [0.5, 0.0, -0.25]),
        (["12345678901234567890", "1", "2"], "auto", [12345678901234567890.0, 1.0, 2.0]),
        (["1", "2", "3"], "text", ["1", "2", "3"]),
        (["1", "2", "3"], "number", [1.0, 2.0, 3.0]),
    ],
)
def test_value_types_of_a_csv(tmp_path, fields, kind, expected):
    path = write(tmp_path, "data.csv", "user,value\n" + "".join(f"u,{field}\n" for field in fields))
    got = frame_of(path, kind=kind)["value"].to_list()
    assert got == expected
    assert list(map(type, got)) == list(map(type, expected))


def test_other_formats_keep_their_own_types(tmp_path):
    path = write(tmp_path, "d.jsonl", '{"user": 7, "value": 1, "x": [1]}\n{"value": 2, "user": 8}\n')
    assert frame_of(path).rows() == [(7, 1), (8, 2)]
    assert frame_of(path, kind="text").rows() == [(7, "1"), (8, "2")]
    pl.DataFrame({"user": [7], "value": pl.Series(["a"], dtype=pl.Categorical)}).write_parquet(tmp_path / "d.parquet")
    assert frame_of(tmp_path / "d.parquet").rows() == [(7, "a")]


@pytest.mark.parametrize("field", [SECRET, "inf", "1e999"])
def test_a_number_that_is_none_is_refused_by_row(tmp_path, field):
    path = write(tmp_path, "d.csv", f"user,value,x,y\na,1,2,3\nb,{field},{field},4\n")
    with pytest.raises(DataError, match="row 2: column 'value' must hold finite numbers"):
        frame_of(path, kind="number")
    with pytest.raises(DataError, match="row 2: column 'x' must hold finite numbers") as caught:
        frame_of(path, Reading(value="x,y"))
    assert SECRET not in str(caught.value)


def test_decimal_commas_are_named(tmp_path):
    path = write(tmp_path, "d.csv", "user;value;name\na;21,5;1,2\nb;3;x\n")
    for kind in ("auto", "number"):
        with pytest.raises(DataError, match=r"column 'value' holds numbers with decimal commas .* points"):
            frame_of(path, kind=kind)
    assert frame_of(path, Reading(value="name"))["value"].to_list() == ["1,2", "x"]


@pytest.mark.parametrize("extension", FORMATS)
def test_only_the_columns_asked_for_are_kept(tmp_path, extension):
    path = tmp_path / f"d.{extension}"
    frame = pl.DataFrame({"name": [SECRET], "lat": [1.5], "id": ["u"], "time": [4], "lon": [2], "seq": [9]})
    write_frame(path, frame)
    assert frame_of(path, Reading("id", "lon,lat")).rows() == [("u", 2.0, 1.5, 9)]
    assert frame_of(path, Reading("id", "lat", "time")).columns == ["user", "value", "time"]
    assert frame_of(path, Reading("id", "seq")).columns == ["user", "value", "time"]
    assert SECRET not in repr(read_events(path, Reading("id", "name")))


@pytest.mark.parametrize("value", ["x,y,z", "user", ""])
def test_column_names_must_make_sense(value):
    with pytest.raises(InputError, match="different names"):
        Reading(value=value)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=14),
    climb=st.integers(0, 2),
    kind=st.sampled_from(["whole", "decimal", "time"]),
)
def test_rows_come_in_the_order_in_which_they_happened(rows, climb, kind):
    """Left as they stand where no user goes back; else sorted by time, ties as they stand."""
    steps = [climb * i + step for i, (_, step) in enumerate(rows)]
    times = {
        "whole": steps,
        "decimal": [step / 4 for step in steps],
        "time": [f"2024-01-01 00:{step // 60:02}:{step % 60:02}" for step in steps],
    }[kind]
    data = pl.DataFrame({"user": [user for user, _ in rows], "time": times, "value": range(len(rows))})
    last, back = {}, False
    for (user, _), step in zip(rows, steps, strict=True):
        back |= step < last.get(user, step)
        last[user] = step
    order = sorted(range(len(rows)), key=lambda k: steps[k]) if back else list(range(len(rows)))
    users, values, taken = values_of(data)
    assert (values, taken.sorted) == (order, back)
    assert users == [rows[k][0] for k in order]
    before, ties = {}, 0
    for k in order:
        ties += before.get(rows[k][0]) == steps[k]
        before[rows[k][0]] = steps[k]
    assert taken.ties == ties


@pytest.mark.parametrize(
    ("name", "times", "unit"),
    [
        ("timestamp", ["2024-05-01T10:00:00", "2024-05-01 10:00:00.5"], "ISO 8601 times, those without a zone as UTC"),
        (
            "DateTime",
            ["2024-05-01T10:00:00Z", "2024-05-01T13:00:00+02:00"],
            "ISO 8601 times, those without a zone as UTC",
        ),
        ("date", ["2024-05-01", "2024-05-02"], "ISO 8601 times, those without a zone as UTC"),
        ("date", ["2024-W09", "2024-W10"], "ISO 8601 times, those without a zone as UTC"),
        ("time", ["02.04.2012 9:05", "2.4.2012 13:00"], "dates as day.month.year, taken for UTC"),
        ("date", ["30/11/2012", "1/12/2012"], "dates as day/month/year, taken for UTC"),
        ("date", ["11/30/2012 23:59:59", "12/1/2012 00:00"], "dates as month/day/year, taken for UTC"),
        (
            "time",
            ["Tue Apr 03 18:00:09 +0000 2012", "Tue Apr 03 18:00:10 +0000 2012"],
            "ISO 8601 times, those without a zone as UTC",
        ),
        ("ts", [1714550400, 1714550401], "seconds since 1970"),
        ("time", [1714550400000, 1714550400001], "milliseconds since 1970"),
        ("ts", [1714550400000000, 1714550400000001], "microseconds since 1970"),
        ("timestamp", [1714550400000000000, 1714550400000000001], "nanoseconds since 1970"),
        ("time", [-0.5, 0.25], "numbers, from the least to the greatest"),
    ],
)
@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_times_are_recognised_by_name_and_size(tmp_path, name, times, unit, extension):
    frame = pl.DataFrame({"user": ["a"] * 3, "value": ["x", "y", "z"], name: [times[1], times[0], times[0]]})
    write_frame(path := tmp_path / f"d.{extension}", frame)
    _, values, taken = values_of(path)
    assert values == ["y", "z", "x"]
    assert (taken.order, taken.unit, taken.ties, taken.sorted) == (name, unit, 1, True)


def test_milliseconds_are_known_by_their_size_whatever_the_column_is_called(tmp_path):
    begin = 1_714_550_400_000
    rows = {"user": ["a"] * 4, "value": list("xyzx"), "when": [begin + 60_000 * k for k in range(4)]}
    pl.DataFrame(rows).write_csv(path := tmp_path / "d.csv")
    events = read_events(path, Reading(time="when"))
    assert events.taken.unit == "milliseconds since 1970"
    assert np.diff(events.seconds()).tolist() == [60.0] * 3
    assert sv.fit(path, time="when", every_seconds=60).n == 4  # a minute each, and "nothing"
    pl.DataFrame(rows | {"when": [begin, begin // 1000, begin, begin]}).write_csv(path)
    assert read_events(path, Reading(time="when")).taken.unit == ""  # which are numbers like any others


def test_a_column_by_its_name_gives_way_to_one_that_is_named(tmp_path):
    path = write(tmp_path, "e.csv", "user,value,when,time,seq\na,x,2,1,09\na,y,1,2,10\n")
    assert values_of(path)[2].order == "seq"
    assert values_of(path, reading=Reading(time="when"))[1] == ["y", "x"]


TIMED = "user,value,ts\na,x,1714550400\na,x,"
BAD = {
    "missing": ("user,value\na,x\na,\n", "--missing drop or --missing hold or --missing symbol"),
    "huge time": (TIMED + "1e308\n", "row 2: expected a time in seconds since 1970"),
    "huge first": ("user,value,time\na,x,1e308\n", "row 1: expected a time in seconds"),
    "no number": (TIMED + "nan\n", "row 2: column 'ts' mixes times"),
    "negative": (TIMED.replace("0\n", "0000\n") + "-1\n", "row 2: expected a time in milliseconds"),
    "two units": (TIMED + "1714550400000\n", "row 2: expected a time"),
    "kinds": ("user,value,date\na,x,2024-05-01\na,x,7\n", "row 2: column 'date' mixes times with numbers"),
    "a weekday": ("user,value,date\na,x,Tue\na,x,Mon\n", "row 1: column 'date' must hold numbers or times"),
    "not a time": (f"user,value,date\na,x,2024-05-01\na,x,{SECRET}\n", "row 2: column 'date' must hold"),
    "either way": ("user,value,time\na,x,1/2/2012\na,x,2/3/2012\n", "row 1: column 'time' must hold"),
    "all missing": ("user,value\na,\n", "no row has a value"),
}


@pytest.mark.parametrize("kind", BAD)
def test_every_bad_kind_has_one_line(tmp_path, capsys, kind):
    content, expected = BAD[kind]
    path = write(tmp_path, "d.csv", content)
    more = ("--missing", "drop") if kind == "all missing" else ()
    assert run("fit", path, "-o", tmp_path / "m.model", *more) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert expected in said
    assert SECRET not in said
    assert os.listdir(tmp_path) == ["d.csv"]


@pytest.mark.slow
def test_users_of_several_columns(tmp_path):
    """Two people whose columns read the same when joined naively; the model remembers the columns."""
    who = [("a", "b,c"), ("a,b", "c"), *(("firm", f"{k}") for k in range(38))]
    rows = [(*who[k % 40], "xyz"[(k // 40 * 7 + k) % 3], f"2024-05-{9 - k // 80:02}") for k in range(40 * 12)]
    path, model, out = tmp_path / "d.csv", tmp_path / "m.model", tmp_path / "o.csv"
    frame = pl.DataFrame(rows, schema=["firm", "badge", "value", "day"], orient="row")
    frame.write_csv(path)
    assert run("fit", path, "-o", model, "--user-column", "firm,badge", "--time-column", "day") == 0
    assert run("release", path, "-m", model, "-e", 1, "--budget", 3, "-o", out) == 0
    released = pl.read_csv(out, infer_schema=False)
    assert released.columns == ["firm", "badge", "day", "value", "epsilon"]
    assert released["day"].to_list() == sorted(released["day"].to_list())
    spent = released.group_by("firm", "badge").agg(pl.len())
    assert (spent.height, set(spent["len"])) == (40, {12})  # nobody is counted with somebody else
    for command in ("audit", "decode", "stats"):
        more = ("-o", tmp_path / "guess.csv", "--truth", path) if command == "decode" else ()
        assert run(command, out, "-m", model, *more) == 0
    made = sv.release(frame, sv.MarkovModel.load(model), epsilon=1.0)
    assert made.frame.select("firm", "badge").unique().height == made.account.users == 40


def test_keys_of_several_columns_come_apart_again():
    parts = [pl.Series("a", ["x,y", "\\", "\\,", "z"]), pl.Series("b", [",", "\\\\", "z", "\n"])]
    keys = joined(parts)
    assert keys.n_unique() == 4
    assert [part.to_list() for part in parted(keys, ["a", "b"])] == [part.to_list() for part in parts]


HOLES = "user,value,seq\na,,1\na,x,2\na,,3\nb,,1\nb,y,2\na,z,4\nb,,3\n"


def test_missing_values(tmp_path):
    path = write(tmp_path, "d.csv", HOLES)
    assert values_of(path, missing="drop")[:2] == (["a", "b", "a"], ["x", "y", "z"])
    users, values, taken = values_of(path, missing="hold")
    assert list(zip(users, values, strict=True)) == [("a", "x"), ("a", "x"), ("b", "y"), ("a", "z"), ("b", "y")]
    assert (taken.missing, taken.dropped, taken.held) == (4, 2, 2)
    assert values_of(path, missing="symbol")[1].count("missing") == 4
    pairs = write(tmp_path, "p.csv", "user,x,y\na,1,2\na,,3\na,4,5\n")
    assert values_of(pairs, reading=Reading(value="x,y"), missing="hold")[1] == [[1, 2], [1, 2], [4, 5]]
    assert values_of(pl.DataFrame({"user": ["a", "a"], "value": [1.5, float("nan")]}), missing="drop")[1] == [1.5]
    numbers = write(tmp_path, "n.csv", "user,value\na,1.5\na,NaN\na,nan\n")
    assert values_of(numbers, missing="hold")[1] == [1.5, 1.5, 1.5]
    with pytest.raises(DataError, match="row 2: column 'value' is empty; fit the model with"):
        values_of(numbers)
    names = write(tmp_path, "c.csv", "user,value\na,ann\na,nan\n")
    assert values_of(names, missing="drop")[1] == ["ann", "nan"]
    with pytest.raises(InputError, match="drop, hold or symbol"):
        values_of(path, missing="guess")
    with pytest.raises(InputError, match="not numbers that are cut"):
        fit_file(path, bins=1, missing="symbol")


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["drop", "hold", "symbol"])
def test_the_model_remembers_what_to_do(tmp_path, missing):
    path, model, out = write(tmp_path, "d.csv", HOLES), tmp_path / "m.model", tmp_path / "o.csv"
    assert run("fit", path, "-o", model, "--missing", missing, "--smoothing", 1) == 0
    assert run("release", path, "-m", model, "-e", 16, "-o", out) == 0
    released = pl.read_csv(out)
    assert released.height == {"drop": 3, "hold": 5, "symbol": 7}[missing]
    assert released["value"].to_list().count("missing") == (4 if missing == "symbol" else 0)
    assert run("audit", out, "-m", model) == 0
    disclosed = json.loads((tmp_path / "o.csv.meta.json").read_text())
    assert "dropped" not in json.dumps(disclosed)  # how many values were missing is nobody's business
    again = tmp_path / "s.csv"
    for _ in range(2):
        assert run("release", path, "-m", model, "-e", 16, "-o", again, "--state", tmp_path / "s.db") == 0
    kept = pl.read_csv(again).sort("seq", "user", maintain_order=True)
    assert kept.select("user", "value").equals(released.select("user", "value"))


@pytest.mark.slow
def test_rare_values_are_one_symbol(tmp_path, capsys):
    rows = [(f"u{k}", value) for k in range(12) for value in ("home", "work", f"club {k}", "home")]
    path = tmp_path / "d.csv"
    pl.DataFrame(rows, schema=["user", "value"], orient="row").write_csv(path)
    found = fit_file(path, other=3)
    assert list(found.model.alphabet.values) == ["home", "other", "work"]
    assert (found.pooled, found.model.alphabet.on_unknown) == (12, "other")
    model, out = tmp_path / "m.model", tmp_path / "o.csv"
    found.model.save(model)
    new = write(tmp_path, "new.csv", f"user,value\nx,home\nx,{SECRET}\nx,club 3\n")
    assert run("release", new, "-m", model, "-e", 16, "-o", out) == 0
    assert pl.read_csv(out)["value"].to_list() == ["home", "other", "other"]
    assert run("audit", out, "-m", model) == 0
    out.write_text(out.read_text().replace("other", SECRET))
    capsys.readouterr()
    assert run("audit", out, "-m", model) == 2  # what was released is never pooled
    assert "--on-unknown" not in capsys.readouterr().err
    for wrong in ({"other": 0}, {"other": 3, "bins": 1}, {"other": 3, "private": 1, "alphabet": ["home"]}):
        with pytest.raises(InputError, match="other"):
            fit_file(path, **wrong)
    with pytest.raises(InputError, match='"other"'):
        sv.Alphabet(["a"], on_unknown="other")
