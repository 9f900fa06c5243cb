"""Randomness: uniform over [0, 2**62), private only where the operating system throws them."""

import os
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from seqveil.core.errors import InputError
from seqveil.core.randomness import BITS, KeyedRandomness, SeededRandomness, SystemRandomness, key_file, randomness
from seqveil.core.randomness import rows as rows_of

KEY = bytes(range(32))
KEYED = KeyedRandomness(KEY).of([f"u{k}" for k in range(32_000)] * 2, [k % 7 for k in range(64_000)])


@pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(3), KEYED], ids=["system", "seeded", "keyed"])
def test_randomness_are_uniform_over_the_denominator(source):
    """Chi-square over 64 cells of the top bits and of the bottom bits; false alarms: one in a million each."""
    drawn = source.draw(64_000)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() < 2**62
    for cells in (drawn >> (BITS - 6), drawn & 63):
        assert stats.chisquare(np.bincount(cells, minlength=64)).pvalue > 1e-6


def test_randomness_is_the_operating_systems_and_never_repeats_unless_a_seed_is_given():
    assert isinstance(randomness(), SystemRandomness)
    assert (randomness().private, randomness(0).private) == (True, False)
    assert SystemRandomness().draw(8).tolist() != SystemRandomness().draw(8).tolist()
    one, other = randomness(9), SeededRandomness(9)
    drawn = one.draw(5).tolist()
    assert drawn == [int(other.draw(1)[0]) for _ in range(5)]
    assert drawn != SeededRandomness(6).draw(5).tolist()
    assert SystemRandomness().draw(0).shape == (0,)


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(InputError, match="whole number"):
        SeededRandomness(seed)


events = st.lists(st.tuples(st.sampled_from(["ann", "bob", "", "ü", "1", 1, -1]), st.integers(0, 2**40)), max_size=12)


@settings(deadline=None, max_examples=40)
@given(events, st.randoms(use_true_random=False), st.integers(1, 3))
def test_an_event_has_its_randomness_in_any_company(some, random, draws):
    source = KeyedRandomness(KEY)
    alone = {event: source.of([event[0]], [event[1]]).draw(draws).tolist() for event in some}
    together = source.of([user for user, _ in some], [seq for _, seq in some])
    first = together.draw(len(some)) if len(some) != 1 else together.draw(1)
    assert first.tolist() == [alone[event][0] for event in some]
    if draws > 1:
        places = [k for k in range(len(some)) if random.random() < 0.6]
        part = together.rows(np.array(places, np.intp))
        second = part.draw(len(places))
        assert second.tolist() == [alone[some[k]][1] for k in places]


def test_different_events_keys_settings_and_salts_have_different_randomness():
    every = [
        KeyedRandomness(KEY).of(["ann"], [3]).draw(2).tolist(),
        KeyedRandomness(KEY).of(["ann"], [4]).draw(2).tolist(),
        KeyedRandomness(KEY).of(["ann3"], [3]).draw(2).tolist(),
        KeyedRandomness(KEY).of(["3"], [3]).draw(2).tolist(),
        KeyedRandomness(KEY).of_state("a", b"b").of(["ann"], [3]).draw(2).tolist(),
        KeyedRandomness(KEY).of_state("a", b"c").of(["ann"], [3]).draw(2).tolist(),
        KeyedRandomness(KEY).of_state("ab", b"").of(["ann"], [3]).draw(2).tolist(),
        KeyedRandomness(bytes(32)).of(["ann"], [3]).draw(2).tolist(),
        KeyedRandomness.seeded(3).of(["ann"], [3]).draw(2).tolist(),
    ]
    assert len({uniform for pair in every for uniform in pair}) == 2 * len(every)


def test_randomness_that_belong_to_no_event_are_the_same_for_all_rows():
    for source in (SystemRandomness(), SeededRandomness(1)):
        assert rows_of(source, np.array([0])) is source


def test_one_uniform_an_event_or_many_for_one():
    assert KeyedRandomness(KEY).of(["a"], [0]).draw(5).shape == (5,)
    assert KeyedRandomness(KEY).of([], []).draw(0).shape == (0,)
    with pytest.raises(InputError, match="one draw for each of 2"):
        KeyedRandomness(KEY).of(["a", "b"], [0, 0]).draw(3)


def test_the_key_is_nowhere_to_be_seen():
    source = KeyedRandomness(KEY)
    shown = repr(source) + repr(source.of(["ann"], [0])) + str(vars(source)["private"])
    assert KEY.hex() not in shown
    assert "ann" not in shown
    assert source.private
    assert not KeyedRandomness.seeded(1).private


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), "x" * 32, None])
def test_a_key_has_32_bytes(key):
    with pytest.raises(InputError, match="32 random bytes"):
        KeyedRandomness(key)


def test_a_key_file_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "key"
    key = key_file(path, create=True)
    assert len(key) == 32
    assert key != bytes(32)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key_file(path, create=True) == key_file(path) == key
    assert os.listdir(tmp_path) == ["key"]


def test_a_key_file_that_cannot_be_trusted_is_refused(tmp_path):
    path = tmp_path / "key"
    with pytest.raises(InputError, match="cannot be read"):
        key_file(path)
    with pytest.raises(InputError, match="cannot be made"):
        key_file(tmp_path / "none" / "key", create=True)
    key_file(path, create=True)
    path.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        key_file(path)
    path.chmod(0o600)
    path.write_bytes(bytes(40))
    with pytest.raises(InputError, match="exactly 32"):
        key_file(path)
