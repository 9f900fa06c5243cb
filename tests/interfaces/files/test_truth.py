"""A released file is paired with its raw file by user and event, whatever the order of rows and whatever is missing."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from filed import decode_file, release_file
from seqveil.core.errors import DataError
from seqveil.core.reading import Reading
from seqveil.engine.stream import NOTHING
from seqveil.evaluate.attack.files import read_people
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.events import read_events
from seqveil.interfaces.files.truth import paired

LETTERS = list("abcdef")
MODEL = sv.MarkovModel(np.full(6, 1 / 6), 0.4 * np.eye(6) + 0.1, alphabet=LETTERS)


def raw_rows(gap: bool = False) -> pl.DataFrame:
    """Streams of 1 to 20 events of 25 people, in turns; with `gap` some values are missing."""
    rng = np.random.default_rng(4)
    rows = [(f"u{u:02d}", 60 * t) for u in range(25) for t in range(int(rng.integers(1, 21)))]
    rows = sorted(rows, key=lambda row: (row[1], row[0][::-1]))
    values = [LETTERS[code] for code in rng.integers(6, size=len(rows))]
    frame = pl.DataFrame({"user": [u for u, _ in rows], "time": [t for _, t in rows], "value": values})
    holes = pl.Series(gap & (rng.random(len(rows)) < 0.2)) & (frame["time"] > 0)
    return frame.with_columns(value=pl.when(~holes).then("value"))


def reordered(path: Path, by: list[str]) -> Path:
    """The released file with its rows in another order, each person's own in theirs."""
    pl.read_csv(path).sort(by, maintain_order=True).write_csv(path)
    return path


STOP = {"when_spent": "stop"}
SETTINGS = {
    "one by one": (sv.Policy(epsilon=2.0, mechanism="optimal").on(MODEL), {}),
    "in batches": (sv.Policy(epsilon=6.0, batch=3, mechanism="tree").on(MODEL), {}),
    "a budget that stops": (sv.Policy(epsilon=2.0, budget=sv.Budget(4.0, **STOP), mechanism="optimal").on(MODEL), {}),
    "a window that stops": (
        sv.Policy(epsilon=2.0, budget=sv.Budget(per_window=2.0, seconds=240.0, **STOP), mechanism="optimal").on(MODEL),
        {},
    ),
    "batches that stop": (
        sv.Policy(epsilon=6.0, batch=3, budget=sv.Budget(8.0, **STOP), mechanism="tree").on(MODEL),
        {},
    ),
    "missing values left out": (sv.Policy(epsilon=2.0, mechanism="optimal").on(MODEL), {"missing": "drop"}),
    "missing values held": (sv.Policy(epsilon=2.0, mechanism="optimal").on(MODEL), {"missing": "hold"}),
    "unknown values hidden": (sv.Policy(epsilon=2.0, mechanism="optimal").on(MODEL), {"on_unknown": "hide"}),
}


@pytest.mark.parametrize("by", [["user"], ["time", "user"]])
@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.slow] * ("batch" in how)) for how in SETTINGS])
def test_every_release_meets_its_own_event(tmp_path: Path, how: str, by: list[str]) -> None:
    """Times say which event a release is of; the pairing does not look at them."""
    setting, options = SETTINGS[how]
    raw = raw_rows(gap="missing" in how)
    if "unknown" in how:
        raw = raw.with_columns(value=pl.when(pl.col("time") % 300 == 60).then(pl.lit("x")).otherwise("value"))
    raw.write_csv(tmp_path / "raw.csv")
    release_file(tmp_path / "raw.csv", setting, tmp_path / "out.csv", seed=1, **options)
    out = reordered(tmp_path / "out.csv", by)
    made = pl.read_csv(out).select("user", "time", released="value")
    true = raw.with_columns(value=pl.col("value").forward_fill().over("user")) if "held" in how else raw.drop_nulls()
    wanted = true.join(made, on=["user", "time"], how="left").sort("user", "time")
    assert (wanted["released"].null_count() > 0) == ("stop" in how)
    found = read_people(out, tmp_path / "raw.csv", MODEL, missing=options.get("missing"))
    for user, disclosed, codes, times in zip(
        made["user"].unique(maintain_order=True), found.releases, found.truth, found.times or (), strict=True
    ):
        own = wanted.filter(user=user)
        assert [None if code == NOTHING else LETTERS[code] for code in disclosed] == own["released"].to_list()
        assert [LETTERS[code] if code >= 0 else "x" for code in codes] == own["value"].to_list()
        assert times.tolist() == own["time"].to_list()
    if "missing" not in how:
        done = decode_file(out, MODEL, tmp_path / "decoded.csv", truth=tmp_path / "raw.csv")
        guess = pl.read_csv(tmp_path / "decoded.csv").select("user", "time", guess="value")
        both = guess.join(true.filter(pl.col("value") != "x"), on=["user", "time"])
        assert done.right == pytest.approx((both["guess"] == both["value"]).mean())


def test_slots_of_time_meet_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows = [(f"u{u}", 7 * t + int(rng.integers(7))) for u in range(9) for t in range(20) if rng.random() < 0.8]
    raw = pl.DataFrame({"user": [u for u, _ in rows], "time": [1_700_000_000 + t for _, t in rows]})
    raw = raw.with_columns(value=pl.Series([LETTERS[code] for code in rng.integers(6, size=len(rows))]))
    raw.sort("time").write_csv(tmp_path / "raw.csv")

    def call(*words: object) -> None:
        assert main([str(word) for word in words]) == 0

    model, out = tmp_path / "slots.model", tmp_path / "out.csv"
    call("fit", tmp_path / "raw.csv", "-o", model, "--smoothing", 1, "--every-seconds", 7)
    call("release", tmp_path / "raw.csv", "-m", model, "--epsilon", 16, "--yes", "--out", out)
    found = read_people(reordered(out, ["user"]), tmp_path / "raw.csv", sv.MarkovModel.load(model))
    assert [disclosed.tolist() for disclosed in found.releases] == [true.tolist() for true in found.truth]


def test_other_people_and_other_events_are_refused(tmp_path: Path) -> None:
    raw = raw_rows()
    raw.write_csv(tmp_path / "raw.csv")
    files = {"fewer": raw.filter(pl.col("user") != "u03"), "short": raw.slice(0, raw.height - 1)}
    for name, message in (("fewer", "same people; 1 are in one"), ("short", "same events of the same users, and 1")):
        files[name].write_csv(tmp_path / f"{name}.csv")
        for one, other in ((name, "raw"), ("raw", name)):
            both = [read_events(tmp_path / f"{each}.csv", Reading()) for each in (one, other)]
            with pytest.raises(DataError, match=message):
                paired(both[0], both[1], both[1].codes(MODEL.alphabet))


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_sorted_release_has_an_unsorted_truth(tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(1)
    rows = [f"P{u},{k // 2},{draw.choice(['home', 'work', 'gym'])}" for u in range(30) for k in range(8)]
    rows = [rows[k] for k in draw.permutation(len(rows))]
    text = "\n".join(["user,time,value", *rows, ""]).encode()
    raw, model, out = tmp_path / f"raw.{ending}", tmp_path / "raw.model", tmp_path / "out.csv"
    raw.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)

    def call(*words: object) -> str:
        code = main([str(word) for word in words])
        said = "".join(capfd.readouterr())
        assert code == 0, said
        return said

    call("fit", raw, "-o", model, "--smoothing", 1)
    call("release", raw, "-m", model, "--epsilon", 16, "--yes", "--out", out)
    disclosed = call("decode", out, "-m", model, "--truth", raw, "--out", tmp_path / "decoded.csv")
    assert "1.000 of the estimates are right" in disclosed
    call("release", raw, "-m", model, "--secret", "ever:gym", "--secret-epsilon", 1, "--force", "--out", out)
    assert "verdict" in call("attack", out, "--truth", raw)
