"""One result object: lines, JSON and HTML say the same; and what objects show in a notebook, free of raw symbols."""

import json
import math
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seqveil.core.words import Line, Result, ResultTable, cell_text, plain, to_json

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


@settings(max_examples=25)
@given(VALUES)
def test_json_has_numbers_or_null_whatever_comes(value):
    text = to_json(value)
    assert json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(AssertionError(name))) == plain(value)


class Shown(HTMLParser):
    """Checks that tags close in order, and keeps the cells of every table."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.tags = [], [], set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


NASTY = ["<script>alert(1)</script>", '"onmouseover="x', "a & b", "</table>"]


class Nasty(Result):
    """A result whose every text is markup."""

    def lines(self) -> list[Line]:
        return list(zip(NASTY, NASTY, strict=True))

    def tables(self) -> list[ResultTable]:
        return [ResultTable("<b>", NASTY, [NASTY, NASTY])]


def test_text_is_escaped():
    text = Nasty()._repr_html_()
    parsed = Shown(text)
    assert parsed.tags <= {"div", "p", "strong", "pre", "table", "tbody", "tr", "th", "td"}
    assert "<script" not in text
    assert [unescape(cell) for row in parsed.tables[0] for cell in row[1:]] == NASTY
