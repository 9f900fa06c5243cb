"""Files that appear whole or not at all, and stay after a power cut."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str], private: bool = False) -> Iterator[Path]:
    """A hidden file beside the target: it takes the target's place when the block ends well, else it is removed.

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
