"""One running service: what all endpoints share, and the one thread that writes for them.

Requests that arrive while a transaction is synced to the disk share the next one, so the more there are the less each
costs. What is wrong with a request holds up no other (`seqveil.interfaces.events`).
"""

from __future__ import annotations

import asyncio
import os
import queue
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from seqveil.core.errors import InputError
from seqveil.engine.calls import MOST_SKIPPED, BeyondSecrets
from seqveil.engine.coded import CodeStreams, OutOfOrder, Releases, StoreError
from seqveil.engine.store import Damaged, Erased, NoLongerKept, NoSuchUser
from seqveil.engine.stream import Terms
from seqveil.interfaces.events import EventJob, Wording, release_together
from seqveil.interfaces.figures import free_bytes
from seqveil.interfaces.service.access import Guard
from seqveil.interfaces.service.config import ServeConfig
from seqveil.interfaces.service.messages import Problem
from seqveil.interfaces.service.monitoring import Metrics, log
from seqveil.interfaces.service.parts import Parts
from seqveil.interfaces.service.tokens import Keyring

PROBE = "service: last probe"
RECENT = 0.05  # seconds since something was committed, for which readers are held back
REST, SHORTEST_REST, LONGEST_REST = 3.0, 0.01, 0.1  # times as long as the last one read, and in seconds
PROBE_EVERY = 2.0  # seconds for which a look at the disk stands

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
        self.loop: asyncio.AbstractEventLoop | None = None
        self.waiting = 0  # events; only the loop's thread counts
        self.stopping = False
        self.transactions = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to write, and tell this event loop of what was done."""
        self.loop = loop
        self._thread.start()

    def submit(self, job: EventJob) -> Promise:
        """Queue a job, on the event loop's thread; the future is for waiting on with a shield."""
        assert self.loop is not None
        promise: Promise = self.loop.create_future()
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
                assert self.loop is not None
                self.loop.call_soon_threadsafe(self._tell, group)

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

    def _tell(self, group: list[tuple[EventJob, Promise]]) -> None:
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
def damage_disclosed() -> Iterator[None]:
    """Reading what may be damaged, or not to be read at all."""
    try:
        yield
    except Damaged as error:
        raise damaged_problem(error) from None
    except NoLongerKept as error:
        detail = f"releases before number {error.kept} of this user were erased; ask from there on"
        raise Problem("gone", detail, kept_from=error.kept) from None
    except StoreError as error:
        log.error("the store cannot be read", extra={"facts": {"detail": str(error)}})
        raise Problem("store", "the state file cannot be read now; try again", wait=5) from None


def _tokens_disclosed(trouble: str | None) -> None:
    if trouble is None:
        log.warning("the tokens can be read again")
    else:
        log.error("no token is good", extra={"facts": {"detail": trouble}})


def disk_trouble(path: str | os.PathLike[str], least: int) -> str | None:
    """Why there is too little room beside a file, or None.

    >>> disk_trouble(".", 0) is None, "free" in disk_trouble(".", 1 << 62)
    (True, True)
    """
    try:
        free = free_bytes(path)
    except OSError as error:
        return f"the disk of the state file cannot be looked at ({error.strerror}); check the path"
    if free >= least:
        return None
    if free >> 20 == least >> 20:  # a figure in MiB would not show the difference
        return f"the disk of the state file has {free:,} bytes free, of at least {least:,}; free some space"
    return f"the disk of the state file has {free >> 20} MiB free, of at least {least >> 20}; free some space"


class Service:
    """Everything behind the endpoints."""

    def __init__(self, store: CodeStreams, setting: Terms, config: ServeConfig) -> None:
        if setting.signature != store.setting.signature:
            raise InputError("the store is of another setting than the service; open it with the service's own")
        self.store, self.setting, self.config = store, setting, config
        self.wording = Wording(setting.model.alphabet, config.on_unknown)
        self.ring = None if config.tokens is None else Keyring(config.tokens, _tokens_disclosed)
        self.guard = Guard(self.ring, config.rate, config.max_body, config.timeout)
        self.writer = ReleaseWriter(store, config.group, config.linger)
        self.hidden = 0  # values outside the alphabet; follows from raw data, so it is in no log and no metric
        self.state = Path(store.file) if config.state is None and store.file is not None else config.state
        self.metrics = Metrics(store, config.metrics_refresh, self.state)
        self.metrics.waiting.set_function(lambda: self.writer.waiting)
        self._probed, self._copying = float("-inf"), threading.Lock()
        self._reading, self._rested = asyncio.Lock(), 0.0  # one reader at a time, and when the next one may begin

    @cached_property
    def model_file(self) -> bytes:
        """The model as a file that `MarkovModel.load` reads."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model")
            self.setting.model.save(path)
            return path.read_bytes()

    async def write(self, job: EventJob) -> Releases:
        """Have a job released, or say why it was not.

        A refusal in the middle of a large job has what stands of it in `made`.
        """
        if self.writer.stopping:
            raise Problem("stopping", "the service is shutting down; nothing was released, try again", wait=1)
        if self.writer.waiting and self.writer.waiting + job.size > self.config.max_waiting:
            raise Problem("busy", "too many events are waiting; nothing was released, try again", wait=1)
        parts = Parts(job, self.setting, self.config.group)
        try:
            async with asyncio.timeout(self.config.timeout):
                return await (self._in_parts(parts) if parts.several else self.writer.submit(job))
        except (TimeoutError, InputError, StoreError, Damaged) as error:
            raise await self._refusal(parts, error) from None

    async def _in_parts(self, parts: Parts) -> Releases:
        """Have a large job released in parts; what is wrong with any of them is found before the first is drawn."""
        job = parts.job
        times = job.times if self.setting.timed else None
        await run_in_threadpool(self.store.check, job.users, job.raw, job.seqs, times)
        for part in parts:
            if self.writer.stopping:
                raise StoreError("the service is shutting down")
            parts.take(await self.writer.submit(part))
        return parts.made

    async def _refusal(self, parts: Parts, error: Exception) -> Problem:
        """What to answer instead of a release; where parts of a large job are out, that they are."""
        stands = "nothing was released"
        if parts.done:
            stands = f"of the {parts.done} events before, what stands in releases is released for good"
        problem = await self._problem(parts, error, stands)
        if parts.done:
            problem.made = parts.made
            problem.members.setdefault("position", parts.done)
        return problem

    async def _problem(self, parts: Parts, error: Exception, stands: str) -> Problem:
        if isinstance(error, TimeoutError):
            return Problem("timeout", "the release may yet be made: send the same events again to get it", wait=1)
        if isinstance(error, OutOfOrder):
            return await self._gap(parts.job, parts.place(error.position), stands)
        if isinstance(error, Damaged):
            return damaged_problem(error)
        if isinstance(error, StoreError):
            log.error("the store refused", extra={"facts": {"detail": str(error)}})
            self._probed = float("-inf")  # whoever asks for its health sees it tried again
            return Problem("store", f"the state file cannot be written now; {stands}, try again", wait=5)
        if isinstance(error, BeyondSecrets):
            return Problem("malformed", f"{error}; {stands}")
        if self.setting.budget.seconds is not None and isinstance(error, InputError) and error.position is not None:
            place = parts.place(error.position)
            detail = f"event {place} is of an earlier time than one of its user before; times may not go back; {stands}"
            return Problem("time-went-back", detail, position=place)
        # of what is reported here, only that an event lies in another slot than is its turn can be news to a sender
        return Problem("malformed", str(error) if self.setting.clocked else "the events cannot be released as they are")

    async def read(self, look: Callable[[], Response]) -> Response:
        """Have something looked up off the event loop, one after another.

        Whoever reads takes the interpreter, and the writer asks for it back a dozen times in a transaction: many
        readers wait for each other, so that no event waits for many readers. While events come, there is also a rest
        between one and the next: at most a hundred a second are looked after, in at most a quarter of the time.
        """
        async with self._reading:
            if self.writer.waiting or time.time() - (self.store.committed or 0.0) < RECENT:
                await asyncio.sleep(max(0.0, self._rested - time.monotonic()))
            begin = time.monotonic()
            try:
                return await run_in_threadpool(damage_disclosed()(look))
            finally:
                end = time.monotonic()
                self._rested = end + min(max(REST * (end - begin), SHORTEST_REST), LONGEST_REST)

    def backup(self) -> dict[str, Any]:
        """Copy the state file into the folder for that; one copy at a time."""
        folder, state = self.config.backups, self.state
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

    def erase(self, user: str, forget_ledger: bool) -> dict[str, Any]:
        """Take a user out of the state file; events wait while it is written anew."""
        unknown = Problem("not-found", "nothing was released of this user")
        with damage_disclosed():
            if self.store.account(user) is None and not forget_ledger:
                raise unknown
        try:
            releases, sources = self.store.erase([user], forget_ledger)
        except NoSuchUser:
            raise unknown from None
        except StoreError as error:
            log.error("a user was not erased", extra={"facts": {"detail": str(error)}})
            raise Problem("store", f"{error}", wait=5) from None
        log.info("erased", extra={"facts": {"releases": releases}})
        return {"releases": releases, "ledger": "forgotten" if forget_ledger else "kept", "sources": sources}

    def left_out(self, users: list[str], seqs: list[int]) -> int:
        """How many numbers these events leave out, as far as is known: each counts as an event for the rate.

        An event that leaves out more than it may is refused for it, and costs what any other does.
        """
        names = list(dict.fromkeys(users))
        try:
            ahead = dict(zip(names, self.store.next_seqs(names).tolist(), strict=True))
        except StoreError:  # whoever releases them hears of it
            return 0
        total = 0
        for user, seq in zip(users, seqs, strict=True):
            left = max(0, seq - ahead[user])
            total += left if left <= MOST_SKIPPED else 0
            ahead[user] = max(ahead[user], seq + 1)
        return total

    async def _gap(self, job: EventJob, place: int, stands: str) -> Problem:
        upcoming = await run_in_threadpool(self.store.next_seqs, [job.users[place]])
        others = "others" if self.config.gaps == "refuse" else f"more than {MOST_SKIPPED} others"
        detail = f"event {place} leaves {others} of its user out; {upcoming[0]} is next; {stands}"
        return Problem("out-of-order", detail, position=place, next=int(upcoming[0]))

    async def probe(self) -> None:
        """Write something and see it on the disk, and that the tokens can be read; or refuse."""
        if self.ring is not None and self.ring.look() is not None:
            raise Problem("tokens", "the file of tokens cannot be read, so no token is good", wait=5)
        if time.monotonic() - self._probed > PROBE_EVERY:
            await self.write(EventJob([], [], [], None))
            self._probed = time.monotonic()

    async def ready(self) -> None:
        """Refuse, in plain words, where requests would be refused: one reason after another, the first by its name."""
        found: list[tuple[str, str]] = []
        if self.writer.waiting >= self.config.max_waiting:
            detail = f"{self.writer.waiting} events wait, of at most {self.config.max_waiting}; send less at a time"
            found.append(("busy", detail))
        if self.state is not None and (trouble := disk_trouble(self.state, self.config.min_free)):
            found.append(("store", trouble))
        try:
            await self.probe()
        except Problem as problem:
            found.insert(0, (problem.reason, problem.detail))
        if found:
            raise Problem(found[0][0], "; ".join(detail for _, detail in found), wait=5)
