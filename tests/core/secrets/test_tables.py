"""Tables keep declared secrets up to their ε and no further, and spend it over a window."""

import math

import numpy as np
import pytest

import seqveil as sv
from seqveil.core.alphabet import WITHHELD
from seqveil.core.distortion import hamming
from seqveil.core.secrets import SecretTrackers, ever
from seqveil.core.secrets.tables import AskedOfUsers, Bounds, Dial, Draft, GuardingTable, schedule
from seqveil.core.secrets.windows import cover


@pytest.mark.parametrize(("share", "kept"), [(0.99, True), (1.01, False), (1.1, False)])
@pytest.mark.parametrize("withheld", [False, True])
def test_a_table_keeps_a_secret_up_to_its_epsilon_and_no_further(share, kept, withheld):
    """Whether one event is at the gym: a label moves its odds by the ratio of its two rows, here e^(share·ε)."""
    epsilon, model = 0.8, sv.MarkovModel([0.6, 0.4], [[0.5, 0.5], [0.5, 0.5]], alphabet=["home", "gym"])
    setting = sv.Policy(secrets=sv.secrets.ever("gym", epsilon=epsilon, window="first 1"), side_information=0).on(model)
    bounds, right = Bounds.of(setting.trackers.users), 1 / (1 + math.exp(-share * epsilon))
    rows = np.array([[right, 1 - right], [1 - right, right]])
    outputs = np.array([0, WITHHELD] if withheld else [0, 1])
    draft = Draft(2, outputs, np.arange(2), np.zeros(2), np.arange(2), rows, 0.0)
    assert GuardingTable.of(draft, np.array([0.6, 0.4]), hamming()).keeps(bounds) is kept


def test_a_share_that_rounds_to_nearly_one_leaves_no_weight_below_zero():
    draft = Draft(2, np.arange(2), np.arange(2), np.array([np.nextafter(1.0, 0.0), 0.0]), np.arange(2),
                  np.array([[3e-16, 2e-16], [0.5, 0.5]]), 0.0)  # fmt: skip
    table = GuardingTable.of(draft, np.array([0.5, 0.5]), hamming())
    assert (table.full() >= 0).all()
    assert (table.full().sum(1) == 2**62).all()
    assert table.keeps(Bounds(np.array([0.5, 0.5]), *np.zeros((2, 0, 2)), np.ones(2, bool)))


STAYS = sv.MarkovModel(np.full(3, 1 / 3), 0.85 * np.eye(3) + 0.05)


def aims(model, window, events, epsilon=1.0):
    """What is aimed at for the first live window at each event, while nothing is revealed."""
    tracker, found = SecretTrackers.start(model, ever(0, epsilon=epsilon, window=window)), []
    for _ in range(events):
        found.append(float(np.ravel(schedule(tracker.users.own[0]))[0]))
        tracker = tracker.observe(np.ones(model.n))
    return found


@pytest.mark.slow
def test_a_window_begins_with_half_and_ends_with_all_of_it():
    assert aims(STAYS, "first 5", 6) == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0, 1.0])
    kept = 0.5**1.5  # of it for after its end
    assert aims(STAYS, 2, 4) == pytest.approx([0.5, *(1 - kept / 2**k for k in range(3))])
    tracked = SecretTrackers.start(STAYS, ever(0, epsilon=1.0)).users.own[0]  # its end is unknown: half of what is left
    asked, windows = AskedOfUsers.of(tracked, Dial(3)), cover(tracked.ahead).at(0)[0]
    odds = tracked.ahead.family_priors[windows - 1].min(1) / tracked.ahead.family_priors[windows - 1].max(1)
    assert np.log(asked.high[0] / (1 - asked.high[0]) / odds) == pytest.approx(0.5, abs=0.006)


def test_a_chain_without_memory_keeps_nothing_for_later():
    alone = sv.MarkovModel([0.2, 0.3, 0.5], np.tile([0.2, 0.3, 0.5], (3, 1)))
    assert aims(alone, "event", 2) == pytest.approx([1.0, 1.0])
