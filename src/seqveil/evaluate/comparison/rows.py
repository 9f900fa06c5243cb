"""What one contestant did at one ε: error, what it really leaked, what an adversary got out of it, and its pace.

Where secrets are declared, a row says of each what was promised, what was disclosed, and what an attacker got out of
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqveil.core import html, words
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.secrets import Secret, SecretTrackers
from seqveil.engine.secrets import totals
from seqveil.evaluate import attack

if TYPE_CHECKING:
    from seqveil.evaluate.comparison.arena import Arena

FEWEST_PEOPLE = 4 * attack.FEWEST  # half of them learn, and of each half some have the secret and some do not

Status = Literal["sound", "unsound", "no promise", "limit", "skipped"]


_ERRORS = {"error": "error as released", "filtered": "error, online decoder", "smoothed": "error with hindsight"}


@dataclass(frozen=True)
class SecretFigures:
    """One secret in one row. All figures are logs of the factor by which the odds of the secret move.

    `epsilon`: the total that the secret was declared with. `promised`: the most that the mechanism promises for a whole
    stream under the model; None where it promises nothing. `log_odds_worst`: the most that was disclosed, of any
    released person, in any window, at any time: exact under the model, infinite where the secret was disclosed for
    certain, None where there is no account (batches). `epsilon_at_least` and what follows: what the attack found about
    the ε declared (`attack.Finding`), on people and without a model; None and "" where there was no attack.

    >>> disclosed = SecretFigures("ever:health", "whether health occurs", 0.5, promised=None, log_odds_worst=4.9)
    >>> disclosed.kept, disclosed.keeps_by_promise
    (False, False)
    """

    secret: str
    about: str
    epsilon: float
    sides: str = "both"
    promised: float | None = None
    log_odds_worst: float | None = None
    epsilon_at_least: float | None = None
    epsilon_estimate: float | None = None
    epsilon_noticeable: float | None = None
    verdict: str = ""
    people: int = 0
    people_needed: int | None = None

    @property
    def kept(self) -> bool | None:
        """Whether what was disclosed stayed within the ε declared; None where there is no account."""
        return None if self.log_odds_worst is None else self.log_odds_worst <= self.epsilon

    @property
    def line(self) -> str:
        """What the row says about the secret."""
        promised = "nothing" if self.promised is None else f"at most {html.number(self.promised)}"
        most = "no account" if self.log_odds_worst is None else html.number(self.log_odds_worst)
        said = f"{self.about}, ε = {html.number(self.epsilon)}: promised {promised}; most disclosed {most}"
        if not self.verdict or self.epsilon_at_least is None:
            return said
        least = html.number(self.epsilon_at_least)
        return f"{said}; attack: {self.verdict}, at least {least} on {self.people} people"

    @property
    def keeps_by_promise(self) -> bool:
        """Whether the mechanism promises the ε declared, or less."""
        return self.promised is not None and self.promised <= self.epsilon


@dataclass(frozen=True)
class ComparisonRow:
    """One line of a comparison. Errors are means over events, each with the half-width of its 95% interval.

    `status`: "sound" (promised and kept), "unsound" (a release passed what it claims), "no promise" (it kept to it
    here, but may not elsewhere), "limit" (marks the field), "skipped" (`reason` says why; there are no figures).
    `claimed`: ε of one release or batch. `lift_most`, `lift_least`: logs of the largest and least lift of any single
    release, over all outputs of the kernels used (`lift_scope` "kernels") or over those released ("releases", where
    the outputs cannot be listed). `ldp`: the same without a belief. `leakage_most`, `leakage_least`: both sides of the
    worst whole stream as it was realised. `guesses`: the adversary's rates, by names such as "online_1" and
    "hindsight_10", beside their bounds "step_bound_1" and "stream_bound_1". `secrets`: what the row says about each
    declared secret. `epsilon` is None for who keeps secrets and has no ε an event; its status is about the secrets.
    """

    label: str
    mechanism: str
    epsilon: float | None
    status: Status
    reason: str = ""
    factor: float = 1.0
    batch: int = 1
    period: int | None = 1
    limit: bool = False
    claimed: float | None = None
    users: int = 0
    events: int = 0
    error: float | None = None
    error_half: float | None = None
    filtered: float | None = None
    filtered_half: float | None = None
    smoothed: float | None = None
    smoothed_half: float | None = None
    lift_most: float | None = None
    lift_least: float | None = None
    lift_scope: str = ""
    ldp: float | None = None
    leakage_most: float | None = None
    leakage_least: float | None = None
    guesses: Mapping[str, float] = field(default_factory=dict)
    micros: float | None = None  # processor time of a release, in microseconds an event
    secrets: tuple[SecretFigures, ...] = ()

    @property
    def may_win(self) -> bool:
        """Whether it keeps its promise with the budget of the race."""
        return self.status == "sound" and self.factor == 1 and not self.limit

    def lines(self) -> list[tuple[str, str]]:
        """The row in words: its errors with their intervals, and what it leaked."""
        own = "none" if self.epsilon is None else html.number(self.epsilon)
        said = [("mechanism", self.label), ("ε an event", own), ("verdict", self.status)]
        if self.reason:
            said.append(("reason", self.reason))
        for name, what in _ERRORS.items():
            value, half = getattr(self, name), getattr(self, f"{name}_half")
            if value is not None:
                said.append((what, html.number(value) + ("" if half is None else f" ± {html.number(half)}")))
        if self.lift_most is not None and self.lift_least is not None and self.claimed is not None:
            worst = html.number(max(self.lift_most, -self.lift_least))
            said.append(("worst release", f"{worst}, claimed {html.number(self.claimed)}"))
        if self.leakage_most is not None and self.leakage_least is not None:
            up, down = html.number(self.leakage_most), html.number(self.leakage_least)
            said.append(("worst stream", f"up {up}, down {down}"))
        said += [(f"secret {place}", each.line) for place, each in enumerate(self.secrets, 1)]
        if self.events:
            said.append(("measured on", f"{self.events} events of {self.users} users (seeded, not private)"))
        return said

    def _repr_html_(self) -> str:
        return html.page("Comparison", self.lines())

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite number becomes text, because JSON has none."""
        content: dict[str, Any] = _written(asdict(self))
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ComparisonRow:
        """The row behind `to_json`.

        >>> row = ComparisonRow("crr", "crr", 1.0, "unsound", lift_most=math.inf, guesses={"online_1": 0.5})
        >>> ComparisonRow.from_json(row.to_json()) == row
        True
        """
        values = {name: _read(value) for name, value in content.items()}
        return cls(**values | {"secrets": tuple(SecretFigures(**one) for one in values["secrets"])})


def _written(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_written(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _written(part) for name, part in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _read(part) for name, part in value.items()}
    return float(value) if value in ("inf", "-inf", "nan") else value


def declared(secrets: Sequence[Secret], promised: Iterable[float | None]) -> tuple[SecretFigures, ...]:
    """The secrets with what a mechanism promises about each, before anything is measured."""
    return tuple(
        SecretFigures(secret.name, words.about(secret), secret.total, secret.sides, promised=bound)
        for secret, bound in zip(secrets, promised, strict=True)
    )


def silent(secrets: Sequence[Secret]) -> tuple[SecretFigures, ...]:
    """What is disclosed where nothing is released."""
    return tuple(replace(one, log_odds_worst=0.0) for one in declared(secrets, [0.0] * len(secrets)))


def accounted(
    found: Sequence[SecretFigures], secrets: Sequence[Secret], accounts: Iterable[SecretTrackers]
) -> tuple[SecretFigures, ...]:
    """With the exact account of all people."""
    worst = [total.log_odds_worst for total in totals(secrets, accounts, [one.promised for one in found])]
    return tuple(replace(one, log_odds_worst=most) for one, most in zip(found, worst, strict=True))


def attacked(
    found: Sequence[SecretFigures], arena: Arena, releases: Sequence[Ints], truth: Sequence[Ints]
) -> tuple[SecretFigures, ...]:
    """With what an attacker without a model shows about the ε declared, on half of the people.

    The chance of a false alarm is shared by the secrets of a row.
    """
    shared: dict[str, Any] = {"seed": arena.seed, "false_alarm": attack.FALSE_ALARM / len(found)}
    after = []
    for one, secret in zip(found, arena.secrets, strict=True):
        if max(len(codes) for codes in truth) < (secret.length() or 1):  # none of the few whom batches were tried on
            after.append(replace(one, epsilon_at_least=0.0, verdict="not decided"))
            continue
        over = secret.over(arena.model.alphabet)
        seen = attack.attack_secret(releases, truth, over, secret.epsilon, **shared)
        names = ("epsilon_at_least", "epsilon_estimate", "epsilon_noticeable", "verdict", "people", "people_needed")
        after.append(replace(one, **{name: getattr(seen, name) for name in names}))
    return tuple(after)


def check_attack(secrets: Sequence[Secret], streams: Sequence[Ints]) -> None:
    """Refuse an attack that cannot be made, before anything is released."""
    if not secrets:
        raise InputError("an attack is on declared secrets, and there is none; add --secret ever:VALUE")
    attack.classifiers(0)  # says which extra is missing
    lengths = np.array([len(codes) for codes in streams])
    for secret in secrets:
        whole = int((lengths >= (secret.length() or 1)).sum())
        if whole < FEWEST_PEOPLE:
            raise InputError(
                f"an attack needs at least {FEWEST_PEOPLE} released people with a whole window of each secret, got "
                f"{whole}; release more with --test-users, take a shorter --secret-window, or leave --attack out"
            )


class Tally:
    """Sums over each user's events, by name, and their means with intervals clustered by user."""

    def __init__(self) -> None:
        self._events: list[Floats] = []
        self._sums: dict[str, list[Floats]] = {}

    def add(self, events: Floats, sums: Mapping[str, Floats]) -> None:
        """Users with so many events, and the sums of each over them."""
        self._events.append(np.asarray(events, np.float64))
        for name, values in sums.items():
            self._sums.setdefault(name, []).append(np.asarray(values, np.float64))

    @property
    def users(self) -> int:
        """How many streams were counted."""
        return sum(part.size for part in self._events)

    @property
    def events(self) -> int:
        """How many events they had together."""
        return int(sum(part.sum() for part in self._events))

    def means(self) -> dict[str, float]:
        """Means over events."""
        return {name: float(np.concatenate(parts).sum()) / self.events for name, parts in self._sums.items()}

    def mean(self, name: str) -> tuple[float, float | None]:
        """A mean over events and the half-width of its 95% interval (None for a single user)."""
        return clustered(np.concatenate(self._sums[name]), np.concatenate(self._events))


def clustered(sums: Floats, counts: Floats) -> tuple[float, float | None]:
    """m = Σ s_u / Σ n_u, and t · sqrt(G/(G-1) Σ (s_u - m n_u)²) / Σ n_u over the G users: users differ, events follow.

    >>> mean, half = clustered(np.array([1.0, 3.0]), np.array([2.0, 2.0]))
    >>> mean, round(half, 3)
    (1.0, 6.353)
    """
    total, groups = float(counts.sum()), counts.size
    mean = float(sums.sum()) / total
    if groups < 2:
        return mean, None
    from scipy.special import stdtrit

    spread = math.sqrt(groups / (groups - 1) * float(((sums - mean * counts) ** 2).sum())) / total
    return mean, float(stdtrit(groups - 1, 0.975)) * spread
