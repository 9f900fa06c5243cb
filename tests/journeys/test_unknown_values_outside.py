"""A value outside the alphabet where data comes in: files, the store, the service, the bridge and Spark."""

import json
import re
from dataclasses import asdict

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from filed import release_file
from reference import streams as ref
from seqveil.core.errors import DataError
from seqveil.core.model import MarkovModel
from seqveil.engine.stream import UNKNOWN
from seqveil.interfaces.cli import main
from served import WORDS, event, running, salt_of, words_setting

SECRET = "zq-secret-77"
ODD = ["", SECRET, "nan", "1e999"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Files of numbers: one whole, one with values that are missing, no number or outside; and their models."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(1)
    users, raw = [f"u{k % 4}" for k in range(80)], (rng.random(80) * 4).round(3).tolist()
    pl.DataFrame({"user": users, "value": raw}).write_csv(folder / "whole.csv")
    for k, odd in zip((9, 30, 31, 50), ODD, strict=True):
        raw[k] = odd
    rows = [{"user": user} | ({} if value == "" else {"value": value}) for user, value in zip(users, raw, strict=True)]
    (folder / "holes.csv").write_text(
        "user,value\n" + "".join(f"{row['user']},{row.get('value', '')}\n" for row in rows)
    )
    (folder / "holes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    numbers = pl.Series([None if value in ODD else value for value in raw], dtype=pl.Float64)
    pl.DataFrame({"user": users, "value": numbers}).write_parquet(folder / "holes.parquet")
    assert main(["fit", str(folder / "whole.csv"), "-o", str(folder / "m"), "--bins", "1", "--smoothing", "1"]) == 0
    return folder


def settings_of(made):
    model = MarkovModel.load(made / "m")
    return {
        "single": sv.Policy(epsilon=0.8, mechanism="balanced").on(model),
        "batched": sv.Policy(epsilon=2.0, batch=3, mechanism="tree").on(model),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "kind"), [("holes.csv", "batched"), ("holes.jsonl", "single"), ("holes.parquet", "single")]
)
def test_a_file_has_no_hole_where_a_value_is_unknown(made, tmp_path, kind, form):
    setting = settings_of(made)[kind]
    with pytest.raises(DataError, match=r"row (10|31)"):
        release_file(made / form, setting, tmp_path / "no.csv")
    assert not (tmp_path / "no.csv").exists()
    account = release_file(made / form, setting, tmp_path / "out.csv", on_unknown="hide", seed=2)
    clean = release_file(made / "whole.csv", setting, tmp_path / "clean.csv", seed=2)
    assert (account.composition, account.releases) == (clean.composition, clean.releases)
    ours, theirs = (pl.read_csv(tmp_path / name) for name in ("out.csv", "clean.csv"))
    for column in set(ours.columns) - {"value", "path"}:
        assert ours[column].equals(theirs[column])
    assert ours.schema == theirs.schema
    assert set(ours["value"]) <= set(setting.model.alphabet.points)
    side, usual = (json.loads((tmp_path / f"{name}.meta.json").read_text()) for name in ("out.csv", "clean.csv"))
    assert side.keys() == usual.keys()
    assert side["alphabet"] == usual["alphabet"]
    assert "unknown" not in json.dumps(side | {"alphabet": None})
    release_file(made / form, setting, tmp_path / "private.csv", on_unknown="hide")
    assert main(["audit", str(tmp_path / "private.csv"), "-m", str(made / "m")]) == 0


def test_standard_output_has_all_rows_or_none(made, tmp_path, capfd):
    command = ["release", str(made / "holes.csv"), "-m", str(made / "m"), "-e", "1", "--out"]
    assert main([*command, "-"]) == 2
    disclosed = capfd.readouterr()
    assert disclosed.out == ""
    assert SECRET not in disclosed.err
    assert main([*command, "-", "--on-unknown", "hide"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 81


def handed_out(made, folder, data, capfd):
    """All that a release makes public, of files and of a frame, where the budget is spent and no value goes in."""
    out, model = folder / "out.csv", MarkovModel.load(made / "m")
    command = ["release", str(data), "-m", str(made / "m"), "-e", "1", "--budget", "1e-7", "--on-unknown", "hide"]
    assert main([*command, "--out", str(out)]) == 0
    assert main(["audit", str(out), "-m", str(made / "m"), "--html", str(folder / "report.html")]) == 0
    assert main([*command, "--out", str(out), "--force", "--json"]) == 0
    assert main([*command, "--out", str(out), "--state", str(folder / "s.db")]) == 2  # the output is there
    frame = pl.read_csv(data, schema_overrides={"value": pl.String})
    frame = frame.with_columns(pl.col("value").cast(float, strict=False))
    held = sv.release(frame, model, epsilon=1.0, budget=1e-7, on_unknown="hide")
    files = [out, folder / "out.csv.meta.json", folder / "report.html"]
    shown = (str(held), held._repr_html_(), asdict(held.account), held.meta, held.frame.rows())
    texts = [re.sub(r"Written .{20} by", "Written by", file.read_text()) for file in files]  # whatever the minute
    return texts, list(map(repr, shown)), capfd.readouterr()


@pytest.mark.slow
def test_nothing_that_is_public_says_how_many_there_were(made, tmp_path, capfd):
    """Nothing of a value is released, so all that is handed out is the same, letter by letter, whatever the values."""
    found = []
    for name in ("whole.csv", "holes.csv"):
        data = tmp_path / "data.csv"
        data.write_text((made / name).read_text())
        found.append(handed_out(made, tmp_path, data, capfd))
        for each in tmp_path.iterdir():
            each.unlink()
    assert found[0] == found[1]


def test_a_row_that_is_not_one_is_still_refused(made, tmp_path):
    setting = settings_of(made)["single"]
    for name, text, problem in (
        ("wide.csv", "user,value\nu1,0.5\nu1,0.5,7\n", "row 2"),
        ("who.csv", "user,value\nu1,0.5\n,0.5\n", "row 2: column 'user'"),
        ("when.csv", "user,seq,value\nu1,0,0.5\nu1,,0.5\n", "row 2: column 'seq'"),
        ("torn.jsonl", '{"user": "u1", "value": 0.5}\n{"user": "u1", "va\n', "row 2"),
        ("list.jsonl", '{"user": "u1", "value": 0.5}\n[1]\n', "row 2"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=problem):
            release_file(tmp_path / name, setting, tmp_path / "out.csv", on_unknown="hide")


@pytest.mark.slow
def test_over_http_nobody_can_tell(tmp_path, capsys):
    """Each is answered, charged and drawn as a value that nobody knows."""
    values = ["home", SECRET, None, 3, True, {"a": 1}, [["x"]], "gym"]
    with running(tmp_path, words_setting()) as service:
        rows = [service.release(event("ann", seq, value)).json["releases"][0] for seq, value in enumerate(values)]
        page = service.ask("GET", "/v1/users/ann").json
        metrics = service.ask("GET", "/metrics").content.decode()
    assert {tuple(row) for row in rows} == {("user", "seq", "status", "value", "epsilon", "replayed")}
    assert {(row["status"], row["epsilon"]) for row in (*rows, *page["releases"])} == {("released", 0.7)}
    assert (page["account"]["releases"], page["account"]["epsilon_spent"]) == (8, pytest.approx(5.6))
    made = ref.twin(words_setting(), salt_of(tmp_path / "state.db")).release(["ann"] * 8, [0, *[UNKNOWN] * 6, 2])
    assert [WORDS[code] for code in made.codes] == [row["value"] for row in rows]
    assert SECRET not in metrics + capsys.readouterr().err + repr(page)
    assert "unknown" not in repr(page) + repr(rows)


def test_how_many_were_hidden_is_said_on_a_terminal_alone(capsys, monkeypatch):
    from seqveil.interfaces.commands.terminal import tell_hidden

    tell_hidden(3)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    tell_hidden(0)
    assert capsys.readouterr() == ("", "")
    tell_hidden(3)
    assert "3 values outside the model's alphabet" in capsys.readouterr().err
