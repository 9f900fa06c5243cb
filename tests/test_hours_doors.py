"""Models by the hour of the day at every door: files and commands, HTTP, MQTT and Spark; what is refused, in a line."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import seqveil as sv
from bridges import KEY
from seqveil.core.errors import DataError, InputError, SeqveilError
from seqveil.engine.streams import Streams
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.release import release_file
from seqveil.interfaces.mqtt import Payloads, Refusal
from seqveil.interfaces.spark import counting
from seqveil.interfaces.spark.frames import Columns, _check
from seqveil.interfaces.spark.job import Job
from seqveil.interfaces.spark.store import KeptUsers
from seqveil.interfaces.studio.sources import sampled
from seqveil.receiver.choosing import choose
from seqveil.receiver.contexts import Context, check
from seqveil.receiver.drift import Drift
from seqveil.receiver.learn.expected import Chain
from seqveil.receiver.planning import plan
from seqveil.receiver.reweigh import Reweighed
from seqveil.receiver.statistics import summarise
from seqveil.receiver.versions import refuse_unmovable
from served import running

NIGHT = "night=22-6,day=6-22"
HOME = np.array([[0.95, 0.04, 0.01], [0.8, 0.15, 0.05], [0.9, 0.05, 0.05]])
OUT = np.array([[0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
NAMES = ["home", "work", "shop"]
MODEL = sv.MarkovModel.by_hour(NIGHT, [1 / 3] * 3, [HOME, OUT], NAMES)
BEGIN = datetime(2024, 3, 4)


def rows(people: int = 60, events: int = 48) -> list[tuple[str, str, str]]:
    """Two days of people, an hour apart, who stay at home at night."""
    rng = np.random.default_rng(5)
    found = []
    for person in range(people):
        code = 0
        for k in range(events):
            moment = BEGIN + timedelta(hours=k)
            code = rng.choice(3, p=(HOME if moment.hour >= 22 or moment.hour < 6 else OUT)[code])
            found.append((f"u{person}", NAMES[code], moment.isoformat()))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and models by the hour with and without a schedule."""
    found = tmp_path_factory.mktemp("hours")
    frame = pl.DataFrame(rows(), schema=["user", "value", "time"], orient="row")
    frame.write_csv(found / "data.csv")
    frame.head(4 * 48).write_csv(found / "few.csv")
    frame.drop("time").write_csv(found / "timeless.csv")
    frame.filter(~pl.col("time").str.contains("T05")).write_csv(found / "gaps.csv")
    for name, context in (("bands", f"hours:{NIGHT}"), ("even", f"hours:{NIGHT},per_day:24")):
        assert main(["fit", str(found / "data.csv"), "-o", str(found / name), "--context", context]) == 0
    return found


@pytest.mark.slow
def test_the_fit_says_what_hours_bring(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(folder / "data.csv"), "-o", str(tmp_path / "m"), "--context", "auto"]) == 0
    said = capsys.readouterr().out
    assert "order 1, 24 hour bands" in said
    model = sv.MarkovModel.load(tmp_path / "m")
    assert model.hours is not None
    assert [row["context"] for row in (model.origin or {})["compared"]] == ["order:1", "hours:24", "order:2"]
    plain, by_hour = (row["log_likelihood"] for row in (model.origin or {})["compared"][:2])
    assert by_hour > plain + 0.05
    assert main(["fit", str(folder / "data.csv"), "-o", str(tmp_path / "n"), "--context", "hours:4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["hours"], told["transitions"], told["origin"]["context"]) == ("4", 36, "hours:4")
    assert main(["fit", str(folder / "timeless.csv"), "-o", str(tmp_path / "m"), "--context", "auto"]) == 0
    assert sv.MarkovModel.load(tmp_path / "m").hours is None  # nothing there to tell hours by


@pytest.mark.slow
def test_files_are_released_kept_audited_and_decoded(folder: Path, tmp_path: Path) -> None:
    data, model = str(folder / "data.csv"), str(folder / "bands")
    out, state = str(tmp_path / "out.csv"), ["--state", str(tmp_path / "state.db")]
    assert main(["release", data, "-m", model, "--epsilon", "1", "-o", out]) == 0
    assert main(["audit", out, "-m", model]) == 0
    for more in ([], ["--online"]):
        assert main(["decode", out, "-m", model, "-o", str(tmp_path / "d.csv"), *more]) == 0
    found = pl.read_csv(tmp_path / "d.csv")
    assert found.height == 60 * 48
    right = (found["value"] == pl.read_csv(data)["value"]).mean()
    assert isinstance(right, float)
    assert right > 0.6
    assert main(["release", data, "-m", model, "--epsilon", "1", *state, "-o", str(tmp_path / "s.csv")]) == 0
    first = (tmp_path / "s.csv").read_text()
    assert main(["release", data, "-m", model, "--epsilon", "1", *state, "-o", str(tmp_path / "s.csv")]) == 0
    assert (tmp_path / "s.csv").read_text() == first
    assert main(["audit", str(tmp_path / "s.csv"), "-m", model]) == 0


@pytest.mark.slow
def test_other_hours_are_found_out(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A receiver who reads other times follows another belief: the audit sees it."""
    data, model, out = str(folder / "data.csv"), str(folder / "bands"), tmp_path / "out.csv"
    assert main(["release", data, "-m", model, "--epsilon", "1", "--mechanism", "optimal", "-o", str(out)]) == 0
    frame = pl.read_csv(out)
    moved = frame.with_columns(pl.col("time").str.to_datetime().dt.offset_by("9h").dt.strftime("%FT%T"))
    moved.write_csv(out)
    capsys.readouterr()
    assert main(["audit", str(out), "-m", model]) != 0


@pytest.mark.slow
def test_being_at_home_at_night_is_kept(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model, out = str(folder / "few.csv"), str(folder / "even"), str(tmp_path / "out.csv")
    secret = ["--secret", "during:home:22-6", "--secret-window", "day", "--secret-per-day", "24"]
    kept = ["--mechanism", "guarded", *secret, "--secret-epsilon", "0.5"]
    assert main(["release", data, "-m", model, *kept, "-o", out]) == 0
    capsys.readouterr()
    assert main(["audit", out, "-m", model, *secret, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["secrets"][0]
    assert 0 < told["log_odds_worst"] <= 0.5
    assert main(["decode", out, "-m", model, "-o", str(tmp_path / "d.csv")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("release timeless.csv -m bands --epsilon 1 -o OUT", "hours of the day need a column of times"),
        ("release gaps.csv -m even --epsilon 1 -o OUT", "24 events a day, evenly spread"),
        ("release data.csv -m bands --epsilon 3 --batch 3 -o OUT", "does not go with a model by the hour"),
        ("release data.csv -m bands --mechanism tree --epsilon 3 --batch 3 -o OUT", "does not go with a model by the"),
        (
            "release data.csv -m bands --mechanism guarded --secret ever:home --secret-epsilon 1 -o OUT",
            "events must come evenly",
        ),
        ("fit timeless.csv -o OUT --context hours", "hours of the day need a column of times"),
        ("fit timeless.csv -o OUT --context hours,per_day:24", "hours of the day need a column of times"),
        ("fit gaps.csv -o OUT --context hours:2,per_day:24", "evenly spread, in streams that begin at 0 o'clock"),
        ("fit data.csv -o OUT --context hours:2,per_day:24,starts:6", "in streams that begin at 6 o'clock"),
        ("fit data.csv -o OUT --context hours,types:4", "order 1 and without types"),
        ("fit data.csv -o OUT --context order:2,hours", "order 1 and without types"),
        ("fit data.csv -o OUT --context hours:night=22-6", "cover the day once"),
        ("fit data.csv -o OUT --context hours:24,starts:6", "per_day and starts go with hours"),
        ("fit data.csv -o OUT --context per_day:24", "per_day and starts go with hours"),
        ("plan bands --epsilon 1", "plan cannot take a model by the hour"),
    ],
)
def test_commands_refuse_in_a_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any, command: str, words: str
) -> None:
    monkeypatch.chdir(folder)
    assert main(command.replace("OUT", str(tmp_path / "out.csv")).split()) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_stats_and_drift_refuse_in_a_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, model = str(tmp_path / "out.csv"), str(folder / "bands")
    assert main(["release", str(folder / "data.csv"), "-m", model, "--epsilon", "1", "-o", out]) == 0
    plain = str(tmp_path / "plain")
    assert main(["fit", str(folder / "data.csv"), "-o", plain]) == 0
    capsys.readouterr()
    assert main(["audit", out, "-m", model, "--against", plain]) == 0  # a model without hours may be held against it
    assert main(["learn", out, "-m", model, "-o", str(tmp_path / "learned")]) == 0
    assert sv.MarkovModel.load(tmp_path / "learned").hours is None
    for command in (
        ["stats", out, "-m", model],
        ["drift", out, "-m", model],
        ["audit", out, "-m", model, "--against", model],
    ):
        capsys.readouterr()
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "cannot take a model by the hour of the day" in said
        assert len(said.strip().splitlines()) == 1


SETTING = sv.Setting.of(MODEL, epsilon=1.0)


@pytest.mark.parametrize(
    "act",
    [
        lambda: plan(MODEL, [1.0]),
        lambda: Drift(SETTING),
        lambda: summarise(SETTING, ["ann"], np.array([0])),
        lambda: Reweighed(SETTING, MODEL),
        lambda: Chain.of(MODEL),
        lambda: refuse_unmovable([SETTING], SETTING, "state file"),
        lambda: sampled(MODEL),
        lambda: Streams(SETTING, gaps="skip"),
        lambda: sv.Setting.of(MODEL, "tree", 1.0, batch=2),
        lambda: sv.Setting.of(MODEL, "tree", 1.0),
        lambda: sv.Setting.of(MODEL, epsilon=1.0, budget=sv.Budget(total=2.0, when_spent="stop")),
        lambda: check(MODEL, np.array([0]), np.array([0])),
        lambda: choose(np.arange(20), np.zeros(20, np.int64), sv.Alphabet.codes(2), "hours"),
        lambda: Context.parse("hours").fit(np.arange(2), np.arange(2), sv.Alphabet.codes(2)),
        lambda: _check(Job(SETTING, MODEL.alphabet, KEY, ("user", "seq", "value")), Columns()),
        lambda: _check(Job(SETTING, MODEL.alphabet, KEY, ("user", "seq", "value"), gaps="skip"), Columns(time="time")),
    ],
)
def test_other_doors_refuse_in_a_line(act: Any) -> None:
    with pytest.raises(SeqveilError, match=r"hour|chain of full support|batch") as caught:
        act()
    assert isinstance(caught.value, InputError | DataError)
    assert "\n" not in str(caught.value)


def events_of(user: str, count: int) -> list[dict[str, Any]]:
    stamps = [(BEGIN + timedelta(hours=7 * k)).isoformat() for k in range(count)]
    return [{"user": user, "seq": k, "value": NAMES[k % 3], "time": stamp} for k, stamp in enumerate(stamps)]


@pytest.mark.slow
def test_a_service_takes_times(tmp_path: Path) -> None:
    with running(tmp_path, SETTING) as service:
        made = service.release(*events_of("ann", 9)).json["releases"]
        assert [row["value"] for row in service.release(*events_of("ann", 9)).json["releases"]] == [
            row["value"] for row in made
        ]
        timeless = {"user": "bob", "seq": 0, "value": "home"}
        answer = service.release(*events_of("ann", 10)[9:], timeless)
        assert (answer.status, answer.reason) == (400, "malformed")
        assert "the model going by the hour of the day" in answer.json["detail"]
        assert service.ask("GET", "/v1/users/ann/account").json["events"] == 9
        assert service.ask("GET", "/").status == 200
        account = service.ask("GET", "/v1/users/ann/account").json
    session = sv.Session(MODEL, epsilon=1.0)
    twin = Streams(session.setting)
    codes = MODEL.alphabet.encode([row["value"] for row in made])
    twin.observe(["ann"] * 9, codes, [event["time"] for event in events_of("ann", 9)])
    assert account["leakage"] == pytest.approx(twin.standing("ann").leakage, abs=1e-8)


@pytest.mark.slow
def test_a_service_says_that_it_is_not_an_events_turn(tmp_path: Path) -> None:
    with running(tmp_path, sv.Setting.of(MODEL.scheduled(24), epsilon=1.0)) as service:
        answer = service.release(*events_of("ann", 2))  # seven hours apart
        assert (answer.status, answer.reason) == (400, "malformed")
        assert "24 events a day, evenly spread" in answer.json["detail"]
        assert service.release(*events_of("ann", 1)).status == 200


def test_a_message_needs_its_time() -> None:
    payloads = Payloads(SETTING)
    read = payloads.read("ann", json.dumps({"seq": 3, "value": "home", "time": "2024-03-04T23:00"}).encode())
    assert read.time == (BEGIN + timedelta(hours=23) - datetime(1970, 1, 1)).total_seconds()
    with pytest.raises(Refusal, match="time"):
        payloads.read("ann", json.dumps({"seq": 3, "value": "home"}).encode())


def test_a_job_of_spark_goes_by_the_hour_from_one_micro_batch_to_the_next() -> None:
    kept, users, codes, stamps = KeptUsers(), ["ann", "bob"], [], []
    job = Job(SETTING, MODEL.alphabet, KEY, ("user", "seq", "value"))
    for seq in range(6):
        times = [3600.0 * 5 * seq, 3600.0 * 7 * seq]
        frame = pd.DataFrame({"user": users, "seq": [seq] * 2, "time": times, "v0": [NAMES[seq % 3], "shop"]})
        codes += MODEL.alphabet.encode(job.release(frame, kept)["value"].tolist()).tolist()
        stamps += times
    twin = Streams(SETTING)
    twin.observe(users * 6, codes, stamps)  # a release that this belief cannot have made would be refused
    assert twin.standing("ann").events == 6


@pytest.mark.slow
def test_rows_of_a_file_may_come_in_any_chunks(folder: Path, tmp_path: Path) -> None:
    setting, out = sv.Setting.of(sv.MarkovModel.load(folder / "bands"), epsilon=1.0), tmp_path / "out.csv"
    release_file(folder / "few.csv", setting, out, chunk=7)
    assert main(["audit", str(out), "-m", str(folder / "bands")]) == 0


def test_one_person_one_event_and_strange_times() -> None:
    model = sv.MarkovModel.fit([[1]], n=2, hours=24, times=[[5.0]], smoothing=1.0)
    session = sv.Session(model, epsilon=0.5, seed=1)
    for time in (-1e10, 0.0, 9.9e10, "1900-01-01T00:00", 1_700_000_000_000, np.float64(3.5)):
        assert session.release(0, time=time) in (0, 1)
    assert session.leakage <= 0.5 * 6
    for time in (float("nan"), float("inf"), "noon", 1e40):
        with pytest.raises(InputError, match="time"):
            session.release(0, time=time)
    assert session.standing().events == 6


def test_spark_does_not_count_by_the_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is read, so that no Spark is needed to see it."""
    monkeypatch.setattr(counting, "_checked_columns", lambda frame, columns: Columns())
    with pytest.raises(InputError, match="not counted on Spark"):
        counting.chosen(None, "hours:4")  # type: ignore[arg-type]
