"""Queries that are cut: killed from their first second on, refused, or begun with something else."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from policies import promise

pytest.importorskip("pyspark")
import sparks
from reference import streams as ref
from seqveil.engine.policy import Policy
from seqveil.spark import account

pytestmark = sparks.MARKS
FRAME = sparks.events(400, 20, seed=5)
PATIENCE = 600.0  # seconds: on a busy machine Java takes minutes to start


def arguments(place, epsilon=1):
    folders = ("--checkpoint", place / "checkpoint", "--out", place / "out", "--key", place / "key")
    model = ("-m", place / "m", *promise(epsilon=epsilon, mechanism="balanced"))
    return ["release", place / "in", *model, *folders]


@pytest.fixture
def place(tmp_path):
    sparks.write(FRAME, tmp_path / "in", 2)
    sparks.model().save(tmp_path / "m")
    return tmp_path


def right(spark, place, frame):
    """What the sink lists is what the store releases, row by row, and so is every account."""
    terms = Policy(epsilon=1.0, mechanism="balanced").on(sparks.model())
    store = ref.twin(terms, sparks.query_id(place / "checkpoint"), (place / "key").read_bytes())
    made = store.release(frame["user"].to_list(), frame["value"].to_numpy(), frame["seq"].to_numpy())
    accounts = store.accounts()
    want = frame.with_columns(value=pl.Series(made.codes), epsilon=pl.Series(made.epsilons)).sort("user", "seq")
    got = sparks.released(spark, place)
    assert got.equals(want.select(got.columns))
    figures = zip(accounts.events, accounts.epsilon_spent, accounts.leakage, strict=True)
    rows = account(spark, str(place / "checkpoint")).collect()
    found = {row.user: (row.events, row.spent, row.leakage) for row in rows}
    assert found == dict(zip(accounts.users, figures, strict=True))


def test_a_checkpoint_is_for_one_model_policy_and_key(spark, run, place):
    assert run(*arguments(place))[0] == 0
    note = (place / "checkpoint" / "seqveil.json").read_text()
    assert (place / "key").read_bytes().hex() not in note

    def refused(expected):
        code, _, said = run(*arguments(place))
        assert (code, expected in said, said.count("\n")) == (2, True, 1), said

    (place / "key").rename(place / "old")
    refused("another key")
    (place / "old").rename(place / "key")
    sparks.model(18).save(place / "m")
    refused("another model")
    assert (place / "checkpoint" / "seqveil.json").read_text() == note
    (place / "checkpoint" / "seqveil.json").unlink()
    refused("a query that is not seqveil's")
    shutil.rmtree(place / "checkpoint")
    refused("holds what another checkpoint released")


def test_a_micro_batch_that_was_refused_goes_on_once_its_files_are_right(spark, run, place):
    """Taken out and put there again under other names."""
    FRAME[:200].with_columns(pl.col("seq") + 5).write_parquet(place / "in" / "000.parquet")
    for _ in range(2):
        code, _, said = run(*arguments(place))
        assert (code, said.count("error: ")) == (2, 1)
        assert "send the missing events first" in said
        assert "nothing of this micro-batch was published; put the files right" in said
    code, _, said = run("account", place / "checkpoint")
    assert (code, "holds no release yet" in said) == (2, True)
    code, _, said = run(*arguments(place, epsilon=2))  # it was planned, so its rows may have been seen
    assert (code, "was begun with another epsilon" in said, said.count("\n")) == (2, True, 1)
    for k, part in enumerate((FRAME[:200], FRAME[200:])):
        (place / "in" / f"00{k}.parquet").unlink()
        part.write_parquet(place / "in" / f"00{k}b.parquet")
    code, _, said = run(*arguments(place))
    assert code == 0, said
    right(spark, place, FRAME)


def children(pid):
    """All processes that descend from one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        below = [child for child, of in parents.items() if of == parent]
        found += below
        waiting += below
    return found


def end(process):
    """Kill a driver, its JVM and all that hang on them, at once."""
    for pid in [process.pid, *children(process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def until(what, process):
    """Wait for something that a process is to do."""
    last = time.monotonic() + PATIENCE
    while not what():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < last, "the query makes no progress"
        time.sleep(0.005)


def test_the_command_killed_from_its_first_second_on_and_interrupted(spark, run, place):
    """Real kills at chance moments until the first micro-batch is done, Ctrl-C, then a run to the end. No other
    checkpoint may begin in the folder that has rows of the micro-batch that was cut."""
    args, chance = ["spark", *map(str, arguments(place))], random.Random(3)
    command = [sys.executable, "-m", "seqveil", *args]
    for stage in ("checkpoint/offsets/0", "out/part-*", "out/_spark_metadata/0"):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        until(lambda: list(place.glob(stage)), process)  # noqa: B023
        time.sleep(chance.random() * 0.05)
        end(process)
        if list(place.glob("out/part-*")):
            (place / "checkpoint").rename(place / "kept")
            code, _, said = run(*arguments(place))
            assert (code, "holds what another checkpoint released" in said) == (2, True), said
            (place / "kept").rename(place / "checkpoint")
    errors = place / "errors"
    with errors.open("w") as stream:
        process = subprocess.Popen([*command, "--follow"], stderr=stream)
    until(lambda: errors.read_text(), process)  # a commit may be there from the run before
    until((place / "checkpoint" / "commits" / "0").exists, process)
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE)
    said = errors.read_text().splitlines()
    assert (process.returncode, len(said)) == (1, 2)
    assert "in the order in which events arrive" in said[0]
    assert said[1] == "interrupted; what was released stands, and the same command goes on with it"
    later = FRAME.with_columns(user=pl.format("v{}", "user"))
    later.write_parquet(place / "in" / "later.parquet")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    right(spark, place, pl.concat([FRAME, later]))
