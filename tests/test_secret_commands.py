"""Declared secrets on the command line: released, with and without a state file, audited exactly, decoded, refused."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from policies import promise
from reference_secrets import Enumerated
from seqveil.core.kernel import DENOMINATOR
from seqveil.engine import stream
from seqveil.engine.policy import saved_terms
from seqveil.engine.terms import NO_BOUND

NAMES = ["news", "sports", "health"]
MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], alphabet=NAMES)
LENGTH, USERS = 5, 8


@pytest.fixture
def files(tmp_path):
    """The model and streams of LENGTH events, user by user."""
    MODEL.save(tmp_path / "m.model")
    codes = MODEL.sample(LENGTH, USERS, seed=3)
    rows = [(f"u{user}", seq, NAMES[code]) for user, own in enumerate(codes) for seq, code in enumerate(own)]
    pl.DataFrame(rows, schema=["user", "seq", "value"], orient="row").write_csv(tmp_path / "d.csv")
    return tmp_path


def columns_of(setting, values) -> list[np.ndarray]:
    """What each symbol gives each release of one stream, from the public kernels."""
    state, found = stream.State.start(setting), []
    for code in MODEL.alphabet.encode(values):
        seen, state = stream.observe(setting, state, np.array([code]))
        found.append(seen.columns[0] / DENOMINATOR)
    return found


def worst(secret, setting, released, model=MODEL) -> float:
    """The largest |log B| of any user, window and time, by enumeration; windows that begin before a stream ends."""
    every, compiled = Enumerated(model, 6), secret.over(model.alphabet)
    most = 0.0
    for _, own in released.group_by("user", maintain_order=True):
        columns = columns_of(setting, own["value"].to_list())
        for time in range(1, LENGTH + 1):
            spans = (
                [(0, time)] if secret.length() is None else [(k, secret.length()) for k in range(0, 6, secret.length())]
            )
            for span in spans:
                values = every.values(compiled, *span)
                most = max(most, abs(every.log_odds(values, 2, columns[:time])))
    return most


GUARDED = ("--mechanism", "guarded", "--secret", "ever:health", "--secret-epsilon", "0.5")


@pytest.mark.slow
@pytest.mark.parametrize("window", ["3", "2", "stream"])
@pytest.mark.parametrize(
    "how", [("--policy", "by_symbol.toml"), ("--epsilon", 1), ("--mechanism", "balanced", "-e", 2)]
)
def test_the_account_of_an_audit_is_that_of_an_enumeration(seqveil, files, how, window):
    """Of every mechanism, and of other secrets than those that were kept."""
    kept = sv.secrets.ever("health", epsilon=0.5, window=3)
    sv.Policy(secrets=kept, side_information=0.0).save(files / "by_symbol.toml")
    how = [files / part if part == "by_symbol.toml" else part for part in how]
    made = seqveil("release", files / "d.csv", "-m", files / "m.model", *how, "--out", files / "r.csv")
    assert made.code == 0, made.err
    asked = ("--secret", "ever:health", "--secret-window", window)
    found = seqveil("audit", files / "r.csv", "-m", files / "m.model", *asked, "--json").json
    disclosed = found["secrets"][-1]
    secret = sv.secrets.ever("health", window=None if window == "stream" else int(window), epsilon=1.0)
    saved = json.loads((files / "r.csv.meta.json").read_text())["setting"]
    setting = saved_terms(saved, MODEL)
    exact = worst(secret, setting, pl.read_csv(files / "r.csv"))
    assert disclosed["log_odds_worst"] == pytest.approx(exact, abs=1e-9)
    assert disclosed["log_odds_worst"] >= exact - 1e-12
    assert disclosed["epsilon"] == (0.5 if setting.guards and window == "3" else None)
    assert (disclosed["name"], disclosed["users"]) == ("ever:health", USERS)
    assert "whether health occurs" in disclosed["sentence"]
    assert found["passed"]


@pytest.mark.slow
@pytest.mark.parametrize("state", [False, True])
def test_release_audit_and_decode(seqveil, files, state):
    data, model, out = files / "d.csv", files / "m.model", files / "r.csv"
    kept = ("--state", files / "s.db") if state else ()
    args = ("release", data, "--model", model, *GUARDED, "--secret-window", LENGTH, *kept, "--out", out)
    made = seqveil(*args, "--json")
    assert made.code == 0, made.err
    assert made.json["secrets"][0]["log_odds_worst"] <= 0.5
    assert made.json["whole_sequence"] == NO_BOUND
    assert made.json["composition"] is None
    meta = json.loads((files / "r.csv.meta.json").read_text(), parse_constant=lambda text: pytest.fail(text))
    assert meta["setting"]["secret"] == [sv.secrets.ever("health", epsilon=0.5, window=LENGTH).to_dict()]
    assert meta["secrets"][0]["log_odds_worst"] == made.json["secrets"][0]["log_odds_worst"]
    assert meta["whole_sequence"] == NO_BOUND
    assert pl.read_csv(out).columns == ["user", "seq", "value"]
    checked = seqveil("audit", out, "-m", model, "--json")
    assert checked.code == 0
    found = checked.json
    assert found["checks"]["declared"]
    assert found["checks"]["unchanged"]
    assert found["checks"]["each_release"] is None
    assert found["secrets"][0]["epsilon"] == 0.5
    said = seqveil("audit", out, "-m", model).out
    assert NO_BOUND in said
    assert "every declared secret within its ε" in said
    decoded = seqveil("decode", out, "-m", model, "--out", files / "best.csv")
    assert decoded.code == 0, decoded.err
    assert pl.read_csv(files / "best.csv").height == USERS * LENGTH
    if state:
        before = out.read_bytes()
        assert seqveil(*args).code == 0
        assert out.read_bytes() == before


@pytest.mark.slow
def test_with_an_epsilon_the_rows_have_it(seqveil, files):
    args = ("release", files / "d.csv", "-m", files / "m.model", *GUARDED, "-e", 1, "--out", files / "r.csv")
    assert seqveil(*args).code == 0
    assert set(pl.read_csv(files / "r.csv")["epsilon"]) == {1.0}
    found = seqveil("audit", files / "r.csv", "-m", files / "m.model", "--json").json
    assert found["passed"]
    assert found["leakage"] <= LENGTH
    assert found["checks"]["each_release"]
    assert "whole_sequence" not in found


@pytest.mark.slow
def test_a_side_file_that_is_lost_is_replaced_by_the_options(seqveil, files):
    args = promise(secrets=sv.secrets.ever("health", epsilon=0.5, window=4, one_sided=True))
    assert seqveil("release", files / "d.csv", "-m", files / "m.model", *args, "--out", files / "r.csv").code == 0
    (files / "r.csv.meta.json").unlink()
    found = seqveil("audit", files / "r.csv", "-m", files / "m.model", *args, "--json")
    assert found.code == 0, found.err
    assert found.json["secrets"][0]["epsilon"] == 0.5
    assert found.json["secrets"][0]["log_odds_worst"] <= 0.5
    assert seqveil("decode", files / "r.csv", "-m", files / "m.model", *args, "--out", files / "x.csv").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--secret", "ever:helth", "--secret-epsilon", 0.5), "not in the alphabet"),
        (("--secret", "ever:news,sports,health", "--secret-epsilon", 0.5), "certain or impossible"),
        (("--secret", "count:health:9", "--secret-epsilon", 0.5, "--secret-window", 3), "certain or impossible"),
        (("--secret", "ever:health"), "add --secret-epsilon"),
        (("--secret", "helth", "--secret-epsilon", 1), "written ever:A"),
        (("--mechanism", "guarded"), "keeps declared secrets and got none"),
        (("--mechanism", "guarded", "--epsilon", 1), "keeps declared secrets and got none"),
        (("--secret-epsilon", 1, "--epsilon", 1), "without a secret"),
        (("--secret", "ever:health", "--secret-epsilon", 1, "--secret-window", "day"), "need slots of time"),
        (("--secret", "ever:health", "--secret-epsilon", 1, "--secret-window", "month"), "window must be"),
        (("--secret", "ever:health", "--secret-epsilon", -1), "above 0"),
        (
            ("--secret", "ever:health", "--secret-epsilon", 1, "--mechanism", "optimal", "-e", 1),
            "keeps no declared secrets",
        ),
        (("--secret", "ever:health", "--secret-epsilon", 1, "--batch", 3), "take no batch"),
        (("--secret", "ever:health", "--secret-epsilon", 1, "--budget", 3), "take no batch"),
        (("--policy", "nowhere.toml"), "no such policy file"),
    ],
)
@pytest.mark.parametrize("state", [False, True])
def test_what_cannot_be_kept_is_refused_in_one_line_and_nothing_is_released(seqveil, files, args, words, state):
    kept = ("--state", files / "s.db") if state else ()
    made = seqveil("release", files / "d.csv", "-m", files / "m.model", *args, *kept, "--out", files / "r.csv")
    assert made.code == 2
    assert words in made.err
    assert len(made.err.strip().splitlines()) == 1
    if (files / "r.csv").exists():  # a run that can be gone on with has made its output
        assert (files / "r.csv").read_text().count("\n") <= 1


@pytest.mark.slow
def test_an_audit_refuses_in_one_line(seqveil, files):
    args = ("release", files / "d.csv", "-m", files / "m.model", "-e", 1, "--out", files / "r.csv")
    assert seqveil(*args).code == 0
    for asked, words in (
        (("--secret", "ever:helth"), "not in the alphabet"),
        (("--secret", "ever:health", "--secret-window", "day"), "need slots of time"),
    ):
        found = seqveil("audit", files / "r.csv", "-m", files / "m.model", *asked)
        assert found.code == 2
        assert words in found.err
        assert len(found.err.strip().splitlines()) == 1
    batches = ("release", files / "d.csv", "-m", files / "m.model", "-e", 1, "--batch", 3, "--out", files / "b.csv")
    assert seqveil(*batches).code == 0
    assert "one by one" in seqveil("audit", files / "b.csv", "-m", files / "m.model", "--secret", "ever:health").err


OTHER = sv.MarkovModel([0.2, 0.2, 0.6], [[0.2, 0.3, 0.5], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8]], alphabet=NAMES)
MIXED = sv.MarkovModel.mixture([MODEL, OTHER], [0.5, 0.5])


@pytest.mark.slow
@pytest.mark.parametrize("state", [False, True])
def test_a_secret_is_kept_from_several_observers(seqveil, files, state):
    """Each of them reasons by a model of their own; the side file names these, and receivers need them."""
    out, model, kept = files / "r.csv", files / "m.model", ("--state", files / "s.db") if state else ()
    OTHER.save(files / "other.model")
    MIXED.save(files / "mixed.model")
    names = [str(files / name) for name in ("other.model", "mixed.model")]
    by_symbol = {"side_information": 0.0}  # so that a twin by symbol can follow
    policy = promise(secrets=sv.secrets.ever("health", epsilon=0.5, window=5), observers=names, **by_symbol)
    args = ("release", files / "d.csv", "-m", model, *policy, *kept, "--out", out)
    made = seqveil(*args, "--json")
    assert made.code == 0, made.err
    saved = json.loads((files / "r.csv.meta.json").read_text())["setting"]
    assert saved["observers"] == [OTHER.fingerprint, MIXED.fingerprint]
    without = seqveil("audit", out, "-m", model)
    assert without.code == 2
    assert "name the models of all of them" in without.err
    assert len(without.err.strip().splitlines()) == 1
    found = seqveil("audit", out, "-m", model, *policy, "--json")
    assert found.code == 0, found.err
    setting = saved_terms(saved, MODEL, [MIXED, OTHER])
    secret, released = setting.secrets[0], pl.read_csv(out)
    figures = [worst(secret, setting, released, each) for each in (MODEL, OTHER)]
    assert max(figures) <= found.json["secrets"][0]["log_odds_worst"] + 1e-9 <= 0.5 + 1e-9
    assert found.json["secrets"][0]["log_odds_worst"] == made.json["secrets"][0]["log_odds_worst"]
    for command in ("decode", "stats"):
        written = ("--out", files / "best.csv") if command == "decode" else ()
        assert seqveil(command, out, "-m", model, *policy, *written).code == 0
    if state:
        before = out.read_bytes()
        assert seqveil(*args).code == 0
        assert out.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("state", [False, True])
def test_a_release_says_whether_its_model_was_checked_on_people_held_out(seqveil, files, state):
    codes = MODEL.sample(12, 60, seed=5)
    rows = [(f"u{user}", NAMES[code]) for user, own in enumerate(codes) for code in own]
    pl.DataFrame(rows, schema=["user", "value"], orient="row").write_csv(files / "many.csv")
    assert seqveil("fit", files / "many.csv", "--context", "order:1", "-o", files / "checked.model").code == 0

    def made(model, name, *args):
        kept = ("--state", files / f"{name}.db") if state else ()
        run = seqveil("release", files / "d.csv", "-m", files / model, *args, *kept, "--out", files / f"{name}.csv")
        assert run.code == 0, run.err
        return run.err, json.loads((files / f"{name}.csv.meta.json").read_text())

    said, meta = made("m.model", "never", *GUARDED)
    assert "never checked on held-out people when it was fitted" in said
    assert meta["held_out_check"] is None
    said, meta = made("checked.model", "once", *GUARDED)
    assert "checked on 12 held-out people" in said
    assert meta["held_out_check"]["people"] == 12
    assert meta["held_out_check"]["context"] == "order:1"
    said, meta = made("m.model", "plain", "-e", 1)
    assert "held-out" not in said
    assert "held_out_check" not in meta


def test_an_observer_with_another_alphabet_is_refused_in_one_line(seqveil, files):
    sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=["a", "b"]).save(files / "letters.model")
    policy = promise(secrets=sv.secrets.ever("health", epsilon=0.5), observers=str(files / "letters.model"))
    made = seqveil("release", files / "d.csv", "-m", files / "m.model", *policy, "--out", files / "r.csv")
    assert made.code == 2
    assert "share one alphabet" in made.err
    assert len(made.err.strip().splitlines()) == 1
    assert not (files / "r.csv").exists()
