"""The Spark operator without a JVM: the store's releases, however events are cut, repeated, left out or batched."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pd = pytest.importorskip("pandas")
pytest.importorskip("pyspark")
from pyspark import cloudpickle  # noqa: E402
from pyspark.sql.streaming.tws_tester import TwsTester  # noqa: E402
from pyspark.sql.types import StringType  # noqa: E402

import reference_streams as ref  # noqa: E402
from seqveil.core.alphabet import Alphabet, Bins, Grid  # noqa: E402
from seqveil.core.errors import DataError, InputError  # noqa: E402
from seqveil.core.model import MarkovModel  # noqa: E402
from seqveil.core.randomness import KeyedRandomness  # noqa: E402
from seqveil.engine.budget import Budget  # noqa: E402
from seqveil.engine.calls import OutOfOrder  # noqa: E402
from seqveil.engine.policy import Policy  # noqa: E402
from seqveil.interfaces.spark.job import SparkJob, release_sorted  # noqa: E402
from seqveil.interfaces.spark.operator import ReleaseProcessor  # noqa: E402
from seqveil.interfaces.spark.sessions import Refused, guarded, needs_spark, translated  # noqa: E402
from seqveil.interfaces.spark.store import Kept, KeptUsers, Seal, bucket  # noqa: E402

KEY, SALT = bytes(range(32)), b"that of a query"
FULL = MarkovModel([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]])
SPARSE = MarkovModel([0.5, 0.3, 0.2], [[0.7, 0.3, 0.0], [0.0, 0.6, 0.4], [0.5, 0.0, 0.5]])
PAIRS = MarkovModel.fit([[0, 1, 2, 1, 0, 0, 1], [2, 2, 1, 0, 1, 1]], order=2, n=3, smoothing=0.5)
SETTINGS = {
    "plain": Policy(epsilon=1.0, mechanism="optimal").on(FULL),
    "sparse": Policy(epsilon=0.8, budget=Budget(total=3.0, when_spent="stop"), mechanism="balanced").on(SPARSE),
    "order 2": Policy(epsilon=0.7, budget=Budget(total=2.0), mechanism="optimal").on(PAIRS),
    "window": Policy(epsilon=1.0, budget=Budget(per_window=2.0, releases=3), mechanism="balanced").on(FULL),
    "seconds": Policy(epsilon=1.0, budget=Budget(per_window=2.0, seconds=2.5), mechanism="balanced").on(FULL),
}
BATCHED = {
    "tree": Policy(epsilon=2.0, batch=3, mechanism="tree").on(FULL),
    "budget": Policy(epsilon=2.0, batch=2, budget=Budget(total=5.0, when_spent="stop"), mechanism="tree").on(SPARSE),
    "seconds": Policy(epsilon=1.5, batch=3, budget=Budget(per_window=2.0, seconds=4.0), mechanism="tree").on(FULL),
}


def job_of(setting, **more):
    return SparkJob(setting, setting.model.alphabet, KEY, ("user", "seq", "value"), **more)


def operator_of(job):
    return TwsTester(ReleaseProcessor(job, StringType(), salt=SALT))


def rows_of(events):
    """Events (user, seq, code) as the operator gets them; the time of an event is its number."""
    table = pd.DataFrame(events, columns=["user", "seq", "v0"])
    return table.assign(time=table["seq"].astype(float))


def feed(tester, events):
    """Released rows of one micro-batch of one bucket."""
    return tester.testInPandas(0, rows_of(events)) if len(events) else pd.DataFrame()


def joined(parts):
    parts = [part for part in parts if len(part)]
    whole = pd.concat(parts) if parts else pd.DataFrame({"user": [], "seq": []})
    return whole.sort_values(["user", "seq"]).reset_index(drop=True)


def kept_by(tester):
    return {user[0]: Kept(*row) for user, row in tester.peekMapState("users", 0).items()}


@st.composite
def streams(draw):
    """Events of a few users, each in order, and where micro-batches end."""
    order = draw(st.lists(st.sampled_from(["ann", "bob", "cé"]), min_size=1, max_size=25))
    codes = draw(st.lists(st.integers(0, 2), min_size=len(order), max_size=len(order)))
    following = {}
    events = []
    for user, code in zip(order, codes, strict=True):
        events.append((user, following.get(user, 0), code))
        following[user] = following.get(user, 0) + 1
    cuts = draw(st.lists(st.integers(0, len(events)), max_size=4).map(sorted))
    return events, [0, *cuts, len(events)]


def by_store(setting, events):
    """The released rows and accounts by the store."""
    users, seqs, codes = ([event[k] for event in events] for k in range(3))
    timed = setting.budget.seconds is not None
    store = ref.twin(setting, SALT)
    made = store.release(users, codes, seqs, [float(seq) for seq in seqs] if timed else None)
    ledger = {user: store.account(user) for user in users}
    rows = pd.DataFrame({"user": users, "seq": seqs, "value": made.codes, "epsilon": made.epsilons})
    return rows[rows["value"] >= 0].sort_values(["user", "seq"]).reset_index(drop=True), ledger


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETTINGS)
@settings(max_examples=15, deadline=None)
@given(made=streams())
def test_any_cut_gives_the_releases_and_accounts_of_the_store(kind, made):
    setting, (events, cuts) = SETTINGS[kind], made
    tester = operator_of(job_of(setting))
    got = joined(feed(tester, events[a:b][::-1]) for a, b in itertools.pairwise(cuts))  # in any order
    want, ledger = by_store(setting, events)
    assert len(got) == len(want)
    assert not len(want) or got.to_dict("list") == want.to_dict("list")
    for user, kept in kept_by(tester).items():
        account = ledger[user]
        assert (kept.events, kept.releases) == (account.events, account.releases)
        assert (kept.spent, kept.most, kept.least) == (account.epsilon_spent, account.most, account.least)


def test_a_repeat_is_dropped_whatever_comes_with_it():
    tester = operator_of(job_of(SETTINGS["plain"]))
    first = feed(tester, [("ann", 0, 1), ("ann", 1, 2)])
    before = kept_by(tester)
    assert len(feed(tester, [("ann", 0, 0), ("ann", 1, 0), ("ann", 1, 1)])) == 0
    assert kept_by(tester) == before
    twice = feed(tester, [("ann", 2, 1), ("ann", 2, 1)])
    assert twice["seq"].tolist() == [2]
    assert len(first) == 2


@pytest.mark.slow
@pytest.mark.parametrize("setting", [SETTINGS["plain"], SETTINGS["seconds"], BATCHED["tree"]])
def test_which_of_two_rows_counts_does_not_depend_on_their_order(setting):
    """A shuffle may bring them in another order when a task runs again."""
    rows = rows_of([("ann", seq, code) for seq in range(9) for code in (0, 1, 2)])
    rows = rows.assign(time=rows["seq"] + rows["v0"] / 10)
    shuffled = [rows.sample(frac=1, random_state=k) for k in range(4)]
    outs = [operator_of(job_of(setting)).testInPandas(0, each) for each in shuffled]
    assert all(out.to_dict("list") == outs[0].to_dict("list") for out in outs)
    assert outs[0]["seq"].tolist() == list(range(9))


def test_rows_leave_in_the_order_of_names_whatever_order_they_came_in():
    """A file sorted by value would else give the values away by the order of its users."""
    rng = np.random.default_rng(0)
    users, codes = [f"u{k}" for k in rng.permutation(300)], np.sort(rng.integers(0, 3, 300)).tolist()
    for setting in (
        Policy(epsilon=0.2, mechanism="optimal").on(FULL),
        Policy(epsilon=0.2, batch=2, mechanism="tree").on(FULL),
    ):
        rows = [(user, seq, code) for user, code in zip(users, codes, strict=True) for seq in range(setting.batch)]
        out = feed(operator_of(job_of(setting)), rows)
        assert out["user"].tolist() == np.repeat(sorted(users), setting.batch).tolist()


def test_gaps_are_refused_or_given_up():
    with pytest.raises(Refused, match="OutOfOrder: event 0 has sequence number 2, and 0 is next"):
        feed(operator_of(job_of(SETTINGS["plain"])), [("ann", 2, 1)])
    tester = operator_of(job_of(SETTINGS["plain"], gaps="skip"))
    assert feed(tester, [("ann", 2, 1)])["seq"].tolist() == [2]
    assert len(feed(tester, [("ann", 1, 1)])) == 0  # too late
    assert kept_by(tester)["ann"].events == 3
    made = ref.twin(SETTINGS["plain"], SALT, gaps="skip").release(["ann", "ann"], [1, 0], [2, 3])
    assert feed(tester, [("ann", 3, 0)])["value"].tolist() == made.codes[1:].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", BATCHED)
@settings(max_examples=12, deadline=None)
@given(made=streams())
def test_batches_wait_sealed_and_come_out_as_those_of_the_store(kind, made):
    setting, (events, cuts) = BATCHED[kind], made
    tester = operator_of(job_of(setting))
    counts = {user: sum(event[0] == user for event in events) for user, _, _ in events}
    got = joined(feed(tester, events[a:b]) for a, b in itertools.pairwise(cuts))
    timed = setting.budget.seconds is not None
    store = ref.twin(setting, SALT)
    want = []
    for user in sorted(counts):
        codes = [code for name, _, code in events if name == user]
        whole, size = len(codes) // setting.batch, setting.batch
        parts = [codes[k * size : (k + 1) * size] for k in range(whole)]
        times = [float((k + 1) * size - 1) for k in range(whole)]
        made = store.release([user] * len(parts), parts, range(len(parts)), times if timed else None)
        for k, (path, disclosed) in enumerate(zip(made.paths, made.symbols, strict=True)):
            want += (
                [(user, k * setting.batch + j, code, k) for j, code in enumerate(disclosed)] if path is not None else []
            )
        kept = kept_by(tester)[user]
        account = (0, 0) if not whole else (store.account(user).events, store.account(user).releases)
        assert (kept.events, kept.releases, kept.symbols) == (*account, len(codes))
        assert (kept.waiting == b"") == (len(codes) % size == 0)
    shown = list(got[["user", "seq", "value", "batch"]].itertuples(index=False, name=None)) if len(got) else []
    assert shown == want


def test_what_waits_is_sealed():
    seal = Seal(KEY)
    closed = [seal.close("ann", [1, 2], 5.0) for _ in range(2)]
    assert closed[0] != closed[1]  # a fresh nonce each time
    assert seal.open("ann", closed[0]) == ([1, 2], 5.0)
    for user, blob, key in (
        ("bob", closed[0], KEY),
        ("ann", closed[0][:-1] + bytes([closed[0][-1] ^ 1]), KEY),
        ("ann", closed[0], bytes(32)),
    ):
        with pytest.raises(DataError, match="another key"):
            Seal(key).open(user, blob)


@pytest.mark.slow
def test_large_states_are_computed_from_what_was_disclosed(monkeypatch):
    """Above 4 KB the releases are kept and the state is not."""
    rng = np.random.default_rng(0)
    n = 600
    model = MarkovModel(np.full(n, 1 / n), rng.dirichlet(np.ones(n), n) * 0.5 + 0.5 * np.eye(n))
    setting = Policy(epsilon=2.0, mechanism="balanced").on(model)
    events = [(user, seq, int(rng.integers(n))) for seq in range(70) for user in ("ann", "bob")]
    tester = operator_of(job_of(setting))
    got = joined(feed(tester, events[a:b]) for a, b in ((0, 40), (40, 41), (41, 137), (137, 140)))
    want, _ = by_store(setting, events)
    assert got.to_dict("list") == want.to_dict("list")
    assert {kept.state for kept in kept_by(tester).values()} == {b""}
    assert set(tester.peekMapState("disclosed", 0)) == {(user, chunk) for user in ("ann", "bob") for chunk in (0, 1)}


def test_a_checkpoint_of_something_else_is_refused():
    tester = operator_of(job_of(SETTINGS["plain"]))
    feed(tester, [("ann", 0, 1)])
    facts = tester.peekValueState("facts", 0)
    assert json.loads(facts[0])["setting"]["mechanism"] == "optimal"
    others = {
        "buckets": job_of(SETTINGS["plain"], buckets=7),
        "epsilon": job_of(Policy(epsilon=2.0, mechanism="optimal").on(FULL)),
        "key": SparkJob(SETTINGS["plain"], FULL.alphabet, bytes(32), ("user", "seq", "value")),
        "model": job_of(SETTINGS["sparse"]),
    }
    for name, job in others.items():
        other = operator_of(job)
        other.updateValueState("facts", 0, facts)
        with pytest.raises(Refused, match=f"another .*{name}"):
            feed(other, [("ann", 0, 1)])
    assert KEY.hex() not in facts[0]


def test_budgets_stop_or_hold():
    for policy, count in (("stop", 2), ("hold", 6)):
        setting = Policy(epsilon=1.0, budget=Budget(total=2.0, when_spent=policy), mechanism="balanced").on(FULL)
        rows = feed(operator_of(job_of(setting)), [("ann", seq, seq % 3) for seq in range(6)])
        want, _ = by_store(setting, [("ann", seq, seq % 3) for seq in range(6)])
        assert rows["seq"].tolist() == want["seq"].tolist()
        assert len(rows) >= count


SECRET = "zq-secret-77"


@pytest.mark.slow
def test_neither_state_nor_errors_hold_a_raw_symbol():
    """Raw values of bins have digits that no release shows; unknown ones are in no message."""
    alphabet = Bins([0.0, 1.0, 2.0, 3.0])
    model = MarkovModel([0.4, 0.3, 0.3], FULL.chain.toarray(), alphabet=alphabet)
    raw = [("ann", 0, 1.6180339887), ("ann", 1, 0.5772156649)]
    for setting in (
        Policy(epsilon=2.0, batch=3, mechanism="tree").on(model),
        Policy(epsilon=1.0, mechanism="optimal").on(model),
    ):
        tester = operator_of(job_of(setting))
        out = feed(tester, raw)
        held = repr(kept_by(tester)) + repr(tester.peekValueState("facts", 0)) + out.to_csv()
        assert "1.618" not in held
        assert "0.5772" not in held
        for number in (1.6180339887, 0.5772156649):
            assert np.float64(number).tobytes() not in b"".join(k.state + k.waiting for k in kept_by(tester).values())
    names = Policy(epsilon=1.0, mechanism="optimal").on(
        MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=["a", "b"])
    )
    with pytest.raises(Refused, match=r"not in the model's alphabet \(2 symbols\)") as refused:
        feed(operator_of(job_of(names)), [("ann", 0, SECRET)])
    assert SECRET not in repr(refused.getrepr(showlocals=False, chain=True))
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_sealed_codes_do_not_show():
    """The codes of what waits are not in its seal, in any of the widths they could have."""
    setting = Policy(epsilon=2.0, batch=9, mechanism="tree").on(MarkovModel.fit([list(range(300)) * 2], smoothing=1.0))
    tester = operator_of(job_of(setting))
    feed(tester, [("ann", k, 290 + k) for k in range(8)])
    blob = kept_by(tester)["ann"].waiting
    assert len(blob) == 12 + 8 + 8 * 4 + 16  # nonce, time, codes, tag
    for kind in ("<i2", "<i4", "<i8"):
        assert np.arange(290, 298).astype(kind).tobytes() not in blob


def test_rows_with_holes_are_refused_by_count():
    tester = operator_of(job_of(SETTINGS["plain"]))
    for event, what in (((None, 0, 1), "user"), (("ann", None, 1), "order")):
        with pytest.raises(Refused, match=f"1 rows have no {what}"):
            feed(tester, [event])
    with pytest.raises(Refused, match="below 0"):
        feed(tester, [("ann", -1, 1)])


def test_an_error_of_another_package_is_disclosed_without_its_text():
    with pytest.raises(Refused) as refused, guarded():
        int(SECRET)
    assert "ValueError" in str(refused.value)
    assert SECRET not in str(refused.value)
    back = translated(Exception(f"Traceback …\n{Refused.__name__}: {refused.value}\nmore"))
    assert "ValueError" in str(back)
    assert isinstance(translated(Exception("seqveil refused: OutOfOrder: event 0")), OutOfOrder)
    assert isinstance(translated(Exception("seqveil refused: InputError: no")), InputError)
    assert SECRET not in str(translated(Exception(SECRET)))


def test_a_job_travels_without_a_key_that_is_a_file(tmp_path):
    from seqveil.core.randomness import key_file

    path = tmp_path / "key"
    secret = key_file(path, create=True)
    job = SparkJob(SETTINGS["plain"], FULL.alphabet, str(path), ("user", "seq", "value"))
    assert len(job.facts) > 10  # the driver may have read it
    sent = cloudpickle.dumps(job)
    assert secret not in sent
    assert cloudpickle.loads(sent) is cloudpickle.loads(sent)  # a worker keeps it
    assert cloudpickle.loads(sent).facts == job.facts
    assert secret.hex() not in repr(job)
    assert repr(KEY) not in repr(job_of(SETTINGS["plain"]))


@pytest.mark.slow
@pytest.mark.parametrize("setting", [SETTINGS["plain"], BATCHED["tree"]], ids=["one by one", "batches"])
def test_a_sorted_partition_is_cut_between_users(setting, monkeypatch):
    """Whole users at a time, in frames of any size; short batches go out at the end."""
    import seqveil.interfaces.spark.job as module

    monkeypatch.setattr(module, "CHUNK_ROWS", 7)
    rng = np.random.default_rng(5)
    events = [(f"u{user}", 10 * seq, int(rng.integers(3))) for user in range(6) for seq in range(rng.integers(1, 9))]
    rows = rows_of(events)
    job = job_of(setting)
    frames = [rows.iloc[at : at + 4] for at in range(0, len(rows), 4)]
    got = joined(release_sorted(job, iter(frames)))
    assert got["seq"].tolist() == rows["seq"].tolist()  # the order column comes back as it was
    whole = joined([job.release(rows.assign(seq=rows["seq"] // 10), KeptUsers(job.salt), end=True)])
    assert got["value"].tolist() == whole["value"].tolist()
    with pytest.raises(Refused, match=r"DataError: .*the same order"):
        list(release_sorted(job, iter([rows.iloc[[0, 0]]])))


def test_more_users_than_fit_are_released_in_groups(monkeypatch):
    setting = SETTINGS["plain"]
    events = [(f"u{k % 11}", k // 11, k % 3) for k in range(60)]
    users, seqs, codes = [e[0] for e in events], np.array([e[1] for e in events]), np.array([e[2] for e in events])
    streams = bucket(setting, KeyedRandomness(KEY), KeptUsers(SALT), users)
    streams._live.room = 3
    made = streams.release(users, codes, seqs)
    alone = bucket(setting, KeyedRandomness(KEY), KeptUsers(SALT), users).release(users, codes, seqs)
    assert not made.replayed.any()
    assert made.codes.tolist() == alone.codes.tolist()


def test_what_is_missing_to_run_spark_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="Spark needs Java 17"):
        needs_spark()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InputError, match="Spark needs Java 17"):
        needs_spark()


def test_values_come_out_in_their_own_kind():
    grid = Grid.regular(3, 1, (0, 3, 0, 1))
    model = MarkovModel([0.4, 0.3, 0.3], FULL.chain.toarray(), alphabet=grid)
    setting = Policy(epsilon=1.0, mechanism="optimal").on(model)
    job = SparkJob(setting, grid, KEY, ("who", "when", "x", "y"))
    rows = pd.DataFrame({"user": ["a", "b"], "seq": [0, 0], "v0": [0.2, 2.9], "v1": [0.5, 0.1]})
    out = job.release(rows, KeptUsers(SALT))
    assert list(out.columns) == ["who", "when", "x", "y", "epsilon"]
    assert set(out["y"]) == {0.5}
    mixed = Alphabet([1, 2.5, 4])
    setting = Policy(epsilon=0.5).on(MarkovModel([0.4, 0.3, 0.3], FULL.chain.toarray(), alphabet=mixed))
    job = SparkJob(setting, mixed, KEY, ("u", "s", "v"))
    assert set(job.release(rows.assign(v0=[1.0, 2.5])[["user", "seq", "v0"]], KeptUsers(SALT))["v"]) <= {1, 2.5, 4}
