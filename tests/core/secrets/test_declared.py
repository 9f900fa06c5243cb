"""Secrets as people declare them: names, sentences, command line, TOML, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
from seqveil import Alphabet, Bins, Grid, MarkovModel, secrets
from seqveil.core.alphabet import UNKNOWN
from seqveil.core.errors import InputError
from seqveil.core.secrets.declared import codes_within
from seqveil.core.times import Slots
from seqveil.interfaces.commands.secrets import parse

PAGES = MarkovModel(np.full(3, 1 / 3), np.full((3, 3), 1 / 3), alphabet=["home", "clinic", "health news"])
ROOM = Grid.regular(3, 3, bounds=(0, 3, 0, 3))
FLOOR = MarkovModel(np.full(9, 1 / 9), np.full((9, 9), 1 / 9), alphabet=ROOM)

EVERY_KIND = [
    secrets.ever("clinic", epsilon=0.5, window=20),
    secrets.ever(["clinic", "home"], window="event", one_sided=True, epsilon=1.0),
    secrets.always("home", window="day", epsilon=1.0),
    secrets.count("clinic", at_least=3, window="first 9", epsilon=1.0),
    secrets.followed_by("home", then=["clinic", "health news"], epsilon=1.0),
    secrets.pattern("home .{1,3} 'health news'", window=7, epsilon=1.0),
    secrets.zone([(0.5, 0.5), (1.5, 0.5)], window=4, epsilon=1.0),
    secrets.zone(centre=(1.5, 1.5), radius=1.0, epsilon=2),
    secrets.during("clinic", hours=(22, 6), epsilon=1.0),
    secrets.joint(
        secrets.ever("home", window=5, epsilon=1.0), secrets.ever("clinic", window=5, epsilon=1.0), epsilon=0.7
    ),
    secrets.ever([(1, "a"), None, True, float("inf")], epsilon=1.0),
]


@pytest.mark.parametrize("secret", EVERY_KIND, ids=lambda secret: secret.kind)
def test_a_secret_is_the_same_after_plain_json(secret):
    again = secrets.from_dict(json.loads(json.dumps(secret.to_dict(), allow_nan=False)))
    assert again == secret
    assert hash(again) == hash(secret)
    assert again.sentence == secret.sentence


def test_the_sentence_says_what_is_kept():
    both = secrets.ever("health", epsilon=0.5, window="first 20")
    assert str(both) == both.sentence
    assert both.sentence.startswith(
        "whether health occurs among the first 20 events; if the stream follows the model, the odds that an observer "
        "who knows the model gives it move by at most a factor of 1.65 (ε = 0.5): a suspicion of 25 % stays between "
        "16 % and 36 %"
    )
    up = secrets.count(["a", "b"], 2, epsilon=1.0, one_sided=True).sentence
    assert ("becomes at most 48 %" in up, "stays between" in up) == (True, False)
    for secret in EVERY_KIND:
        assert "\n" not in secret.sentence
        assert "if the stream follows the model" in secret.sentence


@pytest.mark.parametrize(
    "saved",
    [None, 3, {}, {"kind": "x"}, {"ever": []}, {"ever": [{}]}, {"ever": ["a"], "always": ["a"]},
     {"ever": ["a"], "more": 1}, {"ever": ["a"], "epsilon": "1"}, {"ever": ["a"], "window": [1]}, {"joint": [3]},
     {"joint": []}, {"joint": "a"}, {"during": ["a"], "hours": 3}, {"during": ["a"]}, {"count": ["a"]},
     {"followed_by": ["a"]}, {"pattern": 3}, {"trait": 3}, {"zone": {"centre": ["a"]}}, {"zone": {"circle": [1]}}],
)  # fmt: skip
def test_saved_secrets_that_are_none_are_refused_in_one_line(saved):
    with pytest.raises(InputError) as caught:
        secrets.from_dict(saved)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        *((partial(secrets.ever, "a", epsilon=wrong), "above 0") for wrong in (0, -1, math.nan, math.inf, True, "1")),
        *((partial(secrets.ever, "a", window=wrong, epsilon=1.0), "window must be")
          for wrong in (0, True, "month", "first 0", "first x", 1.5)),
        (lambda: secrets.ever("a", one_sided="down", epsilon=1.0), "one_sided must be"),
        (lambda: secrets.ever([], epsilon=1.0), "at least one value"),
        (lambda: secrets.ever((), epsilon=1.0), "at least one value"),
        (lambda: secrets.ever([{}], epsilon=1.0), "hashable"),
        (lambda: secrets.count("a", 0, epsilon=1.0), "at_least must be"),
        (lambda: secrets.count("a", 1.5, epsilon=1.0), "at_least must be"),
        (lambda: secrets.pattern(3, epsilon=1.0), "pattern is a text"),
        (lambda: secrets.pattern("a |( b", epsilon=1.0), "brackets"),
        (lambda: secrets.zone(epsilon=1.0), "either cells"),
        (lambda: secrets.zone([1], centre=2, radius=1, epsilon=1.0), "either cells"),
        (lambda: secrets.zone(centre=2, epsilon=1.0), "either cells"),
        *((partial(secrets.zone, centre=wrong, radius=1, epsilon=1.0), "must be numbers") for wrong in ("x", 3)),
        (lambda: secrets.zone(centre=(3,), radius=1, epsilon=1.0), "two finite numbers"),
        (lambda: secrets.during("a", (22, 22), epsilon=1.0), "two different numbers"),
        (lambda: secrets.during("a", (22, 25), epsilon=1.0), "two different numbers"),
        (lambda: secrets.during("a", 3, epsilon=1.0), "two numbers"),
        (lambda: secrets.during("a", (22, 6), window=6, epsilon=1.0), "about each day"),
        (lambda: secrets.during("a", (22, 6), window=None, epsilon=1.0), "about each day"),
        (lambda: secrets.joint(), "one or more secrets"),
        (lambda: secrets.joint("a"), "one or more secrets"),
        (lambda: secrets.joint(secrets.joint(secrets.ever("a", epsilon=1.0))), "not joint themselves"),
        (lambda: secrets.joint(secrets.ever("a", epsilon=1), secrets.ever("b", window=2, epsilon=1)), "same window"),
        (lambda: secrets.joint(secrets.ever("a", epsilon=1), secrets.ever("b", epsilon=2)), "different ε"),
        (lambda: secrets.joint(secrets.ever("a", one_sided=True, epsilon=1.0)), "both sides"),
        (lambda: secrets.joint(*[secrets.ever("a", epsilon=1.0)] * 7), "at most 6"),
    ],
)  # fmt: skip
def test_declarations_that_cannot_be_kept_are_refused_in_one_line(make, match):
    with pytest.raises(InputError, match=match) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["clinik", ("home", "clinik"), 7, None, float("nan"), {"a": 1}.keys()])
def test_an_unknown_value_is_refused_without_naming_anything(name):
    for make in (secrets.ever, secrets.always, partial(secrets.followed_by, "home")):
        try:
            secret = make(name, epsilon=1.0)
        except InputError:
            continue
        with pytest.raises(InputError, match=r"not in the alphabet \(3 symbols\)") as caught:
            secret.over(PAGES.alphabet)
        assert "clinik" not in str(caught.value)  # a value of the alphabet that is near to it is public
        assert str(caught.value).endswith("did you mean clinic?") == (name == "clinik")
    with pytest.raises(InputError, match=r"not in the alphabet \(3 symbols\)"):
        secrets.pattern("home clinik", epsilon=1.0).over(PAGES.alphabet)
    with pytest.raises(InputError, match="not in the alphabet"):  # the nearest one would be another secret
        secrets.ever(3, epsilon=1.0).over(Alphabet([0, 10], on_unknown="nearest"))


def _marked(secret, model: MarkovModel) -> list[int]:
    compiled = secret.over(model.alphabet)
    return [code for code in range(model.n) if compiled.read([code])]


def test_values_are_the_alphabets_own():
    assert _marked(secrets.ever(["home", "clinic"], epsilon=1.0), PAGES) == [0, 1]
    assert _marked(secrets.ever({"home", "health news"}, epsilon=1.0), PAGES) == [0, 2]
    numbers = MarkovModel(np.full(3, 1 / 3), np.full((3, 3), 1 / 3), alphabet=[10, 20.5, "x"])
    assert _marked(parse("ever:10,20.5"), numbers) == [0, 1]
    assert _marked(secrets.pattern("10 | '20.5' | x", epsilon=1.0), numbers) == [0, 1, 2]
    heart = MarkovModel(np.full(3, 1 / 3), np.full((3, 3), 1 / 3), alphabet=Bins([40, 60, 80, 120]))
    assert _marked(secrets.ever(115, epsilon=1.0), heart) == [2]
    codes = MarkovModel([0.5, 0.5], np.eye(2))
    assert _marked(secrets.ever(np.int64(1), epsilon=1.0), codes) == [1]


def test_zones_on_a_grid():
    assert _marked(secrets.zone([(0.1, 0.1), (2.9, 2.9)], epsilon=1.0), FLOOR) == [0, 8]
    assert _marked(secrets.zone((0.1, 0.1), epsilon=1.0), FLOOR) == [0]
    assert _marked(secrets.zone(centre=(1.5, 1.5), radius=1.0, epsilon=1.0), FLOOR) == list(
        range(9)
    )  # the corners are .71 away
    assert _marked(parse("zone:0.5,0.5,0.2"), FLOOR) == [0]
    assert _marked(secrets.pattern("'0.5,0.5'", epsilon=1.0), FLOOR) == [0]
    with pytest.raises(InputError, match="no symbol"):
        secrets.zone(centre=(9, 9), radius=1, epsilon=1.0).over(FLOOR.alphabet)
    with pytest.raises(InputError, match="the cells of a grid"):
        secrets.zone(centre=(1, 1), radius=1, epsilon=1.0).over(PAGES.alphabet)
    with pytest.raises(InputError, match=r"not in the alphabet \(9 symbols\)"):
        secrets.zone([(5, 5)], epsilon=1.0).over(FLOOR.alphabet)


def in_slots(seconds):
    return PAGES.alphabet.with_slots(Slots(seconds, empty="hold"))


def test_hours_count_only_the_slots_in_them():
    nights = secrets.during("clinic", (21, 6), epsilon=1.0).over(in_slots(10_800))
    for place in range(8):
        day = [0] * 8
        day[place] = 1
        hour = 3 * place
        assert nights.read(day) == int(hour >= 21 or hour < 6), hour
        assert nights.read([1], place) == nights.read(day)


def test_joint_secrets_with_hours_of_their_own_count_apart():
    day, night = (secrets.during("clinic", hours, epsilon=1.0) for hours in ((6, 18), (18, 6)))
    both = secrets.joint(day, night, secrets.ever("home", window="day", epsilon=1.0)).over(in_slots(21_600))
    parts = [part.over(in_slots(21_600)) for part in both.secret.parts]
    for word in itertools.product(range(3), repeat=4):
        assert both.read(word) == sum(part.read(word) << place for place, part in enumerate(parts))


@pytest.mark.parametrize("codes", [[0, UNKNOWN], [-1], [3]])
def test_no_secret_is_read_from_values_outside_the_alphabet(codes):
    compiled = sv.secrets.ever("c", window=2, epsilon=1.0).over(Alphabet(["a", "b", "c"]))
    with pytest.raises(InputError, match="outside the alphabet"):
        compiled.read(codes)


# zones

NUMBERS = st.floats(-12, 12, allow_nan=False)


@settings(max_examples=50)
@given(st.tuples(NUMBERS, NUMBERS), st.floats(0, 9), st.tuples(NUMBERS, NUMBERS))
def test_whoever_is_in_the_zone_is_in_a_cell_that_counts(centre, radius, point):
    grid = Grid([-10, -3, 0, 0.5, 10], [-10, 1, 4, 10], "nearest")
    if np.hypot(*np.subtract(point, centre)) > radius:
        return
    inside = max(map(abs, centre)) <= 10
    try:
        counted = codes_within((*centre, radius), grid)
    except InputError:  # all of the zone is outside
        counted = np.zeros(0, int)
    assert grid.encode([point])[0] in counted or not (inside or counted.size)


def test_a_zone_that_no_cell_lies_in_is_refused():
    with pytest.raises(InputError, match="lies in the zone"):
        secrets.zone(centre=(40, 5), radius=2.0, epsilon=1.0).over(
            Grid.regular(2, 1, bounds=(0, 20, 0, 10), on_unknown="nearest")
        )
