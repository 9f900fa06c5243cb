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
from seqveil.engine.secrets import totals
from seqveil.engine.stream import State, observe

NAMES = ["news", "sports", "health"]
ROWS = [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]]
MODEL = sv.MarkovModel([0.5, 0.3, 0.2], ROWS, alphabet=NAMES)
LENGTH, USERS = 5, 12
HEALTH = sv.secrets.ever("health", epsilon=1.0, window=5)
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
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "state"])
def test_released_audited_and_decoded_as_streams_are(seqveil, files, kind):
    out = files / f"r.{'csv' if kind == 'state' else kind}"
    kept = ("--state", files / "s.db") if kind == "state" else ()
    args = ("release", files / "d.csv", "-m", files / "m.model", *WITHHOLD, *kept, "--out", out)
    account = seqveil(*args, "--json").json
    read = {"csv": pl.read_csv, "jsonl": pl.read_ndjson, "parquet": pl.read_parquet}[out.suffix[1:]]
    rows = read(out).sort("user", "seq")
    assert rows.height == USERS * LENGTH
    empty = rows["value"].is_null()
    assert account["withheld"] == empty.sum() > 0
    assert not empty.all()
    truth = pl.read_csv(files / "d.csv").sort("user", "seq")["value"]
    assert (rows["value"] == truth).filter(~empty).all()
    found = seqveil("audit", out, "-m", files / "m.model", "--json").json
    assert (found["passed"], found["checks"]["unchanged"]) == (True, True)
    setting, distributions, trackers = setting_of(out), {}, []
    for (user,), own in rows.group_by("user", maintain_order=True):
        codes = [WITHHELD if value is None else NAMES.index(value) for value in own["value"]]
        state = State.start(setting)
        for code in codes:
            _, state = observe(setting, state, np.array([code]))
        trackers += list(state.trackers)
        distributions[user] = sv.decode_stream(
            MODEL, own["value"].to_list(), mechanism="guarded", secrets=setting.secrets, withhold=True
        )
    # what keeps a promise closes a window from above once it is over; an audit measures on
    (total,) = totals(setting.secrets, trackers, [HEALTH.epsilon])
    assert found["secrets"][0]["log_odds_worst"] <= total.log_odds_worst + 1e-9
    assert total.log_odds_worst <= HEALTH.epsilon
    assert seqveil("decode", out, "-m", files / "m.model", "--out", files / "best.csv").code == 0
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
@pytest.mark.parametrize(
    ("alphabet", "points"),
    [
        (Bins([0, 1, 2, 3]), {"value": [0.5, 1.5, 2.5, 0.5]}),
        (Grid.regular(3, 1, bounds=(0, 3, 0, 1)), {"x": [0.5, 1.5, 2.5, 0.5], "y": [0.5] * 4}),
    ],
    ids=["numbers", "points"],
)
def test_numbers_and_places_may_be_empty_too(seqveil, tmp_path, alphabet, points):
    model = sv.MarkovModel([0.5, 0.3, 0.2], ROWS, alphabet=alphabet)
    model.save(tmp_path / "m.model")
    names = ",".join(points)
    data, out = tmp_path / "d.csv", tmp_path / "r.csv"
    pl.DataFrame({"user": ["a", "a", "a", "b"] * 5} | {name: own * 5 for name, own in points.items()}).write_csv(data)
    zone = "[[2.5, 0.5]]" if "x" in points else "[2.5]"
    (tmp_path / "p.toml").write_text(f"withhold = true\n[[secret]]\nzone = {zone}\nepsilon = 1.5\nwindow = 4\n")
    how = ("-m", tmp_path / "m.model", "--value-column", names, "--policy", tmp_path / "p.toml")
    assert seqveil("release", data, *how, "--out", out).code == 0
    rows = pl.read_csv(out)
    assert (rows[next(iter(points))].is_null().any(), rows.height) == (True, 20)
    assert seqveil("audit", out, "-m", tmp_path / "m.model").code == 0
    lines = out.read_text().splitlines()
    place = next(k for k, line in enumerate(lines) if k and "." in line)
    field = lines[place].split(",")[1]
    lines[place] = lines[place].replace(field, "" if "x" in points else "2.5x", 1)  # nor is this an empty value
    out.write_text("\n".join(lines) + "\n")
    found = seqveil("audit", out, "-m", tmp_path / "m.model")
    assert (found.code, f"row {place}" in found.err) == (2, True)


@pytest.mark.slow
def test_what_receivers_do_with_such_files_and_what_is_refused(seqveil, files):
    model, out = files / "m.model", files / "r.csv"
    sv.MarkovModel([0.5, 0.3, 0.2], ROWS, alphabet=["", "sports", "health"]).save(files / "odd.model")
    made = seqveil("release", files / "d.csv", "-m", files / "odd.model", *WITHHOLD, "--out", out)
    assert (made.code, "has an empty value" in made.err, out.exists()) == (2, True, False)
    assert seqveil("release", files / "d.csv", "-m", model, *WITHHOLD, "--out", out).code == 0
    stats = seqveil("stats", out, "-m", model, "--json").json
    counts = stats["histogram"]["value"]
    assert sum(each is None for each in counts) == 1  # the value that the secret hides
    assert sum(each for each in counts if each is not None) <= USERS * LENGTH
    attack = ("--truth", files / "d.csv")
    for command, *more in (("decode", "--online", "--out", files / "b.csv"), ("attack", *attack)):
        assert seqveil(command, out, "-m", model, *more).code == 0
    rows = pl.read_csv(out)
    for place in (0, 7):  # a blank that was filled, or a value that was taken out
        changed = rows["value"].to_list()
        changed[place] = None if changed[place] is not None else "news"
        rows.with_columns(pl.Series("value", changed)).write_csv(files / "changed.csv")
        side = ("--meta", files / "r.csv.meta.json", "--json")
        found = seqveil("audit", files / "changed.csv", "-m", model, *side)
        assert "cannot have come" in found.err if found.code == 2 else found.json["checks"]["unchanged"] is False
    (files / "r.csv.meta.json").unlink()
    assert seqveil("audit", out, "-m", model, *WITHHOLD).code == 0
    refused = seqveil("audit", out, "-m", model, *SECRET)  # without the option an empty value is a damaged row
    assert (refused.code, "is empty" in refused.err) == (2, True)
