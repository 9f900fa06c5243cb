"""What goes over the wire: the requests, and the answers as OpenAPI describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, WithJsonSchema

MOST = 2**53 - 1  # whole numbers that every JSON reader keeps
PRINTABLE = r"^[^\x00-\x1f\x7f]+$"

UserName = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=256, pattern=PRINTABLE)]
Seq = Annotated[int, Field(strict=True, ge=0, le=MOST, description="Counts the user's events from 0, without gaps.")]
Moment = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Written = Annotated[
    str, StringConstraints(strict=True, max_length=40, pattern=r"^\d{4}-\d{2}-\d{2}([T ][0-9:.,+Zz-]+)?$")
]
Time = Annotated[
    Moment | Written | None,
    Field(
        description="Where the budget counts in seconds: a number of seconds, one of milli-, micro- or nanoseconds "
        "since 1970 (told by its size), or ISO 8601 text; at most a day ahead of the service's clock."
    ),
]
Scalar = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "null")]}
ValueSchema = {"anyOf": [*Scalar["anyOf"], {"type": "array", "items": Scalar}]}
Value = Annotated[Any, WithJsonSchema(ValueSchema)]
Fingerprint = Annotated[
    str | None,
    Field(max_length=128, description="Fingerprint of the model the sender believes in; refused if it is another."),
]
Bound = Annotated[float | Literal["inf"], Field(description='In nats; "inf" where a mechanism has no bound.')]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SymbolEvent(_Strict):
    """One symbol of a user."""

    user: UserName
    seq: Seq
    value: Value = Field(repr=False)
    time: Time = None


class BatchEvent(_Strict):
    """One batch of a user; shorter than the setting's only at the end of a stream."""

    user: UserName
    seq: Seq
    values: list[Value] = Field(min_length=1, repr=False)
    time: Time = None


class OneSymbol(SymbolEvent):
    model: Fingerprint = None


class OneBatch(BatchEvent):
    model: Fingerprint = None


class ManySymbols(_Strict):
    """Events released together: all of them, or those that no spent budget refuses, or none."""

    events: list[SymbolEvent] = Field(min_length=1, repr=False)
    model: Fingerprint = None


class ManyBatches(_Strict):
    """Batches released together: all of them, or those that no spent budget refuses, or none."""

    events: list[BatchEvent] = Field(min_length=1, repr=False)
    model: Fingerprint = None


def _form(body: Any) -> str | None:
    if isinstance(body, dict):
        return "many" if "events" in body else "one"
    return None


Symbols = Annotated[
    Annotated[OneSymbol, Tag("one")] | Annotated[ManySymbols, Tag("many")],
    Discriminator(_form),
]
Batches = Annotated[
    Annotated[OneBatch, Tag("one")] | Annotated[ManyBatches, Tag("many")],
    Discriminator(_form),
]

Status = Literal["released", "withheld", "given-up"]
StatusField = Annotated[
    Status,
    Field(
        description='"withheld": the budget is spent and its policy is to stop; "given-up": a later event came first '
        "and the service skips what is missing."
    ),
]


class SymbolRelease(BaseModel):
    user: str
    seq: int
    status: StatusField
    value: Value = None
    epsilon: float
    replayed: bool = Field(description="Whether this release had been made before.")


class BatchRelease(BaseModel):
    user: str
    seq: int
    status: StatusField
    values: list[Value] | None
    path: list[int] | None = Field(description="What is published; the values follow from it.")
    epsilon: float
    replayed: bool


class SymbolReleases(BaseModel):
    """The releases in the order of the events."""

    releases: list[SymbolRelease]


class BatchReleases(BaseModel):
    """The releases in the order of the batches."""

    releases: list[BatchRelease]


class Account(BaseModel):
    """Where a user stands; leakage in nats, rounded up."""

    user: str
    events: int = Field(description="How many so far, which is the sequence number that comes next.")
    releases: int
    leakage: Bound
    most: Bound
    least: float | Literal["-inf"]
    by_composition: Bound
    ldp: Bound
    budget_left: float | None
    private: bool


class Told(BaseModel):
    """One release as a receiver gets it."""

    seq: int
    status: StatusField
    value: Value = None
    values: list[Value] | None = None
    path: list[int] | None = None
    events: int = 1
    epsilon: float
    time: float | None = None


class Page(BaseModel):
    """Releases of a user; ask again with `since` = `next`."""

    user: str
    releases: list[Told]
    next: int
    more: bool


class ModelFacts(BaseModel):
    """All that a receiver needs besides the model file."""

    fingerprint: str
    setting: dict[str, Any]
    alphabet: dict[str, Any]
    private: bool
    gaps: str
    file: str
    seqveil: str


class Health(BaseModel):
    status: Literal["ok"]


class ProblemDetails(BaseModel):
    """RFC 9457."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
