"""Automata of secrets against what they mean, word by word."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqveil import secrets
from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import InputError
from seqveil.core.secrets import automaton

LETTERS = "abc"
WORDS = [word for length in range(7) for word in itertools.product(range(3), repeat=length)]


def _spell(word: tuple[int, ...]) -> str:
    return "".join(LETTERS[code] for code in word)


def assert_agrees(found: automaton.Automaton, meaning) -> None:
    for word in WORDS:
        assert found.read(word) == int(meaning(word)), word


def over(secret: secrets.Secret, n: int = 3) -> automaton.Automaton:
    return secret.over(Alphabet(range(n))).automaton


def of_pattern(text: str) -> automaton.Automaton:
    names = automaton.names(automaton.parsed(text))
    return automaton.recognised([(text, {name: LETTERS.index(name) for name in names})], 3)


def test_kinds_of_automata_mean_what_they_say():
    assert_agrees(over(secrets.ever([1, 2], epsilon=1)), lambda w: any(x in (1, 2) for x in w))
    assert_agrees(over(secrets.always([0, 2], epsilon=1)), lambda w: all(x in (0, 2) for x in w))
    for k in (1, 2, 4):
        assert_agrees(over(secrets.count(1, k, epsilon=1)), lambda w, k=k: sum(x == 1 for x in w) >= k)
    assert_agrees(over(secrets.followed_by(0, 2, epsilon=1)), lambda w: 0 in w and 2 in w[w.index(0) + 1 :])
    assert_agrees(
        over(secrets.followed_by([0, 1], 1, epsilon=1)),
        lambda w: any(x != 2 and 1 in w[i + 1 :] for i, x in enumerate(w)),
    )


def test_a_product_labels_the_combination():
    kinds = [secrets.ever(0, epsilon=1), secrets.count(1, 2, epsilon=1), secrets.always([1, 2], epsilon=1)]
    parts = [over(secret) for secret in kinds]
    both = over(secrets.joint(*kinds))
    assert both.values == 8
    for word in WORDS:
        assert both.read(word) == sum(part.read(word) << place for place, part in enumerate(parts))


def test_automata_of_the_same_secret_are_equal_arrays():
    one, two = over(secrets.ever(1, epsilon=1)), of_pattern("b")
    three = automaton.minimal(
        np.array([[2, 1, 2], [1, 3, 3], [0, 3, 2], [3, 3, 1], [0, 0, 0]]), np.array([0, 1, 0, 1, 1])
    )
    for other in (two, three):
        assert other.moves.tolist() == one.moves.tolist()
        assert other.labels.tolist() == one.labels.tolist()


PATTERNS = [
    "a b c", "a | b c", "(a | b) c", "a* b", "^ a* $", "^ a* b", "a b+ $", "^ (a b)* $", "a . c", "a{2}", "a{2,3} b",
    "^ a{2,} $", "(a | b c){2}", "^ a | b $", "^ . . $", "(a? b){1,2} $", "^ (a | b)* c (a | b)* $", "b (^ a | c $)",
    "(a* b*)* c", "(| a) b", "^ (a | ^ b)+ $", "'a' \"b\"",
]  # fmt: skip


@pytest.mark.parametrize("text", PATTERNS)
def test_patterns_agree_with_re_on_all_words(text):
    twin = re.compile(re.sub(r"[ '\"]", "", text))
    assert_agrees(of_pattern(text), lambda word: twin.search(_spell(word)) is not None)


_leaf = st.sampled_from(["a", "b", "c", ".", "a", "b"])
_trees = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(" ".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]} | {two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,2}", "{2}"])).map(lambda two: f"({two[0]}){two[1]}"),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(text=_trees, anchored=st.sampled_from(["{}", "^ ({})", "({}) $", "^ ({}) $"]))
@settings(max_examples=60, deadline=None)
def test_random_patterns_agree_with_re(text, anchored):
    whole = anchored.format(text)
    twin = re.compile(whole.replace(" ", ""))
    assert_agrees(of_pattern(whole), lambda word: twin.search(_spell(word)) is not None)


@pytest.mark.slow
@given(data=st.data(), states=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_minimising_keeps_the_labels_and_nothing_smaller_does(data, states):
    moves = np.array(data.draw(st.lists(st.lists(st.integers(0, states - 1), min_size=2, max_size=2),
                                        min_size=states, max_size=states)))  # fmt: skip
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=states, max_size=states)))
    small, large = automaton.minimal(moves, labels, 3), automaton.Automaton(moves, labels, 3)
    words = [word for length in range(8) for word in itertools.product(range(2), repeat=length)]
    assert all(small.read(word) == large.read(word) for word in words)
    futures = set()  # states of a minimal automaton differ in some future, and at most `states` steps show it
    for state in range(small.size):
        swapped = np.arange(small.size)
        swapped[[0, state]] = state, 0
        one = automaton.Automaton(swapped[small.moves[swapped]], small.labels[swapped], 3)  # starts there
        futures.add(tuple(one.read(word) for word in words if len(word) <= states))
    assert len(futures) == small.size


def test_large_alphabets_stay_small():
    zone = secrets.ever(list(range(0, 10_000, 7)), epsilon=1)
    assert over(zone, 10_000).moves.shape == (2, 10_000)
    assert over(secrets.joint(zone, secrets.count(3, 5, epsilon=1)), 10_000).size == 12


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "at least one symbol"), ("   ", "at least one symbol"),
        ("(a", r"without its '\)'"), ("a)", r"without its '\('"),
        ("* a", "repeats nothing"), ("a" + "*" * 2000, "repeats nothing"), ("a{3,1}", "smaller number first"),
        ("a{", "cannot be read at character 2"),
        ("(" * 40 + "a" + ")" * 40, "flatter"), ("a{99999}", "64 states"), ("a{70}", "64 states"),
        ("a .{8} b $", "64 states"), ("'a", "cannot be read"),
    ],
)  # fmt: skip
def test_patterns_that_cannot_be_used_say_so_in_one_line(text, match):
    with pytest.raises(InputError, match=match) as caught:
        of_pattern(text)
    assert "\n" not in str(caught.value)


def test_a_count_that_needs_too_many_states_is_refused():
    with pytest.raises(InputError, match="64 states"):
        over(secrets.count(0, 64, epsilon=1))
    assert over(secrets.count(0, 63, epsilon=1)).size == 64
