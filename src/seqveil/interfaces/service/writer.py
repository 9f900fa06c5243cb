"""One running service: what all endpoints share, and the one thread that writes for them.

Requests that arrive while a transaction is synced to the disk share the next one, so the more there are the less each
costs. What is wrong with a request holds up no other (`seqveil.interfaces.events`).
"""

from __future__ import annotations

import asyncio
import queue
import tempfile
import threading
import time
from functools import cached_property
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from seqveil.core.errors import InputError
from seqveil.interfaces.events import Job, Wording, release_together
from seqveil.interfaces.service.access import Guard
from seqveil.interfaces.service.config import ServeConfig
from seqveil.interfaces.service.messages import Problem
from seqveil.interfaces.service.monitoring import Metrics, log
from seqveil.interfaces.service.tokens import Keyring
from seqveil.release.setting import refuse_restarts
from seqveil.release.stream import Setting
from seqveil.release.streams import OutOfOrder, Releases, StoreError, Streams

PROBE = "service: last probe"
PROBE_EVERY = 2.0  # seconds for which a look at the disk stands

Promise = asyncio.Future[Releases]


class Writer:
    """Takes jobs on one event loop and releases them on its own thread; one without events only looks at the disk.

    *Guarantee*: a job's future has its outcome only after the transaction with it was committed and synced. Jobs are
    released in the order they came, as `release_together` says.

    Parameters:
        store: where they are released.
        most: the events that a transaction is filled up to.
        linger: the seconds that it waits for more of them.
    """

    def __init__(self, store: Streams, most: int = 1000, linger: float = 0.002) -> None:
        self._store, self._most, self._linger = store, most, linger
        self._queue: queue.SimpleQueue[tuple[Job, Promise] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="seqveil-writer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.waiting = 0  # events; only the loop's thread counts
        self.stopping = False
        self.transactions = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to write, and tell this event loop of what was done."""
        self._loop = loop
        self._thread.start()

    def submit(self, job: Job) -> Promise:
        """Queue a job, on the event loop's thread; the future is for waiting on with a shield."""
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

    def release(self, jobs: list[Job]) -> None:
        """Give each of these jobs its outcome, whatever happens: the thread must outlive it."""
        number, probed = self.transactions, any(not job.size for job in jobs)
        try:
            noted = (lambda made: {PROBE: number}) if probed else None
            self.transactions += release_together(self._store, jobs, noted)
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
                self._loop.call_soon_threadsafe(self._tell, group)

    def _collect(self) -> tuple[list[tuple[Job, Promise]], bool]:
        """The jobs of the next transaction, and whether there may be more after it."""
        first = self._queue.get()
        if first is None:
            return [], False
        group, count, end = [first], first[0].size, time.monotonic() + self._linger
        while count < self._most:
            wait = end - time.monotonic()
            try:
                found = self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if found is None:
                return group, False
            group.append(found)
            count += found[0].size
        return group, True

    def _tell(self, group: list[tuple[Job, Promise]]) -> None:
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


class Service:
    """Everything behind the endpoints."""

    def __init__(self, store: Streams, setting: Setting, config: ServeConfig) -> None:
        refuse_restarts(setting, "the service")
        if setting.signature != store.setting.signature:
            raise InputError("the store is of another setting than the service; open it with the service's own")
        self.store, self.setting, self.config = store, setting, config
        self.wording = Wording(setting.model.alphabet, config.on_unknown)
        ring = None if config.tokens is None else Keyring(config.tokens)
        self.guard = Guard(ring, config.rate, config.max_body, config.timeout)
        self.writer = Writer(store, config.group, config.linger)
        self.metrics = Metrics(store, config.metrics_refresh)
        self.metrics.waiting.set_function(lambda: self.writer.waiting)
        self._probed = float("-inf")

    @cached_property
    def model_file(self) -> bytes:
        """The model as a file that `MarkovModel.load` reads."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model")
            self.setting.model.save(path)
            return path.read_bytes()

    async def write(self, job: Job) -> Releases:
        """Have a job released, or say why it was not; where a budget is spent, `BudgetSpent` has what was released."""
        if self.writer.stopping:
            raise Problem("stopping", "the service is shutting down; nothing was released, try again", wait=1)
        if self.writer.waiting and self.writer.waiting + job.size > self.config.max_waiting:
            raise Problem("busy", "too many events are waiting; nothing was released, try again", wait=1)
        try:
            async with asyncio.timeout(self.config.timeout):
                return await self.writer.submit(job)
        except TimeoutError:
            detail = "the release may yet be made: send the same events again to get it"
            raise Problem("timeout", detail, wait=1) from None
        except OutOfOrder as error:
            raise await self._gap(job, error.position) from None
        except StoreError as error:
            log.error("the store refused", extra={"facts": {"detail": str(error)}})
            detail = "the state file cannot be written now; nothing was released, try again"
            raise Problem("store", detail, wait=5) from None
        except InputError:
            if self.setting.budget.seconds is None:
                raise Problem("malformed", "the events cannot be released as they are") from None
            detail = "the times of a user's events may not go back; nothing was released"
            raise Problem("time-went-back", detail) from None

    async def _gap(self, job: Job, place: int) -> Problem:
        upcoming = await run_in_threadpool(self.store.next_seqs, [job.users[place]])
        detail = f"event {place} leaves others of its user out; {upcoming[0]} is next; nothing was released"
        return Problem("out-of-order", detail, position=place, next=int(upcoming[0]))

    async def probe(self) -> None:
        """Write something and see it on the disk, or refuse."""
        if time.monotonic() - self._probed > PROBE_EVERY:
            await self.write(Job([], [], [], None))
            self._probed = time.monotonic()
