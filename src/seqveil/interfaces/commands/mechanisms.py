"""`seqveil mechanisms`: what there is to choose from, and what each promises."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

from seqveil.core import mechanisms as registry
from seqveil.core.mechanisms import BatchMechanism, Mechanism
from seqveil.core.results import Result, ResultTable
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, show

AnyMechanism = Mechanism | BatchMechanism
HEADINGS = ("name", "what it does", "guarantee", "LDP", "sound")


@dataclass(frozen=True, repr=False)
class Registered(Result):
    """All mechanisms, by how they release."""

    def lines(self) -> list[tuple[str, str]]:
        """What the tables leave out."""
        return [("--json", "says of each mechanism whom its promise trusts, and what a release costs to compute")]

    def tables(self) -> list[ResultTable]:
        """A table for each way to release."""
        kinds = {
            "one symbol at a time (seqveil release --epsilon E); ε is that of a release": registry.instantaneous(),
            "batches of W symbols (--batch W); ε is that of a batch": registry.batched(),
            "declared secrets (--secret …); ε is that of a secret, for its whole window": [registry.guarded.name],
            "blocks of W events, each answered at once (--block W); ε is that of a block": [registry.in_blocks.name],
        }
        return [ResultTable(kind, HEADINGS, [_row(registry.find(name)) for name in kinds[kind]]) for kind in kinds]


def mechanisms(json: o.Json = False) -> None:
    """List the mechanisms and what each promises.

    Example: seqveil mechanisms --json
    """
    if json:
        emit_json([_facts(registry.find(name)) for name in registry.names()])
    else:
        show(Registered())


def _facts(mechanism: AnyMechanism) -> dict[str, Any]:
    own = {each.name: getattr(mechanism, each.name) for each in fields(mechanism)}
    shown = {name: value for name, value in own.items() if not callable(value)}
    return shown | {"batched": isinstance(mechanism, BatchMechanism)}


def _row(m: AnyMechanism) -> tuple[str, ...]:
    ldp = f"{m.ldp:g}ε" if isfinite(m.ldp) else "none"
    return m.name, m.summary, m.guarantee, ldp, "yes" if m.sound else "NO"
