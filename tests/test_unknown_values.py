"""A value outside the alphabet is released like any other: from the kernel's marginal, in its place, at its ε."""

import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_batches as twin
import reference_streams as ref
import seqveil as sv
from compiling import restored, use  # noqa: F401 -- it restores after every test
from reference_streams import Rows
from seqveil import mechanisms
from seqveil.core import filtering
from seqveil.core.alphabet import Alphabet, Bins, Grid, from_json
from seqveil.core.coins import KeyedCoins, SeededCoins
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.model import MarkovModel
from seqveil.engine import batches, stream
from seqveil.engine.stream import UNKNOWN, Setting, State

KEY = bytes(range(32))
SECRET = "zq-secret-77"
WORDS = ["home", "work", "gym"]
STICKY = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]]
TABLED = ("batch_lp", "auto")
TREES = ("tree", "tree_ldp")


def words_setting(mechanism="balanced", epsilon=1.0, **options):
    return Setting.of(MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=WORDS), mechanism, epsilon, **options)


def shares(symbol_of):
    """Which symbols the 2**62 coins draw, each with its first and its last coin; symbols grow with the coin."""
    found, first = {}, 0
    while first < DENOMINATOR:
        symbol, last, beyond = symbol_of(first), first, DENOMINATOR
        while beyond - last > 1:
            middle = (last + beyond) // 2
            last, beyond = (middle, beyond) if symbol_of(middle) == symbol else (last, middle)
        found[symbol] = (first, last)
        first = last + 1
    return found


def share(coins):
    return Fraction(coins[1] - coins[0] + 1, DENOMINATOR)


def after_some_releases(setting, seed, steps=2):
    """A state that a stream can be in."""
    state, coins, rng = State.start(setting), SeededCoins(seed), np.random.default_rng(seed)
    for _ in range(steps):
        _, state = stream.step(setting, state, rng.integers(0, setting.model.n, 1), coins)
    return state


# the law of one release


@pytest.mark.slow
@pytest.mark.parametrize("name", mechanisms.instantaneous())
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31), order=st.integers(1, 2), zeros=st.booleans(), epsilon=st.floats(0.2, 3.0))
def test_the_law_of_its_release_is_the_marginal_of_the_kernel(name, seed, order, zeros, epsilon):
    """By every coin: its lift is 1, and it is within the LDP level of every symbol."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    prior, transitions = ref.random_chain(rng, n, order, zeros)
    model = MarkovModel(belief_of_first(prior, order), transitions.reshape(-1, n), order=order)
    setting = Setting.of(model, name, epsilon)
    state = after_some_releases(setting, seed)
    beliefs = filtering.symbols(model, state.states)
    kernel = stream.kernels(setting, beliefs, epsilon).one(0)
    coin, lost = ref.OneCoin(), np.array([UNKNOWN])

    def symbol_of(value):
        coin.value = value
        return int(stream.hidden(setting, state.states, lost, coin)[0])

    drawn = shares(symbol_of)
    assert sum(map(share, drawn.values())) == 1
    assert all(beliefs[0, symbol] > 0 for symbol in drawn)
    marginal = kernel.marginal(beliefs[0])
    for index in range(len(kernel.codes)):
        rows = [Fraction(int(weight), DENOMINATOR) for weight in kernel.column(index)]
        chance = float(sum(share(coins) * rows[symbol] for symbol, coins in drawn.items()))
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


def belief_of_first(prior, order):
    return prior if order == 1 else prior.sum(1)


def test_many_users_at_once_are_as_one_by_one_and_only_unknown_values_throw_a_coin_more():
    setting = words_setting("optimal", 1.3)
    codes = np.array([0, UNKNOWN, 2, UNKNOWN, 1])
    coins, users = KeyedCoins(KEY), ["ann", "bob", "cid", "dan", "eve"]
    fleet = Rows(setting, 5)
    together = fleet.release(np.arange(5), codes, coins.of(users, [0] * 5))
    for k, user in enumerate(users):
        alone, _ = stream.step(setting, State.start(setting), codes[[k]], coins.of([user], [0]))
        assert alone.codes[0] == together.codes[k]
        coin = coins.of([user], [0])
        code = codes[[k]]
        if codes[k] == UNKNOWN:
            code = stream.drawn(setting.model.initial[None], coin.draw(1))
        by_hand = stream.kernels(setting, setting.model.initial[None], 1.3).pick(code, coin.draw(1))
        assert together.codes[k] == stream.kernels(setting, setting.model.initial[None], 1.3).outputs[0, by_hand[0]]
    assert (together.epsilons == 1.3).all()


def test_compiled_code_gives_the_same():
    use(True)
    rng = np.random.default_rng(3)
    setting = Setting.of(MarkovModel(*ref.random_chain(rng, 5)), "optimal", 1.0)
    codes = np.where(rng.random((4, 50)) < 0.3, UNKNOWN, rng.integers(0, 5, (4, 50)))

    def released():
        fleet, coins = Rows(setting, 50), SeededCoins(1)
        return [fleet.release(np.arange(50), each, coins).codes.tolist() for each in codes]

    compiled = released()
    use(False)
    assert released() == compiled


def test_codes_that_stand_for_nothing_are_refused_and_a_release_is_never_unknown():
    setting, pairs = words_setting(), words_setting("tree", 2.0, batch=2)
    for code in (-1, -2, -3, -5, 3):
        with pytest.raises(InputError, match="expected codes"):
            stream.step(setting, State.start(setting), np.array([code]), SeededCoins(1))
        with pytest.raises(InputError, match="expected codes"):
            batches.step(pairs, State.start(pairs), np.array([code, UNKNOWN]), SeededCoins(1))
    with pytest.raises(DataError):
        stream.observe(setting, State.start(setting), np.array([UNKNOWN]))
    hiding = MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=Alphabet(WORDS, on_unknown="hide"))
    with pytest.raises(DataError, match="not in the model's alphabet"):
        sv.decode_stream(hiding, ["home", SECRET], "balanced", 1.0)


# the law of a batch


def fillings(setting, state, codes, thrown=()):
    """Every batch that is drawn in place of one with unknown symbols: its chance, and coins that give it."""
    lost = np.flatnonzero(codes == UNKNOWN)
    if len(thrown) == len(lost):
        filled = batches.hidden(setting, state, codes, twin.FixedCoins(*[ends[0] for ends in thrown]))
        yield filled, math.prod(map(share, thrown), start=Fraction(1)), [ends[0] for ends in thrown]
        return
    before = [ends[0] for ends in thrown]

    def symbol_of(value):
        coins = twin.FixedCoins(*before, value, *[0] * len(lost))
        return int(batches.hidden(setting, state, codes, coins)[lost[len(thrown)]])

    for ends in shares(symbol_of).values():
        yield from fillings(setting, state, codes, (*thrown, ends))


def lift_of(sent, batch):
    if hasattr(sent, "lift"):
        return sent.lift(batch)
    return sent.lifts[sent.book.rows.row(batch)]


@pytest.mark.slow
@pytest.mark.parametrize("name", mechanisms.batched())
@pytest.mark.parametrize("order", [1, 2])
def test_the_law_of_a_batch_is_a_mixture_of_rows_and_the_marginal_where_all_is_unknown(name, order):
    rng = np.random.default_rng(order)
    model = twin.random_model(rng, 3, order)
    setting = Setting.of(model, name, 1.5, batch=2)
    _, state = batches.step(setting, State.start(setting), rng.integers(0, 3, 2), SeededCoins(1))
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
            if name in (*TREES, *TABLED):
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
        setting = Setting.of(model, name, 2.0, batch=3)
        sent, after = batches.step(setting, State.start(setting), np.array([2, UNKNOWN, 1]), SeededCoins(2))
        assert len(sent.codes) == 3
        assert np.isfinite(after.states).all()


# the policy


@pytest.mark.parametrize(
    ("symbols", "values", "codes"),
    [
        (Alphabet(WORDS), ["gym", SECRET, None, 3.5, "home", float("nan")], [2, -4, -4, -4, 0, -4]),
        (Alphabet([0, 10]), [10, 5, float("nan"), float("inf")], [1, -4, -4, -4]),
        (Alphabet([0, 10]), pl.Series([10, None, 0]), [1, -4, 0]),
        (Alphabet([2**60, 2**60 + 1]), pl.Series([2**60 + 1, None, 2**60]), [1, -4, 0]),
        (Alphabet(WORDS), pl.Series(["gym", None, SECRET]), [2, -4, -4]),
        (Bins([0, 1, 2]), [0.5, -1, None, 2, 9], [0, -4, -4, 1, -4]),
        (Grid.regular(2, 1, (0, 2, 0, 1)), [(0.5, 0.5), (9, 0.5), (1.5, float("nan"))], [0, -4, -4]),
    ],
)
def test_hide_gives_every_value_outside_the_one_code(symbols, values, codes):
    hiding = symbols.with_policy("hide")
    assert hiding.encode(values).tolist() == codes
    assert symbols.watched().encode(values).tolist() == codes
    assert [hiding.encode_one(value) for value in values] == codes
    assert from_json(hiding.to_json()) == hiding
    assert hiding.fingerprint() == symbols.fingerprint()
    with pytest.raises(UnknownSymbol):
        hiding.strict.encode(values)


def test_where_receivers_watch_the_nearest_is_for_numbers_and_error_is_refused():
    watched = Bins([0, 1, 2], on_unknown="nearest").watched()
    assert watched.encode([9.0, float("nan"), -3]).tolist() == [1, UNKNOWN, 0]
    with pytest.raises(UnknownSymbol):
        Bins([0, 1, 2], on_unknown="nearest").encode([float("nan")])
    with pytest.raises(InputError, match="would show receivers exactly where"):
        Alphabet(WORDS).watched("error")
    with pytest.raises(UnknownSymbol):
        MarkovModel.fit([["a", "b", SECRET]], alphabet=Alphabet(["a", "b"], on_unknown="hide"))


def test_a_session_goes_on_by_the_policy_of_its_model():
    model = MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=Alphabet(WORDS, on_unknown="hide"))
    session = sv.Session(model, "balanced", 1.0, seed=1)
    assert {session.release(value) for value in (SECRET, None, "home", float("nan"))} <= set(WORDS)
    assert session.push(SECRET)[0] in WORDS
    assert session.standing().by_composition == 5.0
    pairs = sv.Session(model, "tree", 2.0, batch=2, seed=1)
    assert set(pairs.release_batch(["home", SECRET])) <= set(WORDS)
    with pytest.raises(UnknownSymbol):
        sv.Session(MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=WORDS), epsilon=0.5).release(SECRET)
