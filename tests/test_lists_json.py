"""Lists in JSON under a model: its type is asked of the entries, and what is no plain value is refused by its row."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import seqveil as sv
from seqveil.core.errors import DataError
from seqveil.interfaces.files.reading import Columns, read

ROWS = [{"user": "a", "value": ["home", "gym"], "time": [1, 2]}, {"user": "b", "value": ["work"], "time": [1]}]


def written(folder: Path, rows: list[dict[str, object]], name: str = "data.jsonl") -> Path:
    path = folder / name
    text = json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows)) + "\n"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["data.json", "data.jsonl"])
def test_text_and_numbers_are_asked_of_the_entries(tmp_path: Path, name: str) -> None:
    text = next(read(written(tmp_path, ROWS, name), value_type="text"))
    assert text.values.to_list() == ["home", "gym", "work"]
    assert text.rows.tolist() == [1, 1, 2]
    numbers = written(tmp_path, [{"user": "a", "value": [1, 2]}, {"user": "b", "value": [3]}], name)
    assert next(read(numbers, value_type="number")).values.to_list() == [1.0, 2.0, 3.0]
    assert next(read(numbers, value_type="text")).values.to_list() == ["1", "2", "3"]


@pytest.mark.parametrize("value_type", ["text", "auto"])
@pytest.mark.parametrize("odd", [["SECRET"], [["SECRET"]], {"page": "SECRET"}, [{"page": "SECRET"}]])
def test_a_list_or_an_object_never_becomes_text(tmp_path: Path, value_type: str, odd: object) -> None:
    single: list[dict[str, object]] = [{"user": "a", "value": "home"}, {"user": "b", "value": odd}]
    with pytest.raises(DataError, match=r"row 2") as single_error:
        list(read(written(tmp_path, single), value_type=value_type))  # type: ignore[arg-type]
    assert "SECRET" not in str(single_error.value)
    if isinstance(odd, list) and isinstance(odd[0], str):
        return
    rows: list[dict[str, object]] = [{"user": "a", "value": ["home"]}, {"user": "b", "value": odd}]
    with pytest.raises(DataError) as error:
        list(read(written(tmp_path, rows), value_type=value_type))  # type: ignore[arg-type]
    assert "SECRET" not in str(error.value)


def test_text_that_begins_with_a_bracket_is_text(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"user": "a", "value": "[home]"}, {"user": "b", "value": "{x"}]
    assert next(read(written(tmp_path, rows))).values.to_list() == ["[home]", "{x"]


def test_lists_that_begin_empty_are_settled_by_later_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqveil.interfaces.files.reading.BLOCK_BYTES", 60)
    rows: list[dict[str, object]] = [{"user": f"u{k}", "value": []} for k in range(8)]
    path = written(tmp_path, [*rows, {"user": "b", "value": ["work", "home"]}])
    chunks = list(read(path))
    assert [each for chunk in chunks for each in chunk.values.to_list()] == ["work", "home"]


def test_times_in_lists_need_values_in_lists() -> None:
    frame = pl.DataFrame({"user": ["a", "b"], "value": ["home", "work"], "time": [[1, 2], [3]]})
    with pytest.raises(DataError, match="'time' holds lists, and 'value' one value a row"):
        list(read(frame, Columns()))


@pytest.mark.parametrize(
    ("user", "value"), [("user", "seq"), ("session", "seq"), ("basket", "time"), ("user", "value")]
)
def test_inspect_finds_one_column_of_lists_whatever_it_is_called(user: str, value: str) -> None:
    rows = {user: list(range(12)), value: [["home", "work", "home"]] * 12}
    found = sv.inspect(pl.DataFrame(rows))
    assert (found.users, found.events) == (12, 36)
    assert found.command.startswith("seqveil fit DATA -o DATA.model")
    assert value == "value" or f"--value-column {value}" in found.command


def test_inspect_shows_no_first_line_that_may_be_data(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("ann@x.org,clinic 7\nann@x.org,home\nbob,home\n")
    with pytest.raises(DataError, match="first line of a CSV must be a header") as found:
        sv.inspect(path)
    assert "ann" not in str(found.value)
    assert "clinic" not in str(found.value)
