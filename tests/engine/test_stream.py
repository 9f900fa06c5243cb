"""The state and the step: one gate for codes, compiled or not; what is private; files with rows lost or a large ε."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiling import restored, use  # noqa: F401 -- it restores after every test
from reference import streams as ref
from reference.batches import lift_of
from reference.streams import Rows
from seqveil import mechanisms, secrets
from seqveil.core import filtering
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Kernels, to_weights
from seqveil.core.leakage import Leakages, weight_range
from seqveil.core.mechanisms import Batch, BatchMechanism
from seqveil.core.mechanisms.codebook import Codebook, support
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches, stream
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy, Terms
from seqveil.engine.stream import rounds, skipped
from seqveil.receiver.audit import Audit

CHAIN = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
QUICK = [name for name in mechanisms.instantaneous() if name != "temporal"]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", QUICK)
def test_codes_outside_the_alphabet_are_refused_by_every_mechanism(name, compiled):
    use(compiled)
    setting = Policy(epsilon=1.0, mechanism=name).on(CHAIN)
    for wrong in ([0, -1], [0, 3], [0, 10**12], [-(2**62), 0], [0.0, 1.0], ["0", "1"], [0], [0, 1, 2], [[0], [1]]):
        with pytest.raises(DataError):
            Rows(setting, 2).observe(np.arange(2), np.array(wrong))
        with pytest.raises(InputError):
            Rows(setting, 2).release(np.arange(2), np.array(wrong), SeededRandomness(1))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("total", "codes"), [(50.0, [0, stream.NOTHING]), (1e-7, [stream.NOTHING, 0])])
def test_a_release_that_is_missing_or_stands_where_the_budget_allows_none_is_refused(total, codes, compiled):
    use(compiled)
    setting = Policy(epsilon=1.0, budget=Budget(total=total, when_spent="stop")).on(CHAIN)
    with pytest.raises(DataError, match="missing where it allows one; check epsilon and budget"):
        Rows(setting, 2).observe(np.arange(2), np.array(codes))


def test_what_is_private_is_taken_put_and_joined_by_rows_and_shown_nowhere():
    terms = Policy(epsilon=2.0, block=3).on(CHAIN)
    private = stream.State.start(terms, 3).join(stream.State.start(terms, 2)).private
    private.put(np.array([3]), stream.Private(np.array([True])))
    assert private.take(np.array([3, 0])).bits.tolist() == [True, False]
    private.put(np.array([1]), stream.Private(np.array([True])))
    assert private.bits.tolist() == [False, True, False, True, False]
    both = stream.Private(np.ones(2, bool), np.array([[3, 4], [5, 6]]))
    both.put(np.array([0]), both.take(np.array([1])))
    assert both.memory.tolist() == [[5, 6], [5, 6]]
    assert stream.State.start(Policy(epsilon=1.0).on(CHAIN), 9).take(slice(2)).private.bits is None
    assert repr(both) == "Private(…)"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(InputError, match="private"):
            leak(both)


STICKY = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


SOUND = [name for name in mechanisms.instantaneous() if mechanisms.get(name).sound]


@pytest.mark.parametrize(("order", "zeros", "types"), ref.CHAINS)
@pytest.mark.parametrize("name", mechanisms.instantaneous())
def test_facts_6_and_7_belief_and_account_equal_bayes_over_all_sequences(order, zeros, types, name):
    """Every release path of a small chain: the filter against Bayes, the max-plus account against enumeration."""
    n, length = (2, 4) if order * types == 2 else (3, 3)
    model, distribution_of = ref.model_of(order, zeros, types, n, seed=11)
    setting = Policy(epsilon=0.7, mechanism=name).on(model)
    distribution, longer = distribution_of(length), distribution_of(length + 1)
    for columns, state in ref.release_paths(setting, length):
        believed = np.bincount(model.newest, state.states[0], minlength=n)
        np.testing.assert_allclose(believed, ref.symbol_distribution(longer, columns, length, n), atol=1e-12)
        most, least = ref.sequence_leakage(distribution, columns)
        assert most <= state.account.most[0] < most + 1e-9
        assert least >= state.account.least[0]
        assert state.account.least[0] > least - 1e-9 or least == -math.inf  # some baselines rule symbols out
        assert not setting.mechanism.sound or max(most, -least) <= length * 0.7


@pytest.mark.parametrize("name", SOUND)
def test_fact_11_what_is_skipped_costs_nothing_and_leaks_nothing(name):
    model, _ = ref.model_of(1, False, seed=15)
    setting, randomness = Policy(epsilon=3 * 0.5, mechanism=name).on(model), SeededRandomness(1)
    state = stream.State.start(setting)
    for x in model.sample(9, seed=1)[0][::3]:
        _, state = stream.step(setting, state, np.array([x]), randomness)
        for _ in range(2):
            belief, before = filtering.symbols(model, state.states), state.account.worst
            state = skipped(setting, state)
            assert state.account.worst == pytest.approx(before, abs=1e-13)
            np.testing.assert_allclose(filtering.symbols(model, state.states), model.advance(belief), atol=1e-14)
    assert state.spent[0] == pytest.approx(9 * 0.5, abs=1e-12)
    assert state.account.worst[0] <= 9 * 0.5


def rows_of(state, row):
    """One user's state as plain lists; empty places of a window are dropped."""
    part = state.take(np.array([row]))
    held = np.isfinite(part.window.stamps[0])
    return (
        [getattr(part, name).tolist() for name in ("states", "steps", "spent", "ldp", "first")]
        + [getattr(part.account, f.name).tolist() for f in fields(Leakages)]
        + [part.window.costs[0, held].tolist(), part.window.stamps[0, held].tolist()]
    )


def chain(seed=0, n=4, order=1, zeros=False):
    return MarkovModel(*ref.random_chain(np.random.default_rng(seed), n, order, zeros), order=order)


SPENDING = {
    "total": {"budget": Budget(total=1.5)},
    "stop": {"budget": Budget(total=1.0, when_spent="stop")},
    "window": {"budget": Budget(per_window=1.2, releases=3)},
    "without a model": {"budget": Budget(ldp_total=3.0)},
}
CASES = [(name, (1, False), options) for name in SOUND for options in SPENDING.values()]
CASES += [(name, kind, {}) for name in mechanisms.instantaneous() for kind in ((1, False), (1, True), (2, False))]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "options"), CASES)
def test_a_row_evolves_as_a_stream_alone_with_its_own_randomness(name, kind, options):
    """Under every budget, whoever else is there."""
    model, users, length, rng = chain(4, 3, *kind), 5, 9, np.random.default_rng(2)
    randomness, raw = rng.integers(0, 2**62, (length, users)), model.sample(length, users, seed=3)
    setting = Policy(epsilon=0.8, mechanism=name, **options).on(model)
    fleet, alone = Rows(setting, users), [stream.State.start(setting) for _ in range(users)]
    for t in range(length):
        present = np.flatnonzero(rng.random(users) < 0.8) if t else np.arange(users)
        made = fleet.release(present, raw[present, t], ref.GivenCoins(randomness[t, present]))
        for at, user in enumerate(present):
            coin = ref.GivenCoins([randomness[t, user]])
            own, alone[user] = stream.step(setting, alone[user], raw[user, t : t + 1], coin)
            assert own.codes[0] == made.codes[at]
    for user in range(users):
        assert rows_of(fleet.state, user) == rows_of(alone[user], 0)


def test_a_state_grows():
    model = chain(7)
    setting = Policy(epsilon=1.0, budget=Budget(per_window=2.0, releases=3)).on(model)
    fleet = Rows(setting, 2)
    fleet.release(np.array([0, 1]), np.array([0, 1]), SeededRandomness(1))
    kept = rows_of(fleet.state, 1)
    fleet.state = fleet.state.grown(setting, 5).grown(setting, 3)
    assert len(fleet.state) == 5
    fresh = rows_of(stream.State.start(setting), 0)
    assert rows_of(fleet.state, 1) == kept != fresh
    assert all(rows_of(fleet.state, row) == fresh for row in (2, 3, 4))
    fleet.release(np.array([4, 1]), np.array([3, 2]), SeededRandomness(2))
    assert fleet.state.steps.tolist() == [1, 2, 0, 0, 1]


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 5), max_size=30))
def test_rounds_hold_each_user_once_in_the_order_of_events(users):
    made = rounds(np.array(users, np.intp))
    assert sorted(at for turn in made for at in turn.tolist()) == list(range(len(users)))
    for turn in made:
        assert len({users[at] for at in turn}) == len(turn)
        assert turn.tolist() == sorted(turn.tolist())
    place = {at: number for number, turn in enumerate(made) for at in turn.tolist()}
    for at, user in enumerate(users):
        assert place[at] == users[:at].count(user)


pytestmark = pytest.mark.slow


def log(values) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(values, np.float64))


def exact(model: MarkovModel, columns: list[np.ndarray]) -> tuple[list[tuple[float, float]], np.ndarray]:
    """Both sides after every release, and the next state's distribution, all in logs: nothing can underflow."""
    steps = log(model.advance(np.eye(model.size)))
    distribution = log(model.initial)  # log Pr(y so far, next state)
    high = np.where(np.isneginf(distribution), -math.inf, 0.0)  # log Π Q(y|x) over sequences that lead here
    low = np.where(np.isneginf(distribution), math.inf, 0.0)
    sides, leads = [], ~np.isneginf(steps)
    for column in columns:
        weight = log(column / column.max())[model.newest]
        distribution, high, low = distribution + weight, high + weight, low + weight
        evidence = np.logaddexp.reduce(distribution)
        sides.append((high.max() - evidence, low.min() - evidence))
        distribution = np.logaddexp.reduce(distribution[:, None] + steps, axis=0)
        high = np.where(leads, high[:, None], -math.inf).max(0)
        low = np.where(leads, low[:, None], math.inf).min(0)
    return sides, distribution - np.logaddexp.reduce(distribution)


def follow(setting: Terms, raw: np.ndarray, seed: int) -> tuple[list[stream.State], list[stream.Released]]:
    """The state after every release, and the releases."""
    states, made, randomness = [stream.State.start(setting)], [], SeededRandomness(seed)
    for code in raw:
        released, after = stream.step(setting, states[-1], np.array([code]), randomness)
        states.append(after)
        made.append(released)
    return states[1:], made


def assert_charged_exactly(setting: Terms, raw: np.ndarray, seed: int = 1) -> tuple[float, stream.State]:
    """The account after every release is the exact one from above, an auditor's too, and the belief is right."""
    states, made = follow(setting, raw, seed)
    sides, distribution = exact(setting.model, [released.columns[0] for released in made])
    for state, (most, least) in zip(states, sides, strict=True):
        near = 1e-9 * (1 + most - least)  # the twin's own sums round too
        assert most - near / 10 <= state.account.most[0] <= most + near
        assert least + near / 10 >= state.account.least[0] >= least - near
    held = states[-1].states[0]
    found = np.where(held < 0, held, log(np.maximum(held, 0.0)))
    assert (np.isneginf(found) == np.isneginf(distribution)).all()
    there = ~np.isneginf(distribution)
    assert found[there] == pytest.approx(distribution[there], rel=1e-9, abs=1e-6)
    audit = Audit(setting)
    audit.take(["u"] * len(made), np.concatenate([released.codes for released in made]))
    assert audit.report().leakage == states[-1].account.worst[0]
    return max(max(most, -least) for most, least in sides), states[-1]


def there_and_back(n: int, length: int) -> np.ndarray:
    """Long stretches of one symbol after another, which a chain that does not mix takes to be impossible."""
    return np.repeat(np.array([0, 1, 1, 0, 2, 2]) % n, -(-length // 6))[:length]


CHAINS = {
    "identity": MarkovModel(np.full(3, 1 / 3), np.eye(3)),
    "periodic": MarkovModel(np.full(3, 1 / 3), np.roll(np.eye(3), 1, axis=1)),
    "two rooms": MarkovModel(
        np.full(4, 0.25), [[0.9, 0.1, 0, 0], [0.1, 0.9, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.2, 0.8]]
    ),
    "one way": MarkovModel([0.8, 0.1, 0.1], [[0.5, 0.4, 0.1], [0, 0.9, 0.1], [0, 0, 1]]),
    "hardly ever": MarkovModel([1 - 1e-200, 1e-200], [[1.0, 1e-300], [1e-300, 1.0]]),
    "order two": MarkovModel([0.5, 0.5], [[1, 0], [0, 1], [1, 0], [0, 1]], order=2),
    "sticky": MarkovModel(np.full(3, 1 / 3), [[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]]),
}


FAR = [("randomized_response", name, 900, compiled) for name in CHAINS for compiled in (True, False)]
FAR += [(mechanism, name, 240, True) for mechanism in ("optimal", "balanced")
        for name in ("identity", "two rooms", "one way")]  # fmt: skip


@pytest.mark.parametrize(("mechanism", "name", "length", "compiled"), FAR)
def test_accounts_are_exact_beyond_two_thousand_nats(mechanism, name, length, compiled):
    use(compiled)
    model = CHAINS[name]
    setting = Policy(epsilon=8.0, mechanism=mechanism).on(model)
    worst, _ = assert_charged_exactly(setting, there_and_back(model.n, length))
    if (mechanism, name) == ("randomized_response", "identity"):
        assert worst > 2000


def sparse_chain(seed: int) -> MarkovModel:
    rng = np.random.default_rng(seed)
    n, order = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    rows = rng.dirichlet(np.full(n, 0.5), n**order) * (rng.random((n**order, n)) < 0.5)
    rows[rng.random(rows.shape) < 0.1] *= 1e-80
    empty = rows.sum(1) == 0
    rows[empty, rng.integers(0, n, int(empty.sum()))] = 1.0
    prior = rng.dirichlet(np.ones(n)) * (rng.random(n) < 0.8)
    prior = prior if prior.sum() else np.full(n, 1.0)
    return MarkovModel(prior / prior.sum(), rows / rows.sum(1, keepdims=True), order=order)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), epsilon=st.sampled_from([4.0, 9.0, 15.0]), stay=st.sampled_from([1, 20, 90]))
def test_random_sparse_chains_are_charged_exactly_and_alike_by_both_paths(seed, epsilon, stay):
    model = sparse_chain(seed)
    setting = Policy(epsilon=epsilon, mechanism="randomized_response").on(model)
    raw = np.repeat(np.random.default_rng(seed).integers(0, model.n, 150), stay)[:150]
    found = []
    for compiled in (True, False):
        use(compiled)
        state = assert_charged_exactly(setting, raw, seed + 1)[1]
        found.append([state.states.tobytes(), state.account.most.tobytes(), state.account.least.tobytes()])
    assert found[0] == found[1]


def test_users_with_faint_states_change_nobody_else():
    model = CHAINS["two rooms"]
    setting = Policy(epsilon=8.0, mechanism="randomized_response").on(model)
    raw = np.stack([there_and_back(4, 300), model.sample(300, 1, seed=4)[0]], axis=1)
    states = {}
    for compiled in (True, False):
        use(compiled)
        state = stream.State.start(setting, 2)
        for k, codes in enumerate(raw):
            _, state = stream.step(setting, state, codes, SeededRandomness(k))
        states[compiled] = state
    assert states[True].states.tobytes() == states[False].states.tobytes()
    assert states[True].account.worst.tobytes() == states[False].account.worst.tobytes()
    alone = stream.State.start(setting)
    for k, codes in enumerate(raw):
        _, alone = stream.step(setting, alone, codes[1:], ref.GivenCoins(SeededRandomness(k).draw(2)[1:]))
    assert alone.states[0].tobytes() == states[True].states[1].tobytes()
    assert alone.account.worst[0] == states[True].account.worst[1]


def test_an_event_nobody_released_moves_the_account_on_too():
    """On a periodic chain a gap shifts which sequences can be where; charging as if it had not would be wrong."""
    model = CHAINS["periodic"]
    setting = Policy(epsilon=2.0, mechanism="randomized_response").on(model)
    _, state = stream.step(setting, stream.State.start(setting), np.array([0]), SeededRandomness(1))
    column = np.array([[7, 3, 1]], np.int64) << 58
    silent = np.full((1, 3), 1 << 62)
    disclosed = state.account.charge(model, silent, np.array([float(1 << 62)]), silent[:, 0], silent[:, 0])
    gap = skipped(setting, state)
    for account in (disclosed, gap.account):
        assert account.ahead_most.tolist() == disclosed.ahead_most.tolist()
    after, marginal = filtering.move(model, gap.states, column)
    assert after.sum() == pytest.approx(1.0)
    extremes = weight_range(column, filtering.possible(model, gap.states))
    charged = gap.account.charge(model, column, marginal, *extremes)
    assert charged.worst[0] == disclosed.charge(model, column, marginal, *extremes).worst[0]


def respond(batch: Batch) -> Codebook:
    """Two bits by randomised response, is it 1 and is it 2: ε-LDP, and it goes on telling whatever is believed."""
    found = support(replace(batch, states=np.full(3, 1 / 3)), 10)
    found = replace(found, mass=batch.states, walks=batch.states)  # the identity chain: one walk a batch
    bit = np.array([1.0, math.exp(-batch.epsilon / 2)]) / (1 + math.exp(-batch.epsilon / 2))
    one, two = (np.stack([bit if x != disclosed else bit[::-1] for x in range(3)]) for disclosed in (1, 2))
    table = np.stack([one[:, i] * two[:, j] for i in range(2) for j in range(2)], axis=1)
    kernels = Kernels(3, np.arange(4)[None], np.zeros((1, 4), np.int64), to_weights(table)[None])
    return Codebook(found, np.array([[0, 0], [2, 2], [1, 1], [0, 0]]), kernels)


WORDS = dict.fromkeys(("summary", "guarantee", "trusts"), "")
RESPONSE = BatchMechanism(name="response", sound=True, ldp=1.0, rule=respond, **WORDS)


@pytest.mark.parametrize("mechanism", [RESPONSE, "tree", "batch_lp"])
def test_batches_are_charged_from_above_beyond_the_range_of_a_float(mechanism):
    model = CHAINS["identity"]
    setting = Policy(epsilon=8.0, batch=2, mechanism=mechanism).on(model)
    state, randomness = stream.State.start(setting), SeededRandomness(2)
    logs = log(model.initial)  # of the three sequences that can be, given the releases
    for k, code in enumerate([0] * 250 + [1] * 600):
        before = state
        sent, state = batches.step(setting, state, np.full(2, code), randomness)
        lifts = [lift_of(sent, np.full(2, x)) for x in range(3)]
        logs = logs + log(lifts)
        logs -= np.logaddexp.reduce(logs)
        moved = logs - log(model.initial)
        assert state.account.most[0] >= moved.max() - 1e-9 * (1 + k)
        assert -state.account.least[0] >= -moved.min() - 1e-9 * (1 + k)
        assert state.account.worst[0] <= before.account.worst[0] + 8.0 + 1e-9
    if mechanism is RESPONSE:
        assert moved.min() < -4500
        assert state.account.blurred.all()


def test_a_release_is_charged_for_a_symbol_that_only_its_logarithm_remembers():
    model = MarkovModel([0.5, 0.5], np.eye(2))  # never moves
    setting = Policy(epsilon=4.0, mechanism="randomized_response").on(model)
    state = stream.State.start(setting)
    for _ in range(200):  # 800 nats for symbol 0: no float remembers the other one
        seen, state = stream.observe(setting, state, np.array([0]))
    disclosed, _ = stream.observe(setting, state, np.array([1]))
    assert seen.beliefs[0, 1] == 0.0
    assert seen.costs[0] == pytest.approx(4.0, rel=1e-6)
    assert disclosed.costs[0] == pytest.approx(4.0, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dial", [0.5, math.inf])
def test_an_event_that_was_skipped_is_forgotten_with_what_kernels_remember(dial):
    """Every raw stream of four events of which the second is skipped, every release, by the engine's own memory."""
    rows = [[0.8, 0.2], [0.3, 0.7]]
    model = MarkovModel([0.5, 0.5], rows)
    setting = Policy(secrets=[secrets.ever(1, epsilon=0.5, window="first 4")], side_information=dial).on(model)
    joint: dict[tuple[int, ...], list[float]] = {}

    def go(state, raw, weight, path):
        at = int(state.steps[0])
        if at == 4:
            joint.setdefault(path, [0.0, 0.0])[int(1 in raw)] += weight
        elif at == 1:
            go(skipped(setting, state), raw, weight, path)
        else:
            for released in (0, 1):
                found = drawing(setting, state, raw[at], released)
                if found is None:
                    continue
                made, after = found
                memory = max(int(after.private.memory[0, 0]), 0)
                chance = made.remembered[0, 2 * memory + raw[at]] / 2.0**62
                go(after, raw, weight * chance, (*path, released))

    for raw in itertools.product((0, 1), repeat=4):
        steps = [rows[a][b] for a, b in itertools.pairwise(raw)]
        go(stream.State.start(setting), raw, 0.5 * math.prod(steps), ())
    absent = 0.5 * rows[0][0] ** 3
    odds = [math.log(yes / no * absent / (1 - absent)) for no, yes in joint.values()]
    assert sum(map(sum, joint.values())) == pytest.approx(1.0)  # no release was missed
    assert max(map(abs, odds)) <= 0.5


def drawing(setting, state, symbol, released):
    """A step that releases this symbol; None where none does."""
    for seed in range(200):
        made, after = stream.step(setting, state, np.array([symbol]), SeededRandomness(seed))
        if made.codes[0] == released:
            return made, after
    return None
