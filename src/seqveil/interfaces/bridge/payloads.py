"""What events look like on their way in and out of a bridge: seqveil's own JSON, plain values, members of JSON objects,
and the messages of OwnTracks.

A released payload has the shape of the raw one, with the released value in it and nothing else of the raw one: other
members could tell what the value was. Where the shape is a JSON object, the member `seqveil` has the account.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seqveil.core.alphabet import Grid
from seqveil.core.errors import InputError
from seqveil.core.places import Cells
from seqveil.core.times import check_clock, seconds
from seqveil.engine.batches import encode_path
from seqveil.engine.stream import UNKNOWN, Terms
from seqveil.interfaces.events import Wording

MOST_BYTES = 64 << 10  # of a raw payload
MOST_NAME = 256  # bytes of a user's name
MOST_SEQ = 2**62
METRES = 111_320.0  # of a degree of latitude

REASONS = {
    "retained": "raw data must not be retained; publish it without the retain flag",
    "topic": f"the topic holds no user of 1 to {MOST_NAME} bytes that begins with no $",
    "key": f"the key holds no user, UTF-8 text of 1 to {MOST_NAME} bytes",
    "size": f"the payload is longer than {MOST_BYTES} bytes",
    "json": "the payload is not a JSON object",
    "seq": "expected seq to be a whole number that counts from 0",
    "shape": "expected value (or values, a list, where releases are batches)",
    "member": "the payload has no member where the bridge was to look for the value",
    "time": "expected time, in seconds, in ms, µs or ns since 1970, or as ISO 8601 text, at most a day ahead of now",
    "late": "an event of this time or a later one came before; each event of a user needs a later time",
    "order": "events before this one are missing; send those first, from next on, or run the bridge with --gaps skip",
    "damaged": "this user's records in the state file are damaged; the operator runs `seqveil state verify`",
    "erased": "this user was erased from the state file, and with this setting the account cannot go on",
    "event": "the event cannot be released as it is",
    "load": "more messages at QoS 0 than can be held; publish with QoS 1",
}


class Refusal(Exception):
    """An event that is not released: why, and where it stood; never what it held."""

    def __init__(self, reason: str, seq: int | None = None, upcoming: int | None = None) -> None:
        super().__init__(REASONS[reason])
        self.reason, self.seq = reason, seq
        self.upcoming = upcoming  # the sequence number that the user's next event must have

    def payload(self) -> bytes:
        """What the device hears."""
        said = {"seq": self.seq, "reason": self.reason, "detail": str(self)}
        return as_json(said if self.upcoming is None else said | {"next": self.upcoming})


class NoEvent(Exception):
    """A message that is right as it is and holds no event, such as OwnTracks' list of waypoints."""


Kind = Literal["seqveil", "value", "json", "owntracks"]


@dataclass(frozen=True)
class Form:
    """How a raw payload is read.

    Parameters:
        kind: "seqveil" is `{"seq": 0, "value": V}`, "value" the bare value, "json" an object with the value at `path`,
            "owntracks" a location of OwnTracks, whose value is the pair (longitude, latitude).
        path: names of members from the outside in.
        time: the same for the time of the event; without it the time is that of its arrival.

    >>> Form.parse("json:state.door@state.changed")
    Form(kind='json', path=('state', 'door'), time=('state', 'changed'))
    """

    kind: Kind = "seqveil"
    path: tuple[str, ...] = ()
    time: tuple[str, ...] | None = None

    @property
    def own(self) -> bool:
        """Whether it is seqveil's own, whose sender knows what an event is."""
        return self.kind == "seqveil"

    @classmethod
    def parse(cls, text: str) -> Form:
        """The form that is called so: seqveil, value, owntracks, or json:PATH, with @PATH of the time behind it."""
        known = {"seqveil": cls(), "value": cls("value"), "owntracks": cls("owntracks", ("lat",), ("tst",))}
        name, _, paths = text.partition(":")
        if text in known:
            return known[text]
        if name != "json" or not paths:
            raise InputError("expected the payload to be seqveil, value, owntracks, json:PATH or json:PATH@TIME")
        path, sign, time = paths.partition("@")
        return cls("json", _members(path), _members(time) if sign else None)


def _members(path: str) -> tuple[str, ...]:
    members = tuple(path.split("."))
    if not all(members) or members[0] == "seqveil":
        raise InputError("expected a path of member names with dots between them, as in state.occupancy")
    return members


@dataclass(slots=True)  # not frozen: that takes longer, and there is one for each message
class PayloadEvent:
    """One event to be released. Its symbols are in no repr."""

    user: str = field(repr=False)
    seq: int | None  # None where the bridge is to number it
    codes: tuple[int, ...] = field(repr=False)  # one, or those of a batch
    time: float = 0.0
    stamp: float | None = None  # the time that a payload without a number brings, by which events are distinguished
    ident: str | None = None  # what its source calls it, and its user; None: it cannot come again
    again: bool = False  # whether the source says that it may have come before
    slot: float | None = None  # when the slot of time begins that it stands for


class Payloads:
    """Reads raw payloads and writes released ones, for one setting and one form.

    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.policy import Policy
    >>> setting = Policy(epsilon=1.0).on(MarkovModel.fit([["a", "b", "a"]]))
    >>> payloads = Payloads(setting)
    >>> payloads.read("ann", b'{"seq": 3, "value": "b"}').codes
    (1,)
    >>> payloads.write(3, [0], 1.0, (0,))
    b'{"seq":3,"value":"a","epsilon":1.0}'
    >>> door = Payloads(setting, Form.parse("json:door.contact"))
    >>> door.read("ann", b'{"door": {"contact": "b"}, "battery": 88}').codes
    (1,)
    >>> door.write(3, [0], 1.0, (0,))
    b'{"door":{"contact":"a"},"seqveil":{"seq":3,"epsilon":1.0}}'
    """

    def __init__(self, setting: Terms, form: Form | None = None) -> None:
        self.setting, self.form = setting, form or Form()
        self._wording = Wording(setting.model.alphabet)
        self._wordy = any(type(value) is str for value in self._wording.shown)
        self._cells = _Cells(setting) if self.form.kind == "owntracks" else None
        if not self.form.own and setting.in_batches:
            raise InputError("batches need seqveil's own payload; leave the batch out, or the form of the payload")

    def read(self, user: str, payload: bytes, arrival: float | None = None) -> PayloadEvent:
        """The event in a payload; raises `Refusal`, and `NoEvent` where there is none.

        Parameters:
            user: whose it is.
            payload: as it came.
            arrival: when it came, for a payload without a time.
        """
        if len(payload) > MOST_BYTES:
            raise Refusal("size")
        if self.form.kind == "value":
            return PayloadEvent(user, None, self._plain(payload), self._arrived(arrival))
        content = _object(payload)
        if self.form.own:
            return self._own(user, content, arrival)
        if self._cells is not None and content.get("_type") != "location":
            raise NoEvent
        codes = self._encoded([self._cells.value(content) if self._cells else _at(content, self.form.path)])
        if self.form.time is None:
            return PayloadEvent(user, None, codes, self._arrived(arrival))
        stamp = _stamp(None, _at(content, self.form.time, "time"))
        return PayloadEvent(user, None, codes, stamp, stamp)

    def _own(self, user: str, content: dict[str, Any], arrival: float | None) -> PayloadEvent:
        seq, values, batched = content.get("seq"), content.get("values"), self.setting.in_batches
        if "seq" in content and (type(seq) is not int or not 0 <= seq < MOST_SEQ):
            raise Refusal("seq")
        if ("value" in content) == batched or ("values" in content) != batched:
            raise Refusal("shape", seq)
        if not batched:
            values = [content["value"]]
        elif not isinstance(values, list) or not 1 <= len(values) <= self.setting.batch:
            raise Refusal("shape", seq)
        timed = self.setting.timed and (arrival is None or "time" in content)
        time = _stamp(seq, content.get("time")) if timed else self._arrived(arrival)
        return PayloadEvent(user, seq, self._encoded(values), time)

    def _encoded(self, values: list[Any]) -> tuple[int, ...]:
        return tuple(self._wording.encode(values).tolist())

    def _plain(self, payload: bytes) -> tuple[int, ...]:
        """The code of a bare value: the text where the alphabet has such a word, else what it is as JSON."""
        try:
            text = payload.decode()
            found = self._encoded([text]) if self._wordy else (UNKNOWN,)
            return found if found != (UNKNOWN,) else self._encoded([json.loads(text)])
        except (ValueError, RecursionError):
            return (UNKNOWN,)

    def _arrived(self, arrival: float | None) -> float:
        if not self.setting.timed:
            return 0.0
        if arrival is None:
            raise Refusal("time")
        return arrival

    def write(
        self,
        seq: int,
        codes: Sequence[int],
        epsilon: float,
        path: tuple[int, ...] | None,
        user: str = "",
        stamp: float | None = None,
        slot: float | None = None,
    ) -> bytes:
        """The release of one event, or of a slot that begins at this time; without a path nothing was released."""
        words = None if path is None else [self._wording.shown[code] for code in codes]
        used = None if self.setting.unbounded else epsilon  # null: nothing is promised about the whole sequence
        account: dict[str, Any] = {"seq": seq, "epsilon": used}
        if slot is not None:
            account["slot"], stamp = int(slot) if slot.is_integer() else slot, slot
        value = words[0] if words else None
        if self.form.kind == "value":
            return b"" if words is None else value.encode() if type(value) is str else as_json(value)
        if self._cells is not None:
            return as_json(self._cells.location(codes[0] if words else None, user, stamp) | {"seqveil": account})
        if self.form.kind == "json":
            shape: Any = value
            for member in reversed(self.form.path):
                shape = {member: shape}
            return as_json(shape | {"seqveil": account})
        if not self.setting.in_batches:
            return as_json({"seq": seq, "value": value, "epsilon": used})
        turns = None if path is None else encode_path(path)
        return as_json({"seq": seq, "values": words, "epsilon": used, "path": turns})


class _Cells:
    """Locations of OwnTracks as symbols: cells of the map, places, or cells of a grid of longitude (x) and latitude."""

    def __init__(self, setting: Terms) -> None:
        alphabet = setting.model.alphabet
        degrees = isinstance(alphabet, Grid) and max(abs(alphabet.x.edges)) <= 180 and max(abs(alphabet.y.edges)) <= 90
        if not (alphabet.on_map or degrees):
            raise InputError(
                "OwnTracks' locations need a model of places, fitted with --latitude and --longitude, or over a Grid "
                "of longitude (x) and latitude (y) in degrees; fit one"
            )
        self._alphabet = alphabet

    def value(self, content: dict[str, Any]) -> list[Any]:
        """The value of a location, in the order of the alphabet."""
        lat, lon = _at(content, ("lat",)), _at(content, ("lon",))
        return [lat, lon] if self._alphabet.on_map else [lon, lat]

    def location(self, code: int | None, user: str, stamp: float | None) -> dict[str, Any]:
        """A location that OwnTracks' apps show: the middle of the cell, with the reach of the cell as its accuracy."""
        when = {} if stamp is None else {"tst": int(stamp)}
        if code is None:
            return {"_type": "nothing", **when}
        symbols = self._alphabet
        assert symbols.points is not None
        first, second = symbols.points[code].tolist()
        lat, lon = (first, second) if symbols.on_map else (second, first)
        place = {"_type": "location", "tid": user[-2:], "lat": lat, "lon": lon}
        if isinstance(symbols, Grid):
            ix, iy = divmod(code, symbols.y.n)
            wide = (symbols.x.edges[ix + 1] - symbols.x.edges[ix]) * math.cos(math.radians(lat))
            high = symbols.y.edges[iy + 1] - symbols.y.edges[iy]
            place["acc"] = math.ceil(math.hypot(wide, high) * METRES / 2)
        elif isinstance(symbols, Cells):
            place["acc"] = math.ceil(symbols.metres / math.sqrt(2.0))
        return place | when


def _object(payload: bytes) -> dict[str, Any]:
    try:
        content = json.loads(payload)  # NaN and infinities too: that is how a sensor says that it has failed
    except (ValueError, RecursionError):
        raise Refusal("json") from None
    if not isinstance(content, dict):
        raise Refusal("json")
    return content


def _at(content: Any, path: tuple[str, ...], reason: str = "member") -> Any:
    for member in path:
        if not isinstance(content, dict) or member not in content:
            raise Refusal(reason)
        content = content[member]
    return content


def _stamp(seq: int | None, time: Any) -> float:
    try:
        stamps = seconds([time])
        check_clock(stamps)
    except InputError:
        raise Refusal("time", seq) from None
    return float(stamps[0])


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))  # made once: json.dumps makes one for each call


def as_json(content: Any) -> bytes:
    """JSON without spaces."""
    return _ENCODER.encode(content).encode()
