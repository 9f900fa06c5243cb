"""One Spark session for all tests, and a query of its own process that may be killed: `python sparks.py …`."""

import contextlib
import gc
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from seqveil import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.interfaces.spark.sessions import has_java

KEY = bytes(range(32))
MISSING = "a Java runtime is missing (Debian: apt-get install openjdk-17-jre-headless)"
needs_java = pytest.mark.skipif(not has_java(), reason=MISSING)

# what Spark itself raises: it leaves sockets to the garbage collector
QUIET = ("ignore:unclosed <socket:ResourceWarning",)


@contextlib.contextmanager
def session(partitions=2):
    """A session for the tests of a module; the JVM under it stays for the next one."""
    from seqveil import spark

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = quiet(spark.session("tests", partitions), folder).master("local[2]").getOrCreate()
        made.sparkContext.setLogLevel("OFF")
        yield made
        made.stop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the sockets that Spark leaves to the collector
            gc.collect()


def quiet(builder, folder):
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.streaming.numRecentProgressUpdates": "100",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def model(n=17):
    rng = np.random.default_rng(n)
    sticky = 0.6 * np.eye(n) + 0.4 * rng.dirichlet(np.full(n, 0.5), n) + 1e-4
    return MarkovModel(np.full(n, 1 / n), sticky / sticky.sum(1, keepdims=True))


def events(count, users, n=17, seed=0):
    """A frame of events, each user's numbered in order."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, users, count)
    order = np.argsort(ids, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(ids[order]) > 0])
    seqs = np.empty(count, np.int64)
    seqs[order] = np.arange(count) - np.repeat(starts, np.diff(np.r_[starts, count]))
    return pl.DataFrame({"user": [f"u{user}" for user in ids], "seq": seqs, "value": rng.integers(0, n, count)})


def write(frame, folder, files):
    """The frame in files that Spark takes one after another."""
    folder.mkdir(exist_ok=True)
    size = -(-frame.height // files)
    for number in range(files):
        path = folder / f"{number:03d}.parquet"
        frame[number * size : (number + 1) * size].write_parquet(path)
        os.utime(path, (1e9 + number, 1e9 + number))


def stream(session, source, place, setting, **more):
    """A query over the files of a folder, one a micro-batch, to its end."""
    from seqveil.spark import release

    schema = session.read.parquet(str(source)).schema
    rows = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    writer = release(rows, setting, KEY, **more).writeStream.format("parquet").option("path", str(place / "out"))
    return writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()


def released(session, place):
    """What the sink says was released, in order."""
    return pl.from_arrow(session.read.parquet(str(place / "out")).toArrow()).sort("user", "seq")


def query_id(checkpoint):
    """The id of the query of a checkpoint, which is the salt of its randomness."""
    return json.loads((checkpoint / "metadata").read_text())["id"].encode()


def killed_setting():
    """The setting of the queries that are killed."""
    return Policy(epsilon=1.0, budget=12.0, mechanism="balanced").on(model())


def main(master, source, place):
    from seqveil import spark

    place = Path(place)
    builder = quiet(spark.session("killed", 2), str(place / "local")).master(master)
    made = builder.config("spark.task.maxFailures", "8").getOrCreate()
    query = stream(made, Path(source), place, killed_setting(), buckets=8)
    query.awaitTermination()
    made.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
