"""One running service: what all endpoints share, and the one thread that writes for them.

Requests that arrive while a transaction is synced to the disk share the next one, so the more there are the less each
costs. What is wrong with a request holds up no other (`seqveil.interfaces.events`).
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool

from seqveil.core.errors import InputError
from seqveil.interfaces.events import Job, Wording, release_together
from seqveil.interfaces.service.access import Guard
from seqveil.interfaces.service.config import ServeConfig
from seqveil.interfaces.service.messages import Problem
from seqveil.interfaces.service.monitoring import Metrics, log
from seqveil.interfaces.service.tokens import Keyring
from seqveil.release.setting import refuse_restarts
from seqveil.release.store.protocol import Compacted, Damaged, Erased
from seqveil.release.stream import Setting
from seqveil.release.streams import OutOfOrder, Releases, StoreError, Streams

PROBE = "service: last probe"
PART, PART_BATCHES = 200, 20  # events of one user that a part of a large request has
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


def _parts(job: Job, most: int, setting: Setting) -> Iterator[Job]:
    """A large job in parts that each take the writer for a moment.

    Not where a later event may be refused for its time or for what an earlier one did (a budget in seconds, hours of
    the day, a budget that ends a stream with an error, the length of a stream): such a job stays whole.
    """
    budget = setting.budget
    if setting.timed or setting.watches is not None or (budget.limited and budget.when_spent == "error"):
        yield job
        return
    rounds = PART_BATCHES if setting.in_batches else PART
    begin, counts = 0, dict[str, int]()
    for k, user in enumerate(job.users):
        if k - begin >= most or counts.get(user, 0) >= rounds:
            yield _cut(job, begin, k)
            begin, counts = k, {}
        counts[user] = counts.get(user, 0) + 1
    yield _cut(job, begin, job.size)


def _cut(job: Job, begin: int, end: int) -> Job:
    times = None if job.times is None else job.times[begin:end]
    return Job(job.users[begin:end], job.seqs[begin:end], job.raw[begin:end], times)


def _joined(made: list[Releases]) -> Releases:
    """The releases of the parts of a job, as those of the whole."""
    columns: list[Any] = []
    for each in fields(Releases):
        parts = [getattr(part, each.name) for part in made]
        if isinstance(parts[0], list):
            columns.append([sent for part in parts for sent in part])
        else:
            columns.append(None if parts[0] is None else np.concatenate(parts))
    return Releases(*columns)


def damaged_problem(error: Damaged) -> Problem:
    """The refusal for users whose records are damaged or erased; which ones stands in no answer, and by number in the
    log."""
    if isinstance(error, Erased):
        return Problem("gone", "this user was erased, so nothing more can be released of it")
    log.error("a user is damaged", extra={"facts": {"detail": str(error)}})
    detail = (
        "the records of this user are damaged, so nothing of it was released; whoever runs the service must see to it"
    )
    return Problem("damaged", detail)


@contextmanager
def damage_told() -> Iterator[None]:
    """Reading what may be damaged, or not to be read at all."""
    try:
        yield
    except Damaged as error:
        raise damaged_problem(error) from None
    except Compacted as error:
        detail = f"releases before number {error.kept} of this user were compacted away or erased; ask from there on"
        raise Problem("gone", detail, kept_from=error.kept) from None
    except StoreError as error:
        log.error("the store cannot be read", extra={"facts": {"detail": str(error)}})
        raise Problem("store", "the state file cannot be read now; try again", wait=5) from None


def _tokens_told(trouble: str | None) -> None:
    if trouble is None:
        log.warning("the tokens can be read again")
    else:
        log.error("no token is good", extra={"facts": {"detail": trouble}})


class Service:
    """Everything behind the endpoints."""

    def __init__(self, store: Streams, setting: Setting, config: ServeConfig) -> None:
        refuse_restarts(setting, "the service")
        if setting.signature != store.setting.signature:
            raise InputError("the store is of another setting than the service; open it with the service's own")
        self.store, self.setting, self.config = store, setting, config
        self.wording = Wording(setting.model.alphabet, config.on_unknown)
        self.ring = None if config.tokens is None else Keyring(config.tokens, _tokens_told)
        self.guard = Guard(self.ring, config.rate, config.max_body, config.timeout)
        self.writer = Writer(store, config.group, config.linger)
        self.metrics = Metrics(store, config.metrics_refresh)
        self.metrics.waiting.set_function(lambda: self.writer.waiting)
        self._probed, self._copying = float("-inf"), threading.Lock()

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
                return await self._in_parts(job)
        except TimeoutError:
            detail = "the release may yet be made: send the same events again to get it"
            raise Problem("timeout", detail, wait=1) from None
        except OutOfOrder as error:
            raise await self._gap(job, error.position) from None
        except Damaged as error:
            raise damaged_problem(error) from None
        except StoreError as error:
            log.error("the store refused", extra={"facts": {"detail": str(error)}})
            detail = "the state file cannot be written now; nothing was released, try again"
            raise Problem("store", detail, wait=5) from None
        except InputError as error:
            if self.setting.budget.seconds is None:
                # of what is told here, only that an event came at another hour than is its turn can be news to a sender
                by_hour = self.setting.model.hours is not None
                detail = str(error) if by_hour else "the events cannot be released as they are"
                raise Problem("malformed", detail) from None
            detail = "the times of a user's events may not go back; nothing was released"
            raise Problem("time-went-back", detail) from None

    async def _in_parts(self, job: Job) -> Releases:
        """Have a job released, a large one in parts between which others go."""
        parts = list(_parts(job, self.config.group, self.setting)) if job.size > PART else [job]
        if len(parts) == 1:
            return await self.writer.submit(job)
        # a gap in a later part must not be found when an earlier one is out
        wrong = (await run_in_threadpool(self.store.misplaced, [(job.users, job.seqs)]))[0]
        if wrong is not None:
            raise wrong
        made = [await self.writer.submit(part) for part in parts]
        job.raw = []
        return _joined(made)

    def backup(self) -> dict[str, Any]:
        """Copy the state file into the folder for that; one copy at a time."""
        folder, state = self.config.backups, self.config.state
        if folder is None:
            raise Problem("not-found", "the service was started without --backups FOLDER, so it makes no copies")
        if not self._copying.acquire(blocking=False):
            raise Problem("busy", "a copy is being made; ask again when it is done", wait=5)
        try:
            stem = "state" if state is None else state.stem
            name = f"{stem}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}.db"
            found = self.store.backup(folder / name)
        except StoreError as error:
            log.error("no copy was made", extra={"facts": {"detail": str(error)}})
            raise Problem("store", f"no copy was made: {error}", wait=5) from None
        finally:
            self._copying.release()
        log.info("copied", extra={"facts": {"file": name}})
        return {"file": name, "users": found.users, "releases": found.releases}

    def left_out(self, users: list[str], seqs: list[int]) -> int:
        """How many numbers these events leave out, as far as is known: each counts as an event for the rate."""
        names = list(dict.fromkeys(users))
        try:
            ahead = dict(zip(names, self.store.next_seqs(names).tolist(), strict=True))
        except StoreError:  # whoever releases them hears of it
            return 0
        total = 0
        for user, seq in zip(users, seqs, strict=True):
            total += max(0, seq - ahead[user])
            ahead[user] = max(ahead[user], seq + 1)
        return total

    async def _gap(self, job: Job, place: int) -> Problem:
        upcoming = await run_in_threadpool(self.store.next_seqs, [job.users[place]])
        detail = f"event {place} leaves others of its user out; {upcoming[0]} is next; nothing was released"
        return Problem("out-of-order", detail, position=place, next=int(upcoming[0]))

    async def probe(self) -> None:
        """Write something and see it on the disk, and that the tokens can be read; or refuse."""
        if self.ring is not None and self.ring.look() is not None:
            raise Problem("tokens", "the file of tokens cannot be read, so no token is good", wait=5)
        if time.monotonic() - self._probed > PROBE_EVERY:
            await self.write(Job([], [], [], None))
            self._probed = time.monotonic()
