"""The Bayes attacker: posteriors against every sequence, and a promise under one chain broken by who knows types."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.streams import CodeStreams
from seqveil.engine.terms import Terms
from seqveil.evaluate import attack
from seqveil.evaluate.attack.attackers import posteriors
from seqveil.evaluate.attack.features import Windows
from seqveil.interfaces.cli import main
from seqveil.receiver.learn import Evidence

NAMES = ["a", "b", "c"]
TURNS = sv.MarkovModel([0.5, 0.5, 0.0], [[0.1, 0.899, 0.001], [0.899, 0.1, 0.001], [0.5, 0.499, 0.001]], alphabet=NAMES)
STAYS = sv.MarkovModel([0.5, 0.5, 0.0], [[0.8, 0.08, 0.12], [0.08, 0.8, 0.12], [0.4, 0.4, 0.2]], alphabet=NAMES)
TYPES = sv.MarkovModel.mixture([TURNS, STAYS], [0.5, 0.5])
LENGTH = 10


def by_all_sequences(
    model: sv.MarkovModel, columns: np.ndarray, secret: sv.secrets.Secret, begin: int, length: int
) -> float:
    """Pr(secret | releases): every sequence, written out."""
    compiled, longest = secret.over(model.alphabet), max(len(columns), begin + length)
    found = [0.0, 0.0]
    for x in itertools.product(range(model.n), repeat=longest):
        weight = math.exp(model.log_likelihood(list(x))) * math.prod(columns[t][x[t]] for t in range(len(columns)))
        found[compiled.read(list(x[begin : begin + length]))] += weight
    return found[1] / sum(found)


@pytest.mark.parametrize("kind", ["chain", "order 2", "types"])
def test_a_posterior_is_that_of_all_sequences(kind: str) -> None:
    rng = np.random.default_rng(4)
    model = {
        "chain": TURNS,
        "order 2": sv.MarkovModel.fit(TYPES.sample(30, 40, seed=1).tolist(), order=2, n=3, smoothing=1.0),
        "types": sv.MarkovModel.mixture([TURNS, STAYS], [0.4, 0.6], 0.1),
    }[kind]
    model = model if kind != "order 2" else sv.MarkovModel._of(model.states, TURNS.alphabet)
    lengths = [4, 2, 5, 1]
    table = rng.random((12, 3)) + 0.05
    users = np.repeat(np.arange(4), lengths)
    evidence = Evidence(table, users, np.arange(12))
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
            want = by_all_sequences(model, table[users == user], secret, begin, length)
            assert found[k, 1] == pytest.approx(want, abs=1e-12)


def test_what_a_believers_model_rules_out_tells_nothing() -> None:
    stuck = sv.MarkovModel([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]])  # who begins in one stays there
    sure = np.eye(2)[[0, 1, 0, 0]]  # the second release cannot be
    secret, windows = sv.secrets.ever(1, window=2, epsilon=1.0).over(stuck.alphabet), [0, 2]
    found = posteriors(
        Evidence(sure, np.zeros(4, np.int64), np.arange(4)),
        stuck,
        secret,
        Windows(np.zeros(2, np.int64), np.arange(2), np.array(windows), np.zeros(2, np.int64), 2),
    )
    assert found.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def guarded(people: int, seed: int = 3) -> tuple[Terms, list[np.ndarray], list[np.ndarray], sv.MarkovModel]:
    """People of two types, released under the one chain that was fitted to others of them."""
    chain = sv.MarkovModel.fit([[NAMES[x] for x in s] for s in TYPES.sample(LENGTH, 4000, seed=1)], alphabet=NAMES)
    setting = sv.Policy(secrets=[sv.secrets.ever("c", window=LENGTH, epsilon=0.5)], mechanism="guarded").on(chain)
    truth = TYPES.sample(LENGTH, people, seed=seed)
    streams = CodeStreams(setting, randomness=SeededRandomness(8))
    disclosed = np.stack([streams.release(range(people), step).codes for step in truth.T], axis=1)
    return setting, list(disclosed), list(truth), chain


@pytest.mark.slow
def test_who_knows_the_types_breaks_a_promise_made_under_one_chain() -> None:
    setting, disclosed, truth, chain = guarded(800)
    secret, evidence = setting.secrets[0].over(chain.alphabet), Evidence.of(setting, disclosed)
    bayes = attack.attack_secret(
        disclosed, truth, secret, 0.5, models={"types": TYPES}, evidence=evidence, attackers={}
    )
    assert bayes.verdict == "broken"
    assert bayes.guess is not None
    assert bayes.guess.attacker == "Bayes with types"
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


def write(path: Path, streams: list[np.ndarray], order: np.ndarray | None = None) -> Path:
    rows = [f"u{k},{t},{NAMES[x]}" for k, s in enumerate(streams) for t, x in enumerate(s)]
    rows = rows if order is None else [rows[k] for k in order]
    path.write_text("user,seq,value\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.slow
def test_the_command_attacks_with_other_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, truth, chain = guarded(400)
    step = np.argsort([t for _ in range(400) for t in range(LENGTH)], kind="stable")
    raw = write(tmp_path / "raw.csv", truth, step)
    chain.save(tmp_path / "chain.model")
    (tmp_path / "other").mkdir()
    TYPES.save(tmp_path / "types.model")
    sv.MarkovModel.fit([[NAMES[x] for x in s] for s in TYPES.sample(20, 500, seed=9)], alphabet=NAMES, order=2).save(
        tmp_path / "other" / "types.model"
    )
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
    assert "one by one" in capsys.readouterr().err
    digits = sv.MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
    digits.save(tmp_path / "digits.model")
    assert main([*map(str, call), "--with-model", str(tmp_path / "digits.model")]) != 0
    assert "about other values" in capsys.readouterr().err
