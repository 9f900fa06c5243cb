"""A Spark query that moves on to another model: states, releases and accounts of the embedded upgrade."""

import itertools
import json
import os
import shutil
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from sqlite3 import connect

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pd = pytest.importorskip("pandas")
pytest.importorskip("pyspark")
from pyspark.sql.streaming.tws_tester import TwsTester  # noqa: E402
from pyspark.sql.types import StringType  # noqa: E402

import sparks  # noqa: E402
from seqveil import MarkovModel, Setting  # noqa: E402
from seqveil.coldstart import Versions  # noqa: E402
from seqveil.core.errors import DataError, InputError  # noqa: E402
from seqveil.engine.accounting import Budget  # noqa: E402
from seqveil.engine.streams import Streams  # noqa: E402
from seqveil.interfaces.cli import main  # noqa: E402
from seqveil.interfaces.spark.checkpoint import USERS, _state  # noqa: E402
from seqveil.interfaces.spark.job import Job  # noqa: E402
from seqveil.interfaces.spark.operator import Release  # noqa: E402
from seqveil.interfaces.spark.sessions import Refused  # noqa: E402
from seqveil.interfaces.spark.store import Kept  # noqa: E402
from seqveil.interfaces.spark.upgrade import MOVED, carry, refuse_unmovable, streams  # noqa: E402
from seqveil.receiver import upgrade as embedded  # noqa: E402
from seqveil.spark import Query, carried, evidence_of, move, total  # noqa: E402

KEY = sparks.KEY
TRUTH = MarkovModel([0.5, 0.3, 0.2], [[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
OTHER = MarkovModel([0.2, 0.3, 0.5], [[0.6, 0.4, 0.0], [0.1, 0.8, 0.1], [0.0, 0.3, 0.7]])
NONE = MarkovModel([1 / 3] * 3, np.full((3, 3), 1 / 3))
FIRST = Setting.of(NONE, "randomized_response", 1.0, schedule=2, budget=9.0)
SECOND = Setting.of(TRUTH, "optimal", 1.0, schedule=2, budget=9.0)
THIRD = Setting.of(OTHER, "balanced", 0.7, budget=9.0)
CHAIN = [FIRST, SECOND, THIRD]


def by_store(path, setting, events):
    """Released rows (user, seq, value) of these events (user, seq, code)."""
    users, seqs, codes = ([event[k] for event in events] for k in range(3))
    with Streams.open(path, setting, key=KEY, gaps="skip") as store:
        made = store.release(users, codes, seqs)
    return list(zip(users, seqs, made.codes.tolist(), made.epsilons.tolist(), strict=True))


def ledger_of(path):
    """What a state file keeps of each user: the counts and the exact state."""
    with closing(connect(path)) as sql:
        rows = sql.execute("SELECT name, events, releases, spent, most, least, state FROM users WHERE events > 0")
        return {str(row[0]): (*row[1:6], bytes(row[6])) for row in rows.fetchall()}


def rows_of(told_so_far, moved=None):
    """Released rows as a worker gets them, sorted by user and number."""
    table = pd.DataFrame([row[:3] for row in told_so_far], columns=["user", "seq", "v0"])
    if moved is not None:
        table[MOVED] = [moved.get(user) for user in table["user"]]
    return table.sort_values(["user", "seq"], kind="stable").reset_index(drop=True)


@st.composite
def three_parts(draw):
    """Events of a few users in three parts, numbers left out here and there."""
    following, parts = {}, []
    for part in range(3):
        order = draw(st.lists(st.sampled_from(["ann", "bob", "cé"]), min_size=part == 0, max_size=10))
        events = []
        for user in order:
            seq = following.get(user, 0) + draw(st.sampled_from([0, 0, 0, 0, 2]))
            events.append((user, seq, draw(st.integers(0, 2))))
            following[user] = seq + 1
        parts.append(events)
    return parts


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(parts=three_parts())
def test_two_moves_carry_what_the_embedded_upgrades_carry_and_go_on_alike(parts):
    with tempfile.TemporaryDirectory() as folder:
        path, out, moved, kept = Path(folder, "s.db"), [], {}, {}
        for version, events in enumerate(parts):
            setting = CHAIN[version]
            fresh = by_store(path, setting, events) if events else []
            if version:
                tester = operator_of(setting, version, kept)
                got = feed(tester, [*((u, s, 2 - c) for u, s, c in itertools.chain(*parts[:version])), *events])
                assert got == sorted(fresh)  # numbers released before are not drawn again, whatever comes with them
            out += fresh
            if version == 2:
                break
            embedded.upgrade(path, CHAIN[: version + 1], CHAIN[version + 1])
            twice = out + out[:3]  # a sink may show a row again
            found = carry(CHAIN[: version + 1], CHAIN[version + 1], told_by(rows_of(twice, moved), version + 1))
            kept = {row.user: (row.events, row.releases, row.spent, row.most, row.least, row.state)
                    for row in found.itertuples()}  # fmt: skip
            assert kept == ledger_of(path)
            moved = dict(zip(found["user"], found[MOVED], strict=True))


def told_by(rows, versions):
    return streams(rows, NONE.alphabet, versions)


def job_of(setting, key=KEY, **more):
    return Job(setting, setting.model.alphabet, key, ("user", "seq", "value"), gaps="skip", **more)


def operator_of(setting, version, kept, **more):
    """The operator of a new query, given what was carried some users at a time."""
    facts = json.loads(job_of(setting).facts) | {"before": [each.to_dict() for each in CHAIN[:version]]}
    states = pd.DataFrame(
        [(0, user, *row) for user, row in kept.items()], columns=["bucket", "user", *Kept._fields[:6]]
    )
    parts = [(0, states.iloc[:1]), (0, states.iloc[1:])]
    release = Release(job_of(setting, **more), StringType(), json.dumps(facts))
    return TwsTester(release, initialStatePandas=[part for part in parts if len(part[1])])


def feed(tester, events):
    if not events:
        return []
    got = tester.testInPandas(0, pd.DataFrame(events, columns=["user", "seq", "v0"]))
    return sorted(got.itertuples(index=False, name=None))


def test_carried_states_are_for_one_setting_and_key(tmp_path):
    out = by_store(tmp_path / "s.db", FIRST, [("ann", 0, 1), ("ann", 1, 1)])
    row = carry([FIRST], SECOND, told_by(rows_of(out), 1)).iloc[0]
    kept = {"ann": tuple(row[name] for name in Kept._fields[:6])}
    tester = operator_of(SECOND, 1, kept)
    assert "before" in json.loads(tester.peekValueState("facts", 0)[0])
    assert [each[:2] for each in feed(tester, [("ann", 1, 0), ("ann", 2, 0), ("bob", 0, 0)])] == [
        ("ann", 2),
        ("bob", 0),
    ]
    with pytest.raises(Refused, match="another key"):
        operator_of(SECOND, 1, kept, key=bytes(32))
    with pytest.raises(Refused, match="another buckets"):
        operator_of(SECOND, 1, kept, buckets=5)
    facts = json.dumps(json.loads(job_of(SECOND).facts) | {"before": []})
    with pytest.raises(Refused, match="another model"):
        feed(TwsTester(Release(job_of(THIRD), StringType(), facts)), [("ann", 2, 0)])


def test_rows_and_settings_that_cannot_move_are_refused_without_data():
    with pytest.raises(DataError, match="two different values"):
        told_by(rows_of([("ann", 0, 1), ("ann", 0, 2)]), 1)
    with pytest.raises(DataError, match=r"alphabet \(3 symbols\)") as refused:
        told_by(rows_of([("ann", 0, 77)]), 1)
    assert "77" not in str(refused.value)
    for rows in ([(None, 0, 1)], [("ann", -1, 1)], [("ann", 0, 1), ("ann", None, 1)]):
        with pytest.raises(DataError, match="no user, or no number"):
            told_by(rows_of(rows), 1)
    with pytest.raises(DataError, match="leaves more than"):
        told_by(rows_of([("ann", 0, 1), ("ann", 20_000, 1)]), 1)
    stop = [Setting.of(each, "optimal", 1.0, budget=Budget(total=9.0, when_spent="stop")) for each in (NONE, TRUTH)]
    wrong = [
        ([], SECOND, "first one first"),
        ([FIRST], Setting.of(TRUTH, "optimal", 1.0), "same budget"),
        ([Setting.of(NONE, "optimal", 1.0)], Setting.of(TRUTH, "crr", 1.0), "sound"),
        ([FIRST], Setting.of(TRUTH, "tree", 1.0, batch=2, budget=9.0), "batches"),
        ([FIRST], Setting.of(MarkovModel([0.5, 0.5], [[0.5, 0.5]] * 2), "optimal", 1.0, budget=9.0), "same symbols"),
        (stop[:1], stop[1], "hold and error"),
    ]
    for known, new, message in wrong:
        with pytest.raises(InputError, match=message):
            refuse_unmovable(known, new)


@pytest.fixture(scope="module")
def spark():
    with sparks.session() as made:
        yield made


def frame_of(users, begin, end, first=0):
    """Events begin..end-1 of users first..users-1, in the order of their numbers."""
    truth = TRUTH.sample(20, users=users, seed=1)
    rows = [(f"u{u}", t, int(truth[u, t])) for t in range(begin, end) for u in range(first, users)]
    return pl.DataFrame(rows, schema=["user", "seq", "value"], orient="row")


def frames_in(spark, *places):
    return [spark.read.parquet(str(place / "out")) for place in places]


def kept_on_spark(spark, checkpoint):
    """What a checkpoint keeps of each user, as `ledger_of` has it for a state file."""
    rows = _state(spark, str(checkpoint), USERS).select("user_map_key.user", "user_map_value.*").collect()
    return {row.user: (row.events, row.releases, row.spent, row.most, row.least, bytes(row.state)) for row in rows}


def add(frame, folder, name):
    """One more file of a source, later than all before."""
    path = folder / f"{name}.parquet"
    frame.write_parquet(path)
    os.utime(path, (2e9 + int(name), 2e9 + int(name)))


def events_of(frame):
    return list(zip(*(frame[name].to_list() for name in ("user", "seq", "value")), strict=True))


def released(spark, place):
    return list(sparks.released(spark, place).iter_rows())


@pytest.mark.java
@sparks.needs_java
@pytest.mark.filterwarnings(*sparks.QUIET)
def test_a_query_moves_twice_and_goes_on_as_the_state_file_does(spark, tmp_path):
    path, source = tmp_path / "s.db", tmp_path / "in"
    places = [tmp_path / name for name in "abc"]
    states = [str(place / "checkpoint") for place in places]
    first, late = frame_of(30, 0, 5), frame_of(40, 0, 3, first=30)
    sparks.write(first, source, 1)
    sparks.stream(spark, source, places[0], FIRST, buckets=4).awaitTermination()
    assert released(spark, places[0]) == sorted(by_store(path, FIRST, events_of(first)))

    query = Query(states[0], frames_in(spark, places[0]), [FIRST])
    some = evidence_of(spark, query, most=75)
    assert 0 < some.people < 30
    assert some.events == 5 * some.people  # whole users
    refuse_what_is_not_at_rest(spark, query, states[1])
    done = move(spark, query, SECOND, states[1])
    told_by_store = embedded.upgrade(path, [FIRST], SECOND)
    assert (done.users, done.version) == (told_by_store.users, told_by_store.version)
    assert [done.before, done.after] == pytest.approx([told_by_store.before, told_by_store.after])
    begin = carried(spark, states[1])
    with pytest.raises(DataError, match="have moved on already"):
        move(spark, query, SECOND, f"{states[1]}-else")
    with pytest.raises(DataError, match="begun with something else"):
        move(spark, query, THIRD, states[1])

    # the new query reads everything again, with other symbols, and what is new
    shutil.rmtree(source)
    add(pl.concat([first.with_columns(value=2 - pl.col("value")), frame_of(30, 5, 8), late]), _made(source), "2")
    sparks.stream(spark, source, places[1], SECOND, buckets=4, begin=begin).awaitTermination()
    fresh = by_store(path, SECOND, events_of(pl.concat([frame_of(30, 5, 8), late])))
    assert released(spark, places[1]) == sorted(fresh)
    assert kept_on_spark(spark, states[1]) == ledger_of(path)
    for committed in (Path(states[1], "commits"), places[1] / "out" / "_spark_metadata"):
        shutil.rmtree(committed)  # as a kill amid the first micro-batch leaves it: it runs again, from what was carried
    add(frame_of(40, 8, 9).filter(pl.col("user") != "u39"), source, "3")
    gap = {"gaps": "skip"}  # those who came late leave events out
    sparks.stream(spark, source, places[1], SECOND, buckets=4, begin=begin, **gap).awaitTermination()
    fresh += by_store(path, SECOND, events_of(frame_of(40, 8, 9).filter(pl.col("user") != "u39")))
    assert released(spark, places[1]) == sorted(fresh)
    assert kept_on_spark(spark, states[1]) == ledger_of(path)

    query = Query(states[1], frames_in(spark, *places[:2]), [FIRST, SECOND])
    move(spark, query, THIRD, states[2])
    embedded.upgrade(path, [FIRST, SECOND], THIRD)
    begin = carried(spark, states[2])
    moves = {row.user: row.moved for row in begin.states.collect()}
    assert (moves["u0"], moves["u30"], moves["u39"]) == ([5, 9], [0, 9], [0, 3])
    sparks.write(frame_of(41, 9, 10), tmp_path / "more", 1)
    sparks.stream(spark, tmp_path / "more", places[2], THIRD, buckets=4, begin=begin, **gap).awaitTermination()
    assert released(spark, places[2]) == sorted(by_store(path, THIRD, events_of(frame_of(41, 9, 10))))
    assert kept_on_spark(spark, states[2]) == ledger_of(path)
    assert total(spark, states[2]).users == 41


def _made(folder):
    folder.mkdir()
    return folder


def refuse_what_is_not_at_rest(spark, query, to):
    """A micro-batch that was begun and not finished, rows that are missing, another setting: nothing moves."""
    begun = Path(query.checkpoint, "offsets", "1")
    shutil.copy(begun.with_name("0"), begun)
    with pytest.raises(DataError, match="amid a micro-batch"):
        move(spark, query, SECOND, to)
    begun.unlink()
    with pytest.raises(InputError, match="other than those named"):
        move(spark, replace(query, settings=[THIRD]), SECOND, to)
    with pytest.raises(DataError, match="accounts of 1 users are not those"):
        move(spark, replace(query, released=[query.released[0].where("user != 'u7' OR seq < 4")]), SECOND, to)
    assert carried(spark, query.checkpoint) is None  # it may go on as it was
    with pytest.raises(DataError, match="was not finished"):
        carried(spark, to)


@pytest.mark.java
@sparks.needs_java
@pytest.mark.filterwarnings(*sparks.QUIET)
def test_the_commands_begin_learn_and_go_on(spark, tmp_path, capfd):
    def run(*args):
        capfd.readouterr()
        code = main(["spark", *map(str, args)])
        return code, *capfd.readouterr()

    place, path = tmp_path / "first", tmp_path / "s.db"
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "values").write_text("a\nb\nc\n")
    letters = pl.col("value").replace_strict({0: "a", 1: "b", 2: "c"})
    sparks.write(frame_of(300, 0, 12).with_columns(letters), tmp_path / "in", 1)
    upgrading = ("upgrade", place / "checkpoint", "--versions", tmp_path / "v", "-o", tmp_path / "m")
    onward = ("--released", place / "out", "--to", tmp_path / "then" / "checkpoint")
    assert "pass --alphabet and --epsilon" in run(*upgrading)[2]
    assert run(*upgrading, "--alphabet", tmp_path / "values", "--epsilon", 1, "--every", 2)[0] == 0
    assert "pass --released" in run(*upgrading)[2]
    releasing = ("release", tmp_path / "in", "-m", tmp_path / "m", "-e", 1, "--every", 2, "--key", tmp_path / "key")
    before = (*releasing, "--buckets", 2, "--checkpoint", place / "checkpoint", "--out", place / "out")
    assert run(*before, "--mechanism", "randomized_response")[0] == 0
    code, said, _ = run(*upgrading, *onward)
    assert code == 0
    assert "300 users moved" in said
    known = [version.setting for version in Versions.load(tmp_path / "v")]
    assert [each.mechanism.name for each in known] == ["randomized_response", "optimal"]
    assert "have moved on; use" in run(*before, "--mechanism", "randomized_response")[2]

    # as a kill amid writing leaves it; the model is not there yet
    half, was = onward[-1] / "carried", carried(spark, str(onward[-1]))
    states = sorted(was.states.collect())
    for lost in (half / "facts.json", next((half / "states").glob("*.parquet")), tmp_path / "m"):
        lost.unlink()
    add(frame_of(300, 12, 14).with_columns(letters), tmp_path / "in", "2")
    after = (*releasing, "--buckets", 2, "--checkpoint", onward[-1], "--out")
    known[1].model.save(tmp_path / "m")
    assert "was not finished" in run(*after, tmp_path / "then" / "out")[2]
    assert "as the run before had begun to" in run(*upgrading, *onward)[1]
    again = carried(spark, str(onward[-1]))
    assert (sorted(again.states.collect()), again.facts) == (states, was.facts)
    assert "name a new folder" in run(*after, place / "out")[2]
    assert run(*after, tmp_path / "then" / "out")[0] == 0
    frame = frame_of(300, 0, 14).with_columns(letters)
    events = [(user, seq, "abc".index(value)) for user, seq, value in events_of(frame)]
    by_store(path, known[0], events[:3600])
    embedded.upgrade(path, known[:1], known[1])
    want = [(user, seq, "abc"[code], epsilon) for user, seq, code, epsilon in by_store(path, known[1], events[3600:])]
    assert released(spark, tmp_path / "then") == sorted(want)
    assert kept_on_spark(spark, tmp_path / "then" / "checkpoint") == ledger_of(path)
