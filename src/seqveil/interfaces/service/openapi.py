"""The OpenAPI document of the service: its addresses, who may use them, and every refusal by status."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from seqveil import __version__
from seqveil.interfaces.service import answers, messages
from seqveil.interfaces.service.messages import MEDIA_TYPE, MOST, REASONS, ProblemDetails

ABOUT = """Releases symbols of personal streams with a privacy guarantee, each on the disk before it is answered.

The same user and sequence number again gives the same release, whatever value comes with it, and costs nothing: after
an error or a lost connection send the same events again. Refusals are RFC 9457 problem details; none holds a value.
"""
REF = "#/components/schemas/{model}"
ENTRY = ("unauthorised", "forbidden", "too-many", "tokens")
READING = (*ENTRY, "malformed", "not-found", "gone", "damaged", "store")
WRITING = (
    *ENTRY, "malformed", "too-slow", "out-of-order", "time-went-back", "wrong-model", "too-large", "wrong-type",
    "gone", "damaged", "busy", "store", "stopping", "timeout",
)  # fmt: skip
READY = ("store", "tokens", "busy", "stopping", "timeout")


def document(batches: bool, size: int, value: Any) -> dict[str, Any]:
    """The document of a service that releases batches of so many, or symbols; `value` is one of the alphabet's."""
    body = messages.BatchesRequest if batches else messages.SymbolsRequest
    models = (body, answers.ReleasesAnswer, answers.UserAnswer, answers.ErasedAnswer, answers.ModelAnswer)
    forms = [(each.__name__, "validation", TypeAdapter(each)) for each in (*models, answers.Health, ProblemDetails)]
    _, schemas = TypeAdapter.json_schemas(forms, ref_template=REF)  # type: ignore[arg-type]
    field = {"values": [value] * size} if batches else {"value": value}
    example = {"events": [{"user": "ann", "seq": seq} | field for seq in (0, 1)]}
    release = _operation("Release events, all or none.", "release", answers.ReleasesAnswer, WRITING)
    release["requestBody"] = {"required": True, "content": {"application/json": _of(body) | {"example": example}}}
    read = _operation("A user's account and releases.", "read", answers.UserAnswer, READING)
    read["parameters"] = [_query("since", 0, MOST), _query("limit", 1000, 10_000)]
    erase = _operation("Take a user out of the state file.", "admin", answers.ErasedAnswer, READING)
    erase["parameters"] = [{"name": "forget_ledger", "in": "query", "schema": {"type": "boolean", "default": False}}]
    model = _operation("What a receiver decodes with.", "", answers.ModelAnswer, ENTRY)
    metrics = _operation("Figures for Prometheus.", "metrics", None, (*ENTRY, "damaged", "store"))
    user = {"name": "user", "in": "path", "required": True, "schema": _user()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "seqveil", "version": __version__, "description": ABOUT},
        "paths": {
            "/v1/release": {"post": release},
            "/v1/users/{user}": {"parameters": [user], "get": read, "delete": erase},
            "/v1/model": {"get": model},
            "/metrics": {"get": metrics},
            "/healthz": {"get": _operation("Whether the process answers.", None, answers.Health, ())},
            "/readyz": {"get": _operation("Whether events would be released now.", None, answers.Health, READY)},
        },
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "Made by `seqveil serve token add`."}
            },
        },
    }


def _operation(summary: str, scope: str | None, answer: type | None, reasons: tuple[str, ...]) -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}} if answer is None else {"application/json": _of(answer)}
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": content}}
    for reason in reasons:
        status, title = REASONS[reason]
        found = responses.setdefault(str(status), {"description": "", "content": {MEDIA_TYPE: _of(ProblemDetails)}})
        found["description"] += f"{' / ' if found['description'] else ''}{reason}: {title}"
    security = {} if scope is None else {"security": [{"token": [scope] if scope else []}]}
    return {"summary": summary, "responses": responses} | security


def _of(model: type) -> dict[str, Any]:
    return {"schema": {"$ref": REF.format(model=model.__name__)}}


def _query(name: str, usual: int, most: int) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "schema": {"type": "integer", "minimum": 0, "maximum": most, "default": usual},
    }


def _user() -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": 256, "pattern": messages.PRINTABLE}
