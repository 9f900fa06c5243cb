"""The Bayes attacker: posteriors against every sequence, and a promise under one chain broken by who knows types."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

import seqveil as sv
from reference.streams import likelihood
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Terms
from seqveil.engine.streams import CodeStreams
from seqveil.evaluate import attack
from seqveil.evaluate.attack.attackers import posteriors
from seqveil.evaluate.attack.features import Windows
from seqveil.interfaces.cli import main
from seqveil.receiver.evidence import Evidence

NAMES = ["a", "b", "c"]
TURNS = sv.MarkovModel([0.5, 0.5, 0.0], [[0.1, 0.899, 0.001], [0.899, 0.1, 0.001], [0.5, 0.499, 0.001]], alphabet=NAMES)
STAYS = sv.MarkovModel([0.5, 0.5, 0.0], [[0.8, 0.08, 0.12], [0.08, 0.8, 0.12], [0.4, 0.4, 0.2]], alphabet=NAMES)
TYPES = sv.MarkovModel.mixture([TURNS, STAYS], [0.5, 0.5])
LENGTH = 10


def named(streams: np.ndarray) -> list[list[str]]:
    return [[NAMES[x] for x in codes] for codes in streams]


def by_all_sequences(
    model: sv.MarkovModel, evidence: Evidence, user: int, secret: sv.secrets.Secret, begin: int, length: int
) -> float:
    """Pr(secret | releases): every sequence, written out."""
    compiled, longest = secret.over(model.alphabet), max(int((evidence.users == user).sum()), begin + length)
    found = [0.0, 0.0]
    for x in itertools.product(range(model.n), repeat=longest):
        weight = math.exp(model.log_likelihood(list(x))) * likelihood(evidence, user, x)
        found[compiled.read(list(x[begin : begin + length]))] += weight
    return found[1] / sum(found)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [1, 2])  # what releases follow beside the symbol
@pytest.mark.parametrize("kind", ["chain", "order 2", "types"])
def test_a_posterior_is_that_of_all_sequences(kind: str, cases: int) -> None:
    rng = np.random.default_rng(4)
    model = {
        "chain": TURNS,
        "order 2": sv.MarkovModel.fit(named(TYPES.sample(30, 40, seed=1)), order=2, alphabet=NAMES, smoothing=1.0),
        "types": sv.MarkovModel.mixture([TURNS, STAYS], [0.4, 0.6], 0.1),
    }[kind]
    lengths = [4, 2, 5, 1]
    table = rng.random((12, 3)) + 0.05
    users = np.repeat(np.arange(4), lengths)
    evidence = Evidence(table, users, np.arange(12))
    if cases > 1:
        joins = np.stack([np.eye(2)[rng.integers(0, 2, (2, 3))].transpose(0, 2, 1) for _ in range(4)])
        joins[0], joins[1] = np.eye(2)[:, :, None], 1.0
        evidence = Evidence(table, users, rng.integers(0, 12, (12, 2)), rng.integers(0, 4, 12), joins)
    for secret in (
        sv.secrets.ever("c", window=3, epsilon=1.0),
        sv.secrets.followed_by("a", "c", window="first 3", epsilon=1.0),
        sv.secrets.count("b", 2, window=2, epsilon=1.0),
        sv.secrets.ever("c", window="event", epsilon=1.0),
    ):
        length = secret.length()
        assert length is not None
        owners = np.repeat(np.arange(4), 2 if secret.repeats else 1)
        begins = np.tile([0, length], 4) if secret.repeats else np.zeros(4, np.int64)
        windows = Windows(owners, begins // length, begins, owners, length)
        found = posteriors(evidence, model, secret.over(model.alphabet), windows)
        for k, (user, begin) in enumerate(zip(owners.tolist(), begins.tolist(), strict=True)):
            want = by_all_sequences(model, evidence, user, secret, begin, length)
            assert found[k, 1] == pytest.approx(want, abs=1e-12)


def test_what_a_believers_model_rules_out_tells_nothing() -> None:
    stuck = sv.MarkovModel([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]])  # who begins in one stays there
    sure = np.eye(2)[[0, 1, 0, 0]]  # the second release cannot be
    secret, nobody = sv.secrets.ever(1, window=2, epsilon=1.0).over(stuck.alphabet), np.zeros(2, np.int64)
    evidence = Evidence(sure, np.zeros(4, np.int64), np.arange(4))
    found = posteriors(evidence, stuck, secret, Windows(nobody, np.arange(2), np.array([0, 2]), nobody, 2))
    assert found.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def guarded(people: int, seed: int = 3) -> tuple[Terms, list[np.ndarray], list[np.ndarray], sv.MarkovModel]:
    """People of two types, released under the one chain that was fitted to others of them."""
    chain = sv.MarkovModel.fit(named(TYPES.sample(LENGTH, 4000, seed=1)), alphabet=NAMES)
    setting = sv.Policy(secrets=[sv.secrets.ever("c", window=LENGTH, epsilon=0.5)], mechanism="guarded").on(chain)
    truth = TYPES.sample(LENGTH, people, seed=seed)
    streams = CodeStreams(setting, randomness=SeededRandomness(8))
    disclosed = np.stack([streams.release(range(people), step).codes for step in truth.T], axis=1)
    return setting, list(disclosed), list(truth), chain


@pytest.mark.slow
def test_who_knows_the_types_breaks_a_promise_made_under_one_chain() -> None:
    setting, disclosed, truth, chain = guarded(800)
    secret, evidence = setting.secrets[0].over(chain.alphabet), Evidence.of(setting, disclosed)
    more = {"models": {"types": TYPES}, "evidence": evidence, "attackers": {}}
    bayes = attack.attack_secret(disclosed, truth, secret, 0.5, **more)  # type: ignore[arg-type]
    assert bayes.guess is not None
    assert (bayes.verdict, bayes.guess.attacker) == ("broken", "Bayes with types")
    assert bayes.epsilon_at_least > 1.0
    own = posteriors(evidence, chain, secret, attack.windows_of(secret, truth))[:, 1]
    nothing = Evidence(np.ones((1, 3)), np.array([0]), np.array([0]))
    prior = posteriors(nothing, chain, secret, attack.windows_of(secret, truth[:1]))[0, 1]
    moved = np.log(own / (1 - own)) - math.log(prior / (1 - prior))
    assert np.abs(moved).max() <= 0.5 + 1e-6  # who believes the chain learned no more than was promised
    with pytest.raises(InputError, match="needs evidence"):
        attack.attack_secret(disclosed, truth, secret, 0.5, models={"types": TYPES})


def test_a_promise_that_holds_is_not_broken_by_who_knows_the_truth() -> None:
    """Every release within its ε under the truth, and 2Σε promised: the attacker with the true model finds nothing."""
    setting = sv.Policy(epsilon=0.05, mechanism="optimal").on(TYPES)
    truth = TYPES.sample(LENGTH, 1500, seed=6)
    streams = CodeStreams(setting, randomness=SeededRandomness(2))
    disclosed = list(np.stack([streams.release(range(1500), step).codes for step in truth.T], axis=1))
    secret = sv.secrets.ever("c", window=LENGTH, epsilon=1.0).over(TYPES.alphabet)
    more = {"models": {"types": TYPES, "turns": TURNS}, "evidence": Evidence.of(setting, disclosed), "attackers": {}}
    found = attack.attack_secret(disclosed, list(truth), secret, 2 * LENGTH * 0.05, **more)  # type: ignore[arg-type]
    assert found.verdict != "broken"


@pytest.mark.slow
def test_the_command_attacks_with_other_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, truth, chain = guarded(400)
    rows = [f"u{k},{t},{NAMES[x]}\n" for k, codes in enumerate(truth) for t, x in enumerate(codes)]
    (raw := tmp_path / "raw.csv").write_text("user,seq,value\n" + "".join(rows))
    models = {"chain": chain, "types": TYPES, "other/types": STAYS}
    (tmp_path / "other").mkdir()
    for name, model in models.items():
        model.save(tmp_path / f"{name}.model")
    out = tmp_path / "out.csv"
    call = ["release", raw, "-m", tmp_path / "chain.model", "--secret", "ever:c", "--secret-window", LENGTH]
    assert main([*map(str, call), "--secret-epsilon", "0.5", "--out", str(out), "--seed", "1"]) == 0
    capsys.readouterr()
    call = ["attack", out, "--truth", raw, "--model", tmp_path / "chain.model", "--json"]
    others = ["--with-model", tmp_path / "types.model", "--with-model", tmp_path / "other" / "types.model"]
    assert main(list(map(str, call + others))) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "broken"
    assert found["epsilon_claimed"] == 0.5
    for wrong, message in (
        (["attack", out, "--truth", raw, *others], "pass the release's own model"),
        ([*call, "--with-model", raw], "is not a seqveil model"),
    ):
        assert main(list(map(str, wrong))) != 0
        said = capsys.readouterr().err.strip()
        assert message in said
        assert "\n" not in said
    batched = tmp_path / "batched.csv"
    call_batches = ["release", raw, "-m", tmp_path / "chain.model", "-e", 1, "--batch", 5, "--out", batched]
    assert main(list(map(str, call_batches))) == 0
    assert main(list(map(str, ["attack", batched, *call[2:], *others]))) != 0
    assert "without batches" in capsys.readouterr().err
    digits = sv.MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
    digits.save(tmp_path / "digits.model")
    assert main([*map(str, call), "--with-model", str(tmp_path / "digits.model")]) != 0
    assert "about other values" in capsys.readouterr().err
