"""The one thread that releases for all requests.

Requests that arrive while a transaction is synced to the disk share the next one, so the more there are the less each
costs. What is wrong with a request holds up no other (`seqveil.interfaces.events`).
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time

from seqveil.engine.releases import Releases
from seqveil.engine.store import MOST_POSITION, StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.events import EventJob, release_together
from seqveil.interfaces.service.monitoring import log

PROBE = "service: last probe"
EVENT_BYTES = 2048  # about what an event of a new user takes in a state file

Promise = asyncio.Future[Releases]


class ReleaseWriter:
    """Takes jobs on one event loop and releases them on its own thread; one without events only looks at the disk.

    *Guarantee*: a job's future has its outcome only after the transaction with it was committed and synced. Jobs are
    released in the order they came, as `release_together` says.

    Parameters:
        store: where they are released.
        most: the events that a transaction is filled up to.
        linger: the seconds that it waits for more of them.
    """

    def __init__(self, store: CodeStreams, most: int = 1000, linger: float = 0.002) -> None:
        self._store, self._most, self._linger = store, most, linger
        self._queue: queue.SimpleQueue[tuple[EventJob, Promise] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="seqveil-writer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.waiting = 0  # events; only the loop's thread counts
        self.stopping = False
        self.transactions = 0
        self._room = 1  # bytes that a look at the disk writes: as many as what it last refused

    def start(self) -> None:
        """Begin to write, for the event loop that is running."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, job: EventJob) -> Promise:
        """Queue a job, on the event loop's thread. Whoever no longer waits for it does not take it back."""
        assert self._loop is not None
        promise: Promise = self._loop.create_future()
        self.waiting += job.size
        self._queue.put((job, promise))
        return promise

    def stop(self) -> None:
        """Release what was accepted, then end. Blocks; nothing may be submitted afterwards."""
        self.stopping = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def release(self, jobs: list[EventJob]) -> None:
        """Give each of these jobs its outcome, whatever happens: the thread must outlive it."""
        probe, probed = bytes(self._room), any(not job.size for job in jobs)
        try:
            noted = (lambda made: {PROBE: probe}) if probed else None
            made = release_together(self._store, jobs, noted)
            self.transactions += made
            # a probe of a few bytes would find room where the next release finds none
            events = 0 if made else sum(job.size for job in jobs if isinstance(job.outcome, StoreError))
            self._room = 1 if made else min(MOST_POSITION, max(self._room, EVENT_BYTES * events))
        except BaseException as error:
            log.error("the writer failed", extra={"facts": {"error": type(error).__name__}})
        for job in jobs:
            job.raw = []
            if job.outcome is None:
                job.outcome = StoreError("the store failed; nothing is known to be released")

    def _work(self) -> None:
        going = True
        while going:
            group, going = self._collect()
            if group:
                self.release([job for job, _ in group])
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._answer, group)

    def _collect(self) -> tuple[list[tuple[EventJob, Promise]], bool]:
        """The jobs of the next transaction, and whether there may be more after it."""
        first = self._queue.get()
        if first is None:
            return [], False
        group, count = [first], first[0].size
        if count < self._most and self._linger:
            time.sleep(self._linger)  # once: whoever wakes for each of them takes the interpreter from who brings them
        while count < self._most:
            try:
                found = self._queue.get_nowait()
            except queue.Empty:
                break
            if found is None:
                return group, False
            group.append(found)
            count += found[0].size
        return group, True

    def _answer(self, group: list[tuple[EventJob, Promise]]) -> None:
        for job, promise in group:
            self.waiting -= job.size
            if promise.cancelled():
                continue
            if isinstance(job.outcome, Releases):
                promise.set_result(job.outcome)
            else:
                assert job.outcome is not None
                promise.set_exception(job.outcome)
                promise.exception()  # whoever asked may have gone; then nobody looks at it
