"""Laws over many states led on and back, compiled: `SIDE` users side by side share one pass over the chain.

Each sum is taken in the order in which scipy's sparse product takes it, user by user, so that the results are numpy's
to the last bit, whoever else is in the call. A few users are led on one by one.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from seqveil.core.compiled import BLOCK, LARGEST_WEIGHT, compiled, halves, total

SIDE = 8  # users that go side by side, a line of the processor's memory for each state
TILE = 128  # numbers that are divided at a time
VECTOR, LANES, INDEX = ir.VectorType(ir.DoubleType(), SIDE), ir.VectorType(ir.IntType(32), SIDE), ir.IntType(64)


@compiled
def _extremes(law, column):
    """Least and largest weight over what the law allows."""
    allowed, low, high = 0, LARGEST_WEIGHT, 0
    for s in range(law.size):
        allowed += 1 if law[s] > 0.0 else 0
    if allowed == law.size:  # the usual case, and many times quicker
        for s in range(law.size):
            low, high = min(low, column[s]), max(high, column[s])
        return low, high
    for s in range(law.size):
        if law[s] > 0.0:
            low, high = min(low, column[s]), max(high, column[s])
    return low, high


@compiled
def _divide(laws, sums, tile):
    """Laws (S, SIDE) by the sum of each, in pieces long enough for vector instructions."""
    flat = laws.reshape(-1)
    for i in range(TILE):
        tile[i] = sums[i % SIDE]
    whole = flat.size - flat.size % TILE
    for begin in range(0, whole, TILE):
        part = flat[begin : begin + TILE]
        for i in range(TILE):
            part[i] /= tile[i]
    for i in range(whole, flat.size):
        flat[i] /= tile[i % SIDE]


def _vectors(context, builder, signature, arguments):
    """What generated code takes: the arrays among the arguments as such, and how to point at `SIDE` numbers of one."""
    made = [
        context.make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, arguments, strict=True)
    ]

    def at(array, row, column):
        width = builder.extract_value(array.shape, array._datamodel.get_type("shape").count - 1)
        place = builder.gep(array.data, [builder.add(builder.mul(row, width), column)])
        return builder.bitcast(place, VECTOR.as_pointer())

    return made, at


@intrinsic
def _sum_row(typing_context, laws, sources, chances, begin, end, led, target):
    """Fill led[target] with the sum of chances[k] · laws[sources[k]] over begin <= k < end; all rows are `SIDE` wide.

    It is written as one vector of `SIDE` numbers, because numba would take the users one after another. Products and
    sums stay apart and in the order of k, so that no bit differs from numpy's.
    """

    def generate(context, builder, signature, arguments):
        made, at = _vectors(context, builder, signature, arguments)
        laws, sources, chances, begin, end, led, target = made
        nothing, first = ir.Constant(VECTOR, ir.Undefined), ir.Constant(LANES, [0] * SIDE)
        running = cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [0.0] * SIDE))
        with cgutils.for_range_slice(builder, begin, end, INDEX(1)) as (k, _):
            source = builder.zext(builder.load(builder.gep(sources.data, [k])), INDEX)
            chance = builder.load(builder.gep(chances.data, [k]))
            spread = builder.shuffle_vector(builder.insert_element(nothing, chance, LANES.element(0)), nothing, first)
            law = builder.load(at(laws, source, INDEX(0)), align=8)
            builder.store(builder.fadd(builder.load(running), builder.fmul(spread, law)), running)
        builder.store(builder.load(running), at(led, target, INDEX(0)), align=8)
        return context.get_dummy_value()

    return types.void(laws, sources, chances, types.intp, types.intp, led, types.intp), generate


@intrinsic
def _turn_square(typing_context, source, row, column, target, to_row, to_column):
    """Write a square of `SIDE` times `SIDE` numbers of one array into another, rows as columns."""

    def generate(context, builder, signature, arguments):
        (source, row, column, target, to_row, to_column), at = _vectors(context, builder, signature, arguments)
        rows = [builder.load(at(source, builder.add(row, INDEX(k)), column), align=8) for k in range(SIDE)]
        half = SIDE // 2
        while half:  # rows half a square apart change two quarters of it; then so do the squares within
            keep = [j if not j & half else j - half + SIDE for j in range(SIDE)]
            change = [j + half if not j & half else j + SIDE for j in range(SIDE)]
            for k in (k for k in range(SIDE) if not k & half):
                pair = rows[k], rows[k + half]
                rows[k] = builder.shuffle_vector(*pair, ir.Constant(LANES, keep))
                rows[k + half] = builder.shuffle_vector(*pair, ir.Constant(LANES, change))
            half //= 2
        for k, turned in enumerate(rows):
            builder.store(turned, at(target, builder.add(to_row, INDEX(k)), to_column), align=8)
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp, types.intp), generate


@compiled
def _side_by_side(rows, begin, laws):
    """Rows of users (U, S), from one on, as laws side by side (S, SIDE); lanes without a user stay as they are."""
    size, users = laws.shape[0], min(SIDE, len(rows) - begin)
    whole = size - size % SIDE if users == SIDE else 0
    for s in range(0, whole, SIDE):
        _turn_square(rows, begin, s, laws, s, 0)
    for s in range(whole, size):
        for u in range(users):
            laws[s, u] = rows[begin + u, s]


@compiled
def _apart(laws, begin, rows):
    """Laws side by side (S, SIDE) as rows of users (U, S), from one on."""
    size, users = rows.shape[1], min(SIDE, len(rows) - begin)
    whole = size - size % SIDE if users == SIDE else 0
    for s in range(0, whole, SIDE):
        _turn_square(laws, s, 0, rows, begin, s)
    for s in range(whole, size):
        for u in range(users):
            rows[begin + u, s] = laws[s, u]


@compiled
def _led_on(laws, pointers, sources, chances, led):
    """One step of the chain for laws (S, SIDE): each target's sum over its sources, in their order.

    The last row of the chain, and so of what is filled in, is the mass that goes on by the base law.
    """
    for t in range(led.shape[0]):
        _sum_row(laws, sources, chances, pointers[t], pointers[t + 1], led, t)


@compiled
def _sums(laws, out):
    """`compiled.lane_sums` of laws (S, SIDE): every eighth state of a block goes into one of eight running sums."""
    every, ones = np.empty(BLOCK, np.uint32), np.ones(BLOCK)
    for k in range(BLOCK):
        every[k] = k // (BLOCK // 8) + 8 * (k % (BLOCK // 8))
    parts, sums, found = np.empty((8, SIDE)), np.empty((64, SIDE)), 0
    for begin, many in halves(laws.shape[0]):
        if many < 0:
            found -= 1
            sums[found - 1] += sums[found]
            continue
        block = laws[begin : begin + many]
        for k in range(8):
            _sum_row(block, every, ones, k * (BLOCK // 8), k * (BLOCK // 8) + many // 8, parts, k)
        for u in range(SIDE):
            sums[found, u] = ((parts[0, u] + parts[1, u]) + (parts[2, u] + parts[3, u])) + (
                (parts[4, u] + parts[5, u]) + (parts[6, u] + parts[7, u])
            )
        for k in range(many - many % 8, many):
            for u in range(SIDE):
                sums[found, u] += block[k, u]
        found += 1
    out[:] = sums[0]


@compiled
def _restart(again, base_state, base, row):
    """Add what comes to each state of laws (S, SIDE) by the base law, which so much of each law leads to."""
    for k in range(base.size):
        target, chance = row[k if base_state.size == 0 else base_state[k]], base[k]
        for u in range(SIDE):
            target[u] += again[u] * chance


@compiled
def _one_on(post, pointers, sources, chances, base_state, base, row):
    """One step of the chain for one law, as `_led_on` and `_restart` take it, and divided by its sum."""
    for t in range(row.size):
        here = 0.0
        for k in range(pointers[t], pointers[t + 1]):
            here += chances[k] * post[sources[k]]
        row[t] = here
    if base.size:
        again = 0.0
        for k in range(pointers[-2], pointers[-1]):
            again += chances[k] * post[sources[k]]
        for k in range(base.size):
            row[k if base_state.size == 0 else base_state[k]] += again * base[k]
    everything = total(row, row.size)
    for t in range(row.size):
        row[t] /= everything


@compiled
def update_wide(
    states, columns, newest, pointers, sources, chances, base_state, base, ahead, marginal, low, high
):  # fmt: skip
    """`compiled.update` for a sparse chain, which comes by targets (`MarkovModel.inward`).

    Fills in all of `ahead`; says whether a belief ruled its release out, which is left to numpy. `low` and `high` are
    empty where nobody asks for the extremes.
    """
    users, size = states.shape
    flat, spread = np.zeros((SIDE, size)), np.empty(size if newest.size else 0, columns.dtype)
    post, led, sums, tile = np.empty((size, SIDE)), np.empty((size + 1, SIDE)), np.empty(SIDE), np.empty(TILE)
    row = led[:size]
    for begin in range(0, users, SIDE):
        here = min(SIDE, users - begin)
        alone = 2 * here <= SIDE  # so few that those beside them are not worth their time
        for u in range(here):
            user, column = begin + u, columns[begin + u]
            if newest.size:
                for s in range(size):
                    spread[s] = column[newest[s]]
                column = spread
            law, mine = states[user], flat[u]
            for s in range(size):
                mine[s] = law[s] * float(column[s])
            if low.size:
                low[user], high[user] = _extremes(law, column)
            if alone:
                marginal[user] = total(mine, size)
                if not marginal[user] > 0.0:
                    return True
                for s in range(size):
                    mine[s] /= marginal[user]
                _one_on(mine, pointers, sources, chances, base_state, base, ahead[user])
        if alone:
            continue
        _side_by_side(flat, 0, post)
        _sums(post, sums)
        for u in range(here):
            if not sums[u] > 0.0:
                return True
            marginal[begin + u] = sums[u]
        _divide(post, sums, tile)
        _led_on(post, pointers, sources, chances, led)
        _restart(led[size], base_state, base, row)
        _sums(row, sums)
        _divide(row, sums, tile)
        _apart(row, begin, ahead)
    return False


@compiled
def pull_wide(values, pointers, targets, chances, backoff, jump, out):
    """`filtering.pull` for a sparse chain: each source's sum over its targets, `SIDE` users side by side.

    `jump` (B,) is what the base law expects of the values. Fills in all of `out` (B, S).
    """
    users, size = values.shape
    laws, led = np.zeros((size, SIDE)), np.empty((size, SIDE))
    for begin in range(0, users, SIDE):
        here = min(SIDE, users - begin)
        if 2 * here <= SIDE:
            for user in range(begin, users):
                for s in range(size):
                    onward = 0.0
                    for k in range(pointers[s], pointers[s + 1]):
                        onward += chances[k] * values[user, targets[k]]
                    out[user, s] = onward + backoff[s] * jump[user]
            continue
        _side_by_side(values, begin, laws)
        _led_on(laws, pointers, targets, chances, led)
        for s in range(size):
            for u in range(here):
                led[s, u] += backoff[s] * jump[begin + u]
        _apart(led, begin, out)
