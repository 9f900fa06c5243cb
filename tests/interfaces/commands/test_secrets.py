"""Every spelling of a secret in docs/secrets.md: the same in Python, on the command line and in TOML, and run."""

from __future__ import annotations

import inspect
import pkgutil
import re
import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from reference.mixtures import mixture
from seqveil.core.alphabet import Grid
from seqveil.core.errors import InputError
from seqveil.core.times import Slots
from seqveil.interfaces.commands.options import SecretOptions
from seqveil.interfaces.commands.secrets import parse

PAGE = (Path(__file__).parents[3] / "docs" / "secrets.md").read_text(encoding="utf-8")
NAMES = ["home", "clinic", "health", "travel"]
ROWS = np.array([[0.5, 0.2, 0.2, 0.1], [0.3, 0.4, 0.1, 0.2], [0.4, 0.1, 0.3, 0.2], [0.4, 0.2, 0.2, 0.2]])
SLOTTED = sv.Alphabet(NAMES).with_slots(Slots(7200, empty="hold"))
KINDS_OF_HOMES = [sv.MarkovModel([0.25] * 4, rows, alphabet=SLOTTED) for rows in (ROWS, ROWS[::-1])]
MODEL = mixture(KINDS_OF_HOMES, [0.5, 0.5], trait=("heating", ["gas", "electric"]))
GRID = sv.MarkovModel([0.25] * 4, ROWS, alphabet=Grid.regular(4, 1, bounds=(0, 4, 0, 2)))


def rows_after(heading):
    """The cells of the table that begins with this heading, without the escapes of Markdown."""
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    table = lines[: next(k for k, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]


KINDS = rows_after("| in Python | on the command line, `--secret` |")
WINDOWS = rows_after("| in Python and TOML | on the command line, `--secret-window` |")
TABLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def from_toml(text):
    return list(sv.Policy.from_dict(tomllib.loads(text)).secrets)


def quoted(cell):
    return re.findall(r"`([^`]*)`", cell)


def typed(cell):
    """What a cell says to type."""
    return quoted(cell)[0].strip('"')


def test_the_page_shows_every_kind_and_window():
    kinds = ("ever", "always", "count", "followed_by", "pattern", "zone", "during", "joint", "trait")
    assert tuple(quoted(row[0])[0].partition("(")[0] for row in KINDS) == kinds
    assert len(WINDOWS) == 5
    declared = [secret for text in TABLES for secret in from_toml(text)]
    assert {secret.kind for secret in declared} == set(kinds)
    assert {type(secret.window) for secret in declared} == {int, str, type(None)}
    assert {"day", "event", "first 20"} <= {secret.window for secret in declared}
    assert all(secret.epsilon is not None for secret in declared)


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row[0].strip("`").partition("(")[0])
def test_a_kind_is_the_same_in_python_in_toml_and_on_the_command_line(row):
    made = eval(quoted(row[0])[0], {name: getattr(sv.secrets, name) for name in sv.secrets.__all__})
    assert from_toml(sv.Policy(secrets=[made]).to_toml()) == [made]
    if made.kind == "joint":
        assert not quoted(row[1])
        with pytest.raises(InputError, match="is written ever:A"):
            parse("joint:home,clinic")
        return
    (disclosed,) = SecretOptions(secret=[typed(row[1])], secret_epsilon=0.5).declared()
    assert disclosed == replace(made, epsilon=0.5)
    assert parse(disclosed.name).values == disclosed.values


@pytest.mark.parametrize("row", WINDOWS, ids=lambda row: row[0].strip('`"'))
def test_a_window_is_the_same_in_python_toml_and_on_the_command_line(row):
    own = "nothing" if not quoted(row[0]) else quoted(row[0])[0]
    (disclosed,) = SecretOptions(secret=["ever:health"], secret_epsilon=0.5, secret_window=typed(row[1])).declared()
    lines = [] if own == "nothing" else [f"window = {own}"]
    (written,) = from_toml("\n".join(["[[secret]]", 'ever = "health"', "epsilon = 0.5", *lines]))
    assert disclosed == written
    assert disclosed.window == (None if own == "nothing" else eval(own))


@pytest.fixture
def files(tmp_path):
    MODEL.save(tmp_path / "m.model")
    GRID.save(tmp_path / "g.model")
    codes = MODEL.sample(12, 4, seed=2)
    users = np.repeat([f"u{user}" for user in range(4)], 12)
    points = GRID.alphabet.points[codes.ravel()]
    rows = {"user": users, "value": [NAMES[code] for code in codes.ravel()], "time": np.tile(np.arange(12) * 7200, 4)}
    pl.DataFrame(rows).write_csv(tmp_path / "d.csv")
    pl.DataFrame({"user": users, "x": points[:, 0], "y": points[:, 1]}).write_csv(tmp_path / "g.csv")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("text", TABLES, ids=["values", "places"])
def test_the_files_of_the_page_are_kept(seqveil, files, text):
    """Each table by itself, since together so many secrets leave hardly anything to tell."""
    places = "zone" in text
    data, model = (files / "g.csv", files / "g.model") if places else (files / "d.csv", files / "m.model")
    columns = ("--value-column", "x,y") if places else ()
    for k, table in enumerate(text.split("[[secret]]")[1:]):
        (files / f"{k}.toml").write_text(f"[[secret]]{table}")
        kept = ("--policy", files / f"{k}.toml")
        made = seqveil("release", data, "-m", model, *columns, *kept, "--out", files / f"{k}.csv", "--json")
        assert made.code == 0, (table, made.err)
        disclosed = made.json["secrets"][0]
        assert disclosed["log_odds_worst"] <= disclosed["epsilon"]


@pytest.mark.parametrize(
    ("c", "words"),
    [(None, "by at most a factor e^0.5 = 1.65"), (0.0, "adds nothing about a secret"), (float("inf"), "may reveal")],
)
def test_a_policy_says_what_it_promises_to_somebody_who_knows_an_event(c, words):
    """And that it bounds nothing else for them."""
    policy = sv.Policy(secrets=sv.secrets.ever("health", epsilon=0.5, window=20), side_information=c)
    (said,) = (text for text in policy.sentences if "already knows a true event" in text)
    assert words in said
    assert said.endswith("is not bounded")
    trait = sv.Policy(secrets=sv.secrets.trait("heating", epsilon=0.5))
    assert not any("already knows" in text for text in trait.sentences)


@pytest.mark.parametrize(
    "text",
    ["", "ever", "ever:", "ever: ", "ever:a,,b", "never:a", "count:a", "count:a:b", "count:a:0", "count:a:-1",
     "followed_by:a", "followed_by:a>", "pattern:(", "zone:1", "zone:a,b,c", "zone:1,2,-3", "zone:1,2,nan",
     "during:a:22",
     "during:a:22-25", "joint:a", "zone:", None, 3],
)  # fmt: skip
def test_command_lines_that_cannot_be_read_say_so_in_one_line(text):
    with pytest.raises(InputError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_secrets_from_toml():
    found = from_toml(
        """secret = [
            { ever = "clinic", epsilon = 0.5, window = 20 },
            { zone = [[0.5, 0.5]], window = "day", epsilon = 0.5 },
            { joint = [{ ever = "home" }, { pattern = "home clinic" }], window = 5, epsilon = 0.7 },
            { joint = [{ ever = "home", epsilon = 0.5 }, { ever = "clinic", epsilon = 0.5 }], window = 4 },
        ]"""
    )
    assert found.pop().epsilon == 0.5
    assert found == [
        sv.secrets.ever("clinic", epsilon=0.5, window=20),
        sv.secrets.zone([(0.5, 0.5)], window="day", epsilon=0.5),
        sv.secrets.joint(
            sv.secrets.ever("home", window=5, epsilon=0.7), sv.secrets.pattern("home clinic", window=5, epsilon=0.7)
        ),
    ]


@pytest.mark.parametrize(
    "text",
    ["", "ever = 'a'", "[[secret]]", "[[secret]]\never='a'\neach='b'", "[[secret]]\never='a'\nepsilon='x'",
     "[[secret]]\ncount='a'", "[[secret]]\never='a'\nhours=[1,2]", "[[secret]]\never={a=1}", "secret = 3",
     "[[secret]]\nvisit='a'", "[[secret]]\njoint='a'", "[[secret]]\njoint=[]", "[[secret]]\never=[]",
     "[[secret]]\nzone={centre=[1,2]}", "[[secret]]\nzone={circle=3}", "[[secret]]\npattern=3",
     "[[secret]]\never='a'\nwindow=2.5", "[[secret]]\nduring='a'\nhours=[1]"],
)  # fmt: skip
def test_toml_that_cannot_be_used_says_so_in_one_line(text):
    with pytest.raises(InputError) as caught:
        from_toml(text)
    assert "\n" not in str(caught.value)


# no ε has a default

CODES = sv.Alphabet(range(2)).with_slots(Slots(21_600, empty="hold"))
PAIR = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=CODES)
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
    with pytest.raises(TypeError, match="'epsilon'"):
        make()
    measured = make(epsilon=None)
    assert (measured.epsilon, sv.secrets.from_dict(measured.to_dict())) == (None, measured)
    with pytest.raises(InputError, match="has no epsilon"):
        sv.Policy(secrets=measured)
    with pytest.raises(InputError, match="has no epsilon"):
        sv.decode_stream(PAIR, [0], mechanism="guarded", secrets=[measured])
    tracker = sv.secrets.SecretTrackers.start(PAIR, measured)
    for _ in range(3):
        tracker = tracker.observe([0.4, 0.6])
    assert tracker.rows[0][0].latest.log_odds != 0


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
