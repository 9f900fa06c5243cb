"""Files whose releases may say nothing: a row with an empty value is a release, and evidence like any other."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from policies import promise
from seqveil.core.alphabet import WITHHELD, Bins, Grid
from seqveil.engine.policy import saved_terms
from seqveil.engine.streams import CodeStreams

NAMES = ["news", "sports", "health"]
ROWS = [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]]
MODEL = sv.MarkovModel([0.5, 0.3, 0.2], ROWS, alphabet=NAMES)
LENGTH, USERS = 5, 12
HEALTH = sv.secrets.ever("health", epsilon=0.5, window=5)
SECRET = promise(secrets=HEALTH)
WITHHOLD = promise(secrets=HEALTH, withhold=True)


@pytest.fixture
def files(tmp_path):
    MODEL.save(tmp_path / "m.model")
    codes = MODEL.sample(LENGTH, USERS, seed=3)
    rows = [(f"u{user}", k, NAMES[code]) for user, own in enumerate(codes) for k, code in enumerate(own)]
    pl.DataFrame(rows, schema=["user", "seq", "value"], orient="row").write_csv(tmp_path / "d.csv")
    return tmp_path


def setting_of(path):
    return saved_terms(json.loads((path.parent / f"{path.name}.meta.json").read_text())["setting"], MODEL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "state"])
def test_released_audited_and_decoded_as_streams_are(seqveil, files, kind):
    out = files / f"r.{'csv' if kind == 'state' else kind}"
    kept = ("--state", files / "s.db") if kind == "state" else ()
    args = ("release", files / "d.csv", "-m", files / "m.model", *WITHHOLD, *kept, "--out", out)
    code, printed, err = seqveil(*args, "--json")
    assert code == 0, err
    account = json.loads(printed)
    read = {"csv": pl.read_csv, "jsonl": pl.read_ndjson, "parquet": pl.read_parquet}[out.suffix[1:]]
    rows = read(out).sort("user", "seq")
    assert rows.height == USERS * LENGTH
    empty = rows["value"].is_null()
    assert account["withheld"] == empty.sum() > 0
    assert not empty.all()
    truth = pl.read_csv(files / "d.csv").sort("user", "seq")["value"]
    assert (rows["value"] == truth).filter(~empty).all()
    code, printed, err = seqveil("audit", out, "-m", files / "m.model", "--json")
    assert code == 0, err
    found = json.loads(printed)
    assert found["checks"]["unchanged"]
    setting, distributions, streams = setting_of(out), {}, CodeStreams(setting_of(out))
    for (user,), own in rows.group_by("user", maintain_order=True):
        codes = [WITHHELD if value is None else NAMES.index(value) for value in own["value"]]
        streams.observe([user] * LENGTH, codes)
        distributions[user] = sv.decode_stream(
            MODEL, own["value"].to_list(), mechanism="guarded", secrets=setting.secrets, withhold=True
        )
    assert found["secrets"][0]["log_odds_worst"] == pytest.approx(streams.secrets()[0].log_odds_worst, abs=1e-9)
    assert found["secrets"][0]["log_odds_worst"] <= 0.5
    code, _, err = seqveil("decode", out, "-m", files / "m.model", "--out", files / "best.csv")
    assert code == 0, err
    decoded = pl.read_csv(files / "best.csv").sort("user", "seq")
    exact = np.concatenate([distributions[user] for user in sorted(distributions)])
    assert decoded["confidence"].to_numpy() == pytest.approx(exact.max(1), abs=1e-6)
    assert not decoded["value"].is_null().any()
    if kind == "state":
        before = out.read_bytes()
        assert seqveil(*args)[0] == 0
        assert out.read_bytes() == before
        assert json.loads((files / "r.csv.meta.json").read_text())["withheld"] == account["withheld"]


@pytest.mark.slow
def test_what_receivers_do_with_such_files(seqveil, files):
    model, out = files / "m.model", files / "r.csv"
    assert seqveil("release", files / "d.csv", "-m", model, *WITHHOLD, "--out", out)[0] == 0
    for command in (("stats",), ("decode", "--online", "--out", files / "b.csv"), ("audit",)):
        code, _, err = seqveil(command[0], out, "-m", model, *command[1:])
        assert code == 0, (command, err)
    code, printed, err = seqveil("stats", out, "-m", model, "--json")
    assert sum(json.loads(printed)["histogram"]["value"]) == pytest.approx(USERS * LENGTH, rel=1e-6)
    (files / "r.csv.meta.json").unlink()
    for command in (("audit",), ("decode", "--out", files / "c.csv"), ("stats",)):
        code, _, err = seqveil(command[0], out, "-m", model, *WITHHOLD, *command[1:])
        assert code == 0, (command, err)
    code, _, err = seqveil("audit", out, "-m", model, *SECRET)
    assert code == 2  # without the option an empty value is a damaged row
    assert "is empty" in err


@pytest.mark.slow
def test_an_attack_takes_what_was_withheld_as_a_symbol(seqveil, files):
    pytest.importorskip("sklearn")
    assert seqveil("release", files / "d.csv", "-m", files / "m.model", *WITHHOLD, "--out", files / "r.csv")[0] == 0
    for model in ((), ("-m", files / "m.model")):
        code, _, err = seqveil("attack", files / "r.csv", "--truth", files / "d.csv", *model)
        assert code == 0, err


@pytest.mark.parametrize("place", [0, 7])
def test_a_blank_that_was_changed_is_noticed(seqveil, files, place):
    out = files / "r.csv"
    assert seqveil("release", files / "d.csv", "-m", files / "m.model", *WITHHOLD, "--out", out)[0] == 0
    rows = pl.read_csv(out)
    changed = rows["value"].to_list()
    changed[place] = None if changed[place] is not None else "news"
    rows.with_columns(pl.Series("value", changed)).write_csv(out)
    code, printed, err = seqveil("audit", out, "-m", files / "m.model", "--json")
    assert code in (1, 2)
    if code == 1:
        assert json.loads(printed)["checks"]["unchanged"] is False
    else:
        assert "cannot have come" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alphabet", "points", "bad"),
    [
        (Bins([0, 1, 2, 3]), {"value": [0.5, 1.5, 2.5, 0.5]}, "2.5x"),
        (Grid.regular(3, 1, bounds=(0, 3, 0, 1)), {"x": [0.5, 1.5, 2.5, 0.5], "y": [0.5] * 4}, "2.5x"),
    ],
    ids=["numbers", "points"],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_numbers_and_places_may_be_empty_too(seqveil, tmp_path, alphabet, points, bad, kind):
    model = sv.MarkovModel([0.5, 0.3, 0.2], ROWS, alphabet=alphabet)
    model.save(tmp_path / "m.model")
    names = ",".join(points)
    write = pl.DataFrame.write_csv if kind == "csv" else pl.DataFrame.write_ndjson
    data, out = tmp_path / f"d.{kind}", tmp_path / f"r.{kind}"
    write(pl.DataFrame({"user": ["a", "a", "a", "b"] * 5} | {name: own * 5 for name, own in points.items()}), data)
    zone = "[[2.5, 0.5]]" if "x" in points else "[2.5]"
    (tmp_path / "p.toml").write_text(f"withhold = true\n[[secret]]\nzone = {zone}\nepsilon = 1.5\nwindow = 4\n")
    how = ("-m", tmp_path / "m.model", "--value-column", names, "--policy", tmp_path / "p.toml")
    code, _, err = seqveil("release", data, *how, "--out", out)
    assert code == 0, err
    rows = (pl.read_csv if kind == "csv" else pl.read_ndjson)(out)
    first = next(iter(points))
    assert rows[first].is_null().any()
    assert rows.height == 20
    code, _, err = seqveil("audit", out, "-m", tmp_path / "m.model")
    assert code == 0, err
    if kind == "csv":  # a field that cannot be read is not an empty one
        lines = out.read_text().splitlines()
        place = next(k for k, line in enumerate(lines) if k and "." in line)
        lines[place] = lines[place].replace(lines[place].split(",")[1], bad, 1)
        out.write_text("\n".join(lines) + "\n")
        code, _, err = seqveil("audit", out, "-m", tmp_path / "m.model")
        assert code == 2
        assert f"row {place}" in err
        if "x" in points:
            lines[place] = lines[place].replace(bad, "")
            out.write_text("\n".join(lines) + "\n")
            code, _, err = seqveil("audit", out, "-m", tmp_path / "m.model")
            assert (code, "one coordinate is empty" in err) == (2, True)


@pytest.mark.slow
def test_what_cannot_be_disclosed_from_an_empty_value_is_refused(seqveil, tmp_path, files):
    odd = sv.MarkovModel([0.5, 0.3, 0.2], ROWS, alphabet=["", "sports", "health"])
    odd.save(tmp_path / "odd.model")
    code, _, err = seqveil(
        "release", files / "d.csv", "-m", tmp_path / "odd.model", *WITHHOLD, "--out", files / "r.csv"
    )
    assert code == 2
    assert "has an empty value" in err
    assert not (files / "r.csv").exists()
