"""Mixtures of chains: against enumeration over types, EM against a twin, use wherever a model is used."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

import seqveil as sv
from reference.mixtures import mixture
from seqveil.core.errors import DataError, ModelError
from seqveil.core.fitting import RunCounts
from seqveil.core.mixture import PSEUDO, TypeSearch
from seqveil.core.model import validate


def chains(n: int, types: int, seed: int = 0, order: int = 1) -> list[sv.MarkovModel]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(types):
        rows = rng.dirichlet(np.full(n, 0.5), n**order) + 0.01
        made.append(sv.MarkovModel(rng.dirichlet(np.ones(n)), rows / rows.sum(1, keepdims=True), order=order))
    return made


def simulated(types: int = 3, n: int = 4, people: int = 300, length: int = 25, seed: int = 5) -> list[list[int]]:
    """Streams of people of clearly different types."""
    streams = []
    for k, model in enumerate(chains(n, types, seed)):
        streams += model.sample(length, people, seed=k).tolist()
    return streams


@pytest.mark.parametrize("order", [1, 2])
def test_a_mixture_is_the_sum_over_types(order: int) -> None:
    """Σ_k w_k · Pr_k(x), for every sequence of four symbols."""
    parts, weights = chains(3, 3, order=order), np.array([0.5, 0.3, 0.2])
    model = mixture(parts, weights)
    validate(model.states)
    for codes in itertools.product(range(3), repeat=4):
        wanted = sum(w * math.exp(part.log_likelihood(codes)) for w, part in zip(weights, parts, strict=True))
        assert math.isclose(math.exp(model.log_likelihood(codes)), wanted, rel_tol=1e-9)


def brute_em(streams: list[list[int]], n: int, types: int, expected: np.ndarray, rounds: int) -> list[float]:
    """EM written with loops: expected (K, n + n²) counts to begin with; likelihood times prior after each round."""
    first, moves = np.zeros(n), np.zeros((n, n))
    for stream in streams:
        first[stream[0]] += 1
        for a, b in itertools.pairwise(stream):
            moves[a, b] += 1
    first, common, members, path = first / first.sum(), moves / moves.sum(1, keepdims=True), np.ones(types), []
    for _ in range(rounds):
        share = (members + 1) / (members + 1).sum()
        start = expected[:, :n] + PSEUDO * first
        start = start / start.sum(1, keepdims=True)
        rows = expected[:, n:].reshape(types, n, n) + PSEUDO * common
        rows = rows / rows.sum(2, keepdims=True)
        score = np.log(share).sum() + PSEUDO * (first * np.log(start)).sum() + PSEUDO * (common * np.log(rows)).sum()
        expected, members = np.zeros_like(expected), np.zeros(types)
        for stream in streams:
            likelihood = share * start[:, stream[0]]
            for a, b in itertools.pairwise(stream):
                likelihood = likelihood * rows[:, a, b]
            score += math.log(likelihood.sum())
            disclosed = likelihood / likelihood.sum()
            members += disclosed
            expected[:, stream[0]] += disclosed
            for a, b in itertools.pairwise(stream):
                expected[:, n + n * a + b] += disclosed
        path.append(score)
    return path


def test_em_agrees_with_its_twin_and_never_falls() -> None:
    n, types = 3, 2
    streams = [stream[:6] for stream in simulated(types, n, 12, 8)] + [
        list(c) for c in itertools.product(range(n), repeat=6)
    ][::40]
    runs = RunCounts.of(np.repeat(np.arange(len(streams)), 6), np.concatenate(streams), n)
    search = TypeSearch(runs, runs.states(0.0), None)
    assert search.distribution.size == n + n * n  # all runs occur, so that the twin's layout is the same
    begin = search.seeded(types, np.random.default_rng(2))
    _, ours = search.led_on(begin, 9)
    theirs = brute_em(streams, n, types, begin.expected, len(ours))
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    assert (np.diff(ours) > -1e-9).all()


def test_types_are_found_again_and_describe_people_better_than_a_chain(tmp_path: Path) -> None:
    """Three kinds of people, 300 of each: the fit finds three chains like theirs, each of about a third."""
    one, model = (sv.MarkovModel.fit(simulated(), types=types, alphabet=range(4)) for types in (None, 3))
    assert sum(model.log_likelihood(s) - one.log_likelihood(s) for s in simulated(seed=5, people=20)) > 50
    assert model.types == 3
    assert model.origin is not None
    assert model.origin["fewest_people_of_a_type"] > 250
    blocks = model.advance(np.eye(model.size)).reshape(3, 4, 3, 4)
    for truth in chains(4, 3, 5):
        rows = truth.advance(np.eye(4))
        apart = [np.abs(blocks[k, :, k] - rows).max() for k in range(3)]
        assert min(apart) < 0.08
    model.save(tmp_path / "m")
    again = sv.MarkovModel.load(tmp_path / "m")
    assert (again.fingerprint, again.types, again.origin) == (model.fingerprint, 3, model.origin)
    assert "3 types" in repr(again)


@pytest.mark.parametrize("order", [1, 2])
def test_the_order_of_rows_and_of_people_does_not_count(order: int) -> None:
    streams = [stream[: 3 + k % 9] for k, stream in enumerate(simulated(people=60, length=12))]
    users, codes = np.repeat(np.arange(len(streams)), [len(stream) for stream in streams]), np.concatenate(streams)
    mixed = np.random.default_rng(0).permutation(users)
    order_of, found = np.argsort(np.argsort(mixed, kind="stable"), kind="stable"), []
    for who, what in ((users, codes), (mixed, codes[order_of])):
        runs = RunCounts.of(who, what, 4, order)
        table = TypeSearch(runs, runs.states(), None).counts
        found.append((runs.events, table.toarray().tolist()))
    assert found[0] == found[1]
    assert found[0][0] == codes.size


def test_no_type_describes_a_handful_of_people() -> None:
    odd = [[3, 2] * 10] * 12  # twelve people who do what nobody else does
    streams = [*simulated(2, 4, 100, 20), *odd]
    model = sv.MarkovModel.fit(streams, alphabet=range(4), types=3)
    assert model.origin is not None
    assert model.origin["fewest_people_of_a_type"] >= 50
    with pytest.warns(UserWarning, match="made up of 5 people"):
        shown = sv.MarkovModel.fit(streams, alphabet=range(4), types=3, least_people=5)
    assert shown.origin is not None
    assert shown.origin["fewest_people_of_a_type"] < 50


@pytest.mark.slow
def test_pieces_have_types_of_their_own() -> None:
    """People who are calm for fifty events and lively for the next fifty."""
    calm, lively = (sv.MarkovModel([0.5, 0.5], [[s, 1 - s], [1 - s, s]]) for s in (0.95, 0.1))
    streams = [
        np.concatenate([calm.sample(50, seed=k)[0], lively.sample(50, seed=k)[0]] * 3).tolist() for k in range(80)
    ]
    slow = sv.MarkovModel.fit(streams, alphabet=range(2), types=2, switch=1 / 50, smoothing=1.0)
    once = sv.MarkovModel.fit(streams, alphabet=range(2), types=2, smoothing=1.0)
    assert slow.types == 2
    assert slow.log_likelihood(streams[0]) > once.log_likelihood(streams[0]) + 20


@pytest.mark.parametrize(
    ("streams", "options", "error", "words"),
    [
        ([[0, 1]] * 9, {"types": 0}, ModelError, "expected types to be a whole number ≥ 1, got 0"),
        ([[0, 1]] * 9, {"types": 2.5}, ModelError, "expected types to be a whole number"),
        ([[0], [1], [0]], {"types": 2}, DataError, "no stream of two or more events"),
        ([[0, 1]] * 9, {"types": 2, "switch": 1.0}, ModelError, "switch must be a probability"),
        ([[0, 1]] * 9, {"types": 2, "switch": "often"}, ModelError, "switch must be a probability"),
        ([[0, 1]] * 9, {"types": 2, "least_people": 0}, ModelError, "expected least_people to be"),
    ],
)
def test_bad_input_is_one_line(streams: list[list[int]], options: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        sv.MarkovModel.fit(streams, alphabet=range(2), **options)
    assert "\n" not in str(caught.value)


def test_smoothing_counts_with_types_too():
    """It is the pseudo-count of the chain of all people, on which each type leans."""
    chain = sv.MarkovModel(
        [0.25] * 4, [[0.5, 0.2, 0.2, 0.1], [0.3, 0.4, 0.1, 0.2], [0.4, 0.1, 0.3, 0.2], [0.4, 0.2, 0.2, 0.2]]
    )
    streams = [*chain.sample(20, 60, seed=1).tolist(), *(3 - chain.sample(20, 60, seed=2)).tolist()]
    plain, smooth = (
        sv.MarkovModel.fit(streams, alphabet=range(5), types=2, seed=0, smoothing=much) for much in (0.0, 200.0)
    )
    unheard = [model.advance(np.eye(model.size))[0, model.newest == 4].sum() for model in (plain, smooth)]
    assert unheard[0] == 0.0 < unheard[1]
