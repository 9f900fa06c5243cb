"""Declared secrets of many users: every outcome keeps them, wherever streams are kept and however often they stop."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal

import numpy as np
import pytest

import seqveil as sv
from reference_secrets import Enumerated, random_model, typed_model
from seqveil.core.alphabet import WITHHELD
from seqveil.core.errors import InputError, ModelError
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.randomness import KeyedRandomness, SeededRandomness
from seqveil.engine import packing, stream
from seqveil.engine.policy import saved_terms
from seqveil.engine.secrets import guarded_table
from seqveil.engine.streams import CodeStreams
from seqveil.engine.terms import NO_BOUND, Terms

ever, always, joint = sv.secrets.ever, sv.secrets.always, sv.secrets.joint
KEY = bytes(range(32))
MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]])
LENGTH = 4
SECRETS = {
    "first": [ever(2, epsilon=0.4, window="first 4")],
    "tumbling": [ever(2, epsilon=0.5, window=2), always([0, 1], epsilon=0.9, window="event", one_sided=True)],
    "until it ends": [ever(2, epsilon=0.5)],
    "joint": [joint(ever(1, window=2, epsilon=1.0), ever(2, window=2, epsilon=1.0), epsilon=0.9)],
}


def setting_of(secrets, **more) -> Terms:
    return sv.Policy(secrets=secrets, mechanism="guarded", side_information=0, **more).on(MODEL)


def spans(secret) -> list[tuple[int, int]]:
    """First event and number of events of the windows that end within the streams."""
    if secret.length() is None:
        return [(0, events) for events in range(1, LENGTH + 1)]
    starts = range(0, LENGTH - secret.length() + 1, secret.length()) if secret.repeats else [0]
    return [(first, secret.length()) for first in starts]


def excess(every: Enumerated, secret, span, columns) -> float:
    """How far the odds of a window moved beyond what was promised, read off all sequences."""
    if secret.length() is None and len(columns) > span[1]:
        return -math.inf  # the stream went on: the secret was about another one
    compiled = secret.over(MODEL.alphabet)
    values, count = every.values(compiled, *span), compiled.automaton.values
    if np.count_nonzero(every.prior(values, count) > 0) < 2:
        return -math.inf
    moved = every.log_odds(values, count, columns)
    return (moved if secret.sides == "up" else abs(moved)) - secret.epsilon


def outcomes(setting) -> list[tuple[int, ...]]:
    """All releases that streams of LENGTH events can have."""
    found = {(): stream.State.start(setting)}
    for _ in range(LENGTH):
        found = {
            (*disclosed, code): stream.observe(setting, state, np.array([code]))[1]
            for disclosed, state in found.items()
            for code in guarded_table(setting, state.trackers[0]).outputs.tolist()
        }
    return list(found)


class Kept:
    """Streams in memory, or in a file that is closed and opened again after every event."""

    def __init__(self, kind, setting, folder, monkeypatch):
        self._path, self._setting = folder / "s.db", setting
        self._held = CodeStreams(setting) if kind == "memory" else None
        if kind == "replayed file":
            monkeypatch.setattr(packing, "SMALL", 0)

    def run(self, act):
        if self._held is not None:
            return act(self._held)
        with CodeStreams.open(self._path, self._setting) as streams:
            return act(streams)


@pytest.mark.parametrize("kind", ["memory", "file", pytest.param("replayed file", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SECRETS)
def test_no_outcome_moves_the_odds_further_than_promised(kind, name, tmp_path, monkeypatch):
    setting, every = setting_of(SECRETS[name]), Enumerated(MODEL, LENGTH)
    kept, disclosed = Kept(kind, setting, tmp_path, monkeypatch), outcomes(setting)
    columns: dict[str, list[np.ndarray]] = {str(codes): [] for codes in disclosed}

    def note(users, made):
        for user, column in zip(users, made.columns, strict=True):
            columns[user].append(column / DENOMINATOR)

    def take(streams, step):
        streams._seen = note
        streams.observe(list(columns), [codes[step] for codes in disclosed])

    for step in range(LENGTH):
        kept.run(lambda streams, step=step: take(streams, step))
        standings = kept.run(lambda streams: [streams.account(user) for user in columns])
        for standing in standings:
            check(every, setting, standing.secrets, columns[standing.user])
    for total, secret in zip(kept.run(lambda streams: streams.secrets()), setting.secrets, strict=True):
        assert total.kept
        assert (total.name, total.epsilon, total.users) == (secret.name, secret.epsilon, len(disclosed))
    assert len(disclosed) >= (3 if name == "joint" else 9)


def check(every, setting, trackers, columns) -> None:
    """No window's odds moved too far, and the accounts say how far they moved."""
    for secret, tracker in zip(setting.secrets, trackers, strict=True):
        assert max(excess(every, secret, span, columns) for span in spans(secret)) <= 1e-9
        assert tracker.worst <= secret.epsilon + 1e-9
        if secret.window == f"first {LENGTH}":
            compiled = secret.over(MODEL.alphabet)
            exact = every.log_odds(every.values(compiled, 0, LENGTH), 2, columns)
            assert tracker.log_odds == pytest.approx(exact, abs=1e-9)


CHAINS = [random_model(np.random.default_rng(2), 3), typed_model(np.random.default_rng(3), 2, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("model", CHAINS, ids=["chain", "types"])
@pytest.mark.parametrize("more", [{}, {"withhold": True}, {"epsilon": 1.0}])
def test_accounts_come_back_to_the_last_bit(model, more):
    """The tables that follow from a packed account are those of one that was never packed."""
    secrets = [
        ever(1, epsilon=0.5, window=3),
        joint(ever(0, window=2, epsilon=1.0), ever(1, window=2, epsilon=1.0), epsilon=0.7),
    ]
    observer = random_model(np.random.default_rng(7), model.n)
    setting = sv.Policy(secrets=secrets, observers=observer, side_information=0, **more).on(model)
    randomness, state = SeededRandomness(3), stream.State.start(setting)
    for code in model.sample(12, seed=2)[0]:
        _, state = stream.step(setting, state, np.array([code]), randomness)
        trackers = state.trackers[0]
        back = packing.restored_accounts(setting.trackers, packing.account_numbers(trackers))
        one, other = (guarded_table(setting, found) for found in (trackers, back))
        assert one.outputs.tolist() == other.outputs.tolist()
        places = range(one.outputs.size)
        assert all((one.column(place) == other.column(place)).all() for place in places)
        assert back.rows[0][0].worst == trackers.rows[0][0].worst


def test_streams_release_as_sessions_do():
    """And in one call as in many, whoever else is there."""
    setting = setting_of(SECRETS["tumbling"])
    randomness = KeyedRandomness.seeded(1)
    raw = [[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    users = ["ann", "bob", "cy"]
    together = CodeStreams(setting, randomness=randomness)
    made = together.release([user for _ in range(4) for user in users], list(itertools.chain(*zip(*raw, strict=True))))
    for k, user in enumerate(users):
        alone, state = CodeStreams(setting, randomness=randomness), stream.State.start(setting)
        codes = [int(alone.release([user], [code]).codes[0]) for code in raw[k]]
        assert codes == made.codes[k::3].tolist()
        for code in codes:
            _, state = stream.observe(setting, state, np.array([code]))
        mine, theirs = together.account(user), state.trackers[0].rows[0]
        assert [tracker.log_odds for tracker in mine.secrets] == [tracker.log_odds for tracker in theirs]
        assert mine.whole_sequence == NO_BOUND
        assert math.isinf(mine.epsilon_spent)


def test_with_an_epsilon_the_ledger_is_that_of_any_sound_mechanism():
    streams = CodeStreams(setting_of(SECRETS["first"], epsilon=0.8), randomness=KeyedRandomness(KEY))
    streams.release(["ann"] * 4, [0, 1, 1, 0])
    standing = streams.account("ann")
    assert standing.whole_sequence == ""
    assert standing.epsilon_spent == pytest.approx(3.2)
    assert standing.ldp == pytest.approx(6.4)
    assert standing.leakage <= 3.2


def test_a_retry_draws_nothing_and_a_gap_tells_nothing(tmp_path):
    setting = setting_of(SECRETS["until it ends"])
    with CodeStreams.open(tmp_path / "s.db", setting, gaps="skip") as streams:
        first = streams.release(["ann"] * 2, [0, 1], seqs=[0, 1])
        before = streams.account("ann").secrets[0]
        again = streams.release(["ann"] * 2, [1, 0], seqs=[0, 1])
        assert again.replayed.all()
        assert again.codes.tolist() == first.codes.tolist()
        assert streams.account("ann").secrets[0].log_odds == before.log_odds
        streams.release(["ann"], [1], seqs=[3])
        skipped = streams.account("ann").secrets[0]
        assert streams.account("ann").events == 4
    with CodeStreams.open(tmp_path / "s.db", setting, gaps="skip") as streams:
        assert streams.account("ann").secrets[0].log_odds == skipped.log_odds


@pytest.mark.parametrize("memory", [1 << 28, 1])
def test_one_event_too_many_is_refused_before_anything_is_drawn(tmp_path, memory, longest):
    longest(LENGTH)
    setting = setting_of(SECRETS["until it ends"])
    streams = CodeStreams(setting, memory=memory)
    streams.release(["ann"] * 3, [0, 0, 0])
    with pytest.raises(InputError, match="at most 4 events") as refused:
        streams.release(["bob", "ann", "ann"], [0, 0, 0])
    assert "\n" not in str(refused.value)
    assert streams.account("bob") is None
    assert streams.account("ann").events == 3
    streams.release(["bob", "ann"], [0, 0])
    with pytest.raises(InputError, match="at most 4 events"):
        streams.observe(["ann"], [0])


@pytest.mark.slow
def test_a_person_is_never_forgotten(tmp_path, longest):
    """What comes later of a user goes on with the same secret: a new visit is no new stream."""
    longest(30)
    setting = sv.Policy(secrets=ever(1, epsilon=0.3), mechanism="guarded").on(MODEL)
    for _ in range(6):
        with CodeStreams.open(tmp_path / "s.db", setting) as streams:
            streams.release(["ann"] * 5, [0, 1, 0, 1, 1])
            tracker = streams.account("ann").secrets[0]
            assert tracker.worst <= 0.3
    with CodeStreams.open(tmp_path / "s.db", setting) as streams, pytest.raises(InputError, match="at most 30 events"):
        streams.release(["ann"], [0])


def work(path, answers) -> None:
    """Release from where the file stands; answer each event only after it was released."""
    with CodeStreams.open(path, setting_of(SECRETS["tumbling"])) as streams, open(answers, "ab", buffering=0) as out:
        for at in range(int(streams.position("events") or 0), 60):
            user, code = f"user {at % 15}", at // 15 % 2
            made = streams.release([user], [code], [at // 15], positions={"events": at + 1})
            out.write(b"%d %d\n" % (at, made.codes[0]))


@pytest.mark.slow
def test_kills_lose_nothing_and_draw_nothing_anew(tmp_path):
    path, answers = tmp_path / "s.db", tmp_path / "answers"
    for enough in (20, 60, 150):
        child = os.fork()
        if child == 0:
            try:
                work(path, answers)
            finally:
                os._exit(1)
        while not answers.exists() or answers.stat().st_size < enough:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    work(path, answers)
    disclosed = {int(at): int(code) for at, code in (line.split() for line in answers.read_text().splitlines())}
    assert len(disclosed) >= 57  # an event that was committed when the kill came may have no answer
    with CodeStreams.open(path, setting_of(SECRETS["tumbling"])) as streams:
        for at, code in disclosed.items():
            assert streams.releases(f"user {at % 15}")[at // 15].code == code
        twin = CodeStreams(streams.setting)
        for k in range(15):
            codes = [stored.code for stored in streams.releases(f"user {k}")]
            twin.observe([f"user {k}"] * 4, codes)
            mine, theirs = streams.account(f"user {k}"), twin.account(f"user {k}")
            assert [tracker.worst for tracker in mine.secrets] == [tracker.worst for tracker in theirs.secrets]
        assert all(total.kept for total in streams.secrets())


def test_a_setting_with_secrets_as_plain_values(tmp_path):
    observer = random_model(np.random.default_rng(11), 3)
    setting = setting_of(SECRETS["tumbling"], observers=observer, withhold=True)
    saved = json.loads(json.dumps(setting.to_dict()))
    again = saved_terms(saved, MODEL, [observer])
    assert again.signature == setting.signature
    assert again.to_dict()["epsilon"] is None
    assert "secret" not in sv.Policy(epsilon=0.5).on(MODEL).to_dict()
    with pytest.raises(ModelError, match="observers"):
        saved_terms(saved, MODEL)
    with pytest.raises(InputError, match="the ε of a secret"):
        saved_terms({**saved, "secret": [{"ever": 1, "epsilon": {}}]}, MODEL, [observer])
    with CodeStreams.open(tmp_path / "s.db", setting):
        pass
    with pytest.raises(InputError, match="another secret;"):
        CodeStreams.open(tmp_path / "s.db", setting_of(SECRETS["first"], observers=observer, withhold=True))


def test_a_receiver_decodes_what_was_withheld():
    secret = ever(2, epsilon=1.5, window="first 4")
    session = sv.Session(MODEL, mechanism="guarded", secrets=secret, withhold=True, seed=1)
    released = [session.release(symbol) for symbol in (0, 2, 1, 0)]
    assert None in released
    distributions = sv.decode_stream(MODEL, released, mechanism="guarded", secrets=secret, withhold=True, smooth=False)
    state = stream.State.start(session.setting)
    for value, distribution in zip(released, distributions, strict=True):
        code = WITHHELD if value is None else value
        seen, state = stream.observe(session.setting, state, np.array([code]))
        exact = seen.beliefs[0] * seen.columns[0]
        assert distribution == pytest.approx(exact / exact.sum())
    smooth = sv.decode_stream(MODEL, released, mechanism="guarded", secrets=secret, withhold=True)
    assert smooth[-1] == pytest.approx(distributions[-1])
