"""One way to release at one ε, over all people of an arena, measured; and what no mechanism can pass.

Nothing is believed: error, lifts and leakage are those of what was released, from the integers that it was drawn from.
The limits are the best guess without a release, and a lower bound on the error of a single release.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from seqveil.core import filtering, mechanisms, words
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import between
from seqveil.core.mechanisms import Sent
from seqveil.core.randomness import Randomness, SeededRandomness
from seqveil.core.secrets import SecretTrackers
from seqveil.engine import batches
from seqveil.engine.blocks import Made
from seqveil.engine.secrets import totals
from seqveil.engine.stream import Released, State, observed, step
from seqveil.engine.terms import Terms
from seqveil.evaluate.attack import FALSE_ALARM, Finding, attack_secret
from seqveil.evaluate.baselines.mutual_information import single_release
from seqveil.evaluate.compare.ways import Arena, Way
from seqveil.interfaces.planning import error_of_mean
from seqveil.receiver.decode import decode_seen

TOLERANCE = 1e-9  # a lift may pass what is claimed by this much and still count as kept
PART = 1_000_000  # numbers of one array over the people who are released at once
BELIEFS = 300  # realised beliefs that the converse is averaged over
USERS = 200
WORK = 1 << 22  # entries of an array in the search for a rate
CONSTANT, CONVERSE = "best guess, no release", "converse, ε at each symbol"
ERRORS = ("error", "filtered", "smoothed")

Status = Literal["sound", "unsound", "no promise", "limit", "skipped"]


@dataclass(frozen=True)
class SecretFigures:
    """One secret in one row. All figures are logs of the factor by which the odds of the secret move.

    `epsilon`: the total that the secret was declared with. `promised`: the most that the way promises for a whole
    stream under the model; None where it promises nothing. `log_odds_worst`: the most that was disclosed, of any
    released person, in any window, at any time: exact under the model, infinite where the secret was disclosed for
    certain, None where there is no account (batches, blocks). `attack`: what classifiers found about the ε declared.
    """

    secret: str
    about: str
    epsilon: float
    promised: float | None = None
    log_odds_worst: float | None = None
    attack: Finding | None = None

    @property
    def kept(self) -> bool | None:
        """Whether what was disclosed stayed within the ε declared; None where there is no account."""
        return None if self.log_odds_worst is None else self.log_odds_worst <= self.epsilon


@dataclass(frozen=True)
class ComparisonRow:
    """One line of a comparison. Errors are means over events, each with the half-width of its 95 % interval.

    `status`: "sound" (promised and kept), "unsound" (a release passed what it claims), "no promise" (it kept to it
    here, but may not elsewhere), "limit" (marks the field), "skipped" (`reason` says why; there are no figures).
    `claimed`: ε of one release, batch or block, and `lift_most`, `lift_least` the logs of the largest and least lift of
    any that was made; `ldp`: the same without a belief. `leakage_most`, `leakage_least`: both sides of the worst whole
    stream. `epsilon` is None for who keeps secrets and has no ε an event; its status is about the secrets.
    """

    label: str
    mechanism: str
    epsilon: float | None
    status: Status
    reason: str = ""
    limit: bool = False
    waits: bool = False  # for a batch to be full
    claimed: float | None = None
    people: int = 0
    events: int = 0
    error: float | None = None
    error_half: float | None = None
    filtered: float | None = None
    filtered_half: float | None = None
    smoothed: float | None = None
    smoothed_half: float | None = None
    lift_most: float | None = None
    lift_least: float | None = None
    ldp: float | None = None
    leakage_most: float | None = None
    leakage_least: float | None = None
    micros: float | None = None  # processor time of a release, in microseconds an event
    secrets: tuple[SecretFigures, ...] = ()


@dataclass(eq=False)
class Runs:
    """What became of streams that were released group by group, the longest first."""

    events: list[Ints] = field(default_factory=list)  # of each stream
    costs: list[Floats] = field(default_factory=list)  # (B, 3) sums of the errors over each stream
    released: dict[int, Ints] = field(default_factory=dict)  # by the place of the stream
    trackers: list[SecretTrackers] = field(default_factory=list)  # the accounts of secrets after each stream
    most: float = 0.0  # of whole streams
    least: float = 0.0
    lift_most: float = 0.0  # of single releases
    lift_least: float = 0.0
    ldp: float = 0.0
    seconds: float = 0.0

    def saw(self, most: float, least: float, ldp: float) -> None:
        """Widen the extremes of single releases."""
        self.lift_most, self.lift_least = max(self.lift_most, most), min(self.lift_least, least)
        self.ldp = max(self.ldp, ldp)

    def ended(self, state: State) -> None:
        """Take in the accounts of streams that are over."""
        self.most = max(self.most, float(state.account.most.max()))
        self.least = min(self.least, float(state.account.least.min()))


def measured(arena: Arena, way: Way, epsilon: float | None) -> ComparisonRow:
    """Release the arena's streams and measure; a way that refuses (an alphabet or an ε too large) says so in its row.

    >>> from seqveil.core.model import MarkovModel
    >>> model = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    >>> arena = Arena.of(model, list(model.sample(10, 20, seed=1)))
    >>> [measured(arena, Way(name), 0.5).status for name in ("optimal", "crr")]
    ['sound', 'unsound']
    """
    try:
        if epsilon is not None:
            mechanisms.check_epsilon(epsilon)
        terms = way.terms(arena, epsilon)
        runs = release(terms, arena.streams, arena.seed, arena.trackers)
    except InputError as refusal:
        return ComparisonRow(way.label, way.mechanism, epsilon, "skipped", f"does not fit: {refusal}", way.limit)
    claimed = None if terms.unbounded else terms.epsilon
    broken = claimed is not None and max(runs.lift_most, -runs.lift_least) > claimed + TOLERANCE
    status: Status = "unsound" if broken else "sound" if terms.mechanism.sound else "no promise"
    figures = _secrets(arena, way, terms, runs)
    if way.mechanism not in mechanisms.names() or claimed is None:  # who keeps secrets is judged by them
        bounded = [one for one in figures if one.promised is not None]
        passed = any((one.log_odds_worst or 0.0) > (one.promised or 0.0) for one in bounded)
        status, claimed = "unsound" if passed else "sound" if bounded else "no promise", None
    counts = np.concatenate(runs.events)
    return ComparisonRow(
        way.label,
        way.mechanism,
        epsilon,
        status,
        limit=way.limit,
        waits=way.batch > 1,
        claimed=claimed,
        people=counts.size,
        events=int(counts.sum()),
        **_errors(np.concatenate(runs.costs).T, counts),
        lift_most=runs.lift_most,
        lift_least=runs.lift_least,
        ldp=None if terms.in_blocks else runs.ldp,
        leakage_most=runs.most,
        leakage_least=runs.least,
        micros=1e6 * runs.seconds / counts.sum(),
        secrets=figures,
    )


def _errors(costs: Iterable[Floats], counts: Ints) -> dict[str, Any]:
    """The mean of each kind of error over all events, and the half-width of its interval, from sums by person."""
    found: dict[str, Any] = {}
    for name, sums in zip(ERRORS, costs, strict=False):
        found[name], found[f"{name}_half"] = clustered(sums, counts)
    return found


def release(terms: Terms, streams: Sequence[Ints], seed: int = 0, follow: SecretTrackers | None = None) -> Runs:
    """Release streams with seeded randomness, and measure.

    terms: what they are released with.
    streams: the true codes of each.
    follow: accounts of secrets that the terms do not keep, before the first release.
    """
    runs, randomness = Runs(), SeededRandomness(seed)
    if terms.in_batches:
        for place, codes in enumerate(streams):
            _in_batches(runs, terms, place, codes, randomness)
        return runs
    step(terms, State.start(terms), streams[0][:1], SeededRandomness(0))  # loads, untimed
    for places in together(streams, max(terms.model.size, terms.model.n)):
        _side_by_side(runs, terms, places, [streams[k] for k in places], randomness, follow)
    return runs


def together(streams: Sequence[Ints], width: int) -> Iterator[list[int]]:
    """Positions of streams that are released at once: of like length, longest first, and few enough to stay in memory.

    >>> streams = [np.zeros(length, int) for length in (3, 400_000, 4)]
    >>> list(together(streams, 2))
    [[1], [2, 0]]
    """
    order = sorted(range(len(streams)), key=lambda k: -len(streams[k]))
    while order:
        many = max(1, PART // (len(streams[order[0]]) * width))
        yield order[:many]
        order = order[many:]


def _steps(
    runs: Runs, terms: Terms, streams: Sequence[Ints], randomness: Randomness
) -> Iterator[tuple[Ints, State, Made, State]]:
    """Streams released event by event, the longest first: truth, state before, release and state after of those that
    have got so far."""
    lengths, state = np.array([len(own) for own in streams]), State.start(terms, len(streams))
    for t in range(int(lengths[0])):
        before = state.take(slice(0, int((lengths > t).sum())))
        truth = np.array([own[t] for own in streams[: len(before)]])
        began = time.process_time()
        made, state = step(terms, before, truth, randomness)
        runs.seconds += time.process_time() - began
        yield truth, before, made, state


def _side_by_side(
    runs: Runs,
    terms: Terms,
    places: Sequence[int],
    streams: Sequence[Ints],
    randomness: Randomness,
    follow: SecretTrackers | None,
) -> None:
    """Release streams event by event, the longest first."""
    lengths = np.array([len(codes) for codes in streams])
    kept_apart = follow is not None and not terms.secrets and not terms.in_blocks  # blocks have no account of secrets
    trackers = np.full(len(streams), follow, object) if kept_apart else None
    seen, truths = list[tuple[int, State, Made]](), list[Ints]()
    for t, (truth, before, made, after) in enumerate(_steps(runs, terms, streams, randomness)):
        seen.append((t, before, made))
        truths.append(truth)
        if isinstance(made, Released):
            _look(runs, made)
            if trackers is not None:
                trackers[: truth.size] = observed(trackers[: truth.size], made.columns)
        else:
            runs.saw(float(made.costs.max()), -float(made.costs.max()), 0.0)
        over = slice(int((lengths > t + 1).sum()), truth.size)
        if over.start < over.stop:
            runs.ended(after.take(over))
            accounts = after.trackers if trackers is None else trackers
            runs.trackers += [] if accounts is None else list(accounts[over])
    codes, sums = [made.codes for _, _, made in seen], np.zeros((len(streams), len(ERRORS)))
    decoded = ((guess for _, guess in decode_seen(terms, seen, smooth)) for smooth in (False, True))
    parts = (codes, *(map(terms.distortion.best_guess, known) for known in decoded))
    for kind, guesses in enumerate(parts):
        for truth, guess in zip(truths, guesses, strict=True):
            sums[: truth.size, kind] += terms.distortion.between(truth, guess)
    runs.events.append(lengths)
    runs.costs.append(sums)
    for row, place in enumerate(places):
        runs.released[place] = np.array([part[row] for part in codes[: lengths[row]]])


def _look(runs: Runs, made: Released) -> None:
    """The lifts of releases, and how far apart they tell any two symbols and pasts, allowed by the model or not."""
    least, most = between(made.weights.low, made.weights.high, made.weights.marginal, made.weights.terms)
    with np.errstate(divide="ignore"):
        apart = np.log(made.remembered.max(1) / made.remembered.min(1).astype(np.float64))
    runs.saw(float(most.max()), float(least.min()), float(apart.max()))


def _in_batches(runs: Runs, terms: Terms, place: int, codes: Ints, randomness: Randomness) -> None:
    """Release one stream batch by batch; a short last one gets its share of ε."""
    state, sent, size = State.start(terms), list[Sent](), terms.batch
    for begin in range(0, codes.size, size):
        part = codes[begin : begin + size]
        own = replace(terms, epsilon=terms.epsilon * part.size / size)
        began = time.process_time()
        one, state = batches.step(own, state, part, randomness)
        runs.seconds += time.process_time() - began
        assert one is not None  # nothing is left out without a budget
        runs.saw(one.most, one.least, one.most - one.least)
        sent.append(one)
    runs.ended(state)
    costs, released = terms.distortion, np.concatenate([one.codes for one in sent])
    guesses = (released, *(costs.best_guess(known(terms, sent)) for known in (batches.filtered, batches.smooth)))
    runs.events.append(np.array([codes.size]))
    runs.costs.append(np.array([[costs.between(codes, guess).sum() for guess in guesses]]))
    runs.released[place] = released


def _secrets(arena: Arena, way: Way, terms: Terms, runs: Runs) -> tuple[SecretFigures, ...]:
    """What the row says about each secret; several secrets share the false-alarm rate of their attacks."""
    promised = way.promised(arena, terms)
    worst: list[float | None] = [None] * len(promised)
    if runs.trackers:
        worst = [total.log_odds_worst for total in totals(arena.secrets, runs.trackers, promised)]
    figures = []
    for secret, bound, most in zip(arena.secrets, promised, worst, strict=True):
        found = None
        if arena.attack:
            releases, rate = [runs.released[k] for k in range(len(arena.streams))], FALSE_ALARM / len(arena.secrets)
            over = secret.over(arena.model.alphabet)
            found = attack_secret(releases, arena.streams, over, secret.epsilon, seeds=(arena.seed,), false_alarm=rate)
        figures.append(SecretFigures(secret.name, words.about(secret), secret.total, bound, most, found))
    return tuple(figures)


def constant(arena: Arena, epsilon: float | None = None) -> ComparisonRow:
    """The best guess from the model alone, at each step: leaks nothing, costs nothing."""
    guesses = arena.distortion.best_guess(filtering.unseen(arena.model, arena.longest))
    sums = np.array([arena.distortion.between(own, guesses[: len(own)]).sum() for own in arena.streams])
    counts = np.array([len(own) for own in arena.streams])
    nothing: dict[str, Any] = dict.fromkeys(
        ("claimed", "lift_most", "lift_least", "ldp", "leakage_most", "leakage_least"), 0.0
    )
    silent = tuple(SecretFigures(one.name, words.about(one), one.total, 0.0, 0.0) for one in arena.secrets)
    many: dict[str, Any] = {"people": counts.size, "events": int(counts.sum())}
    return ComparisonRow(CONSTANT, "constant", epsilon, "limit", limit=True, secrets=silent, **many, **nothing,
                         **_errors([sums] * 3, counts))  # fmt: skip


def converse(arena: Arena, epsilon: float) -> ComparisonRow:
    """No release of a single symbol that is sound at ε errs less than this, raw or filtered, at the beliefs it meets.

    D* ≥ e^-ε D_0 + (1 - e^-ε) D_RD(ln(1 + e^ε)), with D_0 the best constant's cost and D_RD the rate–distortion
    function of the belief, averaged over beliefs that an optimal release of the streams realised. Blocks and batches
    spend more at once and may pass below.

    Reference: docs/theory.md, section 12 (converse).
    """
    name = mechanisms.one_by_one(arena.model.n, arena.distortion, epsilon)
    met = Way("balanced" if name == "tree" else name)
    try:
        beliefs, people = _realised(arena, met.terms(arena, epsilon))
        bounds = single_release(beliefs, epsilon, arena.distortion)
    except InputError as refusal:
        return ComparisonRow(CONVERSE, "converse", epsilon, "skipped", f"does not fit: {refusal}", limit=True)
    _, places, counts = np.unique(people, return_inverse=True, return_counts=True)
    sums, reason = np.bincount(places, bounds).astype(np.float64), f"at {bounds.size} beliefs that {met.mechanism} met"
    return ComparisonRow(CONVERSE, "converse", epsilon, "limit", reason, True, claimed=epsilon, people=counts.size,
                         events=bounds.size, **_errors([sums] * 2, counts))  # fmt: skip


def _realised(arena: Arena, terms: Terms) -> tuple[Floats, Ints]:
    """Beliefs before releases, drawn evenly from all events of some streams, and whose they are."""
    streams = sorted(arena.streams[:USERS], key=len, reverse=True)
    randomness, draw = SeededRandomness(arena.seed), np.random.default_rng(arena.seed)
    n, hamming = arena.model.n, arena.distortion.is_hamming
    wanted = max(1, min(BELIEFS, WORK // (n if hamming else 4 * n * n)))
    share = min(1.0, wanted / sum(len(codes) for codes in streams))
    beliefs, people = list[Floats](), list[Ints]()
    for truth, _, made, _ in _steps(Runs(), terms, streams, randomness):
        kept = np.flatnonzero(draw.random(truth.size) < share)
        assert isinstance(made, Released)
        beliefs.append(made.beliefs[kept])
        people.append(kept)
    found = np.concatenate(beliefs)
    # by chance none was taken: then the first event's stands for them
    return (found, np.concatenate(people)) if len(found) else (arena.model.prior[None, :], np.zeros(1, np.int64))


def clustered(sums: Floats, counts: Ints) -> tuple[float, float | None]:
    """The mean over all events, and the half-width of its 95 % interval over people, from each person's sum and count.

    >>> mean, half = clustered(np.array([1.0, 3.0]), np.array([2.0, 2.0]))
    >>> mean, round(half, 3)
    (1.0, 6.353)
    """
    mean, people = float(sums.sum() / counts.sum()), counts.size
    return mean, None if people < 2 else float(stdtrit(people - 1, 0.975)) * error_of_mean(sums, counts)
