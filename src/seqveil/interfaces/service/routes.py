"""The endpoints, each thin: what a request means for the store."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from seqveil import __version__
from seqveil.core.errors import InputError
from seqveil.core.times import check, check_clock, seconds
from seqveil.interfaces.service import bodies
from seqveil.interfaces.service.answers import account_of, page_of, releases_of
from seqveil.interfaces.service.documents import refusals, requests, scoped
from seqveil.interfaces.service.guard import covered, guarded
from seqveil.interfaces.service.problems import Problem
from seqveil.interfaces.service.state import Facts, Service, Spent
from seqveil.interfaces.service.tokens import Token
from seqveil.interfaces.service.writer import Job, Outcome
from seqveil.release.stream import UNKNOWN

UserPath = Annotated[str, Path(min_length=1, max_length=256, pattern=bodies.PRINTABLE)]
Since = Annotated[int, Query(ge=0, le=bodies.MOST, description="The first sequence number wanted.")]
Limit = Annotated[int, Query(ge=1, le=10_000, description="The most releases wanted.")]
JSON = "application/json"
ENTRY = ("unauthorised", "forbidden", "too-many")
WRITES = ("malformed", "too-slow", "out-of-order", "time-went-back", "budget-spent", "wrong-model", "too-large")


def routers(service: Service) -> list[APIRouter]:
    """All endpoints of a service, those to release as its setting has them."""
    batches = service.setting.in_batches
    examples = requests(service.wording, batches, service.setting.batch)
    writing = APIRouter(route_class=guarded("release"))
    writing.add_api_route(
        "/v1/release",
        release_batches if batches else release_symbols,
        methods=["POST"],
        response_model=bodies.BatchReleases if batches else bodies.SymbolReleases,
        responses=refusals(*ENTRY, *WRITES, "wrong-type", "busy", "store", "stopping", "timeout"),
        openapi_extra=scoped("release", **examples),
    )
    reading = APIRouter(route_class=guarded("read-account"))
    reading.add_api_route(
        "/v1/users/{user:path}/account",
        account,
        response_model=bodies.Account,
        responses=refusals(*ENTRY, "malformed", "not-found"),
        openapi_extra=scoped("read-account"),
    )
    receiving = APIRouter(route_class=guarded("read"))
    receiving.add_api_route(
        "/v1/users/{user:path}/releases",
        releases,
        response_model=bodies.Page,
        responses=refusals(*ENTRY, "malformed", "not-found"),
        openapi_extra=scoped("read"),
    )
    return [writing, reading, receiving, _for_any_token(), _for_scrapers(), _for_everyone()]


def _for_any_token() -> APIRouter:
    router = APIRouter(route_class=guarded(None))
    unchanged: dict[int | str, dict[str, Any]] = {304: {"description": "The caller has this model (If-None-Match)."}}
    shared: dict[str, Any] = {"responses": refusals(*ENTRY) | unchanged, "openapi_extra": scoped(None)}
    router.add_api_route("/v1/model", model, response_model=bodies.ModelFacts, **shared)
    binary = {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}
    shared["responses"] |= binary
    router.add_api_route("/v1/model/file", model_file, response_class=Response, **shared)
    return router


def _for_scrapers() -> APIRouter:
    router = APIRouter(route_class=guarded("metrics"))
    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
    options: dict[str, Any] = {"responses": refusals(*ENTRY) | text, "openapi_extra": scoped("metrics")}
    router.add_api_route("/metrics", metrics, response_class=Response, **options)
    return router


def _for_everyone() -> APIRouter:
    router = APIRouter()
    answers = refusals("store", "busy", "stopping", "timeout")
    router.add_api_route("/healthz", healthz, response_model=bodies.Health, responses=answers)
    return router


async def release_symbols(request: Request, body: bodies.Symbols) -> Response:
    """Release one event or many; each is on the disk before it is answered.

    A request that cannot be released as it is, is refused before anything is drawn. Where a budget is spent (and the
    service refuses then), the other events are released all the same, and stand in the problem.
    """
    service, events = _begin(request, body, body.events if isinstance(body, bodies.ManySymbols) else [body])
    codes = service.wording.encode([event.value for event in events])
    return await _finish(request, service, events, codes.tolist(), (codes == UNKNOWN).astype(int).tolist())


async def release_batches(request: Request, body: bodies.Batches) -> Response:
    """Release one batch or many; each is on the disk before it is answered.

    A request that cannot be released as it is, is refused before anything is drawn. Where a budget is spent (and the
    service refuses then), the other batches are released all the same, and stand in the problem.
    """
    service, events = _begin(request, body, body.events if isinstance(body, bodies.ManyBatches) else [body])
    size = service.setting.batch
    coded = []
    for place, event in enumerate(events):
        if len(event.values) > size:
            raise Problem("malformed", f"event {place}: expected at most {size} values", position=place)
        coded.append(service.wording.encode(event.values))
    return await _finish(request, service, events, coded, [int((codes == UNKNOWN).sum()) for codes in coded])


def _begin(request: Request, body: Any, events: list[Any]) -> tuple[Service, list[Any]]:
    """Check what does not look at the values: size, model, rate, whose stream it is, times."""
    service: Service = request.app.state.service
    token: Token = request.state.token
    if len(events) > service.config.max_events:
        raise Problem("too-large", f"expected at most {service.config.max_events} events at once; send fewer")
    if body.model is not None and body.model != service.setting.model.fingerprint:
        raise Problem("wrong-model", "the service releases with another model; get it from /v1/model")
    service.guard.charge(token, len(events) - 1)
    covered(token, (event.user for event in events))
    if service.setting.budget.seconds is not None:
        place = next((k for k, event in enumerate(events) if event.time is None), None)
        if place is not None:
            raise Problem("malformed", f"event {place}: expected a time, the budget being per seconds", position=place)
        _check_times(events, service.setting.budget.seconds)
    return service, events


def _check_times(events: list[Any], window: float) -> None:
    """Refuse what is no time, and what no honest clock of now shows."""
    try:
        stamps = seconds([event.time for event in events])
        check_clock(stamps)
        check(stamps, window)
    except InputError as error:
        place = vars(error).get("position")
        raise Problem("malformed", str(error), **({} if place is None else {"position": place})) from None


async def _finish(
    request: Request, service: Service, events: list[Any], coded: list[Any], unknown: list[int]
) -> Response:
    users, seqs = [event.user for event in events], [event.seq for event in events]
    facts: Facts = request.scope["seqveil"]
    facts.events, facts.users = len(events), users
    try:
        made = await service.write(Job(users, seqs, coded, [event.time for event in events]))
    except Spent as spent:
        _count(service, facts, spent.made, unknown)
        raise
    _count(service, facts, made, unknown)
    return Response(releases_of(users, seqs, made, service.wording.shown), media_type=JSON)


def _count(service: Service, facts: Facts, made: Outcome, unknown: list[int]) -> None:
    """Take what was drawn into the log line and the metrics."""
    service.count(made)
    facts.replayed = sum(made.replayed)
    each = zip(unknown, made.replayed, made.refused, strict=True)
    facts.unknown = sum(count for count, again, refused in each if not (again or refused))
    service.metrics.unknown.inc(facts.unknown)


def account(request: Request, user: UserPath) -> Response:
    """A user's ledger: releases, leakage so far on both sides, what composition charges, budget left."""
    service = _of(request, user)
    found = service.store.standing(user)
    if found is None:
        raise Problem("not-found", "nothing was released of this user")
    return Response(account_of(found), media_type=JSON)


def releases(request: Request, user: UserPath, since: Since = 0, limit: Limit = 1000) -> Response:
    """What was released of a user, for a receiver."""
    service = _of(request, user)
    stored = service.store.releases(user, since)
    if not stored and service.store.standing(user) is None:
        raise Problem("not-found", "nothing was released of this user")
    content = page_of(user, stored, since, limit, service.wording.shown, service.setting.in_batches)
    return Response(content, media_type=JSON)


def _of(request: Request, user: str) -> Service:
    """The service, if the caller's token is for this user."""
    token: Token = request.state.token
    if not token.covers(user):
        raise Problem("forbidden", "the token is not for this user")
    request.scope["seqveil"].users = [user]
    service: Service = request.app.state.service
    return service


def model(request: Request) -> Any:
    """The public parameters that a receiver decodes with."""
    service: Service = request.app.state.service
    setting = service.setting
    facts = bodies.ModelFacts(
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


def metrics(request: Request) -> Response:
    """Figures for Prometheus, over all users together."""
    service: Service = request.app.state.service
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def healthz(request: Request) -> Any:
    """Whether the service lives and its disk can be written."""
    service: Service = request.app.state.service
    await service.probe()
    return Response(b'{"status":"ok"}', media_type=JSON)
