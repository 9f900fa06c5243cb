"""One result object: lines, JSON and HTML say the same."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqveil.core.results import Line, Result, ResultTable, aligned, cell_text, plain, to_json

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just(np.float64("nan")), st.just(np.int64(3))
)
VALUES = st.recursive(LEAVES, lambda of: st.lists(of) | st.dictionaries(st.text(), of) | st.tuples(of, of))


@dataclass(frozen=True, repr=False)
class Errors(Result):
    """A result as a command gives it."""

    people: int
    errors: tuple[float, ...]
    best: float = math.nan
    file: Path = Path("a") / "b.csv"
    notes: dict[str, float] = field(default_factory=lambda: {"held": math.inf})

    def lines(self) -> list[Line]:
        return [("people", str(self.people)), ("best", cell_text(self.best)), ("<note>", "a & b")]

    def tables(self) -> list[ResultTable]:
        return [ResultTable("errors", ("person", "error"), list(enumerate(self.errors)))]


def test_one_object_is_shown_in_three_ways():
    found = Errors(2, (0.25, math.inf))
    assert str(found).splitlines() == [
        "people  2",
        "best    no bound",
        "<note>  a & b",
        "",
        "errors",
        "person  error",
        "0       0.25",
        "1       no bound",
    ]
    shown = found._repr_html_()
    for text in ("Errors", "people", "&lt;note&gt;", "a &amp; b", "0.25", "no bound"):
        assert text in shown
    assert json.loads(to_json(found)) == found.to_dict()
    assert found.to_dict() == {
        "people": 2,
        "errors": [0.25, None],
        "best": None,
        "file": str(Path("a") / "b.csv"),
        "notes": {"held": None},
    }


@given(VALUES)
def test_json_has_numbers_or_null_whatever_comes(value):
    text = to_json(value)
    assert json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(AssertionError(name))) == plain(value)


@given(st.lists(st.tuples(st.text("abc", min_size=1), st.text("abc", min_size=1)), min_size=1))
def test_names_stand_in_one_column(lines):
    wide = max(len(name) for name, _ in lines)
    for (name, text), shown in zip(lines, aligned(lines).splitlines(), strict=True):
        assert shown == name + " " * (wide - len(name) + 2) + text
