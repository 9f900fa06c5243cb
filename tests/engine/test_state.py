"""State of many streams: what is private of it stays where it is."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from seqveil import MarkovModel, Policy
from seqveil.core.errors import InputError
from seqveil.engine.state import Private

CHAIN = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


def test_what_is_private_is_taken_put_and_joined_by_rows_and_shown_nowhere():
    terms = Policy(epsilon=2.0, block=3).on(CHAIN)
    private = Private.start(terms, 3).join(Private(np.array([True, False]), None))
    assert private.take(np.array([3, 0])).bits.tolist() == [True, False]
    private.put(np.array([1]), Private(np.array([True]), None))
    assert private.bits.tolist() == [False, True, False, True, False]
    both = Private(np.ones(2, bool), np.array([[3, 4], [5, 6]]))
    both.put(np.array([0]), both.take(np.array([1])))
    assert both.memory.tolist() == [[5, 6], [5, 6]]
    assert Private.start(Policy(epsilon=1.0).on(CHAIN), 9).take(slice(2)).bits is None
    assert repr(both) == "Private(…)"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(InputError, match="private"):
            leak(both)
