"""A look at a file: what its columns are taken for, what is odd or asked, and a command that works when pasted."""

from __future__ import annotations

import json
import shlex

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.cli import main

PERSONAL = "Zq9secret"
WHO = [f"u{k // 6}" for k in range(120)]


def frame(people=30, length=12, seed=1, **more):
    draw = np.random.default_rng(seed)
    rows = {"user": np.repeat([f"u{k}" for k in range(people)], length)}
    page = draw.integers(0, 3, people * length)
    stay = draw.random(page.size) < 0.7
    for k in range(1, page.size):
        page[k] = page[k - 1] if stay[k] else page[k]
    return pl.DataFrame(rows | {"value": [["news", "sport", "weather"][k] for k in page]} | more)


def pasted(found, path, folder):
    """Run the proposed command as it stands."""
    words = shlex.split(found.command)
    assert words[:2] == ["seqveil", "fit"]
    out = words.index("-o") + 1
    words[out] = str(folder / "pasted.model")
    assert main(words[1:]) == 0
    return sv.MarkovModel.load(folder / "pasted.model")


@pytest.mark.slow
def test_what_is_found(tmp_path, capsys):
    path = tmp_path / "clicks.csv"
    frame().write_csv(path)
    found = sv.inspect(path)
    assert (found.users, found.events, found.values) == (30, 360, 3)
    assert [(role.column, role.role) for role in found.roles] == [("user", "user"), ("value", "value")]
    assert found.command == f"seqveil fit {path} -o clicks.model"
    assert pasted(found, path, tmp_path).n == 3
    capsys.readouterr()
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == found.command
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert found.command in shown
    assert "'news'" in shown


@pytest.mark.slow
def test_columns_by_name_and_by_what_they_hold(tmp_path):
    times = [f"2024-05-01T{k // 60 % 24:02}:{k % 60:02}" for k in range(360)]
    odd = frame(checked_in_at=times, note=[f"n{k}" for k in range(360)])
    path = tmp_path / "trips.csv"
    odd.rename({"user": "Person ID", "value": "kind"}).write_csv(path, separator=";")
    found = sv.inspect(path)
    roles = {role.column: role.role for role in found.roles}
    assert roles == {"Person ID": "user", "kind": "value", "checked_in_at": "order", "note": "not used"}
    assert "--user-column 'Person ID' --value-column kind --time-column checked_in_at" in found.command
    assert pasted(found, path, tmp_path).n == 3
    named = sv.inspect(path, user="note", value="kind")
    assert named.users == 360


def test_rare_missing_unsorted_and_tied_rows(tmp_path, capsys):
    values = frame()["value"].to_list()
    values[5], values[17], values[100] = PERSONAL, PERSONAL, None
    rows = frame(time=[(359 - k) // 2 for k in range(360)]).with_columns(pl.Series("value", values))
    path = tmp_path / "d.csv"
    rows.write_csv(path)
    found = sv.inspect(path)
    assert (found.reading["missing"], found.rare, found.rare_events, found.reading["sorted"]) == (1, 1, 2, True)
    assert found.reading["ties"] > 0
    assert {"--missing", "symbol", "--other", "10"} <= set(found.command.split())
    assert PERSONAL not in repr(found)
    assert PERSONAL not in json.dumps(found.to_dict())
    assert list(pasted(found, path, tmp_path).alphabet.values) == ["missing", "news", "other", "sport", "weather"]


def test_numbers_get_a_question_and_not_a_symbol_each(tmp_path):
    draw = np.random.default_rng(2)
    heart = 60 + draw.normal(0, 8, 360).cumsum() % 60
    heart[7] = 1e12
    path = tmp_path / "heart.csv"
    frame().drop("value").with_columns(pl.Series("value", heart)).write_csv(path)
    found = sv.inspect(path)
    assert found.numbers
    assert "--bins auto" in found.command
    assert 10 < pasted(found, path, tmp_path).n < 60
    assert "1e+12" not in str(found)


def test_small_and_bad_files(tmp_path):
    one = tmp_path / "one.csv"
    one.write_text("user,value\na,x\n")
    found = sv.inspect(one)
    assert (found.users, found.events) == (1, 1)
    assert "few" in found.questions[0]
    for text, said in {"user,value\n": "no rows", "user,value\na,\n": "no row has", "a,b\n1,2\n": "no column"}.items():
        one.write_text(text)
        with pytest.raises(DataError, match=said):
            sv.inspect(one)
    with pytest.raises(DataError, match="no such file"):
        sv.inspect(tmp_path / "none.csv")
    with pytest.raises(InputError, match="pipe"):
        sv.inspect("-")
    one.write_text("user,value\n" + "a,5.5\n" * 40)
    assert sv.inspect(one).values == 1


PLACE = "value, a place on the map"
ROLES = {
    "places come before numbers that repeat": (
        {"user": WHO, "trip": [k // 3 for k in range(120)], "gps_lat": [0.1, 0.2] * 60, "gps_lon": [1.0] * 120},
        {"user": "user", "gps_lat": PLACE, "gps_lon": PLACE},
    ),
    "lists that nobody needs": (
        {"user": WHO, "value": ["news", "sport"] * 60, "tags": [["a"], None] * 60}, {"user": "user", "value": "value"},
    ),
    "words before numbers": (
        {"user": WHO, "one": [1, 2, 3] * 40, "word": ["a", "b"] * 60, "two": [1, 2] * 60},
        {"user": "user", "word": "value"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "roles"), ROLES.values(), ids=ROLES)
def test_what_columns_are_taken_for(rows, roles):
    found = sv.inspect(pl.DataFrame(rows))
    assert {role.column: role.role for role in found.roles if role.role != "not used"} == roles
    guess = "is 'word' the value? It is a guess; 'two', 'one' could be, too."
    assert any(question.startswith(guess) for question in found.questions) == ("word" in rows)


def test_the_finest_times_order_rows_and_a_guessed_person_is_asked_about():
    times = [f"{k // 24 % 28 + 1:02}.04.2012 {k % 24:02}:00" for k in range(120)]
    weeks = [f"2012-W{14 + k // 60}" for k in range(120)]
    rows = {"Woche": weeks, "Ausweis": WHO, "Notiz": WHO, "Zeitpunkt": times, "Ort": ["a", "b"] * 60}
    found = sv.inspect(pl.DataFrame(rows))
    assert {role.role: role.column for role in found.roles}["order"] == "Zeitpunkt"
    assert (
        found.questions[0]
        == "is 'Ausweis' the person? It is a guess; 'Notiz', 'Ort' could be, too. Name yours with user="
    )


def test_columns_that_are_named(tmp_path):
    rows = pl.DataFrame({"device": WHO, "breite": [47.1, 47.2, 47.3] * 40, "laenge": [8.1, 8.2] * 60})
    rows.write_parquet(path := tmp_path / "w.parquet")
    found = sv.inspect(path, user="device", value="breite,laenge")
    assert "--user-column device --value-column breite,laenge --grid auto" in found.command
    assert pasted(found, path, tmp_path).n == 100
    with pytest.raises(DataError, match="column 'tags' must hold text or numbers"):
        sv.inspect(rows.with_columns(tags=pl.Series([["a"], None] * 60)), user="device", value="tags")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"user": ["a", "b"], "seq": [[1, 2], [3]], "at": [[1, 2], [3]]}, "name it with value="),
        ({"a": [0.5, 0.25], "b": [0.1, 0.7]}, "name it with user="),
        ({"user": ["a", "b"], "seq": [1, 2]}, "name it with value="),
    ],
)
def test_what_cannot_be_guessed_is_said_in_one_line(rows, said):
    with pytest.raises(DataError, match=said) as error:
        sv.inspect(pl.DataFrame(rows))
    assert "seqveil inspect" not in str(error.value)
