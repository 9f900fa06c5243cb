"""Faint beginnings, streams that leave out whole days, and values outside the alphabet, where secrets are declared."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import seqveil as sv
from seqveil.core import filtering
from seqveil.core.alphabet import UNKNOWN, Alphabet
from seqveil.core.errors import InputError
from seqveil.evaluate.attack_files import People, _events

HOUR = 3_600.0
DAY = 24 * HOUR


@pytest.mark.slow
@pytest.mark.parametrize("least", [1e-139, 1e-141, 1e-212, 1e-260])
@pytest.mark.parametrize("sides", ["up", "both"])
def test_a_symbol_that_began_faint_may_be_released(least, sides):
    """What stood there as a logarithm becomes a probability again once a release makes it likely."""
    first = np.array([least, 1e-20, 1.0])
    model = sv.MarkovModel(first / first.sum(), [[1, 0, 0], [0.8, 0.1, 0.1], [0.5, 0.1, 0.4]])
    secret = sv.secrets.ever(2, epsilon=0.5, window=2, one_sided=sides == "up")
    for raw in itertools.product(range(3), repeat=2):
        session = sv.Session(model, mechanism="guarded", secrets=[secret], seed=1)
        for symbol in (*raw, 0):
            assert session.release(symbol) in range(3)
            watch = session.watches.rows[0][0]
            assert watch.belief.sum() == pytest.approx(1.0)
            assert watch.belief == pytest.approx(session.belief, abs=1e-9)
            assert watch.worst.highest <= 0.5


def test_a_law_over_its_own_faint_total_is_a_law():
    law = np.array([np.log(3e-150), np.log(1e-150), 0.0, -2000.0])
    found = filtering.shared(law, 4e-150)
    assert found[:3] == pytest.approx([0.75, 0.25, 0.0])
    assert found[3] == pytest.approx(-2000 - np.log(4e-150))


@pytest.mark.parametrize("codes", [[0, UNKNOWN], [-1], [3]])
def test_no_secret_is_read_from_values_outside_the_alphabet(codes):
    compiled = sv.secrets.ever("c", window=2, epsilon=1.0).over(Alphabet(["a", "b", "c"]))
    with pytest.raises(InputError, match="outside the alphabet"):
        compiled.read(codes)


def test_frequent_values_are_found_beside_values_outside_the_alphabet():
    streams = [np.array([0, 1, UNKNOWN]), np.array([1, 1])]
    people = People(Alphabet(["a", "b", "c"]), streams, streams, None, None, None)
    assert [secret.values for secret in _events(people)] == [("b",), ("a",)]
