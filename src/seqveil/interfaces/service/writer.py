"""One thread that writes: it takes what waits, releases it in one transaction, and tells everyone how theirs went.

Requests that arrive while a transaction is synced to the disk share the next one, so the more there are the less each
costs. What is wrong with a request is found before any of it is drawn, and does not hold up its neighbours; a spent
budget, under the policy "error", refuses its user's events and no others.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from seqveil.core.times import Time
from seqveil.release.stream import budget_spent
from seqveil.release.streams import OutOfOrder, Releases, StoreError, Streams, taken

log = logging.getLogger("seqveil.service")
PROBE = "service: last probe"


class Outcome(NamedTuple):
    """What one request was released as, event by event; public."""

    codes: list[int]  # of single symbols; empty for batches
    epsilons: list[float]
    replayed: list[bool]
    paths: list[tuple[int, ...] | None]  # of batches; empty for symbols
    words: list[list[int]]
    refused: list[bool]  # the budget is spent and its policy is "error"


@dataclass(eq=False)
class Job:
    """One request. The raw codes are in no repr; nothing of them stays when the job is done."""

    users: list[str] = field(repr=False)
    seqs: list[int]
    raw: list[Any] = field(repr=False)
    times: list[Time] | None
    probe: bool = False
    done: asyncio.Future[Outcome] | None = None
    outcome: Outcome | Exception | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        return len(self.seqs)


class Writer:
    """Takes jobs on one event loop and releases them on its own thread.

    *Guarantee*: a job's future has its outcome only after the transaction with it was committed and synced. Jobs are
    released in the order they came, each whole, or not at all, or but for the events that a spent budget refuses: then
    the future has BudgetSpent with the outcome of the others.

    Parameters: `most`, the events a transaction is filled up to; `linger`, the seconds it waits for more of them.
    """

    def __init__(self, store: Streams, most: int = 1000, linger: float = 0.002) -> None:
        self._store, self._most, self._linger = store, most, linger
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="seqveil-writer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.waiting = 0  # events; only the loop's thread counts
        self.stopping = False
        self.transactions = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def submit(self, job: Job) -> asyncio.Future[Outcome]:
        """Queue a job, on the event loop's thread; the future is for waiting on with a shield."""
        assert self._loop is not None
        job.done = self._loop.create_future()
        self.waiting += job.size
        self._queue.put(job)
        return job.done

    def stop(self) -> None:
        """Release what was accepted, then end. Blocks; nothing may be submitted afterwards."""
        self.stopping = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        going = True
        while going:
            group, going = self._collect()
            if not group:
                continue
            try:
                self._serve(group)
            except BaseException as error:  # the thread must outlive whatever happens to a group
                log.error("the writer failed", extra={"facts": {"error": type(error).__name__}})
                for job in group:
                    job.outcome = job.outcome or StoreError("the store failed; nothing is known to be released")
            for job in group:
                job.raw = []
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._tell, group)

    def _collect(self) -> tuple[list[Job], bool]:
        """The jobs of the next transaction, and whether there may be more after it."""
        first = self._queue.get()
        if first is None:
            return [], False
        group, count, end = [first], first.size, time.monotonic() + self._linger
        while count < self._most:
            wait = end - time.monotonic()
            try:
                job = self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return group, False
            group.append(job)
            count += job.size
        return group, True

    def _serve(self, group: list[Job]) -> None:
        """Release the group in one transaction; where one cannot be, find who it is and go on without."""
        left = group
        while len(left) > 1:
            try:
                self._release(left)
                return
            except OutOfOrder as error:
                # later events of a stream make an earlier gap no smaller, so whoever has it is out for good
                culprit, place = _owner(left, error.position)
                culprit.outcome = OutOfOrder(place, str(error))
                left = [job for job in left if job is not culprit]
            except StoreError as error:  # the disk's trouble is everyone's
                for job in left:
                    job.outcome = error
                return
            except Exception:
                break
        for job in left:
            self._alone(job)

    def _alone(self, job: Job) -> None:
        try:
            self._release([job])
        except Exception as error:
            job.outcome = error

    def _release(self, jobs: Sequence[Job]) -> None:
        users = [user for job in jobs for user in job.users]
        seqs = [seq for job in jobs for seq in job.seqs]
        raw = [code for job in jobs for code in job.raw]
        timed = self._store.setting.budget.seconds is not None
        times = [stamp for job in jobs for stamp in job.times or ()] if timed else None
        probes = {PROBE: self.transactions} if any(job.probe for job in jobs) else {}
        store = self._store
        self._share(jobs, _outcome(taken(lambda: store.release(users, raw, seqs, times, lambda made: probes))))
        self.transactions += 1

    def _share(self, jobs: Sequence[Job], made: Outcome) -> None:
        at = 0
        for job in jobs:
            own = Outcome._make(part[at : at + job.size] for part in made)
            job.outcome = budget_spent(self._store.setting, np.array(own.refused), own) if any(own.refused) else own
            at += job.size

    def _tell(self, group: list[Job]) -> None:
        for job in group:
            self.waiting -= job.size
            assert job.done is not None
            if job.done.cancelled():
                continue
            if isinstance(job.outcome, Outcome):
                job.done.set_result(job.outcome)
            else:
                job.done.set_exception(job.outcome or StoreError("the store gave no answer"))
                job.done.exception()  # whoever asked may have gone; then nobody looks at it


def _owner(jobs: Sequence[Job], place: int) -> tuple[Job, int]:
    """Whose event stands at this place of the group, and its place among the job's own."""
    for job in jobs[:-1]:
        if place < job.size:
            return job, place
        place -= job.size
    return jobs[-1], place


def _outcome(made: Releases) -> Outcome:
    in_batches = made.sent is not None
    codes: list[int] = [] if in_batches else made.codes.tolist()
    words = [symbols.tolist() for symbols in made.symbols] if in_batches else []
    paths = made.paths if in_batches else []
    return Outcome(codes, made.epsilons.tolist(), made.replayed.tolist(), paths, words, made.refused.tolist())
