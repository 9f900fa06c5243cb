"""A range without a cut of its own is refused for what it is, not for a private fit that nobody asked for."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import seqveil as sv
from seqveil.core.errors import InputError

ROWS = {"user": [1, 1, 2, 2], "value": [41.0, 60.5, 70.0, 80.0]}


@pytest.mark.parametrize("words", [{}, {"levels": 4}])
def test_a_range_goes_with_bins_a_grid_or_cells(words: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--range goes with --bins, --grid or --cell-metres") as found:
        sv.fit(pl.DataFrame(ROWS), range="40,200", **words)
    assert "private" not in str(found.value)


def test_a_private_fit_still_says_why() -> None:
    with pytest.raises(InputError, match="a private fit may not look at"):
        sv.fit(pl.DataFrame(ROWS), range="40,200", levels=4, private=1.0)
