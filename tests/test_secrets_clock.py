"""Secrets that follow the clock: `during` and windows of a day, for streams that begin at any hour."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from bridges import Wire, came, core_of
from reference_secrets import Enumerated, kept_kernel, random_columns, small_models
from reference_streams import twin
from seqveil import MarkovModel, secrets
from seqveil.core.errors import InputError
from seqveil.core.secrets.account import SecretTracker, SecretTrackers
from seqveil.core.slots import Slots
from seqveil.core.words import Risk
from seqveil.engine.policy import saved_terms
from seqveil.engine.secrets import guarded_table
from seqveil.engine.streams import CodeStreams
from seqveil.engine.terms import Terms
from served import running

EIGHT = Slots(28_800, empty="hold")  # three slots a day
LENGTH = 6
CLOCKED = [
    secrets.during(1, (8, 16), epsilon=0.3),
    secrets.during(0, (16, 8), epsilon=0.3),
    secrets.ever(1, window="day", epsilon=0.3),
    secrets.always(0, window="day", epsilon=0.3),
    secrets.followed_by(0, 1, window="day", one_sided=True, epsilon=0.3),
    secrets.joint(secrets.during(1, (0, 8), epsilon=0.4), secrets.ever(0, window="day", epsilon=0.4)),
]


def in_slots(model: MarkovModel, slots: Slots = EIGHT) -> MarkovModel:
    return MarkovModel._of(model.states, model.alphabet.with_slots(slots))


def days(place: int, length: int = LENGTH, per_day: int = 3) -> dict[tuple[int, int], int]:
    """First event and number of events of each whole day, and of the rest of the first one; with its first place."""
    first = {(0, per_day - place): place}
    return first | {(at, per_day): 0 for at in range(per_day - place, length - per_day + 1, per_day)}


def by_hand(secret: secrets.Secret, codes: tuple[int, ...], place: int) -> int:
    """What a part of a day was, read from the clock: the first event comes at `place` · 8 o'clock."""
    if secret.kind == "joint":
        return sum(by_hand(part, codes, place) << k for k, part in enumerate(secret.parts))
    if secret.kind == "during":
        begin, end = secret.hours
        hours = [8 * (place + t) for t in range(len(codes))]
        night = [begin <= hour < end if begin < end else hour >= begin or hour < end for hour in hours]
        return int(any(x == secret.values[0] and inside for x, inside in zip(codes, night, strict=True)))
    if secret.kind == "always":
        return int(all(x == secret.values[0] for x in codes))
    if secret.kind == "followed_by":
        return int(any(x == 0 and 1 in codes[t + 1 :] for t, x in enumerate(codes)))
    return int(secret.values[0] in codes)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("secret", CLOCKED, ids=lambda secret: secret.name)
def test_the_account_from_any_hour_equals_enumeration(secret, place):
    """Any kernels, any chain: the odds of each day are those of all sequences, whatever hour the stream begins at."""
    compared = 0
    for seed, plain in enumerate(small_models(3)):
        model, columns = in_slots(plain), random_columns(seed, plain.n, LENGTH)
        every, count = Enumerated(model, LENGTH), secret.over(model.alphabet).automaton.values
        tracker = SecretTracker.start(model, secret, place=place)
        windows = days(place)
        values = {
            window: np.array([by_hand(secret, word[window[0] : sum(window)], begin) for word in every.words])
            for window, begin in windows.items()
        }
        for k in range(min(LENGTH, tracker.limit or LENGTH)):
            tracker = tracker.observe(columns[k])
            for account in tracker.accounts:
                window = account.first, account.events
                if sum(window) > LENGTH:
                    continue
                assert window in windows
                exact = every.log_odds(values[window], count, columns[: k + 1])
                assert account.log_odds == pytest.approx(exact, abs=1e-9)
                prior = every.prior(values[window], count)
                assert account.prior == pytest.approx(prior[1] if count == 2 else tuple(prior), abs=1e-12)
                compared += 1
    assert compared > 12


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("secret", CLOCKED, ids=lambda secret: secret.name)
def test_no_outcome_breaks_a_day_whatever_hour_the_stream_begins_at(secret, place):
    """All outcomes of a mechanism that keeps the live windows alone: the days before and after are kept as well."""
    model = in_slots(small_models(21)[0])
    every, excess = Enumerated(model, LENGTH), -np.inf
    count = secret.over(model.alphabet).automaton.values
    values = {
        window: np.array([by_hand(secret, word[window[0] : sum(window)], begin) for word in every.words])
        for window, begin in days(place).items()
    }
    live = [window for window, found in values.items() if (every.prior(found, count) > 0).sum() > 1]
    rng = np.random.default_rng(0)
    raw = [rng.dirichlet(np.full(2, 0.25), model.n) for _ in range(LENGTH)]
    todo: list[tuple[SecretTrackers, list[np.ndarray]]] = [(SecretTrackers(model, secret, place=place), [])]
    while todo:
        trackers, columns = todo.pop()
        for window in live if columns else ():
            odds = every.log_odds(values[window], count, columns)
            excess = max(excess, (odds if secret.sides == "up" else abs(odds)) - secret.epsilon)
        if len(columns) < LENGTH:
            kernel = kept_kernel(trackers, raw[len(columns)])
            todo += [(trackers.observe(kernel[:, y]), [*columns, kernel[:, y]]) for y in range(2)]
    assert -0.3 < excess <= 1e-12


DAILY, WEEKS = Slots(86_400, empty="hold"), 10  # a slot a day, so many of them
WEEKLY = [
    secrets.ever(1, window="week", epsilon=0.4),
    secrets.count(1, 3, window="week", epsilon=0.4),
    secrets.joint(secrets.ever(0, window="week", epsilon=0.4), secrets.followed_by(0, 1, window="week", epsilon=0.4)),
]


def read_week(secret: secrets.Secret, codes: tuple[int, ...]) -> int:
    if secret.kind == "count":
        return int(codes.count(1) >= 3)
    return by_hand(secret, codes, 0) if secret.kind != "joint" else read_week(
        secret.parts[0], codes) + 2 * read_week(secret.parts[1], codes)  # fmt: skip


def test_hours_of_a_week():
    """Two slots a day, from Saturday on: one secret about all mornings of the weekend, the next about the next week."""
    model, columns = in_slots(small_models(2)[1], Slots(43_200, empty="hold")), random_columns(4, 3)
    secret, every = secrets.during(1, (0, 12), window="week", epsilon=0.4), Enumerated(model, LENGTH)
    values = np.array([int(1 in (word[0], word[2])) for word in every.words])
    tracker = SecretTracker.start(model, secret, place=10)
    for k in range(LENGTH):
        tracker = tracker.observe(columns[k])
        weekend = [account for account in tracker.accounts if (account.first, account.events) == (0, 4)]
        exact = every.log_odds(values, 2, columns[: k + 1])
        assert all(account.log_odds == pytest.approx(exact, abs=1e-9) for account in weekend)
        assert weekend or k > 3


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 4, 6])
@pytest.mark.parametrize("secret", WEEKLY, ids=lambda secret: secret.name)
def test_no_outcome_breaks_a_week_from_the_integers_of_its_tables(secret, place):
    """Streams that begin on a Monday, a Friday, a Sunday: every week is kept, and accounted for, by the calendar."""
    model = in_slots(small_models(3)[0], DAILY)
    every, count = Enumerated(model, WEEKS), secret.over(model.alphabet).automaton.values
    values = {window: np.array([read_week(secret, word[window[0] : sum(window)]) for word in every.words])
              for window in days(place, WEEKS, 7)}  # fmt: skip
    live = {window: found for window, found in values.items() if (every.prior(found, count) > 0).sum() > 1}
    terms = sv.Policy(secrets=secret, side_information=0.0).on(model)
    rng, worst = np.random.default_rng(place), 0.0
    for _ in range(12):  # streams of releases, each label as likely as another
        trackers, columns = SecretTrackers(model, secret, kept=True, place=place), []
        for _ in range(WEEKS):
            table = guarded_table(terms, trackers).full()
            columns.append(table[:, rng.integers(table.shape[1])] / 2.0**62)
            trackers = trackers.observe(columns[-1])
            exact = {window: every.log_odds(found, count, columns) for window, found in live.items()}
            worst = max(worst, *map(abs, exact.values()))
            for account in trackers.rows[0][0].accounts:
                if (account.first, account.events) in exact:
                    assert account.log_odds == pytest.approx(exact[account.first, account.events], abs=1e-9)
    assert 0.1 < worst <= 0.4


# engine

HOUR, NIGHTS = Slots(3600), secrets.during("clinic", (22, 6), epsilon=0.5)
MAY = 1_714_953_600.0 + 14 * 3600  # 6 May 2024, 14:00 UTC
PLACES = ["home", "work", "clinic", "nothing"]
KEY = bytes(range(32))


def hourly(slots: Slots = HOUR) -> MarkovModel:
    rows = [[0.8, 0.15, 0.04, 0.01], [0.3, 0.65, 0.04, 0.01], [0.5, 0.3, 0.19, 0.01], [0.4, 0.4, 0.1, 0.1]]
    return MarkovModel([0.6, 0.3, 0.05, 0.05], rows, alphabet=sv.Alphabet(PLACES).with_slots(slots))


def setting_of(*declared: secrets.Secret, slots: Slots = HOUR) -> Terms:
    return sv.Policy(secrets=declared or (NIGHTS,), mechanism="guarded").on(hourly(slots))


def truths(count: int, seed: int = 1) -> np.ndarray:
    return hourly().sample(count, 1, seed)[0]


def test_a_session_stands_by_the_clock():
    """Before six and from ten on somebody at the clinic is hidden, at noon not: by the clock, not by counting rows."""
    disclosed = {}
    for begin in (0, 14, 21):
        session = sv.Session(hourly(), mechanism="guarded", secrets=[NIGHTS], seed=1)
        for k in range(40):
            at = MAY + 3600.0 * (begin - 14 + k)
            kernel = session.kernel(at)
            clinic = list(kernel.outputs).index("clinic") if "clinic" in kernel.outputs else None
            sure = 0.0 if clinic is None else float(kernel.probabilities[2, clinic])
            disclosed.setdefault((begin + k) % 24, []).append(sure)
            session.release("home", time=at)
        assert session.trackers.rows[0][0].worst.highest <= 0.5
    assert all(sure == pytest.approx(1.0) for hour in range(7, 21) for sure in disclosed[hour])
    assert all(sure < 0.5 for hour in (22, 23, 0, 1, 2, 3, 4) for sure in disclosed[hour])


@pytest.mark.parametrize("at", [None, 0.0, 3599.0, 7200.0, 90_000.0, -3600.0])
def test_an_event_that_does_not_lie_in_the_next_slot_is_refused(at):
    session = sv.Session(hourly(), mechanism="guarded", secrets=[NIGHTS], seed=1)
    streams = CodeStreams(setting_of())
    session.release("home", time=MAY)
    streams.release(["ann"], [0], times=[MAY])
    with pytest.raises(InputError, match="need the time of each" if at is None else "one event in each slot"):
        session.release("home", time=None if at is None else MAY + at)
    stamps = None if at is None else [MAY - 90_000.0, MAY - 86_400.0, MAY + at]
    with pytest.raises(InputError, match="need the time of each" if at is None else "event 2: .*one event in each"):
        streams.release(["bob", "bob", "ann"], [0, 0, 0], times=stamps)
    assert streams.account("ann").events == session.trackers.rows[0][0].step == 1
    assert streams.account("bob") is None  # nothing of a call that is refused is drawn
    session.release("home", time=MAY + 7199.0)  # any moment of its slot will do
    assert session.trackers.rows[0][0].step == 2


def test_the_first_event_of_a_stream_is_not_left_out():
    streams = CodeStreams(setting_of(), gaps="skip")
    with pytest.raises(InputError, match="need the first event of each stream"):
        streams.release(["ann"], [0], [2], [MAY])
    streams.release(["ann", "ann"], [0, 0], [0, 3], [MAY, MAY + 3 * 3600])
    assert streams.account("ann").events == 4


@pytest.mark.parametrize("room", [1, 100])
def test_state_files_remember_when_streams_began(tmp_path, room):
    """Cut anywhere and opened again, streams go on as if nothing had been cut, each from its own hour."""
    codes = {name: truths(60, seed) for seed, name in enumerate(("ann", "bob", "eve"))}
    begins = {"ann": MAY, "bob": MAY - 5 * 3600, "eve": MAY + 9 * 3600}
    setting = setting_of(NIGHTS, secrets.ever("work", epsilon=0.4, window=7))
    seen, now = CodeStreams(setting), list(codes)
    for k in range(60):
        stamps = [begins[name] + 3600.0 * k for name in now]
        with CodeStreams.open(tmp_path / "s.db", setting, key=KEY) as streams:
            streams._live.room = room
            made = streams.release(now, [codes[name][k] for name in now], times=stamps)
        seen.observe(now, made.codes, stamps)
    with CodeStreams.open(tmp_path / "s.db", setting, key=KEY) as streams:
        assert streams.secrets() == seen.secrets()
        assert 0 < streams.secrets()[0].log_odds_worst <= 0.5
        with pytest.raises(InputError, match="one event in each slot"):
            streams.release(["ann"], [0], times=[MAY + 84 * 3600.0])  # a whole day later


def test_days_and_weeks_go_side_by_side_from_any_slot():
    """A stream that begins on Wednesday has a first week of five days, and a first day of what is left of it."""
    week, day = secrets.ever("clinic", window="week", epsilon=0.5), secrets.ever("clinic", window="day", epsilon=0.5)
    streams, wednesday = CodeStreams(setting_of(week, day)), MAY + 2 * 86_400.0
    streams.release(["ann"] * 60, truths(60), times=wednesday + 3600.0 * np.arange(60))
    found = {total.name: total for total in streams.secrets()}
    assert len(found) == 1  # both are about the clinic
    trackers = setting_of(week, day).trackers_from(int(wednesday // 3600)).rows[0]
    assert [tracker.latest.events for tracker in trackers] == [24 * 5 - 14, 24 - 14]
    assert all(total.log_odds_worst <= 0.5 for total in streams.secrets())


def test_one_clock_for_all_with_its_offset_from_utc():
    """At UTC+2 it is night from 20 to 4 by UTC; the offset is part of the model and of what a receiver compares."""
    east = Slots(3600, utc_offset=2)
    closed = NIGHTS.over(hourly(east).alphabet)
    assert closed.length == 24
    assert east.place(east.numbers(np.array([MAY]))).tolist() == [16]
    setting = setting_of(slots=east)
    assert saved_terms(setting.to_dict(), hourly(east)).to_dict() == setting.to_dict()
    assert hourly(east).fingerprint == hourly().fingerprint
    with pytest.raises(sv.SeqveilError, match="not the one the release was made with"):
        saved_terms(setting.to_dict(), hourly())


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: setting_of(slots=None), "need slots of time"),
        (lambda: setting_of(secrets.ever("home", epsilon=1, window="day"), slots=None), "need slots of time"),
        (lambda: setting_of(secrets.ever("home", epsilon=1, window="week"), slots=None), "need slots of time"),
        (lambda: setting_of(slots=Slots(7000)), "do not begin at midnight"),
        (lambda: setting_of(slots=Slots(3600, utc_offset=5.5)), "do not begin at midnight"),
        (lambda: setting_of(slots=Slots(14_400)), "begin and end where slots"),
        (lambda: Slots(60, utc_offset=20), "utc_offset as hours"),
        (lambda: secrets.during("a", (22, 6), window=20, epsilon=1), "about each day"),
    ],
)
def test_what_has_no_clock_is_refused_in_a_line(make, line):
    with pytest.raises(InputError, match=line) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("secret", "colour"), [
    (NIGHTS, "unchecked"),
    (secrets.joint(NIGHTS, secrets.ever("work", window="day", epsilon=0.5)), "unchecked"),
    (secrets.ever("clinic", window="day", epsilon=0.5), "green"),
])  # fmt: skip
def test_hours_are_never_green(secret, colour):
    """A chain has no hours: however small the bound, and although the releases fit the model, an attack has to say."""
    checked = Risk.promised(setting_of(secret), doubts=())
    assert checked.grade.colour == colour
    assert ("night from day" in checked.grade.why) == (colour != "green")
    assert Risk.promised(setting_of(secret), doubts=(), undone="a seed").grade.colour == "red"


# interfaces


def clinic(people: int = 60, days: int = 3, seed: int = 1) -> pl.DataFrame:
    """Rows by the hour from 14:00 on; half of the nights somebody is at the clinic at two."""
    rng, rows = np.random.default_rng(seed), []
    for person in range(people):
        nights = rng.random(days) < 0.5
        for k in range(24 * days):
            now = datetime(2024, 5, 6, 14) + timedelta(hours=k)
            value = "work" if 9 <= now.hour < 17 and rng.random() < 0.8 else "home"
            value = "clinic" if now.hour == 2 and nights[(k - 12) // 24] else value
            rows.append((f"p{person:02}", now.isoformat(timespec="minutes"), value))
    return pl.DataFrame(rows, schema=["user", "time", "value"], orient="row")


def disclosed_at_two(raw: pl.DataFrame, released: pl.DataFrame) -> tuple[int, int]:
    """How many rows at the clinic at 02h there are, and how many were released as they were."""
    made = released.select("user", pl.col("time").cast(pl.String).str.slice(0, 16), out="value")
    nights = raw.join(made, on=["user", "time"]).filter(pl.col("time").str.ends_with("T02:00"), value="clinic")
    return nights.height, int((nights["out"] == "clinic").sum())


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["", "+02:00"])
def test_a_file_that_begins_at_14h_hides_the_clinic_at_two(tmp_path, seqveil, zone):
    """The hours are the clock's: of a file that begins in the afternoon rows at 02h are not released as they are."""
    raw, data = clinic(), tmp_path / "raw.csv"
    raw.with_columns(pl.col("time") + ":00" + zone).write_csv(data)
    model, out, offset = tmp_path / "m", tmp_path / "out.csv", ("--utc-offset", 2) if zone else ()
    assert seqveil("fit", data, "-o", model, "--every-seconds", 3600, "--smoothing", 1, *offset).code == 0
    secret = ("--secret", "during:clinic:22-6", "--secret-epsilon", 0.5)
    made = seqveil("release", data, "-m", model, *secret, "-o", out)
    assert made.code == 0, made.err
    released = pl.read_csv(out, infer_schema=False)
    if zone:  # slots are written in UTC
        clock = pl.col("time").str.slice(0, 19).str.to_datetime() + timedelta(hours=2)
        released = released.with_columns(clock.dt.strftime("%Y-%m-%dT%H:%M"))
    rows, as_they_were = disclosed_at_two(raw, released)
    assert rows == 80
    assert as_they_were <= 0.1 * rows
    assert (released["value"] == raw.sort("time", "user")["value"]).mean() > 0.9  # the day is disclosed nearly as it is
    audited = seqveil("audit", out, "-m", model)
    assert "every declared secret within its ε" in audited.out  # under a chain, which these nights do not follow
    decoded = seqveil("decode", out, "-m", model, "--truth", data, "-o", tmp_path / "d.csv")
    assert "of the estimates are right" in decoded.err
    attacked = json.loads(seqveil("attack", out, "--truth", data, "-m", model, "--json", "--seed", 1).out)
    assert attacked[0]["people"] == 60 if isinstance(attacked, list) else attacked["people"] == 60


def test_frames_without_slots_have_no_nights():
    raw = clinic(4)
    model = sv.fit(raw, smoothing=1)
    with pytest.raises(InputError, match="need slots of time"):
        sv.release(raw, model, secrets=sv.secrets.during("clinic", (22, 6), epsilon=0.5))
    plain = sv.release(raw, sv.fit(raw, smoothing=1, every_seconds=3600), epsilon=1.0, seed=1)
    measured = sv.audit(
        plain, sv.fit(raw, smoothing=1, every_seconds=3600), secrets=sv.secrets.during("clinic", (22, 6), epsilon=None)
    )
    assert measured.report.secrets[0].log_odds_worst > 0.5  # nothing was promised about it


@pytest.mark.slow
def test_a_service_asks_for_the_times_of_events(tmp_path):
    with running(tmp_path, setting_of()) as service:
        assert "expected a time" in service.release({"user": "ann", "seq": 0, "value": "home"}).json["detail"]
        events = [{"user": "ann", "seq": k, "value": "home", "time": MAY + 3600 * k} for k in range(3)]
        assert service.release(*events).status == 200
        late = {"user": "ann", "seq": 3, "value": "home", "time": MAY + 4 * 3600}
        assert "one event in each slot" in service.release(late).json["detail"]
        assert service.release(late | {"time": MAY + 3 * 3600}).status == 200


def test_a_bridge_in_slots_keeps_the_hours_of_its_clock():
    store, hours = CodeStreams(setting_of()), iter(range(1, 40))
    now = MAY

    def later():
        nonlocal now
        now = MAY + 3600.0 * next(hours)
        return []

    core_of(store, "json:v", Wire([came("ann", {"v": "home"})], *[later] * 39), clock=lambda: now).run()
    [total] = store.secrets()
    assert store.account("ann").events == 39
    assert total.log_odds_worst <= 0.5
    assert store._live.state.first.tolist()[0] == MAY // 3600


def test_spark_keeps_when_streams_began():
    pytest.importorskip("pyspark")
    import sparks

    setting, salt, randomness = setting_of(), bytes(16), sv.randomness.KeyedRandomness(KEY)
    kept, whole, codes = sparks.MapState(), twin(setting, salt, KEY), truths(30)
    for k in range(30):
        made = sparks.bucket(setting, kept, randomness, salt).release(["ann"], codes[[k]], [k], [MAY + 3600.0 * k])
        assert made.codes.tolist() == whole.release(["ann"], codes[[k]], [k], [MAY + 3600.0 * k]).codes.tolist()
