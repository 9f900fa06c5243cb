"""What one contestant did at one ε: error, what it really leaked, what an adversary got out of it, and its pace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np

from seqveil.core import html
from seqveil.core.kernel import Floats

Status = Literal["sound", "unsound", "no promise", "limit", "skipped"]


@dataclass(frozen=True)
class Row:
    """One line of a comparison. Errors are means over events, each with the half-width of its 95% interval.

    `status`: "sound" (promised and kept), "unsound" (a release passed what it claims), "no promise" (it kept to it
    here, but may not elsewhere), "limit" (marks the field), "skipped" (`reason` says why; there are no figures).
    `claimed`: ε of one release or batch. `lift_most`, `lift_least`: logs of the largest and least lift of any single
    release, over all outputs of the kernels used (`lift_scope` "kernels") or over those released ("releases", where
    the outputs cannot be listed). `ldp`: the same without a belief. `leakage_most`, `leakage_least`: both sides of the
    worst whole stream as it was realised. `guesses`: the adversary's rates, by names such as "online_1" and
    "hindsight_10", beside their bounds "step_bound_1" and "stream_bound_1".
    """

    label: str
    mechanism: str
    epsilon: float
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

    @property
    def may_win(self) -> bool:
        """Whether it keeps its promise with the budget of the race."""
        return self.status == "sound" and self.factor == 1 and not self.limit

    def _repr_html_(self) -> str:
        return html.result(self)

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite number becomes text, because JSON has none."""
        return {name: _written(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Row:
        """The row behind `to_json`.

        >>> row = Row("crr", "crr", 1.0, "unsound", lift_most=math.inf, guesses={"online_1": 0.5})
        >>> Row.from_json(row.to_json()) == row
        True
        """
        known = {f.name for f in fields(cls)}
        return cls(**{name: _read(value) for name, value in content.items() if name in known})


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _written(part) for name, part in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _read(part) for name, part in value.items()}
    return float(value) if value in ("inf", "-inf", "nan") else value


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
        return sum(part.size for part in self._events)

    @property
    def events(self) -> int:
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
