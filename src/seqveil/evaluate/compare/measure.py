"""One way to release at one ε, over all people of an arena, measured; and the best guess without a release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from scipy.special import stdtrit

from seqveil.core import filtering, mechanisms, words
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Terms
from seqveil.engine.secrets import totals
from seqveil.evaluate.attack import FALSE_ALARM, Finding, attack_secret
from seqveil.evaluate.compare.ways import LIMITS, Arena, Way
from seqveil.interfaces.trials import Trial, mean_cost, release, steps

TOLERANCE = 1e-9  # a lift may pass what is claimed by this much and still count as kept
CONSTANT = "best guess, no release"

Status = Literal["sound", "unsound", "no promise", "limit", "skipped"]


@dataclass(frozen=True)
class SecretFigures:
    """One secret in one row. All figures are logs of the factor by which the odds of the secret move.

    `epsilon`: the total that the secret was declared with. `promised`: the most that the way promises for a whole
    stream under the model; None where it promises nothing. `log_odds_worst`: the most that was disclosed, of any
    released person, in any window, at any time: exact under the model (an upper bound where a mechanism that keeps
    the secret no longer follows a window that is over), infinite where it was disclosed for certain, None where there
    is no account (batches, blocks). `attack`: what classifiers found about the ε declared.
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
    here, but may not elsewhere), "limit" (kept, and marks the field), "skipped" (`reason` says why; it has no figures).
    `claimed`: ε of one release, batch or block, and `lift_most`, `lift_least` the logs of the largest and least lift of
    any that was made; `ldp`: the same without a belief. `leakage_most`, `leakage_least`: both sides of the worst whole
    stream. `epsilon` is None for who keeps secrets and has no ε an event; its status is about the secrets.
    """

    label: str
    mechanism: str
    epsilon: float | None
    status: Status
    reason: str = ""
    claimed: float | None = None
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
        if not terms.in_batches:
            next(steps(terms, [arena.streams[0][:1]], SeededRandomness(0)))  # loads, untimed
        trial = release(terms, arena.streams, arena.seed, decoded=True, follow=arena.trackers, shared=True)
    except InputError as refusal:
        return ComparisonRow(way.label, way.mechanism, epsilon, "skipped", f"does not fit: {refusal}")
    claimed = None if terms.unbounded else terms.epsilon
    broken = claimed is not None and max(trial.lift_most, -trial.lift_least) > claimed + TOLERANCE
    kept: Status = "limit" if way.mechanism in LIMITS else "sound"
    status: Status = "unsound" if broken else kept if terms.mechanism.sound else "no promise"
    figures = _secrets(arena, way, terms, trial)
    if way.mechanism not in mechanisms.names() or claimed is None:  # who keeps secrets is judged by them
        bounded = [one for one in figures if one.promised is not None]
        passed = any((one.log_odds_worst or 0.0) > (one.promised or 0.0) for one in bounded)
        status, claimed = "unsound" if passed else "sound" if bounded else "no promise", None
    return ComparisonRow(
        way.label,
        way.mechanism,
        epsilon,
        status,
        claimed=claimed,
        **errors(trial.costs, trial.filtered, trial.smoothed),
        lift_most=trial.lift_most,
        lift_least=trial.lift_least,
        ldp=None if terms.in_blocks else trial.ldp,
        leakage_most=trial.most,
        leakage_least=trial.least,
        micros=1e6 * trial.seconds / sum(map(len, arena.streams)),
        secrets=figures,
    )


def errors(*kinds: dict[int, Floats]) -> dict[str, Any]:
    """The mean of each kind of error over all events, and the half-width of its 95 % interval, from each person's
    costs."""
    found = dict[str, Any]()
    for name, costs in zip(("error", "filtered", "smoothed"), kinds, strict=True):
        found[name], apart = mean_cost(costs)
        found[f"{name}_half"] = None if apart is None else float(stdtrit(len(costs) - 1, 0.975)) * apart
    return found


def _secrets(arena: Arena, way: Way, terms: Terms, trial: Trial) -> tuple[SecretFigures, ...]:
    """What the row says about each secret; several secrets share the false-alarm rate of their attacks."""
    promised = way.promised(arena, terms)
    worst: list[float | None] = [None] * len(promised)
    if trial.trackers:
        worst = [total.log_odds_worst for total in totals(arena.secrets, trial.trackers, promised)]
    figures = []
    for secret, bound, most in zip(arena.secrets, promised, worst, strict=True):
        found = None
        if arena.attack:
            releases, rate = [trial.released[k] for k in range(len(arena.streams))], FALSE_ALARM / len(arena.secrets)
            over = secret.over(arena.model.alphabet)
            found = attack_secret(releases, arena.streams, over, secret.epsilon, seed=arena.seed, false_alarm=rate)
        figures.append(SecretFigures(secret.name, words.about(secret), secret.total, bound, most, found))
    return tuple(figures)


def constant(arena: Arena, epsilon: float | None = None) -> ComparisonRow:
    """The best guess from the model alone, at each step: leaks nothing, costs nothing."""
    guesses = arena.distortion.best_guess(filtering.unseen(arena.model, arena.longest))
    costs = {k: arena.distortion.between(own, guesses[: len(own)]) for k, own in enumerate(arena.streams)}
    figures = ("claimed", "lift_most", "lift_least", "ldp", "leakage_most", "leakage_least")
    nothing: dict[str, Any] = dict.fromkeys(figures, 0.0) | errors(costs, costs, costs)
    silent = tuple(SecretFigures(one.name, words.about(one), one.total, 0.0, 0.0) for one in arena.secrets)
    return ComparisonRow(CONSTANT, "constant", epsilon, "limit", secrets=silent, **nothing)
