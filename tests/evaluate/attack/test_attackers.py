"""The Bayes attacker: posteriors against every sequence, and a promise under one chain broken by who knows types."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from reference.mixtures import mixture
from reference.streams import likelihood
from seqveil.evaluate.attack.attackers import posteriors
from seqveil.evaluate.attack.features import Windows
from seqveil.receiver.evidence import Evidence

NAMES = ["a", "b", "c"]
TURNS = sv.MarkovModel([0.5, 0.5, 0.0], [[0.1, 0.899, 0.001], [0.899, 0.1, 0.001], [0.5, 0.499, 0.001]], alphabet=NAMES)
STAYS = sv.MarkovModel([0.5, 0.5, 0.0], [[0.8, 0.08, 0.12], [0.08, 0.8, 0.12], [0.4, 0.4, 0.2]], alphabet=NAMES)
TYPES = mixture([TURNS, STAYS], [0.4, 0.6], 0.1)


@pytest.mark.parametrize("cases", [1, 2])  # what releases follow beside the symbol
@pytest.mark.parametrize("model", [TURNS, TYPES])
def test_a_posterior_is_that_of_all_sequences(model, cases):
    """Of streams of several lengths, in windows that may end after the last release."""
    rng, lengths = np.random.default_rng(4), [4, 2, 5, 1]
    table, users = rng.random((12, 3)) + 0.05, np.repeat(np.arange(4), lengths)
    evidence = Evidence(table, users, np.arange(12))
    if cases > 1:
        joins = np.stack([np.eye(2)[rng.integers(0, 2, (2, 3))].transpose(0, 2, 1) for _ in range(4)])
        joins[0], joins[1] = np.eye(2)[:, :, None], 1.0
        evidence = Evidence(table, users, rng.integers(0, 12, (12, 2)), rng.integers(0, 4, 12), joins)
    for secret in (
        sv.secrets.followed_by("a", "c", window="first 3", epsilon=1.0),
        sv.secrets.count("b", 2, window=2, epsilon=1.0),
    ):
        length, compiled, each = secret.length(), secret.over(model.alphabet), 2 if secret.repeats else 1
        owners, numbers = np.repeat(np.arange(4), each), np.tile(np.arange(each), 4)
        windows = Windows(owners, numbers, numbers * length, owners, length)
        found = posteriors(evidence, model, compiled, windows)
        for k, (user, begin) in enumerate(zip(owners, windows.begins, strict=True)):
            weights = np.zeros(2)
            for x in itertools.product(range(3), repeat=max(lengths[user], begin + length)):
                value = compiled.read(list(x[begin : begin + length]))
                weights[value] += math.exp(model.log_likelihood(list(x))) * likelihood(evidence, user, x)
            assert found[k] == pytest.approx(weights / weights.sum(), abs=1e-12)


def test_what_a_believers_model_rules_out_reveals_nothing():
    stuck = sv.MarkovModel([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]])  # who begins in one stays there
    sure = np.eye(2)[[0, 1, 0, 0]]  # the second release cannot be
    secret, nobody = sv.secrets.ever(1, window=2, epsilon=1.0).over(stuck.alphabet), np.zeros(2, np.int64)
    evidence = Evidence(sure, np.zeros(4, np.int64), np.arange(4))
    found = posteriors(evidence, stuck, secret, Windows(nobody, np.arange(2), np.array([0, 2]), nobody, 2))
    assert found.tolist() == [[1.0, 0.0], [1.0, 0.0]]


@pytest.mark.slow
def test_who_knows_the_types_breaks_a_promise_made_under_one_chain(tmp_path, seqveil):
    truth = np.array(NAMES)[TYPES.sample(10, 800, seed=3)]
    places = {"user": np.repeat([f"u{k}" for k in range(800)], 10), "seq": np.tile(np.arange(10), 800)}
    pl.DataFrame(places | {"value": truth.ravel()}).write_csv(raw := tmp_path / "raw.csv")
    others = np.array(NAMES)[TYPES.sample(10, 4000, seed=1)]
    chain = sv.MarkovModel.fit(others.tolist(), alphabet=NAMES)
    digits = sv.MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
    model, types, wrong = (tmp_path / f"{name}.model" for name in ("chain", "types", "digits"))
    for path, made in ((model, chain), (types, TYPES), (wrong, digits)):
        made.save(path)
    keeps = sv.Policy(secrets=[sv.secrets.ever("c", window=10, epsilon=0.5)])
    sv.release(raw, chain, keeps, out=(out := tmp_path / "out.csv"), seed=8)
    run = ("attack", out, "--truth", raw)
    done = seqveil(*run, "--model", model, "--with-model", types, "--json")
    assert (done.code, done.json["verdict"], done.json["epsilon_claimed"]) == (1, "broken", 0.5)
    assert done.json["guess"]["attacker"] == f"Bayes with {types}"
    assert sv.attack(out, raw, model=chain, with_model={str(types): TYPES}).to_dict() == done.json
    batched = tmp_path / "batched.csv"
    sv.release(raw, chain, sv.Policy(epsilon=1.0, batch=5), out=batched)
    for call, message in (
        ((*run, "--with-model", types), "pass --model"),
        ((*run, "--model", model, "--with-model", wrong), "about other values"),
        (("attack", batched, *run[2:], "--model", model, "--with-model", types), "in batches"),
    ):
        refused = seqveil(*call)
        assert refused.code not in (0, 1)
        assert message in refused.err
