"""ε is said by whoever asks for a release: nothing takes one by itself."""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module

import polars as pl
import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.core.slots import Slots
from seqveil.interfaces.commands.options import PromiseOptions
from seqveil.interfaces.commands.secrets import from_toml
from seqveil.interfaces.studio.answers import Studio

CODES = sv.Alphabet.codes(2).with_slots(Slots(21_600, empty="hold"))
PAIR = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=CODES)


@pytest.mark.parametrize("mechanism", ["optimal", "auto", "tree"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda mechanism: sv.Session(PAIR, mechanism=mechanism),
        lambda mechanism: sv.Session(PAIR, mechanism=None if mechanism == "optimal" else mechanism, batch=3),
        lambda mechanism: sv.Session(PAIR, mechanism=mechanism, budget=2.0),
        lambda mechanism: sv.Policy(mechanism=mechanism).on(PAIR),
        lambda mechanism: sv.decode_stream(PAIR, [0, 1], mechanism=mechanism),
        lambda mechanism: sv.decode_stream(PAIR, [], mechanism=mechanism),
    ],
)
def test_whoever_says_no_epsilon_is_asked_for_it_in_one_line(ask, mechanism):
    with pytest.raises(InputError, match=r"expected epsilon, .*; say for instance epsilon=1\.0") as caught:
        ask(mechanism)
    assert "\n" not in str(caught.value)


MAKERS = {
    "ever": lambda **said: sv.secrets.ever(1, **said),
    "always": lambda **said: sv.secrets.always(1, **said),
    "count": lambda **said: sv.secrets.count(1, 2, **said),
    "followed_by": lambda **said: sv.secrets.followed_by(0, then=1, **said),
    "pattern": lambda **said: sv.secrets.pattern("0 1", **said),
    "zone": lambda **said: sv.secrets.zone([1], **said),
    "during": lambda **said: sv.secrets.during(1, (6, 18), **said),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_secret_without_epsilon_is_refused_and_one_that_is_only_measured_releases_nothing(make):
    with pytest.raises(InputError, match=r"expected epsilon, .* got none; say for instance epsilon=0\.5") as caught:
        make()
    assert "\n" not in str(caught.value)
    measured = make(epsilon=None)
    assert (measured.epsilon, sv.secrets.from_dict(measured.to_dict())) == (None, measured)
    with pytest.raises(InputError, match="has no epsilon"):
        sv.Policy(secrets=measured)
    with pytest.raises(InputError, match="has no epsilon"):
        sv.decode_stream(PAIR, [0], mechanism="guarded", secrets=[measured])
    tracker = sv.secrets.SecretTracker.start(PAIR, measured)
    for _ in range(3):
        tracker = tracker.observe([0.4, 0.6])
    assert tracker.log_odds != 0


@pytest.mark.parametrize("policy", [{}, {"secret": [{"ever": ["a"]}]}, {"secret": [{"ever": ["a"]}], "epsilon": 1.0}])
def test_the_page_has_no_epsilon_of_its_own_either(policy):
    with pytest.raises(InputError, match="epsilon"):
        Studio().show({"source": "clicks", "policy": policy, "person": 0, "events": 5, "seed": 1})


def test_nor_have_the_options_of_any_command():
    for secret in ({"secret": ["ever:1"]}, {"secret": ["ever:1"], "epsilon": 1.0}):
        with pytest.raises(InputError, match="add --secret-epsilon"):
            PromiseOptions(**secret).made()


def test_no_function_of_the_core_and_the_layers_above_has_an_epsilon_of_its_own():
    """Every parameter called epsilon has no default, or None."""
    found = []
    for info in pkgutil.walk_packages(sv.__path__, "seqveil."):
        if info.name.startswith(("seqveil.core", "seqveil.engine", "seqveil.receiver")):
            module = import_module(info.name) if "compiled" not in info.name else None
            for name, each in vars(module).items() if module is not None else ():
                if callable(each) and getattr(each, "__module__", "") == info.name:
                    found += [(info.name, name)] if _takes_one(each) else []
    assert found == []


def _takes_one(function) -> bool:
    try:
        given = inspect.signature(function).parameters.get("epsilon")
    except (TypeError, ValueError):
        return False
    return given is not None and given.default is not inspect.Parameter.empty and given.default is not None


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
    args = ("-m", files / "m.model", "--policy", files / "s.toml", *kept, "--out", files / "r.csv")
    code, _, err = seqveil("release", files / "d.csv", *args)
    assert code == 2
    assert "has no epsilon" in err
    assert "epsilon=0.5" in err
    assert len(err.strip().splitlines()) == 1
    assert not (files / "r.csv").exists()


def test_one_total_of_a_joint_secret_is_enough():
    shared = '[[secret]]\nepsilon = 0.5\njoint = [{ever = "health"}, {ever = "sports"}]\nwindow = 4\n'
    each = '[[secret]]\njoint = [{ever = "health", epsilon = 0.5}, {ever = "sports", epsilon = 0.5}]\nwindow = 4\n'
    for text in (shared, each):
        (secret,) = from_toml(text)
        assert secret.epsilon == 0.5


@pytest.mark.slow
def test_where_nothing_is_promised_there_is_one_wording_and_the_attack_is_named_last(seqveil, files):
    model, out = files / "m.model", files / "r.csv"
    _, _, released = seqveil("release", files / "d.csv", "-m", model, "--policy", files / "with.toml", "--out", out)
    _, audited, _ = seqveil("audit", out, "-m", model)
    for said in (released, audited):
        assert "no bound" in said
        assert not re.search(r"\binf\b", said)
        assert "seqveil attack" in said.strip().splitlines()[-1]
    _, _, plain = seqveil("release", files / "d.csv", "-m", model, "-e", 1, "--out", files / "p.csv")
    assert "seqveil attack" not in plain
    _, audited, _ = seqveil("audit", files / "p.csv", "-m", model, "--secret", "ever:health", "--secret-window", 4)
    assert "seqveil attack" in audited.strip().splitlines()[-1]
