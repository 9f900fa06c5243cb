"""One running service: its store, its writer, its guard, and what all endpoints share."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from seqveil.core.errors import BudgetSpent, InputError
from seqveil.interfaces.service.answers import rows_of
from seqveil.interfaces.service.config import ServeConfig
from seqveil.interfaces.service.guard import Guard
from seqveil.interfaces.service.logs import Pseudonyms
from seqveil.interfaces.service.metrics import Metrics
from seqveil.interfaces.service.problems import Problem
from seqveil.interfaces.service.wording import Wording
from seqveil.interfaces.service.writer import Job, Outcome, Writer, log
from seqveil.release.stream import Setting
from seqveil.release.streams import OutOfOrder, StoreError, Streams

PROBE_EVERY = 2.0  # seconds for which a look at the disk stands


@dataclass
class Facts:
    """What the log line and the metrics of one request tell."""

    reason: str | None = None
    events: int = 0
    replayed: int = 0
    unknown: int = 0  # values outside the alphabet among those released
    users: list[str] = field(default_factory=list)


class Spent(Problem):
    """A budget is spent; what was `made` of the request all the same stands."""

    def __init__(self, made: Outcome, detail: str, **members: Any) -> None:
        super().__init__("budget-spent", detail, **members)
        self.made = made


class Service:
    """Everything behind the endpoints."""

    def __init__(self, store: Streams, setting: Setting, config: ServeConfig) -> None:
        if setting.signature != store.setting.signature:
            raise InputError("the store is of another setting than the service; open it with the service's own")
        self.store, self.setting, self.config = store, setting, config
        self.wording = Wording(setting.model.alphabet, config.on_unknown)
        self.guard = Guard(config)
        self.writer = Writer(store, config.group, config.linger)
        self.metrics = Metrics(store, config.metrics_refresh)
        self.metrics.waiting.set_function(lambda: self.writer.waiting)
        self.pseudonyms = Pseudonyms() if config.log_users else None
        self._probed = float("-inf")

    @cached_property
    def model_file(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model")
            self.setting.model.save(path)
            return path.read_bytes()

    async def write(self, job: Job) -> Outcome:
        """Have a job released, or say why it was not."""
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
        except BudgetSpent as error:
            raise self._spent(job, error) from None
        except StoreError as error:
            log.error("the store refused", extra={"facts": {"detail": str(error)}})
            detail = "the state file cannot be written now; nothing was released, try again"
            raise Problem("store", detail, wait=5) from None
        except InputError:
            if self.setting.budget.seconds is None:
                raise Problem("malformed", "the events cannot be released as they are") from None
            detail = "the times of a user's events may not go back; nothing was released"
            raise Problem("time-went-back", detail) from None

    def _spent(self, job: Job, error: BudgetSpent) -> Problem:
        """What is refused, and what was released beside it for good."""
        made: Outcome = error.made
        rows = rows_of(job.users, job.seqs, made, self.wording.shown)
        return Spent(made, str(error), position=error.places[0], refused=error.places, releases=rows)

    def count(self, made: Outcome) -> None:
        """Take what a request was released as into the metrics."""
        events, replayed = len(made.refused) - sum(made.refused), sum(made.replayed)
        self.metrics.group.observe(events)
        self.metrics.replays.inc(replayed)
        self.metrics.releases.inc(events - replayed)

    async def _gap(self, job: Job, place: int) -> Problem:
        upcoming = await run_in_threadpool(self.store.next_seqs, [job.users[place]])
        detail = f"event {place} leaves others of its user out; {upcoming[0]} is next; nothing was released"
        return Problem("out-of-order", detail, position=place, next=int(upcoming[0]))

    async def probe(self) -> None:
        """Write something and see it on the disk, or refuse."""
        if time.monotonic() - self._probed > PROBE_EVERY:
            await self.write(Job([], [], [], [], probe=True))
            self._probed = time.monotonic()
