"""Chains and types of people learned from releases: expectation–maximisation with columns as evidence.

With b_k(x) = Q(y_k|x) for the releases of a user, w_j the share of type j and P_j its chain,

    max over w, P of  Σ_users log Σ_j w_j Pr_{P_j}(y) + strength · Σ_j Σ_s Σ_z F_j(z|s) log P_j(z|s).

A user counts for type j with probability r_j ∝ w_j Pr_{P_j}(y); the expected moves of `expected.Walk`, weighted so and
added up, are those of the type. F_j is the chain of everyone, or the chain of type j in a public mixture to start from;
one chain for everyone is a mixture of one type. Everything is computed from releases, so it costs no budget, and a type
may be made up of few: what it shows of them was released already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mixture import SWITCH
from seqveil.core.model import MarkovModel
from seqveil.receiver.learn.evidence import Evidence
from seqveil.receiver.learn.expected import Chain, Statistics, by_user, expect_types, law

STARTS, TRIAL_ROUNDS, ROUNDS, TOLERANCE = 3, 15, 120, 2e-6
GROUPING = 20  # rounds in which users are first put into groups
FASTEST = 8.0  # longest step of over-relaxed EM
FLOOR = 1e-12  # of a learned probability: a chain learned from releases rules nothing out


@dataclass(frozen=True, eq=False)
class Types:
    """A mixture of chains of order 1 as full tables: how common each type is, and its chain."""

    weights: Floats
    chains: tuple[Chain, ...]

    @classmethod
    def of(cls, model: MarkovModel) -> Types:
        """The types of a mixture of chains of order 1; that a stream may change its type is left out.

        >>> calm, lively = (MarkovModel([0.5, 0.5], [[s, 1 - s], [1 - s, s]]) for s in (0.9, 0.2))
        >>> found = Types.of(MarkovModel.mixture([calm, lively], [0.3, 0.7]))
        >>> found.weights.round(3).tolist(), found.chains[0].rows.round(3).tolist()
        ([0.3, 0.7], [[0.9, 0.1], [0.1, 0.9]])
        """
        if model.order != 1 or not model.stacked:
            raise InputError(f"expected a mixture of chains of order 1 to start from, got order {model.order}")
        n, floor = model.n, 1e-9 / model.n
        moved = model.advance(np.eye(model.size))
        first = model.initial.reshape(model.types, n)
        chains = [
            Chain(law(first[k], floor), law(moved[k * n : (k + 1) * n, k * n : (k + 1) * n], floor))
            for k in range(model.types)
        ]
        return cls(first.sum(1), tuple(chains))

    @classmethod
    def one(cls, chain: Chain) -> Types:
        """A chain that describes everyone."""
        return cls(np.ones(1), (chain,))

    def model(self, names: Symbols) -> MarkovModel:
        """The types as a model; a stream may go on as somebody else, as in every fitted mixture."""
        return MarkovModel.mixture([chain.model(names) for chain in self.chains], self.weights, SWITCH)


@dataclass(frozen=True, eq=False)
class Climb:
    """Where EM came to, and whether it had arrived."""

    types: Types
    rounds: int
    change: float  # of log likelihood + log prior in the last round, nats an event
    converged: bool
    value: float

    @property
    def chain(self) -> Chain:
        """The chain, where there is one type."""
        return self.types.chains[0]


def climb(evidence: Evidence, start: Chain, centre: Chain, strength: float, rounds: int, tolerance: float) -> Climb:
    """max over chains of log Pr(releases) + strength · Σ_s Σ_z centre(z|s) log P(z|s), from `start`."""
    return climb_types(evidence, Types.one(start), [centre], strength, rounds, tolerance, FASTEST)


def climb_types(
    evidence: Evidence,
    begin: Types,
    centres: Sequence[Chain],
    strength: float,
    rounds: int = ROUNDS,
    tolerance: float = TOLERANCE,
    fastest: float = 1.0,
) -> Climb:
    """EM from some types until a round hardly gains; likelihood times prior never falls.

    Each round takes the rows P(z|s) ∝ expected moves + strength · centre(z|s). Where `fastest` is above 1 they are
    pushed on beyond that as long as the sum rises (over-relaxed EM: P^(1-η) EM^η, η growing by a tenth, back to 1 after
    a fall).

    Parameters:
      evidence: the releases, a stream a user; a user has one type.
      begin: the types to begin with.
      centres: the chain that each type's rows lean to.
      strength: pseudo-moves a row of it.
      rounds: at most so many.
      tolerance: nats an event that a round must gain for another to follow.
      fastest: the longest step η.

    Reference: Dempster, Laird, Rubin 1977; Salakhutdinov, Roweis, *Adaptive overrelaxed bound optimization*, ICML 2003.
    """
    prior = (centres, strength)
    types, (plain, value) = begin, one_round(evidence, begin, *prior)
    push, change, done = 1.0, np.inf, 0
    while done < rounds and change > tolerance * evidence.events:
        done += 1
        tried = _pushed(types, plain, push)
        after, new = one_round(evidence, tried, *prior)
        if new < value and push > 1.0:
            tried, push = plain, 1.0
            after, new = one_round(evidence, tried, *prior)
        else:
            push = min(fastest, push * 1.1)
        types, plain, change, value = tried, after, abs(new - value), new
    return Climb(types, done, change / evidence.events, bool(change <= tolerance * evidence.events), value)


def one_round(evidence: Evidence, types: Types, centres: Sequence[Chain], strength: float) -> tuple[Types, float]:
    """One round of EM: the next types, and log likelihood + log prior of the present ones, up to a constant."""
    found, members, likelihood = expect_types(evidence, types.chains, types.weights)
    prior = sum(
        float((centre.rows * np.log(chain.rows)).sum() + (centre.first * np.log(chain.first)).sum())
        for chain, centre in zip(types.chains, centres, strict=True)
    )
    chains = (maximise(part, centre, strength) for part, centre in zip(found, centres, strict=True))
    value = likelihood + strength * prior + float(np.log(types.weights).sum())
    return Types((members + 1) / (members + 1).sum(), tuple(chains)), value  # one user of each type to begin with


def maximise(found: Statistics, centre: Chain, strength: float) -> Chain:
    """The chain that expected counts and prior ask for."""
    first, rows = found.first + strength * centre.first, found.moves + strength * centre.rows
    return Chain(law(first, FLOOR), law(rows, FLOOR))


def _pushed(types: Types, plain: Types, push: float) -> Types:
    """A step beyond what a round asks for, by so much."""
    if push == 1.0:
        return plain

    def beyond(old: Floats, new: Floats) -> Floats:
        return law(old * (new / old) ** push, FLOOR)

    both = zip(types.chains, plain.chains, strict=True)
    chains = tuple(Chain(beyond(old.first, new.first), beyond(old.rows, new.rows)) for old, new in both)
    return Types(beyond(types.weights, plain.weights), chains)


def split(evidence: Evidence, chain: Chain, count: int, strength: float, seed: int = 0) -> Climb:
    """Types found in releases, from groups of users that did alike under the chain of everyone: the best of a few."""
    told, lengths = _habits(evidence, chain), np.bincount(evidence.users)
    told = told / lengths[lengths > 0][:, None]
    centres, tried = [chain] * count, list[Climb]()
    for start in range(STARTS):
        groups = _groups(told, count, np.random.default_rng([seed, start]))
        begin = _of_groups(evidence, chain, groups, count, strength)
        tried.append(climb_types(evidence, begin, centres, strength, TRIAL_ROUNDS))
    best = max(tried, key=lambda found: found.value)
    return climb_types(evidence, best.types, centres, strength)


def _habits(evidence: Evidence, chain: Chain) -> Floats:
    """How often each user is expected to have been at each symbol, and to have stayed there: (users with events, 2n).

    Users in the order of their numbers.
    """
    parts = [
        np.concatenate([first + moves.sum(1), np.diagonal(moves, axis1=1, axis2=2)], axis=1)
        for first, moves in by_user(evidence, chain)
    ]
    told = np.concatenate(parts)
    lengths = np.bincount(evidence.users)
    present = lengths[lengths > 0]
    out = np.empty_like(told)
    out[np.argsort(-present, kind="stable")] = told  # blocks have long streams first, equal ones by their numbers
    return out


def _groups(told: Floats, count: int, generator: np.random.Generator) -> Ints:
    """Users in so many groups by what they did: centres far apart to begin with, then each user to the nearest."""
    scaled = told / np.maximum(told.std(0), 1e-12)
    centres = scaled[generator.integers(len(scaled))][None]
    for _ in range(count - 1):
        apart = ((scaled[:, None] - centres) ** 2).sum(2).min(1)
        total = apart.sum()
        chosen = generator.choice(len(scaled), p=apart / total if total > 0 else None)
        centres = np.concatenate([centres, scaled[chosen][None]])
    nearest = np.zeros(len(scaled), np.int64)
    for _ in range(GROUPING):
        nearest = (-2 * scaled @ centres.T + (centres**2).sum(1)).argmin(1)
        sizes = np.bincount(nearest, minlength=count)
        sums = np.stack([np.bincount(nearest, column, minlength=count) for column in scaled.T], axis=1)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
    return np.asarray(nearest, np.int64)


def _of_groups(evidence: Evidence, chain: Chain, groups: Ints, count: int, strength: float) -> Types:
    """Each group's chain, one round of EM away from that of everyone."""
    numbers = np.unique(evidence.users)
    chains, members = [], np.ones(count)
    for k in range(count):
        mask = np.zeros(int(numbers.max(initial=-1)) + 1, bool)
        mask[numbers[groups == k]] = True
        members[k] += int(mask.sum())
        if not mask.any():
            chains.append(chain)
            continue
        found, _ = one_round(evidence.of_users(mask), Types.one(chain), [chain], strength)
        chains.append(found.chains[0])
    return Types(members / members.sum(), tuple(chains))
