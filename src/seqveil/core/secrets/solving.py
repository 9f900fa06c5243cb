"""From what must hold of a release to an integer table of which it holds.

*What must hold* are linear bounds on every label (`tables.Bounds`). The table is solved for bounds a little tighter
than those promised, rounded to integers that sum to 2**62, and checked from these integers (`tables.GuardingTable`). A
table that does not pass is mixed with its own marginal, which draws every label towards the average of all, and that
average is inside. Mixed wholly it is the constant release, whose columns say nothing: it always passes, so there is
always something to release.

A solver may leave labels of next to no mass that keep to nothing; once drawn, such a label would break any promise.
They are dropped first, and what they held is spread as the rest of its row is.

*Several windows.* A table that is best for one window alone and keeps all others is best for all of them: so the closed
form is tried for the window that would be broken most, and the program is for what is left.

*With an ε for every release as well*, every lift within e^±ε is a row of the same program for small alphabets. For
larger ones the table is mixed with its marginal until every lift is within ε; beside it the table that is best for ε
alone is mixed until the secrets are kept, and the better of the two is taken. Both mixtures keep both promises; neither
is the optimum of the two together. Where all that is dearer than one constant release, that is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import programs
from seqveil.core.alphabet import WITHHELD
from seqveil.core.compiled import form
from seqveil.core.distortion import Distortion
from seqveil.core.errors import GuaranteeError, InputError
from seqveil.core.kernel import Floats, Ints, mix, usable
from seqveil.core.mechanisms import optimal
from seqveil.core.secrets.account import TrackedUsers
from seqveil.core.secrets.pools import NEGLIGIBLE, ONE, UNLIKELY, column_of, keeping, release_each
from seqveil.core.secrets.tables import WRITABLE, AskedOfUsers, Bounds, Boxes, Dial, Draft, GuardingTable

MIXES = (1e-9, 1e-7, 1e-5, 1e-3, 0.03)
SMALL = 160  # symbols up to which the program is over all of them, where all wrong symbols cost the same
LABELS = 64  # the likeliest, which the program of a larger alphabet is over
NEAR = 48  # symbols up to which it is over all of them where costs differ; beyond, others go with the nearest of these
WIDEST = 96  # the most such symbols, where the belief is so broad that 48 hold little of it
MOST_OF_IT = 0.98  # of the belief that they should hold
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
    >>> weights, belief = np.array([[[0.81, 0.0], [0.19, 1.0]]]), np.array([0.5, 0.5])
    >>> bounds = Bounds.of_windows(belief, belief * weights, np.array([[0.405, 0.595]]), 0.5, "both", 0.0)
    >>> made = guarded(Bounds.joined([bounds], belief), hamming())
    >>> round(made.error, 4), made.outputs.tolist(), (made.full() / 2**62).round(4).tolist()
    (0.3543, [0, 1], [[0.6225, 0.3775], [0.331, 0.669]])
    """
    work = _Work(bounds, distortion, lies, epsilon, Dial(bounds.belief.size) if dial is None else dial)
    if lies and epsilon is None and (not len(bounds.aimed) or (distortion.is_hamming and bounds.boxes is not None)):
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
        """The best table for the window that would be broken most, where it keeps all the others too."""
        bounds, dial, size, code = self.bounds, self.dial, self.bounds.belief.size, form(keeping)
        boxes = bounds.boxes or Boxes(np.zeros((0, size)), np.zeros(0), np.zeros(0))
        asked = bounds.belief, boxes.masses, boxes.low, boxes.high, bounds.promised
        rooms = np.zeros(4 * size), np.zeros(3 * dial.n), np.zeros(size, np.int64), np.zeros(size, np.int64)
        belief, yes, low, high, promised, noise, *filled = _given(code is keeping, (*asked, dial.noise.ravel(), *rooms))
        if not code(belief, yes, low, high, promised, dial.n, dial.rows, noise, dial.ratio, *filled):
            return None
        shares, spread, big, left = filled
        if dial.rows > 1:
            return self._written_out(shares, spread, big, left)
        parts, labels = np.array(shares).reshape(4, size), np.array(spread).reshape(3, dial.n)
        rows, kinds = np.unique(parts, axis=1, return_inverse=True)
        table = (rows[1, :, None] * labels[0] + rows[2, :, None] * labels[1]) + rows[3, :, None] * labels[2]
        told = parts[0].reshape(dial.rows, dial.n).any(0)
        used = np.flatnonzero(told | (table[rows[0] < 1.0] * ONE >= 1.0).any(0))
        draft = Draft(dial.n, used, kinds.ravel(), rows[0], np.arange(used.size), table[:, used], -np.inf)
        made = GuardingTable.of(draft, bounds.belief, self.distortion)
        return replace(made, bound=made.error)  # best for one window alone, and it keeps the others

    def _written_out(self, shares: Any, spread: Any, big: Any, left: Any) -> GuardingTable:
        """The integers of the closed form, a row for each source."""
        n, size, even = self.dial.n, self.bounds.belief.size, self.dial.ratio < 1e300
        table, code = np.zeros((n, size), np.int64), column_of if isinstance(shares, list) else form(column_of)
        for y in range(n):
            column = table[y].tolist() if isinstance(shares, list) else table[y]
            code(shares, spread, big, left, y, n, size, even, column)
            table[y] = column
        used = np.flatnonzero(table.any(1))
        zeros = np.zeros(size, np.int64)
        of = n, used, np.arange(size), zeros, np.arange(used.size), np.ascontiguousarray(table[used].T)
        made = GuardingTable(*of, self.bounds.belief, self.distortion)
        exact = self.dial.rows == 2 or math.isinf(self.dial.c)
        return replace(made, bound=made.error) if exact else made

    def by_program(self) -> GuardingTable:
        """The best table that a program finds, mixed until it passes."""
        many = self.bounds.belief.size * self.dial.n > SMALL_WITH_MEMORY
        if self.dial.rows > 1 and (many or (self.epsilon is not None and self.dial.n > SMALL_WITH_EPSILON)):
            work = replace(self, bounds=self.bounds.by_symbol(self.dial), dial=self.dial.by_symbol)
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
        if self.dial.rows > 1:
            found = self._remembering()
            return [said] if found is None else [found, said]
        if self.epsilon is None:
            return [self._programmed(bounds.distinguished(), None) or said, said]
        if n <= SMALL_WITH_EPSILON:
            found = self._programmed(bounds.distinguished(), self.epsilon)
            return [said] if found is None else [found, said]
        if n**2 > WRITABLE:
            raise InputError(
                f"an ε for every release beside declared secrets is for at most {int(WRITABLE**0.5)} symbols, got "
                f"{n}; leave epsilon out, or use a coarser alphabet"
            )
        taken = bounds.distinguished()
        alone = self._programmed(taken, None) if len(taken.aimed) else None
        as_it_is = Draft.of_rows(n, np.arange(n), np.arange(n), np.eye(n), 0.0, None)
        return [alone or as_it_is, said, _best_for(self.epsilon, bounds, self.distortion)]

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
            draft = Draft.of_rows(draft.n, draft.outputs, np.arange(len(table)), table, draft.least, draft.towards)
            yield draft
        distribution = draft.distribution(self.bounds.belief)
        for share in MIXES:
            yield draft.mixed(share, distribution)
        n, sources = draft.n, draft.kinds.size
        yield Draft.constant(n, sources, draft.outputs, distribution)
        yield Draft.constant(n, sources, draft.outputs[[distribution.argmax()]], np.ones(1))

    def _remembering(self) -> Draft | None:
        """The program whose rows go by what is read of the memory: labels of negligible mass are dropped, and sources
        that cannot come draw from the marginal."""
        n, belief, dial = self.dial.n, self.dial.read(self.bounds.belief), self.dial
        rows = dial.read(self.bounds.aimed)
        members = np.flatnonzero((belief >= UNLIKELY) & (dial.read(self.bounds.possible.astype(np.float64)) > 0.0))
        rest = np.delete(rows, members, axis=1).sum(1)
        mass = belief[members] / belief[members].sum()
        bounded = rows[:, members] + np.multiply.outer(rest, mass)
        labels = np.unique(members % n)
        if self.epsilon is not None:
            bounded = np.concatenate([bounded, _lifts(mass, usable(self.epsilon, belief.size) - 1e-9)])
        try:
            found = programs.bounded(mass, self.distortion.between(members[:, None] % n, labels[None, :]), bounded)
        except programs.Unsolved:
            return None
        marginal = mass @ found.table
        kept = marginal >= NEGLIGIBLE
        marginal = marginal[kept] / marginal[kept].sum()
        table = np.tile(marginal, (belief.size, 1))
        told = found.table[:, kept]
        left = told.sum(1, keepdims=True)
        table[members] = np.where(left > 0.5, told / np.where(left > 0.5, left, 1.0), marginal)
        least = found.bound if math.isinf(dial.c) or dial.rows == 2 else -np.inf
        return Draft.of_rows(n, labels[kept], np.arange(belief.size), dial.table(table), least, marginal)

    def _programmed(self, bounds: Bounds, epsilon: float | None) -> Draft | None:
        """The program over all symbols of a small alphabet; else over the likeliest, with the rest gathered at them."""
        free = bounds.free()
        likely, count = self._likeliest(bounds)
        whole, members = count == np.count_nonzero(bounds.possible), np.sort(likely)
        if not whole:
            inside = bounds.possible & ~free
            inside[likely] = True
            if (bounds.aimed[:, inside].sum(1) > 0.0).any():  # they need all others as cover
                inside = bounds.possible
            members = np.flatnonzero(inside)
        rows = _Rows.of(bounds, self.distortion, members, np.sort(likely), np.sort(likely[:count]))
        bounded = rows.bounded
        if epsilon is not None:
            bounded = np.concatenate([bounded, _lifts(rows.mass, usable(epsilon, free.size) - 1e-9)])
        try:
            found = programs.bounded(rows.mass, rows.cost, bounded)
        except programs.Unsolved:
            return None
        pure = bounds.possible & free if epsilon is None else np.zeros_like(free)
        least = found.bound if whole else -np.inf
        return _without_residue(bounds, pure, rows, found.table, least)

    def _likeliest(self, bounds: Bounds) -> tuple[Ints, int]:
        """The symbols that get rows of their own in the program, the likeliest first, and how many are its labels."""
        symbols = np.flatnonzero(bounds.possible)
        symbols = symbols[np.argsort(-bounds.belief[symbols], kind="stable")]
        if self.distortion.is_hamming:
            return symbols[:SMALL], symbols.size if symbols.size <= SMALL else LABELS
        held = np.cumsum(bounds.belief[symbols])
        wide = int(held.searchsorted(MOST_OF_IT * held[-1])) + 1
        if wide > NEAR or symbols.size <= NEAR:
            return symbols[:WIDEST], min(WIDEST, symbols.size)
        return symbols[:NEAR], NEAR if len(bounds.aimed) <= 2 else NEAR_LABELS


def _lifts(belief: Floats, epsilon: float) -> Floats:
    """Rows that hold every lift Q(y|x) / p(y) within e^±ε."""
    one, distribution = np.eye(belief.size), np.tile(belief / belief.sum(), (belief.size, 1))
    return np.concatenate([one - np.exp(epsilon) * distribution, np.exp(-epsilon) * distribution - one])


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a program: one for each of the likeliest symbols, which rarer symbols share with the nearest of them.

    Sharing a row keeps every bound, since bounds are sums over symbols; it costs what the rare symbols would have saved
    by a row of their own.
    """

    shared_by: Ints  # (n,) the row of each symbol; -1 for those that are not in the program
    labels: Ints  # (Y,)
    mass: Floats  # (X,) the belief in all symbols of a row
    cost: Floats  # (X, Y) their mean cost
    bounded: Floats  # (I, X)

    @classmethod
    def of(cls, bounds: Bounds, distortion: Distortion, members: Ints, likely: Ints, labels: Ints) -> _Rows:
        """The rows of `likely` symbols, shared by all `members`; `labels` are some of the likely symbols."""
        belief, count = bounds.belief[members], likely.size
        apart = distortion.between(members[:, None], likely[None, :])
        nearest = apart.argmin(1)
        if distortion.is_hamming and members.size > count:  # all alike far: one more row for all of them
            nearest, count = np.full(members.size, count), count + 1
        nearest[members.searchsorted(likely)] = np.arange(likely.size)
        mass, cost, bounded = belief, apart[:, likely.searchsorted(labels)], bounds.aimed[:, members]
        if count < members.size:
            order = np.argsort(nearest, kind="stable")
            first = np.searchsorted(nearest[order], np.arange(count))
            mass = np.add.reduceat(belief[order], first)
            cost = np.add.reduceat((belief[:, None] * cost)[order], first, axis=0) / mass[:, None]
            bounded = np.add.reduceat(bounded[:, order], first, axis=1)
        shared_by = np.full(bounds.belief.size, -1)
        shared_by[members] = nearest
        return cls(shared_by, labels, mass, cost, bounded)


def _without_residue(bounds: Bounds, free: NDArray[np.bool_], rows: _Rows, table: Floats, least: float) -> Draft:
    """Labels of negligible mass dropped, what they held spread as the rest is; symbols left with nothing, and those
    that are not known at all, share one more row: the marginal. `free` symbols outside the program are disclosed."""
    belief, inside = bounds.belief, rows.shared_by >= 0
    outside = np.flatnonzero(free & ~inside)
    marginal = rows.mass @ table
    alone = np.bincount(rows.shared_by[inside], minlength=len(table)) == 1
    pure = ((table > 0.0).sum(0) == 1) & (table[~alone] == 0.0).all(0) & np.isin(rows.labels, np.flatnonzero(free))
    kept = (marginal >= NEGLIGIBLE) | (pure & (marginal > 0.0))
    labels, table, marginal = rows.labels[kept], table[:, kept], marginal[kept]
    left = table.sum(1)
    good = left > 0.5
    outputs = np.concatenate([labels, outside])
    distribution = np.concatenate([marginal, belief[outside]])
    distribution = distribution / distribution.sum()
    count = int(good.sum())
    places = np.full(len(table) + 1, count + 1)  # the last is for symbols outside the program
    places[:-1][good] = np.arange(count)
    kinds = places[rows.shared_by]
    kinds[outside] = count
    spread = np.zeros((count + 2, outputs.size))
    spread[:count, : labels.size] = table[good] / left[good, None]
    spread[count + 1] = distribution
    disclosed = np.zeros(count + 2)
    disclosed[count] = 1.0
    return Draft(belief.size, outputs, kinds, disclosed, np.arange(outputs.size), spread, least, distribution)


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
    towards = np.zeros(outputs.size)
    towards[-1] = 1.0
    least = float(belief @ hidden)
    return Draft(belief.size, outputs, kinds.astype(np.int64), 1.0 - shares, shared, spread, least, towards)


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
    try:
        found, _ = programs.minimise(mass, matrix, np.full(upper.size, -np.inf), upper, most=1.0)
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
    return Draft.of_rows(belief.size, made.codes, np.arange(belief.size), mixed, -np.inf, marginal)


def released(
    users: TrackedUsers, dial: Dial, sources: Ints | None, uniforms: Ints | None, given: Ints | None
) -> tuple[Ints, Ints, Ints]:
    """The releases of users who stand at the same event, by the closed form where it is there: what became of each
    (DONE, LEFT or IMPOSSIBLE), the codes (B,) and the columns (B, Z).

    All secrets are true or not, there is one observer, and wrong symbols cost the same. Either the `sources` and a draw
    for each are given, or the codes that were released.
    """
    asked = [AskedOfUsers.of(one, dial) for one in users.own]
    count, size = len(users), dial.n * dial.rows
    binding = np.concatenate([one.binding for one in asked], axis=1)
    wanted = binding.any(0)  # windows that are not asked of a user ask for nothing of them, whoever else is there
    chosen, there = binding[:, wanted], np.flatnonzero(wanted)
    yes, low, high = (
        np.concatenate([getattr(one, name) for one in asked], 1)[:, there] for name in ("yes", "low", "high")
    )
    low, high = np.where(chosen, low, 0.0), np.where(chosen, high, 2.0)
    pairs = [np.where(one.binding[:, :, None, None], one.promised, 0.0)[:, one.binding.any(0)] for one in asked]
    promised = np.concatenate([each.reshape(count, -1, size) for each in pairs], axis=1)
    nobody, code = np.full(count, -1), form(release_each, count)
    inputs = asked[0].belief, yes, low, high, promised, dial.noise.ravel()
    draws = (nobody if each is None else each for each in (sources, uniforms, given))
    outputs = np.zeros(count, np.int64), np.zeros((count, size), np.int64), np.zeros(count, np.int64)
    parts = _given(code is release_each, (*inputs, *draws, *outputs))
    code(*parts[:5], dial.n, dial.rows, parts[5], dial.ratio, *parts[6:])
    codes, columns, status = (np.asarray(each, np.int64) for each in parts[-3:])
    return status, codes, columns.reshape(count, size)


def _given(plain: bool, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arrays for compiled code; as lists for plain Python, which is quicker with them."""
    return tuple(array.tolist() if plain else np.ascontiguousarray(array) for array in arrays)
