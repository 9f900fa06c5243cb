"""Generated streams against the figures that they reproduce, those that only experiments have included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from experiments.generated import KINDS, synthetic
from seqveil import datasets
from seqveil.core.errors import InputError


def table(kind, users, length, seed=1, **options):
    return synthetic(kind, users, length, seed, **options).streams["value"].to_numpy().reshape(-1, length)


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_streams_and_well_formed(kind):
    one, again, other = (synthetic(kind, 7, 30, seed) for seed in (3, 3, 4))
    assert one.streams.equals(again.streams)
    assert not one.streams.equals(other.streams)
    assert one.streams.columns == ["user", "value"]
    codes = np.stack(one.arrays())
    assert codes.shape == (7, 30)
    assert 0 <= codes.min() <= codes.max() < one.alphabet.n
    assert one.index["length"].to_list() == [30] * 7
    assert one.people == list(range(7))
    assert one.distortion.between(codes[0], codes[0]).sum() == 0
    assert one.model(smoothing=1.0).n == one.alphabet.n


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(datasets.KINDS), st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
def test_any_size_and_a_model_of_some_people(kind, users, length, seed):
    made = datasets.synthetic(kind, users, length, seed)
    assert made.codes.shape == (users, length)
    assert made.model(people=range(users)).fingerprint == made.model().fingerprint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "users", "length", "options", "staying", "bits"),
    [
        ("clicks", 2_000, 40, {}, 0.655, 3.67),
        ("items", 20_000, 5, {}, 0.092, None),
        ("gaze", 200, 1_000, {"side": 10}, 0.907, 5.41),
        ("gaze", 200, 1_000, {}, 0.611, None),
        ("heart_rate", 150, 1_200, {}, 0.963, None),
        ("power", 400, 96 * 14, {}, 0.453, 3.32),
        ("places", 300, 300, {}, 0.768, 7.82),
    ],
)
def test_streams_stay_and_vary_as_the_real_ones_do(kind, users, length, options, staying, bits):
    codes = table(kind, users, length, **options)
    assert (codes[:, 1:] == codes[:, :-1]).mean() == pytest.approx(staying, abs=0.04)
    assert bits is None or stats.entropy(np.bincount(codes.ravel()), base=2) == pytest.approx(bits, abs=0.3)


@pytest.mark.parametrize(
    ("asked", "options", "says"),
    [
        (("tea", 1, 1), {}, "kind of stream among clicks"),
        (("clicks", 0, 5), {}, "must be >= 1"),
        (("clicks", 1, 1), {"side": 3}, "no option 'side'"),
        (("sets", 1, 50), {"n": 60}, "at least 108 items"),
        (("gaze", 1, 1), {"levels": 3}, "its options are side"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(asked, options, says):
    with pytest.raises(InputError, match=says) as error:
        synthetic(*asked, **options)
    assert "\n" not in str(error.value)
