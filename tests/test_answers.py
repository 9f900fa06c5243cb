"""Answers are written as text at once: the same as the records would be through a JSON writer."""

import json
import math

import numpy as np
import pytest

from seqveil.core.alphabet import Alphabet, Grid
from seqveil.engine.releases import Releases
from seqveil.engine.stream import NOTHING, REFUSED, WITHHELD
from seqveil.engine.streams import GAP, Stored
from seqveil.interfaces.events import Wording
from seqveil.interfaces.service.answers import page_of, rows_of

NAMES = ["ann", 'a"b\\c', "Ærø 東京 🙂", "\u200f</script>", "x" * 256]
WORDINGS = [Wording(Alphabet(['q"', None, True, 1.5])), Wording(Grid.regular(2, 2, bounds=(0, 4, 0, 2)))]
STATUS = {NOTHING: "withheld", WITHHELD: "withheld", GAP: "given-up"}


@pytest.mark.parametrize("wording", WORDINGS)
def test_releases_of_symbols_are_told_as_they_are(wording):
    codes = np.array([0, 3, NOTHING, REFUSED, GAP])
    made = Releases(codes, np.arange(5), np.array([1.0, 1e-9, 0.0, 0.0, math.inf]), codes == 3, np.zeros(5), None)
    rows = json.loads(rows_of(NAMES, made, wording))
    assert [row["user"] for row in rows] == [*NAMES[:3], NAMES[4]]
    assert [row["value"] for row in rows] == [wording.shown[0], wording.shown[3], None, None]
    assert [row["status"] for row in rows] == ["released", "released", "withheld", "given-up"]
    assert [row["epsilon"] for row in rows] == [1.0, 1e-9, 0.0, None]
    assert [row["replayed"] for row in rows] == [False, True, False, False]
    assert list(rows[0]) == ["user", "seq", "status", "value", "epsilon", "replayed"]


def test_releases_of_batches_are_told_as_they_are():
    wording = WORDINGS[0]
    sent = [((2, 0), np.array([3, 1, 0])), None]
    made = Releases(np.array([0, NOTHING]), np.arange(2), np.ones(2), np.zeros(2, bool), np.zeros(2), sent)
    first, second = json.loads(rows_of(NAMES[:2], made, wording))
    assert (first["values"], first["path"]) == ([1.5, None, 'q"'], [2, 0])
    assert (second["values"], second["path"], second["status"]) == (None, None, "withheld")


@pytest.mark.parametrize("batches", [False, True])
def test_a_page_is_told_as_it_is(batches):
    wording = WORDINGS[0]
    stored = [
        Stored(7, 0, 0.5, None, (0,), (0,)),
        Stored(8, NOTHING, 0.0, math.nan, None, ()),
        Stored(9, GAP, 0.0, 12.25, None, ()),
        Stored(10, 0, 0.5, 1e9, (0,), (0,)),
    ]
    page = json.loads(page_of(NAMES[1], stored, 7, 3, wording, batches))
    assert (page["user"], page["next"], page["more"]) == (NAMES[1], 10, True)
    assert [row["status"] for row in page["releases"]] == ["released", "withheld", "given-up"]
    assert [row["time"] for row in page["releases"]] == [None, None, 12.25]
    if batches:
        assert [row["values"] for row in page["releases"]] == [['q"'], None, None]
        assert [row["events"] for row in page["releases"]] == [1, 1, 1]
    else:
        assert [row["value"] for row in page["releases"]] == ['q"', None, None]
    assert json.loads(page_of("ann", [], 5, 3, wording, batches)) == {
        "user": "ann",
        "releases": [],
        "next": 5,
        "more": False,
    }
