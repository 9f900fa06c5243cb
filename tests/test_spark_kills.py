"""Queries that are killed: the driver and the executors, mid-stream, with nothing lost, doubled or off in the end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("pyspark")
import reference_streams as ref
import sparks
from seqveil.spark import account

pytestmark = [pytest.mark.java, sparks.needs_java, *(pytest.mark.filterwarnings(each) for each in sparks.QUIET)]
FILES = 8


@pytest.fixture(scope="module")
def spark():
    with sparks.session() as made:
        yield made


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Events, and in files."""
    folder = tmp_path_factory.mktemp("kills")
    frame = sparks.events(24_000, 1500, seed=8)
    sparks.write(frame, folder / "in", FILES)
    return folder / "in", frame


def start(master, source, place):
    command = [sys.executable, sparks.__file__, master, str(source), str(place)]
    with open(place / "log", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def committed(place):
    folder = place / "checkpoint" / "commits"
    return sum(path.name.isdecimal() for path in folder.iterdir()) if folder.is_dir() else 0


def await_commits(place, count, process):
    end = time.monotonic() + 240
    while committed(place) < count:
        assert process.poll() is None, (place / "log").read_text()[-2000:]
        assert time.monotonic() < end, "the query makes no progress"
        time.sleep(0.05)


def children(pid):
    """All processes that descend from one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        below = [child for child, of in parents.items() if of == parent]
        found += below
        waiting += below
    return found


def executors(pid):
    """Process ids of the executors of a driver."""
    named = []
    for child in children(pid):
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in command:
            named.append(child)
    return named


def end(process):
    """Kill a driver, its JVM and all that hang on them, at once."""
    everyone = [process.pid, *children(process.pid)]
    for pid in everyone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def check(spark, place, made):
    """Nothing lost, nothing doubled, all drawn as without kills, every account that of the embedded run."""
    _, frame = made
    store = ref.twin(sparks.killed_setting(), sparks.query_id(place / "checkpoint"))
    done = store.release(frame["user"].to_list(), frame["value"].to_numpy(), frame["seq"].to_numpy())
    columns, accounts = [pl.Series("value", done.codes), pl.Series("epsilon", done.epsilons)], store.accounts()
    want = frame.with_columns(*columns).sort("user", "seq")
    got = sparks.released(spark, place)
    assert got.height == want.height
    assert got.equals(want.select(got.columns))
    rows = {row.user: row for row in account(spark, str(place / "checkpoint")).collect()}
    assert len(rows) == len(accounts.users)
    figures = (accounts.events, accounts.epsilon_spent, accounts.leakage)
    for user, *known in zip(accounts.users, *figures, strict=True):
        assert [rows[user].events, rows[user].spent, rows[user].leakage] == known


def test_a_driver_that_is_killed(spark, made, tmp_path):
    """Two kills at different points of the stream, then a run to its end."""
    for count in (1, 4):
        process = start("local[2]", made[0], tmp_path)
        await_commits(tmp_path, count, process)
        end(process)
        assert committed(tmp_path) < FILES - 1  # there is work left
    process = start("local[2]", made[0], tmp_path)
    assert process.wait(timeout=240) == 0, (tmp_path / "log").read_text()[-2000:]
    check(spark, tmp_path, made)


def test_executors_that_are_killed(spark, made, tmp_path):
    """A cluster of two executors, of which two are killed while they work; Spark starts others."""
    process = start("local-cluster[2,1,1024]", made[0], tmp_path)
    killed = set()
    for count in (1, 3):
        await_commits(tmp_path, count, process)
        victims = [pid for pid in executors(process.pid) if pid not in killed]
        assert victims, "no executor is there"
        os.kill(victims[0], signal.SIGKILL)
        killed.add(victims[0])
    assert committed(tmp_path) < FILES - 1
    assert process.wait(timeout=240) == 0, (tmp_path / "log").read_text()[-2000:]
    assert len(killed) == 2
    check(spark, tmp_path, made)
