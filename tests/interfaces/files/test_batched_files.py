"""Releases in batches through files and commands: the whole chain, what is refused, and what tampering does."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from filed import audit_file, decode_file, release_file
from policies import promise
from seqveil import Budget, MarkovModel
from seqveil.core.errors import DataError
from seqveil.engine import batches, stream
from seqveil.engine.batches import decode_path
from seqveil.engine.policy import Policy
from seqveil.receiver.decode import decode_paths

pytestmark = pytest.mark.slow

SECRET = "zq-secret-77"
WORDS = ["bath", "hall", "kitchen"]
READERS = {".csv": pl.read_csv, ".jsonl": pl.read_ndjson, ".parquet": pl.read_parquet}


def sticky(stay=0.8, names=WORDS):
    n = len(names)
    moves = np.full((n, n), (1 - stay) / (n - 1))
    np.fill_diagonal(moves, stay)
    return MarkovModel(np.full(n, 1 / n), moves, alphabet=names)


def streams(model, lengths=(1, 4, 9, 2, 8, 13, 5, 3), seed=3):
    """Interleaved users, one with a single event, some with a short last batch of 4."""
    rows = []
    for user, length in enumerate(lengths):
        values = model.alphabet.decode(model.sample(length, 1, seed + user)[0])
        rows += [(f"0{user}", seq, 10.0 * seq + user, value, SECRET) for seq, value in enumerate(values)]
    frame = pl.DataFrame(rows, schema=["user", "seq", "at", "value", "note"], orient="row")
    return frame.sort("seq", "user")


@pytest.fixture
def place(tmp_path):
    """A data file and the model it was drawn from."""
    model = sticky()
    model.save(tmp_path / "m.model")
    streams(model).write_csv(tmp_path / "data.csv")
    return tmp_path


@pytest.fixture
def released(seqveil, place):
    out = place / "r.csv"
    assert seqveil("release", place / "data.csv", "-m", place / "m.model", "-e", 2, "--batch", 4, "-o", out).code == 0
    return out


@pytest.mark.parametrize("suffix", READERS)
def test_the_whole_chain(seqveil, tmp_path, suffix):
    data, chain, out, back = (tmp_path / name for name in ("data" + suffix, "m.model", "out" + suffix, "back" + suffix))
    raw = streams(sticky())
    {".csv": raw.write_csv, ".jsonl": raw.write_ndjson, ".parquet": raw.write_parquet}[suffix](data)
    assert seqveil("fit", data, "-o", chain, "--smoothing", 0.5).code == 0
    plan = seqveil("plan", chain, "-e", 0.5, "--wait", 1, "--block", 4, "--length", 8, "--people", 3, "--json").json
    assert [row["way"] for row in plan["rows"]] == ["one by one", "batches of 2", "blocks of 4"]
    assert [row["policy"]["epsilon"] for row in plan["rows"]] == [0.5, 1.0, 2.0]
    account = seqveil("release", data, "-m", chain, "-e", 2, "--batch", 4, "--out", out, "--json").json
    assert (account["events"], account["releases"], account["batch"]) == (45, 15, 4)
    report = seqveil("audit", out, "-m", chain, "--json")
    assert report.code == 0
    assert report.json["exact"] is False
    assert set(report.json["checks"].values()) == {True, None}
    for name in ("users", "releases", "held", "leakage", "composition", "ldp"):
        assert report.json[name] == pytest.approx(account[name], rel=1e-12)
    assert report.json["worst_release"] <= 2
    assert seqveil("decode", out, "-m", chain, "--out", back, "--histogram", tmp_path / "h.csv").code == 0
    made, decoded = READERS[suffix](out), READERS[suffix](back)
    assert made.columns == ["user", "seq", "value", "epsilon", "batch", "path"]
    assert decoded.columns == ["user", "seq", "value", "confidence"]
    assert decoded["seq"].to_list() == made["seq"].to_list()
    assert pl.read_csv(tmp_path / "h.csv")["expected"].sum() == pytest.approx(45)
    assert SECRET not in "".join(path.read_text(errors="replace") for path in tmp_path.glob("out*"))
    check_layout(raw, made)


def check_layout(raw, made):
    """Every event once; a batch's rows together and in order, its ε and path on the first."""
    assert made["epsilon"].sum() == 2.0 * 15
    disclosed = made["path"] != "-"
    assert (disclosed == (made["epsilon"] > 0)).all()
    assert (disclosed == (pl.Series(made["seq"]) % 4 == 0)).all()
    assert (made["batch"] == made["seq"] // 4).all()
    keys = made.select(pl.struct("user", "batch").rle_id())["user"]
    assert keys.n_unique() == keys.max() + 1 == 15
    for (user,), rows in made.group_by("user"):
        assert rows["seq"].to_list() == raw.filter(pl.col("user").cast(rows["user"].dtype) == user)["seq"].to_list()


def test_rows_come_user_by_user_batch_by_batch(released):
    made = pl.read_csv(released)
    assert made.select("user", "batch").equals(made.select("user", "batch").sort("user", "batch"))
    sizes = made.group_by("user", "batch", maintain_order=True).agg(pl.len(), pl.col("path").first())
    assert set(sizes["len"]) <= {1, 2, 3, 4}
    assert "-" not in set(sizes["path"])


def test_the_account_and_the_estimates_are_those_of_single_streams(place, released):
    model = MarkovModel.load(place / "m.model")
    setting = Policy(epsilon=2.0, batch=4, mechanism="auto").on(model)
    made = pl.read_csv(released, schema_overrides={"user": pl.String})
    for online in (False, True):
        decode_file(released, model, place / "d.csv", online=online)
        decoded = pl.read_csv(place / "d.csv", schema_overrides={"user": pl.String})
        for (user,), rows in made.group_by("user"):
            paths = [decode_path(str(path)) for path in rows["path"] if path != "-"]
            distributions = decode_paths(setting, paths, rows.height, smooth=not online)
            mine = decoded.filter(pl.col("user") == user)
            assert mine["confidence"].to_numpy() == pytest.approx(distributions.max(1), abs=1e-6)
            state = stream.State.start(setting)
            for k, path in enumerate(paths):
                values = rows["value"][4 * k : 4 * k + 4]
                sent, state = batches.observe(setting, state, path, len(values))
                assert model.alphabet.decode(sent.codes) == values.to_list()
    report = audit_file(released, model)
    assert report.worst_user == "05"


SETTINGS = {
    "without a model": {"budget": Budget(ldp_total=30.0)},
    "hold": {"budget": Budget(total=3.0)},
    "stop": {"budget": Budget(total=3.0, when_spent="stop")},
    "window": {"budget": Budget(per_window=2.0, releases=2, when_spent="stop")},
    "seconds": {"budget": Budget(per_window=3.0, seconds=55.0, when_spent="stop")},
    "unsound": {"mechanism": "batch_descent"},
    "one": {"batch": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_receiver_follows_every_setting(place, name):
    model, out = MarkovModel.load(place / "m.model"), place / "out.csv"
    streams(model, (1, 7, 16, 18)).select("user", "value", time="at").write_csv(place / "data.csv")
    setting = Policy(**{"mechanism": "tree", "epsilon": 2.0, "batch": 3} | SETTINGS[name]).on(model)
    account = release_file(place / "data.csv", setting, out, seed=4)
    few = audit_file(out, model)  # distributions of two users in memory, of two in a file
    report = audit_file(out, model)
    assert few == report
    assert report.leakage == pytest.approx(account.leakage, rel=1e-12)
    assert (report.releases, report.held, report.composition) == (account.releases, account.held, account.composition)
    assert (report.epsilons, report.values, report.unchanged) == (True, True, True)
    assert replace(report, unseeded=None).passed or not setting.mechanism.sound
    assert (account.stopped > 0) is (setting.budget.when_spent == "stop")
    rows = pl.read_csv(out).height
    assert rows == account.events - account.stopped
    for online in (False, True):
        decoded = decode_file(out, model, place / "decoded.csv", online=online)
        assert decoded.rows == rows
        assert decoded.histogram.sum() == pytest.approx(rows)


def brute_distributions(setting, log, length, batch):
    """Distributions of all symbols by summing over every sequence; only for what was released (None: left out)."""
    model, state, sent = setting.model, stream.State.start(setting), []
    for k, path in enumerate(log):
        one, state = batches.observe(setting, state, path, min(batch, length - k * batch))
        sent.append(one)
    grid = np.indices((model.n,) * length).reshape(length, -1).T
    moves = model.chain.toarray()
    weight = model.initial[grid[:, 0]] * np.prod([moves[grid[:, t], grid[:, t + 1]] for t in range(length - 1)], axis=0)
    for k, one in enumerate(sent):
        if one is not None:
            weight = weight * [one.lift(row[k * batch : (k + 1) * batch]) for row in grid]
    distributions = [np.bincount(grid[:, t], weight, model.n) for t in range(length)]
    return np.stack(distributions) / weight.sum()


def test_estimates_over_a_gap_are_those_of_brute_force(tmp_path):
    model, out = sticky(0.7, ["a", "b"]), tmp_path / "out.csv"
    budget = Budget(per_window=1.5, releases=2, when_spent="stop")
    setting = Policy(epsilon=1.5, batch=2, budget=budget, mechanism="tree").on(model)
    streams(model, (9,)).write_csv(tmp_path / "data.csv")
    release_file(tmp_path / "data.csv", setting, out, seed=2)
    made = pl.read_csv(out)
    first = made.filter(pl.col("path") != "-")
    found = dict(zip(first["batch"], first["path"], strict=True))
    assert len(found) < max(found) + 1  # there is a gap
    log = [decode_path(found[k]) if k in found else None for k in range(max(found) + 1)]
    distributions = brute_distributions(setting, log, made["seq"].max() + 1, 2)
    decode_file(out, model, tmp_path / "d.csv")
    assert pl.read_csv(tmp_path / "d.csv")["confidence"].to_numpy() == pytest.approx(
        distributions[made["seq"]].max(1), abs=1e-6
    )


@pytest.mark.parametrize("column", ["value", "epsilon", "path", "batch", "second path"])
def test_audit_sees_a_changed_row(seqveil, place, released, column):
    made = pl.read_csv(released, infer_schema=False)
    k, named = (made["path"].to_list().index("-"), "path") if column == "second path" else (0, column)
    first = made[named][k]
    word, path = "hall" if first == "bath" else "bath", {"0": "1"}.get(first, "0")
    other = {"value": word, "epsilon": "1.5", "path": path, "batch": "1"}[named]
    changed = made[named].to_list()
    changed[k] = other
    made.with_columns(pl.Series(named, changed)).write_csv(released)
    lost = made[:1].vstack(made[2:])
    lost.write_csv(place / "lost.csv")
    fewer = seqveil("audit", place / "lost.csv", "-m", place / "m.model", "--meta", place / "r.csv.meta.json")
    assert fewer.code in (1, 2)
    said = seqveil("audit", released, "-m", place / "m.model", "--json")
    assert said.code == (1 if column in ("value", "epsilon") else said.code)
    assert said.code in (1, 2)
    if said.code == 1:
        assert said.json["checks"]["unchanged"] is False
        broken = {"value": "values", "epsilon": "epsilons", "path": "values"}[column]
        assert column == "path" or said.json["checks"][broken] is False
    else:
        assert said.err.startswith("error: r.csv: row")
        assert said.err.count("\n") == 1


def test_without_a_side_file_the_batch_size_must_be_right(seqveil, place, released):
    (place / "r.csv.meta.json").unlink()
    chain = place / "m.model"
    assert seqveil("audit", released, "-m", chain, *promise(epsilon=2, batch=4)).code == 0
    for size in (3, 5, 8):
        said = seqveil("audit", released, "-m", chain, *promise(epsilon=2, batch=size))
        assert said.code == 2
        assert "the policy is that of the release" in said.err
    assert "in batches" in seqveil("audit", released, "-m", chain, *promise(epsilon=2)).err
    assert seqveil("decode", released, "-m", chain, *promise(epsilon=2, batch=3), "-o", place / "d.csv").code == 2
    assert seqveil("release", place / "data.csv", "-m", chain, "-e", 2, "-o", released, "--force").code == 0
    (place / "r.csv.meta.json").unlink()
    said = seqveil("audit", released, "-m", chain, *promise(epsilon=2, batch=4))
    assert (said.code, "'path'" in said.err) == (2, True)


def test_batches_that_are_too_many_are_refused_and_what_was_drawn_before_is_published(seqveil, place):
    said = seqveil("release", place / "data.csv", "-m", place / "m.model", "-e", 1, "-o", place / "out.csv",
                   "--batch", 40, "--mechanism", "batch_lp")  # fmt: skip
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "possible batches" in said.err
    assert json.loads((place / "out.csv.meta.json").read_text())["unfinished"] is True  # short batches were drawn


def test_a_file_sorted_anew_is_read_but_not_unchanged(place, released):
    model, made = MarkovModel.load(place / "m.model"), pl.read_csv(released, infer_schema=False)
    made.sort("user", descending=True, maintain_order=True).write_csv(released)
    report = audit_file(released, model)
    assert (report.values, report.epsilons, report.unchanged) == (True, True, False)


def test_a_receiver_refuses_another_model(place, released):
    (place / "r.csv.meta.json").unlink()
    other = sticky(0.5)
    with pytest.raises(DataError, match=r"r\.csv: rows \d+ on: "):
        audit_file(released, other, policy=Policy(epsilon=2.0, batch=4, mechanism="tree"))
