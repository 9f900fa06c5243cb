"""Streams of different lengths go together: the same estimates as one by one, however they are cut into parts."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from filed import decode_file, release_file
from seqveil import MarkovModel, decode_stream
from seqveil.core import bulk
from seqveil.core.bulk import Layout
from seqveil.engine.policy import Policy
from seqveil.interfaces.files import receive
from seqveil.receiver.decode import decode_seen, follow

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
    for user in rows["user"].unique():
        own = rows["user"] == user
        distributions = decode_stream(model, rows.filter(own)["value"].to_list(), epsilon=1.5, smooth=smooth)
        best = [model.alphabet.values[k] for k in distributions.argmax(1)]
        assert decoded.filter(own)["value"].to_list() == best
        assert np.allclose(decoded.filter(own)["confidence"], distributions.max(1), atol=1e-6)


def test_no_streams_and_no_events():
    setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    assert list(decode_seen(setting, follow(setting, []))) == []
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


def test_the_number_of_cores_changes_no_result(monkeypatch):
    from seqveil.core.distortion import hamming
    from seqveil.core.mechanisms import optimal
    from seqveil.core.mechanisms.base import Asked

    if not bulk.load():
        pytest.skip("compiled forms need numba")
    rng = np.random.default_rng(1)
    beliefs = rng.dirichlet(np.full(1500, 0.1), 200)
    truths, thrown, found = rng.integers(0, 1500, 200), rng.integers(0, 1 << 62, 200), []
    for count in (1, 3):
        monkeypatch.setattr(bulk, "threads", lambda count=count: count)
        found.append(optimal.release(beliefs, 1.0, hamming(), Asked(truths, thrown)))
    assert np.array_equal(found[0].codes, found[1].codes)
    assert np.array_equal(found[0].columns, found[1].columns)
