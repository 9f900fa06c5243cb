"""Print what one event takes through each interface, in files, calls and depth: `python scripts/trace_release.py`.

Each interface takes an event once before anything is counted, so that imports, lazy loading and what is made at first
use are behind it. Then it takes the next one under a profile function on every thread, which notes the calls of this
package's own functions: `files` are the distinct files they are in, `calls` how many there are (a generator or
coroutine counts once, however often it goes on; a comprehension does not count), `depth` the most of them nested in
one another on one thread. A command, a request and a micro-batch are traced whole, as nobody can send less; what an
event in them takes by itself is known by `one more`: the calls that two events at once make beyond those of one, and
the files these are in. The other files do their part once a command, request or micro-batch, or once a few thousand
rows.

The compiled kernels are left out, so that the figures do not depend on what is installed; `--compiled` loads them
first, as a long stream and the service do, and calls become about half as many. `--files` names the files, each with
the calls that one event makes into it and those of one event more.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

COMPILED = "--compiled" in sys.argv[1:]
os.environ["SEQVEIL_COMPILED"] = "01"[COMPILED]

import seqveil as sv  # noqa: E402
from seqveil.engine.policy import Policy, Terms  # noqa: E402

# what has no name in `seqveil` itself: the end of its module's path, wherever in the package that lies, and its name
LOAD_COMPILED = ("core/bulk", "load")
COMMANDS = ("cli", "main")
STORE = ("engine/streams", "CodeStreams")
APP = ("service/app", "Service")
CONFIG = ("commands/serve", "ServeOptions")
SPARK_JOB = ("spark/release", "SparkJob")
SPARK_OPERATOR = ("spark/operator", "ReleaseProcessor")

PACKAGE = Path(sv.__file__).parent
HOME = f"{PACKAGE}{os.sep}"
PAUSES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
KEY = bytes(range(32))
EPSILON = 1.0

Take = Callable[[int], object]  # takes so many events at once


class Trace:
    """Counts calls of the package's functions on all threads begun after it was made, while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.clear()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def clear(self) -> None:
        self.files: Counter[str] = Counter()  # calls into each
        self.depth = 0
        self._paused: dict[int, FrameType] = {}  # holds the frames, so that no other takes over a number

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if not self.on or event != "call" or not _ours(frame) or id(frame) in self._paused:
            return
        if frame.f_code.co_flags & PAUSES:
            self._paused[id(frame)] = frame
        self.files[frame.f_code.co_filename] += 1
        self.depth = max(self.depth, _nested(frame))

    def of(self, take: Take, events: int) -> tuple[Counter[str], int]:
        """How many calls this many events make into which files, and the depth."""
        self.clear()
        self.on = True
        try:
            take(events)
        finally:
            self.on = False
        return self.files, self.depth

    def close(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def _ours(frame: FrameType) -> bool:
    code = frame.f_code
    named = code.co_name == "<lambda>" or not code.co_name.startswith("<")  # no comprehension, no module being imported
    return named and code.co_filename.startswith(HOME)


def _nested(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth += _ours(frame)
        frame = frame.f_back
    return depth


def found(place: tuple[str, str]) -> Any:
    """A part of the package by the end of its module's path and its name."""
    ending, name = place
    (path,) = (path for path in PACKAGE.rglob("*.py") if path.as_posix().endswith(f"/{ending}.py"))
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return getattr(import_module(".".join(part for part in parts if part != "__init__")), name)


def model() -> sv.MarkovModel:
    return sv.MarkovModel([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]])


def setting() -> Terms:
    return Policy(epsilon=EPSILON, mechanism="optimal").on(model())


@contextmanager
def by_session(folder: Path) -> Iterator[Take]:
    session = sv.Session(model(), mechanism="optimal", epsilon=EPSILON)

    def take(events: int) -> None:
        for _ in range(events):
            session.release(1)

    yield take


@contextmanager
def by_streams(folder: Path, **how: Any) -> Iterator[Take]:
    """Events of one user in a call of `Streams`."""
    with sv.Streams(model(), mechanism="optimal", epsilon=EPSILON, **how) as streams:
        yield lambda events: streams.release(["ann"] * events, [1] * events)


@contextmanager
def by_streams_with_state(folder: Path) -> Iterator[Take]:
    with by_streams(folder, store=folder / "state.db", key=KEY) as take:
        yield take


@contextmanager
def by_command(folder: Path, *more: str) -> Iterator[Take]:
    """A run of the command over a file with events of one user, each run with files of its own."""
    main, runs = found(COMMANDS), iter(range(99))
    model().save(folder / "model")

    def take(events: int) -> None:
        here = folder / str(next(runs))
        here.mkdir()
        (here / "in.csv").write_text("user,value\n" + "ann,1\n" * events, encoding="utf-8")
        words = ["release", f"{here}/in.csv", "--model", f"{folder}/model", "--epsilon", f"{EPSILON}"]
        words += ["--out", f"{here}/out.csv", *(word.format(here=here) for word in more)]
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            code = main(words)
        if code != 0:
            raise RuntimeError(f"`seqveil release` ended with {code}: {said.getvalue().strip()}")

    yield take


@contextmanager
def by_command_with_state(folder: Path) -> Iterator[Take]:
    with by_command(folder, "--state", "{here}/state.db") as take:
        yield take


@contextmanager
def by_post(folder: Path) -> Iterator[Take]:
    """The service's application asked in this process, without a socket: POST /v1/release."""
    made, numbers = setting(), iter(range(99))
    with found(STORE).open(folder / "state.db", made, key=KEY) as store, asyncio.Runner() as runner:
        app = found(APP)(store, found(CONFIG)(no_auth=True))
        to_app, from_app = asyncio.Queue[dict[str, Any]](), asyncio.Queue[dict[str, Any]]()
        living = runner.get_loop().create_task(app({"type": "lifespan"}, to_app.get, from_app.put))
        to_app.put_nowait({"type": "lifespan.startup"})
        runner.run(from_app.get())

        def take(events: int) -> None:
            sent = [{"user": "ann", "seq": next(numbers), "value": 1} for _ in range(events)]
            runner.run(_post(app, "/v1/release", json.dumps({"events": sent}).encode()))

        try:
            yield take
        finally:
            to_app.put_nowait({"type": "lifespan.shutdown"})
            runner.run(asyncio.wait_for(living, 30))


async def _post(app: Any, path: str, body: bytes) -> None:
    """One request, as a server would hand it to the application."""
    answers: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": "POST"}
    address = {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "root_path": "", "query_string": b""}
    await app(scope | address | {"path": path, "raw_path": path.encode(), "headers": headers}, receive, send)
    if answers[0]["status"] != 200:
        raise RuntimeError(f"POST {path} was answered with {answers[0]['status']}")


@contextmanager
def by_spark(folder: Path) -> Iterator[Take]:
    """A micro-batch of one bucket through the operator, driven by Spark's own tester, which needs no Java."""
    import pandas as pd
    from pyspark.sql.streaming.tws_tester import TwsTester

    made, numbers = setting(), iter(range(99))
    job = found(SPARK_JOB)(made, made.model.alphabet, KEY, ("user", "seq", "value"))
    import_module("pyspark").TaskContext.get = lambda: SimpleNamespace(
        getLocalProperty=lambda _: "query"
    )  # as in a query
    tester = TwsTester(found(SPARK_OPERATOR)(job))

    def take(events: int) -> None:
        rows = [("ann", next(numbers), 1) for _ in range(events)]
        released = tester.testInPandas(0, pd.DataFrame(rows, columns=["user", "seq", "v0"]))
        if len(released) != events:
            raise RuntimeError(f"expected {events} released rows, got {len(released)}")

    yield take


INTERFACES = {
    "Session.release": by_session,
    "Streams.release": by_streams,
    "Streams.release, state file": by_streams_with_state,
    "seqveil release": by_command,
    "seqveil release --state": by_command_with_state,
    "POST /v1/release": by_post,
    "a row through Spark's operator": by_spark,
}


def measured() -> Iterator[tuple[str, Counter[str], int, Counter[str]]]:
    """For each interface: its name, the calls of one event into each file, their depth, and those of one event more."""
    trace = Trace()
    try:
        for name, interface in INTERFACES.items():
            with tempfile.TemporaryDirectory() as folder, interface(Path(folder)) as take:
                take(1)
                take(2)
                one, depth = trace.of(take, 1)
                more = trace.of(take, 2)[0] - one
                yield name, one, depth, more
    finally:
        trace.close()


def main() -> None:
    if COMPILED:
        found(LOAD_COMPILED)()
    print(f"{'one event takes':<32}{'files':>7}{'calls':>7}{'depth':>7}{'one more: files':>18}{'calls':>7}")
    for name, one, depth, more in measured():
        print(f"{name:<32}{len(one):>7}{one.total():>7}{depth:>7}{len(more):>18}{more.total():>7}", flush=True)
        for file in sorted(one) if "--files" in sys.argv[1:] else ():
            print(f"    {file.removeprefix(HOME):<52}{one[file]:>5}{more[file]:>5}")


if __name__ == "__main__":
    main()
