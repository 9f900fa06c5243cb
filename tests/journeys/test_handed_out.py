"""What is handed out betrays nothing but the releases: files, frames, the service, the bridge."""

import itertools
import json
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import seqveil as sv
from bridges import Wire, came, core_of
from seqveil.core.model import MarkovModel
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.cli import main
from served import event, running

NAMES = ["cold", "flu", "health", "hiv"]
MODEL = sv.MarkovModel(np.full(4, 0.25), np.full((4, 4), 0.25), alphabet=NAMES)


def raw(times):
    """Two events of each of 60 people; the order of rows is the order of values."""
    draw = np.random.default_rng(1)
    frame = pl.DataFrame({"user": [f"u{k:02}" for k in range(60)] * 2, "time": [0] * 60 + [1] * 60})
    frame = frame.with_columns(value=pl.Series(draw.choice(NAMES, 120)))
    if times:
        return frame.sort("value", "user")
    ranked = frame.group_by("user", maintain_order=True).agg("value").explode("value")
    first = ranked.with_columns(k=pl.int_range(pl.len()).over("user"))
    return first.sort("k", "value", "user").select("user", "value")


def mixed(frame):
    """The same streams, with people in another order."""
    keys = [column for column in ("time",) if column in frame.columns]
    return frame.with_columns(u=pl.col("user").hash(7)).sort(*keys, "u", maintain_order=True).drop("u")


def in_file(extension, *options):
    def through(frame, folder, name):
        data, out = folder / f"{name}.{extension}", folder / f"{name}.out.{extension}"
        {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}[extension](data)
        MODEL.save(folder / "m.model")
        kept = [word.replace("DB", str(folder / f"{name}.db")) for word in options]
        assert main(["release", str(data), "-m", str(folder / "m.model"), "-e", "0.2", "-o", str(out), *kept]) == 0
        return {"csv": pl.read_csv, "jsonl": pl.read_ndjson, "parquet": pl.read_parquet}[extension](out)

    return through


def in_frame(turn, back):
    return lambda frame, folder, name: back(sv.release(turn(frame), MODEL, epsilon=0.2).frame)


KINDS = {
    "csv": in_file("csv"),
    "state": in_file("csv", "--state", "DB"),
    "jsonl": in_file("jsonl"),
    "parquet": in_file("parquet"),
    "polars": in_frame(lambda f: f, lambda f: f),
    "pandas": in_frame(pl.DataFrame.to_pandas, pl.from_pandas),
    "arrow": in_frame(pl.DataFrame.to_arrow, pl.from_arrow),
    "batch": in_frame(lambda f: pa.RecordBatch.from_pydict(f.to_dict(as_series=False)), pl.from_arrow),
}


@pytest.mark.slow
@pytest.mark.parametrize("times", [False, True], ids=["no times", "times"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_rows_is_public(kind, times, tmp_path):
    """However the people were ordered, the rows of a release name them in the same order."""
    frame = raw(times)
    public = [column for column in ("user", "time") if column in frame.columns]
    found = [KINDS[kind](each, tmp_path, name).select(public) for name, each in (("a", frame), ("b", mixed(frame)))]
    assert found[0].rows() == found[1].rows()
    assert found[0].equals(found[0].sort(public[::-1], maintain_order=True))


def test_pandas_gets_a_new_index_and_types_of_its_own():
    """Raw values in the index, categories that only some person had, users without rows: none of it comes back."""
    data = raw(times=False).to_pandas()
    users = [*sorted(set(data["user"])), "absent"]
    for values in (NAMES, [name for name in NAMES if name in set(data["value"])], [*NAMES, "secret unknown"]):
        data["value"] = pd.Categorical(data["value"].astype(str), categories=values)
        data["user"] = pd.Categorical(data["user"].astype(str), categories=users)
        data.index = pd.Index(data["value"].astype(str), name="raw")
        made = sv.release(data, MODEL, epsilon=0.2)
        assert isinstance(made.frame.index, pd.RangeIndex)
        assert not any(isinstance(kind, pd.CategoricalDtype) for kind in made.frame.dtypes)
        assert made.frame.attrs == {}


def test_polars_and_arrow_get_no_categories_and_no_metadata_back():
    frame = raw(times=False)
    listed = frame.with_columns(pl.col("value").cast(pl.Enum([*NAMES, "secret unknown"])))
    assert sv.release(listed, MODEL, epsilon=0.2).frame.schema["value"] == pl.String
    table = frame.with_columns(pl.col("value").cast(pl.Categorical)).to_arrow()
    table = table.replace_schema_metadata({"raw": "hiv"})
    made = sv.release(table, MODEL, epsilon=0.2).frame
    assert not any(pa.types.is_dictionary(column.type) for column in made.schema)
    assert made.schema.metadata is None


@pytest.mark.parametrize("missing", [None, "drop"])
def test_the_bytes_of_a_frame_hold_no_order_of_arrival_and_nobody_who_was_dropped(missing):
    """Long text is views into memory: what an Arrow file or a pickle of the frame writes is that memory."""
    names = [f"somebody with a long name {k:03}" for k in range(200)]
    order = np.random.default_rng(2).permutation(200)
    values = [NAMES[k % 4] for k in range(200)]
    if missing is not None:
        values[:5] = [None] * 5
    frame = pl.DataFrame({"user": [names[k] for k in order], "value": values})
    model = sv.MarkovModel(MODEL.prior, np.full((4, 4), 0.25), alphabet=sv.Alphabet(NAMES).with_missing(missing))
    made = sv.release(frame, model, epsilon=0.01).frame
    held, kept = made.write_ipc(None, compat_level=pl.CompatLevel.newest()).getvalue(), sorted(made["user"].to_list())
    places = [held.find(name.encode()) for name in kept]
    assert min(places) > 0
    assert places == sorted(places)
    assert not any(name.encode() in held for name in set(names) - set(kept))
    assert len(kept) == (200 if missing is None else 195)


def test_how_the_raw_rows_stood_is_said_of_no_release():
    """Neither ties nor rows that went back in time, whatever order the raw rows had."""
    rows = [("ann", 0, "flu"), ("ann", 1, "hiv"), ("bob", 0, "flu"), ("bob", 1, "cold"), ("bob", 1, "flu")]
    frames = [pl.DataFrame(each, schema=["user", "time", "value"], orient="row") for each in (rows, rows[::-1])]
    made = [sv.release(frame, MODEL, epsilon=0.2).account.read for frame in frames]
    assert made[0] == made[1]
    assert "tie" not in made[0]


def test_the_type_of_the_released_column_does_not_depend_on_the_raw_rows():
    """Where the alphabet holds numbers, a file without some of them has the same type."""
    model = sv.MarkovModel(np.full(3, 1 / 3), np.full((3, 3), 1 / 3), alphabet=[1, 2, 300])
    kinds = {
        str(sv.release(pl.DataFrame({"user": ["a", "b"], "value": values}), model, epsilon=0.1).frame.schema["value"])
        for values in ([1, 1], [1, 300], pl.Series([2, 2], dtype=pl.UInt8))
    }
    assert len(kinds) == 1


def test_what_follows_from_raw_rows_is_shown_on_a_terminal_and_nowhere_else(tmp_path, capsys, monkeypatch):
    """How many values were missing, or outside the alphabet."""
    rows = [
        f"u{k:02},{t},{'' if k < 7 and t != 1 else 'measles' if k < 10 else 'flu'}" for k in range(20) for t in range(3)
    ]
    (tmp_path / "raw.csv").write_text("user,seq,value\n" + "\n".join(rows) + "\n")
    holding = sv.Alphabet(NAMES).with_missing("hold")
    sv.MarkovModel(MODEL.prior, np.full((4, 4), 0.25), alphabet=holding).save(tmp_path / "m.model")
    typed = {"on_unknown": "hide", "seed": 1, "epsilon": 1.0}
    for name in ("log", "shown"):
        lines = []
        more = {"shown": lines.extend} if name == "shown" else {}
        sv.release(tmp_path / "raw.csv", tmp_path / "m.model", out=tmp_path / f"{name}.csv", **typed, **more)
    missing = "14 rows without a value: 7 dropped, 7 held"
    assert dict(lines) == {"missing": missing, "hidden": "23 values outside the alphabet"}
    for name in ("log.csv", "log.csv.meta.json"):  # the terminal changes nothing in what is handed out
        assert (tmp_path / name).read_bytes() == (tmp_path / name.replace("log", "shown")).read_bytes()
    command = ["release", str(tmp_path / "raw.csv"), "-m", str(tmp_path / "m.model"), "-e", "1"]
    command += ["--on-unknown", "hide"]
    assert main([*command, "-o", str(tmp_path / "a.csv")]) == 0
    said = "".join(capsys.readouterr())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main([*command, "-o", str(tmp_path / "b.csv"), "--json"]) == 0
    said += "".join(capsys.readouterr())
    assert not any(word in said for word in ("without a value", "outside the alphabet"))
    assert main([*command, "-o", str(tmp_path / "c.csv")]) == 0
    assert "23 values outside the alphabet" in capsys.readouterr().err


LIVE_KEY = bytes(range(32))
VALUES = ["a", "zq-" + "long" * 50]
LONG = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], alphabet=VALUES)

FAINT = sv.Policy(epsilon=1e-6, mechanism="balanced").on(LONG)

RAWS = list(itertools.product(VALUES, repeat=3))


def only(found):
    """The one thing that all of these are."""
    first, *others = found
    assert all(each == first for each in others)
    return first


def figures_of(text):
    """The samples of a text for Prometheus, but for times, sizes and what follows from the releases."""
    families = text_string_to_metric_families(text)
    samples = [(each.name, *each.labels.values(), each.value) for family in families for each in family.samples]
    return [each for each in samples if not re.search("seconds|bytes|process|created|leakage", each[0])]


@pytest.mark.slow
@pytest.mark.usefixtures("one_salt")
def test_answers_log_and_figures_of_the_service(tmp_path, capsys):
    def handed_out(raw):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        capsys.readouterr()
        with running(folder, FAINT) as service:
            made = [service.release(event("ann", seq, value)) for seq, value in enumerate(raw)]
            made.append(service.release(*(event(f"u{k}", 0, value) for k, value in enumerate(raw))))
            made.append(service.release(event("ann", 9, raw[0])))  # refused: it leaves others out
            made.append(service.ask("GET", "/v1/users/ann"))
            answers = [(each.status, sorted(each.headers.items()), each.content) for each in made]
            figures = figures_of(service.ask("GET", "/metrics").content.decode())
        said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        lines = [{key: value for key, value in line.items() if key not in ("time", "ms")} for line in said]
        dateless = [(status, [each for each in head if each[0] != "date"], body) for status, head, body in answers]
        return dateless, lines, figures

    answers, lines, figures = only([handed_out(raw) for raw in RAWS])
    assert handed_out(("zq-unknown", None, 3))[1:] == (lines, figures)  # nor do they say what was outside the alphabet
    assert [status for status, *_ in answers] == [200] * 4 + [409, 200]
    assert len(lines) >= len(answers)
    assert figures


@pytest.mark.usefixtures("one_salt")
@pytest.mark.parametrize("form", ["seqveil", "value", "json:v"])
def test_messages_and_log_of_the_bridge(tmp_path, form):
    def payload(seq, value):
        plain = {"v": value} if form == "json:v" else {"seq": seq, "value": value}
        return value.encode() if form == "value" else json.dumps(plain).encode()

    def handed_out(raw):
        sent = [(user, payload(seq, value)) for seq, value in enumerate(raw) for user in ("ann", "bob")]
        sent.append(("ann", payload(9, raw[0])))
        log, wire = [], Wire([came(user, content, mid) for mid, (user, content) in enumerate(sent, 1)])
        with CodeStreams.open(tmp_path / f"{len(list(tmp_path.iterdir()))}.db", FAINT, key=LIVE_KEY) as store:
            core = core_of(store, form, wire, log=lambda *line, **more: log.append((line, more)))
            core.run()
        refused = [(user, refusal.payload()) for user, refusal in wire.refused]
        return wire.published + refused, log, core.hidden

    published, log, hidden = only([handed_out(raw) for raw in RAWS])
    assert hidden == 0
    odd, said, hidden = handed_out(("zq-unknown", VALUES[0], "zq-other"))  # values outside the alphabet
    assert (said, [user for user, _ in odd]) == (log, [user for user, _ in published])
    assert hidden >= 4
    assert b"zq-unknown" not in b"".join(content for _, content in odd)
    assert len(published) == 7
    assert log
