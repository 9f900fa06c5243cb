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
    rule = trees.tree
    assert pickle.loads(pickle.dumps(rule)) is rule
    first, second = rule(one), rule(other)
    assert first is not second
    assert (rule(one), rule(other), rule(replace(one, states=one.states.copy()))) == (first, second, first)


def test_a_rule_does_not_change_with_the_array_that_it_was_asked_with():
    model, states = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), np.array([0.25, 0.75])
    kept = trees.tree(Batch(model, states, 2, 1.0, distortion.hamming()))
    states[:] = 0.5
    assert kept.batch.states.tolist() == [0.25, 0.75]
