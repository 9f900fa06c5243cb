"""The private fit: its noise, its bound on a user's part, its record, and that no option leads round it."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from reference.streams import GivenCoins
from seqveil import MarkovModel
from seqveil.core.errors import InputError
from seqveil.core.private import CONTRIBUTION, BoundedCounts, exact_laplace, uniform
from seqveil.core.randomness import SeededRandomness, randomness
from seqveil.engine.policy import Policy
from seqveil.interfaces.cli import main

RARE = 1e-6  # chance that a statistical test here fails though all is well


def fit_private(streams, epsilon, n, seed=None, contribution=CONTRIBUTION):
    users = np.repeat(np.arange(len(streams)), [len(stream) for stream in streams])
    counts = BoundedCounts.of(users, np.concatenate(streams), n, contribution)
    return counts.model(epsilon, randomness(seed))


@pytest.mark.parametrize("rate", [(1, 1), (1, 21), (7, 1)])
def test_noise_has_the_distribution_it_states(rate):
    """χ² over the values of at least ten expected, the tails in one: fails by chance once in 10⁶."""
    count, ratio = 60_000, math.exp(-rate[0] / rate[1])
    noise = exact_laplace(rate, count, SeededRandomness(11))
    assert noise.size == count
    zero = (1 - ratio) / (1 + ratio)
    reach = max(1, int(math.log(10 / count / zero) / math.log(ratio)))
    values = np.arange(-reach, reach + 1)
    expected = count * zero * ratio ** np.abs(values)
    seen = np.array([(noise == value).sum() for value in values])
    rest = count - expected.sum()
    statistic = ((seen - expected) ** 2 / expected).sum() + (count - seen.sum() - rest) ** 2 / max(rest, 1e-9)
    assert statistic < chi2.isf(RARE, len(values))


def test_uniform_integers_reject_what_would_favour_some():
    bound = 3 << 60  # randomness from 3·2^60 on would make the low numbers likelier
    drawn = uniform(bound, 1, GivenCoins([bound + 5, bound + 1, 7]))
    assert drawn.tolist() == [7]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    bound=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_a_user_adds_at_most_one_start_and_m_transitions(lengths, bound, seed):
    """However rows are ordered: each user's part is one start and min(T, M) of the user's own transitions."""
    rng = np.random.default_rng(seed)
    streams = [rng.integers(0, 4, length) for length in lengths]
    users = np.repeat(np.arange(len(lengths)), lengths)
    codes = np.concatenate(streams)
    mixed = rng.permutation(len(codes))  # users interleaved, each in its own order
    who = users[mixed]
    what = np.empty_like(codes)
    for user in range(len(lengths)):
        what[who == user] = streams[user]

    counts = BoundedCounts.of(who, what, 4, bound)
    for gone, length in enumerate(lengths):  # removing one changes the counts by the sensitivity at most
        other = BoundedCounts.of(who[who != gone], what[who != gone], 4, bound)
        moved = np.abs(counts.starts - other.starts).sum(), np.abs(counts.moves - other.moves).sum()
        assert moved == (1, min(length - 1, bound))
    assert counts.starts.sum() == len(lengths)
    assert counts.moves.sum() == sum(min(length - 1, bound) for length in lengths)
    true = np.zeros((4, 4), int)
    for stream in streams:
        np.add.at(true, (stream[:-1], stream[1:]), 1)
    assert (counts.moves <= true).all()
    if max(lengths) <= bound + 1:
        assert (counts.moves == true).all()


def test_what_is_kept_is_spread_along_the_stream():
    stream = np.repeat([0, 1, 2, 3], 100)
    counts = BoundedCounts.of(np.zeros(400, int), stream, 4, 8)
    assert counts.moves.diagonal().tolist() == [2, 2, 2, 2]


def test_with_many_users_the_fit_is_the_plain_one():
    truth = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
    streams = list(truth.sample(15, 6_000, 1))
    private, plain = fit_private(streams, 1.0, n=3, seed=2), MarkovModel.fit(streams, alphabet=range(3))
    eye = np.eye(3)
    assert np.abs(private.advance(eye) - plain.advance(eye)).max() < 0.01
    assert np.abs(private.prior - plain.prior).max() < 0.02


def test_nothing_but_noise_gives_no_transitions_of_its_own():
    """With no counts worth the name a cell passes the cut with probability e^-4/2 at most."""
    model = fit_private([[0, 1]], 0.01, n=30, seed=1)
    cells = model.chain.nnz - 30  # the diagonal may hold the share that stays
    assert cells <= 900 * math.exp(-4) / 2 + 5 * math.sqrt(900 * math.exp(-4) / 2)
    assert model.full_support


def test_the_record_is_in_the_file_and_under_its_fingerprint(tmp_path):
    model = fit_private([[0, 1, 1]] * 50, 2.0, n=2, contribution=5)
    model.save(tmp_path / "m.model")
    loaded = MarkovModel.load(tmp_path / "m.model")
    assert loaded.origin == model.origin
    assert loaded.fingerprint == model.fingerprint
    assert loaded.origin["epsilon"] == 2.0
    assert model.origin["private"] is True
    assert model.origin["sensitivity"] == 6
    assert model.with_origin({**model.origin, "epsilon": 0.1}).fingerprint != model.fingerprint
    assert Policy(epsilon=0.5).on(loaded).model.origin == model.origin


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan, 100.0])
def test_an_epsilon_that_promises_nothing_is_refused(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        fit_private([[0, 1]], epsilon, n=2)


def test_large_alphabets_are_refused():
    with pytest.raises(InputError, match="at most 2000 symbols"):
        fit_private([[0, 1]], 1.0, n=2001)


@pytest.fixture
def data(tmp_path):
    rows = [f"u{k},{'news' if (k + t) % 3 else 'sport'}" for k in range(200) for t in range(10)]
    (tmp_path / "clicks.csv").write_text("user,value\n" + "\n".join(rows) + "\n")
    (tmp_path / "pages.txt").write_text("news\nsport\nsecret\n")
    (tmp_path / "beats.csv").write_text("user,value\n" + "".join(f"u{k},{60 + k % 40}\n" for k in range(500)))
    return tmp_path


def fit(data, *args):
    return main(["fit", str(data / args[0]), "-o", str(data / "out.model"), *args[1:]])


def test_the_command_fits_and_records(data, capsys):
    args = ("clicks.csv", "--private", "1", "--alphabet", str(data / "pages.txt"))
    assert fit(data, *args, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["private"] is True
    assert found["origin"]["contribution"] == {"starts": 1, "transitions": 20}
    model = MarkovModel.load(data / "out.model")
    assert model.alphabet.values == ("news", "sport", "secret")
    assert fit(data, *args, "--contribution", "5") == 0
    capsys.readouterr()
    assert fit(data, "clicks.csv", "--private", "1", "--alphabet", str(data / "out.model")) == 0
    assert "ε = 1 for each user" in capsys.readouterr().out


def test_numbers_are_cut_over_a_public_range(data):
    assert fit(data, "beats.csv", "--private", "1", "--bins", "10", "--range", "40,180") == 0
    assert MarkovModel.load(data / "out.model").n == 14


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--private", "1"), "public alphabet"),
        (("--private", "1", "--bins", "10"), "--range LO,HI"),
        (("--private", "1", "--bins", "10", "--range", "180,40"), "low before high"),
        (("--private", "1", "--bins", "10", "--range", "40,180", "--smoothing", "2"), "smooths by its noise"),
        (("--contribution", "1"), "--private"),
    ],
)
def test_what_would_look_at_the_data_is_refused(data, args, why, capsys):
    assert fit(data, "beats.csv", *args) == 2
    assert why in capsys.readouterr().err
    assert not (data / "out.model").exists()
