"""A value outside the alphabet is released like any other: from the kernel's marginal, in its place, at its ε."""

import json
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import reference_batches as twin
import reference_streams as ref
import seqveil as sv
from compiling import restored, use  # noqa: F401 -- it restores after every test
from reference_streams import Rows
from seqveil import mechanisms
from seqveil.core import filtering
from seqveil.core.alphabet import Alphabet, Bins, Grid, from_json
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness, SeededRandomness
from seqveil.engine import batches, stream
from seqveil.engine.stream import UNKNOWN, State
from seqveil.interfaces.bridge.payloads import Payloads
from seqveil.interfaces.events import Wording

KEY = bytes(range(32))
SECRET = "zq-secret-77"
WORDS = ["home", "work", "gym"]
STICKY = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]]
TABLED = ("batch_lp", "auto")
TREES = ("tree", "tree_ldp")


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
    prior, transitions = ref.random_chain(rng, n, order, zeros)
    model = MarkovModel(belief_of_first(prior, order), transitions.reshape(-1, n), order=order)
    setting = sv.Policy(epsilon=epsilon, mechanism=name).on(model)
    state = after_some_releases(setting, seed)
    beliefs = filtering.symbols(model, state.states)
    kernel = stream.kernels(setting, beliefs, epsilon).one(0)
    uniform, lost = ref.OneCoin(), np.array([UNKNOWN])

    def symbol_of(value):
        uniform.value = value
        return int(stream.hidden(setting, state.states, lost, uniform)[0])

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


def belief_of_first(prior, order):
    return prior if order == 1 else prior.sum(1)


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


def test_compiled_code_gives_the_same():
    use(True)
    rng = np.random.default_rng(3)
    setting = sv.Policy(epsilon=1.0, mechanism="optimal").on(MarkovModel(*ref.random_chain(rng, 5)))
    codes = np.where(rng.random((4, 50)) < 0.3, UNKNOWN, rng.integers(0, 5, (4, 50)))

    def released():
        fleet, randomness = Rows(setting, 50), SeededRandomness(1)
        return [fleet.release(np.arange(50), each, randomness).codes.tolist() for each in codes]

    compiled = released()
    use(False)
    assert released() == compiled


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


def lift_of(sent, batch):
    if hasattr(sent, "lift"):
        return sent.lift(batch)
    return sent.lifts[sent.book.rows.row(batch)]


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
        setting = sv.Policy(epsilon=2.0, batch=3, mechanism=name).on(model)
        sent, after = batches.step(setting, State.start(setting), np.array([2, UNKNOWN, 1]), SeededRandomness(2))
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
    assert symbols.tracked().encode(values).tolist() == codes
    assert [hiding.encode_one(value) for value in values] == codes
    assert from_json(hiding.to_json()) == hiding
    assert hiding.fingerprint() == symbols.fingerprint()
    with pytest.raises(UnknownSymbol):
        hiding.strict.encode(values)


def test_where_receivers_tracker_the_nearest_is_for_numbers_and_error_is_refused():
    tracked = Bins([0, 1, 2], on_unknown="nearest").tracked()
    assert tracked.encode([9.0, float("nan"), -3]).tolist() == [1, UNKNOWN, 0]
    with pytest.raises(UnknownSymbol):
        Bins([0, 1, 2], on_unknown="nearest").encode([float("nan")])
    with pytest.raises(InputError, match="would show receivers exactly where"):
        Alphabet(WORDS).tracked("error")
    with pytest.raises(UnknownSymbol):
        MarkovModel.fit([["a", "b", SECRET]], alphabet=Alphabet(["a", "b"], on_unknown="hide"))


def test_a_session_goes_on_by_the_policy_of_its_model():
    model = MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=Alphabet(WORDS, on_unknown="hide"))
    session = sv.Session(model, mechanism="balanced", epsilon=1.0, seed=1)
    assert {session.release(value) for value in (SECRET, None, "home", float("nan"))} <= set(WORDS)
    assert session.push(SECRET)[0] in WORDS
    assert session.account.epsilon_spent == 5.0
    pairs = sv.Session(model, mechanism="tree", epsilon=2.0, batch=2, seed=1)
    assert set(pairs.release_batch(["home", SECRET])) <= set(WORDS)
    with pytest.raises(UnknownSymbol):
        sv.Session(MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=WORDS), epsilon=0.5).release(SECRET)


LARGE = 2**53
ALPHABETS = [
    Alphabet.codes(4),
    Alphabet([LARGE, LARGE + 1, LARGE + 2]),
    Alphabet([2**63, 2**63 + 2048, 0.5]),
    Alphabet([2**62 + 1, 2**64 + 1, -1]),
    Alphabet([0, 0.5, 1]),
    Alphabet([0.5, 2.0**53]),
    Alphabet(["a", "", 1, None]),
    Alphabet(["a", (1, 0), ()]),
    Alphabet([True, False, 7]),
    Bins([0, 1, 2.5, 2.0**60]),
    Grid.regular(3, 2, (0, 3, 0, 2)),
]
ODD = st.sampled_from(
    [
        *(math.nan, math.inf, -math.inf, None, 0.5, "", "a", True, False, [], (), [[]], {}, (1, 0), (True, 0)),
        *((1, True), (0.5, math.nan), [1.5, 1], [1, [2]], 2**63, 2**63 + 1, 2**64 + 1, 2**70, 10**400, -1, 1, 0),
        *(1.0, b"a", 1j, LARGE, LARGE + 1, LARGE + 2, float(LARGE), 2**62 + 1, Decimal(1), Fraction(1, 2), "9" * 300),
        *(np.float32("nan"), np.int8(1), np.uint64(2**63 + 1), np.True_, np.array(1), np.array([1, 0])),
        np.zeros((2, 2)),
    ]
)


def same_symbol(value, symbol):
    """Python's own equality, but for True and False, which are no numbers."""
    if isinstance(value, tuple) and isinstance(symbol, tuple):
        return len(value) == len(symbol) and all(map(same_symbol, value, symbol))
    if isinstance(value, bool | np.bool_) and not isinstance(symbol, bool):
        return False
    return bool(value == symbol)


@settings(deadline=None)
@given(which=st.integers(0, len(ALPHABETS) - 1), values=st.lists(ODD, max_size=6), nearest=st.booleans())
@example(which=1, values=[LARGE, LARGE + 1, LARGE + 2, math.nan], nearest=False)
@example(which=2, values=[2**63 + 1, None], nearest=False)
def test_a_code_depends_on_its_own_value_alone(which, values, nearest):
    alphabet = ALPHABETS[which]
    if nearest and alphabet.points is None:
        return
    alphabet = alphabet.tracked("nearest" if nearest else "hide")
    alone = [alphabet.encode_one(value) for value in values]
    assert alphabet.encode(values).tolist() == alone
    assert [int(alphabet.encode([value])[0]) for value in values] == alone
    assert alphabet.encode(tuple(values)).tolist() == alone
    if isinstance(alphabet, Alphabet) and not nearest:
        for value, code in zip(values, alone, strict=True):
            value = value.item() if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0 else value
            if not isinstance(value, np.ndarray):
                found = [k for k, symbol in enumerate(alphabet.values) if same_symbol(value, symbol)]
                assert [code] == (found or [UNKNOWN])


@pytest.mark.parametrize(
    "form", ["[]", "[[]]", "[[],[]]", "{}", "[null]", "[" * 300 + "]" * 300, "1e999", "true", "NaN", '"x"', "[1.2]"]
)
@pytest.mark.parametrize("alphabet", [["a", "b"], [0, 1], [0, 5], Bins([0, 2, 4]), Grid.regular(2, 1, (0, 2, 0, 1))])
def test_any_value_over_mqtt_is_hidden(form, alphabet):
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=alphabet)
    one = Payloads(sv.Policy(epsilon=1.0, mechanism="balanced").on(model))
    assert one.read("ann", b'{"seq":0,"value":%s}' % form.encode()).codes == (UNKNOWN,)
    batched = Payloads(sv.Policy(epsilon=1.0, batch=2, mechanism="tree").on(model))
    assert batched.read("ann", b'{"seq":0,"values":[%s]}' % form.encode()).codes == (UNKNOWN,)


@pytest.mark.parametrize("value", [(), [], [[]], np.zeros(0), np.zeros((1, 0)), {}, object()])
def test_a_session_that_hides_takes_any_value(value):
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=Alphabet.codes(2, "hide"))
    assert sv.Session(model, epsilon=1.0).release(value) in (0, 1)
    assert len(sv.Session(model, mechanism="tree", epsilon=1.0, batch=2).release_batch([value, 1])) == 2


@pytest.mark.parametrize("alphabet", [Alphabet.codes(2), Alphabet([0, 1, 5]), Bins([0, 1, 2]), Alphabet(["a", 0, 1])])
def test_true_is_no_number_over_http_and_mqtt_alike(alphabet):
    distribution = np.full(alphabet.n, 1 / alphabet.n)
    payloads = Payloads(
        sv.Policy(epsilon=1.0).on(MarkovModel(distribution, np.tile(distribution, (alphabet.n, 1)), alphabet=alphabet))
    )
    for value in (True, False):
        payload = json.dumps({"seq": 0, "value": value}).encode()
        assert payloads.read("ann", payload).codes == (UNKNOWN,)
        assert Wording(alphabet).encode([value]).tolist() == [UNKNOWN]
        assert Wording(alphabet).encode([value, 1]).tolist()[0] == UNKNOWN
        assert alphabet.tracked().encode(np.array([value])).tolist() == [UNKNOWN]


def test_true_is_a_symbol_of_an_alphabet_that_holds_it():
    alphabet = Alphabet([False, True]).tracked()
    assert alphabet.encode([True, False, "x"]).tolist() == [1, 0, UNKNOWN]
    assert alphabet.encode(np.array([True, False])).tolist() == [1, 0]
