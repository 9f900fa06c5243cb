"""What the design says is true of secrets, fact by fact, by enumeration over all sequences of small chains."""

from __future__ import annotations

import numpy as np
import pytest

from reference_guarding import asked
from reference_secrets import LENGTH, SECRETS, Enumerated, kept_kernel, random_model, small_models
from seqveil import secrets
from seqveil.core.secrets.account import SecretTracker, SecretTrackers


@pytest.mark.slow
def test_fact_1_whole_sequence_leakage_bounds_every_secret(longest):
    from seqveil import Session

    longest(LENGTH)
    for seed, model in enumerate(small_models(5)):
        session = Session(model, mechanism="optimal", epsilon=0.7, seed=seed)
        tracker = [SecretTracker.start(model, s) for s in SECRETS if s.kind != "joint"]
        for code in model.sample(LENGTH, seed=seed)[0].tolist():
            kernel = session.kernel()
            released = session.release(code)
            column = kernel.column(kernel.codes.tolist().index(released))
            tracker = [one.observe(column) for one in tracker]
            for one in tracker:
                assert max(one.highest, -one.lowest) <= 2 * session.leakage + 1e-9
                lift = np.log(one.posterior / one.prior) if one.prior else 0.0
                assert abs(lift) <= session.leakage + 1e-9


def test_fact_2_only_proportions_of_a_column_matter_and_an_even_one_tells_nothing():
    model = small_models(7)[2]
    tracker = SecretTracker.start(model, secrets.ever(1, window="first 4", epsilon=1.0))
    one, other = tracker.observe([0.2, 0.6]), tracker.observe([2**60, 3 * 2**60])
    assert one.log_odds == pytest.approx(other.log_odds, abs=1e-14)
    again = one.observe([0.3, 0.3])
    assert again.log_odds == pytest.approx(one.log_odds, abs=1e-13)


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: f"{secret.kind}-{secret.window}")
def test_fact_3_the_constant_kernel_keeps_every_live_window(secret, longest):
    longest(LENGTH)
    for seed, model in enumerate(small_models(11)):
        trackers = SecretTrackers(model, secret, kept=True)
        rng = np.random.default_rng(seed)
        for _ in range(LENGTH):
            tracker = trackers.rows[0][0]
            assert (asked(tracker).linear() @ tracker.belief <= 1e-12).all()
            kernel = kept_kernel(trackers, rng.dirichlet(np.full(3, 0.3), model.n))
            trackers = trackers.observe(kernel[:, rng.integers(3)])


@pytest.mark.slow
def test_fact_4_secrets_apart_do_not_bound_both_but_a_joint_one_does():
    """Told through one label each way: apart they pass with a kernel that makes "both" certain to be disclosed."""
    rng = np.random.default_rng(2)
    worst_apart = worst_joint = 0.0
    for _ in range(40):
        model = random_model(rng, 3)
        every = Enumerated(model, 2)
        a, b = (every.array == 0).any(1).astype(int), (every.array == 1).any(1).astype(int)
        one, two = (secrets.ever(v, epsilon=0.3, window="first 2") for v in (0, 1))
        for parts in ([one, two], [secrets.joint(one, two)]):
            trackers, columns = SecretTrackers(model, parts, kept=True), []
            for _ in range(2):
                kernel = kept_kernel(trackers, rng.dirichlet(np.full(3, 0.2), 3))
                columns.append(kernel[:, rng.integers(3)])
                trackers = trackers.observe(columns[-1])
            for combined in (a & b, a | b, a ^ b):
                moved = abs(every.log_odds(combined, 2, columns))
                if len(parts) == 2:
                    worst_apart = max(worst_apart, moved)
                else:
                    worst_joint = max(worst_joint, moved)
    assert worst_apart > 0.3 + 1e-3
    assert worst_joint <= 0.3


@pytest.mark.slow
def test_fact_5_a_promise_fails_under_another_model_unless_that_observer_is_watched_too():
    rng = np.random.default_rng(8)
    secret = secrets.ever(1, epsilon=0.2, window="first 3")
    passed, kept = 0.0, 0.0
    for _ in range(20):
        models = [random_model(rng, 2), random_model(rng, 2, order=2)]
        every = Enumerated(models[1], 3)
        values = every.values(secret.over(models[1].alphabet), 0, 3)
        for several in (models[:1], models):
            trackers, columns = SecretTrackers(several, secret, kept=True), []
            for _ in range(3):
                kernel = kept_kernel(trackers, rng.dirichlet(np.full(2, 0.3), 2))
                columns.append(kernel[:, rng.integers(2)])
                trackers = trackers.observe(columns[-1])
                moved = abs(every.log_odds(values, 2, columns))
                if len(several) == 1:
                    passed = max(passed, moved)
                else:
                    kept = max(kept, moved)
                    assert trackers.rows[1][0].log_odds == pytest.approx(every.log_odds(values, 2, columns), abs=1e-9)
    assert passed > 0.2 + 1e-3
    assert kept <= 0.2
