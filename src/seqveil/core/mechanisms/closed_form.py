"""The exact optimum: least expected distortion of all sound kernels. For Hamming in closed form, else by a program.

Here stand the problem for Hamming distortion, its solution, the proof, and its one source.

    minimise Σ_x β(x) (1 - Q(x|x))   over row-stochastic Q with  e^-ε p(y) ≤ Q(y|x) ≤ e^ε p(y),   p = β Q

Put κ = 1/(1+e^ε), a = e^-ε. By the structure theorem Q = a p + (1-a) I, where I(y|x) is a channel with the same
marginal p and I(y|x) ≤ p(y)/κ. Read I as a timetable: time runs for 1/κ, every instant carries a label y and holds
rows of total belief exactly κ, each row x is present for time 1 in all, I(y|x) = time x spends under label y.

`blocks` takes I, or a mixture of I and the likeliest label, with a κ and an a of its own: all of this holds for every κ
in (0, 1] and a in [0, 1). Put d = aκ + 1-a, which is e^ε κ above.

**The optimum.** Order the symbols from most to least likely.

1. Every symbol with β ≥ κ has its label to itself. The next ones, while whole slots of length 1 are left and
   β > (aκ/d) max β, get a slot each: they are present throughout, less likely rows fill the slot up to κ.
   Let R be the mass of the symbols without a label yet (the tail), H the filling they gave, f = R - H ≥ 0 what is left.
2. The left-over f goes either to the most likely symbol's label, or to a last label z, the most likely of the tail.
   If R ≥ κ the slot of z holds z and tail rows. If R < κ it holds the κ *least likely mass* of all: the tail and, from
   the least likely upwards, a share φ_i of labelled symbols, which leave their own slots for as long.
   The slot lasts t = f / (min(R, κ) - Σ φ_i (κ-β_i)^+) ≤ 1.

**Proof.** Primal: rows and instants add up by construction, and t, φ ≤ 1.
Dual: prices u(x) bound Pr(Y=X) by Σ β u if every label y has Σ_x β(x) φ(x) (a β(y) + (1-a)[x=y] - u(x)) ≤ 0 for all
φ ∈ [0,1]^n with Σ β φ = κ. Give the tail the price r and a labelled symbol u_i = c_i - r (κ-β_i)^+ / β_i, where
c_i = a max(β_i, κ) + 1 - a ≥ d. If a max β ≤ r ≤ u_i for all i, each label is best served by its own symbol with
the tail as filling (the cheapest rows), and earns exactly nothing; only z still needs W(r) ≥ d β(z), W(r) being the
least price of mass κ. A less likely symbol is never dearer, whatever r is, so that is the least likely mass, and W is
linear with slope f/t > 0. At r = d β(z)/κ all prices are at least r, hence W(r) ≥ κ r: the root r₀ of
W(r) = d β(z) has r₀ ≤ d β(z)/κ ≤ u_i. So r = max(a max β, r₀) is feasible, with value Σ β_i c_i + r f, which the
timetable attains. ∎

So at most ⌈1+e^ε⌉ symbols are ever released, always the most likely ones.

**Who fills which slot.** The optimum fixes how much mass of unlabelled symbols fills each label's slot, not which
symbols. Filling every slot with all of them alike says nothing about them; giving each symbol a slot of its
own, as far as masses allow, costs nothing now and sharpens the belief for later releases (MSNBC, ε = 1: .48 wrong
instead of .55). Symbols fill the slots in the order of their codes; one on the border of two slots is split.

**The code** goes a number at a time and calls no function of a library, so that both its forms (`bulk`) give the same
integers: whoever reads releases may have numba or not.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from seqveil.core import programs
from seqveil.core.bulk import compiled, reals, row_by_row, wholes
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, DROP, Floats, Kernels, slack, usable
from seqveil.core.mechanisms.base import Asked, Made

WIDEST = 1024  # outputs a table may have
QUICK = 40  # symbols up to which the program for any distortion takes some hundredths of a second
MARGIN = 1e-12  # what the check in floats keeps away from a bound; the closed form keeps ten times as far (`usable`)
ONE = float(DENOMINATOR)
DONE, LEFT, IMPOSSIBLE = 0, 1, 2  # what became of a row: released; in doubt; no such release can have been made

Numbers = tuple[float, float, float, float, float]  # a, 1-a, κ; in each row, of the marginal and of the first label
Bounds = tuple[float, float, float]
Row = Any  # a list of numbers, or an array of them
Rows = tuple[Row, ...]


@compiled
def room_for(n: int, width: int) -> Any:
    """What `table` fills in and works in: at most 4K rows, with at most 9K entries in all; and the timetable.

    *Rows*: the symbols of the labels (K,), what all rows share in integers (K,), the row of each symbol (n,) and the
    belief in the symbols of each row (R,). *Entries*, ascending by row and label: of each its row, its label and its
    weight (M,); and room to find rows again. *Timetable*: of each label (K,) its belief, the mass of less likely
    symbols, φ, the mass of unlabelled symbols under it, where that ends with all of them laid end to end, and p.
    """
    height, most = min(n, 4 * width), 9 * width
    rows = wholes(width), wholes(width), wholes(n), reals(height)
    entries = wholes(most), wholes(most), wholes(most), wholes(2 * width)
    return rows, entries, (reals(width), reals(width), reals(width), reals(width), reals(width), reals(width))


@compiled
def table(belief: Row, numbers: Numbers, rows: Rows, entries: Rows, plan: Rows) -> tuple[int, float, float]:
    """The optimum of one belief in integers: weight(x, k) is base[k] and the entries on label k of the row of x.

    Fills in what is in `room_for`. Returns how many entries there are, the sum of the belief, and the dual value, so
    that no sound kernel has Pr(Y = X) above it.
    """
    (labels, base, classes, masses), (owners, places, extras, _) = rows, entries
    top, _, share, _, _, marginal = plan
    _, _, kappa, mixed, first = numbers
    everything, above, extra, width = likeliest(belief, labels, top), 0.0, DENOMINATOR, len(labels)
    for k in range(width):
        above += top[k]
    rest = max(0.0, everything - above) if width < len(belief) else 0.0
    count, time, tail, value = timetable(rest, numbers, plan)
    for k in range(width):
        base[k] = int(mixed * marginal[k] * ONE) + (int(first * ONE) if k == 0 else 0)
        extra -= base[k]
    for x in range(len(belief)):
        classes[x] = -1
    entry = 0
    for k in range(count):  # under its own label, and in the last slot for its share
        classes[labels[k]], masses[k] = k, top[k]
        last = min(int(time * share[k] * float(extra)), extra)
        owners[entry], places[entry], extras[entry] = k, k, extra - last
        entry += 1
        if last > 0:
            owners[entry], places[entry], extras[entry] = k, count, last
            entry += 1
    head = labels[count] if time > 0.0 else -1
    free = kappa - belief[head] if tail >= kappa else 1.0  # what others than the label itself may have of the last slot
    return fill(belief, count, time, head, free, extra, entry, plan[4], rows, entries), everything, value


@compiled
def likeliest(belief: Row, labels: Row, top: Row) -> float:
    """Fill in the likeliest symbols in descending order, ties by code, and their beliefs; the sum of all beliefs."""
    last, held, least, everything = len(labels) - 1, 0, -1.0, 0.0
    for x in range(len(belief)):
        here = belief[x]
        everything += here
        if here > least:
            at = min(held, last)
            while at > 0 and top[at - 1] < here:
                top[at], labels[at] = top[at - 1], labels[at - 1]
                at -= 1
            top[at], labels[at] = here, x
            held += 1
            if held > last:
                least = top[last]
    return everything


@compiled
def timetable(rest: float, numbers: Numbers, plan: Rows) -> tuple[int, float, float, float]:
    """Who is present where: steps 1 and 2 of the optimum, for the likeliest beliefs and the mass of all others.

    Returns how many symbols have a label, how long the slot of one more label lasts (0: there is none), the mass R of
    all symbols without a label, and the dual value.
    """
    (top, after, share, filling, borders, marginal), (a, gain, kappa, _, _) = plan, numbers
    tail, width = rest, len(top)
    for k in range(width - 1, -1, -1):
        after[k] = tail
        tail += top[k]
        share[k], filling[k], marginal[k] = 0.0, 0.0, 0.0
    count, needed, held, priced, worth, own = 0, 0.0, 0.0, 0.0, 0.0, a * kappa + gain
    least = a * kappa / own * top[0]
    while count < width and top[count] > least:
        here, need = top[count], max(kappa - top[count], 0.0)
        if after[count] < needed + need:
            break
        share[count], filling[count] = min(max((kappa - after[count]) / here, 0.0), 1.0), need
        price = here * (a * max(here, kappa) + gain)
        needed, worth = needed + need, worth + price
        held, priced = held + share[count] * need, priced + share[count] * price
        tail = after[count]
        count += 1
    left, slope = max(tail - needed, 0.0), min(tail, kappa) - held
    time, price = 0.0, a * top[0]
    if count < width and top[count] > least and left > 0.0:
        advantage = own * top[count] - priced
        if advantage > price * slope:
            slope = slope if slope > 0.0 else 1.0
            time, price = min(left / slope, 1.0), advantage / slope
            marginal[count] = time * kappa
    if time == 0.0:
        filling[0] += left
    end = 0.0
    for k in range(width):
        if k < count:
            kept = 1.0 - time * share[k]
            filling[k] *= kept
            marginal[k] = kept * top[k] + filling[k]
            end += filling[k]
        borders[k] = end
    return count, time, tail, worth + price * left


@compiled
def fill(
    belief: Row, count: int, time: float, head: int, free: float, extra: int, entry: int, borders: Row,
    made: Rows, entries: Rows,
) -> int:  # fmt: skip
    """The rows of symbols without a label, behind those of the labels; how many entries there are in all.

    They fill the slots in the order of their codes. In the last slot are its label's own symbol `head` and others in
    the order of their codes, as far as it is `free`. Nobody fills where all have a label: then a symbol that the belief
    rules out passes for the likeliest one.
    """
    (_, _, classes, masses), (owners, places, extras, known) = made, entries
    width, rows, final, slot, start, inside = len(borders), count, 0, 0, 0.0, 0.0
    while borders[final] < borders[width - 1]:
        final += 1
    for k in range(2 * width):
        known[k] = -1  # the row of symbols that fill one slot alone, outside of the last slot and inside
    for x in range(len(belief)):
        if classes[x] >= 0:
            continue
        here, before, in_last = belief[x], inside, 0.0
        if head >= 0:
            inside += here if x != head else 0.0
            if x == head or inside <= free:
                in_last = 1.0
            elif before < free:
                in_last = (free - before) / here
        end = start + here * (1.0 - time * in_last)
        while slot < final and borders[slot] <= start:
            slot += 1
        past = slot
        while past < final and borders[past] < end:
            past += 1
        alone = past == slot and (in_last == 0.0 or in_last == 1.0)
        place = slot if in_last == 0.0 else width + slot
        if alone and known[place] >= 0:
            classes[x] = known[place]
            masses[known[place]] += here
        else:
            classes[x], masses[rows] = rows, here
            if alone:
                known[place] = rows
            last = min(int(time * in_last * float(extra)), extra)
            left, across = extra - last, end - start
            for k in range(slot, past):  # over borders: in proportion to what lies in each slot
                part = min(int((borders[k] - start) / across * float(extra - last)), left)
                owners[entry], places[entry], extras[entry] = rows, k, part
                entry, left, start = entry + 1, left - part, borders[k]
            owners[entry], places[entry], extras[entry] = rows, past, left
            entry += 1
            if last > 0:
                owners[entry], places[entry], extras[entry] = rows, count, last
                entry += 1
            rows += 1
        start = end
    return entry


@compiled
def weigh(made: int, everything: float, rows: Rows, entries: Rows, mean: Row, high: Row) -> None:
    """Fill in each label's expected weight, times the whole belief, and its largest one."""
    (_, base, _, masses), (owners, places, extras, _) = rows, entries
    for k in range(len(base)):
        high[k], mean[k] = float(base[k]), everything * float(base[k])
    for entry in range(made):
        k = places[entry]
        high[k] = max(high[k], float(base[k] + extras[entry]))
        mean[k] += masses[owners[entry]] * float(extras[entry])


@compiled
def inside_bounds(bounds: Bounds, base: Row, mean: Row, high: Row) -> bool:
    """Whether the very integers keep the promise with a margin: each lift, and the ratio of each two weights.

    The least weight of a label is its base, or more.
    """
    ceiling, floor, ratio = bounds
    for k in range(len(base)):
        least = float(base[k])
        kept = high[k] <= ceiling * mean[k] and least >= floor * mean[k] and high[k] <= ratio * least
        if high[k] > 0.0 and not (kept and mean[k] > 4.0 * DROP * ONE):
            return False
    return True


@compiled
def write(numbers: Numbers, beliefs: Any, outputs: Any, base: Any, extra: Any, rows: Any, bound: Row) -> None:
    """Write each user's table out: outputs and base (B, K), entries (B, R, K), rows of the symbols, and the bound."""
    made_in, entries, plan = room_for(len(beliefs[0]), len(outputs[0]))
    (labels, shared, classes, masses), (owners, places, extras, _) = made_in, entries
    for user in range(len(beliefs)):
        made, _, value = table(beliefs[user], numbers, made_in, entries, plan)
        bound[user] = 1.0 - value
        for k in range(len(labels)):
            outputs[user][k], base[user][k] = labels[k], shared[k]
        for x in range(len(classes)):
            rows[user][x] = classes[x]
        for entry in range(made):
            extra[user][owners[entry]][places[entry]] += extras[entry]
        for row in range(owners[made - 1] + 1, len(masses)):  # one that no symbol has is a proper row, too
            for k in range(len(labels)):
                extra[user][row][k] = extra[user][0][k]


@compiled
def draw(
    width: int, numbers: Numbers, bounds: Bounds, beliefs: Any, truths: Row, randomness: Row, given: Row, codes: Row,
    found: Any, state: Row,
) -> None:  # fmt: skip
    """Make each user's table, check it, and draw from it; or find the column of the release given.

    Fills in released codes (B,), columns `found` (B, n), and what became of each row (B,).
    """
    rows, entries, plan = room_for(len(beliefs[0]), width)
    labels, base, classes, masses = rows
    mean, high, of_row = reals(width), reals(width), wholes(len(masses))
    for user in range(len(beliefs)):
        made, everything, _ = table(beliefs[user], numbers, rows, entries, plan)
        drawn = 0
        weigh(made, everything, rows, entries, mean, high)
        if not inside_bounds(bounds, base, mean, high):
            state[user] = LEFT
            continue
        if len(given):
            while drawn < width and labels[drawn] != given[user]:
                drawn += 1
        else:
            drawn = pick(classes[truths[user]], randomness[user], made, base, entries)
        state[user] = IMPOSSIBLE
        if drawn < width and base[drawn] > 0:
            codes[user], state[user] = labels[drawn], DONE
            write_column(drawn, made, rows, entries, of_row, found[user])


@compiled
def pick(row: int, uniform: int, made: int, base: Row, entries: Rows) -> int:
    """The label that a draw picks for a row: by its entries, else by the base."""
    owners, places, extras, _ = entries
    for entry in range(made):
        if owners[entry] == row:
            if uniform < extras[entry]:
                return places[entry]
            uniform -= extras[entry]
    drawn = 0
    while uniform >= base[drawn]:
        uniform -= base[drawn]
        drawn += 1
    return drawn


@compiled
def write_column(label: int, made: int, rows: Rows, entries: Rows, of_row: Row, column: Row) -> None:
    """Write out the weight that each symbol puts on a label."""
    (_, base, classes, _), (owners, places, extras, _) = rows, entries
    for row in range(owners[made - 1] + 1):
        of_row[row] = base[label]
    for entry in range(made):
        of_row[owners[entry]] += extras[entry] if places[entry] == label else 0
    for x in range(len(column)):
        column[x] = of_row[classes[x]]


def columns(n: int, epsilon: float) -> int:
    """How many symbols an optimum needs: min(n, ⌈1+e^ε⌉).

    >>> columns(17, 1.0), columns(3, 1.0), columns(100, math.log(3.0))
    (4, 3, 4)
    """
    if epsilon >= math.log(n):
        return n
    return min(n, math.ceil((1.0 + math.exp(epsilon)) * (1.0 - 1e-14)))


def optimal(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """min Σ β(x) Q(y|x) D(x, y) over row-stochastic Q with e^-ε p(y) ≤ Q(y|x) ≤ e^ε p(y) for every x and y.

    Hamming: an optimum releases only the ⌈1+e^ε⌉ likeliest symbols, in closed form (the module has the proof); among
    all optima we take one that tells the other symbols apart as far as that is free. Any other distortion: a linear
    program with a certified gap.

    *Guarantee*: ε-SIP on both sides, 2ε-LDP without trusting the model; never worse than the best constant release.

    >>> from seqveil.core import mechanisms
    >>> from seqveil.core.distortion import hamming
    >>> kernel = mechanisms.optimal.kernels(np.array([[0.2, 0.8]]), 1.0).one(0)
    >>> round(kernel.error([0.2, 0.8], hamming()), 4)
    0.1765

    Reference: docs/theory.md, section 5.
    """
    n = beliefs.shape[1]
    aim = usable(epsilon, n)
    if not distortion.is_hamming:
        programs.check_size(n, n)  # before n² distances are made
        found = [programs.sound(belief, aim, distortion.matrix(n)) for belief in beliefs]
        outputs = np.zeros((len(found), max((each.outputs.size for each in found), default=1)), np.int64)
        weights = np.zeros((len(found), n, outputs.shape[1]), np.int64)
        for user, each in enumerate(found):
            outputs[user, : each.outputs.size] = each.outputs
            alone = Kernels.from_tables(each.outputs[None], each.table[None], None, beliefs[user : user + 1])
            weights[user, :, : each.outputs.size] = alone.extra[0]
        return Kernels(n, outputs, np.zeros_like(outputs), weights)
    if columns(n, aim) > WIDEST:
        raise InputError(
            f"the optimum for ε={epsilon:g} over {n} symbols needs more than {WIDEST} columns; "
            'use mechanism="balanced", mechanism="tree" or a smaller epsilon'
        )
    kernels, _ = solve(beliefs, aim)
    weak = (kernels.marginal(beliefs) < DROP * ONE) & (kernels.base > 0)
    some = np.flatnonzero(weak.any(1))
    if some.size:  # outputs that would hardly ever be released
        assert kernels.rows is not None
        tables = (kernels.extra[some] + kernels.base[some, None]) / ONE
        without = Kernels.from_tables(kernels.outputs[some], tables, kernels.rows[some], beliefs[some])
        kernels.base[some], kernels.extra[some] = without.base, without.extra
    return kernels


def solve(beliefs: Floats, epsilon: float) -> tuple[Kernels, Floats]:
    """The exact optimum for Hamming distortion, sound at ε up to rounding, its labels the likeliest first.

    Also what no sound kernel does better than: (B,) expected distortion (the dual value).

    >>> kernels, bound = solve(np.array([[0.2, 0.8]]), 1.0)
    >>> kernels.outputs.tolist(), kernels.one(0).probabilities.round(3).tolist(), bound.round(4).tolist()
    ([[1, 0]], [[0.269, 0.731], [0.847, 0.153]], [0.1765])
    """
    users, n = beliefs.shape
    width = columns(n, epsilon)
    outputs, base, rows = (np.empty((users, size), np.int64) for size in (width, width, n))
    extra, bound = np.zeros((users, min(n, 4 * width), width), np.int64), np.empty(users)
    if users:
        row_by_row(write, (_numbers(epsilon),), (beliefs,), (outputs, base, extra, rows, bound))
    return Kernels(n, outputs, base, extra, None, rows), bound


def release(beliefs: Floats, epsilon: float, distortion: Distortion, asked: Asked) -> Made | None:
    """One release for each user, from its table checked in integers; None where the closed form does not cover it."""
    users, n = beliefs.shape
    if not distortion.is_hamming or columns(n, usable(epsilon, n)) > WIDEST:
        return None
    codes, found, state = np.zeros(users, np.int64), np.empty((users, n), np.int64), np.zeros(users, np.int8)
    row_by_row(draw, labels_and_bounds(epsilon, n), (beliefs, *asked), (codes, found, state))
    return Made(codes, found, np.flatnonzero(state == LEFT), bool(np.count_nonzero(state == IMPOSSIBLE)))


@lru_cache(maxsize=256)
def labels_and_bounds(epsilon: float, n: int) -> tuple[int, Numbers, Bounds]:
    """How many labels the optimum has, the numbers of its closed form, and bounds on lifts and on ratios of weights.

    They are taken once, in Python: the exponential of another library may differ in the last bit.
    """
    aim, top = usable(epsilon, n), epsilon - MARGIN - 4 * slack(n)
    return columns(n, aim), _numbers(aim), (math.exp(top), math.exp(-top), math.exp(2.0 * top))


def _numbers(epsilon: float) -> Numbers:
    """e^-ε, 1-e^-ε and κ = 1/(1+e^ε); a row has e^-ε of the marginal in it."""
    a = math.exp(-epsilon)
    return a, -math.expm1(-epsilon), a / (1.0 + a), a, 0.0
