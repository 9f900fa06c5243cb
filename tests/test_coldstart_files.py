"""Files without a model: release --cold-start, audit, decode and learn through the command line."""

import json

import numpy as np
import polars as pl
import pytest

from seqveil import MarkovModel
from seqveil.coldstart import Versions
from seqveil.core.errors import DataError
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.audit import audit_file

TRUTH = MarkovModel(
    [0.5, 0.3, 0.2], [[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]], alphabet=["home", "shop", "work"]
)
USERS, LENGTH = 300, 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Raw streams, and their release by a cold start with the versions beside it."""
    place = tmp_path_factory.mktemp("cold")
    codes = TRUTH.sample(LENGTH, users=USERS, seed=3)
    values = [TRUTH.alphabet.decode_one(int(codes[u, t])) for t in range(LENGTH) for u in range(USERS)]
    names = [f"u{u}" for _ in range(LENGTH) for u in range(USERS)]
    pl.DataFrame({"user": names, "value": values}).write_csv(place / "raw.csv")
    options = ["--epsilon", "1", "--every", "2", "--learn-after", "3000", "--seed", "4", "--json"]
    assert main(["release", str(place / "raw.csv"), "--cold-start", "--out", str(place / "out.csv"), *options]) == 0
    return place


def test_rows_carry_their_version_and_the_versions_stand_beside(folder):
    rows = pl.read_csv(folder / "out.csv")
    versions = Versions.load(folder / "out.csv.versions")
    assert rows.columns == ["user", "value", "epsilon", "version"]
    assert len(rows) == USERS * LENGTH
    assert len(versions) >= 2
    afters = [v.after for v in versions]
    assert rows["version"].to_list() == [int(np.searchsorted(afters, k, side="right")) - 1 for k in range(len(rows))]
    told = json.loads((folder / "out.csv.meta.json").read_text())
    assert [v["setting"]["model"] for v in told["versions"]] == [v.setting.model.fingerprint for v in versions]


@pytest.mark.slow
def test_audit_recomputes_everything_and_sees_changes(folder, capsys):
    versions, out = str(folder / "out.csv.versions"), folder / "out.csv"
    assert main(["audit", str(out), "--model", versions, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [name for name, kept in report["checks"].items() if kept is False] == ["unseeded"]
    assert report["checks"]["epsilons"]
    assert report["releases"] == USERS * LENGTH
    assert report["worst_release"] <= 2.0 + 1e-9
    assert report["ldp"] <= 2 * report["composition"]
    rows = pl.read_csv(out)
    changed = folder / "changed.csv"
    other = rows.with_columns(pl.col("version").clip(upper_bound=0))
    other.write_csv(changed)
    (folder / "changed.csv.meta.json").write_text((folder / "out.csv.meta.json").read_text())
    assert main(["audit", str(changed), "--model", versions]) == 1
    assert "BROKEN" in capsys.readouterr().out
    rows.drop("version").write_csv(changed)
    assert main(["audit", str(changed), "--model", versions]) == 2
    assert "keep all columns" in capsys.readouterr().err
    TRUTH.save(folder / "model")
    assert main(["audit", str(out), "--model", str(folder / "model")]) == 2
    assert "not the one" in capsys.readouterr().err


def test_a_row_that_cannot_have_been_released_is_refused(folder):
    versions = Versions.load(folder / "out.csv.versions")
    rows = pl.read_csv(folder / "out.csv")
    held = int(np.flatnonzero((rows["epsilon"] == 0).to_numpy() & (rows["version"] > 0).to_numpy())[0])
    values = rows["value"].to_list()
    values[held] = next(v for v in ("home", "shop", "work") if v != values[held])
    rows.with_columns(pl.Series("value", values)).write_csv(folder / "forged.csv")
    with pytest.raises(DataError, match=r"forged\.csv: rows"):
        audit_file(folder / "forged.csv", versions)


@pytest.mark.slow
def test_decoding_helps_and_learning_finds_the_chain(folder, capsys):
    versions, out = str(folder / "out.csv.versions"), str(folder / "out.csv")
    wrong = {}
    for name, more in (("smooth", []), ("online", ["--online"])):
        to = str(folder / f"{name}.csv")
        assert main(["decode", out, "--model", versions, "--out", to, *more]) == 0
        wrong[name] = (pl.read_csv(to)["value"] != pl.read_csv(folder / "raw.csv")["value"]).mean()
    wrong["released"] = (pl.read_csv(out)["value"] != pl.read_csv(folder / "raw.csv")["value"]).mean()
    assert wrong["smooth"] < wrong["online"] < wrong["released"]
    capsys.readouterr()
    assert main(["learn", out, "--model", versions, "-o", str(folder / "learned"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    learned = MarkovModel.load(folder / "learned")
    assert told["model"] == learned.fingerprint
    assert told["earned"]
    off = np.abs(learned.chain.toarray() - TRUTH.chain.toarray()).sum(1) / 2
    assert off.max() < 0.25
    again = ["release", str(folder / "raw.csv"), "--model", str(folder / "learned"), "--epsilon", "1"]
    assert main([*again, "--out", str(folder / "second.csv")]) == 0
    assert main(["learn", str(folder / "second.csv"), "-m", str(folder / "learned"), "-o", str(folder / "l2")]) == 0
    assert "held out" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cold-start", "--batch", "2", "--epsilon", "1"], "--batch does not go"),
        (["--cold-start"], "--epsilon"),
        (["--epsilon", "1"], "--cold-start"),
        (["--cold-start", "--epsilon", "1", "--window", "3", "--window-releases", "4"], "window"),
        (["--cold-start", "--epsilon", "1", "--mechanism", "crr"], "sound"),
    ],
)
def test_options_that_do_not_go_together_are_refused(folder, capsys, options, words):
    assert main(["release", str(folder / "raw.csv"), "--out", str(folder / "none.csv"), *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (folder / "none.csv").exists()


@pytest.mark.slow
def test_an_alphabet_by_name_keeps_unseen_values_out(folder, capsys):
    (folder / "values.txt").write_text("home\nshop\nwork\nelsewhere\n")
    options = [
        "--cold-start",
        "--epsilon",
        "1",
        "--alphabet",
        str(folder / "values.txt"),
        "--out",
        str(folder / "a.csv"),
    ]
    assert main(["release", str(folder / "raw.csv"), *options, "--versions", str(folder / "a.models")]) == 0
    assert Versions.load(folder / "a.models").alphabet.n == 4
    assert "now public" not in capsys.readouterr().err
    (folder / "values.txt").write_text("home\nshop\n")
    assert main(["release", str(folder / "raw.csv"), *options, "--force"]) == 2
    error = capsys.readouterr().err
    assert "row" in error
    assert "work" not in error
