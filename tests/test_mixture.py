"""Mixtures of chains: against enumeration over types, EM against a twin, use wherever a model is used."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

import seqveil as sv
from compiling import restored, use  # noqa: F401 -- it restores after every test
from seqveil.core import filtering
from seqveil.core.errors import DataError, ModelError
from seqveil.core.mixture import PSEUDO, TypeCounts
from seqveil.core.states import validate


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
    model = sv.MarkovModel.mixture(parts, weights)
    validate(model.states)
    for codes in itertools.product(range(3), repeat=4):
        wanted = sum(w * math.exp(part.log_likelihood(codes)) for w, part in zip(weights, parts, strict=True))
        assert math.isclose(math.exp(model.log_likelihood(codes)), wanted, rel_tol=1e-9)


@pytest.mark.parametrize("switch", [0.0, 0.2])
def test_the_filter_is_the_sum_over_paths_of_types(switch: float) -> None:
    """The belief after some releases, by enumerating all paths of (type, symbol)."""
    n, parts, weights = 2, chains(2, 2, seed=3), np.array([0.6, 0.4])
    model = sv.MarkovModel.mixture(parts, weights, switch)
    columns = np.random.default_rng(1).random((3, 1, n))
    distribution = filtering.start(model, 1)
    for column in columns:
        distribution, _ = filtering.move(model, distribution, column)
    states = list(itertools.product(range(2), range(n)))

    def chance(here: tuple[int, int], there: tuple[int, int]) -> float:
        (k, x), (j, y) = here, there
        stay = parts[k].advance(np.eye(n)[x])[y] if k == j else 0.0
        return float((1 - switch) * stay + switch * weights[j] * parts[j].base[y])

    wanted = np.zeros(n)
    for path in itertools.product(states, repeat=4):
        mass = weights[path[0][0]] * parts[path[0][0]].prior[path[0][1]]
        for step in range(3):
            mass *= columns[step, 0, path[step][1]] * chance(path[step], path[step + 1])
        wanted[path[3][1]] += mass
    np.testing.assert_allclose(filtering.symbols(model, distribution)[0], wanted / wanted.sum(), rtol=1e-12)


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


@pytest.mark.slow
def test_em_agrees_with_its_twin_and_never_falls() -> None:
    from seqveil.core import mixture

    n, types = 3, 2
    streams = [stream[:6] for stream in simulated(types, n, 12, 8)] + [
        list(c) for c in itertools.product(range(n), repeat=6)
    ][::40]
    counts = TypeCounts(n)
    counts.add(np.repeat(np.arange(len(streams)), 6), np.concatenate(streams))
    table, _, features = counts.streams()
    assert features.size == n + n * n  # all runs occur, so that the twin's layout is the same
    base = counts.base(0.0)
    common = mixture._Common(counts, 0.0, counts.prior("data", 0.0, base), base)
    search = mixture._Search(table, common.distributions(features), None)
    begin = search._seeded(types, np.random.default_rng(2))
    ours = search._run(begin, 9).path
    theirs = brute_em(streams, n, types, begin.expected, len(ours))
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    assert (np.diff(ours) > -1e-9).all()


def test_types_are_found_again(tmp_path: Path) -> None:
    """Three kinds of people, 300 of each: the fit finds three chains like theirs, each of about a third."""
    model = sv.MarkovModel.fit(simulated(), types=3, n=4)
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
    assert "types" in again._repr_html_()


def test_a_mixture_describes_people_better_than_a_chain() -> None:
    streams, held_out = simulated(), simulated(seed=5, people=20)
    one, many = (sv.MarkovModel.fit(streams, n=4, smoothing=1.0, types=types) for types in (None, 3))
    gain = sum(many.log_likelihood(s) - one.log_likelihood(s) for s in held_out)
    assert gain > 50


@pytest.mark.slow
def test_chunks_and_lists_give_one_model() -> None:
    streams = [stream[: 3 + k % 9] for k, stream in enumerate(simulated(people=60, length=12))]
    codes = np.concatenate(streams)
    for order in (1, 2):
        whole = sv.MarkovModel.fit(streams, n=4, types=2, order=order, seed=1)
        mixed = np.random.default_rng(0).permutation(np.repeat(np.arange(len(streams)), [len(s) for s in streams]))
        order_of = np.argsort(np.argsort(mixed, kind="stable"), kind="stable")
        counts = TypeCounts(4, order)
        for low in range(0, len(codes), 97):
            part = slice(low, low + 97)
            counts.add(mixed[part], codes[order_of[part]])
        again = counts.model(2, seed=1)
        np.testing.assert_allclose(
            sorted(again.chain.data.tolist()), sorted(whole.chain.data.tolist()), atol=0.2
        )  # the people come in another order, so the beginnings differ
        assert counts.events == len(codes)
        assert counts.streams()[0].sum() == sum(len(s) for s in streams)


def test_no_type_describes_a_handful_of_people() -> None:
    odd = [[3, 2] * 10] * 12  # twelve people who do what nobody else does
    streams = [*simulated(2, 4, 100, 20), *odd]
    model = sv.MarkovModel.fit(streams, n=4, types=3)
    assert model.origin is not None
    assert model.origin["fewest_people_of_a_type"] >= 50
    with pytest.warns(UserWarning, match="made up of 5 people"):
        shown = sv.MarkovModel.fit(streams, n=4, types=3, least_people=5)
    assert shown.origin is not None
    assert shown.origin["fewest_people_of_a_type"] < 50


@pytest.mark.slow
def test_pieces_have_types_of_their_own() -> None:
    """People who are calm for fifty events and lively for the next fifty."""
    calm, lively = (sv.MarkovModel([0.5, 0.5], [[s, 1 - s], [1 - s, s]]) for s in (0.95, 0.1))
    streams = [
        np.concatenate([calm.sample(50, seed=k)[0], lively.sample(50, seed=k)[0]] * 3).tolist() for k in range(80)
    ]
    slow = sv.MarkovModel.fit(streams, n=2, types=2, switch=1 / 50, smoothing=1.0)
    once = sv.MarkovModel.fit(streams, n=2, types=2, smoothing=1.0)
    assert slow.types == 2
    assert slow.log_likelihood(streams[0]) > once.log_likelihood(streams[0]) + 20
    best = sv.MarkovModel.fit(streams, n=2, types=2, switch="estimate", smoothing=1.0)
    assert best.origin is not None
    assert best.origin["switch"] == pytest.approx(1 / 30, rel=3)
    assert best.log_likelihood(streams[0]) > once.log_likelihood(streams[0]) + 20


@pytest.mark.parametrize(
    ("streams", "options", "error", "words"),
    [
        ([[0, 1]] * 9, {"types": 0}, ModelError, "types must be a whole number >= 1; got 0"),
        ([[0, 1]] * 9, {"types": 2.5}, ModelError, "types must be a whole number"),
        ([[0, 1]] * 3, {"types": 4}, DataError, "4 types needs at least as many people; got 3"),
        ([[0], [1], [0]], {"types": 2}, DataError, "no stream of two or more events"),
        ([[0, 1]] * 9, {"types": 2, "switch": 1.0}, ModelError, "switch must be a probability"),
        ([[0, 1]] * 9, {"types": 2, "switch": "often"}, ModelError, 'or "estimate"; got'),
        ([[0, 1]] * 9, {"types": 2, "least_people": 0}, ModelError, "least_people must be"),
    ],
)
def test_bad_input_is_one_line(streams: list[list[int]], options: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        sv.MarkovModel.fit(streams, n=2, **options)
    assert "\n" not in str(caught.value)


def test_mixtures_of_what_does_not_go_together_are_refused() -> None:
    one, two, deep = chains(2, 1)[0], chains(3, 1)[0], chains(2, 1, order=2)[0]
    for models in ([], [one, two], [one, deep], [sv.MarkovModel.mixture([one, one], [0.5, 0.5])]):
        with pytest.raises(ModelError, match=r"mixture|alphabet"):
            sv.MarkovModel.mixture(models, [1.0] if len(models) < 2 else [0.5, 0.5])


MIXED = sv.MarkovModel.mixture(chains(4, 3, seed=7), [0.5, 0.3, 0.2], 1e-3)


@pytest.mark.parametrize("switch", [0.0, 1e-3])
def test_sessions_keep_their_promise(switch: float) -> None:
    """The account of a session is the largest log posterior over prior of any sequence, by enumeration."""
    model = sv.MarkovModel.mixture(chains(3, 2, seed=9), [0.5, 0.5], switch)
    session = sv.Session(model, mechanism="optimal", epsilon=0.7, seed=1)
    truth, columns = [0, 2, 1, 1], []
    for x in truth:
        kernel, y = session.kernel(), session.release(x)
        columns.append(kernel.probabilities[:, list(kernel.outputs).index(y)])
    ratios, total = [], 0.0
    for codes in itertools.product(range(3), repeat=4):
        likelihood = math.prod(columns[t][x] for t, x in enumerate(codes))
        total += math.exp(model.log_likelihood(codes)) * likelihood
        ratios.append(likelihood)
    worst = max(abs(math.log(ratio / total)) for ratio in ratios)
    assert worst <= session.leakage + 1e-12
    assert math.isclose(worst, session.leakage, rel_tol=1e-6)


def test_decoding_is_the_posterior_over_all_sequences() -> None:
    session = sv.Session(MIXED, mechanism="optimal", epsilon=1.0, seed=2)
    columns, released = [], []
    for x in (0, 0, 3):
        kernel, y = session.kernel(), session.release(x)
        columns.append(kernel.probabilities[:, list(kernel.outputs).index(y)])
        released.append(y)
    wanted = np.zeros((3, 4))
    for codes in itertools.product(range(4), repeat=3):
        mass = math.exp(MIXED.log_likelihood(codes)) * math.prod(columns[t][x] for t, x in enumerate(codes))
        for t, x in enumerate(codes):
            wanted[t, x] += mass
    found = sv.decode_stream(MIXED, released, mechanism="optimal", epsilon=1.0)
    np.testing.assert_allclose(found, wanted / wanted.sum(1, keepdims=True), atol=1e-9)


@pytest.mark.parametrize("mechanism", ["optimal", "crr", "balanced", "randomized_response"])
def test_compiled_and_plain_agree_to_the_last_bit(mechanism: str) -> None:
    from seqveil.core.randomness import SeededRandomness
    from seqveil.engine.stream import State, step

    wide = sv.MarkovModel.mixture(chains(17, 9, seed=2), np.full(9, 1 / 9), 1e-4)  # 153 states
    deep = sv.MarkovModel.mixture(chains(3, 2, order=2), [0.5, 0.5], 1e-3)
    for model in (MIXED, wide, deep, sv.MarkovModel.mixture(chains(4, 3, seed=7), [0.5, 0.3, 0.2])):
        setting = sv.Policy(epsilon=1.0, mechanism=mechanism).on(model)
        codes = model.sample(4, 150, seed=1).T
        found = []
        for compiled in (True, False):
            use(compiled)
            state, randomness = State.start(setting, 150), SeededRandomness(3)
            for event in codes:
                sent, state = step(setting, state, event, randomness)
            found.append((sent.codes, state.states, state.account.worst))
        for ours, theirs in zip(*found, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_batches_by_the_tree() -> None:
    session = sv.Session(MIXED, mechanism="tree", epsilon=2.0, batch=3, seed=4)
    for batch in MIXED.sample(12, seed=3)[0].reshape(4, 3).tolist():
        assert len(session.release_batch(batch)) == 3
    assert session.leakage <= 8.0


def test_smoothing_counts_with_types_too():
    """It is the pseudo-count of the chain of all people, on which each type leans."""
    chain = sv.MarkovModel(
        [0.25] * 4, [[0.5, 0.2, 0.2, 0.1], [0.3, 0.4, 0.1, 0.2], [0.4, 0.1, 0.3, 0.2], [0.4, 0.2, 0.2, 0.2]]
    )
    streams = [*chain.sample(20, 60, seed=1).tolist(), *(3 - chain.sample(20, 60, seed=2)).tolist()]
    plain, smooth = (sv.MarkovModel.fit(streams, n=5, types=2, seed=0, smoothing=much) for much in (0.0, 200.0))
    unheard = [model.advance(np.eye(model.size))[0, model.newest == 4].sum() for model in (plain, smooth)]
    assert unheard[0] == 0.0 < unheard[1]
