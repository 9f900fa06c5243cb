"""The audit against brute force over all sequences, and against what tampering does."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
from policies import promise
from reference import streams as ref
from reference.secrets import Enumerated, random_model, typed_model
from reference.streams import released_with_columns
from seqveil import Budget, MarkovModel, Session
from seqveil.core.errors import DataError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import stream
from seqveil.engine.policy import Policy
from seqveil.engine.stream import NOTHING, State
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.cli import main
from seqveil.receiver.audit import Audit


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 4),
    length=st.integers(1, 4),
    epsilon=st.sampled_from([0.2, 1.0, 2.5]),
    mechanism=st.sampled_from(["optimal", "balanced", "randomized_response"]),
    zeros=st.booleans(),
)
def test_leakage_is_that_of_brute_force(seed, n, length, epsilon, mechanism, zeros):
    chain = ref.random_chain(np.random.default_rng(seed), n, zeros=zeros)
    model = MarkovModel(*chain)
    session = Session(model, mechanism=mechanism, epsilon=epsilon, seed=seed)
    raw = model.sample(length, 1, seed)[0].tolist()
    released, columns = released_with_columns(session, raw)
    audit = Audit(session.setting)
    used = audit.take(["u"] * length, np.array(released))
    report = audit.report()
    most, least = ref.sequence_leakage(ref.sequence_distribution(*chain, length), columns)
    assert report.most == pytest.approx(most, abs=1e-9)
    assert report.least == pytest.approx(least, abs=1e-9)
    assert report.leakage == session.leakage
    assert report.composition == pytest.approx(used.sum())
    assert report.held == (used == 0).sum()
    assert report.passed


def releases_of(model, raw, **options):
    session = Session(model, seed=11, **options)
    return session, np.array([NOTHING if (y := session.release(x)) is None else y for x in raw])


MODEL = MarkovModel([0.4, 0.3, 0.3], [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
RAW = MODEL.sample(40, 1, 2)[0].tolist()


def test_the_worst_user_is_the_worst_and_users_do_not_mix():
    session, released = releases_of(MODEL, RAW, epsilon=0.8)
    audit = Audit(session.setting)
    users = ["long"] * 40
    audit.take([*users, "short"], np.append(released, released[0]))
    report = audit.report()
    assert report.worst_user == "long"
    assert report.leakage == session.leakage
    assert (report.most, report.least) == (session.account.most, session.account.least)
    assert (report.users, report.releases) == (2, 41)
    assert report.ldp == pytest.approx(2 * 0.8 * 40)
    for unchanged in (None, True, False):  # whether the file is the one that was written
        assert audit.report(unchanged=unchanged).passed == (unchanged is not False)


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_it_does_not_matter_how_the_releases_are_cut(pieces):
    session, released = releases_of(MODEL, RAW, epsilon=0.8, budget=Budget(per_window=2.0, releases=5))
    audit = Audit(session.setting)
    for part in np.array_split(np.arange(40), pieces):
        audit.take(["u"] * part.size, released[part])
    assert audit.report().leakage == session.leakage
    assert audit.report().window is True
    assert 0 < audit.report().worst_window <= 2.0


def test_an_unsound_mechanism_is_found_out():
    session, released = releases_of(MODEL, RAW, mechanism="crr", epsilon=0.3)
    audit = Audit(session.setting)
    audit.take(["u"] * 40, released)
    report = audit.report()
    assert (report.each_release, report.passed) == (False, False)
    assert report.worst_release > 0.3
    assert math.isinf(report.ldp)


def test_claimed_epsilons_are_compared():
    session, released = releases_of(MODEL, RAW, epsilon=1.0, budget=Budget(ldp_total=40.0))
    right = np.where(np.arange(40) < 20, 1.0, 0.0)
    wrong = right.copy()
    wrong[7] = 0.5
    for claimed, verdict in ((right, True), (wrong, False), (None, None), (np.full(40, np.nan), True)):
        audit = Audit(session.setting)
        audit.take(["u"] * 40, released, epsilons=claimed)
        assert audit.report().epsilons is verdict
    audit = Audit(session.setting)
    audit.take(["u"], released[:1], epsilons=right[:1] + 1)
    audit.take(["u"] * 39, released[1:], epsilons=right[1:])  # a later good part does not heal it
    assert audit.report().epsilons is False


def test_impossible_releases_are_refused():
    session, released = releases_of(MODEL, RAW, epsilon=1.0, budget=Budget(ldp_total=40.0))
    impossible = released.copy()
    impossible[30] = (released[30] + 1) % 3  # when the budget is gone only the best guess can come
    with pytest.raises(DataError, match="cannot have come from"):
        Audit(session.setting).take(["u"] * 40, impossible)
    budget = Budget(total=2.0, when_spent="stop")
    session, released = releases_of(MODEL, RAW, epsilon=1.0, budget=budget)
    assert (released == NOTHING).any()
    more = np.where(released == NOTHING, 0, released)
    with pytest.raises(DataError, match="budget allows none"):
        Audit(session.setting).take(["u"] * 40, more)


def test_a_wide_release_does_not_pass_for_a_narrow_one():
    """At small ε only the likeliest symbols can be released at all, so a freer stream gives itself away."""
    _, released = releases_of(MODEL, RAW, epsilon=5.0)
    with pytest.raises(DataError, match="cannot have come from"):
        Audit(Policy(epsilon=0.1).on(MODEL)).take(["u"] * 40, released)


KINDS = {
    "plain": ["--model", "m"],
    "batched": ["--model", "m", "--batch", "3"],
    "with a state file": ["--model", "m", "--state", "s.db"],
}


def audited(capsys, *more):
    capsys.readouterr()
    code = main(["audit", "out.csv", "--model", "m", *more])
    return code, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("seed", [["--seed", "1"], []], ids=["seeded", "not seeded"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_release_is_kept_unless_it_is_seeded(place, capsys, kind, seed):
    assert main(["release", "raw.csv", *KINDS[kind], "--epsilon", "1", *seed, "--out", "out.csv"]) == 0
    code, said = audited(capsys)
    assert code == bool(seed)
    assert ("knows the seed can undo" in said) == bool(seed)
    assert said.count("kept") == 0 if seed else said.count("kept") >= 3
    code, text = audited(capsys, "--json")
    found = json.loads(text)
    assert (code, found["passed"], found["checks"]["unseeded"]) == (bool(seed), not seed, not seed)
    assert found["checks"]["each_release"] is True  # the figures stand, for who does not know the seed
    if seed:
        assert found["grade"] == json.loads((place / "out.csv.meta.json").read_text())["grade"] == "red"
        (place / "out.csv.meta.json").unlink()
        if "--batch" not in KINDS[kind]:  # without a side file nothing is known of a seed
            code, text = audited(capsys, *promise(epsilon=1.0), "--json")
            assert (code, json.loads(text)["checks"]["unseeded"]) == (0, None)


@pytest.mark.slow
def test_what_a_seed_began_stays_seeded(place, capsys):
    """Rows that were seeded do not become private because later rows of the same state file are not."""
    rows = (place / "raw.csv").read_text().splitlines(keepends=True)
    options = ["--model", "m", "--epsilon", "1", "--state", "s.db", "--out", "out.csv"]
    (place / "raw.csv").write_text("".join(rows[:101]))
    assert main(["release", "raw.csv", *options, "--seed", "1"]) == 0
    (place / "raw.csv").write_text("".join(rows))
    capsys.readouterr()
    assert main(["release", "raw.csv", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["private"] is False
    assert audited(capsys)[0] == 1


ASKED = [
    sv.secrets.ever(2, epsilon=None, window="first 4"),
    sv.secrets.count(1, 2, epsilon=None, window="first 4"),
    sv.secrets.ever(0, epsilon=None, window=2),
]


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0.0, 1.0, np.inf])
@pytest.mark.parametrize("kept", [sv.secrets.ever(1, epsilon=1.0, window="first 4"), sv.secrets.ever(1, epsilon=1.0)])
def test_other_secrets_are_measured_exactly_on_a_release_whose_kernels_remember(kept, memory):
    """Every sequence is listed with what is remembered along it; what was released says Q(y|x, m) of each event."""
    rng = np.random.default_rng(2)
    for model in (random_model(rng, 3), typed_model(rng, 2, 3)):
        setting, every = Policy(epsilon=2.0, secrets=[kept], side_information=memory).on(model), Enumerated(model, 4)
        assert bool(setting.remembered) == (memory > 0)
        machine = kept.over(model.alphabet).automaton
        rows = np.zeros_like(every.array)
        for t in range(4):
            rows[:, t] = machine.moves[rows[:, t - 1] if t else 0, every.array[:, t]]
        raw, streams = model.sample(4, users=12, seed=3), CodeStreams(setting, randomness=SeededRandomness(1))
        audit, worst = Audit(setting, secrets=ASKED), np.zeros(len(ASKED))
        likely, state = np.ones((12, len(every.words))), State.start(setting, 12)
        for t in range(4):
            codes = streams.release(range(12), raw[:, t]).codes
            audit.take(range(12), codes)
            seen, state = stream.observe(setting, state, codes)
            wide = seen.remembered.shape[1] // 3
            likely *= seen.remembered[:, rows[:, t] % wide * 3 + every.array[:, t]] / 2.0**62
            for k, secret in enumerate(ASKED):
                over = secret.over(model.alphabet)
                for first in range(0, 4, over.length):
                    worst[k] = max(worst[k], *np.abs(log_odds(every, every.values(over, first, over.length), likely)))
        disclosed = audit.report().secrets
        assert [each.log_odds_worst for each in disclosed[1:]] == pytest.approx(worst.tolist(), abs=1e-9)
        assert [each.kept for each in disclosed] == [True, None, None, None]


def log_odds(every, values, likely):
    """By how much releases move the odds of a secret, for each person, from Pr(releases | sequence)."""
    both = [
        (likely * every.distribution)[:, values == value].sum(1) / every.distribution[values == value].sum()
        for value in (1, 0)
    ]
    return np.log(both[0] / both[1])
