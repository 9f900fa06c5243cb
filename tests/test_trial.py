"""Streams that are released for a trial: each symbol once, in its own stream, as a session would release it."""

from __future__ import annotations

import numpy as np
import pytest

from seqveil import MarkovModel
from seqveil.core.coins import SeededCoins
from seqveil.core.errors import InputError
from seqveil.engine.policy import Policy
from seqveil.receiver.decode import decode_codes
from seqveil.receiver.trial import in_batches, one_by_one

MODEL = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])


def test_streams_of_several_lengths_are_each_released_to_their_end():
    streams = [np.array(codes) for codes in ([0, 1, 2, 2], [1, 1], [2])]
    steps = list(one_by_one(Policy(epsilon=1.0).on(MODEL), streams, SeededCoins(1)))
    assert [step.truth.tolist() for step in steps] == [[0, 1, 2], [1, 1], [2], [2]]
    assert [step.made.codes.size for step in steps] == [3, 2, 1, 1]
    assert steps[-1].after.steps.tolist() == [4]


def test_the_law_after_a_release_is_that_of_the_decoder():
    setting, streams = Policy(epsilon=1.0).on(MODEL), MODEL.sample(5, 4, seed=3)
    steps = list(one_by_one(setting, streams, SeededCoins(2)))
    released = np.stack([step.made.codes for step in steps], axis=1)
    laws = np.stack([step.law for step in steps], axis=1)
    np.testing.assert_allclose(laws, decode_codes(setting, released, smooth=False), atol=1e-12)


def test_a_longer_stream_behind_a_shorter_one_is_refused():
    with pytest.raises(InputError, match="longest stream first"):
        next(one_by_one(Policy(epsilon=1.0).on(MODEL), [np.array([0]), np.array([0, 1])], SeededCoins(1)))


def test_batches_hold_a_stream_to_its_end():
    sent, state = in_batches(
        Policy(epsilon=2.0, batch=2, mechanism="tree").on(MODEL), np.array([0, 1, 2, 1, 0]), SeededCoins(1)
    )
    assert [one.codes.size for one in sent] == [2, 2, 1]
    assert state.steps.tolist() == [3]
