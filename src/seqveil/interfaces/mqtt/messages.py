"""What goes over the wire: topics with a place for the user, raw events in, releases and refusals out.

In:  `{"seq": 0, "value": "b"}`, with `"time"` where the budget counts in seconds (see `seqveil.core.times`);
     `{"seq": 0, "values": [...]}` where releases are batches. Other members are ignored. A value outside the alphabet,
     null and NaN among them, is released like any other, by a draw from what everyone expects there: nobody who gets
     releases can tell.
Out: `{"seq": 0, "value": "a", "epsilon": 1.0}`; for batches `"values"` and `"path"`. The value is null where nothing
     was released: the budget is spent, or the event came after its place was given up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from seqveil.core.alphabet import OnUnknown
from seqveil.core.errors import InputError
from seqveil.core.times import check_clock, seconds
from seqveil.release.batches import encode_path
from seqveil.release.stream import UNKNOWN, Setting

USER = "{user}"
MOST_BYTES = 64 << 10  # of a raw payload
MOST_NAME = 256  # bytes of a user's name
MOST_SEQ = 2**62

REASONS = {
    "retained": "raw data must not be retained; publish it without the retain flag",
    "topic": f"the topic holds no user of 1 to {MOST_NAME} bytes that begins with no $",
    "size": f"the payload is longer than {MOST_BYTES} bytes",
    "json": "the payload is not a JSON object",
    "seq": "expected seq, a whole number that counts from 0",
    "shape": "expected value (or values, a list, where releases are batches)",
    "time": "expected time, in seconds, in ms, µs or ns since 1970, or as ISO 8601 text, at most a day ahead of now",
    "order": "events before this one are missing; send those first, from next on",
    "budget": "the budget is spent",
    "event": "the event cannot be released as it is",
    "load": "more messages at QoS 0 than can be held; publish with QoS 1",
}


class Refusal(Exception):
    """An event that is not released: why, and where it stood; never what it held."""

    def __init__(self, reason: str, seq: int | None = None) -> None:
        super().__init__(REASONS[reason])
        self.reason, self.seq = reason, seq
        self.upcoming: int | None = None  # the sequence number that the user's next event must have

    def payload(self) -> bytes:
        """What the device is told."""
        said: dict[str, object] = {"seq": self.seq, "reason": self.reason, "detail": str(self)}
        return _text(said if self.upcoming is None else said | {"next": self.upcoming}).encode()


@dataclass(frozen=True)
class Topics:
    """Where raw events come from and releases go to; each pattern has `{user}` as one whole level.

    >>> topics = Topics("home/{user}/raw", "released/{user}")
    >>> topics.subscription, topics.user_of("home/ann/raw"), topics.released_to("ann")
    ('home/+/raw', 'ann', 'released/ann')
    """

    raw: str
    released: str
    errors: str | None = None

    def __post_init__(self) -> None:
        patterns = {"raw": self.raw, "released": self.released, "errors": self.errors}
        given = {name: pattern for name, pattern in patterns.items() if pattern is not None}
        for name, pattern in given.items():
            _check_pattern(name, pattern)
        names = list(given)
        for k, one in enumerate(names):
            for other in names[k + 1 :]:
                if _may_meet(given[one], given[other]):
                    raise InputError(f"the {one} and {other} topics could be the same for some user; tell them apart")

    @property
    def subscription(self) -> str:
        return self.raw.replace(USER, "+")

    def user_of(self, topic: str) -> str:
        """The user of a raw topic."""
        place, levels = self.raw.split("/").index(USER), topic.split("/")
        user = levels[place] if place < len(levels) else ""
        if self.raw.replace(USER, user) != topic or not 0 < len(user.encode()) <= MOST_NAME or user.startswith("$"):
            raise Refusal("topic")
        return user

    def released_to(self, user: str) -> str:
        return self.released.replace(USER, user)

    def errors_to(self, user: str) -> str | None:
        return None if self.errors is None else self.errors.replace(USER, user)


def _check_pattern(name: str, pattern: str) -> None:
    levels = pattern.split("/")
    if levels.count(USER) != 1 or any(sign in pattern.replace(USER, "", 1) for sign in "+#{}\0"):
        raise InputError(f"expected a {name} topic with {USER} as one level and no wildcards, as in {name}/{USER}")
    if pattern.startswith("$") or not 0 < len(pattern.encode()) <= 1024:
        raise InputError(f"expected a {name} topic of at most 1024 bytes that does not begin with $")


def _may_meet(one: str, other: str) -> bool:
    """Whether two patterns can name the same topic, with any two users."""
    levels, others = one.split("/"), other.split("/")
    pairs = zip(levels, others, strict=False)
    return len(levels) == len(others) and all(a == b or USER in (a, b) for a, b in pairs)


@dataclass(frozen=True)
class Event:
    """One event to be released. Its symbols are in no repr."""

    user: str = field(repr=False)
    seq: int
    codes: tuple[int, ...] = field(repr=False)  # one, or those of a batch
    time: float = 0.0


class Payloads:
    """Reads raw payloads and writes released ones, for one setting.

    >>> from seqveil.core.model import MarkovModel
    >>> payloads = Payloads(Setting.of(MarkovModel.fit([["a", "b", "a"]]), epsilon=1.0))
    >>> payloads.read("ann", b'{"seq": 3, "value": "b"}').codes
    (1,)
    >>> payloads.symbol(3, 0, 1.0)
    b'{"seq":3,"value":"a","epsilon":1.0}'
    """

    def __init__(self, setting: Setting, on_unknown: OnUnknown | None = None) -> None:
        alphabet = setting.model.alphabet
        self._setting = setting
        self._alphabet = alphabet.watched(on_unknown)
        try:
            self._texts = [_text(value) for value in alphabet.decode(range(alphabet.n))]
        except (TypeError, ValueError):
            raise InputError("the model's alphabet has values that JSON cannot hold; rename them and refit") from None

    def read(self, user: str, payload: bytes) -> Event:
        """The event in a payload; raises `Refusal`."""
        if len(payload) > MOST_BYTES:
            raise Refusal("size")
        try:
            content = json.loads(payload)  # NaN and infinities too: that is how a sensor says that it has failed
        except (ValueError, RecursionError):
            raise Refusal("json") from None
        if not isinstance(content, dict):
            raise Refusal("json")
        seq = content.get("seq")
        if type(seq) is not int or not 0 <= seq < MOST_SEQ:
            raise Refusal("seq")
        return Event(user, seq, self._codes(seq, content), self._time(seq, content.get("time")))

    def _codes(self, seq: int, content: dict[str, Any]) -> tuple[int, ...]:
        batched, values = self._setting.in_batches, content.get("values")
        if ("value" in content) == batched or ("values" in content) != batched:
            raise Refusal("shape", seq)
        if not batched:
            values = [content["value"]]
        elif not isinstance(values, list) or not 1 <= len(values) <= self._setting.batch:
            raise Refusal("shape", seq)
        return tuple(map(self._code, values))

    def _code(self, value: Any) -> int:
        try:
            return self._alphabet.encode_one(_hashable(value))
        except Exception:  # what no alphabet could hold; whatever was sent, it comes again until it is acknowledged
            return UNKNOWN

    def _time(self, seq: int, time: Any) -> float:
        if self._setting.budget.seconds is None:
            return 0.0
        try:
            stamps = seconds([time])
            check_clock(stamps)
        except InputError:
            raise Refusal("time", seq) from None
        return float(stamps[0])

    def symbol(self, seq: int, code: int, epsilon: float) -> bytes:
        """The release of one symbol; a negative code: nothing was released."""
        value = self._texts[code] if code >= 0 else "null"
        return f'{{"seq":{seq},"value":{value},"epsilon":{_text(epsilon)}}}'.encode()

    def batch(self, seq: int, codes: list[int], epsilon: float, path: tuple[int, ...] | None) -> bytes:
        """The release of a batch; without a path: nothing was released."""
        values = "null" if path is None else f"[{','.join(self._texts[code] for code in codes)}]"
        turns = "null" if path is None else _text(encode_path(path))
        return f'{{"seq":{seq},"values":{values},"epsilon":{_text(epsilon)},"path":{turns}}}'.encode()


def _text(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _hashable(value: Any) -> Any:
    """A JSON list as the tuple that an alphabet holds."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
