"""The audit against brute force over all sequences, and against what tampering does."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import promise
from reference_streams import released_with_columns, sides, sparse_model
from seqveil import Budget, MarkovModel, Session
from seqveil.core.errors import DataError
from seqveil.engine.policy import Policy
from seqveil.engine.stream import NOTHING
from seqveil.interfaces.cli import main
from seqveil.receiver.audit import Audit


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 4),
    length=st.integers(1, 4),
    epsilon=st.sampled_from([0.2, 1.0, 2.5]),
    mechanism=st.sampled_from(["optimal", "balanced", "randomized_response", "crr_repaired"]),
    zeros=st.booleans(),
)
def test_leakage_is_that_of_brute_force(seed, n, length, epsilon, mechanism, zeros):
    prior, moves, model = sparse_model(np.random.default_rng(seed), n, zeros)
    session = Session(model, mechanism=mechanism, epsilon=epsilon, seed=seed)
    raw = model.sample(length, 1, seed)[0].tolist()
    released, columns = released_with_columns(session, raw)
    audit = Audit(session.setting)
    used = audit.take(["u"] * length, released)
    report = audit.report()
    most, least = sides(prior, moves, columns)
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
    assert report.composed.releases == 40
    assert report.ldp == pytest.approx(2 * 0.8 * 40)


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
    assert not report.each_release
    assert not report.passed
    assert report.worst_release > 0.3
    assert math.isinf(report.ldp)
    assert report.composed is None


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


def test_a_file_that_is_not_the_one_written_fails():
    session, released = releases_of(MODEL, RAW, epsilon=1.0)
    audit = Audit(session.setting)
    audit.take(["u"] * 40, released)
    assert audit.report(unchanged=None).passed
    assert audit.report(unchanged=True).passed
    assert not audit.report(unchanged=False).passed


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


def audited(kind, capsys, *more):
    capsys.readouterr()
    code = main(["audit", "out.csv", "--model", "m", *more])
    return code, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_seeded_release_is_never_kept(place, capsys, kind):
    assert main(["release", "raw.csv", *KINDS[kind], "--epsilon", "1", "--seed", "1", "--out", "out.csv"]) == 0
    code, said = audited(kind, capsys)
    assert code == 1
    assert "kept" not in said
    assert [line for line in said.splitlines() if "knows the seed can undo" in line]
    code, text = audited(kind, capsys, "--json")
    found = json.loads(text)
    assert code == 1
    assert (found["passed"], found["grade"]) == (False, "red")
    assert json.loads((place / "out.csv.meta.json").read_text())["grade"] == "red"
    assert found["checks"]["unseeded"] is False
    assert found["checks"]["each_release"] is True  # the figures stand, for who does not know the seed


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_release_without_a_seed_is_kept(place, capsys, kind):
    assert main(["release", "raw.csv", *KINDS[kind], "--epsilon", "1", "--out", "out.csv"]) == 0
    code, said = audited(kind, capsys)
    assert code == 0
    assert "seed can undo" not in said
    assert said.count("kept") >= 3
    assert json.loads(audited(kind, capsys, "--json")[1])["checks"]["unseeded"] is True


@pytest.mark.slow
def test_without_a_side_file_nothing_is_known_of_a_seed(place, capsys):
    assert main(["release", "raw.csv", "--model", "m", "--epsilon", "1", "--seed", "1", "--out", "out.csv"]) == 0
    (place / "out.csv.meta.json").unlink()
    code, text = audited("plain", capsys, *promise(epsilon=1.0), "--json")
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
    assert audited("plain", capsys)[0] == 1
