"""A chain from releases: expectation–maximisation with a prior. Post-processing, so it costs no budget.

At a modest ε a log says little about single transitions and much about the whole. So first a family with a few numbers
is fitted,

    F = stay·I + near·N + jump·1π,       N: a step to a neighbour, where the symbols are bins or cells of a grid,

then every row of the chain gets a Dirichlet prior of `strength` pseudo-moves spread as its row of F, and EM climbs to
the top of likelihood × prior. Rows that the log says little about stay close to the family.

How far off the chain may be (`posterior`): with rows P(·|s) = softmax(θ_s) and g_u the score of user u's releases,
expected moves - expected visits · P, the posterior of θ is about N(θ̂, A⁻¹),

    A = Σ_u g_u g_uᵀ + strength · Σ_s (diag P_s - P_s P_sᵀ),

which counts what the noise of the release hides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import geography
from seqveil.core.alphabet import Bins, Grid, Symbols, symbols_of
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats
from seqveil.core.model import MarkovModel
from seqveil.core.words import Line, Result, count, plain
from seqveil.receiver.evidence import Chain, Evidence, ExpectedStatistics, by_user, distribution, expect, likelihoods

ROUNDS, TOLERANCE = 150, 1e-6
# Pseudo-moves a row. With much fewer, rare symbols come to stand for kinds of people: that predicts releases of a small
# ε a little better, and what people do a little worse.
STRENGTH = 30.0
TRIED = 4000  # users that most of the way is made on
PART = 5  # every fifth user is held out
PIECE = 100  # events: longer streams are cut for the climb, which loses one move a piece and saves many steps
FAMILY_ROUNDS = 40
LARGEST = 1 << 22  # numbers of a full table
FASTEST = 8.0  # longest step of over-relaxed EM
FLOOR = 1e-12  # of a learned probability: a chain learned from releases rules nothing out
LEAST = 1e-6  # pseudo-moves a row without which the posterior has no end


@dataclass(frozen=True)
class HeldOut:
    """How well a chain learned from some users predicts the releases of others.

    `log_evidence` is the log of an e-value: were there no context, all symbols alike at every step, it would pass
    log(1/a) with probability at most a.
    """

    users: int
    events: int
    gain: float  # nats an event over no context
    error: float  # its standard error over users
    log_evidence: float

    @property
    def earned(self) -> bool:
        """Predicts better, beyond chance: one in ten thousand without any context, and two standard errors."""
        return self.log_evidence > math.log(1e4) and self.gain > 2 * self.error


@dataclass(frozen=True, eq=False, repr=False)
class Learned(Result):
    """A chain learned from releases, where EM came to, and what speaks for it."""

    model: MarkovModel
    found: ExpectedStatistics
    end: Climb
    held_out: HeldOut | None  # None where there were too few users to hold any out

    def to_dict(self) -> dict[str, Any]:
        """How it was learned, as plain values."""
        model, found, end, held_out = self.model, self.found, self.end, self.held_out
        facts: dict[str, Any] = {"users": found.users, "releases": found.events, "symbols": model.n}
        facts |= {"rounds": end.rounds, "converged": end.converged}
        facts |= {"order": model.order, "model": model.fingerprint}
        if held_out is not None:
            facts |= {"gain": held_out.gain, "gain_error": held_out.error}
            facts |= {"log_evidence": held_out.log_evidence, "earned": held_out.earned}
        return dict(plain(facts))

    def lines(self) -> list[Line]:
        """How it was learned, line by line."""
        end, held_out = self.end, self.held_out
        taken = f"{count(self.found.events, 'release')} of {count(self.found.users, 'user')}"
        ended = "converged" if end.converged else f"not converged: still {end.change:.1e} nats an event a round"
        said = [
            ("learned", f"{self.model!r} from {taken}"),
            ("EM", f"{count(end.rounds, 'round')}, {ended}"),
        ]
        if held_out is not None:
            beats = "beyond chance" if held_out.earned else "NOT beyond chance: keep releasing without it"
            gain = f"{held_out.gain:.4f} ± {held_out.error:.4f} nats an event over no context, {beats}"
            said.append(("held out", f"{count(held_out.users, 'user')}: {gain}"))
        return said


def learn(evidence: Evidence, alphabet: Symbols | Sequence[Any] | None = None) -> Learned:
    """The chain most likely behind the releases, given a Dirichlet prior.

    max over P of log Σ_x Pr_P(x) Π_k Q(y_k|x_k) + strength · Σ_s Σ_z F(z|s) log P(z|s), by EM.

    *Guarantee*: post-processing. The input holds releases and public numbers only, so it costs no budget, however often
    it is done; the chain rules no transition out.

    `alphabet` names the symbols (codes 0..n-1 without).

    Reference: Baum, Petrie, Soules, Weiss 1970; docs/theory.md, section 10.
    """
    names = symbols_of(range(evidence.n) if alphabet is None else alphabet)
    if evidence.n**2 > LARGEST:
        raise InputError(f"a chain over {evidence.n} symbols is too large a table to learn; use fewer symbols")
    centre = family(_some(evidence).cut(PIECE), names)
    end, whole = mode(evidence, centre, STRENGTH)
    return Learned(end.chain.model(names), whole, end, _tried(evidence, centre))


def mode(evidence: Evidence, centre: Chain, strength: float) -> tuple[Climb, ExpectedStatistics]:
    """The top of likelihood × prior, and the counts that the releases lead one to expect there."""
    end = climb(_some(evidence).cut(PIECE), centre, centre, strength)
    if evidence.people > TRIED:  # most of the way was made on some of the users
        end = climb(evidence.cut(PIECE), end.chain, centre, strength)
    whole = expect(evidence, end.chain)
    chain = Chain(maximise(whole, centre, strength).first, end.chain.rows)  # first symbols are those of whole streams
    return replace(end, chain=chain), whole


def held_out(evidence: Evidence, chain: Chain) -> HeldOut:
    """What releases of users that the chain was not learned from say for it, on average."""
    own = likelihoods(evidence, chain) - likelihoods(evidence, Chain.uniform(evidence.n))
    total, events = float(own.sum()), evidence.events
    spread = float(own.std(ddof=1)) * math.sqrt(own.size) if own.size > 1 else math.inf
    return HeldOut(own.size, events, total / events, spread / events, total)


def _tried(evidence: Evidence, centre: Chain) -> HeldOut | None:
    """How well a chain from four fifths of some users predicts the releases of the rest; None of too few users."""
    some = _some(evidence)
    if some.people < 2 * PART:
        some = some.cut(min(PIECE, max(10, some.events // 50)))  # of few users, hold out pieces of their streams
    last = _every(some, PART)
    if not last.any() or some.people < 2 * PART:
        return None
    rest, others = some.of_users(~last), some.of_users(last)
    return held_out(others, climb(rest.cut(PIECE), centre, centre, STRENGTH, 30).chain)


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


def family(evidence: Evidence, alphabet: Symbols) -> Chain:
    """The best chain of order 1 in the family: a few shares and one distribution of where jumps go."""
    n, shapes = evidence.n, np.stack([np.eye(evidence.n), *near(alphabet)])
    shares, base = np.full(len(shapes), 0.5 / len(shapes)), np.full(n, 1.0 / n)
    for _ in range(FAMILY_ROUNDS):
        rows = np.tensordot(shares, shapes, 1) + (1.0 - shares.sum()) * base
        found = expect(evidence, Chain(base, rows))
        ratio = found.moves / np.maximum(rows, FLOOR)
        jumps = (ratio * (1.0 - shares.sum())).sum(0) * base
        base = distribution(jumps + found.first + 1.0 / n, FLOOR)
        if found.moves.any():  # two pseudo-moves that jump: nothing is ever ruled out
            shares = shares * (ratio * shapes).sum((1, 2)) / (found.moves.sum() + 2.0)
    rows = np.tensordot(shares, shapes, 1) + (1.0 - shares.sum()) * base
    return Chain(base, distribution(rows, FLOOR))


def near(alphabet: Symbols) -> list[Floats]:
    """A step to one of the closest other symbols, for bins of a number and cells of a grid: one matrix, or none."""
    points = alphabet.points if isinstance(alphabet, Bins | Grid) else None
    if alphabet.on_map and alphabet.points is not None:
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


@dataclass(frozen=True, eq=False)
class Climb:
    """Where EM came to, and whether it had arrived."""

    chain: Chain
    rounds: int
    change: float  # of log likelihood + log prior in the last round, nats an event
    converged: bool
    value: float


def climb(
    evidence: Evidence,
    start: Chain,
    centre: Chain,
    strength: float,
    rounds: int = ROUNDS,
) -> Climb:
    """max over chains of log Pr(releases) + strength · Σ_s Σ_z centre(z|s) log P(z|s), from `start`, until it is there.

    Each round takes the rows P(z|s) ∝ expected moves + strength · centre(z|s). They are pushed on beyond that as long
    as the sum rises (over-relaxed EM: P^(1-η) EM^η, η growing by a tenth up to FASTEST, back to 1 after a fall).

    There are at most so many rounds, and another follows where the last one gained more than TOLERANCE an event.

    Reference: Dempster, Laird, Rubin 1977; Salakhutdinov, Roweis, *Adaptive overrelaxed bound optimization*, ICML 2003.
    """
    chain, (plain, value) = start, _round(evidence, start, centre, strength)
    push, change, done = 1.0, np.inf, 0
    enough = TOLERANCE * evidence.events
    while done < rounds and change > enough:
        done += 1
        both = (chain.first, plain.first), (chain.rows, plain.rows)
        pushed = (distribution(old * (new / old) ** push, FLOOR) for old, new in both)
        tried = plain if push == 1.0 else Chain(*pushed)
        after, new = _round(evidence, tried, centre, strength)
        if new < value and push > 1.0:
            tried, push = plain, 1.0
            after, new = _round(evidence, tried, centre, strength)
        else:
            push = min(FASTEST, push * 1.1)
        chain, plain, change, value = tried, after, abs(new - value), new
    return Climb(chain, done, change / evidence.events, bool(change <= enough), value)


def _round(evidence: Evidence, chain: Chain, centre: Chain, strength: float) -> tuple[Chain, float]:
    """One round of EM: the next chain, and log likelihood + log prior of the present one, up to a constant."""
    found = expect(evidence, chain)
    prior = float((centre.rows * np.log(chain.rows)).sum() + (centre.first * np.log(chain.first)).sum())
    return maximise(found, centre, strength), found.log_likelihood + strength * prior


def maximise(found: ExpectedStatistics, centre: Chain, strength: float) -> Chain:
    """The chain that expected counts and prior ask for."""
    first, rows = found.first + strength * centre.first, found.moves + strength * centre.rows
    return Chain(distribution(first, FLOOR), distribution(rows, FLOOR))


def posterior(chain: Chain, evidence: Evidence, strength: float, many: int) -> Chain:
    """So many chains drawn from the posterior around its top.

    Reference: Louis, *Finding the observed information matrix when using the EM algorithm*, JRSS B 1982.

    A row's logits may all rise together without changing it: along those directions A has no curvature. Where
    strength · P_s P_sᵀ is added to the block of each row, these directions have some, so that A has a root, and what is
    drawn in all others stays as it was: A does not see the common part of θ_s, and the addition sees P_sᵀ θ_s alone.
    """
    information = np.diag(max(strength, LEAST) * np.append(chain.rows, chain.first))
    for firsts, moves in by_user(evidence, chain):
        scores = (moves - moves.sum(2, keepdims=True) * chain.rows).reshape(len(moves), -1)
        scores = np.concatenate([scores, firsts - chain.first], axis=1)
        information += scores.T @ scores
    root = np.linalg.cholesky(information)
    numbers = np.random.default_rng(0).standard_normal((len(root), many))
    rows, first = np.split(np.linalg.solve(root.T, numbers).T, [chain.rows.size], axis=1)
    return Chain(_moved(chain.first, first), _moved(chain.rows, rows.reshape(many, *chain.rows.shape)))


def _moved(distribution: Floats, move: Floats) -> Floats:
    """p + (diag p - p pᵀ) · move, cut off at 0: rare symbols are far from log-normal, and nearer to this."""
    middle = (distribution * move).sum(-1, keepdims=True)
    weights = np.maximum(distribution * (1.0 + move - middle), 1e-12)
    return np.asarray(weights / weights.sum(-1, keepdims=True))
