"""The attack without a model: its bounds, its false-alarm rate, and the failures it must find."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest
from scipy import sparse, stats
from typer import Typer
from typer.testing import CliRunner

import seqveil as sv
from benchmarks.attack import habits
from seqveil.core.alphabet import UNKNOWN, Alphabet
from seqveil.core.errors import InputError
from seqveil.evaluate import attack
from seqveil.evaluate.attack_bounds import AttackSample, Ratio, noticeable, share_low, times_needed
from seqveil.evaluate.attack_features import Windows, features
from seqveil.evaluate.attack_files import AttackedPeople, _events, attack_file, read_people
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
        assert share_low(count, of, 0.05) == pytest.approx(exact.low, abs=1e-12)
    down = math.log(0.9 / share_low(90, 100, 0.01))
    up = math.log((1 - share_low(90, 100, 0.01)) / 0.1)
    assert Ratio(0.9, 0.1, 100, 100).low(0.01) == pytest.approx(math.log(9) - math.hypot(down, up))
    assert Ratio(0.0, 0.1, 100, 100).low(0.05) == -math.inf


@pytest.mark.parametrize(("has", "has_not"), [(20, 20), (20, 80), (60, 20)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_of_independent_people_no_promise_that_holds_is_refuted_too_often(
    has: int, has_not: int, epsilon: float
) -> None:
    """Every outcome of a set that is exactly e^ε likelier with the secret, at many sizes of the set: 5 % at most."""
    ones, noughts = np.arange(has + 1), np.arange(has_not + 1)
    refuted = np.array([[Ratio(k / has, j / has_not, has, has_not).low(0.05) > epsilon for j in noughts] for k in ones])
    for share in np.geomspace(0.2 / has_not, math.exp(-epsilon), 40):
        right = stats.binom.pmf(ones, has, min(share * math.exp(epsilon), 1.0))
        assert right @ refuted @ stats.binom.pmf(noughts, has_not, share) <= 0.05


# Of two types of people: how many, how often they have the secret, how often they are in R without it, with it (up to a
# factor), and how many windows they have. The factor makes R exactly e times as likely with the secret as without.
TYPES_OF_PEOPLE = {
    "alike": ((1.0, 0.0), (0.3, 0.3), (0.1, 0.1), (1, 1), 10),
    "some are often in R": ((0.8, 0.2), (0.3, 0.3), (0.02, 0.3), (0.02, 0.3), 10),
    "and their streams are unequal": ((0.8, 0.2), (0.3, 0.3), (0.02, 0.3), (0.02, 0.3), None),
    "who have the secret often are in R often": ((0.5, 0.5), (0.05, 0.6), (0.01, 0.2), (0.01, 0.2), 10),
    "very few are often in R": ((0.95, 0.05), (0.2, 0.2), (0.005, 0.36), (0.005, 0.36), 10),
    "very few are always in R without the secret": ((0.97, 0.03), (0.3, 0.3), (0.01, 1.0), (1, 1), 50),
}


def types_of_people(kind: str, people: int, rng: np.random.Generator) -> tuple[AttackSample, np.ndarray]:
    """Windows of people of two types, and which of them are in R."""
    *given, windows = TYPES_OF_PEOPLE[kind]
    share, prior, without, with_it = (np.array(part) for part in given)
    false = share @ ((1 - prior) * without) / (share @ (1 - prior))
    with_it = with_it * math.e * false * (share @ prior) / (share @ (prior * with_it))
    assert with_it.max() <= 1.0
    several = (
        np.maximum(1, rng.lognormal(1.5, 1.2, people).astype(int)) if windows is None else np.full(people, windows)
    )
    owners = np.repeat(np.arange(people), several)
    numbers = np.concatenate([np.arange(k) for k in several])
    mine = rng.choice(2, people, p=share)[owners]
    truth = rng.random(owners.size) < prior[mine]
    inside = rng.random(owners.size) < np.where(truth, with_it[mine], without[mine])
    return AttackSample(owners, numbers, truth), inside


@pytest.mark.slow
@pytest.mark.parametrize("people", [60, 300])
@pytest.mark.parametrize("kind", TYPES_OF_PEOPLE)
def test_windows_of_one_person_are_no_independent_people(kind: str, people: int) -> None:
    """At exactly ε, whatever the windows of one person have in common: 5 % false alarms of 400 attacks.

    A bound of exactly 5 % fails with a probability below 1e-4 (binomial, 400 draws, at most 38 alarms).
    """
    assert stats.binom.sf(38, 400, 0.05) < 1e-4
    rng, alarms = np.random.default_rng(11), 0
    for _ in range(400):
        sample, inside = types_of_people(kind, people, rng)
        alarms += sample.ratio(inside).low(0.05) > 1.0
    assert alarms <= 38


def test_windows_of_one_number_are_compared_with_one_another() -> None:
    """First windows mostly have the secret and second ones mostly not, and the set is that of all first windows."""
    rng = np.random.default_rng(1)
    owners, numbers = np.repeat(np.arange(500), 2), np.tile([0, 1], 500)
    truth = rng.random(1000) < np.where(numbers == 0, 0.9, 0.1)
    sample = AttackSample(owners, numbers, truth)
    assert sample.ratio(numbers == 0).estimate == pytest.approx(0.0, abs=1e-12)
    one = AttackSample(np.arange(6), np.zeros(6, int), np.array([1, 1, 1, 0, 0, 0], bool))
    seen = one.ratio(np.array([1, 1, 0, 1, 0, 0], bool))
    assert (seen.true, seen.false, seen.worth_true, seen.correlation) == pytest.approx((2 / 3, 1 / 3, 3, 0))


def test_a_leak_is_noticeable_where_it_is_noticed_in_four_of_five_attacks() -> None:
    rng, people = np.random.default_rng(2), Ratio(0.1, 0.1, 300, 700)
    leak = noticeable(people, 0.5, "up", 0.05)
    assert leak is not None
    right, wrong = rng.binomial(300, 0.1 * math.exp(leak), 400) / 300, rng.binomial(700, 0.1, 400) / 700
    noticed = np.mean([Ratio(a, b, 300, 700).low(0.05) > 0.5 for a, b in zip(right, wrong, strict=True)])
    assert 0.78 < noticed < 0.99
    assert noticeable(Ratio(0.1, 0.1, 5, 5), 3.0, "both", 0.05) is None
    times = times_needed(people, 0.1, "both", 0.05)
    assert times is not None
    more = noticeable(people.of_more(times), 0.1, "both", 0.05)
    assert more is not None
    assert more <= 0.2


def test_every_whole_window_whose_values_are_known_is_attacked() -> None:
    secret = sv.secrets.ever("health", window=2, epsilon=1).over(ALPHABET)
    found = attack.windows_of(secret, [np.array([0, 2, 1, 1, 2]), np.array([-4, 0, 2, 2])])
    assert found.owners.tolist() == [0, 0, 1]
    assert found.numbers.tolist() == [0, 1, 1]
    assert found.begins.tolist() == [0, 2, 2]
    assert found.values.tolist() == [1, 0, 1]
    whole = attack.windows_of(sv.secrets.ever("health", epsilon=1).over(ALPHABET), [np.array([0, 2]), np.array([1])])
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
        windows = {"owners": owners, "numbers": numbers, "scores": {"disclosed": score}}
        disclosed_of = {"about": "", "attackers": {}, "seed": run, "false_alarm": 0.2}
        found = attack.attack_labels(
            sparse.csr_array(score[:, None]), {"it": secret}, epsilon, **windows, **disclosed_of
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
@pytest.mark.parametrize("same", [True, False])
def test_a_habit_of_one_day_of_seven_is_found(same: bool) -> None:
    found = attack.attack_secret(*habits(same), 1.0)
    assert found.verdict == "broken"
    assert found.epsilon_at_least > 1.7


@pytest.mark.slow
def test_the_other_weeks_of_a_person_betray_this_one() -> None:
    """Two kinds of people, of whom one week says little: weeks of strangers are safe, weeks of one person are not."""
    rng, secret = np.random.default_rng(3), sv.secrets.ever("health", window=7, epsilon=1.0).over(ALPHABET)
    often = np.repeat(rng.random(150) < 0.5, 10)
    has = rng.random(1500) < np.where(often, 0.9, 0.1)
    weeks = np.where(rng.random((1500, 7)) < np.where(often, 0.6, 0.4)[:, None], 1, 0)
    truth = weeks.copy()
    truth[has, 3] = 2
    apart = attack.attack_secret(list(weeks), list(truth), secret, 1.0)
    assert apart.verdict != "broken"
    together = attack.attack_secret(list(weeks.reshape(150, 70)), list(truth.reshape(150, 70)), secret, 1.0)
    assert (together.verdict, together.people, together.windows) == ("broken", 150, 1500)
    assert together.epsilon_at_least > 1.2


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
    assert f"a leak of {found.epsilon_noticeable:.3g} would have been noticed" in found.sentence
    few = attack.attack_secret(noise[:150], truth[:150], secret, 0.5)
    assert few.verdict == "not decided"
    assert few.people_needed is not None
    assert few.people_needed > 150
    tiny = attack.attack_secret(noise[:30], truth[:30], secret, 0.5)
    assert (tiny.verdict, tiny.guess) == ("not decided", None)
    assert "people to decide" in few.sentence


def test_an_estimate_above_the_promise_is_never_called_not_refuted() -> None:
    """Randomised response on the secret at ε = 1.2, where 1 was promised, of few people: all sentences agree."""
    rng = np.random.default_rng(5)
    keep, verdicts = math.exp(1.2) / (1 + math.exp(1.2)), set()
    for run, count in enumerate([400] * 10 + [4000] * 3):
        secret = rng.random(count) < 0.4
        score = np.where(rng.random(count) < keep, secret, ~secret) + rng.random(count) * 1e-3
        seen, more = sparse.csr_array(score[:, None]), {"scores": {"disclosed": score}, "attackers": {}, "seed": run}
        found = attack.attack_labels(seen, {"it": secret}, 1.0, about="it", **more)  # type: ignore[arg-type]
        assert found.epsilon_estimate is not None
        assert found.guess is not None
        assert math.log(found.guess.likelihood_ratio) == pytest.approx(found.epsilon_estimate)
        assert (found.verdict == "broken") == (found.epsilon_at_least > 1)
        assert found.verdict != "not refuted" or found.epsilon_estimate <= 1
        assert found.sentence.startswith(f"{found.verdict}: promised ε = 1, the attack shows ")
        assert ("would have been noticed" in found.sentence) == (found.verdict == "not refuted")
        assert ("it would take" in found.sentence) == (found.people_needed is not None)
        verdicts.add(found.verdict)
    assert "not decided" in verdicts


@pytest.mark.slow
def test_one_side_is_attacked_on_that_side_only() -> None:
    """Whoever has the secret never shows the symbol 1: the odds fall without bound and rise by little."""
    rng = np.random.default_rng(4)
    has = rng.random(4000) < 0.5
    disclosed = [np.array([0]) if h else rng.integers(2, size=1) for h in has]
    rows = np.zeros(4000, np.int64)
    seen = features(disclosed, 2, Windows(np.arange(4000), rows, rows, rows, 1))
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
    seldom = [np.where(rng.random(40) < 0.3, -1, codes) for codes in truth]
    assert attack.attack_identity(seldom, truth, 12, 1.0).verdict == "broken"
    noise = [rng.integers(12, size=40) for _ in truth]
    assert attack.attack_identity(noise, truth, 12, 1.0).verdict == "not refuted"
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
    for disclosed, true in zip(found.releases, found.truth, strict=True):
        assert disclosed.tolist() == true.tolist()


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
    assert (facts["verdict"], facts["people"], facts["windows"]) == ("broken", 1000, 1000)
    assert facts["epsilon_estimate"] >= facts["epsilon_at_least"]
    assert facts["epsilon_noticeable"] > 1.6
    assert facts["epsilon_claimed"] == pytest.approx(2 * 0.8)
    assert facts["epsilon_at_least"] > 1.6
    assert [one["about"] for one in facts["attacks"]][1] == "who it is"
    assert picture.stat().st_size > 10_000
    disclosed = CliRunner().invoke(app, [str(out), *run[:-2], "--secret-epsilon", "0.5"]).output
    assert "broken: promised ε = 0.5" in disclosed


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


def test_frequent_values_are_found_beside_values_outside_the_alphabet():
    streams = [np.array([0, 1, UNKNOWN]), np.array([1, 1])]
    people = AttackedPeople(Alphabet(["a", "b", "c"]), streams, streams, None, None, None)
    assert [secret.values for secret in _events(people)] == [("b",), ("a",)]


def test_what_was_promised_about_a_stream_is_its_budget_where_that_is_less(tmp_path):
    model = sv.MarkovModel([0.5, 0.4, 0.1], TABLE, alphabet=NAMES)
    frame = [(f"u{k}", NAMES[code]) for k, stream in enumerate(people(5)) for code in stream]
    data = pl.DataFrame(frame, schema=["user", "value"], orient="row")
    for budget, want in ((None, 1.6), (0.5, 0.5)):
        made = sv.release(data, model, sv.Policy(epsilon=0.2, budget=budget))
        assert read_people(made.frame, data, model, made.meta).total == pytest.approx(want)
