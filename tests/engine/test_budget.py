"""Budgets against their definition: totals, windows, and the one that needs no model."""

import itertools
import json
import math
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_streams as ref
from policies import promise
from seqveil import Budget, MarkovModel, Session, mechanisms
from seqveil.core.errors import InputError
from seqveil.core.mechanisms import trees
from seqveil.engine import batches, stream
from seqveil.engine.budget import Window
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.cli import main

SOUND = [name for name in mechanisms.instantaneous() if mechanisms.get(name).sound]
PAIR = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


@pytest.mark.parametrize(
    "wrong",
    [
        *({"total": total} for total in (0, -1.0, math.nan, math.inf, "1")),
        *({"per_window": 1.0}, {"releases": 3}),
        {"per_window": 1.0, "releases": 3, "seconds": 2.0},
        {"total": 1.0, "when_spent": "shrug"},
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        Budget(**wrong)


@settings(deadline=None, max_examples=80)
@given(total=st.floats(0.1, 5), spent=st.floats(0, 6), wanted=st.floats(0, 5))
def test_what_a_total_allows(total, spent, wanted):
    arguments = np.array([wanted]), np.array([spent]), np.zeros(1)
    assert Budget(total=total).allow(*arguments)[0] == min(wanted, max(0.0, total - spent))
    assert Budget().allow(*arguments)[0] == wanted


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(events=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 2)), min_size=1, max_size=15), span=st.floats(0.5, 6))
def test_a_window_sums_what_lies_in_it_and_forgets_the_rest(events, span):
    window, now, past = Window.start(1), 0.0, []
    for gap, cost in events:
        now += gap
        inside = math.fsum(c for t, c in past if exactly_within(t, now, span))
        assert window.within(np.array([now]), span)[0] == pytest.approx(inside, abs=1e-12)
        window = window.push(np.array([now]), np.array([cost]), span)
        past.append((now, cost))
        assert window.costs.shape[1] == sum(exactly_within(t, now, span) for t, _ in past)


def exactly_within(time, now, span):
    """Whether less than `span` has passed, in fractions: the difference of two floats need not be one."""
    return Fraction(now) - Fraction(time) < Fraction(span)


def test_a_window_sums_alike_whoever_else_is_there():
    """Empty places in front come from users with longer windows; they must not change the last bit of a sum."""
    generator = np.random.default_rng(3)
    for width in range(1, 40):
        costs, stamps = generator.random((1, width)), np.arange(width, dtype=np.float64)[None]
        alone = Window(costs, stamps)
        now = np.array([float(width)])
        for room in range(width, width + 20):
            assert alone.padded(room).within(now, 1e9)[0] == alone.within(now, 1e9)[0]


STICKY = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
SURE = MarkovModel([1.0, 0.0], [[1.0, 0.0]] * 2)  # of the symbol that never comes
WRONG = MarkovModel([1 - 1e-9, 1e-9], [[1 - 1e-9, 1e-9]] * 2)


def test_an_unsound_mechanism_has_no_level():
    session = Session(STICKY, mechanism="crr", epsilon=1.0, seed=1)
    assert session.account.ldp == 0.0
    session.release(0)
    assert session.account.ldp == math.inf


def within(columns, total):
    """Whether all pairs of raw sequences give these releases probabilities within e^total, in exact arithmetic."""
    weights = [math.prod(int(column[x]) for x, column in zip(raw, columns, strict=True))
               for raw in itertools.product(range(len(columns[0])), repeat=len(columns))]  # fmt: skip
    with localcontext() as context:
        context.prec = 80
        return Decimal(max(weights)) <= Decimal(min(weights)) * Decimal(total).exp()


NAMES = ("optimal", "balanced", "crr_repaired", "randomized_response", "optimal_ldp")


@pytest.mark.parametrize("policy", ["hold", "stop"])
@pytest.mark.parametrize("name", NAMES)
def test_no_two_sequences_are_disclosed_apart_beyond_it_whatever_the_model(name, policy):
    """All release sequences, all pairs of raw ones, exactly, under models that are sure of the wrong symbol."""
    for model, (total, epsilon) in itertools.product((SURE, WRONG), ((0.7, 0.3), (1.0, 1 / 3), (2.5, 0.9))):
        budget = Budget(ldp_total=total, when_spent=policy)
        setting = Policy(epsilon=epsilon, budget=budget, mechanism=name).on(model)
        spent = set()
        for columns, state in ref.release_paths(setting, 5):
            assert within(columns, total)
            assert state.ldp[0] <= total
            spent.add(round(float(state.ldp[0]), 6))
        assert max(spent) == pytest.approx(total, abs=1e-5)  # and all of it can be used


def test_other_budgets_hold_beside_it():
    budget = Budget(total=1.0, per_window=0.8, releases=2, ldp_total=1.5)
    for columns, state in ref.release_paths(Policy(epsilon=0.6, budget=budget, mechanism="optimal").on(STICKY), 4):
        assert within(columns, 1.5)
        assert state.account.worst[0] <= 1.0


@pytest.mark.parametrize("name", ["tree", "tree_ldp"])
def test_it_holds_for_batches(name):
    """All paths of four batches of two symbols, all pairs of raw sequences, whatever the model says of them."""
    total, model = 2.5, MarkovModel([0.6, 0.4], [[0.6, 0.4], [0.3, 0.7]])
    setting = Policy(epsilon=1.0, batch=2, budget=Budget(ldp_total=total), mechanism=name).on(model)
    raws = list(itertools.product(range(2), repeat=2))

    def paths(state, factor, left):
        if not left:
            yield factor, state
            return
        epsilon = float(stream.allowance(setting, state)[0][0])
        batch = mechanisms.Batch(model, state.states[0], 2, epsilon, setting.distortion)
        grown = trees.plant(batch, name == "tree_ldp" and epsilon > 0)
        disclosed = grown.disclosed / 2.0**62
        for leaf in grown.everything():
            inside = [math.prod(float(weights[raw[k]]) for k, weights in leaf.box.items()) for raw in raws]
            distribution = [(1 - disclosed) * leaf.chance + disclosed * each for each in inside]
            _, after = batches.observe(setting, state, leaf.path, 2)
            yield from paths(after, factor + math.log(max(distribution) / min(distribution)), left - 1)

    found = list(paths(stream.State.start(setting), 0.0, 4))
    assert total / 2 < max(factor for factor, _ in found) <= total + 1e-9
    assert max(float(state.ldp[0]) for _, state in found) == pytest.approx(total)


@pytest.mark.slow
def test_a_model_sure_of_the_wrong_symbol_buys_no_more_than_it():
    """Under a total alone every release is free as the model sees it; without the model it ends."""
    disclosed = {}
    for name, budget in {"trusting": Budget(total=1.0), "not": Budget(total=1.0, ldp_total=1.0)}.items():
        session = Session(SURE, mechanism="randomized_response", epsilon=0.5, budget=budget, seed=1)
        for _ in range(1000):
            session.release(1)
        disclosed[name] = session.account
    assert disclosed["trusting"].leakage <= 1.0
    assert disclosed["trusting"].ldp == pytest.approx(500.0)
    assert 0.9 < disclosed["not"].ldp <= 1.0


def test_it_stops_when_it_is_gone():
    stop = Session(STICKY, mechanism="optimal", epsilon=0.5, budget=Budget(ldp_total=2.0, when_spent="stop"), seed=1)
    assert [stop.release(0) is None for _ in range(4)] == [False, False, True, True]


def test_mechanisms_without_a_level_are_refused_with_it():
    with pytest.raises(InputError, match="does not keep to its ε"):
        Policy(epsilon=1.0, budget=Budget(ldp_total=1.0), mechanism="crr").on(STICKY)
    endless = replace(mechanisms.balanced, ldp=math.inf)
    with pytest.raises(InputError, match="has no LDP level"):
        Policy(epsilon=1.0, budget=Budget(ldp_total=1.0), mechanism=endless).on(STICKY)
    with pytest.raises(InputError, match="ldp_total"):
        Budget(ldp_total=-1.0)


def test_a_file_begun_with_it_is_not_gone_on_with_without(tmp_path):
    path = tmp_path / "s.db"
    CodeStreams.open(
        path, Policy(epsilon=1.0, budget=Budget(total=3.0, ldp_total=2.0), mechanism="optimal").on(STICKY)
    ).close()
    with pytest.raises(InputError, match="begun with another budget"):
        CodeStreams.open(path, Policy(epsilon=1.0, budget=3.0, mechanism="optimal").on(STICKY))
    with closing(sqlite3.connect(path)) as sql:
        disclosed = json.loads(sql.execute("SELECT value FROM facts WHERE name = 'setting'").fetchone()[0])
    assert disclosed["budget"]["ldp"] == 2.0


@pytest.mark.slow
def test_the_commands_take_it_and_an_audit_checks_it(tmp_path, capsys):
    rows = "".join(f"u{k % 3},{k // 3},{k % 2}\n" for k in range(60))
    (tmp_path / "data.csv").write_text("user,seq,value\n" + rows)
    where = [str(tmp_path / name) for name in ("data.csv", "m", "out.csv")]
    assert main(["fit", where[0], "-o", where[1], "--smoothing", "1"]) == 0
    policy = promise(epsilon=0.5, budget=Budget(ldp_total=3.0))
    assert main(["release", where[0], "-m", where[1], *policy, "--out", where[2], "--json"]) == 0
    side = json.loads((tmp_path / "out.csv.meta.json").read_text())
    assert side["setting"]["budget"]["ldp"] == 3.0
    capsys.readouterr()
    assert main(["audit", where[2], "-m", where[1], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checks"]["ldp_total"] is True
    assert found["ldp"] == pytest.approx(3.0)
    shutil.copy(where[2], tmp_path / "bare.csv")
    assert main(["audit", str(tmp_path / "bare.csv"), "-m", where[1], *promise(epsilon=0.5)]) != 0
    assert main(["audit", str(tmp_path / "bare.csv"), "-m", where[1], *policy]) == 0
