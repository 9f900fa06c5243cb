"""Guarded sessions: every outcome of small streams keeps every secret, and what cannot be kept is refused in a line."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import seqveil as sv
from benchmarks import secrets_soundness
from reference_secrets import Enumerated, random_model, typed_model
from seqveil.core.alphabet import WITHHELD
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets.solving import SMALL_WITH_EPSILON
from seqveil.engine import stream
from seqveil.engine.secrets import guarded_table
from seqveil.engine.stream import State, Terms

PAIR = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
CLINIC = sv.MarkovModel([0.8, 0.2], [[0.9, 0.1], [0.6, 0.4]], alphabet=["home", "clinic"])


def guarding(model: sv.MarkovModel, secrets, **more) -> Terms:
    return sv.Policy(secrets=secrets, mechanism="guarded", side_information=0, **more).on(model)


class Promise:
    """One window of one secret, read off all sequences."""

    def __init__(self, every: Enumerated, model: sv.MarkovModel, secret, first: int, events: int) -> None:
        compiled = secret.over(model.alphabet)
        self.secret, self.events, self.every = secret, events, every
        self.count = compiled.automaton.values
        self.values = every.values(compiled, first, events)
        self.certain = np.count_nonzero(every.prior(self.values, self.count) > 0) < 2

    def excess(self, columns: list[np.ndarray]) -> float:
        if self.secret.length() is None and len(columns) > self.events:
            return -math.inf  # the stream went on: it was another one that the secret is about
        moved = self.every.log_odds(self.values, self.count, columns)
        return (moved if self.secret.sides == "up" else abs(moved)) - self.secret.epsilon


def promises(model: sv.MarkovModel, plan: Terms, length: int) -> list[Promise]:
    """All windows of all secrets that lie within the first `length` events."""
    every, found = Enumerated(model, length), []
    for secret in plan.secrets:
        if secret.length() is None:
            spans = [(0, events) for events in range(1, length + 1)]
        else:
            starts = range(0, length - secret.length() + 1, secret.length()) if secret.repeats else [0]
            spans = [(first, secret.length()) for first in starts]
        found += [Promise(every, model, secret, *span) for span in spans]
    return [one for one in found if not one.certain]


def walk(plan: Terms, length: int, seen) -> float:
    """Call `seen(columns, public)` after every outcome of every length up to `length`; the total probability."""
    total = 0.0

    def on(public: State, columns: list[np.ndarray], chance: float) -> None:
        nonlocal total
        if len(columns) == length:
            total += chance
            return
        made = guarded_table(plan, public.trackers[0])
        assert (made.full().sum(1) == DENOMINATOR).all()
        for code in made.outputs.tolist():
            released, after = stream.observe(plan, public, np.array([code]))
            column = released.columns[0] / DENOMINATOR
            seen([*columns, column], after)
            on(after, [*columns, column], chance * float(released.beliefs[0] @ column))

    on(State.start(plan), [], 1.0)
    return total


def kept(plan: Terms, length: int) -> float:
    """Enumerate all outcomes: the largest excess over any ε; asserts that the accounts are those of the enumeration."""
    models = [plan.model, *plan.observers]
    found = [promises(model, plan, length) for model in models]
    worst = -math.inf

    def seen(columns, public) -> None:
        nonlocal worst
        for own, row in zip(found, public.trackers[0].rows, strict=True):
            worst = max([worst, *(one.excess(columns) for one in own)])
            for tracker in row:
                one = next(p for p in own if p.secret is tracker.secret) if tracker.secret.length() == length else None
                if one is not None:
                    exact = one.every.log_odds(one.values, one.count, columns)
                    assert tracker.log_odds == pytest.approx(exact, abs=1e-9)

    assert walk(plan, length, seen) == pytest.approx(1.0, abs=1e-9)
    return worst


ever, count, always, joint, followed_by = (
    sv.secrets.ever, sv.secrets.count, sv.secrets.always, sv.secrets.joint, sv.secrets.followed_by
)  # fmt: skip
CASES = {
    "one": (2, 5, [ever(1, epsilon=0.5, window="first 5")]),
    "up": (3, 4, [ever(2, epsilon=0.4, window="first 4", one_sided=True)]),
    "two": (
        3,
        4,
        [ever(2, epsilon=0.3, window="first 4"), followed_by(0, 1, epsilon=0.7, window="first 4", one_sided=True)],
    ),
    "tumbling": (2, 6, [ever(1, epsilon=0.4, window=2)]),
    "tumbling and events": (2, 4, [count(1, 2, epsilon=0.5, window=2), ever(0, epsilon=0.8, window="event")]),
    "until it ends": (2, 5, [ever(1, epsilon=0.5)]),
    "joint": (3, 4, [joint(ever(0, epsilon=0.5, window="first 4"), ever(1, epsilon=0.5, window="first 4"))]),
    "joint, tumbling": (2, 4, [joint(ever(0, window=2, epsilon=1.0), ever(1, window=2, epsilon=1.0), epsilon=0.3)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_outcome_moves_the_odds_further_than_promised(name, longest):
    n, length, secrets = CASES[name]
    longest(length)
    rng = np.random.default_rng(len(name))
    for model in (random_model(rng, n), random_model(rng, n, spread=0.4)):
        assert kept(guarding(model, secrets), length) <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"withhold": True}, {"epsilon": 1.0}, {"distortion": "absolute"}])
def test_nor_does_it_otherwise(options):
    rng = np.random.default_rng(4)
    secrets = [ever(1, epsilon=0.4, window="first 4"), always(0, epsilon=0.6, window=2, one_sided=True)]
    for model in (random_model(rng, 2), random_model(rng, 2, order=2), typed_model(rng, 2, 2)):
        assert kept(guarding(model, secrets, **options), 4) <= 1e-9


def test_with_an_epsilon_every_release_is_sound_too():
    plan = guarding(random_model(np.random.default_rng(1), 3), ever(2, epsilon=0.3, window="first 4"), epsilon=0.7)

    def seen(columns, public):
        assert public.account.worst[0] <= 0.7 * len(columns)
        assert public.ldp[0] == pytest.approx(1.4 * len(columns))
        column = columns[-1]
        assert math.log(column.max() / column.min()) <= 1.4

    walk(plan, 3, seen)


def test_the_names_of_the_contract():
    secret = ever(1, epsilon=0.5, window=20)
    session = sv.Session(PAIR, mechanism="guarded", epsilon=None, secrets=[secret], seed=3)
    assert session.kernel().probabilities.shape == (2, len(session.kernel().outputs))
    out = [session.release(x) for x in (0, 0, 1, 0)]
    assert set(out) <= {0, 1}
    assert session.belief.sum() == pytest.approx(1)
    tracker = session.trackers.rows[0][0]
    assert -0.5 <= tracker.lowest <= tracker.log_odds <= tracker.highest <= 0.5
    assert tracker.epsilon == 0.5
    assert 0 < tracker.posterior < 1
    assert 0 < tracker.prior < 1
    assert "factor 1.65" in tracker.sentence
    odds = tracker.posterior / (1 - tracker.posterior) / (tracker.prior / (1 - tracker.prior))
    assert math.log(odds) == pytest.approx(tracker.log_odds, abs=1e-9)


def test_without_an_epsilon_the_ledger_says_that_nothing_else_is_promised():
    session = sv.Session(CLINIC, mechanism="guarded", secrets=ever("clinic", epsilon=0.5, window=4))
    session.release("home")
    words = "nothing is promised about the whole sequence"
    assert words in session.account.whole_sequence
    assert words in repr(session)
    assert words in session._repr_html_()
    assert "whether clinic occurs" in session._repr_html_()
    assert math.isinf(session.account.ldp)
    with pytest.raises(InputError, match=words):
        session.compose(10)
    both = sv.Session(CLINIC, mechanism="guarded", epsilon=1.0, secrets=[ever("clinic", epsilon=0.5, window=4)])
    both.release("home")
    assert both.account.whole_sequence == ""
    assert (both.account.epsilon_spent, both.account.ldp) == (1.0, 2.0)
    assert both.leakage <= 1.0


def test_the_truth_or_nothing():
    model = sv.MarkovModel([0.4, 0.4, 0.2], np.full((3, 3), 1 / 3), alphabet=["news", "sport", "health"])
    session = sv.Session(
        model, mechanism="guarded", secrets=ever("health", epsilon=0.5, window="first 6"), withhold=True, seed=2
    )
    assert None in session.kernel().outputs
    said = 0
    for symbol in ["news", "sport", "health", "news", "sport", "news"]:
        kernel = session.kernel()
        assert kernel.error(session.belief, sv.distortion.hamming()) <= 1
        out = session.release(symbol)
        assert out in (symbol, None)
        said += out is not None
    assert session.account.releases == said
    assert abs(session.trackers.rows[0][0].log_odds) <= 0.5


def test_a_receiver_comes_to_the_same_state(longest):
    longest(8)
    rng = np.random.default_rng(9)
    model = random_model(rng, 3)
    plan = guarding(model, [ever(2, epsilon=0.5, window=3), ever(0, epsilon=1.0)])
    randomness, here, there = SeededRandomness(5), State.start(plan), State.start(plan)
    for code in model.sample(8, seed=2)[0].tolist():
        released, here = stream.step(plan, here, np.array([code]), randomness)
        seen, there = stream.observe(plan, there, released.codes)
        assert (seen.columns == released.columns).all()
        assert (here.states == there.states).all()
        for one, other in zip(here.trackers[0].rows[0], there.trackers[0].rows[0], strict=True):
            assert one.log_odds == other.log_odds
    with pytest.raises(InputError, match="at most 8 events"):
        stream.step(plan, here, np.array([0]), randomness)
    json.dumps(plan.to_dict())


def test_a_release_that_cannot_be_is_refused():
    plan = guarding(CLINIC, ever("clinic", epsilon=0.5, window="first 4"))
    with pytest.raises(DataError, match="cannot have come"):
        stream.observe(plan, State.start(plan), np.array([WITHHELD]))


@pytest.mark.slow
def test_values_outside_the_alphabet_are_hidden_as_elsewhere():
    hides = CLINIC.alphabet.with_policy("hide")
    model = sv.MarkovModel(CLINIC.prior, [[0.9, 0.1], [0.6, 0.4]], alphabet=hides)
    plan = guarding(model, ever("clinic", epsilon=0.5, window="first 6"))
    counts = {}
    first = State.start(plan)
    for seed in range(400):
        released, _ = stream.step(plan, first, np.array([stream.UNKNOWN]), SeededRandomness(seed))
        counts[int(released.codes[0])] = counts.get(int(released.codes[0]), 0) + 1
    made = guarded_table(plan, plan.trackers)
    marginal = model.prior @ np.stack([made.column(k) for k in range(made.outputs.size)], axis=1) / DENOMINATOR
    for place, code in enumerate(made.outputs.tolist()):
        # false alarm about 1e-6: five standard deviations
        assert abs(counts.get(code, 0) / 400 - marginal[place]) < 5 * math.sqrt(0.25 / 400)
    session = sv.Session(model, mechanism="guarded", secrets=ever("clinic", epsilon=0.5, window="first 6"))
    assert session.release("hospital") in ("home", "clinic")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"secrets": []}, "got none"),
        ({"secrets": [ever(1, epsilon=1.0)], "batch": 2}, "take no batch"),
        ({"secrets": [ever(1, epsilon=1.0)], "budget": 2.0}, "take no batch"),
        ({"secrets": [ever(1, epsilon=1.0)], "withhold": True, "epsilon": 1.0}, "truth or nothing"),
        ({"secrets": [ever([0, 1], epsilon=1.0, window=3)]}, "certain or impossible"),
        ({"secrets": [ever(7, epsilon=1.0, window=3)]}, "alphabet"),
        ({"secrets": [sv.secrets.count(1, 100, epsilon=1.0, window=200)]}, "states"),
        ({"secrets": [ever(1, epsilon=1.0)], "observers": [CLINIC]}, "share one alphabet"),
        ({"mechanism": None, "epsilon": 1.0, "withhold": True}, "pass secrets with them"),
        ({"secrets": ever(1, epsilon=1.0), "mechanism": "optimal", "withhold": True}, "keeps no declared secrets"),
        ({"secrets": ever(1, epsilon=1.0), "mechanism": "tree", "epsilon": 1.0, "batch": 2}, "keeps no declared"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(options, words):
    with pytest.raises(InputError, match=words) as caught:
        sv.Session(PAIR, **{"mechanism": "guarded", **options})
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_symbols_the_model_thinks_impossible_and_chains_with_holes():
    model = sv.MarkovModel([1.0, 0.0, 0.0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    for options in ({}, {"withhold": True}, {"epsilon": 1.0}):
        session = sv.Session(model, mechanism="guarded", secrets=[ever(2, epsilon=0.3, window=4)], seed=1, **options)
        for symbol in [2, 0, 2, 1, 0, 2] * 3:
            assert session.release(symbol) in (None, 0, 1, 2)
            assert session.trackers.rows[0][0].worst.worst() <= 0.3 + 1e-9
            assert session.belief.sum() == pytest.approx(1)


N = SMALL_WITH_EPSILON + 4


def test_events_that_no_window_is_about_are_released_within_epsilon() -> None:
    model = sv.MarkovModel(np.full(N, 1 / N), np.full((N, N), 1 / N))
    secret = sv.secrets.ever(3, epsilon=2.0, window="first 1")
    session = sv.Session(model, mechanism="guarded", epsilon=1.0, secrets=[secret], seed=1)
    for symbol in (3, 0, 5):  # from the second event on nothing is left to keep but ε
        kernel, belief = session.kernel(), session.belief
        assert kernel.leakage(belief, whole_alphabet=True) <= 1.0
        assert session.release(symbol) in kernel.outputs
    assert kernel.error(belief, sv.distortion.hamming()) == pytest.approx(1 - np.e / N, abs=1e-6)  # the optimum for ε


@pytest.mark.slow
def test_random_chains_and_secrets_are_never_disclosed_more_about_than_promised():
    """The same by code of its own, from the definition; `python -m benchmarks secrets` does it ten thousand times."""
    rng = np.random.default_rng(3)
    assert max(secrets_soundness.one_stream(rng, number)[0] for number in range(60)) <= 0.0


@pytest.mark.parametrize("observed", [False, True])
def test_the_account_in_words_counts_every_window_and_every_observer(observed):
    """What a suspicion may become by now is that of the window, and the observer, that learned most."""
    model = sv.MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]], alphabet=["n", "h"])
    others = [sv.MarkovModel([0.5, 0.5], [[0.95, 0.05], [0.05, 0.95]], alphabet=["n", "h"])] if observed else []
    session = sv.Session(model, secrets=[sv.secrets.ever("h", epsilon=2, window=2)], observers=others, seed=0)
    for value in "hhhnhn":
        session.release(value)
    worst = max(tracker.worst.worst() for row in session.trackers.rows for tracker in row)
    account = session.account
    assert account.secrets[0].worst == worst
    assert account.risk.secrets[0].log_odds == worst > account.secrets[0].highest
