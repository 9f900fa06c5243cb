"""For the receiver of a stream: the best estimate of every symbol, from model and releases alone.

The lifts are public, so a released stream is a hidden Markov model with emission Q(y_k | x): forward filtering gives
the distribution of each symbol given the releases up to it, forward–backward given all of them. It is post-processing:
it costs no privacy, and any loss has its best estimate from the same distributions.

A block is real or fake as a whole, and nobody knows which: its distributions are those of two filters, one along its
path and one that moves on freely, mixed with the probability that its bit is fake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.errors import DataError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.core.mechanisms import Sent
from seqveil.core.model import MarkovModel
from seqveil.core.times import Time, seconds
from seqveil.engine import batches, blocks, stream
from seqveil.engine.blocks import ReleasedInBlocks
from seqveil.engine.policy import Policy, policy_of
from seqveil.engine.secrets import states_of
from seqveil.engine.streams import encode_released


def decode_stream(
    model: MarkovModel,
    released: Sequence[Any],
    policy: Policy | None = None,
    *,
    times: Sequence[Time] | None = None,
    length: int | None = None,
    smooth: bool = True,
    **shorthand: Any,
) -> Floats:
    """Posterior distribution of every symbol given the releases: T × n. The policy is that of the release, or its
    fields, as for a `Session`.

    `smooth=False` uses the releases up to each symbol only (online), `smooth=True` all of them. A release that was not
    made (None) is stepped over; where it was withheld, that reveals something too. For batches `released` holds their
    paths, and `length` the number of symbols where the last batch is a short one.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> distributions = decode_stream(model, [0, 0, 1, 0, 0], mechanism="randomized_response", epsilon=1.0)
    >>> distributions.argmax(1).tolist()
    [0, 0, 0, 0, 0]

    Reference: docs/theory.md, section 9.
    """
    setting = policy_of(policy, shorthand).on(model)
    if not len(released):
        return np.zeros((0, model.n))
    if setting.in_batches:
        stamps = None if times is None else seconds(times).tolist()
        return decode_paths(setting, released, length or setting.batch * len(released), stamps, smooth)
    moments = None if times is None else seconds(times)[None, :]
    return decode_codes(setting, encode_released(model, released)[None, :], moments, smooth)[0]


def decode_paths(
    setting: stream.Terms,
    paths: Sequence[tuple[int, ...] | None],
    length: int,
    times: Sequence[float] | None = None,
    smooth: bool = True,
) -> Floats:
    """Distributions (T, n) of the symbols behind a stream of batches."""
    size = setting.batch
    if not (len(paths) - 1) * size < length <= len(paths) * size:
        raise DataError(f"expected {len(paths)} batches of {size} to hold the {length} symbols; check batch and length")
    if None in paths:
        raise DataError("a stream in which batches were left out cannot be decoded as a whole; decode up to the gap")
    sizes = [min(size, length - k * size) for k in range(len(paths))]
    sent = list(observe_sized(setting, paths, sizes, times))
    return batches.smooth(setting, sent) if smooth else batches.filtered(setting, sent)


def observe_sized(
    setting: stream.Terms,
    paths: Sequence[tuple[int, ...] | None],
    sizes: Sequence[int],
    times: Sequence[float | None] | None = None,
) -> Iterator[Sent | None]:
    """Each batch of a user, of so many symbols, as the receiver sees it; None where it was left out."""
    state = stream.State.start(setting)
    for k, path in enumerate(paths):
        stamp = None if times is None else times[k]
        sent, state = batches.observe(setting, state, path, sizes[k], stamp)
        yield sent


def decode_codes(setting: stream.Terms, codes: Ints, times: Floats | None = None, smooth: bool = True) -> Floats:
    """`decode_stream` for B streams of one length at once: codes (B, T) → distributions (B, T, n)."""
    distributions = np.empty((*codes.shape, setting.model.n))
    for t, distribution in decode_steps(setting, list(codes.T), None if times is None else list(times.T), smooth):
        distributions[:, t] = distribution
    return distributions


def decode_steps(
    setting: stream.Terms,
    codes: Sequence[Ints],
    times: Sequence[Floats] | None = None,
    smooth: bool = True,
    seen: Callable[[int, stream.Released], None] | None = None,
    epsilons: Sequence[Floats] | None = None,
) -> Iterator[tuple[int, Floats]]:
    """`decode_stream` for streams of several lengths side by side, longest first: each step t and its (B, n).

    `codes` holds at step t the releases of those streams that have a t-th event, and so do `times`. Online nothing is
    held beyond a step, so that streams may be long; else the distributions and columns of all steps are. `seen` gets
    each step with the releases as an observer sees them. Of blocks `epsilons`, as the record has them, say where one
    was cut before its end.

    >>> setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> [(t, distribution.shape) for t, distribution in decode_steps(setting, [np.array([0, 1]), np.array([1])])]
    [(0, (2, 2)), (1, (1, 2))]
    """
    if setting.in_blocks:
        yield from _decode_blocks(setting, codes, times, smooth, epsilons)
        return
    if setting.remembered:
        yield from _remembering(setting, codes, times, smooth, seen)
        return
    model, filtered, columns = setting.model, list[Floats](), list[Floats]()
    for t, (distribution, column) in enumerate(_filter_steps(setting, codes, times, seen)):
        if smooth:
            filtered.append(distribution)
            columns.append(column)
        else:
            yield t, filtering.symbols(model, distribution)
    filtering.smooth(model, filtered, columns)
    for t, distribution in enumerate(filtered):
        yield t, filtering.symbols(model, distribution)


def _remembering(
    setting: stream.Terms,
    codes: Sequence[Ints],
    times: Sequence[Floats] | None,
    smooth: bool,
    tell: Callable[[int, stream.Released], None] | None,
) -> Iterator[tuple[int, Floats]]:
    """`decode_steps` where kernels go by what is remembered too: forward and back over both, (B, M, S)."""
    model = setting.model
    state = stream.State.start(setting, len(codes[0]) if codes else 0)
    filtered, columns, automata = list[Floats](), list[Floats](), list[Any]()
    for t, disclosed in enumerate(codes):
        state = state.take(slice(0, disclosed.size)) if disclosed.size < len(state) else state
        stamps = None if times is None else times[t]
        before = stream.located(setting, state, stamps)
        seen, after = stream.observe(setting, before, disclosed, stamps)
        if tell is not None:
            tell(t, seen)
        wide = seen.remembered / seen.remembered.max(1, keepdims=True)
        column = wide.reshape(disclosed.size, -1, model.n)[..., model.newest]
        assert before.trackers is not None
        joint = states_of(before.trackers) * column
        joint /= joint.sum((1, 2), keepdims=True)
        if not smooth:
            yield t, filtering.symbols(model, joint.sum(1))
        else:
            filtered.append(joint)
            columns.append(column)
            automata = [each.users.automata for each in before.trackers] if t == 0 else automata
        state = after
    later = np.ones(filtered[0].shape) if filtered else np.zeros(0)
    for t in range(len(filtered) - 2, -1, -1):
        going = len(filtered[t + 1])
        ahead = later[:going] * columns[t + 1]
        ahead /= ahead.max((1, 2), keepdims=True)
        moved = np.empty_like(ahead)
        for each in set(automata[:going]):
            rows = [row for row, one in enumerate(automata[:going]) if one is each]
            moved[rows] = ahead[rows][:, each.target(t + 1), np.arange(model.size)]
        later[:going] = filtering.pull(model, moved.reshape(-1, model.size)).reshape(moved.shape)
        filtered[t][:going] *= later[:going]
        filtered[t] /= filtered[t].sum((1, 2), keepdims=True)
    for t, joint in enumerate(filtered):
        yield t, filtering.symbols(model, joint.sum(1))


def _filter_steps(
    setting: stream.Terms,
    codes: Sequence[Ints],
    times: Sequence[Floats] | None,
    tell: Callable[[int, stream.Released], None] | None,
) -> Iterator[tuple[Floats, Floats]]:
    """Step by step: the states (B, S) given the releases up to each, and what the release says (B, n)."""
    state = stream.State.start(setting, len(codes[0]) if codes else 0)
    for t, disclosed in enumerate(codes):
        if disclosed.size < len(state):  # the last ones have ended
            state = state.take(slice(0, disclosed.size))
        stamps = None if times is None else times[t]
        seen, after = stream.observe(setting, state, disclosed, stamps)
        if tell is not None:
            tell(t, seen)
        column = seen.columns / seen.columns.max(1, keepdims=True)
        yield filtering.condition(setting.model, state.states, column)[0], column
        state = after


def _decode_blocks(
    setting: stream.Terms,
    codes: Sequence[Ints],
    times: Sequence[Floats] | None,
    smooth: bool,
    epsilons: Sequence[Floats] | None,
) -> Iterator[tuple[int, Floats]]:
    """`decode_steps` for blocks: their bits are fake with a known probability, whatever was released."""
    state, kept = stream.State.start(setting, len(codes[0]) if codes else 0), list[_InBlock]()
    for t, disclosed in enumerate(codes):
        if disclosed.size < len(state):
            state = state.take(slice(0, disclosed.size))
        stamps, used = (None if each is None else each[t] for each in (times, epsilons))
        seen, state = blocks.observe(setting, state, disclosed, stamps, used)
        if smooth:
            kept.append(_InBlock.of(seen, state.blocks.skews))
        else:
            yield t, seen.posterior
    yield from enumerate(reversed(list(_smooth_blocks(setting.model, kept))))


class _InBlock(NamedTuple):
    """What an event of blocks says, one row a stream; outside of a block it is one of its own that is never fake."""

    given: Floats  # (B, S) before the event, given the block's path
    free: Floats  # (B, S) before the event, as if nothing were released since the block began
    lifts: Floats  # (B, S) what the release says of each state, 1 on average over `given`
    begins: NDArray[np.bool_]
    fake: Floats  # (B,) weight of a fake bit given the path so far
    real: Floats

    @classmethod
    def of(cls, seen: ReleasedInBlocks, skews: Floats) -> _InBlock:
        """From what anyone sees, and the skews of the fake draws after it."""
        model, running, inside = seen.rule.model, seen.running, seen.running.running[:, None]
        states = filtering.clear(seen.states)
        given = np.where(inside, filtering.clear(running.given), states)
        free = np.where(inside, filtering.clear(running.free), states)
        weights = np.where(inside, seen.disclosed.columns, DENOMINATOR)[:, model.newest] / DENOMINATOR
        fake = np.where(running.running, seen.rule.numbers(running.levels)[:, 0], 0.0)
        lifts = weights / (given * weights).sum(1, keepdims=True)
        return cls(given, free, lifts, ~running.running | (running.places == 0), fake * skews, 1.0 - fake)


def _smooth_blocks(model: MarkovModel, events: Sequence[_InBlock]) -> Iterator[Floats]:
    """From the last event back: distributions of the symbols given all releases, each block real or fake as a whole.

    With β the likelihood of all that was released later, both for a real block (β_r, along its path) and for a fake one
    (β_f, which its path says nothing of), Pr(s | all) ∝ real · given(s) lift(s) β_r(s) + fake · free(s) β_f(s).
    """
    if not events:
        return
    later = {kind: np.ones(events[0].given.shape) for kind in ("real", "fake")}
    weights = {kind: np.ones((len(events[0].given), 1)) for kind in ("real", "fake")}
    for t in range(len(events) - 1, -1, -1):
        event, users = events[t], len(events[t].given)
        last = np.ones(users, bool)
        if t + 1 < len(events):
            last[: len(events[t + 1].begins)] = events[t + 1].begins
        for kind in ("real", "fake"):  # at its last event a block's path is whole
            weights[kind][:users][last] = getattr(event, kind)[last, None]
        real, fake = (weights[kind][:users] * later[kind][:users] for kind in ("real", "fake"))
        joint = event.given * event.lifts * real + event.free * fake
        yield filtering.symbols(model, joint / joint.sum(1, keepdims=True))
        whole = event.lifts * real + fake
        begins = event.begins[:, None]
        back = (
            np.where(begins, whole, event.lifts * later["real"][:users]),
            np.where(begins, whole, later["fake"][:users]),
        )
        most = np.maximum(back[0].max(1), back[1].max(1))[:, None]
        for kind, values in zip(("real", "fake"), back, strict=True):
            later[kind][:users] = filtering.pull(model, values / most)


def estimates(distributions: Floats, distortion: str | Distortion, model: MarkovModel) -> Ints:
    """The code of least expected distortion for every row: mode for Hamming, median for absolute, and so on."""
    return resolve(distortion, model.alphabet).best_guess(distributions)
