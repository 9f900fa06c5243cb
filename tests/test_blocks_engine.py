"""Blocks as they are released: sessions, budgets, receivers, and the distribution of what is drawn."""

from __future__ import annotations

import numpy as np
import pytest

import compiling
from compiling import restored as restored
from reference_blocks import every_path
from seqveil import MarkovModel, Policy, Session, Streams, secrets
from seqveil.core.errors import DataError, InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import blocks, stream
from seqveil.engine.accounting import Budget
from seqveil.engine.policy import saved_terms
from seqveil.engine.state import Private
from seqveil.engine.step import step
from seqveil.engine.stream import NOTHING, UNKNOWN, State

RNG = np.random.default_rng(5)
CHAIN = MarkovModel([0.6, 0.3, 0.1], [[0.8, 0.15, 0.05], [0.2, 0.75, 0.05], [0.3, 0.1, 0.6]])
HOLES = MarkovModel([0.5, 0.5, 0.0], [[0.8, 0.2, 0.0], [0.0, 0.5, 0.5], [0.7, 0.0, 0.3]])


def released(terms, codes, seed=1, times=None):
    """All events of streams side by side (B, T): what each made public, and the state after each."""
    state, private, found = State.start(terms, len(codes)), Private.start(terms, len(codes)), []
    randomness = SeededRandomness(seed)
    for place in range(codes.shape[1]):
        at = None if times is None else np.full(len(codes), times[place])
        made, state, private = step(terms, state, private, codes[:, place], randomness, at)
        found.append((made, state))
    return found


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


def test_both_forms_of_the_code_give_the_same_releases_to_the_last_bit():
    codes = RNG.integers(0, 3, (300, 9))
    found = []
    for translated in (False, True):
        compiling.use(translated)
        found.append(released(Policy(epsilon=4.0, block=4).on(CHAIN), codes)[-1])
    (plain, before), (quick, after) = found
    assert (plain.codes == quick.codes).all()
    assert (before.states == after.states).all()
    assert (before.account.most == after.account.most).all()


@pytest.mark.parametrize("model", [CHAIN, HOLES])
@pytest.mark.parametrize("when_spent", ["hold", "stop"])
def test_a_receiver_follows_and_no_budget_is_ever_passed(model, when_spent):
    budget = Budget(total=5.0, per_window=3.0, releases=5, ldp_total=9.0, when_spent=when_spent)
    terms = Policy(epsilon=2.0, block=3, budget=budget).on(model)
    codes = RNG.integers(0, 2, (200, 14))
    known = State.start(terms, len(codes))
    ends, costs, spent = [], [], 0.0
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
        ends.append(place)
        costs.append(made.costs)
        assert (np.sum([c for e, c in zip(ends, costs, strict=True) if e > place - 5], axis=0) <= 3.0).all()
        assert ((made.codes == NOTHING) <= (when_spent == "stop")).all()
    assert (made.places == -1).any()  # for some the budget is gone
    with pytest.raises(DataError):
        blocks.observe(terms, State.start(terms), np.array([NOTHING]))


def test_a_session_releases_in_blocks_and_its_account_is_that_of_blocks():
    session = Session(CHAIN, epsilon=2.0, block=4, seed=3)
    for event in range(10):
        assert session.position == divmod(event, 4)
        assert session.release(event % 3) in (0, 1, 2)
        assert session.leakage <= 2.0 * (event // 4 + 1)
        assert session.belief.sum() == pytest.approx(1.0)
    account = session.account
    assert (account.events, account.releases, account.epsilon_spent, account.ldp) == (10, 10, 6.0, 12.0)
    assert session.compose(10).basic == 6.0
    for refused in (session.kernel, lambda: Session(CHAIN, epsilon=1.0).position):
        with pytest.raises(InputError):
            refused()


def test_a_block_that_is_cut_keeps_what_it_cost_and_a_new_one_begins():
    terms = Policy(epsilon=2.0, block=6, budget=Budget(per_window=3.0, releases=10)).on(CHAIN)
    (_, _), (_, state) = released(terms, RNG.integers(0, 3, (50, 2)))
    over = blocks.cut(terms, state)
    assert not over.blocks.running.any()
    assert (over.account.most == state.account.most).all()
    assert np.allclose(over.window.costs.sum(1), state.blocks.costs(terms.rule))
    made = step(terms, over, Private.start(terms, 50), np.zeros(50, int), SeededRandomness(2))[0]
    assert (made.numbers == 1).all()
    assert (made.places == 0).all()


def test_some_users_move_on_without_the_others():
    terms = Policy(epsilon=2.0, block=3).on(HOLES)
    together = released(terms, np.tile([0, 1, 2, 0], (4, 1)))[-1][1]
    state, private = State.start(terms, 1).grown(terms, 4), Private.start(terms, 4)
    some = np.array([3, 1])
    _, state = state.move(
        some, lambda part: step(terms, part, private.take(some), np.array([0, 1]), SeededRandomness(1))[:2]
    )
    assert state.blocks.places.tolist() == [0, 1, 0, 1]
    assert state.take(np.array([0])).blocks.given.tolist() == State.start(terms).blocks.given.tolist()
    state.put(np.arange(4), together)
    assert (state.blocks.numbers == 1).all()
    assert (state.account.most == together.account.most).all()


def test_values_outside_the_alphabet_are_released_like_draws_from_the_belief():
    users = 60_000
    compiling.use(True)
    terms = Policy(epsilon=1.0, block=2).on(CHAIN)
    drawn = np.stack([made.codes for made, _ in released(terms, np.full((users, 2), UNKNOWN))], axis=1)
    paths = every_path(terms.rule, [1.0], [2])[-1]
    for code, chance in zip(paths.codes, paths.weights @ paths.chances, strict=True):
        assert abs(int((drawn == code).all(1).sum()) - users * chance) < 5 * np.sqrt(users * chance) + 5


@pytest.mark.parametrize(
    "other",
    [
        {"batch": 2},
        {"every": 2},
        {"withhold": True},
        {"observers": (CHAIN,)},
        {"secrets": secrets.ever(1, epsilon=0.5)},
        {"mechanism": "optimal"},
        {"epsilon": 41.0},
        {"epsilon": None, "budget": Budget(total=2.0, over=10)},
    ],
)
def test_what_does_not_go_with_blocks_is_refused_in_one_line(other):
    with pytest.raises(InputError) as refusal:
        Policy(**{"epsilon": 1.0, "block": 5} | other)
    assert "\n" not in str(refusal.value)


def test_blocks_are_refused_where_no_bit_is_kept_and_come_back_from_plain_values():
    with pytest.raises(InputError, match="Session"):
        Streams(CHAIN, epsilon=1.0, block=5)
    elsewhere = Policy(epsilon=1.0, block=5).on(CHAIN)
    with pytest.raises(InputError, match="hidden bit"):
        stream.step(elsewhere, State.start(elsewhere), np.zeros(1, int), SeededRandomness(1))
    with pytest.raises(InputError, match="block="):
        Policy(epsilon=1.0, mechanism="blocks")
    terms = Policy(epsilon=3.0, block=5).on(CHAIN)
    assert saved_terms(terms.to_dict(), CHAIN).to_dict() == terms.to_dict()
    with pytest.raises(DataError):
        saved_terms(terms.to_dict() | {"cells": "0" * 16}, CHAIN)
    assert "each block of 5 events" in str(terms.policy)
    assert "one release alone by up to as much" in str(terms.policy)
