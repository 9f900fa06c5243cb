"""What operators watch: figures of bridges and Spark, and that dashboards and alerts name what there is."""

import subprocess
import sys
import urllib.request

import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

import sparks
from seqveil.core.errors import InputError
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces import figures
from seqveil.interfaces.bridge.core import BridgeCounts
from seqveil.interfaces.spark.figures import SparkFigures
from served import words_setting


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


def test_a_bridge_tells_its_counts_its_file_and_its_disk(tmp_path):
    counts = BridgeCounts(received=7, refused={"order": 2, "late": 1})
    path = tmp_path / "state.db"
    with CodeStreams.open(path, words_setting()) as store, figures.serving("0") as (registry, port):
        registry.register(figures.StateFigures(store, path))
        registry.register(figures.CountFigures(counts, lambda: 3))
        store.release(["zq-ann"], [0])
        text = scraped(port)
        for wrong in (str(port), f"127.0.0.1:{port}", "70000", "-1", "x"):
            with pytest.raises(InputError, match=r"metrics.*(choose another|a port from 0)"), figures.serving(wrong):
                pass
    found = figures_of(text)
    assert found["seqveil_bridge_received_total",] == 7
    assert found["seqveil_bridge_refusals_total", "order"] == 2
    assert found["seqveil_waiting_events",] == 3
    assert found["seqveil_last_commit_timestamp_seconds",] == pytest.approx(store.committed)
    assert found["seqveil_state_file_bytes",] > 4096
    assert found["seqveil_disk_free_bytes",] > 0
    assert found["seqveil_ledger_new",] == 1
    assert found["process_open_fds",] > 0
    assert "zq-ann" not in text


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
