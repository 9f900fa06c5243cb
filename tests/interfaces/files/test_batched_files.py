"""Releases in batches through files and commands: the whole chain, what is refused, and what tampering does."""

import json

import numpy as np
import polars as pl
import pytest

from filed import audit_file, decode_file, release_file
from reference.batches import lift_of
from seqveil import Budget, MarkovModel
from seqveil.core.errors import DataError
from seqveil.engine import batches, stream
from seqveil.engine.batches import decode_path
from seqveil.engine.policy import Policy

pytestmark = pytest.mark.slow

SECRET = "zq-secret-77"
WORDS = ["bath", "hall", "kitchen"]


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


def test_every_event_stands_once_in_a_whole_batch(seqveil, place, released):
    """A batch's rows together and in order, its ε and path on the first."""
    raw, made = streams(sticky()), pl.read_csv(released)
    report = seqveil("audit", released, "-m", place / "m.model", "--json").json
    assert (report["passed"], report["batch"], report["releases"]) == (True, 4, 15)
    assert made.columns == ["user", "seq", "value", "epsilon", "batch", "path"]
    assert made["epsilon"].sum() == 2.0 * 15
    disclosed = made["path"] != "-"
    assert (disclosed == (made["epsilon"] > 0)).all()
    assert (disclosed == (made["seq"] % 4 == 0)).all()
    assert (made["batch"] == made["seq"] // 4).all()
    keys = made.select(pl.struct("user", "batch").rle_id())["user"]
    assert keys.n_unique() == keys.max() + 1 == 15
    for (user,), rows in made.group_by("user"):
        assert rows["seq"].to_list() == raw.filter(pl.col("user").cast(int) == user)["seq"].to_list()
    assert SECRET not in "".join(path.read_text() for path in place.glob("r.csv*"))


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
            weight = weight * [lift_of(one, row[k * batch : (k + 1) * batch]) for row in grid]
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
