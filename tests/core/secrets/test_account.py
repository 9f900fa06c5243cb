"""The account of secrets against enumeration over all sequences: kernels of any kind, streams from any hour on."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.guarding import accounts
from reference.secrets import LENGTH, SECRETS, Enumerated, kept_kernel, one, random_columns, random_model, small_models
from seqveil import MarkovModel, secrets
from seqveil.core.errors import InputError
from seqveil.core.secrets.account import SecretTrackers
from seqveil.core.secrets.tables import Bounds
from seqveil.core.times import Slots


def assert_accounts_are_exact(tracker: SecretTrackers, every: Enumerated, compiled, columns: list[np.ndarray]) -> int:
    """Every live window's account against enumeration; how many were compared."""
    compared, count = 0, compiled.automaton.values
    for account in accounts(one(tracker)):
        if account.first + account.events > every.array.shape[1]:
            continue
        values = every.values(compiled, account.first, account.events)
        assert account.log_odds == pytest.approx(every.log_odds(values, count, columns), abs=1e-9)
        assert account.lowest <= account.log_odds <= account.highest
        prior = every.prior(values, count)
        assert account.prior == pytest.approx(prior[1] if count == 2 else tuple(prior), abs=1e-12)
        compared += 1
    return compared


def live_after_end(tracker: SecretTrackers) -> int:
    """How many windows are over and still live."""
    return int((one(tracker).records.index[0, : one(tracker).ended.shape[1]] >= 0).sum())


def whenever(every: Enumerated, compiled, columns: list[np.ndarray]) -> list[float]:
    """The log odds of all windows "the first T events", at all times up to their end."""
    found, count = [0.0], compiled.automaton.values
    for last in range(1, every.array.shape[1] + 1):
        values = every.values(compiled, 0, last)
        if (every.prior(values, count) > 0).sum() > 1:
            found += [every.log_odds(values, count, columns[:t]) for t in range(min(last, len(columns)) + 1)]
    return found


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: f"{secret.kind}-{secret.window}")
def test_the_account_of_any_kernel_equals_enumeration(secret, longest):
    longest(LENGTH)
    compared = 0
    for seed, model in enumerate(small_models(3)):
        every, compiled = Enumerated(model, LENGTH), secret.over(model.alphabet)
        tracker, columns = SecretTrackers.start(model, secret), random_columns(seed, model.n)
        for k in range(LENGTH):
            ended = one(tracker).step + 1
            tracker = tracker.observe(columns[k])
            compared += assert_accounts_are_exact(tracker, every, compiled, columns[: k + 1])
            window = (0, ended) if secret.window is None else None
            if secret.repeats:
                window = (k // secret.length() * secret.length(), secret.length())
            first, events = window or (0, secret.length())
            if first + events > LENGTH:
                continue
            values = every.values(compiled, first, events)
            count = compiled.automaton.values
            prior = every.prior(values, count)
            if (prior > 0).sum() > 1:
                exact = [every.log_odds(values, count, columns[:t]) for t in range(k + 2)]
                assert one(tracker).latest.log_odds == pytest.approx(exact[-1], abs=1e-9)
                if secret.window is None:  # over all windows that the stream might have ended with
                    exact = whenever(every, compiled, columns[: k + 1])
                assert one(tracker).latest.lowest == pytest.approx(min(exact), abs=1e-8)
                assert one(tracker).latest.highest == pytest.approx(max(exact), abs=1e-8)
                assert one(tracker).latest.lowest <= min(exact)
                assert one(tracker).latest.highest >= max(exact)
            else:
                assert one(tracker).latest.log_odds == 0
    assert compared > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 1, 2, 3], ids=["two", "three", "order-2", "types"])
@pytest.mark.parametrize(
    "secret",
    [
        secrets.ever(1, epsilon=0.3, window=2),
        secrets.ever(0, epsilon=0.2, window="event"),
        secrets.followed_by(0, 1, epsilon=0.4, window=3, one_sided=True),
        secrets.ever(1, epsilon=0.3),
        secrets.joint(secrets.ever(0, epsilon=0.4, window=2), secrets.ever(1, epsilon=0.4, window=2)),
    ],
    ids=lambda secret: f"{secret.kind}-{secret.window}",
)
def test_no_outcome_breaks_any_window_live_or_not(kind, secret, longest):
    """All outcomes of a mechanism that keeps the live windows alone: coming and retired windows are kept as well."""
    model = small_models(21)[kind]
    length = LENGTH if model.n == 2 else 4
    longest(length)
    every, compiled = Enumerated(model, length), secret.over(model.alphabet)
    if secret.window is None:
        windows = [(0, t) for t in range(1, length + 1)]
    else:
        windows = [(first, secret.length()) for first in range(0, length - secret.length() + 1, secret.length())]
    count = compiled.automaton.values
    values = {window: every.values(compiled, *window) for window in windows}
    excess = _excess(model, secret, values, count, every)
    assert -0.3 < excess <= 1e-12  # the bound is reached or nearly so, and never passed


def _excess(model, secret, values, count, every, place=0):
    """The most any window's odds pass ε by, over all outcomes of a mechanism that keeps the live windows alone."""
    length = every.array.shape[1]
    live = [w for w in values if (every.prior(values[w], count) > 0).sum() > 1]
    excess = -np.inf
    todo: list[tuple[SecretTrackers, list[np.ndarray]]] = [
        (SecretTrackers.start(model, secret, kept=True, place=place), [])
    ]
    rng = np.random.default_rng(0)
    raw = [rng.dirichlet(np.full(2, 0.25), model.n) for _ in range(length)]
    while todo:
        trackers, columns = todo.pop()
        for window in live if columns else []:
            if secret.window is None and window[1] < len(columns):
                continue
            odds = every.log_odds(values[window], count, columns)
            excess = max(excess, (odds if secret.sides == "up" else abs(odds)) - secret.epsilon)
        if len(columns) < length:
            kernel = kept_kernel(trackers, raw[len(columns)])
            todo += [(trackers.observe(kernel[:, y]), [*columns, kernel[:, y]]) for y in range(2)]
    return excess


@pytest.mark.slow
def test_windows_watched_late_are_kept_too(longest):
    """Where tables are short a window is watched only once it could be broken: what came before is in its account."""
    model, length = MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.3, 0.7]]), 7
    secret = secrets.ever(1, epsilon=0.3, window="event")
    every, compiled = Enumerated(model, length), secret.over(model.alphabet)
    values = {(k, 1): every.values(compiled, k, 1) for k in range(length)}
    longest(3)
    tracker = SecretTrackers.start(model, secret, kept=True)
    assert one(tracker).ahead.limit is None
    assert 0.01 < one(tracker).ahead.untracked < 0.3
    assert -0.1 < _excess(model, secret, values, 2, every) <= 1e-12
    columns = [np.array([0.5, 0.52])] * 3
    for column in columns:
        tracker = tracker.observe(column)
    assert assert_accounts_are_exact(tracker, every, compiled, columns) >= 3
    assert accounts(one(tracker))[-1].highest >= one(tracker).ahead.untracked


def test_what_a_state_hides_keeps_a_window_live(longest):
    """The type shows only two events later: symbols alone would say that no more can be disclosed."""
    from scipy import sparse

    from seqveil.core.alphabet import Alphabet
    from seqveil.core.states import States

    places = {(kind, phase): np.arange(2) + 2 * (phase + 3 * kind) for kind in range(2) for phase in range(3)}
    chain, lean = np.zeros((12, 12)), [[0.9, 0.1], [0.2, 0.8]]
    for kind in range(2):
        chain[np.ix_(places[kind, 0], places[kind, 1])] = 0.5
        chain[np.ix_(places[kind, 1], places[kind, 2])] = lean[kind]
        chain[np.ix_(places[kind, 2], places[kind, 2])] = lean[kind]
    initial = np.zeros(12)
    initial[[0, 1, 6, 7]] = np.array([0.8, 0.2, 0.3, 0.7]) / 2
    states = States(2, 2, initial, sparse.csr_array(chain), np.zeros(12), np.array([0.5, 0.5]), np.arange(2),
                    np.tile(np.arange(2), 6))  # fmt: skip
    model, length = MarkovModel._of(states, Alphabet(range(2))), 5
    secret = secrets.ever(1, epsilon=0.2, window="event")
    every, compiled = Enumerated(model, length), secret.over(model.alphabet)
    values = {(k, 1): every.values(compiled, k, 1) for k in range(length)}
    longest(length)
    tracker = SecretTrackers.start(model, secret, kept=True).observe([0.5, 0.55])
    assert accounts(one(tracker))[0].first == 0
    assert -0.1 < _excess(model, secret, values, 2, every) <= 1e-12
    first_only = {(0, 1): values[0, 1]}
    assert -0.1 < _excess(model, secret, first_only, 2, every) <= 1e-12


def test_windows_retire_and_begin_on_a_chain_that_mixes():
    model = MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.3, 0.7]])
    tracker = SecretTrackers.start(model, secrets.ever(1, epsilon=0.5, window=2), kept=True)
    rng = np.random.default_rng(1)
    assert 2 < len(accounts(one(tracker))) < 20
    for _ in range(60):
        tracker = tracker.observe(0.9 + 0.2 * rng.random(2))
        assert live_after_end(tracker) <= 6
        assert len(accounts(one(tracker))) < 25
    assert one(tracker).worst.worst() <= 0.5
    apart = SecretTrackers.start(
        MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]), secrets.ever(1, epsilon=0.5, window="event")
    )
    assert len(accounts(one(apart))) == 1
    assert len(accounts(one(apart.observe([0.4, 0.6])))) == 1


@pytest.mark.parametrize("column", [[0.6, 0.4], [0.4, 0.6]])
def test_the_account_of_a_window_that_retired_bounds_what_later_releases_reveal(column):
    model, secret = MarkovModel([0.5, 0.5], [[0.8, 0.2], [0.3, 0.7]]), secrets.ever(1, epsilon=2.0, window=1)
    every = Enumerated(model, 2)
    values, tracker = every.values(secret.over(model.alphabet), 0, 1), SecretTrackers.start(model, secret, kept=True)
    retired = one(tracker.observe(column)).worst
    assert retired.first == 0
    for later in ([1.0, 0.0], [0.0, 1.0]):
        odds = every.log_odds(values, 2, [np.array(column), np.array(later)])
        assert retired.lowest <= odds <= retired.highest


def test_a_free_symbol_disclosed_as_it_is_keeps_every_window():
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    for one_sided, free in ((False, [False, False]), (True, [True, False])):
        trackers = SecretTrackers.start(model, secrets.ever(1, epsilon=0.5, window=3, one_sided=one_sided))
        assert Bounds.of(trackers.users).free().tolist() == free
    freed = 0
    for model in small_models(31):
        trackers = SecretTrackers.start(model, secrets.ever(1, epsilon=0.8, window=2))
        for code in np.flatnonzero(Bounds.of(trackers.users).free() & (trackers.rows[0][0].belief[0] > 0)):
            disclosed = trackers.observe(np.eye(model.n)[code]).rows[0][0]
            assert max(abs(each.log_odds) for each in accounts(disclosed)) <= 0.8
            freed += 1
    assert freed


def test_the_audit_of_an_unsound_release_is_infinite_and_goes_on():
    model = MarkovModel([1.0, 0.0], [[0.5, 0.5], [0.5, 0.5]])
    for secret in (secrets.ever(1, window=2, epsilon=1.0), secrets.ever(1, epsilon=1.0)):
        tracker = SecretTrackers.start(model, secret).observe([0.0, 1.0])
        assert one(tracker).worst.highest == np.inf
        tracker = tracker.observe([0.5, 0.2])
        assert one(tracker).worst.highest == np.inf
        assert np.isfinite(one(tracker).belief).all()
    for sides in ("both", "up"):
        tracker = SecretTrackers.start(
            MarkovModel([0.6, 0.4], [[0.6, 0.4], [0.3, 0.7]]),
            secrets.ever(1, window=1, one_sided=sides == "up", epsilon=1.0),
        )
        for code in (0, 1, 1, 0, 0):
            tracker = tracker.observe(np.eye(2)[code])
            assert one(tracker).latest.log_odds == (np.inf if code else -np.inf)
        assert one(tracker).worst.worst(sides) == np.inf
        assert live_after_end(tracker) == 0
    disclosed = (
        SecretTrackers.start(model, secrets.ever(1, window="first 3", epsilon=1.0))
        .observe([1.0, 1.0])
        .observe([0.0, 1.0])
    )
    assert one(disclosed).latest.log_odds == np.inf
    assert one(disclosed.observe([0.5, 0.5])).latest.log_odds == np.inf


def test_tables_beyond_memory_are_refused_in_one_line():
    with pytest.raises(InputError, match=r"need 2\.4 GB, more than 1; give it a shorter window"):
        SecretTrackers.start(small_models(41)[2], secrets.count(1, 24, window=1_000_000, epsilon=1.0))


def test_a_stream_that_may_end_any_time_has_a_longest(longest):
    longest(3)
    model = small_models(1)[0]
    tracker = SecretTrackers.start(model, secrets.ever(1, epsilon=1.0))
    for _ in range(3):
        tracker = tracker.observe([0.5, 0.6])
    assert one(tracker).masses.shape[1] == 0
    with pytest.raises(InputError, match="at most 3 events"):
        tracker.observe([0.5, 0.6])
    longest(5)
    typed = SecretTrackers.start(small_models(1)[3], secrets.ever(1, epsilon=0.01, window=2))
    assert typed.limit == 4


CERTAIN = secrets.ever([0, 1], epsilon=1.0)
NEITHER = [CERTAIN, secrets.count(0, 4, window=3, epsilon=1.0), secrets.joint(CERTAIN)]


@pytest.mark.parametrize("secret", NEITHER, ids=str)
def test_certain_and_impossible_secrets_are_refused(secret):
    with pytest.raises(InputError, match="certain or impossible"):
        SecretTrackers.start(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), secret)


def test_windows_that_are_certain_are_passed_over():
    always_home_first = MarkovModel([1.0, 0.0], [[0.5, 0.5], [0.5, 0.5]])
    tracker = SecretTrackers.start(always_home_first, secrets.ever(1, window="event", epsilon=1.0))
    assert one(tracker).latest.prior == 0
    assert one(tracker.observe([0.3, 0.9])).latest.log_odds == 0
    assert one(tracker.observe([0.3, 0.9]).observe([0.3, 0.9])).latest.log_odds == pytest.approx(np.log(3))


def test_columns_of_any_size_are_read():
    tracker = SecretTrackers.start(small_models(1)[0], secrets.ever(1, window=2, epsilon=1.0))
    for scale in (1e-320, 1e-200, 1e300):
        disclosed = tracker.observe(np.array([2.0, 3.0]) * scale).observe(np.array([3.0, 2.0]) * scale)
        same = tracker.observe([2.0, 3.0]).observe([3.0, 2.0])
        assert one(disclosed).latest.log_odds == pytest.approx(
            one(same).latest.log_odds, abs=1e-3 if scale < 1e-300 else 1e-12
        )


@pytest.mark.parametrize("column", [[1.0], [1.0, -1.0], [np.nan, 1.0], [[1.0, 1.0]], [None, 1]])
def test_columns_that_are_none_are_refused_in_one_line(column):
    tracker = SecretTrackers.start(small_models(1)[0], secrets.ever(1, window=2, epsilon=1.0))
    with pytest.raises(InputError, match="column must hold 2 numbers"):
        tracker.observe(column)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 3), order=st.integers(1, 2), states=st.integers(2, 4),
       events=st.integers(1, 4), tumbling=st.booleans())  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_random_chains_and_automata(seed, n, order, states, events, tumbling):
    rng = np.random.default_rng(seed)
    model = random_model(rng, n, order, spread=0.6)
    names = [str(code) for code in range(n)]
    picked = rng.choice(names, states), rng.choice(names, states), rng.choice(["*", "+", "?", ""], states)
    parts = [f"({one} | {other}){sign}" for one, other, sign in zip(*picked, strict=True)]
    text = rng.choice(["^ ", ""]) + " ".join(parts) + rng.choice([" $", ""])
    secret = secrets.pattern(text, window=events if tumbling else f"first {events}", epsilon=1.0)
    try:
        tracker = SecretTrackers.start(model, secret)
    except InputError:
        return
    length = min(5, 2 * events)
    every, compiled, columns = Enumerated(model, length), secret.over(model.alphabet), random_columns(seed, n, length)
    for k in range(length):
        if one(tracker).ahead.limit == one(tracker).step:
            break
        tracker = tracker.observe(columns[k])
        assert_accounts_are_exact(tracker, every, compiled, columns[: k + 1])


def test_sparse_chains_of_many_symbols_stay_sparse():
    from scipy import sparse

    n = 4000
    line = sparse.diags_array([0.5, 0.25, 0.25], offsets=[0, 1, -1], shape=(n, n)).tolil()
    line[0, 0], line[n - 1, n - 1] = 0.75, 0.75
    model = MarkovModel(np.full(n, 1 / n), sparse.csr_array(line))
    tracker = SecretTrackers.start(model, secrets.ever(list(range(1990, 2010)), epsilon=0.5, window="first 50"))
    for place in (100, 2000, 3000):
        tracker = tracker.observe(1.0 + np.exp(-np.abs(np.arange(n) - place) / 50))
    assert one(tracker).latest.lowest < one(tracker).latest.log_odds < one(tracker).latest.highest
    assert one(tracker).masses.shape == (1, 1, 2, n)


def test_the_outward_bounds_hold_the_exact_figure():
    """Enumeration in fractions: the floats of chain and columns taken as they are, nothing rounded until the log."""
    rare = MarkovModel([1 - 1e-10, 1e-10], [[1 - 1e-10, 1e-10], [0.5, 0.5]])
    for seed, model in enumerate([*small_models(1)[:3], *small_models(2)[:3], rare]):
        secret = secrets.ever(1, window="first 4", epsilon=1.0)
        compiled, columns = secret.over(model.alphabet), random_columns(seed, model.n)
        tracker, chain = SecretTrackers.start(model, secret), model.advance(np.eye(model.size))
        paths = {(s,): Fraction(p) for s, p in enumerate(model.initial.tolist())}
        for _ in range(3):
            paths = {(*path, t): chance * Fraction(chain[path[-1], t]) for path, chance in paths.items()
                     for t in range(model.size) if chain[path[-1], t]}  # fmt: skip
        words = {path: model.newest[list(path)].tolist() for path in paths}
        extremes, prior = [0.0], _shares(paths, words, compiled)
        for column in columns[:4]:
            paths = {path: chance * Fraction(column[words[path][one(tracker).step]]) for path, chance in paths.items()}
            tracker, given = tracker.observe(column), _shares(paths, words, compiled)
            extremes.append(math.log(given[1] / prior[1]) - math.log(given[0] / prior[0]))
            assert 0 <= min(extremes) - one(tracker).latest.lowest < 1e-11
            assert 0 <= one(tracker).latest.highest - max(extremes) < 1e-11


def _shares(paths, words, compiled):
    found = [Fraction(0), Fraction(0)]
    for path, chance in paths.items():
        found[compiled.read(words[path])] += chance
    return found


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
            trackers, columns = SecretTrackers.start(several, secret, kept=True), []
            for _ in range(3):
                kernel = kept_kernel(trackers, rng.dirichlet(np.full(2, 0.3), 2))
                columns.append(kernel[:, rng.integers(2)])
                trackers = trackers.observe(columns[-1])
                moved = abs(every.log_odds(values, 2, columns))
                if len(several) == 1:
                    passed = max(passed, moved)
                else:
                    kept = max(kept, moved)
                    assert trackers.rows[1][0].latest.log_odds == pytest.approx(
                        every.log_odds(values, 2, columns), abs=1e-9
                    )
    assert passed > 0.2 + 1e-3
    assert kept <= 0.2


EIGHT, HALF, DAILY = (Slots(seconds, empty="hold") for seconds in (28_800, 43_200, 86_400))


def in_slots(model: MarkovModel, slots: Slots) -> MarkovModel:
    return MarkovModel._of(model.states, model.alphabet.with_slots(slots))


def parts(place: int, length: int, events: int) -> dict[tuple[int, int], int]:
    """First event and number of events of the rest of the first day (or week), and of each whole one; its place."""
    first = {(0, events - place): place}
    return first | {(at, events): 0 for at in range(events - place, length - events + 1, events)}


def by_hand(secret: secrets.Secret, codes: tuple[int, ...], place: int, slots: Slots) -> int:
    """What a part of a day or week was, read from the clock: its first event comes in slot `place` of it."""
    if secret.kind == "joint":
        return sum(by_hand(part, codes, place, slots) << k for k, part in enumerate(secret.parts))
    if secret.kind == "during":
        begin, end = secret.hours
        hours = [slots.seconds / 3600 * (place + t) % 24 for t in range(len(codes))]
        night = [begin <= hour < end if begin < end else hour >= begin or hour < end for hour in hours]
        return int(any(x == secret.values[0] and inside for x, inside in zip(codes, night, strict=True)))
    if secret.kind == "count":
        return int(codes.count(secret.values[0]) >= secret.at_least)
    if secret.kind == "always":
        return int(all(x == secret.values[0] for x in codes))
    if secret.kind == "followed_by":
        return int(any(x == 0 and 1 in codes[t + 1 :] for t, x in enumerate(codes)))
    return int(secret.values[0] in codes)


CLOCKED = [
    secrets.during(1, (8, 16), epsilon=0.3),
    secrets.during(0, (16, 8), epsilon=0.3),
    secrets.ever(1, window="day", epsilon=0.3),
    secrets.always(0, window="day", epsilon=0.3),
    secrets.followed_by(0, 1, window="day", one_sided=True, epsilon=0.3),
    secrets.joint(secrets.during(1, (0, 8), epsilon=0.4), secrets.ever(0, window="day", epsilon=0.4)),
]
PLACES = [(0, 1, 2), (0, 1, 2), (2,), (1,), (1, 2), (0, 1)]
DAYS = [(secret, EIGHT, at, LENGTH, 3) for secret, places in zip(CLOCKED, PLACES, strict=True) for at in places]
WEEKS = [
    (secrets.count(1, 3, window="week", epsilon=0.4), DAILY, 0, 10, 7),
    (secrets.joint(secrets.ever(0, window="week", epsilon=1), secrets.followed_by(0, 1, window="week", epsilon=1)),
     DAILY, 4, 10, 7),
    (secrets.during(1, (0, 12), window="week", epsilon=0.4), HALF, 10, 6, 14),
]  # fmt: skip


def clocked(model, secret, slots, place, length, events):
    """All sequences, and for each day or week its value in each of them."""
    every = Enumerated(model, length)
    return every, {
        window: np.array([by_hand(secret, word[window[0] : sum(window)], begin, slots) for word in every.words])
        for window, begin in parts(place, length, events).items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("secret", "slots", "place", "length", "events"), [*DAYS, *WEEKS])
def test_the_account_from_any_hour_equals_enumeration(secret, slots, place, length, events):
    """Any kernels: the odds of each day and week are those of all sequences, whatever hour the stream begins at."""
    compared = 0
    for seed, plain in enumerate(small_models(3)[::3]):
        model, columns = in_slots(plain, slots), random_columns(seed, plain.n, length)
        every, values = clocked(model, secret, slots, place, length, events)
        tracker, count = SecretTrackers.start(model, secret, place=place), secret.over(model.alphabet).automaton.values
        for k in range(min(length, tracker.limit or length)):
            tracker = tracker.observe(columns[k])
            for account in accounts(one(tracker)):
                window = account.first, account.events
                if sum(window) > length:
                    continue
                exact = every.log_odds(values[window], count, columns[: k + 1])
                prior = every.prior(values[window], count)
                assert account.log_odds == pytest.approx(exact, abs=1e-9)
                assert account.prior == pytest.approx(prior[1] if count == 2 else tuple(prior), abs=1e-12)
                compared += 1
    assert compared > 4


@pytest.mark.slow
@pytest.mark.parametrize("case", DAYS)
def test_no_outcome_breaks_a_day_whatever_hour_the_stream_begins_at(case):
    """All outcomes of a mechanism that keeps the live windows alone: the days before and after are kept as well."""
    model = in_slots(small_models(21)[0], EIGHT)
    every, values = clocked(model, *case)
    excess = _excess(model, case[0], values, case[0].over(model.alphabet).automaton.values, every, place=case[2])
    assert -0.3 < excess <= 1e-12
