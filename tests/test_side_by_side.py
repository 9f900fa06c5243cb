"""Streams of different lengths go together: the same estimates as one by one, however they are cut into parts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from filed import decode_file, release_file
from seqveil import MarkovModel, decode_stream
from seqveil.core import compiled
from seqveil.core.bulk import Layout
from seqveil.engine.policy import Policy
from seqveil.interfaces.commands import terminal
from seqveil.interfaces.files import receive
from seqveil.receiver.decode import decode_steps

LENGTHS = (1, 7, 3, 7, 12, 1, 2)


@pytest.fixture
def model() -> MarkovModel:
    rng = np.random.default_rng(2)
    return MarkovModel(rng.dirichlet(np.ones(4)), rng.dirichlet(np.full(4, 0.5), 4), alphabet=list("abcd"))


@pytest.fixture
def released(tmp_path, model):
    """A released file of people with streams of several lengths, their rows mixed."""
    rng = np.random.default_rng(3)
    users = rng.permutation(np.repeat(np.arange(len(LENGTHS)), LENGTHS))
    values = [model.alphabet.values[k] for k in rng.integers(0, 4, users.size)]
    pl.DataFrame({"user": [f"p{k}" for k in users], "value": values}).write_csv(tmp_path / "raw.csv")
    release_file(tmp_path / "raw.csv", Policy(epsilon=1.5).on(model), tmp_path / "released.csv", seed=1)
    return tmp_path / "released.csv"


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("room", [1, 100, 1 << 25])
def test_a_file_is_decoded_as_each_of_its_streams_alone(model, released, monkeypatch, smooth, room):
    monkeypatch.setattr(receive, "TOGETHER", room)
    found = decode_file(released, model, released.with_name("decoded.csv"), online=not smooth)
    assert (found.rows, found.users) == (sum(LENGTHS), len(LENGTHS))
    rows, decoded = pl.read_csv(released), pl.read_csv(released.with_name("decoded.csv"))
    assert rows["user"].equals(decoded["user"])
    expected = np.zeros(4)
    for user in rows["user"].unique():
        own = rows["user"] == user
        distributions = decode_stream(model, rows.filter(own)["value"].to_list(), epsilon=1.5, smooth=smooth)
        expected += distributions.sum(0)
        best = [model.alphabet.values[k] for k in distributions.argmax(1)]
        assert decoded.filter(own)["value"].to_list() == best
        assert np.allclose(decoded.filter(own)["confidence"], distributions.max(1), atol=1e-6)
    assert np.allclose(found.histogram, expected, atol=1e-12)


def test_no_streams_and_no_events():
    setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    assert list(decode_steps(setting, [])) == []
    assert list(Layout.of(np.zeros(0, np.int64)).parts()) == []


@pytest.mark.parametrize(("events", "most"), [(1, 9), (5, 9), (13, 2), (1000, 1000)])
def test_parts_hold_every_stream_once_and_whole(events, most):
    users = np.random.default_rng(1).permutation(np.repeat(np.arange(len(LENGTHS)), LENGTHS))
    layout, seen = Layout.of(users), []
    for part in layout.parts(events, most):
        assert part.lengths.size <= most
        assert part.lengths.sum() <= events or part.lengths.size == 1
        steps = list(part.steps())
        assert [places.size for places in steps] == [int((part.lengths > t).sum()) for t in range(len(steps))]
        for user in range(part.lengths.size):
            own = [int(steps[t][user]) for t in range(part.lengths[user])]
            assert own == np.flatnonzero(users == users[own[0]]).tolist()
            seen += own
    assert sorted(seen) == list(range(users.size))


def test_wide_rows_are_worth_a_thread_sooner(monkeypatch):
    monkeypatch.setattr(compiled, "threads", lambda: 3)
    assert len(compiled.in_parts(100, lambda part: part, width=17)) == 1
    found = compiled.in_parts(100, lambda part: np.arange(part.start, part.stop), width=5000)
    assert len(found) == 3
    assert np.concatenate(found).tolist() == list(range(100))


def test_the_number_of_cores_can_be_set_and_changes_no_result(monkeypatch):
    from seqveil.core.distortion import hamming
    from seqveil.core.mechanisms import optimal
    from seqveil.core.mechanisms.base import Asked

    if not compiled.load():
        pytest.skip("compiled forms need numba")
    monkeypatch.setenv("SEQVEIL_THREADS", "1")
    rng = np.random.default_rng(1)
    beliefs = rng.dirichlet(np.full(1500, 0.1), 200)
    truths, thrown, found = rng.integers(0, 1500, 200), rng.integers(0, 1 << 62, 200), []
    try:
        for count in (1, 3):
            compiled.use_threads(count)
            assert compiled.threads() == count
            found.append(optimal.release(beliefs, 1.0, hamming(), Asked(truths, thrown)))
    finally:
        monkeypatch.undo()
        compiled.threads.cache_clear()
        compiled._pool.cache_clear()
    assert np.array_equal(found[0].codes, found[1].codes)
    assert np.array_equal(found[0].columns, found[1].columns)


def test_a_bar_moves_with_the_steps_between_chunks_and_never_back(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "LOGGED", 0.0)
    meter = terminal.Meter("releasing", None, "rows")
    counted = terminal.CountedRows(meter.at)
    with compiled.heard(counted.took_step):
        compiled.took_step(3)
        compiled.took_step(2)
        counted.advance(4)
        compiled.took_step(2)
    compiled.took_step(100)  # nobody listens any more
    shown = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in shown] == ["3", "5", "5", "6"]
    assert all(line.startswith("releasing: ") and line.endswith(" a second") for line in shown)


@pytest.fixture(scope="module")
def long_streams(tmp_path_factory):
    """A folder with a model and a released file that takes seconds to follow: few people, many rows each."""
    folder, rng = tmp_path_factory.mktemp("long"), np.random.default_rng(4)
    chain = MarkovModel(np.full(40, 0.025), rng.dirichlet(np.full(40, 0.5), 40), alphabet=[f"s{k}" for k in range(40)])
    chain.save(folder / "a.model")
    users = rng.permutation(np.repeat(np.arange(3), 20_000))
    values = [f"s{k}" for k in rng.integers(0, 40, users.size)]
    pl.DataFrame({"user": users, "value": values}).write_csv(folder / "raw.csv")
    release_file(folder / "raw.csv", Policy(epsilon=1.0).on(chain), folder / "released.csv")
    return folder


def spent(process: int) -> float:
    """Seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["audit", "decode"])
def test_an_interrupted_command_leaves_nothing_half_written(long_streams, what):
    before = sorted(long_streams.iterdir())
    out = ["--out", "decoded.csv"] if what == "decode" else []
    command = [sys.executable, "-m", "seqveil", what, "released.csv", "--model", "a.model", *out]
    with subprocess.Popen(command, cwd=long_streams, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        while running.poll() is None and spent(running.pid) < 2.0:  # it has begun, however busy the machine is
            time.sleep(0.05)
        assert running.poll() is None, "it ended before it could be interrupted; give it more rows"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 1
    assert b"interrupted" in said
    assert b"Traceback" not in said
    assert sorted(long_streams.iterdir()) == before
