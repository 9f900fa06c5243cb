"""The page in the service: a sandbox over made-up streams, loaded data and the public model, and the operator's view.

*Guarantee*: the sandbox has no way to the store: it knows the model and the public setting, and nothing of any user.
Its files are for everyone; its answers need a token where the service has tokens, and keep to the service's limits.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response

from seqveil import __version__
from seqveil.core.distortion import NAMES
from seqveil.interfaces.service.guard import guarded
from seqveil.interfaces.service.problems import Problem
from seqveil.interfaces.service.state import Service
from seqveil.interfaces.studio import routes
from seqveil.interfaces.studio.desk import Desk
from seqveil.interfaces.studio.source import MOST_SYMBOLS, Source, sampled
from seqveil.release.stream import Setting

NEEDS = "Enter any token of this service, as made by seqveil tokens add"


def pages(service: Service) -> list[APIRouter]:
    """The page's routes; none where it is switched off."""
    if not service.config.shows_page:
        return []
    own = [] if service.setting.model.n > MOST_SYMBOLS else [_of_model(service.setting)]
    desk = Desk(own, service=service.setting.model.fingerprint)
    files = routes.files("index.html", Problem, None if service.config.no_auth else NEEDS)
    return [files, routes.answers(desk, Problem, guarded(None)), _for_operators()]


def _of_model(setting: Setting) -> Source:
    """Streams sampled from the service's model, to begin with released as the service does."""
    size, budget = setting.batch, setting.budget
    start: dict[str, Any] = {"mechanism": setting.mechanism.name, "epsilon": setting.epsilon / size, "batch": size}
    start |= {"every": setting.schedule.period, "budget": budget.total, "window": budget.per_window}
    start |= {"window_releases": budget.releases, "when_spent": "hold"}
    if budget.seconds is not None:
        start["window"] = None  # the page has no clock
    if setting.distortion.name in NAMES:
        start["distortion"] = setting.distortion.name
    return sampled(setting.model, start)


def _for_operators() -> APIRouter:
    router = APIRouter(route_class=guarded("admin"), include_in_schema=False)
    router.add_api_route("/v1/operator", operator, methods=["GET"])
    return router


async def operator(request: Request) -> Response:
    """Where the service stands, over all users together: no user, token or value is in it."""
    service: Service = request.app.state.service
    try:
        await service.probe()
        health = "ok"
    except Problem as problem:
        health = problem.reason
    setting = service.setting
    told = {
        "seqveil": __version__,
        "health": health,
        "model": setting.model.fingerprint,
        "setting": setting.to_dict(),
        "private": service.store.private,
        "waiting": service.writer.waiting,
        **await service.metrics.told(setting.budget.total),
    }
    return Response(json.dumps(told, allow_nan=False), headers=routes.PRIVATE, media_type="application/json")
