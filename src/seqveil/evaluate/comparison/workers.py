"""The rows of a comparison made by several processes: the same rows, sooner.

Rows do not depend on one another, so each is made as it would be made alone. What takes less than two seconds is made
in this process, for others take longer than that to start.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType

from seqveil.core.compiled import use_threads
from seqveil.core.errors import SeqveilError
from seqveil.evaluate.comparison.files import RowJob
from seqveil.evaluate.comparison.rows import ComparisonRow

PATIENCE = 2.0  # seconds until other processes are asked to help
REFRESH = 0.1  # seconds between two signs of progress
ENDING = 5.0  # seconds that a process has to end when asked to

Keep = Callable[[RowJob, ComparisonRow], None]
Show = Callable[[str, float], None]


class RowWorkers:
    """Rows that are to be made: those that wait, and those that are under way here or in another process.

    todo: the rows to make.
    processes: how many may make rows at once.
    keep: called with each row as soon as it is there, in this process.
    show: called with what is under way and how many rows are done, a part of one included.
    """

    def __init__(self, todo: Sequence[RowJob], processes: int, keep: Keep, show: Show) -> None:
        self._todo, self._processes, self._keep, self._show = list(todo), processes, keep, show
        self._waiting = deque(range(len(self._todo)))
        self._parts = dict.fromkeys(self._waiting, 0.0)  # how far each row is that is not done
        self._workers: dict[Connection, BaseProcess] = {}
        self._busy: dict[Connection, int] = {}
        self._begun = time.monotonic()

    def __enter__(self) -> RowWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.terminate()  # whatever is under way there is nowhere yet
        for connection, worker in self._workers.items():
            worker.join(ENDING)
            connection.close()

    def make(self) -> None:
        """Make them all."""
        while self._waiting and not self._workers:
            self._make_here(self._waiting.popleft())
            self._ask_for_help()
        while self._busy:
            self._listen(REFRESH)

    def _make_here(self, number: int) -> None:
        job = self._todo[number]
        self._show(job.label, self._done)

        def advance(events: int) -> None:
            self._went_on(number, self._parts[number] + events / job.events)
            self._ask_for_help()
            self._listen(0.0)

        self._made(number, job.make(advance))

    @property
    def _done(self) -> float:
        return len(self._todo) - len(self._parts) + sum(self._parts.values())

    def _went_on(self, number: int, part: float) -> None:
        self._parts[number] = min(part, 1.0)
        self._show(self._todo[number].label, self._done)

    def _made(self, number: int, row: ComparisonRow) -> None:
        self._keep(self._todo[number], row)
        del self._parts[number]
        self._show(self._todo[number].label, self._done)

    def _ask_for_help(self) -> None:
        """Start the other processes where there is enough to do for them."""
        count = min(self._processes, len(self._waiting))
        if self._workers or self._processes < 2 or not count or time.monotonic() < self._begun + PATIENCE:
            return
        context = multiprocessing.get_context("spawn")  # a fork would take over locks that some thread holds
        with _signals_kept_here():
            for _ in range(count):
                ours, theirs = context.Pipe()
                worker = context.Process(target=_work, args=(theirs, self._todo), daemon=True)
                worker.start()
                theirs.close()
                self._workers[ours] = worker
        for connection in self._workers:
            self._hand_out(connection)

    def _hand_out(self, connection: Connection) -> None:
        self._busy.pop(connection, None)
        if self._waiting:
            self._busy[connection] = self._waiting.popleft()
            with suppress(BrokenPipeError):  # it has ended, which the next look at it says
                connection.send(self._busy[connection])

    def _listen(self, seconds: float) -> None:
        """Take in what the other processes have to say."""
        for connection in wait(list(self._busy), seconds) if self._busy else ():
            assert isinstance(connection, Connection)
            number = self._busy[connection]
            try:
                said = connection.recv()
            except (EOFError, OSError):
                raise _ended(self._workers[connection]) from None
            if isinstance(said, Exception):
                raise said
            if isinstance(said, ComparisonRow):
                self._made(number, said)
                self._hand_out(connection)
            else:
                self._went_on(number, said)
        if seconds and self._busy:
            self._show(self._todo[next(iter(self._busy.values()))].label, self._done)


def _ended(worker: BaseProcess) -> SeqveilError:
    worker.join(ENDING)
    return SeqveilError(
        f"a process that made rows ended early (exit code {worker.exitcode}), for want of memory perhaps; "
        "pass fewer --jobs"
    )


@contextmanager
def _signals_kept_here() -> Iterator[None]:
    """Have processes that are started in the block ignore Ctrl-C, since this one ends them; what comes here waits.

    A process that is interrupted while it starts another would leave behind one that nobody ends.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a mask is inherited, a handler is not
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def _work(connection: Connection, jobs: Sequence[RowJob]) -> None:
    """Make rows, one after another, as they are asked for; ends with the process that asks."""
    use_threads(1)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            number = connection.recv()
            try:
                said: object = jobs[number].make(_Progress(connection, jobs[number].events).advance)
            except (BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                said = error
            connection.send(said)


class _Progress:
    """Says now and then which part of a row is done."""

    def __init__(self, connection: Connection, events: int) -> None:
        self._connection, self._events, self._done, self._next = connection, events, 0, 0.0

    def advance(self, events: int) -> None:
        """So many events more were released."""
        self._done += events
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + REFRESH
            self._connection.send(self._done / self._events)
