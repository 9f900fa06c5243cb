"""How much a caller may ask for: a bucket of allowance for each token, and bodies that end in time and size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from seqveil.interfaces.service.problems import Problem

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Bucket:
    """An allowance that fills at `rate` a second up to `burst`; what costs more than is in it may still go once it is
    full, and is paid back before anything else goes.

    >>> bucket = Bucket(rate=2.0, burst=4.0, now=0.0)
    >>> bucket.take(3, now=0.0), bucket.take(3, now=0.0), bucket.take(3, now=1.0), bucket.take(9, now=3.0)
    (0.0, 1.0, 0.0, 0.0)
    >>> bucket.take(1, now=3.0)
    3.0
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._level, self._at = rate, burst, burst, now

    def take(self, cost: float, now: float) -> float:
        """Take the cost out and return 0, or take nothing and return the seconds to wait."""
        self._level, self._at = min(self._burst, self._level + (now - self._at) * self._rate), now
        short = min(cost, self._burst) - self._level
        if short > 0:
            return short / self._rate
        self._level -= cost
        return 0.0


class Buckets:
    """A bucket for each token, by its id."""

    def __init__(self, rate: float, seconds: float = 2.0) -> None:
        self._rate, self._seconds = rate, seconds
        self._buckets: dict[str, tuple[float, Bucket]] = {}

    def take(self, token: str, own_rate: float | None, cost: float) -> None:
        """Charge a token for so many events, or refuse with the time to wait."""
        now, rate = time.monotonic(), own_rate or self._rate
        known = self._buckets.get(token)
        if known is None or known[0] != rate:
            known = self._buckets[token] = (rate, Bucket(rate, max(1.0, rate * self._seconds), now))
        wait = known[1].take(cost, now)
        if wait:
            raise Problem("too-many", f"this token may send {rate:g} events a second; wait", wait=wait)


def limited(receive: Receive, most: int, seconds: float) -> Receive:
    """The same body, refused where it grows past `most` bytes or has not ended in time."""
    end, size = asyncio.get_running_loop().time() + seconds, 0

    async def next_part() -> MutableMapping[str, Any]:
        nonlocal size
        try:
            async with asyncio.timeout_at(end):
                message = await receive()
        except TimeoutError:
            raise Problem("too-slow", f"the body had not come after {seconds:g} seconds; send it again") from None
        size += len(message.get("body", b""))
        if size > most:
            raise too_large(most)
        return message

    return next_part


def too_large(most: int) -> Problem:
    return Problem("too-large", f"the body is larger than {most} bytes; send fewer events at once")
