"""A promise about a secret is said where a mechanism keeps it, and nowhere else: kept, or refused, or measured."""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from seqveil.core import mechanisms
from seqveil.core.errors import InputError
from seqveil.core.words import Risk
from seqveil.engine.policy import saved_terms
from seqveil.engine.streams import CodeStreams
from seqveil.evaluate.baselines.declared import utility_optimised
from seqveil.interfaces.commands.options import PromiseOptions

MODEL = sv.MarkovModel(
    [0.6, 0.3, 0.1], [[0.8, 0.15, 0.05], [0.3, 0.6, 0.1], [0.3, 0.2, 0.5]], alphabet=["news", "sports", "health"]
)
SECRET = sv.secrets.ever("health", epsilon=0.5, window=20)
OTHERS = [name for name in mechanisms.names() if name != "guarded"]
UNSOUND = [name for name in mechanisms.names() if not mechanisms.find(name).sound]
PROMISE = re.compile(r"at most|factor|\bkept\b|nobody|stays between")


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
    measured = sv.secrets.SecretTracker.start(MODEL, SECRET)
    plain = sv.Session(MODEL, mechanism="optimal", epsilon=3.0, seed=1)
    for value in ["health"] * 12 + ["news"] * 8:
        kernel = plain.kernel()
        measured = measured.observe(kernel.column(kernel.outputs.index(plain.release(value))))
    assert measured.worst.worst() > 30
    assert measured.epsilon is None
    assert "measured, not promised" in measured.sentence
    assert not PROMISE.search(measured.sentence)


def ways_to_declare(name):
    """Every interface that makes a setting, with a mechanism that keeps no secrets."""
    batch = 2 if name in mechanisms.batched() else 1
    frame = pl.DataFrame({"user": ["ann"] * 4, "value": ["news", "health"] * 2})
    words = {"mechanism": name, "epsilon": 1.0, "batch": batch}
    return {
        "session": lambda: sv.Session(MODEL, secrets=SECRET, **words),
        "setting": lambda: sv.Policy(secrets=SECRET, **words).on(MODEL),
        "decode": lambda: sv.decode_stream(MODEL, [], secrets=SECRET, **words),
        "frames": lambda: sv.release(frame, MODEL, secrets=SECRET, **words),
        "commands": lambda: PromiseOptions(secret=["ever:health"], secret_epsilon=0.5, **words).made(),
        "files and the page": lambda: sv.Policy.from_dict({"secret": [SECRET.to_dict()], **words}),
    }


@pytest.mark.parametrize("name", OTHERS)
def test_another_mechanism_beside_secrets_is_refused_in_one_line(name):
    for way, declare in ways_to_declare(name).items():
        with pytest.raises(InputError, match=r"(keeps no declared|does not keep) secrets; leave") as refused:
            declare()
        assert "\n" not in str(refused.value), way


def test_a_mechanism_of_ones_own_and_a_saved_setting_are_refused_too():
    with pytest.raises(InputError, match='"utility_optimised" keeps no declared secrets'):
        sv.Policy(epsilon=1.0, secrets=SECRET, mechanism=utility_optimised(MODEL.alphabet, SECRET)).on(MODEL)
    saved = sv.Policy(secrets=SECRET).on(MODEL).to_dict() | {"mechanism": "optimal", "epsilon": 1.0}
    with pytest.raises(InputError, match="keeps no declared secrets"):
        saved_terms(saved, MODEL)


@pytest.fixture
def files(tmp_path):
    MODEL.save(tmp_path / "m.model")
    values = np.array(MODEL.alphabet.decode(range(3)))[MODEL.sample(20, 8, seed=3).ravel()]
    pl.DataFrame({"user": np.repeat(np.arange(8), 20), "value": values}).write_csv(tmp_path / "d.csv")
    return tmp_path


def test_an_audit_measures_what_nothing_keeps_and_promises_nothing(seqveil, files):
    model, out = files / "m.model", files / "r.csv"
    assert seqveil("release", files / "d.csv", "-m", model, "-e", 3, "--yes", "--out", out).code == 0
    asked = ("audit", out, "-m", model, "--secret", "ever:health", "--secret-window", 20)
    for epsilon, clause in ((None, ""), (0.5, "did not stay within ε = 0.5"), (40, "stayed within ε = 40")):
        given = () if epsilon is None else ("--secret-epsilon", epsilon)
        found = seqveil(*asked, *given, "--json").json
        (total,) = found["secrets"]
        assert (total["epsilon"], found["checks"]["declared"]) == (None, None)
        assert total["log_odds_worst"] > 0.5
        assert "measured, not promised" in total["sentence"]
        assert clause in total["sentence"]
        assert bool(clause) == ("ε" in total["sentence"])
        (line,) = [line for line in seqveil(*asked, *given).out.splitlines() if line.startswith("secret")]
        assert not PROMISE.search(line), line
    audited = sv.audit(
        pl.read_csv(out), MODEL, secrets=[SECRET], meta=json.loads((files / "r.csv.meta.json").read_text())
    )
    assert "measured, not promised" in audited._repr_html_()
    assert "factor 1.65" not in audited._repr_html_()


def test_an_audit_of_a_kept_secret_says_its_own_promise_whatever_is_asked_beside_it(seqveil, files):
    model, out = files / "m.model", files / "g.csv"
    kept = ("--secret", "ever:health", "--secret-window", 20)
    assert seqveil("release", files / "d.csv", "-m", model, *kept, "--secret-epsilon", 0.5, "--out", out).code == 0
    cases = {
        (): [0.5],
        kept: [0.5],
        (*kept, "--secret-epsilon", 0.5): [0.5],
        (*kept, "--secret-epsilon", 2): [0.5, None],
        ("--secret", "ever:sports"): [0.5, None],
    }
    for asked, epsilons in cases.items():
        found = seqveil("audit", out, "-m", model, *asked, "--json").json
        assert [total["epsilon"] for total in found["secrets"]] == epsilons
        assert found["checks"]["declared"] is True
        assert "nobody's odds move by more than a factor 1.65" in found["secrets"][0]["sentence"]


def test_streams_say_the_promise_that_they_keep():
    secret = sv.secrets.ever("health", epsilon=0.5, window=4)
    streams = CodeStreams(sv.Policy(secrets=secret).on(MODEL))
    streams.release(["ann"] * 4, [2, 2, 0, 2])
    (total,) = streams.secrets()
    assert (total.epsilon, total.kept, total.sentence) == (0.5, True, secret.sentence)
    assert streams.account("ann").secrets[0].sentence == secret.sentence


@pytest.mark.parametrize("name", UNSOUND)
def test_a_mechanism_that_keeps_to_no_epsilon_says_what_was_measured(name):
    session = sv.Session(MODEL, mechanism=name, epsilon=0.05, batch=2 if name in mechanisms.batched() else 1, seed=1)
    for value in ("news", "news"):
        session.push(value)
    account = session.account
    assert "does not keep to its ε, so nothing is promised" in account.whole_sequence
    for said in (*account.sentences, repr(session)):
        assert not PROMISE.search(said)
    assert "measured, not promised" in account.sentences[-1]
    grade = Risk.of(session.setting, session._state.account).grade
    assert grade.colour == "red"
    assert "does not keep to its ε" in grade.why


def test_an_audit_keeps_no_promise_for_a_mechanism_that_makes_none(seqveil, files):
    for name in ("mutual_information", "crr"):
        out = files / f"{name}.csv"
        assert seqveil("release", files / "d.csv", "-m", files / "m.model", "-e", 0.2, "--mechanism", name, "--yes",
                       "--out", out).code == 0  # fmt: skip
        found = seqveil("audit", out, "-m", files / "m.model", "--json").json
        assert found["checks"]["each_release"] is not True
        assert found["grade"] == "red"
        assert "nothing is promised" in found["whole_sequence"]
