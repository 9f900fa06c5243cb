"""What goes over the wire: requests and answers as OpenAPI describes them, releases in JSON, and refusals (RFC 9457).

No answer holds a value that came in: a wrong one is named by its place in the request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, WithJsonSchema
from starlette.exceptions import HTTPException
from starlette.requests import Request

from seqveil.engine.coded import Releases

MOST = 2**53 - 1  # whole numbers that every JSON reader keeps
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"  # no control characters, and no ends of lines

UserName = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=256, pattern=PRINTABLE)]
Seq = Annotated[int, Field(strict=True, ge=0, le=MOST, description="Counts the user's events from 0, without gaps.")]
Moment = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Written = Annotated[
    str, StringConstraints(strict=True, max_length=40, pattern=r"^\d{4}-\d{2}-\d{2}([T ][0-9:.,+Zz-]+)?$")
]
Time = Annotated[
    Moment | Written | None,
    Field(
        description="Where the budget counts in seconds: a number of seconds, one of milli-, micro- or nanoseconds "
        "since 1970 (disclosed by its size), or ISO 8601 text; at most a day ahead of the service's clock."
    ),
]
Scalar = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "null")]}
ValueSchema = {"anyOf": [*Scalar["anyOf"], {"type": "array", "items": Scalar}]}
Value = Annotated[Any, WithJsonSchema(ValueSchema)]
Fingerprint = Annotated[
    str | None,
    Field(max_length=128, description="Fingerprint of the model the sender believes in; refused if it is another."),
]
Bound = Annotated[float | Literal["inf"], Field(description='In nats; "inf" where a mechanism has no bound.')]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SymbolEvent(_Strict):
    """One symbol of a user."""

    user: UserName
    seq: Seq
    value: Value = Field(repr=False)
    time: Time = None


class BatchEvent(_Strict):
    """One batch of a user; a shorter one than the setting's, as at the end of a stream, costs as much."""

    user: UserName
    seq: Seq
    values: list[Value] = Field(min_length=1, repr=False)
    time: Time = None


class OneSymbol(SymbolEvent):
    """A single event, and the model that the sender believes is in use."""

    model: Fingerprint = None


class OneBatch(BatchEvent):
    """A single batch, and the model that the sender believes is in use."""

    model: Fingerprint = None


class ManySymbols(_Strict):
    """Events released together: all of them, or none."""

    events: list[SymbolEvent] = Field(min_length=1, repr=False)
    model: Fingerprint = None


class ManyBatches(_Strict):
    """Batches released together: all of them, or none."""

    events: list[BatchEvent] = Field(min_length=1, repr=False)
    model: Fingerprint = None


def _form(body: Any) -> str | None:
    if isinstance(body, dict):
        return "many" if "events" in body else "one"
    return None


Symbols = Annotated[
    Annotated[OneSymbol, Tag("one")] | Annotated[ManySymbols, Tag("many")],
    Discriminator(_form),
]
Batches = Annotated[
    Annotated[OneBatch, Tag("one")] | Annotated[ManyBatches, Tag("many")],
    Discriminator(_form),
]

Status = Literal["released", "withheld", "given-up", "erased"]
StatusField = Annotated[
    Status,
    Field(
        description='"withheld": the budget is spent and its policy is to stop, or nothing is said so that a declared '
        'secret is kept; "given-up": a later event came first and the service skips what is missing; '
        '"erased": it was released before, and is no longer kept.'
    ),
]


Rate = Annotated[
    float | None, Field(description="What the release used; null where nothing is promised about the whole sequence.")
]


class SymbolRelease(BaseModel):
    """What was released of one event."""

    user: str
    seq: int
    status: StatusField
    value: Value = None
    epsilon: Rate
    replayed: bool = Field(description="Whether this release had been made before.")


class BatchRelease(BaseModel):
    """What was released of one batch."""

    user: str
    seq: int
    status: StatusField
    values: list[Value] | None
    path: list[int] | None = Field(description="What is published; the values follow from it.")
    epsilon: Rate
    replayed: bool


class SymbolReleases(BaseModel):
    """The releases in the order of the events."""

    releases: list[SymbolRelease]


class BatchReleases(BaseModel):
    """The releases in the order of the batches."""

    releases: list[BatchRelease]


class SecretAnswer(BaseModel):
    """What a user's releases disclosed about a declared secret: the logarithm of the factor by which its odds moved."""

    name: str
    sentence: str
    epsilon: float
    log_odds: Bound = Field(description="About the window that holds the latest event.")
    lowest: float | Literal["-inf"]
    highest: Bound
    prior: Any
    posterior: Any
    worst: Bound = Field(description="The most that the log odds moved in any window at any time.")


class AccountAnswer(BaseModel):
    """Where a user stands; leakage in nats, rounded up."""

    user: str
    events: int = Field(description="How many so far, which is the sequence number that comes next.")
    releases: int
    leakage: Bound
    most: Bound
    least: float | Literal["-inf"]
    epsilon_spent: Bound
    ldp: Bound
    budget_left: float | None
    private: bool
    sentences: list[str] = Field(description="What the figures mean for the person, a sentence each.")
    whole_sequence: str = Field("", description="Says in words where nothing is promised about the whole sequence.")
    composed: str = Field("", description="The (ε, δ) total that the budget promises, and by which theorem.")
    secrets: list[SecretAnswer] = Field([], description="Of the declared secrets, in their order.")


class SecretMessage(BaseModel):
    """One release as a receiver gets it."""

    seq: int
    status: StatusField
    value: Value = None
    values: list[Value] | None = None
    path: list[int] | None = None
    events: int = 1
    epsilon: Rate
    time: float | None = None


class Page(BaseModel):
    """Releases of a user; ask again with `since` = `next`."""

    user: str
    releases: list[SecretMessage]
    next: int
    more: bool


class ModelFacts(BaseModel):
    """All that a receiver needs besides the model file."""

    fingerprint: str
    setting: dict[str, Any]
    alphabet: dict[str, Any]
    private: bool
    gaps: str
    file: str
    seqveil: str


class CopyWanted(_Strict):
    """Nothing: the service knows where copies go."""


class Copied(BaseModel):
    """A copy of the state file."""

    file: str = Field(description="Its name in the folder of --backups.")
    users: int
    releases: int = Field(description="In the users' own records; those of the latest transactions come on top.")


class ErasedUser(BaseModel):
    """A user who was taken out of the state file."""

    releases: int = Field(description="How many were taken out; 0 where the user had been erased before.")
    ledger: Literal["kept", "forgotten"] = Field(
        description='"kept": the total stays under a keyed hash of the name, so that coming back does not begin the '
        "budget anew."
    )
    sources: list[str] = Field(description="What still has the name in its own account of how far it was read.")


class Health(BaseModel):
    """The service is up."""

    status: Literal["ok"]


class ProblemDetails(BaseModel):
    """RFC 9457."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str


MEDIA_TYPE = "application/problem+json"
TYPE = "urn:problem:seqveil:"

REASONS: dict[str, tuple[int, str]] = {
    "malformed": (400, "The request is not as documented"),
    "unauthorised": (401, "A valid token is needed"),
    "forbidden": (403, "The token does not allow this"),
    "not-found": (404, "There is no such thing"),
    "wrong-method": (405, "This address takes another method"),
    "too-slow": (408, "The request took too long to come"),
    "out-of-order": (409, "Events are missing before this one"),
    "time-went-back": (409, "The times of a user's events went back"),
    "wrong-model": (409, "The service releases with another model"),
    "too-large": (413, "The request is too large"),
    "wrong-type": (415, "The body must be JSON"),
    "too-many": (429, "Too many requests"),
    "internal": (500, "The service failed"),
    "gone": (410, "It was taken out of the state file"),
    "damaged": (500, "The records of this user are damaged"),
    "busy": (503, "The service is busy"),
    "store": (503, "The state file cannot be written"),
    "tokens": (503, "The tokens cannot be read"),
    "stopping": (503, "The service is shutting down"),
    "timeout": (503, "The service was too slow"),
}
_BY_STATUS = {404: "not-found", 405: "wrong-method", 400: "malformed", 413: "too-large"}
_TAGS = {"body", "query", "path", "header", "one", "many"}
USER = "a user without control characters and ends of lines"
_TIME = "a time as a number or as ISO 8601 text"
_BODY = "a body, of one event or with a list of events"
_PLAIN = {
    "missing": "this field",
    "extra_forbidden": "no other fields",
    "json_invalid": "JSON",
    "string_pattern_mismatch": USER,
    "too_short": "a list that is not empty",
    "union_tag_not_found": "an object, of one event or with a list of events",
    "string_unicode": "text of whole characters",
    "string_type": "text",
    "list_type": "a list",
    "model_attributes_type": "an object",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
}
_DIFFERS = "expected the documented form; see errors for where it differs"
UNREADABLE = "expected JSON in UTF-8, without numbers of thousands of digits and nested less than some hundred deep"
_FIELDS = {"events", "user", "seq", "value", "values", "time", "model", "since", "limit", "forget_ledger"}


class Problem(HTTPException):
    """A refusal. `reason` is a key of REASONS; `members` go into the answer beside the standard ones."""

    def __init__(self, reason: str, detail: str, *, wait: float | None = None, **members: Any) -> None:
        status, _ = REASONS[reason]
        headers = {"Retry-After": str(max(1, math.ceil(wait)))} if wait is not None else {}
        if status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="seqveil"'
        super().__init__(status, detail, headers)
        self.reason, self.members = reason, members
        self.made: Releases | None = None  # what stands of a request that was released in part

    def answer(self) -> Response:
        """The refusal as a response, in the form of RFC 9457."""
        status, title = REASONS[self.reason]
        content = {"type": TYPE + self.reason, "title": title, "status": status, "detail": self.detail} | self.members
        return Response(json.dumps(content), status, self.headers, MEDIA_TYPE)


async def refused(request: Request, error: Exception) -> Response:
    """The answer to a refusal of ours or of the framework's."""
    if not isinstance(error, Problem):
        status = getattr(error, "status_code", 500)
        reason = _BY_STATUS.get(status, "malformed" if 400 <= status < 500 else "internal")
        headers: Mapping[str, str] = getattr(error, "headers", None) or {}
        error = Problem(reason, UNREADABLE if status == 400 else REASONS[reason][1])
        error.headers = dict(headers)
    note(request.scope, error.reason)
    return error.answer()


async def invalid(request: Request, error: Exception) -> Response:
    """The answer to a request that does not fit its schema: where and what was expected, never what came."""
    assert isinstance(error, RequestValidationError)
    found: list[dict[str, Any]] = []
    for each in error.errors():
        place = where(each["loc"])
        one = {"where": place, "expected": _expected(each["type"], each["msg"], place)}
        if one not in found:  # a time that is none is neither of two kinds
            found.append(one)
    note(request.scope, "malformed")
    return Problem("malformed", _DIFFERS, errors=found[:10]).answer()


def wrong_field(name: str, expected: str) -> Problem:
    """The refusal of one field."""
    return Problem("malformed", _DIFFERS, errors=[{"where": [name], "expected": expected}])


def where(place: Sequence[Any]) -> list[str | int]:
    """The place of a mistake, without names that the caller made up.

    >>> where(("body", "many", "events", 3, "zq-secret"))
    ['events', 3, '?']
    """
    inner = [part for part in place if part not in _TAGS]
    return [part if isinstance(part, int) or part in _FIELDS else "?" for part in inner]


def _expected(kind: str, message: str, place: Sequence[str | int]) -> str:
    """What was expected there, in words that hold nothing of what came.

    >>> _expected("string_too_long", "String should have at most 256 characters", ["user"])
    'text of at most 256 characters'
    >>> _expected("missing", "", ["seq"]), _expected("missing", "", [])
    ('this field', 'a body, of one event or with a list of events')
    """
    if "time" in place:
        return _TIME
    if kind == "missing" and not place:
        return _BODY
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in ("string_too_short", "string_too_long"):
        return message.replace("String should have", "text of")
    return message.removeprefix("Input should ").removeprefix("be ") if message.startswith("Input should") else kind


def note(scope: Any, reason: str) -> None:
    """Leave the reason for the log line and the metrics of this request."""
    facts = scope.get("seqveil")
    if facts is not None:
        facts.reason = reason
