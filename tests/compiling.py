"""Tests that take the compiled form of the code and the plain one in turn."""

import pytest

from seqveil.core import bulk


@pytest.fixture(autouse=True)
def restored():
    """Whatever a test switches on or off is as before after it; a file that imports this has it for all its tests."""
    before = bulk._used, bulk._made
    yield
    bulk._used, bulk._made = before


def use(translated: bool) -> None:
    """Use the compiled forms from now on, or the plain ones."""
    bulk._used = None if translated else False
    if translated and not bulk.load():
        pytest.skip("compiled forms need numba")
