"""The real commands: the whole chain on every format, what they refuse, and what they leave behind."""

import json

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from policies import promise
from seqveil import mechanisms
from seqveil.interfaces import cli

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
    "levels": ("numbers", ("--levels", 5), ()),
    "grid": ("points", ("--grid", "3x2"), ("--value-column", "x,y")),
}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("kind", CHAINS)
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
def test_release_says_what_it_promises(seqveil, words, model, tmp_path):
    said = seqveil("release", words, "-m", model, "-e", 1, "-o", tmp_path / "r.csv")
    assert said.out == ""
    assert "a factor e^1 = 2.72, up or down" in said.err
    assert said.err.count("warning") == 1  # fourteen nats are too much, and the line says what to do
    assert "warning    red: a suspicion of 1 % about anything in the stream may become more likely than not" in said.err
    assert "warning" not in seqveil("release", words, "-m", model, "-e", 1, "-o", tmp_path / "y.csv", "--yes").err
    spent = seqveil("release", words, "-m", model, *promise(epsilon=3, budget=4), "-o", tmp_path / "p.csv")
    assert "e^3 = 20.1" in spent.err
    assert "together by at most a factor e^4" in spent.err
    assert "held at the best guess" in spent.err


@pytest.mark.slow
def test_an_unsound_mechanism_is_named_and_fails_its_audit(seqveil, words, model, tmp_path):
    out = tmp_path / "r.csv"
    said = seqveil("release", words, "-m", model, "-e", 0.3, "--mechanism", "crr", "-o", out)
    assert said.code == 0
    assert 'warning    mechanism "crr" does not keep to its ε' in said.err
    report = seqveil("audit", out, "-m", model, "--json")
    assert report.code == 1
    assert report.json["checks"]["each_release"] is False
    assert report.json["worst_release"] > 0.3
    assert report.json["ldp"] is None
    assert "BROKEN" in seqveil("audit", out, "-m", model).out
    assert seqveil("release", words, "-m", model, "-e", 0.3, "--mechanism", "crr", "--budget", 3, "-o", out).code == 2


@pytest.mark.slow
def test_a_seed_repeats_and_is_marked(seqveil, words, model, tmp_path):
    def release(name, *more):
        said = seqveil("release", words, "-m", model, "-e", 0.7, "-o", tmp_path / name, "--json", *more)
        return said.json, (tmp_path / name).read_text(), json.loads((tmp_path / f"{name}.meta.json").read_text())

    one, two = (release(name, "--seed", 7) for name in ("1.csv", "2.csv"))
    free, other = release("3.csv"), release("4.csv")
    assert one[1] == two[1]
    assert len({one[1], free[1], other[1]}) == 3  # over 60 symbols: a coincidence is out of reach
    assert one[0]["private"] is False
    assert "NOT private" in one[0]["warnings"][0]
    assert (one[2]["seed"], one[2]["private"]) == (7, False)
    assert (free[2]["seed"], free[2]["private"]) == (None, True)


@pytest.mark.slow
def test_budgets_reach_the_side_file_and_the_audit(seqveil, words, model, tmp_path):
    out = tmp_path / "r.csv"
    policy = promise(epsilon=1, budget=sv.Budget(total=3, per_window=1.5, releases=4, when_spent="stop"))
    account = seqveil("release", words, "-m", model, *policy, "-o", out, "--json").json
    assert account["stopped"] > 0
    assert account["releases"] == read(out).height == account["events"] - account["stopped"]
    report = seqveil("audit", out, "-m", model, "--json").json
    assert report["checks"]["total"] is True
    assert report["checks"]["window"] is True
    assert report["worst_window"] <= 1.5
    assert report["leakage"] == pytest.approx(account["leakage"], rel=1e-12)


@pytest.mark.slow
def test_audit_needs_the_right_model_and_setting(seqveil, words, model, tmp_path):
    out, other = tmp_path / "r.csv", tmp_path / "other.model"
    seqveil("release", words, "-m", model, "-e", 1, "-o", out)
    seqveil("fit", words, "-o", other, "--smoothing", 2)
    wrong = seqveil("audit", out, "-m", other)
    assert wrong.code == 2
    assert "the model is not the one the release was made with" in wrong.err
    assert "another setting" in seqveil("audit", out, "-m", model, *promise(epsilon=2)).err
    (tmp_path / "r.csv.meta.json").rename(tmp_path / "side.json")
    alone = seqveil("audit", out, "-m", model)
    assert alone.code == 2
    assert "no side file" in alone.err
    assert seqveil("audit", out, "-m", model, "--meta", tmp_path / "side.json").code == 0
    assert seqveil("audit", out, "-m", model, *promise(epsilon=1)).code == 0
    assert seqveil("audit", out, "-m", model, *promise(epsilon=2), "--json").code in (1, 2)  # the ε column says 1


def bad_cases(tmp_path, words, model):
    """Commands that must be refused, each with what its one line must say."""
    files = {
        "header.csv": "user,value\n",
        "unknown.csv": f"user,value\nu1,a\nu1,{SECRET}\n",
        "ragged.csv": f"user,value\nu1,a\nu1,a,{SECRET}\n",
        "back.csv": "user,seq,value\nu1,5,a\nu1,1,b\n",
        "not.model": SECRET,
        "epsilon.csv": "user,epsilon\nu1,a\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "cut.model").write_bytes(model.read_bytes()[:-200])

    def release(data, *more, chain=model, epsilon=1):
        plain = () if "--policy" in more else ("-e", epsilon)
        return ("release", tmp_path / data, "-m", chain, *plain, "-o", tmp_path / "out.csv", *more)

    (tmp_path / "shrug.toml").write_text('epsilon = 1.0\nbudget = { total = 3.0, when_spent = "shrug" }\n')
    (tmp_path / "window.toml").write_text("epsilon = 1.0\nbudget = { window = { epsilon = 2.0 } }\n")
    seconds = promise(epsilon=1, budget=sv.Budget(per_window=1, seconds=60))

    return {
        "epsilon 0": (release(words, epsilon=0), "epsilon"),
        "epsilon nan": (release(words, epsilon="nan"), "epsilon"),
        "epsilon faint": (release(words, epsilon=1e-9), "expected epsilon of at least 1e-06, got 1e-09"),
        "batch zero": (release(words, "--batch", 0), "batch"),
        "batch text": (release(words, "--batch", "many"), "--batch"),
        "batch one by one": (release(words, "--batch", 3, "--mechanism", "optimal"), "releases one symbol at a time"),
        "batch unknown value": (release("unknown.csv", "--batch", 2), "row 2"),
        "plan batch": (("plan", model, "--block", "1,x"), "block"),
        "plan epsilon": (("plan", model, "--epsilon", "1,many"), "epsilon"),
        "mechanism": (release(words, "--mechanism", "magic"), "randomized_response"),
        "distortion": (release(words, *promise(epsilon=1, distortion="absolute")), "hamming"),
        "policy": (release(words, "--policy", tmp_path / "shrug.toml"), "when_spent"),
        "window": (release(words, "--policy", tmp_path / "window.toml"), "window"),
        "seed": (release(words, "--seed", -4), "seed"),
        "nearest text": (release(words, "--on-unknown", "nearest"), "on_unknown"),
        "option": (release(words, "--colour"), "--colour"),
        "missing file": (release("none.csv"), "no such file"),
        "unknown value": (release("unknown.csv"), "row 2"),
        "ragged": (release("ragged.csv"), "row 2"),
        "not a model": (release(words, chain=tmp_path / "not.model"), "not a seqveil model"),
        "cut model": (release(words, chain=tmp_path / "cut.model"), "cut.model"),
        "no model": (release(words, chain=tmp_path / "none.model"), "none.model"),
        "two columns": (release(words, "--value-column", "value,note"), "column"),
        "taken name": (release("epsilon.csv", "--value-column", "epsilon"), "epsilon"),
        "no folder": (("release", words, "-m", model, "-e", 1, "-o", tmp_path / "none" / "o.csv"), "folder"),
        "onto itself": (("release", words, "-m", model, "-e", 1, "-o", words), "words.csv"),
        "onto the model": (("release", words, "-m", model, "-e", 1, "-o", model, "--format", "csv"), "words.model"),
        "seconds": (release("header2.csv", *seconds), "time"),
        "fit cuts": (("fit", words, "-o", tmp_path / "o.model", "--bins", 1, "--levels", 2), "bins"),
        "fit grid": (("fit", words, "-o", tmp_path / "o.model", "--grid", "3by3"), "row 1"),
        "fit bins of text": (("fit", words, "-o", tmp_path / "o.model", "--bins", 1), "row 1"),
        "fit order": (("fit", words, "-o", tmp_path / "o.model", "--context", "order:0"), "order"),
        "fit onto data": (("fit", words, "-o", words), "words.csv"),
        "fit folder": (("fit", words, "-o", tmp_path / "none" / "o.model"), "folder"),
    }


@pytest.mark.slow
def test_bad_input_is_one_line_and_leaves_nothing(seqveil, words, model, tmp_path):
    (tmp_path / "header2.csv").write_text("user,value\nu1,a\n")
    cases = bad_cases(tmp_path, words, model)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name, (args, expected) in cases.items():
        said = seqveil(*args)
        assert said.code == 2, (name, said.err)
        assert said.out == "", name
        assert said.err.count("\n") == 1, (name, said.err)
        assert said.err.startswith("error: "), name
        assert expected in said.err, (name, said.err)
        assert SECRET not in said.err, name
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_unexpected_error_shows_no_data(capfd):
    assert cli._report(RuntimeError(SECRET)) == 1
    said = capfd.readouterr().err
    assert said == "internal error: RuntimeError (no data shown); run with --debug for the traceback\n"
    for error in (MemoryError(SECRET), OSError(28, "No space left on device", f"/{SECRET}/out.csv")):
        assert cli._report(error) == 2
    said = capfd.readouterr().err
    assert SECRET not in said
    assert "No space left on device: out.csv" in said


def test_debug_shows_the_traceback(seqveil, tmp_path, monkeypatch):
    args = ("fit", tmp_path / "none.csv", "-o", tmp_path / "o.model")
    assert "Traceback" not in seqveil(*args).err
    assert "Traceback" in seqveil(*args, "--debug").err
    monkeypatch.setenv("SEQVEIL_DEBUG", "1")
    assert "Traceback" in seqveil(*args).err


def test_mechanisms_are_those_of_the_registry(seqveil):
    listed = seqveil("mechanisms", "--json").json
    assert [each["name"] for each in listed] == mechanisms.names()
    assert [each["name"] for each in listed if each["batched"]] == mechanisms.batched()
    one, many = seqveil("mechanisms").out.split("batches of W symbols")
    assert all(f"\n{name} " in one for name in mechanisms.instantaneous())
    assert all(f"\n{name} " in many for name in mechanisms.batched())
    assert "NO" in one
    assert "NO" in many


def test_version_and_no_command(seqveil):
    assert seqveil("--version").out.startswith("seqveil ")
    assert seqveil("nonsense").code == 2


def test_a_model_is_learned_from_a_release(seqveil, place):
    assert seqveil("release", "raw.csv", "-m", "m", "-e", 1, "--out", "out.csv").code == 0
    said = seqveil("learn", "out.csv", "-m", "m", "-o", "learned", "--json")
    assert said.code == 0, said.err
    assert sv.MarkovModel.load("learned").n == 2


def test_an_audit_finds_what_the_side_file_says(seqveil, place):
    assert seqveil("release", "raw.csv", "-m", "m", "-e", 1, "--out", "out.csv").code == 0
    said = seqveil("audit", "out.csv", "-m", "m", "--json")
    assert said.code == 0, said.err
    side = json.loads((place / "out.csv.meta.json").read_text())
    assert said.json["leakage"] == pytest.approx(side["leakage"], abs=1e-6)
    changed = pl.read_csv("out.csv").with_columns(epsilon=pl.lit(0.5))
    changed.write_csv("changed.csv")
    assert seqveil("audit", "changed.csv", "-m", "m", "--meta", "out.csv.meta.json").code != 0


def test_a_state_file_is_released_over_and_looked_at(seqveil, place):
    args = ("release", "raw.csv", "-m", "m", "-e", 1, "--state", "s.db", "--out", "out.csv")
    assert seqveil(*args).code == 0
    before = (place / "out.csv").read_bytes()
    assert seqveil(*args).code == 0  # the same command again releases nothing more
    assert (place / "out.csv").read_bytes() == before
    assert seqveil("state", "verify", "s.db").code == 0
    one = seqveil("state", "account", "s.db", "--user", "7", "--json")
    assert one.code == 0, one.err
    assert "7" in one.out
    assert seqveil("state", "export", "s.db", "--out", "log.jsonl").code == 0
    disclosed = [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
    assert len(disclosed) == 200
    rows = pl.read_csv("out.csv").filter(pl.col("user") == 7)["value"].to_list()
    assert [row["value"] for row in disclosed if str(row["user"]) == "7"] == rows


def test_a_side_file_of_another_version_is_refused(seqveil, place):
    assert seqveil("release", "raw.csv", "-m", "m", "-e", 1, "--out", "out.csv").code == 0
    side = place / "out.csv.meta.json"
    meta = json.loads(side.read_text())
    assert meta["version"] == 1
    side.write_text(json.dumps(meta | {"version": 2}))
    said = seqveil("audit", "out.csv", "-m", "m")
    assert said.code == 2
    assert said.err.strip().splitlines() == [
        "error: out.csv.meta.json: expected a side file of format seqveil-release 1; release the data again"
    ]
