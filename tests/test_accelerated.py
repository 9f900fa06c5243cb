"""A fleet on a device releases what `Streams` releases, to the last bit; here on torch's CPU device."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from reference_streams import Rows
from seqveil import Budget, MarkovModel, Setting, errors
from seqveil.core.coins import SeededCoins
from seqveil.engine.accelerated import DeviceFleet

# torch itself is loaded by the first of these tests: it takes longer than collecting all others
missing = find_spec("torch") is None
pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing, reason="a device fleet needs torch")]


def chain(n: int, seed: int, smoothing: bool = False) -> MarkovModel:
    rng = np.random.default_rng(seed)
    if smoothing:
        return MarkovModel.fit([rng.integers(0, n, 40).tolist() for _ in range(3)], n=n, smoothing=0.5)
    return MarkovModel(rng.dirichlet(np.full(n, 0.5)) + 0.0, rng.dirichlet(np.full(n, 0.5), n) * 0.999 + 0.001 / n)


@settings(max_examples=40, deadline=None)
@given(
    n=st.sampled_from([2, 3, 8, 17, 40]),
    seed=st.integers(0, 10**6),
    epsilon=st.sampled_from([0.1, 0.5, 1.0, 2.0, 4.0]),
)
def test_same_releases_as_a_fleet(n, seed, epsilon):
    model = chain(n, seed, smoothing=seed % 2 == 0)
    setting = Setting.of(model, "optimal", epsilon)
    users = 50
    codes = np.random.default_rng(seed).integers(0, n, (4, users))
    ours, theirs = DeviceFleet(setting, users, "cpu"), Rows(setting, users)
    coins, same_coins = SeededCoins(seed), SeededCoins(seed)
    for event in codes:
        released = theirs.release(np.arange(users), event, same_coins)
        try:
            made = ours.release(event, coins)
        except errors.GuaranteeError:  # a table that has to be mended is left to Streams, which the message says
            reject()
        assert np.array_equal(made, released.codes)
        assert np.array_equal(ours.states(), theirs.state.states)
    assert np.allclose(ours.leakage(), theirs.state.account.worst, rtol=1e-13, atol=1e-15)


def test_more_users_than_fit_at_once():
    setting = Setting.of(chain(3, 1), "optimal", 1.0)
    users = 103
    codes = np.random.default_rng(2).integers(0, 3, users)
    ours, theirs = DeviceFleet(setting, users, "cpu", chunk=25), Rows(setting, users)
    released = theirs.release(np.arange(users), codes, SeededCoins(3))
    assert np.array_equal(ours.release(codes, SeededCoins(3)), released.codes)


@pytest.mark.parametrize(
    "options", [{"mechanism": "balanced"}, {"budget": Budget(total=3.0)}, {"schedule": 2}, {"distortion": "absolute"}]
)
def test_what_it_does_not_cover_is_refused(options):
    with pytest.raises(errors.InputError, match="use Streams for anything else"):
        DeviceFleet(Setting.of(chain(3, 1), **{"epsilon": 1.0, **options}), 2, "cpu")


def test_bad_input():
    setting = Setting.of(chain(3, 1), epsilon=1.0)
    fleet = DeviceFleet(setting, 2, "cpu")
    for codes in (np.array([0, 3]), np.array([0]), np.array([-1, 0]), np.array([0.0, 1.9])):
        with pytest.raises(errors.InputError, match=r"expected .*codes"):
            fleet.release(codes, SeededCoins(1))
    assert fleet.steps == 0


def test_a_call_that_fails_in_the_middle_tells_what_it_released(monkeypatch):
    """The users before the one that fails have moved on: their releases are told, and no other call is taken."""
    fleet = DeviceFleet(Setting.of(chain(3, 1), epsilon=1.0), 3, "cpu", chunk=1)
    some = fleet._some

    def fail(part, codes, thrown):
        if part.start == 2:
            raise errors.GuaranteeError("a table is not well inside its bounds")
        return some(part, codes, thrown)

    monkeypatch.setattr(fleet, "_some", fail)
    with pytest.raises(errors.GuaranteeError) as failed:
        fleet.release(np.array([0, 1, 2]), SeededCoins(1))
    assert (failed.value.made >= 0).tolist() == [True, True, False]
    with pytest.raises(errors.InputError, match="failed in the middle"):
        fleet.release(np.array([0, 1, 2]), SeededCoins(1))


def test_a_device_that_is_not_there():
    setting = Setting.of(chain(3, 1), epsilon=1.0)
    with pytest.raises(errors.InputError, match="no device"):
        DeviceFleet(setting, 2, "cuda:7")
