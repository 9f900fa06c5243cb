"""Bearer tokens: who may do what for which users, in a file that holds hashes alone.

A token is 32 random bytes, so SHA-256 is enough to store it: a slow, salted hash protects secrets that can be guessed,
and 2**256 cannot. Whoever reads the file learns no token; whoever may write it may let anyone in.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from seqveil.core.errors import InputError
from seqveil.core.replacing import replacing

SCOPES = ("release", "read", "metrics", "admin")
FORMAT, VERSION = "seqveil-tokens", 1
PATIENCE = 30.0  # seconds to wait for another change of the file
SLOWEST, FASTEST = 1e-6, 1e12  # events a second that a rate may be
_SHA256 = re.compile("[0-9a-f]{64}")
_NAMED = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
STAMP = "%Y-%m-%dT%H:%M:%SZ"  # how moments are written in the file
_SPAN = re.compile(r"(\d{1,9})([hdw])")
_UNITS = {"h": 3600, "d": 86_400, "w": 604_800}  # in seconds
LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
_NOBODY = hashlib.sha256(b"").hexdigest()

FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class Token:
    """What is kept of a token. `user` binds it to one user, or with a `*` at its end to all whose names begin so."""

    id: str
    sha256: str
    scopes: tuple[str, ...]
    user: str | None = None
    rate: float | None = None
    note: str = ""
    created: str = ""
    expires: str = ""  # a moment in UTC from which on it is no longer good; empty: it does not expire

    @cached_property
    def _until(self) -> float:
        return datetime.strptime(self.expires, STAMP).replace(tzinfo=UTC).timestamp() if self.expires else math.inf

    def expired(self, now: float | None = None) -> bool:
        """Whether it was good once and no longer is; `now` in seconds since 1970.

        >>> token = Token("a", "", ("read",), expires="2026-01-01T00:00:00Z")
        >>> token.expired(0.0), token.expired(2e9), Token("a", "", ("read",)).expired(2e9)
        (False, True, False)
        """
        return (time.time() if now is None else now) >= self._until

    def may(self, scope: str) -> bool:
        """Whether the token has this scope; admin has all of them.

        >>> Token("a", "", ("read",)).may("read"), Token("a", "", ("read",)).may("release")
        (True, False)
        """
        return scope in self.scopes or "admin" in self.scopes

    def covers(self, user: str) -> bool:
        """Whether the token is for this user.

        >>> Token("a", "", (), user="ward-3/*").covers("ward-3/bed-1"), Token("a", "", (), user="ann").covers("anna")
        (True, False)
        """
        if self.user is None or not self.user.endswith("*"):
            return self.user in (None, user)
        return user.startswith(self.user[:-1])


def expiry(text: str, now: float | None = None) -> str:
    """The moment that `--expires` means: 12h, 30d or 8w from now, or a day or a time, in UTC unless it names a zone.

    >>> expiry("2d", now=0.0), expiry("2026-12-31", now=0.0), expiry("2026-12-31T12:00+02:00", now=0.0)
    ('1970-01-03T00:00:00Z', '2026-12-31T00:00:00Z', '2026-12-31T10:00:00Z')
    """
    begin = time.time() if now is None else now
    span = _SPAN.fullmatch(text.strip())
    try:
        if span is not None:
            moment = begin + int(span[1]) * _UNITS[span[2]]
        else:
            given = datetime.fromisoformat(text.strip())
            moment = (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(
            "expected --expires as a span such as 12h, 30d or 8w, as a day such as 2027-01-31, or as a time such as "
            "2027-01-31T12:00Z"
        ) from None
    if not begin < moment < LATEST:
        raise InputError("expected --expires in the future and before the year 9000; leave it out for no end at all")
    return datetime.fromtimestamp(moment, UTC).strftime(STAMP)


ANYBODY = Token("none", "", ("admin",))  # who calls a service that asks for no token


def read(path: FilePath) -> list[Token]:
    """The tokens in a file that only its owner may change."""
    name = Path(path).name
    try:
        with open(path, encoding="utf-8", opener=_without_waiting) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise InputError(f"{name}: expected a file of tokens, got a pipe or a device; name a plain file")
            shared = stat.S_IMODE(mode) & 0o022
            saved = json.load(file)
        if saved["format"] != FORMAT or saved["version"] != VERSION:
            raise KeyError
        tokens = [_token(entry) for entry in saved["tokens"]]
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{name}: the tokens cannot be read ({error.strerror}); check the path") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{name}: is no file of tokens; make one with `seqveil serve token add`") from None
    if os.name == "posix" and shared:
        raise InputError(f"{name}: others may change the tokens; run chmod go-w on it")
    for token in tokens:
        _check(token)
    return tokens


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to would keep everyone waiting else."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _token(entry: dict[str, Any]) -> Token:
    """An entry of the file as a token; TypeError or ValueError where a field is of another kind than `add` writes."""
    if not isinstance(entry, dict) or not isinstance(entry["scopes"], list):
        raise TypeError
    token = Token(**entry | {"scopes": tuple(entry["scopes"])})
    texts = [token.id, token.sha256, token.note, token.created, token.expires, *token.scopes]
    if not all(isinstance(text, str) for text in texts) or not isinstance(token.user, str | None):
        raise TypeError
    if isinstance(token.rate, bool) or not isinstance(token.rate, int | float | None):
        raise TypeError
    if not token.id or not _SHA256.fullmatch(token.sha256):
        raise ValueError
    token.expired()  # ValueError where its moment is none
    return token


def add(
    path: FilePath,
    scopes: Sequence[str],
    user: str | None = None,
    rate: float | None = None,
    note: str = "",
    expires: str | None = None,
) -> tuple[Token, str]:
    """Add a token to the file, which is made where there is none, and return it with its secret text, once.

    Parameters:
        path: the file.
        scopes: what the token allows.
        user: the users that it is for; None: all of them.
        rate: events a second; None: as the service says.
        note: what it is for.
        expires: as for `expiry`; None: never.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     token, secret = add(f"{folder}/tokens.json", ["release"], user="ann")
    ...     ring = Keyring(f"{folder}/tokens.json")
    ...     ring.find(secret) == token, ring.find(secret + "x"), secret in Path(folder, "tokens.json").read_text()
    (True, None, False)
    """
    name = secrets.token_hex(6)
    secret = f"sv_{name}_{secrets.token_urlsafe(32)}"
    chosen = tuple(scope for scope in SCOPES if scope in scopes)
    created = time.strftime(STAMP, time.gmtime())
    until = "" if expires is None else expiry(expires)
    token = Token(name, _digest(secret), chosen, user, rate, note, created, until)
    if unknown := sorted(set(scopes) - set(SCOPES)):
        raise InputError(f"no scope is called {', '.join(unknown)}; choose from {', '.join(SCOPES)}")
    _check(token)
    if user is not None and (not _NAMED.fullmatch(user) or "*" in user[:-1]):
        raise InputError(
            "expected --user to be a name without control characters, with a * at its end alone; leave it out for all"
        )
    path = os.path.realpath(path)  # a link stays one: what it leads to is changed
    with _changing(path):
        known = read(path) if os.path.exists(path) else []
        _write(path, [*known, token])
    return token, secret


def revoke(path: FilePath, name: str) -> Token:
    """Take a token out of the file, by its id."""
    path = os.path.realpath(path)
    with _changing(path):
        known = read(path)
        found = [token for token in known if token.id == name]
        if not found:
            raise InputError(f"{Path(path).name}: has no token with this id; `seqveil serve token list` shows them")
        _write(path, [token for token in known if token.id != name])
    return found[0]


@contextmanager
def _changing(path: FilePath) -> Iterator[None]:
    """One change at a time, from reading to writing: of two at once the later would undo the earlier.

    The lock is SQLite's, on an empty file beside the tokens: it is there on every system and dies with its process.
    """
    name, beside = Path(path).name, f"{os.fspath(path)}.lock"
    try:
        with suppress(FileExistsError):
            os.close(os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(beside, timeout=PATIENCE, isolation_level=None)) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            yield
    except sqlite3.Error:
        raise InputError(f"{name}: somebody else is changing the tokens; nothing was changed, try again") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be written ({error.strerror}); check the path") from None


class Keyring:
    """The tokens of a running service. Each request looks whether the file has changed; while it cannot be read, no
    token is good: a service that goes on with tokens someone meant to take away would be worse than one that waits.

    `trouble` says why it cannot be read, and None while it can; `changed` hears of every change of that.
    """

    def __init__(self, path: FilePath, changed: Callable[[str | None], None] = lambda trouble: None) -> None:
        self._path, self._changed = path, changed
        self.trouble: str | None = None
        self._seen = self._mark()  # before it is read: a change meanwhile is seen
        self._tokens = {token.id: token for token in read(path)}

    def find(self, secret: str) -> Token | None:
        """The token that this text is, or None. The comparison takes the same time wherever the two differ."""
        self.look()
        parts = secret.split("_", 2)
        token = self._tokens.get(parts[1]) if len(parts) == 3 else None
        same = hmac.compare_digest(_digest(secret), _NOBODY if token is None else token.sha256)
        return token if same else None

    def look(self) -> str | None:
        """Read the file again if it has changed; why it cannot be read, or None."""
        mark = self._mark()
        if mark != self._seen:
            self._read(mark)
        return self.trouble

    def _read(self, mark: tuple[int, ...]) -> None:
        trouble = None
        try:
            self._tokens = {token.id: token for token in read(self._path)}
        except InputError as error:
            self._tokens, trouble = {}, str(error)
        except Exception as error:  # whatever it is, tokens that could not be read again are not good
            self._tokens, trouble = {}, f"{Path(self._path).name}: the tokens cannot be read ({type(error).__name__})"
        self._seen = mark if trouble is None else ()  # until it can be read, it is tried again
        if trouble != self.trouble:
            self.trouble = trouble
            self._changed(trouble)

    def _mark(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return (0,)
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _check(token: Token) -> None:
    if not token.scopes or not set(token.scopes) <= set(SCOPES):
        raise InputError(f"a token needs one or more of the scopes {', '.join(SCOPES)}")
    if token.rate is not None and not SLOWEST <= token.rate <= FASTEST:
        raise InputError(
            "expected the rate of a token to be a finite number of events a second above 0, from "
            f"{SLOWEST:g} to {FASTEST:g}"
        )
    if token.user is not None and "admin" in token.scopes:
        raise InputError("an admin token is for all users; leave --user out, or give other scopes")


def _write(path: FilePath, tokens: list[Token]) -> None:
    """All or nothing, readable by its owner alone."""
    content = {"format": FORMAT, "version": VERSION, "tokens": [asdict(token) for token in tokens]}
    try:
        with replacing(path, private=True) as part:
            part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{Path(path).name}: cannot be written ({error.strerror}); check the path") from None
