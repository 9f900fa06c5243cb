"""Models fitted on Spark: the same counts, the same model as embedded."""

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyspark")
import sparks
from filed import streams_of
from seqveil import Cells, MarkovModel
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import InputError, SeqveilError
from seqveil.spark import FrameColumns, fit

pytestmark = sparks.MARKS
SECRET = "zq-secret-77"


def test_the_fit_is_the_embedded_one_to_the_last_count(spark, small):
    folder, frame = small
    on_spark = spark.read.parquet(str(folder / "in"))
    for options in ({}, {"smoothing": 0.7, "order": 3}, {"alphabet": list(range(20)), "order": 2}):
        assert fit(on_spark, **options).fingerprint == MarkovModel.fit(streams_of(frame), **options).fingerprint


CELLS = Cells(1000, (52.4, 52.6, 13.3, 13.5), "nearest")


def test_the_fit_takes_any_alphabet(spark):
    rng = np.random.default_rng(2)
    table = pl.DataFrame(
        {
            "who": rng.integers(0, 9, 300),
            "when": rng.permutation(300) * 0.5,
            "x": rng.uniform(0, 4, 300),
            "y": rng.uniform(0, 2, 300),
            "word": rng.choice(["be", "to", "or"], 300),
            "lat": rng.normal(52.52, 0.01, 300),
            "lon": rng.normal(13.40, 0.01, 300),
        }
    )
    frame = spark.createDataFrame(table.to_pandas())
    cases = [("x", Bins([0.0, 1.0, 2.5, 4.0])), ("x,y", Grid.regular(4, 2, (0, 4, 0, 2))), ("word", None)]
    cases += [("x", Alphabet([0, 1, 2, 3, 4], "nearest")), ("lat,lon", CELLS)]
    for value, alphabet in cases:
        people = table.sort("when").partition_by("who")
        chosen = [part.select(value.split(",")).rows() if "," in value else part[value].to_list() for part in people]
        want = MarkovModel.fit(chosen, alphabet=alphabet, smoothing=1.0)
        got = fit(frame, alphabet=alphabet, columns=FrameColumns("who", value, "when"))
        assert got.fingerprint == want.fingerprint


def test_frames_that_cannot_be_fitted_are_refused_without_data(spark):
    def frame(rows):
        return spark.createDataFrame(rows, "user STRING, seq INT, value STRING")

    wrong = [
        ([("ann", 0, "a"), ("ann", 0, "b")], {}, "1 events have the same 'seq'"),
        ([("ann", 0, None)], {}, "1 rows have no user, order or value"),
        ([(None, 0, "a")], {}, "1 rows have no user"),
        ([], {}, "no rows"),
        ([("ann", 0, SECRET)], {"alphabet": ["a"]}, "alphabet"),
        ([("ann", 0, "a")], {"columns": FrameColumns(seq="t")}, "no column 't'"),
        ([("ann", 0, "a")], {"columns": FrameColumns(value="t")}, "no column 't'"),
    ]
    for rows, options, message in wrong:
        with pytest.raises(SeqveilError, match=message) as refused:
            fit(frame(rows), **options)
        assert SECRET not in str(refused.value)
    cut = spark.createDataFrame([("ann", 0, 7.25)], "user STRING, seq INT, value DOUBLE")
    with pytest.raises(SeqveilError, match="alphabet") as refused:
        fit(cut, alphabet=Bins([0.0, 1.0, 2.0]))
    assert "7.25" not in str(refused.value)
    with pytest.raises(InputError, match="two value columns"):
        fit(cut, alphabet=CELLS)
