"""Release streams, and write down what two adversaries see: the releases, and what the public chain makes of them.

Someone who has the releases only sees positions. Someone who has the chain too runs the filter that everybody can run:
the distribution of each symbol given all releases up to it, from which come its mean position, its entropy, and how
likely each release was. x is an angle (the panorama wraps round), so positions are written as (cos x, sin x, y).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np

from experiments import streams
from seqveil import MarkovModel
from seqveil.core import filtering
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.mechanisms import Mechanism
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches, blocks
from seqveil.engine.policy import Terms
from seqveil.engine.stream import State

Codes = Floats = np.ndarray
TOGETHER = 400_000  # states of all streams followed at once: what a cache holds
TINY = 1e-300
SIDE_BY_SIDE = 32  # streams released in blocks at once


@dataclass(frozen=True, eq=False)
class Seen:
    """Releases (B, T), and the filter's mean position (B, T, 3), entropy and log-probability of the release (B, T)."""

    codes: Codes
    means: Floats
    entropy: Floats
    likely: Floats

    @classmethod
    def join(cls, parts: list[Seen]) -> Seen:
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))


def places(model: MarkovModel) -> Floats:
    """(cos x, sin x, y) of every cell, y from -1 to 1: (n, 3)."""
    points = model.alphabet.points
    assert points is not None
    least, span = points.min(0), np.ptp(points, axis=0)
    cells = len(np.unique(points[:, 0]))
    turn = 2 * np.pi * (points[:, 0] - least[0]) / span[0] * (cells - 1) / cells
    return np.stack([np.cos(turn), np.sin(turn), 2 * (points[:, 1] - least[1]) / span[1] - 1], axis=1)


def features(seen: Seen, model: MarkovModel, table: bool, window: int, pool: int) -> Floats:
    """What the network is given of each window: mean and spread, over `pool` samples, of positions and of steps.

    Streams (B, T) become windows (B · T/window, window/pool, F), those of a stream one after another.
    """
    where = places(model)[seen.codes]
    tracks = [where, np.abs(np.diff(where, axis=1, prepend=where[:, :1]))]
    if table:
        steps = np.abs(np.diff(seen.means, axis=1, prepend=seen.means[:, :1]))
        tracks += [seen.means, steps, seen.entropy[:, :, None], seen.likely[:, :, None]]
    every = np.concatenate(tracks, axis=2)
    users, length, count = every.shape
    pooled = every.reshape(users * (length // window), window // pool, pool, count)
    return np.concatenate([pooled.mean(2), pooled.std(2)], axis=2)


def plainly(model: MarkovModel, truth: Codes) -> Seen:
    """The raw streams, as if everything were disclosed."""

    def disclosed(rows: slice, t: int, beliefs: Floats) -> tuple[Codes, Floats]:
        return truth[rows, t], np.eye(model.n)[truth[rows, t]]

    return _follow(model, truth, lambda: disclosed, 1.0)


def one_by_one(setting: Terms, truth: Codes, seed: int) -> Seen:
    """Released by a mechanism for single symbols."""
    mechanism = setting.mechanism
    assert isinstance(mechanism, Mechanism)

    def start() -> Choose:
        randomness = SeededRandomness(
            seed
        )  # one draw a stream and time, whatever the chain: orders are compared on equal randomness
        thrown = randomness.draw(truth.size).reshape(truth.shape)

        def choose(rows: slice, t: int, beliefs: Floats) -> tuple[Codes, Floats]:
            kernels = mechanism.kernels(beliefs, setting.epsilon, setting.distortion)
            drawn = kernels.pick(truth[rows, t], thrown[rows, t])
            return kernels.outputs[np.arange(len(drawn)), drawn], kernels.column(drawn)

        return choose

    return _follow(setting.model, truth, start, float(DENOMINATOR))


Choose = Callable[[slice, int, Floats], tuple[Codes, Floats]]


def _follow(model: MarkovModel, truth: Codes, start: Callable[[], Choose], whole: float) -> Seen:
    """The filter along all streams; `start` gives the rule (rows, time, beliefs) → (releases, columns · whole)."""
    choose, where, size = start(), places(model), max(1, TOGETHER // model.size)
    parts = []
    for begin in range(0, len(truth), size):
        rows = slice(begin, min(begin + size, len(truth)))
        states = np.broadcast_to(model.initial, (rows.stop - begin, model.size))
        notes = []
        for t in range(truth.shape[1]):
            codes, columns = choose(rows, t, filtering.symbols(model, states))
            after, marginal = filtering.condition(model, states, columns)
            notes.append((codes, *_noted(filtering.symbols(model, after), where, marginal / whole)))
            states = filtering.predict(model, after)
        parts.append(Seen(*(np.stack(each, axis=1) for each in zip(*notes, strict=True))))
    return Seen.join(parts)


def _noted(distributions: Floats, where: Floats, chance: Floats) -> tuple[Floats, Floats, Floats]:
    entropy = -(distributions * np.log(np.maximum(distributions, TINY))).sum(-1)
    return distributions @ where, entropy, np.log(np.maximum(chance, TINY))


def restricted(followers: MarkovModel, model: MarkovModel, truth: Codes, epsilon: float, seed: int) -> Seen:
    """The paper's "temporal LDP", and the filter of someone who knows how it is made.

    The support S(x') of a release is that of the *true* previous symbol x', so each release rules out every x' whose
    support lacks it: Pr(y | x', x) = (1 + (e^ε-1)[x=y]) / (e^ε-1+|S(x')|) for y in S(x'), else 0.
    """
    made = streams.restricted_response(followers, truth, epsilon, seed)
    gain, able = np.expm1(epsilon), followers.chain.astype(bool).toarray()
    share = 1.0 / (gain + able.sum(1))
    parts, size, where = [], max(1, TOGETHER // model.size), places(model)
    for begin in range(0, len(made), size):
        codes, after, notes = made[begin : begin + size], None, []
        for t in range(codes.shape[1]):
            column = 1.0 + gain * np.eye(model.n)[codes[:, t]]
            if after is None:
                states, chance = np.broadcast_to(model.initial, (len(codes), model.size)), 1.0 / (gain + model.n)
            else:
                weights = after * (able[:, codes[:, t]].T * share)[:, model.newest]
                chance = weights.sum(1)
                lost = chance == 0  # nobody who follows the chain can have made it: start from what was believed
                weights[lost], chance = after[lost], np.where(lost, TINY, chance)
                states = filtering.predict(model, weights)
            after, marginal = filtering.condition(model, states, column)
            notes.append((codes[:, t], *_noted(filtering.symbols(model, after), where, chance * marginal)))
        parts.append(Seen(*(np.stack(each, axis=1) for each in zip(*notes, strict=True))))
    return Seen.join(parts)


def in_batches(setting: Terms, truth: Codes, seed: int, workers: int = 1) -> Seen:
    """Released by the tree, a stream at a time; each has randomness of its own, so workers change nothing."""
    return _shared(setting, [(codes, [seed, row]) for row, codes in enumerate(truth)], workers)


def in_blocks(setting: Terms, truth: Codes, seed: int, workers: int = 1) -> Seen:
    """Released in blocks, some streams at a time, each of these parts with randomness of its own."""
    begins = range(0, len(truth), SIDE_BY_SIDE)
    return _shared(setting, [(truth[k : k + SIDE_BY_SIDE], [seed, k]) for k in begins], workers)


def _shared(setting: Terms, tasks: list[Task], workers: int) -> Seen:
    """The tasks shared out among processes, and what they saw in the order of the tasks."""
    if workers == 1:
        return Seen.join(_in_turn(setting, tasks))
    parts = _side_by_side(setting, [tasks[k::workers] for k in range(workers)])
    return Seen.join([parts[row % workers][row // workers] for row in range(len(tasks))])


Task = tuple[Codes, list[int]]


def _in_turn(setting: Terms, tasks: list[Task]) -> list[Seen]:
    release = _blocked if setting.in_blocks else _batched
    return [release(setting, *task) for task in tasks]


def _side_by_side(setting: Terms, shares: list[list[Task]]) -> list[list[Seen]]:
    """A process for each share; an interrupt ends them at once."""
    context = get_context("spawn")
    ends, started = [], []
    try:
        for share in shares:
            ours, theirs = context.Pipe(duplex=False)
            started.append(context.Process(target=_work, args=(setting, share, theirs), daemon=True))
            started[-1].start()
            theirs.close()
            ends.append(ours)
        return [_received(end) for end in ends]
    finally:
        for process in started:
            process.terminate()
            process.join()


def _received(end: Connection) -> list[Seen]:
    while not end.poll(0.5):  # a library may have a read go on after a signal, as if there had been none; a wait ends
        pass
    return end.recv()


def _work(setting: Terms, tasks: list[Task], end: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, and ends it
    end.send(_in_turn(setting, tasks))


def _randomness(seed: list[int]) -> SeededRandomness:
    return SeededRandomness(int(np.random.SeedSequence(seed).generate_state(1)[0]))


def _blocked(setting: Terms, truth: Codes, seed: list[int]) -> Seen:
    """Streams side by side; how likely a release was is read off the belief after it."""
    state = State.start(setting, len(truth))
    randomness, where, notes = _randomness(seed), places(setting.model), []
    for codes in truth.T:
        made, state = blocks.step(setting, state, codes, randomness)
        after = made.posterior
        notes.append((made.codes, *_noted(after, where, after[np.arange(len(truth)), made.codes])))
    return Seen(*(np.stack(each, axis=1) for each in zip(*notes, strict=True)))


def _batched(setting: Terms, codes: Codes, seed: list[int]) -> Seen:
    randomness, ones = _randomness(seed), np.ones(setting.model.size)
    state, where, notes = State.start(setting), places(setting.model), []
    for begin in range(0, len(codes), setting.batch):
        sent, state = batches.step(setting, state, codes[begin : begin + setting.batch], randomness)
        assert sent is not None
        chance = np.full(len(sent.codes), sent.marginal)  # type: ignore[attr-defined]  # of the whole batch, at each symbol
        notes.append((sent.codes, *_noted(sent.smooth(ones)[0], where, chance)))
    return Seen(*(np.concatenate(each)[None] for each in zip(*notes, strict=True)))
