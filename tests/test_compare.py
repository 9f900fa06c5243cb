"""The race: every figure of a row recomputed in a slower way, limits against the exact optimum, and the command."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import reference_streams as ref
import seqveil as sv
from seqveil import distortion, mechanisms
from seqveil.core.errors import InputError
from seqveil.engine import batches, stream
from seqveil.evaluate.baselines.mutual_information import _blahut, single_release
from seqveil.evaluate.comparison import Arena, Contestant, constant, converse, line_up, race, rate_distortion
from seqveil.evaluate.comparison.race import _Batched, _OneByOne
from seqveil.evaluate.comparison.rows import clustered
from seqveil.evaluate.comparison.tables import winners
from seqveil.receiver.decode import decode_codes


@pytest.fixture(scope="module")
def chain():
    prior, transitions = ref.random_chain(np.random.default_rng(3), 4)
    return sv.MarkovModel(prior, 0.6 * np.eye(4) + 0.4 * transitions)


def ragged(model, lengths, seed=1):
    return [
        codes[:length] for codes, length in zip(model.sample(max(lengths), len(lengths), seed), lengths, strict=True)
    ]


class Slow:
    """One user after the other, with the same coin for whoever asks."""

    def __init__(self, setting, streams, uniform):
        self.totals, self.lifts, self.ldp, self.leakage = np.zeros(3), [], [], []
        for codes in streams:
            release = self.in_batches if setting.in_batches else self.one_by_one
            state, made, online, late = release(setting, codes, uniform)
            guesses = (made, setting.distortion.best_guess(online), setting.distortion.best_guess(late))
            self.totals += [setting.distortion.between(codes, guess).sum() for guess in guesses]
            self.leakage.append((state.account.most[0], state.account.least[0]))
        self.means = self.totals / sum(map(len, streams))

    def one_by_one(self, setting, codes, uniform):
        state, made = stream.State.start(setting), []
        for k, x in enumerate(codes):
            belief = stream.filtering.symbols(setting.model, state.states)
            used = float(stream.allowance(setting, state)[0][0])
            kernel = stream.kernels(setting, belief, used).one(0)
            self.lifts += [pair for pair in ref.exact_lifts(kernel.weights, belief[0]) if pair]
            self.ldp.append(ref.exact_ldp(kernel.weights))
            out, state = stream.step(setting, state, np.array([x]), uniform)
            made.append(int(out.codes[0]))
            assert state.steps[0] == k + 1
        made = np.array(made)
        return state, made, *(decode_codes(setting, made[None], smooth=smooth)[0] for smooth in (False, True))

    def in_batches(self, setting, codes, uniform):
        state, sent = stream.State.start(setting), []
        for begin in range(0, len(codes), setting.batch):
            part = codes[begin : begin + setting.batch]
            fair = dataclasses.replace(setting, epsilon=0.6 * len(part))  # a short last batch has its symbols' share
            one, state = batches.step(fair, state, part, uniform)
            sent.append(one)
            self.lifts.append((one.least, one.most))
            self.ldp.append(one.most - one.least)
        made = np.concatenate([one.codes for one in sent])
        return state, made, batches.filtered(setting, sent), batches.smooth(setting, sent)


RACES = [("optimal", 1, 1), ("optimal", 1, 3), ("randomized_response", 1, 1), ("crr", 1, 1), ("tree", 2, 1)]


@pytest.mark.parametrize(("mechanism", "batch", "period"), RACES)
@pytest.mark.parametrize("uniform", [0, 1 << 61])
def test_a_race_measures_what_a_slow_reading_finds(chain, mechanism, batch, period, uniform, monkeypatch):
    monkeypatch.setattr("seqveil.evaluate.comparison.arena.PART", 100)  # several parts of several users
    streams = ragged(chain, [1, 5, 3, 7, 4, 4])
    setting = sv.Policy(epsilon=0.6 * batch, batch=batch, mechanism=mechanism, every=period).on(chain)
    randomness, seen = ref.OneCoin(), []
    randomness.value = uniform
    meter = (_Batched if batch > 1 else _OneByOne)(setting, randomness, seen.append)
    meter.run(streams)
    slow = Slow(setting, streams, randomness)
    assert sum(seen) == meter.tally.events == 24
    assert meter.tally.users == 6
    errors = [meter.tally.mean(name)[0] for name in ("error", "filtered", "smoothed")]
    np.testing.assert_allclose(errors, slow.means, atol=1e-12)
    assert meter.tracker.most == pytest.approx(max(most for _, most in slow.lifts), abs=1e-9)
    assert meter.tracker.least == pytest.approx(min(least for least, _ in slow.lifts), abs=1e-9)
    assert meter.tracker.ldp == pytest.approx(max(slow.ldp), abs=1e-9)
    assert meter.most == pytest.approx(max(most for most, _ in slow.leakage))
    assert meter.least == pytest.approx(min(least for _, least in slow.leakage))
    assert meter.tally.means()["online_1"] == pytest.approx(1 - slow.means[1])  # Hamming: the best guess is the mode
    assert meter.tally.means()["hindsight_1"] == pytest.approx(1 - slow.means[2])


@pytest.mark.slow
def test_who_passes_the_claim_is_marked_and_who_keeps_it_is_not(chain):
    arena = Arena.of(chain, ragged(chain, [6] * 20), fitted=ragged(chain, [6] * 30, seed=2))
    rows = {each.label: race(arena, each, 0.5) for each in line_up(["all"], [1, 2])}
    assert {row.mechanism for row in rows.values()} >= {*mechanisms.instantaneous(), "tree", "tree_ldp"}
    for label, row in rows.items():
        promised = mechanisms.find(row.mechanism).sound
        worst = np.inf if row.status == "skipped" else max(row.lift_most, -row.lift_least)
        expected = "unsound" if worst > row.claimed + 1e-9 else "sound" if promised else "no promise"
        assert row.status in (expected, "skipped"), label
        assert row.status == "sound" or not row.may_win
        assert row.status != "unsound" or not promised, label
    assert rows["crr"].status == "unsound"
    assert rows["randomized_response at 2ε"].claimed == 1.0
    assert not rows["randomized_response at 2ε"].may_win
    assert rows["optimal"].lift_most == pytest.approx(0.5)
    assert rows["tree, 2 at a time"].claimed == 1.0
    assert rows["tree, 2 at a time"].lift_scope == "releases"
    marked = {row.label: mark for row, mark in winners(list(rows.values()))}
    best = min((row for row in rows.values() if row.may_win), key=lambda row: row.filtered)
    assert marked[best.label] == "★ "


def test_a_mechanism_that_refuses_gives_a_row_that_says_so(chain):
    arena = Arena.of(chain, ragged(chain, [6] * 3))
    row = race(arena, Contestant("optimal", factor=2), 12.0)
    assert row.status == "skipped"
    assert row.reason.startswith("does not fit: expected epsilon of at most 16")
    many = sv.MarkovModel(np.full(300, 1 / 300), np.full((300, 300), 1 / 300))
    wide = Arena.of(many, ragged(many, [5] * 2))
    assert race(wide, Contestant("batch_lp", batch=5), 1.0).reason.startswith("does not fit")


def test_a_race_is_repeatable_and_the_arena_knows_what_it_depends_on(chain):
    streams = ragged(chain, [6] * 5)
    one, two = (race(Arena.of(chain, streams, seed=4), Contestant("balanced"), 1.0) for _ in range(2))
    assert {**one.to_json(), "micros": 0} == {**two.to_json(), "micros": 0}
    prints = {
        Arena.of(chain, streams, seed=4).fingerprint,
        Arena.of(chain, streams, seed=5).fingerprint,
        Arena.of(chain, streams[::-1], seed=4).fingerprint,
        Arena.of(chain, streams, distortion="absolute", seed=4).fingerprint,
        Arena.of(chain, streams, seed=4, batched_users=3).fingerprint,
        Arena.of(chain, streams, seed=4, fitted=streams[:1]).fingerprint,
    }
    assert len(prints) == 6


def test_intervals_are_those_of_the_users_means():
    from scipy import stats

    sums, counts = np.array([3.0, 1.0, 4.0, 2.0]), np.full(4, 5.0)
    mean, half = clustered(sums, counts)
    low, high = stats.t.interval(0.95, 3, np.mean(sums / 5), stats.sem(sums / 5))
    assert (mean - half, mean + half) == (pytest.approx(low), pytest.approx(high))
    assert clustered(sums[:1], counts[:1]) == (0.6, None)


def test_rate_distortion_of_known_sources():
    def entropy(d):
        return -d * np.log(d) - (1 - d) * np.log(1 - d)

    d = 0.1
    binary = -(0.3 * np.log(0.3) + 0.7 * np.log(0.7)) - entropy(d)
    assert rate_distortion(np.array([[0.3, 0.7]]), binary, distortion.hamming())[0] == pytest.approx(d, abs=1e-9)
    uniform = np.log(5) - entropy(d) - d * np.log(4)
    assert rate_distortion(np.full((1, 5), 0.2), uniform, distortion.hamming())[0] == pytest.approx(d, abs=1e-9)
    assert rate_distortion(np.array([[0.3, 0.7]]), 1.0, distortion.hamming()).tolist() == [0.0]
    with pytest.raises(InputError, match="takes too long"):
        rate_distortion(np.full((1, 400), 1 / 400), 1.0, distortion.absolute(range(400)))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10**6), st.sampled_from([0.2, 0.7, 1.2]))
def test_closed_form_and_iteration_agree(n, seed, rate):
    beliefs = np.random.default_rng(seed).dirichlet(np.ones(n), 3)
    exact = rate_distortion(beliefs, rate, distortion.hamming())
    below = _blahut(beliefs, rate, 1.0 - np.eye(n))
    assert (below <= exact + 1e-9).all()
    assert (below >= exact - 0.03).all()  # few slopes, few iterations


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10**6), st.sampled_from([0.2, 0.7, 1.5, 3.0]), st.booleans())
def test_the_converse_is_below_the_exact_optimum(n, seed, epsilon, numbers):
    belief = ref.random_belief(np.random.default_rng(seed), n)
    costs = distortion.absolute(range(n)) if numbers else distortion.hamming()
    optimum = reference.full_lp(belief, epsilon, costs.matrix(n))
    value = optimum if np.isscalar(optimum) else optimum[0]
    assert single_release(belief[None], epsilon, costs)[0] <= value + 1e-7


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_the_converse_is_met_by_a_fair_bit(epsilon):
    """There the exact optimum errs e^-ε / 2, and the bound can be no higher and is no lower."""
    bound = single_release(np.array([[0.5, 0.5]]), epsilon, distortion.hamming())[0]
    assert bound == pytest.approx(np.exp(-epsilon) / 2)


def test_limits_bound_the_race(chain):
    arena = Arena.of(chain, list(chain.sample(8, 400, seed=5)))
    for epsilon in (0.5, 2.0):
        guess, bound = constant(arena, epsilon), converse(arena, epsilon)
        best = race(arena, Contestant("optimal"), epsilon)
        assert bound.error < best.filtered + best.filtered_half + bound.error_half
        assert best.filtered < guess.error
        assert guess.guesses["without_1"] == pytest.approx(1 - guess.error)
        assert guess.guesses["without_1"] == pytest.approx(best.guesses["without_1"])
        assert guess.lift_most == guess.ldp == 0
