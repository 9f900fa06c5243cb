"""Files as people have them: how they are read and ordered, what is missing or rare, and a line for each bad kind."""

import gzip
import json
import os

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.cli import main
from seqveil.interfaces.files import Columns
from seqveil.interfaces.files.columns import joined, parted, separator_of
from seqveil.interfaces.files.fit import fit_file
from seqveil.interfaces.files.rows import Source

SECRET = "Zq9secret"


def put(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def taken(path, **how):
    """All rows of a file as lists, and the record of how it was read."""
    source = Source(path, **how)
    parts = list(source.chunks())
    users = [user for part in parts for user in part.users.to_list()]
    values = [value for part in parts for value in np.asarray(part.values).tolist()]
    return users, values, source.taken


def run(*args):
    return main([str(arg) for arg in args])


TABLE = 'user{0}value\nann{0}"x{0}y"\nbob{0}z\n'


@pytest.mark.slow
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["d.csv", "d.tsv"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_any_separator_is_disclosed_from_the_first_lines(tmp_path, separator, name, mark):
    path = put(tmp_path, name, mark + TABLE.format(separator))
    assert taken(path)[:2] == (["ann", "bob"], [f"x{separator}y", "z"])
    packed = put(tmp_path, f"{name}.gz", gzip.compress((mark + TABLE.format(separator)).encode()))
    users, _, record = taken(packed)
    assert users == ["ann", "bob"]
    assert record.form.endswith(", compressed")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user,value\na,1;2\nb,3\n", ","),
        ("user;value\na;1,5\nb;2,5\n", ";"),
        ('"user","a;b;c",value\nx,y,z\n', ","),
        ("user value\n", ","),
        ("user|value|note\na|b|1;2;3\n", "|"),
        ("user,value;x\na,b;c\n", ","),
        ("who;what,where\na;b,c\n", ","),
        ("user;value,user\nvalue;a,b\n", None),
    ],
)
def test_separators_in_doubt(text, expected):
    assert separator_of(text.encode(), Columns(), ",") == expected


def test_numbers_are_written_with_a_point(tmp_path):
    path = put(tmp_path, "d.csv", "user;value\na;1,5\na;2\na;-3,25\n")
    assert taken(path)[1] == ["1,5", "2", "-3,25"]
    with pytest.raises(DataError, match="row 1: column 'value' must hold finite numbers"):
        sv.fit(path, bins=1)


TIMED = "user,value,ts\na,x,1714550400\na,x,"
BAD = {
    "cut gzip": ("d.csv.gz", gzip.compress(b"user,value\n" + os.urandom(999).hex().encode())[:40], "gzip"),
    "packed parquet": ("d.parquet.gz", b"PAR1", "expected an extension"),
    "two ways": ("d.csv", "user;value,user\nvalue;a,b\n", "cut in two ways"),
    "missing": ("d.csv", "user,value\na,x\na,\n", "--missing drop, --missing hold or --missing symbol"),
    "huge time": ("d.csv", TIMED + "1e308\n", "row 2: expected a time in seconds since 1970"),
    "huge first": ("d.csv", "user,value,time\na,x,1e308\n", "row 1: expected a time in seconds"),
    "no number": ("d.csv", TIMED + "nan\n", "row 2: column 'ts' mixes times"),
    "negative": ("d.csv", TIMED.replace("0\n", "0000\n") + "-1\n", "row 2: expected a time in milliseconds"),
    "two units": ("d.csv", TIMED + "1714550400000\n", "row 2: expected a time"),
    "kinds": ("d.csv", "user,value,date\na,x,2024-05-01\na,x,7\n", "row 2: column 'date' mixes times with numbers"),
    "not a time": ("d.csv", f"user,value,date\na,x,2024-05-01\na,x,{SECRET}\n", "row 2: column 'date' must hold"),
    "back": ("d.csv", "user,value,ts\na,x,2\na,x,1\n", "row 2 lies before row 1"),
    "back in two": ("d.csv", "user,value,week,hour\na,x,2,1\na,x,1,9\n", "row 1 of its user by 'week', 'hour'"),
    "all missing": ("d.csv", "user,value\na,\n", "no row has a value"),
}


@pytest.mark.parametrize("kind", BAD)
def test_every_bad_kind_has_one_line(tmp_path, capsys, kind):
    name, content, expected = BAD[kind]
    path = put(tmp_path, name, content)
    more = ("--time-column", "week,hour") if kind == "back in two" else ()
    more = ("--missing", "drop") if kind == "all missing" else more
    assert run("fit", path, "-o", tmp_path / "m.model", *more) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert expected in said
    assert SECRET not in said
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("name", "times", "unit"),
    [
        ("timestamp", ["2024-05-01T10:00:00", "2024-05-01 10:00:00.5"], "ISO 8601 times, those without a zone as UTC"),
        ("DateTime", ["2024-05-01T10:00:00Z", "2024-05-01T13:00:00+02:00"], "ISO 8601 times"),
        ("date", ["2024-05-01", "2024-05-02"], "ISO 8601 dates"),
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
    path = tmp_path / f"d.{extension}"
    {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}[extension](path)
    with pytest.raises(DataError, match=f"row 2 lies before row 1 of its user by '{name}'"):
        taken(path)
    _, values, record = taken(path, sort=True)
    assert values == ["y", "z", "x"]
    assert (record.order, record.unit, record.ties, record.sorted) == (name, unit, 1, True)


def test_a_column_that_is_only_called_a_time_is_let_go(tmp_path):
    _, values, record = taken(put(tmp_path, "d.csv", "user,value,date\na,x,Tue\na,y,Mon\n"))
    assert values == ["x", "y"]
    assert record.order is None
    assert "column 'date' holds no times" in record.sentence
    path = put(tmp_path, "e.csv", "user,value,when,time\na,x,2,1\na,y,1,2\n")
    assert taken(path)[2].order == "time"
    assert taken(path, columns=Columns(time="when"), sort=True)[1] == ["y", "x"]


@pytest.mark.slow
def test_orders_and_users_of_several_columns(tmp_path):
    path = put(
        tmp_path,
        "d.csv",
        "a,b,value,day,clock\n1,x,p,2024-05-02,9:30\n1,x,q,2024-05-01,10:05:30\n1,y,r,2024-05-01,10:05\n",
    )
    columns = Columns("a,b", "value", "day,clock")
    users, values, _ = taken(path, columns=columns, sort=True)
    assert list(zip(users, values, strict=True)) == [("1,y", "r"), ("1,x", "q"), ("1,x", "p")]
    model, out = tmp_path / "m.model", tmp_path / "o.csv"
    names = ("--user-column", "a,b", "--time-column", "day,clock", "--sort")
    assert run("fit", path, "-o", model, "--smoothing", 1, *names) == 0
    assert run("release", path, "-m", model, "-e", 1, "-o", out, *names) == 0
    assert pl.read_csv(out, infer_schema=False).columns == ["a", "b", "day", "clock", "value", "epsilon"]
    assert run("audit", out, "-m", model) == 0


@pytest.mark.slow
def test_several_columns_name_a_person(tmp_path, capsys):
    """Two people whose columns read the same when joined naively, through every command that reads a person's rows."""
    who = [("a", "b,c"), ("a,b", "c"), *(("firm", f"{k}") for k in range(38))]
    rows = [(*who[k % 40], "xyz"[(k // 40 * 7 + k) % 3]) for k in range(40 * 12)]
    path, model, out = tmp_path / "d.csv", tmp_path / "m.model", tmp_path / "o.csv"
    frame = pl.DataFrame(rows, schema=["firm", "badge", "value"], orient="row")
    frame.write_csv(path)
    names = ("--user-column", "firm,badge")
    assert run("fit", path, "-o", model, "--smoothing", 1, *names) == 0
    assert run("release", path, "-m", model, "-e", 1, "--budget", 3, "-o", out, *names) == 0
    released = pl.read_csv(out, infer_schema=False)
    assert released.columns == ["firm", "badge", "value", "epsilon"]
    spent = released.group_by("firm", "badge").agg(pl.len(), pl.col("epsilon").cast(pl.Float64).sum())
    assert spent.height == 40  # each person has an account: nobody is counted with somebody else
    assert set(spent["len"]) == {12}
    for command in ("audit", "decode", "stats"):
        more = ("-o", tmp_path / "guess.csv", "--truth", path) if command == "decode" else ()
        assert run(command, out, "-m", model, *more) == 0
    assert pl.read_csv(tmp_path / "guess.csv", infer_schema=False).columns[:3] == ["firm", "badge", "value"]
    assert run("attack", out, "--truth", path, "-m", model) == 0
    capsys.readouterr()
    made = sv.release(frame, sv.MarkovModel.load(model), epsilon=1.0, user="firm,badge")
    assert made.account.users == 40
    assert made.frame.select("firm", "badge").unique().height == 40
    assert sv.audit(made, sv.MarkovModel.load(model)).report.users == 40


def test_keys_of_several_columns_come_apart_again():
    parts = [pl.Series("a", ["x,y", "\\", "\\,", ""]), pl.Series("b", [",", "\\\\", "z", "\n"])]
    keys = joined(parts, "a,b")
    assert keys.n_unique() == 4
    assert [part.to_list() for part in parted(keys, ["a", "b"])] == [part.to_list() for part in parts]


TIED = "user,time,value\n" + "".join(f"u{k % 3},{k // 12},{'abc'[(k * 7) % 3]}\n" for k in range(240))


@pytest.mark.slow
@pytest.mark.parametrize("sort", [(), ("--sort",)])
def test_ties_keep_the_order_of_the_file(tmp_path, sort):
    path, model = put(tmp_path, "d.csv", TIED), tmp_path / "m.model"
    assert run("fit", path, "-o", model, "--smoothing", 1, *sort) == 0
    plain, kept = tmp_path / "o.csv", tmp_path / "s.csv"
    shared = ("release", path, "-m", model, "-e", 16, *sort, "--seed", 1)
    assert run(*shared, "-o", plain) == 0
    assert run(*shared, "-o", kept, "--state", tmp_path / "s.db") == 0
    raw = pl.read_csv(path)
    for out, order in ((plain, raw.sort("time", "user", maintain_order=True)), (kept, raw)):
        assert pl.read_csv(out).select("user", "time", "value").equals(order)  # at ε = 16 what came is released
        assert run("audit", out, "-m", model) == 1  # it is seeded
    again = kept.read_bytes()
    assert run(*shared, "-o", kept, "--state", tmp_path / "s.db") == 0
    assert kept.read_bytes() == again


HOLES = "user,value,seq\na,,1\na,x,2\na,,3\nb,,1\nb,y,2\na,z,4\nb,,3\n"


@pytest.mark.slow
def test_missing_values(tmp_path):
    path = put(tmp_path, "d.csv", HOLES)
    assert taken(path, missing="drop")[:2] == (["a", "b", "a"], ["x", "y", "z"])
    for chunk in (1, 2, 3, 100):
        users, values, record = taken(path, missing="hold", chunk=chunk)
        assert list(zip(users, values, strict=True)) == [("a", "x"), ("a", "x"), ("b", "y"), ("a", "z"), ("b", "y")]
        assert (record.missing, record.dropped, record.held) == (4, 2, 2)
    assert taken(path, missing="symbol")[1].count("missing") == 4
    pairs = put(tmp_path, "p.csv", "user,x,y\na,1,2\na,,3\na,4,5\n")
    assert taken(pairs, columns=Columns(value="x,y"), missing="hold")[1] == [[1, 2], [1, 2], [4, 5]]
    with pytest.raises(InputError, match="drop, hold or symbol"):
        Source(path, missing="guess")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["drop", "hold", "symbol"])
def test_the_model_remembers_what_to_do(tmp_path, missing, capsys):
    path, model, out = put(tmp_path, "d.csv", HOLES), tmp_path / "m.model", tmp_path / "o.csv"
    assert run("fit", path, "-o", model, "--missing", missing, "--smoothing", 1) == 0
    assert sv.MarkovModel.load(model).alphabet.missing == missing
    assert run("release", path, "-m", model, "-e", 16, "-o", out) == 0
    expected = {"drop": 3, "hold": 5, "symbol": 7}[missing]
    released = pl.read_csv(out)
    assert released.height == expected
    assert released["value"].to_list().count("missing") == (4 if missing == "symbol" else 0)
    assert run("audit", out, "-m", model) == 0
    disclosed = json.loads((tmp_path / "o.csv.meta.json").read_text())
    assert "reading" not in disclosed  # how many values were missing is nobody's business
    assert "dropped" not in json.dumps(disclosed)
    again = tmp_path / "s.csv"
    for _ in range(2):
        assert run("release", path, "-m", model, "-e", 16, "-o", again, "--state", tmp_path / "s.db") == 0
    kept = pl.read_csv(again).sort("seq", "user", maintain_order=True)
    assert kept.select("user", "value").equals(released.select("user", "value"))


@pytest.mark.slow
def test_missing_numbers_are_no_symbol(tmp_path, capsys):
    path = put(tmp_path, "d.csv", "user,value\na,1.5\na,\na,2.5\n")
    assert run("fit", path, "-o", tmp_path / "m", "--bins", 1, "--missing", "symbol") == 2
    assert "not numbers that are cut" in capsys.readouterr().err
    assert run("fit", path, "-o", tmp_path / "m", "--bins", 1, "--missing", "hold") == 0
    assert run("fit", path, "-o", tmp_path / "plain.model", "--bins", 1, "--missing", "drop") == 0
    shared = ("release", path, "-m", tmp_path / "plain.model", "-e", 1, "-o", tmp_path / "o.csv")
    assert run(*shared, "--missing", "symbol") == 2
    nan = tmp_path / "n.parquet"
    pl.DataFrame({"user": ["a", "a"], "value": [1.5, float("nan")]}).write_parquet(nan)
    assert taken(nan, missing="drop")[1] == [1.5]


@pytest.mark.slow
def test_rare_values_are_one_symbol(tmp_path, capsys):
    rows = [(f"u{k}", value) for k in range(12) for value in ("home", "work", f"club {k}", "home")]
    path = tmp_path / "d.csv"
    pl.DataFrame(rows, schema=["user", "value"], orient="row").write_csv(path)
    found = fit_file(path, other=3, smoothing=1.0)
    assert list(found.model.alphabet.values) == ["home", "other", "work"]
    assert (found.pooled, found.model.alphabet.on_unknown) == (12, "other")
    model, out = tmp_path / "m.model", tmp_path / "o.csv"
    assert run("fit", path, "-o", model, "--other", 3, "--smoothing", 1) == 0
    new = put(tmp_path, "new.csv", f"user,value\nx,home\nx,{SECRET}\nx,club 3\n")
    assert run("release", new, "-m", model, "-e", 16, "-o", out) == 0
    assert pl.read_csv(out)["value"].to_list() == ["home", "other", "other"]
    assert run("audit", out, "-m", model) == 0
    spoiled = out.read_text().replace("other", SECRET)
    out.write_text(spoiled)
    capsys.readouterr()
    assert run("audit", out, "-m", model) == 2  # what was released is never pooled
    said = capsys.readouterr().err
    assert "--on-unknown" not in said
    for wrong in (("--other", 0), ("--other", 3, "--bins", 1), ("--other", 3, "--private", 1, "--alphabet", model)):
        assert run("fit", path, "-o", tmp_path / "w", *wrong) == 2
    with pytest.raises(InputError, match='"other"'):
        sv.Alphabet(["a"], on_unknown="other")


def test_the_alphabet_keeps_both_choices():
    from seqveil.core.alphabet import from_json

    names = sv.Alphabet(["a", "missing", "other"], on_unknown="other").with_missing("symbol")
    assert from_json(json.loads(json.dumps(names.to_json()))) == names
    assert names.encode(["b", "a", None]).tolist() == [2, 0, 2]
    assert names.strict.on_unknown == "error"
    assert names.with_policy("hide").missing == "symbol"
    assert sv.Alphabet(["a"]).to_json().keys() == {"kind", "values", "on_unknown"}
    with pytest.raises(InputError, match="drop or hold"):
        sv.Bins([0, 1, 2]).with_missing("symbol")
