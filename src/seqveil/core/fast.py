"""The compiled hot path: the same releases to the last bit, many times sooner, where numba is installed.

It comes with `pip install -e '.[fast]'` and loads itself where numba keeps the compiled code of an earlier process, in
half a second: with the first release of a session, and in a file of many users once there were enough releases to be
worth that. Else it has to be compiled, which takes about ten seconds, once a process has made enough releases to be
worth that. A program that minds the pause calls `load()` when it starts, as the service does. `SEQVEIL_COMPILED=0` in
the environment keeps to numpy, and to plain numbers where a single symbol is released by `optimal` (`single`).

>>> load() in (True, False)
True
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from seqveil.core import filtering, single
from seqveil.core.bulk import in_parts
from seqveil.core.distortion import Distortion, euclidean, hamming, medians, squared
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints, slack, usable
from seqveil.core.leakage import Leakages
from seqveil.core.mechanisms import BatchMechanism, Mechanism
from seqveil.core.mechanisms import crr as CRR
from seqveil.core.mechanisms import optimal as OPTIMAL
from seqveil.core.mechanisms import randomized_response as RESPONSE
from seqveil.core.mechanisms.optimum import NARROW, fits
from seqveil.core.mechanisms.optimum import columns as labels_of
from seqveil.core.mechanisms.responses import crr_weight, response_weights
from seqveil.core.model import MarkovModel

WORTH_IT = 20_000  # releases of a process after which the code is compiled where it has to be
MARGIN = 1e-12  # what a check in floats keeps away from a bound; solvers keep ten times as far (`kernel.usable`)
WORTH_LOADING = 2_000  # releases after which it is loaded where it was kept: numpy takes as long for them as that takes
NOBODY: Ints = np.empty(0, np.int64)
_loaded: Any = None  # False: it cannot be used here
_made = 0
_batched = 0  # symbols of batches, and best guesses on a map


@dataclass(frozen=True, eq=False)
class Made:
    """Releases made here, and the rows left for numpy."""

    codes: Ints  # (B,)
    columns: Ints  # (B, n)
    left: Ints  # rows not covered, or in doubt
    impossible: bool  # some release given cannot have been made


def load(batches: bool = False) -> bool:
    """Load the compiled path now; False where numba is missing, switched off, or does not agree with numpy here.

    With `batches` also what trees of batches take, which is another ten seconds where it has to be compiled.
    """
    loaded = _code(WORTH_IT) is not None
    return loaded and (not batches or trees(WORTH_IT) is not None)


def _code(users: int) -> Any:
    """The compiled functions, where they are there and worth it."""
    global _loaded, _made
    _made += users
    alone = users == 1  # a session, which is expected to go on
    if _loaded is None and (_made >= WORTH_IT or ((alone or _made >= WORTH_LOADING) and _kept())):
        if os.environ.get("SEQVEIL_COMPILED") == "0" or not find_spec("numba"):
            return None
        from seqveil.core import compiled

        _loaded = compiled if _agrees(compiled) else False
    return _loaded or None


def trees(symbols: int = 1) -> Any:
    """The compiled functions for trees of batches and for best guesses; None where numpy is to do it."""
    global _batched
    _batched += symbols
    ready = _batched >= WORTH_IT or (_batched >= WORTH_LOADING and _kept("compiled_trees.costs_around"))
    return _trees() if ready and _code(symbols) is not None else None


@cache
def _kept(function: str = "compiled.optimal") -> bool:
    """Whether numba has kept compiled code of this very version, beside it or in a folder of its own."""
    source = Path(__file__).with_name(function.split(".")[0] + ".py")
    name = f"{function}-*.nbi"
    found = list(source.parent.glob(f"__pycache__/{name}"))
    for folder in (os.environ.get("NUMBA_CACHE_DIR"), os.path.expanduser("~/.cache/numba")):
        found += [] if not folder else Path(folder).glob(f"{source.parent.name}_*/{name}")
    try:
        return any(path.stat().st_mtime >= source.stat().st_mtime for path in found)
    except OSError:  # a file that is gone again, or a package in an archive
        return False


def release(
    mechanism: Mechanism | BatchMechanism,
    beliefs: Floats,
    epsilon: float,
    distortion: Distortion,
    truths: Ints = NOBODY,
    thrown: Ints = NOBODY,
    given: Ints = NOBODY,
    code: Any = None,
) -> Made | None:
    """One release for each user, drawn from the coins thrown, or the one given; None where this path does not cover it.

    `code` are the compiled functions, where others are to be used than those loaded.
    """
    users, n = beliefs.shape
    code = _code(users) if code is None else code
    if not users or n == 1 or usable(epsilon, n) == 0.0:
        return None
    if code is None:
        closed = users == 1 and n <= NARROW and mechanism is OPTIMAL and distortion.is_hamming
        return _alone(beliefs[0], epsilon, truths, thrown, given) if closed else None
    codes, columns, state = np.zeros(users, np.int64), np.empty((users, n), np.int64), np.zeros(users, np.int8)
    events = _whole(beliefs), truths, thrown, given, codes, columns, state
    some = _way(code, mechanism, epsilon, distortion, events)
    if some is None:
        return None
    in_parts(users, some, n)
    if not np.count_nonzero(state):  # all are done
        return Made(codes, columns, NOBODY, False)
    return Made(codes, columns, np.flatnonzero(state == code.LEFT), bool(np.count_nonzero(state == code.IMPOSSIBLE)))


def _way(
    code: Any, mechanism: Mechanism | BatchMechanism, epsilon: float, distortion: Distortion, events: tuple[Any, ...]
) -> Callable[[slice], None] | None:
    """What compiled code does with a part of the events; None where it has nothing for the mechanism."""
    law, truths, thrown, given, codes, columns, state = events
    n = law.shape[1]
    if mechanism is OPTIMAL and distortion.is_hamming and n <= NARROW:

        def some(part: slice) -> None:
            what = truths[part], thrown[part], given[part]
            code.optimal(law[part], *labels_and_bounds(epsilon, n), *what, codes[part], columns[part], state[part])

    elif mechanism is OPTIMAL and distortion.is_hamming and 4 * labels_of(n, usable(epsilon, n)) + 1 < n:
        found = _wide()
        if found is None or not fits(n, usable(epsilon, n)):
            return None

        def some(part: slice) -> None:
            what = truths[part], thrown[part], given[part]
            numbers = labels_and_bounds(epsilon, n)
            found.optimal_wide(law[part], *numbers, *what, codes[part], columns[part], state[part])

    elif mechanism is CRR:
        told = crr_weight(epsilon)

        def some(part: slice) -> None:
            base = np.empty(law[part].shape, np.int64)
            code.parts(law[part], DENOMINATOR - told, base)
            code.truth_or_draw(base, told, truths[part], thrown[part], given[part], codes[part], columns[part])

    elif mechanism is RESPONSE:
        told, each = response_weights(epsilon, n)
        # ε-LDP, so sound for every belief: one check for all
        if not told or math.log((told + each) / each) > epsilon - MARGIN - 8 * slack(n):
            return None
        base = np.full((1, n), each, np.int64)

        def some(part: slice) -> None:
            code.truth_or_draw(base, told, truths[part], thrown[part], given[part], codes[part], columns[part])

    else:
        return None
    return some


def _alone(belief: Floats, epsilon: float, truths: Ints, thrown: Ints, given: Ints) -> Made | None:
    """`optimal` for one user where no compiled code is there; None where numpy is quicker, or has to look at it."""
    numbers = labels_and_bounds(epsilon, belief.size)
    if belief.size * numbers[0] > single.LARGEST_TABLE or (given.size and given[0] < 0):
        return None
    event = (0, 0, int(given[0])) if given.size else (int(truths[0]), int(thrown[0]))
    found = single.optimal(belief, *numbers, *event)
    return None if found is None else Made(np.array(found[:1]), np.array(found[1:]), NOBODY, False)


def update(model: MarkovModel, states: Floats, columns: Ints | Floats) -> tuple[Floats, Floats, Ints, Ints] | None:
    """Next states, marginals, and least and largest weight over possible symbols; None where numpy has to do it.

    Of columns that are no integers over many states, nobody is told the least and the largest weight.
    """
    code = _code(len(states))
    mixes = model.full_support  # else a state may be too faint for a float, which numpy sees to
    if code is None and mixes and len(states) == 1:
        return _moved(model, states, columns)
    if code is None or (not mixes and (model.barely or states.min(initial=0.0) < 0)):
        return None
    users, law = len(states), _whole(states)
    sparse = _laws() if model.size > NARROW and users else None
    ahead, marginal = (np.zeros if sparse is None else np.empty)(states.shape), np.empty(users)
    weighed = users if sparse is None or columns.dtype.kind == "i" else 0
    low, high = np.empty(weighed, np.int64), np.empty(weighed, np.int64)

    def some(part: slice) -> bool:
        filled = ahead[part], marginal[part], low[part], high[part]
        if sparse is None:
            return bool(code.update(law[part], columns[part], *model.compact, *filled))
        return bool(sparse.update_wide(law[part], columns[part], *model.inward, *filled))

    if any(in_parts(users, some, model.size)) or (not mixes and filtering.faint(ahead).any()):
        return None
    return ahead, marginal, low, high


def _moved(model: MarkovModel, states: Floats, columns: Ints | Floats) -> tuple[Floats, Floats, Ints, Ints] | None:
    """`update` of one user by numpy, where anything can follow anything and the release tells no symbol apart for sure.

    All symbols are then possible, and no logarithm of a lift is infinite.
    """
    low, high = columns.min(1), columns.max(1)
    if low[0] <= 0 or states.min() <= 0.0:
        return None
    return *filtering.move(model, states, columns), low, high


def pull(model: MarkovModel, values: Floats, jump: Floats) -> Floats | None:
    """`filtering.pull` over many states, where `jump` (B,) is what the base law expects; None where numpy has to."""
    sparse = None if _code(len(values)) is None else _laws()
    if sparse is None:
        return None
    laws, out = _whole(values), np.empty(values.shape)

    def some(part: slice) -> None:
        sparse.pull_wide(laws[part], *model.outward, model.backoff, jump[part], out[part])

    in_parts(len(laws), some, model.size)
    return out


def charge(model: MarkovModel, account: Leakages, columns: Ints, marginal: Floats, low: Ints, high: Ints) -> Leakages:
    """`Leakages.charge` after an `update` that was done here."""
    if low.size == 1 and model.full_support and low[0] > 0:
        before = float(account.ahead_most[0, 0]), float(account.ahead_least[0, 0])
        after = _charge_one((int(low[0]), int(high[0])), float(marginal[0]), before, slack(model.size))
        sides = np.array(after)
        return Leakages(sides[:1], sides[1:], sides[:1, None].copy(), sides[1:, None].copy())
    relative, (up, down) = slack(model.size), (_whole(account.ahead_most), _whole(account.ahead_least))
    most, least, further, nearer = np.empty(len(low)), np.empty(len(low)), np.empty(up.shape), np.empty(down.shape)
    newest, _, pointers, targets, _, *restart = model.compact

    def some(part: slice) -> None:
        # logarithms are numpy's on either path: others may differ in the last bit
        if model.full_support:
            lifts = np.empty((part.stop - part.start, 2))
            lifts[:, 0], lifts[:, 1] = low[part], high[part]
            lifts /= marginal[part, None]
            logs = np.log(lifts) if lifts[:, 0].all() else _logs(lifts)
            silent = low[part] == high[part]
            _loaded.charge_alike(logs, silent, up[part], down[part], relative, further[part], nearer[part])
            most[part], least[part] = further[part, 0], nearer[part, 0]
            return
        with np.errstate(divide="ignore"):
            logs = np.log(columns[part] / marginal[part, None])
        chain = newest, pointers, targets, *restart
        ahead, filled = (up[part], down[part]), (further[part], nearer[part])
        _loaded.charge(logs, columns[part], ahead, relative, *chain, most[part], least[part], filled)

    in_parts(len(low), some, up.shape[1])
    return Leakages(most, least, further, nearer)


def _charge_one(
    weights: tuple[int, int], marginal: float, before: tuple[float, float], relative: float
) -> tuple[float, float]:
    """`Leakages.charge` of one user whose chain lets anything follow anything: both sides of the leakage.

    Parameters:
        weights: the least and the largest weight of the release, both above 0.
        marginal: their mean under the belief.
        before: both sides before the release, the upper one first.
        relative: the error that the mean may have.
    """
    low, high = weights
    if low == high:  # it tells nothing
        return before
    least, most = np.log(np.array([low / marginal, high / marginal])).tolist()  # numpy's, as everywhere
    up = before[0] + (most + (relative + 8 * UNIT * abs(most)))
    down = before[1] + (least - (relative + 8 * UNIT * abs(least)))
    return up + 2 * UNIT * abs(up), down - 2 * UNIT * abs(down)


@lru_cache(maxsize=256)
def labels_and_bounds(epsilon: float, n: int) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """How many labels `optimal` has, the numbers of its closed form, and bounds on lifts and their ratios."""
    aim = usable(epsilon, n)
    a = math.exp(-aim)
    top = epsilon - MARGIN - (4 * slack(n) if n > NARROW else 0.0)  # what is summed may be further off there
    bounds = math.exp(top), math.exp(-top), math.exp(OPTIMAL.ldp * top)
    return labels_of(n, aim), (a, -math.expm1(-aim), a / (1.0 + a)), bounds


def _logs(lifts: Floats) -> Floats:
    """Logarithms where some lift is 0."""
    with np.errstate(divide="ignore"):
        return np.log(lifts)


def _whole(array: Floats) -> Floats:
    """The array as compiled code takes it: one memory layout, so that it is compiled once."""
    if array.flags.carray and array.dtype == np.float64:  # the usual case, and quicker to ask for than `require`
        return array
    return np.require(array, np.float64, ["C", "W"])


@cache
def _wide() -> Any:
    """The compiled `optimal` for many symbols, where it gives numpy's very bits on this machine; else None."""
    from seqveil.core import compiled_wide
    from seqveil.core.compiled import DONE

    generator, n, users = np.random.default_rng(63), 200, 40
    beliefs = np.concatenate([generator.dirichlet(np.full(n, share), users // 2) for share in (0.05, 0.5)])
    truths, thrown = generator.integers(0, n, users), generator.integers(0, DENOMINATOR, users)
    for epsilon in (0.5, 2.0):
        codes, columns = np.zeros(users, np.int64), np.zeros((users, n), np.int64)
        state, numbers = np.zeros(users, np.int8), labels_and_bounds(epsilon, n)
        compiled_wide.optimal_wide(beliefs, *numbers, truths, thrown, NOBODY, codes, columns, state)
        kernels = OPTIMAL.kernels(beliefs, epsilon, hamming())
        drawn, done = kernels.pick(truths, thrown), np.equal(state, DONE)
        wanted = kernels.outputs[np.arange(users), drawn], kernels.column(drawn)
        same = np.equal(codes, wanted[0]) & np.equal(columns, wanted[1]).all(1)
        if not done.any() or not same[done].all():
            return None
    return compiled_wide


def _products(model: MarkovModel, law: Floats, code: Any) -> list[tuple[Floats, Floats]]:
    """A law led on and a value led back by the chain, each by compiled code and by scipy."""
    chain = model.chain
    parts, on, back = (chain.indptr, chain.indices, chain.data), np.zeros(model.size), np.zeros(model.size)
    code.scatter(law, *parts, on)
    code.gather(law, *parts, back)
    return [(on, chain.T @ law), (back, chain @ law)]


@cache
def _trees() -> Any:
    """The compiled functions of `compiled_trees`, where they give numpy's very bits on this machine; else None."""
    from seqveil.core import compiled_trees as code
    from seqveil.core.mechanisms import samples

    generator, n = np.random.default_rng(64), 40
    streams = generator.integers(0, n, (12, 30))
    model = MarkovModel.fit(list(streams), n=n, smoothing=1.0)
    walks = model, generator.integers(0, n, 300), generator.random((4, n)), generator.random((3, 300))
    pairs: list[Any] = [tuple(samples.walk(*walks, each) for each in (None, code))]
    pairs += [tuple(samples.begin(walks[2][0], walks[3][0], each) for each in (None, code))]
    pairs += _products(model, generator.random(n), code)
    levels = [generator.permutation(n), generator.integers(0, 9, n)]
    places, law = generator.random((n, 2)), generator.dirichlet(np.full(n, 0.3))
    for costs, length in itertools.product((hamming(), euclidean(places), squared(places[:, 0])), (1, 5, 11)):
        codes = generator.integers(0, n, (90, length)) // 3
        weight = np.round(generator.random((7, 90)) * samples.SCALE) / samples.SCALE
        ours, theirs = (samples.sample_of(levels, costs, codes, each) for each in (code, None))
        pairs += [*zip(ours.gains(), theirs.gains(), strict=True), (ours.both(weight), theirs.both(weight))]
    pairs += medians(places, law, code)
    return code if all(np.array_equal(ours, theirs) for ours, theirs in pairs) else None


@cache
def _laws() -> Any:
    """The compiled steps over many states, where they give numpy's very bits on this machine; else None."""
    from seqveil.core import compiled_laws

    generator, n = np.random.default_rng(64), 140
    for order in (1, 2):
        model = MarkovModel.fit([generator.integers(0, n, 400)], order, n=n, smoothing=0.5)
        laws = generator.dirichlet(np.full(model.size, 0.2), 9)
        columns = generator.integers(1, DENOMINATOR >> 8, (9, n))
        for some in (9, 6):  # of nine one is led on alone
            ahead, mean, range_ = np.empty((some, model.size)), np.empty(some), np.empty((2, some), np.int64)
            compiled_laws.update_wide(laws[:some], columns[:some], *model.inward, ahead, mean, *range_)
            posterior, marginal = filtering.condition(model, laws[:some], columns[:some])
            wanted = model.advance(posterior)
            wanted /= wanted.sum(1, keepdims=True)
            if not (np.array_equal(mean, marginal) and np.array_equal(ahead, wanted)):
                return None
    return compiled_laws


def _agrees(code: Any) -> bool:
    """Whether the compiled path gives numpy's very bits on this machine, on a few chains."""
    generator = np.random.default_rng(62)
    costs = hamming()
    for n in (3, 9, 17):
        model = MarkovModel(np.full(n, 1.0 / n), generator.dirichlet(np.full(n, 0.5), n))
        beliefs = generator.dirichlet(np.full(n, 0.3), 70)
        truths, thrown = generator.integers(0, n, 70), generator.integers(0, DENOMINATOR, 70)
        for mechanism in (OPTIMAL, CRR, RESPONSE):
            made = release(mechanism, beliefs, 1.0, costs, truths, thrown, code=code)
            kernels = mechanism.kernels(beliefs, 1.0, costs)
            drawn = kernels.pick(truths, thrown)
            codes, columns = kernels.outputs[np.arange(70), drawn], kernels.column(drawn)
            posterior, marginal = filtering.condition(model, beliefs, columns)
            ahead, mean, *range_ = np.zeros((70, n)), np.empty(70), np.empty(70, np.int64), np.empty(70, np.int64)
            code.update(beliefs, columns, *model.compact, ahead, mean, *range_)
            if made is None or made.left.size:
                return False
            pairs = [(made.codes, codes), (made.columns, columns), (mean, marginal)]
            pairs.append((ahead, filtering.predict(model, posterior)))
            if not all(np.array_equal(ours, theirs) for ours, theirs in pairs):
                return False
    return True
