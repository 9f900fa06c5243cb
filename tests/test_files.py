"""Files that are read: every format there and back, their order, each refusal one line without a field of the file."""

import contextlib
import csv
import io
import json
import os
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from filed import FORMATS, frame_of, write
from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.files import Chunk, Columns, OrderCheck, Writer, read, reading, sorted_chunks

SECRET = "Zq9secret"
AWKWARD = ["007", "å, b", 'say "hi"', "two\nlines", "tab\there", "日本", " lead", "cr\r\nlf", "'"]
TEXT = st.sampled_from(AWKWARD) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


def refusal(path, columns=None, **options) -> str:
    with pytest.raises(DataError) as caught:
        list(read(path, columns, **options))
    message = str(caught.value)
    assert "\n" not in message
    assert SECRET not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert message.startswith(os.path.basename(path))
    return message


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    users=st.lists(TEXT, min_size=1, max_size=8),
    values=st.sampled_from([TEXT, st.integers(-(2**40), 2**40), st.floats(-1e20, 1e20)]),
    data=st.data(),
    extension=st.sampled_from(["csv", "tsv", "jsonl", "parquet"]),
    chunk=st.integers(1, 9),
    block=st.sampled_from([1, 2, 3, 7, 64, 4096]),
)
def test_what_is_written_is_read_back(tmp_path_factory, users, values, data, extension, chunk, block):
    drawn = data.draw(st.lists(values, min_size=len(users), max_size=len(users)))
    frame = pl.DataFrame({"user": users, "value": drawn})
    how = {"value_type": "text"} if values is TEXT else {}
    path = tmp_path_factory.mktemp("any") / f"data.{extension}"
    with Writer(path) as out:
        out.write(frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK_BYTES", block)  # blocks are cut between records only
        assert_frame_equal(frame_of(path, chunk=chunk, **how), frame)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(body=st.text('ab,"\n', min_size=1, max_size=24), block=st.sampled_from([1, 5, 4096]))
def test_a_csv_is_read_as_the_standard_library_reads_it_or_refused(tmp_path_factory, body, block):
    path = write(tmp_path_factory.mktemp("fuzz"), "d.csv", f"user,value\n{body}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK_BYTES", block)
        try:
            got = frame_of(path, value_type="text").rows()
        except DataError:
            return
    with contextlib.suppress(csv.Error):  # quoted against the rules: then any reading is a guess
        assert got == [tuple(row) for row in csv.reader(io.StringIO(body, newline=""), strict=True) if row]


def test_windows_line_ends_byte_order_mark_and_blank_lines(tmp_path):
    path = write(tmp_path, "data.csv", b"\xef\xbb\xbfuser, value\r\na,1\r\n\r\nb,2\r\n\r\n")
    assert frame_of(path).rows() == [("a", 1), ("b", 2)]
    path = write(tmp_path, "data.jsonl", '\ufeff{"user": "a", "value": 1}\r\n\r\n{"user": "b", "value": 2}')
    assert frame_of(path).rows() == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("fields", "value_type", "expected"),
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
def test_value_types_of_a_csv(tmp_path, fields, value_type, expected):
    path = write(tmp_path, "data.csv", "user,value\n" + "".join(f"u,{field}\n" for field in fields))
    got = frame_of(path, value_type=value_type)["value"].to_list()
    assert got == expected
    assert list(map(type, got)) == list(map(type, expected))


def test_json_keeps_its_own_types_and_can_be_disclosed_otherwise(tmp_path):
    path = write(tmp_path, "d.jsonl", '{"user": 7, "value": 1, "x": [1]}\n{"value": 2, "user": 8}\n')
    assert frame_of(path).rows() == [(7, 1), (8, 2)]
    assert frame_of(path, value_type="text").rows() == [(7, "1"), (8, "2")]
    assert frame_of(path, value_type="number").schema["value"] == pl.Float64


def test_parquet_categories_become_text(tmp_path):
    path = tmp_path / "d.parquet"
    pl.DataFrame({"user": [7], "value": pl.Series(["a"], dtype=pl.Categorical)}).write_parquet(path)
    assert frame_of(path).rows() == [(7, "a")]


@pytest.mark.parametrize("extension", FORMATS)
def test_only_the_columns_asked_for_are_kept(tmp_path, extension):
    path = tmp_path / f"d.{extension}"
    with Writer(path) as out:
        out.write(pl.DataFrame({"name": [SECRET], "lat": [1.5], "id": ["u"], "time": [4], "lon": [2], "seq": [9]}))
    (chunk,) = read(path, Columns(user="id", value="lon,lat"))
    assert isinstance(chunk.values, np.ndarray)
    assert chunk.values.dtype == np.float64
    assert chunk.values.tolist() == [[2.0, 1.5]]
    assert chunk.order is not None
    assert (chunk.order.name, chunk.order.to_list()) == ("seq", [9])
    (chunk,) = read(path, Columns(user="id", value="lat", time="time"))
    assert chunk.order is not None
    assert chunk.order.to_list() == [4]
    (chunk,) = read(path, Columns(user="id", value="seq"))
    assert chunk.order is not None
    assert chunk.order.name == "time"


def test_a_chunk_shows_no_data(tmp_path):
    (chunk,) = read(write(tmp_path, "d.csv", f"user,value\n{SECRET},{SECRET}\n"))
    assert SECRET not in repr(chunk)


def test_standard_input_as_a_whole_and_by_format(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"user,value\na,1\nb,2\n")))
    assert frame_of("-", chunk=1).rows() == [("a", 1), ("b", 2)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"user":"a","value":"x"}')))
    assert frame_of("-", format="jsonl").rows() == [("a", "x")]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("d.csv", "", "is empty"),
        ("d.jsonl", "\n\n", "is empty"),
        ("d.csv", "user,value\n", "holds no rows"),
        ("d.csv", f"user,zone,{SECRET[:2]}\na,{SECRET},1\n", "no column 'value' (it has 'user', 'zone', 'Zq')"),
        ("d.csv", f"{SECRET},4\n{SECRET},5\n", "no column 'user' and no column 'value' (its first line must be"),
        ("d.jsonl", f'{{"user": "{SECRET}"}}\n', "--value-column"),
        ("d.csv", f"user,value,value\na,{SECRET},1\n", "appears twice"),
        ("d.csv", f"user,value\na,{SECRET}\n,{SECRET}\n", "row 2: column 'user' is empty"),
        ("d.csv", f"user,value,x\na,{SECRET},1\n\nb,,2\n", "row 2: column 'value' is empty"),
        ("d.jsonl", f'{{"user":"a","value":"{SECRET}"}}\n{{"user":"b"}}\n', "row 2: column 'value' is empty"),
        ("d.jsonl", f'{{"user":"a","value":"{SECRET}"}}\n{{"user":null,"value":"b"}}\n', "row 2: column 'user' is"),
        ("d.csv", f"user,value,seq\na,{SECRET},\n", "row 1: column 'seq' is empty"),
        ("d.csv", f"user,value,x\na,1,2\nb,{SECRET}\n", "row 2 has 2 fields, the header 3"),
        ("d.csv", f"user,value\na,1\n\nb,2\nb,{SECRET},3\n", "row 3 has 3 fields, the header 2"),
        ("d.csv", f"user,value,x\na,1\nb,{SECRET},3,4\n", "row 1 has 2 fields"),
        ("d.csv", f'user,value\na,1\nb,"{SECRET}\n', "row 2 cannot be read as CSV"),
        ("d.csv", f'user,value\na,1\nb,"{SECRET}"x\n', "row 2 cannot be read as CSV"),
        ("d.csv", b"user,value\na,1\n\xff,Zq9secret\n", "row 2 is not UTF-8"),
        ("d.csv", b"\xff\xfeu\x00s\x00e\x00r\x00", "the header is not UTF-8"),
        ("d.jsonl", f'{{"user":"a","value":1}}\n{{"user":"a","value":{SECRET}}}\n', "row 2 is not a JSON object"),
        ("d.jsonl", f'{{"user":"a","value":1}}\n\n["{SECRET}"]\n', "row 2 is not a JSON object"),
        ("d.jsonl", f'{{"user":"{SECRET}","value":{{"a":1}}}}\n', "must hold text or numbers"),
        ("d.parquet", f"{SECRET}", "cannot be read as Parquet"),
        ("d.parquet", "", "cannot be read as Parquet"),
        ("d.csv.gz", SECRET, "cannot be read as gzip"),
        ("d.gz", SECRET, "expected an extension .csv"),
        ("d", SECRET, "expected an extension .csv"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, name, content, expected):
    assert expected in refusal(write(tmp_path, name, content))


def test_a_missing_file_a_folder_and_a_pipe_of_parquet(tmp_path):
    assert "no such file" in refusal(tmp_path / "none.csv")
    (tmp_path / "dir.csv").mkdir()
    assert "is a folder" in refusal(tmp_path / "dir.csv")
    assert "cannot pass through a pipe" in refusal("-", format="parquet")
    with pytest.raises(InputError, match="format"):
        read(tmp_path / "none.csv", format="xlsx")


@pytest.mark.parametrize("value", ["x,y,z", "user", ""])
def test_column_names_must_make_sense(value):
    with pytest.raises(InputError, match="different names"):
        Columns(value=value)


def test_parquet_refusals(tmp_path):
    path = tmp_path / "d.parquet"
    pl.DataFrame({"user": ["a", None], "value": [SECRET, SECRET]}).write_parquet(path)
    assert "row 2: column 'user' is empty" in refusal(path)
    pl.DataFrame({"user": [SECRET, "b"], "value": [1.0, float("nan")]}).write_parquet(path)
    assert "row 2: column 'value' must hold finite numbers" in refusal(path)
    pl.DataFrame({"user": [SECRET], "zone": [1]}).write_parquet(path)
    assert "no column 'value' (it has 'user', 'zone')" in refusal(path)
    pl.DataFrame({"user": [], "value": []}, schema={"user": pl.String, "value": pl.Int64}).write_parquet(path)
    assert "holds no rows" in refusal(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot be read as Parquet" in refusal(path)


@pytest.mark.parametrize("field", [SECRET, "nan", "inf", "1e999"])
def test_a_number_that_is_none_is_refused_by_row(tmp_path, field):
    path = write(tmp_path, "d.csv", f"user,value,x,y\na,1,2,3\nb,{field},{field},4\n")
    assert "row 2: column 'value' must hold finite numbers" in refusal(path, value_type="number")
    assert "row 2: column 'x' must hold finite numbers" in refusal(path, Columns(value="x,y"))


@pytest.mark.parametrize("field", [SECRET, "1.5"])
def test_a_type_that_changes_later_is_refused_by_row(tmp_path, monkeypatch, field):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 8)
    path = write(tmp_path, "d.csv", "user,value\na,1\na,1\na,2\na,2\n" + f"a,{field}\n")
    assert "row 5: column 'value' must hold whole numbers" in refusal(path)
    quoted = json.dumps(field) if field == SECRET else field
    path = write(tmp_path, "d.jsonl", '{"user":"a","value":1}\n' * 4 + f'{{"user":"a","value":{quoted}}}\n')
    assert "row 5 holds another type" in refusal(path)


def test_a_quote_never_closed_does_not_swallow_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(reading, "RECORD_BYTES", 4 << 10)
    path = write(tmp_path, "d.csv", 'user,value\na,"1\n' + f"a,{SECRET}\n" * 2000)
    assert "never closed" in refusal(path)


def order_by_hand(users, times):
    """Row by row: the two rows of the first offence, or None, and how many ties come before it."""
    last, ties = {}, 0
    for row, (user, time) in enumerate(zip(users, times, strict=True), start=1):
        if user in last and time < last[user][0]:
            return (last[user][1], row), ties
        ties += user in last and time == last[user][0]
        last[user] = (time, row)
    return None, ties


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=14),
    climb=st.integers(0, 2),
    chunk=st.integers(1, 5),
    kind=st.sampled_from(["whole", "decimal", "time"]),
)
def test_the_order_check_agrees_with_a_walk_through_the_rows(rows, climb, chunk, kind):
    users = [user for user, _ in rows]
    steps = [climb * i + step for i, (_, step) in enumerate(rows)]
    times = {
        "whole": pl.Series("time", steps),
        "decimal": pl.Series("time", [step / 4 for step in steps]),
        "time": pl.Series("time", [f"2024-01-01 00:{step // 60:02}:{step % 60:02}" for step in steps]),
    }[kind]
    check, (expected, ties), got = OrderCheck("d.csv"), order_by_hand(users, steps), None
    try:
        for start in range(0, len(rows), chunk):
            part = pl.Series(users[start : start + chunk])
            check.check(Chunk(part, part, times[start : start + chunk], start + 1 + np.arange(len(part))))
    except DataError as error:
        got = str(error)
    if expected is None:
        assert got is None
        assert check.taken.ties == ties
    else:
        earlier, later = expected
        assert got is not None
        assert got.startswith(
            f"d.csv: row {later} lies before row {earlier} of its user by 'time'; sort the file by it"
        )


def test_times_as_text_are_compared_as_times():
    text = ["2024-05-01", "2024-05-01T02:30+02:00", "2024-05-01T01:40:00+01:00", "2024-05-01 00:40:00.25Z"]
    users = pl.Series(["a"] * 3)
    OrderCheck().check(Chunk(users, users, pl.Series("time", text[1:]), np.arange(1, 4)))
    with pytest.raises(DataError, match="row 2 lies before row 1"):
        OrderCheck().check(Chunk(users, users, pl.Series("time", [text[2], text[0], text[1]]), np.arange(1, 4)))
    with pytest.raises(DataError, match="row 3: column 'time' must hold numbers or ISO 8601") as caught:
        OrderCheck().check(Chunk(users, users, pl.Series("time", [*text[:2], SECRET]), np.arange(1, 4)))
    assert SECRET not in str(caught.value)


def test_the_order_of_a_padded_csv_column_is_numeric(tmp_path):
    path = write(tmp_path, "d.csv", "user,value,seq\na,x,09\na,y,10\na,z,8\n")
    check = OrderCheck(path)
    first, second, third = read(path, chunk=1)
    check.check(first)
    check.check(second)
    with pytest.raises(DataError, match=r"^d.csv: row 3 lies before row 2"):
        check.check(third)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), min_size=1, max_size=12), chunk=st.integers(1, 5)
)
def test_sorting_is_stable_and_remembers_the_rows(tmp_path_factory, rows, chunk):
    path = tmp_path_factory.mktemp("sort") / "d.parquet"
    users, times, places = [user for user, _ in rows], [time for _, time in rows], np.arange(len(rows))
    pl.DataFrame({"user": users, "time": times, "x": places, "y": places + 0.5}).write_parquet(path)
    expected = sorted(range(len(rows)), key=lambda i: rows[i][1])
    for value in ("x", "x,y"):
        parts = list(sorted_chunks(path, Columns(value=value), chunk))
        assert all(part.n == chunk for part in parts[:-1])
        assert [part.row(i) - 1 for part in parts for i in range(part.n)] == expected
        got = np.concatenate([np.asarray(part.values) for part in parts])
        assert (got if value == "x" else got[:, 0]).tolist() == expected
        assert [user for part in parts for user in part.users] == [rows[i][0] for i in expected]


def test_sorting_needs_an_order(tmp_path):
    with pytest.raises(DataError, match="no column to sort by"):
        list(sorted_chunks(write(tmp_path, "d.csv", "user,value\na,1\n")))
