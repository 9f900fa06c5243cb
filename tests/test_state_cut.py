"""A state file of which little is left is damaged, not new: no ledger begins at zero over it."""

import pytest

from bridges import KEY, setting_of
from seqveil.engine.store import StoreError
from seqveil.engine.streams import Streams


@pytest.mark.parametrize("size", [1, 2, 50, 100, 511])
@pytest.mark.parametrize("must_exist", [False, True])
def test_a_file_cut_to_a_few_bytes_is_refused_and_left_as_it_is(tmp_path, size, must_exist):
    path = tmp_path / "s.db"
    with Streams.open(path, setting_of(), key=KEY) as store:
        store.release(["ann"], [1])
    left = path.read_bytes()[:size]
    path.write_bytes(left)
    with pytest.raises(StoreError, match="damaged or no state file"):
        Streams.open(path, setting_of(), key=KEY, must_exist=must_exist)
    assert path.read_bytes() == left
