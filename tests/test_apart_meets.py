"""Streams apart (`--stream-column`) together with empty values that keep a secret, and gaps."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from seqveil.core.coins import KeyedCoins, SeededCoins
from seqveil.core.errors import InputError
from seqveil.engine.store.protocol import codec_of
from seqveil.interfaces.cli import main

HOME = np.array([[0.95, 0.04, 0.01], [0.8, 0.15, 0.05], [0.9, 0.05, 0.05]])
OUT = np.array([[0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
NAMES = ["home", "work", "shop"]
PLAIN = sv.MarkovModel([1 / 3] * 3, OUT, alphabet=NAMES)
FULL = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
KEY = b"k" * 32


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People with two streams each, of 20 hours, on two days."""
    rng, rows = np.random.default_rng(5), []
    for person in range(30):
        for day in range(2):
            code = 0
            for hour in range(20):
                moment = datetime(2024, 3, 4 + day, 2) + timedelta(hours=hour)
                code = int(rng.choice(3, p=(HOME if moment.hour >= 22 or moment.hour < 6 else OUT)[code]))
                rows.append((f"u{person}", f"d{day}", NAMES[code], moment.isoformat()))
    path = tmp_path_factory.mktemp("apart") / "data.csv"
    pl.DataFrame(rows, schema=["user", "day", "value", "time"], orient="row").write_csv(path)
    return path


def run(*words: Any) -> int:
    return main([str(word) for word in words])


@pytest.mark.slow
def test_whole_streams_are_decoded_as_apart_ones_are(data: Path, tmp_path: Path) -> None:
    """Where everyone has one stream both ways of decoding say the same."""
    one, model = tmp_path / "one.csv", tmp_path / "m"
    pl.read_csv(data).filter(pl.col("day") == "d0").write_csv(one)
    PLAIN.save(model)
    said = []
    for name, more in (("a", ()), ("b", ("--stream-column", "day"))):
        out = tmp_path / f"{name}.csv"
        assert run("release", one, "-m", model, "--epsilon", 1, "--seed", 3, *more, "-o", out) == 0
        assert run("decode", out, "-m", model, "-o", tmp_path / f"{name}.d.csv") == 0
        said.append(pl.read_csv(tmp_path / f"{name}.d.csv").select("user", "value", pl.col("confidence").round(9)))
    assert said[0].equals(said[1])


@pytest.mark.slow
def test_empty_values_with_streams_apart(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out, apart = tmp_path / "m", tmp_path / "out.csv", ("--stream-column", "day")
    raw = tmp_path / "raw.csv"
    text = data.read_text().splitlines()
    text[5] = ",".join([*text[5].split(",")[:2], "", text[5].split(",")[3]])  # a raw row without a value
    raw.write_text("\n".join(text) + "\n")
    assert run("fit", raw, "-o", model, "--smoothing", 1, "--missing", "hold", *apart) == 0
    secret = ("--secret", "ever:shop", "--secret-window", 5, "--secret-epsilon", 0.5, "--secret-withhold")
    for more in ((), ("--state", tmp_path / "state.db", "--key", tmp_path / "key")):
        out = tmp_path / f"out{len(more)}.csv"
        assert run("release", raw, "-m", model, *secret, *apart, *more, "-o", out) == 0
        assert "with an empty value" in capsys.readouterr().err
        written = pl.read_csv(out)
        assert written.height == 1200
        assert 0 < written["value"].null_count() < 1200
        truth = pl.read_csv(raw).with_columns(pl.col("value").forward_fill())["value"]
        assert (written["value"] == truth).drop_nulls().all()
        assert run("audit", out, "-m", model) == 0
        assert "promise" not in capsys.readouterr().err
        assert run("decode", out, "-m", model, "-o", tmp_path / "d.csv", "--truth", raw) == 0
        assert pl.read_csv(tmp_path / "d.csv")["value"].null_count() == 0
        capsys.readouterr()
    shop = ("--secret", "ever:shop", "--secret-window", 5, "--secret-epsilon", 0.5)
    assert run("attack", out, "--truth", raw, "-m", model, *shop, "--seed", 1) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_events_given_up_belong_to_the_stream_before(tmp_path: Path) -> None:
    n = 700  # a state too large to be kept as it is: it is replayed
    model = sv.MarkovModel(np.full(n, 1 / n), 0.5 * np.eye(n) + 0.5 / n)
    setting = sv.Setting.of(model, epsilon=2.0, restarts=True)
    seqs, begins = [0, 1, 4, 5, 9], [True, False, True, False, False]
    kept = sv.Streams(setting, coins=KeyedCoins(KEY, setting.signature.encode()), gaps="skip")
    want = [
        int(kept.release(["a"], [5], [seq], begins=[mark]).codes[0]) for seq, mark in zip(seqs, begins, strict=True)
    ]
    got = []
    for seq, mark in zip(seqs, begins, strict=True):
        with sv.Streams.open(tmp_path / "s.db", setting, key=KEY, gaps="skip") as streams:
            got.append(int(streams.release(["a"], [5], [seq], begins=[mark]).codes[0]))
            found = streams.standing("a")
    assert got == want
    assert found.leakage == pytest.approx(kept.standing("a").leakage)
    assert run("state", "verify", tmp_path / "s.db") == 0


def test_a_promise_ends_with_its_stream_whatever_is_given_up() -> None:
    secret = sv.secrets.ever(1, epsilon=0.5)
    setting = sv.Setting.of(FULL, "guarded", secrets=[secret], longest=4, restarts=True)
    streams = sv.Streams(setting, coins=SeededCoins(4), gaps="skip")
    streams.release(["ann"] * 3, [1, 0, 1], [0, 1, 2], begins=[True, False, False])
    with pytest.raises(InputError, match="a stream has more"):
        streams.release(["ann"], [1], [5], begins=[True])  # two given up where one has room
    streams.release(["ann"] * 4, [1, 0, 1, 0], [4, 5, 6, 7], begins=[True, False, False, False])
    with pytest.raises(InputError, match="a stream has more"):
        streams.release(["ann"], [1], [8], begins=[False])
    assert streams.release(["ann"], [1], [8], begins=[True]).codes.size == 1


def test_records_without_streams_apart_are_as_before() -> None:
    plain, marked = (codec_of(sv.Setting.of(FULL, epsilon=1.0, restarts=mark)) for mark in (False, True))
    assert (len(plain.gaps(3)), len(marked.gaps(3))) == (27, 30)
    timed = codec_of(sv.Setting.of(FULL, epsilon=1.0, budget=sv.Budget(per_window=1.0, seconds=60)))
    assert len(timed.gaps(1)) == 17
    batched = codec_of(sv.Setting.of(FULL, "auto", 1.0, batch=2))
    assert len(batched.gaps(1)) == 24
