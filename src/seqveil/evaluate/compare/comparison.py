"""The rows of a comparison, shown as one table and as plain values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from seqveil.core import mechanisms
from seqveil.core.distortion import error_name
from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.core.words import Line, Result, ResultTable, cell_text
from seqveil.engine.policy import Policy
from seqveil.evaluate.compare.measure import ComparisonRow, SecretFigures, constant, measured
from seqveil.evaluate.compare.ways import PAPER, Arena, ways
from seqveil.interfaces.files.table import FilePath
from seqveil.interfaces.trials import read_people

LEGEND: tuple[Line, ...] = (
    ("error", "mean over events of the release as it is, ± 95 % by person"),
    ("filtered", "after the receiver's online decoder, the best guess of anyone who knows the model; ★ least of those "
                 "that keep their promise"),
    ("smoothed", "decoded with the whole stream"),
    ("worst", "logs of the largest and least lift of any release, batch or block, and of any whole stream; ✗ above "
              "what it claims. A block of w claims w·ε for its events together, and one of them may take all of it"),
    ("µs", "processor time of a release, for an event"),
)  # fmt: skip
SECRET_LEGEND: tuple[Line, ...] = (
    ("promises", "the most that the odds of the secret move under the model, as a log, in total for a whole stream"),
    ("disclosed", "what it came to for the person about whom most was disclosed, exact under the model; ✗ more than "
                  "the ε declared; no account: batches and blocks"),
)  # fmt: skip
ATTACK_LEGEND: tuple[Line, ...] = (
    ("attack", "the ε that the best guess of classifiers shows on people who had no part in learning it, and a lower "
               "bound, 95 % sure; the verdict is about the ε declared, whatever the row promises"),
)  # fmt: skip

Show = Callable[[str, float], None]


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """What every way did on the same people. The randomness was seeded, so nothing of it is private."""

    rows: tuple[ComparisonRow, ...]
    model: str  # fingerprint
    symbols: int
    people: int
    events: int
    distortion: str
    seed: int

    def lines(self) -> list[Line]:
        """What was compared, what the columns say, and what the paper calls the mechanisms."""
        released = f"{self.events:,} events of {self.people:,} people, {self.symbols} symbols (seeded, not private)"
        said = [("released", released), ("error in", error_name(self.distortion)), *LEGEND]
        if self._secrets:
            said += SECRET_LEGEND
            said += [(f"secret {k}", f"{one.about}: ε = {one.epsilon:g}") for k, one in enumerate(self._secrets, 1)]
        if self._attacked:
            said += ATTACK_LEGEND
        names = [name for name in PAPER if any(row.mechanism == name for row in self.rows)]
        said += [("in the paper", "; ".join(f"{name}: {PAPER[name]}" for name in names))] if names else []
        return said + [(f"no {row.label}", row.reason) for row in self.rows if row.status == "skipped"]

    def tables(self) -> list[ResultTable]:
        """One table: a row for each way and ε, limits last."""
        made = sorted((row for row in self.rows if row.status != "skipped"), key=lambda row: row.status == "limit")
        best = self.best()
        cells = [self._cells(row, "★ " * (row in best)) for row in made]
        return [ResultTable("", tuple(cells[0]), [tuple(each.values()) for each in cells])] if cells else []

    def best(self) -> list[ComparisonRow]:
        """Of each ε the row of least filtered error that keeps what it promises."""
        found: dict[float | None, ComparisonRow] = {}
        for row in sorted(self.rows, key=lambda row: row.filtered or 0.0):
            if row.status == "sound" and " at 2ε" not in row.label:
                found.setdefault(row.epsilon, row)
        return list(found.values())

    @property
    def _secrets(self) -> tuple[SecretFigures, ...]:
        return max((row.secrets for row in self.rows), key=len, default=())

    @property
    def _attacked(self) -> bool:
        return any(one.attack is not None for row in self.rows for one in row.secrets)

    def _cells(self, row: ComparisonRow, mark: str) -> dict[str, str]:
        """The cells of a row by the headings of their columns."""
        cells = {
            "mechanism": f"{mark}{'limit: ' * (row.status == 'limit')}{row.label}",
            "ε an event": "" if row.epsilon is None else f"{row.epsilon:g}",
            "error": _error_cell(row.error, row.error_half),
            "filtered": _error_cell(row.filtered, row.filtered_half),
            "smoothed": _error_cell(row.smoothed, row.smoothed_half),
            "worst release": _sides(row.lift_most, row.lift_least) + " ✗" * (row.status == "unsound"),
            "claims": _log_cell(row.claimed),
            "LDP": _log_cell(row.ldp),
            "worst stream": _sides(row.leakage_most, row.leakage_least),
            "µs": _log_cell(row.micros),
        }
        for k in range(len(self._secrets)):
            number, one = f" {k + 1}" if len(self._secrets) > 1 else "", row.secrets[k] if row.secrets else None
            cells[f"promises{number}"] = "" if one is None else _log_cell(one.promised) or "nothing"
            cells[f"disclosed{number}"] = "" if one is None else _disclosed_cell(one)
            if self._attacked:
                cells[f"attack{number}"] = "" if one is None else _attack_cell(one)
        return cells


def compare(
    streams: Sequence[Ints],
    model: MarkovModel,
    policy: Policy | None = None,
    *,
    epsilons: Sequence[float] = (),
    names: Sequence[str] = ("all",),
    batches: Sequence[int] = (5,),
    blocks: Sequence[int] = (5, 20),
    attack: bool = False,
    seed: int = 0,
    show: Show = lambda label, done: None,
) -> Comparison:
    """Release people's streams in every way that is asked for, and measure each.

    Parameters:
        streams: the true codes of each person; best of people who had no part in fitting the model.
        policy: gives secrets, observers and distortion, and ε and sizes where it has them.
        epsilons: what an event may cost on average.
        names: "all", or names of mechanisms, and with secrets of `KEEPERS`.
        batches, blocks: sizes, each with as many times ε.
        attack: whether classifiers attack each secret on the people released.
        show: called with the row under way and the share of rows that are done.
    """
    arena = Arena.of(model, streams, policy, attack=attack, seed=seed)
    if attack and not arena.secrets:
        raise InputError("an attack is on a declared secret, and there is none; name a policy that keeps one")
    sizes = (1, 1) if policy is None else (policy.batch, policy.block)
    bounds = list(dict.fromkeys(map(mechanisms.check_epsilon, epsilons)))
    if not bounds and policy is not None and policy.rate is not None:
        bounds = [policy.rate / max(sizes)]
    within = [min(size, arena.longest) for size in blocks]  # a longer one would spend on events that never come
    chosen = ways(names, _with(batches, sizes[0]), _with(within, sizes[1]), bool(arena.secrets))
    if not bounds and any(way.by_event for way in chosen):
        if not arena.secrets:
            raise InputError("expected what an event may cost, got nothing; pass --epsilon 0.5,1, or a policy with one")
        chosen = [way for way in chosen if not way.by_event]
    to_make: list[tuple[str, Callable[[], ComparisonRow]]] = []
    for epsilon in bounds:
        to_make += [(way.label, partial(measured, arena, way, epsilon)) for way in chosen if way.by_event]
        to_make.append(("limits", partial(constant, arena, epsilon)))
    to_make += [(way.label, partial(measured, arena, way, None)) for way in chosen if not way.by_event]
    rows = list[ComparisonRow]()
    for label, make in to_make:
        show(label, len(rows) / len(to_make))
        rows.append(make())
    events = sum(len(codes) for codes in streams)
    return Comparison(tuple(rows), model.fingerprint, model.n, len(streams), events, arena.distortion.name, seed)


def read_streams(
    data: FilePath, model: MarkovModel, people: int | None = None, first: int | None = None, seed: int = 0
) -> list[Ints]:
    """The codes of each person's events, the first ones where so many are asked for.

    Of more people some are drawn. Who that is follows from the seed and the names alone, not from the file.
    """
    for name, value in (("people", people), ("first", first)):
        if value is not None and value < 1:
            raise InputError(f"expected --{name} of at least 1, got {value}")
    if seed < 0:
        raise InputError(f"expected a seed that is a whole number ≥ 0, got {seed}")
    streams = read_people(data, model)
    drawn = sorted(streams, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:people]
    return [streams[name][:first] for name in drawn]


def _with(sizes: Sequence[int], own: int) -> list[int]:
    return list(dict.fromkeys([*sizes, *([own] if own > 1 else [])]))


def _error_cell(value: float | None, half: float | None) -> str:
    """A mean and its interval."""
    return "±".join(f"{part:.3f}" if part < 10 else f"{part:.3g}" for part in (value, half) if part is not None)


def _log_cell(value: float | None) -> str:
    """A log in three figures; below a thousandth it is no leak worth a digit."""
    return cell_text(None if value is None else float(f"{round(value, 3):.3g}"))


def _sides(most: float | None, least: float | None) -> str:
    return "" if most is None or least is None else f"+{_log_cell(most)}/-{_log_cell(abs(least))}"


def _disclosed_cell(one: SecretFigures) -> str:
    """The most that was disclosed about a secret."""
    return "no account" if one.log_odds_worst is None else _log_cell(one.log_odds_worst) + " ✗" * (not one.kept)


def _attack_cell(one: SecretFigures) -> str:
    if one.attack is None:
        return ""
    low, seen = f"≥ {_log_cell(one.attack.epsilon_at_least)}", one.attack.epsilon_estimate
    return f"{one.attack.verdict}: {low if seen is None else f'{_log_cell(seen)} ({low})'}"
