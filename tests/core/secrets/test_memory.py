"""Kernels that go by what is remembered of the raw stream, against every sequence and every outcome of small chains.

Nothing of the filters and accounts is used to check them: sequences are listed, automata are read along each of them,
and what releases reveal follows from the integer tables.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

import seqveil as sv
from reference_secrets import random_model, typed_model
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets.solving import guarded
from seqveil.core.secrets.tables import Bounds, Dial
from seqveil.engine import stream
from seqveil.engine.secrets import dial_of, guarded_table
from seqveil.engine.state import Private, State
from seqveil.engine.step import step

LENGTH = 4
ever, count, pattern = sv.secrets.ever, sv.secrets.count, sv.secrets.pattern
CASES = {
    "first": [ever(1, epsilon=0.5, window="first 4")],
    "windows": [ever(1, epsilon=0.5, window=2)],
    "events": [ever(0, epsilon=0.7, window="event")],
    "stream": [ever(1, epsilon=0.5)],
    "one side": [ever(1, epsilon=0.5, window="first 3", one_sided=True)],
    "three states": [count(1, 2, epsilon=0.4, window="first 4")],
    "overlapping": [ever(1, epsilon=0.5, window="first 2"), ever(1, epsilon=0.5, window="first 4")],
    "two": [ever(0, epsilon=1.0, window=2), ever(1, epsilon=0.5, window=3)],
}


class Listed:
    """All sequences of a chain with their probabilities, and where the automata stand along each."""

    def __init__(self, model, secrets):
        n, step = model.n, model.advance(np.eye(model.size))
        self.words = np.array(list(product(range(n), repeat=LENGTH)))
        self.chances = np.array([self._chance(model, step, word) for word in self.words])
        self.rows = np.zeros(self.words.shape, np.int64)
        for secret in secrets:
            compiled = secret.over(model.alphabet)
            length, machine = compiled.length or LENGTH, compiled.automaton
            for k, word in enumerate(self.words):
                state = 0
                for t, x in enumerate(word.tolist()):
                    inside = secret.repeats or t < length
                    state = int(machine.moves[0 if t % length == 0 else state, x]) if inside else 0
                    self.rows[k, t] = self.rows[k, t] * machine.size + state

    @staticmethod
    def _chance(model, step, word):
        states = np.where(model.newest == word[0], model.initial, 0.0)
        for x in word[1:]:
            states = np.where(model.newest == x, states @ step, 0.0)
        return states.sum()

    def windows(self, model, secret):
        """For each window its answers, the event it ends with, and whether it is promised afterwards too."""
        compiled = secret.over(model.alphabet)
        if secret.window is None:
            spans = [(0, last, False) for last in range(1, LENGTH + 1)]
        elif secret.repeats:
            spans = [(at, at + compiled.length, True) for at in range(0, LENGTH - compiled.length + 1, compiled.length)]
        else:
            spans = [(0, compiled.length, True)]
        return [(np.array([compiled.read(word[first:last]) for word in self.words]), first, last, good)
                for first, last, good in spans]  # fmt: skip


def outcomes(setting, listed):
    """Every outcome of every length: the state after it, its table's last column by source, and Pr(y | sequence)."""
    paths = [(State.start(setting), np.ones(len(listed.words)))]
    for t in range(LENGTH):
        further = []
        for state, chance in paths:
            table = guarded_table(setting, state.trackers[0])
            assert table.dials(dial_of(setting))
            for place, code in enumerate(table.outputs.tolist()):
                column = np.asarray(table.column(place))
                if not column.any():
                    continue
                wide = np.tile(column, dial_of(setting).rows * setting.model.n // column.size)
                at = listed.rows[:, t] % dial_of(setting).rows * setting.model.n + listed.words[:, t]
                if not (chance * wide[at] * listed.chances).any():
                    continue
                seen, after = stream.observe(setting, state, np.array([code]))
                # the table of one user is written in rows that are alike, and may differ in the last bits
                np.testing.assert_allclose(seen.remembered[0], wide, rtol=1e-12, atol=1e4)
                further.append((after, chance * seen.remembered[0][at] / 2.0**62, seen.remembered))
        paths = [(state, chance) for state, chance, _ in further]
        yield t, further


def odds(listed, values, chance):
    both = np.bincount(values, listed.chances * chance, 2) / np.bincount(values, listed.chances, 2)
    with np.errstate(divide="ignore"):
        return float(np.log(both[1] / both[0]))


@pytest.mark.slow
@pytest.mark.parametrize("dial", [0.0, 0.5, math.inf])
@pytest.mark.parametrize("case", CASES)
def test_no_outcome_of_any_length_moves_the_odds_further_than_promised(case, dial, longest):
    longest(6)
    rng, secrets = np.random.default_rng(len(case)), CASES[case]
    for model in (random_model(rng, 2), typed_model(rng, 2, 2)):
        setting, listed = sv.Policy(secrets=secrets, side_information=dial).on(model), Listed(model, secrets)
        assert bool(setting.remembered) == (dial > 0)
        windows = [(secret, *window) for secret in secrets for window in listed.windows(model, secret)]
        for t, found in outcomes(setting, listed):
            for state, chance, _ in found:
                for secret, values, _, last, for_good in windows:
                    if for_good or t < last:
                        moved = odds(listed, values, chance)
                        assert (moved if secret.one_sided else abs(moved)) <= secret.epsilon
                for secret, tracker in zip(secrets, state.trackers[0].rows[0], strict=True):
                    exact = {first: odds(listed, values, chance) for one, values, first, last, good in windows
                             if one is secret and (good or last == t + 1)}  # fmt: skip
                    if tracker.latest.first in exact and tracker.latest.events + tracker.latest.first <= LENGTH:
                        assert tracker.log_odds == pytest.approx(exact[tracker.latest.first], abs=1e-9)


@pytest.mark.slow
def test_an_epsilon_beside_remembered_secrets_holds_for_every_row():
    rng = np.random.default_rng(4)
    model, secret = random_model(rng, 3), ever(1, epsilon=0.5, window="first 3")
    setting = sv.Policy(epsilon=0.8, secrets=secret, side_information=math.inf).on(model)
    listed = Listed(model, [secret])
    values = listed.windows(model, secret)[0][0]
    for t, found in outcomes(setting, listed):
        for state, chance, _ in found:
            assert abs(odds(listed, values, chance)) <= 0.5
            whole = float(listed.chances @ chance)
            lifts = np.log(chance[listed.chances > 0] / whole)
            assert np.abs(lifts).max() <= 0.8 * (t + 1) + 1e-12
            assert state.account.worst[0] + 1e-12 >= np.abs(lifts).max()


@pytest.mark.slow
@pytest.mark.parametrize("dial", [0.0, 0.3, 2.0])
def test_the_release_of_an_event_adds_at_most_the_dial_for_somebody_who_knows_it(dial):
    """By enumeration: the odds of the secret given the true event and all earlier releases, before and after."""
    rng = np.random.default_rng(6)
    model, secret = random_model(rng, 3), ever(1, epsilon=0.5, window="first 4")
    setting, listed = sv.Policy(secrets=secret, side_information=dial).on(model), Listed(model, [secret])
    values, most = listed.windows(model, secret)[0][0], 0.0
    for t, found in outcomes(setting, listed):
        for x in range(3):
            known = listed.words[:, t] == x
            for _, chance, wide in found:
                own = wide[0][listed.rows[:, t] % dial_of(setting).rows * 3 + listed.words[:, t]] / 2.0**62
                past = np.where(own > 0, chance / np.where(own > 0, own, 1.0), 0.0)
                sums = [np.bincount(values[known], (listed.chances * part)[known], 2) for part in (past, past * own)]
                if min(part.min() for part in sums) > 0:
                    most = max(most, abs(math.log(sums[1][1] / sums[1][0] * sums[0][0] / sums[0][1])))
    assert 0.5 * dial <= most <= dial + 1e-12


def test_receivers_decode_by_what_was_remembered():
    """Smoothed posteriors of the true symbols, against all sequences."""
    rng = np.random.default_rng(2)
    model, secret = random_model(rng, 3), ever(1, epsilon=0.5, window="first 4")
    setting, listed = sv.Policy(secrets=secret, side_information=math.inf).on(model), Listed(model, [secret])
    state, private, chance, outcome = State.start(setting), Private.start(setting), listed.chances, []
    for t, code in enumerate([0, 1, 1, 2]):
        seen, state, private = step(setting, state, private, np.array([code]), SeededRandomness(t))
        chance = chance * seen.remembered[0][listed.rows[:, t] * 3 + listed.words[:, t]] / 2.0**62
        outcome.append(int(seen.codes[0]))
    expected = [np.bincount(listed.words[:, t], chance, 3) / chance.sum() for t in range(LENGTH)]
    found = sv.decode_stream(model, outcome, setting.policy)
    assert np.asarray(found).reshape(LENGTH, 3) == pytest.approx(np.array(expected), abs=1e-9)


def test_where_memory_is_lost_kernels_go_by_symbol_from_there_on_and_the_record_says_so():
    rng = np.random.default_rng(3)
    model, secret = random_model(rng, 3), ever(1, epsilon=0.5, window=3)
    setting, randomness = sv.Policy(secrets=secret).on(model), SeededRandomness(1)
    here, there, private = State.start(setting, 2), State.start(setting, 2), Private.start(setting, 2)
    for t, codes in enumerate(model.sample(8, 2, seed=4).T):
        if t == 4:
            private.memory[1] = -1
        made, here, private = step(setting, here, private, codes, randomness)
        seen, there = stream.observe(setting, there, made.codes, forgot=np.array([False, t >= 4]))
        assert (seen.remembered == made.remembered).all()
        rows = made.remembered.reshape(2, 2, 3)
        assert t < 4 or (rows[1, 0] == rows[1, 1]).all()
    assert [each.forgot for each in here.trackers] == [each.forgot for each in there.trackers] == [-1, 4]
    assert all(each.rows[0][0].worst.worst() <= 0.5 for each in here.trackers)


@pytest.mark.parametrize("wrong", [-0.1, math.nan, "much", True])
def test_a_dial_that_is_none_is_refused_in_one_line(wrong):
    with pytest.raises(sv.SeqveilError, match="expected side_information of at least 0") as caught:
        sv.Policy(secrets=CASES["first"], side_information=wrong)
    assert "\n" not in str(caught.value)


def test_a_secret_that_is_certain_is_refused_in_one_line():
    model = sv.MarkovModel([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(sv.SeqveilError, match="certain or impossible"):
        sv.Policy(secrets=CASES["first"], side_information=1.0).on(model)


@pytest.mark.slow
@pytest.mark.parametrize("dial", [0.3, 1.5, math.inf])
def test_the_closed_form_is_the_optimum_of_all_kernels_that_the_dial_allows(dial):
    """Against the program over all pairs of source and label, with the dial as bounds of its own."""
    rng = np.random.default_rng(11)
    for _ in range(40):
        n = int(rng.integers(2, 5))
        belief, weights = rng.dirichlet(np.full(2 * n, 0.7)), rng.random(2 * n)
        mean = float(belief @ weights)
        masses = belief * np.stack([1 - weights, weights])
        asked = Dial(n, 2, dial)
        bounds = Bounds.of_windows(belief, masses[None], np.array([[1 - mean, mean]]), 0.3, "both", 0.0)
        made = guarded(bounds, sv.distortion.hamming(), dial=asked)
        cost = 1.0 - np.tile(np.eye(n), (2, 1))
        both = [np.kron(row, np.eye(n)) for row in bounds.aimed]
        apart = np.eye(2 * n * n) - math.exp(min(dial, 50)) * np.roll(np.eye(2 * n * n), n * n, axis=1)
        rows = np.concatenate([*both, *([] if math.isinf(dial) else [apart])])
        sums = np.kron(np.eye(2 * n), np.ones(n))
        found = linprog((belief[:, None] * cost).ravel(), rows, np.zeros(len(rows)), sums, np.ones(2 * n), (0, 1))
        assert made.error == pytest.approx(found.fun, abs=2e-5)
        assert made.keeps(bounds)
        assert made.dials(asked)
