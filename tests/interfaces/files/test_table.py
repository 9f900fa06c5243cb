"""Files that are read: every format there and back, each refusal one line without a field of the file."""

import contextlib
import csv
import gzip
import io
import os
import sys

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from filed import frame_of, write
from seqveil.core.errors import DataError, InputError
from seqveil.core.model import Reading
from seqveil.interfaces.files.events import read_events
from seqveil.interfaces.files.table import separator_of, table_of_bytes
from seqveil.interfaces.files.writing import write_frame

SECRET = "Zq9secret"
AWKWARD = ["007", "å, b", 'say "hi"', "two\nlines", "tab\there", "日本", " lead", "cr\r\nlf", "'"]
TEXT = st.sampled_from(AWKWARD) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


def refusal(path, *how, **options) -> str:
    with pytest.raises(DataError) as caught:
        frame_of(path, *how, **options)
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
)
def test_what_is_written_is_read_back(tmp_path_factory, users, values, data, extension):
    drawn = data.draw(st.lists(values, min_size=len(users), max_size=len(users)))
    frame = pl.DataFrame({"user": users, "value": drawn})
    path = tmp_path_factory.mktemp("any") / f"data.{extension}"
    write_frame(path, frame)
    assert_frame_equal(frame_of(path, kind="text" if values is TEXT else "auto"), frame)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(body=st.text('ab,"\n', min_size=1, max_size=24))
def test_a_csv_is_read_as_the_standard_library_reads_it_or_refused(tmp_path_factory, body):
    path = write(tmp_path_factory.mktemp("fuzz"), "d.csv", f"user,value\n{body}")
    try:
        got = frame_of(path, kind="text").rows()
    except DataError:
        return
    with contextlib.suppress(csv.Error):  # quoted against the rules: then any reading is a guess
        assert got == [tuple(row) for row in csv.reader(io.StringIO(body, newline=""), strict=True) if row]


def test_windows_line_ends_byte_order_mark_and_blank_lines(tmp_path):
    path = write(tmp_path, "data.csv", b"\xef\xbb\xbfuser, value\r\na,1\r\n\r\nb,2\r\n\r\n")
    assert frame_of(path).rows() == [("a", 1), ("b", 2)]
    path = write(tmp_path, "data.jsonl", '\ufeff{"user": "a", "value": 1}\r\n\r\n{"user": "b", "value": 2}')
    assert frame_of(path).rows() == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["d.csv", "d.tsv"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_any_separator_is_found_in_the_first_lines(tmp_path, separator, name, mark):
    text = mark + f'user{separator}value\nann{separator}"x{separator}y"\nbob{separator}z\n'
    rows = [("ann", f"x{separator}y"), ("bob", "z")]
    assert frame_of(write(tmp_path, name, text)).rows() == rows
    packed = write(tmp_path, f"{name}.gz", gzip.compress(text.encode()))
    events = read_events(packed, Reading())
    assert events.frame.select("user", "value").rows() == rows
    assert events.taken.form.endswith(", compressed")
    assert table_of_bytes(packed.read_bytes(), f"{name}.gz").frame.rows() == rows


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user,value\na,1;2\nb,3\n", ","),
        ("user;value\na;1,5\nb;2,5\n", ";"),
        ('"user","a;b;c",value\nx,y,z\n', ","),
        ("user value\n", ","),
        ("user|value|note\na|b|1;2;3\n", "|"),
        ("user,value;x\na,b;c\n", None),
        ("who;what,where\na;b,c\n", None),
        ("user;value,user\nvalue;a,b\n", None),
    ],
)
def test_separators_in_doubt(text, expected):
    assert separator_of(text.encode(), ",") == expected


def test_standard_input_and_its_format(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"user,value\na,1\nb,2\n")))
    assert frame_of("-").rows() == [("a", 1), ("b", 2)]
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
        ("d.jsonl", f'{{"user": "{SECRET}"}}\n', "name yours with value="),
        ("d.jsonl", f'{{"{SECRET}": 1}}\n', "no column 'user' and no column 'value' (its rows have other keys); name"),
        ("d.csv", f"user,value,value\na,{SECRET},1\n", "appears twice"),
        ("d.csv", "user;value,user\nvalue;a,b\n", "cut in two ways"),
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
        ("d.jsonl", f'{{"user":"{SECRET}","value":{{"a":1}}}}\n', "column 'value' must hold text"),
        ("d.jsonl", f'{{"user":"a","value":1}}\n{{"user":"a","user":"{SECRET}","value":1}}\n', "row 2 is not a JSON"),
        ("d.jsonl", f'{{"user":"{SECRET}\\ud800","value":1}}\n', "row 1 is not a JSON object of UTF-8 text"),
        ("d.jsonl", '{"user":"a","value":1}\n{"user":"a","value":NaN}\n', "row 2: column 'value' is empty"),
        ("d.jsonl", "[" * 100_000, "row 1 is not a JSON object"),
        (
            "d.jsonl",
            f'{{"user":"a","value":"x"}}\n{{"user":"a","value":["{SECRET}"]}}\n',
            "column 'value' must hold text or numbers",
        ),
        ("d.parquet", f"{SECRET}", "cannot be read as Parquet"),
        ("d.parquet", "", "cannot be read as Parquet"),
        ("d.csv.gz", SECRET, "cannot be read as gzip"),
        ("d.parquet.gz", b"PAR1", "expected an extension"),
        ("d.gz", SECRET, "expected an extension .csv"),
        ("d", SECRET, "expected an extension .csv"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, name, content, expected):
    assert expected in refusal(write(tmp_path, name, content))


def test_a_missing_file_a_folder_and_a_pipe_of_parquet(tmp_path):
    for name in ("none.csv", "none.parquet"):
        assert "no such file" in refusal(tmp_path / name)
    (tmp_path / "dir.csv").mkdir()
    assert "is a folder" in refusal(tmp_path / "dir.csv")
    assert "cannot pass through a pipe" in refusal("-", format="parquet")
    with pytest.raises(InputError, match="format"):
        frame_of(tmp_path / "none.csv", format="xlsx")


def test_parquet_refusals(tmp_path):
    path = tmp_path / "d.parquet"
    pl.DataFrame({"user": ["a", None], "value": [SECRET, SECRET]}).write_parquet(path)
    assert "row 2: column 'user' is empty" in refusal(path)
    pl.DataFrame({"user": [SECRET, "b"], "value": [1.0, float("inf")]}).write_parquet(path)
    assert "row 2: column 'value' must hold finite numbers" in refusal(path)
    pl.DataFrame({"user": [SECRET, "b"], "value": [1.0, float("nan")]}).write_parquet(path)
    assert "row 2: column 'value' is empty" in refusal(path)
    pl.DataFrame({"user": [], "value": []}, schema={"user": pl.String, "value": pl.Int64}).write_parquet(path)
    assert "holds no rows" in refusal(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot be read as Parquet" in refusal(path)


def test_a_quote_never_closed_is_said(tmp_path):
    path = write(tmp_path, "d.csv", 'user,value\na,"1\n' + f"a,{SECRET}\n" * 2000)
    assert "row 1 cannot be read as CSV; close its quotes" in refusal(path)
