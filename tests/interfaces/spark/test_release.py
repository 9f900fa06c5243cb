"""Seqveil on a real Spark, two threads of one machine: the releases and accounts of the embedded run."""

import json
import runpy
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from policies import promise

pytest.importorskip("pyspark")
import sparks
from filed import release_file, streams_of
from reference import streams as ref
from seqveil import MarkovModel, secrets
from seqveil.core.alphabet import Bins
from seqveil.core.errors import DataError, InputError
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import UNKNOWN
from seqveil.interfaces.spark.failures import driver_errors
from seqveil.interfaces.spark.frames import read
from seqveil.interfaces.spark.release import SparkJob
from seqveil.spark import FrameColumns, release, session_conf, stream
from served import salt_of

KEY, SECRET = sparks.KEY, "zq-secret-77"
pytestmark = sparks.MARKS
POLICIES = {
    "stop": Policy(epsilon=0.8, budget=Budget(total=6.0, when_spent="stop"), mechanism="balanced"),
    "blocks": Policy(epsilon=2.0, block=4),
}


@pytest.fixture
def salted(monkeypatch):
    """Have frames that are released at once draw with a salt that is given, not with one of their own."""
    import sys

    found = sys.modules["seqveil.interfaces.spark.release"]
    return lambda salt: monkeypatch.setattr(found, "SparkJob", partial(SparkJob, salt=salt))


@pytest.mark.parametrize("kind", POLICIES)
def test_a_frame_at_once_is_what_release_with_state_and_key_writes(spark, small, tmp_path, salted, kind):
    folder, _ = small
    terms = POLICIES[kind].on(sparks.model())
    release_file(folder / "data.csv", terms, tmp_path / "out.csv", state=tmp_path / "s.db", key=KEY)
    want = pl.read_csv(tmp_path / "out.csv").sort("user", "seq")
    salted(salt_of(tmp_path / "s.db"))
    out = release(spark.read.parquet(str(folder / "in")), sparks.model(), POLICIES[kind], key=KEY)
    got = pl.from_arrow(out.toArrow()).sort("user", "seq")
    assert got.equals(want.select(got.columns))


def test_a_stream_goes_on_where_a_value_is_unknown(spark, tmp_path):
    """Text among numbers, NaN, numbers outside and nothing at all; none of it lies in any file."""
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=Bins([0.0, 1.0, 2.0]))
    codes, policy = [0, UNKNOWN, 1, UNKNOWN, UNKNOWN, UNKNOWN], Policy(epsilon=1.0, mechanism="optimal")
    (tmp_path / "in").mkdir()
    values = ["0.5", SECRET, "1.5", "NaN", "77", ""]
    rows = "".join(f"ann,{seq},{value}\n" for seq, value in enumerate(values))
    (tmp_path / "in" / "1.csv").write_text("user,seq,value\n" + rows)
    frame = read(spark, str(tmp_path / "in"), "csv", FrameColumns(), model.alphabet, streaming=True)
    place = tmp_path / "c"
    writer = stream(frame, model, policy, key=KEY, checkpoint=str(place)).format("parquet")
    with driver_errors():
        writer.option("path", str(tmp_path / "out")).trigger(availableNow=True).start().awaitTermination()
    got = sparks.released(spark, tmp_path)
    made = ref.twin(policy.on(model), sparks.query_id(place)).release(["ann"] * 6, codes, range(6)).codes
    assert got["seq"].to_list() == list(range(6))
    assert got["value"].to_list() == model.alphabet.decode(made)
    files = [path for path in (*place.rglob("*"), *(tmp_path / "out").rglob("*")) if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_frames_that_cannot_be_released_are_refused_before_they_run(spark, tmp_path):
    frame = spark.createDataFrame([("ann", 0, 1)], "user STRING, seq INT, value INT")
    timed = Policy(epsilon=1.0, budget=Budget(per_window=1.0, seconds=5.0), mechanism="balanced")
    wrong = [
        ({"columns": FrameColumns(user="who")}, "no column 'who'"),
        ({"columns": FrameColumns(seq="epsilon")}, "rename it"),
        ({"columns": FrameColumns(value="x,y")}, "go together"),
        ({"policy": timed}, "needs the time"),
        ({"policy": Policy(epsilon=2.0, batch=4, mechanism="tree")}, "in batches"),
        ({"key": b"short"}, "32 random bytes"),
        ({"frame": spark.createDataFrame([(1.5, 0, 1)], "user DOUBLE, seq INT, value INT")}, "text or whole numbers"),
        ({"frame": spark.readStream.format("rate").load()}, "use stream"),
    ]
    for options, message in wrong:
        given = {"frame": frame, "model": sparks.model(), "policy": POLICIES["stop"], "key": KEY, **options}
        with pytest.raises((InputError, DataError), match=message):
            release(**given)
    with pytest.raises(InputError, match="readStream"):
        stream(frame, sparks.model(), POLICIES["stop"], key=KEY, checkpoint=str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def test_shuffled_rows_are_encrypted_and_state_is_logged(spark):
    conf = spark.sparkContext.getConf()
    assert {name: conf.get(name) for name in session_conf()} == session_conf()


def test_the_commands(spark, run, small, tmp_path):
    """Fit, release with a checkpoint, account; the model and the releases are those of the embedded commands."""
    folder, frame = small
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "key").chmod(0o600)
    code, said, _ = run("fit", folder / "in", "-o", tmp_path / "m", "--json")
    assert code == 0
    model = MarkovModel.fit(streams_of(frame))
    assert json.loads(said)["fingerprint"] == model.fingerprint
    place = ("--checkpoint", tmp_path / "checkpoint", "--out", tmp_path / "out")
    options = ("-m", tmp_path / "m", *promise(epsilon=1, budget=9), "--key", tmp_path / "key")
    code, _, said = run("release", folder / "in", *options, *place)
    assert code == 0
    assert "2,000 of 2,000 events, 60 users" in said
    store = ref.twin(Policy(epsilon=1.0, budget=9.0).on(model), sparks.query_id(tmp_path / "checkpoint"))
    made = store.release(frame["user"].to_list(), frame["value"].to_numpy(), frame["seq"].to_numpy())
    want = frame.with_columns(value=pl.Series(made.codes)).sort("user", "seq")
    assert sparks.released(spark, tmp_path).select("user", "seq", "value").equals(want)
    shown = json.loads(run("account", tmp_path / "checkpoint", "--user", "u7", "--json")[1])
    [one], ann = shown["shown"], store.account("u7")
    assert shown["users"] == 60
    names = ("user", "events", "releases", "leakage", "most", "least", "epsilon_spent", "ldp")
    assert [one[name] for name in names] == [getattr(ann, name) for name in names]
    assert one["budget_left"] == pytest.approx(ann.budget_left)
    assert "all 60" in run("account", tmp_path / "checkpoint", "--limit", 2)[1]


def test_accounts_of_declared_secrets(spark, run, tmp_path):
    """They are those of the embedded run, and `spark account` shows them beside the leakage."""
    frame, model = sparks.events(200, 5, seed=4), sparks.model()
    sparks.write(frame, tmp_path / "in", 2)
    model.save(tmp_path / "m")
    policy = Policy(secrets=secrets.ever(model.alphabet.decode([0])[0], epsilon=0.7, window=10))
    policy.save(tmp_path / "policy.toml")
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "key").chmod(0o600)
    options = ("-m", tmp_path / "m", "--policy", tmp_path / "policy.toml", "--key", tmp_path / "key")
    assert run("release", tmp_path / "in", *options, "--checkpoint", tmp_path / "c", "--out", tmp_path / "out")[0] == 0
    store = ref.twin(policy.on(model), sparks.query_id(tmp_path / "c"), KEY)
    store.release(frame["user"].to_list(), frame["value"].to_numpy(), frame["seq"].to_numpy())
    shown = json.loads(run("account", tmp_path / "c", "--json")[1])["shown"]
    worst = {user: store.account(user).secrets[0].worst for user in frame["user"].unique()}
    assert {one["user"]: one["secrets"][0]["worst"] for one in shown} == worst
    assert max(worst.values()) > 0.1
    said = run("account", tmp_path / "c", "--user", shown[0]["user"])[1]
    assert f"{worst[shown[0]['user']]:.6g} of 0.7" in said


def test_the_example_runs(spark, tmp_path):
    path = Path(__file__).parents[3] / "examples" / "spark_release.py"
    whole = runpy.run_path(str(path))["main"](spark, tmp_path)
    assert (whole.users, whole.events) == (50, 1000)
    assert whole.leakage <= 12.0


def test_errors_of_the_commands_are_one_line(run, small, tmp_path):
    sparks.model().save(tmp_path / "m")
    options = ("-m", tmp_path / "m", *promise(epsilon=1), "--key", tmp_path / "key", "--out", tmp_path / "out")
    options = (*options, "--checkpoint", tmp_path / "c")
    wrong = [
        (("account", tmp_path), "is not the checkpoint of a release"),
        (("fit", tmp_path / "no.parquet", "-o", tmp_path / "x"), "no.parquet: no such file or folder"),
        (("release", small[0] / "data.csv", *options), "needs a folder"),
        (("release", small[0] / "in", *options, "--seq-column", "when"), "no column 'when'"),
        (("release", small[0] / "in", *options, "--format", "xml"), "expected a format"),
    ]
    for args, message in wrong:
        code, out, said = run(*args)
        assert (code, out) == (2, "")
        assert message in said
        assert said.count("\n") == 1
