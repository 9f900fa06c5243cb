"""Bearer tokens: who may do what for which users, in a small SQLite file that holds hashes alone.

A token is 32 random bytes, so SHA-256 is enough to store it: a slow, salted hash protects secrets that can be guessed,
and 2**256 cannot. Whoever reads the file learns no token; whoever may write it may let anyone in.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from seqveil.core.errors import InputError

SCOPES = ("release", "read", "metrics", "admin")
APPLICATION = 0x73766B31  # in the head of the file: that it is one of tokens
PATIENCE, SHORT = 30.0, 0.05  # seconds to wait for another change of the file; the same for a running service
SLOWEST, FASTEST = 1e-6, 1e12  # events a second that a rate may be
TABLE = """CREATE TABLE IF NOT EXISTS tokens (id TEXT PRIMARY KEY, sha256 TEXT NOT NULL, scopes TEXT NOT NULL,
 user TEXT, rate REAL, note TEXT NOT NULL, created TEXT NOT NULL, expires REAL) STRICT"""
LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
_NAMED = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_SPAN = re.compile(r"(\d{1,9})([hdw])")
_UNITS = {"h": 3600, "d": 86_400, "w": 604_800}  # in seconds
_NOBODY = hashlib.sha256(b"").hexdigest()

FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class Token:
    """What is kept of a token. `user` binds it to one user, or with a `*` at its end to all whose names begin so."""

    id: str
    sha256: str
    scopes: str  # with spaces between
    user: str | None = None
    rate: float | None = None
    note: str = ""
    created: str = ""
    expires: float | None = None  # a moment in seconds since 1970 from which on it is no longer good; None: it stays so

    @property
    def expired(self) -> bool:
        """Whether it was good once and no longer is."""
        return self.expires is not None and time.time() >= self.expires

    @property
    def end(self) -> str | None:
        """When it expires, in UTC; None where it does not."""
        return None if self.expires is None else written(self.expires)

    def may(self, scope: str) -> bool:
        """Whether the token has this scope; admin has all of them.

        >>> Token("a", "", "read").may("read"), Token("a", "", "read").may("release")
        (True, False)
        """
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


def written(moment: float) -> str:
    """A moment as it is shown."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def expiry(text: str, now: float) -> float:
    """The moment that `--expires` means: 12h, 30d or 8w from now, or a day or a time, in UTC unless it names a zone.

    >>> [written(expiry(text, now=0.0)) for text in ("2d", "2026-12-31", "2026-12-31T12:00+02:00")]
    ['1970-01-03T00:00:00Z', '2026-12-31T00:00:00Z', '2026-12-31T10:00:00Z']
    """
    span = _SPAN.fullmatch(text.strip())
    try:
        if span is not None:
            moment = now + int(span[1]) * _UNITS[span[2]]
        else:
            given = datetime.fromisoformat(text.strip())
            moment = (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(
            "expected --expires as a span such as 12h, 30d or 8w, as a day such as 2027-01-31, or as a time such as "
            "2027-01-31T12:00Z"
        ) from None
    if not now < moment < LATEST:
        raise InputError("expected --expires in the future and before the year 9000; leave it out for no end at all")
    return moment


def read(path: FilePath) -> list[Token]:
    """The tokens in a file, in the order they were made."""
    with _opened(path) as file:
        return [Token(*row) for row in file.execute("SELECT * FROM tokens ORDER BY rowid")]


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
    ...     token, secret = add(f"{folder}/tokens.db", ["release"], user="ann")
    ...     ring = Keyring(f"{folder}/tokens.db")
    ...     ring.find(secret) == token, ring.find(secret + "x")
    (True, None)
    """
    if not scopes or not set(scopes) <= set(SCOPES):
        raise InputError(f"a token needs one or more of the scopes {', '.join(SCOPES)}")
    if rate is not None and not SLOWEST <= rate <= FASTEST:
        raise InputError(f"expected the rate of a token from {SLOWEST:g} to {FASTEST:g} events a second")
    if user is not None and "admin" in scopes:
        raise InputError("an admin token is for all users; leave --user out, or give other scopes")
    if user is not None and (not _NAMED.fullmatch(user) or "*" in user[:-1]):
        raise InputError(
            "expected --user to be a name without control characters, with a * at its end alone; leave it out for all"
        )
    now, name = time.time(), secrets.token_hex(6)
    until, secret = None if expires is None else expiry(expires, now), f"sv_{name}_{secrets.token_urlsafe(32)}"
    chosen = " ".join(scope for scope in SCOPES if scope in scopes)
    token = Token(name, _digest(secret), chosen, user, rate, note, written(now), until)
    with _opened(path, make=True) as file:
        file.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?)", astuple(token))
    return token, secret


def revoke(path: FilePath, name: str) -> Token:
    """Take a token out of the file, by its id; a running service knows at once."""
    with _opened(path) as file:
        row = file.execute("DELETE FROM tokens WHERE id = ? RETURNING *", (name,)).fetchone()
    if row is None:
        raise InputError(f"{Path(path).name}: has no token with this id; `seqveil serve token list` shows them")
    return Token(*row)


@contextmanager
def _opened(path: FilePath, make: bool = False) -> Iterator[sqlite3.Connection]:
    """The file of tokens, if nobody but its owner may change it; `make` makes it where there is none."""
    name = Path(path).name
    try:
        if make:
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        _check_file(path)
        with closing(_connected(path, PATIENCE)) as file:
            if make and not os.path.getsize(path):
                file.execute(f"PRAGMA application_id = {APPLICATION}")
                file.execute(TABLE)
            _check_kind(file, name)
            yield file
    except OSError as error:
        raise InputError(f"{name}: the tokens cannot be read or written ({error.strerror}); check the path") from None
    except sqlite3.OperationalError:
        raise InputError(f"{name}: somebody else is changing the tokens, or it may not be written; try again") from None
    except sqlite3.DatabaseError:
        raise InputError(f"{name}: is no file of tokens; make one with `seqveil serve token add`") from None


def _connected(path: FilePath, patience: float, mode: str = "rw") -> sqlite3.Connection:
    place = f"file:{quote(os.path.realpath(path))}?mode={mode}"
    return sqlite3.connect(place, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)


def _check_file(path: FilePath) -> tuple[int, int]:
    """Refuse what is no plain file or may be changed by others; else which file it is."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{Path(path).name}: expected a file of tokens, got a pipe or a device; name a plain file")
    if os.name == "posix" and found.st_mode & 0o022:
        raise InputError(f"{Path(path).name}: others may change the tokens; run chmod go-w on it")
    return found.st_dev, found.st_ino


def _check_kind(file: sqlite3.Connection, name: str) -> None:
    if file.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise InputError(f"{name}: is no file of tokens; make one with `seqveil serve token add`")


class Keyring:
    """The tokens of a running service, looked up in the file at each request. While that cannot be read, no token is
    good: a service that goes on with tokens someone meant to take away would be worse than one that waits.

    `trouble` says why it cannot be read, and None while it can; `changed` hears of every change of that.
    """

    def __init__(self, path: FilePath, changed: Callable[[str | None], None] = lambda trouble: None) -> None:
        self._path, self._changed = path, changed
        self._file: sqlite3.Connection | None = None
        self._which: tuple[int, int] | None = None
        self.trouble: str | None = None
        read(path)  # refused now rather than at the first request

    def find(self, secret: str) -> Token | None:
        """The token that this text is, or None. The comparison takes the same time wherever the two differ."""
        parts = secret.split("_", 2)
        token = self._token(parts[1] if len(parts) == 3 else "")
        same = hmac.compare_digest(_digest(secret), _NOBODY if token is None else token.sha256)
        return token if same else None

    def look(self) -> str | None:
        """Why the file cannot be read, or None."""
        self._token("")
        return self.trouble

    def _token(self, name: str) -> Token | None:
        found, trouble = None, None
        try:
            which = _check_file(self._path)
            if self._file is None or which != self._which:  # another file may have taken its place
                self._file, self._which = _connected(self._path, SHORT, "ro"), which
                _check_kind(self._file, Path(self._path).name)
            row = self._file.execute("SELECT * FROM tokens WHERE id = ?", (name,)).fetchone()
            found = None if row is None else Token(*row)
        except InputError as error:
            trouble = str(error)
        except Exception as error:  # whatever it is, tokens that cannot be read are not good
            trouble = f"{Path(self._path).name}: the tokens cannot be read ({type(error).__name__})"
        if trouble is not None and self._file is not None:
            self._file.close()
            self._file = None
        if trouble != self.trouble:
            self.trouble = trouble
            self._changed(trouble)
        return found


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
