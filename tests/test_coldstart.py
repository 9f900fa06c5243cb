"""The cold start: exact accounts across versions, a receiver who agrees, what is promised under a learned chain."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_streams as streams
from reference_streams import Rows
from seqveil import Budget, MarkovModel, Setting
from seqveil.coldstart import ColdStart, Points, Receiver, Version, VersionedStreams, Versions, first_version
from seqveil.core.alphabet import Alphabet
from seqveil.core.coins import SeededCoins
from seqveil.core.errors import BudgetSpent, InputError, ModelError
from seqveil.core.leakage import extremes
from seqveil.receiver.learn import Evidence, learn, region, slack_along

SEEDS = st.integers(0, 2**32 - 1)
STICKY = MarkovModel([0.6, 0.3, 0.1], [[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])


def run(seed=1, users=200, length=30, first=2_000, **options):
    """A cold start over people of the sticky chain, and all it released."""
    truth = STICKY.sample(length, users=users, seed=seed)
    start = ColdStart(3, 1.0, points=Points(first, 2, 6_000), seed=seed + 1_000_003, **options)
    released, numbers, epsilons = [], [], []
    for step in truth.T:
        codes, used, version = start.release_codes(range(users), step)
        released.append(codes)
        epsilons.append(used)
        numbers.append(version)
    return start, *(np.stack(part, axis=1) for part in (released, epsilons, numbers))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, order=st.integers(1, 2))
def test_the_account_after_a_switch_is_that_of_all_sequences(seed, order):
    """Releases of version 0, then 1, then 2: the account under the chain in force, by Bayes over every sequence."""
    rng = np.random.default_rng(seed)
    n, epsilon = int(rng.integers(2, 4)), float(rng.uniform(0.3, 1.5))
    begin = first_version(Alphabet.codes(n), "randomized_response", epsilon)
    one = MarkovModel(*streams.random_chain(rng, n))
    prior, transitions = streams.random_chain(rng, n, order)
    two = MarkovModel(prior, transitions, order)
    people, coins, columns = VersionedStreams(begin), SeededCoins(seed % 997), []
    people.grow(2)
    for k, model in enumerate((None, one, two)):
        if model is not None:
            people.switch(Version(k, Setting.of(model, "optimal", epsilon), 4 * k))
        for _ in range(2):
            made = people.release(np.array([0]), rng.integers(0, n, 1), coins)
            columns.append(made.columns[0])
        if model is two:
            law = streams.sequence_law(prior, transitions, len(columns))
            most, least = streams.sequence_leakage(law, columns)
            account = people.state.account
            np.testing.assert_allclose([account.most[0], account.least[0]], [most, least], atol=1e-9)
            assert account.worst[0] <= epsilon * (2 + 2 * 2 + 2) + 1e-9  # ε, 2ε, ε
            assert account.worst[1] == 0.0  # who released nothing leaked nothing
            expected = streams.symbol_law(streams.sequence_law(prior, transitions, 7), columns, 6, n)
            found = np.bincount(two.newest, people.state.states[0], minlength=n)
            np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.slow
def test_a_receiver_with_versions_and_releases_agrees_to_the_last_bit(tmp_path):
    start, released, epsilons, numbers = run(schedule=2)
    assert len(start.versions) >= 2
    start.save(tmp_path / "versions")
    versions = Versions.load(tmp_path / "versions")
    assert versions.describe() == start.versions.describe()
    receiver = Receiver(versions)
    for k in range(0, released.shape[1], 3):  # in other portions than it was released
        part = released[:, k : k + 3].T.ravel()
        used, _ = receiver.observe([*range(200)] * (part.size // 200), part)
        np.testing.assert_array_equal(used, epsilons[:, k : k + 3].T.ravel())
    mine, theirs = start.streams.state, receiver.streams.state
    for name in ("states", "steps", "spent"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    np.testing.assert_array_equal(mine.account.most, theirs.account.most)
    np.testing.assert_array_equal(start.accounts().leakage, receiver.accounts().leakage)
    assert (np.diff(numbers, axis=1) >= 0).all()
    assert [v.after for v in versions] == [0, *(v.after for v in start.versions)][1:]


def test_versions_earn_their_place_and_lower_the_error():
    start, released, _, numbers = run(users=400, length=40, first=4_000, schedule=4)
    truth = STICKY.sample(40, users=400, seed=1)
    wrong = [(released != truth)[numbers == v].mean() for v in (0, int(numbers.max()))]
    assert numbers.max() >= 1
    assert wrong[1] < wrong[0] - 0.1
    assert start.versions.last.why["gain"] > 0
    assert start.worst_release <= 4.0 + 1e-9
    assert not start.private


@pytest.mark.slow
def test_nothing_is_learned_where_there_is_nothing_to_learn():
    flat = np.random.default_rng(3).integers(0, 3, (30, 200))
    start = ColdStart(3, 1.0, points=Points(2_000, 2, 6_000), seed=8)
    for step in flat:
        start.release_many(range(200), step.tolist())
    assert len(start.versions) == 1
    assert [events for events, _ in start.tried] == [2_000, 4_000]
    assert start.accounts().leakage.max() <= 30.0


@pytest.mark.slow
def test_one_stream_alone_can_start_cold():
    truth = STICKY.sample(4_000, users=1, seed=1)[0]
    start = ColdStart(["a", "b", "c"], 1.0, points=Points(3_000, 2, 3_000), schedule=4, seed=99)
    released = [start.release("ann", "abc"[x]) for x in truth[:20]]
    assert set(released) <= set("abc")
    start.release_many(["ann"] * 3_980, ["abc"[x] for x in truth[20:]])
    assert len(start.versions) == 2
    assert start.accounts().events.tolist() == [4_000]


@pytest.mark.slow
def test_a_budget_holds_under_the_chain_in_force():
    start, _, epsilons, numbers = run(budget=16.0)
    assert len(start.versions) == 2
    assert start.accounts().leakage.max() <= 16.0 + 1e-9
    assert (epsilons[numbers == 1] == 0).any()
    before = run(budget=5.0, first=7_000)[0]  # no version but the first: Σε, which holds under every chain
    assert before.accounts().leakage.tolist() == [5.0] * 200
    short = ColdStart(3, 1.0, budget=Budget(total=2.0, when_spent="error"), seed=1)
    short.release_many(["ann"] * 2, [0] * 2)
    with pytest.raises(BudgetSpent):
        short.release("ann", 0)
    with pytest.raises(InputError, match="window"):
        ColdStart(3, 1.0, budget=Budget(per_window=1.0, releases=5))


def test_what_cannot_start_cold_is_refused(tmp_path):
    with pytest.raises(InputError, match="ε-LDP"):
        ColdStart(3, 1.0, start="optimal")
    with pytest.raises(InputError, match="sound"):
        ColdStart(3, 1.0, mechanism="crr")
    with pytest.raises(InputError, match="one by one"):
        ColdStart(3, 1.0, mechanism="tree")
    with pytest.raises(InputError, match="at least 2"):
        ColdStart(1, 1.0)
    with pytest.raises(InputError, match="too large"):
        ColdStart(3_000, 1.0)
    closed = VersionedStreams(first_version(Alphabet.codes(2), "randomized_response", 1.0))
    closed.close()
    with pytest.raises(InputError, match="closed"):
        closed.evidence()
    STICKY.save(tmp_path / "model")
    assert not Versions.is_one(tmp_path / "model")
    with pytest.raises(ModelError, match="not a file of versions"):
        Versions.load(tmp_path / "model")
    (tmp_path / "junk").write_text("junk")
    with pytest.raises(ModelError):
        Versions.load(tmp_path / "junk")


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_slack_bounds_every_chain_of_the_region(seed):
    """Brute force: chains on the border of the region, every release's exact lifts under them, all short streams."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 4))
    prior, rows = streams.random_chain(rng, n)
    setting = Setting.of(MarkovModel(prior, rows), "optimal", float(rng.uniform(0.2, 1.2)))
    fleet, coins = Rows(setting, 20), SeededCoins(seed % 991)
    made = [fleet.release(np.arange(20), rng.integers(0, n, 20), coins) for _ in range(4)]
    codes = np.stack([each.codes for each in made], axis=1)
    radii, first = rng.uniform(0, 0.15, n), float(rng.uniform(0, 0.15))
    bounds = slack_along(setting, radii, codes, first)
    for _ in range(6):
        other_prior = _moved(rng, prior, first)
        other = np.stack([_moved(rng, row, radius) for row, radius in zip(rows, radii, strict=True)])
        law = np.broadcast_to(other_prior, (20, n))
        for k, each in enumerate(made):
            marginal = (law * each.columns).sum(1)
            least, most = extremes(each.columns, marginal, law > 0, n)
            assert (np.maximum(most, -least) <= bounds[:, k] + 1e-9).all()
            law = (law * each.columns / marginal[:, None]) @ other
    epsilon = setting.epsilon
    assert (bounds <= 2 * epsilon + 1e-9).all()
    tight = slack_along(setting, np.zeros(n), codes, 0.0)
    assert (tight <= epsilon + 1e-9).all()
    assert (tight <= bounds + 1e-12).all()


def _moved(rng, law, radius):
    """A law at most `radius` away in total variation: mass taken from some symbols and given to another."""
    taken = rng.dirichlet(np.ones(law.size)) * radius
    taken = np.minimum(taken, law)
    moved = law - taken
    moved[rng.integers(law.size)] += taken.sum()
    return moved / moved.sum()


@pytest.mark.slow
def test_the_region_holds_the_truth_about_as_often_as_it_says():
    """24 fits at 90%: were each to miss with probability 0.1, more than 9 misses have probability below 1e-4."""
    none = MarkovModel([1 / 3] * 3, np.full((3, 3), 1 / 3))
    setting = Setting.of(none, "randomized_response", 1.5)
    missed, sizes = 0, []
    for seed in range(24):
        truth = STICKY.sample(20, users=300, seed=seed)
        fleet, coins = Rows(setting, 300), SeededCoins(1_000 + seed)
        released = np.stack([fleet.release(np.arange(300), step, coins).codes for step in truth.T], axis=1)
        evidence = Evidence.of(setting, released)
        found = region(learn(evidence, strength=3.0), evidence, 0.9)
        off = np.abs(found.learned.chain.rows - STICKY.chain.toarray()).sum(1) / 2
        missed += bool((off > found.rows).any())
        sizes.append(found.rows.max())
    assert missed <= 9
    assert np.median(sizes) < 0.35  # and is of use
    few = found.plausible(3)
    assert len({model.fingerprint for model in few}) == 3


def test_points_and_versions_are_in_order():
    assert Points(10, 3, 100).after(10) == 30
    assert Points(10, 3, 100).after(95) is None
    start, *_ = run(length=12)
    versions = start.versions
    assert [versions.at(e).number for e in (0, versions.last.after - 1, versions.last.after)][-1] == len(versions) - 1
    for a, b in itertools.pairwise(versions):
        assert a.after < b.after
    with pytest.raises(InputError, match="in order"):
        Versions([versions.last, versions[0]])
