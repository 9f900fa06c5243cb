"""Files with one row a person: the events stand in a list, and each entry is one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from seqveil.core.errors import DataError
from seqveil.interfaces.cli import main
from seqveil.interfaces.files import Columns, read
from seqveil.interfaces.files.fit import fit_file
from seqveil.interfaces.files.ordering import sorted_chunks

PEOPLE = [f"p{k}" for k in range(12)]
PATHS = [["news", "news", "shop"][: 1 + k % 3] * 2 for k in range(12)]
LISTS = pl.DataFrame({"user": PEOPLE, "value": PATHS})
ROWS = LISTS.explode("value")


@pytest.mark.parametrize("name", ["d.parquet", "d.jsonl", "d.json"])
def test_lists_in_a_file_are_the_events_of_their_person(tmp_path, name):
    write = {"parquet": LISTS.write_parquet, "jsonl": LISTS.write_ndjson, "json": LISTS.write_json}
    write[name.rpartition(".")[2]](tmp_path / name)
    (part,) = read(tmp_path / name)
    assert part.users.to_list() == ROWS["user"].to_list()
    assert part.values.to_list() == ROWS["value"].to_list()
    assert [part.row(k) for k in range(4)] == [1, 1, 2, 2]  # rows of the file
    found = fit_file(tmp_path / name, smoothing=1)
    assert found.model.fingerprint == fit_file(ROWS, smoothing=1).model.fingerprint
    assert "one event for each entry of the lists in 'value'" in found.reading.sentence


@pytest.mark.parametrize("kind", [pl.DataFrame, pl.DataFrame.to_pandas, pl.DataFrame.to_arrow])
def test_a_frame_of_lists_is_released_with_the_row_of_each_event(kind):
    model = sv.fit(LISTS, smoothing=1)
    found = sv.release(kind(LISTS), model, epsilon=1.0, seed=1)
    plain = sv.release(ROWS, model, epsilon=1.0, seed=1)
    assert type(found.frame) is type(kind(LISTS))
    assert pl.DataFrame(found.frame)["value"].to_list() == plain.frame["value"].to_list()
    assert pl.DataFrame(found.frame)["user"].to_list() == ROWS["user"].to_list()
    assert found.rows.tolist() == np.repeat(np.arange(12), [len(path) for path in PATHS]).tolist()
    assert found.account.events == ROWS.height


def test_times_may_stand_in_lists_beside_the_values():
    rows = LISTS.with_columns(time=pl.Series([list(range(len(path), 0, -1)) for path in PATHS]))
    with pytest.raises(DataError, match="row 1 lies before row 1"):
        fit_file(rows)
    parts = list(sorted_chunks(rows))
    assert parts[0].order.to_list() == sorted(rows["time"].explode().to_list())
    assert parts[0].rows.max() == 12
    model = sv.fit(rows, smoothing=1)
    released = sv.release(rows, model, epsilon=1.0)
    assert released.frame["time"].to_list() == rows["time"].list.sort().explode().to_list()
    assert sv.audit(released, model).passed


def test_lists_that_do_not_fit_together_are_refused_by_their_row():
    rows = LISTS.with_columns(time=pl.Series([[1, 2] for _ in PATHS]))
    with pytest.raises(DataError, match="row 2: its lists have different lengths"):
        fit_file(rows)
    with pytest.raises(DataError, match="row 2: column 'value' is empty"):
        fit_file(pl.DataFrame({"user": ["a", "b"], "value": [["x"], ["x", None]]}))
    with pytest.raises(DataError, match="must hold text or numbers"):
        fit_file(pl.DataFrame({"user": ["a"], "value": [[["x"], ["y"]]]}))
    with pytest.raises(DataError, match="holds no rows"):
        fit_file(pl.DataFrame({"user": ["a"], "value": [[]]}, schema_overrides={"value": pl.List(pl.String)}))


def test_people_without_events_are_left_out():
    rows = pl.DataFrame({"user": ["a", "b", "c", "d"], "value": [["x", "y"], [], None, ["y"]]})
    found = fit_file(rows, smoothing=1)
    assert (found.users, found.events) == (2, 3)


def test_points_in_lists_and_fixed_sizes():
    rows = pl.DataFrame({"user": ["a", "b"], "x": [[0.1, 0.9], [0.2, 0.8]], "y": [[0.0, 1.0], [0.5, 0.5]]})
    fixed = rows.with_columns(pl.col("x", "y").cast(pl.Array(pl.Float64, 2)))
    for frame in (rows, fixed):
        assert fit_file(frame, columns=Columns(value="x,y"), grid="2x2", smoothing=1).events == 4


def test_inspect_takes_lists_for_events_and_says_so(tmp_path, capsys):
    LISTS.rename({"value": "pages"}).write_parquet(tmp_path / "d.parquet")
    found = sv.inspect(tmp_path / "d.parquet")
    assert (found.users, found.events) == (12, ROWS.height)
    assert "--value-column pages" in found.command
    assert main(["fit", *found.command.split()[2:3], "-o", str(tmp_path / "m"), "--value-column", "pages"]) == 0
    assert "one event for each entry" in capsys.readouterr().out
    two = LISTS.with_columns(other=pl.col("value")).rename({"value": "pages"})
    with pytest.raises(DataError, match="'pages', 'other' hold lists; name the one"):
        sv.inspect(two)
    assert sv.inspect(two, value_column="other").events == ROWS.height


def test_with_a_state_file_each_entry_is_released_once(tmp_path):
    LISTS.write_parquet(tmp_path / "d.parquet")
    sv.fit(LISTS, smoothing=1).save(tmp_path / "m")
    words = ["--model", f"{tmp_path}/m", "--epsilon", "1", "--state", f"{tmp_path}/s.db", "--out", f"{tmp_path}/o.csv"]
    for _ in range(2):
        assert main(["release", f"{tmp_path}/d.parquet", *words]) == 0
    assert pl.read_csv(tmp_path / "o.csv")["user"].to_list() == ROWS["user"].to_list()
    assert main(["audit", f"{tmp_path}/o.csv", "--model", f"{tmp_path}/m"]) == 0
