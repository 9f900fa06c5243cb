"""Tests that take the compiled form of the code and the plain one in turn."""

import pytest

from seqveil.core import compiled


@pytest.fixture(autouse=True)
def restored():
    """Whatever a test switches on or off is as before after it; a file that imports this has it for all its tests."""
    before = compiled._used, compiled._made
    yield
    compiled._used, compiled._made = before


def use(translated: bool) -> None:
    """Use the compiled forms from now on, or the plain ones."""
    compiled._used = None if translated else False
    if translated and not compiled.load():
        pytest.skip("compiled forms need numba")
