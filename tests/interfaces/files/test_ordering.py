"""Events at irregular times as one symbol for each slot: what comes out, what it hides, what is refused."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from filed import fit_file
from seqveil.core.alphabet import Alphabet, Bins, from_json
from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel, Reading
from seqveil.core.times import NOTHING, Slots
from seqveil.interfaces.files.events import read_events
from seqveil.interfaces.files.ordering import MOST_ROWS


def rows(frame, slots, **more):
    """User, time and value of every slot."""
    part = read_events(frame, more.pop("reading", Reading()), slots=slots, **more)
    values = part.values.tolist() if isinstance(part.values, np.ndarray) else part.values.to_list()
    return list(zip(part.users.to_list(), part.order.to_list(), values, strict=True))


def events(*given):
    return pl.DataFrame(list(given), schema=["user", "time", "value"], orient="row")


def test_each_slot_is_a_row_whether_something_happened_or_not():
    frame = events(("a", 0.1, "x"), ("a", 0.9, "y"), ("b", 1.2, "x"), ("a", 3.0, "x"), ("b", 2.0, "z"))
    a = [("a", 0, "y"), ("a", 1, NOTHING), ("a", 2, NOTHING), ("a", 3, "x")]
    b = [("b", 1, "x"), ("b", 2, "z")]
    assert sorted(rows(frame, Slots(1))) == a + b
    assert [row[1] for row in rows(frame, Slots(1))] == [0, 1, 1, 2, 2, 3]
    padded = rows(frame, Slots(1, pad=True))
    assert [row for row in padded if row[0] == "b"] == [("b", 0, NOTHING), *b, ("b", 3, NOTHING)]
    assert rows(frame, Slots(1)) == rows(frame, Slots(1))


def test_rules():
    frame = events(("a", 0.1, 1.0), ("a", 0.2, 5.0), ("a", 0.3, 1.0), ("a", 0.4, 2.0), ("a", 2.5, 7.0))
    disclosed = {rule: [row[2] for row in rows(frame, Slots(1, rule))] for rule in ("last", "mean", "most")}
    assert disclosed == {"last": [2, 2, 7], "mean": [2.25, 2.25, 7], "most": [1, 1, 7]}  # a number goes on
    tied = events(("a", 0.1, "p"), ("a", 0.2, "q"), ("a", 0.3, "p"), ("a", 0.4, "q"))
    assert rows(tied, Slots(1, "most")) == [("a", 0, "q")]
    with pytest.raises(DataError, match="mean"):
        rows(tied, Slots(1, "mean"))


def test_points():
    frame = pl.DataFrame({"user": ["a"] * 3, "time": [0.0, 0.5, 2.0], "x": [1.0, 3.0, 5.0], "y": [2.0, 4.0, 6.0]})
    disclosed = rows(frame, Slots(1, "mean"), reading=Reading(value="x,y"))
    assert [value for _, _, value in disclosed] == [[2, 3], [2, 3], [5, 6]]
    most = rows(frame, Slots(1, "most"), reading=Reading(value="x,y"))
    assert [value for _, _, value in most] == [[3, 4], [3, 4], [5, 6]]


@pytest.mark.parametrize("step", [0.1, 0.2, 1 / 3, 1.0, 7.0])
def test_a_regular_stream_stays_as_it_is(step):
    """No rounding puts two events into one slot."""
    step = round(step, 6)
    for begin in (0.0, 1_700_000_000.0 // step * step):
        times = [round(begin + k * step, 6) for k in range(500)]
        frame = events(*(("a", time, str(k)) for k, time in enumerate(times)))
        assert [value for _, _, value in rows(frame, Slots(step))] == [str(k) for k in range(500)]


def test_times_come_back_in_their_own_form():
    base = 1_700_000_000
    forms = {
        "s": [base, base + 3],
        "ms": [base * 1000 + 5, base * 1000 + 3005],
        "us": [base * 10**6, base * 10**6 + 3 * 10**6],
        "ns": [base * 10**9, base * 10**9 + 3 * 10**9],
        "float": [0.25, 3.75],
        "text": ["2024-05-01T10:00:00.5Z", "2024-05-01T10:00:03Z"],
        "datetime": pl.Series([base * 10**3, base * 10**3 + 3000]).cast(pl.Datetime("ms", "UTC")),
    }
    for name, times in forms.items():
        frame = pl.DataFrame({"user": ["a", "a"], "time": times, "value": ["x", "y"]})
        disclosed = rows(frame, Slots(1))
        assert [value for _, _, value in disclosed] == ["x", NOTHING, NOTHING, "y"], name
        again = pl.DataFrame(
            {"user": ["a"] * 4, "time": [t for _, t, _ in disclosed], "value": [v for *_, v in disclosed]}
        )
        assert rows(again, Slots(1)) == disclosed, name
    assert rows(pl.DataFrame({"user": ["a"], "time": ["2024-05-01"], "value": ["x"]}), Slots(1)) == [
        ("a", "2024-05-01T00:00:00Z", "x")
    ]
    half = rows(events(("a", 0.6, "x"), ("a", 1.2, "y")), Slots(0.5))
    assert [time for _, time, _ in half] == [0.5, 1.0]


def test_nothing_about_the_moments_within_slots_shows():
    """Two files that differ in when and how many within slots alone give the same rows, in the same order."""
    one = events(("b", 0.1, "x"), ("a", 0.2, "y"), ("a", 2.1, "y"), ("b", 2.5, "x"))
    other = events(("a", 0.0, "x"), ("a", 0.5, "y"), ("b", 0.9, "x"), ("b", 2.0, "y"), ("b", 2.9, "x"), ("a", 2.9, "y"))
    assert rows(one, Slots(1)) == rows(other, Slots(1))
    late = events(("a", 0.5, "y"), ("b", 2.9, "x"))
    padded = [(user, time) for user, time, _ in rows(late, Slots(1, pad=True))]
    assert padded == [(user, time) for user, time, _ in rows(one, Slots(1, pad=True))]


def test_what_is_refused():
    for wrong in (0, -1, float("nan"), float("inf"), 1e-9, "1", True):
        with pytest.raises(InputError, match="length of a slot"):
            Slots(wrong)
    with pytest.raises(InputError, match="pass every_seconds="):
        sv.fit(in_slots()[0], slot="last,pad")
    with pytest.raises(InputError, match="rule"):
        Slots(1, "first")
    with pytest.raises(InputError, match="more than"):
        rows(events(("a", 0.0, "x"), ("a", 2.0 * MOST_ROWS, "y")), Slots(1))
    with pytest.raises(DataError, match="column of times"):
        rows(pl.DataFrame({"user": ["a"], "seq": [1], "value": ["x"]}), Slots(1))
    assert len(rows(events(("a", 2.0, "x"), ("a", 1.0, "y")), Slots(1))) == 2
    for said, words in {
        "mean": {"slot": "mean"},
        "the mean": {"slot": "mean", "alphabet": Alphabet(["x"])},
        "leave pad out": {"private": 1.0, "alphabet": ["x"], "slot": "last,pad"},
        "behind a comma": {"slot": "last,padded"},
    }.items():
        with pytest.raises(InputError, match=said):
            fit_file(events(("a", 2.0, "x")), every_seconds=1, **words)


def test_the_model_keeps_the_slots(tmp_path):
    frame = events(("a", 0.0, "x"), ("a", 2.0, "y"), ("b", 1.0, "x"))
    model = fit_file(frame, every_seconds=1, slot="most,pad", smoothing=1).model
    model.save(tmp_path / "m")
    loaded = MarkovModel.load(tmp_path / "m").alphabet
    assert loaded.slots == Slots(1, "most", True)
    assert list(loaded.values) == [NOTHING, "x", "y"]
    assert from_json(loaded.to_json()) == loaded != loaded.with_slots(None)
    assert from_json(Bins([0, 1]).with_slots(Slots(2)).to_json()).slots == Slots(2)
    assert fit_file(frame, every_seconds=1, alphabet=Alphabet(["x", "y"])).model.n == 3
    private = fit_file(frame, private=1.0, alphabet=Alphabet(["x", "y"]), every_seconds=1, seed=1)
    assert private.model.alphabet.slots == Slots(1)
    damaged = {**loaded.to_json(), "slots": {"seconds": -1}}
    with pytest.raises(InputError):
        from_json(damaged)


def in_slots() -> tuple[pl.DataFrame, sv.MarkovModel]:
    users, times = [f"u{k // 6}" for k in range(120)], [10 * (k % 6) for k in range(120)]
    rows = pl.DataFrame({"user": users, "value": ["news", "sport", "shop"] * 40, "time": times})
    return rows, sv.fit(rows, every_seconds=20, slot="last", smoothing=1)


@pytest.mark.parametrize("kind", ["polars", "pandas", "arrow"])
def test_a_frame_in_slots_shows_slots_and_not_the_times_of_events(kind):
    given, model = in_slots()
    data = {"polars": lambda: given, "arrow": given.to_arrow}.get(kind, given.to_pandas)()
    made = sv.release(data, model, epsilon=1)
    frame = pl.from_pandas(made.frame) if kind == "pandas" else pl.DataFrame(made.frame)
    assert frame["user"].to_list() == sorted(set(given["user"])) * 3
    assert frame["time"].to_list() == [0] * 20 + [20] * 20 + [40] * 20
    if kind == "pandas":
        assert made.frame.index.tolist() == list(range(60))
    assert sv.audit(made, model).passed
    assert "by the raw file" in str(sv.decode(made, model, truth=data))
