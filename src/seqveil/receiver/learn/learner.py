"""A chain or types of people from releases, at once or little by little: expectation–maximisation with a prior.

At a modest ε a log says little about single transitions and much about the whole: whether people stay, move to what
lies next, or jump anywhere. So first a family with a few numbers is fitted,

    F = stay·I + near·N + jump·1π,       N: a step to a neighbour, where the symbols are bins or cells of a grid,

then every row of the chain gets a Dirichlet prior of `strength` pseudo-moves spread as its row of F, and EM climbs to
the top of likelihood × prior. Rows that the log says little about stay close to the family. Over a large alphabet whose
possible moves are few, `sparse_learn` climbs on the states of a sparse model instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering, geography
from seqveil.core.alphabet import Bins, Grid, Symbols
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats
from seqveil.core.model import MarkovModel, symbols_of
from seqveil.core.states import States
from seqveil.receiver.learn.evidence import Evidence
from seqveil.receiver.learn.expected import Chain, Statistics, check, expect, law, likelihoods, walked
from seqveil.receiver.learn.types import FLOOR, Climb, Types, climb, climb_types, maximise, split

ROUNDS, TOLERANCE = 150, 1e-6
# Pseudo-moves a row, tried on held-out users. With much fewer, rare symbols come to stand for kinds of people: that
# foretells releases of a small ε a little better, and what people do a little worse.
STRENGTHS = (30.0, 300.0)
USUAL = 30.0  # where there are too few users to try
TRIED = 4000  # users that the strengths are tried on
PART = 5  # every fifth user is held out
PIECE = 100  # events: longer streams are cut for the climb, which loses one move a piece and saves many steps
FAMILY_ROUNDS = 40
BLOCK = 1 << 21  # numbers of one block's forward laws, and of one block's moves
LARGEST = 1 << 22  # numbers of a full table


@dataclass(frozen=True)
class HeldOut:
    """How well chains learned from some users foretell the releases of others.

    `log_evidence` is the log of an e-value: were the rival chain (by default: no context, all symbols alike at every
    step) the truth, it would pass log(1/a) with probability at most a.
    """

    users: int
    events: int
    gain: float  # nats an event over the rival
    error: float  # its standard error over users
    log_evidence: float

    @property
    def earned(self) -> bool:
        """Foretells better, beyond chance: one in ten thousand were the rival true, and two standard errors."""
        return self.log_evidence > math.log(1e4) and self.gain > 2 * self.error


@dataclass(frozen=True, eq=False)
class Learned:
    """A chain learned from releases, how EM ended, and what speaks for it."""

    model: MarkovModel
    chain: Chain
    centre: Chain  # of the Dirichlet prior
    strength: float
    found: Statistics
    rounds: int
    change: float  # of the penalised log-likelihood in the last round, nats an event
    converged: bool
    held_out: HeldOut | None  # None where there were too few users to hold any out
    types: Types | None = None  # where the model is a mixture, which beat the chain on held-out users

    def __repr__(self) -> str:
        ended = "converged" if self.converged else f"still moving by {self.change:.1e} nats an event"
        return f"Learned({self.found.users} users, {self.found.events} releases, {self.rounds} rounds, {ended})"


def learn(
    evidence: Evidence,
    alphabet: Symbols | Sequence[Any] | None = None,
    order: int = 1,
    *,
    start: MarkovModel | Chain | None = None,
    strength: float | None = None,
    rival: MarkovModel | Chain | None = None,
    rounds: int = ROUNDS,
    tolerance: float = TOLERANCE,
    types: int = 1,
) -> Learned:
    """The chain most likely behind the releases, given a Dirichlet prior.

    max over P of log Σ_x Pr_P(x) Π_k Q(y_k|x_k) + strength · Σ_s Σ_z F(z|s) log P(z|s), by EM.

    *Guarantee*: post-processing. The input holds releases and public numbers only, so it costs no budget, however often
    it is done; the chain rules no transition out.

    Parameters: `alphabet` names the symbols (codes 0..n-1 without); `order` m looks m symbols back, its prior being the
    chain of order m-1; `start` is a chain of order 1 that takes the place of the fitted family F, as for a single user
    whose prior is the population; `strength` in pseudo-moves a row is otherwise tried on held-out users; `rival` is
    what the held-out gain is measured against (no context by default, the present model for a successor).

    With `types` the chain is split into so many, one for each type of person (`learn.types`). The mixture is taken
    where it foretells the releases of held-out users better than the chain, beyond chance; else the chain is. A mixture
    as `start`, of order 1 and from public data, gives its types to begin with.

    >>> truth = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
    >>> from seqveil import Setting, Streams
    >>> from seqveil.core.coins import SeededCoins
    >>> none = MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
    >>> setting = Setting.of(none, "randomized_response", epsilon=1.0)
    >>> streams, raw = Streams(setting, coins=SeededCoins(2)), truth.sample(40, users=500, seed=1)
    >>> released = np.stack([streams.release(range(500), x).codes for x in raw.T], axis=1)
    >>> learned = learn(Evidence.of(setting, released))
    >>> learned.model.chain.toarray().round(1).tolist(), learned.held_out.earned
    ([[0.9, 0.1], [0.2, 0.8]], True)

    Reference: Baum, Petrie, Soules, Weiss 1970; docs/theory.md, section 10.
    """
    names = symbols_of(alphabet, evidence.n)
    mixture = Types.of(start) if isinstance(start, MarkovModel) and start.types > 1 else None
    types = check_types(types, order) if mixture is None else len(mixture.chains)
    start = None if mixture is not None else start
    if evidence.n ** (order + 1) > LARGEST:
        raise InputError(
            f"a chain of order {order} over {evidence.n} symbols is too large a table; learn with sparse_learn from a "
            "start that says which moves can occur"
        )
    centre = Chain.of(start) if start is not None else family(_some(evidence).cut(PIECE), names)
    against = _rival(rival, evidence.n)
    found: tuple[float, HeldOut | None] = (strength or USUAL, None)
    for level in range(1, order + 1):
        centre = centre.deeper(level)
        found = _try(evidence, centre, strength, against)
        near = climb(_some(evidence).cut(PIECE), centre, centre, found[0], rounds, tolerance)
        whole_log = evidence.people > TRIED  # most of the way was made on some of the users
        end = climb(evidence.cut(PIECE), near.chain, centre, found[0], rounds, tolerance) if whole_log else near
        prior, centre = centre, end.chain
    whole = expect(evidence, end.chain)
    chain = Chain(maximise(whole, prior, found[0]).first, end.chain.rows)  # first symbols are those of whole streams
    model = chain.model(names)
    learned = Learned(model, chain, prior, found[0], whole, end.rounds, end.change, end.converged, found[1])
    return learned if types == 1 else _with_types(evidence, names, learned, types, mixture, against)


def check_types(types: int, order: int = 1) -> int:
    """The number of types, refused where it is none, or where each type would have a chain of a higher order."""
    if isinstance(types, bool) or not isinstance(types, int | np.integer) or types < 1:
        raise InputError(f"expected types to be a whole number ≥ 1, got {types!r}")
    if types > 1 and order != 1:
        raise InputError(f"types are learned from releases with chains of order 1, got order {order}; leave one out")
    return int(types)


def _rival(rival: MarkovModel | Chain | None, n: int) -> MarkovModel | Chain:
    """What the gain is measured against: a chain, or a mixture as it is."""
    if rival is None:
        return Chain.uniform(n)
    return rival if isinstance(rival, MarkovModel) and rival.types > 1 else Chain.of(rival)


def _with_types(
    evidence: Evidence,
    names: Symbols,
    learned: Learned,
    count: int,
    public: Types | None,
    rival: MarkovModel | Chain,
) -> Learned:
    """The mixture in place of the chain, where it foretells held-out users better than the chain, beyond chance.

    A type is that of a whole stream, so streams are not cut, and there must be enough of them to hold some out.
    """
    some = _some(evidence)
    last = _every(some, PART)
    if some.people < 2 * PART * count:
        return learned
    rest, others = some.of_users(~last), some.of_users(last)
    chain = climb(rest.cut(PIECE), learned.centre, learned.centre, learned.strength, 30, 1e-6).chain
    tried = _types(rest, chain, count, learned.strength, public).types.model(names)
    if not held_out(others, [tried], chain).earned:
        return learned
    end = _types(evidence, learned.chain, count, learned.strength, public)
    model, told = end.types.model(names), held_out(others, [tried], rival)
    how: dict[str, Any] = {"rounds": end.rounds, "change": end.change, "converged": end.converged, "held_out": told}
    return replace(learned, model=model, types=end.types, **how)


def _types(evidence: Evidence, chain: Chain, count: int, strength: float, public: Types | None) -> Climb:
    firm = min(strength, USUAL)  # a chain of everyone that is held too firmly leaves no room for types
    if public is None:
        return split(evidence, chain, count, firm)
    return climb_types(evidence, public, public.chains, firm)


class Learner:
    """Learns as releases come in: stepwise EM over blocks of users, from statistics that add up.

    Each block's expected counts are taken under the present chain and blended in, S ← (1-g)·S + g·(U/u)·S_block for a
    block of u of U users so far, with g = max(u/U, (blocks + 2)^-0.7): early blocks, counted under a poor chain, fade.

    >>> learner = Learner(n=2)
    >>> learner.add(Evidence(np.eye(2), np.repeat(np.arange(9), 9), np.tile([0, 0, 0, 1, 1, 1, 0, 0, 0], 9)))
    >>> learner.model.chain.toarray().round(1).tolist(), learner.users
    ([[0.8, 0.2], [0.4, 0.6]], 9)

    Reference: Cappé, Moulines, *On-line expectation–maximization for latent data models*, JRSS B 2009.
    """

    def __init__(
        self,
        alphabet: Symbols | Sequence[Any] | None = None,
        n: int | None = None,
        order: int = 1,
        strength: float | None = None,
    ) -> None:
        self._names = symbols_of(alphabet, n)
        self._order, self._strength = order, strength
        self._learned: Learned | None = None
        self._blocks = 0

    @property
    def users(self) -> int:
        """How many users the model was learned from."""
        return 0 if self._learned is None else self._learned.found.users

    @property
    def learned(self) -> Learned:
        """What was learned so far; `held_out` is of the first block."""
        if self._learned is None:
            raise InputError("nothing was learned yet; add evidence first")
        return self._learned

    @property
    def model(self) -> MarkovModel:
        """The model learned so far."""
        return self.learned.model

    def add(self, evidence: Evidence) -> None:
        """Learn from a block of new users; the first one is learned in full."""
        self._blocks += 1
        if self._learned is None:
            self._learned = learn(evidence, self._names, self._order, strength=self._strength)
            return
        fresh = expect(evidence, self._learned.chain)
        self._blend(fresh, max(fresh.users / (self.users + fresh.users), (self._blocks + 2) ** -0.7))

    def merge(self, statistics: Statistics) -> None:
        """Blend in what another machine expects of its users under the present chain (`expect`), each user alike."""
        if statistics.moves.shape != self.learned.chain.rows.shape:
            raise InputError("expected statistics of a chain of the same order over the same symbols")
        self._blocks += 1
        self._blend(statistics, statistics.users / (self.users + statistics.users))

    def _blend(self, fresh: Statistics, weight: float) -> None:
        before = self.learned
        users = before.found.users + fresh.users
        old = before.found.scaled((1 - weight) * users / before.found.users)
        total = old + fresh.scaled(weight * users / fresh.users)
        chain = maximise(total, before.centre, before.strength)
        change = float(np.abs(chain.rows - before.chain.rows).sum(1).max() / 2)
        model = chain.model(self._names)
        ended = (total, before.rounds + 1, change, False, before.held_out)
        self._learned = Learned(model, chain, before.centre, before.strength, *ended)


def held_out(evidence: Evidence, chains: Sequence[Chain | MarkovModel], rival: Chain | MarkovModel) -> HeldOut:
    """What releases of users that none of the chains was learned from say for the chains, on average.

    The e-value is the mean of the likelihood ratios, one a chain, so trying several is paid for.
    """
    base = likelihoods(evidence, rival)
    gains = np.stack([likelihoods(evidence, chain) - base for chain in chains])
    totals = gains.sum(1)
    best = gains[int(totals.argmax())]
    spread = float(best.std(ddof=1)) * math.sqrt(best.size) if best.size > 1 else math.inf
    log_mean = float(np.logaddexp.reduce(totals)) - math.log(len(chains))
    return HeldOut(best.size, evidence.events, float(best.sum()) / evidence.events, spread / evidence.events, log_mean)


def _try(
    evidence: Evidence, centre: Chain, strength: float | None, rival: Chain | MarkovModel
) -> tuple[float, HeldOut | None]:
    """The strength whose chain, learned from four fifths of some users, foretells the releases of the rest best."""
    some = _some(evidence)
    if some.people < 2 * PART:
        some = some.cut(min(PIECE, max(10, some.events // 50)))  # of few users, hold out pieces of their streams
    last = _every(some, PART)
    if not last.any() or some.people < 2 * PART:
        return (USUAL if strength is None else strength), None
    rest, others = some.of_users(~last), some.of_users(last)
    tried = STRENGTHS if strength is None else (strength,)
    chains = [climb(rest.cut(PIECE), centre, centre, each, 30, 1e-6).chain for each in tried]
    scores = [float(likelihoods(others, chain).sum()) for chain in chains]
    against = rival.deeper(centre.order) if isinstance(rival, Chain) else rival
    return tried[int(np.argmax(scores))], held_out(others, chains, against)


def _some(evidence: Evidence) -> Evidence:
    """At most TRIED users, spread over all."""
    step = -(-evidence.people // TRIED)
    return evidence if step <= 1 else evidence.of_users(_every(evidence, step))


def _every(evidence: Evidence, step: int) -> NDArray[np.bool_]:
    """Every step-th of the users that have events, as a mask over user numbers."""
    numbers = np.unique(evidence.users)
    mask = np.zeros(int(numbers.max(initial=-1)) + 1, bool)
    mask[numbers[step - 1 :: step]] = True
    return mask


def family(evidence: Evidence, alphabet: Symbols | None, rounds: int = FAMILY_ROUNDS) -> Chain:
    """The best chain of order 1 in the family: a few shares and one law of where jumps go.

    >>> from seqveil.core.model import MarkovModel
    >>> walk = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]).sample(50, users=50, seed=1)
    >>> raw = Evidence(np.eye(2), np.repeat(np.arange(50), 50), walk.ravel())
    >>> family(raw, None).rows.round(1).tolist()
    [[0.9, 0.1], [0.1, 0.9]]
    """
    n = evidence.n
    shapes = [np.eye(n), *near(alphabet)]
    shares, base = np.full(len(shapes), 0.5 / len(shapes)), np.full(n, 1.0 / n)
    for _ in range(rounds):
        rows = sum((share * shape for share, shape in zip(shares, shapes, strict=True)), np.zeros((n, n)))
        rows = rows + (1.0 - shares.sum()) * base
        found = expect(evidence, Chain(base, rows))
        total = found.moves.sum()
        ratio = found.moves / np.maximum(rows, FLOOR)
        jumps = (ratio * (1.0 - shares.sum())).sum(0) * base
        base = law(jumps + found.first + 1.0 / n, FLOOR)
        if total:
            shares = np.array([share * (ratio * shape).sum() for share, shape in zip(shares, shapes, strict=True)])
            shares = shares / (total + 2.0)  # two pseudo-moves that jump: nothing is ever ruled out
    rows = sum((share * shape for share, shape in zip(shares, shapes, strict=True)), np.zeros((n, n)))
    return Chain(base, law(rows + (1.0 - shares.sum()) * base, FLOOR))


def near(alphabet: Symbols | None) -> list[Floats]:
    """A step to one of the closest other symbols, for bins of a number and cells of a grid: one matrix, or none."""
    points = alphabet.points if isinstance(alphabet, Bins | Grid) else None
    if alphabet is not None and alphabet.on_map and alphabet.points is not None:
        points = geography.plane(alphabet.points)
    if points is None or len(points) < 3:
        return []
    place = np.asarray(points, np.float64).reshape(len(points), -1)
    if place.shape[1] == 1:  # a line: the next on either side, whatever the gaps
        rank = np.argsort(np.argsort(place[:, 0], kind="stable"), kind="stable")
        beside = np.abs(rank[:, None] - rank) == 1
    else:
        apart = np.sqrt(((place[:, None] - place) ** 2).sum(2))
        np.fill_diagonal(apart, np.inf)
        beside = apart <= apart.min(1, keepdims=True) * 1.01
    return [beside / beside.sum(1, keepdims=True)]


def sparse_learn(
    evidence: Evidence, start: MarkovModel, strength: float = 30.0, rounds: int = 50, tolerance: float = 1e-6
) -> tuple[MarkovModel, list[float]]:
    """The chain most likely behind the releases among those that move only where `start` does; any order.

    As `learn`, with the Dirichlet prior centred on `start`: each round takes chain[s, s'] in proportion to expected
    moves + strength · start[s, s'], within the share that `start` leaves to its chain. Back-off shares and their law
    stay as they are. Costs O(users · length · moves) a round and O(moves) memory beside the block.

    Returns the model and the log-likelihood an event under each round's chain, which never falls but for the prior.

    >>> ring = np.roll(np.eye(4), 1, axis=1) * 0.5 + np.eye(4) * 0.5
    >>> walk = MarkovModel(np.full(4, 0.25), np.roll(np.eye(4), 1, axis=1) * 0.9 + np.eye(4) * 0.1).sample(30, 50, 1)
    >>> raw = Evidence(np.eye(4), np.repeat(np.arange(50), 30), walk.ravel())
    >>> model, path = sparse_learn(raw, MarkovModel(np.full(4, 0.25), ring), strength=1.0)
    >>> model.chain.toarray()[0].round(1).tolist(), path[-1] > path[0]
    ([0.1, 0.9, 0.0, 0.0], True)
    """
    check(evidence, start.n)
    model, path = start, list[float]()
    while len(path) < rounds and (len(path) < 2 or path[-1] - path[-2] > tolerance):
        first, moves, likelihood = _expect(evidence, model)
        path.append(likelihood / evidence.events)
        model = _maximise(model, start, first, moves, strength)
    return model, path


def _expect(evidence: Evidence, model: MarkovModel) -> tuple[Floats, Floats, float]:
    """Expected first states (S,), expected moves along each entry of the chain, log-likelihood."""
    sources = np.repeat(np.arange(model.size), np.diff(model.chain.indptr))
    first, moves, total = np.zeros(model.size), np.zeros(model.chain.nnz), 0.0
    for log, steps in walked(evidence, model, BLOCK, keep=True):
        total += float(log.sum())
        later = np.ones((log.size, model.size))
        for (before, _), (posterior, lift) in reversed(list(itertools.pairwise(steps))):
            going = len(posterior)
            value = later[:going] * lift
            moves += (before[:going, sources] * value[:, model.chain.indices]).sum(0)
            later[:going] = filtering.pull(model, value)
        first += (steps[0][0] * later).sum(0)
    return first, moves * model.chain.data, total


def _maximise(model: MarkovModel, start: MarkovModel, first: Floats, moves: Floats, strength: float) -> MarkovModel:
    """The model that expected counts and the prior around `start` ask for, with the moves of `start` alone."""
    from scipy import sparse

    weights = moves + strength * start.chain.data
    rows = np.repeat(np.arange(model.size), np.diff(model.chain.indptr))
    totals = np.bincount(rows, weights, minlength=model.size)
    data = weights / totals[rows] * (1.0 - model.backoff)[rows]
    parts = (data, model.chain.indices.copy(), model.chain.indptr.copy())
    opening = first + strength * start.initial
    states = States(
        model.order,
        model.n,
        opening / opening.sum(),
        sparse.csr_array(parts, shape=model.chain.shape),
        model.backoff.copy(),
        model.base.copy(),
        model.base_state.copy(),
        model.newest.copy(),
        model.types,
    )
    return MarkovModel._of(states, model.alphabet)
