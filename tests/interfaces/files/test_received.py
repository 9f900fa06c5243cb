"""A released file is paired with its raw file by user and event, whatever the order of rows and whatever is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from filed import decode_file, in_public_order, release_file
from seqveil.core.errors import DataError
from seqveil.core.model import Reading
from seqveil.engine.stream import NOTHING
from seqveil.evaluate.attack.files import read_people
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.events import read_events
from seqveil.interfaces.files.received import paired
from seqveil.receiver.evidence import Evidence

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
PLAIN, BATCHES = {"epsilon": 2.0, "mechanism": "optimal"}, {"epsilon": 6.0, "batch": 3, "mechanism": "tree"}
SETTINGS = {
    "one by one": (PLAIN, {}),
    "in batches": (BATCHES, {}),
    "a budget that stops": (PLAIN | {"budget": sv.Budget(4.0, **STOP)}, {}),
    "a window that stops": (PLAIN | {"budget": sv.Budget(per_window=2.0, seconds=240.0, **STOP)}, {}),
    "batches that stop": (BATCHES | {"budget": sv.Budget(8.0, **STOP)}, {}),
    "missing values left out": (PLAIN, {"missing": "drop"}),
    "missing values held": (PLAIN, {"missing": "hold"}),
    "unknown values hidden": (PLAIN, {"on_unknown": "hide"}),
}


@pytest.mark.parametrize("by", [["user"], ["time", "user"]])
@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.slow] * ("batch" in how)) for how in SETTINGS])
def test_every_release_meets_its_own_event(tmp_path: Path, how: str, by: list[str]) -> None:
    """Times say which event a release is of; the pairing does not look at them."""
    policy, options = SETTINGS[how]
    raw = raw_rows(gap="missing" in how)
    if "unknown" in how:
        raw = raw.with_columns(value=pl.when(pl.col("time") % 300 == 60).then(pl.lit("x")).otherwise("value"))
    raw.write_csv(tmp_path / "raw.csv")
    alphabet = sv.Alphabet(LETTERS).with_missing(options.get("missing"))
    model = sv.MarkovModel(np.full(6, 1 / 6), 0.4 * np.eye(6) + 0.1, alphabet=alphabet)
    hide = {"on_unknown": "hide"} if "unknown" in how else {}
    release_file(tmp_path / "raw.csv", sv.Policy(**policy).on(model), tmp_path / "out.csv", seed=1, **hide)
    out = reordered(tmp_path / "out.csv", by)
    made = pl.read_csv(out).select("user", "time", released="value")
    true = raw.with_columns(value=pl.col("value").forward_fill().over("user")) if "held" in how else raw.drop_nulls()
    wanted = true.join(made, on=["user", "time"], how="left").sort("user", "time")
    assert (wanted["released"].null_count() > 0) == ("stop" in how)
    found = read_people(out, tmp_path / "raw.csv", model)
    for user, disclosed, codes, times in zip(
        made["user"].unique(maintain_order=True), found.releases, found.truth, found.times or (), strict=True
    ):
        own = wanted.filter(user=user)
        assert [None if code == NOTHING else LETTERS[code] for code in disclosed] == own["released"].to_list()
        assert [LETTERS[code] if code >= 0 else "x" for code in codes] == own["value"].to_list()
        assert times.tolist() == own["time"].to_list()
    if "missing" not in how:
        done = decode_file(out, model, tmp_path / "decoded.csv", truth=tmp_path / "raw.csv")
        guess = pl.read_csv(tmp_path / "decoded.csv").select("user", "time", guess="value")
        both = guess.join(true.filter(pl.col("value") != "x"), on=["user", "time"])
        assert done.right == pytest.approx((both["guess"] == both["value"]).mean())


RELEASES = {"plain": (), "batches": ("--batch", 3, "--mechanism", "tree"), "state": ("--state", "s.db")}
RELEASES["state and batches"] = RELEASES["state"] + RELEASES["batches"]


@pytest.mark.slow
@pytest.mark.parametrize("time", ["in order", "shuffled", "none"])
@pytest.mark.parametrize("how", RELEASES)
def test_releases_and_estimates_stand_on_their_own_rows(tmp_path: Path, monkeypatch, seqveil, how: str, time: str):
    """At an ε this large every release and every estimate is the truth: a row that is paired with another one shows."""
    monkeypatch.chdir(tmp_path)
    sticky = sv.MarkovModel(np.full(6, 1 / 6), 0.7 * np.eye(6) + 0.05, alphabet=LETTERS)
    sticky.save("m")
    raw = raw_rows()
    own = dict(zip(raw["user"].unique(), sticky.sample(20, 25, seed=8), strict=True))
    raw = raw.with_columns(value=pl.Series([LETTERS[own[user][at // 60]] for user, at, _ in raw.iter_rows()]))
    wanted = in_public_order(raw if time != "none" else raw.drop("time"))
    raw = raw.sample(fraction=1, shuffle=True, seed=3) if time == "shuffled" else raw
    raw.drop("time" if time == "none" else []).write_csv("raw.csv")
    sure = ("--epsilon", 16, "--seed", 2)  # one release in a million is not the truth, and none is with this seed
    assert seqveil("release", "raw.csv", "--model", "m", *sure, *RELEASES[how], "--out", "out.csv").code == 0
    for name, online in (("smoothed.csv", ()), ("filtered.csv", ("--online",))):
        assert seqveil("decode", "out.csv", "--model", "m", *online, "--out", name).code == 0
    for name in ("out.csv", "smoothed.csv", "filtered.csv"):
        got = pl.read_csv(name).select(wanted.columns)
        if "batches" in how:  # a batch's rows stand together
            got, wanted = (frame.sort("user", maintain_order=True) for frame in (got, wanted))
        assert got.equals(wanted)


def test_evidence_keeps_the_order_of_the_events_whoever_they_are_of() -> None:
    setting = sv.Policy(epsilon=1.0).on(sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]))
    users, codes = np.array([1, 0, 1, 0]), np.array([0, 1, 1, 0])
    mixed = Evidence.of_streams(setting, users, codes)
    apart = Evidence.of_streams(setting, np.sort(users), codes[np.argsort(users, kind="stable")])
    assert mixed.users.tolist() == users.tolist()
    assert np.allclose(mixed.table[mixed.index][[1, 3, 0, 2]], apart.table[apart.index])


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
    call("release", tmp_path / "raw.csv", "-m", model, "--epsilon", 16, "--out", out)
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
