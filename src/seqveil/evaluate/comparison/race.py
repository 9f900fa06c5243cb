"""One contestant at one ε over all streams of an arena, measured on every side; and what no mechanism can pass.

The limits are the best guess without a release, and a lower bound on the error of a single release.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

import numpy as np

from seqveil.core import filtering, mechanisms
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints, Kernels
from seqveil.core.leakage import between
from seqveil.core.mechanisms import Mechanism
from seqveil.core.randomness import Randomness, SeededRandomness
from seqveil.core.secrets import SecretTrackers
from seqveil.engine import batches, stream
from seqveil.engine.secrets import Remembered
from seqveil.engine.state import Private
from seqveil.evaluate import adversary
from seqveil.evaluate.baselines.declared import Halving
from seqveil.evaluate.baselines.mutual_information import single_release
from seqveil.evaluate.comparison import rows as disclosed
from seqveil.evaluate.comparison.arena import Arena, Contestant, Keeper, promised, together
from seqveil.evaluate.comparison.rows import ComparisonRow, Status, Tally, clustered
from seqveil.interfaces import trial

TOLERANCE = 1e-9  # a lift may pass what is claimed by this much and still count as kept

BELIEFS = 300  # realised beliefs that the converse is averaged over
USERS = 200
WORK = 1 << 22  # entries of an array in the search for a rate
CONSTANT, CONVERSE = "best guess, no release", "converse, ε at each symbol"

Progress = Callable[[int], None]


def race(
    arena: Arena, contestant: Contestant, epsilon: float | None, progress: Progress | None = None
) -> ComparisonRow:
    """Release the arena's streams and measure error, leakage, the adversary's gain, and pace.

    The error is that of the release as it stands, of the receiver's online filter, and of its decoder in hindsight.
    Leakage is measured, whatever the mechanism promises: from the integers that are drawn from. A contestant that
    refuses (an alphabet or an ε too large for it) gives a row that says so.

    Where the arena has secrets the row says what is promised about each, what was disclosed about it (the exact
    account, where symbols are released one by one), and what the attack found. `epsilon` is None for those who have no
    ε an event (`Contestant.by_event`).

    `progress` is called with the number of events that were released since the last call.

    >>> from seqveil.core.model import MarkovModel
    >>> model = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    >>> arena = Arena.of(model, list(model.sample(10, 20, seed=1)))
    >>> [race(arena, Contestant(name), 0.5).status for name in ("optimal", "crr")]
    ['sound', 'unsound']
    """
    if epsilon is not None:
        mechanisms.check_epsilon(epsilon)
    try:
        setting = contestant.setting(arena, epsilon)
        if contestant.period is None and setting.schedule == 1:
            return _skipped(contestant, epsilon, "planning finds that pulses do not pay here")
        measure = _measure(setting, contestant)
        meter = measure(setting, SeededRandomness(arena.seed), progress or (lambda events: None), arena.trackers)
        meter.run(arena.of_contestant(contestant))
    except InputError as refusal:
        return _skipped(contestant, epsilon, f"does not fit: {refusal}")
    row = _row(contestant, epsilon, meter)
    return _with_secrets(row, arena, contestant, meter) if arena.secrets else row


def _measure(setting: stream.Terms, contestant: Contestant) -> type[_Meter]:
    if setting.in_batches:
        return _Batched
    if contestant.mechanism == Halving.name:
        return _Halving
    return _Guarding if setting.guards else _OneByOne


def _with_secrets(row: ComparisonRow, arena: Arena, contestant: Contestant, meter: _Meter) -> ComparisonRow:
    """The row with what it says about the secrets; who keeps secrets is judged by what it promises about them."""
    found = disclosed.declared(arena.secrets, promised(arena, contestant, meter.setting))
    if not meter.setting.in_batches:
        found = disclosed.accounted(found, arena.secrets, meter.accounts)
    if arena.attack:
        truth = arena.of_contestant(contestant)
        found = disclosed.attacked(found, arena, [meter.released[k] for k in range(len(truth))], truth)
    if not isinstance(contestant, Keeper):
        return replace(row, secrets=found)
    bounded = [one for one in found if one.promised is not None]
    broken = any((one.log_odds_worst or 0.0) > (one.promised or 0.0) for one in bounded)
    status: Status = "unsound" if broken else "sound" if bounded else "no promise"
    return replace(row, secrets=found, status=status, mechanism=contestant.mechanism, claimed=None)


def _skipped(contestant: Contestant, epsilon: float | None, reason: str) -> ComparisonRow:
    how = (contestant.factor, contestant.batch, contestant.period, contestant.limit)
    return ComparisonRow(contestant.label, contestant.mechanism, epsilon, "skipped", reason, *how)


def _row(contestant: Contestant, epsilon: float | None, meter: _Meter) -> ComparisonRow:
    """What a run measured, as a line of the table."""
    setting, tally, tracker = meter.setting, meter.tally, meter.tracker
    claimed = setting.epsilon * setting.schedule
    kept = max(tracker.most, -tracker.least) <= claimed + TOLERANCE
    status: Status = "unsound" if not kept else "sound" if setting.mechanism.sound else "no promise"
    (error, error_half), (filtered, filtered_half), (smoothed, smoothed_half) = map(tally.mean, ERRORS)
    return ComparisonRow(
        contestant.label,
        setting.mechanism.name,
        epsilon,
        status,
        factor=contestant.factor,
        batch=contestant.batch,
        period=setting.schedule,
        limit=contestant.limit,
        claimed=claimed,
        users=tally.users,
        events=tally.events,
        error=error,
        error_half=error_half,
        filtered=filtered,
        filtered_half=filtered_half,
        smoothed=smoothed,
        smoothed_half=smoothed_half,
        lift_most=tracker.most,
        lift_least=tracker.least,
        lift_scope=meter.scope,
        ldp=tracker.ldp,
        leakage_most=meter.most,
        leakage_least=meter.least,
        guesses={name: value for name, value in tally.means().items() if name not in ERRORS},
        micros=1e6 * (meter.seconds - tracker.seconds) / tally.events,
    )


@dataclass
class TrackedStreams:
    """The worst that single releases tell: logs of the largest and least lift, and of the ratio without a belief."""

    most: float = 0.0
    least: float = 0.0
    ldp: float = 0.0
    seconds: float = 0.0  # spent on watching

    def see(self, most: float, least: float, ldp: float) -> None:
        """Widen the extremes by those of another release."""
        self.most, self.least, self.ldp = max(self.most, most), min(self.least, least), max(self.ldp, ldp)


@dataclass(frozen=True)
class _Watched(Mechanism):
    """A mechanism of which every kernel is looked at before it is drawn from: all its outputs, drawn or not."""

    inner: Mechanism = mechanisms.optimal
    tracker: TrackedStreams = field(default_factory=TrackedStreams, compare=False)

    @classmethod
    def of(cls, inner: Mechanism, tracker: TrackedStreams) -> _Watched:
        """The same mechanism, seen by a watch."""
        given = {f.name: getattr(inner, f.name) for f in fields(Mechanism)} | {"quick": None}  # kernels are looked at
        return cls(**given, inner=inner, tracker=tracker)

    def kernels(self, beliefs: Floats, epsilon: float, distortion: Distortion | None = None) -> Kernels:
        """The kernels of the mechanism, looked at off the clock."""
        built = self.inner.kernels(beliefs, epsilon, distortion)
        began = time.process_time()
        least, most = built.lift_bounds(beliefs)
        self.tracker.see(float(most.max()), float(least.min()), float(built.ldp().max()))
        self.tracker.seconds += time.process_time() - began
        return built


ERRORS = ("error", "filtered", "smoothed")
RATES = ("without", "online", "hindsight", "step_bound", "stream_bound")


@dataclass
class _Meter(ABC):
    """A run over streams, and what it measured."""

    setting: stream.Terms
    randomness: Randomness
    progress: Progress
    secrets: SecretTrackers | None = None  # the accounts of declared secrets before the first release
    accounts: list[SecretTrackers] = field(default_factory=list)  # and after each stream, where symbols go one by one
    released: dict[int, Ints] = field(default_factory=dict)  # by the place of the stream
    tally: Tally = field(default_factory=Tally)
    tracker: TrackedStreams = field(default_factory=TrackedStreams)
    seconds: float = 0.0
    most: float = 0.0  # of a whole stream
    least: float = 0.0
    scope: str = ""

    @abstractmethod
    def run(self, streams: Sequence[Ints]) -> None:
        """Release all streams."""

    def _count(
        self, known: adversary.Laws, truth: Ints, released: Ints, epsilons: Floats, after: stream.State, made: Floats
    ) -> None:
        """Add up what B streams gave; `made` (B, T) is 0 behind the end of a stream."""
        costs, account = self.setting.distortion, after.account
        found = adversary.score(known, truth, epsilons, account.most, account.least)
        guesses = (released, costs.best_guess(known.online), costs.best_guess(known.hindsight))
        values = {name: costs.between(truth, guess) for name, guess in zip(ERRORS, guesses, strict=True)}
        for name in RATES:
            layers = getattr(found, name)
            values |= {f"{name}_{top}": layer for top, layer in zip(found.tops, layers, strict=True)}
        self.tally.add(made.sum(1), {name: (value * made).sum(1) for name, value in values.items()})
        self.most = max(self.most, float(account.most.max()))
        self.least = min(self.least, float(account.least.min()))


class _OneByOne(_Meter):
    """For releases symbol by symbol: every kernel is looked at, with all that it might have released."""

    def run(self, streams: Sequence[Ints]) -> None:
        self.scope = "kernels"
        mechanism = mechanisms.get(self.setting.mechanism)
        initial = filtering.symbols(self.setting.model, self.setting.model.initial[None, :])
        stream.kernels(self.setting, initial, self.setting.epsilon)  # loads what a first kernel loads, off the clock
        self.setting = replace(self.setting, mechanism=_Watched.of(mechanism, self.tracker))
        self._run(streams)

    def _run(self, streams: Sequence[Ints]) -> None:
        for part in together(streams, max(self.setting.model.size, self.setting.model.n)):
            disclosed = self._release([streams[k] for k in part])
            self.released |= dict(zip(part, disclosed, strict=True)) if self.secrets is not None else {}

    def _step(self, state: stream.State, codes: Ints, memory: Remembered) -> tuple[stream.Released, stream.State]:
        return stream.step(self.setting, state, codes, self.randomness, memory=memory)

    def _measured(self, first: SecretTrackers) -> SecretTrackers:
        """The accounts before the first release, by what the kernels of the setting go by."""
        if not self.setting.remembered:
            return first
        secrets = [one.secret for one in first.rows[0]]
        return SecretTrackers(self.setting.model, secrets, memory=self.setting.remembered)

    def _release(self, streams: list[Ints]) -> list[Ints]:
        """Release streams side by side, the longest first."""
        lengths = np.array([len(codes) for codes in streams])
        shape = (len(streams), int(lengths.max()))
        truth, released, epsilons = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
        made = (np.arange(shape[1]) < lengths[:, None]).astype(np.float64)
        truth[made > 0] = np.concatenate(streams)
        columns = np.ones((shape[1], shape[0], self.setting.model.n), np.int64)
        state, private = stream.State.start(self.setting, shape[0]), Private.start(self.setting, shape[0])
        accounts = None if self.secrets is None else np.full(shape[0], self._measured(self.secrets), object)
        for t in range(shape[1]):
            rows = np.flatnonzero(lengths > t)
            began = time.process_time()
            memory = Remembered(private.take(rows).memory)
            out, state = state.move(rows, partial(self._step, codes=truth[rows, t], memory=memory))
            private.put(rows, Private(memory=memory.states))
            self.seconds += time.process_time() - began
            if accounts is not None:
                accounts[rows] = stream.observed(accounts[rows], out.remembered)
            released[rows, t], epsilons[rows, t], columns[t, rows] = out.codes, out.epsilons, out.columns
            self.progress(rows.size)
        self._count(adversary.distributions(self.setting.model, columns), truth, released, epsilons, state, made)
        self.accounts += [] if accounts is None else list(accounts)
        return [codes[:length] for codes, length in zip(released, lengths, strict=True)]


class _Guarding(_OneByOne):
    """For releases whose kernels follow from the accounts of secrets: only what was released is looked at."""

    def run(self, streams: Sequence[Ints]) -> None:
        self.scope = "releases"
        self._run(streams)

    def _step(self, state: stream.State, codes: Ints, memory: Remembered) -> tuple[stream.Released, stream.State]:
        out, after = super()._step(state, codes, memory)
        self._look(out)
        return out, after

    def _look(self, out: stream.Released) -> None:
        began = time.process_time()
        weighed = out.weights
        least, most = between(weighed.low, weighed.high, weighed.marginal, weighed.terms)
        self.tracker.see(float(most.max()), float(least.min()), float((most - least).max()))
        self.tracker.seconds += time.process_time() - began


class _Halving(_Guarding):
    """For randomised response whose ε is halved until the secrets are kept, which is no mechanism of a setting."""

    def run(self, streams: Sequence[Ints]) -> None:
        self.halving = Halving(self.setting.model, self.setting.secrets)
        super().run(streams)

    def _step(self, state: stream.State, codes: Ints, memory: Remembered) -> tuple[stream.Released, stream.State]:
        out, after = self.halving.step(state, codes, self.randomness)
        self._look(out)
        return out, after


class _Batched(_Meter):
    """For releases in batches, one stream after another: only what was released is looked at."""

    def run(self, streams: Sequence[Ints]) -> None:
        self.scope = "releases"
        for place, codes in enumerate(streams):
            disclosed = self._release(codes)
            self.released |= {place: disclosed} if self.secrets is not None else {}

    def _release(self, codes: Ints) -> Ints:
        state, sent, size = stream.State.start(self.setting), [], self.setting.batch
        spent = np.full(codes.size, self.setting.epsilon)
        for begin in range(0, codes.size, size):
            part = codes[begin : begin + size]
            own = replace(self.setting, epsilon=self.setting.epsilon * part.size / size)  # a short one gets its share
            spent[begin : begin + size] = own.epsilon
            began = time.process_time()
            one, state = batches.step(own, state, part, self.randomness)
            self.seconds += time.process_time() - began
            assert one is not None  # nothing is left out without a budget
            self.tracker.see(one.most, one.least, one.most - one.least)
            sent.append(one)
            self.progress(one.codes.size)
        released = np.concatenate([one.codes for one in sent])[None]
        known = adversary.batch_distributions(self.setting, sent)
        self._count(known, codes[None], released, spent[None], state, np.ones(released.shape))
        return released[0]


def constant(arena: Arena, epsilon: float) -> ComparisonRow:
    """The best guess from the chain alone, at each step: leaks nothing, costs nothing."""
    tally, model = Tally(), arena.model
    longest = max(len(codes) for codes in arena.streams)
    known = filtering.unseen(model, longest)
    guesses = arena.distortion.best_guess(known)
    for codes in arena.streams:
        place = adversary.ranks(known[: len(codes)], codes)
        sums = {f"without_{top}": np.array([(place < top).sum()]) for top in adversary.TOPS}
        wrong = arena.distortion.between(codes, guesses[: len(codes)]).sum()
        tally.add(np.array([len(codes)]), {"error": np.array([wrong]), **sums})
    error, half = tally.mean("error")
    rates = {name: value for name, value in tally.means().items() if name != "error"}
    row = _limit(CONSTANT, "constant", epsilon, error, half, tally.users, tally.events)
    quiet = {"lift_most": 0.0, "lift_least": 0.0, "ldp": 0.0, "leakage_most": 0.0, "leakage_least": 0.0}
    shown = replace(row, smoothed=error, smoothed_half=half, claimed=0.0, guesses=rates, lift_scope="kernels", **quiet)  # type: ignore[arg-type]
    return replace(shown, secrets=disclosed.silent(arena.secrets))


def _limit(
    label: str, name: str, epsilon: float, error: float, half: float | None, users: int, events: int
) -> ComparisonRow:
    errors = {"error": error, "error_half": half, "filtered": error, "filtered_half": half}
    return ComparisonRow(label, name, epsilon, "limit", limit=True, users=users, events=events, **errors)  # type: ignore[arg-type]


def converse(arena: Arena, epsilon: float) -> ComparisonRow:
    """No release of a single symbol that is sound at ε errs less than this, raw or filtered, at the beliefs it meets.

    D* ≥ e^-ε D_0 + (1 - e^-ε) D_RD(ln(1 + e^ε)), with D_0 the best constant's cost and D_RD the rate–distortion
    function of the belief, averaged over beliefs that an optimal release of the streams realised. Pulses and batches
    spend more at once and may pass below.

    Reference: docs/theory.md, section 12 (converse).
    """
    name = mechanisms.one_by_one(arena.model.n, arena.distortion, epsilon)
    met = Contestant("balanced" if name == "tree" else name)
    try:
        beliefs, users = _realised(arena, met, epsilon)
        bounds = single_release(beliefs, epsilon, arena.distortion)
    except InputError as refusal:
        return ComparisonRow(CONVERSE, "converse", epsilon, "skipped", f"does not fit: {refusal}", limit=True)
    _, places, counts = np.unique(users, return_inverse=True, return_counts=True)
    error, half = clustered(np.bincount(places, bounds).astype(np.float64), counts.astype(np.float64))
    row = _limit(CONVERSE, "converse", epsilon, error, half, counts.size, bounds.size)
    return replace(row, claimed=epsilon, reason=f"at {bounds.size} beliefs that {met.mechanism} met")


def _realised(arena: Arena, contestant: Contestant, epsilon: float) -> tuple[Floats, Ints]:
    """Beliefs before releases, drawn evenly from all events of some streams, and whose they are."""
    streams, model, randomness = arena.streams[:USERS], arena.model, SeededRandomness(arena.seed)
    setting, draw = arena.setting(contestant, epsilon), np.random.default_rng(arena.seed)
    share = min(1.0, _sample(model.n, arena.distortion) / sum(len(codes) for codes in streams))
    beliefs, users = [], []
    for part in together(streams, max(model.size, model.n)):
        names = np.array(part)
        for step in trial.one_by_one(setting, [streams[k] for k in part], randomness):
            kept = draw.random(step.truth.size) < share
            beliefs.append(step.made.beliefs[kept])
            users.append(names[: kept.size][kept])
    found = np.concatenate(beliefs)
    # by chance none was taken: then the first event's stands for them
    return (found, np.concatenate(users)) if len(found) else (model.prior[None, :], np.zeros(1, np.int64))


def _sample(n: int, distortion: Distortion) -> int:
    """How many beliefs can be looked at without a wait."""
    return max(1, min(BELIEFS, WORK // (n if distortion.is_hamming else 4 * n * n)))
