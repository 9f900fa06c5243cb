"""What events look like on their way in and out of a bridge: seqveil's own JSON, plain values, members of JSON objects,
and the messages of OwnTracks; and how Home Assistant finds what is released.

A released payload has the shape of the raw one, with the released value in it and nothing else of the raw one: other
members could tell what the value was. Where the shape is a JSON object, the member `seqveil` has the account.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from seqveil.core.errors import InputError
from seqveil.core.geography import Cells
from seqveil.core.times import check_clock, seconds
from seqveil.engine.stream import UNKNOWN, Terms
from seqveil.interfaces.events import Wording, from_json

MOST_BYTES = 64 << 10  # of a raw payload
MOST_NAME = 256  # bytes of a user's name
MOST_SEQ = 2**62

REASONS = {
    "retained": "raw data must not be retained; publish it without the retain flag",
    "topic": f"the topic holds no user of 1 to {MOST_NAME} bytes that begins with no $",
    "key": f"the key holds no user, UTF-8 text of 1 to {MOST_NAME} bytes",
    "size": f"the payload is longer than {MOST_BYTES} bytes",
    "json": "the payload is not a JSON object whose members each have a name of their own",
    "seq": "expected seq to be a whole number that counts from 0",
    "shape": "expected value",
    "member": "the payload has no member where the bridge was to look for the value",
    "time": "expected time, in seconds, in ms, µs or ns since 1970, or as ISO 8601 text, at most a day ahead of now",
    "late": "an event of this time or a later one came before; each event of a user needs a later time",
    "order": "events before this one are missing; send those first, from next on, or run the bridge with --gaps skip",
    "damaged": "this user's records in the state file are damaged; the operator runs `seqveil state verify`",
    "erased": "this user was erased from the state file, and nothing more is released",
    "event": "the event cannot be released as it is",
    "load": "more messages at QoS 0 than can be held; publish with QoS 1",
}
# templates of Home Assistant: what it takes for the account, and for a location
ACCOUNT = {"seqveil": "{'seq': value_json.seq, 'epsilon': value_json.epsilon}", "json": "value_json.seqveil"}
LOCATION = (
    "{{ dict(value_json.seqveil, latitude=value_json.lat, longitude=value_json.lon, gps_accuracy=value_json.acc) "
    "| tojson if value_json.lat is defined else value_json.seqveil | tojson }}"
)


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
    """How a raw payload is read: "seqveil" is `{"seq": 0, "value": V}`, "value" the bare value, "json" an object with
    the value at `path`, "owntracks" a location of OwnTracks, whose value is the pair (longitude, latitude).

    >>> Form.parse("json:state.door@state.changed")
    Form(kind='json', path=('state', 'door'), time=('state', 'changed'))
    """

    kind: Kind = "seqveil"
    path: tuple[str, ...] = ()  # names of members from the outside in
    time: tuple[str, ...] | None = None  # the same for the time of the event; without it that is when it arrives

    @property
    def own(self) -> bool:
        """Whether it is seqveil's own, whose sender knows what an event is."""
        return self.kind == "seqveil"

    @classmethod
    def parse(cls, text: str) -> Form:
        """The form that is called so: seqveil, value, owntracks, or json:PATH, with @PATH of the time behind it."""
        known = {"seqveil": cls(), "value": cls("value"), "owntracks": cls("owntracks", (), ("tst",))}
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
    code: int = field(repr=False)
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
    >>> door = Payloads(setting, Form.parse("json:door.contact"))
    >>> event = door.read("ann", b'{"door": {"contact": "b"}, "battery": 88}')
    >>> event.code, door.write(3, 0, 1.0, event)
    (1, b'{"door":{"contact":"a"},"seqveil":{"seq":3,"epsilon":1.0}}')
    """

    def __init__(self, setting: Terms, form: Form | None = None) -> None:
        self.setting, self.form = setting, form or Form()
        self._wording = Wording(setting.model.alphabet)
        self._wordy = any(type(value) is str for value in self._wording.shown)
        if self.form.kind == "owntracks" and not setting.model.alphabet.on_map:
            raise InputError("OwnTracks' locations need a model of places on the map; fit one with --cell-metres")
        if setting.in_batches:  # whose values devices would have to gather
            name = setting.mechanism.name
            raise InputError(f"{name} releases in batches, which no bridge takes; use another mechanism, or block")

    def read(self, user: str, payload: bytes, arrival: float = 0.0) -> PayloadEvent:
        """The event in a payload, whose time is by default that of its arrival; raises `Refusal`, or `NoEvent`."""
        if len(payload) > MOST_BYTES:
            raise Refusal("size")
        if self.form.kind == "value":
            return PayloadEvent(user, None, self._plain(payload), arrival)
        try:
            content = from_json(payload)  # NaN and infinities too: that is how a sensor says that it has failed
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise Refusal("json")
        if self.form.own:
            return self._own(user, content, arrival)
        if self.form.kind != "owntracks":
            value = _at(content, self.form.path)
        elif content.get("_type") == "location":
            value = [_at(content, ("lat",)), _at(content, ("lon",))]
        else:
            raise NoEvent
        code = self._code(value)
        if self.form.time is None:
            return PayloadEvent(user, None, code, arrival)
        stamp = _stamp(None, _at(content, self.form.time, "time"))
        return PayloadEvent(user, None, code, stamp, stamp)

    def _own(self, user: str, content: dict[str, Any], arrival: float) -> PayloadEvent:
        seq = content.get("seq")
        if "seq" in content and (type(seq) is not int or not 0 <= seq < MOST_SEQ):
            raise Refusal("seq")
        if "value" not in content:
            raise Refusal("shape", seq)
        time = _stamp(seq, content["time"]) if self.setting.timed and "time" in content else arrival
        return PayloadEvent(user, seq, self._code(content["value"]), time)

    def _code(self, value: Any) -> int:
        return int(self._wording.encode([value])[0])

    def _plain(self, payload: bytes) -> int:
        """The code of a bare value: the text where the alphabet has such a word, else what it is as JSON."""
        try:
            found = self._code(payload.decode()) if self._wordy else UNKNOWN
            return self._code(from_json(payload)) if found == UNKNOWN else found
        except ValueError:
            return UNKNOWN

    def write(self, seq: int, code: int, epsilon: float, event: PayloadEvent) -> bytes:
        """The release of one event, nothing for a code below 0; of the raw event it has the user and the time."""
        used = None if self.setting.unbounded else epsilon  # null: nothing is promised about the whole sequence
        account: dict[str, Any] = {"seq": seq, "epsilon": used}
        if event.slot is not None:
            account["slot"] = int(event.slot) if event.slot.is_integer() else event.slot
        value = self._wording.shown[code] if code >= 0 else None
        if self.form.kind == "value":
            return b"" if code < 0 else value.encode() if type(value) is str else as_json(value)
        if self.form.kind == "owntracks":
            return as_json(self._location(value, event) | {"seqveil": account})
        if self.form.kind == "json":
            shape: Any = value
            for member in reversed(self.form.path):
                shape = {member: shape}
            return as_json(shape | {"seqveil": account})
        return as_json({"seq": seq, "value": value, "epsilon": used})

    def _location(self, centre: list[float] | None, event: PayloadEvent) -> dict[str, Any]:
        """A location that OwnTracks' apps show: the middle of the cell, with the reach of the cell as its accuracy."""
        stamp = event.stamp if event.slot is None else event.slot
        when = {} if stamp is None else {"tst": int(stamp)}
        if centre is None:
            return {"_type": "nothing", **when}
        cells = self.setting.model.alphabet
        assert isinstance(cells, Cells)
        place = {"_type": "location", "tid": event.user[-2:], "lat": centre[0], "lon": centre[1]}
        return place | {"acc": math.ceil(cells.metres / math.sqrt(2.0))} | when


class Discovery:
    """Home Assistant's MQTT discovery: one retained message for each user, and the released entity appears by itself,
    with its number and ε as attributes."""

    def __init__(self, prefix: str, form: Form) -> None:
        if not prefix or prefix.startswith("$") or any(sign in prefix for sign in "+#{}\0"):
            raise InputError("expected Home Assistant's discovery prefix, without wildcards, as in homeassistant")
        self._prefix, self._form = prefix, form
        self._known: set[str] = set()

    def announcement(self, user: str, topic: str) -> tuple[str, bytes] | None:
        """Topic and payload that announce a user's released entity; None where that was done."""
        if user in self._known:
            return None
        self._known.add(user)
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in user)[:40]
        name = f"seqveil_{plain}_{hashlib.blake2s(user.encode(), digest_size=4).hexdigest()}"  # two users, two names
        device = {"identifiers": [name], "name": f"{user} (released)", "manufacturer": "seqveil"}
        form, content = self._form, dict[str, Any](unique_id=name, object_id=name, device=device)
        if form.kind == "owntracks":
            content |= {"name": "location", "source_type": "gps", "json_attributes_template": LOCATION}
        else:
            content |= {"name": form.path[-1] if form.path else "value", "state_topic": topic}
        if form.kind in ACCOUNT:
            members = "".join(f"[{member!r}]" for member in form.path or ("value",))
            content["value_template"] = f"{{{{ value_json{members} }}}}"
            content["json_attributes_template"] = "{{ " + ACCOUNT[form.kind] + " | tojson }}"
        if form.kind != "value":
            content["json_attributes_topic"] = topic
        component = "device_tracker" if form.kind == "owntracks" else "sensor"
        return f"{self._prefix}/{component}/{name}/config", as_json(content)


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
