"""The attack without a model: its bounds, its false-alarm rate, and the failures it must find."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import sparse, stats
from typer import Typer
from typer.testing import CliRunner

import seqveil as sv
from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import InputError
from seqveil.evaluate import attack
from seqveil.evaluate.attack_files import attack_file, read_people
from seqveil.evaluate.commands.attack import attack as command

NAMES = ["news", "sport", "health"]
ALPHABET = Alphabet(NAMES)
SECRET = sv.secrets.ever("health", window=8, epsilon=0.5)
TABLE = np.array([[0.85, 0.1, 0.05], [0.2, 0.78, 0.02], [0.3, 0.05, 0.65]])


def people(count: int, length: int = 8, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = np.zeros((count, length), np.int64)
    codes[:, 0] = rng.choice(3, count, p=[0.5, 0.4, 0.1])
    for t in range(1, length):
        codes[:, t] = (rng.random(count)[:, None] > TABLE.cumsum(1)[codes[:, t - 1]]).sum(1)
    return list(codes)


def write(path, streams, epsilon: float | None = None):  # type: ignore[no-untyped-def]
    rows = [
        f"u{k},{t},{NAMES[x]}" + ("" if epsilon is None else f",{epsilon}")
        for k, s in enumerate(streams)
        for t, x in enumerate(s)
    ]
    path.write_text("user,seq,value" + ("" if epsilon is None else ",epsilon") + "\n" + "\n".join(rows) + "\n")
    return path


def test_a_bound_is_that_of_clopper_and_pearson() -> None:
    for count, of in ((0, 5), (3, 10), (10, 10), (180, 400)):
        exact = stats.binomtest(count, of).proportion_ci(0.9, method="exact")
        assert attack.share_low(count, of, 0.05) == pytest.approx(exact.low, abs=1e-12)
    low = math.log(attack.share_low(90, 100, 0.01) / (1 - attack.share_low(90, 100, 0.01)))
    assert attack.log_ratio_low(90, 100, 10, 100, 0.02) == pytest.approx(low)
    assert attack.log_ratio_low(0, 100, 10, 100, 0.05) == -math.inf


def test_features_count_what_was_released_of_each_person() -> None:
    table = attack.features([np.array([0, 1, 1]), np.array([2])], 3).toarray()
    assert table[0, :3].tolist() == [1, 2, 0]
    assert table[1, :3].tolist() == [0, 0, 1]
    assert table[0, 3:6].tolist() == [1, 1, 0]
    assert table[:, 6] == pytest.approx(np.log1p([3, 1]))
    firsts = table[0, 7:16].reshape(3, 3).argmax(1).tolist()
    lasts = table[0, 16:25].reshape(3, 3).argmax(1).tolist()
    assert (firsts, lasts) == ([0, 1, 1], [1, 1, 0])
    assert table[0, 25:34].reshape(3, 3).tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert not table[1, 25:34].any()


@pytest.mark.slow
def test_a_promise_that_just_holds_is_called_broken_no_more_often_than_stated() -> None:
    """Randomised response on the secret itself, at exactly ε: 200 attacks with a false-alarm rate of 20 %.

    A correct bound fails this test with a probability below 1e-6 (binomial, 200 draws, at most 70 alarms).
    """
    rng, epsilon, alarms = np.random.default_rng(7), 0.5, 0
    assert stats.binom.sf(70, 200, 0.2) < 1e-6
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    for run in range(200):
        secret = rng.random(600) < 0.3
        told = np.where(rng.random(600) < keep, secret, ~secret)
        score = told + rng.random(600) * 1e-3
        seen = sparse.csr_array(score[:, None])
        found = attack.attack_labels(
            seen, {"it": secret}, epsilon, about="", scores={"told": score}, attackers={}, seed=run, false_alarm=0.2
        )
        alarms += found.verdict == "broken"
    assert alarms <= 70


@pytest.mark.slow
def test_planted_failures_are_called_broken_with_a_thousand_people() -> None:
    truth, secret = people(1000), SECRET.over(ALPHABET)
    plain = attack.attack_secret(truth, truth, secret, 0.5)
    assert plain.verdict == "broken"
    assert plain.epsilon_at_least > 2
    suppressed = [np.where(codes == 2, 1, codes) for codes in truth]
    assert attack.attack_secret(suppressed, truth, secret, 0.5).verdict == "broken"
    dropped = [codes[codes != 2] if (codes != 2).any() else codes[:1] * 0 for codes in truth]
    assert attack.attack_secret(dropped, truth, secret, 0.5).verdict == "broken"


@pytest.mark.slow
def test_releases_that_tell_nothing_hold_and_too_few_people_decide_nothing() -> None:
    rng = np.random.default_rng(3)
    truth = people(6000)
    secret = SECRET.over(ALPHABET)
    noise = [rng.integers(3, size=8) for _ in truth]
    found = attack.attack_secret(noise, truth, secret, 0.5)
    assert found.verdict == "holds"
    assert found.epsilon_at_least <= 0.5
    few = attack.attack_secret(noise[:150], truth[:150], secret, 0.5)
    assert few.verdict == "not decided"
    assert few.people_needed is not None
    assert few.people_needed > 150
    tiny = attack.attack_secret(noise[:30], truth[:30], secret, 0.5)
    assert (tiny.verdict, tiny.guess) == ("not decided", None)
    assert "people to decide" in few.sentence


@pytest.mark.slow
def test_one_side_is_attacked_on_that_side_only() -> None:
    """Whoever has the secret never shows the symbol 1: the odds fall without bound and rise by little."""
    rng = np.random.default_rng(4)
    has = rng.random(4000) < 0.5
    told = [np.array([0]) if h else rng.integers(2, size=1) for h in has]
    seen = attack.features(told, 2)
    up = attack.attack_labels(seen, {"it": has}, 1.0, about="", sides="up")
    both = attack.attack_labels(seen, {"it": has}, 1.0, about="", sides="both")
    assert up.epsilon_at_least < 0.8
    assert both.verdict == "broken"


@pytest.mark.slow
def test_single_events_are_attacked_where_they_are() -> None:
    truth = people(1200, seed=5)
    every = sv.secrets.ever("health", window="event", epsilon=0.5).over(ALPHABET)
    found = attack.attack_secret(truth, truth, every, 0.5)
    assert found.verdict == "broken"
    assert found.guess is not None
    assert found.guess.wrong == 0


def test_people_are_recognised_by_their_past_or_not() -> None:
    rng = np.random.default_rng(6)
    habits = rng.dirichlet([0.3] * 12, 300)
    truth = [rng.choice(12, 40, p=habit) for habit in habits]
    assert attack.attack_identity(truth, truth, 12, 1.0).verdict == "broken"
    noise = [rng.integers(12, size=40) for _ in truth]
    assert attack.attack_identity(noise, truth, 12, 1.0).verdict == "holds"
    assert attack.attack_identity(noise, truth, 12, 30.0).verdict == "not decided"


def test_files_are_joined_by_person_and_not_by_row(tmp_path) -> None:  # type: ignore[no-untyped-def]
    truth = people(60, seed=8)
    raw = write(tmp_path / "raw.csv", truth)
    lines = raw.read_text().splitlines()
    mixed = sorted(lines[1:], key=lambda row: (int(row.split(",")[1]), row.split(",")[0][::-1]))
    shuffled = tmp_path / "released.csv"
    shuffled.write_text("\n".join([lines[0] + ",epsilon", *(row + ",0.25" for row in mixed)]) + "\n")
    found = read_people(shuffled, raw)
    assert found.total == 2.0
    for told, true in zip(found.releases, found.truth, strict=True):
        assert told.tolist() == true.tolist()


@pytest.mark.slow
def test_the_command_gives_a_verdict_as_json(tmp_path) -> None:  # type: ignore[no-untyped-def]
    truth = people(1000, seed=9)
    raw, out = write(tmp_path / "raw.csv", truth), write(tmp_path / "out.csv", truth, 0.1)
    app = Typer()
    app.command()(command)
    run = ["--truth", str(raw), "--secret", "ever:health", "--secret-window", "8", "--who", "--json"]
    picture = tmp_path / "attack.png"
    done = CliRunner().invoke(app, [str(out), *run, "--plot", str(picture)])
    assert done.exit_code == 1, done.output
    facts = json.loads(done.output)
    assert (facts["verdict"], facts["people"]) == ("broken", 1000)
    assert facts["epsilon_claimed"] == pytest.approx(2 * 0.8)
    assert facts["epsilon_at_least"] > 1.6
    assert [one["about"] for one in facts["attacks"]][1] == "who it is"
    assert picture.stat().st_size > 10_000
    told = CliRunner().invoke(app, [str(out), *run[:-2], "--secret-epsilon", "0.5"]).output
    assert "broken: promised ε = 0.5" in told


def test_bad_input_gets_one_line(tmp_path) -> None:  # type: ignore[no-untyped-def]
    truth = people(50)
    raw, out = write(tmp_path / "raw.csv", truth), write(tmp_path / "out.csv", truth[:40])
    with pytest.raises(ValueError, match="same people; 10 are in one of them only"):
        attack_file(out, raw, secrets=[SECRET])
    with pytest.raises(InputError, match="at least 9 events"):
        attack_file(raw, raw, secrets=[sv.secrets.ever("health", window=9, epsilon=1.0)])
    with pytest.raises(InputError, match="false-alarm rate"):
        attack_file(raw, raw, secrets=[SECRET], false_alarm=2.0)
    with pytest.raises(InputError, match="alphabet"):
        attack_file(raw, raw, secrets=[sv.secrets.ever("weather", window=8, epsilon=1.0)])
