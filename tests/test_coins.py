"""Coins: uniform over [0, 2**62), private only where the operating system throws them."""

import numpy as np
import pytest
from scipy import stats

from seqveil.core.coins import BITS, SeededCoins, SystemCoins, coins
from seqveil.core.errors import InputError


@pytest.mark.parametrize("source", [SystemCoins(), SeededCoins(3)], ids=["system", "seeded"])
def test_coins_are_uniform_over_the_denominator(source):
    """Chi-square over 64 cells of the top bits and of the bottom bits; false alarms: one in a million each."""
    drawn = source.draw(64_000)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() < 2**62
    for cells in (drawn >> (BITS - 6), drawn & 63):
        assert stats.chisquare(np.bincount(cells, minlength=64)).pvalue > 1e-6


def test_coins_come_from_the_operating_system_unless_a_seed_is_given():
    assert isinstance(coins(), SystemCoins)
    assert coins().private
    assert isinstance(coins(0), SeededCoins)
    assert not coins(0).private


def test_system_coins_never_repeat_and_seeded_ones_always_do():
    assert SystemCoins().draw(8).tolist() != SystemCoins().draw(8).tolist()
    assert SeededCoins(5).draw(8).tolist() == SeededCoins(5).draw(8).tolist() != SeededCoins(6).draw(8).tolist()


def test_drawing_at_once_or_one_by_one_is_the_same():
    one, other = SeededCoins(9), SeededCoins(9)
    assert one.draw(5).tolist() == [int(other.draw(1)[0]) for _ in range(5)]
    assert SystemCoins().draw(0).shape == (0,)


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(InputError, match="whole number"):
        SeededCoins(seed)
