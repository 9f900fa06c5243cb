"""Every spelling of a secret in docs/secrets.md: the same in Python, on the command line and in TOML, and run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from seqveil.core.alphabet import Grid
from seqveil.core.slots import Slots
from seqveil.interfaces.commands.options import SecretOptions
from seqveil.interfaces.commands.secrets import from_toml, parse

PAGE = (Path(__file__).parent.parent / "docs" / "secrets.md").read_text(encoding="utf-8")
NAMES = ["home", "clinic", "health", "travel"]
ROWS = np.array([[0.5, 0.2, 0.2, 0.1], [0.3, 0.4, 0.1, 0.2], [0.4, 0.1, 0.3, 0.2], [0.4, 0.2, 0.2, 0.2]])
SLOTTED = sv.Alphabet(NAMES).with_slots(Slots(7200, empty="hold"))
KINDS_OF_HOMES = [sv.MarkovModel([0.25] * 4, rows, alphabet=SLOTTED) for rows in (ROWS, ROWS[::-1])]
MODEL = sv.MarkovModel.mixture(KINDS_OF_HOMES, [0.5, 0.5], trait=("heating", ["gas", "electric"]))
GRID = sv.MarkovModel([0.25] * 4, ROWS, alphabet=Grid.regular(4, 1, bounds=(0, 4, 0, 2)))


def rows_after(heading):
    """The cells of the table that begins with this heading, without the escapes of Markdown."""
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    table = lines[: next(k for k, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]


KINDS = rows_after("| in Python | on the command line, `--secret` |")
WINDOWS = rows_after("| in Python and TOML | on the command line, `--secret-window` |")
TABLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


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
def test_a_kind_is_the_same_in_python_and_on_the_command_line(row):
    made = eval(quoted(row[0])[0], {name: getattr(sv.secrets, name) for name in sv.secrets.__all__})
    if made.kind == "joint":
        assert not quoted(row[1])
        with pytest.raises(sv.errors.InputError, match="is written ever:A"):
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
def test_the_files_of_the_page_are_released_and_audited(seqveil, files, text):
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
        assert seqveil("audit", files / f"{k}.csv", "-m", model).code == 0
