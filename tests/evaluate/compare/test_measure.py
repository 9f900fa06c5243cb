"""Rows of a comparison: every figure recomputed in a slower way, secrets by enumeration, limits against the optimum."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import seqveil as sv
from reference import streams as ref
from reference.secrets import Enumerated, random_model, typed_model
from seqveil.core.kernel import DENOMINATOR
from seqveil.engine import batches, stream
from seqveil.engine.stream import State
from seqveil.evaluate.compare import Arena, Way, constant, measured
from seqveil.evaluate.compare.measure import errors
from seqveil.interfaces.trials import release
from seqveil.receiver.decode import decode_codes

PRIOR, TRANSITIONS = ref.random_chain(np.random.default_rng(3), 4)
CHAIN = sv.MarkovModel(PRIOR, 0.6 * np.eye(4) + 0.4 * TRANSITIONS)


def ragged(model, lengths, seed=1):
    return [own[:k] for own, k in zip(model.sample(max(lengths), len(lengths), seed), lengths, strict=True)]


class Slow:
    """One person after the other, with the same coin for whoever asks."""

    def __init__(self, terms, streams, coin):
        self.totals, self.lifts, self.ldp, self.leakage = np.zeros(3), [], [], []
        for codes in streams:
            how = self.in_batches if terms.in_batches else self.one_by_one
            state, made, online, late = how(terms, codes, coin)
            guesses = (made, terms.distortion.best_guess(online), terms.distortion.best_guess(late))
            self.totals += [terms.distortion.between(codes, guess).sum() for guess in guesses]
            self.leakage.append((state.account.most[0], state.account.least[0]))
        self.means = self.totals / sum(map(len, streams))

    def one_by_one(self, terms, codes, coin):
        state, made = stream.State.start(terms), []
        for x in codes:
            before, (out, state) = state, stream.step(terms, state, np.array([x]), coin)
            made.append(int(out.codes[0]))
            if terms.in_blocks:
                self.lifts.append((-float(out.costs[0]), float(out.costs[0])))
                continue
            belief = stream.filtering.symbols(terms.model, before.states)
            kernel = stream.kernels(terms, belief, float(stream.allowance(terms, before)[0][0])).one(0)
            column = kernel.codes.tolist().index(made[-1])
            self.lifts.append(ref.exact_lifts(kernel.weights, belief[0])[column])
            self.ldp.append(math.log(kernel.weights[:, column].max() / kernel.weights[:, column].min()))
        made = np.array(made)
        return state, made, *(decode_codes(terms, made[None], smooth=smooth)[0] for smooth in (False, True))

    def in_batches(self, terms, codes, coin):
        state, sent = stream.State.start(terms), []
        for begin in range(0, len(codes), terms.batch):
            part = codes[begin : begin + terms.batch]
            fair = dataclasses.replace(terms, epsilon=0.6 * len(part))  # a short last batch has its symbols' share
            one, state = batches.step(fair, state, part, coin)
            sent.append(one)
            self.lifts.append((one.least, one.most))
            self.ldp.append(one.most - one.least)
        made = np.concatenate([one.codes for one in sent])
        return state, made, batches.filtered(terms, sent), batches.smooth(terms, sent)


WAYS = [Way("optimal"), Way("randomized_response"), Way("crr"), Way("tree", batch=2), Way("blocks", block=3)]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.label)
@pytest.mark.parametrize("uniform", [0, 1 << 61])
def test_a_row_says_what_a_slow_reading_finds(way, uniform, monkeypatch):
    monkeypatch.setattr("seqveil.interfaces.trials.PART", 100)  # several parts of several people
    coin = ref.OneCoin()
    coin.value = uniform
    monkeypatch.setattr("seqveil.interfaces.trials.SeededRandomness", lambda seed: coin)
    streams = ragged(CHAIN, [1, 5, 3, 7, 4, 4])
    row = measured(Arena.of(CHAIN, streams), way, 0.6)
    slow = Slow(way.terms(Arena.of(CHAIN, streams), 0.6), streams, coin)
    np.testing.assert_allclose([row.error, row.filtered, row.smoothed], slow.means, atol=1e-12)
    assert row.lift_most == pytest.approx(max(most for _, most in slow.lifts), abs=1e-9)
    assert row.lift_least == pytest.approx(min(least for least, _ in slow.lifts), abs=1e-9)
    assert row.ldp == (None if way.block > 1 else pytest.approx(max(slow.ldp), abs=1e-9))
    assert row.leakage_most == pytest.approx(max(most for most, _ in slow.leakage))
    assert row.leakage_least == pytest.approx(min(least for _, least in slow.leakage))


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, 0.0, math.inf])
def test_what_kernels_remember_is_decoded_and_counts_for_their_ldp_level(memory):
    secret = sv.secrets.ever(3, epsilon=0.7, window=4)
    arena = Arena.of(CHAIN, ragged(CHAIN, [4, 6, 8, 8, 5] * 3), sv.Policy(secrets=[secret]))
    way = Way("guarded", side_information=memory)
    row, terms = measured(arena, way, None), way.terms(arena, None)
    runs = release(terms, arena.streams, arena.seed)
    assert bool(terms.remembered) == (memory != 0.0)
    wrong = np.zeros(2)
    for place, truth in enumerate(arena.streams):
        decoded = (decode_codes(terms, runs.released[place][None], smooth=smooth)[0] for smooth in (False, True))
        wrong += [(guess.argmax(1) != truth).sum() for guess in decoded]
    np.testing.assert_allclose([row.filtered, row.smoothed], wrong / sum(map(len, arena.streams)), atol=1e-12)
    level, state = 0.0, State.start(terms)
    for code in runs.released[3]:
        seen, state = stream.observe(terms, state, np.array([code]))
        with np.errstate(divide="ignore"):
            level = max(level, float(np.log(seen.remembered.max() / seen.remembered.astype(float).min())))
    assert row.ldp >= level


def test_who_refuses_gives_a_row_that_says_so():
    row = measured(Arena.of(CHAIN, ragged(CHAIN, [6] * 3)), Way("optimal", factor=2), 12.0)
    assert (row.status, row.error) == ("skipped", None)
    assert row.reason.startswith("does not fit: expected epsilon of at most 16")
    many = sv.MarkovModel(np.full(300, 1 / 300), np.full((300, 300), 1 / 300))
    assert measured(Arena.of(many, ragged(many, [5] * 2)), Way("batch_lp", batch=5), 1.0).status == "skipped"
    assert "declared secrets" in measured(Arena.of(CHAIN, ragged(CHAIN, [6])), Way("suppression"), None).reason
    assert "expected epsilon" in measured(Arena.of(CHAIN, ragged(CHAIN, [6])), Way("optimal"), None).reason


LENGTH, EVENT = 4, 0.7  # events, and the ε of one
MODELS = {"chain": random_model(np.random.default_rng(4), 3), "types": typed_model(np.random.default_rng(5), 2, 2)}
SECRETS = [
    sv.secrets.ever(1, epsilon=0.4, window=f"first {LENGTH}"),
    sv.secrets.ever(0, epsilon=0.6, window=2),
    sv.secrets.followed_by(0, 1, epsilon=0.4, window=f"first {LENGTH}", one_sided=True),
]


def public_columns(terms, codes):
    """Columns Q(y|·) of one released stream, from what is public alone."""
    found, state = [], stream.State.start(terms)
    for code in codes:
        seen, state = stream.observe(terms, state, np.array([code]))
        found.append(seen.columns[0] / DENOMINATOR)
    return found


def worst_by_enumeration(model, secret, columns):
    """The largest move of the log odds of any window at any time, from all sequences there are."""
    everything, compiled, size = Enumerated(model, LENGTH), secret.over(model.alphabet), secret.length()
    found = [0.0]
    for first in range(0, LENGTH, size) if secret.repeats else (0,):
        values = everything.values(compiled, first, size)
        for t in range(1, LENGTH + 1):
            move = everything.log_odds(values, 2, columns[:t])
            found.append(move if secret.sides == "up" else abs(move))
    return max(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guarded", "suppression", "total", "optimal", "crr"])
@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: f"{secret.name} {secret.window}")
@pytest.mark.parametrize("kind", MODELS)
def test_what_was_disclosed_equals_enumeration(kind, secret, name, longest):
    longest(LENGTH)
    model = MODELS[kind]
    if name == "suppression" and secret.kind == "followed_by" and model.n == 2:
        return  # the secret names every symbol, so there is no other one to release
    way = Way(name, side_information=0.0 if name == "guarded" else None)  # columns by symbol alone
    streams = list(model.sample(LENGTH, 12, seed=8))
    epsilon = EVENT if way.by_event else None
    arena = Arena.of(model, streams, sv.Policy(secrets=secret), seed=2)
    row, terms = measured(arena, way, epsilon), way.terms(arena, epsilon)
    made = release(terms, streams, 2, follow=arena.trackers)
    columns = [public_columns(terms, made.released[user].tolist()) for user in range(len(streams))]
    figures, worst = row.secrets[0], max(worst_by_enumeration(model, secret, each) for each in columns)
    if name == "guarded" and secret.repeats:  # a window that is over counts as what later releases could still reveal
        assert worst - 1e-9 <= figures.log_odds_worst
    else:
        assert figures.log_odds_worst == pytest.approx(worst, abs=1e-9)
    assert figures.promised is None or figures.log_odds_worst <= figures.promised
    if name == "guarded":
        assert (figures.promised, figures.kept, row.status) == (secret.epsilon, True, "sound")


def test_secrets_leave_the_rest_of_a_row_as_it_is():
    """The account is beside the release, not in it; and a row is repeatable."""
    policy = sv.Policy(secrets=[sv.secrets.ever(1, epsilon=0.5), sv.secrets.count(0, 2, epsilon=1.0)])
    streams = ragged(CHAIN, [1, 6, 2, 5, 3])
    one, two = (measured(Arena.of(CHAIN, streams, each, seed=3), Way("optimal"), 1.0) for each in (None, policy))
    assert len(two.secrets) == 2
    assert dataclasses.replace(two, secrets=(), micros=0) == dataclasses.replace(one, micros=0)


def test_intervals_are_those_of_the_peoples_means():
    from scipy import stats

    sums = np.array([3.0, 1.0, 4.0, 2.0])
    costs = {person: np.full(5, total / 5) for person, total in enumerate(sums)}
    found = errors(costs, costs, costs)
    mean, half = found["smoothed"], found["smoothed_half"]
    low, high = stats.t.interval(0.95, 3, np.mean(sums / 5), stats.sem(sums / 5))
    assert (mean - half, mean + half) == (pytest.approx(low), pytest.approx(high))
    alone = errors({0: costs[0]}, {0: costs[0]}, {0: costs[0]})
    assert (alone["error"], alone["error_half"]) == (pytest.approx(0.6), None)


@pytest.mark.slow
def test_a_release_is_better_than_the_best_guess_without_one():
    arena = Arena.of(CHAIN, list(CHAIN.sample(8, 400, seed=5)))
    for epsilon in (0.5, 2.0):
        guess = constant(arena, epsilon)
        best = measured(arena, Way("optimal"), epsilon)
        assert best.filtered < guess.error
        assert guess.lift_most == guess.ldp == 0
