"""Releases and accounts as answers: the form of each, which OpenAPI shows, and how it is filled.

A request of a thousand releases is answered on the thread that everyone shares: rows are plain dictionaries, written as
JSON by compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import Field, WithJsonSchema
from pydantic_core import to_json
from typing_extensions import TypedDict

from seqveil.engine.releases import EARLIER, Account, Releases
from seqveil.engine.store import GAP, Stored
from seqveil.engine.stream import NOTHING, REFUSED, WITHHELD
from seqveil.interfaces.events import Wording, finite_or_text

_STATUS = {NOTHING: "withheld", WITHHELD: "withheld", GAP: "given-up", EARLIER: "erased"}
Scalar = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "null")]}
Value = Annotated[Any, WithJsonSchema({"anyOf": [*Scalar["anyOf"], {"type": "array", "items": Scalar}]})]
Bound = Annotated[float | Literal["inf"], Field(description='In nats; "inf" where a mechanism has no bound.')]
Least = float | Literal["-inf"]


class ReleaseRow(TypedDict):
    """What was released of one event, as its sender and its receivers see it."""

    user: NotRequired[str]
    seq: int
    status: Annotated[
        Literal["released", "withheld", "given-up", "erased"],
        Field(
            description='"withheld": the budget is spent and its rule is to stop, or a declared secret needs it; '
            '"given-up": a later event came first and the service skips what is missing; '
            '"erased": it was released before, and is no longer kept.'
        ),
    ]
    value: NotRequired[Value]
    values: NotRequired[Annotated[list[Value] | None, Field(description="Of a batch.")]]
    path: NotRequired[Annotated[list[int] | None, Field(description="Of a batch: what is published.")]]
    epsilon: Annotated[
        float | None, Field(description="Null where nothing is promised about the whole sequence, or it was erased.")
    ]
    replayed: NotRequired[Annotated[bool, Field(description="Whether this release had been made before.")]]
    events: NotRequired[int]
    time: NotRequired[float | None]


class ReleasesAnswer(TypedDict):
    """The releases in the order of the events."""

    releases: list[ReleaseRow]


class SecretRow(TypedDict):
    """What a user's releases disclosed about a declared secret: the logarithm of the factor by which its odds moved."""

    name: str
    sentence: str
    epsilon: float
    log_odds: Annotated[Bound, Field(description="About the window that holds the latest event.")]
    lowest: Least
    highest: Bound
    prior: Any
    posterior: Any
    worst: Annotated[Bound, Field(description="The most that the log odds moved in any window at any time.")]


class AccountRow(TypedDict):
    """What a user's releases have disclosed; leakage in nats, rounded up."""

    user: str
    events: Annotated[int, Field(description="How many so far, which is the sequence number that comes next.")]
    releases: int
    leakage: Bound
    most: Bound
    least: Least
    epsilon_spent: Bound
    ldp: Bound
    budget_left: float | None
    private: bool
    sentences: Annotated[list[str], Field(description="What the figures mean for the person, a sentence each.")]
    whole_sequence: Annotated[str, Field(description="Says so where nothing is promised about the whole sequence.")]
    composed: Annotated[str, Field(description="The (ε, δ) total that the budget promises, and by which theorem.")]
    rules_out: Annotated[bool, Field(description="Whether the model calls something impossible.")]
    secrets: Annotated[list[SecretRow], Field(description="Of the declared secrets, in their order.")]


class UserAnswer(TypedDict):
    """A user's account and releases; for more of these ask again with `since` = `next`."""

    account: AccountRow
    releases: list[ReleaseRow]
    next: int
    more: bool


class ModelAnswer(TypedDict):
    """All that a receiver needs."""

    fingerprint: str
    setting: dict[str, Any]
    private: bool
    gaps: str
    seqveil: str
    file: Annotated[str, Field(description="The model file in base64.")]


class ErasedAnswer(TypedDict):
    """A user who was taken out of the state file."""

    releases: Annotated[int, Field(description="How many were taken out; 0 where the user had been erased before.")]
    ledger: Annotated[
        Literal["kept", "forgotten"],
        Field(description='"kept": the total stays under a keyed hash of the name, and the budget goes on with it.'),
    ]
    sources: Annotated[list[str], Field(description="What still has the name in its account of how far it was read.")]


class Health(TypedDict):
    """The service is up."""

    status: Literal["ok"]


def json_of(answer: Any) -> bytes:
    """An answer as JSON; an infinite ε is null."""
    return to_json(answer, inf_nan_mode="null")


def released(users: Sequence[str], made: Releases, wording: Wording) -> bytes:
    """What was released, event by event; those refused are left out."""
    columns = [column.tolist() for column in (made.seqs, made.codes, made.epsilons, made.replayed)]
    shown = _batches(made, wording) if made.sent is not None else _values(made, wording)
    rows = [
        {"user": user, "seq": seq, "status": _status(code)} | value | {"epsilon": epsilon, "replayed": replayed}
        for user, value, seq, code, epsilon, replayed in zip(users, shown, *columns, strict=True)
        if code != REFUSED
    ]
    return json_of({"releases": rows})


def _status(code: int) -> str:
    return "released" if code >= 0 else _STATUS[code]


def _values(made: Releases, wording: Wording) -> list[dict[str, Any]]:
    return [{"value": wording.shown[code] if code >= 0 else None} for code in made.codes.tolist()]


def _batches(made: Releases, wording: Wording) -> list[dict[str, Any]]:
    return [_batch(path, codes.tolist(), wording) for path, codes in zip(made.paths, made.symbols, strict=True)]


def _batch(path: Sequence[int] | None, codes: Sequence[int], wording: Wording) -> dict[str, Any]:
    return {"values": None if path is None else [wording.shown[code] for code in codes], "path": path}


def user_of(
    account: Account, stored: Sequence[Stored], since: int, limit: int, wording: Wording, batches: bool
) -> bytes:
    """A user's account and releases for a receiver, at most `limit` of them; `stored` may have one more."""
    shown, rows = stored[:limit], []
    for each in shown:
        if batches:
            value = _batch(each.path if each.released else None, each.codes, wording) | {"events": each.events}
        else:
            value = {"value": wording.shown[each.code] if each.released else None}
        row = {"seq": each.seq, "status": _status(each.code)} | value
        rows.append(row | {"epsilon": each.epsilon, "time": each.time})
    following = shown[-1].seq + 1 if shown else since
    answer = {"account": _account(account), "releases": rows, "next": following, "more": len(stored) > limit}
    return json_of(answer)


def _account(account: Account) -> dict[str, Any]:
    figures = {name: finite_or_text(value) for name, value in vars(account).items()}
    secrets = [{name: _plain(value) for name, value in vars(each).items()} for each in account.secrets]
    return figures | {"sentences": account.sentences, "secrets": secrets}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else finite_or_text(value)
