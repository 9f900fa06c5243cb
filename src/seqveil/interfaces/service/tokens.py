"""Bearer tokens: who may do what for which users, in a small JSON file that holds hashes alone.

A token is 32 random bytes, which nobody guesses, so SHA-256 is enough to store it. Whoever reads the file learns no
token; whoever may write it may let anyone in.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from seqveil.core.errors import InputError
from seqveil.core.model import replacing
from seqveil.interfaces.logs import log

SCOPES = ("release", "read", "metrics", "admin")
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,256}")  # of a user
_NOBODY = hashlib.sha256(b"").hexdigest()

FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class Token:
    """What is kept of a token. `user` binds it to one user, or with a `*` at its end to all whose names begin so."""

    id: str
    sha256: str
    scopes: str  # with spaces between
    user: str | None = None
    created: str = ""  # in UTC

    def may(self, scope: str) -> bool:
        """Whether the token has this scope; admin has all of them."""
        return bool({scope, "admin"} & set(self.scopes.split()))

    def covers(self, user: str) -> bool:
        """Whether the token is for this user.

        >>> Token("a", "", "", user="ward-3/*").covers("ward-3/bed-1"), Token("a", "", "", user="ann").covers("anna")
        (True, False)
        """
        if self.user is None or not self.user.endswith("*"):
            return self.user in (None, user)
        return user.startswith(self.user[:-1])


ANYBODY = Token("none", "", "admin")  # who calls a service that asks for no token


def add(path: FilePath, scopes: Sequence[str], user: str | None = None) -> tuple[Token, str]:
    """Add a token to the file, which is made where there is none, and return it with its secret text, once."""
    if not scopes or not set(scopes) <= set(SCOPES):
        raise InputError(f"a token needs one or more of the scopes {', '.join(SCOPES)}")
    if user is not None and "admin" in scopes:
        raise InputError("an admin token is for all users; leave --user out, or give other scopes")
    if user is not None and (not NAME.fullmatch(user) or "*" in user[:-1]):
        raise InputError("expected --user to be a name without control characters, with a * at its end alone")
    name = secrets.token_hex(6)
    secret, created = f"sv_{name}_{secrets.token_urlsafe(32)}", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    chosen = " ".join(scope for scope in SCOPES if scope in scopes)
    token = Token(name, _digest(secret), chosen, user, created)
    with _changing(path) as kept:
        kept[name] = token
    return token, secret


def revoke(path: FilePath, name: str) -> Token:
    """Take a token out of the file, by its id; a running service knows at once."""
    read(path)  # a file that is not there is refused, not made
    with _changing(path) as kept:
        if name not in kept:
            raise InputError(f"{Path(path).name}: has no token with this id; `seqveil serve token list` shows them")
        return kept.pop(name)


def read(path: FilePath) -> dict[str, Token]:
    """The tokens in a file by their ids, in the order they were made, if nobody but its owner may change it."""
    _version(path)
    try:
        rows = json.loads(Path(path).read_bytes())["seqveil tokens"]
        found = {row["id"]: Token(**row) for row in rows}
        parts = (each for token in found.values() for each in vars(token).items())
        if not all(type(value) is str or (name, value) == ("user", None) for name, value in parts):
            raise TypeError
        return found
    except OSError as error:
        raise _unusable(path, error) from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{Path(path).name}: is no file of tokens; make one with `seqveil serve token add`") from None


def _version(path: FilePath) -> tuple[int, ...]:
    """Which file it is and when it was changed; refuses what is no plain file or may be changed by others."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unusable(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{Path(path).name}: expected a file of tokens, got a pipe or a device; name a plain file")
    if found.st_mode & 0o022:
        raise InputError(f"{Path(path).name}: others may change the tokens; run chmod go-w on it")
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _unusable(path: FilePath, error: OSError) -> InputError:
    return InputError(f"{Path(path).name}: the tokens cannot be used ({error.strerror}); check the path")


@contextmanager
def _changing(path: FilePath) -> Iterator[dict[str, Token]]:
    """The tokens, to be changed: by nobody else meanwhile, and cut anywhere the file is the old one or the new one."""
    real = os.path.realpath(path)
    try:
        with open(f"{real}-lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = read(real) if os.path.exists(real) else {}
            yield kept
            with replacing(real, private=True) as part:
                rows = [asdict(token) for token in kept.values()]
                part.write_text(json.dumps({"seqveil tokens": rows}, indent=1), encoding="utf-8")
    except OSError as error:
        raise _unusable(path, error) from None


class Keyring:
    """The tokens of a running service, read again whenever the file is another. While it cannot be read, no token is
    good: a service that goes on with tokens someone meant to take away would be worse than one that waits.
    """

    def __init__(self, path: FilePath) -> None:
        self._path, self._trouble = path, ""  # why it cannot be read; empty while it can
        self._version, self._tokens = _version(path), read(path)  # refused now rather than at the first request

    def find(self, secret: str) -> Token | None:
        """The token that this text is, or None. The comparison takes the same time wherever the two differ."""
        self.look()
        parts = secret.split("_", 2)
        token = self._tokens.get(parts[1]) if len(parts) == 3 else None
        same = hmac.compare_digest(_digest(secret), _NOBODY if token is None else token.sha256)
        return token if same else None

    def look(self) -> str:
        """Read the file where it is another than before; why it cannot be read, empty where it can."""
        before, self._trouble = self._trouble, ""
        try:
            version = _version(self._path)
            if version != self._version:
                self._version, self._tokens = version, read(self._path)
        except InputError as error:
            self._version, self._tokens, self._trouble = (), {}, str(error)
        if self._trouble and self._trouble != before:
            log("no token is good", "error", detail=self._trouble)
        return self._trouble


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
