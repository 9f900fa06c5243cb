"""The receiver: refusals, steps not made, several streams at once, and counts that add up."""

import itertools

import numpy as np
import pytest

import seqveil as sv
from reference import streams as ref
from reference.blocks import every_path
from reference.streams import released_with_columns
from seqveil import MarkovModel, Policy, Session, mechanisms
from seqveil.core.errors import DataError, InputError
from seqveil.engine.budget import Budget
from seqveil.receiver.decode import decode_seen, decode_stream, follow

PAIR = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


def chain(seed=0, n=3, zeros=False):
    prior, transitions = ref.random_chain(np.random.default_rng(seed), n, zeros=zeros)
    return sv.MarkovModel(prior, transitions), prior, transitions


BUDGETS = Budget(total=1.0, when_spent="stop"), Budget(total=1.0), Budget(ldp_total=3.2)
WAYS = [*zip(mechanisms.instantaneous(), itertools.cycle((0.5, 1.5)), itertools.repeat({}), strict=False)]
WAYS += [("balanced", 0.8, {"budget": budget}) for budget in BUDGETS]


@pytest.mark.slow
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize(("order", "zeros", "types"), ref.CHAINS)
def test_fact_9_a_receiver_believes_what_bayes_says_over_all_sequences(order, zeros, types, smooth):
    """Whatever the mechanism, and under every budget."""
    n, length = (2, 5) if order * types == 2 else (3, 4)
    model, distribution_of = ref.model_of(order, zeros, types, n, seed=13)
    distribution, raw = distribution_of(length), model.sample(length, seed=4)[0].tolist()
    for name, epsilon, options in WAYS:
        how = {"mechanism": name, "epsilon": epsilon, **options}
        released, columns = released_with_columns(sv.Session(model, seed=2, **how), raw)
        distributions = decode_stream(model, released, smooth=smooth, **how)
        for t in range(length):
            known = columns if smooth else columns[: t + 1]
            np.testing.assert_allclose(distributions[t], ref.symbol_distribution(distribution, known, t, n), atol=1e-12)


@pytest.mark.parametrize("name", mechanisms.instantaneous())
@pytest.mark.parametrize("smooth", [False, True])
def test_streams_the_model_thought_impossible_have_proper_distributions(name, smooth):
    model = sv.MarkovModel([1.0, 0.0, 0.0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    made, _ = released_with_columns(sv.Session(model, mechanism=name, epsilon=3.0, seed=3), [2, 1, 0, 2, 1, 0])
    distributions = decode_stream(model, made, mechanism=name, epsilon=3.0, smooth=smooth)
    assert (distributions >= 0).all()
    np.testing.assert_allclose(distributions.sum(1), 1)


def test_the_alphabets_values_are_understood():
    model = sv.MarkovModel.fit([["home", "work", "home", "home"], ["work", "work"]])
    made, _ = released_with_columns(sv.Session(model, epsilon=1.0, seed=3), ["home", "work"])
    assert decode_stream(model, made, epsilon=1.0).shape == (2, 2)
    assert decode_stream(model, [], epsilon=1.0).shape == (0, 2)
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


def test_far_from_its_ends_a_long_stream_is_decoded_alike():
    """The likelihood of all releases to come is below any float."""
    model, responses = MarkovModel(np.full(20, 0.05), 0.2 * np.eye(20) + 0.04), mechanisms.randomized_response
    found = decode_stream(model, [0, 1] * 300, epsilon=3.0, mechanism=responses)[100:-100:2]
    assert np.ptp(found, axis=0).max() < 1e-12


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
    smoothed = np.stack(list(decode_seen(terms, follow(terms, steps, None, used))), axis=1)
    assert smoothed == pytest.approx(believed(paths), abs=1e-12)
    online = list(decode_seen(terms, follow(terms, steps, None, used), smooth=False))
    for prefix, seen in zip(found, online, strict=True):
        known = {tuple(codes): rows[-1] for codes, rows in zip(prefix.codes.tolist(), believed(prefix), strict=True)}
        expected = [known[tuple(codes)] for codes in paths.codes[:, : prefix.codes.shape[1]].tolist()]
        assert seen == pytest.approx(np.array(expected), abs=1e-12)


def test_a_stream_is_decoded_by_the_epsilons_of_its_record():
    """A block that was cut, against Bayes over all streams; and single releases whose ε no policy says."""
    policy = Policy(epsilon=1.4, block=3)
    paths = every_path(policy.on(PAIR).rule, [1.4, 1.4], [2, 3])[-1]
    for path, exact in zip(paths.codes.tolist(), believed(paths), strict=True):
        found = decode_stream(PAIR, path, policy, epsilons=[1.4, 0.0, 1.4, 0.0, 0.0])
        assert found == pytest.approx(exact, abs=1e-12)
    model, prior, transitions = chain(1)
    session, made, columns, used = Session(model, epsilon=0.8, budget=Budget(total=2.1), seed=3), [], [], []
    for x in (0, 1, 2, 0, 1):
        kernel, before = session.kernel(), session.account.epsilon_spent
        made.append(session.release(x))
        used.append(session.account.epsilon_spent - before)
        columns.append(kernel.column(list(kernel.outputs).index(made[-1])))
    distribution = ref.sequence_distribution(prior, transitions, 5)
    exact = [ref.symbol_distribution(distribution, columns, t, 3) for t in range(5)]
    assert decode_stream(model, made, epsilon=0.8, epsilons=used) == pytest.approx(np.array(exact), abs=1e-12)
    for wrong in ({"epsilon": 0.8, "epsilons": [0.8]}, {"epsilon": 2.0, "batch": 5, "epsilons": used}):
        with pytest.raises(InputError, match="one ε for each release"):
            decode_stream(model, made, **wrong)


def test_blocks_are_decoded_side_by_side_as_alone_and_where_the_budget_is_gone_nothing_is_learned():
    model = MarkovModel([0.6, 0.3, 0.1], [[0.8, 0.15, 0.05], [0.2, 0.75, 0.05], [0.3, 0.1, 0.6]])
    policy = Policy(epsilon=2.0, block=3, budget=Budget(total=3.0, when_spent="stop"))
    sessions = [Session(model, policy, seed=k) for k in range(6)]
    streams = [[session.release(0) for _ in range(12 - k)] for k, session in enumerate(sessions)]
    codes = [np.array([-1 if s[t] is None else s[t] for s in streams if len(s) > t]) for t in range(12)]
    for smooth in (False, True):
        together = list(decode_seen(policy.on(model), follow(policy.on(model), codes), smooth))
        for k, stream in enumerate(streams):
            alone = decode_stream(model, stream, policy, smooth=smooth)
            assert alone == pytest.approx(np.array([rows[k] for rows in together[: len(stream)]]), abs=1e-12)
            if not smooth:
                assert model.advance(alone[-1:])[0] == pytest.approx(sessions[k].belief, abs=1e-12)
    assert None in streams[0]
