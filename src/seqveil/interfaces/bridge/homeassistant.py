"""Home Assistant's MQTT discovery: one retained message for each user, and the released entity appears by itself.

What is released and its account (number and ε, as attributes) come from the released topic; no other is needed.
"""

from __future__ import annotations

import hashlib
from typing import Any

from seqveil.core.errors import InputError
from seqveil.interfaces.bridge.payloads import Form, as_json

ACCOUNT = {"seqveil": "{'seq': value_json.seq, 'epsilon': value_json.epsilon}", "json": "value_json.seqveil"}
LOCATION = (
    "{{ dict(value_json.seqveil, latitude=value_json.lat, longitude=value_json.lon, gps_accuracy=value_json.acc) "
    "| tojson if value_json.lat is defined else value_json.seqveil | tojson }}"
)


class Discovery:
    """Says once for each user where Home Assistant finds the released entity, and what it is.

    >>> discovery = Discovery("homeassistant", Form.parse("value"))
    >>> topic, _ = discovery.announcement("hall motion", "released/hall motion")
    >>> topic.startswith("homeassistant/sensor/seqveil_hall_motion_"), discovery.announcement("hall motion", "x")
    (True, None)

    Parameters:
        prefix: Home Assistant's own, `homeassistant` unless it was changed there.
        form: of the released payloads.
    """

    def __init__(self, prefix: str, form: Form) -> None:
        if not prefix or prefix.startswith("$") or any(sign in prefix for sign in "+#{}\0"):
            raise InputError("expected Home Assistant's discovery prefix, without wildcards, as in homeassistant")
        self._prefix, self._form = prefix, form
        self._known: set[str] = set()
        self.topics = tuple(f"{prefix}/{component}/{{user}}/config" for component in ("sensor", "device_tracker"))

    def announcement(self, user: str, topic: str) -> tuple[str, bytes] | None:
        """Topic and payload that announce a user's released entity; None where that was done."""
        if user in self._known:
            return None
        self._known.add(user)
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in user)[:40]
        name = f"seqveil_{plain}_{hashlib.blake2s(user.encode(), digest_size=4).hexdigest()}"  # two users, two names
        component, content = self._content(user, topic)
        about = {
            "unique_id": name,
            "object_id": name,
            "device": {"identifiers": [name], "name": f"{user} (released)", "manufacturer": "seqveil"},
        }
        return f"{self._prefix}/{component}/{name}/config", as_json(content | about)

    def _content(self, user: str, topic: str) -> tuple[str, dict[str, Any]]:
        if self._form.kind == "owntracks":
            attributes = {"json_attributes_topic": topic, "json_attributes_template": LOCATION}
            return "device_tracker", {"name": "location", "source_type": "gps", **attributes}
        if self._form.kind == "value":
            return "sensor", {"name": "value", "state_topic": topic}
        path = "['value']" if self._form.kind == "seqveil" else "".join(f"[{_quoted(p)}]" for p in self._form.path)
        attributes = {
            "json_attributes_topic": topic,
            "json_attributes_template": "{{ " + ACCOUNT[self._form.kind] + " | tojson }}",
        }
        name = "value" if self._form.kind == "seqveil" else self._form.path[-1]
        return "sensor", {
            "name": name,
            "state_topic": topic,
            "value_template": f"{{{{ value_json{path} }}}}",
        } | attributes


def _quoted(member: str) -> str:
    return "'" + member.replace("\\", "\\\\").replace("'", "\\'") + "'"
