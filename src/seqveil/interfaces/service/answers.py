"""What the store says, as JSON: released values in the alphabet's own words, ledgers, pages of releases."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from seqveil.interfaces.service.writer import Outcome
from seqveil.release.stream import NOTHING
from seqveil.release.streams import GAP, Standing, Stored

_STATUS = {NOTHING: "withheld", GAP: "given-up"}


def releases_of(users: Sequence[str], seqs: Sequence[int], made: Outcome, shown: list[Any]) -> bytes:
    """The answer to a request to release, in the order of its events."""
    return json.dumps({"releases": rows_of(users, seqs, made, shown)}).encode()


def rows_of(users: Sequence[str], seqs: Sequence[int], made: Outcome, shown: list[Any]) -> list[dict[str, Any]]:
    """What was released, event by event; those refused are left out."""
    rows: list[dict[str, Any]] = []
    told = zip(users, seqs, made.epsilons, made.replayed, strict=True)
    for k, (user, seq, epsilon, replayed) in enumerate(told):
        if made.refused[k]:
            continue
        if made.codes:
            code = made.codes[k]
            said = {"value": shown[code] if code >= 0 else None}
        else:
            path = made.paths[k]
            code = NOTHING if path is None else 0
            said = {"values": _words(made.words[k], shown) if path is not None else None, "path": path}
        status = "released" if code >= 0 else _STATUS[code]
        rows.append({"user": user, "seq": seq, "status": status, **said, "epsilon": epsilon, "replayed": replayed})
    return rows


def page_of(user: str, stored: Sequence[Stored], since: int, limit: int, shown: list[Any], batches: bool) -> bytes:
    """Releases of a user for a receiver, at most `limit` of them."""
    rows = []
    for each in stored[:limit]:
        row: dict[str, Any] = {"seq": each.seq, "status": "released" if each.released else _STATUS[each.code]}
        words = _words(each.codes, shown) if each.released else None
        if batches:
            row |= {"values": words, "path": each.path, "events": each.events}
        else:
            row["value"] = words[0] if words else None
        time = None if each.time is None or math.isnan(each.time) else each.time
        rows.append(row | {"epsilon": each.epsilon, "time": time})
    following = rows[-1]["seq"] + 1 if rows else since
    return json.dumps({"user": user, "releases": rows, "next": following, "more": len(stored) > limit}).encode()


def account_of(account: Standing) -> bytes:
    """A user's ledger."""
    figures = {name: _bound(getattr(account, name)) for name in ("leakage", "most", "least", "by_composition", "ldp")}
    counts = {"user": account.user, "events": account.events, "releases": account.releases}
    return json.dumps(counts | figures | {"budget_left": account.budget_left, "private": account.private}).encode()


def _words(codes: Sequence[int], shown: list[Any]) -> list[Any]:
    return [shown[code] for code in codes]


def _bound(number: float) -> float | str:
    """JSON has no infinity.

    >>> _bound(1.5), _bound(float("-inf"))
    (1.5, '-inf')
    """
    return number if math.isfinite(number) else str(number)
