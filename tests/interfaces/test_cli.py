"""The real commands: the whole chain on every format, what they refuse, and what they leave behind."""

import json

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from policies import promise
from seqveil import mechanisms

SECRET = "zq-secret-77"


@pytest.fixture(scope="module")
def frames():
    """Streams of 12 users, one of them with a single event: text, numbers and points that move together."""
    rng = np.random.default_rng(5)
    rows = []
    for user in range(12):
        x = int(rng.integers(4))
        for seq in range(1 if user == 0 else int(rng.integers(2, 15))):
            x = int(rng.integers(4)) if rng.random() < 0.3 else x
            rows.append((f"0{user}", seq, "abcd"[x], x * 2.5 + rng.random(), x % 2 + rng.random(), SECRET))
    order = rng.permutation(len(rows))
    rows = sorted((rows[k] for k in order), key=lambda row: row[1])
    table = pl.DataFrame(rows, schema=["user", "seq", "word", "x", "y", "note"], orient="row")
    return {
        "text": table.select("user", "seq", value="word", note="note"),
        "numbers": table.select("user", "seq", value="x", note="note"),
        "points": table.select("user", "seq", "x", "y", "note"),
    }


@pytest.fixture
def words(frames, tmp_path):
    path = tmp_path / "words.csv"
    frames["text"].write_csv(path)
    return path


@pytest.fixture
def model(seqveil, words):
    path = words.with_name("words.model")
    assert seqveil("fit", words, "-o", path, "--smoothing", 1).code == 0
    return path


def write(frame, path):
    {".csv": frame.write_csv, ".jsonl": frame.write_ndjson, ".parquet": frame.write_parquet}[path.suffix](path)


def read(path):
    return {".csv": pl.read_csv, ".jsonl": pl.read_ndjson, ".parquet": pl.read_parquet}[path.suffix](path)


CHAINS = {
    "text": ("text", (), ()),
    "bins": ("numbers", ("--bins", 2.5), ()),
    "bins by themselves": ("numbers", ("--bins", "auto"), ()),
    "grid": ("points", ("--grid", "3x2"), ("--value-column", "x,y")),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "suffix"), list(zip(CHAINS, [".csv", ".parquet", ".jsonl", ".csv"], strict=True)))
def test_the_whole_chain(seqveil, frames, tmp_path, kind, suffix):
    kept, cut, columns = CHAINS[kind]
    data, chain, out, back = (tmp_path / f"{name}{suffix}" for name in ("data", "model", "released", "decoded"))
    chain = chain.with_suffix(".model")
    write(frames[kept], data)
    fitted = seqveil("fit", data, "-o", chain, "--smoothing", 0.5, *cut, *columns, "--json").json
    assert fitted["events"] == frames[kept].height
    assert fitted["users"] == 12
    assert fitted["private"] is False
    plan = seqveil("plan", chain, "--epsilon", "0.5,2", "--length", 6, "--people", 10, "--json").json
    assert [row["policy"]["epsilon"] for row in plan["rows"] if row["way"] == "one by one"] == [0.5, 2.0]
    account = seqveil("release", data, "-m", chain, "-e", 1, "--out", out, *columns, "--json").json
    report = seqveil("audit", out, "--model", chain, "--json")
    assert report.code == 0
    assert report.json["passed"] is True
    for name in ("users", "releases", "leakage", "composition", "ldp", "held"):
        assert report.json[name] == pytest.approx(account[name], rel=1e-12)
    assert seqveil("decode", out, "-m", chain, "--out", back).code == 0
    assert seqveil("learn", out, "-m", chain, "-o", tmp_path / "learned", "--json").code == 0
    assert sv.MarkovModel.load(tmp_path / "learned").n == sv.MarkovModel.load(chain).n
    raw, released, decoded = frames[kept], read(out), read(back)
    names = ["x", "y"] if kind == "grid" else ["value"]
    assert released.columns == ["user", "seq", *names, "epsilon"]
    assert decoded.columns == ["user", "seq", *names, "confidence"]
    assert released["seq"].to_list() == decoded["seq"].to_list() == raw["seq"].to_list()
    assert set(released["epsilon"]) == {1.0}
    assert decoded["confidence"].is_between(0, 1).all()
    everything = "".join(path.read_text(errors="replace") for path in tmp_path.glob("released*"))
    assert SECRET not in everything  # other columns are dropped


@pytest.mark.slow
def test_an_unsound_mechanism_is_named_and_fails_its_audit(seqveil, words, model, tmp_path):
    out = tmp_path / "r.csv"
    said = seqveil("release", words, "-m", model, "-e", 0.3, "--mechanism", "crr", "-o", out)
    assert said.code == 0
    assert 'warning    mechanism "crr" does not guarantee its ε' in said.err
    report = seqveil("audit", out, "-m", model, "--json")
    assert report.code == 1
    assert report.json["checks"]["each_release"] is False
    assert (report.json["worst_release"] > 0.3, report.json["grade"]) == (True, "red")
    assert report.json["ldp"] is None
    assert "BROKEN" in seqveil("audit", out, "-m", model).out
    assert seqveil("release", words, "-m", model, "-e", 0.3, "--mechanism", "crr", "--budget", 3, "-o", out).code == 2


@pytest.mark.slow
def test_audit_needs_the_right_model_setting_and_side_file(seqveil, words, model, tmp_path):
    out, other, side = tmp_path / "r.csv", tmp_path / "other.model", tmp_path / "r.csv.meta.json"
    seqveil("release", words, "-m", model, "-e", 1, "-o", out)
    seqveil("fit", words, "-o", other, "--smoothing", 2)
    pl.read_csv(out).with_columns(epsilon=pl.lit(0.5)).write_csv(tmp_path / "changed.csv")
    assert seqveil("audit", tmp_path / "changed.csv", "-m", model, "--meta", side).code != 0
    meta = json.loads(side.read_text())
    (tmp_path / "later.json").write_text(json.dumps(meta | {"version": meta["version"] + 1}))
    refused = {
        "the model is not the one the release was made with": (other,),
        "another setting": (model, *promise(epsilon=2)),
        "expected a side file of format seqveil-release 1; release the data again": (
            model, "--meta", tmp_path / "later.json",
        ),
    }  # fmt: skip
    for expected, how in refused.items():
        said = seqveil("audit", out, "-m", *how)
        assert (said.code, said.err.count("\n"), expected in said.err) == (2, 1, True), said.err
    side.rename(tmp_path / "side.json")
    assert "no side file" in seqveil("audit", out, "-m", model).err
    assert seqveil("audit", out, "-m", model, "--meta", tmp_path / "side.json").code == 0
    assert seqveil("audit", out, "-m", model, *promise(epsilon=1)).code == 0
    assert seqveil("audit", out, "-m", model, *promise(epsilon=2), "--json").code in (1, 2)  # the ε column says 1


@pytest.mark.slow
def test_bad_input_is_one_line_and_leaves_nothing(seqveil, words, model, tmp_path):
    files = {
        "unknown.csv": f"user,value\nu1,a\nu1,{SECRET}\n",
        "not.model": SECRET,
        "epsilon.csv": "user,epsilon\nu1,a\n",
        "timeless.csv": "user,value\nu1,a\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def release(data, *more, chain=model, epsilon=1):
        plain = () if "--policy" in more else ("-e", epsilon)
        return ("release", tmp_path / data, "-m", chain, *plain, "-o", tmp_path / "out.csv", *more)

    seconds = promise(epsilon=1, budget=sv.Budget(per_window=1, seconds=60))

    cases = {
        "epsilon 0": (release(words, epsilon=0), "epsilon"),
        "epsilon faint": (release(words, epsilon=1e-9), "expected epsilon of at least 1e-06, got 1e-09"),
        "batch one by one": (release(words, "--batch", 3, "--mechanism", "optimal"), "releases one symbol at a time"),
        "batch unknown value": (release("unknown.csv", "--batch", 2), "row 2"),
        "mechanism": (release(words, "--mechanism", "magic"), "randomized_response"),
        "seed": (release(words, "--seed", -4), "seed"),
        "not a model": (release(words, chain=tmp_path / "not.model"), "not a seqveil model"),
        "no model": (release(words, chain=tmp_path / "none.model"), "none.model"),
        "taken name": (release("epsilon.csv", "--value-column", "epsilon"), "epsilon"),
        "onto itself": (("release", words, "-m", model, "-e", 1, "-o", words), "words.csv"),
        "onto the model": (("release", words, "-m", model, "-e", 1, "-o", model, "--format", "csv"), "words.model"),
        "seconds": (release("timeless.csv", *seconds), "time"),
        "fit bins of text": (("fit", words, "-o", tmp_path / "o.model", "--bins", 1), "row 1"),
    }
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name, (args, expected) in cases.items():
        said = seqveil(*args)
        assert (said.code, said.out, said.err.count("\n"), said.err[:7]) == (2, "", 1, "error: "), (name, said)
        assert expected in said.err, (name, said.err)
        assert SECRET not in said.err, name
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (RuntimeError(SECRET), 1, "internal error: RuntimeError (no data shown); run with --debug for the traceback"),
        (MemoryError(SECRET), 2, "error: out of memory; use a smaller alphabet, or decode with --online"),
        (OSError(28, "No space left on device", f"/{SECRET}/out.csv"), 2, "error: No space left on device: out.csv"),
    ],
)
def test_an_unexpected_error_shows_no_data_unless_asked_to(seqveil, monkeypatch, error, code, line):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("seqveil.interfaces.files.inspection.inspect", fail)
    assert seqveil("inspect", "d.csv") == (code, "", f"{line}\n")
    assert "Traceback" in seqveil("inspect", "d.csv", "--debug").err


def test_mechanisms_are_those_of_the_registry(seqveil):
    listed = seqveil("mechanisms", "--json").json
    assert list(listed) == [each["name"] for each in listed.values()] == mechanisms.names()
    assert [name for name in listed if listed[name]["batched"]] == mechanisms.batched()
    assert all(f"\n{name} " in seqveil("mechanisms").out for name in mechanisms.names())


def test_version_and_no_command(seqveil):
    assert seqveil("--version").out.startswith("seqveil ")
    assert seqveil("nonsense").code == 2
