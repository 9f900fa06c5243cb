"""`compare --jobs`: the same rows whatever the number of processes, and nothing half-written when it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest

from seqveil import MarkovModel, secrets
from seqveil.core.errors import InputError, SeqveilError
from seqveil.evaluate.comparison import Arena, line_up, workers
from seqveil.evaluate.comparison.files import Job, jobs
from seqveil.evaluate.comparison.workers import Rows

MODEL = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])


def rows_of(todo, processes):
    """What each job gives, and all that was said of progress."""
    kept, shown = {}, []
    with Rows(todo, processes, lambda job, row: kept.update({job.key: row}), lambda *told: shown.append(told)) as rows:
        rows.make()
    return [{**kept[job.key].to_json(), "micros": 0} for job in todo], shown


def failing(progress):
    raise InputError("expected another row")


def dying(progress):
    os._exit(7)


def test_one_process_shows_how_far_it_is():
    todo = jobs(Arena.of(MODEL, list(MODEL.sample(6, 4, seed=1))), [1.0], line_up(["optimal", "crr"], [1]))
    rows, shown = rows_of(todo, 1)
    assert [row["label"] for row in rows][:2] == ["optimal", "optimal, pulsed"]
    done = [part for _, part in shown]
    assert done == sorted(done)
    assert done[-1] == len(todo)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [False, True])
def test_secrets_go_to_other_processes_after_some_were_kept_here(monkeypatch, attack):
    secret = secrets.ever(2, epsilon=0.5, window=6)
    arena = Arena.of(MODEL, list(MODEL.sample(6, 90, seed=1)), secrets=[secret], attack=attack)
    todo = jobs(arena, [1.0], line_up(["guarded", "optimal", "crr"], [1]))
    alone, _ = rows_of(todo, 1)
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    together, _ = rows_of(todo, 2)
    assert together == alone


@pytest.mark.slow
@pytest.mark.parametrize(("work", "said"), [(failing, "expected another row"), (dying, "exit code 7")])
def test_what_goes_wrong_elsewhere_is_said_here(work, said, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 0.0)
    first = jobs(Arena.of(MODEL, list(MODEL.sample(6, 4, seed=1))), [1.0], line_up(["crr"], [1]))[0]
    todo = [first, *(Job("odd", 1.0, f"odd {k}", 1, work) for k in range(2))]
    with pytest.raises(SeqveilError, match=said):
        rows_of(todo, 2)


@pytest.mark.slow
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


@pytest.mark.slow
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
