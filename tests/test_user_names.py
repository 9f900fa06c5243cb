"""One rule for the names of users, wherever they come in; and copies of a state file that others cannot read."""

import os
import stat
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import served
import sparks
from filed import release_file
from seqveil import Budget, MarkovModel
from seqveil.core.errors import InputError
from seqveil.core.randomness import KeyedRandomness, SeededRandomness, user_name
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams

KEY = bytes(range(32))
MODEL = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
WHOLE = {"int": 7, "numpy": np.int64(7), "small": np.uint8(7)}


@pytest.mark.slow
@pytest.mark.parametrize("seven", WHOLE.values(), ids=WHOLE)
def test_a_whole_number_and_its_digits_are_one_user_of_a_store(tmp_path, seven):
    setting = Policy(epsilon=1.0, budget=1.0, mechanism="optimal").on(MODEL)
    with CodeStreams.open(tmp_path / "s.db", setting, key=KEY) as store:
        first = store.release([seven], [1], [0])
        again = store.release(["7"], [2], [0])
        assert again.replayed.tolist() == [True]
        assert again.codes.tolist() == first.codes.tolist()
        store.release(["7", seven] * 20, [1] * 40, range(1, 41))
        assert store.account(seven) == store.account("7")
        assert store.account("7").leakage <= 1.0 + 2.0**-31
        assert store.next_seqs([seven, "7"]).tolist() == [41, 41]
        assert len(store.releases(seven)) == len(store.releases("7")) == 41
        assert store.accounts().users == ["7"]


@pytest.mark.parametrize("wrong", [True, 7.0, None, b"7", ("7",)])
def test_what_is_neither_text_nor_a_whole_number_is_refused(tmp_path, wrong):
    with pytest.raises(InputError, match="event 0: expected a user that is text or a whole number"):
        CodeStreams.open(tmp_path / "s.db", Policy(epsilon=0.5).on(MODEL)).release([wrong], [0], [0])


@pytest.mark.slow
def test_numbers_of_a_parquet_file_and_text_over_http_have_one_account(tmp_path):
    """Released from a file first, then over HTTP: what the file's user had spent is spent."""
    setting = served.words_setting(budget=Budget(total=1.0))
    table = pl.DataFrame({"user": [7, 8] * 30, "value": ["home", "work"] * 30})
    table.write_parquet(tmp_path / "data.parquet")
    release_file(tmp_path / "data.parquet", setting, tmp_path / "out.csv", state=tmp_path / "state.db", key=served.KEY)
    with served.running(tmp_path, setting, auth=False) as service:
        known = service.ask("GET", "/v1/users/7").json["account"]
        assert known["events"] == 30
        again = service.release({"user": "7", "seq": 0, "value": "gym"}).json["releases"][0]
        assert again["replayed"] is True
        assert service.release({"user": "7", "seq": 30, "value": "gym"}).json["releases"][0]["epsilon"] < 1e-6
        assert service.ask("GET", "/v1/users/7").json["account"]["leakage"] <= 1.0 + 2.0**-31


@pytest.mark.parametrize("batch", [1, 2])
def test_a_released_file_keeps_the_type_of_its_users(tmp_path, batch):
    table = pl.DataFrame({"user": pl.Series([7, 8] * 4, dtype=pl.Int32), "value": [0, 1, 2, 0] * 2})
    table.write_parquet(tmp_path / "data.parquet")
    setting = Policy(epsilon=1.0, batch=batch, mechanism="optimal" if batch == 1 else "tree").on(MODEL)
    release_file(tmp_path / "data.parquet", setting, tmp_path / "out.parquet", seed=1)
    assert pl.read_parquet(tmp_path / "out.parquet")["user"].dtype == pl.Int32


def test_accounts_in_memory_follow_the_same_rule():
    setting = Policy(epsilon=1.0, mechanism="optimal").on(MODEL)
    streams = CodeStreams(setting, randomness=SeededRandomness(1))
    streams.release([7, "7", np.int32(7)], np.array([0, 1, 2]))
    assert (streams.accounts().users, streams.accounts().events.tolist()) == (["7"], [3])


def test_randomness_and_spark_know_the_same_user_by_both():
    randomness, setting = KeyedRandomness(KEY), Policy(epsilon=1.0, mechanism="optimal").on(MODEL)
    assert randomness.of([7], [3]).draw(1) == randomness.of(["7"], [3]).draw(1)
    raw = np.array([0, 1, 2, 0])
    disclosed = [
        sparks.bucket(setting, sparks.MapState(), randomness).release([name] * 4, raw).codes for name in (7, "7")
    ]
    assert disclosed[0].tolist() == disclosed[1].tolist()
    assert user_name("007") != user_name(7)


# copies


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def open_handed():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_handed")
def test_a_copy_of_a_state_file_is_for_its_owner_alone(tmp_path):
    setting = Policy(epsilon=0.5).on(MODEL)
    with CodeStreams.open(tmp_path / "s.db", setting, key=KEY) as store:
        store.release(["ann"], [0], [0])
        for name in ("new.db", "shared.db"):
            copy = tmp_path / name
            if name != "new.db":
                for beside in ("-wal", "-journal"):
                    Path(f"{copy}{beside}").touch(0o644)
            store.backup(copy)
            found = [path for path in tmp_path.iterdir() if path.name.startswith(name)]
            assert {mode(path) for path in found} == {0o600}
            assert copy in found
    assert mode(tmp_path / "s.db") == 0o600
    with CodeStreams.open(tmp_path / "new.db", setting, key=KEY) as store:
        assert store.account("ann").events == 1
        assert {mode(path) for path in tmp_path.iterdir() if path.name.startswith("new.db")} == {0o600}
