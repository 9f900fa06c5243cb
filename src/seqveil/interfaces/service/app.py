"""The service: what each address means for the store, and what is answered.

One ASGI application without a framework: seven addresses, whose callers are let in before anything of theirs is read.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from seqveil import __version__
from seqveil.core.errors import InputError
from seqveil.core.times import check, check_clock, seconds
from seqveil.engine.calls import MOST_SKIPPED, MOST_WATCHED, BeyondSecrets, OutOfOrder
from seqveil.engine.store import NoSuchUser, Releases
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.commands.serve import ServeOptions
from seqveil.interfaces.events import EventJob, Wording
from seqveil.interfaces.figures import free_bytes
from seqveil.interfaces.logs import log
from seqveil.interfaces.service import messages
from seqveil.interfaces.service.limits import Guard, Limits
from seqveil.interfaces.service.messages import MOST, USER, Problem, SentEvents
from seqveil.interfaces.service.monitoring import HttpCall, Metrics
from seqveil.interfaces.service.tokens import Keyring, Token
from seqveil.interfaces.service.writer import ReleaseWriter

USERS = "/v1/users/"
RECENT = 0.05  # seconds since something was committed, for which readers are held back
REST, SHORTEST_REST, LONGEST_REST = 3.0, 0.01, 0.1  # times as long as the last one read, and in seconds

Handler = Callable[[HttpCall], Awaitable[Response]]


class Service:
    """The service as an ASGI application over an open store, which stays the caller's to close.

    *Guarantee*: what is answered was committed and synced before. No value, user or token is logged, counted or
    disclosed in a refusal.
    """

    def __init__(self, store: CodeStreams, options: ServeOptions, limits: Limits | None = None) -> None:
        self.store, self.setting, self._limits = store, store.setting, limits or Limits()
        self.wording = Wording(self.setting.model.alphabet)
        self._guard = Guard(None if options.tokens is None else Keyring(options.tokens), self._limits)
        self._writer = ReleaseWriter(store, self._limits.events, self._limits.linger)
        self._metrics = Metrics(store, self._limits.figures, lambda: self._writer.waiting)
        self._reading, self._rested = asyncio.Lock(), 0.0  # one reader at a time, and when the next one may begin
        document = json.loads(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
        document["info"]["version"] = __version__
        # by address and method: the scope of the token that it needs, None for no token
        self._routes: dict[str, dict[str, tuple[str | None, Handler | dict[str, Any]]]] = {
            "/v1/release": {"POST": ("release", self._release)},
            USERS: {"GET": ("read", self._user), "DELETE": ("admin", self._erase)},
            "/metrics": {"GET": ("metrics", self._figures)},
            "/healthz": {"GET": (None, {"status": "ok"})},  # nothing is written or read for it
            "/readyz": {"GET": (None, self._ready)},
            "/openapi.json": {"GET": (None, document)},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or begin and end with the server."""
        if scope["type"] == "lifespan":
            await receive()
            self._writer.start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await run_in_threadpool(self._writer.stop)
            await send({"type": "lifespan.shutdown.complete"})
            return
        begin, call = time.perf_counter(), HttpCall(Request(scope, receive))
        try:
            answer = await self._answer(call)
        except ClientDisconnect:
            return
        except Exception as error:
            problem = messages.problem_of(error)
            call.reason, answer = problem.reason, problem.answer()
            if call.token is None:
                await self._guard.slow_down(call.address)
        await answer(scope, receive, send)
        self._metrics.note(call, answer.status_code, time.perf_counter() - begin)

    async def _answer(self, call: HttpCall) -> Response:
        path, raw = call.request.scope["path"], call.request.scope["raw_path"]
        if raw.startswith(USERS.encode()):
            path, call.user = USERS, unquote(raw[len(USERS) :], errors="surrogateescape")
        methods = self._routes.get(path)
        if methods is None:
            raise Problem("not-found", "there is no such address; see /openapi.json")
        call.route = f"{path}{{user}}" if path == USERS else path
        if call.request.method not in methods:
            raise Problem("wrong-method", f"this address takes {' or '.join(sorted(methods))}")
        scope, act = methods[call.request.method]
        if scope is None:
            await self._guard.slow_down(call.address)
        if not callable(act):  # the same answer to everyone
            return messages.answer(act)
        if scope is None:
            return await act(call)
        token = call.token = self._guard.admit(call.request, scope)
        if path == USERS and not messages.is_user(call.user):
            raise Problem.malformed(USER)
        if path == USERS and not token.covers(call.user):
            raise Problem("forbidden", "the token is not for this user")
        async with self._guard.in_progress(token, call.address):
            return await act(call)

    async def _release(self, call: HttpCall) -> Response:
        """Release events, all or none; each is on the disk before it is answered."""
        token, batches = call.token, self.setting.in_batches
        assert token is not None
        body = await messages.body_of(call.request, self._limits.body, self._limits.request)
        sent = messages.sent_events(body, self.setting.batch if batches else None)
        self._check(sent, token)
        times = self._times(sent.times) if self.setting.timed else None
        if self.store.gaps == "skip":
            await run_in_threadpool(self._check_gaps, sent)
        encode = self.wording.encode
        raw: list[Any] = [encode(values) for values in sent.values] if batches else encode(sent.values).tolist()
        made = await self._written(EventJob(sent.users, sent.seqs, raw, times))
        call.events, call.replayed = int((~made.refused).sum()), int(made.replayed.sum())
        return messages.released(sent.users, made, self.wording)

    def _check(self, sent: SentEvents, token: Token) -> None:
        """Refuse what does not depend on the values: size, whose streams they are."""
        slow = self.setting.in_batches or self.setting.trackers is not None
        most, of_one = self._limits.events, self._limits.one_user_slow if slow else self._limits.one_user
        if len(sent.users) > most:
            raise Problem("too-large", f"expected at most {most} events at once; send them in parts")
        if len(sent.users) > of_one and max(Counter(sent.users).values()) > of_one:
            raise Problem("too-large", f"expected at most {of_one} events of one user; send them in parts")
        place = next((k for k, user in enumerate(sent.users) if not token.covers(user)), None)
        if place is not None:
            raise Problem("forbidden", f"the token is not for the user of event {place}", position=place)

    def _times(self, times: list[Any]) -> list[Any]:
        """The times of events; refuse what is no time, and what no honest clock of now shows."""
        window = self.setting.budget.seconds
        try:
            stamps = seconds(times)
            check_clock(stamps)
            if window is not None:
                check(stamps, window)
        except InputError as error:
            place = {} if error.position is None else {"position": error.position}
            raise Problem("malformed", str(error), **place) from None
        return times

    def _check_gaps(self, sent: SentEvents) -> None:
        """Refuse events that together leave out more numbers than one may: with declared secrets each number takes the
        one writer about a millisecond, and everyone else waits. Of an event that leaves out more by itself the store
        says so."""
        names = list(dict.fromkeys(sent.users))
        ahead, total = dict(zip(names, self.store.next_seqs(names).tolist(), strict=True)), 0
        for user, seq in zip(sent.users, sent.seqs, strict=True):
            left = max(0, seq - ahead[user])
            total += left if left <= MOST_SKIPPED else 0
            ahead[user] = max(ahead[user], seq + 1)
        most = MOST_SKIPPED if self.setting.trackers is None else MOST_WATCHED
        if total > most:
            raise Problem("too-large", f"the events leave {total} numbers out, of at most {most} at once; check them")

    async def _written(self, job: EventJob) -> Releases:
        """Have a job released, or say why it was not."""
        if self._writer.stopping:
            raise Problem("stopping", "the service is shutting down; nothing was released, try again", wait=1)
        if self._writer.waiting and self._writer.waiting + job.size > self._limits.waiting:
            raise Problem("busy", "too many events are waiting; nothing was released, try again", wait=1)
        try:
            async with asyncio.timeout(self._limits.request):
                return await self._writer.submit(job)
        except TimeoutError:
            detail = "the release may yet be made: send the same events again to get it"
            raise Problem("timeout", detail, wait=1) from None
        except OutOfOrder as error:
            upcoming = int((await run_in_threadpool(self.store.next_seqs, [job.users[error.position]]))[0])
            others = "others" if self.store.gaps == "refuse" else f"more than {MOST_SKIPPED} others"
            detail = f"event {error.position} leaves {others} of its user out; {upcoming} is next; nothing was released"
            raise Problem("out-of-order", detail, position=error.position, next=upcoming) from None
        except BeyondSecrets as error:
            raise Problem("malformed", f"{error}; nothing was released") from None
        except InputError as error:
            if self.setting.budget.seconds is not None and error.position is not None:
                detail = f"event {error.position} is of an earlier time than one of its user; nothing was released"
                raise Problem("time-went-back", detail, position=error.position) from None
            # of what is reported here, only that an event lies in another slot than is its turn can be news to a sender
            said = str(error) if self.setting.clocked else "the events cannot be released as they are"
            raise Problem("malformed", said) from None

    async def _user(self, call: HttpCall) -> Response:
        """What was released of a user, and what it disclosed."""
        asked = _query(call, {"since": MOST, "limit": 10_000})
        since, limit = int(asked.get("since", 0)), int(asked.get("limit", 1000))

        def look() -> Response:
            """Off the loop, as SQLite may be slow."""
            found = self.store.account(call.user)
            if found is None:
                raise NoSuchUser
            stored = self.store.releases(call.user, since, limit + 1) if limit else []
            return messages.user_of(found, stored, since, limit, self.wording, self.setting)

        return await self._read(look)

    async def _erase(self, call: HttpCall) -> Response:
        """Take a user out of the state file; the total stays under a keyed hash of the name, so nobody begins anew."""
        _query(call, {})
        releases = await run_in_threadpool(self.store.erase, [call.user])
        log("erased", releases=releases)
        return messages.answer({"releases": releases, "account": "kept"})

    async def _figures(self, call: HttpCall) -> Response:
        """Figures for Prometheus, over all users together."""
        return await self._read(lambda: Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST))

    async def _read(self, look: Callable[[], Response]) -> Response:
        """Have something looked up off the event loop, one after another.

        Whoever reads takes the interpreter, and the writer asks for it back a dozen times in a transaction: many
        readers wait for each other, so that no event waits for many readers. While events come, there is also a rest
        between one and the next: at most a hundred a second are looked after, in at most a quarter of the time.
        """
        async with self._reading:
            if self._writer.waiting or time.time() - (self.store.committed or 0.0) < RECENT:
                await asyncio.sleep(max(0.0, self._rested - time.monotonic()))
            begin = time.monotonic()
            try:
                return await run_in_threadpool(look)
            finally:
                end = time.monotonic()
                self._rested = end + min(max(REST * (end - begin), SHORTEST_REST), LONGEST_REST)

    async def _ready(self, call: HttpCall) -> Response:
        """Whether events would be released now: the tokens can be read, there is room, and the disk takes something."""
        self._guard.check_tokens()
        if self._writer.waiting >= self._limits.waiting:
            detail = f"{self._writer.waiting} events wait, of at most {self._limits.waiting}; send less at a time"
            raise Problem("busy", detail, wait=5)
        if self.store.file is not None and free_bytes(self.store.file) < self._limits.free:
            detail = f"the disk of the state file has less than {self._limits.free:,} bytes free; free some space"
            raise Problem("store", detail, wait=5)
        await self._written(EventJob([], [], [], None))
        return messages.answer({"status": "ok"})


def _query(call: HttpCall, known: dict[str, int]) -> dict[str, str]:
    """What the query says: whole numbers up to so much. A name that is misspelled or stands twice is refused."""
    pairs = call.request.query_params.multi_items()
    given = dict(pairs)
    if not given.keys() <= known.keys() or len(given) < len(pairs):
        wanted = f"nothing but {' and '.join(known)} in the query, at most once" if known else "no query"
        raise Problem.malformed(wanted)
    for name, text in given.items():
        whole = text.isascii() and text.isdecimal() and len(text) <= 16
        if not whole or int(text) > known[name]:
            raise Problem.malformed(f"{name} to be a whole number from 0 to {known[name]}")
    return given
