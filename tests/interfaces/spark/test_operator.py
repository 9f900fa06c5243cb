"""The Spark operator without a JVM: the store's releases, however events are cut, repeated or left out."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pd = pytest.importorskip("pandas")
pytest.importorskip("pyspark")
from pyspark import cloudpickle  # noqa: E402
from pyspark.sql.streaming.tws_tester import TwsTester  # noqa: E402

from reference import streams as ref  # noqa: E402
from reference.mixtures import mixture  # noqa: E402
from seqveil.core.alphabet import Alphabet, Bins, Grid  # noqa: E402
from seqveil.core.errors import InputError  # noqa: E402
from seqveil.core.model import MarkovModel  # noqa: E402
from seqveil.core.randomness import key_file  # noqa: E402
from seqveil.core.secrets import ever, trait  # noqa: E402
from seqveil.engine.budget import Budget  # noqa: E402
from seqveil.engine.policy import Policy  # noqa: E402
from seqveil.interfaces.spark import operator  # noqa: E402
from seqveil.interfaces.spark.failures import Refused  # noqa: E402
from seqveil.interfaces.spark.operator import ReleaseProcessor  # noqa: E402
from seqveil.interfaces.spark.release import SparkJob  # noqa: E402

KEY, SALT, SECRET = bytes(range(32)), b"that of a query", "zq-secret-77"
FULL = MarkovModel([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]])
SPARSE = MarkovModel([0.5, 0.3, 0.2], [[0.7, 0.3, 0.0], [0.0, 0.6, 0.4], [0.5, 0.0, 0.5]])
CALM = MarkovModel([0.4, 0.3, 0.3], [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]])
PAIRS = MarkovModel.fit([[0, 1, 2, 1, 0, 0, 1], [2, 2, 1, 0, 1, 1]], order=2, alphabet=range(3), smoothing=0.5)
KINDS = mixture([FULL, CALM], [0.5, 0.5], trait=("kind", ["calm", "lively"]))
SETTINGS = {
    "plain": Policy(epsilon=1.0, mechanism="optimal").on(FULL),
    "sparse": Policy(epsilon=0.8, budget=Budget(total=3.0, when_spent="stop"), mechanism="balanced").on(SPARSE),
    "order 2": Policy(epsilon=0.7, budget=Budget(total=2.0), mechanism="optimal").on(PAIRS),
    "window": Policy(epsilon=1.0, budget=Budget(per_window=2.0, releases=3), mechanism="balanced").on(FULL),
    "seconds": Policy(epsilon=1.0, budget=Budget(per_window=2.0, seconds=2.5), mechanism="balanced").on(FULL),
    "blocks": Policy(epsilon=3.0, block=4, budget=Budget(total=8.0)).on(FULL),
    "secrets": Policy(secrets=[ever(2, epsilon=0.4, window=3)]).on(FULL),
    "trait": Policy(secrets=[trait("kind", epsilon=1.0)]).on(KINDS),
}


def job_of(setting, key=KEY):
    return SparkJob(setting, setting.model.alphabet, key, ("user", "seq", "value"))


def operator_of(job):
    return TwsTester(ReleaseProcessor(job))


@pytest.fixture(autouse=True, scope="module")
def _query():
    """Tasks of one query, whose id is the salt."""
    context = SimpleNamespace(getLocalProperty=lambda name: SALT.decode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "TaskContext", SimpleNamespace(get=lambda: context))
        yield


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
    """What the state store has of each user: events, releases, Σε, both sides, the LDP level, the state."""
    return {user[0]: tuple(row) for user, row in tester.peekMapState("users", 0).items()}


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
    store = ref.twin(setting, SALT)
    made = store.release(users, codes, seqs, [float(seq) for seq in seqs] if setting.timed else None)
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
        figures = (account.epsilon_spent, account.most, account.least, account.ldp)
        assert kept[:6] == (account.events, account.releases, *figures)


def test_a_repeat_is_dropped_whatever_comes_with_it():
    tester = operator_of(job_of(SETTINGS["plain"]))
    assert len(feed(tester, [("ann", 0, 1), ("ann", 1, 2)])) == 2
    before = kept_by(tester)
    assert len(feed(tester, [("ann", 0, 0), ("ann", 1, 0), ("ann", 1, 1)])) == 0
    assert kept_by(tester) == before
    assert feed(tester, [("ann", 2, 1), ("ann", 2, 1)])["seq"].tolist() == [2]


@pytest.mark.slow
@pytest.mark.parametrize("setting", [SETTINGS["plain"], SETTINGS["seconds"]])
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
    out = feed(operator_of(job_of(SETTINGS["plain"])), list(zip(users, [0] * 300, codes, strict=True)))
    assert out["user"].tolist() == sorted(users)


def test_rows_that_cannot_be_are_refused_by_number_and_count():
    tester = operator_of(job_of(SETTINGS["plain"]))
    for event, message in (
        (("ann", 2, 1), "OutOfOrder: event 0 has sequence number 2, and 0 is next"),
        ((None, 0, 1), "1 rows have no user"),
        (("ann", None, 1), "1 rows have no order"),
        (("ann", -1, 1), "below 0"),
    ):
        with pytest.raises(Refused, match=message):
            feed(tester, [event])
    assert kept_by(tester) == {}


def test_neither_state_nor_errors_hold_a_raw_symbol():
    """Raw values of bins have digits that no release shows; unknown ones are in no message."""
    raw = [("ann", 0, 1.6180339887), ("ann", 1, 0.5772156649)]
    model = MarkovModel([0.4, 0.3, 0.3], FULL.chain.toarray(), alphabet=Bins([0.0, 1.0, 2.0, 3.0]))
    tester = operator_of(job_of(Policy(epsilon=1.0, mechanism="optimal").on(model)))
    out = feed(tester, raw)
    held = repr(kept_by(tester)) + out.to_csv()
    for _, _, number in raw:
        assert str(number)[:6] not in held
        assert np.float64(number).tobytes() not in kept_by(tester)["ann"][6]
    names = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=["a", "b"])
    with pytest.raises(Refused, match=r"not in the model's alphabet \(2 symbols\)") as refused:
        feed(operator_of(job_of(Policy(epsilon=1.0, mechanism="optimal").on(names))), [("ann", 0, SECRET)])
    assert SECRET not in repr(refused.getrepr(showlocals=False, chain=True))
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_a_job_has_a_salt_of_its_own_and_travels_without_a_key_that_is_a_file(tmp_path):
    secret = key_file(tmp_path / "key", create=True)
    job = job_of(SETTINGS["plain"], str(tmp_path / "key"))
    assert job.salt != job_of(SETTINGS["plain"], str(tmp_path / "key")).salt
    assert job.secret == secret  # the driver may have read it
    sent = cloudpickle.dumps(job)
    assert secret not in sent
    assert cloudpickle.loads(sent) is cloudpickle.loads(sent)  # a worker keeps it
    assert cloudpickle.loads(sent).secret == secret
    assert repr(KEY) not in repr(job_of(SETTINGS["plain"]))
    for wrong in (b"short", 7):
        with pytest.raises(InputError, match="expected a key of 32"):
            _ = job_of(SETTINGS["plain"], wrong).secret


@pytest.mark.slow
def test_whole_streams_are_released_in_their_order_whatever_order_they_came_in():
    """The order column comes back."""
    rng = np.random.default_rng(5)
    rows = rows_of([(f"u{user}", 10 * seq, int(rng.integers(3))) for user in range(6) for seq in range(user + 2)])
    job = job_of(SETTINGS["plain"])
    got = job.release_whole(rows.sample(frac=1, random_state=1))
    assert got["seq"].tolist() == rows["seq"].tolist()
    store, want = ref.twin(SETTINGS["plain"], job.salt), []
    for user, own in rows.groupby("user"):
        want += store.release([user] * len(own), own["v0"].to_numpy(), range(len(own))).codes.tolist()
    assert got["value"].tolist() == want
    with pytest.raises(Refused, match=r"DataError: .*the same order"):
        job.release_whole(rows.iloc[[0, 0]])


def test_values_come_out_in_their_own_kind():
    grid = Grid.regular(3, 1, (0, 3, 0, 1))
    model = MarkovModel([0.4, 0.3, 0.3], FULL.chain.toarray(), alphabet=grid)
    job = SparkJob(Policy(epsilon=1.0, mechanism="optimal").on(model), grid, KEY, ("who", "when", "x", "y"))
    rows = pd.DataFrame({"user": ["a", "b"], "seq": [0, 0], "v0": [0.2, 2.9], "v1": [0.5, 0.1]})
    out = operator_of(job).testInPandas(0, rows)
    assert list(out.columns) == ["who", "when", "x", "y", "epsilon"]
    assert set(out["y"]) == {0.5}
    mixed = Alphabet([1, 2.5, 4])
    setting = Policy(epsilon=0.5).on(MarkovModel([0.4, 0.3, 0.3], FULL.chain.toarray(), alphabet=mixed))
    out = operator_of(job_of(setting)).testInPandas(0, rows.assign(v0=[1.0, 2.5])[["user", "seq", "v0"]])
    assert set(out["value"]) <= {1, 2.5, 4}


def test_releases_that_say_nothing_and_batches_are_refused():
    with pytest.raises(InputError, match="in batches"):
        job_of(Policy(epsilon=2.0, batch=3, mechanism="tree").on(FULL))
    with pytest.raises(InputError, match="Spark writes no row"):
        job_of(Policy(secrets=ever(1, epsilon=0.5, window=4), withhold=True).on(FULL))
