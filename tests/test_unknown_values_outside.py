"""A value outside the alphabet where data comes in: files, the store, the service, the bridge and Spark."""

import json
import math
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict

import numpy as np
import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

import reference_streams as ref
import seqveil as sv
from filed import release_file
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel
from seqveil.engine import stream
from seqveil.engine.stream import UNKNOWN, State
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.resume import Appended

KEY = bytes(range(32))
SECRET = "zq-secret-77"
WORDS = ["home", "work", "gym"]
STICKY = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]]
ODD = ["", SECRET, "nan", "1e999"]


def words_setting(mechanism="balanced", epsilon=1.0, **options):
    return sv.Policy(epsilon=epsilon, mechanism=mechanism, **options).on(
        MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=WORDS)
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Files of numbers: one whole, one with values that are missing, no number or outside; and their models."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(1)
    users, raw = [f"u{k % 4}" for k in range(80)], (rng.random(80) * 4).round(3).tolist()
    lines = [f"{user},{value}" for user, value in zip(users, raw, strict=True)]
    (folder / "whole.csv").write_text("user,value\n" + "\n".join(lines) + "\n")
    for k, odd in zip((9, 30, 31, 50), ODD, strict=True):
        raw[k] = odd
    lines = [f"{user},{value}" for user, value in zip(users, raw, strict=True)]
    (folder / "holes.csv").write_text("user,value\n" + "\n".join(lines) + "\n")
    rows = [
        {"user": user} if value == "" else {"user": user, "value": value}
        for user, value in zip(users, raw, strict=True)
    ]
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
@pytest.mark.parametrize("kind", ["single", "batched"])
@pytest.mark.parametrize("form", ["holes.csv", "holes.jsonl", "holes.parquet"])
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
    assert "unknown" not in json.dumps(side)
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
    assert main([*command, str(tmp_path / "o.csv"), "--state", str(tmp_path / "s.db"), "--on-unknown", "error"]) == 2
    assert "would show receivers exactly where" in capfd.readouterr().err


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


def test_the_operator_sees_it_on_a_terminal(made, tmp_path):
    master, slave = os.openpty()
    command = [sys.executable, "-m", "seqveil", "release", made / "holes.csv", "-m", made / "m", "-e", "1"]
    running = subprocess.Popen([*command, "--on-unknown", "hide", "--out", tmp_path / "out.csv"], stderr=slave)
    os.close(slave)
    said = b""
    with suppress(OSError):  # the end of a terminal
        while block := os.read(master, 1000):
            said += block
    os.close(master)
    assert running.wait() == 0
    assert b"4 values outside the alphabet" in said


class Crash(BaseException):
    """Stands for a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["single", "batched"])
def test_a_durable_release_goes_on_and_after_a_crash_it_is_the_same(made, tmp_path, kind, monkeypatch):
    setting = settings_of(made)[kind]
    more = {"seed": 1, "group": 7}
    release_file(made / "holes.csv", setting, tmp_path / "whole.csv", state=tmp_path / "whole.db", **more)
    append = Appended.append

    def dying(self, text):
        raise Crash

    monkeypatch.setattr(Appended, "append", dying)
    with pytest.raises(Crash):
        release_file(made / "holes.csv", setting, tmp_path / "out.csv", state=tmp_path / "s.db", **more)
    monkeypatch.setattr(Appended, "append", append)
    release_file(made / "holes.csv", setting, tmp_path / "out.csv", state=tmp_path / "s.db", **more)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    for name in ("out.csv", "out.csv.meta.json", "s.db"):
        assert SECRET.encode() not in (tmp_path / name).read_bytes()
    assert "unknown" not in (tmp_path / "out.csv.meta.json").read_text()
    release_file(made / "whole.csv", setting, tmp_path / "clean.csv", state=tmp_path / "clean.db", **more)
    ours, theirs = (pl.read_csv(tmp_path / name) for name in ("out.csv", "clean.csv"))
    for column in set(ours.columns) - {"value", "path"}:
        assert ours[column].equals(theirs[column])
    with pytest.raises(InputError, match="would show receivers exactly where"):
        release_file(made / "holes.csv", setting, tmp_path / "o.csv", state=tmp_path / "o.db", on_unknown="error")


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


def test_the_ledger_charges_it_as_a_receiver_does(tmp_path):
    setting = words_setting("optimal", 0.9)
    codes = [0, UNKNOWN, UNKNOWN, 2, UNKNOWN, 1]
    with CodeStreams.open(tmp_path / "s.db", setting, key=KEY) as store:
        made = store.release(["ann"] * 6, codes, range(6))
        account = store.account("ann")
        salt = store._store.salt
    store = ref.twin(setting, salt)  # one by one, with a repeat
    again = [int(store.release(["ann"], [code], [k]).codes[0]) for k, code in enumerate(codes)]
    repeated = store.release(["ann"], [2], [1])
    assert (int(repeated.codes[0]), bool(repeated.replayed[0])) == (again[1], True)
    assert again == made.codes.tolist()
    state = State.start(setting)
    for code in made.codes.tolist():
        _, state = stream.observe(setting, state, np.array([code]))
    assert account.epsilon_spent == pytest.approx(6 * 0.9)
    assert account.leakage == pytest.approx(state.account.worst[0], abs=1e-8)
    assert (made.epsilons == 0.9).all()
    for code in (-1, -3, 3):
        with pytest.raises(InputError, match="event 0"), CodeStreams.open(tmp_path / "no.db", setting) as store:
            store.release(["ann"], [code], [0])


def event(seq, value):
    return {"user": "ann", "seq": seq, "value": value}


def figures_of(text):
    """The samples of a text for Prometheus, but for times, sizes and what follows from the releases."""
    families = text_string_to_metric_families(text)
    samples = [(each.name, *each.labels.values(), each.value) for family in families for each in family.samples]
    return [each for each in samples if not re.search("seconds|bytes|process|created|leakage", each[0])]


@pytest.mark.slow
@pytest.mark.parametrize("gaps", ["refuse", "skip"])
def test_over_http_nobody_can_tell(tmp_path, gaps, caplog):
    from served import running

    odd = [SECRET, None, 3, True, {"a": 1}, [["x"]]]
    values = ["home", *odd, "gym"]
    with running(tmp_path, words_setting(), gaps=gaps) as service, caplog.at_level("INFO", logger="seqveil.service"):
        answers = [service.release(event(seq, value)) for seq, value in enumerate(values)]
        assert {answer.status for answer in answers} == {200}
        rows = [answer.json["releases"][0] for answer in answers]
        assert {tuple(row) for row in rows} == {("user", "seq", "status", "value", "epsilon", "replayed")}
        assert {(row["status"], row["epsilon"], row["value"] in WORDS) for row in rows} == {("released", 1.0, True)}
        service.release(event(1, SECRET))
        page = service.ask("GET", "/v1/users/ann").json["releases"]
        assert [row["seq"] for row in page] == list(range(8))
        assert {row["epsilon"] for row in page} == {1.0}
        account = service.ask("GET", "/v1/users/ann").json["account"]
        assert (account["events"], account["releases"], account["epsilon_spent"]) == (8, 8, 8.0)
        metrics = service.ask("GET", "/metrics").content.decode()
        assert service.ask("POST", "/v1/release", {"user": "ann", "seq": 8}).status == 400
        disclosed = metrics + repr([record.__dict__ for record in caplog.records]) + repr(page) + repr(account)
        made = ref.twin(words_setting(), service.store._store.salt).release(["ann"] * 8, [0, *[UNKNOWN] * 6, 2])
        assert [WORDS[code] for code in made.codes] == [row["value"] for row in rows]
    assert SECRET not in disclosed
    assert "unknown" not in repr(page) + repr(account) + repr(rows)


def test_how_many_were_hidden_is_said_on_a_terminal_alone(capsys, monkeypatch):
    from seqveil.interfaces.commands.terminal import tell_hidden

    tell_hidden(3)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    tell_hidden(0)
    assert capsys.readouterr() == ("", "")
    tell_hidden(3)
    assert "3 values outside the model's alphabet" in capsys.readouterr().err


def test_numbers_and_points_over_http(tmp_path):
    from seqveil.interfaces.events import Wording

    numbers = Wording(Bins([0, 1, 2]))
    values = [0.5, "x" * 100_000, True, None, math.nan, 10**400, [1], {"a": 1}, 1.5]
    assert numbers.encode(values).tolist() == [0, *[UNKNOWN] * 7, 1]
    assert [int(numbers.encode([value])[0]) for value in values] == [0, *[UNKNOWN] * 7, 1]
    points = Wording(Grid.regular(2, 1, (0, 2, 0, 1)))
    values = [[0.5, 0.5], [9, 9], [0.5], "home", ["home", 1], [0.5, None], 3, [True, 1], [1.5, 0.5]]
    assert points.encode(values).tolist() == [0, *[UNKNOWN] * 7, 1]
    with pytest.raises(InputError, match="would show receivers exactly where"):
        Wording(Alphabet(WORDS), "error")


def test_a_bucket_of_spark_releases_what_the_store_does(caplog):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.tws_tester import TwsTester

    from seqveil.interfaces.spark.job import SparkJob
    from seqveil.interfaces.spark.operator import ReleaseProcessor

    setting, salt = words_setting("optimal", 1.0), b"that of a query"
    values, codes = ["home", SECRET, "gym", None, "work"], [0, UNKNOWN, 2, UNKNOWN, 1]
    job = SparkJob(setting, setting.model.alphabet.tracked(), KEY, ("user", "seq", "value"))
    rows = pd.DataFrame({"user": "ann", "seq": range(5), "v0": values})
    out = TwsTester(ReleaseProcessor(job, salt=salt)).testInPandas(0, rows)
    made = ref.twin(setting, salt).release(["ann"] * 5, codes, range(5)).codes
    assert out["value"].tolist() == [WORDS[code] for code in made]
    assert caplog.text == ""
