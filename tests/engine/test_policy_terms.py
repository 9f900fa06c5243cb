"""Terms with declared secrets: what is kept, what is refused in a line, and what is said where nothing is kept."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import seqveil as sv
from reference.streams import Rows
from seqveil import MarkovModel, secrets
from seqveil.core import mechanisms
from seqveil.core.alphabet import WITHHELD
from seqveil.core.errors import DataError, InputError
from seqveil.core.secrets.solving import SMALL_WITH_EPSILON
from seqveil.core.times import Slots
from seqveil.core.words import Risk
from seqveil.engine import stream
from seqveil.engine.policy import Terms, saved_terms
from seqveil.engine.secrets import totals
from seqveil.engine.stream import State
from seqveil.engine.streams import CodeStreams
from seqveil.evaluate.baselines.declared import suppression

ever = secrets.ever
PAIR = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
CLINIC = MarkovModel([0.8, 0.2], [[0.9, 0.1], [0.6, 0.4]], alphabet=["home", "clinic"])
MODEL = MarkovModel(
    [0.6, 0.3, 0.1], [[0.8, 0.15, 0.05], [0.3, 0.6, 0.1], [0.3, 0.2, 0.5]], alphabet=["news", "sports", "health"]
)
SECRET = ever("health", epsilon=0.5, window=20)
PROMISE = re.compile(r"at most|factor|\bkept\b|nobody|stays between")


def test_without_an_epsilon_the_ledger_says_that_nothing_else_is_promised():
    session = sv.Session(CLINIC, secrets=ever("clinic", epsilon=0.5, window=4))
    session.release("home")
    words = "nothing is promised about the whole sequence"
    assert words in session.account.whole_sequence
    assert words in repr(session)
    assert math.isinf(session.account.ldp)
    (tracker,) = session.account.secrets
    odds = tracker.posterior / (1 - tracker.posterior) / (tracker.prior / (1 - tracker.prior))
    assert math.log(odds) == pytest.approx(tracker.log_odds, abs=1e-9)
    both = sv.Session(CLINIC, epsilon=1.0, secrets=[ever("clinic", epsilon=0.5, window=4)])
    both.release("home")
    assert both.account.whole_sequence == ""
    assert (both.account.epsilon_spent, both.account.ldp) == (1.0, 2.0)
    assert both.leakage <= 1.0


def test_the_truth_or_nothing():
    session = sv.Session(MODEL, secrets=ever("health", epsilon=0.5, window="first 6"), withhold=True, seed=2)
    assert None in session.kernel().outputs
    said = 0
    for symbol in ["news", "sports", "health", "news", "sports", "news"]:
        out = session.release(symbol)
        assert out in (symbol, None)
        said += out is not None
    assert session.account.releases == said
    assert abs(session.account.secrets[0].log_odds) <= 0.5
    plan = sv.Policy(secrets=ever("clinic", epsilon=0.5, window="first 4")).on(CLINIC)
    with pytest.raises(DataError, match="cannot have come"):
        stream.observe(plan, State.start(plan), np.array([WITHHELD]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"secrets": [ever([0, 1], epsilon=1.0, window=3)]}, "certain or impossible"),
        ({"secrets": [ever(7, epsilon=1.0, window=3)]}, "alphabet"),
        ({"secrets": [secrets.count(1, 100, epsilon=1.0, window=200)]}, "states"),
        ({"secrets": [ever(1, epsilon=1.0)], "observers": [CLINIC]}, "share one alphabet"),
        ({"secrets": [ever(1, epsilon=1.0)], "epsilon": 1e-8}, r"at least 1e-06, got 1e-08.*leave it out where"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(options, words):
    with pytest.raises(InputError, match=words) as caught:
        sv.Session(PAIR, **{"mechanism": "guarded", **options})
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_symbols_the_model_thinks_impossible_and_chains_with_holes():
    model = MarkovModel([1.0, 0.0, 0.0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    for options in ({}, {"withhold": True}, {"epsilon": 1.0}):
        session = sv.Session(model, secrets=[ever(2, epsilon=0.3, window=4)], seed=1, **options)
        for symbol in [2, 0, 2, 1, 0, 2] * 3:
            assert session.release(symbol) in (None, 0, 1, 2)
            assert session.account.secrets[0].worst <= 0.3 + 1e-9
            assert session.belief.sum() == pytest.approx(1)


def test_events_that_no_window_is_about_are_released_within_epsilon() -> None:
    n = SMALL_WITH_EPSILON + 4
    model = MarkovModel(np.full(n, 1 / n), np.full((n, n), 1 / n))
    session = sv.Session(model, epsilon=1.0, secrets=[ever(3, epsilon=2.0, window="first 1")], seed=1)
    for symbol in (3, 0, 5):  # from the second event on nothing is left to keep but ε
        kernel, belief = session.kernel(), session.belief
        assert kernel.leakage(belief, whole_alphabet=True) <= 1.0
        assert session.release(symbol) in kernel.outputs
    assert kernel.error(belief, sv.distortion.hamming()) == pytest.approx(1 - np.e / n, abs=1e-6)  # the optimum for ε


@pytest.mark.parametrize("observed", [False, True])
def test_the_account_in_words_counts_every_window_and_every_observer(observed):
    """What a suspicion may become by now is that of the window, and the observer, that learned most."""
    model = MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]], alphabet=["n", "h"])
    others = [MarkovModel([0.5, 0.5], [[0.95, 0.05], [0.05, 0.95]], alphabet=["n", "h"])] if observed else []
    session = sv.Session(model, secrets=[ever("h", epsilon=2, window=2)], observers=others, seed=0)
    for value in "hhhnhn":
        session.release(value)
    worst = max(tracker.worst.worst() for row in session.trackers.rows for tracker in row)
    account = session.account
    assert account.secrets[0].worst == worst
    assert account.risk.secrets[0].log_odds == worst > account.secrets[0].highest


# a promise is said where a mechanism keeps it, and nowhere else


def test_an_epsilon_beside_secrets_keeps_both():
    """With `optimal` at ε = 3 a click these releases move the log odds by 36, and the sentence said 0.5."""
    session = sv.Session(MODEL, epsilon=3.0, secrets=[SECRET], seed=1)
    assert session.setting.mechanism.name == "guarded"
    for value in ["health"] * 12 + ["news"] * 8:
        assert session.kernel().leakage(session.belief, whole_alphabet=True) <= 3.0
        session.release(value)
    (tracker,) = session.account.secrets
    assert tracker.worst <= 0.5
    assert tracker.sentence == SECRET.sentence
    measured = secrets.SecretTrackers.start(MODEL, SECRET)
    plain = sv.Session(MODEL, mechanism="optimal", epsilon=3.0, seed=1)
    for value in ["health"] * 12 + ["news"] * 8:
        kernel = plain.kernel()
        measured = measured.observe(kernel.column(kernel.outputs.index(plain.release(value))))
    ((account,),) = measured.rows
    assert account.worst.worst() > 30
    assert "measured, not promised" in account.sentence
    assert not PROMISE.search(account.sentence)


@pytest.mark.parametrize("name", [name for name in mechanisms.names() if name != "guarded"])
def test_another_mechanism_beside_secrets_is_refused(name):
    with pytest.raises(InputError, match=r"keeps no declared secrets; leave"):
        sv.Policy(secrets=SECRET, mechanism=name, epsilon=1.0, batch=2 if name in mechanisms.batched() else 1)


def test_a_mechanism_of_ones_own_and_a_saved_setting_are_refused_too():
    with pytest.raises(InputError, match='"suppression" keeps no declared secrets'):
        sv.Policy(epsilon=1.0, secrets=SECRET, mechanism=suppression(MODEL.alphabet, [SECRET])).on(MODEL)
    saved = sv.Policy(secrets=SECRET).on(MODEL).to_dict() | {"mechanism": "optimal", "epsilon": 1.0}
    with pytest.raises(InputError, match="keeps no declared secrets"):
        saved_terms(saved, MODEL)


@pytest.mark.parametrize("name", [name for name in mechanisms.names() if not mechanisms.find(name).sound])
def test_a_mechanism_that_keeps_to_no_epsilon_says_what_was_measured(name):
    session = sv.Session(MODEL, mechanism=name, epsilon=0.05, batch=2 if name in mechanisms.batched() else 1, seed=1)
    for _ in range(2 // session.setting.batch):
        session.release_batch(["news"] * session.setting.batch)
    account = session.account
    assert "does not guarantee its ε, so nothing is promised" in account.whole_sequence
    for said in (*account.sentences, repr(session)):
        assert not PROMISE.search(said)
    assert "measured, not promised" in account.sentences[-1]
    grade = Risk.of(session.setting, account).grade
    assert grade.colour == "red"
    assert "does not guarantee its ε" in grade.why


# secrets that follow the clock

HOUR, NIGHTS = Slots(3600), secrets.during("clinic", (22, 6), epsilon=0.5)
MAY = 1_714_953_600.0 + 14 * 3600  # 6 May 2024, 14:00 UTC


def hourly(slots: Slots | None = HOUR) -> MarkovModel:
    rows = [[0.8, 0.15, 0.04, 0.01], [0.3, 0.65, 0.04, 0.01], [0.5, 0.3, 0.19, 0.01], [0.4, 0.4, 0.1, 0.1]]
    places = sv.Alphabet(["home", "work", "clinic", "nothing"]).with_slots(slots)
    return MarkovModel([0.6, 0.3, 0.05, 0.05], rows, alphabet=places)


def clocked(*declared: secrets.Secret, slots: Slots | None = HOUR) -> Terms:
    return sv.Policy(secrets=declared or (NIGHTS,)).on(hourly(slots))


def test_a_session_stands_by_the_clock():
    """Before six and from ten on somebody at the clinic is hidden, at noon not: by the clock, not by counting rows."""
    disclosed = {}
    for begin in (0, 14, 21):
        session = sv.Session(hourly(), secrets=[NIGHTS], seed=1)
        for k in range(30):
            at = MAY + 3600.0 * (begin - 14 + k)
            kernel = session.kernel(at)
            clinic = list(kernel.outputs).index("clinic") if "clinic" in kernel.outputs else None
            sure = 0.0 if clinic is None else float(kernel.probabilities[2, clinic])
            disclosed.setdefault((begin + k) % 24, []).append(sure)
            session.release("home", time=at)
        assert session.account.secrets[0].highest <= 0.5
    assert all(sure == pytest.approx(1.0) for hour in range(7, 21) for sure in disclosed[hour])
    assert all(sure < 0.5 for hour in (22, 23, 0, 1, 2, 3, 4) for sure in disclosed[hour])


@pytest.mark.parametrize("at", [None, 0.0, 3599.0, 7200.0, 90_000.0, -3600.0])
def test_an_event_that_does_not_lie_in_the_next_slot_is_refused(at):
    session, streams = sv.Session(hourly(), secrets=[NIGHTS], seed=1), CodeStreams(clocked())
    session.release("home", time=MAY)
    streams.release(["ann"], [0], times=[MAY])
    with pytest.raises(InputError, match="need the time of each" if at is None else "one event in each slot"):
        session.release("home", time=None if at is None else MAY + at)
    stamps = None if at is None else [MAY - 90_000.0, MAY - 86_400.0, MAY + at]
    with pytest.raises(InputError, match="need the time of each" if at is None else "event 2: .*one event in each"):
        streams.release(["bob", "bob", "ann"], [0, 0, 0], times=stamps)
    assert streams.account("ann").events == session.account.releases == 1
    assert streams.account("bob") is None  # nothing of a call that is refused is drawn
    session.release("home", time=MAY + 7199.0)  # any moment of its slot will do
    assert session.account.releases == 2


def test_the_first_event_of_a_stream_is_not_left_out():
    streams = CodeStreams(clocked(), gaps="skip")
    with pytest.raises(InputError, match="need the first event of each stream"):
        streams.release(["ann"], [0], [2], [MAY])
    streams.release(["ann", "ann"], [0, 0], [0, 3], [MAY, MAY + 3 * 3600])
    assert streams.account("ann").events == 4


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1, 1 << 28])
def test_state_files_remember_when_streams_began(tmp_path, memory):
    """Cut anywhere and opened again, streams go on as if nothing had been cut, each from its own hour."""
    begins = {"ann": MAY, "bob": MAY - 5 * 3600, "eve": MAY + 9 * 3600}
    codes = {name: hourly().sample(30, 1, seed)[0] for seed, name in enumerate(begins)}
    setting, now = clocked(NIGHTS, ever("work", epsilon=0.4, window=7)), list(begins)
    seen, promised = Rows(setting, 3), [secret.total for secret in setting.secrets]
    for k in range(30):
        stamps = [begins[name] + 3600.0 * k for name in now]
        with CodeStreams.open(tmp_path / "s.db", setting, key=bytes(32), memory=memory) as streams:
            made = streams.release(now, [codes[name][k] for name in now], times=stamps)
        seen.observe(np.arange(3), made.codes, np.array(stamps))
    with CodeStreams.open(tmp_path / "s.db", setting, key=bytes(32)) as streams:
        assert streams.secrets() == totals(setting.secrets, seen.state.trackers, promised)
        assert 0 < streams.secrets()[0].log_odds_worst <= 0.5
        with pytest.raises(InputError, match="one event in each slot"):
            streams.release(["ann"], [0], times=[MAY + 54 * 3600.0])  # a whole day later


def test_days_and_weeks_go_side_by_side_from_any_slot():
    """A stream that begins on Wednesday has a first week of five days, and a first day of what is left of it."""
    week, day = ever("clinic", window="week", epsilon=0.5), ever("clinic", window="day", epsilon=0.5)
    trackers = clocked(week, day).trackers_from(int((MAY + 2 * 86_400.0) // 3600)).rows[0]
    assert [tracker.latest.events for tracker in trackers] == [24 * 5 - 14, 24 - 14]


def test_one_clock_for_all_with_its_offset_from_utc():
    """At UTC+2 it is night from 20 to 4 by UTC; the offset is part of the model and of what a receiver compares."""
    east = Slots(3600, utc_offset=2)
    assert NIGHTS.over(hourly(east).alphabet).length == 24
    assert east.place(east.numbers(np.array([MAY]))).tolist() == [16]
    setting = clocked(slots=east)
    assert saved_terms(setting.to_dict(), hourly(east)).to_dict() == setting.to_dict()
    assert hourly(east).fingerprint == hourly().fingerprint
    with pytest.raises(sv.SeqveilError, match="not the one the release was made with"):
        saved_terms(setting.to_dict(), hourly())


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: clocked(slots=None), "need slots of time"),
        (lambda: clocked(ever("home", epsilon=1, window="day"), slots=None), "need slots of time"),
        (lambda: clocked(ever("home", epsilon=1, window="week"), slots=None), "need slots of time"),
        (lambda: clocked(slots=Slots(7000)), "do not begin at midnight"),
        (lambda: clocked(slots=Slots(3600, utc_offset=5.5)), "do not begin at midnight"),
        (lambda: clocked(slots=Slots(14_400)), "begin and end where slots"),
        (lambda: Slots(60, utc_offset=20), "utc_offset as hours"),
    ],
)
def test_what_has_no_clock_is_refused_in_a_line(make, line):
    with pytest.raises(InputError, match=line) as caught:
        make()
    assert "\n" not in str(caught.value)
