"""Kernels that go by what is remembered of the raw stream, against every sequence and every outcome of small chains.

Nothing of the filters and accounts is used to check them: sequences are listed, automata are read along each of them,
and what releases reveal follows from the integer tables.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

import seqveil as sv
from reference_secrets import random_model, typed_model
from seqveil.engine import stream
from seqveil.engine.secrets import dial_of, guarded_table
from seqveil.engine.state import State

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
                given = wide[listed.rows[:, t] % dial_of(setting).rows * setting.model.n + listed.words[:, t]] / 2.0**62
                if not (chance * given * listed.chances).any():
                    continue
                seen, after = stream.observe(setting, state, np.array([code]))
                assert (seen.remembered[0] == wide).all()
                further.append((after, chance * given, seen.remembered))
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
