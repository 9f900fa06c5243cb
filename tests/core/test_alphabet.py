"""Alphabets: codes and back, policies, refusals that name a position and never a value."""

import json
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seqveil.core.alphabet import UNKNOWN, Alphabet, Bins, Grid, from_json
from seqveil.core.errors import InputError, UnknownSymbol
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.interfaces.bridge.payloads import Payloads
from seqveil.interfaces.events import Wording

WORDS, SECRET = ["home", "work", "gym"], "zq-secret-77"

plain_values = st.one_of(
    st.text(max_size=4), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.booleans(), st.none()
)
any_values = st.one_of(plain_values, st.tuples(plain_values, plain_values))
alphabets = st.lists(any_values, min_size=1, max_size=12, unique=True)
SYMBOLS = [
    Alphabet(["a", "b", "c"]),
    Alphabet(range(5)),
    Alphabet([5, 1, 3]),
    Bins([0, 1, 5, 6.5]),
    Grid([0, 1, 3], [-1, 0, 2, 9]),
]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(alphabets, st.data())
def test_codes_come_back_as_the_same_values_of_the_same_type(values, data):
    alphabet = Alphabet(values)
    codes = data.draw(st.lists(st.integers(0, alphabet.n - 1), max_size=20))
    decoded = alphabet.decode(codes)
    assert alphabet.encode(decoded).tolist() == codes
    assert decoded == [values[code] for code in codes]
    assert [type(value) for value in decoded] == [type(values[code]) for code in codes]
    assert [alphabet.encode_one(alphabet.decode([code])[0]) for code in codes] == codes


@settings(max_examples=40, deadline=None)
@given(alphabets)
def test_json_keeps_values_types_policy_and_fingerprint(values):
    alphabet = Alphabet(values)
    again = from_json(json.loads(json.dumps(alphabet.to_json())))
    assert again == alphabet
    assert again.fingerprint() == alphabet.fingerprint()
    assert [type(value) for value in again.values] == [type(value) for value in alphabet.values]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, unique=True), st.lists(st.integers(-60, 60), min_size=1))
def test_integer_codes_agree_with_a_dictionary(values, data):
    index = {value: code for code, value in enumerate(values)}
    expected = [index.get(value) for value in data]
    for given_as in (data, np.array(data), np.array(data, float), pl.Series(data), pd.Series(data), iter(data)):
        if None in expected:
            with pytest.raises(UnknownSymbol) as caught:
                Alphabet(values).encode(given_as)
            assert vars(caught.value)["position"] == expected.index(None)
        else:
            assert Alphabet(values).encode(given_as).tolist() == expected


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=8, unique=True), st.lists(st.floats(-200, 200), max_size=9))
def test_nearest_number_agrees_with_brute_force(values, data):
    alphabet = Alphabet(values, on_unknown="nearest")
    for number, code in zip(data, alphabet.encode(data).tolist(), strict=True):
        assert abs(values[code] - number) <= min(abs(value - number) for value in values) + 1e-12


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=9, unique=True), st.data())
def test_bins_agree_with_brute_force(edges, data):
    edges = sorted(edges)
    bins = Bins(edges)
    assert bins.encode(bins.points).tolist() == list(range(bins.n))
    numbers = data.draw(st.lists(st.floats(edges[0], edges[-1]) | st.sampled_from(edges), min_size=1))
    expected = [next((i for i in range(bins.n) if edges[i] <= x < edges[i + 1]), bins.n - 1) for x in numbers]
    assert bins.encode(numbers).tolist() == expected
    assert [bins.encode_one(x) for x in numbers] == expected
    beyond = Bins(edges, on_unknown="nearest").encode([edges[0] - 1, edges[-1] + 1, -np.inf, np.inf])
    assert beyond.tolist() == [0, bins.n - 1, 0, bins.n - 1]


@pytest.mark.parametrize("symbols", SYMBOLS)
def test_common_interface(symbols):
    everything = list(range(symbols.n))
    assert symbols.encode(symbols.decode(everything)).tolist() == everything
    assert symbols.encode(symbols.decode(everything)).dtype == np.int64
    assert symbols.encode([]).tolist() == []
    assert symbols.decode([]) == []
    assert from_json(json.loads(json.dumps(symbols.to_json()))) == symbols
    assert pickle.loads(pickle.dumps(symbols)) == symbols
    assert repr(symbols) == f"{type(symbols).__name__}({symbols.n} symbols)"
    if symbols.points is not None:
        lenient = symbols.with_policy("nearest")
        assert lenient != symbols
        assert lenient.fingerprint() == symbols.fingerprint()
        assert from_json(lenient.to_json()) == lenient
        assert len(symbols.points) == symbols.n
    with pytest.raises(AttributeError, match="never changes"):
        symbols.n = 3
    for wrong in ([symbols.n], [0, -1]):
        with pytest.raises(InputError, match="outside 0"):
            symbols.decode(wrong)
    with pytest.raises(InputError, match="flat sequence of integers"):
        symbols.decode([0.5])


def test_grid_layout_and_inputs():
    grid = Grid.regular(3, 2, bounds=(0, 3, 0, 4))
    assert grid.encode_one((2.5, 0.5)) == 2 * 2 + 0
    assert grid.points.tolist() == [[0.5, 1], [0.5, 3], [1.5, 1], [1.5, 3], [2.5, 1], [2.5, 3]]
    assert grid.decode([3]) == [(1.5, 3.0)]
    points = np.random.default_rng(3).uniform((0, 0), (3, 4), (50, 2))
    expected = [int(x) * 2 + int(y // 2) for x, y in points]
    frame = pl.DataFrame({"x": points[:, 0], "y": points[:, 1]})
    for given_as in (points, points.tolist(), list(map(tuple, points.tolist())), frame, frame.to_pandas()):
        assert grid.encode(given_as).tolist() == expected
    assert grid.with_policy("nearest").encode([(-9, 99)]).tolist() == [1]
    with pytest.raises(UnknownSymbol, match="value 1 of the sequence is not in the alphabet"):
        grid.encode([(1, 1), (1, 77.5)])
    for no_pairs in ([1, 2, 3], np.zeros((2, 3)), np.zeros(2)):
        with pytest.raises(UnknownSymbol, match="value 0"):
            grid.encode(no_pairs)


def test_strings_from_every_container():
    values, data = ["x", "yy", "z"], ["z", "x", "yy", "yy"]
    for given_as in (data, tuple(data), np.array(data), np.array(data, object), pl.Series(data), pd.Series(data)):
        assert Alphabet(values).encode(given_as).tolist() == [2, 0, 1, 1]
    categories = pl.Series(data, dtype=pl.Categorical)
    assert Alphabet(values).encode(categories).tolist() == [2, 0, 1, 1]


@pytest.mark.parametrize(
    ("symbols", "values"),
    [
        (Alphabet(["a", "b"]), ["a", "secret-731"]),
        (Alphabet(["a", "b"]), pl.Series(["a", "secret-731"])),
        (Alphabet(["a", "b"]), ["a", ["secret-731"]]),
        (Alphabet(["a", "b"]), ["a", 731]),
        (Alphabet([1.5, 2.5]), [1.5, 731.0]),
        (Alphabet(range(9)), [1, 731]),
        (Bins([0, 1]), [0.5, 731.0]),
        (Bins([0, 1]), [0.5, "secret-731"]),
        (Bins([0, 1]), [0.5, float("nan")]),
        (Grid([0, 1], [0, 1]), [(0.5, 0.5), (0.5, 731)]),
    ],
)
def test_unknown_values_are_refused_by_position_without_being_shown(symbols, values):
    with pytest.raises(UnknownSymbol) as caught:
        symbols.encode(values)
    message = str(caught.value)
    assert message.startswith("value 1 of the sequence is not in the alphabet")
    assert f"({symbols.n} symbols)" in message
    assert "731" not in message
    assert vars(caught.value)["position"] == 1
    with pytest.raises(UnknownSymbol) as caught:
        symbols.encode_one(values[1])
    assert "731" not in str(caught.value)


@pytest.mark.parametrize("symbols", [Alphabet([1, 2, 7]), Alphabet(range(3)), Bins([0, 1, 2])])
@pytest.mark.parametrize("missing", [float("nan"), "731", None])
def test_what_is_no_number_has_no_nearest_symbol(symbols, missing):
    with pytest.raises(UnknownSymbol, match="value 1 of the sequence is not a number") as caught:
        symbols.with_policy("nearest").encode([0.7, missing])
    assert "731" not in str(caught.value)


def test_alphabet_of_what_occurs():
    assert list(Alphabet.of(["b", "a", "b"]).values) == ["a", "b"]
    assert list(Alphabet.of(np.array([3, 1, 3])).values) == [1, 3]
    assert list(Alphabet.of(pl.Series([3, 1, 3])).values) == [1, 3]
    assert list(Alphabet.of(pd.Series(["q", "p"])).values) == ["p", "q"]
    assert list(Alphabet.of(["b", 1, "a", 1]).values) == ["b", 1, "a"]
    assert list(Alphabet.of([(2, "x"), (1, "y")]).values) == [(1, "y"), (2, "x")]
    assert all(type(value) is int for value in Alphabet.of(np.array([3, 1], np.uint8)).values)


def test_equality_tells_types_apart():
    assert Alphabet([True, False]) != Alphabet([1, 0])
    assert Alphabet([1.0, 5.0]) != Alphabet([1, 5])
    assert Alphabet([True, False]).fingerprint() != Alphabet([1, 0]).fingerprint()
    assert Alphabet(["a"]) != Bins([0, 1])
    assert hash(Alphabet(["a", "b"])) == hash(Alphabet(["a", "b"]))


def test_bins_of_width():
    assert Bins.of_width(0, 1, 0.25).edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert Bins.of_width(0, 1, 0.4).n == 3
    assert Bins.of_width(0.0, 0.3, 0.1).n == 3
    assert Bins.of_width(0.0, 0.3, 0.1).encode_one(0.3) == 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Alphabet([]), "at least one value"),
        (lambda: Alphabet(["s731", "s731"]), "must differ; 1 of 2"),
        (lambda: Alphabet([["s731"]]), "type list cannot be symbols; use str, int"),
        (lambda: Alphabet.of([["s731"]]), "type list cannot be symbols"),
        (lambda: Alphabet([float("nan"), 731.0]), "NaN equals nothing"),
        (lambda: Alphabet(["s731"], on_unknown="nearest"), "needs an alphabet of numbers; use"),
        (lambda: Alphabet(["s731"]).with_policy("nearest"), "needs an alphabet of numbers; use"),
        (lambda: Alphabet(["s731"], on_unknown="skip"), 'must be "error", "hide", "nearest" or "other"'),
        (lambda: Alphabet(range(3)).encode(np.zeros((2, 2))), "one value per event"),
        (lambda: Bins([1]), "edges must be"),
        (lambda: Bins([1, 1]), "edges must be"),
        (lambda: Bins([0, np.inf]), "edges must be"),
        (lambda: Bins([1 + 2**-52, 1 + 2**-51]), "too close"),
        (lambda: Bins(["s731", 3]), "edges must be"),
        (lambda: Bins([0, 1]).encode(np.zeros((2, 2))), "one number per event"),
        (lambda: Bins.of_width(0, 1, 0), "width > 0"),
        (lambda: Grid.regular(0, 3, (0, 1, 0, 1)), "at least one cell"),
        (lambda: from_json({"kind": "codes"}), "not a saved alphabet"),
        (lambda: from_json({"kind": "other", "on_unknown": "error"}), "not a saved alphabet"),
        (lambda: from_json({"kind": "bins", "edges": ["s731"], "on_unknown": "error"}), "not a saved alphabet"),
    ],
)
def test_refusals_say_what_to_do_and_show_no_value(build, message):
    with pytest.raises(InputError, match=message) as caught:
        build()
    assert "731" not in str(caught.value)
    assert "\n" not in str(caught.value)


# what is outside


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


LARGE = 2**53
ALPHABETS = [
    Alphabet(range(4)),
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
        *(np.float32("nan"), np.int8(1), np.uint64(2**63 + 1), np.True_, np.array([1, 0])),
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
            value = value.item() if isinstance(value, np.generic) else value
            if not isinstance(value, np.ndarray):
                found = [k for k, symbol in enumerate(alphabet.values) if same_symbol(value, symbol)]
                assert [code] == (found or [UNKNOWN])


@pytest.mark.parametrize("alphabet", [Alphabet(range(2)), Alphabet([0, 1, 5]), Bins([0, 1, 2]), Alphabet(["a", 0, 1])])
def test_true_is_no_number_over_http_and_mqtt_alike(alphabet):
    distribution = np.full(alphabet.n, 1 / alphabet.n)
    payloads = Payloads(
        Policy(epsilon=1.0).on(MarkovModel(distribution, np.tile(distribution, (alphabet.n, 1)), alphabet=alphabet))
    )
    for value in (True, False):
        payload = json.dumps({"seq": 0, "value": value}).encode()
        assert payloads.read("ann", payload).code == UNKNOWN
        assert Wording(alphabet).encode([value]).tolist() == [UNKNOWN]
        assert Wording(alphabet).encode([value, 1]).tolist()[0] == UNKNOWN
        assert alphabet.tracked().encode(np.array([value])).tolist() == [UNKNOWN]
