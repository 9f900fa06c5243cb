"""The page over HTTP: its files for everyone, its answers for whom the caller's route class lets in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from seqveil.core.errors import SeqveilError
from seqveil.interfaces.studio.assets import HEADERS, assets
from seqveil.interfaces.studio.desk import Desk, Gone

Refuse = Callable[[str, str], Exception]  # a reason ("malformed", "not-found", "busy", "internal") and one line
PREFIX = "/page"
PRIVATE = {**HEADERS, "Cache-Control": "no-store"}
THREADS, WAITING = 4, 32  # of the page's own, so that whoever shares the process does not wait for it


def files(first: str, refuse: Refuse, needs: str | None) -> APIRouter:
    """The page at /, its files under /page/; no secret is in them, so nobody is asked for one.

    `needs` says what a visitor must enter before the page gets answers, if anything.
    """
    router = APIRouter(include_in_schema=False)

    def entry() -> Response:
        return Response(json.dumps({"needs": needs}), headers=PRIVATE, media_type="application/json")

    def file(request: Request, name: str) -> Response:
        found = assets().get(name)
        if found is None:
            raise refuse("not-found", "the page has no such file")
        headers = {**HEADERS, "ETag": found.tag, "Cache-Control": "no-cache"}
        if found.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.kind)

    def page(request: Request) -> Response:
        return file(request, first)

    router.add_api_route("/", page, methods=["GET"])
    router.add_api_route(f"{PREFIX}/entry.json", entry, methods=["GET"])
    router.add_api_route(f"{PREFIX}/{{name}}", file, methods=["GET"])
    return router


def answers(desk: Desk, refuse: Refuse, route_class: type[APIRoute] = APIRoute) -> APIRouter:
    """What the page asks for while somebody uses it."""
    router = APIRouter(prefix="/v1/page", route_class=route_class, include_in_schema=False)

    line = _Line(refuse)

    def answering(act: Callable[[Any], dict[str, Any]]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            given = _parsed(await request.body(), refuse)
            return await line.told(lambda: act(given))

        return answer

    async def begin(request: Request) -> Response:
        return await line.told(desk.begin)

    router.add_api_route("/begin", begin, methods=["GET"])
    for name in ("source", "load", "show", "curve"):
        router.add_api_route(f"/{name}", answering(getattr(desk, name)), methods=["POST"], name=name)
    return router


def _parsed(body: bytes, refuse: Refuse) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise refuse("malformed", "expected a body that is JSON") from None


class _Line:
    """Requests that wait for their turn on a few threads; when too many do, the next is sent away."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse, self._waiting = refuse, 0
        self._limiter: anyio.CapacityLimiter | None = None  # is of one event loop, so made there

    async def told(self, act: Callable[[], dict[str, Any]]) -> Response:
        if self._waiting >= WAITING:
            raise self._refuse("busy", "too many pictures are being made; ask again in a moment")
        self._limiter = self._limiter or anyio.CapacityLimiter(THREADS)
        self._waiting += 1
        try:
            content = await to_thread.run_sync(act, limiter=self._limiter)
        except Gone as error:
            raise self._refuse("not-found", str(error)) from None
        except SeqveilError as error:
            raise self._refuse("malformed", str(error)) from None
        except Exception as error:  # its message may hold anything, so it goes nowhere
            raise self._refuse("internal", f"{type(error).__name__}; change the setting, or load other data") from None
        finally:
            self._waiting -= 1
        return Response(json.dumps(content, allow_nan=False), headers=PRIVATE, media_type="application/json")
