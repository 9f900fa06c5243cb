"""Times of events: what they are read as, and that no choice of them passes a budget per seconds."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
import served
from filed import audit_file, release_file
from policies import promise
from seqveil import Budget, MarkovModel, Session
from seqveil.core import times as clock
from seqveil.core.errors import DataError, InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches, stream
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.bridge.payloads import Payloads, Refusal
from seqveil.interfaces.files.fit import fit_table
from seqveil.interfaces.files.ordering import order_key, seconds

MODEL = MarkovModel([0.5, 0.5], [[0.7, 0.3], [0.3, 0.7]])
NOW = 1_700_000_000


def limited(per_window=1.0, span=60.0, **options):
    return Budget(per_window=per_window, seconds=span, **options)


# what a time is read as


@pytest.mark.parametrize("unit", range(4), ids=clock.UNITS)
def test_numbers_since_1970_are_known_by_their_size(unit):
    for year in (1980, 2024, 2200):
        at = int(datetime(year, 5, 1, tzinfo=UTC).timestamp())
        given = at * 10 ** (3 * unit)
        for each in (given, float(given), np.int64(given), np.float64(given)):
            assert clock.seconds([each]).tolist() == [float(at)]
        assert clock.powers(np.array([given], float)).tolist() == [unit]


def test_what_was_read_once_stays_as_it_is():
    read = clock.seconds([0, -3.5, 99_999_999_999, 10**11, 10**14 - 1, 10**17, 10**20 - 10**4])
    assert clock.seconds(read).tolist() == read.tolist()
    assert np.abs(read).max() < clock.LATEST


def test_dates_are_utc_unless_they_say_otherwise():
    east = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    same = ["2024-05-01T10:00:00Z", "2024-05-01 10:00", "2024-05-01T12:00:00+02:00", datetime(2024, 5, 1, 10), east]
    expected = datetime(2024, 5, 1, 10, tzinfo=UTC).timestamp()
    assert clock.seconds(same).tolist() == [expected] * 5
    assert clock.seconds(np.array(["2024-05-01T10:00"], "datetime64[m]")).tolist() == [expected]


WRONG = [
    math.inf, math.nan, 1e20, 1.7e308, 10**400, True, None, "yesterday", "1700000000", "2024-02-31",
    "9999-12-31T00:00:00Z", np.array(["9999-12-31"], "datetime64[D]"), np.array(["NaT"], "datetime64[s]"),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:20])
def test_what_is_no_time_is_refused_in_one_line_without_being_disclosed(wrong):
    with pytest.raises(InputError, match="expected a time in seconds") as refused:
        clock.seconds(wrong if isinstance(wrong, np.ndarray) else [1.0, wrong])
    assert "\n" not in str(refused.value)
    assert not isinstance(wrong, str) or wrong not in str(refused.value)


# the two attacks


@pytest.mark.parametrize("unit", [1, 3])
def test_nanoseconds_do_not_pass_a_window_of_seconds(unit):
    """In float64 1.7e18 - 60 is 1.7e18: a window that looks back from there is empty, whatever was released."""
    session = Session(MODEL, mechanism="optimal", epsilon=0.5, budget=limited(), seed=1)
    scale = 10 ** (3 * unit)
    for k in range(80):
        session.release(k % 2, time=NOW * scale + k * scale // 2)  # 40 seconds
    assert session.account.leakage <= 1.0 + 1e-9
    for k in range(80):
        session.release(k % 2, time=(NOW + 3600) * scale + k * scale // 2)
    assert 1.0 < session.account.leakage <= 2.0 + 1e-9  # and the next window has its own


def test_times_too_coarse_for_the_window_are_refused_below_every_reader():
    """Who steps a stream with bare numbers gets no window that cannot be known."""
    setting = sv.Policy(epsilon=0.5, budget=limited(), mechanism="optimal").on(MODEL)
    state = stream.State.start(setting)
    for wrong in (1.7e18, 1e11 + 1e6, math.inf, math.nan, -1e12):
        with pytest.raises(InputError, match="year 5138"):
            stream.step(setting, state, np.array([0]), SeededRandomness(1), np.array([wrong]))
    short = sv.Policy(epsilon=0.5, budget=limited(span=0.01), mechanism="optimal").on(MODEL)
    with pytest.raises(InputError, match="cannot be distinguished"):
        stream.step(short, state, np.array([0]), SeededRandomness(1), np.array([float(NOW)]))
    stream.step(short, state, np.array([0]), SeededRandomness(1), np.array([5.0]))


@pytest.mark.slow
def test_an_absurd_time_over_http_neither_empties_the_window_nor_shuts_a_user_out(tmp_path):
    with served.running(tmp_path, served.words_setting(budget=limited(3.0)), auth=False) as service:

        def release(seq, at):
            return service.release({"user": "ann", "seq": seq, "value": "home", "time": at})

        spent = sum(release(seq, 1.0 + seq).json["releases"][0]["epsilon"] for seq in range(8))
        for absurd in (1e308, 10**400, time.time() + 2 * 86_400, "9999-12-31T00:00:00Z", "soon"):
            refused = release(8, absurd)
            assert (refused.status, refused.reason) == (400, "malformed")
            assert str(absurd) not in refused.content.decode()
        spent += sum(release(seq, 1.0 + seq).json["releases"][0]["epsilon"] for seq in range(8, 16))
        known = service.ask("GET", "/v1/users/ann").json["account"]
        assert spent == pytest.approx(known["epsilon_spent"], abs=1e-6)
        assert known["leakage"] <= 3.0 + 1e-6
        assert release(16, 0.5).reason == "time-went-back"
        begin = int(time.time()) - 1000
        forms = [begin, (begin + 1) * 10**9, datetime.fromtimestamp(begin + 2, UTC).isoformat()]
        assert [release(16 + seq, at).status for seq, at in enumerate(forms)] == [200] * 3
        disclosed = service.ask("GET", "/v1/users/ann?since=16").json["releases"]
        assert [each["time"] for each in disclosed] == [begin + k for k in range(3)]


def test_the_bridge_reads_and_refuses_the_same():
    payloads = Payloads(sv.Policy(epsilon=0.5, budget=limited(), mechanism="optimal").on(MODEL))

    def at(written):
        return payloads.read("ann", json.dumps({"seq": 0, "value": 1, "time": written}).encode()).time

    assert [at(NOW), at(NOW * 10**3), at(NOW * 10**9), at("2023-11-14T22:13:20Z"), at(7)] == [NOW] * 4 + [7]
    for wrong in (1e308, 10**400, time.time() + 2 * 86_400, "9999-12-31", "soon", True, None, [1]):
        with pytest.raises(Refusal, match="expected time"):
            at(wrong)


# a user's time never goes back


def test_a_time_that_was_seen_stays_the_earliest_after_any_gap(tmp_path):
    setting = sv.Policy(epsilon=0.5, budget=limited(), mechanism="optimal").on(MODEL)
    for reopened in (False, True):
        path = tmp_path / f"{reopened}.db"
        store = CodeStreams.open(path, setting)
        store.release(["ann", "bob"], [0, 0], [0, 0], [1.0, 5.0])
        store.release(["ann"], [0], [1], [1e9])  # everything before has left the window
        if reopened:
            store.close()
            store = CodeStreams.open(path, setting)
        with pytest.raises(InputError, match="never to go back"):
            store.release(["ann"], [0], [2], [1e9 - 1e-6])
        store.release(["ann", "bob"], [0, 0], [2, 1], [1e9, 5.0])
        store.close()


def test_a_batch_that_a_spent_budget_left_out_counts_as_seen():
    setting = sv.Policy(epsilon=1.0, batch=2, budget=limited(0.5, when_spent="stop"), mechanism="tree").on(MODEL)
    state, randomness = stream.State.start(setting), SeededRandomness(1)
    sent, state = batches.step(setting, state, np.array([0, 1]), randomness, np.array([10.0]))
    while sent is not None:
        sent, state = batches.step(setting, state, np.array([0, 1]), randomness, np.array([10.0]))
    _, state = batches.step(setting, state, np.array([0, 1]), randomness, np.array([20.0]))
    with pytest.raises(InputError, match="never to go back"):
        batches.step(setting, state, np.array([0, 1]), randomness, np.array([15.0]))


# any times at all

gaps = st.one_of(
    st.just(0.0),
    st.floats(0, 5),
    st.sampled_from([2.5, 2.5 - 2**-40, 2.5 + 2**-40, 1e-9, 5e-324, 1e6, 1e9, 9e10, 1e12, 1.7e18, 1e308]),
)


def cost_of(made, model):
    """The most that a release moved the belief in a symbol, by Bayes."""
    belief, column = made.beliefs[0], made.columns[0]
    lifts = column / float(belief @ column)
    return float(np.abs(np.log(lifts[belief > 0])).max())


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.lists(gaps, min_size=1, max_size=14), st.floats(-1e11, 1e10), st.booleans(), st.booleans())
def test_no_times_that_are_accepted_pass_the_window(steps, begin, back, other_unit):
    """Σ of realised costs in any window of 2.5 seconds, in exact arithmetic on the times as they were read."""
    span, most = 2.5, 1.0
    setting = sv.Policy(epsilon=0.45, budget=limited(most, span), mechanism="balanced").on(MODEL)
    state, now, taken = stream.State.start(setting), begin if back else 0.0, []
    randomness = SeededRandomness(3)
    for k, step in enumerate(steps):
        now += step
        tried = [now, now - 1e-3, now * 1e3 if other_unit else now]
        for given_time in tried:
            try:
                at = clock.seconds([given_time])
                made, state = stream.step(setting, state, np.array([k % 2]), randomness, at)
            except InputError:
                continue
            taken.append((Fraction(float(at[0])), cost_of(made, MODEL)))
    for last, _ in taken:
        inside = [cost for at, cost in taken if last - Fraction(span) < at <= last]
        assert math.fsum(inside) <= most + 1e-9
    assert [at for at, _ in taken] == sorted(at for at, _ in taken)


# files


@pytest.mark.slow
@pytest.mark.parametrize("unit", [0, 3])
def test_a_file_is_released_by_the_same_seconds_and_says_what_it_read(tmp_path, unit):
    setting = sv.Policy(epsilon=0.5, budget=limited(), mechanism="optimal").on(MODEL)
    rows = pl.DataFrame({"user": ["a"] * 90, "time": [(NOW + k) * 10 ** (3 * unit) for k in range(90)]})
    rows.with_columns(value=pl.Series([k // 9 % 2 for k in range(90)])).write_csv(tmp_path / "data.csv")
    account = release_file(tmp_path / "data.csv", setting, tmp_path / "out.csv", seed=1)
    assert f"in the order of 'time' (by its name, {clock.UNITS[unit]}" in account.read
    session = Session(MODEL, mechanism="optimal", epsilon=0.5, budget=limited(), seed=1)
    expected = [session.release(k // 9 % 2, time=NOW + k) for k in range(90)]
    assert pl.read_csv(tmp_path / "out.csv")["value"].to_list() == expected
    report = audit_file(tmp_path / "out.csv", MODEL)
    assert not any(kept is False for kept in (report.each_release, report.each_stream, report.window))
    assert report.worst_window <= 1.0 + 1e-9


def gaze(name: str = "t_ms", since: int = 0) -> pl.DataFrame:
    """A sample each 33 ms, of 20 people."""
    times = [since + 33 * (k % 6) for k in range(120)]
    return pl.DataFrame(
        {"user": [f"u{k // 6}" for k in range(120)], name: times, "x": [0.5, 1.5, 2.5] * 40, "y": [0.5, 1.5] * 60}
    )


def test_milliseconds_by_name_are_not_read_as_seconds():
    words = {"value": "x,y", "grid": "3x2", "every_seconds": 0.1, "smoothing": 1}
    fitted = fit_table(gaze(), time="t_ms", **words)
    assert "'t_ms' (as named, milliseconds, by its name); one row for each of slots of 0.1 s" in fitted.read_as
    assert fitted.events == 40  # two slots for 165 ms
    made = sv.release(gaze(), fitted.model, epsilon=1)
    assert sorted(set(made.frame["t_ms"])) == [0, 100]
    assert sv.audit(made, fitted.model).passed
    assert sv.fit(gaze("t_ms", 1_700_000_000_000), time="t_ms", **words).n == 6
    model = sv.fit(gaze(), value="x,y", time="t_ms", grid="3x2", smoothing=1)
    window = sv.Budget(per_window=2, seconds=0.1)
    made = sv.release(gaze(), model, epsilon=1, budget=window, value="x,y", time="t_ms")
    assert "in the order of 't_ms' (as named, milliseconds, by its name)" in made.account.read
    assert made.account.held < 80  # of windows of 0.1 ms, none would be


FAR = ["1600-01-01", "2024-01-01", "2262-04-12", "2608-07-23", "4000-02-29"]


def seconds_of(order):
    where = (lambda i: i + 1, "data")
    return seconds(order, order_key(order, "data"), False, *where)


def test_no_date_in_a_file_is_taken_for_another():
    expected = [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in FAR]
    text = pl.Series("time", FAR)
    assert seconds_of(text).tolist() == expected
    assert seconds_of(pl.Series("time", ["01:00:00.5"]).str.to_time()).tolist() == [3600.5]
    for kind in (pl.Date, pl.Datetime("us"), pl.Datetime("ms")):
        assert seconds_of(text.str.to_date().cast(kind)).tolist() == expected


@pytest.mark.parametrize("date", ["9999-12-31", "5200-01-01"])
def test_a_date_that_no_clock_shows_is_refused_by_its_row(date):
    for column in (pl.Series("time", ["2024-01-01", date]), pl.Series("time", ["2024-01-01", date]).str.to_date()):
        with pytest.raises(DataError, match="row 2"):
            seconds_of(column)
    for far in ("586500-06-01", "-290000-01-01", date, "NaT"):
        with pytest.raises(InputError, match="expected a time"):
            clock.seconds(np.array(["2024-01-01", far], "datetime64[D]"))
    with pytest.raises(InputError, match="expected a time"):
        clock.seconds(np.array(["2262-01-01T00", "586500-06-01T00"], "datetime64[h]"))


@pytest.fixture
def dense(tmp_path, monkeypatch):
    """Sixty events within six seconds: a budget of 3 in 100 seconds pays for three of them."""
    monkeypatch.chdir(tmp_path)
    frame = pl.DataFrame({"user": ["u"] * 60, "seq": range(0, 60_000, 1000), "value": MODEL.sample(60, seed=1)[0]})
    frame.write_csv("seq.csv")
    frame.with_columns(time=pl.Series([k // 10 for k in range(60)])).write_csv("both.csv")
    MODEL.save("m.model")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("how", "batch"), [((), 1), (("--state", "s.db"), 2)])
def test_a_budget_per_seconds_counts_by_the_time_column(dense, seqveil, how, batch):
    policy = promise(epsilon=1, batch=batch, budget=sv.Budget(per_window=3, seconds=100))
    made = seqveil("release", "both.csv", "-m", "m.model", *policy, *how, "--out", "out.csv")
    assert made.code == 0
    assert "in the order of 'time'" in made.err
    released = pl.read_csv("out.csv")
    assert ("time" in released.columns, "seq" in released.columns) == (True, False)
    assert (released["epsilon"] > 0).sum() < 12  # by seq, fifty-seven are paid for
    assert json.loads((dense / "out.csv.meta.json").read_text())["columns"]["order"] == "time"
    assert seqveil("audit", "out.csv", "-m", "m.model").code == 0
    assert seqveil("decode", "out.csv", "-m", "m.model", "--out", "decoded.csv").code == 0


@pytest.mark.slow
def test_sequence_numbers_are_no_times_unless_named(dense, seqveil):
    policy = promise(epsilon=1, budget=sv.Budget(per_window=3, seconds=100))
    command = ("release", "seq.csv", "-m", "m.model", *policy, "--out", "out.csv")
    for how in ((), ("--state", "s.db")):
        refused = seqveil(*command, *how)
        assert (refused.code, "--time-column" in refused.err, len(refused.err.strip().splitlines())) == (2, True, 1)
        assert not (dense / "out.csv").exists() or not (dense / "out.csv").read_text()
    setting = sv.Policy(epsilon=1.0, budget=limited(3.0, 100.0)).on(MODEL)
    with pytest.raises(DataError, match="time"):
        release_file(dense / "seq.csv", setting, dense / "library.csv")
    assert not (dense / "library.csv").exists()
    assert "in the order of 'seq'" in seqveil(*command, "--time-column", "seq").err
    missing = seqveil("release", "both.csv", "-m", "m.model", "-e", 1, "--time-column", "when", "--out", "x.csv")
    assert (missing.code, "--time-column" in missing.err, "--user-column" in missing.err) == (2, True, False)
