"""A Spark session for tests, their events and models, and the state of a bucket without a JVM."""

import contextlib
import gc
import json
import os
import tempfile
import warnings

import numpy as np
import polars as pl
import pytest

from seqveil import MarkovModel
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.spark.sessions import PARTITIONS, has_java

KEY = bytes(range(32))
MISSING = "a Java runtime is missing (Debian: apt-get install openjdk-17-jre-headless)"
# what Spark itself raises: it leaves sockets to the garbage collector
MARKS = [
    pytest.mark.java,
    pytest.mark.skipif(not has_java(), reason=MISSING),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@contextlib.contextmanager
def session():
    """A quiet session whose folders go with it."""
    from seqveil import spark

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = {
            PARTITIONS: "2",
            "spark.log.level": "OFF",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
        }
        with spark.session("local[2]", settings) as made:
            yield made
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the sockets that Spark leaves to the collector
            gc.collect()


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


def released(session, place):
    """What the sink says was released, in order."""
    return pl.from_arrow(session.read.parquet(str(place / "out")).toArrow()).sort("user", "seq")


def query_id(checkpoint):
    """The id of the query of a checkpoint, which is the salt of its randomness."""
    return json.loads((checkpoint / "metadata").read_text())["id"].encode()


class MapState(dict):
    """Spark's map from users to what is kept of them, in memory."""

    def getValue(self, key):
        return self.get(key)

    def updateValue(self, key, value):
        self[key] = value


def bucket(terms, users, randomness=None, salt=b"salt"):
    """The streams of a bucket whose users a `MapState` keeps, as a worker opens them for one micro-batch."""
    from seqveil.interfaces.spark.operator import SparkStore

    return CodeStreams(terms, SparkStore(users, salt), randomness)
