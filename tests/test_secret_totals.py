"""A secret without a total: nothing is released for it; audits and attacks may still ask about it."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest

import seqveil as sv

MODEL = sv.MarkovModel(
    [0.5, 0.3, 0.2], [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], alphabet=["news", "sports", "health"]
)
WITHOUT = '[[secret]]\never = "health"\nwindow = 4\n'
WITH = '[[secret]]\never = "health"\nwindow = 4\nepsilon = 0.5\n'
JOINT = '[[secret]]\njoint = [{{ever = "health"}}, {{ever = "sports"{}}}]\nwindow = 4\n'


@pytest.fixture
def files(tmp_path):
    MODEL.save(tmp_path / "m.model")
    codes = MODEL.sample(6, 8, seed=3)
    names = MODEL.alphabet.decode(range(3))
    rows = [(f"u{user}", names[code]) for user, own in enumerate(codes) for code in own]
    pl.DataFrame(rows, schema=["user", "value"], orient="row").write_csv(tmp_path / "d.csv")
    (tmp_path / "without.toml").write_text(WITHOUT)
    (tmp_path / "with.toml").write_text(WITH)
    return tmp_path


@pytest.mark.parametrize("text", [WITHOUT, WITH + WITHOUT, JOINT.format("")])
@pytest.mark.parametrize("state", [False, True])
def test_a_file_of_secrets_without_a_total_releases_nothing(seqveil, files, text, state):
    (files / "s.toml").write_text(text)
    kept = ("--state", files / "s.db") if state else ()
    args = ("-m", files / "m.model", "--secrets", files / "s.toml", *kept, "--out", files / "r.csv")
    code, _, err = seqveil("release", files / "d.csv", *args)
    assert code == 2
    assert "has no epsilon" in err
    assert "epsilon=0.5" in err
    assert len(err.strip().splitlines()) == 1
    assert not (files / "r.csv").exists()


def test_nothing_that_releases_takes_a_secret_without_a_total():
    for secret in (*sv.secrets.from_toml(WITHOUT), sv.secrets.parse("ever:health")):
        assert secret.epsilon is None
        with pytest.raises(sv.errors.InputError, match="has no epsilon"):
            sv.Policy(secrets=[secret])


def test_one_total_of_a_joint_secret_is_enough():
    shared = '[[secret]]\nepsilon = 0.5\njoint = [{ever = "health"}, {ever = "sports"}]\nwindow = 4\n'
    each = '[[secret]]\njoint = [{ever = "health", epsilon = 0.5}, {ever = "sports", epsilon = 0.5}]\nwindow = 4\n'
    for text in (shared, each):
        (secret,) = sv.secrets.from_toml(text)
        assert secret.epsilon == 0.5


@pytest.mark.slow
def test_an_audit_asks_about_secrets_without_a_total(seqveil, files):
    data, model, out = files / "d.csv", files / "m.model", files / "r.csv"
    assert seqveil("release", data, "-m", model, "--secrets", files / "with.toml", "--out", out)[0] == 0
    assert seqveil("release", data, "-m", model, "-e", 3, "--out", files / "p.csv")[0] == 0
    for asked in (("--secrets", files / "without.toml"), ("--secret", "ever:health", "--secret-window", 4)):
        found = json.loads(seqveil("audit", out, "-m", model, *asked, "--json")[1])
        assert found["secrets"][0]["epsilon"] == 0.5  # as the side file promises
        code, printed, _ = seqveil("audit", files / "p.csv", "-m", model, *asked, "--json")
        found = json.loads(printed)
        assert code == 0
        assert found["secrets"][0]["epsilon"] is None
        assert found["secrets"][0]["log_odds_worst"] > 0.5
        assert "ε" not in found["secrets"][0]["sentence"]


@pytest.mark.slow
def test_an_attack_asks_about_secrets_without_a_total(seqveil, files):
    pytest.importorskip("sklearn")
    out = files / "r.csv"
    args = ("-m", files / "m.model", "--secrets", files / "with.toml", "--out", out)
    assert seqveil("release", files / "d.csv", *args)[0] == 0
    code, printed, err = seqveil("attack", out, "--truth", files / "d.csv", "--secrets", files / "without.toml")
    assert code == 0, err
    assert "whether health occurs" in printed


@pytest.mark.slow
def test_where_nothing_is_promised_there_is_one_wording_and_the_attack_is_named_last(seqveil, files):
    model, out = files / "m.model", files / "r.csv"
    _, _, released = seqveil("release", files / "d.csv", "-m", model, "--secrets", files / "with.toml", "--out", out)
    _, audited, _ = seqveil("audit", out, "-m", model)
    for said in (released, audited):
        assert "no bound" in said
        assert not re.search(r"\binf\b", said)
        assert "seqveil attack" in said.strip().splitlines()[-1]
    _, _, plain = seqveil("release", files / "d.csv", "-m", model, "-e", 1, "--out", files / "p.csv")
    assert "seqveil attack" not in plain
    _, audited, _ = seqveil("audit", files / "p.csv", "-m", model, "--secret", "ever:health", "--secret-window", 4)
    assert "seqveil attack" in audited.strip().splitlines()[-1]
