"""Several streams of one user: the chain begins anew with each, the account is the user's, whatever keeps it."""

import itertools
import json

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from seqveil.core.coins import KeyedCoins, SeededCoins
from seqveil.core.errors import BudgetSpent, InputError
from seqveil.engine.accounting import Budget
from seqveil.engine.stream import State, step
from seqveil.interfaces.cli import main
from seqveil.receiver.audit import Asked, Audit

KEY = bytes(range(32))
FULL = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
SPARSE = sv.MarkovModel([0.5, 0.5, 0.0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])


def laws(model, codes, begins, epsilon):
    """The columns of releases made one by one, by hand: the belief begins anew where a stream does."""
    setting = sv.Setting.of(model, epsilon=epsilon, restarts=True)
    state, columns, coins = State.start(setting), [], SeededCoins(3)
    for code, begin in zip(codes, begins, strict=True):
        state = state.restarted(setting, np.array([begin]))
        made, state = step(setting, state, np.array([code]), coins)
        columns.append(made.columns[0] / 2.0**62)
    return columns, state


def by_hand(model, columns, begins):
    """Both extremes of log posterior/prior over all sequences of a user, streams independent: brute force."""
    places = list(range(len(columns)))
    ratios, total = [], 0.0
    for path in itertools.product(range(model.n), repeat=len(columns)):
        prior, like = 1.0, 1.0
        for k in places:
            row = model.prior if begins[k] else model.advance(np.eye(model.n)[path[k - 1]])
            prior *= row[path[k]]
            like *= columns[k][path[k]]
        if prior:
            ratios.append(like)
            total += prior * like
    logs = np.log(np.array(ratios) / total)
    return logs.max(), logs.min()


@pytest.mark.parametrize("model", [FULL, SPARSE], ids=["full", "sparse"])
@pytest.mark.parametrize("begins", [[1, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1], [1, 0, 0, 1]])
def test_the_account_of_all_streams_is_exact(model, begins):
    marks = [bool(mark) for mark in begins]
    columns, state = laws(model, [0, 1, 0, 1], marks, 0.7)
    most, least = by_hand(model, columns, marks)
    assert state.account.most[0] == pytest.approx(most, abs=1e-9)
    assert state.account.least[0] == pytest.approx(least, abs=1e-9)
    assert state.spent[0] == pytest.approx(2.8)


def test_a_user_spends_one_budget_over_all_streams():
    setting = sv.Setting.of(FULL, epsilon=1.0, budget=2.5, restarts=True)
    streams = sv.Streams(setting, coins=SeededCoins(1))
    for _ in range(5):
        streams.release(["ann", "ann"], [0, 1], begins=[True, False])
    standing = streams.standing("ann")
    assert standing.events == 10
    assert 1.5 < standing.leakage <= 2.5
    refusing = sv.Setting.of(FULL, epsilon=1.0, budget=Budget(2.0, when_spent="error"), restarts=True)
    streams = sv.Streams(refusing, coins=SeededCoins(1))
    with pytest.raises(BudgetSpent):
        streams.release(["ann"] * 40, [0] * 40, begins=[True] * 40)
    assert streams.standing("ann").leakage <= 2.0


def test_the_total_is_the_sum_of_the_streams():
    setting = sv.Setting.of(FULL, epsilon=0.5, restarts=True)
    streams, alone = sv.Streams(setting, coins=SeededCoins(2)), []
    coins = SeededCoins(2)
    for codes in ([0, 0, 1], [1], [0, 1]):
        one = sv.Streams(sv.Setting.of(FULL, epsilon=0.5), coins=coins)
        for k, code in enumerate(codes):
            made = streams.release(["ann"], [code], begins=[k == 0])
            assert one.release(["ann"], [code]).codes.tolist() == made.codes.tolist()
        alone.append(one.standing("ann"))
    found = streams.standing("ann")
    assert found.most == pytest.approx(sum(one.most for one in alone))
    assert found.least == pytest.approx(sum(one.least for one in alone))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("memory", [1, 1 << 28])
def test_a_state_file_goes_on_as_memory_does(tmp_path, batch, memory):
    how = {"batch": batch} if batch > 1 else {}
    model = FULL if batch > 1 else SPARSE
    setting = sv.Setting.of(model, "auto" if batch > 1 else "optimal", 0.8 * batch, restarts=True, **how)
    users = ["a", "b", "a", "a", "b"]
    codes = [0, 1, 0, 1, 1] if batch == 1 else [[0, 1, 0], [1, 1], [0], [1, 0, 0], [1]]
    begins = [True, True, False, True, True]
    kept = sv.Streams(setting, coins=KeyedCoins(KEY, setting.signature.encode()))
    for k in range(5):
        kept.release(users[k : k + 1], codes[k : k + 1], begins=begins[k : k + 1])
    for k in range(5):  # a file that is opened anew for each event
        with sv.Streams.open(tmp_path / "s.db", setting, key=KEY, memory=memory) as streams:
            seqs = [int(streams.next_seqs(users[k : k + 1])[0])]
            streams.release(users[k : k + 1], codes[k : k + 1], seqs, begins=begins[k : k + 1])
            found = streams.standings()
    want = kept.standings()
    np.testing.assert_allclose(found.leakage, want.leakage, atol=1e-8)
    assert found.events.tolist() == want.events.tolist()
    with sv.Streams.open(tmp_path / "s.db", setting, key=KEY) as streams:
        for user in "ab":
            assert [s.codes for s in streams.releases(user)] == [s.codes for s in kept.releases(user)]
    with pytest.raises(InputError, match="restarts"):
        sv.Streams.open(tmp_path / "s.db", sv.Setting.of(model, setting.mechanism, 0.8 * batch, **how), key=KEY)


@pytest.mark.slow
def test_large_states_are_replayed_with_their_streams(tmp_path):
    n = 700  # a state too large to be kept as it is
    model = sv.MarkovModel(np.full(n, 1 / n), 0.5 * np.eye(n) + 0.5 / n)
    setting = sv.Setting.of(model, epsilon=2.0, restarts=True)
    kept = sv.Streams(setting, coins=KeyedCoins(KEY, setting.signature.encode()))
    want = kept.release(["a"] * 4, [5, 6, 7, 8], begins=[True, False, True, False])
    got = []
    for k in range(4):
        with sv.Streams.open(tmp_path / "s.db", setting, key=KEY) as streams:
            got.append(int(streams.release(["a"], [5 + k], [k], begins=[k % 2 == 0]).codes[0]))
    assert got == want.codes.tolist()


def test_secrets_are_about_each_stream():
    secret = sv.secrets.ever(1, epsilon=0.5, window="first 3")
    setting = sv.Setting.of(FULL, "guarded", secrets=[secret], restarts=True)
    streams = sv.Streams(setting, coins=SeededCoins(4))
    begins = [k % 3 == 0 for k in range(12)]
    made = streams.release(["ann"] * 12, [1, 0, 1] * 4, begins=begins)
    (total,) = streams.secrets()
    assert total.log_odds_worst <= 0.5
    audit = Audit(setting, asked=Asked.of(setting, None))
    audit.take(["ann"] * 12, made.codes, begins=np.array(begins))
    report = audit.report()
    assert report.declared
    assert report.secrets[0].log_odds_worst == pytest.approx(total.log_odds_worst, abs=1e-9)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(InputError, match='"stop"'):
        sv.Setting.of(FULL, epsilon=1.0, budget=Budget(2.0, when_spent="stop"), restarts=True)
    with pytest.raises(InputError, match="restarts=True"):
        sv.Streams(sv.Setting.of(FULL, epsilon=1.0)).release(["a"], [0], begins=[True])
    with pytest.raises(InputError, match="truth values"):
        sv.Streams(sv.Setting.of(FULL, epsilon=1.0, restarts=True)).release(["a"], [0], begins=[1, 0])
    saved = sv.Setting.of(FULL, epsilon=1.0, restarts=True).to_dict()
    assert sv.Setting.from_dict(saved, FULL).restarts
    assert "restarts" not in sv.Setting.of(FULL, epsilon=1.0).to_dict()


# --- files

SESSIONS = "--stream-column"


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """A file of 30 people with three sessions each, and a model fitted to it."""
    folder = tmp_path_factory.mktemp("apart")
    draw = np.random.default_rng(5)
    rows = []
    for person in range(30):
        for session in range(3):
            page = int(draw.integers(3))
            for k in range(int(draw.integers(1, 6))):
                page = page if draw.random() < 0.7 else int(draw.integers(3))
                rows.append((f"p{person}", f"s{session}", k, "abc"[page]))
    pl.DataFrame(rows, schema=["user", "session", "seq", "value"], orient="row").write_csv(folder / "v.csv")
    assert (
        main(["fit", str(folder / "v.csv"), "-o", str(folder / "v.model"), "--smoothing", "1", SESSIONS, "session"])
        == 0
    )
    return folder


def run(*args):
    return main([str(arg) for arg in args])


def test_a_fit_counts_within_streams(visits):
    frame = pl.read_csv(visits / "v.csv")
    streams = [part["value"].to_list() for part in frame.partition_by("user", "session", maintain_order=True)]
    want = sv.MarkovModel.fit(streams, smoothing=1.0)
    got = sv.MarkovModel.load(visits / "v.model")
    assert got.fingerprint == want.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--batch", 2), ("--budget", 3), ("--mechanism", "randomized_response")])
@pytest.mark.parametrize("state", [False, True])
def test_the_journey_of_a_file(visits, tmp_path, capsys, more, state):
    out = tmp_path / "r.csv"
    kept = ("--state", tmp_path / "s.db") if state else ()
    made = (
        "release",
        visits / "v.csv",
        "-m",
        visits / "v.model",
        "-e",
        1,
        SESSIONS,
        "session",
        "-o",
        out,
        *more,
        *kept,
    )
    assert run(*made) == 0
    before = out.read_bytes()
    if state:
        assert run(*made) == 0
        assert out.read_bytes() == before
    raw, released = pl.read_csv(visits / "v.csv"), pl.read_csv(out)
    assert released.columns[:4] == ["user", "session", "seq", "value"]
    assert released.height == raw.height
    capsys.readouterr()
    assert run("audit", out, "-m", visits / "v.model", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert report["users"] == 30
    for online in ((), ("--online",)):
        decoded = tmp_path / f"d{len(online)}.csv"
        assert run("decode", out, "-m", visits / "v.model", "-o", decoded, *online) == 0
        assert pl.read_csv(decoded).height == raw.height
    if not more:
        assert run("stats", out, "-m", visits / "v.model") == 0


@pytest.mark.slow
def test_a_stream_is_decoded_by_itself(visits, tmp_path):
    out, decoded = tmp_path / "r.csv", tmp_path / "d.csv"
    model = sv.MarkovModel.load(visits / "v.model")
    assert run("release", visits / "v.csv", "-m", visits / "v.model", "-e", 1, SESSIONS, "session", "-o", out) == 0
    assert run("decode", out, "-m", visits / "v.model", "-o", decoded) == 0
    got = pl.read_csv(decoded).partition_by("user", "session", maintain_order=True)
    for told, part in zip(pl.read_csv(out).partition_by("user", "session", maintain_order=True), got, strict=True):
        best = sv.decode_stream(model, told["value"].to_list(), epsilon=1.0).max(1)
        np.testing.assert_allclose(part["confidence"].to_numpy(), best, atol=1e-5)


@pytest.mark.slow
def test_a_changed_stream_is_noticed(visits, tmp_path, capsys):
    out = tmp_path / "r.csv"
    assert run("release", visits / "v.csv", "-m", visits / "v.model", "-e", 1, SESSIONS, "session", "-o", out) == 0
    out.write_text(out.read_text().replace(",s2,", ",s9,"))
    capsys.readouterr()
    assert run("audit", out, "-m", visits / "v.model", "--json") == 1
    assert not json.loads(capsys.readouterr().out)["checks"]["unchanged"]


@pytest.mark.slow
def test_refusals_of_a_file(visits, tmp_path, capsys):
    model, out = visits / "v.model", tmp_path / "r.csv"
    back = tmp_path / "back.csv"
    back.write_text("user,session,value\np,1,a\np,2,b\np,1,a\n")

    def says(*args):
        capsys.readouterr()
        assert run(*args) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    shared = ("-m", model, "-e", 1, SESSIONS, "session", "-o", out)
    assert "row 3 goes back to a stream" in says("release", back, *shared)
    assert not out.exists()
    assert "name yours with --stream-column" in says("fit", back, "-o", tmp_path / "m", SESSIONS, "sess")
    private = ("--private", 1, "--alphabet", visits / "v.model")
    assert "leave --stream-column out" in says("fit", back, "-o", tmp_path / "m", SESSIONS, "session", *private)
    cold = ("release", back, "--cold-start", "-e", 1, SESSIONS, "session", "-o", out)
    assert "one stream of each user" in says(*cold)
    assert '"stop"' in says("release", back, *shared, "--budget", 2, "--when-spent", "stop")
    assert run("release", visits / "v.csv", *shared) == 0
    assert "leave --against out" in says("audit", out, "-m", model, "--against", model)
    assert "fit one instead" in says("learn", out, "-m", model, "-o", tmp_path / "l.model")


def test_sorting_puts_the_streams_of_a_user_one_behind_another(visits, tmp_path):
    mixed, out = tmp_path / "m.csv", tmp_path / "r.csv"
    mixed.write_text("user,session,time,value\np,1,1,a\np,2,2,b\np,1,3,a\nq,1,0,c\np,2,4,a\n")
    shared = ("-m", visits / "v.model", "-e", 1, SESSIONS, "user,session", "-o", out)
    assert run("release", mixed, *shared, "--sort") == 0
    assert pl.read_csv(out).select("user", "session", "time").rows() == [
        ("q", 1, 0), ("p", 1, 1), ("p", 1, 3), ("p", 2, 2), ("p", 2, 4)
    ]  # fmt: skip


def test_people_are_held_out_with_all_their_streams():
    from seqveil.receiver.choosing import choose

    draw = np.random.default_rng(1)
    people = np.repeat(np.arange(40), 30)
    streams = np.repeat(np.arange(240), 5)
    codes = draw.integers(0, 3, people.size)
    alphabet = sv.Alphabet.codes(3)
    found = choose(streams, codes, alphabet, "order:1", people=people)
    assert found.taken.people == 8
    assert found.taken.symbols == 8 * 30
