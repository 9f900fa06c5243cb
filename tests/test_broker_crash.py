"""A broker that crashed sends an old queue as new: events with numbers or times are known again, others are not."""

import json
import os
import signal
import time

import pytest

from bridges import VALUES, alone, event
from mosquitto import needed, until
from seqveil.interfaces.payloads import Form

EVENTS = 6


def saved(place):
    """Have the broker write its queue down, as it does now and then."""
    file, before = place.folder / "broker" / "mosquitto.db", time.time_ns()
    os.kill(place.mosquitto._process.pid, signal.SIGUSR1)
    until(lambda: file.exists() and file.stat().st_mtime_ns >= before - 10**9)


def crash(mosquitto):
    mosquitto._process.kill()
    mosquitto._process.wait()
    mosquitto.start()


@pytest.mark.slow
@needed
@pytest.mark.parametrize(("form", "drawn"), [("seqveil", EVENTS), ("timed", EVENTS), ("plain", 2 * EVENTS)])
def test_what_waited_at_the_last_save_comes_again(tmp_path, form, drawn):
    now = time.time()
    plain = [json.dumps({"v": VALUES[k % 3], "t": now - EVENTS + k}).encode() for k in range(EVENTS)]
    payloads = [event(k, VALUES[k % 3]) for k in range(EVENTS)] if form == "seqveil" else plain
    parsed = {"seqveil": Form(), "timed": Form.parse("json:v", time="t"), "plain": Form.parse("json:v")}[form]
    with alone(tmp_path) as place:
        with place.bridge(form=parsed):
            pass  # from now on the broker queues for it
        assert all(place.device().send_all([(place.raw("ann"), payload) for payload in payloads]))
        saved(place)
        with place.bridge(form=parsed) as bridge:
            until(lambda: bridge.counts.acknowledged == EVENTS)
            crash(place.mosquitto)
            until(lambda: bridge.counts.acknowledged == 2 * EVENTS)
        assert bridge.counts.released == drawn
