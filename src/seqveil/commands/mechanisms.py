"""`seqveil mechanisms`: the table a reader chooses from."""

from __future__ import annotations

from dataclasses import fields
from math import isfinite

from seqveil.commands import options as o


def mechanisms(json: o.Json = False) -> None:
    """List the mechanisms and what each promises.

    Example: seqveil mechanisms --json
    """
    from seqveil import mechanisms as registry
    from seqveil.commands.output import emit_json, table

    known = [registry.get(name) for name in registry.names()]
    if json:
        named = [f.name for f in fields(registry.Mechanism) if f.name != "build"]
        emit_json([{name: getattr(each, name) for name in named} for each in known])
        return
    headings = ("name", "what it does", "guarantee", "trusts", "LDP", "cost", "sound")
    rows = [
        (
            m.name,
            m.summary,
            m.guarantee,
            m.trusts,
            f"{m.ldp:g}ε" if isfinite(m.ldp) else "none",
            m.cost,
            "yes" if m.sound else "NO",
        )
        for m in known
    ]
    table(headings, rows)
