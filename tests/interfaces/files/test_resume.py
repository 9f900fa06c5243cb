"""`seqveil release --state`: stopped at any point and started again, the output is that of one uninterrupted run."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from filed import release_file
from policies import promise
from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.resume import Appended

KEY = bytes(range(32))
SECRET = "zq-secret-77"
ROWS = 300
OPTIONS = {
    "plain": promise(epsilon=1.5),
    "stop": promise(epsilon=1.5, budget=Budget(total=2.0, when_spent="stop")),
    "batched": promise(epsilon=1.5, batch=3, mechanism="tree"),
}


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


@pytest.fixture
def seqveil(seqveil):
    def run(*args):
        said = seqveil(*args)
        return said.code, said.err

    return run


def setting_of(made, kind):
    model = MarkovModel.load(made / "m")
    if kind == "batched":
        return Policy(epsilon=2.0, batch=3, mechanism="tree").on(model)
    budget = Budget(total=2.0, when_spent="stop") if kind == "stop" else None
    return Policy(epsilon=0.8, budget=budget, mechanism="balanced").on(model)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("kind", ["plain", "stop", "batched"])
def test_the_chain_holds_and_a_finished_run_changes_nothing(made, tmp_path, seqveil, kind, suffix):
    out, state, back = tmp_path / f"out{suffix}", tmp_path / "s.db", tmp_path / f"back{suffix}"
    options = OPTIONS[kind]
    run = ("release", made / "data.csv", "-m", made / "m", *options, "--out", out, "--state", state)
    assert seqveil(*run)[0] == 0
    first, side = out.read_bytes(), (tmp_path / f"out{suffix}.meta.json").read_bytes()
    disclosed = json.loads(side)
    assert disclosed["events"] == ROWS
    assert disclosed["private"] is True
    code, said = seqveil(*run)
    assert code == 0
    assert "released" in said
    assert out.read_bytes() == first
    assert (tmp_path / f"out{suffix}.meta.json").read_bytes() == side
    assert seqveil("audit", out, "-m", made / "m")[0] == 0
    assert seqveil("decode", out, "-m", made / "m", "--out", back)[0] == 0
    other = tmp_path / f"plain{suffix}"
    assert seqveil(*run[:-4], "--out", other)[0] == 0
    same = json.loads((tmp_path / f"plain{suffix}.meta.json").read_text())
    assert disclosed.keys() == same.keys()
    for name in ("setting", "columns", "events", "users", "alphabet"):
        assert disclosed[name] == same[name]
    if kind != "stop":
        assert disclosed["composition"] == pytest.approx(same["composition"], rel=1e-9)


class Crash(BaseException):
    """Stands for a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "stop", "batched"])
def test_a_crash_at_any_write_is_gone_on_from(made, tmp_path, kind, monkeypatch):
    """Before, within and after every write to the output: the state file is then ahead of it."""
    setting, whole = setting_of(made, kind), tmp_path / "whole.csv"
    release_file(made / "data.csv", setting, whole, state=tmp_path / "whole.db", seed=1, group=40)
    append = Appended.append
    out, state, chance = tmp_path / "out.csv", tmp_path / "s.db", random.Random(1)
    for _ in range(30):
        left = chance.randrange(1, 4)

        def dying(self, text, left=left):
            dying.count += 1
            if dying.count == left:
                append(self, text[: chance.randrange(len(text) + 1)])
                raise Crash
            append(self, text)

        dying.count = 0
        monkeypatch.setattr(Appended, "append", dying)
        try:
            release_file(made / "data.csv", setting, out, state=state, seed=1, group=40)
            break
        except Crash:
            continue
    monkeypatch.setattr(Appended, "append", append)
    release_file(made / "data.csv", setting, out, state=state, seed=1, group=40)
    assert out.read_bytes() == whole.read_bytes()
    assert (tmp_path / "out.csv.meta.json").read_bytes() == (tmp_path / "whole.csv.meta.json").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "batched"])
def test_a_crash_within_a_transaction_draws_nothing_again(made, tmp_path, kind, monkeypatch):
    setting = setting_of(made, kind)
    real, out, state = CodeStreams.release, tmp_path / "out.csv", tmp_path / "s.db"
    for count in (1, 2, 3, 2):  # what was drawn before a crash stands, and is not drawn again

        def dying(self, users, codes, seqs, times, positions, count=count):
            dying.count += 1

            def note(made):
                found = positions(made)
                if dying.count == count:
                    raise Crash
                return found

            return real(self, users, codes, seqs, times, note if callable(positions) else positions)

        dying.count = 0
        monkeypatch.setattr(CodeStreams, "release", dying)
        with pytest.raises(Crash):
            release_file(made / "data.csv", setting, out, state=state, seed=1, group=20)
    monkeypatch.setattr(CodeStreams, "release", real)
    release_file(made / "data.csv", setting, out, state=state, seed=1, group=20)
    release_file(made / "data.csv", setting, tmp_path / "whole.csv", state=tmp_path / "w.db", seed=1, group=20)
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.slow
def test_the_real_command_killed_again_and_again(made, tmp_path):
    """Kills of `seqveil release` itself as its output grows; in the end it is that of one run with the same seed."""
    rng = np.random.default_rng(6)
    columns = {"user": rng.integers(0, 3000, 40_000), "time": np.arange(40_000) // 500, "value": rng.random(40_000) * 4}
    big = pl.DataFrame(columns)  # many rows have one time
    big.write_parquet(tmp_path / "big.parquet")
    out = tmp_path / "out.csv"
    command = [sys.executable, "-m", "seqveil", "release", str(tmp_path / "big.parquet"), "-m", str(made / "m")]
    command += ["-e", "1", "--mechanism", "randomized_response", "--seed", "1"]
    chance = random.Random(7)
    for _ in range(4):
        enough = (out.stat().st_size if out.exists() else 0) + chance.randrange(100_000)
        running = subprocess.Popen([*command, "--out", str(out), "--state", str(tmp_path / "s.db")])
        while running.poll() is None and not (out.exists() and out.stat().st_size >= enough):
            time.sleep(0.002)
        running.send_signal(signal.SIGKILL)
        running.wait()
    subprocess.run([*command, "--out", str(out), "--state", str(tmp_path / "s.db")], check=True, capture_output=True)
    whole = tmp_path / "whole.csv"
    subprocess.run([*command, "--out", str(whole), "--state", str(tmp_path / "w.db")], check=True, capture_output=True)
    assert out.read_bytes() == whole.read_bytes()
    assert pl.read_csv(out).select("user", "time").equals(big.select("user", "time"))


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
    assert (tmp_path / "out.csv.meta.json").read_bytes() == (tmp_path / "whole.csv.meta.json").read_bytes()


@pytest.mark.slow
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
    whole = out.read_bytes()
    for changed in (whole[:10], whole + b"x", whole[:30] + b"9" + whole[31:], b""):
        out.write_bytes(changed)
        with pytest.raises(DataError, match="not what the state file says"):
            release_file(made / "data.csv", setting, out, state=state, group=100)
        assert out.read_bytes() == changed
    out.unlink()
    with pytest.raises(DataError, match="missing"):
        release_file(made / "data.csv", setting, out, state=state, group=100)
    out.write_bytes(whole)
    with pytest.raises(DataError, match="there already"):
        release_file(made / "data.csv", setting, out, state=tmp_path / "new.db")
    assert out.read_bytes() == whole


@pytest.mark.slow
def test_what_cannot_be_gone_on_with_is_refused(made, tmp_path, seqveil):
    run = ("release", made / "data.csv", "-m", made / "m", "-e", 1)
    state = ("--state", tmp_path / "s.db")
    for out, words in (("-", "standard output"), (tmp_path / "o.parquet", "Parquet cannot be appended")):
        code, said = seqveil(*run, "--out", out, *state)
        assert code == 2
        assert words in said
    assert seqveil(*run, "--out", tmp_path / "o.csv", "--key", tmp_path / "k")[0] == 2
    code, said = seqveil(*run, "--out", tmp_path / "o.csv", *state, "--key", tmp_path / "k", "--seed", 1)
    assert code == 2
    assert "not both" in said
    assert seqveil("release", tmp_path / "none.csv", *run[2:], "--out", tmp_path / "o.csv", *state)[0] == 2
    assert seqveil(*run, "--out", tmp_path / "s.db", "--state", tmp_path / "s.db")[0] == 2
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.slow
def test_a_seed_is_replayable_and_marked(made, tmp_path):
    setting = setting_of(made, "plain")
    for name in ("a", "b"):
        done = release_file(made / "data.csv", setting, tmp_path / f"{name}.csv", state=tmp_path / f"{name}.db", seed=5)
        assert done.private is False
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with pytest.raises(InputError, match="not both"):
        release_file(made / "data.csv", setting, tmp_path / "c.csv", state=tmp_path / "c.db", seed=5, key=KEY)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "batched"])
def test_no_raw_value_is_anywhere(made, tmp_path, kind, monkeypatch):
    """Raw numbers, other columns and the key: not in the state file, its WAL, the output, or the side file."""
    setting, crashed = setting_of(made, kind), []

    def note(self, text):
        raise Crash(SECRET not in text.decode())

    monkeypatch.setattr(Appended, "append", note)
    with pytest.raises(Crash):
        release_file(made / "data.csv", setting, tmp_path / "out.csv", state=tmp_path / "s.db", key=KEY, group=200)
    monkeypatch.undo()
    release_file(made / "data.csv", setting, tmp_path / "out.csv", state=tmp_path / "s.db", key=KEY, group=50)
    with closing(sqlite3.connect(tmp_path / "s.db")) as store:
        store.execute("SELECT count(*) FROM sqlite_master").fetchone()
        crashed += [path.read_bytes() for path in tmp_path.iterdir()]
    assert len(crashed) >= 3
    raw = [line.split(",")[2].encode() for line in (made / "data.csv").read_text().splitlines()[1:]]
    assert min(map(len, raw)) > 8
    for content in crashed:
        assert KEY not in content
        assert SECRET.encode() not in content
        assert not any(value in content for value in raw)
        assert not any(np.float64(value).tobytes() in content for value in raw)


def test_what_goes_with_a_state_file_or_without_is_refused_elsewhere(made, tmp_path):
    setting, data = setting_of(made, "plain"), made / "data.csv"
    with pytest.raises(InputError, match="state file"):
        release_file(data, setting, tmp_path / "out.csv", key=KEY)
    with pytest.raises(InputError, match="force"):
        release_file(data, setting, tmp_path / "out.csv", state=tmp_path / "s.db", force=True)
    assert not list(tmp_path.iterdir())


def _rows(path: Path, values: str, users: str = "ab") -> Path:
    path.write_text("user,value\n" + "".join(f"{user},{value}\n" for value in values for user in users))
    return path


def _run(tmp_path: Path, *given: str) -> int:
    words = ["--model", str(tmp_path / "m.model"), "--state", str(tmp_path / "s.db"), "--key", str(tmp_path / "k")]
    return main(["release", *given, *words, "--out", str(tmp_path / "out.csv"), "--yes"])


@pytest.mark.slow
def test_a_run_that_releases_nothing_new_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sv.MarkovModel([0.8, 0.2], [[0.9, 0.1], [0.3, 0.7]], alphabet=["x", "y"]).save(tmp_path / "m.model")
    data = _rows(tmp_path / "d.csv", "xyx")
    assert _run(tmp_path, str(data), "--epsilon", "1") == 0
    assert "earlier" not in capsys.readouterr().err
    assert _run(tmp_path, str(_rows(tmp_path / "tomorrow.csv", "yyy")), "--epsilon", "1") == 0
    assert "nothing new: all rows were released by an earlier run" in " ".join(capsys.readouterr().err.split())
    assert _run(tmp_path, str(_rows(data, "xyxy")), "--epsilon", "1") == 0
    assert "6 of the rows were released by an earlier run" in capsys.readouterr().err


@pytest.mark.slow
def test_new_rows_of_an_erased_person_stop_a_file_with_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sv.MarkovModel([0.8, 0.2], [[0.9, 0.1], [0.3, 0.7]], alphabet=["x", "y"]).save(tmp_path / "m.model")
    data, secret = _rows(tmp_path / "d.csv", "xyx"), ("--secret", "ever:y", "--secret-epsilon", "0.5")
    assert _run(tmp_path, str(data), *secret) == 0
    assert main(["state", "erase", str(tmp_path / "s.db"), "a", "--key", str(tmp_path / "k")]) == 0
    capsys.readouterr()
    earlier = data.read_text()
    assert _run(tmp_path, str(_rows(data, "xyxy")), *secret) == 2
    assert "after row 6 it has rows of somebody who was erased" in " ".join(capsys.readouterr().err.split())
    data.write_text(earlier + "b,y\n")
    assert _run(tmp_path, str(data), *secret) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 8
