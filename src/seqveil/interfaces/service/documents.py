"""The OpenAPI side of the endpoints: examples, refusals, and which scope each needs."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from seqveil.interfaces.service.bodies import ProblemDetails
from seqveil.interfaces.service.problems import MEDIA_TYPE, REASONS
from seqveil.interfaces.service.wording import Wording

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


def scoped(scope: str | None, **more: Any) -> dict[str, Any]:
    """What OpenAPI says of an endpoint that needs a token with this scope, or any token."""
    return {"security": [{"token": [] if scope is None else [scope]}], **more}


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
        "token": {"type": "http", "scheme": "bearer", "description": "Made by `seqveil tokens add`."}
    }
    app.openapi_schema = document
    return document
