"""Every mechanism on real people: clicks, heart rates, household power, gaze, places, shop items (`docs/figures.md`).

A chain is fitted on some people, and others are released. Error after the online decoder, in brackets with hindsight;
bold: least of the sound ones at an ε, of all and of those that do not wait for a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments import datasets
from seqveil.core.errors import SeqveilError
from seqveil.engine.policy import Policy
from seqveil.evaluate.compare import Comparison, ComparisonRow, compare

EPSILONS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Field:
    """A set, how many of its people are held out, and how many streams of so many events are released of them."""

    name: str
    people: int
    streams: int
    first: int
    options: dict[str, Any]


FIELDS = (
    Field("msnbc", 20_000, 500, 20, {}),
    Field("heart_rate", 14, 14, 100, {}),
    Field("electricity", 20, 20, 100, {}),
    Field("gaze_vr", 5, 8, 50, {"side": 10}),
    Field("geolife", 40, 20, 50, {"side": 12}),
    Field("diginetica", 20_000, 100, 5, {}),
)


def run(data: Path | None) -> list[dict[str, Any]]:
    found = []
    for field in FIELDS:
        try:
            made = compared(field, data)
        except SeqveilError as missing:
            print(f"{field.name}: {missing}")
            continue
        print(f"{field.name}: {made.people} people, {made.events} events, {made.distortion} error\n\n{table(made)}\n")
        found.append({"set": field.name, **made.to_dict()})
    return found


def compared(field: Field, data: Path | None) -> Comparison:
    """The comparison on people of a set, with a chain of all others."""
    found = datasets.load(field.name, data, **field.options)
    order = np.random.default_rng(0).permutation(found.people)
    held, kept = order[: field.people], order[field.people :]
    streams = [codes[: field.first] for codes in found.arrays(people=held) if len(codes) >= field.first]
    model = found.model(people=kept)
    policy = Policy(epsilon=1.0, distortion=found.distortion)
    return compare(streams[: field.streams], model, policy, epsilons=EPSILONS)


def table(found: Comparison) -> str:
    """A line for each way, a column for each ε, and how much of its claim the worst release reached."""
    prompt = replace(found, rows=tuple(row for row in found.rows if " at a time" not in row.label))
    best = [*found.best(), *prompt.best()]
    labels = list(dict.fromkeys(row.label for row in sorted(found.rows, key=lambda row: row.status == "limit")))
    lines = [["mechanism", *(f"ε = {bound:g}" for bound in EPSILONS), "worst release / claim"]]
    for label in labels:
        rows = {row.epsilon: row for row in found.rows if row.label == label}
        if any(row.filtered is not None for row in rows.values()):
            limit = "*limit:* " * any(row.status == "limit" for row in rows.values())
            cells = [cell(rows.get(bound), rows.get(bound) in best) for bound in EPSILONS]
            lines.append([limit + label, *cells, claim(list(rows.values()))])
    above, *rest = ("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n".join([above, "|" + "---|" * len(lines[0]), *rest])


def cell(row: ComparisonRow | None, best: bool) -> str:
    if row is None or row.filtered is None:
        return "–"
    late = "" if row.smoothed is None else f" ({short(row.smoothed)})"
    return f"**{short(row.filtered)}**{late}" if best else f"{short(row.filtered)}{late}"


def short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:.3g}"


def claim(rows: list[ComparisonRow]) -> str:
    shares = [max(row.lift_most, -(row.lift_least or 0.0)) / row.claimed
              for row in rows if row.lift_most is not None and row.claimed]  # fmt: skip
    broken = " ✗" * any(row.status == "unsound" for row in rows)
    return "" if not shares else ("no bound" if np.isinf(max(shares)) else f"{max(shares):.2f}") + broken
