"""The endpoints, each thin: what a request means for the store, and what OpenAPI says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from seqveil import __version__
from seqveil.core.errors import InputError
from seqveil.core.times import check, check_clock, seconds
from seqveil.engine.calls import MOST_WATCHED
from seqveil.engine.coded import Releases
from seqveil.engine.stream import UNKNOWN
from seqveil.interfaces.events import EventJob, Wording
from seqveil.interfaces.service import answers, messages
from seqveil.interfaces.service.access import covered, guarded
from seqveil.interfaces.service.messages import MEDIA_TYPE, REASONS, Problem, ProblemDetails
from seqveil.interfaces.service.monitoring import LogFacts
from seqveil.interfaces.service.tokens import Token
from seqveil.interfaces.service.writer import Service

UserPath = Annotated[str, Path(min_length=1, max_length=256, pattern=messages.PRINTABLE)]
Since = Annotated[int, Query(ge=0, le=messages.MOST, description="The first sequence number wanted.")]
Limit = Annotated[int, Query(ge=1, le=10_000, description="The most releases wanted.")]
Forget = Annotated[bool, Query(description="Drop the ledger too; refused where events are drawn with a key.")]
JSON = "application/json"
USER = "/v1/users/{user:path}"
MOST_LEFT_OUT = 1_000_000  # numbers that the events of a request may leave out together
ENTRY = ("unauthorised", "forbidden", "too-many", "tokens")
WRITES = ("malformed", "too-slow", "out-of-order", "time-went-back", "wrong-model", "too-large")


def routers(service: Service) -> list[APIRouter]:
    """All endpoints of a service, those to release as its setting has them."""
    batches = service.setting.in_batches
    examples = requests(service.wording, batches, service.setting.batch)
    public = refusals(*ENTRY) | {304: {"description": "The caller has this model (If-None-Match)."}}
    binary = {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}
    text = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
    reading = refusals(*ENTRY, "malformed", "not-found", "gone", "damaged", "store")
    everyone = APIRouter()
    unwell = refusals("store", "tokens", "busy", "stopping", "timeout")
    for path, answer, disclosed in (("/healthz", healthz, unwell), ("/readyz", readyz, unwell), ("/livez", livez, {})):
        everyone.add_api_route(path, answer, response_model=messages.Health, responses=disclosed)
    return [
        _endpoint(
            "release",
            "/v1/release",
            release_batches if batches else release_symbols,
            form=TypeAdapter(messages.Batches if batches else messages.Symbols),
            methods=["POST"],
            response_model=messages.BatchReleases if batches else messages.SymbolReleases,
            responses=refusals(
                *ENTRY, *WRITES, "wrong-type", "gone", "damaged", "busy", "store", "stopping", "timeout"
            ),
            openapi_extra=examples,
        ),
        _endpoint("read-account", f"{USER}/account", account, response_model=messages.AccountAnswer, responses=reading),
        _endpoint("read", f"{USER}/releases", releases, response_model=messages.Page, responses=reading),
        _endpoint(
            "admin",
            USER,
            erase,
            methods=["DELETE"],
            response_model=messages.ErasedUser,
            responses=reading,
        ),
        _endpoint(None, "/v1/model", model, response_model=messages.ModelFacts, responses=public),
        _endpoint(None, "/v1/model/file", model_file, response_class=Response, responses=public | binary),
        _endpoint(
            "admin",
            "/v1/backup",
            backup,
            methods=["POST"],
            response_model=messages.Copied,
            responses=refusals(
                *ENTRY, "malformed", "not-found", "too-slow", "too-large", "wrong-type", "busy", "store"
            ),
        ),
        _endpoint("metrics", "/metrics", metrics, response_class=Response, responses=refusals(*ENTRY, "store") | text),
        everyone,
    ]


def _endpoint(
    scope: str | None,
    path: str,
    answer: Callable[..., Any],
    openapi_extra: dict[str, Any] | None = None,
    form: TypeAdapter[Any] | None = None,
    **how: Any,
) -> APIRouter:
    """An endpoint that needs a token with this scope, or any token; `form` is as for `guarded`."""
    router = APIRouter(route_class=guarded(scope, form))
    security = {"security": [{"token": [] if scope is None else [scope]}]}
    router.add_api_route(path, answer, openapi_extra=security | (openapi_extra or {}), **how)
    return router


async def release_symbols(request: Request, body: messages.Symbols) -> Response:
    """Release one event or many; each is on the disk before it is answered.

    A request that cannot be released as it is, is refused before anything is drawn.
    """
    service, events = _begin(request, body, body.events if isinstance(body, messages.ManySymbols) else [body])
    codes = service.wording.encode([event.value for event in events])
    service.hidden += int((codes == UNKNOWN).sum())
    return await _finish(request, service, events, codes.tolist())


async def release_batches(request: Request, body: messages.Batches) -> Response:
    """Release one batch or many; each is on the disk before it is answered.

    A request that cannot be released as it is, is refused before anything is drawn.
    """
    service, events = _begin(request, body, body.events if isinstance(body, messages.ManyBatches) else [body])
    size = service.setting.batch
    coded = []
    for place, event in enumerate(events):
        if len(event.values) > size:
            raise Problem("malformed", f"event {place}: expected at most {size} values", position=place)
        coded.append(service.wording.encode(event.values))
    service.hidden += sum(int((codes == UNKNOWN).sum()) for codes in coded)
    return await _finish(request, service, events, coded)


def _begin(request: Request, body: Any, events: list[Any]) -> tuple[Service, list[Any]]:
    """Check what does not look at the values: size, model, rate, whose stream it is, times."""
    service: Service = request.app.state.service
    token: Token = request.state.token
    if len(events) > service.config.max_events:
        most = service.config.max_events
        raise Problem("too-large", f"expected at most {most} events at once; send them in parts", most=most)
    if body.model is not None and body.model != service.setting.model.fingerprint:
        raise Problem("wrong-model", "the service releases with another model; get it from /v1/model")
    request.scope["seqveil"].users = users = [event.user for event in events]
    covered(token, users)
    if service.setting.timed:
        place = next((k for k, event in enumerate(events) if event.time is None), None)
        if place is not None:
            raise Problem("malformed", f"event {place}: expected a time, {_why(service)}", position=place)
        _check_times(events, service.setting.budget.seconds)
    return service, events


def _why(service: Service) -> str:
    """Why every event needs its time."""
    per_seconds = service.setting.budget.seconds is not None
    return "the budget being per seconds" if per_seconds else "secrets following the clock"


def _check_times(events: list[Any], window: float | None) -> None:
    """Refuse what is no time, and what no honest clock of now shows."""
    try:
        stamps = seconds([event.time for event in events])
        check_clock(stamps)
        if window is not None:
            check(stamps, window)
    except InputError as error:
        place = vars(error).get("position")
        raise Problem("malformed", str(error), **({} if place is None else {"position": place})) from None


async def _finish(request: Request, service: Service, events: list[Any], coded: list[Any]) -> Response:
    users, facts = [event.user for event in events], request.scope["seqveil"]
    facts.events = len(events)
    seqs = [event.seq for event in events]
    left_out = await run_in_threadpool(service.left_out, users, seqs) if service.config.gaps == "skip" else 0
    # with declared secrets each number left out takes the one writer about a millisecond, and everyone else waits
    most = MOST_LEFT_OUT if service.setting.trackers is None else MOST_WATCHED
    if left_out > most:
        detail = f"the events leave {left_out} numbers out, of at most {most} at once; check the numbers"
        raise Problem("too-large", detail)
    service.guard.charge(request.state.token, len(events), paid=1, left_out=left_out)
    job = EventJob(users, seqs, coded, [event.time for event in events])
    try:
        made = await service.write(job)
    except Problem as problem:
        if problem.made is not None:
            _count(service, facts, problem.made)
            problem.members["releases"] = json.loads(answers.rows_of(users, problem.made, service.wording))
        raise
    _count(service, facts, made)
    return Response(f'{{"releases": {answers.rows_of(users, made, service.wording)}}}', media_type=JSON)


def _count(service: Service, facts: LogFacts, made: Releases) -> None:
    """Take what was drawn into the log line and the metrics."""
    facts.replayed = int(made.replayed.sum())
    service.metrics.released(int((~made.refused).sum()), facts.replayed)


async def account(request: Request, user: UserPath) -> Response:
    """A user's ledger: releases, leakage so far on both sides, what composition charges, budget left."""
    service = _of(request, user)
    return await service.read(lambda: _account(service, user))


def _account(service: Service, user: str) -> Response:
    found = service.store.account(user)
    if found is None:
        raise Problem("not-found", "nothing was released of this user")
    return Response(answers.account_of(found), media_type=JSON)


async def releases(request: Request, user: UserPath, since: Since = 0, limit: Limit = 1000) -> Response:
    """What was released of a user, for a receiver."""
    service = _of(request, user)
    return await service.read(lambda: _page(service, user, since, limit))


def _page(service: Service, user: str, since: int, limit: int) -> Response:
    stored = service.store.releases(user, since, limit + 1)
    if not stored and service.store.account(user) is None:
        raise Problem("not-found", "nothing was released of this user")
    content = answers.page_of(user, stored, since, limit, service.wording, service.setting.in_batches)
    return Response(content, media_type=JSON)


def erase(request: Request, user: UserPath, forget_ledger: Forget = False) -> Any:
    """Take a user out of the state file: the releases, the state and the name. Events wait while it is written anew.

    The total of the ledger stays under a keyed hash of the name, so that coming back does not begin the budget anew.
    """
    service: Service = request.app.state.service
    return service.erase(user, forget_ledger)


def _of(request: Request, user: str) -> Service:
    """The service, if the caller's token is for this user."""
    token: Token = request.state.token
    if not token.covers(user):
        raise Problem("forbidden", "the token is not for this user")
    service: Service = request.app.state.service
    return service


def model(request: Request) -> Any:
    """The public parameters that a receiver decodes with."""
    service: Service = request.app.state.service
    setting = service.setting
    facts = messages.ModelFacts(
        fingerprint=setting.model.fingerprint,
        setting=setting.to_dict(),
        alphabet={"kind": setting.model.alphabet.to_json()["kind"], "symbols": setting.model.n},
        private=service.store.private,
        gaps=service.config.gaps,
        file="/v1/model/file",
        seqveil=__version__,
    )
    return _tagged(request, setting.model.fingerprint, facts.model_dump_json(), JSON)


def model_file(request: Request) -> Response:
    """The model, as `seqveil decode --model` and `MarkovModel.load` take it."""
    service: Service = request.app.state.service
    return _tagged(request, service.setting.model.fingerprint, service.model_file, "application/octet-stream")


def _tagged(request: Request, fingerprint: str, content: str | bytes, kind: str) -> Response:
    tag = f'"{fingerprint}"'
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"ETag": tag})
    return Response(content, headers={"ETag": tag}, media_type=kind)


def backup(request: Request, body: messages.CopyWanted) -> Any:
    """Copy the state file into the folder of `--backups`, for its owner alone, and check the copy. Releases go on."""
    service: Service = request.app.state.service
    return service.backup()


async def metrics(request: Request) -> Response:
    """Figures for Prometheus, over all users together."""
    service: Service = request.app.state.service
    return await service.read(lambda: Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST))


async def healthz(request: Request) -> Any:
    """Whether the service lives and its disk can be written."""
    service: Service = request.app.state.service
    await service.probe()
    return Response(b'{"status":"ok"}', media_type=JSON)


async def readyz(request: Request) -> Any:
    """Whether events would be released now: the file can be written, the tokens read, and there is room."""
    service: Service = request.app.state.service
    await service.ready()
    return Response(b'{"status":"ok"}', media_type=JSON)


async def livez(request: Request) -> Any:
    """Whether the process answers at all; nothing is written or read for it."""
    return Response(b'{"status":"ok"}', media_type=JSON)


ABOUT = """Releases symbols of personal streams with a privacy guarantee, each on the disk before it is answered.

The same user and sequence number again gives the same release, whatever value comes with it, and costs nothing: after
an error or a lost connection send the same events again. Refusals are RFC 9457 problem details; none holds a value.
"""


def refusals(*reasons: str) -> dict[int | str, dict[str, Any]]:
    """The refusals of an endpoint, by status."""
    found: dict[int | str, dict[str, Any]] = {}
    for reason in reasons:
        status, title = REASONS[reason]
        entry = found.setdefault(status, {"model": ProblemDetails, "description": ""})
        entry["description"] += f"{' / ' if entry['description'] else ''}{reason}: {title}"
    return found


def requests(wording: Wording, batches: bool, size: int) -> dict[str, Any]:
    """Examples of requests to release."""
    value = wording.shown[0]
    field = {"values": [value] * size} if batches else {"value": value}
    first, second = ({"user": "ann", "seq": seq} | field for seq in (0, 1))
    examples = {
        "one": {"summary": "One event", "value": first},
        "many": {"summary": "Events released together", "value": {"events": [first, second]}},
    }
    return {"requestBody": {"content": {"application/json": {"examples": examples}}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with problem details as they are sent and nothing that is not."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    document = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
    for operations in document["paths"].values():
        for operation in operations.values():
            answers = operation["responses"]
            if "HTTPValidationError" in str(answers.get("422", "")):
                del answers["422"]
            for status, answer in answers.items():
                content = answer.get("content", {})
                if int(status) >= 400 and "application/json" in content:
                    answer["content"] = {MEDIA_TYPE: content["application/json"]}
    components = document.setdefault("components", {})
    for name in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(name, None)
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "Made by `seqveil serve token add`."}
    }
    app.openapi_schema = document
    return document
