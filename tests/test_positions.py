"""Positions of sources, kept with the releases: what cannot be kept is refused, and takes nothing back."""

from __future__ import annotations

import numpy as np
import pytest

from seqveil.core.errors import InputError
from seqveil.engine.streams import CodeStreams
from served import words_setting

ODD = {"huge": 2**70, "object": object(), "surrogate": "\ud800", "truth": True, "number": np.int64(3), "none": None}


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_what_a_position_has_seen_is_charged_though_it_cannot_be_kept(tmp_path, odd):
    seen = []

    def note(made):
        seen.append(int(made.codes[0]))
        return {"queue": odd}

    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        for _ in range(20):
            with pytest.raises(InputError, match="expected positions by source"):
                store.release(["ann"], [2], seqs=[0], positions=note)
        assert len(set(seen)) == 1
        assert store.account("ann").events == 1
        assert store.position("queue") is None
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        assert [each.code for each in store.releases("ann")] == seen[:1]


def interrupted(made):
    raise KeyboardInterrupt


@pytest.mark.parametrize("given", [lambda made: 1 / 0, lambda made: [7], lambda made: {7: 7}, interrupted])
def test_a_position_that_fails_takes_back_nothing(tmp_path, given):
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        with pytest.raises((InputError, ZeroDivisionError, KeyboardInterrupt)):
            store.release(["ann"], [2], seqs=[0], positions=given)
        assert store.account("ann").events == 1


def test_positions_given_beforehand_are_refused_before_anything_is_drawn(tmp_path):
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        for odd in ODD.values():
            with pytest.raises(InputError, match="expected positions by source"):
                store.release(["ann"], [2], positions={"queue": odd})
        assert store.account("ann") is None
        store.release(["ann"], [2], positions={"queue": -(2**63), "text": "ü", "bytes": b"\0"})
        assert [store.position(name) for name in ("queue", "text", "bytes")] == [-(2**63), "ü", b"\0"]
