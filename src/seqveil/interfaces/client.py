"""A client for the service (`seqveil serve`): standard library only, with retries that cannot release twice.

An event is a user and a sequence number, and the service releases each once: after a lost connection or a full queue
the same request is simply sent again, and gets the release that was made, if one was.
"""

from __future__ import annotations

import http.client
import ipaddress
import itertools
import json
import random
import ssl
import threading
import time as clock
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np

from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.randomness import User, user_name
from seqveil.core.times import Time
from seqveil.engine.store import Account, Release, SecretAccount

RETRIED = (429, 503)
LONGEST_WAIT = 30.0  # seconds between two attempts


class ServiceError(SeqveilError):
    """The service refused. `reason` is the short name of docs/service.md; `position` is the place among all events that
    were given, in however many requests they were sent, and `releases` what was released of them for good."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.reason = str(problem.get("type", "")).rpartition(":")[2]
        self.position: int | None = problem.get("position")
        self.next: int | None = problem.get("next")
        self.releases: list[Release] = []
        super().__init__(f"the service answered {status} {self.reason}: {problem.get('detail', 'no more is known')}")


class Unreachable(SeqveilError):
    """No answer after all attempts. Whether the events were released is not known: send the same ones again."""


class Event(NamedTuple):
    """What to release: one value of a user, or the values of one batch; `time` where the budget counts in seconds.

    A value that JSON cannot hold (NaN, a date, bytes) is sent as null, which the service hides as unknown.
    """

    user: User
    seq: int
    value: Any
    time: Time | None = None


class Client(AbstractContextManager["Client"]):
    """Releases through a service, and reads what it released.

    *Guarantee*: however often a request is retried, each event is drawn and charged once. Raw symbols are sent to the
    one URL given, over TLS or within this machine, and are in no message or repr.

    Parameters:
        token: as `seqveil serve token add` printed it.
        timeout, attempts: seconds for one attempt, and attempts before giving up.
        backoff: the first wait in seconds, doubled at each attempt and drawn at random below that.
        context: for TLS with certificates of your own.
        insecure: allows plain HTTP to another machine.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        attempts: int = 8,
        backoff: float = 0.1,
        context: ssl.SSLContext | None = None,
        insecure: bool = False,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError("expected the URL of a service, such as https://example.org:8713")
        if parts.scheme == "http" and not insecure and not is_loopback(parts.hostname):
            raise InputError("raw symbols would cross the network unprotected; use https, or pass insecure=True")
        self._base, self._attempts, self._backoff = parts.path.rstrip("/"), max(1, attempts), backoff
        self._url = f"{parts.scheme}://{parts.netloc}{self._base}"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # opened at the first request, and again whenever it was closed
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        if parts.scheme == "https":
            trusted = context or ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=trusted)
        self._lock = threading.Lock()

    def release(self, user: User, seq: int, value: Any, time: Time | None = None) -> Release:
        """Release one event."""
        return self.release_many([Event(user, seq, value, time)])[0]

    def release_many(self, events: Iterable[Event | tuple[Any, ...]], at_once: int = 1000) -> list[Release]:
        """Release events, so many in a request, or fewer where the service takes no more; the first request that is
        refused ends it.

        A refusal names places among all of these events, and has all that was released of them.
        """
        made: list[Release] = []
        given, done = iter(events), 0
        while part := [Event(*event) for event in itertools.islice(given, at_once)]:
            try:
                found = self._ask("POST", "/v1/release", _body(part))["releases"]
            except ServiceError as error:
                if error.reason != "too-large" or len(part) == 1:
                    error.releases = made
                    error.position = None if error.position is None else error.position + done
                    raise
                at_once = len(part) // 2  # nothing was drawn
                given = itertools.chain(part, given)
            else:
                made += map(_release, found)
                done += len(part)
        return made

    def account(self, user: User) -> Account:
        """What a user's releases have disclosed."""
        found = self._user(user, 0, 0)["account"]
        secrets = tuple(
            SecretAccount(**each | _figures(each, "log_odds", "lowest", "highest", "worst"))
            for each in found.pop("secrets", ())
        )
        found.pop("sentences", None)  # they follow from the figures, and an account says them itself
        return Account(**found | _figures(found, "leakage", "most", "least", "epsilon_spent", "ldp"), secrets=secrets)

    def releases(self, user: User, since: int = 0) -> Iterator[Release]:
        """What was released of a user, from sequence number `since` on."""
        more = True
        while more:
            page = self._user(user, since, 1000)
            yield from (_release(row | {"user": user_name(user)}) for row in page["releases"])
            since, more = page["next"], page["more"]

    def _user(self, user: User, since: int, limit: int) -> dict[str, Any]:
        return self._ask("GET", f"/v1/users/{quote(user_name(user), safe='')}?since={since}&limit={limit}")

    def erase(self, user: User) -> int:
        """Take a user out of the service's state file, with a token of an admin: how many releases that were."""
        return int(self._ask("DELETE", f"/v1/users/{quote(user_name(user), safe='')}")["releases"])

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            self._connection.close()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """What is answered, after as many attempts as it takes."""
        trouble, asked = SeqveilError(), 0.0
        for attempt in range(self._attempts):
            if attempt:
                # at random below a bound that doubles: clients that failed together do not come back together
                drawn = random.uniform(0.0, self._backoff * 2.0 ** (attempt - 1))
                clock.sleep(min(LONGEST_WAIT, max(asked, drawn)))
            try:
                status, after, content = self._once(method, path, body)
            except ssl.SSLCertVerificationError:
                raise Unreachable("the service's certificate is not trusted; pass a context that trusts it") from None
            except (OSError, http.client.HTTPException) as error:
                said = f"no answer from {self._url} ({type(error).__name__}) after {attempt + 1} attempts"
                trouble, asked = Unreachable(f"{said}; send it again"), 0.0
                continue
            if status < 300:
                return content
            trouble = ServiceError(status, content)
            if status not in RETRIED:
                break
            asked = float(after) if after is not None and after.isdecimal() else 0.0
        raise trouble

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, str | None, dict[str, Any]]:
        """Status, how long to wait, and content of the answer to one attempt."""
        headers = self._headers if body is None else self._headers | {"Content-Type": "application/json"}
        with self._lock:
            try:
                try:
                    self._connection.request(method, self._base + path, body, headers)
                except (BrokenPipeError, ConnectionResetError):
                    if body is None:
                        raise
                    # a refusal may be there already: it is decided before the body is read
                answer = self._connection.getresponse()
                content = answer.read()
            except BaseException:
                self._connection.close()
                raise
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        return answer.status, answer.headers.get("Retry-After"), found if isinstance(found, dict) else {}


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _figures(disclosed: dict[str, Any], *names: str) -> dict[str, float]:  # infinite ones came as text
    return {name: float(disclosed[name]) for name in names}


def _release(row: dict[str, Any]) -> Release:
    return Release(**{name: _frozen(value) for name, value in row.items() if name in Release.__dataclass_fields__})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _body(events: list[Event]) -> bytes:
    rows = []
    for event in events:
        row = {"user": user_name(event.user), "seq": _sendable(event.seq), "value": _sendable(event.value)}
        moment: Any = event.time
        if isinstance(moment, np.datetime64):
            moment = moment.astype("datetime64[us]").item()
        if moment is not None:  # a number, or ISO 8601 text
            row["time"] = moment.isoformat() if isinstance(moment, datetime) else _sendable(moment)
        rows.append(row)
    return json.dumps({"events": rows}, allow_nan=False).encode()


def _sendable(value: Any) -> Any:
    """The value as JSON has it; what JSON cannot hold as null: the service hides what is outside the alphabet."""
    if hasattr(value, "tolist"):  # numpy's and others' scalars and arrays, as what they hold
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_sendable(part) for part in value]
    try:  # also half a character, NaN and a number of thousands of digits are none
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        return None
    return None if isinstance(value, dict) else value
