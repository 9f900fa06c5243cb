"""What operators watch: figures of bridges."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from seqveil.core.errors import InputError
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces import figures
from seqveil.interfaces.bridge.core import BridgeCounts
from served import words_setting


@pytest.mark.slow
def test_a_bridge_tells_its_counts_its_file_and_its_disk(tmp_path):
    counts = BridgeCounts(received=7, refused={"order": 2, "late": 1})
    path = tmp_path / "state.db"
    with CodeStreams.open(path, words_setting()) as store, figures.serving("0") as (registry, port):
        registry.register(figures.StateFigures(store, path))
        registry.register(figures.CountFigures(counts, lambda: 3))
        store.release(["zq-ann"], [0])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        for wrong in (str(port), f"127.0.0.1:{port}", "70000", "-1", "x"):
            with pytest.raises(InputError, match=r"metrics.*(choose another|a port from 0)"), figures.serving(wrong):
                pass
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    found = {(each.name, *each.labels.values()): each.value for each in samples}
    assert found["seqveil_bridge_received_total",] == 7
    assert found["seqveil_bridge_refusals_total", "order"] == 2
    assert found["seqveil_waiting_events",] == 3
    assert found["seqveil_last_commit_timestamp_seconds",] == pytest.approx(store.committed)
    assert found["seqveil_state_file_bytes",] > 4096
    assert "zq-ann" not in text
