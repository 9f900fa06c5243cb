"""A client for the service (`seqveil serve`): standard library only, with retries that cannot release twice.

An event is a user and a sequence number, and the service releases each once: after a lost connection, a full queue or a
rate limit the same request is simply sent again, and gets the release that was made, if one was.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import math
import random
import re
import ssl
import tempfile
import threading
import time as clock
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import numpy as np

from seqveil.core.errors import InputError, ModelError, SeqveilError
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import User, user_name
from seqveil.core.times import Time
from seqveil.engine.policy import saved_terms
from seqveil.engine.releases import Account, Release, SecretAccount
from seqveil.engine.stream import Terms

RETRIED = (429, 503)
LONGEST_WAIT = 30.0  # seconds between two attempts
_HALF = re.compile("[\ud800-\udfff]")  # half a character, which no reader of JSON takes


class ServiceError(SeqveilError):
    """The service refused. `reason` is the short name of docs/service.md, `position` the event's place in the request.

    `releases` is what was released for good of the events that were given. The place is among those events, in however
    many requests the client sent them.
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.reason = str(problem.get("type", "")).rpartition(":")[2]
        self.position: int | None = problem.get("position")
        self.next: int | None = problem.get("next")
        self.most: int | None = problem.get("most")  # events that it takes at once, where there were more
        self.releases = [_release(row) for row in problem.get("releases", ())]
        super().__init__(f"the service answered {status} {self.reason}: {problem.get('detail', 'no more is known')}")

    def come_after(self, made: Sequence[Release], events: int) -> None:
        """Count so many events that were sent before this request, and what was released of them."""
        self.releases = [*made, *self.releases]
        self.position = None if self.position is None else self.position + events


class Unreachable(SeqveilError):
    """No answer after all attempts. Whether the events were released is not known: send the same ones again."""


class Event(NamedTuple):
    """What to release: one symbol of a user, or one batch; `time` where the budget counts in seconds.

    A value that JSON cannot hold (NaN, a date, bytes) is sent as null, which the service hides like any other that is
    outside the alphabet.
    """

    user: User
    seq: int
    value: Any
    time: Time | None = None


class Client:
    """Releases through a service, and reads what it released.

    *Guarantee*: however often a request is retried, each event is drawn and charged once, by the service's rule that
    the first release of a user and sequence number is the only one. Raw symbols are sent to the one URL given, over TLS
    or within this machine, and are in no message or repr.

    Parameters:
        url: of the service.
        token: as `seqveil serve token add` printed it.
        timeout: seconds for one attempt.
        attempts: before giving up.
        backoff: the first wait in seconds, doubled at each attempt and drawn at random below that.
        context: for TLS with certificates of your own.
        insecure: allows plain HTTP to another machine.

    >>> Client("http://127.0.0.1:8713", "sv_…")
    Client(http://127.0.0.1:8713)
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
        self._url, self._base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", parts.path.rstrip("/")
        self._host, self._port, self._tls = parts.hostname, parts.port, parts.scheme == "https"
        self._token, self._timeout, self._attempts, self._backoff = token, timeout, max(1, attempts), backoff
        self._context = context or (ssl.create_default_context() if self._tls else None)
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()

    def release(self, user: User, seq: int, value: Any, time: Time | None = None) -> Release:
        """Release one symbol."""
        return self.release_many([Event(user, seq, value, time)])[0]

    def release_batch(self, user: User, seq: int, values: Sequence[Any], time: Time | None = None) -> Release:
        """Release one batch, where the service releases batches."""
        return self.release_batches([Event(user, seq, values, time)])[0]

    def release_many(self, events: Iterable[Event | tuple[Any, ...]], at_once: int = 1000) -> list[Release]:
        """Release symbols, so many in a request; the first request that is refused ends it."""
        return self._in_parts(events, at_once, "value")

    def release_batches(self, events: Iterable[Event | tuple[Any, ...]], at_once: int = 100) -> list[Release]:
        """Release batches, so many in a request."""
        return self._in_parts(events, at_once, "values")

    def account(self, user: User) -> Account:
        """What a user's releases have disclosed."""
        found = self._user(user, 0, 0)["account"]
        figures = ("leakage", "most", "least", "epsilon_spent", "ldp")
        secrets = tuple(_secret(disclosed) for disclosed in found.pop("secrets", ()))
        found.pop("sentences", None)  # they follow from the figures, and an account says them itself
        return Account(**found | {name: float(found[name]) for name in figures}, secrets=secrets)

    def releases(self, user: User, since: int = 0) -> Iterator[Release]:
        """What was released of a user, from sequence number `since` on."""
        more = True
        while more:
            page = self._user(user, since, 1000)
            yield from (_release(row | {"user": user_name(user)}) for row in page["releases"])
            since, more = page["next"], page["more"]

    def _user(self, user: User, since: int, limit: int) -> dict[str, Any]:
        query = urlencode({"since": since, "limit": limit})
        return self._json("GET", f"/v1/users/{quote(user_name(user), safe='')}?{query}")

    def erase(self, user: User, forget_ledger: bool = False) -> int:
        """Take a user out of the service's state file, with a token of an admin; how many releases that were.

        Asked again after a lost answer, it gives 0, or `not-found` where the ledger was forgotten too.

        Parameters:
            user: whom.
            forget_ledger: drop the ledger too, so that coming back begins at zero.
        """
        query = "?forget_ledger=true" if forget_ledger else ""
        return int(self._json("DELETE", f"/v1/users/{quote(user_name(user), safe='')}{query}")["releases"])

    def model(self) -> MarkovModel:
        """The service's model, checked against the fingerprint that the service states."""
        return self._setting()[0]

    def setting(self, observers: Sequence[MarkovModel] = ()) -> Terms:
        """The setting that the service releases with: what a decoder needs.

        Parameters:
            observers: the models of all further observers that declared secrets are kept from, in any order. The
                service names them by their fingerprints and does not send them; without them such a setting is refused.
        """
        model, setting = self._setting()
        return saved_terms(setting, model, observers)

    def _setting(self) -> tuple[MarkovModel, dict[str, Any]]:
        stated = self._json("GET", "/v1/model")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model")
            path.write_bytes(base64.b64decode(stated["file"]))
            model = MarkovModel.load(path)
        if model.fingerprint != stated["fingerprint"]:
            raise ModelError("the model file is not the one that the service states; try again")
        return model, stated["setting"]

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            self._drop()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._url})"

    def _release(self, events: list[Event], name: str) -> list[Release]:
        body = _body(events, name)
        try:
            return [_release(row) for row in self._json("POST", "/v1/release", body)["releases"]]
        except ServiceError as error:
            if error.reason != "too-large" or len(events) == 1:
                raise
            # refused before anything was drawn: in parts, as many as it takes at once, or half of what was too large
            size = min(error.most or len(events), (len(events) + 1) // 2 if error.most is None else len(events) - 1)
            return self._in_parts(events, max(1, size), name)

    def _in_parts(self, events: Iterable[Event | tuple[Any, ...]], size: int, name: str) -> list[Release]:
        """Release events, so many at once; a refusal names places among all of them, and has all that was released."""
        made: list[Release] = []
        done = 0
        for part in _parts(events, size):
            try:
                made += self._release(part, name)
            except ServiceError as error:
                error.come_after(made, done)
                raise
            done += len(part)
        return made

    def _json(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._send(method, path, body))
        return found

    def _send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The content of the answer, after as many attempts as it takes."""
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        trouble: SeqveilError = Unreachable("no attempt was made")
        for attempt in range(self._attempts):
            asked = 0.0
            try:
                status, after, content = self._once(method, self._base + path, body, headers)
            except ssl.SSLCertVerificationError:
                raise Unreachable("the service's certificate is not trusted; pass a context that trusts it") from None
            except (OSError, http.client.HTTPException) as error:
                kind = type(error).__name__
                trouble = Unreachable(
                    f"no answer from {self._url} ({kind}) after {attempt + 1} attempts; send it again"
                )
            else:
                if status < 300:
                    return content
                trouble = ServiceError(status, _problem(content))
                if status not in RETRIED:
                    raise trouble
                asked = float(after) if after is not None and after.isdecimal() else 0.0
            if attempt + 1 < self._attempts:
                # at random below a bound that doubles: clients that failed together do not come back together
                drawn = random.uniform(0.0, self._backoff * 2.0**attempt)
                clock.sleep(min(LONGEST_WAIT, max(asked, drawn)))
        raise trouble

    def _once(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, str | None, bytes]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                try:
                    self._connection.request(method, path, body, headers)
                except (BrokenPipeError, ConnectionResetError):
                    if body is None:
                        raise
                    # a refusal may be there already: it is decided before the body is read
                answer = self._connection.getresponse()
                content = answer.read()
                if answer.will_close:
                    self._drop()
                return answer.status, answer.headers.get("Retry-After"), content
            except BaseException:
                self._drop()
                raise

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parts(events: Iterable[Event | tuple[Any, ...]], size: int) -> Iterator[list[Event]]:
    part: list[Event] = []
    for event in events:
        part.append(Event(*event))
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


def _secret(disclosed: dict[str, Any]) -> SecretAccount:
    figures = {name: float(disclosed[name]) for name in ("log_odds", "lowest", "highest", "worst")}
    return SecretAccount(**disclosed | figures)


def _release(row: dict[str, Any]) -> Release:
    known = {name: row[name] for name in Release.__dataclass_fields__ if name in row}
    known["value"] = _value(known.get("value"))
    if known.get("values") is not None:
        known["values"] = tuple(map(_value, known["values"]))
    if known.get("path") is not None:
        known["path"] = tuple(known["path"])
    return Release(**known)


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _body(events: list[Event], name: str) -> bytes:
    """A request to release events; `name` says whether each holds a value or the values of a batch."""
    rows = []
    for event in events:
        value = _sendable(event.value if name == "value" else list(event.value))
        row = {"user": user_name(event.user), "seq": _whole(event.seq), name: value}
        rows.append(row if event.time is None else row | {"time": _moment(event.time)})
    return json.dumps({"events": rows}, allow_nan=False).encode()


def _sendable(value: Any) -> Any:
    """The value as JSON has it; what JSON cannot hold as null: the service hides what is outside the alphabet."""
    if hasattr(value, "tolist"):  # numpy's and others' scalars and arrays, as what they hold
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_sendable(part) for part in value]
    if isinstance(value, str):
        return str(value) if value.isascii() or not _HALF.search(value) else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if value.bit_length() <= 1024 else None  # readers of JSON give up somewhere
    return value if isinstance(value, bool) else None


def _whole(seq: object) -> int:
    if not isinstance(seq, (int, np.integer)) or isinstance(seq, bool):
        raise InputError(f"expected a sequence number that is a whole number, got {type(seq).__name__}; count from 0")
    return int(seq)


def _moment(time: object) -> float | str:
    """A time as the service takes it: a number, or ISO 8601 text."""
    if isinstance(time, np.datetime64):
        time = time.astype("datetime64[us]").item()
    if isinstance(time, datetime):
        return time.isoformat()
    number = isinstance(time, (int, float, np.integer, np.floating)) and not isinstance(time, bool)
    if isinstance(time, str) or (number and math.isfinite(time)):  # type: ignore[arg-type]
        return str(time) if isinstance(time, str) else float(time)  # type: ignore[arg-type]
    raise InputError(f"expected a time in seconds, as ISO 8601 text or a datetime, got {type(time).__name__}")


def _problem(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
