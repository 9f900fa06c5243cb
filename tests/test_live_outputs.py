"""What the service and the bridge hand out, attacked by itself: at an ε so faint that releases do not depend on raw
values, and with the same key, every byte is the same whatever the raw values are."""

import itertools
import json

import pytest

from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.engine.streams import Streams
from seqveil.interfaces.mqtt import Bridge, Broker, Topics
from seqveil.interfaces.payloads import Form
from served import event, running
from test_unknown_values_outside import Wire, figures_of

pytestmark = pytest.mark.usefixtures("one_salt")
KEY = bytes(range(32))
VALUES = ["a", "zq-" + "long" * 50]
MODEL = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], alphabet=VALUES)
FAINT = Policy(epsilon=1e-6, mechanism="balanced").on(MODEL)
RAW = list(itertools.product(VALUES, repeat=3))


def only(found):
    """The one thing that all of these are."""
    first, *others = found
    assert all(each == first for each in others)
    return first


@pytest.mark.slow
def test_answers_log_and_figures_of_the_service(tmp_path, caplog):
    def handed_out(raw):
        folder = tmp_path / str(RAW.index(raw))
        folder.mkdir()
        caplog.clear()
        with running(folder, FAINT) as service, caplog.at_level("DEBUG"):
            made = [service.release(event("ann", seq, value)) for seq, value in enumerate(raw)]
            made.append(service.release(*(event(f"u{k}", 0, value) for k, value in enumerate(raw))))
            made.append(service.release(event("ann", 9, raw[0])))  # refused: it leaves others out
            made += [service.ask("GET", f"/v1/users/ann/{what}") for what in ("releases", "account")]
            answers = [(each.status, sorted(each.headers.items()), each.content) for each in made]
            figures = figures_of(service.ask("GET", "/metrics").content.decode())
        lines = [
            (each.message, vars(each).get("facts", {})) for each in caplog.records if each.name == "seqveil.service"
        ]
        lines = [(name, {key: value for key, value in facts.items() if key != "ms"}) for name, facts in lines]
        dateless = [(status, [each for each in head if each[0] != "date"], body) for status, head, body in answers]
        return dateless, lines, figures

    answers, lines, figures = only([handed_out(raw) for raw in RAW])
    assert [status for status, *_ in answers] == [200] * 4 + [409, 200, 200]
    assert len(lines) >= len(answers)
    assert figures


@pytest.mark.parametrize("form", ["seqveil", "value", "json:v"])
def test_messages_and_log_of_the_bridge(tmp_path, form):
    from seqveil.interfaces.broker import Arrived, Stop

    def payload(seq, value):
        return (
            value if form == "value" else json.dumps({"v": value} if form == "json:v" else {"seq": seq, "value": value})
        )

    class Kept(Wire):
        def publish(self, topic, content, retain=False):
            self.raw = [*getattr(self, "raw", []), (topic, content, retain)]
            return super().publish(topic, b"0", retain)

    def handed_out(raw):
        sent = [(user, payload(seq, value)) for seq, value in enumerate(raw) for user in ("ann", "bob")]
        sent.append(("ann", payload(9, raw[0])))
        wire, log = Kept([], Broker("nowhere", 1)), []
        for mid, (user, text) in enumerate(sent, 1):
            wire.put(Arrived(f"raw/{user}", text.encode(), mid, True, False, 0))
        wire.put(Stop())
        topics = Topics("raw/{user}", "released/{user}", "errors/{user}")
        with Streams.open(tmp_path / f"{RAW.index(raw)}.db", FAINT, key=KEY) as store:
            Bridge(store, wire, topics, form=Form.parse(form), log=lambda *line: log.append(line)).run()
        return wire.raw, log

    published, log = only([handed_out(raw) for raw in RAW])
    assert len(published) == 7
    assert not any(retain for *_, retain in published)
    assert log
