"""The audit log: who asked for what, for whom, and what came of it, as lines of JSON that are only ever appended.

A line has the token's id, the action, the users, how many events, and the status; never a value, a release or a token.
Users are written as pseudonyms: keyed hashes that stay the same from run to run, as the key lies in a file beside the
log (`FILE.key`). Whoever has the key and a name can find the lines about it (`pseudonym`), and nobody else can.

*Guarantee*: nothing is answered to the holder of a token before its line is written. While the log cannot be written
(a full disk, say) such requests are refused, and the service says so in its log, on `/readyz` and in its metrics: a
trail with holes would be worth little, and what was released before the trouble is given again for the same events.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from seqveil.core.coins import key_file
from seqveil.core.errors import InputError, SeqveilError

UsersAs = Literal["pseudonym", "name"]
BEGIN = b'{"time": "'  # of every audit log


class NotWritten(SeqveilError):
    """A line could not be written; whoever waits for the answer does not get it."""


def pseudonym(key: bytes, user: str) -> str:
    """How a user is written in an audit log with this key.

    >>> pseudonym(bytes(32), "ann") == pseudonym(bytes(32), "ann"), len(pseudonym(bytes(32), "ann"))
    (True, 16)
    """
    return blake2b(user.encode(), key=key, digest_size=8, person=b"seqveil-audit").hexdigest()


class AuditLog:
    """Appends lines to a file that is for its owner alone.

    Parameters:
        path: the file, made where there is none.
        users: whether users are written as pseudonyms or by name.
        first: an action to write down at once, with its facts, before anything else is made; `NotWritten` where the log
            cannot take it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = AuditLog(Path(folder, "audit.jsonl"))
    ...     log.write("POST /v1/release", token="3f9a", users=["ann"], events=2, status=200)
    ...     log.close()
    ...     sorted(json.loads(Path(folder, "audit.jsonl").read_text()))
    ['action', 'events', 'status', 'time', 'token', 'users']
    """

    def __init__(
        self, path: str | os.PathLike[str], users: UsersAs = "pseudonym", first: str | None = None, **facts: Any
    ) -> None:
        self._path = Path(path)
        self._key: bytes | None = None
        self._lock = threading.Lock()
        self.trouble: str | None = None  # why the log cannot be written, while it cannot
        self.failures = 0
        self._file = self._opened()
        self._torn = self._ends_within()  # whether the last line may stand there in part
        try:
            if first is not None:
                self.write(first, **facts)
            self._key = key_file(f"{os.fspath(path)}.key", create=True) if users == "pseudonym" else None
        except BaseException:
            self.close()
            raise

    def write(self, action: str, *, token: str | None = None, users: Iterable[str] = (), **facts: Any) -> None:
        """Append a line; `NotWritten` where that cannot be."""
        named = [self._shown(user) for user in dict.fromkeys(users)]
        moment = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
        line: dict[str, Any] = {"time": f"{stamp}.{int(moment % 1 * 1000):03d}Z", "token": token, "action": action}
        line |= {"users": named} if named else {}
        content = json.dumps(line | facts).encode() + b"\n"
        with self._lock:
            try:
                self._append(content)
            except (OSError, InputError) as error:
                self._torn, self.failures = True, self.failures + 1
                unwritten = f"{self._path.name}: the audit log cannot be written"
                self.trouble = f"{unwritten} ({error.strerror})" if isinstance(error, OSError) else str(error)
                raise NotWritten(self.trouble) from None
            self._torn, self.trouble = False, None

    def _append(self, content: bytes) -> None:
        """One write for one line: those of two processes never mix."""
        if os.fstat(self._file).st_nlink == 0:  # somebody deleted the log: what goes there would be nowhere
            self._go_on(self._opened())
        content = b"\n" + content if self._torn else content
        if os.write(self._file, content) != len(content):
            raise OSError(0, "only a part of a line was written")

    def _shown(self, user: str) -> str:
        return user if self._key is None else pseudonym(self._key, user)

    def reopen(self) -> None:
        """Go on in a new file of the same name, after the old one was moved away; where that fails, in the old one."""
        try:
            new = self._opened()
        except InputError as error:
            raise NotWritten(str(error)) from None
        with self._lock:
            self._go_on(new)

    def _go_on(self, new: int) -> None:
        """Write to this file from now on; a line that was cut off stays behind in the old one."""
        old, self._file = self._file, new
        os.close(old)
        self._torn = self._ends_within()

    def try_again(self) -> None:
        """While the log cannot be written, see whether it can be by now; `NotWritten` where it cannot."""
        if self.trouble is not None:
            self.write("the audit log goes on")

    def _ends_within(self) -> bool:
        """Whether the file ends in the middle of a line, as after a full disk or a kill."""
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            return False
        try:
            with open(self._path, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                return file.read(1) not in (b"", b"\n")
        except OSError:
            return False  # it may be written and not read, then

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _check(self) -> None:
        """Refuse to append to a file that is something else."""
        try:
            if not self._path.is_file() or self._path.stat().st_size == 0:
                return
            with open(self._path, "rb") as file:
                first, _, rest = file.read(1000).partition(b"\n")
        except OSError:
            return  # opening it says why
        cut_off = BEGIN.startswith(first) and BEGIN.startswith(rest[: len(BEGIN)])  # the first line, by a full disk
        if not first.startswith(BEGIN) and not cut_off:
            raise InputError(f"{self._path.name}: is not an audit log, and lines would spoil it; name another file")

    def _opened(self) -> int:
        self._check()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            found = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise InputError(
                f"{self._path.name}: the audit log cannot be opened ({error.strerror}); check the path"
            ) from None
        mode = os.fstat(found).st_mode
        if os.name == "posix" and stat.S_ISREG(mode) and stat.S_IMODE(mode) & 0o077:
            os.close(found)
            raise InputError(f"{self._path.name}: others may read or change the audit log; run chmod 600 on it")
        return found
