"""The race on files: who is released and who is fitted, what the command prints, keeps and refuses."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from policies import promise
from seqveil import datasets, distortion
from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import DataError, InputError, SeqveilError
from seqveil.evaluate.comparison import Arena, ComparisonRow, line_up, workers
from seqveil.evaluate.comparison.files import Division, RowBook, RowJob, jobs, read_arena, set_arena
from seqveil.evaluate.comparison.workers import RowWorkers
from seqveil.interfaces.cli import main

pytestmark = pytest.mark.slow

SECRET = "zq-secret-77"


def frame(users=14, seed=5):
    """Users distinguished by the number of their events."""
    rng, rows = np.random.default_rng(seed), []
    for user in range(users):
        x = int(rng.integers(4))
        for seq in range(user + 2):
            x = int(rng.integers(4)) if rng.random() < 0.3 else x
            rows.append((f"{SECRET}-{user}", seq, f"{SECRET}-{'abcd'[x]}", float(x)))
    return pl.DataFrame(rows, schema=["user", "seq", "value", "x"], orient="row")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.csv"
    frame().write_csv(path)
    return path


@pytest.fixture
def seqveil(seqveil):
    def run(*args):
        said = seqveil(*args)
        assert SECRET not in said.out + said.err
        return said

    return run


def test_no_user_is_on_both_sides_and_the_seed_draws_them(data, tmp_path):
    def lengths(path, **options):
        arena, split = read_arena(path, Division(**options))
        released, kept = ([len(codes) for codes in side] for side in (arena.streams, arena.fitted))
        assert sorted(released + kept) == list(range(2, 16))
        assert (split.test_users, split.fit_users) == (len(released), len(kept))
        assert split.test_events + split.fit_events == frame().height
        return released

    one = lengths(data)
    assert len(one) == 7
    assert lengths(data) == one
    shuffled = tmp_path / "shuffled.csv"
    frame().sample(fraction=1, shuffle=True, seed=1).write_csv(shuffled)
    assert lengths(shuffled) == one
    assert len({tuple(lengths(data, seed=seed)) for seed in range(5)}) == 5
    assert len(lengths(data, test_users=3)) == 3
    assert lengths(data, test_users=3) == one[:3]
    assert len(lengths(data, test_share=0.01)) == 1
    assert len(lengths(data, test_share=0.99)) == 13


def test_the_chain_is_fitted_on_the_others_alone(data):
    arena, _ = read_arena(data, Division(smoothing=0.5))
    alone = sv.MarkovModel.fit([codes.tolist() for codes in arena.fitted], n=4, smoothing=0.5)
    np.testing.assert_allclose(arena.model.initial, alone.initial)
    np.testing.assert_allclose(arena.model.chain.toarray(), alone.chain.toarray())


QUICK = ("--epsilon", "0.5,2", "--mechanisms", "balanced,randomized_response,crr", "--batch", "1")
FEW = ("--epsilon", "0.5,2", "--mechanisms", "optimal,crr,tree", "--batch", "2")


def test_the_command_prints_tables_and_draws(seqveil, data, tmp_path):
    code, out, err = seqveil("compare", data, *FEW, "--plot", tmp_path / "race.png")
    assert code == 0, err
    assert "nothing it makes is private" in " ".join(seqveil("compare", "--help").out.split())
    assert out.count("an event, hamming error") == 2
    assert "✗ unsound" in out
    assert "★" in out
    assert "limits" in out
    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")


def test_json_holds_everything(seqveil, data):
    code, out, _ = seqveil("compare", data, *FEW, "--batched-users", 3, "--json")
    disclosed = json.loads(out)
    assert code == 0
    assert disclosed["private"] is False
    assert (disclosed["fit_users"], disclosed["test_users"], disclosed["symbols"]) == (7, 7, 4)
    labels = ["optimal", "optimal, pulsed", "crr", "tree, 2 at a time", "best guess, no release"]
    assert [row["label"] for row in disclosed["rows"]][:5] == labels
    assert len(disclosed["rows"]) == 12
    users = {row["label"]: row["users"] for row in disclosed["rows"]}
    assert (users["optimal"], users["tree, 2 at a time"]) == (7, 3)
    assert {row["status"] for row in disclosed["rows"] if row["mechanism"] == "crr"} <= {"unsound", "no promise"}


def test_other_costs_and_points(seqveil, tmp_path):
    path = tmp_path / "numbers.csv"
    frame().write_csv(path)
    args = ("compare", path, "--value-column", "x", "--levels", 3, *promise(epsilon=1, distortion="absolute"), "--json")
    code, out, err = seqveil(*args, "--epsilon", 1, "--mechanisms", "topl,balanced")
    assert code == 0, err
    rows = {row["label"]: row for row in json.loads(out)["rows"]}
    assert rows["converse, ε at each symbol"]["error"] < rows["best guess, no release"]["error"]
    assert rows["topl"]["ldp"] <= 1 + 1e-9


def same(one, two):
    return [{**row, "micros": 0} for row in one["rows"]] == [{**row, "micros": 0} for row in two["rows"]]


def test_a_second_run_goes_on_where_the_first_ended(seqveil, data, tmp_path):
    folder = tmp_path / "race"
    run = ("compare", data, *QUICK, "--json")
    whole, first = (json.loads(seqveil(*run, *more)[1]) for more in ((), ("--out", folder)))
    book = folder / "rows.jsonl"
    lines = book.read_text().splitlines(keepends=True)
    assert len(lines) == 12
    book.write_text("".join(lines[:9]) + lines[9][:50])  # cut short in the middle of a row
    code, out, err = seqveil(*run, "--out", folder)
    again = json.loads(out)
    assert code == 0
    assert err == f"9 of 12 rows stand in {folder}; the others are made now\n"
    assert again["resumed"] == 9
    assert same(first, again)
    assert same(first, whole)
    assert [row["micros"] for row in again["rows"][:9]] == [row["micros"] for row in first["rows"][:9]]
    assert "nothing is left to do" in seqveil(*run, "--out", folder)[2]
    assert json.loads(seqveil(*run, "--out", folder, "--seed", 1)[1])["resumed"] == 0
    assert json.loads(seqveil(*run, "--out", folder, "--smoothing", 2)[1])["resumed"] == 0
    assert SECRET not in book.read_text()


def test_damaged_lines_are_passed_over(tmp_path):
    row = ComparisonRow("a", "a", 1.0, "unsound", lift_most=np.inf)
    job = RowJob("a", 1.0, "key", 1, lambda progress: row)
    RowBook(tmp_path).keep(job, row)
    path = tmp_path / "rows.jsonl"
    path.write_text("[]\n{}\n3\n\n" + path.read_text())
    assert RowBook(tmp_path).find(job) == row
    with pytest.raises(DataError, match="is a file"):
        RowBook(path)


def test_bad_input_is_one_line(seqveil, data, tmp_path):
    alone = tmp_path / "alone.csv"
    alone.write_text(f"user,value\n{SECRET},{SECRET}\n{SECRET},{SECRET}\n")
    cases = {
        "no such file": (tmp_path / "none.csv",),
        "expected a mechanism among": (data, "--mechanisms", "optimal,nonsense"),
        "names of mechanisms": (data, "--mechanisms", ","),
        "above 0": (data, "--epsilon", "0"),
        "holds 1 user": (alone,),
        "--test-share between": (data, "--test-share", "1"),
        "--test-users from 1 to 13": (data, "--test-users", "14"),
        "whole numbers ≥ 1": (data, "--batch", "0,5"),
        "expected a picture": (data, "--plot", tmp_path / "race.doc"),
        "is a file": (data, "--out", alone),
        "a seed": (data, "--seed", "-1"),
        "at least 1 user": (data, "--batched-users", "0"),
        "needs numbers": (data, *promise(epsilon=1, distortion="absolute")),
    }
    for expected, args in cases.items():
        code, out, err = seqveil("compare", *args)
        assert (code, out, err.count("\n")) == (2, "", 1), (expected, err)
        assert err.startswith("error: "), expected
        assert expected in err, err


def test_a_set_is_named_only_where_its_folder_is_known(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SEQVEIL_DATA", raising=False)
    assert main(["compare", "msnbc"]) == 2
    assert "SEQVEIL_DATA" in capsys.readouterr().err
    assert main(["compare", "msnbc", "--data", str(tmp_path), "--bins", "5"]) == 2
    assert "--bins is for files" in capsys.readouterr().err
    assert main(["compare", "gaze_vr:side=x", "--data", str(tmp_path)]) == 2
    assert "gaze_vr:side=10" in capsys.readouterr().err


def test_people_of_a_set_are_never_on_both_sides(monkeypatch):
    """A stand-in of the same shape: 12 people, two recordings each, distinguished by a symbol of their own."""
    people = np.repeat(np.arange(12), 2)
    frame = pl.DataFrame({"user": np.repeat(np.arange(24), 5), "value": np.repeat(people, 5)})
    index = pl.DataFrame({"user": np.arange(24), "person": people, "recording": np.arange(24), "length": [5] * 24})
    made = datasets.synthetic("clicks", 2, 2)
    own = dataclasses.replace(
        made, streams=frame, index=index, alphabet=Alphabet(range(12)), distortion=distortion.hamming()
    )
    monkeypatch.setattr("seqveil.interfaces.datasets.load", lambda name, folder, **options: own)
    arena, split = set_arena("msnbc", division=Division(test_share=0.25, first=3, seed=1), streams=4)
    assert (split.fit_users, split.test_users, split.fit_events, split.test_events) == (9, 3, 90, 12)
    released = {int(code) for codes in arena.streams for code in codes}
    assert released
    assert not released & {int(code) for codes in arena.fitted for code in codes}


MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])


def rows_of(todo, processes):
    """What each job gives."""
    kept = {}
    with RowWorkers(todo, processes, lambda job, row: kept.update({job.key: row}), lambda *disclosed: None) as rows:
        rows.make()
    return [{**kept[job.key].to_json(), "micros": 0} for job in todo]


def failing(progress):
    raise InputError("expected another row")


def dying(progress):
    os._exit(7)


@pytest.mark.parametrize("attack", [False, True])
def test_secrets_go_to_other_processes_after_some_were_kept_here(monkeypatch, attack):
    secret = sv.secrets.ever(2, epsilon=0.5, window=6)
    arena = Arena.of(MODEL, list(MODEL.sample(6, 90, seed=1)), secrets=[secret], attack=attack)
    todo = jobs(arena, [1.0], line_up(["guarded", "optimal", "crr"], [1]))
    alone = rows_of(todo, 1)
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    together = rows_of(todo, 2)
    assert together == alone


@pytest.mark.parametrize(("work", "said"), [(failing, "expected another row"), (dying, "exit code 7")])
def test_what_goes_wrong_elsewhere_is_said_here(work, said, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 0.0)
    first = jobs(Arena.of(MODEL, list(MODEL.sample(6, 4, seed=1))), [1.0], line_up(["crr"], [1]))[0]
    todo = [first, *(RowJob("odd", 1.0, f"odd {k}", 1, work) for k in range(2))]
    with pytest.raises(SeqveilError, match=said):
        rows_of(todo, 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_keeps_whole_rows_and_goes_on(tmp_path, number):
    values = MODEL.sample(300, 60, seed=2)
    frame = pl.DataFrame({"user": np.repeat(np.arange(60), 300), "value": values.ravel()})
    frame.write_csv(tmp_path / "raw.csv")
    command = [sys.executable, "-m", "seqveil", "compare", "raw.csv", "--epsilon", "1", "--jobs", "2", "--out", "race"]
    command += ["--mechanisms", "optimal,crr,tree,tree_ldp,auto", "--batch", "1,2,3,4,5", "--json"]
    run = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    book = tmp_path / "race" / "rows.jsonl"
    while run.poll() is None and (not book.exists() or len(book.read_text().splitlines()) < 3):
        time.sleep(0.05)
    (os.killpg if number == signal.SIGINT else os.kill)(run.pid, number)  # Ctrl-C goes to all of them
    _, err = run.communicate(timeout=60)
    assert run.returncode != 0
    assert b"Traceback" not in err
    rows = [json.loads(line)["row"] for line in book.read_text().splitlines()]
    assert len(rows) >= 3
    assert f"interrupted; {len(rows)} of " in err.decode()
    assert b"rows stand in race: the same command goes on from there" in err
    assert ended(run.pid)


def ended(group: int) -> bool:
    """Whether nobody of a group of processes is left, or about to be."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_the_command_prints_the_same_whatever_the_number_of_processes(seqveil, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "PATIENCE", 0.0)  # the other processes are asked at once
    letters = np.array(list("abc"))[MODEL.sample(8, 20, seed=2).ravel()]
    pl.DataFrame({"user": np.repeat(np.arange(20), 8), "value": letters}).write_csv("raw.csv")
    args = ("compare", "raw.csv", "--epsilon", "0.5,2", "--mechanisms", "optimal,crr,tree", "--batch", "1,3")
    made = [seqveil(*args, "--markdown", "--jobs", jobs) for jobs in (1, 2, 3)]
    assert [each.code for each in made] == [0, 0, 0], made[-1].err
    assert made[0].out.count("\n") > 8
    assert made[0].out == made[1].out == made[2].out
