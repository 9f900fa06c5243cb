"""The walk of the page without a browser: a look at a file, secrets of every kind, the file that it hands out."""

import json

import polars as pl
import pytest

from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.interfaces.cli import main
from seqveil.interfaces.studio import Ask, builtin, picture
from seqveil.interfaces.studio.exports import unpack
from seqveil.interfaces.studio.sandbox import Sandbox
from test_studio_files import LINES

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
    (tmp_path / "policy.toml").write_text(shown["files"]["toml"])
    unpack(shown["configuration"], source, tmp_path / "page")
    model = MarkovModel.load("page/model.npz")
    assert Policy.load("policy.toml").on(model).to_dict() == setting.to_dict()
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
    assert (plain["colour"], spread["colour"]) == (unsound["colour"], kept["colour"]) == ("red", "unchecked")
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
    (tmp_path / "policy.toml").write_text(shown["files"]["toml"])
    assert " --user-column person --value-column page --time-column at " in shown["files"]["steps"]
    for line in shown["files"]["steps"].strip().splitlines():
        assert main([*line.split()[1:], *(["--yes"] if " release " in line else [])]) == 0, line
    assert pl.read_csv("released.csv").height == 20
    capfd.readouterr()
