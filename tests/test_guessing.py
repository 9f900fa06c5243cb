"""What the columns of a stranger's file are taken for, and what is asked where that is not sure."""

import polars as pl
import pytest

import seqveil as sv
from seqveil.core.errors import DataError


def roles(rows, **more):
    found = sv.inspect(pl.DataFrame(rows), **more)
    return {role.column: role.role for role in found.roles if role.role != "not used"}, found


def people(count=12, length=6):
    return [f"p{k // length}" for k in range(count * length)]


def test_a_column_that_rises_with_the_rows_of_each_person_gives_their_order():
    who = people()
    minutes = [k % 6 * 15 for k in range(len(who))]
    got, found = roles({"household": who, "t_min": minutes, "wh": [k * 7 % 50 for k in range(len(who))]})
    assert got == {"household": "user", "t_min": "order", "wh": "value"}
    assert "--user-column household --value-column wh --time-column t_min" in found.command


def test_what_falls_or_stands_still_is_no_order():
    who = people()
    for numbers in ([-k for k in range(len(who))], [k // 3 for k in range(len(who))]):
        got, _ = roles({"user": who, "n": numbers, "page": ["a", "b"] * 36})
        assert got == {"user": "user", "page": "value"}


def test_a_value_that_is_only_guessed_is_asked_about():
    who = people()
    got, found = roles({"user": who, "one": [1, 2, 3] * 24, "word": ["a", "b"] * 36, "two": [1, 2] * 36})
    assert got == {"user": "user", "word": "value"}
    assert found.questions[0].startswith("is 'word' the value? It is a guess; 'two', 'one' could be, too.")


def test_places_come_before_numbers_that_repeat():
    who = people()
    rows = {"user": who, "trip": [k // 3 for k in range(len(who))], "gps_lat": [0.1, 0.2] * 36, "gps_lon": [1.0] * 72}
    place = "value, a place on the map"
    assert roles(rows)[0] == {"user": "user", "gps_lat": place, "gps_lon": place}


def test_many_columns_are_said_in_one_line():
    _, found = roles({"user": people(), "value": ["a", "b"] * 36} | {f"c{k}": [0] * 72 for k in range(20)})
    assert sum(name == "column" for name, _ in found.lines()) == 3
    assert any("and 12 more" in text for _, text in found.lines())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"user": ["a", "b"], "seq": [[1, 2], [3]], "at": [[1, 2], [3]]}, "--value-column"),
        ({"a": [0.5, 0.25], "b": [0.1, 0.7]}, "name it with --user-column"),
        ({"user": ["a", "b"], "seq": [1, 2]}, "name it with --value-column"),
    ],
)
def test_what_cannot_be_guessed_is_said_in_one_line(rows, said):
    with pytest.raises(DataError, match=said) as error:
        sv.inspect(pl.DataFrame(rows))
    assert "seqveil inspect" not in str(error.value)


def test_one_event_a_person_is_asked_about():
    _, found = roles({"name": [f"n{k}" for k in range(20)], "code": list("ab") * 10})
    assert "each person has one event" in found.questions[-1]
