"""The one thread that releases for all requests.

Requests that arrive while a transaction is synced to the disk share the next one, so the more there are the less each
costs. What is wrong with a request holds up no other (`seqveil.interfaces.events`).
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time

from seqveil.engine.store import Releases, StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.events import EventJob, release_together
from seqveil.interfaces.logs import log

PROBE = "service: last probe"

Waiting = tuple[EventJob, asyncio.Future[Releases]]


class ReleaseWriter:
    """Takes jobs on one event loop and releases them on its own thread; one without events only looks at the disk.

    *Guarantee*: a job's future has its outcome only after the transaction with it was committed and synced. Jobs are
    released in the order they came. A transaction has up to `most` events, and waits `linger` seconds for more.
    """

    def __init__(self, store: CodeStreams, most: int, linger: float) -> None:
        self._store, self._most, self._linger = store, most, linger
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="seqveil-writer", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self.waiting = 0  # events; only the loop's thread counts
        self.stopping = False

    def start(self) -> None:
        """Begin to write, for the event loop that is running."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, job: EventJob) -> asyncio.Future[Releases]:
        """Queue a job, on the event loop's thread. Whoever no longer waits for it does not take it back."""
        promise: asyncio.Future[Releases] = self._loop.create_future()
        self.waiting += job.size
        self._queue.put((job, promise))
        return promise

    def stop(self) -> None:
        """Release what was accepted, then end. Blocks; nothing may be submitted afterwards."""
        self.stopping = True
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            group, count = [first], first[0].size
            if count < self._most:
                time.sleep(self._linger)  # once: who wakes for each of them takes the interpreter from who brings them
            while count < self._most and not self._queue.empty():  # nobody else takes from it
                found = self._queue.get()
                if found is None:  # to be met again after this group
                    self._queue.put(None)
                    break
                group.append(found)
                count += found[0].size
            self._release([job for job, _ in group])
            self._loop.call_soon_threadsafe(self._answer, group)

    def _release(self, jobs: list[EventJob]) -> None:
        """Give each of these jobs its outcome, whatever happens: the thread must outlive it."""
        probed = any(not job.size for job in jobs)
        try:
            release_together(self._store, jobs, (lambda *_: {PROBE: 1}) if probed else None)
        except BaseException as error:
            log("the writer failed", "error", error=type(error).__name__)
        for job in jobs:
            job.raw = []
            if job.outcome is None:
                job.outcome = StoreError("the store failed; nothing is known to be released")

    def _answer(self, group: list[Waiting]) -> None:
        for job, promise in group:
            self.waiting -= job.size
            if promise.cancelled():
                continue
            if isinstance(job.outcome, Releases):
                promise.set_result(job.outcome)
            elif job.outcome is not None:
                promise.set_exception(job.outcome)
                promise.exception()  # whoever asked may have gone; then nobody looks at it
