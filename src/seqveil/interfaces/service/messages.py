"""What comes over the wire, as OpenAPI describes it, and refusals (RFC 9457).

No refusal holds a value that came in: a wrong one is named by its place in the request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from seqveil.interfaces.service.answers import Value

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
        "since 1970 (its size says which), or ISO 8601 text; at most a day ahead of the service's clock."
    ),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    def __repr_args__(self) -> Any:  # raw values are in no repr
        return ()


class SymbolEvent(_Strict):
    """One symbol of a user."""

    user: UserName
    seq: Seq
    value: Value
    time: Time = None


class BatchEvent(_Strict):
    """One batch of a user; a shorter one than the policy's, as at the end of a stream, costs as much."""

    user: UserName
    seq: Seq
    values: list[Value] = Field(min_length=1)
    time: Time = None


Fingerprint = Annotated[
    str | None,
    Field(max_length=128, description="Fingerprint of the model the sender believes in; refused if it is another."),
]


class SymbolsRequest(_Strict):
    """Events released together: all of them, or none."""

    events: list[SymbolEvent] = Field(min_length=1)
    model: Fingerprint = None


class BatchesRequest(_Strict):
    """Batches released together: all of them, or none."""

    events: list[BatchEvent] = Field(min_length=1)
    model: Fingerprint = None


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
    "gone": (410, "It was taken out of the state file"),
    "too-large": (413, "The request is too large"),
    "wrong-type": (415, "The body must be JSON"),
    "too-many": (429, "Too many requests"),
    "internal": (500, "The service failed"),
    "damaged": (500, "The records of this user are damaged"),
    "busy": (503, "The service is busy"),
    "store": (503, "The state file cannot be written"),
    "tokens": (503, "The tokens cannot be read"),
    "stopping": (503, "The service is shutting down"),
    "timeout": (503, "The service was too slow"),
}
USER = "a user of 1 to 256 characters, without control characters and ends of lines"
_PLAIN = {
    "missing": "this field",
    "extra_forbidden": "no other fields",
    "json_invalid": "JSON in UTF-8, without numbers of thousands of digits and nested less than some hundred deep",
    "string_pattern_mismatch": USER,
    "too_short": "a list that is not empty",
    "string_unicode": "text of whole characters",
    "string_type": "text",
    "list_type": "a list",
    "model_type": "an object",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
}
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

    def answer(self) -> Response:
        """The refusal as a response, in the form of RFC 9457."""
        status, title = REASONS[self.reason]
        content = {"type": TYPE + self.reason, "title": title, "status": status, "detail": self.detail} | self.members
        return Response(json.dumps(content), status, self.headers, MEDIA_TYPE)


def wrong(*found: tuple[Sequence[str | int], str]) -> Problem:
    """The refusal of fields: the place of each, and what was expected there."""
    errors: list[dict[str, Any]] = []
    for place, expected in found:
        one = {"where": list(place), "expected": expected}
        if one not in errors:  # a time that is none is neither of two kinds
            errors.append(one)
    return Problem("malformed", "expected the documented form; see errors for where it differs", errors=errors[:10])


def malformed(error: ValidationError) -> Problem:
    """The refusal of a body that does not fit its schema: where and what was expected, never what came."""
    found = []
    for each in error.errors(include_url=False, include_context=False, include_input=False):
        place = where(each["loc"])
        found.append((place, _expected(each["type"], each["msg"], place)))
    return wrong(*found)


def where(place: Sequence[Any]) -> list[str | int]:
    """The place of a mistake, without names that the caller made up.

    >>> where(("events", 3, "zq-secret"))
    ['events', 3, '?']
    """
    return [part if isinstance(part, int) or part in _FIELDS else "?" for part in place if part not in _UNIONS]


_UNIONS = {"float", "constrained-str"}  # which of two kinds of time was tried


def _expected(kind: str, message: str, place: Sequence[str | int]) -> str:
    """What was expected there, in words that hold nothing of what came.

    >>> _expected("string_too_long", "String should have at most 256 characters", ["user"])
    'text of at most 256 characters'
    """
    if "time" in place:
        return "a time as a number or as ISO 8601 text"
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in ("string_too_short", "string_too_long"):
        return message.replace("String should have", "text of")
    return message.removeprefix("Input should ").removeprefix("be ") if message.startswith("Input should") else kind
