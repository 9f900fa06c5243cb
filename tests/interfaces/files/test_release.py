"""`seqveil release` over a state file: killed at any point and started again, the output is that of one run."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from itertools import compress
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from filed import release_file
from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.cli import main
from seqveil.interfaces.files import writing

KEY = bytes(range(32))
SECRET = "zq-secret-77"
ROWS = 300


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with data and a model; raw numbers with many digits, of which a release shows the bin alone."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(4)
    users = rng.integers(0, 25, ROWS)
    raw = np.round(np.cumsum(rng.normal(0, 0.4, ROWS)) % 4, 9) + 1e-7
    seqs = [int((users[:k] == user).sum()) for k, user in enumerate(users)]
    frame = pl.DataFrame({"user": [f"u{u}" for u in users], "seq": seqs, "value": raw, "note": [SECRET] * ROWS})
    frame.write_csv(folder / "data.csv")
    assert main(["fit", str(folder / "data.csv"), "-o", str(folder / "m"), "--bins", "1", "--smoothing", "0.5"]) == 0
    return folder


def setting_of(made, kind):
    model = MarkovModel.load(made / "m")
    if kind == "batched":
        return Policy(epsilon=2.0, batch=3, mechanism="tree").on(model)
    budget = Budget(total=2.0, when_spent="stop") if kind == "stop" else None
    if kind == "blocks":
        return Policy(epsilon=2.0, block=4, budget=Budget(total=4.0)).on(model)
    return Policy(epsilon=0.8, budget=budget, mechanism="balanced").on(model)


class Crash(BaseException):
    """Stands for a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "stop", "batched", "blocks"])
def test_a_crash_at_any_point_is_gone_on_from(made, tmp_path, kind, monkeypatch):
    """In any transaction, after it, and as the output is written: nothing is drawn again."""
    setting, whole, draws = setting_of(made, kind), tmp_path / "whole.csv", []
    real, write = CodeStreams.release, writing.write_frame
    release_file(made / "data.csv", setting, whole, state=tmp_path / "whole.db", seed=1, group=40)
    out, state = tmp_path / "out.csv", tmp_path / "s.db"

    def dying(at, after):
        def release(self, users, codes, seqs, times, positions):
            left[0] -= bool(users)
            if left[0] == 0 and not after:
                raise Crash
            found = real(self, users, codes, seqs, times, positions)
            if users:
                draws.extend(zip(compress(users, ~found.replayed), found.seqs[~found.replayed].tolist(), strict=True))
            if left[0] == 0 and users:
                raise Crash
            return found

        left = [at]
        return release

    for at, after in ((1, False), (1, True), (3, False), (4, True), (5, True)):
        monkeypatch.setattr(CodeStreams, "release", dying(at, after))
        with pytest.raises(Crash):
            release_file(made / "data.csv", setting, out, state=state, seed=1, group=40)
    monkeypatch.setattr(CodeStreams, "release", dying(0, True))
    monkeypatch.setattr(writing, "write_frame", lambda *_: (_ for _ in ()).throw(Crash))
    with pytest.raises(Crash):
        release_file(made / "data.csv", setting, out, state=state, seed=1, group=40)
    monkeypatch.setattr(writing, "write_frame", write)
    assert not out.exists()
    release_file(made / "data.csv", setting, out, state=state, seed=1, group=40)
    assert out.read_bytes() == whole.read_bytes()
    ours, theirs = (json.loads((tmp_path / f"{name}.csv.meta.json").read_text()) for name in ("out", "whole"))
    assert len(draws) == len(set(draws))
    assert {name: ours[name] for name in ours if name != "state"} == {n: theirs[n] for n in theirs if n != "state"}


@pytest.mark.slow
def test_the_real_command_killed_again_and_again(made, tmp_path):
    """Kills of `seqveil release` itself at any moment; in the end it is as one run with the same seed."""
    rng = np.random.default_rng(6)
    columns = {"user": rng.integers(0, 3000, 40_000), "time": np.arange(40_000) // 500, "value": rng.random(40_000) * 4}
    big = pl.DataFrame(columns)  # many rows have one time
    big.write_parquet(tmp_path / "big.parquet")
    out, state = tmp_path / "out.parquet", tmp_path / "s.db"
    command = [sys.executable, "-m", "seqveil", "release", str(tmp_path / "big.parquet"), "-m", str(made / "m")]
    command += ["-e", "1", "--mechanism", "randomized_response", "--seed", "1"]
    chance = random.Random(7)
    for _ in range(4):
        enough = (state.stat().st_size if state.exists() else 0) + chance.randrange(300_000)
        running = subprocess.Popen([*command, "--out", str(out), "--state", str(state)])
        while running.poll() is None and not (state.exists() and state.stat().st_size >= enough):
            time.sleep(0.002)
        running.send_signal(signal.SIGKILL)
        running.wait()
    subprocess.run([*command, "--out", str(out), "--state", str(state)], check=True, capture_output=True)
    whole = tmp_path / "whole.parquet"
    subprocess.run([*command, "--out", str(whole), "--state", str(tmp_path / "w.db")], check=True, capture_output=True)
    assert pl.read_parquet(out).equals(pl.read_parquet(whole))
    assert pl.read_parquet(out).select("user", "time").equals(big.select("user", "time").sort("time", "user"))


@pytest.mark.slow
def test_rows_added_to_the_input_are_released_after(made, tmp_path):
    text = (made / "data.csv").read_text().splitlines(keepends=True)
    data, setting = tmp_path / "data.csv", setting_of(made, "plain")
    whole = tmp_path / "whole.csv"
    release_file(made / "data.csv", setting, whole, state=tmp_path / "w.db", seed=1)
    for rows in (1, 100, 100, ROWS):
        data.write_text("".join(text[: rows + 1]))
        done = release_file(data, setting, tmp_path / "out.csv", state=tmp_path / "s.db", seed=1, group=7)
        assert done.events == rows
    assert (tmp_path / "out.csv").read_bytes() == whole.read_bytes()


def test_batches_take_no_rows_after_the_short_last_ones(made, tmp_path):
    text = (made / "data.csv").read_text().splitlines(keepends=True)
    data, setting = tmp_path / "data.csv", setting_of(made, "batched")
    data.write_text("".join(text[:50]))
    release_file(data, setting, tmp_path / "out.csv", state=tmp_path / "s.db")
    data.write_text("".join(text))
    with pytest.raises(DataError, match="short batches"):
        release_file(data, setting, tmp_path / "out.csv", state=tmp_path / "s.db")


@pytest.mark.slow
def test_another_input_is_refused_and_other_values_are_not_seen(made, tmp_path):
    setting, out, state = setting_of(made, "plain"), tmp_path / "out.csv", tmp_path / "s.db"
    frame, data = pl.read_csv(made / "data.csv"), tmp_path / "data.csv"
    frame[:200].write_csv(data)
    release_file(data, setting, out, state=state)
    before = out.read_bytes()
    renamed, moved = frame.with_columns(user="x" + pl.col("user")), frame.with_columns(seq=pl.col("seq") + 1)
    for other in (frame[:100], frame[1:], renamed, moved):
        other.write_csv(data)
        with pytest.raises(DataError, match="first 200 rows are not those"):
            release_file(data, setting, out, state=state)
        assert out.read_bytes() == before
    # first write wins: other values in rows that are out change nothing, and nothing is kept to notice them by
    frame[:200].with_columns(value=4.0 - pl.col("value")).write_csv(data)
    release_file(data, setting, out, state=state)
    assert out.read_bytes() == before


@pytest.mark.slow
def test_an_output_that_is_not_the_states_is_refused(made, tmp_path):
    setting, out, state = setting_of(made, "plain"), tmp_path / "out.csv", tmp_path / "s.db"
    release_file(made / "data.csv", setting, out, state=state, group=100)
    whole, side = out.read_bytes(), Path(f"{out}.meta.json")
    out.unlink()  # whatever becomes of the output, the same command makes it again
    release_file(made / "data.csv", setting, out, state=state, group=100)
    assert out.read_bytes() == whole
    for spoil in (side.unlink, lambda: release_file(made / "data.csv", setting, out, force=True)):
        spoil()
        there = out.read_bytes()
        for ledger in (state, tmp_path / "new.db"):
            with pytest.raises(DataError, match="there already"):
                release_file(made / "data.csv", setting, out, state=ledger)
        assert out.read_bytes() == there


def test_what_cannot_be_gone_on_with_is_refused(made, tmp_path, seqveil):
    run = ("release", made / "data.csv", "-m", made / "m", "-e", 1)
    state = ("--state", tmp_path / "s.db")
    out, key = ("--out", tmp_path / "o.csv"), ("--key", tmp_path / "k")
    for words, said in (
        ((*run, *out, *key), "--state"),
        ((*run, *out, *state, *key, "--seed", 1), "not both"),
        ((*run, "--block", 4, *out, *state), "add --key release.key"),
        (("release", tmp_path / "none.csv", *run[2:], *out, *state), "no such file"),
        ((*run, "--out", tmp_path / "s.db", *state), "s.db"),
    ):
        refused = seqveil(*words)
        assert (refused.code, refused.err.count("\n"), said in refused.err) == (2, 1, True), refused.err
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "batched"])
def test_no_raw_value_is_anywhere(made, tmp_path, kind, monkeypatch):
    """Raw numbers, other columns and the key: not in the state file, its WAL, the output, or the side file."""
    setting, found, write = setting_of(made, kind), [], writing.write_frame

    def looking(*given):
        found.extend(path.read_bytes() for path in tmp_path.iterdir())
        write(*given)

    monkeypatch.setattr(writing, "write_frame", looking)
    release_file(made / "data.csv", setting, tmp_path / "out.csv", state=tmp_path / "s.db", key=KEY, group=50)
    assert len(found) >= 2
    with closing(sqlite3.connect(tmp_path / "s.db")) as store:
        store.execute("SELECT count(*) FROM sqlite_master").fetchone()
        found += [path.read_bytes() for path in tmp_path.iterdir()]
    raw = [line.split(",")[2].encode() for line in (made / "data.csv").read_text().splitlines()[1:]]
    assert min(map(len, raw)) > 8
    for content in found:
        assert KEY not in content
        assert SECRET.encode() not in content
        assert not any(value in content for value in raw)
        assert not any(np.float64(value).tobytes() in content for value in raw)


# a release is not drawn a second time over the first: that would spend the same budget again, silently


def over(*options):
    return main(["release", "raw.csv", "--epsilon", "1", "--model", "m", *options])


def files(place):
    return {path.name: path.read_bytes() for path in place.iterdir()}


@pytest.mark.slow
def test_a_second_release_over_the_first_is_refused_and_says_why(place, capsys):
    assert over("--out", "out.csv") == 0
    before = files(place)
    capsys.readouterr()
    assert over("--out", "out.csv") == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    for word in ("out.csv", "second spend", "another file", "--force"):
        assert word in said
    assert files(place) == before
    assert over("--out", "out.csv", "--force") == 0
    assert files(place)["out.csv"] != before["out.csv"]  # 200 fresh draws


@pytest.mark.slow
@pytest.mark.parametrize("left", ["out.csv", "out.csv.meta.json", "named.json"])
def test_whatever_is_left_of_an_earlier_release_stands_in_the_way(place, capsys, left):
    (place / left).write_text("something")
    (place / "raw.csv").write_text("no,columns\nof,a stream\n")  # it is refused before anything is read
    before = files(place)
    assert over("--out", "out.csv", *(["--meta", "named.json"] if left == "named.json" else [])) == 2
    assert left in capsys.readouterr().err
    assert files(place) == before


def test_an_empty_file_and_standard_output_are_never_there_already(place, capfd):
    (place / "out.csv").touch()
    assert over("--out", "out.csv") == 0
    for _ in range(2):
        assert over("--out", "-", "--format", "csv") == 0
        assert capfd.readouterr().out.startswith("user,value,epsilon")


@pytest.mark.slow
def test_a_later_run_says_what_is_new_and_leaves_out_who_was_erased(place, seqveil):
    def run(name, values):
        (place / name).write_text("user,value\n" + "".join(f"{user},{value}\n" for value in values for user in "uv"))
        secret = ("--secret", "ever:b", "--secret-epsilon", 0.5, "--state", "s.db", "--key", "k")
        return " ".join(seqveil("release", name, "--model", "m", *secret, "--out", "out.csv").err.split())

    assert "earlier run" not in run("d.csv", "aba")
    assert "nothing new: all rows were released by an earlier run" in run("tomorrow.csv", "bbb")
    assert "6 of the rows were released by an earlier run" in run("d.csv", "abab")
    assert seqveil("state", "erase", "s.db", "u", "--key", "k").code == 0
    said = run("d.csv", "ababa")
    assert "5 rows of people who were erased left out" in said
    assert "1 are new" in said
    assert [line[0] for line in (place / "out.csv").read_text().splitlines()[1:]] == ["v"] * 5


@pytest.mark.slow
@pytest.mark.parametrize("observed", [False, True])
def test_without_a_key_rows_go_by_symbol_and_account_side_file_audit_and_decode_agree(tmp_path: Path, observed) -> None:
    model, other = (sv.MarkovModel([p, 1 - p], [[0.9, 0.1], [0.3, 0.7]], alphabet=["x", "y"]) for p in (0.8, 0.6))
    secret = sv.secrets.ever("y", epsilon=0.5, window=4)
    policy = sv.Policy(secrets=[secret], observers=[other] * observed)
    rows = pl.DataFrame({"user": [f"u{k % 9}" for k in range(90)], "value": ["yxxxxxx"[k % 7] for k in range(90)]})
    remembering = sv.release(rows, model, policy)
    made = sv.release(rows, model, policy, state=tmp_path / "s.db", out=tmp_path / "out.csv")
    assert remembering.meta["setting"].get("side_information") != 0.0
    assert made.meta["setting"]["side_information"] == 0.0
    assert "without key= nothing of a raw stream can be kept" in made.account.warnings[0]
    assert not remembering.account.warnings
    for given in [policy] if observed else [policy, None]:  # whose models the side file does not have
        audited = sv.audit(tmp_path / "out.csv", model, policy=given)
        assert audited.passed
        (ours,), (theirs,) = audited.secrets, made.account.secrets
        assert ours.log_odds_worst <= theirs.log_odds_worst + 1e-9 <= 0.5  # which is rounded outward
        plain = sv.Policy(secrets=[secret], observers=[other] * observed, side_information=0.0)
        by_symbol, found = (
            sv.decode(pl.read_csv(tmp_path / "out.csv"), model, policy=each, meta=side).frame
            for each, side in ((plain, None), (given, tmp_path / "out.csv.meta.json"))
        )
        assert found.equals(by_symbol)
    with pytest.raises(InputError, match="another setting"):
        sv.audit(tmp_path / "out.csv", model, policy=sv.Policy(secrets=[sv.secrets.ever("y", epsilon=0.4, window=4)]))
