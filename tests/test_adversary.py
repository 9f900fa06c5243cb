"""The adversary against Bayes over every sequence, and its bounds against every release there can be."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_streams as ref
import seqveil as sv
from seqveil import mechanisms
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches, stream
from seqveil.evaluate import adversary
from seqveil.receiver.decode import decode_codes, decode_paths

LENGTH = 3


def paths(setting, codes=(), columns=(), state=None):
    """Every release sequence of positive probability: its codes and the weights behind them."""
    state = stream.State.start(setting) if state is None else state
    if len(codes) == LENGTH:
        yield codes, columns, state
        return
    belief = stream.filtering.symbols(setting.model, state.states)
    kernel = stream.kernels(setting, belief, float(stream.allowance(setting, state)[0][0])).one(0)
    for index, code in enumerate(kernel.codes.tolist()):
        if kernel.marginal(belief[0])[index] > 0:
            _, after = stream.observe(setting, state, np.array([code]))
            yield from paths(setting, (*codes, code), (*columns, kernel.column(index)), after)


def named(distribution, top):
    """The `top` most likely symbols, lowest code first among equals."""
    return sorted(range(len(distribution)), key=lambda x: (-distribution[x], x))[:top]


def attack(setting, codes, truth, tops=adversary.TOPS):
    """B streams of one length, released symbol by symbol: codes and truth (B, T)."""
    state, seen = stream.State.start(setting, len(codes)), []
    for t in range(codes.shape[1]):
        one, state = stream.observe(setting, state, codes[:, t])
        seen.append(one)
    distributions = adversary.distributions(setting.model, np.stack([one.columns for one in seen]))
    epsilons = np.stack([one.epsilons for one in seen], 1)
    return adversary.score(distributions, truth, epsilons, state.account.most, state.account.least, tops)


CASES = [("optimal", 1, 1), ("randomized_response", 1, 1), ("balanced", 2, 1), ("optimal", 1, 2), ("crr", 1, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "order", "period"), CASES)
def test_guess_rates_are_those_of_every_sequence_and_every_release(mechanism, order, period):
    prior, transitions = ref.random_chain(np.random.default_rng(11), 3, order)
    model = sv.MarkovModel(prior, transitions, order=order)
    setting = sv.Policy(epsilon=0.7, mechanism=mechanism, every=period).on(model)
    distribution = {x: float(p) for x, p in ref.sequence_distribution(prior, transitions, LENGTH).items()}
    exact = ref.sequence_distribution(prior, transitions, LENGTH)
    truth = np.array(list(distribution))
    rates = {name: np.zeros((2, LENGTH)) for name in ("without", "online", "hindsight", "step_bound", "stream_bound")}
    expected, total = {name: np.zeros((2, LENGTH)) for name in ("without", "online", "hindsight")}, 0.0
    for codes, columns, state in paths(setting):
        chance = np.array([distribution[x] * ref.explained(x, columns) / DENOMINATOR**LENGTH for x in distribution])
        total += chance.sum()
        found = attack(setting, np.tile(codes, (len(distribution), 1)), truth, tops=(1, 2))
        for name in rates:
            rates[name] += (np.asarray(getattr(found, name), float) * chance[:, None]).sum(1)
        for t, (k, top) in itertools.product(range(LENGTH), enumerate((1, 2))):
            for name, known in (("without", ()), ("online", columns[: t + 1]), ("hindsight", columns)):
                guess = named(ref.symbol_distribution(exact, known, t, 3), top)
                expected[name][k, t] += chance[np.isin(truth[:, t], guess)].sum()
        assert (state.account.most <= period * 0.7 * LENGTH + 1e-9) or mechanism == "crr"
    assert total == pytest.approx(1)
    for name, rate in expected.items():
        np.testing.assert_allclose(rates[name], rate, atol=1e-12, err_msg=name)
    assert (rates["online"] >= rates["without"] - 1e-12).all()  # under the model releases only help
    assert (rates["hindsight"] >= rates["online"] - 1e-12).all()
    assert (rates["hindsight"] <= rates["stream_bound"] + 1e-9).all()  # holds for what leaked, promised or not
    if mechanism != "crr":
        assert (rates["online"] <= rates["step_bound"] + 1e-9).all()


def test_an_unsound_mechanism_passes_the_bound_it_claims():
    model = sv.MarkovModel(np.full(20, 0.05), np.full((20, 20), 0.05))
    setting, truth = sv.Policy(epsilon=1.0, mechanism="crr").on(model), model.sample(1, 2000, seed=1)
    out, _ = stream.step(setting, stream.State.start(setting, 2000), truth[:, 0], SeededRandomness(1))
    found = attack(setting, out.codes[:, None], truth)
    online = found.online[0].mean()
    assert found.step_bound[0].mean() == pytest.approx(np.e / 20)
    assert online > 0.5
    assert online < found.stream_bound[0].mean() <= 1


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.integers(0, 10**6), st.sampled_from([0.1, 0.7, 2.0]), st.integers(1, 10))
def test_no_release_of_a_sound_kernel_passes_the_ceiling(n, seed, epsilon, top):
    belief = ref.random_belief(np.random.default_rng(seed), n)
    kernel = mechanisms.optimal.kernels(belief[None], epsilon).one(0)
    most = float(adversary.ceiling(belief, top, np.array(epsilon), np.array(-epsilon)))
    assert most <= 1 + 1e-12
    for index, marginal in enumerate(kernel.marginal(belief)):
        post = belief * kernel.probabilities[:, index] / max(marginal, 1e-300)
        if marginal > 0:
            assert max(post[list(some)].sum() for some in itertools.combinations(range(n), min(top, n))) <= most + 1e-9


def test_distributions_of_padded_streams_are_those_of_each():
    prior, transitions = ref.random_chain(np.random.default_rng(2), 4, 2)
    model = sv.MarkovModel(prior, transitions, order=2)
    setting = sv.Policy(epsilon=1.0, mechanism="balanced").on(model)
    state, columns, codes = stream.State.start(setting, 2), [], []
    for x in model.sample(5, 2, seed=3).T:
        out, state = stream.step(setting, state, x, SeededRandomness(5))
        columns.append(out.columns)
        codes.append(out.codes)
    columns, codes = np.stack(columns), np.stack(codes, 1)
    columns[3:, 1] = 1  # the second stream ends after three
    known = adversary.distributions(model, columns)
    for user, length in ((0, 5), (1, 3)):
        for smooth, mine in ((False, known.online), (True, known.hindsight)):
            alone = decode_codes(setting, codes[user : user + 1, :length], smooth=smooth)[0]
            np.testing.assert_allclose(mine[user, :length], alone, atol=1e-12)


@pytest.mark.parametrize("length", [4, 5])
def test_batches_are_attacked_through_their_paths(length):
    prior, transitions = ref.random_chain(np.random.default_rng(4), 3)
    model = sv.MarkovModel(prior, transitions)
    session = sv.Session(model, mechanism="tree", epsilon=3.0, batch=2, seed=1)
    truth = model.sample(length, 1, seed=9)[0]
    for begin in range(0, length - 1, 2):
        session.release_batch(truth[begin : begin + 2])
    if length % 2:
        session.push(truth[-1])
        session.flush()
    setting, state, sent = session.setting, stream.State.start(session.setting), []
    for k, path in enumerate(session.paths):
        one, state = batches.observe(setting, state, path, min(2, length - 2 * k))
        sent.append(one)
    account = state.account
    known = adversary.batch_distributions(setting, sent)
    found = adversary.score(known, truth[None], np.full((1, length), 3.0), account.most, account.least)
    for smooth, hits in ((False, found.online), (True, found.hindsight)):
        distributions = decode_paths(setting, session.paths, length, smooth=smooth)
        assert hits[0, 0].tolist() == (distributions.argmax(1) == truth).tolist()
    assert found.online[1].all()  # ten guesses among three symbols
    first = np.stack([prior, prior @ transitions])
    claimed = np.minimum(np.exp(3.0) * first.max(1), 1 - np.exp(-3.0) * (1 - first.max(1)))
    np.testing.assert_allclose(found.step_bound[0, 0, :2], claimed)
