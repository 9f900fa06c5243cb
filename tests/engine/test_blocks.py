"""Blocks as they are released: sessions, budgets, receivers, and the distribution of what is drawn."""

from __future__ import annotations

import ast
import os

import numpy as np
import pytest

import compiling
from compiling import restored as restored
from reference.blocks import every_path
from seqveil import MarkovModel, Policy, Session, Streams, secrets
from seqveil.core.errors import DataError, InputError
from seqveil.core.randomness import KeyedRandomness, SeededRandomness
from seqveil.engine import blocks
from seqveil.engine.budget import Budget
from seqveil.engine.policy import saved_terms
from seqveil.engine.store import GAP
from seqveil.engine.stream import NOTHING, UNKNOWN, State, observe, step
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import accept, backup
from seqveil.receiver.audit import Audit

RNG = np.random.default_rng(5)
CHAIN = MarkovModel([0.6, 0.3, 0.1], [[0.8, 0.15, 0.05], [0.2, 0.75, 0.05], [0.3, 0.1, 0.6]])
HOLES = MarkovModel([0.5, 0.5, 0.0], [[0.8, 0.2, 0.0], [0.0, 0.5, 0.5], [0.7, 0.0, 0.3]])


def released(terms, codes, seed=1, times=None):
    """All events of streams side by side (B, T): what each made public, and the state after each."""
    state, found = State.start(terms, len(codes)), []
    randomness = SeededRandomness(seed)
    for place in range(codes.shape[1]):
        at = None if times is None else np.full(len(codes), times[place])
        made, state = step(terms, state, codes[:, place], randomness, at)
        found.append((made, state))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("translated", [False, True])
def test_paths_are_drawn_with_the_probabilities_that_are_enumerated(translated):
    compiling.use(translated)
    terms, users = Policy(epsilon=1.2, block=3).on(CHAIN), 20_000 if not translated else 200_000
    truth = np.array([0, 2, 2])
    steps = released(terms, np.tile(truth, (users, 1)))
    drawn = np.stack([made.codes for made, _ in steps], axis=1)
    paths = every_path(terms.rule, [1.2], [3])[-1]
    ours = (paths.sequences == truth).all(1).argmax()
    for code, chance in zip(paths.codes, paths.weights[:, ours], strict=True):
        seen = int((drawn == code).all(1).sum())
        assert abs(seen - users * chance) < 5 * np.sqrt(users * chance) + 5


@pytest.mark.parametrize("model", [CHAIN, HOLES])
@pytest.mark.parametrize("when_spent", ["hold", "stop"])
def test_a_receiver_follows_and_no_budget_is_ever_passed(model, when_spent):
    budget = Budget(total=5.0, per_window=3.0, releases=5, ldp_total=9.0, when_spent=when_spent)
    terms = Policy(epsilon=2.0, block=3, budget=budget).on(model)
    codes = RNG.integers(0, 2, (200, 14))
    known = State.start(terms, len(codes))
    ends, spent = [], 0.0
    for place, (made, state) in enumerate(released(terms, codes)):
        read, known = blocks.observe(terms, known, made.codes)
        assert (known.states == state.states).all()
        assert (known.account.most == state.account.most).all()
        assert (known.blocks.numbers == state.blocks.numbers).all()
        assert (read.places == made.places).all()
        assert (state.account.worst <= 5.0).all()
        assert (state.ldp <= 9.0).all()
        spent = spent + made.epsilons
        assert (state.spent == spent).all()
        recent = [e for e in ends if e[0] > place - 5]  # each block once, whole, by what it came to
        assert (np.sum([cost for _, cost in recent], axis=0) + made.costs <= 3.0).all()
        ends.append((place, np.where(made.places == 2, made.costs, 0.0)))
        assert ((made.codes == NOTHING) <= (when_spent == "stop")).all()
    assert (made.places == -1).any()  # for some the budget is gone
    with pytest.raises(DataError):
        blocks.observe(terms, State.start(terms), np.array([NOTHING]))
    for impossible in np.flatnonzero(model.initial == 0):
        with pytest.raises(DataError, match="cannot have come from these blocks"):
            blocks.observe(terms, State.start(terms), np.array([impossible]))


def test_a_session_releases_in_blocks_and_its_account_is_that_of_blocks():
    session = Session(CHAIN, epsilon=2.0, block=4, seed=3)
    for event in range(10):
        assert session.release(event % 3) in (0, 1, 2)
        assert session.leakage <= 2.0 * (event // 4 + 1)
        assert session.belief.sum() == pytest.approx(1.0)
    account = session.account
    assert (account.events, account.releases, account.epsilon_spent, account.ldp) == (10, 10, 6.0, 12.0)
    with pytest.raises(InputError, match="has no kernel of its own"):
        session.kernel()


def test_a_block_that_is_cut_keeps_what_it_cost_and_a_new_one_begins():
    terms = Policy(epsilon=2.0, block=6, budget=Budget(per_window=3.0, releases=10)).on(CHAIN)
    (_, _), (_, state) = released(terms, RNG.integers(0, 3, (50, 2)))
    over = blocks.cut(terms, state)
    assert not over.blocks.running.any()
    assert (over.account.most == state.account.most).all()
    assert np.allclose(over.window.costs.sum(1), state.blocks.costs(terms.rule))
    made = step(terms, over, np.zeros(50, int), SeededRandomness(2))[0]
    assert (made.running.numbers == 1).all()
    assert (made.places == 0).all()


@pytest.mark.slow
def test_values_outside_the_alphabet_are_released_like_draws_from_the_belief():
    users = 60_000
    compiling.use(True)
    terms = Policy(epsilon=1.0, block=2).on(CHAIN)
    drawn = np.stack([made.codes for made, _ in released(terms, np.full((users, 2), UNKNOWN))], axis=1)
    paths = every_path(terms.rule, [1.0], [2])[-1]
    for code, chance in zip(paths.codes, paths.weights @ paths.chances, strict=True):
        assert abs(int((drawn == code).all(1).sum()) - users * chance) < 5 * np.sqrt(users * chance) + 5


def test_blocks_come_back_from_plain_values():
    with pytest.raises(InputError, match="block="):
        Policy(epsilon=1.0, mechanism="blocks")
    terms = Policy(epsilon=3.0, block=5).on(CHAIN)
    assert saved_terms(terms.to_dict(), CHAIN).to_dict() == terms.to_dict()
    with pytest.raises(DataError):
        saved_terms(terms.to_dict() | {"cells": "0" * 16}, CHAIN)
    assert "each block of 5 events" in str(terms.policy)
    assert "one release alone by up to as much" in str(terms.policy)


# streams of many users


WINDOWED = Budget(total=30.0, per_window=3.0, releases=5, when_spent="stop")
SEED = KeyedRandomness.seeded(11)


def twin(terms, events, randomness=SEED):
    """What each event is released as, user by user and one step at a time, with nothing but the public state kept.

    Where a sequence number is left out, the events before it are passed over.
    """
    own, states, found = randomness.of_state(terms.signature, b""), {}, []
    for user, seq, code in events:
        state = states.get(user, State.start(terms))
        if seq > state.steps[0]:
            state = blocks.passed(terms, state, seq - int(state.steps[0]))
        source = own.of([user], [seq])
        made, states[user] = step(terms, state, np.array([code]), source)
        found.append((int(made.codes[0]), float(made.epsilons[0])))
    return found, states


def events_of(users=5, length=11, seed=0, skip=False):
    """Events of several users in some order, each user's numbers in a row, or with gaps."""
    rng, upcoming, found = np.random.default_rng(seed), [0] * users, []
    for user in rng.permutation(np.repeat(np.arange(users), length)).tolist():
        upcoming[user] += int(rng.integers(0, 9)) * bool(skip and rng.random() < 0.3)
        found.append((f"user {user}", upcoming[user], int(rng.integers(-1, 3))))
        upcoming[user] += 1
    return [(user, seq, UNKNOWN if code < 0 else code) for user, seq, code in found]


def disclosed(streams, events, size):
    """The events in calls of so many: their codes and ε."""
    found = []
    for at in range(0, len(events), size):
        users, seqs, codes = zip(*events[at : at + size], strict=True)
        made = streams.release(users, np.array(codes), seqs)
        found += zip(made.codes.tolist(), made.epsilons.tolist(), strict=True)
    return found


def same_figures(streams, states):
    for user, state in states.items():
        account = streams.account(user)
        assert (account.most, account.least) == (state.account.most[0], state.account.least[0])
        assert (account.epsilon_spent, account.ldp) == (state.spent[0], state.ldp[0])
        assert account.events == state.steps[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", [CHAIN, HOLES])
@pytest.mark.parametrize("gaps", ["refuse", "skip"])
@pytest.mark.parametrize("memory", [1 << 30, 1])
def test_streams_release_each_user_as_a_session_would(model, gaps, memory):
    terms, events = Policy(epsilon=2.0, block=3, budget=WINDOWED).on(model), events_of(skip=gaps == "skip")
    expected, states = twin(terms, events)
    for size in (1, 7, len(events)):
        streams = CodeStreams(terms, randomness=SEED, gaps=gaps, memory=memory)
        assert disclosed(streams, events, size) == expected
        same_figures(streams, states)
        assert disclosed(streams, events, 5) == expected  # asked again, nothing is drawn
        same_figures(streams, states)


@pytest.mark.slow
@pytest.mark.parametrize("model", [CHAIN, HOLES])
def test_a_state_file_goes_on_inside_a_block_wherever_its_process_dies(tmp_path, model):
    terms, events = Policy(epsilon=2.0, block=4, budget=WINDOWED).on(model), events_of(3, 9, skip=True)
    expected, states = twin(terms, events)
    path, found = tmp_path / "state.db", []
    for at in range(0, len(events), 4):
        reading, writing = os.pipe()
        if os.fork() == 0:  # what it released is out, and it never closes the file
            streams = CodeStreams.open(path, terms, randomness=SEED, gaps="skip")
            os.write(writing, repr(disclosed(streams, events[at : at + 4], 2)).encode())
            os._exit(9)
        os.wait()
        found += ast.literal_eval(os.read(reading, 1 << 16).decode())
        os.close(reading), os.close(writing)
    assert found == expected
    with CodeStreams.open(path, terms, randomness=SEED, gaps="skip") as streams:
        assert disclosed(streams, events, 7) == expected
        same_figures(streams, states)
        kept = [(each.code, each.epsilon) for each in streams.releases("user 0") if each.code != GAP]
        assert kept == [own for event, own in zip(events, expected, strict=True) if event[0] == "user 0"]


def test_a_stored_state_needs_a_key_and_no_other_model_goes_on_with_blocks(tmp_path):
    with pytest.raises(InputError, match="key") as refusal:
        Streams(CHAIN, epsilon=1.0, block=5, store=tmp_path / "state.db")
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())
    with Streams(CHAIN, epsilon=1.0, block=5, store=tmp_path / "state.db", key=bytes(32)) as streams:
        streams.release(["ann"], [0])
        with pytest.raises(InputError, match="another model"):
            streams.adopt(HOLES)


def test_a_bit_belongs_to_a_block_and_is_another_in_another_block_or_state():
    terms, users = Policy(epsilon=1.0, block=2).on(CHAIN), [f"{k}" for k in range(4000)]

    def bits(source, seq, block):
        thrown = source.of(users, np.full(4000, seq)).of_blocks(np.full(4000, block))
        return terms.rule.bits(np.ones(4000), thrown)

    one, other = (KeyedRandomness(bytes(32)).of_state(terms.signature, salt) for salt in (b"epoch 1", b"epoch 2"))
    assert (bits(one, 0, 0) == bits(one, 1, 0)).all()
    fake = np.exp(-1.0)
    alike = fake**2 + (1 - fake) ** 2  # of bits that have nothing to do with each other
    for two in (bits(one, 2, 1), bits(other, 0, 0)):
        assert abs((~two).mean() - fake) < 5 * np.sqrt(fake * (1 - fake) / 4000)
        assert abs((bits(one, 0, 0) == two).mean() - alike) < 5 * np.sqrt(alike * (1 - alike) / 4000)


def test_a_restored_copy_cuts_its_running_blocks_and_receivers_see_where(tmp_path):
    policy, key = Policy(epsilon=6.0, block=8), bytes(32)
    with Streams(CHAIN, policy, store=tmp_path / "state.db", key=key) as streams:
        streams.release(["ann"] * 3, [0, 1, 2])
        backup(streams.file, tmp_path / "copy.db")
        onward = streams.release(["ann"] * 3, [0, 0, 0])
    with Streams(CHAIN, policy, store=tmp_path / "copy.db", key=key) as streams:
        restored = streams.release(["ann"] * 12, [0] * 12)
        assert onward.epsilons.tolist() == [0.0] * 3  # inside the block that runs
        assert np.flatnonzero(restored.epsilons).tolist() == [0, 8]
        kept, account = streams.releases("ann"), streams.account("ann")
    codes, epsilons = np.array([each.value for each in kept]), np.array([each.epsilon for each in kept])
    audit = Audit(policy.on(CHAIN))
    used = audit.take(["ann"] * len(codes), codes, epsilons=epsilons)
    assert used.tolist() == epsilons.tolist() == [6.0, 0, 0, *[6.0, *[0] * 7], 6.0, 0, 0, 0]
    report = audit.report()
    assert report.passed
    assert (report.most, report.least, report.composition) == (account.most, account.least, 18.0)
    assert report.worst_release <= 6.0


def test_the_account_of_streams_is_what_enumeration_finds_and_an_audit_says_the_same():
    terms = Policy(epsilon=1.1, block=2).on(HOLES)
    paths = every_path(terms.rule, [1.1, 1.1], [2, 1])[-1]
    audit, state = Audit(terms), State.start(terms, len(paths.codes))
    users = [f"{k}" for k in range(len(paths.codes))]
    for place in range(3):
        _, state = observe(terms, state, paths.codes[:, place])
        audit.take(users, paths.codes[:, place], epsilons=np.full(len(users), 0.0 if place == 1 else 1.1))
    accounts = state.account
    assert accounts.most == pytest.approx(paths.lifts.max(1), abs=1e-9)
    assert accounts.least == pytest.approx(paths.lifts.min(1), abs=1e-9)
    report = audit.report()
    assert report.passed
    assert report.leakage == accounts.worst.max()
    with pytest.raises(InputError, match="one by one"):
        Audit(terms, secrets=[secrets.ever(1, epsilon=0.5)])


@pytest.mark.parametrize("when_spent", ["hold", "stop"])
def test_an_audit_counts_each_block_once_in_every_window(when_spent):
    budget = Budget(per_window=2.5, seconds=40.0, when_spent=when_spent)
    terms, users = Policy(epsilon=2.0, block=3, budget=budget).on(CHAIN), [f"{k}" for k in range(40)]
    streams, audit, rng = CodeStreams(terms, randomness=SEED), Audit(terms), np.random.default_rng(2)
    times = np.cumsum(rng.integers(1, 20, 25)).astype(float)
    for at in times.tolist():
        made = streams.release(users, rng.integers(0, 3, 40), times=np.full(40, at))
        audit.take(users, made.codes, np.full(40, at), made.epsilons)
    report = audit.report()
    assert report.passed
    assert 2.0 < report.worst_window <= 2.5


@pytest.mark.parametrize("seed", range(6))
def test_a_window_counts_each_block_that_reaches_into_it_whole_gaps_or_not(seed):
    """Every window of so many events in a row, by the first and the last event of each block."""
    budget, length, span = Budget(per_window=2.5, releases=5), 4, 5
    terms = Policy(epsilon=2.0, block=length, budget=budget).on(CHAIN)
    events = [(seq, code) for _, seq, code in events_of(users=1, length=60, seed=seed, skip=True)]
    state, source, begun, costs = State.start(terms), SEED.of_state(terms.signature, b""), {}, {}
    for seq, code in events:
        if seq > state.steps[0]:
            state = blocks.passed(terms, state, seq - int(state.steps[0]))
        made, state = step(terms, state, np.array([code]), source.of(["ann"], [seq]))
        if made.places[0] >= 0:
            begun.setdefault(int(made.running.numbers[0]), seq - int(made.places[0]))
            costs[int(made.running.numbers[0])] = float(made.costs[0])
    sums = [
        sum(cost for block, cost in costs.items() if begun[block] < at + span and begun[block] + length > at)
        for at in range(events[-1][0] + 1)
    ]
    assert 2.0 < max(sums) <= 2.5


@pytest.mark.slow
@pytest.mark.parametrize("limit", [{"total": 2.0}, {"ldp_total": 4.0}, {"per_window": 2.0, "releases": 20}])
@pytest.mark.parametrize("when_spent", ["hold", "stop"])
def test_a_block_that_was_cut_when_nothing_was_left_never_runs_again(tmp_path, limit, when_spent):
    """Its state is packed, and receivers follow it by the ε of the record."""
    key, policy = bytes(range(32)), Policy(epsilon=2.0, block=4, budget=Budget(**limit, when_spent=when_spent))
    made = []
    with CodeStreams.open(tmp_path / "s.db", policy.on(CHAIN), key=key) as streams:
        made.append(streams.release(["bob", "ann"], [0, 2]))
    accept(tmp_path / "s.db")
    for symbols in ([2, 2], [0], [2]):
        with CodeStreams.open(tmp_path / "s.db", policy.on(CHAIN), key=key) as streams:
            made.append(streams.release(["ann"] * len(symbols), symbols))
            account = streams.account("ann")
    codes, epsilons = ([getattr(each, name)[-1 if each is made[0] else slice(None)] for each in made]
                       for name in ("codes", "epsilons"))  # fmt: skip
    codes, epsilons = (np.concatenate([np.atleast_1d(part) for part in parts]) for parts in (codes, epsilons))
    audit = Audit(policy.on(CHAIN))
    audit.take(["ann"] * len(codes), codes, epsilons=epsilons)
    assert audit.report().leakage == account.leakage <= 2.0
    if account.epsilon_spent == 2.0:  # no other block began, so all that came later was held
        assert (epsilons[1:] == blocks.HELD).all()
