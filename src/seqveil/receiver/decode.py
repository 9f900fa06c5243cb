"""For the receiver of a stream: the best estimate of every symbol, from model and releases alone.

A released stream is a hidden Markov model with emission Q(y_k | x): forward filtering gives the distribution of each
symbol given the releases up to it, forward–backward given all of them (docs/theory.md, section 9). It is
post-processing and costs no privacy. A block is real or fake as a whole: its distributions are those of two filters,
one along its path and one that moves on freely, mixed with the probability that its bit is fake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import Sent
from seqveil.core.model import MarkovModel
from seqveil.core.times import Time, seconds
from seqveil.engine import batches, stream
from seqveil.engine.policy import Policy, policy_of
from seqveil.engine.secrets import states_of
from seqveil.engine.streams import encode_released
from seqveil.receiver.evidence import CaseReader, Says, going_back


def decode_stream(
    model: MarkovModel,
    released: Sequence[Any],
    policy: Policy | None = None,
    *,
    times: Sequence[Time] | None = None,
    length: int | None = None,
    epsilons: Sequence[float | None] | None = None,
    smooth: bool = True,
    **shorthand: Any,
) -> Floats:
    """Posterior distribution of every symbol given the releases: T × n. The policy is that of the release, or its
    fields, as for a `Session`.

    `smooth=False` uses the releases up to each symbol only (online), `smooth=True` all of them. A release that was not
    made (None) is stepped over; where it was withheld, that reveals something too. For batches `released` holds their
    paths, and `length` the number of symbols where the last batch is a short one. `epsilons` are those that the records
    of the releases say (`Release.epsilon`). Without them what the policy implies is used: that is wrong where a budget
    was cut from outside, or where a block ended early because its stream was restored.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> distributions = decode_stream(model, [0, 0, 1, 0, 0], mechanism="randomized_response", epsilon=1.0)
    >>> distributions.argmax(1).tolist()
    [0, 0, 0, 0, 0]

    Reference: docs/theory.md, section 9.
    """
    setting = policy_of(policy, shorthand).on(model)
    if epsilons is not None and (setting.in_batches or len(epsilons) != len(released)):
        raise InputError("expected epsilons= to hold one ε for each release, which may not be batches; leave it out")
    if not len(released):
        return np.zeros((0, model.n))
    if setting.in_batches:
        stamps = None if times is None else seconds(times).tolist()
        return decode_paths(setting, released, length or setting.batch * len(released), stamps, smooth)
    moments = None if times is None else seconds(times)[None, :]
    used = None
    if epsilons is not None and not setting.unbounded:  # else nothing is promised about the sequence: each is None
        used = np.array([[each or 0.0 for each in epsilons]], np.float64)
    return decode_codes(setting, encode_released(model, released)[None, :], moments, smooth, used)[0]


def decode_paths(
    setting: stream.Terms,
    paths: Sequence[tuple[int, ...] | None],
    length: int,
    times: Sequence[float | None] | None = None,
    smooth: bool = True,
) -> Floats:
    """Distributions (T, n) of the symbols behind a stream of batches; zeros where one was left out (None)."""
    size, state, sent = setting.batch, stream.State.start(setting), list[Sent | None]()
    if not (len(paths) - 1) * size < length <= len(paths) * size:
        raise DataError(f"expected {len(paths)} batches of {size} to hold the {length} symbols; check batch and length")
    for k, path in enumerate(paths):
        stamps = None if times is None or times[k] is None else np.array([times[k]], np.float64)
        one, state = batches.observe(setting, state, path, min(size, length - k * size), stamps)
        sent.append(one)
    return batches.smooth(setting, sent) if smooth else batches.filtered(setting, sent)


def decode_codes(
    setting: stream.Terms,
    codes: Ints,
    times: Floats | None = None,
    smooth: bool = True,
    epsilons: Floats | None = None,
) -> Floats:
    """`decode_stream` for B streams of one length at once: codes (B, T) → distributions (B, T, n)."""
    stamps, used = (None if each is None else list(each.T) for each in (times, epsilons))
    return np.stack(list(decode_seen(setting, follow(setting, list(codes.T), stamps, used), smooth)), axis=1)


Seen = Iterable[tuple[stream.State, Any]]  # of each step: the public state before it, and what was made public


def follow(
    setting: stream.Terms,
    codes: Sequence[Ints],
    times: Sequence[Floats] | None = None,
    epsilons: Sequence[Floats] | None = None,
) -> Seen:
    """Streams of several lengths side by side, longest first, as an observer sees them.

    `codes` holds at step t the releases of those streams that have a t-th event, and so do `times` and `epsilons`, the
    record's ε.
    """
    state = stream.State.start(setting, len(codes[0]) if codes else 0)
    for t, disclosed in enumerate(codes):
        if disclosed.size < len(state):  # the last ones have ended
            state = state.take(slice(0, disclosed.size))
        stamps, used = (None if each is None else each[t] for each in (times, epsilons))
        before = state if setting.in_blocks else stream.located(setting, state, stamps)
        seen, state = stream.observe(setting, before, disclosed, stamps, used)
        yield before, seen


def decode_seen(setting: stream.Terms, followed: Seen, smooth: bool = True) -> Iterator[Floats]:
    """`decode_stream` for streams side by side, from releases as somebody saw them who has followed the streams, or
    made them: the distributions (B, n) of each step.

    Online nothing is held beyond a step, so that streams may be long; else the distributions and columns of all steps
    are. All runs over the case that nobody sees, the bit of a block or what is remembered, and the state. Forward the
    public state has their distribution before each event; back they go as in `evidence`.
    """
    model, reader, kept = setting.model, CaseReader(setting), list[tuple[Floats, Says]]()
    for before, seen in followed:
        trackers: Any = before.trackers  # None in blocks
        rows, links = reader.read(seen, trackers, before.steps)
        says = Says(rows[..., model.newest], links, reader.joins, model.newest)
        joint = _cases(setting, before, seen) * says.rows
        sums = joint.sum((1, 2))
        if not sums.all():  # what the model rules out, as an unsound mechanism releases it
            joint = np.where(sums[:, None, None] > 0, joint, says.rows)
            sums = joint.sum((1, 2))
        joint /= sums[:, None, None]
        if smooth:
            kept.append((joint, says))
        else:
            yield filtering.symbols(model, joint.sum(1))
    if kept:
        _smooth(model, kept)
    for joint, _ in kept:
        yield filtering.symbols(model, joint.sum(1))


def _smooth(model: MarkovModel, kept: list[tuple[Floats, Says]]) -> None:
    """Weigh the distribution of each step, in place, by the likelihood of all releases after it."""
    later = np.ones((len(kept[0][0]), kept[0][0][0].size))

    def pull(values: Floats) -> Floats:
        """One step of the model back, in each case."""
        return filtering.pull(model, values.reshape(-1, model.size)).reshape(values.shape)

    for t, ahead in going_back(later, [says for _, says in kept], pull):
        joint = kept[t][0][: len(ahead)]
        likely = later[: len(ahead)].reshape(joint.shape)
        likely[~(joint * likely).any((1, 2))] = 1.0  # what the model rules out says nothing about what came before it
        joint *= likely
        joint /= joint.sum((1, 2), keepdims=True)


def _cases(setting: stream.Terms, before: stream.State, seen: Any) -> Floats:
    """The distribution of case and state before an event, (B, K, S).

    The state of a block is that along its path, and as it moves on freely, which is what a fake block says of it.
    Outside of a block an event is one of its own.
    """
    if not setting.in_blocks:
        trackers: Any = before.trackers
        return states_of(trackers) if setting.remembered else filtering.clear(before.states)[:, None]
    blocks, inside, states = seen.running, seen.running.running[:, None], filtering.clear(seen.states)
    _, weights, begins = seen.cases
    free = np.where(inside, blocks.skews[:, None] * filtering.clear(blocks.free), states)
    both = np.stack([np.where(inside, filtering.clear(blocks.given), states), free], axis=1)
    return both * np.where(begins[:, None], 1.0, weights)[:, :, None]  # where one begins its rows have the weights
