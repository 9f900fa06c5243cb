"""Seqveil on a real Spark, two threads of one machine: the releases, accounts and models of the embedded run."""

import itertools
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from filed import release_file
from policies import promise

pytest.importorskip("pyspark")
import reference_streams as ref
import sparks
from seqveil import MarkovModel
from seqveil.core.alphabet import Bins
from seqveil.core.errors import DataError, InputError, SeqveilError
from seqveil.core.randomness import key_file
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import UNKNOWN
from seqveil.engine.upkeep import facts_of
from seqveil.interfaces.cli import main
from seqveil.interfaces.spark import frames
from seqveil.interfaces.spark.checkpoint import worst_accounts
from seqveil.interfaces.spark.frames import read
from seqveil.interfaces.spark.job import SparkJob
from seqveil.interfaces.spark.sessions import disclosed
from seqveil.spark import FrameColumns, account, release, session_conf, total

KEY = sparks.KEY
pytestmark = [pytest.mark.java, sparks.needs_java, *(pytest.mark.filterwarnings(each) for each in sparks.QUIET)]
SECRET = "zq-secret-77"


@pytest.fixture(scope="module")
def spark():
    with sparks.session() as made:
        yield made


def embedded(frame, setting, salt):
    """The releases of streams in memory with this salt, and the streams."""
    store = ref.twin(setting, salt)
    made = store.release(frame["user"].to_list(), frame["value"].to_numpy(), frame["seq"].to_numpy())
    columns = [pl.Series("value", made.codes), pl.Series("epsilon", made.epsilons)]
    return frame.with_columns(*columns).filter(pl.col("value") >= 0).sort("user", "seq"), store


@pytest.fixture
def salted(monkeypatch):
    """Have frames that are released at once draw with a salt that is given, not with one of their own."""
    return lambda salt: monkeypatch.setattr(frames, "SparkJob", partial(SparkJob, salt=salt))


def file_salt(path):
    """The salt of a state file."""
    facts = facts_of(path)
    return f"{facts['salt']} {facts['epoch']}".encode()


def test_200_000_events_come_out_as_embedded_and_so_does_every_account(spark, tmp_path):
    frame, setting = (
        sparks.events(200_000, 10_000),
        Policy(epsilon=1.0, budget=14.0, mechanism="optimal").on(sparks.model()),
    )
    sparks.write(frame, tmp_path / "in", 4)
    query = sparks.stream(spark, tmp_path / "in", tmp_path, setting, buckets=16)
    query.awaitTermination()
    assert [each["numInputRows"] for each in query.recentProgress] == [50_000] * 4
    got = sparks.released(spark, tmp_path)
    want, store = embedded(frame, setting, sparks.query_id(tmp_path / "checkpoint"))
    assert got.equals(want.select(got.columns))
    checkpoint, accounts = str(tmp_path / "checkpoint"), store.accounts()
    rows = {row.user: row for row in account(spark, checkpoint).collect()}
    assert len(rows) == len(accounts.users) == 10_000
    figures = (accounts.epsilon_spent, accounts.most, accounts.least, accounts.ldp)
    kept = [row[1:7] for row in (rows[user] for user in accounts.users)]
    assert [row[:2] for row in kept] == list(zip(accounts.events, accounts.releases, strict=True))
    assert [row[2:] for row in kept] == [tuple(row) for row in np.stack(figures, axis=1).tolist()]
    whole = total(spark, checkpoint)
    assert (whole.users, whole.events) == (10_000, 200_000)
    assert whole.leakage == accounts.leakage.max()
    assert whole.budget_left == pytest.approx(14.0 - whole.leakage)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """2,000 events in three files, as Parquet and as one CSV file sorted as the embedded run wants it."""
    folder = tmp_path_factory.mktemp("small")
    frame = sparks.events(2000, 60, seed=3)
    sparks.write(frame, folder / "in", 3)
    frame.write_csv(folder / "data.csv")
    return folder, frame


SETTINGS = {
    "stop": Policy(epsilon=0.8, budget=Budget(total=6.0, when_spent="stop"), mechanism="balanced").on(sparks.model()),
    "window": Policy(epsilon=1.0, budget=Budget(per_window=3.0, releases=5), mechanism="balanced").on(sparks.model()),
    "batches": Policy(epsilon=2.0, batch=4, mechanism="tree").on(sparks.model()),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_frame_at_once_is_what_release_with_state_and_key_writes(spark, small, tmp_path, salted, kind):
    folder, _ = small
    release_file(folder / "data.csv", SETTINGS[kind], tmp_path / "out.csv", state=tmp_path / "s.db", key=KEY)
    want = pl.read_csv(tmp_path / "out.csv", schema_overrides={"path": pl.String}).sort("user", "seq")
    salted(file_salt(tmp_path / "s.db"))
    out = release(spark.read.parquet(str(folder / "in")), SETTINGS[kind], KEY)
    got = pl.from_arrow(out.toArrow()).sort("user", "seq")
    assert got.equals(want.select(got.columns))


def test_at_an_epsilon_that_is_nearly_the_truth_every_row_has_its_own(spark, small):
    """However Spark deals the rows out: the release of a user's event stands beside that user and event."""
    folder, frame = small
    shuffled = spark.read.parquet(str(folder / "in")).repartition(5)
    got = pl.from_arrow(release(shuffled, Policy(epsilon=16.0, mechanism="optimal").on(sparks.model()), KEY).toArrow())
    assert got.select("user", "seq", "value").sort("user", "seq").equals(frame.sort("user", "seq"))


def test_batches_of_a_stream_are_those_of_a_frame_that_is_full(spark, small, tmp_path, salted):
    folder, frame = small
    setting = SETTINGS["batches"]
    sparks.write(frame, tmp_path / "in", 2)
    sparks.stream(spark, tmp_path / "in", tmp_path, setting).awaitTermination()
    got = sparks.released(spark, tmp_path)
    salted(sparks.query_id(tmp_path / "checkpoint"))
    whole = pl.from_arrow(release(spark.read.parquet(str(folder / "in")), setting, KEY).toArrow()).sort("user", "seq")
    full = pl.len().over("user", "batch") == setting.batch
    assert got.equals(whole.filter(full))


def test_one_key_for_two_checkpoints_and_two_frames_gives_four_salts(spark, small, tmp_path):
    """Equal events get equal releases as often as by chance, and a frame looked at twice is the same twice."""
    folder, frame = small
    setting, found = Policy(epsilon=1.0, mechanism="randomized_response").on(sparks.model()), []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        sparks.stream(spark, folder / "in", tmp_path / name, setting).awaitTermination()
        got = sparks.released(spark, tmp_path / name)
        assert got.equals(embedded(frame, setting, sparks.query_id(tmp_path / name / "checkpoint"))[0][got.columns])
        made = release(spark.read.parquet(str(folder / "in")), setting, KEY)
        once, again = (pl.from_arrow(made.toArrow()).sort("user", "seq") for _ in range(2))
        assert once.equals(again)
        found += [got, once]
    kept = np.exp(1.0) / (np.exp(1.0) + 16)
    chance = kept**2 + (1 - kept) ** 2 / 16
    low, high = stats.binom.ppf([1e-9, 1 - 1e-9], 2000, chance)  # of six pairs: false alarms 12 in 10⁹
    for one, two in itertools.combinations(found, 2):
        assert low <= (one["value"] == two["value"]).sum() <= high


def test_events_that_come_again_are_not_released_again(spark, small, tmp_path):
    _, frame = small
    setting = SETTINGS["window"]
    sparks.write(frame[:1000], tmp_path / "in", 1)
    sparks.stream(spark, tmp_path / "in", tmp_path, setting).awaitTermination()
    again = frame[:1000].with_columns(value=(pl.col("value") + 1) % 17)  # a retry with other symbols
    sparks.write(pl.concat([frame[:0], again, frame[1000:]]), tmp_path / "in2", 1)
    os.rename(tmp_path / "in2" / "000.parquet", tmp_path / "in" / "001.parquet")
    sparks.stream(spark, tmp_path / "in", tmp_path, setting).awaitTermination()
    want, _ = embedded(frame, setting, sparks.query_id(tmp_path / "checkpoint"))
    got = sparks.released(spark, tmp_path)
    assert got.equals(want.select(got.columns))


def test_what_is_wrong_is_disclosed_in_one_line_without_data(spark, tmp_path):
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=["a", "b"])
    setting = Policy(epsilon=1.0, budget=Budget(total=1.5, when_spent="stop"), mechanism="optimal").on(model)
    frame = pl.DataFrame({"user": ["ann", "ann"], "seq": [0, 1], "value": ["a", SECRET]})
    sparks.write(frame, tmp_path / "in", 1)
    with pytest.raises(SeqveilError, match=r"not in the model's alphabet \(2 symbols\)") as refused, disclosed():
        release(spark.read.parquet(str(tmp_path / "in")), setting, KEY).collect()
    assert SECRET not in repr(refused.getrepr(chain=True))
    assert "\n" not in str(refused.value)
    planted = [path for path in (tmp_path / "a").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert planted == []


def test_a_stream_goes_on_where_a_value_is_unknown(spark, tmp_path):
    """Text among numbers, NaN, numbers outside and nothing at all."""
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=Bins([0.0, 1.0, 2.0]))
    codes = [0, UNKNOWN, 1, UNKNOWN, UNKNOWN, UNKNOWN]
    (tmp_path / "in").mkdir()
    values = ["0.5", SECRET, "1.5", "NaN", "77", ""]
    rows = "".join(f"ann,{seq},{value}\n" for seq, value in enumerate(values))
    for setting in (
        Policy(epsilon=1.0, mechanism="optimal").on(model),
        Policy(epsilon=2.0, batch=3, mechanism="tree").on(model),
    ):
        place = tmp_path / setting.mechanism.name
        (tmp_path / "in" / "1.csv").write_text("user,seq,value\n" + rows)
        frame = read(spark, str(tmp_path / "in"), "csv", FrameColumns(), model.alphabet, streaming=True)
        writer = release(frame, setting, KEY).writeStream.format("parquet").option("path", str(place / "out"))
        with disclosed():
            query = writer.option("checkpointLocation", str(place / "c")).trigger(availableNow=True).start()
            query.awaitTermination()
        got = pl.from_arrow(spark.read.parquet(str(place / "out")).toArrow()).sort("seq")
        store = ref.twin(setting, sparks.query_id(place / "c"))
        if setting.in_batches:
            made = np.concatenate(store.release(["ann"] * 2, [codes[:3], codes[3:]], [0, 1]).symbols)
        else:
            made = store.release(["ann"] * 6, codes, range(6)).codes
        assert total(spark, str(place / "c")).epsilon_spent == store.account("ann").epsilon_spent
        assert got["seq"].to_list() == list(range(len(made)))
        assert got["value"].to_list() == model.alphabet.decode(made)
        files = [path for path in place.rglob("*") if path.is_file()]
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    with pytest.raises(InputError, match="would show receivers exactly where"):
        release(frame, setting, KEY, on_unknown="error")


def test_a_checkpoint_is_for_one_setting(spark, tmp_path):
    sparks.write(sparks.events(200, 20), tmp_path / "in", 1)
    sparks.stream(spark, tmp_path / "in", tmp_path, SETTINGS["window"]).awaitTermination()
    sparks.events(200, 20).write_parquet(tmp_path / "in" / "again.parquet")
    with pytest.raises(InputError, match=r"begun with another .*budget"), disclosed():
        sparks.stream(spark, tmp_path / "in", tmp_path, SETTINGS["stop"]).awaitTermination()


def test_frames_that_cannot_be_released_are_refused_before_they_run(spark):
    frame = spark.createDataFrame([("ann", 0, 1)], "user STRING, seq INT, value INT")
    setting = SETTINGS["window"]
    timed = Policy(epsilon=1.0, budget=Budget(per_window=1.0, seconds=5.0), mechanism="balanced").on(sparks.model())
    wrong = [
        ({"columns": FrameColumns(user="who")}, "no column 'who'"),
        ({"columns": FrameColumns(seq="epsilon")}, "rename it"),
        ({"columns": FrameColumns(value=("x", "y"))}, "a grid go together"),
        ({"gaps": "maybe"}, "expected gaps"),
        ({"on_unknown": "maybe"}, "on_unknown must be"),
        ({"buckets": 0}, "buckets"),
        ({"setting": timed}, "needs the time"),
        ({"setting": SETTINGS["batches"], "gaps": "skip"}, "every event"),
        ({"key": b"short"}, "32 random bytes"),
    ]
    for options, message in wrong:
        given = {"setting": setting, "key": KEY, **options}
        with pytest.raises(InputError, match=message):
            release(frame, **given)
    doubles = spark.createDataFrame([(1.5, 0, 1)], "user DOUBLE, seq INT, value INT")
    with pytest.raises(DataError, match="text or whole numbers"):
        release(doubles, setting, KEY)


def test_shuffled_rows_are_encrypted_and_state_is_logged(spark):
    conf = spark.sparkContext.getConf()
    for name, value in session_conf().items():
        assert conf.get(name) == value
    assert session_conf(7)["spark.sql.shuffle.partitions"] == "7"


@pytest.fixture
def run(spark, capfd):
    """A command on the session that is there, in this process."""

    def call(*args):
        capfd.readouterr()
        code = main(["spark", *map(str, args)])
        return code, *capfd.readouterr()

    return call


def test_the_commands(spark, run, small, tmp_path):
    """Fit, release with a checkpoint, account; the model and the releases are those of the embedded commands."""
    folder, frame = small
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "key").chmod(0o600)
    code, said, _ = run("fit", folder / "in", "-o", tmp_path / "m", "--smoothing", 1, "--json")
    assert code == 0
    model = MarkovModel.fit(frame, smoothing=1.0)
    assert json.loads(said)["fingerprint"] == model.fingerprint
    place = ("--checkpoint", tmp_path / "checkpoint", "--out", tmp_path / "out", "--files", 1)
    options = ("-m", tmp_path / "m", *promise(epsilon=1, budget=9), "--key", tmp_path / "key")
    code, _, disclosed_in = run("release", folder / "in", *options, *place)
    assert code == 0
    assert "2000 of 2000 events, 60 users" in disclosed_in
    setting = Policy(epsilon=1.0, budget=9.0, mechanism="optimal").on(model)
    want, store = embedded(frame, setting, sparks.query_id(tmp_path / "checkpoint"))
    ann = store.account("u7")
    got = sparks.released(spark, tmp_path)
    assert got.equals(want.select(got.columns))
    shown = json.loads(run("account", tmp_path / "checkpoint", "--user", "u7", "--json")[1])
    assert shown["users"] == 60
    assert [each["leakage"] for each in shown["shown"]] == [ann.leakage]
    assert shown["shown"][0]["budget_left"] == pytest.approx(ann.budget_left, abs=2**-31)
    [one] = worst_accounts(spark, str(tmp_path / "checkpoint"), user="u7")
    assert (one.events, one.releases) == (ann.events, ann.releases)
    assert one.epsilon_spent == ann.epsilon_spent


def test_files_at_once_by_the_command(spark, run, small, tmp_path, salted):
    """CSV in and out; a folder that is there is not written over."""
    folder, _ = small
    sparks.model().save(tmp_path / "m")
    options = ("-m", tmp_path / "m", *promise(epsilon=0.8, mechanism="balanced"), "--key", tmp_path / "key")
    args = ("release", folder / "data.csv", *options, "--out-format", "csv", "--out", tmp_path / "out")
    setting, key = Policy(epsilon=0.8, mechanism="balanced").on(sparks.model()), key_file(tmp_path / "key", create=True)
    release_file(folder / "data.csv", setting, tmp_path / "one.csv", state=tmp_path / "s.db", key=key)
    salted(file_salt(tmp_path / "s.db"))
    code, said, _ = run(*args, "--json")
    assert code == 0
    assert json.loads(said)["rows"] == 2000
    got = pl.concat(map(pl.read_csv, (tmp_path / "out").glob("*.csv"))).sort("user", "seq")
    assert got.equals(pl.read_csv(tmp_path / "one.csv").sort("user", "seq").select(got.columns))
    assert run(*args)[0] == 2


def test_the_example_runs(spark, tmp_path):
    path = Path(__file__).parent.parent / "examples" / "spark_release.py"
    whole = runpy.run_path(str(path))["main"](spark, tmp_path)
    assert (whole.users, whole.events) == (50, 1000)
    assert whole.leakage <= 12.0


def test_errors_of_the_commands_are_one_line(run, small, tmp_path):
    sparks.model().save(tmp_path / "m")
    options = ("-m", tmp_path / "m", *promise(epsilon=1), "--key", tmp_path / "key", "--out", tmp_path / "out")
    wrong = [
        (("account", tmp_path), "is not the checkpoint of a release"),
        (("fit", tmp_path / "no.parquet", "-o", tmp_path / "x"), "no.parquet: no such file or folder"),
        (("release", small[0] / "in", *options, "--follow"), "need --checkpoint"),
        (("release", small[0] / "data.csv", *options, "--checkpoint", tmp_path / "c"), "needs a folder"),
        (("release", small[0] / "in", *options, "--seq-column", "when"), "no column 'when'"),
        (("release", small[0] / "in", *options, "--out-format", "xml"), "expected a format"),
    ]
    for args, message in wrong:
        code, out, said = run(*args)
        assert (code, out) == (2, "")
        assert message in said
        assert said.count("\n") == 1


def test_an_interrupted_release_goes_on(spark, run, small, tmp_path):
    """Ctrl-C while it waits for files; the same command takes what came since."""
    _, frame = small
    sparks.write(frame[:1200], tmp_path / "in", 1)
    sparks.model().save(tmp_path / "m")
    place = ["--checkpoint", tmp_path / "checkpoint", "--out", tmp_path / "out", "--key", tmp_path / "key"]
    args = ["release", tmp_path / "in", "-m", tmp_path / "m", *promise(epsilon=1, mechanism="balanced"), *place]
    command = [sys.executable, "-m", "seqveil", "spark", *map(str, args), "--follow"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    await_file(tmp_path / "checkpoint" / "commits" / "0", running)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 1
    order, ended = said.splitlines()
    assert "in the order in which events arrive" in order
    assert ended == "interrupted; what was released stands, and the same command goes on with it"
    frame[1200:].write_parquet(tmp_path / "in" / "more.parquet")
    assert run(*args)[0] == 0
    setting, key = Policy(epsilon=1.0, mechanism="balanced").on(sparks.model()), (tmp_path / "key").read_bytes()
    streams = ref.twin(setting, sparks.query_id(tmp_path / "checkpoint"), key)
    made = streams.release(frame["user"].to_list(), frame["value"].to_numpy(), frame["seq"].to_numpy())
    want = frame.with_columns(value=pl.Series(made.codes)).sort("user", "seq")
    got = sparks.released(spark, tmp_path)
    assert got.select("user", "seq", "value").equals(want)


def await_file(path: Path, process: subprocess.Popen, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"{path.name} did not come"
        time.sleep(0.1)
