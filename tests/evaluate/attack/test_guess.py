"""The attack without a model: its false-alarm rate, and the failures it must find."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse, stats

import seqveil as sv
from attacks import NAMES, SECRET, people
from benchmarks.attack import habits
from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import InputError
from seqveil.evaluate import attack
from seqveil.evaluate.attack.features import Windows, features
from seqveil.evaluate.attack.guess import attack_trait, windows_of

ALPHABET = Alphabet(NAMES)


class AsShown:
    """An attacker who has nothing to learn: the only column is the score."""

    def fit(self, found, labels):
        return self

    def predict_proba(self, found):
        return np.repeat(found.toarray(), 2, axis=1)


AS_SHOWN = {"disclosed": AsShown}


def one_each(people: int) -> Windows:
    """One window of each person."""
    nothing = np.zeros(people, np.int64)
    return Windows(np.arange(people), nothing, nothing, nothing, 1)


def test_every_whole_window_whose_values_are_known_is_attacked() -> None:
    secret = sv.secrets.ever("health", window=2, epsilon=1).over(ALPHABET)
    found = windows_of(secret, [np.array([0, 2, 1, 1, 2]), np.array([-4, 0, 2, 2])])
    assert found.owners.tolist() == [0, 0, 1]
    assert found.numbers.tolist() == [0, 1, 1]
    assert found.begins.tolist() == [0, 2, 2]
    assert found.values.tolist() == [1, 0, 1]
    whole = windows_of(sv.secrets.ever("health", epsilon=1).over(ALPHABET), [np.array([0, 2]), np.array([1])])
    assert (whole.values.tolist(), whole.length) == ([1, 0], None)


def test_features_count_what_was_released_of_each_person_and_in_each_window() -> None:
    releases = [np.array([0, 1, 1, 0]), np.array([1, 1])]
    table = features(releases, 3, Windows(*np.array([[0, 0, 1], [0, 1, 0], [0, 2, 0], [0, 0, 0]]), length=2)).toarray()
    assert table[:, :2].tolist() == [[2, 2], [2, 2], [2, 0]]  # symbols are numbered by how frequent they are
    assert table[:, 2:4].tolist() == [[1, 1], [1, 1], [1, 0]]
    assert table[:, 4] == pytest.approx(np.log1p([4, 4, 2]))
    assert not np.array_equal(table[0], table[1])


@pytest.mark.slow
def test_a_promise_that_just_holds_is_called_broken_no_more_often_than_stated() -> None:
    """Randomised response on the secret of each window, at exactly ε: 200 attacks with a false-alarm rate of 20 %.

    People have five windows each, and some have the secret in most of them. A correct bound fails this test with a
    probability below 1e-6 (binomial, 200 draws, at most 70 alarms).
    """
    rng, epsilon, alarms = np.random.default_rng(7), 0.5, 0
    assert stats.binom.sf(70, 200, 0.2) < 1e-6
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    owners, numbers = np.repeat(np.arange(300), 5), np.tile(np.arange(5), 300)
    for run in range(200):
        secret = rng.random(1500) < rng.choice([0.1, 0.8], 300, p=[0.7, 0.3])[owners]
        disclosed = np.where(rng.random(1500) < keep, secret, ~secret)
        score = disclosed + rng.random(1500) * 1e-3
        windows = Windows(owners, numbers, numbers, secret.astype(np.int64), 1)
        found = attack.attack_labels(
            sparse.csr_array(score[:, None]), windows, {"it": secret}, epsilon, about="", attackers=AS_SHOWN,
            seed=run, false_alarm=0.2,
        )  # fmt: skip
        alarms += found.verdict == "broken"
    assert alarms <= 70


@pytest.mark.slow
def test_planted_failures_are_called_broken_with_a_thousand_people() -> None:
    truth, secret = people(1000), SECRET.over(ALPHABET)
    suppressed = [np.where(codes == 2, 1, codes) for codes in truth]
    assert attack.attack_secret(suppressed, truth, secret, 0.5).epsilon_at_least > 0.5
    dropped = [codes[codes != 2] if (codes != 2).any() else codes[:1] * 0 for codes in truth]
    assert attack.attack_secret(dropped, truth, secret, 0.5).verdict == "broken"


@pytest.mark.slow
def test_a_habit_of_one_day_of_seven_is_found() -> None:
    found = attack.attack_secret(*habits(same=False), 1.0)
    assert found.verdict == "broken"
    assert found.epsilon_at_least > 1.7


@pytest.mark.slow
def test_releases_that_reveal_nothing_are_not_refuted_and_too_few_people_decide_nothing() -> None:
    rng = np.random.default_rng(3)
    truth = people(6000)
    secret = SECRET.over(ALPHABET)
    noise = [rng.integers(3, size=8) for _ in truth]
    found = attack.attack_secret(noise, truth, secret, 0.5)
    assert found.verdict == "not refuted"
    assert found.epsilon_estimate is not None
    assert found.epsilon_noticeable is not None
    assert found.epsilon_at_least <= found.epsilon_estimate <= 0.5 < found.epsilon_noticeable <= 1.0
    few = attack.attack_secret(noise[:150], truth[:150], secret, 0.5)
    assert few.verdict == "not decided"
    assert few.people_needed > 150
    assert few.sentence.endswith(f"; it would take about {few.to_dict()['people_needed']:,} people to decide")
    tiny = attack.attack_secret(noise[:30], truth[:30], secret, 0.5)
    assert (tiny.verdict, tiny.guess) == ("not decided", None)
    assert tiny.sentence.endswith(f"; it would take about {tiny.people_needed:,} people to attack it")


def test_an_estimate_above_the_promise_is_never_called_not_refuted() -> None:
    """Randomised response on the secret at ε = 1.2, where 1 was promised, of few people: all sentences agree."""
    rng = np.random.default_rng(5)
    keep, verdicts = math.exp(1.2) / (1 + math.exp(1.2)), set()
    for run, count in enumerate([400] * 10 + [4000] * 3):
        secret = rng.random(count) < 0.4
        score = np.where(rng.random(count) < keep, secret, ~secret) + rng.random(count) * 1e-3
        seen, more = (
            sparse.csr_array(score[:, None]),
            {"attackers": AS_SHOWN, "seed": run},
        )
        found = attack.attack_labels(seen, one_each(count), {"it": secret}, 1.0, about="it", **more)  # type: ignore[arg-type]
        assert found.epsilon_estimate is not None
        assert found.guess is not None
        assert math.log(found.guess.likelihood_ratio) == pytest.approx(found.epsilon_estimate)
        assert (found.verdict == "broken") == (found.epsilon_at_least > 1)
        assert found.verdict != "not refuted" or found.epsilon_estimate <= 1
        assert found.sentence.startswith(f"{found.verdict}: promised ε = 1, the attack shows ")
        verdicts.add(found.verdict)
    assert "not decided" in verdicts


@pytest.mark.slow
def test_one_side_is_attacked_on_that_side_only() -> None:
    """Whoever has the secret never shows the symbol 1: the odds fall without bound and rise by little."""
    rng = np.random.default_rng(4)
    has = rng.random(4000) < 0.5
    disclosed = [np.array([0]) if h else rng.integers(2, size=1) for h in has]
    seen = features(disclosed, 2, one_each(4000))
    up = attack.attack_labels(seen, one_each(4000), {"it": has}, 1.0, about="", sides="up")
    both = attack.attack_labels(seen, one_each(4000), {"it": has}, 1.0, about="", sides="both")
    assert up.epsilon_at_least < 0.8
    assert both.verdict == "broken"


@pytest.mark.slow
def test_a_label_of_the_person_is_attacked_from_all_that_was_released() -> None:
    """Two kinds of people who differ in how often they read sport; some did not say which they are."""
    rng = np.random.default_rng(9)
    kind = rng.integers(2, size=800)
    disclosed = [np.where(rng.random(30) < (0.6 if k else 0.4), 1, 0) for k in kind]
    answers = [None if rng.random() < 0.1 else ("yes" if k else "no") for k in kind]
    found = attack_trait(disclosed, answers, 3, 1.0, about="heating")
    assert (found.verdict, found.about, found.windows) == ("broken", "heating", found.people)
    assert found.people == sum(answer is not None for answer in answers)
    mixed = [answers[k] for k in rng.permutation(800)]
    assert attack_trait(disclosed, mixed, 3, 1.0, about="heating").verdict == "not refuted"
    with pytest.raises(InputError, match="two answers"):
        attack_trait(disclosed, ["yes"] * 800, 3, 1.0, about="heating")
