"""Tests that take the compiled way and the one through numpy in turn."""

import pytest

from seqveil.core import fast


@pytest.fixture(autouse=True)
def restored():
    """Whatever a test switches on or off is as before after it; a file that imports this has it for all its tests."""
    before = fast._loaded, fast._made
    yield
    fast._loaded, fast._made = before


def use(compiled: bool) -> None:
    """Release by compiled code from now on, or by numpy."""
    fast._loaded = False
    if compiled:
        fast._loaded = None
        if not fast.load():
            pytest.skip("the compiled path needs numba")
