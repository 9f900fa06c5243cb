"""Ctrl-C and SIGTERM as one exception that unwinds every open file, and that no library catches by mistake."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """Somebody asked the run to end."""


class _Request:
    made = False


def check() -> None:
    """Raise where the run was asked to end: Python drops an exception that a signal raises inside a finaliser."""
    if _Request.made:
        raise Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn both signals into `Interrupted` while the block runs."""

    def stop(number: int, frame: FrameType | None) -> None:
        _Request.made = True
        raise Interrupted

    _Request.made = False
    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs it owns the signals
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
