"""A progress bar in seconds: what is left is estimated from short trials, and corrected by every row that is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from seqveil.evaluate.compare_files import Job
from seqveil.interfaces.commands.terminal import bar, check_interrupted

Show = Callable[[float, float, str], None]
UNKNOWN = 1e-5  # seconds an event, until there is a trial


class TimeLeft:
    """How long jobs take: done so far, and left by what an event of the same contestant took last.

    >>> from seqveil.evaluate.comparison import Row
    >>> jobs = [Job(name, 1.0, name, 100, lambda progress: Row("a", "a", 1.0, "sound")) for name in "ab"]
    >>> shown = []
    >>> left = TimeLeft(jobs, lambda done, total, label: shown.append((done, total)))
    >>> left.costs |= {"a": 0.01, "b": 0.03}
    >>> left.step(jobs[0], 50)
    >>> left.finish(jobs[0], 2.0)
    >>> [(round(done, 3), round(total, 3)) for done, total in shown]
    [(0.5, 4.0), (2.0, 5.0)]
    """

    def __init__(self, jobs: Sequence[Job], show: Show) -> None:
        self.costs: dict[str, float] = {}
        self._left = list(jobs)
        self._show = show
        self._done = self._part = 0.0

    def step(self, job: Job, events: int) -> None:
        """So many more events of a job that is under way."""
        check_interrupted()
        expected = self._expected(job)
        self._part = min(self._part + events * self._cost(job), expected)
        left = sum(self._expected(each) for each in self._left)
        self._show(self._done + self._part, self._done + left, job.label)

    def finish(self, job: Job, seconds: float) -> None:
        """A job is done and took this long."""
        check_interrupted()
        self._left.remove(job)
        self.costs[job.label] = seconds / max(1, job.events)
        self._done, self._part = self._done + seconds, 0.0
        self._show(self._done, self._done + sum(self._expected(each) for each in self._left), job.label)

    def _cost(self, job: Job) -> float:
        return self.costs.get(job.label, UNKNOWN)

    def _expected(self, job: Job) -> float:
        return self._cost(job) * job.events


@contextmanager
def time_left(jobs: Sequence[Job]) -> Iterator[TimeLeft]:
    """The time these jobs take, as a bar on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield TimeLeft(jobs, lambda done, total, label: None)
        return
    from rich import progress as parts

    columns = (parts.BarColumn(), parts.TaskProgressColumn(), parts.TimeRemainingColumn())
    with bar(*columns, parts.TextColumn("{task.description}")) as shown:
        task = shown.add_task("trying everyone on a few users", total=None)

        def show(done: float, total: float, label: str) -> None:
            shown.update(task, completed=done, total=max(total, 1e-9), description=label)

        found = TimeLeft(jobs, show)
        _try(found, jobs)
        yield found


def _try(found: TimeLeft, jobs: Sequence[Job]) -> None:
    """Time every contestant once on a few users."""
    for job in jobs:
        if job.trial is not None and job.label not in found.costs:
            check_interrupted()
            began = time.perf_counter()
            row = job.trial()
            found.costs[job.label] = (time.perf_counter() - began) / max(1, row.events)
