"""The service: what each address means for the store, and what is answered.

One ASGI application without a framework: eight addresses, whose callers are let in before anything of theirs is read.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from seqveil import __version__
from seqveil.core.errors import InputError
from seqveil.core.times import check, check_clock, seconds
from seqveil.engine.calls import MOST_SKIPPED, MOST_WATCHED, BeyondSecrets, OutOfOrder
from seqveil.engine.releases import Releases
from seqveil.engine.store import Damaged, Erased, NoLongerKept, NoSuchUser, StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.events import EventJob, Wording
from seqveil.interfaces.figures import free_bytes
from seqveil.interfaces.service import answers
from seqveil.interfaces.service.config import Limits, ServeOptions
from seqveil.interfaces.service.limits import Guard, body_of
from seqveil.interfaces.service.messages import (
    MOST,
    USER,
    BatchesRequest,
    Problem,
    SymbolsRequest,
    UserName,
    malformed,
    wrong,
)
from seqveil.interfaces.service.monitoring import Metrics, RequestFacts, RequestLog, log
from seqveil.interfaces.service.openapi import document
from seqveil.interfaces.service.tokens import Keyring, Token
from seqveil.interfaces.service.writer import ReleaseWriter

JSON = "application/json"
OK = b'{"status":"ok"}'
USERS = "/v1/users/"
RECENT = 0.05  # seconds since something was committed, for which readers are held back
REST, SHORTEST_REST, LONGEST_REST = 3.0, 0.01, 0.1  # times as long as the last one read, and in seconds
_NAME = TypeAdapter(UserName)


class AdmittedRequest(NamedTuple):
    """A request that was let in."""

    request: Request
    facts: RequestFacts
    token: Token
    user: str  # that its address names, or nothing

    def number(self, name: str, usual: int, most: int) -> int:
        """A whole number of the query."""
        given = self.request.query_params.get(name, str(usual))
        if not given.isascii() or not given.isdecimal() or len(given) > 16 or int(given) > most:
            raise wrong(([name], f"a whole number from 0 to {most}"))
        return int(given)

    def flag(self, name: str) -> bool:
        """A truth of the query."""
        given = self.request.query_params.get(name, "false")
        if given not in ("true", "false"):
            raise wrong(([name], "true or false"))
        return given == "true"


class Service:
    """The service as an ASGI application over an open store, which stays the caller's to close.

    *Guarantee*: what is answered was committed and synced before. No value, user or token is logged, counted or
    disclosed in a refusal.

    Parameters:
        store: where events are released.
        options: those of the command.
        limits: how much there may be of everything.

    >>> import tempfile
    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil import Policy
    >>> setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> with tempfile.TemporaryDirectory() as folder, CodeStreams.open(f"{folder}/state.db", setting) as store:
    ...     sorted({path for _, path in Service(store, ServeOptions(no_auth=True)).routes})[:2]
    ['/metrics', '/v1/model']
    """

    def __init__(self, store: CodeStreams, options: ServeOptions, limits: Limits | None = None) -> None:
        self.store, self.setting, self._options, self._limits = store, store.setting, options, limits or Limits()
        self.wording = Wording(self.setting.model.alphabet, options.on_unknown)  # type: ignore[arg-type]
        self._form: TypeAdapter[Any] = TypeAdapter(BatchesRequest if self.setting.in_batches else SymbolsRequest)
        self._ring = None if options.tokens is None else Keyring(options.tokens, _note_tokens)
        self._guard = Guard(self._ring, options.rate, self._limits)
        self._writer = ReleaseWriter(store, self._limits.events, self._limits.linger)
        metrics = Metrics(store, self._limits.figures)
        metrics.waiting.set_function(lambda: self._writer.waiting)
        self._metrics, self._log = metrics, RequestLog(metrics)
        self._probed = float("-inf")
        self._reading, self._rested = asyncio.Lock(), 0.0  # one reader at a time, and when the next one may begin
        self.routes: dict[tuple[str, str], tuple[str | None, Callable[[AdmittedRequest], Awaitable[Response]]]] = {
            ("POST", "/v1/release"): ("release", self._release),
            ("GET", USERS): ("read", self._user),
            ("DELETE", USERS): ("admin", self._erase),
            ("GET", "/v1/model"): ("", self._model),
            ("GET", "/metrics"): ("metrics", self._figures),
        }
        self.open: dict[str, Callable[[], Awaitable[Response]]] = {
            "/healthz": self._alive,
            "/readyz": self._ready,
            "/openapi.json": self._openapi,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or begin and end with the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError("the service speaks HTTP alone")
        begin, facts = time.perf_counter(), RequestFacts()
        request = Request(scope, receive)
        try:
            answer = await self._answer(request, facts)
        except Problem as problem:
            facts.reason = problem.reason
            answer = problem.answer()
            if not facts.known:
                await self._guard.slow_down(_address(request))
        except ClientDisconnect:
            return
        except Exception as error:
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            where = f"{frame.f_globals.get('__name__')}:{line}"
            log.error("internal error", extra={"facts": {"error": type(error).__name__, "where": where}})
            facts.reason = "internal"
            answer = Problem("internal", "nothing is known to be released; send the same events again").answer()
        facts.status = answer.status_code
        await answer(scope, receive, send)
        self._log.note(scope["method"], facts, time.perf_counter() - begin)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._writer.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await run_in_threadpool(self._writer.stop)
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, request: Request, facts: RequestFacts) -> Response:
        path, method, user = request.scope["path"], request.method, ""
        raw: bytes = request.scope["raw_path"]
        if raw.startswith(USERS.encode()):
            path, user = USERS, unquote(raw[len(USERS) :], errors="surrogateescape")
        if path in self.open and method == "GET":
            facts.route = path
            await self._guard.slow_down(_address(request))
            return await self.open[path]()
        known = {each for each, of in self.routes if of == path}
        if not known and path not in self.open:
            raise Problem("not-found", "there is no such address; see /openapi.json")
        facts.route = f"{path}{{user}}" if path == USERS else path
        if method not in known:
            raise Problem("wrong-method", f"this address takes {' or '.join(sorted(known)) or 'GET'}")
        scope, act = self.routes[method, path]
        token = self._guard.admit(request, scope or "")
        facts.known = True
        self._guard.charge(token, 1)
        if path == USERS:
            self._check_user(token, user)
        async with self._guard.in_progress(token, _address(request)):
            return await act(AdmittedRequest(request, facts, token, user))

    def _check_user(self, token: Token, user: str) -> None:
        try:
            _NAME.validate_python(user)
        except ValidationError:
            raise wrong((["user"], USER)) from None
        if not token.covers(user):
            raise Problem("forbidden", "the token is not for this user")

    async def _release(self, asked: AdmittedRequest) -> Response:
        """Release events, all or none; each is on the disk before it is answered."""
        limits, token = self._limits, asked.token
        content = await body_of(asked.request, limits.body, limits.request, "send fewer events at once")
        try:
            body = self._form.validate_json(content)
        except ValidationError as error:
            raise malformed(error) from None
        users, seqs = [event.user for event in body.events], [event.seq for event in body.events]
        self._check(body, users, token)
        times = self._times(body.events) if self.setting.timed else None
        raw = self._codes(body.events)
        left_out = await run_in_threadpool(self._left_out, users, seqs) if self.store.gaps == "skip" else 0
        self._guard.charge(token, len(users), paid=1, left_out=left_out)
        asked.facts.events = len(users)
        made = await self._written(EventJob(users, seqs, raw, times))
        asked.facts.replayed = int(made.replayed.sum())
        self._metrics.released(int((~made.refused).sum()), asked.facts.replayed)
        return Response(answers.released(users, made, self.wording), media_type=JSON)

    def _check(self, body: Any, users: list[str], token: Token) -> None:
        """Refuse what does not depend on the values: size, model, whose streams they are."""
        most = self._limits.events
        if len(users) > most:
            raise Problem("too-large", f"expected at most {most} events at once; send them in parts", most=most)
        slow = self.setting.in_batches or self.setting.trackers is not None
        most = self._limits.one_user_slow if slow else self._limits.one_user
        if len(users) > most and max(Counter(users).values()) > most:
            raise Problem("too-large", f"expected at most {most} events of one user; send them in parts", most=most)
        if body.model is not None and body.model != self.setting.model.fingerprint:
            raise Problem("wrong-model", "the service releases with another model; get it from /v1/model")
        place = next((k for k, user in enumerate(users) if not token.covers(user)), None)
        if place is not None:
            raise Problem("forbidden", f"the token is not for the user of event {place}", position=place)

    def _times(self, events: list[Any]) -> list[Any]:
        """The times of events; refuse what is no time, and what no honest clock of now shows."""
        place, window = next((k for k, event in enumerate(events) if event.time is None), None), self._window
        if place is not None:
            why = "the budget being per seconds" if window is not None else "secrets following the clock"
            raise Problem("malformed", f"event {place}: expected a time, {why}", position=place)
        times = [event.time for event in events]
        try:
            stamps = seconds(times)
            check_clock(stamps)
            if window is not None:
                check(stamps, window)
        except InputError as error:
            place = vars(error).get("position")
            raise Problem("malformed", str(error), **({} if place is None else {"position": place})) from None
        return times

    @property
    def _window(self) -> float | None:
        return self.setting.budget.seconds

    def _codes(self, events: list[Any]) -> list[Any]:
        """The code of each event, or the codes of each batch."""
        if not self.setting.in_batches:
            codes: list[int] = self.wording.encode([event.value for event in events]).tolist()
            return codes
        size = self.setting.batch
        place = next((k for k, event in enumerate(events) if len(event.values) > size), None)
        if place is not None:
            raise Problem("malformed", f"event {place}: expected at most {size} values", position=place)
        return [self.wording.encode(event.values) for event in events]

    def _left_out(self, users: list[str], seqs: list[int]) -> int:
        """How many numbers these events leave out: each counts as an event for the rate.

        An event that leaves out more than it may is refused for it, and costs what any other does. With declared
        secrets each number takes the one writer about a millisecond, and everyone else waits.
        """
        names = list(dict.fromkeys(users))
        ahead = dict(zip(names, self.store.next_seqs(names).tolist(), strict=True))
        total = 0
        for user, seq in zip(users, seqs, strict=True):
            left = max(0, seq - ahead[user])
            total += left if left <= MOST_SKIPPED else 0
            ahead[user] = max(ahead[user], seq + 1)
        most = MOST_SKIPPED if self.setting.trackers is None else MOST_WATCHED
        if total > most:
            raise Problem("too-large", f"the events leave {total} numbers out, of at most {most} at once; check them")
        return total

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
            raise Problem(
                "timeout", "the release may yet be made: send the same events again to get it", wait=1
            ) from None
        except OutOfOrder as error:
            raise await self._gap(job, error.position) from None
        except (InputError, StoreError) as error:
            raise self._refusal(error) from None

    async def _gap(self, job: EventJob, place: int) -> Problem:
        upcoming = int((await run_in_threadpool(self.store.next_seqs, [job.users[place]]))[0])
        others = "others" if self.store.gaps == "refuse" else f"more than {MOST_SKIPPED} others"
        detail = f"event {place} leaves {others} of its user out; {upcoming} is next; nothing was released"
        return Problem("out-of-order", detail, position=place, next=upcoming)

    def _refusal(self, error: InputError | StoreError) -> Problem:
        if isinstance(error, StoreError):
            self._probed = float("-inf")  # whoever asks for its health sees it tried again
            return store_problem(error)
        if isinstance(error, BeyondSecrets):
            return Problem("malformed", f"{error}; nothing was released")
        if self._window is not None and error.position is not None:
            detail = f"event {error.position} is of an earlier time than one of its user before; nothing was released"
            return Problem("time-went-back", detail, position=error.position)
        # of what is reported here, only that an event lies in another slot than is its turn can be news to a sender
        return Problem("malformed", str(error) if self.setting.clocked else "the events cannot be released as they are")

    async def _user(self, asked: AdmittedRequest) -> Response:
        """What was released of a user, and what it disclosed."""
        since, limit = asked.number("since", 0, MOST), asked.number("limit", 1000, 10_000)

        def look() -> Response:
            found = self.store.account(asked.user)
            if found is None:
                raise Problem("not-found", "nothing was released of this user")
            stored = self.store.releases(asked.user, since, limit + 1) if limit else []
            content = answers.user_of(found, stored, since, limit, self.wording, self.setting.in_batches)
            return Response(content, media_type=JSON)

        return await self._read(look)

    async def _erase(self, asked: AdmittedRequest) -> Response:
        """Take a user out of the state file. The account's total stays under a keyed hash of the name, so that the
        budget goes on for whoever comes back; `forget_ledger` drops that too."""
        forget = asked.flag("forget_ledger")

        def erase() -> dict[str, Any]:
            if not forget and self.store.account(asked.user) is None:
                raise NoSuchUser
            releases, sources = self.store.erase([asked.user], forget)
            return {"releases": releases, "ledger": "forgotten" if forget else "kept", "sources": sources}

        with _store_problems(lambda error: f"{error}"):  # it may be done in part: the store says what to do
            found = await run_in_threadpool(erase)
        log.info("erased", extra={"facts": {"releases": found["releases"]}})
        return _json(found)

    async def _model(self, asked: AdmittedRequest) -> Response:
        """All that a receiver decodes with."""
        return Response(self._model_answer, media_type=JSON)

    @cached_property
    def _model_answer(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            self.setting.model.save(Path(folder, "model"))
            file = Path(folder, "model").read_bytes()
        facts: dict[str, Any] = {"fingerprint": self.setting.model.fingerprint, "setting": self.setting.to_dict()}
        facts |= {"private": self.store.private, "gaps": self.store.gaps, "seqveil": __version__}
        return bytes(_json(facts | {"file": base64.b64encode(file).decode()}).body)

    async def _figures(self, asked: AdmittedRequest) -> Response:
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
                with _store_problems():
                    return await run_in_threadpool(look)
            finally:
                end = time.monotonic()
                self._rested = end + min(max(REST * (end - begin), SHORTEST_REST), LONGEST_REST)

    async def _alive(self) -> Response:
        """Whether the process answers at all; nothing is written or read for it."""
        return Response(OK, media_type=JSON)

    async def _ready(self) -> Response:
        """Whether events would be released now: the file can be written, the tokens read, and there is room."""
        if self._ring is not None and self._ring.look() is not None:
            raise Problem("tokens", "the file of tokens cannot be read, so no token is good", wait=5)
        if self._writer.waiting >= self._limits.waiting:
            detail = f"{self._writer.waiting} events wait, of at most {self._limits.waiting}; send less at a time"
            raise Problem("busy", detail, wait=5)
        if self.store.file is not None and (free := free_bytes(self.store.file)) < self._limits.free:
            detail = f"the disk of the state file has {free:,} bytes free, of at least {self._limits.free:,}"
            raise Problem("store", f"{detail}; free some space", wait=5)
        if time.monotonic() - self._probed > self._limits.probe:
            await self._written(EventJob([], [], [], None))
            self._probed = time.monotonic()
        return Response(OK, media_type=JSON)

    async def _openapi(self) -> Response:
        return Response(self._document, media_type=JSON)

    @cached_property
    def _document(self) -> bytes:
        return bytes(_json(document(self.setting.in_batches, self.setting.batch, self.wording.shown[0])).body)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _json(content: dict[str, Any]) -> Response:
    return Response(json.dumps(content), media_type=JSON)


def _note_tokens(trouble: str | None) -> None:
    if trouble is None:
        log.warning("the tokens can be read again")
    else:
        log.error("no token is good", extra={"facts": {"detail": trouble}})


def _nothing(error: StoreError) -> str:
    return "the state file cannot be used now, and nothing was changed; try again"


def store_problem(error: StoreError, why: Callable[[StoreError], str] = _nothing) -> Problem:
    """The refusal for what the store cannot do; a user is named in no answer, and by number in the log."""
    if isinstance(error, NoSuchUser):
        return Problem("not-found", "nothing was released of this user")
    if isinstance(error, NoLongerKept):
        detail = f"releases before number {error.kept} of this user were erased; ask from there on"
        return Problem("gone", detail, kept_from=error.kept)
    if isinstance(error, Erased):
        return Problem("gone", "this user was erased, so nothing more can be released of it")
    log.error("the store refused", extra={"facts": {"detail": str(error)}})
    if isinstance(error, Damaged):
        return Problem("damaged", "the records of this user are damaged; whoever runs the service must see to it")
    return Problem("store", why(error), wait=5)


@contextmanager
def _store_problems(why: Callable[[StoreError], str] = _nothing) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise store_problem(error, why) from None
