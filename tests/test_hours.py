"""Models by the hour of the day: bands, fits and files of them, and releases against enumeration of all sequences."""

from __future__ import annotations

import itertools
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from seqveil.core import filtering
from seqveil.core.coins import SeededCoins
from seqveil.core.errors import BudgetSpent, DataError, InputError, ModelError
from seqveil.core.model import HourCounts
from seqveil.core.times import Hours, seconds
from seqveil.engine.state import State
from seqveil.engine.stream import observe, step
from seqveil.engine.streams import Streams

HOUR = 3600.0
NIGHT = "night=22-6,day=6-22"
TIMES = [HOUR * h for h in (21.5, 23, 29.9, 30, 33, 46)]  # day, night, night, day, day, night
BANDS = [1, 0, 0, 1, 1, 0]


class Twin:
    """The chain by the hour as a list of all sequences with their probabilities: slow, obvious, and on its own."""

    def __init__(self, priors: np.ndarray, tables: list[np.ndarray], bands: list[int]) -> None:
        n = len(tables[0])
        self.n, self.sequences = n, list(itertools.product(range(n), repeat=len(bands)))
        self.chances = np.zeros(len(self.sequences))
        for k, sequence in enumerate(self.sequences):
            chance = priors[bands[0]][sequence[0]]
            for t in range(1, len(bands)):
                chance *= tables[bands[t]][sequence[t - 1]][sequence[t]]
            self.chances[k] = chance
        self.told = np.ones(len(self.sequences))

    def tell(self, t: int, column: np.ndarray) -> None:
        self.told *= np.array([column[sequence[t]] for sequence in self.sequences])

    def belief(self, t: int) -> np.ndarray:
        law = np.zeros(self.n)
        for sequence, weight in zip(self.sequences, self.chances * self.told, strict=True):
            law[sequence[t]] += weight
        return law / law.sum()

    def leakage(self) -> float:
        possible = self.chances > 0
        mean = (self.chances * self.told).sum()
        with np.errstate(divide="ignore"):
            lifts = np.log(self.told[possible] / mean)
        return float(np.abs(lifts).max())


def laws(n: int, seed: int, sparse: bool = False) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    tables = [rng.dirichlet(np.ones(n), n) for _ in range(2)]
    if sparse:  # some steps are possible by day alone
        tables[0][0, 1:] = 0.0
        tables[1][1, :1] = 0.0
        tables = [table / table.sum(1, keepdims=True) for table in tables]
    return rng.dirichlet(np.ones(n), 2), tables


def column_of(kernel: Any, released: Any) -> np.ndarray:
    return np.asarray(kernel.probabilities)[:, list(kernel.outputs).index(released)]


@pytest.mark.parametrize("mechanism", ["optimal", "randomized_response"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n", [2, 3])
def test_belief_and_account_are_those_of_all_sequences(n: int, sparse: bool, mechanism: str) -> None:
    priors, tables = laws(n, 7 + n, sparse)
    model = sv.MarkovModel.by_hour(NIGHT, priors, tables)
    assert model.full_support != sparse
    rng = np.random.default_rng(n)
    for seed in range(4):
        length = int(rng.integers(1, 7))
        session, twin = sv.Session(model, mechanism, 0.8, seed=seed), Twin(priors, tables, BANDS[:length])
        truth = int(rng.choice(len(twin.sequences), p=twin.chances / twin.chances.sum()))
        for t in range(length):
            kernel = session.kernel(time=TIMES[t])
            np.testing.assert_allclose(session.belief_at(TIMES[t]), twin.belief(t), rtol=1e-12, atol=1e-14)
            released = session.release(twin.sequences[truth][t], time=TIMES[t])
            twin.tell(t, column_of(kernel, released))
            assert session.leakage == pytest.approx(twin.leakage(), abs=1e-9)
            assert session.leakage >= twin.leakage() - 1e-12


def test_decoding_is_that_of_all_sequences() -> None:
    priors, tables = laws(3, 3, sparse=True)
    model, twin = sv.MarkovModel.by_hour(NIGHT, priors, tables), Twin(priors, tables, BANDS)
    session, released = sv.Session(model, epsilon=0.8, seed=1), []
    filtered = []
    for t, symbol in enumerate(twin.sequences[int(twin.chances.argmax())]):
        kernel = session.kernel(time=TIMES[t])
        released.append(session.release(symbol, time=TIMES[t]))
        twin.tell(t, column_of(kernel, released[-1]))
        filtered.append(twin.belief(t))
    smoothed = [twin.belief(t) for t in range(6)]
    np.testing.assert_allclose(sv.decode_stream(model, released, epsilon=0.8, times=TIMES), smoothed, atol=1e-12)
    online = sv.decode_stream(model, released, epsilon=0.8, times=TIMES, smooth=False)
    np.testing.assert_allclose(online, filtered, atol=1e-12)
    with pytest.raises(InputError, match="needs the time of each event"):
        sv.decode_stream(model, released, epsilon=0.8)


def test_likelihoods_are_given_the_times() -> None:
    priors, tables = laws(3, 5, sparse=True)
    model, twin = sv.MarkovModel.by_hour(NIGHT, priors, tables), Twin(priors, tables, BANDS)
    some = np.random.default_rng(1).integers(0, len(twin.sequences), 20)
    with np.errstate(divide="ignore"):
        wanted = np.log(twin.chances[some])
    streams = [twin.sequences[k] for k in some]
    np.testing.assert_allclose([model.log_likelihood(s, TIMES) for s in streams], wanted, rtol=1e-10)
    users, bands = np.repeat(np.arange(20), 6), np.tile(BANDS, 20)
    many = filtering.log_likelihoods(model, users, np.ravel(streams), bands)
    np.testing.assert_allclose(many, wanted, rtol=1e-10)
    for times in (None, TIMES[:5]):
        with pytest.raises(InputError, match="every event needs its time"):
            model.log_likelihood(streams[0], times)
    with pytest.raises(ModelError, match="without times cannot take a model by the hour"):
        filtering.log_likelihoods(model, users, np.ravel(streams))


def test_samples_follow_the_hours() -> None:
    """Shares of all sequences among 40,000 samples; a deviation of six standard errors comes by chance once in 10⁸."""
    priors, tables = laws(2, 5, sparse=True)
    model, twin = sv.MarkovModel.by_hour(NIGHT, priors, tables), Twin(priors, tables, BANDS)
    codes = model.sample(6, 40_000, seed=1, times=TIMES)
    shares = np.bincount(codes @ (2 ** np.arange(5, -1, -1)), minlength=64) / 40_000
    assert (shares[twin.chances == 0] == 0).all()
    assert (np.abs(shares - twin.chances) <= 6 * np.sqrt(twin.chances / 40_000) + 1e-12).all()
    even = model.scheduled(24, starts=7.0)
    assert even.sample(30, 5, seed=1, times=[HOUR * (7 + k) for k in range(30)]).shape == (5, 30)
    for act, words in (
        (lambda: model.sample(6, 2), "every event needs its time"),
        (lambda: even.sample(1, times=[0.0]), "no stream of this model has an event then"),
    ):
        with pytest.raises(InputError, match=words):
            act()


@pytest.mark.slow
def test_many_streams_are_as_each_alone(tmp_path: Path) -> None:
    """Whatever hours the others have, in memory, on the disk, and after users were put aside and read again."""
    priors, tables = laws(3, 9, sparse=True)
    setting = sv.Setting.of(sv.MarkovModel.by_hour(NIGHT, priors, tables), epsilon=0.7)
    rng = np.random.default_rng(2)
    users = [f"u{k}" for k in rng.integers(0, 20, 300)]
    times, codes = rng.uniform(0, 5 * 86_400, 300), rng.integers(0, 3, 300)
    alone = Streams(setting)
    made = [Streams(setting, coins=SeededCoins(4)).release(users, codes, times=times)]
    for memory in (1 << 28, 1):
        with Streams.open(tmp_path / f"{memory}.db", setting, coins=SeededCoins(4), memory=memory) as kept:
            if memory > 1:
                made.append(kept.release(users, codes, times=times))
                before = kept.standings()
            else:
                for at in np.array_split(np.arange(300), 30):
                    told = kept.release([users[k] for k in at], codes[at], times=times[at])
                    alone.observe([users[k] for k in at], told.codes, times=times[at])
                found, again = kept.standings(), alone.standings()
                np.testing.assert_allclose(found.most, again.most, atol=1e-8)  # the file rounds up
    assert made[0].codes.tolist() == made[1].codes.tolist()
    with Streams.open(tmp_path / f"{1 << 28}.db", setting, coins=SeededCoins(4)) as kept:
        after = kept.standings()
        np.testing.assert_array_equal(after.most, before.most)
        again = kept.release(users[:1], [2], seqs=[0], times=[5.0])  # another symbol at another time
        assert again.replayed.tolist() == [True]
        assert again.codes[0] == made[0].codes[0]


def test_an_event_without_a_time_releases_nothing() -> None:
    model = sv.MarkovModel.by_hour(NIGHT, *laws(2, 1))
    session, streams = sv.Session(model, epsilon=1.0, seed=1), Streams(sv.Setting.of(model, epsilon=1.0))
    for act in (
        lambda: session.release(0),
        lambda: session.kernel(),
        lambda: streams.release(["ann"], [0]),
        lambda: streams.release(["ann", "bob"], [0, 1], times=[1.0]),
        lambda: streams.release(["ann", "bob"], [0, 1], times=[1.0, math.nan]),
        lambda: streams.release(["ann", "bob"], [0, 1], times=[1.0, None]),
        lambda: streams.observe(["ann"], [0]),
    ):
        with pytest.raises(InputError, match="time") as caught:
            act()
        assert "\n" not in str(caught.value)
    assert session.standing().events == 0
    assert not len(streams.standings().users)


def test_a_budget_that_is_spent_leaves_the_state_as_it_was() -> None:
    model = sv.MarkovModel.by_hour(NIGHT, *laws(3, 4, sparse=True))
    budget = sv.Budget(total=0.5, when_spent="error")
    session = sv.Session(model, epsilon=0.5, budget=budget, seed=2)
    session.release(0, time=TIMES[0])
    belief = session.belief
    with pytest.raises(BudgetSpent):
        session.release(0, time=TIMES[1])
    np.testing.assert_array_equal(session.belief, belief)
    assert session.belief_at(TIMES[3]).sum() == pytest.approx(1.0)


# bands of hours


def test_bands_over_midnight_and_at_their_edges() -> None:
    hours = Hours.parse(NIGHT)
    stamps = seconds(
        ["2024-05-01T21:59:59.999", "2024-05-01T22:00", "2024-05-02T00:00", "2024-05-02T05:59", "1969-12-31T23:00"]
    )
    assert hours.of(stamps).tolist() == [1, 0, 0, 0, 0]
    assert Hours.parse("24").of(np.arange(48) * HOUR - 86_400.0).tolist() == [*range(24), *range(24)]
    lunch = Hours.parse("work=8-12,free=12-13,work=13-17,free=17-8")
    assert lunch.count == 2
    assert lunch.of(np.array([7, 8, 12, 13, 17, 24]) * HOUR).tolist() == [1, 0, 1, 0, 1, 1]
    for text in ("24", "1", "96", NIGHT, "a=7.25-19,b=19-7.25", str(lunch)):
        assert Hours.parse(str(Hours.parse(text))) == Hours.parse(text)
        assert Hours.from_json(json.loads(json.dumps(Hours.parse(text).to_json()))) == Hours.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "1441",
        "x",
        "2.5",
        "night=22-6",
        "a=0-12,b=11-24",
        "a=0-25,b=1-0",
        "a=-1-3",
        "=0-24",
        "a=0",
        "a=x-y",
        "a=1e1-2",
    ],
)
def test_bands_that_are_none_are_refused_in_a_line(text: str) -> None:
    with pytest.raises(InputError, match="hours") as caught:
        Hours.parse(text)
    assert "\n" not in str(caught.value)


def test_clocks_that_change() -> None:
    """Text without a zone is the clock on the wall, whatever it did that night; a time with a zone counts in UTC."""
    hours, zurich = Hours.parse("24"), ZoneInfo("Europe/Zurich")
    written = ["2024-03-31T01:30", "2024-03-31T03:30", "2024-10-27T02:30", "2024-10-27T02:30"]
    assert hours.of(seconds(written)).tolist() == [1, 3, 2, 2]
    begin = datetime(2024, 3, 31, 0, 30, tzinfo=UTC)
    zoned = [(begin + timedelta(hours=k)).astimezone(zurich) for k in range(3)]
    assert [each.hour for each in zoned] == [1, 3, 4]
    assert hours.of(seconds(zoned)).tolist() == [0, 1, 2]
    assert hours.of(seconds([each.isoformat() for each in zoned])).tolist() == [0, 1, 2]
    frame = pl.DataFrame({"user": ["a"] * 3, "value": [0, 1, 1], "time": zoned})
    model = sv.MarkovModel.fit(frame, n=2, hours=24)
    assert np.flatnonzero(model.initial.reshape(24, 2).sum(1) > 0.1).tolist() == [0]


# fits


def people(count: int = 40, length: int = 30) -> tuple[list[list[int]], list[list[float]]]:
    priors, tables = laws(3, 11)
    rng = np.random.default_rng(8)
    streams, times = [], []
    for _ in range(count):
        stamps = np.sort(rng.uniform(0, 4 * 86_400, length))
        bands = Hours.parse(NIGHT).of(stamps)
        codes = [int(rng.choice(3, p=priors[bands[0]]))]
        for band in bands[1:]:
            codes.append(int(rng.choice(3, p=tables[band][codes[-1]])))
        streams.append(codes)
        times.append(stamps.tolist())
    return streams, times


def test_a_fit_counts_steps_by_the_band_they_lead_to() -> None:
    streams, times = people()
    model = sv.MarkovModel.fit(streams, n=3, hours=NIGHT, times=times, smoothing=1.0)
    hours, pull = Hours.parse(NIGHT), 20.0
    led, whole = np.zeros((2, 3, 3)), np.zeros((3, 3))
    for codes, stamps in zip(streams, times, strict=True):
        for t in range(1, len(codes)):
            led[hours.of(np.array([stamps[t]]))[0], codes[t - 1], codes[t]] += 1
            whole[codes[t - 1], codes[t]] += 1
    base = np.bincount(np.ravel(streams), minlength=3) + 1 / 3
    common = (whole + base / base.sum()) / (whole.sum(1, keepdims=True) + 1)
    wanted = (led + pull * common) / (led.sum(2, keepdims=True) + pull)
    for band, table in enumerate(wanted):
        for before in (0, 1):
            block = model.chain.toarray()[3 * before : 3 * before + 3, 3 * band : 3 * band + 3]
            np.testing.assert_allclose(block / block.sum(1, keepdims=True), table, rtol=1e-12)
    rows = [
        (f"u{k}", x, t)
        for k, (s, ts) in enumerate(zip(streams, times, strict=True))
        for x, t in zip(s, ts, strict=True)
    ]
    frame = pl.DataFrame(rows, schema=["user", "value", "time"], orient="row").sample(
        fraction=1.0, shuffle=True, seed=1
    )
    assert sv.MarkovModel.fit(frame, n=3, hours=NIGHT, smoothing=1.0).fingerprint == model.fingerprint
    counts = HourCounts(3, hours)
    for t in range(30):
        counts.add(np.arange(40), np.array(streams)[:, t], np.array(times)[:, t])
    assert counts.model(smoothing=1.0).fingerprint == model.fingerprint


@pytest.mark.parametrize("prior", ["data", "uniform", [0.2, 0.3, 0.5]])
def test_the_first_symbol_of_a_fit(prior: Any) -> None:
    streams, times = people(5, 4)
    model = sv.MarkovModel.fit(streams, n=3, hours=4, times=times, prior=prior)
    laws = model.initial.reshape(4, 3)
    if prior != "data":
        wanted = np.full(3, 1 / 3) if prior == "uniform" else prior
        np.testing.assert_allclose(laws / laws.sum(1, keepdims=True), [wanted] * 4, rtol=1e-12)


def test_fits_that_cannot_be() -> None:
    frame = pl.DataFrame({"user": ["a", "a"], "value": [0, 1], "seq": [0, 1]})
    for act, words in (
        (lambda: sv.MarkovModel.fit([[0, 1]], hours=4), "pass times="),
        (lambda: sv.MarkovModel.fit([[0, 1]], hours=4, times=[[1.0]]), "one time for each event"),
        (lambda: sv.MarkovModel.fit([[0, 1]], times=[[1.0, 2.0]]), "pass hours= too"),
        (lambda: sv.MarkovModel.fit([[0, 1]], hours=4, times=[[1.0, 2.0]], types=2), "order 1 and without types"),
        (lambda: sv.MarkovModel.fit([[0, 1]], hours=4, times=[[1.0, 2.0]], order=2), "order 1 and without types"),
        (lambda: sv.MarkovModel.fit(frame, hours=4), "name the column with time="),
        (lambda: sv.MarkovModel.fit(frame.drop("seq"), hours=4), "name the column with time="),
        (lambda: HourCounts(1000, Hours.parse(24)), "take fewer bands or symbols"),
        (lambda: HourCounts(2, Hours.parse(2)).model(), "nothing to fit"),
        (lambda: sv.MarkovModel.by_hour(2, [1.0, 0.0], [np.eye(2)]), "each of 2 bands"),
        (lambda: sv.MarkovModel.by_hour(2, [1.0, 0.0], [np.eye(2), np.eye(3)]), "transitions|prior"),
    ):
        with pytest.raises((DataError, InputError), match=words) as caught:
            act()
        assert "\n" not in str(caught.value)


def test_models_by_the_hour_are_written_and_read(tmp_path: Path) -> None:
    streams, times = people(10, 5)
    by_hour = sv.MarkovModel.fit(streams, n=3, hours=NIGHT, times=times)
    plain, types = (
        sv.MarkovModel.fit(streams, n=3),
        sv.MarkovModel.mixture([sv.MarkovModel.fit(streams, n=3)] * 2, [0.5, 0.5]),
    )
    for model, version in ((plain, 1), (types, 2), (by_hour, 3), (by_hour.scheduled(24, starts=7.0), 3)):
        model.save(tmp_path / "m")
        again = sv.MarkovModel.load(tmp_path / "m")
        assert (again.fingerprint, again.hours, again.starts) == (model.fingerprint, model.hours, model.starts)
        with np.load(tmp_path / "m") as file:
            assert json.loads(file["header"].tobytes())["version"] == version
    other = sv.MarkovModel._of(by_hour.states, by_hour.alphabet, Hours.parse("night=21-6,day=6-21"))
    assert other.fingerprint != by_hour.fingerprint
    assert "bands of hours" in by_hour._repr_html_()
    with pytest.raises(ModelError, match="another number"):
        sv.MarkovModel._of(by_hour.states, by_hour.alphabet)


@pytest.mark.parametrize("bands", [2, 24])
def test_many_at_once_are_as_one_by_one_to_the_last_bit(bands: int) -> None:
    rng = np.random.default_rng(bands)
    model = sv.MarkovModel.by_hour(
        bands, rng.dirichlet(np.ones(5)), [rng.dirichlet(np.ones(5), 5) for _ in range(bands)]
    )
    setting, users = sv.Setting.of(model, epsilon=1.0), 70
    state, alone = State.start(setting, users), [State.start(setting) for _ in range(users)]
    for _ in range(3):
        times = rng.uniform(0, 86_400, users)
        made, state = step(setting, state, rng.integers(0, 5, users), SeededCoins(1), times)
        for k in range(users):
            seen, alone[k] = observe(setting, alone[k], made.codes[k : k + 1], times[k : k + 1])
            assert seen.costs[0] == made.costs[k]
    np.testing.assert_array_equal(state.states, np.concatenate([each.states for each in alone]))
    np.testing.assert_array_equal(state.account.worst, np.concatenate([each.account.worst for each in alone]))
