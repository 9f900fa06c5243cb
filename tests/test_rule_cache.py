"""Rules of batches are kept by their exact public context."""

import pickle
from dataclasses import replace

import numpy as np

from seqveil import MarkovModel, distortion
from seqveil.core.mechanisms import Batch, trees


def test_contexts_that_differ_in_the_last_digit_do_not_drive_each_other_out():
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    one = Batch(model, np.array([0.5, 0.5]), 3, 1.0, distortion.hamming())
    other = replace(one, states=np.array([np.nextafter(0.5, 1), np.nextafter(0.5, 0)]))
    cache = pickle.loads(pickle.dumps(trees.tree))
    assert len(cache) == 0
    first, second = cache(one), cache(other)
    assert first is not second
    assert (cache(one), cache(other), cache(replace(one, states=one.states.copy()))) == (first, second, first)
