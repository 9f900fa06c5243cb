"""What operators watch: figures of bridges and Spark, and that dashboards and alerts name what there is."""

import re
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field

import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

import mosquitto
import sparks
from bridges import VALUES, event
from mosquitto import until
from seqveil.core.errors import InputError
from seqveil.engine.coded import CodeStreams
from seqveil.interfaces.bridge import BridgeCounts
from seqveil.interfaces.commands.bridge import MetricsOptions
from seqveil.interfaces.spark.figures import SparkFigures
from served import words_setting
from test_mqtt_command import meet, process


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def figures_of(text):
    """Every sample of a text for Prometheus, by name; a text that is not one is refused by its parser."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@dataclass
class Working:
    """A bridge as the options see it."""

    counts: BridgeCounts = field(default_factory=BridgeCounts)
    waiting: int = 0


@pytest.fixture
def tracked(tmp_path):
    """A bridge that does nothing, its streams and the port of its figures."""
    working = Working()
    with (
        CodeStreams.open(tmp_path / "state.db", words_setting()) as store,
        MetricsOptions(metrics_port=0).serving(working, store, tmp_path / "state.db") as port,
    ):
        yield working, store, port


def test_a_bridge_tells_its_counts_its_file_and_its_disk(tracked):
    working, store, port = tracked
    store.release(["zq-ann"], [0])
    working.counts.received, working.counts.refused, working.waiting = 7, {"order": 2, "late": 1}, 3
    text = scraped(port)
    found = figures_of(text)
    assert found["seqveil_bridge_received_total",] == 7
    assert found["seqveil_bridge_refusals_total", "order"] == 2
    assert found["seqveil_waiting_events",] == 3
    assert found["seqveil_last_commit_timestamp_seconds",] == pytest.approx(store.committed)
    assert found["seqveil_state_file_bytes",] > 4096
    assert found["seqveil_disk_free_bytes",] > 0
    assert found["seqveil_ledger_new",] == 1
    assert found["seqveil_bridge_stalled_streams",] == 0
    assert found["process_open_fds",] > 0
    assert "zq-ann" not in text


def test_a_port_that_is_taken_or_none_is_refused_in_one_line(tracked, tmp_path):
    _, store, port = tracked
    for wrong in (port, 70_000, -1):
        with (
            pytest.raises(InputError, match=r"metrics.*(choose another|a port from 0)"),
            MetricsOptions(metrics_port=wrong).serving(Working(), store, tmp_path / "state.db"),
        ):
            pass
    with MetricsOptions().serving(Working(), store, tmp_path / "state.db") as none:
        assert none is None


# Spark


def batch(number, rows, users=5, **durations):
    return {
        "batchId": number,
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 1500, **durations},
        "stateOperators": [{"numRowsTotal": users}],
    }


def test_figures_of_spark_count_each_batch_once_and_are_replaced_whole(tmp_path):
    path = tmp_path / "seqveil.prom"
    figures = SparkFigures(path, str(tmp_path))
    figures.write()
    assert figures_of(path.read_text())["seqveil_last_commit_timestamp_seconds",] == 0
    figures.take([batch(1, 20, addBatch=3), batch(0, 10, addBatch=3)])
    figures.take([batch(1, 20, addBatch=3), batch(2, 0)])
    figures.running = False
    figures.write()
    found = figures_of(path.read_text())
    assert found["seqveil_spark_rows_total",] == 30
    assert found["seqveil_spark_state_rows",] == 5
    assert found["seqveil_spark_batch_seconds",] == 1.5
    assert found["seqveil_spark_running",] == 0
    assert found["seqveil_spark_failed",] == 0
    assert found["seqveil_disk_free_bytes",] > 0
    assert [each.name for each in tmp_path.iterdir()] == ["seqveil.prom"]
    with pytest.raises(InputError, match="--metrics-file"):
        SparkFigures(tmp_path / "nowhere" / "x.prom", "hdfs://state").write()


@pytest.mark.java
@sparks.needs_java
def test_a_release_on_spark_writes_its_figures(tmp_path):
    sparks.model().save(tmp_path / "m")
    (tmp_path / "in").mkdir()
    rows = [(f"zq-{k % 3}", k // 3, k % 17) for k in range(60)]
    pl.DataFrame(rows, schema=["user", "seq", "value"], orient="row").write_parquet(tmp_path / "in" / "a.parquet")
    (tmp_path / "p.toml").write_text("epsilon = 1.0")
    options = (
        "-m m --policy p.toml --checkpoint state --out out --key key --metrics-file s.prom --partitions 1 --buckets 1"
    )
    command = [sys.executable, "-m", "seqveil", "spark", "release", "in", *options.split(), "--master", "local[1]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "s.prom").read_text()
    found = figures_of(text)
    assert found["seqveil_spark_rows_total",] == 60
    assert found["seqveil_spark_failed",] == found["seqveil_spark_running",] == 0
    assert found["seqveil_last_commit_timestamp_seconds",] > 1e9
    assert "zq" not in text


@pytest.mark.broker
@mosquitto.needed
def test_the_bridge_serves_its_figures(bridged):
    log = bridged.folder / "log"
    with process(bridged, "--metrics-port", "0") as running:
        meet(bridged, running)
        port = int(re.search(r'"metrics", "port": (\d+)', log.read_text())[1])
        device = bridged.device()
        for seq in (0, 1, 5):
            device.send(bridged.raw("zq-ann"), event(seq, VALUES[0]))
        for name, count in (("received", 3), ("released", 2)):
            until(lambda: figures_of(scraped(port))[f"seqveil_bridge_{name}_total",] == count, 60)  # noqa: B023
        assert "zq" not in scraped(port)
