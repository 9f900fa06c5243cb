"""Everything the service refuses, by a short name: one status code, one title, one kind of answer (RFC 9457).

No answer holds a value that came in: a wrong one is named by its place in the request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import Request

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:problem:seqveil:"

REASONS: dict[str, tuple[int, str]] = {
    "malformed": (400, "The request is not as documented"),
    "unauthorised": (401, "A valid token is needed"),
    "forbidden": (403, "The token does not allow this"),
    "not-found": (404, "There is no such thing"),
    "wrong-method": (405, "This address takes another method"),
    "too-slow": (408, "The request took too long to come"),
    "budget-spent": (409, "The privacy budget is spent"),
    "out-of-order": (409, "Events are missing before this one"),
    "time-went-back": (409, "The times of a user's events went back"),
    "wrong-model": (409, "The service releases with another model"),
    "too-large": (413, "The request is too large"),
    "wrong-type": (415, "The body must be JSON"),
    "too-many": (429, "Too many requests"),
    "internal": (500, "The service failed"),
    "busy": (503, "The service is busy"),
    "store": (503, "The state file cannot be written"),
    "stopping": (503, "The service is shutting down"),
    "timeout": (503, "The service was too slow"),
}
_BY_STATUS = {404: "not-found", 405: "wrong-method", 400: "malformed", 413: "too-large"}
_TAGS = {"body", "query", "path", "header", "one", "many"}
_FIELDS = {"events", "user", "seq", "value", "values", "time", "model", "since", "limit"}


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
        status, title = REASONS[self.reason]
        content = {"type": TYPE + self.reason, "title": title, "status": status, "detail": self.detail} | self.members
        return Response(json.dumps(content), status, self.headers, MEDIA_TYPE)


async def refused(request: Request, error: Exception) -> Response:
    """The answer to a refusal of ours or of the framework's."""
    if not isinstance(error, Problem):
        status = getattr(error, "status_code", 500)
        reason = _BY_STATUS.get(status, "malformed" if 400 <= status < 500 else "internal")
        headers: Mapping[str, str] = getattr(error, "headers", None) or {}
        error = Problem(reason, REASONS[reason][1])
        error.headers = dict(headers)
    note(request.scope, error.reason)
    return error.answer()


async def invalid(request: Request, error: Exception) -> Response:
    """The answer to a request that does not fit its schema: where and what was expected, never what came."""
    assert isinstance(error, RequestValidationError)
    found = [
        {"where": where(each["loc"]), "expected": _expected(each["type"], each["msg"])} for each in error.errors()[:10]
    ]
    note(request.scope, "malformed")
    detail = "expected the documented form; see errors for where it differs"
    return Problem("malformed", detail, errors=found).answer()


def where(place: Sequence[Any]) -> list[str | int]:
    """The place of a mistake, without names that the caller made up.

    >>> where(("body", "many", "events", 3, "zq-secret"))
    ['events', 3, '?']
    """
    inner = [part for part in place if part not in _TAGS]
    return [part if isinstance(part, int) or part in _FIELDS else "?" for part in inner]


def _expected(kind: str, message: str) -> str:
    if kind == "missing":
        return "this field"
    if kind == "extra_forbidden":
        return "no other fields"
    if kind == "json_invalid":
        return "JSON"
    return message.removeprefix("Input should ").removeprefix("be ") if message.startswith("Input should") else kind


def note(scope: Any, reason: str) -> None:
    """Leave the reason for the log line and the metrics of this request."""
    facts = scope.get("seqveil")
    if facts is not None:
        facts.reason = reason
