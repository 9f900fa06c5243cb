"""A value outside the alphabet is released like any other: from the kernel's marginal, in its place, at its ε."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
from reference import batches as twin
from reference import streams as ref
from reference.batches import lift_of
from reference.streams import Rows
from seqveil import mechanisms
from seqveil.core import filtering
from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.kernel import DENOMINATOR, to_weights
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness, SeededRandomness
from seqveil.engine import batches, stream
from seqveil.engine.secrets import joint_beliefs
from seqveil.engine.stream import UNKNOWN, Private, State

KEY = bytes(range(32))
SECRET = "zq-secret-77"
WORDS = ["home", "work", "gym"]
STICKY = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]]
TABLED = ("batch_lp", "auto")
REMEMBERED = {
    "ever": [sv.secrets.ever(1, epsilon=0.5, window="first 4")],
    "count": [sv.secrets.count(1, 2, epsilon=0.5, window=3)],
    "two": [sv.secrets.ever(0, epsilon=1.0, window=2), sv.secrets.ever(1, epsilon=0.5, window=3)],
}


def words_setting(mechanism="balanced", epsilon=1.0, **options):
    return sv.Policy(epsilon=epsilon, mechanism=mechanism, **options).on(
        MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=WORDS)
    )


def shares(symbol_of):
    """Which symbols the 2**62 randomness draw, each with its first and its last coin; symbols grow with the coin."""
    found, first = {}, 0
    while first < DENOMINATOR:
        symbol, last, beyond = symbol_of(first), first, DENOMINATOR
        while beyond - last > 1:
            middle = (last + beyond) // 2
            last, beyond = (middle, beyond) if symbol_of(middle) == symbol else (last, middle)
        found[symbol] = (first, last)
        first = last + 1
    return found


def share(randomness):
    return Fraction(randomness[1] - randomness[0] + 1, DENOMINATOR)


def after_some_releases(setting, seed, steps=2):
    """A state that a stream can be in."""
    state, randomness, rng = State.start(setting), SeededRandomness(seed), np.random.default_rng(seed)
    for _ in range(steps):
        _, state = stream.step(setting, state, rng.integers(0, setting.model.n, 1), randomness)
    return state


# the distribution of one release


@pytest.mark.slow
@pytest.mark.parametrize("name", mechanisms.instantaneous())
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31), order=st.integers(1, 2), zeros=st.booleans(), epsilon=st.floats(0.2, 3.0))
def test_the_distribution_of_its_release_is_the_marginal_of_the_kernel(name, seed, order, zeros, epsilon):
    """By every coin: its lift is 1, and it is within the LDP level of every symbol."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    model = MarkovModel(*ref.random_chain(rng, n, order, zeros), order=order)
    setting = sv.Policy(epsilon=epsilon, mechanism=name).on(model)
    state = after_some_releases(setting, seed)
    beliefs = filtering.symbols(model, state.states)
    kernel = stream.kernels(setting, beliefs, epsilon).one(0)
    uniform, lost = ref.OneCoin(), np.array([UNKNOWN])

    def symbol_of(value):
        uniform.value = value
        return int(stream.hidden(setting, state, lost, uniform)[0][0])

    drawn = shares(symbol_of)
    assert sum(map(share, drawn.values())) == 1
    assert all(beliefs[0, symbol] > 0 for symbol in drawn)
    marginal = kernel.marginal(beliefs[0])
    for index in range(len(kernel.codes)):
        rows = [Fraction(int(weight), DENOMINATOR) for weight in kernel.column(index)]
        chance = float(sum(share(randomness) * rows[symbol] for symbol, randomness in drawn.items()))
        assert chance == pytest.approx(marginal[index], abs=1e-12)
        if setting.mechanism.sound and chance > 0:
            assert chance / marginal[index] == pytest.approx(1.0, abs=1e-12)
            assert max(abs(math.log(float(row) / chance)) for row in rows) <= setting.mechanism.ldp * epsilon + 1e-9
    for symbol, ends in drawn.items():  # and from there on it is a release of that symbol, in all that is public
        for first in ends:
            second = int(rng.integers(0, DENOMINATOR))
            ours, after = stream.step(setting, state, lost, ref.GivenCoins([first, second]))
            theirs, expected = stream.step(setting, state, np.array([symbol]), ref.GivenCoins([second]))
            assert (ours.codes, ours.epsilons) == (theirs.codes, theirs.epsilons)
            assert (after.states.tobytes(), after.spent) == (expected.states.tobytes(), expected.spent)


@pytest.mark.slow
@pytest.mark.parametrize("dial", [0.5, math.inf])
@pytest.mark.parametrize("case", REMEMBERED)
def test_with_memory_its_release_is_one_from_the_marginal_whatever_the_raw_stream_was(case, dial):
    """From every memory and by every coin: symbol and memory are drawn with their public joint probability.

    From there on it is a release of that symbol with that memory. So the lift is 1 whatever was remembered, and a
    stream whose values stay unknown reveals nothing more of what came before.
    """
    model = MarkovModel([0.7, 0.3], [[0.8, 0.2], [0.3, 0.7]])
    setting = sv.Policy(secrets=REMEMBERED[case], side_information=dial).on(model)
    for steps in range(4):
        state = after_some_releases(setting, 5, steps)
        automata = state.trackers[0].users.automata
        weights = to_weights(joint_beliefs(state.trackers)[0])  # what the belief gives each source
        read, ends = automata.by_symbol(steps), np.cumsum(weights)
        assert ends[-1] == DENOMINATOR
        places, codes, last, raw, second = (
            np.ravel(each) for each in np.meshgrid(*map(range, (automata.size, 2, 2, automata.size, 8)))
        )
        sources = read[places, codes] * 2 + codes
        there = weights[sources] > 0
        places, codes, last, raw, second, sources = (
            each[there] for each in (places, codes, last, raw, second, sources)
        )
        first, second = ends[sources] - np.where(last, 1, weights[sources]), second * (DENOMINATOR // 7)
        true, other = (
            replace(state.take(np.zeros_like(codes)), private=Private(None, automata.states[:, each].T))
            for each in (places, raw)
        )
        theirs, expected = stream.step(setting, true, codes, ref.GivenCoins(second))
        ours, after = stream.step(setting, other, np.full_like(codes, UNKNOWN), ref.GivenCoins([*first, *second]))
        assert (ours.codes == theirs.codes).all()
        assert (after.private.memory == expected.private.memory).all()
        assert after.states.tobytes() == expected.states.tobytes()


def test_many_users_at_once_are_as_one_by_one_and_only_unknown_values_throw_a_uniform_more():
    setting = words_setting("optimal", 1.3)
    codes = np.array([0, UNKNOWN, 2, UNKNOWN, 1])
    randomness, users = KeyedRandomness(KEY), ["ann", "bob", "cid", "dan", "eve"]
    fleet = Rows(setting, 5)
    together = fleet.release(np.arange(5), codes, randomness.of(users, [0] * 5))
    for k, user in enumerate(users):
        alone, _ = stream.step(setting, State.start(setting), codes[[k]], randomness.of([user], [0]))
        assert alone.codes[0] == together.codes[k]
        uniform = randomness.of([user], [0])
        code = codes[[k]]
        if codes[k] == UNKNOWN:
            code = stream.drawn(setting.model.initial[None], uniform.draw(1))
        by_hand = stream.kernels(setting, setting.model.initial[None], 1.3).pick(code, uniform.draw(1))
        assert together.codes[k] == stream.kernels(setting, setting.model.initial[None], 1.3).outputs[0, by_hand[0]]
    assert (together.epsilons == 1.3).all()


def test_codes_that_stand_for_nothing_are_refused_and_a_release_is_never_unknown():
    setting, pairs = words_setting(), words_setting("tree", 2.0, batch=2)
    for code in (-1, -2, -3, -5, 3):
        with pytest.raises(InputError, match="expected codes"):
            stream.step(setting, State.start(setting), np.array([code]), SeededRandomness(1))
        with pytest.raises(InputError, match="expected codes"):
            batches.step(pairs, State.start(pairs), np.array([code, UNKNOWN]), SeededRandomness(1))
    with pytest.raises(DataError):
        stream.observe(setting, State.start(setting), np.array([UNKNOWN]))
    hiding = MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=Alphabet(WORDS, on_unknown="hide"))
    with pytest.raises(DataError, match="not in the model's alphabet"):
        sv.decode_stream(hiding, ["home", SECRET], mechanism="balanced", epsilon=1.0)


# the distribution of a batch


def fillings(setting, state, codes, thrown=()):
    """Every batch that is drawn in place of one with unknown symbols: its chance, and randomness that give it."""
    lost = np.flatnonzero(codes == UNKNOWN)
    if len(thrown) == len(lost):
        filled = batches.hidden(setting, state, codes, twin.FixedCoins(*[ends[0] for ends in thrown]))
        yield filled, math.prod(map(share, thrown), start=Fraction(1)), [ends[0] for ends in thrown]
        return
    before = [ends[0] for ends in thrown]

    def symbol_of(value):
        randomness = twin.FixedCoins(*before, value, *[0] * len(lost))
        return int(batches.hidden(setting, state, codes, randomness)[lost[len(thrown)]])

    for ends in shares(symbol_of).values():
        yield from fillings(setting, state, codes, (*thrown, ends))


@pytest.mark.slow
@pytest.mark.parametrize("name", mechanisms.batched())
@pytest.mark.parametrize("order", [1, 2])
def test_the_distribution_of_a_batch_is_a_mixture_of_rows_and_the_marginal_where_all_is_unknown(name, order):
    rng = np.random.default_rng(order)
    model = twin.random_model(rng, 3, order)
    setting = sv.Policy(epsilon=1.5, batch=2, mechanism=name).on(model)
    _, state = batches.step(setting, State.start(setting), rng.integers(0, 3, 2), SeededRandomness(1))
    every, walks = twin.every_batch(model, 2)
    chances = np.einsum("s,ose->o", state.states[0], walks).reshape(3, 3)
    for known in ((UNKNOWN, UNKNOWN), *((x, UNKNOWN) for x in range(3)), *((UNKNOWN, x) for x in range(3))):
        codes = np.array(known)
        found = list(fillings(setting, state, codes))
        assert sum(chance for _, chance, _ in found) == 1
        weights = np.zeros((3, 3))
        for filled, chance, _ in found:
            assert ((filled == codes) | (codes == UNKNOWN)).all()
            weights[tuple(filled)] += float(chance)
        np.testing.assert_allclose(weights, expected_weights(chances, known), rtol=0, atol=1e-12)
        for filled, _, thrown in found:
            rest = rng.integers(0, DENOMINATOR, 40).tolist()
            ours, _ = batches.step(setting, state, codes, twin.FixedCoins(*thrown, *rest))
            theirs, _ = batches.step(setting, state, filled, twin.FixedCoins(*rest))
            assert ours.path == theirs.path
            if name in ("tree", *TABLED):
                lift = sum(weights[tuple(batch)] * lift_of(ours, batch) for batch in every)
                assert abs(math.log(lift)) <= (1e-12 if known == (UNKNOWN, UNKNOWN) else 1.5)


def expected_weights(chances, known):
    """P(x1, x2) over batches that agree with what is known, each unknown symbol given what is before it alone."""
    first = chances.sum(1) if known[0] == UNKNOWN else np.eye(3)[known[0]]
    if known[1] != UNKNOWN:
        return np.outer(first, np.eye(3)[known[1]])
    total = chances.sum(1, keepdims=True)
    return first[:, None] * np.divide(chances, total, out=np.zeros((3, 3)), where=total > 0)


def test_a_batch_that_the_model_rules_out_is_still_released():
    model = MarkovModel([1.0, 0.0, 0.0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    for name in mechanisms.batched():
        setting = sv.Policy(epsilon=2.0, batch=3, mechanism=name).on(model)
        sent, after = batches.step(setting, State.start(setting), np.array([2, UNKNOWN, 1]), SeededRandomness(2))
        assert len(sent.codes) == 3
        assert np.isfinite(after.states).all()


def test_a_session_goes_on_by_the_policy_of_its_model():
    model = MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=Alphabet(WORDS, on_unknown="hide"))
    session = sv.Session(model, mechanism="balanced", epsilon=1.0, seed=1)
    assert {session.release(value) for value in (SECRET, None, "home", float("nan"))} <= set(WORDS)
    assert session.release_batch([SECRET])[0] in WORDS
    assert session.account.epsilon_spent == 5.0
    pairs = sv.Session(model, mechanism="tree", epsilon=2.0, batch=2, seed=1)
    assert set(pairs.release_batch(["home", SECRET])) <= set(WORDS)
    with pytest.raises(UnknownSymbol):
        sv.Session(MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=WORDS), epsilon=0.5).release(SECRET)
