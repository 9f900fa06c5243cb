"""`seqveil mechanisms`: the table a reader chooses from."""

from __future__ import annotations

from dataclasses import fields
from math import isfinite
from typing import TYPE_CHECKING

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, table

if TYPE_CHECKING:
    from seqveil.core.mechanisms import BatchMechanism, Mechanism


def mechanisms(json: o.Json = False) -> None:
    """List the mechanisms and what each promises.

    Example: seqveil mechanisms --json
    """
    from seqveil.core import mechanisms as registry

    if json:
        emit_json([_facts(registry.find(name)) for name in registry.names()])
        return
    headings = ("name", "what it does", "guarantee", "trusts", "LDP", "cost", "sound")
    print("one symbol at a time (seqveil release)")
    table(headings, [_row(registry.find(name)) for name in registry.instantaneous()])
    print("batches of W symbols (seqveil release --batch W); ε is that of a batch")
    table(headings, [_row(registry.find(name)) for name in registry.batched()])
    print("declared secrets (seqveil release --secret …); ε is that of a secret, for the whole stream")
    table(headings, [_row(registry.find(name)) for name in registry.for_secrets()])


def _facts(mechanism: Mechanism | BatchMechanism) -> dict[str, object]:
    plain = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
    shown: dict[str, object] = {name: value for name, value in plain.items() if not callable(value)}
    return shown | {"batched": hasattr(mechanism, "draw")}


def _row(m: Mechanism | BatchMechanism) -> tuple[str, ...]:
    ldp = f"{m.ldp:g}ε" if isfinite(m.ldp) else "none"
    return m.name, m.summary, m.guarantee, m.trusts, ldp, m.cost, "yes" if m.sound else "NO"
