"""Fit, stream and account on Spark: `python examples/spark_release.py` (Java 17 and `pip install -e '.[spark]'`).

Files with the columns user, seq and value arrive in a folder; their releases appear in another.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import seqveil as sv
from seqveil import spark as on_spark
from seqveil.core.randomness import key_file


def main(spark: Any, folder: Path) -> on_spark.Total:
    truth = sv.MarkovModel([0.4, 0.3, 0.3], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    streams = truth.sample(20, users=50, seed=1)
    words = ("home", "road", "work")
    rows = [(f"user-{u}", k, words[code]) for u, codes in enumerate(streams.tolist()) for k, code in enumerate(codes)]
    raw = spark.createDataFrame(rows, "user STRING, seq BIGINT, value STRING")

    model = on_spark.fit(raw)  # counted in SQL; the same model as MarkovModel.fit makes
    policy = sv.Policy(epsilon=1.0, budget=sv.Budget(total=12.0))
    key = key_file(folder / "release.key", create=True)  # who has it can undo the release

    raw.write.parquet(str(folder / "arriving"))
    arriving = spark.readStream.schema(raw.schema).parquet(str(folder / "arriving"))  # or Kafka, or any other source
    writer = on_spark.stream(arriving, model, policy, key=key, checkpoint=str(folder / "checkpoint"))
    query = writer.format("parquet").option("path", str(folder / "released")).trigger(availableNow=True).start()
    query.awaitTermination()

    return on_spark.total(spark, str(folder / "checkpoint"))


if __name__ == "__main__":
    with on_spark.session("local[2]") as session, tempfile.TemporaryDirectory() as place:
        print(main(session, Path(place)))
