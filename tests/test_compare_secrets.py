"""`compare` with declared secrets: accounts by enumeration, promises, rows that are kept, the attack, the command."""

from __future__ import annotations

import builtins
import json
import math

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from policies import promise
from reference_secrets import Enumerated, random_model, typed_model
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import stream
from seqveil.evaluate.baselines.declared import Halving
from seqveil.evaluate.comparison import (
    KEEPERS,
    Arena,
    ComparisonRow,
    Contestant,
    Keeper,
    SecretFigures,
    constant,
    line_up_for_secrets,
    race,
    tables,
)
from seqveil.evaluate.comparison.files import jobs
from seqveil.evaluate.comparison.race import _measure

NAMES = ["news", "sports", "health"]
MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], alphabet=NAMES)
# where health is asked for only between two other pages, leaving it out tells as much as naming it
TELLING = sv.MarkovModel(
    [0.9, 0.0, 0.1, 0.0],
    [[0.8, 0.1, 0.1, 0.0], [0.0, 0.1, 0.0, 0.9], [0.5, 0.0, 0.5, 0.0], [0.9, 0.0, 0.0, 0.1]],
    alphabet=["news", "health", "sports", "chemist"],
)
EVER = sv.secrets.ever("health", epsilon=0.5, window="first 6")
LENGTH = 4
EVENT = 0.7  # ε of an event


def public_columns(setting, racer, codes):
    """Columns Q(y|·) of one released stream, from what is public alone."""
    if racer.mechanism == "halving":
        halving, found = Halving(setting.model, setting.secrets), []
        trackers = halving.start
        for code in codes:
            column = halving.choose(trackers)[1][:, code]
            trackers = trackers.observe(column)
            found.append(column / DENOMINATOR)
        return found
    state, found = stream.State.start(setting), []
    for code in codes:
        seen, state = stream.observe(setting, state, np.array([code]))
        found.append(seen.columns[0] / DENOMINATOR)
    return found


def worst_by_enumeration(model, secret, columns):
    """The largest move of the log odds of any window at any time, from all sequences there are."""
    everything, compiled = Enumerated(model, LENGTH), secret.over(model.alphabet)
    size = secret.length()
    windows = range(0, LENGTH, size) if secret.repeats else (0,)
    found = [0.0]
    for first in windows:
        values = everything.values(compiled, first, size)
        for t in range(1, LENGTH + 1):
            move = everything.log_odds(values, 2, columns[:t])
            found.append(move if secret.sides == "up" else abs(move))
    return max(found)


MODELS = [random_model(np.random.default_rng(4), 3), typed_model(np.random.default_rng(5), 2, 2)]
SECRETS = [
    sv.secrets.ever(1, epsilon=0.4, window=f"first {LENGTH}"),
    sv.secrets.ever(0, epsilon=0.6, window=2),
    sv.secrets.followed_by(0, 1, epsilon=0.4, window=f"first {LENGTH}", one_sided=True),
]
RACERS = [
    (Keeper("guarded"), None),
    (Keeper("halving"), None),
    (Keeper("suppression"), None),
    (Keeper("utility_optimised"), EVENT),
    (Keeper("total"), None),
    (Contestant("optimal"), EVENT),
    (Contestant("crr"), EVENT),
]


@pytest.mark.slow
@pytest.mark.parametrize(("racer", "epsilon"), RACERS, ids=lambda part: getattr(part, "label", ""))
@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: f"{secret.name} {secret.window}")
@pytest.mark.parametrize("model", MODELS, ids=["chain", "types"])
def test_what_was_disclosed_equals_enumeration(model, secret, racer, epsilon, longest):
    longest(LENGTH)
    if racer.mechanism in ("suppression", "utility_optimised") and secret.kind == "followed_by" and model.n == 2:
        return  # the secret names every symbol, so there is no other one: see the test of who is refused
    streams = list(model.sample(LENGTH, 12, seed=8))
    arena = Arena.of(model, streams, seed=2, secrets=secret)
    row = race(arena, racer, epsilon)
    disclosed = row.secrets[0]
    setting = racer.setting(arena, epsilon)
    meter = _measure(setting, racer)(setting, SeededRandomness(2), lambda events: None, arena.trackers)
    meter.run(streams)
    found = [
        worst_by_enumeration(model, secret, public_columns(setting, racer, meter.released[user].tolist()))
        for user in range(len(streams))
    ]
    assert disclosed.log_odds_worst == pytest.approx(max(found), abs=1e-9)
    assert disclosed.promised is None or disclosed.log_odds_worst <= disclosed.promised
    if racer.mechanism in ("guarded", "halving"):
        assert disclosed.promised == secret.epsilon
        assert (disclosed.kept, row.status) == (True, "sound")


@pytest.mark.slow
def test_the_whole_line_up_promises_and_keeps_what_it_says():
    arena = Arena.of(MODEL, list(MODEL.sample(6, 15, seed=1)), secrets=[EVER])
    rows = [race(arena, each, 1.0 if each.by_event else None) for each in line_up_for_secrets(["all"], [1, 2])]
    disclosed = {row.label: row.secrets[0] for row in rows if row.status != "skipped"}
    assert len(disclosed) > 14
    for label, one in disclosed.items():
        if one.promised is not None and one.log_odds_worst is not None:
            assert one.log_odds_worst <= one.promised, label
    assert disclosed["optimal"].promised == 2 * 6 * 1.0
    assert disclosed["randomized_response"].promised == 6 * 1.0
    assert disclosed["optimal, total ε"].promised == 1.0
    for label in ("crr", "mutual_information", "suppression of the named symbols", "utility_optimised"):
        assert disclosed[label].promised is None, label
    assert disclosed["tree, 2 at a time"].log_odds_worst is None  # batches have no account
    assert disclosed["tree, 2 at a time"].promised == 12.0
    by_label = {row.label: row for row in rows}
    assert by_label["guarded"].status == "sound"
    assert by_label["suppression of the named symbols"].status == "no promise"
    shown = tables.by_secret([*rows, constant(arena, 1.0), constant(arena, 2.0)])
    assert [row.label for row, _ in shown[0]].count("best guess, no release") == 1
    assert tables.winner(shown[0]).label == "guarded"


def test_suppression_is_unbounded_where_what_is_left_gives_it_away():
    arena = Arena.of(TELLING, list(TELLING.sample(6, 80, seed=2)), secrets=[EVER])
    row = race(arena, Keeper("suppression"), None)
    disclosed = row.secrets[0]
    assert (disclosed.promised, disclosed.log_odds_worst, disclosed.kept) == (None, math.inf, False)
    assert row.status == "no promise"
    text = tables.secret_markdown([row])
    assert "| nothing | unbounded ✗ |" in text
    kept = race(arena, Keeper("guarded"), None)
    assert kept.secrets[0].log_odds_worst <= EVER.epsilon


@pytest.mark.slow
def test_streams_of_several_lengths_and_secrets():
    secrets = [EVER, sv.secrets.count("sports", 2, epsilon=1.0)]
    streams = [
        codes[:length] for codes, length in zip(MODEL.sample(6, 9, seed=3), [1, 6, 2, 5, 3, 6, 4, 1, 2], strict=True)
    ]
    arena = Arena.of(MODEL, streams, secrets=secrets)
    rows = [race(arena, Keeper(name), 1.0) for name in KEEPERS]
    for row in rows:
        assert (row.users, row.events, len(row.secrets)) == (9, 30, 2)
    assert all(one.kept for one in rows[0].secrets)
    alone = Arena.of(MODEL, streams[:1], secrets=secrets)
    assert race(alone, Keeper("guarded"), None).events == 1
    everything = sv.secrets.ever(NAMES, epsilon=1.0, window=2)
    with pytest.raises(InputError, match="certain"):
        Arena.of(MODEL, streams, secrets=everything)


def test_a_joint_secret_and_a_stream_that_is_too_long():
    both = sv.secrets.joint(EVER, sv.secrets.ever("sports", epsilon=0.5, window="first 6"))
    arena = Arena.of(MODEL, list(MODEL.sample(6, 8, seed=3)), secrets=both)
    disclosed = race(arena, Keeper("guarded"), None).secrets[0]
    assert 0 < disclosed.log_odds_worst <= 0.5
    assert disclosed.secret == "joint(ever:health, ever:sports)"
    with pytest.raises(InputError, match="at most 1000 events here, got one of 1001"):
        Arena.of(MODEL, list(MODEL.sample(1001, 1, seed=3)), secrets=sv.secrets.ever("health", epsilon=1.0))


@pytest.mark.slow
def test_an_attack_on_few_whom_batches_were_tried_on_is_not_decided():
    streams = [MODEL.sample(2, 1, seed=1)[0], *MODEL.sample(6, 90, seed=1)]
    arena = Arena.of(MODEL, streams, secrets=EVER, attack=True, batched_users=1)
    disclosed = race(arena, Contestant("tree", batch=2), 1.0).secrets[0]
    assert (disclosed.verdict, disclosed.people, disclosed.log_odds_worst) == ("not decided", 0, None)


def test_who_has_no_secret_or_no_epsilon_says_so():
    plain = Arena.of(MODEL, list(MODEL.sample(4, 3, seed=1)))
    row = race(plain, Keeper("suppression"), None)
    assert (row.status, row.reason) == (
        "skipped", 'does not fit: "suppression" is about declared secrets; pass secrets to the arena'
    )  # fmt: skip
    assert race(plain, Contestant("optimal"), None).reason.startswith("does not fit: expected epsilon")
    named_all = Arena.of(
        MODEL, plain.streams, secrets=sv.secrets.followed_by("news", ["sports", "health"], window=3, epsilon=1.0)
    )
    assert "name every symbol" in race(named_all, Keeper("suppression"), None).reason


def test_secrets_leave_the_rest_of_a_row_as_it_is():
    arena = Arena.of(MODEL, [np.array([0, 1, 2, 0]), np.array([2, 1])], seed=3, fitted=[np.array([0, 0, 1])])
    row = race(arena, Contestant("optimal"), 1.0)
    assert ComparisonRow.from_json(row.to_json()) == row
    with_secret = race(
        Arena.of(MODEL, arena.streams, seed=3, fitted=arena.fitted, secrets=EVER), Contestant("optimal"), 1.0
    )
    # the account is beside the race, not in it
    assert {**with_secret.to_json(), "secrets": [], "micros": 0} == {**row.to_json(), "micros": 0}
    disclosed = SecretFigures(
        "ever:a", "whether a occurs", 0.5, log_odds_worst=math.inf, epsilon_at_least=0.1, verdict="not refuted"
    )
    kept = ComparisonRow("suppression", "suppression", None, "no promise", secrets=(disclosed, disclosed))
    assert ComparisonRow.from_json(json.loads(json.dumps(kept.to_json()))) == kept


@pytest.mark.slow
def test_the_fingerprint_knows_secrets_and_the_attack():
    streams = list(MODEL.sample(6, 90, seed=1))
    prints = {
        Arena.of(MODEL, streams).fingerprint,
        Arena.of(MODEL, streams, secrets=EVER).fingerprint,
        Arena.of(MODEL, streams, secrets=sv.secrets.ever("health", epsilon=0.4, window="first 6")).fingerprint,
        Arena.of(MODEL, streams, secrets=sv.secrets.ever("health", epsilon=0.5, window=6)).fingerprint,
        Arena.of(MODEL, streams, secrets=[EVER, EVER]).fingerprint,
        Arena.of(MODEL, streams, secrets=EVER, attack=True).fingerprint,
    }
    assert len(prints) == 6
    found = jobs(Arena.of(MODEL, streams, secrets=EVER), [0.5, 1.0], line_up_for_secrets(["optimal"]))
    assert len({job.key for job in found}) == len(found)
    assert [job.epsilon for job in found].count(None) == 4  # once each, whatever ε the others have


@pytest.mark.slow
def test_the_attack_finds_what_is_left_out_and_not_what_is_guarded():
    secret = sv.secrets.ever("health", epsilon=0.5, window="first 8")
    arena = Arena.of(TELLING, list(TELLING.sample(8, 1500, seed=5)), secrets=secret, attack=True)
    leaky, kept = (race(arena, Keeper(name), None).secrets[0] for name in ("suppression", "guarded"))
    assert leaky.verdict == "broken"
    assert leaky.epsilon_at_least > secret.epsilon
    assert kept.verdict != "broken"
    assert kept.epsilon_at_least <= secret.epsilon
    assert leaky.people == kept.people == 1500
    assert "broken (1500 people" in tables.secret_markdown([race(arena, Keeper("suppression"), None)])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    codes = MODEL.sample(6, 200, seed=7)
    users = [f"u{user}" for user in np.repeat(np.arange(200), 6)]
    pl.DataFrame({"user": users, "value": [NAMES[x] for x in codes.ravel()]}).write_csv(folder / "d.csv")
    return folder / "d.csv"


ASKED = promise(secrets=EVER)
QUICK = ("--epsilon", "1", "--mechanisms", "balanced", "--batch", "1", "--test-users", "20")


@pytest.mark.slow
def test_the_command_says_what_every_row_promises_and_disclosed(seqveil, data, tmp_path):
    code, out, err = seqveil("compare", data, *QUICK, *ASKED, "--plot", tmp_path / "race.png")
    assert code == 0, err
    assert "whether health occurs among the first 6 events: ε = 0.5 in total" in out
    head = next(line for line in out.splitlines() if "promises" in line)
    assert head.split() == ["mechanism", "ε", "an", "event", "error", "filtered", "promises", "disclosed", "at", "most"]
    for label in ("★ guarded", "randomized_response, halved", "optimal, total ε", "utility_optimised"):
        assert label in out
    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")
    disclosed = json.loads(seqveil("compare", data, *QUICK, *ASKED, "--json")[1])
    assert (disclosed["attack"], [sv.secrets.from_dict(one) for one in disclosed["secrets"]]) == (False, [EVER])
    rows = {row["label"]: row for row in disclosed["rows"]}
    assert rows["guarded"]["epsilon"] is None
    assert rows["guarded"]["secrets"][0]["promised"] == 0.5
    assert rows["guarded"]["secrets"][0]["log_odds_worst"] <= 0.5
    assert rows["balanced"]["secrets"][0]["promised"] == 12.0
    assert rows["suppression of the named symbols"]["secrets"][0]["promised"] is None
    _, named, _ = seqveil(
        "compare", data, "--epsilon", "1", "--mechanisms", "guarded", "--test-users", "9", *ASKED, "--json"
    )
    assert [row["label"] for row in json.loads(named)["rows"]][2:] == ["guarded"]


@pytest.mark.slow
def test_the_attack_is_a_column(seqveil, data):
    args = ("compare", data, "--epsilon", "1", "--mechanisms", "suppression,guarded", "--test-users", "120", *ASKED)
    code, out, err = seqveil(*args, "--attack", "--markdown")
    assert code == 0, err
    assert "| attack shows | verdict |" in out
    assert "(120 people" in out
    rows = json.loads(seqveil(*args, "--attack", "--json")[1])["rows"]
    kept = next(row for row in rows if row["label"] == "guarded")["secrets"][0]
    assert kept["verdict"] in ("not refuted", "not decided")
    assert kept["people"] == 120
    assert kept["epsilon_at_least"] <= 0.5


@pytest.mark.slow
def test_bad_input_is_one_line(seqveil, data, tmp_path):
    (tmp_path / "no_total.toml").write_text('[[secret]]\never = "health"\n')
    cases = {
        "a declared secret has no epsilon": ("--policy", tmp_path / "no_total.toml"),
        "not in the alphabet": promise(secrets=sv.secrets.ever("zq-secret-77", epsilon=0.5)),
        "at least 40 released people": (*ASKED, "--attack", "--test-users", "39"),
        "got 0; release more": (*promise(secrets=sv.secrets.ever("health", epsilon=1.0, window=7)), "--attack"),
        "--attack is on a declared secret": ("--attack",),
        "expected a mechanism among": (*ASKED, "--mechanisms", "guarded,nonsense"),
        "expected a mechanism among optimal": ("--mechanisms", "suppression"),
        "expected a context such as": ("--context", "nonsense"),
        "--context says what --order says": ("--context", "types:2", "--order", "2"),
    }
    for expected, args in cases.items():
        code, out, err = seqveil("compare", data, *args, "--out", tmp_path / "race")
        assert (code, out, err.count("\n")) == (2, "", 1), (expected, err)
        assert err.startswith("error: "), expected
        assert expected in err, err
        assert "zq-secret-77" not in err
    assert not (tmp_path / "race").exists()


def test_without_the_extra_the_attack_says_so_before_anything_is_released(seqveil, data, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(name="sklearn")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    code, out, err = seqveil("compare", data, *QUICK, *ASKED, "--attack", "--test-users", "100")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the attack needs sklearn" in err


@pytest.mark.slow
def test_secrets_are_kept_from_observers(seqveil, tmp_path, monkeypatch, longest):
    monkeypatch.chdir(tmp_path)
    letters = np.array(NAMES)[MODEL.sample(8, 8, seed=2).ravel()]
    pl.DataFrame({"user": np.repeat(np.arange(8), 8), "value": letters}).write_csv("raw.csv")
    other = sv.MarkovModel([0.4, 0.3, 0.3], np.full((3, 3), 1 / 3), alphabet=sorted(NAMES))
    other.save("other.model")
    args = ("compare", "raw.csv", "--epsilon", 1, "--mechanisms", "guarded", "--json")
    health = sv.secrets.ever("health", epsilon=0.5)
    asked = promise(secrets=health)
    made = seqveil(*args, *promise(secrets=health, observers=str(tmp_path / "other.model")))
    assert made.code == 0, made.err
    assert made.json["observers"] == [other.fingerprint]
    assert made.json["rows"][-1]["secrets"][0]["log_odds_worst"] <= 0.5
    plain = seqveil(*args, *asked).json
    assert "observers" not in plain
    assert plain["rows"][-1]["error"] <= made.json["rows"][-1]["error"]
    longest(5)
    short = seqveil(*args, *asked)
    assert short.code == 2
    assert "at most 5 events" in short.err
