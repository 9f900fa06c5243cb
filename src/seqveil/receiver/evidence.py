"""What can be learned from: releases as likelihoods and nothing else, and the transitions that they lead one to expect.

A release y made by a known kernel says of the truth x only Q(y|x). `Evidence` holds those numbers, event by event, and
whose event it was. There is no field a raw symbol could be in, so whatever is computed from it is post-processing and
costs no budget.

Some releases follow more than the symbol, and nobody sees what: the bit of a block, or what a kernel remembers of the
raw stream (docs/theory.md, sections 19 and 20). So an event has a row for each *case*, and all recursions run over the
case, too.

With b_k(x) = Q(y_k|x), α_k(s) ∝ Pr(s_k = s, y_1..y_k) and ω_k(s) ∝ Pr(y_k+1.. | s_k = s), the expected number of moves
from s to z is Σ_k α_k(s) P(z|s) b_k+1(z) ω_k+1(z), each term divided by the likelihood: the sum over all sequences.
Learning runs dozens of rounds over all streams, so a block of streams of like length goes together, and each step is
one product of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.alphabet import Symbols
from seqveil.core.bulk import ANY, Layout, places_within
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.engine.blocks import Made
from seqveil.engine.secrets import dial_of
from seqveil.engine.stream import Rows, State, Terms, observe, rounds

IMPOSSIBLE = "a release has probability 0 under the chain to learn from; start with a wider one"
SETTLED = 30  # steps after which people are held to be where they usually are
BLOCK = 1 << 20  # numbers of one block's forward distributions
KEPT = 1 << 24  # numbers of likelihoods up to which they are laid out once for all rounds
PRODUCT = 1 << 18  # multiplications of one product: larger ones are spread over threads, which costs more than it gains
FEW_ROWS = 500  # of which sums are sooner row by row than column by column
WORTH_IT = 64  # streams of a block: where products would hold fewer, they are as large as they come


class Followed:
    """Streams of users, numbered from 0, as anyone who has the releases follows them: a row of public state each."""

    def __init__(self, setting: Terms) -> None:
        self.setting, self.state = setting, State.start(setting, 0)

    def observe(
        self, users: Rows, codes: Ints, times: Floats | None = None, epsilons: Floats | None = None
    ) -> Iterator[tuple[Rows, Any]]:
        """Take in releases in the order they were made, NOTHING where there was none.

        They go in rounds that hold each user once: the places of a round in the call, and what an observer sees there,
        `Released` or, of blocks, `ReleasedInBlocks`. `epsilons` are those of the record, which says where one was cut.
        """
        needed = int(users.max(initial=-1)) + 1
        if needed > len(self.state):  # room is made ahead of need, so that most calls copy nothing
            self.state = self.state.grown(self.setting, max(needed, 2 * len(self.state)))
        for turn in rounds(users):

            def act(part: State, at: Rows = turn) -> tuple[Made, State]:
                """Observe the releases of this turn, for a part of the streams."""
                stamps, used = (None if each is None else each[at] for each in (times, epsilons))
                return observe(self.setting, part, codes[at], stamps, used)

            seen, self.state = self.state.move(users[turn], act)
            yield turn, seen


@dataclass(frozen=True, eq=False)
class Evidence:
    """A log of releases, in the order of each user's events: `table[index[k], x]` = Q(y_k | x), of user `users[k]`.

    Only proportions within an event matter. A row of ones says nothing: an event without a release, or a held one.
    Where there are K cases an event has a row for each, and `joins[links[k]]` says how the case goes on there.
    """

    table: Floats  # (R, n)
    users: Ints  # (E,) 0..U-1
    index: Ints  # (E,) 0..R-1; with cases (E, K)
    links: Ints | None = None  # (E,) 0..L-1
    joins: Floats | None = None  # (L, K, K, n) the weight of a case (third axis) after another, by the event's symbol

    @property
    def n(self) -> int:
        """Symbols of the alphabet."""
        return int(self.table.shape[1])

    @property
    def cases(self) -> int:
        """Cases that an event has a row for."""
        return 1 if self.joins is None else int(self.joins.shape[1])

    @property
    def events(self) -> int:
        """How many releases it holds."""
        return int(self.users.size)

    @cached_property
    def people(self) -> int:
        """Users with at least one event."""
        return int(np.unique(self.users).size)

    @cached_property
    def layout(self) -> Layout:
        """The streams side by side."""
        return Layout.of(self.users)

    @cached_property
    def walks(self) -> list[Walk]:
        """All streams, kept for round after round."""
        return list(self.blocks())

    def blocks(self, newest: Ints | None = None) -> Iterator[Walk]:
        """All streams, a block at a time."""
        states = self.n if newest is None else newest.size
        together = PRODUCT // (self.cases * states**2)
        numbers = max(1, BLOCK // (states * self.cases))
        for places, lengths in self.layout.blocks(numbers, together if together >= WORTH_IT else ANY):
            yield Walk(self, places, lengths, newest)

    @classmethod
    def of_streams(
        cls,
        setting: Terms,
        users: Rows,
        codes: Ints,
        times: Floats | None = None,
        epsilons: Floats | None = None,
        seen: Callable[[Rows, Any], None] | None = None,
    ) -> Evidence:
        """Of releases in the order they were made.

        Releases in batches are refused: the likelihood of a path joins several symbols, which this log has no place
        for. Release in blocks or one by one what shall be learned from.

        Users are numbered from 0; of blocks `epsilons` are those of the record, which say where one was cut; `seen`
        gets the users of each round with their releases as an observer sees them.
        """
        if setting.in_batches:
            raise InputError("a release in batches cannot be learned from; release in blocks or one by one")
        cases, followed, known = CaseReader(setting), Followed(setting), 0
        tables, index = [np.zeros((0, setting.model.n))], np.empty((users.size, cases.count), np.int64)
        links = np.zeros(users.size, np.int64)
        for turn, made in followed.observe(users, codes, times, epsilons):
            if seen is not None:
                seen(users[turn], made)
            after = followed.state.take(users[turn])
            rows, links[turn] = cases.read(made, after.trackers, after.steps - 1)
            flat = np.ascontiguousarray(rows).reshape(-1, setting.model.n)
            # many of the rows that come together are alike: such stand once
            _, first, which = np.unique(flat.view(f"V{flat[0].nbytes}").ravel(), return_index=True, return_inverse=True)
            tables.append(flat[first])
            index[turn], known = known + which.reshape(-1, cases.count), known + first.size
        whole = np.concatenate(tables), users.astype(np.int64)
        return cls(*whole, index[:, 0]) if cases.count == 1 else cls(*whole, index, links, np.stack(cases.joins))

    def of_users(self, chosen: NDArray[np.bool_]) -> Evidence:
        """The events of the users for which `chosen` is true."""
        kept = chosen[self.users]
        links = None if self.links is None else self.links[kept]
        return replace(self, users=self.users[kept], index=self.index[kept], links=links)

    def cut(self, length: int) -> Evidence:
        """The same events with every stream cut into pieces of at most `length`, each a user of its own.

        A piece goes on until an event at which it does not matter what the case was: a block stays whole.
        """
        lengths = np.bincount(self.users)
        if lengths.max(initial=0) <= length:
            return self
        order = np.argsort(self.users, kind="stable")
        place = np.empty(self.events, np.int64)
        place[order] = places_within(lengths)
        if self.joins is not None and self.links is not None:
            fresh = (self.joins == self.joins[:, :1]).all((1, 2, 3))[self.links[order]] | (place[order] == 0)
            place[order] = place[order][np.maximum.accumulate(np.where(fresh, np.arange(self.events), 0))]
        pieces = -(-lengths // length)
        return replace(self, users=(np.cumsum(pieces) - pieces)[self.users] + place // length)

    def says(self, at: Ints, shown: Ints) -> Says:
        """What some events (U,) say of states that show these symbols (S,)."""
        likely = self.table[self.index[at].reshape(at.size, self.cases)]
        likely = likely if shown.size == self.n else np.take(likely, shown, axis=-1)
        return Says(likely, None if self.links is None else self.links[at], self.joins, shown)


class CaseReader:
    """The cases that releases follow beside the symbol, as events come; a stream begins in the first of them."""

    def __init__(self, setting: Terms) -> None:
        self.setting, self._numbers = setting, dict[int, int]()
        self.count = 2 if setting.in_blocks else dial_of(setting).rows if setting.remembered else 1
        stays = np.broadcast_to(np.eye(self.count)[:, :, None], (self.count, self.count, setting.model.n))
        self.joins = [stays, np.ones(stays.shape)] if setting.in_blocks else [stays]

    def read(self, seen: Any, trackers: Any, steps: Ints) -> tuple[Floats, Ints]:
        """What releases say in each case, (B, K, n), and the number of the join at each event, (B,).

        `trackers` are the accounts of the secrets in each stream, and `steps` the number of the event.
        """
        if self.setting.in_blocks:
            said, weights, begins = seen.cases
            return said * np.where(begins[:, None], weights, 1.0)[:, :, None], begins.astype(np.int64)
        rows = (seen.remembered / float(DENOMINATOR)).reshape(len(seen.codes), self.count, -1)
        if self.count == 1:
            return rows, np.zeros(len(rows), np.int64)
        places = zip(trackers, steps.tolist(), strict=True)
        return rows, np.array([self._number(tracker.users.automata, step) for tracker, step in places], np.int64)

    def _number(self, automata: Any, step: int) -> int:
        """The join of an event at which the automata read the symbol; those alike have one number."""
        target = automata.target(step)
        if id(target) not in self._numbers:
            self._numbers[id(target)] = len(self.joins)
            self.joins.append(np.eye(self.count)[automata.by_symbol(step)].transpose(0, 2, 1))
        return self._numbers[id(target)]


@dataclass(frozen=True, eq=False)
class Says:
    """What an event says of streams side by side in each of K cases, and how the case goes on there."""

    rows: Floats  # (U, K, S) by the state of a chain
    links: Ints | None = None  # (U,) join of each; None where there is one case
    joins: Sequence[Floats] | Floats | None = None  # (L, K, K, n)
    shown: Ints | None = None  # (S,) the symbol of each state

    def __len__(self) -> int:
        return len(self.rows)

    def onward(self, values: Floats) -> Floats:
        """Weights (..., U, K, S) by the case before the event, as those by the case at it."""
        return self._joined(values, (0, 1, 2))

    def back(self, values: Floats) -> Floats:
        """Likelihoods (..., U, K, S) by the case at the event, as those by the case before it."""
        return self._joined(values, (1, 0, 2))

    @cached_property
    def _kinds(self) -> list[tuple[NDArray[np.bool_] | slice, Ints, Floats]]:
        """Streams whose case may change at the event, those of one join together; the states that may, and the join."""
        if self.links is None or self.joins is None or self.shown is None or not self.links.any():
            return []
        kinds, found = self.links[:1].tolist(), []
        if (self.links != kinds[0]).any():
            kinds = np.unique(self.links).tolist()
        for kind in filter(None, kinds):  # the first leaves all as it is
            join = self.joins[kind][..., self.shown]
            changed = np.flatnonzero((join != np.eye(len(join))[:, :, None]).any((0, 1)))
            found.append((slice(None) if len(kinds) == 1 else self.links == kind, changed, join[..., changed]))
        return found

    def _joined(self, values: Floats, axes: tuple[int, int, int]) -> Floats:
        """Sums over the first case of each join, its axes in this order."""
        found = values.copy() if self._kinds else values
        for rows, changed, join in self._kinds:
            mine, onto = found[..., rows, :, :], join.transpose(axes)
            before = mine[..., changed]
            mine[..., changed] = sum(before[..., case, None, :] * onto[case] for case in range(len(onto)))
            found[..., rows, :, :] = mine
        return found


def going_back(
    later: Floats, said: Sequence[Says], pull: Callable[[Floats], Floats], scales: Sequence[Floats] | None = None
) -> Iterator[tuple[int, Floats]]:
    """Back from the last event: each step, and the likelihood of the next event and all later by the state there.

    `later` (U, K·S), ones at first, becomes the likelihood of all releases after the step by the state at it; what a
    caller changes in it counts from there on. A stream that has ended has ones. With the `scales` of the way forward
    likelihoods are exact; without them each row's largest is 1.
    """
    for t in range(len(said) - 2, -1, -1):
        says = said[t + 1]
        going = later[: len(says)]
        ahead = says.back(going.reshape(says.rows.shape) * says.rows).reshape(going.shape)
        ahead /= np.maximum(ahead.max(-1, keepdims=True), filtering.TINY) if scales is None else scales[t + 1][:, None]
        going[:] = pull(ahead)
        yield t, ahead


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain of order 1 as full tables: the distribution of the first state (S,), and a row a state (S, S).

    Several as one have an axis more in front.
    """

    first: Floats
    rows: Floats

    @property
    def n(self) -> int:
        """How many states there are."""
        return int(self.first.shape[-1])

    def part(self, chosen: slice) -> Chain:
        """Some of several."""
        return Chain(self.first[chosen], self.rows[chosen])

    @classmethod
    def uniform(cls, n: int) -> Chain:
        """The chain in which nothing is likelier than anything else."""
        return cls(np.full(n, 1.0 / n), np.full((n, n), 1.0 / n))

    @classmethod
    def of(cls, model: MarkovModel) -> Chain:
        """The chain of everyone together: where people are after a while, whatever their type or what they did before,
        and what they do next."""
        settled = model.initial
        for _ in range(SETTLED if model.size > model.n else 0):
            settled = model.advance(settled)
        share = np.zeros((model.n, model.size))
        share[model.newest, np.arange(model.size)] = settled + np.finfo(float).tiny
        rows = filtering.symbols(model, model.advance(share / share.sum(1, keepdims=True)))
        return cls(model.prior, rows / rows.sum(1, keepdims=True))

    def model(self, names: Symbols) -> MarkovModel:
        """The chain as a model over these symbols."""
        return MarkovModel(self.first, self.rows, alphabet=names)


def distribution(weights: Floats, floor: float) -> Floats:
    """The weights as a distribution, or one a row, in which nothing has less than `floor` of the sum."""
    lifted = np.maximum(weights, floor * weights.sum(-1, keepdims=True))
    return lifted / lifted.sum(-1, keepdims=True)


class Walk:
    """A block of streams, users with long streams first, under one chain after another.

    A distribution of streams lies as (U, K·S), by case and state. Where states are more than symbols, `newest` says
    which symbol each shows.
    """

    chain: Chain  # the one that `forward` went by last

    def __init__(self, evidence: Evidence, places: Ints, lengths: Ints, newest: Ints | None = None) -> None:
        """`places` (U, T) are the streams' events in the evidence, any past a stream's end."""
        self.cases, self.joins, self.places, self.lengths = evidence.cases, evidence.joins, places, lengths
        self.shown = np.arange(evidence.n) if newest is None else newest
        self.said = [evidence.says(places[lengths > t, t], self.shown) for t in range(places.shape[1])]

    def forward(self, chain: Chain) -> Floats:
        """log Pr(releases) a user, (U,) or under several chains (G, U); keeps the distributions for the way back."""
        self.chain, self.distributions, self.scales = chain, list[Floats](), list[Floats]()
        several, users = chain.first.shape[:-1], self.lengths.size
        log, begun = np.zeros((*several, users)), np.zeros((*several, users, self.cases, chain.n))
        begun[..., 0, :] = chain.first[..., None, :]
        joint = (self.said[0].onward(begun) * self.said[0].rows).reshape(*several, users, -1)
        with np.errstate(divide="ignore", invalid="ignore"):
            for t, says in enumerate(self.said):
                joint = self._onward(joint[..., : len(says), :], says) if t else joint
                scale = joint.sum(-1)
                joint /= scale[..., None]
                if not (scale > 0).all():
                    raise InputError(IMPOSSIBLE)
                log[..., : len(says)] += np.log(scale)
                self.distributions.append(joint)
                self.scales.append(scale)
        return log

    def counts(self, apart: bool = False) -> tuple[Floats, Floats]:
        """Expected firsts and moves (the latter still to be multiplied by the rows), together or user by user."""
        users, n, cases = self.lengths.size, self.chain.n, self.cases
        moves, later = np.zeros((users, n, n) if apart else (n, n)), np.ones_like(self.distributions[0])
        for at, after in going_back(later, self.said, self._pull, self.scales):
            going = len(after)
            before = self.distributions[at][:going]
            if apart:
                by_case = before.reshape(going, cases, n).transpose(0, 2, 1)
                moves[:going] += by_case @ after.reshape(going, cases, n)
            else:
                moves += before.reshape(-1, n).T @ after.reshape(-1, n)
        first = (self.distributions[0] * later).reshape(users, cases, n).sum(1)
        return first if apart else first.sum(0), moves

    def sample(self, generator: np.random.Generator, each: int) -> Ints:
        """So many truths for each stream under each of the several chains, drawn backward: (T, each, G, U).

        All go side by side, for a step of few rows takes little less than one of many. What lies past the end of a
        stream is not to be read.
        """
        cases, (chains, n), users = self.cases, self.chain.first.shape, self.lengths.size
        towards = np.ascontiguousarray(self.chain.rows.transpose(0, 2, 1)).reshape(-1, n)
        truth, number = np.zeros((len(self.said), each, chains, users), np.int64), n * np.arange(chains)[:, None]
        after, case = 0, np.zeros((each, chains, 0), np.int64)  # streams that go on, and their case
        for t in range(len(self.said) - 1, -1, -1):
            now = self.distributions[t].reshape(chains, -1, cases, n)
            running = np.tile(now, (each, 1, 1, 1, 1))
            if after:
                ahead, following = running[:, :, :after], truth[t + 1, :, :, :after]
                ahead *= np.take(towards, following + number, axis=0)[..., None, :]
                links = self.said[t + 1].links
                if links is not None and self.joins is not None:
                    symbol = self.shown[following, None]
                    ahead *= self.joins[links[:, None], np.arange(cases), case[..., None], symbol][..., None]
            flat, after = running.reshape(-1, cases * n), now.shape[1]
            if len(flat) < FEW_ROWS:
                np.cumsum(flat, axis=1, out=flat)
            else:
                for k in range(1, cases * n):  # many times sooner than a sum along each of many short rows
                    flat[:, k] += flat[:, k - 1]
            uniform = generator.random(len(flat)) * flat[:, -1]
            flat[:, -1] = np.inf
            chosen = (flat > uniform[:, None]).argmax(1).reshape(each, chains, after)
            case, truth[t, :, :, :after] = np.divmod(chosen, n) if cases > 1 else (case, chosen)
        return truth

    def _onward(self, distribution: Floats, says: Says) -> Floats:
        """The distribution one move on, times what the event there says."""
        n, several = self.chain.n, self.chain.first.shape[:-1]
        moved = (distribution.reshape(*several, -1, n) @ self.chain.rows).reshape(*several, len(says), -1, n)
        return (says.onward(moved) * says.rows).reshape(*several, len(says), -1)

    def _pull(self, value: Floats) -> Floats:
        """What comes with an event, by the state before it."""
        return (value.reshape(-1, self.chain.n) @ self.chain.rows.T).reshape(value.shape)


@dataclass(frozen=True, eq=False)
class ExpectedStatistics:
    """Expected counts behind some releases under one chain."""

    first: Floats  # (n,)
    moves: Floats  # (n, n)
    log_likelihood: float
    users: int
    events: int


def expect(evidence: Evidence, chain: Chain) -> ExpectedStatistics:
    """Expected counts of all users together.

    >>> sure = Evidence(np.eye(2), np.array([0, 0, 0]), np.array([0, 0, 1]))
    >>> expect(sure, Chain.uniform(2)).moves.tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    first, moves, total = np.zeros(chain.first.shape), np.zeros(chain.rows.shape), 0.0
    for walk in _walks(evidence, chain):
        total += float(walk.forward(chain).sum())
        first_part, moves_part = walk.counts()
        first += first_part
        moves += moves_part
    return ExpectedStatistics(first, moves * chain.rows, total, evidence.people, evidence.events)


def likelihoods(evidence: Evidence, chain: Chain) -> Floats:
    """log Pr(releases) of every user, longest stream first; users of equal length in the order of their numbers."""
    return np.concatenate([walk.forward(chain) for walk in _walks(evidence, chain)])


def by_user(evidence: Evidence, chain: Chain) -> Iterator[tuple[Floats, Floats]]:
    """Expected counts user by user, firsts (U, n) and moves (U, n, n), of one block of users after another."""
    for walk in _walks(evidence, chain):
        walk.forward(chain)
        first, moved = walk.counts(apart=True)
        yield first, moved * chain.rows


def _walks(evidence: Evidence, chain: Chain) -> Iterable[Walk]:
    """All streams, a block at a time; evidence over other symbols, and none at all, is refused."""
    if evidence.n != chain.n:
        raise InputError(f"expected evidence over {chain.n} symbols, got {evidence.n}")
    if not evidence.events:
        raise InputError("there is nothing to learn from: the evidence holds no events")
    return evidence.walks if evidence.events * evidence.cases * evidence.n <= KEPT else evidence.blocks()
