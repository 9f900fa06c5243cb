"""The walk of the page without a browser: a look at a file, secrets of every kind, the file that it hands out."""

import json
import sys
import tomllib

import polars as pl
import pytest

from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.interfaces.cli import main
from seqveil.interfaces.commands.configuration import configuration
from seqveil.interfaces.commands.options import SettingOptions
from seqveil.interfaces.files.inspection import inspect
from seqveil.interfaces.studio import Ask, builtin, picture
from seqveil.interfaces.studio.exports import steps, toml, unpack
from seqveil.interfaces.studio.sandbox import Sandbox
from seqveil.interfaces.studio.sources import loaded
from seqveil.interfaces.studio.uploads import Cut, looked_at, rows_of_file, rows_of_text

POWER = {"source": "power", "distortion": "absolute", "epsilon": 1.0, "events": 8}
KEPT = {**POWER, "mechanism": "guarded", "epsilon": None, "secret": 8, "secret_epsilon": 1.0}
SETTINGS = {
    "plain": {"source": "clicks", "epsilon": 1.0, "events": 8},
    "pulsed with a budget": {**POWER, "every": 4, "budget": 7.5, "when_spent": "stop"},
    "window": {**POWER, "window": 2.0, "window_releases": 5},
    "batches": {**POWER, "mechanism": "tree", "batch": 4, "epsilon": 0.7},
    "places": {"source": "gaze", "distortion": "euclidean", "mechanism": "tree", "epsilon": 1.0, "events": 4},
    "ever": KEPT,
    "each run": {**KEPT, "secret_window": 4},
    "count": {**KEPT, "secret_kind": "count", "secret_count": 3},
    "followed_by": {**KEPT, "secret_kind": "followed_by", "secret_then": 2, "epsilon": 1.5},
    "zone": {**KEPT, "secret_kind": "zone", "secret_radius": 1.5},
    "a zone on a grid": {
        "source": "gaze", "distortion": "euclidean", "events": 3, "mechanism": "guarded", "epsilon": None, "secret": 44,
        "secret_epsilon": 1.0,
        "secret_kind": "zone", "secret_radius": 1.01,
    },
}  # fmt: skip


def handed_out(asked):
    source, ask = builtin(asked["source"]), Ask.of(asked)
    setting = ask.setting(source.model)
    return source, ask, setting, picture(source, ask)


@pytest.mark.slow
@pytest.mark.parametrize("asked", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_configuration_file_is_the_setting_that_is_shown_and_releases_it(asked, tmp_path, monkeypatch, capfd):
    source, ask, setting, shown = handed_out(asked)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seqveil.toml").write_text(shown["files"]["toml"])
    unpack(shown["configuration"], source, tmp_path / "page")
    found = configuration("seqveil.toml", list(SettingOptions.__dataclass_fields__))
    if "secrets" in found:
        found["secrets"] = tmp_path / found["secrets"]
    model = MarkovModel.load("page/model.npz")
    assert SettingOptions(**found).setting(model).to_dict() == setting.to_dict()
    assert shown["risk"]["colour"] in shown["files"]["toml"]
    _, release, audit = shown["files"]["steps"].strip().splitlines()
    assert main([*release.split()[1:], "--yes", "--seed", str(ask.seed)]) == 0
    names = ["x", "y"] if source.describe()["grid"] else ["value"]
    table = pl.read_csv("released.csv")
    made = [code for code in shown["series"]["released"] if code >= 0]
    rows = list(zip(*(table[name] for name in names), strict=True)) if len(names) > 1 else table["value"].to_list()
    assert model.alphabet.encode(rows).tolist() == made
    assert main([*audit.split()[1:]]) == 1  # a seeded release is not private, and the audit says so
    capfd.readouterr()


def test_secrets_of_every_kind_are_said_in_words():
    said = {name: picture(builtin("power"), Ask.of({**asked, "events": 4}))["secret"]["about"]
            for name, asked in SETTINGS.items() if asked.get("secret") == 8}  # fmt: skip
    assert said == {
        "ever": "whether 8 occurs among the first 4 events",
        "each run": "whether 8 occurs in a run of 4 events (the first 4, the next 4 and so on)",
        "count": "whether 8 occurs at least 3 times among the first 4 events",
        "followed_by": "whether 8 is followed, at once or later, by 2 among the first 4 events",
        "zone": "whether the zone of radius 1.5 around (8) is entered among the first 4 events",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret_kind": "zone", "source": "clicks", "distortion": "hamming"}, {"secret_kind": "followed_by"},
        {"secret_kind": "followed_by", "secret_then": 10}, {"secret_kind": "during"}, {"secret_kind": "joint"},
        {"secret_kind": "count", "secret_count": 0},
        {"secret_kind": "zone", "secret_radius": -1}, {"secret_window": 0}, {"secret_kind": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_secret_that_makes_no_sense_is_refused_in_one_line(wrong):
    with pytest.raises(InputError) as caught:
        Sandbox().show({**KEPT, **wrong})
    assert "\n" not in str(caught.value)


def test_no_total_that_protects_nothing_is_green():
    plain, spread, unsound, kept = (
        picture(builtin("clicks"), Ask.of({"source": "clicks", "events": 50, **more}))["risk"]
        for more in (
            {"epsilon": 1.0},
            {"budget": 1.0, "epsilon": 0.02},
            {"mechanism": "crr", "epsilon": 1.0},
            {"mechanism": "guarded", "secret": 16, "secret_epsilon": 1.0},
        )
    )
    assert (plain["colour"], spread["colour"], unsound["colour"], kept["colour"]) == (
        "red",
        "unchecked",
        "red",
        "unchecked",
    )
    assert "step 3" in plain["remedy"]
    assert spread["remedy"] == kept["remedy"] == ""
    assert "does not keep to its ε" in unsound["why"]
    assert kept["sentences"][0].startswith("the secret, over its events: a suspicion of 1 % becomes at most 2.7 %")


@pytest.mark.slow
def test_ways_are_compared_at_the_same_promise():
    sandbox = Sandbox()
    for asked in ({"source": "clicks", "events": 20, "epsilon": 2.0, "every": 3}, {**KEPT, "events": 20}):
        while not (found := sandbox.compare(asked))["complete"]:
            pass
        chosen = [way for way in found["ways"] if way["chosen"]]
        assert len(chosen) == 1
        assert len(found["ways"]) >= 3
        assert all(way["decoded"] >= 0 for way in found["ways"])
        json.dumps(found, allow_nan=False)
    assert chosen[0]["decoded"] < min(way["decoded"] for way in found["ways"] if not way["chosen"])


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
    "half a character": (
        '{"user": "\\ud800", "value": "a"}\n{"user": "\\ud800", "value": "b"}\n',
        "own.jsonl",
        "value",
    ),
    "no name": ("user,,value\na,3,x\na,2,y\n", "own.csv", "value"),
    "a value that rises": ("user,value\na,1\na,2\na,3\na,4\n", "own.csv", "value"),
    "huge": ("user,value\n" + "a,1e308\na,-1e308\na,1\n" * 20, "own.csv", "value"),
    "one value": ("user,value\na,x\na,x\n", "own.csv", "value"),
}


@pytest.mark.parametrize(("text", "file", "value"), ODD.values(), ids=ODD.keys())
def test_odd_files_are_looked_at_loaded_and_shown(text, file, value):
    sandbox = Sandbox()
    found = sandbox.inspect({"csv": text, "file": file})
    assert (found["chosen"]["value"], found["problem"]) == (value, "")
    made = sandbox.load({"csv": text, "file": file, "columns": found["chosen"]})
    shown = sandbox.show({"source": made["name"], "events": 2, "mechanism": "balanced", "epsilon": 1.0})
    json.dumps(shown, allow_nan=False)


def test_columns_that_are_chosen_are_looked_at_as_chosen():
    found = Sandbox().inspect({"csv": WEEKS, "columns": {"user": "", "value": "week", "time": None}})
    assert found["chosen"] == {"user": "", "value": "week", "time": None, "cells": None}
    assert dict(found["lines"])["people"].startswith("1 people, 160 events")
    for columns in (
        {"user": "person", "value": "tile", "time": "tile"},
        {"user": "tile", "value": "tile"},
        {"value": ""},
    ):
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


BAD_LINES = {
    "text": "secret-77",
    "a list": '["secret-77"]\n',
    "cut": '{"user": "secret-77"',
    "empty": "",
    "number": "7\n",
}


@pytest.mark.parametrize("text", BAD_LINES.values(), ids=BAD_LINES.keys())
def test_bad_lines_are_told_by_their_row_alone(text):
    for act in (Sandbox().load, Sandbox().inspect):
        with pytest.raises(InputError) as caught:
            act({"csv": text, "file": "own.jsonl"})
        assert "secret-77" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_data_of_ones_own_are_released_from_their_file_by_the_configuration(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.jsonl").write_text(LINES)
    sandbox = Sandbox()
    made = sandbox.load(
        {"csv": LINES, "file": "own.jsonl", "columns": {"user": "person", "value": "page", "time": "at"}}
    )
    while not (shown := sandbox.show({"source": made["name"], "events": 10, "epsilon": 0.5}))["complete"]:
        pass
    (tmp_path / "seqveil-page.json").write_text(json.dumps(shown["configuration"]))
    (tmp_path / "seqveil.toml").write_text(shown["files"]["toml"])
    said = tomllib.loads(shown["files"]["toml"])
    assert (said["user_column"], said["value_column"], said["time_column"]) == ("person", "page", "at")
    for line in shown["files"]["steps"].strip().splitlines():
        assert main([*line.split()[1:], *(["--yes"] if " release " in line else [])]) == 0, line
    assert pl.read_csv("released.csv").height == 20
    capfd.readouterr()


def test_one_stream_without_a_user_is_released_from_what_was_unpacked(tmp_path):
    (tmp_path / "own.csv").write_text("value\n" + "a\nb\nb\n" * 5)
    cut = Cut("")
    source = loaded(rows_of_file(str(tmp_path / "own.csv"), cut), cut, "data")
    ask = Ask("data", events=5, epsilon=1.0)
    assert "release page/stream.csv --config" in steps(source)
    setting = ask.setting(source.model)
    assert "user_column" not in toml(setting, ask, source, picture_risk(source, ask))


def picture_risk(source, ask):
    from seqveil.interfaces.studio.picture import Run

    run = Run(source, ask)
    run.go()
    return run.risk()


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
