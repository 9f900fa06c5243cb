"""What a stranger stumbled over with files of their own."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from seqveil.core import geography
from seqveil.core.errors import DataError, InputError

WHO = [f"u{k // 6}" for k in range(120)]
PAGES = ["news", "news", "sport", "news", "shop", "news"] * 20


def gaze(name: str = "t_ms", since: int = 0) -> pl.DataFrame:
    """A sample each 33 ms, of 20 people."""
    times = [since + 33 * (k % 6) for k in range(120)]
    return pl.DataFrame({"user": WHO, name: times, "x": [0.5, 1.5, 2.5] * 40, "y": [0.5, 1.5] * 60})


def test_lists_in_a_column_that_nobody_needs_do_not_stop_inspect():
    rows = pl.DataFrame({"user": WHO, "value": PAGES, "tags": [["a"], None] * 60})
    found = sv.inspect(rows)
    assert found.users == 20
    assert {role.column: role.role for role in found.roles}["tags"] == "not used"
    assert not any("'tags'" in question for question in found.questions)
    with pytest.raises(DataError, match="'tags' holds lists; write a row for each event"):
        sv.inspect(rows, value_column="tags")


def test_inspect_takes_the_words_of_the_command_line():
    rows = pl.DataFrame({"device": WHO, "breite": [47.1, 47.2, 47.3] * 40, "laenge": [8.1, 8.2] * 60})
    found = sv.inspect(rows, user_column="device", latitude="breite", longitude="laenge")
    assert "--latitude breite --longitude laenge --cell-metres" in found.command
    with pytest.raises(InputError, match="'usercolumn' is not known here"):
        sv.inspect(rows, usercolumn="device")


def test_milliseconds_by_name_are_not_read_as_seconds():
    words = {"value_column": "x,y", "grid": "3x2", "every_seconds": 0.1, "smoothing": 1}
    with pytest.raises(DataError, match="column 't_ms' is in milliseconds by its name"):
        sv.fit(gaze(), time_column="t_ms", **words)
    assert sv.fit(gaze("t_ms", 1_700_000_000_000), time_column="t_ms", **words).n == 6
    model = sv.fit(gaze(), value_column="x,y", time_column="t_ms", grid="3x2", smoothing=1)
    with pytest.raises(DataError, match="divide them by 1000"):
        sv.release(
            gaze(), model, epsilon=1, window=2, window_seconds=60, value_column="x,y", time_column="t_ms", sort=True
        )


def test_a_point_outside_the_range_is_told_how_to_be_counted():
    with pytest.raises(DataError, match=r"row 3: .* outside --range: widen that, or pass --on-unknown nearest"):
        sv.fit(gaze("seq"), value_column="x,y", grid="2x2", range="0,2,0,2", smoothing=1)


def test_a_release_of_names_is_not_sent_to_cells():
    model = sv.fit(pl.DataFrame({"user": WHO, "value": PAGES}), smoothing=1)
    rows = pl.DataFrame({"user": WHO, "venue": PAGES, "lat": [1.0] * 120, "lon": [2.0] * 120})
    with pytest.raises(DataError, match="name the value with --value-column, or fit a model of places"):
        sv.release(rows, model, epsilon=1)


def in_slots() -> tuple[pl.DataFrame, sv.MarkovModel]:
    rows = pl.DataFrame({"user": WHO, "value": PAGES, "time": [10 * (k % 6) for k in range(120)]})
    return rows, sv.fit(rows, every_seconds=20, slot="last", smoothing=1)


@pytest.mark.parametrize("kind", ["polars", "pandas", "arrow"])
def test_a_frame_in_slots_shows_slots_and_not_the_times_of_events(kind):
    rows, model = in_slots()
    data = {"polars": lambda: rows, "arrow": rows.to_arrow}.get(kind, rows.to_pandas)()
    made = sv.release(data, model, epsilon=1)
    frame = pl.from_pandas(made.frame) if kind == "pandas" else pl.DataFrame(made.frame)
    assert frame["user"].to_list() == sorted(set(WHO)) * 3
    assert frame["time"].to_list() == [0] * 20 + [20] * 20 + [40] * 20
    if kind == "pandas":
        assert made.frame.index.tolist() == list(range(60))
    assert sv.audit(made, model).passed
    assert "by the raw file" in str(sv.decode(made, model, truth=data))


def test_pad_is_about_slots():
    with pytest.raises(InputError, match="pass --every-seconds"):
        sv.fit(in_slots()[0], pad=True)


@pytest.mark.parametrize(
    ("centre", "metres", "bounds"),
    [
        ((52.606, 13.51), 1500, (52.4, 52.6, 13.2, 13.5)),
        ((52.62, 13.35), 4000, (52.4, 52.6, 13.2, 13.5)),
        ((10.0, -179.89), 3000, (9.9, 10.1, 179.9, -179.9)),
        ((89.995, 30.0), 3000, (89.9, 89.98, -180, 180)),
        ((50.0, 8.0), 900, (50.0, 50.0, 8.0, 8.0)),
    ],
)
def test_whoever_is_in_a_zone_is_in_its_cells_off_the_map_too(centre, metres, bounds):
    cells = sv.Cells(500, bounds, "nearest")
    spread = np.random.default_rng(0).uniform(-1, 1, (20_000, 2)) * [
        0.06,
        0.06 / max(0.001, np.cos(np.radians(centre[0]))),
    ]
    points = np.asarray(centre) + spread
    points[:, 0], points[:, 1] = np.clip(points[:, 0], -90, 90), (points[:, 1] + 180) % 360 - 180
    near = points[geography.haversine(points, np.asarray(centre)) <= metres]
    assert len(near) > 50
    assert set(cells.encode(near).tolist()) <= set(cells.within(centre, metres).tolist())


def test_a_zone_that_lies_off_the_map_has_no_cells():
    assert not sv.Cells(500, (52.4, 52.6, 13.2, 13.5)).within((53.0, 13.3), 300).size


def test_a_missing_coordinate_is_not_offered_as_a_symbol():
    rows = gaze("seq").with_columns(pl.when(pl.col("seq") > 33).then(pl.col("x")))
    with pytest.raises(DataError, match=r"--missing drop or --missing hold$"):
        sv.fit(rows, value_column="x,y", grid="3x2", smoothing=1)
