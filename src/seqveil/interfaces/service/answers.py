"""Releases and accounts as the JSON of an answer.

Most of what the service does with an event, beside drawing it, is to say so: releases are written as text at once,
without a record in between, because a request of a thousand of them is answered on the thread that everyone shares.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from seqveil.engine.releases import EARLIER, Account, Releases
from seqveil.engine.store import GAP, Stored
from seqveil.engine.stream import NOTHING, REFUSED, WITHHELD
from seqveil.interfaces.events import Wording, finite_or_text

_STATUS = {NOTHING: "withheld", WITHHELD: "withheld", GAP: "given-up", EARLIER: "erased"}
_TRUTH = {False: "false", True: "true"}


@lru_cache(maxsize=4096)
def _rate(epsilon: float) -> str:
    """The ε of a release; null where there is none, because nothing is promised about the whole sequence."""
    return repr(epsilon) if math.isfinite(epsilon) else "null"


def _status(code: int) -> str:
    return "released" if code >= 0 else _STATUS[code]


def rows_of(users: Sequence[str], made: Releases, wording: Wording) -> str:
    """What was released, event by event, as a list in JSON; those refused are left out."""
    columns = [column.tolist() for column in (made.seqs, made.codes, made.epsilons, made.replayed)]
    said = _values(made, wording) if made.sent is None else _batches(made, wording)
    rows = [
        f'{{"user": {quoted(user)}, "seq": {seq}, "status": "{_status(code)}", {value}, "epsilon": {_rate(epsilon)}, '
        f'"replayed": {_TRUTH[replayed]}}}'
        for user, value, seq, code, epsilon, replayed in zip(users, said, *columns, strict=True)
        if code != REFUSED
    ]
    return f"[{', '.join(rows)}]"


def _values(made: Releases, wording: Wording) -> list[str]:
    texts = wording.texts
    return [f'"value": {texts[code] if code >= 0 else "null"}' for code in made.codes.tolist()]


def _batches(made: Releases, wording: Wording) -> list[str]:
    found = []
    for path, codes in zip(made.paths, made.symbols, strict=True):
        found.append(_batch(path, codes.tolist(), wording))
    return found


def _batch(path: Sequence[int] | None, codes: Sequence[int], wording: Wording) -> str:
    if path is None:
        return '"values": null, "path": null'
    values = ", ".join([wording.texts[code] for code in codes])
    return f'"values": [{values}], "path": {json.dumps(path)}'


def user_of(
    account: Account, stored: Sequence[Stored], since: int, limit: int, wording: Wording, batches: bool
) -> bytes:
    """A user's account and releases for a receiver, at most `limit` of them; `stored` may have one more."""
    shown = stored[:limit]
    rows = _batches_disclosed(shown, wording) if batches else _symbols_disclosed(shown, wording)
    following, more = shown[-1].seq + 1 if shown else since, _TRUTH[len(stored) > limit]
    releases = f'"releases": [{", ".join(rows)}], "next": {following}, "more": {more}'
    return f'{{"account": {_account(account)}, {releases}}}'.encode()


def _symbols_disclosed(shown: Sequence[Stored], wording: Wording) -> list[str]:
    """Single symbols: most of a row is one of a few texts, so each of those is made once."""
    known: dict[tuple[int, float], str] = {}
    rows = []
    for each in shown:
        kind = (each.code, each.epsilon)
        said = known.get(kind)
        if said is None:
            value = wording.texts[each.code] if each.released else "null"
            said = f'"status": "{_status(each.code)}", "value": {value}, "epsilon": {_rate(each.epsilon)}'
            known[kind] = said
        rows.append(f'{{"seq": {each.seq}, {said}, "time": {_moment(each.time)}}}')
    return rows


def _batches_disclosed(shown: Sequence[Stored], wording: Wording) -> list[str]:
    rows = []
    for each in shown:
        said = f'{_batch(each.path if each.released else None, each.codes, wording)}, "events": {each.events}'
        rows.append(
            f'{{"seq": {each.seq}, "status": "{_status(each.code)}", {said}, "epsilon": {_rate(each.epsilon)}, '
            f'"time": {_moment(each.time)}}}'
        )
    return rows


def _moment(time: float | None) -> str:
    return "null" if time is None or math.isnan(time) else repr(time)


def _account(account: Account) -> str:
    figures = {
        name: finite_or_text(getattr(account, name)) for name in ("leakage", "most", "least", "epsilon_spent", "ldp")
    }
    counts = {"user": account.user, "events": account.events, "releases": account.releases}
    disclosed: dict[str, Any] = counts | figures | {"budget_left": account.budget_left, "private": account.private}
    disclosed["sentences"] = account.sentences
    disclosed |= {name: getattr(account, name) for name in ("whole_sequence", "composed") if getattr(account, name)}
    if account.secrets:
        secrets = [vars(each) for each in account.secrets]
        disclosed["secrets"] = [{name: finite_or_text(value) for name, value in each.items()} for each in secrets]
    return json.dumps(disclosed)
