"""A state file that moves on to another model: accounts, retries and refusals."""

import numpy as np
import pytest

from seqveil import MarkovModel, Setting
from seqveil.core.coins import KeyedCoins
from seqveil.core.errors import InputError, ModelError
from seqveil.engine.streams import Streams
from seqveil.receiver.learn import learn
from seqveil.receiver.reweigh import Reweighed
from seqveil.receiver.upgrade import evidence_of, upgrade

TRUTH = MarkovModel([0.5, 0.3, 0.2], [[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
NONE = MarkovModel([1 / 3] * 3, np.full((3, 3), 1 / 3))
START = Setting.of(NONE, "randomized_response", 1.0)
UNIT = 2.0**-31
USERS = [f"u{k}" for k in range(60)]


def released(path, setting, truth, since=0, gaps="refuse", seed=5):
    """Release these events of all users and give back what was released, (users, events)."""
    coins = KeyedCoins.seeded(seed, b"test")
    with Streams.open(path, setting, coins=coins, gaps=gaps) as store:
        steps = [store.release(USERS, x, [since + t] * len(USERS)).codes for t, x in enumerate(truth.T)]
    return np.stack(steps, axis=1)


def worst(path, setting):
    with Streams.open(path, setting, coins=KeyedCoins.seeded(5, b"test")) as store:
        return np.array([store.standing(user).leakage for user in USERS])


@pytest.mark.slow
def test_accounts_follow_the_chain_in_force_through_two_moves(tmp_path):
    path, truth = tmp_path / "state.db", TRUTH.sample(30, users=60, seed=1)
    first = released(path, START, truth[:, :12])
    evidence = evidence_of(path, [START])
    assert (evidence.people, evidence.events) == (60, 720)
    chain = learn(evidence).model
    second = Setting.of(chain, "optimal", 1.0, schedule=2)
    done = upgrade(path, [START], second)
    assert (done.users, done.version) == (60, 1)
    both = Reweighed(START, chain, 60)
    for step in first.T:
        both.observe(np.arange(60), step)
    np.testing.assert_allclose(worst(path, second), both.account.worst, atol=UNIT)
    assert worst(path, second).max() <= 12.0 + UNIT  # ε-LDP: within Σε under every chain
    later = released(path, second, truth[:, 12:20], since=12)
    again = released(path, second, 2 - truth[:, 12:20], since=12)  # a retry gives back what was released
    np.testing.assert_array_equal(later, again)
    retried = released(path, second, truth[:, :12], since=0)
    np.testing.assert_array_equal(retried, first)
    third = Setting.of(TRUTH, "optimal", 1.0, schedule=2)
    before = worst(path, second)
    done = upgrade(path, [START, second], third)
    np.testing.assert_allclose(done.before, before.max(), atol=UNIT)
    assert worst(path, third).max() <= 12.0 + 2 * 8.0 + UNIT
    from seqveil.coldstart import Version, VersionedStreams

    streams = VersionedStreams(Version(1, START, 0))
    streams.grow(60)
    for part, version in ((first, None), (later, second)):
        if version is not None:
            streams.switch(Version(2, version, 0))
        for step in part.T:
            streams.observe(np.arange(60), step)
    streams.switch(Version(3, third, 0))
    np.testing.assert_allclose(worst(path, third), streams.state.account.worst, atol=UNIT)
    released(path, third, truth[:, 20:], since=20)
    assert evidence_of(path, [START, second, third]).events == 60 * 30


def test_users_who_came_late_and_events_given_up(tmp_path):
    path = tmp_path / "state.db"
    with Streams.open(path, START, coins=KeyedCoins.seeded(1, b"t"), gaps="skip") as store:
        store.release(["ann", "ann"], [1, 1], [0, 3])
    second = Setting.of(TRUTH, "optimal", 1.0)
    upgrade(path, [START], second)
    with Streams.open(path, second, coins=KeyedCoins.seeded(1, b"t")) as store:
        store.release(["bob", "ann", "bob"], [0, 1, 2], [0, 4, 1])
        accounts = [store.standing(user) for user in ("ann", "bob")]
    assert [each.events for each in accounts] == [5, 2]
    third = Setting.of(NONE, "optimal", 1.0)
    assert upgrade(path, [START, second], third).users == 2
    evidence = evidence_of(path, [START, second, third])
    assert evidence.events == 7
    assert (evidence.table[evidence.index[evidence.users == 0]].std(1) == 0).sum() >= 2  # two events tell nothing


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path):
    path, truth = tmp_path / "state.db", TRUTH.sample(3, users=60, seed=2)
    released(path, START, truth)
    second = Setting.of(TRUTH, "optimal", 1.0)
    with pytest.raises(InputError, match="name all of them"):
        upgrade(path, [second], second)
    with pytest.raises(InputError, match="same budget"):
        upgrade(path, [START], Setting.of(TRUTH, "optimal", 1.0, budget=3.0))
    with pytest.raises(InputError, match="sound"):
        upgrade(path, [START], Setting.of(TRUTH, "crr", 1.0))
    with pytest.raises(InputError, match="batches"):
        upgrade(path, [START], Setting.of(TRUTH, "tree", 1.0, batch=2))
    with pytest.raises(InputError, match="same symbols"):
        upgrade(path, [START], Setting.of(MarkovModel([0.5, 0.5], [[0.5, 0.5]] * 2), "optimal", 1.0))
    np.testing.assert_array_equal(released(path, START, truth), released(path, START, truth))
    upgrade(path, [START], second)
    with pytest.raises(ModelError, match="another model"):
        Streams.open(path, START, coins=KeyedCoins.seeded(5, b"test"))


@pytest.mark.slow
def test_the_command_begins_learns_and_goes_on(tmp_path, capsys):
    """release --state, upgrade, release --state again: the same output file, and a second upgrade after a kill."""
    from seqveil.coldstart import Versions
    from seqveil.interfaces.cli import main

    truth, place = TRUTH.sample(24, users=300, seed=4), str(tmp_path)
    rows = [f"u{u},{'abc'[truth[u, t]]}" for t in range(24) for u in range(300)]
    for name, count in (("half", 3600), ("all", 7200)):
        (tmp_path / f"{name}.csv").write_text("user,value\n" + "\n".join(rows[:count]) + "\n")
    (tmp_path / "values").write_text("a\nb\nc\n")
    upgrading = ["upgrade", f"{place}/s.db", "--versions", f"{place}/v", "-o", f"{place}/m"]
    keeping = ["--seed", "6", "--epsilon", "1", "--every", "2", "--state", f"{place}/s.db", "--out", f"{place}/out.csv"]
    assert main(upgrading) == 2  # nothing to begin with
    assert main([*upgrading, "--alphabet", f"{place}/values", "--epsilon", "1", "--every", "2"]) == 0
    start = ["--model", f"{place}/m", "--mechanism", "randomized_response"]
    assert main(["release", f"{place}/half.csv", *start, *keeping]) == 0
    assert main(upgrading) == 0
    assert len(Versions.load(f"{place}/v")) == 2
    assert "300 users moved" in capsys.readouterr().out
    assert main(["release", f"{place}/all.csv", *start, *keeping]) == 2  # the old options are refused
    assert main(["release", f"{place}/all.csv", "--model", f"{place}/m", *keeping]) == 0
    released = (tmp_path / "out.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in released] == [row.split(",")[0] for row in rows]
    assert main(["audit", f"{place}/out.csv", "--model", f"{place}/m"]) == 2
    versions = Versions.load(f"{place}/v")
    again = Versions(
        [*versions, type(versions.last)(2, Setting.of(versions.last.setting.model, "balanced", 1.0), 7200)]
    )
    again.save(f"{place}/v")  # as a kill between writing the versions and moving the state file leaves it
    capsys.readouterr()
    assert main(upgrading) == 0
    assert "as the run before had begun to" in capsys.readouterr().out
