"""What a request says and what it is answered, as `openapi.json` describes it; refusals are those of RFC 9457.

No answer holds a value that came in: what is wrong is named by its place in the request.
"""

from __future__ import annotations

import asyncio
import json
import math
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from seqveil.engine.policy import Terms
from seqveil.engine.store import (
    GAP,
    Account,
    Damaged,
    Erased,
    NoSuchUser,
    Releases,
    Stored,
    StoreError,
)
from seqveil.engine.stream import NOTHING, REFUSED, WITHHELD
from seqveil.interfaces.events import Wording, from_json
from seqveil.interfaces.logs import log
from seqveil.interfaces.service.tokens import NAME

REASONS: dict[str, tuple[int, str]] = {
    "malformed": (400, "The request is not as documented"),
    "unauthorised": (401, "A valid token is needed"),
    "forbidden": (403, "The token does not allow this"),
    "not-found": (404, "There is no such thing"),
    "wrong-method": (405, "This address takes another method"),
    "too-slow": (408, "The request took too long to come"),
    "out-of-order": (409, "Events are missing before this one"),
    "time-went-back": (409, "The times of a user's events went back"),
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
MOST = 2**53 - 1  # whole numbers that every JSON reader keeps
USER = "a user of 1 to 256 characters, without control characters and ends of lines"
JSON = "JSON in UTF-8, every field once, not nested deeply and without numbers of thousands of digits"
TIMES = (int, float, str, type(None))  # read where the policy counts by them
_STATUS = {NOTHING: "withheld", WITHHELD: "withheld", GAP: "given-up"}


class Problem(Exception):
    """A refusal. `reason` is a key of REASONS; `wait` is in seconds; `members` stand beside the standard ones."""

    def __init__(self, reason: str, detail: str, *, wait: int | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.reason, self._wait, self._members = reason, wait, members

    @classmethod
    def malformed(cls, expected: str, place: int | None = None) -> Problem:
        """What was expected of a request, or of the event at this place of it."""
        if place is None:
            return cls("malformed", f"expected {expected}")
        return cls("malformed", f"event {place}: expected {expected}", position=place)

    def answer(self) -> Response:
        """The refusal as a response."""
        status, title = REASONS[self.reason]
        content = {"type": f"urn:problem:seqveil:{self.reason}", "title": title, "status": status, "detail": str(self)}
        headers = {} if self._wait is None else {"Retry-After": str(self._wait)}
        if status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="seqveil"'
        return Response(json.dumps(content | self._members), status, headers, "application/problem+json")


def problem_of(error: Exception) -> Problem:
    """The refusal for whatever went wrong. An answer names no user and no file; of what nobody foresaw the log has the
    place, and no message."""
    if isinstance(error, Problem):
        return error
    if not isinstance(error, StoreError):
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        log("internal error", "error", error=type(error).__name__, where=f"{frame.f_globals.get('__name__')}:{line}")
        return Problem("internal", "nothing is known to be released; send the same events again")
    if isinstance(error, NoSuchUser):
        return Problem("not-found", "nothing was released of this user")
    if isinstance(error, Erased):
        return Problem("gone", "this user was erased, so nothing more can be released of it")
    log("the store refused", "error", detail=str(error))
    if isinstance(error, Damaged):
        return Problem("damaged", "the records of this user are damaged; whoever runs the service must see to it")
    return Problem("store", "nothing is known to be released; the log of the service says why", wait=5)


async def body_of(request: Request, most: int, seconds: float) -> bytes:
    """The body of a request, if it is JSON and ends in time and size."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem("wrong-type", "expected the header Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem("wrong-type", "expected a body that is not compressed, without the header Content-Encoding")
    if int(request.headers.get("content-length", "0")) > most:  # which the server keeps it to
        raise Problem("too-large", f"the body is larger than {most} bytes; send fewer events at once")
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise Problem("too-slow", f"the body had not come after {seconds:g} seconds; send it again") from None


class SentEvents(NamedTuple):
    """The columns of a request; no repr of theirs is ever written."""

    users: list[str]
    seqs: list[int]
    values: list[Any]
    times: list[float | str | None]


def sent_events(content: bytes, batch: int | None) -> SentEvents:
    """The events in a body; `batch` is how many values an event has at most, where releases are batches."""
    try:
        body = from_json(content)
    except ValueError:
        raise Problem.malformed(JSON) from None
    if type(body) is not dict or body.keys() != {"events"}:
        raise Problem.malformed("an object with events alone")
    events = body["events"]
    if type(events) is not list or not events:
        raise Problem.malformed("events, a list that is not empty")
    for place, event in enumerate(events):
        expected = _expected(event, batch)
        if expected is not None:
            raise Problem.malformed(expected, place)
    return SentEvents(*([event.get(name) for event in events] for name in ("user", "seq", "value", "time")))


def _expected(event: Any, batch: int | None) -> str | None:
    """What was expected of an event, where it is not as documented."""
    if type(event) is not dict:
        return "an object"
    if not {"user", "seq", "value"} <= event.keys() <= {"user", "seq", "value", "time"}:
        return "user, seq and value, time where the policy counts by it, and nothing else"
    if not is_user(event["user"]):
        return f"user to be {USER}"
    if type(event["seq"]) is not int or not 0 <= event["seq"] <= MOST:
        return f"seq to be a whole number from 0 to {MOST}"
    if batch is not None and (type(event["value"]) is not list or not 1 <= len(event["value"]) <= batch):
        return f"value to be a list of 1 to {batch} values"
    if type(event.get("time")) not in TIMES:
        return "time to be a number or ISO 8601 text"
    return None


def is_user(value: object) -> bool:
    """Whether this can be a user."""
    return type(value) is str and NAME.fullmatch(value) is not None


def released(users: Sequence[str], made: Releases, wording: Wording) -> Response:
    """What was released, event by event; those refused are left out."""
    rows, columns = [], [column.tolist() for column in (made.seqs, made.codes, made.epsilons, made.replayed)]
    for k, (user, seq, code, epsilon, replayed) in enumerate(zip(users, *columns, strict=False)):
        if code != REFUSED:
            said = {"value": wording.shown[code] if code >= 0 else None}
            if made.sent is not None:
                path, codes = made.sent[k] or (None, ())
                said = {"values": None if path is None else [wording.shown[each] for each in codes], "path": path}
            status = "released" if code >= 0 else _STATUS[code]
            row = {"user": user, "seq": seq, "status": status, **said}
            rows.append(row | {"epsilon": epsilon if math.isfinite(epsilon) else None, "replayed": replayed})
    return answer({"releases": rows})


def user_of(
    account: Account, stored: Sequence[Stored], since: int, limit: int, wording: Wording, terms: Terms
) -> Response:
    """A user's account and releases for a receiver, at most `limit` of them; `stored` may have one more. The terms are
    the store's: without a key they promise less than the policy asks for."""
    rows = [wording.stored(each, terms) for each in stored[:limit]]
    following = rows[-1]["seq"] + 1 if rows else since
    secrets = [vars(each) for each in account.secrets]
    disclosed = _plain(vars(account) | {"sentences": account.sentences, "secrets": secrets})
    page = {"releases": rows, "next": following, "more": len(stored) > limit}
    return answer({"account": disclosed, "terms": _plain(terms.to_dict()), **page})


def answer(content: Any) -> Response:
    """An answer in JSON, which has no infinite numbers."""
    return Response(json.dumps(content, allow_nan=False, separators=(",", ":")), media_type="application/json")


def _plain(value: Any) -> Any:
    """A public figure, or many of them, as JSON has them; infinite ones as text."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
