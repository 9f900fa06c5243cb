"""Data of one's own on the page: a look at a file, its columns, and what is loaded, refused and forgotten."""

from __future__ import annotations

import json
import random
import sys

import polars as pl
import pytest

from seqveil.core.errors import InputError
from seqveil.interfaces.files.inspection import inspect
from seqveil.interfaces.studio import exports
from seqveil.interfaces.studio.exports import steps
from seqveil.interfaces.studio.sandbox import KEPT, LOADED, Gone, Sandbox
from seqveil.interfaces.studio.sources import loaded
from seqveil.interfaces.studio.uploads import Cut, looked_at, rows_of_file, rows_of_text
from studios import finish

PAGES = ("home", "item", "cart")
DRAWN = random.Random(4)
CLEAN = "user,value\n" + "".join(f"u{k % 12},{DRAWN.choice(PAGES)}\n" for k in range(240))
HOLES = "user,value\n" + "".join(f"u{k % 12},{'' if k % 10 == 3 else DRAWN.choice(PAGES)}\n" for k in range(240))
DAYS = "Kunde Nr.;am;was\n" + "".join(
    f"k{k % 3};0{1 + k % 3}.03.2026 08:{k // 6:02d};{'abc'[k % 7 % 3]}\n" for k in range(180)
)


def test_rows_without_a_value_are_left_out_as_the_look_at_them_says():
    said = dict(looked_at(HOLES)["lines"])
    assert "24 rows without a value: 24 dropped" in said["read"]
    found = Sandbox().load({"csv": HOLES, "columns": {"user": "user", "value": "value"}})
    assert "216 events in 12 streams, 3 symbols" in found["about"]
    assert "Left out: 24 rows without a value" in found["about"]


def test_a_file_with_holes_goes_the_same_way_on_the_command_line(tmp_path):
    (tmp_path / "holes.csv").write_text(HOLES)
    there, here = rows_of_file(str(tmp_path / "holes.csv"), Cut()), rows_of_text(HOLES, Cut())
    assert there == here
    (tmp_path / "timed.csv").write_text(
        "time," + "".join(f"{line}\n{k}," for k, line in enumerate(HOLES.split())) + "u0,"
    )
    timed = loaded(rows_of_file(str(tmp_path / "timed.csv"), Cut(time="time")), Cut(time="time"), "data")
    assert timed.model.alphabet.missing == "drop"
    one, two = loaded(there, Cut(), "data").model, loaded(here, Cut(), "own").model
    assert one.fingerprint == two.fingerprint
    assert one.alphabet.missing == "drop"  # so `seqveil release` follows it
    whole = loaded(rows_of_text(CLEAN, Cut()), Cut(), "own")
    assert whole.model.alphabet.missing is None
    assert "Left out" not in whole.about


def test_days_as_people_write_them_are_nobodys_name_and_a_guess_is_asked_about():
    found = looked_at(DAYS)
    assert found["chosen"]["user"] == "Kunde Nr."
    asked = [text for name, text in found["lines"] if name == "question"]
    assert "is 'Kunde Nr.' whose event it is? It is a guess, because its values come again" in asked
    lines = enumerate(DAYS.splitlines())
    holey = "\n".join(f"{line};{'' if k % 2 else f'm{k % 9}'}" for k, line in lines)  # not everybody has one
    assert looked_at(holey)["chosen"]["user"] == "Kunde Nr."
    assert not any("guess" in text for _, text in looked_at(CLEAN)["lines"])


def test_a_column_with_a_comma_in_its_name_is_to_be_renamed():
    text = CLEAN.replace("user,value", 'user,"a,b"')
    for given in (None, Cut("user", "a,b")):
        assert "comma in its name" in looked_at(text, given=given)["problem"]


@pytest.mark.slow
def test_the_script_reads_codes_that_look_like_numbers_as_text(tmp_path, monkeypatch):
    text = CLEAN.replace("home", "01").replace("item", "02").replace("cart", "03")
    sandbox = Sandbox()
    name = sandbox.load({"csv": text, "columns": {"user": "user", "value": "value"}})["name"]
    shown = finish(sandbox.show, source=name, events=10, epsilon=1.0)
    source = loaded(rows_of_text(text, Cut()), Cut(), "own")
    exports.unpack(shown["configuration"], source, tmp_path / "page")
    monkeypatch.chdir(tmp_path)
    said = {}
    exec(shown["snippets"]["python"], said)
    assert len(said["released"]) == 10
    assert set(said["released"]) <= {"01", "02", "03"}


# data of one's own

TEXT = "user,value,note\nann,3,a\nann,4,b\nbob,3,c\nann,4,d\nbob,9,e\n"


def test_loaded_text_and_file_give_the_same_source(tmp_path):
    texts = {
        "numbers": (TEXT, Cut()),
        "words": ('user,value\na,"x, y"\na,z\nb,z\nb,"x, y"\n', Cut()),
        "codes": ("user,value\na,007\na,008\na,007\n", Cut()),
        "points": ("user,x,y\n" + "".join(f"u,{k % 7}.5,{k % 5}\n" for k in range(40)), Cut(value="x,y", cells=4)),
        "bins": ("user,value\n" + "".join(f"u,{k * 0.37}\n" for k in range(60)), Cut(cells=7)),
    }
    for name, (text, cut) in texts.items():
        (tmp_path / "d.csv").write_text(text)
        one, two = loaded(rows_of_text(text, cut), cut, "a"), loaded(rows_of_file(tmp_path / "d.csv", cut), cut, "b")
        assert one.model.fingerprint == two.model.fingerprint, name
        assert [codes.tolist() for codes in one.streams] == [codes.tolist() for codes in two.streams]
    assert one.model.n == 7
    assert loaded(rows_of_text(texts["codes"][0], Cut()), Cut(), "c").labels == ["007", "008"]
    assert loaded(rows_of_text("\ufeffvalue\r\n1\r\n2\r\n1\r\n", Cut("")), Cut(""), "d").labels == ["1", "2"]


BAD = {
    "empty": "",
    "header alone": "user,value\n",
    "no column": "person,secret-77\na,b\n",
    "two of a name": "user,value,value\na,secret-77,b\na,b,b\n",
    "short row": "user,value\na\n",
    "long row": "user,value\na,secret-77,c\n",
    "blank value": "user,value\na,secret-77\na,\n",
    "open quote": 'user,value\na,"secret-77\n',
    "no value": "user,value\na,\na,\n",
    "one event": "user,value\na,secret-77\nb,secret-77\n",
    "too many values": "user,value\n" + "".join(f"a,secret-77-{k}\n" for k in range(500)),
    "null": "user,value\na,\0secret-77\0\n",
}
BAD_LINES = {
    "text": "secret-77",
    "a list": '["secret-77"]\n',
    "cut": '{"user": "secret-77"',
    "no line": "",
    "number": "7\n",
}


@pytest.mark.parametrize("name", [*BAD, *BAD_LINES])
def test_bad_data_is_disclosed_by_its_row_alone(name):
    lines = {"csv": BAD_LINES.get(name), "file": "own.jsonl"}
    for act in (Sandbox().load, Sandbox().inspect) if name in BAD_LINES else (Sandbox().load,):
        with pytest.raises(InputError) as caught:
            act(lines if name in BAD_LINES else {"csv": BAD[name]})
        assert "secret-77" not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "row 1" in str(caught.value) or not (BAD_LINES.get(name) or name in ("short row", "long row"))


def test_loaded_data_goes_when_nobody_looks_at_it_any_more():
    now = [0.0]
    sandbox = Sandbox(clock=lambda: now[0])
    first = sandbox.load({"csv": TEXT})["name"]
    now[0] = KEPT - 1
    assert finish(sandbox.show, source=first, events=3, epsilon=1.0)["complete"]
    now[0] += KEPT - 1
    second = sandbox.load({"csv": TEXT})["name"]
    assert first != second
    now[0] += 2
    sandbox.load({"csv": TEXT})
    with pytest.raises(Gone):
        sandbox.show({"source": first, "epsilon": 1.0})
    assert not any(run.source.name == first for run in sandbox._runs.values())
    for _ in range(LOADED):
        sandbox.load({"csv": TEXT})
    with pytest.raises(Gone):
        sandbox.show({"source": second, "epsilon": 1.0})
    assert "array" not in repr(sandbox._loaded)
    assert "ann" not in repr(sandbox._loaded)


# a look at a file

WEEKS = "person,week,hour,tile\n" + "".join(f"p{k // 8},{k % 8 // 4},{k % 4},t{k * 7 % 3}\n" for k in range(160))


def test_a_week_is_never_the_value():
    found = looked_at(WEEKS)
    assert found["chosen"] == {"user": "person", "value": "tile", "time": "week,hour", "cells": None}
    assert dict(found["lines"])["people"].startswith("20 people, 160 events")
    alone = looked_at("person,week\n" + "".join(f"p{k // 4},{k % 4}\n" for k in range(40)))
    assert (alone["chosen"]["user"], alone["chosen"]["value"]) == ("person", "")
    assert alone["problem"].startswith("no column is plainly the value")
    one = looked_at("week,page\n" + "".join(f"{k},{'ab'[k % 2]}{'x' * (k % 5)}\n" for k in range(8)))
    assert (one["chosen"]["user"], one["chosen"]["value"], one["chosen"]["time"]) == ("", "page", "week")
    assert inspect(
        pl.DataFrame({"who": list("aabb") * 5, "day": [1, 2] * 10, "state": list("xyyx") * 5})
    ).command.endswith("--value-column state --time-column day --sort")


ODD = {
    "half a character": ('{"user": "\\ud800", "value": "a"}\n{"user": "\\ud800", "value": "b"}\n', "own.jsonl"),
    "no name": ("user,,value\na,3,x\na,2,y\n", "own.csv"),
    "a value that rises": ("user,value\na,1\na,2\na,3\na,4\n", "own.csv"),
    "huge": ("user,value\n" + "a,1e308\na,-1e308\na,1\n" * 20, "own.csv"),
    "one value": ("user,value\na,x\na,x\n", "own.csv"),
}


@pytest.mark.parametrize(("text", "file"), ODD.values(), ids=ODD.keys())
def test_odd_files_are_looked_at_loaded_and_shown(text, file):
    sandbox = Sandbox()
    found = sandbox.inspect({"csv": text, "file": file})
    assert (found["chosen"]["value"], found["problem"]) == ("value", "")
    made = sandbox.load({"csv": text, "file": file, "columns": found["chosen"]})
    shown = sandbox.show({"source": made["name"], "events": 2, "mechanism": "balanced", "epsilon": 1.0})
    json.dumps(shown, allow_nan=False)


def test_columns_that_are_chosen_are_looked_at_as_chosen():
    found = Sandbox().inspect({"csv": WEEKS, "columns": {"user": "", "value": "week", "time": None}})
    assert found["chosen"] == {"user": "", "value": "week", "time": None, "cells": None}
    assert dict(found["lines"])["people"].startswith("1 people, 160 events")
    for columns in ({"value": "tile", "time": "tile"}, {"user": "tile", "value": "tile"}, {"value": ""}):
        with pytest.raises(InputError, match="choose a different column for each part"):
            Sandbox().inspect({"csv": WEEKS, "columns": {"user": "person", **columns}})
    wrong = Sandbox().inspect({"csv": WEEKS, "columns": {"user": "person", "value": "hour", "time": "tile"}})
    assert "ISO 8601" in wrong["problem"]


SHUFFLED = "person,clock,page\n" + "".join(f"p{k % 2},{(k * 7) % 20:02d}:00,{'abc'[k % 3]}\n" for k in range(20))
EVENTS = [(str(k % 2), (k * 7) % 20, "abc"[k % 3]) for k in range(20)]
LINES = "".join(f'{{"person": {u}, "at": "2024-05-01T{hour:02d}:00:00Z", "page": "{v}"}}\n' for u, hour, v in EVENTS)


def test_rows_are_put_in_the_order_of_their_times_from_text_and_from_a_file(tmp_path):
    cut = Cut("person", "page", time="at")
    (tmp_path / "own.jsonl").write_text(LINES)
    one, two = rows_of_text(LINES, cut, "own.jsonl"), rows_of_file(str(tmp_path / "own.jsonl"), cut)
    expected = {name: [v for _, u, v in sorted((hour, u, v) for u, hour, v in EVENTS) if u == name] for name in "01"}
    for users, values in (one, two):
        assert {name: [v for u, v in zip(users, values[0], strict=True) if u == name] for name in "01"} == expected
    sources = [loaded(rows, cut, "own") for rows in (one, two)]
    assert sources[0].model.fingerprint == sources[1].model.fingerprint
    with pytest.raises(InputError):  # a time of day is none by itself
        rows_of_text(SHUFFLED, Cut("person", "page", time="clock"))


def test_one_stream_without_a_user_is_released_from_what_was_unpacked(tmp_path):
    (tmp_path / "own.csv").write_text("value\n" + "a\nb\nb\n" * 5)
    cut = Cut("")
    source = loaded(rows_of_file(str(tmp_path / "own.csv"), cut), cut, "data")
    assert "release page/stream.csv --model" in steps(source)
    assert "--user-column" not in steps(source)


opened: list[str] | None = None


def test_nothing_that_is_loaded_is_written_to_a_disk():
    global opened
    sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" and opened is not None
                     and given[1] not in (None, "r", "rb") else None)  # fmt: skip
    sandbox = Sandbox()
    opened = []
    chosen = sandbox.inspect({"csv": WEEKS, "file": "own.csv"})["chosen"]
    made = sandbox.load({"csv": WEEKS, "file": "own.csv", "columns": chosen})
    sandbox.show({"source": made["name"], "events": 4, "epsilon": 1.0})
    written, opened = opened, None
    assert written == []
