"""Files: which columns are what, as a model keeps it for every file that comes later; and how files are written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from seqveil.core.errors import InputError


@dataclass(frozen=True)
class Reading:
    """The names of the columns that hold the user, the value (``"x,y"`` for two coordinates) and the order.

    Without ``time`` a column ``seq``, or else one that is called as times are, gives the order where a file has one.
    User and order may be several columns: ``"firm,badge"`` names a person, ``"week,hour"`` is the hour within the week.

    >>> Reading("firm,badge").user_columns, Reading(time="week,hour").time_columns
    (('firm', 'badge'), ('week', 'hour'))
    """

    user: str = "user"
    value: str = "value"
    time: str | None = None

    def __post_init__(self) -> None:
        names = [*self.user_columns, *self.value_columns, *self.time_columns]
        if len(self.value_columns) > 2 or not all(names) or len(set(names)) < len(names):
            raise InputError(f"expected different names for user, value (one, or two as in x,y) and time; got {names}")

    @property
    def value_columns(self) -> tuple[str, ...]:
        """The columns of the value: one, or two for places in a plane."""
        return _names(self.value)

    @property
    def user_columns(self) -> tuple[str, ...]:
        """The columns that name the user together."""
        return _names(self.user)

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The columns that were named for the order, the coarsest first."""
        return () if self.time is None else _names(self.time)

    def but(self, user: str | None = None, value: str | None = None, time: str | None = None) -> Reading:
        """The same with other names where some are given: what differs in another file.

        >>> Reading("who", "page").but(value="url")
        Reading(user='who', value='url', time=None)
        """
        given = {"user": user, "value": value, "time": time}
        return replace(self, **{name: text for name, text in given.items() if text is not None})


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


@contextmanager
def replacing(path: str | os.PathLike[str], private: bool = False) -> Iterator[Path]:
    """A hidden file beside the target: it takes the target's place when the block ends well, else it is removed.

    So a file appears whole or not at all, and stays after a power cut.

    Parameters:
        path: the target, which may be there or not.
        private: whether the owner alone may read the file, from its first byte on.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder, "out.txt")
    ...     with replacing(target) as part:
    ...         written = part.write_text("all of it")
    ...     target.read_text(), len(list(Path(folder).iterdir()))
    ('all of it', 1)
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.part-{secrets.token_hex(4)}")
    try:
        if private:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield part
        settle(part)
        os.replace(part, target)
        settle(target.parent)  # or a power cut could undo the renaming
    finally:
        part.unlink(missing_ok=True)


def settle(place: str | os.PathLike[str]) -> None:
    """Wait until a file is on the disk, or the names in a folder are."""
    if os.name == "nt":
        return  # which can wait for neither by its name
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
