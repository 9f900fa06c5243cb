"""From what must hold of a release to an integer table of which it holds.

*What must hold* are linear bounds on every label (`tables.Bounds`). The table is solved for bounds a little tighter
than those promised, rounded to integers that sum to 2**62, and checked from these integers (`tables.GuardingTable`). A
table that does not pass is mixed with its own marginal, which draws every label towards the average of all, and that
average is inside. Mixed wholly it is the constant release: it always passes, so there is always something to release.
Labels of next to no mass, on which a solver keeps to nothing, are dropped first.

*Several windows.* A table that is best for one window alone and keeps all others is best for all of them: so the closed
form is tried for the window that would be broken most. Where it breaks others, `several` keeps all of them.

*With an ε for every release as well*, every lift within e^±ε is a row of the same program for small alphabets. For
larger ones the table is mixed with its marginal until every lift is within ε; beside it the table that is best for ε
alone is mixed until the secrets are kept, and the best of the two and one constant release is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqveil.core import programs
from seqveil.core.alphabet import WITHHELD
from seqveil.core.bulk import row_by_row
from seqveil.core.distortion import Distortion
from seqveil.core.errors import GuaranteeError, InputError
from seqveil.core.kernel import Floats, Ints, mix, usable
from seqveil.core.mechanisms import optimal
from seqveil.core.secrets.account import TrackedUsers
from seqveil.core.secrets.pools import LEFT, NEGLIGIBLE, WRITABLE, release_each
from seqveil.core.secrets.several import FEW
from seqveil.core.secrets.tables import TOGETHER, AskedOfUsers, Bounds, Dial, Draft, GuardingTable

MIXES = (1e-9, 1e-7, 1e-5, 1e-3, 0.03)
SMALL = 160  # symbols up to which the program is over all of them, where all wrong symbols cost the same
LABELS = 64  # the likeliest, which the program of a larger alphabet is over
NEAR = 48  # symbols up to which it is over all of them where costs differ; beyond, others go with the nearest of these
WIDEST = 96  # the most such symbols, where the belief is so broad that 48 hold little of it
MOST_OF_IT = 0.98  # of the belief that they should hold
MANY = 8  # bounds beyond which it has no more rows than that: each is one for every label
NEAR_LABELS = 32  # the likeliest of 48 symbols, where more than one window is to be kept
SMALL_WITH_EPSILON = 32  # symbols up to which the lifts of every symbol are bounded inside the program
SMALL_WITH_MEMORY = 12_000  # sources times labels up to which a program has rows by what is remembered
TINY = 1e-300


def guarded(
    bounds: Bounds,
    distortion: Distortion,
    lies: bool = True,
    epsilon: float | None = None,
    dial: Dial | None = None,
) -> GuardingTable:
    """The table of least expected cost whose every label keeps to the bounds, checked from its integers.

    Parameters:

    - `lies`: whether a wrong symbol may be released; without, it is the truth or nothing, which costs 1;
    - `epsilon`: what every lift has to be within as well; none: no such bound;
    - `dial`: how many rows a symbol has, and how far they may differ; none: one.

    >>> from seqveil.core.distortion import hamming
    >>> weights, belief = np.array([[[[0.81, 0.0], [0.19, 1.0]]]]), np.array([0.5, 0.5])
    >>> asked = AskedOfUsers.of_windows(belief[None], belief * weights, np.array([[[0.405, 0.595]]]), 0.5, "both", 0.0)
    >>> made = guarded(asked.one(0), hamming())
    >>> round(made.error, 4), made.outputs.tolist(), (made.full() / 2**62).round(4).tolist()
    (0.3543, [0, 1], [[0.6225, 0.3775], [0.331, 0.669]])
    """
    dial = Dial(bounds.belief.size) if dial is None else dial
    dial.check(bounds.belief.size)
    work = _Work(bounds, distortion, lies, epsilon, dial)
    binary = bounds.boxes is not None or not len(bounds.aimed)
    if lies and epsilon is None and distortion.is_hamming and binary:
        made = work.in_closed_form()
        if made is not None:
            return made
    return work.by_program()


@dataclass(frozen=True, eq=False)
class _Work:
    """One call of `guarded`."""

    bounds: Bounds
    distortion: Distortion
    lies: bool
    epsilon: float | None
    dial: Dial

    def in_closed_form(self) -> GuardingTable | None:
        """The table that is best for all windows (`pools.best_for`), written out, where its integers pass."""
        bounds, dial, size = self.bounds, self.dial, self.bounds.belief.size
        if size * dial.n > WRITABLE:
            return None
        boxes = bounds.boxes or (np.zeros((0, size)), np.zeros(0), np.zeros(0))
        given = [each[None] for each in (bounds.belief, *boxes, bounds.promised)]
        status, _, written = _in_bulk(dial, given, None, None, np.zeros(1, np.int64), dial.n)
        if status[0] == LEFT:
            return None
        columns = written.reshape(dial.n, size)
        used, nothing = np.flatnonzero(columns.any(1)), np.zeros(size, np.int64)
        table = np.arange(size), nothing, np.arange(used.size), columns[used].T
        made = GuardingTable(dial.n, used, *table, bounds.belief, self.distortion)
        best = (dial.rows <= 2 or math.isinf(dial.c)) and 2 * len(boxes[1]) <= FEW
        return replace(made, bound=made.error) if best else made

    def by_program(self) -> GuardingTable:
        """The best table that a program finds, mixed until it passes."""
        many = self.bounds.belief.size * self.dial.n > SMALL_WITH_MEMORY
        if self.dial.rows > 1 and (many or (self.epsilon is not None and self.dial.n > SMALL_WITH_EPSILON)):
            work = replace(self, bounds=self.bounds.by(self.dial.collapsed), dial=Dial(self.dial.n))
            made = work.by_program()
            return replace(made, belief=self.bounds.belief, kinds=np.tile(made.kinds, self.dial.rows))
        tables = [self.checked(draft) for draft in self.drafts()]
        best = min(tables, key=lambda one: one.error)
        return replace(best, bound=min(max(one.bound for one in tables), best.error))

    def drafts(self) -> list[Draft]:
        """Tables in floats, the best first; the last says nothing."""
        bounds, n = self.bounds, self.dial.n
        said = Draft.constant(n, bounds.belief.size, np.array([self._guess()]), np.ones(1))
        if not self.lies:
            return [_truth_or_nothing(bounds), said]
        if self.epsilon is None and not len(bounds.aimed):
            return [self._as_it_is()]
        if self.epsilon is None or n <= SMALL_WITH_EPSILON:
            found = self._programmed(self.epsilon)
            return [said] if found is None else [found, said]
        if n**2 > WRITABLE:
            raise InputError(
                f"an ε for every release beside declared secrets is for at most {int(WRITABLE**0.5)} symbols, got "
                f"{n}; leave epsilon out, or use a coarser alphabet"
            )
        alone = self._programmed(None) if len(bounds.aimed) else None
        return [alone or self._as_it_is(), said, _best_for(self.epsilon, bounds, self.distortion)]

    def _as_it_is(self) -> Draft:
        """What may come is released as it is; the rest draws as that is spread."""
        possible = self.bounds.possible
        mass = self.dial.collapsed(np.where(possible, self.bounds.belief, 0.0))
        outputs = np.flatnonzero(mass)
        spread = np.stack([np.zeros(outputs.size), mass[outputs] / mass.sum()])
        kinds, disclosed = np.where(possible, 0, 1), np.array([1.0, 0.0])
        return Draft(self.dial.n, outputs, kinds, disclosed, np.arange(outputs.size), spread, 0.0)

    def _guess(self) -> int:
        """The label that costs least if it is released whatever the truth is."""
        if not self.lies:
            return WITHHELD
        belief = self.dial.collapsed(np.where(self.bounds.possible, self.bounds.belief, 0.0))
        return int(self.distortion.best_guess(belief[None])[0])

    def checked(self, draft: Draft) -> GuardingTable:
        """The table in integers that keep to what is promised, mixed as much as it takes."""
        for one in self._mixtures(draft):
            made = GuardingTable.of(one, self.bounds.belief, self.distortion)
            sound = self.epsilon is None or made.within(self.epsilon)
            if sound and made.keeps(self.bounds) and made.dials(self.dial):
                return made
        raise GuaranteeError(
            "no release keeps to the declared secrets, not even one that says nothing; nothing was released; please "
            "report the model and the secrets"
        )

    def _mixtures(self, draft: Draft) -> Iterator[Draft]:
        """The table, then mixed more and more with one row for all, and at last that row alone."""
        yield draft
        if self.epsilon is not None and draft.kinds.size * draft.outputs.size <= WRITABLE:
            distribution = self.bounds.belief / self.bounds.belief.sum()
            within = usable(self.epsilon, distribution.size) * (1 - 1e-9)
            table = mix(draft.full()[None], distribution[None], within)[0]
            draft = Draft.of_rows(draft.n, draft.outputs, np.arange(len(table)), table, draft.least)
            yield draft
        distribution = draft.distribution(self.bounds.belief)
        for share in MIXES:
            yield draft.mixed(share, distribution)
        n, sources = draft.n, draft.kinds.size
        yield Draft.constant(n, sources, draft.outputs, distribution)
        yield Draft.constant(n, sources, draft.outputs[[distribution.argmax()]], np.ones(1))

    def _programmed(self, epsilon: float | None) -> Draft | None:
        """The program over all sources of a small alphabet, whose rows go by what is read of the memory; else over the
        likeliest, with the rest gathered at them. None where it is given up.

        Labels of negligible mass are dropped, what they held is spread as the rest is; sources left with nothing, and
        those that are not known at all, share one more row: the marginal. Free symbols outside the program are
        disclosed.
        """
        dial, n, bounds = self.dial, self.dial.n, self.bounds.by(self.dial.read).distinguished()
        belief, free = bounds.belief, bounds.free() & bounds.possible
        likely, count = self._likeliest(bounds)
        whole, members = count == np.count_nonzero(bounds.possible), np.sort(likely)
        if not whole:
            inside = bounds.possible & ~free
            inside[likely] = True
            if (bounds.aimed[:, inside].sum(1) > 0.0).any():  # they need all others as cover
                inside = bounds.possible
            members = np.flatnonzero(inside)
        labels = np.unique(likely[:count] % n)
        shared_by, mass, cost, bounded = _rows(bounds, self.distortion, n, members, np.sort(likely), labels)
        if epsilon is not None:  # every lift Q(y|x) / p(y) is within e^±ε
            one, share, lift = np.eye(mass.size), mass / mass.sum(), usable(epsilon, belief.size) - 1e-9
            bounded = np.concatenate([bounded, one - np.exp(lift) * share, np.exp(-lift) * share - one])
            free = np.zeros_like(free)
        try:
            found = programs.bounded(mass, cost, bounded)
        except programs.Unsolved:
            return None
        table, marginal, outside = found.table, mass @ found.table, np.flatnonzero(free & (shared_by < 0))
        alone = np.bincount(shared_by[shared_by >= 0], minlength=len(table)) == 1  # rows of one source, which is free
        alone[shared_by[~free & (shared_by >= 0)]] = False
        pure = ((table > 0.0).sum(0) == 1) & (table[~alone] == 0.0).all(0) & (marginal > 0.0)
        kept = (marginal >= NEGLIGIBLE) | pure
        labels, table = labels[kept], table[:, kept]
        left = table.sum(1)
        good = left > 0.5
        outputs, distribution = np.concatenate([labels, outside]), np.concatenate([marginal[kept], belief[outside]])
        rows = int(good.sum())
        places = np.full(len(table) + 1, rows + 1)  # the last is for sources outside the program
        places[:-1][good] = np.arange(rows)
        kinds = places[shared_by]
        kinds[outside] = rows
        spread, disclosed = np.zeros((rows + 2, outputs.size)), np.zeros(rows + 2)
        spread[:rows, : labels.size] = table[good] / left[good, None]
        spread[rows + 1], disclosed[rows] = distribution / distribution.sum(), 1.0
        least = found.bound if whole and (math.isinf(dial.c) or dial.rows <= 2) else -np.inf
        draft = Draft(n, outputs, kinds, disclosed, np.arange(outputs.size), spread, least)
        if dial.rows == 1 or math.isinf(dial.c):
            return draft
        return Draft.of_rows(n, outputs, np.arange(kinds.size), dial.read(draft.full().T).T, least)

    def _likeliest(self, bounds: Bounds) -> tuple[Ints, int]:
        """The sources that get rows of their own in the program, the likeliest first, and how many of them are labels:
        all where there is a memory."""
        sources = np.flatnonzero(bounds.possible)
        sources = sources[np.argsort(-bounds.belief[sources], kind="stable")]
        if self.dial.rows > 1 or (self.distortion.is_hamming and sources.size <= SMALL):
            return sources, sources.size
        if self.distortion.is_hamming:
            return sources[:SMALL], LABELS
        held = np.cumsum(bounds.belief[sources])
        wide = int(held.searchsorted(MOST_OF_IT * held[-1])) + 1
        if (wide > NEAR and len(bounds.aimed) <= MANY) or sources.size <= NEAR:
            return sources[:WIDEST], min(WIDEST, sources.size)
        return sources[:NEAR], NEAR if len(bounds.aimed) <= 2 else NEAR_LABELS


def _rows(
    bounds: Bounds, distortion: Distortion, n: int, members: Ints, likely: Ints, labels: Ints
) -> tuple[Ints, Floats, Floats, Floats]:
    """The rows of a program: one for each of the `likely` sources, which other `members` share with the nearest of
    them. The row of each source (Z,), -1 for those that are not in the program; of each row the belief in its sources
    (X,), their mean cost (X, Y) and bounds (I, X).

    Sharing a row keeps every bound, since bounds are sums over sources; it costs what the rare ones would have saved by
    a row of their own.
    """
    mass, count = bounds.belief[members], likely.size
    nearest = distortion.between(members[:, None] % n, likely[None, :] % n).argmin(1)
    if distortion.is_hamming and members.size > count:  # all alike far: one more row for all of them
        nearest, count = np.full(members.size, count), count + 1
    nearest[members.searchsorted(likely)] = np.arange(likely.size)
    cost, bounded = distortion.between(members[:, None] % n, labels[None, :]), bounds.aimed[:, members]
    if count < members.size:
        order = np.argsort(nearest, kind="stable")
        first, belief = np.searchsorted(nearest[order], np.arange(count)), mass
        mass = np.add.reduceat(belief[order], first)
        cost = np.add.reduceat((belief[:, None] * cost)[order], first, axis=0) / mass[:, None]
        bounded = np.add.reduceat(bounded[:, order], first, axis=1)
    shared_by = np.full(bounds.belief.size, -1)
    shared_by[members] = nearest
    return shared_by, mass, cost, bounded


def _truth_or_nothing(bounds: Bounds) -> Draft:
    """Free symbols disclosed, all others withheld, and the least free mass withheld with them that keeps the bounds."""
    belief, free = bounds.belief, bounds.free() & bounds.possible
    hidden = np.where(free, 0.0, 1.0)
    if (bounds.aimed @ hidden > 0.0).any():
        hidden[free] = _least_cover(belief[free], bounds.aimed[:, free], bounds.aimed @ hidden)
    if hidden.any() and belief @ hidden == 0.0:
        # a symbol that cannot come: if it does, nothing is said, which must not be a surprise
        hidden[free] = NEGLIGIBLE
    shares, kinds = np.unique(hidden, return_inverse=True)
    disclosed = np.flatnonzero(hidden < 1.0)
    outputs = np.append(disclosed, WITHHELD) if hidden.any() else disclosed
    shared, spread = np.array([disclosed.size]), shares[:, None]
    if not hidden.any():
        shared, spread = np.zeros(1, np.int64), np.zeros((1, 1))
    return Draft(belief.size, outputs, kinds.astype(np.int64), 1.0 - shares, shared, spread, float(belief @ hidden))


def _least_cover(mass: Floats, rows: Floats, excess: Floats) -> Floats:
    """Shares of free symbols to withhold: least Σ mass·share such that excess + rows·share ≤ 0, shares in [0, 1]."""
    over = np.flatnonzero(excess > 0.0)
    if over.size == 1:  # a fractional knapsack: the most help for its mass first
        help_ = -rows[over[0]]
        order = np.argsort(-help_ / mass, kind="stable")
        given = help_[order]
        share = np.zeros_like(mass)
        share[order] = np.clip((excess[over[0]] - (np.cumsum(given) - given)) / np.where(given > 0, given, 1.0), 0, 1)
        share[help_ <= 0.0] = 0.0
        if (excess + rows @ share <= 0.0)[np.arange(len(excess)) != over[0]].all():
            return share
    if not mass.size:
        return mass
    from scipy import sparse

    scale = np.maximum(np.abs(rows).max(1), np.abs(excess)) + TINY
    matrix, upper = sparse.csc_array(rows / scale[:, None]), -excess / scale
    program = programs.Program(np.full(upper.size, -np.inf), upper)
    program.add(mass, matrix, most=1.0)
    try:
        found, _ = program.run()
    except programs.Unsolved:
        return np.ones_like(mass)
    return np.minimum(found, 1.0)


def _best_for(epsilon: float, bounds: Bounds, distortion: Distortion) -> Draft:
    """The table that is best for ε alone, mixed with its marginal until the secrets are kept."""
    belief = bounds.belief / bounds.belief.sum()
    made = optimal.kernels(belief[None], epsilon, distortion).one(0)
    table = made.probabilities
    marginal = belief @ table
    moved, still = bounds.aimed @ table, np.multiply.outer(bounds.aimed.sum(1), marginal)
    share = np.where(moved > 0.0, moved / np.maximum(moved - still, TINY), 0.0).max(initial=0.0)
    mixed = (1.0 - share) * table + share * marginal
    return Draft.of_rows(belief.size, made.codes, np.arange(belief.size), mixed)


def released(
    users: TrackedUsers, dial: Dial, sources: Ints | None, uniforms: Ints | None, given: Ints | None
) -> tuple[Ints, Ints, Ints]:
    """The releases of users who stand at the same event, by the closed form where it is there: what became of each
    (DONE, LEFT or IMPOSSIBLE), the codes (B,) and the columns (B, Z).

    All secrets are true or not, there is one observer, and wrong symbols cost the same. Either the `sources` and a draw
    for each are given, or the codes that were released.
    """
    return released_as_asked([AskedOfUsers.of(one, dial) for one in users.own], dial, sources, uniforms, given)


def released_as_asked(
    asked: Sequence[AskedOfUsers], dial: Dial, sources: Ints | None, uniforms: Ints | None, given: Ints | None
) -> tuple[Ints, Ints, Ints]:
    """The same from what each secret asks."""
    weights, low, high, promised = (
        np.concatenate(parts, axis=1) for parts in zip(*(one.of_those_bound() for one in asked), strict=True)
    )
    return _in_bulk(dial, [asked[0].belief, weights, low, high, promised], sources, uniforms, given)


def _in_bulk(
    dial: Dial, asked: Sequence[Floats], sources: Ints | None, uniforms: Ints | None, given: Ints | None, wide: int = 1
) -> tuple[Ints, Ints, Ints]:
    """`pools.release_each`, with one column of each user, or with all."""
    count, size = asked[0].shape
    dial.check(size)
    numbers = dial.n, dial.rows, dial.noise.ravel(), dial.ratio, TOGETHER
    draws = (np.full(count, -1) if each is None else each for each in (sources, uniforms, given))
    status, codes, columns = (
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros((count, wide * size), np.int64),
    )
    row_by_row(release_each, numbers, (*asked, *draws), (codes, columns, status))
    return status, codes, columns
