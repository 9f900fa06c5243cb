"""The receiver: refusals, steps not made, several streams at once, and counts that add up (Bayes: test_theory)."""

import numpy as np
import pytest

import reference_streams as ref
import seqveil as sv
from reference_blocks import every_path
from seqveil import MarkovModel, Policy, Session, mechanisms
from seqveil.core.errors import DataError
from seqveil.engine.budget import Budget
from seqveil.receiver.decode import decode_steps, decode_stream, estimates

PAIR = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


def chain(seed=0, n=3, zeros=False):
    prior, transitions = ref.random_chain(np.random.default_rng(seed), n, zeros=zeros)
    return sv.MarkovModel(prior, transitions), prior, transitions


def released_by(model, raw, **options):
    """What a session releases, and the weights every symbol puts on it (ones where it says nothing)."""
    session, made, columns = sv.Session(model, seed=3, **options), [], []
    for x in raw:
        kernel = session.kernel()
        made.append(session.release(x))
        quiet = made[-1] is None
        columns.append(np.ones(model.n, int) if quiet else kernel.column(list(kernel.outputs).index(made[-1])))
    return made, columns


OPTIONS = {
    "stop": {"budget": Budget(total=1.0, when_spent="stop")},
    "hold": {"budget": Budget(total=1.0)},
    "without a model": {"budget": Budget(ldp_total=3.2)},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("smooth", [False, True])
def test_a_receiver_follows_schedule_and_budget(options, smooth):
    model, prior, transitions = chain(1)
    made, columns = released_by(model, [0, 1, 2, 0, 1], mechanism="balanced", epsilon=0.8, **options)
    distributions = decode_stream(model, made, mechanism="balanced", epsilon=0.8, smooth=smooth, **options)
    distribution = ref.sequence_distribution(prior, transitions, 5)
    for t in range(5):
        known = columns if smooth else columns[: t + 1]
        np.testing.assert_allclose(distributions[t], ref.symbol_distribution(distribution, known, t, 3), atol=1e-12)


@pytest.mark.parametrize("name", mechanisms.instantaneous())
@pytest.mark.parametrize("smooth", [False, True])
def test_streams_the_model_thought_impossible_have_proper_distributions(name, smooth):
    model = sv.MarkovModel([1.0, 0.0, 0.0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    made, _ = released_by(model, [2, 1, 0, 2, 1, 0], mechanism=name, epsilon=3.0)
    distributions = decode_stream(model, made, mechanism=name, epsilon=3.0, smooth=smooth)
    assert (distributions >= 0).all()
    np.testing.assert_allclose(distributions.sum(1), 1)


def test_the_alphabets_values_are_understood():
    model = sv.MarkovModel.fit([["home", "work", "home", "home"], ["work", "work"]])
    made, _ = released_by(model, ["home", "work"], epsilon=1.0)
    assert decode_stream(model, made, epsilon=1.0).shape == (2, 2)
    with pytest.raises(DataError, match="alphabet"):
        decode_stream(model, ["elsewhere"], epsilon=1.0)


def test_releases_of_another_setting_are_refused():
    uneven = sv.MarkovModel([0.98, 0.01, 0.01], np.full((3, 3), 1 / 3))
    with pytest.raises(DataError, match="cannot have come"):
        decode_stream(uneven, [2], mechanism="optimal", epsilon=0.1)
    with pytest.raises(DataError):
        decode_stream(PAIR, [None], mechanism="optimal", epsilon=1.0)
    with pytest.raises(DataError, match="budget"):
        decode_stream(PAIR, [0] * 30, mechanism="balanced", epsilon=1.0, budget=Budget(total=0.5, when_spent="stop"))


def test_estimates():
    distributions = np.array([[[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]]])
    model, _, _ = chain(0)
    assert estimates(distributions, "hamming", model).tolist() == [[0, 2]]
    assert estimates(distributions, "absolute", model)[0, 1] == 2


def test_nothing_released_is_nothing_decoded():
    assert decode_stream(PAIR, [], epsilon=1.0).shape == (0, 2)


# blocks


def believed(paths):
    """Pr(x_k = a | path) by Bayes over all sequences of symbols, with the weights Q(y|x) that enumeration found."""
    joint = paths.weights * paths.chances
    joint /= joint.sum(1, keepdims=True)
    symbols = np.arange(paths.sequences.max() + 1)
    return np.stack([joint @ np.equal.outer(column, symbols) for column in paths.sequences.T], axis=1)


@pytest.mark.parametrize("lengths", [[2, 2], [3, 1], [1, 3]])  # a block of less than the policy's three is cut
@pytest.mark.parametrize(
    "model",
    [
        MarkovModel([0.6, 0.3, 0.1], [[0.8, 0.15, 0.05], [0.2, 0.75, 0.05], [0.3, 0.1, 0.6]]),
        MarkovModel([0.5, 0.5, 0.0], [[0.8, 0.2, 0.0], [0.0, 0.5, 0.5], [0.7, 0.0, 0.3]]),
    ],
)
def test_a_receiver_of_blocks_believes_what_bayes_says_over_all_streams_and_bits(model, lengths):
    terms = Policy(epsilon=1.4, block=3).on(model)
    found, length = every_path(terms.rule, [1.4] * len(lengths), lengths), sum(lengths)
    paths = found[-1]
    begins = np.zeros((len(paths.codes), length))
    begins[:, np.cumsum([0, *lengths[:-1]])] = 1.4
    steps, used = list(paths.codes.T), list(begins.T)
    smoothed = np.stack([each for _, each in decode_steps(terms, steps, epsilons=used)], axis=1)
    assert smoothed == pytest.approx(believed(paths), abs=1e-12)
    online = [each for _, each in decode_steps(terms, steps, smooth=False, epsilons=used)]
    for prefix, seen in zip(found, online, strict=True):
        known = {tuple(codes): rows[-1] for codes, rows in zip(prefix.codes.tolist(), believed(prefix), strict=True)}
        expected = [known[tuple(codes)] for codes in paths.codes[:, : prefix.codes.shape[1]].tolist()]
        assert seen == pytest.approx(np.array(expected), abs=1e-12)


def test_blocks_are_decoded_side_by_side_as_alone_and_where_the_budget_is_gone_nothing_is_learned():
    model = MarkovModel([0.6, 0.3, 0.1], [[0.8, 0.15, 0.05], [0.2, 0.75, 0.05], [0.3, 0.1, 0.6]])
    policy = Policy(epsilon=2.0, block=3, budget=Budget(total=3.0, when_spent="stop"))
    sessions = [Session(model, policy, seed=k) for k in range(6)]
    streams = [[session.release(0) for _ in range(12 - k)] for k, session in enumerate(sessions)]
    codes = [np.array([-1 if s[t] is None else s[t] for s in streams if len(s) > t]) for t in range(12)]
    for smooth in (False, True):
        together = list(decode_steps(policy.on(model), codes, smooth=smooth))
        for k, stream in enumerate(streams):
            alone = decode_stream(model, stream, policy, smooth=smooth)
            assert alone == pytest.approx(np.array([rows[k] for _, rows in together[: len(stream)]]), abs=1e-12)
            if not smooth:
                assert model.advance(alone[-1:])[0] == pytest.approx(sessions[k].belief, abs=1e-12)
    assert None in streams[0]
