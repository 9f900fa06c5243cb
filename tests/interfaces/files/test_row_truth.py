"""Event k of a user is released, and estimated, as event k of that user, whatever the order of rows.

At an ε this large every release and every estimate is the truth, and every user has a stream of its own: a row that is
paired with another one shows.
"""

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from filed import in_public_order
from policies import promise
from seqveil import MarkovModel
from seqveil.interfaces.cli import main
from seqveil.receiver.learn import Evidence

pytestmark = pytest.mark.slow

N = 6
SURE = ["--epsilon", 16, "--seed", 2]  # one release in a million is not the truth, and none is with this seed
LETTERS = "abcdef"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "chain.model"
    rows = 0.7 * np.eye(N) + 0.3 / N
    MarkovModel(np.full(N, 1 / N), rows, alphabet=list(LETTERS)).save(path)
    return path


def streams():
    """Streams of 40 people, of 1 to 30 events, that stay on a value for a while."""
    rng = np.random.default_rng(8)
    made = {}
    for user in range(40):
        x, values = int(rng.integers(N)), []
        for _ in range(int(rng.integers(1, 31))):
            x = int(rng.integers(N)) if rng.random() < 0.3 else x
            values.append(LETTERS[x])
        made[f"u{user:02d}"] = values
    return made


def grouped(rng):
    return [(user, k) for user, values in streams().items() for k in range(len(values))]


def in_turns(rng):
    return sorted(grouped(rng), key=lambda row: row[1])


def mixed(rng):
    """Users in any order, each user's own events in theirs."""
    rows = grouped(rng)
    owners = [rows[k][0] for k in rng.permutation(len(rows))]
    following = dict.fromkeys(owners, 0)
    made = []
    for user in owners:
        made.append((user, following[user]))
        following[user] += 1
    return made


LAYOUTS = {"grouped by user": grouped, "in turns": in_turns, "mixed": mixed}
TIMES = ("no time", "ties", "times", "sort")


def table(layout, time):
    """The raw rows: without a time, with times that users share, with a time of its own for every row, or unsorted."""
    rng = np.random.default_rng(3)
    rows, made = LAYOUTS[layout](rng), streams()
    frame = pl.DataFrame({"user": [u for u, _ in rows], "value": [made[u][k] for u, k in rows]})
    if time == "no time":
        return frame
    ties = pl.Series("time", [10 * k for _, k in rows])  # the k-th events of all users are at one time
    frame = frame.insert_column(1, ties if time != "times" else pl.Series("time", range(len(rows))))
    return frame[rng.permutation(len(rows)).tolist()] if time == "sort" else frame


def in_order(frame, time):
    """The rows as a command takes them: by time where they go back, rows of one time as they stand in the file."""
    return frame.sort("time", maintain_order=True) if time == "sort" else frame


def run(*args):
    assert main([str(arg) for arg in args]) == 0


def assert_same_rows(path, wanted, every_row=True):
    """The file has these rows, in this order; or, for batches, the same rows of each user in this order."""
    got = pl.read_csv(path).select(wanted.columns)
    if not every_row:
        got, wanted = (frame.sort("user", maintain_order=True) for frame in (got, wanted))
    wrong = sum(a != b for a, b in zip(got.iter_rows(), wanted.iter_rows(), strict=True))
    assert wrong == 0, f"{wrong} of {wanted.height} rows"


RELEASES = {
    "release": [],
    "release with randomized response": ["--mechanism", "randomized_response"],
    "release --batch": ["--batch", 3, "--mechanism", "tree"],
    "release --state": ["--state", "state.db"],
    "release --state --batch": ["--state", "state.db", "--batch", 3, "--mechanism", "tree"],
}


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", RELEASES)
def test_releases_and_estimates_stand_on_their_own_rows(tmp_path, monkeypatch, model, how, layout, time):
    monkeypatch.chdir(tmp_path)
    raw = table(layout, time)
    raw.write_csv("raw.csv")
    options = RELEASES[how]
    wanted = in_order(raw, time) if "--state" in options else in_public_order(in_order(raw, time))
    every_row = "--batch" not in options
    run("release", "raw.csv", "--model", model, *SURE, *options, "--out", "out.csv")
    assert_same_rows("out.csv", wanted, every_row)
    for name, online in (("smoothed.csv", []), ("filtered.csv", ["--online"])):
        run("decode", "out.csv", "--model", model, *online, "--out", name)
        assert_same_rows(name, wanted, every_row)


def test_rows_that_were_left_out_do_not_move_the_others(tmp_path, model):
    raw = table("mixed", "times")
    raw.write_csv(tmp_path / "raw.csv")
    stop = promise(epsilon=16, budget=sv.Budget(total=60, when_spent="stop"))
    run("release", tmp_path / "raw.csv", "--model", model, *stop, *SURE[2:], "--out", tmp_path / "out.csv")
    kept = pl.read_csv(tmp_path / "out.csv").select("user", "time").join(raw, on=["user", "time"], how="left")
    assert 0 < kept.height < raw.height
    assert_same_rows(tmp_path / "out.csv", kept.select("user", "time", "value"))
    run("decode", tmp_path / "out.csv", "--model", model, "--out", tmp_path / "decoded.csv")
    assert_same_rows(tmp_path / "decoded.csv", kept.select("user", "time", "value"))


def test_evidence_keeps_the_order_of_the_events_whoever_they_are_of():
    setting = sv.Policy(epsilon=1.0).on(sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]))
    users, codes = np.array([1, 0, 1, 0]), np.array([0, 1, 1, 0])
    mixed = Evidence.of_streams(setting, users, codes)
    apart = Evidence.of(setting, [codes[users == user] for user in (0, 1)])
    assert mixed.users.tolist() == users.tolist()
    assert np.allclose(mixed.table[mixed.index][[1, 3, 0, 2]], apart.table[apart.index])
