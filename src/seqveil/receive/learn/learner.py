"""A chain from releases: all at once, or little by little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats
from seqveil.core.model import MarkovModel
from seqveil.core.symbols import Symbols
from seqveil.receive.learn.evidence import Evidence
from seqveil.receive.learn.expect import Statistics, expect, likelihoods
from seqveil.receive.learn.fitting import climb, family, maximise
from seqveil.receive.learn.walk import Chain

ROUNDS, TOLERANCE = 150, 1e-6
# Pseudo-moves a row, tried on held-out users. With much fewer, rare symbols come to stand for kinds of people: that
# foretells releases of a small ε a little better, and what people do a little worse.
STRENGTHS = (30.0, 300.0)
USUAL = 30.0  # where there are too few users to try
TRIED = 4000  # users that the strengths are tried on
PART = 5  # every fifth user is held out
PIECE = 100  # events: longer streams are cut for the climb, which loses one move a piece and saves many steps
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
) -> Learned:
    """The chain most likely behind the releases, given a Dirichlet prior.

    max over P of log Σ_x Pr_P(x) Π_k Q(y_k|x_k) + strength · Σ_s Σ_z F(z|s) log P(z|s), by EM.

    *Guarantee*: post-processing. The input holds releases and public numbers only, so it costs no budget, however often
    it is done; the chain rules no transition out.

    Parameters: `alphabet` names the symbols (codes 0..n-1 without); `order` m looks m symbols back, its prior being the
    chain of order m-1; `start` is a chain of order 1 that takes the place of the fitted family F, as for a single user
    whose prior is the population; `strength` in pseudo-moves a row is otherwise tried on held-out users; `rival` is
    what the held-out gain is measured against (no context by default, the present model for a successor).

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
    names = _names(alphabet, evidence.n)
    if evidence.n ** (order + 1) > LARGEST:
        raise InputError(
            f"a chain of order {order} over {evidence.n} symbols is too large a table; learn with sparse_learn from a "
            "start that says which moves can occur"
        )
    centre = _chain(start) if start is not None else family(_some(evidence).cut(PIECE), names)
    against = Chain.uniform(evidence.n) if rival is None else _chain(rival)
    found: tuple[float, HeldOut | None] = (strength or USUAL, None)
    for level in range(1, order + 1):
        centre = centre.deeper() if level > 1 else centre
        found = _try(evidence, centre, strength, against)
        near = climb(_some(evidence).cut(PIECE), centre, centre, found[0], rounds, tolerance)
        whole_log = evidence.people > TRIED  # most of the way was made on some of the users
        end = climb(evidence.cut(PIECE), near.chain, centre, found[0], rounds, tolerance) if whole_log else near
        prior, centre = centre, end.chain
    whole = expect(evidence, end.chain)
    chain = Chain(maximise(whole, prior, found[0]).first, end.chain.rows)  # first symbols are those of whole streams
    model = _model(chain, names)
    return Learned(model, chain, prior, found[0], whole, end.rounds, end.change, end.converged, found[1])


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
        self._names = _names(alphabet, n)
        self._order, self._strength = order, strength
        self._learned: Learned | None = None
        self._blocks = 0

    @property
    def users(self) -> int:
        return 0 if self._learned is None else self._learned.found.users

    @property
    def learned(self) -> Learned:
        """What was learned so far; `held_out` is of the first block."""
        if self._learned is None:
            raise InputError("nothing was learned yet; add evidence first")
        return self._learned

    @property
    def model(self) -> MarkovModel:
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
        model = _model(chain, self._names)
        ended = (total, before.rounds + 1, change, False, before.held_out)
        self._learned = Learned(model, chain, before.centre, before.strength, *ended)


def held_out(evidence: Evidence, chains: Sequence[Chain], rival: Chain) -> HeldOut:
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


def _try(evidence: Evidence, centre: Chain, strength: float | None, rival: Chain) -> tuple[float, HeldOut | None]:
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
    return tried[int(np.argmax(scores))], held_out(others, chains, _as_deep(rival, centre.order))


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


def _as_deep(chain: Chain, order: int) -> Chain:
    while chain.order < order:
        chain = chain.deeper()
    return chain


def _chain(given: MarkovModel | Chain) -> Chain:
    if isinstance(given, Chain):
        return given
    if given.size != given.n:
        raise InputError(f"expected a chain of order 1 to start from, got {given}")
    rows = np.asarray(given.chain.todense()) + given.backoff[:, None] * given.base
    floor = 1e-9 / given.n
    return Chain(_lifted(given.prior, floor), _lifted(rows, floor))


def _lifted(law: Floats, floor: float) -> Floats:
    law = np.maximum(law, floor)
    lifted: Floats = law / law.sum(-1, keepdims=True)
    return lifted


def _names(alphabet: Symbols | Sequence[Any] | None, n: int | None) -> Symbols:
    if alphabet is None:
        if n is None:
            raise InputError("expected an alphabet, or n, the number of symbols")
        return Alphabet.codes(n)
    found = alphabet if isinstance(alphabet, Symbols) else Alphabet(alphabet)
    if n is not None and found.n != n:
        raise InputError(f"expected an alphabet of {n} symbols, got {found.n}")
    return found


def _model(chain: Chain, names: Symbols) -> MarkovModel:
    shape = (chain.n,) * chain.order
    return MarkovModel(chain.first.reshape(shape), chain.rows, chain.order, names)
