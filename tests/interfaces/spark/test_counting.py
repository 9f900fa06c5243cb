"""Models fitted on Spark: the same counts, the same model as embedded."""

import json

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyspark")
import seqveil as sv
import sparks
from filed import streams_of
from seqveil import Cells, MarkovModel
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import InputError, SeqveilError
from seqveil.spark import FrameColumns, fit

pytestmark = sparks.MARKS
SECRET = "zq-secret-77"


def two_kinds(users=160, length=30, seed=0):
    """Calm and lively people whose names are in no order, their rows shuffled."""
    calm, lively = (MarkovModel(np.full(3, 1 / 3), s * np.eye(3) + (1 - s) / 3) for s in (0.9, 0.1))
    streams = np.concatenate([calm.sample(length, users // 2, seed=seed), lively.sample(length, users // 2, seed=9)])
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, users)
    names = [f"u{number}" for number in rng.permutation(users)]
    rows = [
        (name, place, "abc"[code])
        for name, stream, long in zip(names, streams.tolist(), lengths.tolist(), strict=True)
        for place, code in enumerate(stream[:long])
    ]
    frame = pl.DataFrame(rows, schema=["user", "seq", "value"], orient="row")
    return frame.sample(fraction=1.0, shuffle=True, seed=seed)


@pytest.mark.parametrize("options", [{"order": 2, "smoothing": 1.0}, {"switch": 0.1}], ids=str)
def test_a_mixture_is_the_embedded_one_to_the_last_bit(spark, run, tmp_path, options):
    """By the function and by the command; users may be numbers."""
    frame = two_kinds()
    want = MarkovModel.fit(streams_of(frame), types=2, **options)
    sparks.write(frame, tmp_path / "in", 2)
    assert fit(spark.read.parquet(str(tmp_path / "in")), types=2, **options).fingerprint == want.fingerprint
    numbers = frame.with_columns(pl.col("user").str.slice(1).cast(int))
    want_numbers = MarkovModel.fit(streams_of(numbers), types=2, **options)
    assert fit(spark.createDataFrame(numbers.to_pandas()), types=2, **options).fingerprint == want_numbers.fingerprint
    parts = {"order": 1, "switch": 1e-4} | options
    context = f"types:2,order:{parts['order']},switch:{parts['switch']}"
    out = ("-o", tmp_path / "m", "--context", context, "--smoothing", parts.get("smoothing", 1.0))
    code, said, _ = run("fit", tmp_path / "in", *out, "--json")
    assert code == 0
    assert json.loads(said)["fingerprint"] == MarkovModel.load(tmp_path / "m").fingerprint == want.fingerprint
    assert (json.loads(said)["users"], json.loads(said)["events"]) == (160, frame.height)


def test_a_trait_is_fitted_as_embedded_to_the_last_bit(spark, run, tmp_path):
    """Calm and lively people with labels, some without; users in no order, rows shuffled."""
    frame = two_kinds()
    kinds = {name: ("calm", " lively ", None)[k % 3] for k, name in enumerate(sorted(set(frame["user"])))}
    frame = frame.with_columns(pl.col("user").replace_strict(kinds).alias("kind"))
    sparks.write(frame, tmp_path / "in", 2)
    want = sv.fit(frame, time="seq", trait="kind", context="types:2")
    code, said, _ = run("fit", tmp_path / "in", "-o", tmp_path / "m", "--trait", "kind", "--context", "types:2")
    found = MarkovModel.load(tmp_path / "m")
    assert (code, found.fingerprint, found.trait) == (0, want.fingerprint, want.trait)
    assert "calm" in said
    two = frame.with_columns(pl.col("seq").cast(str).alias("kind"))
    for data, trait, message in ((frame, "none", "no column 'none'"), (two, "kind", "two answers to the trait")):
        with pytest.raises(SeqveilError, match=message):
            fit(spark.createDataFrame(data.to_pandas()), trait=trait)


def test_what_cannot_be_fitted_is_refused_in_a_line(spark, run, small, tmp_path):
    for context, message in (
        ("kinds", "expected a context such as"),
        ("auto", "compared by `seqveil fit --context auto`"),
        ("types:2,switch:estimate", "name a number here"),
    ):
        code, _, said = run("fit", small[0] / "in", "-o", tmp_path / "m", "--context", context)
        assert (code, said.count("\n")) == (2, 1)
        assert message in said
    assert not (tmp_path / "m").exists()


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
    cases = [("x", Bins([0.0, 1.0, 2.5, 4.0])), (("x", "y"), Grid.regular(4, 2, (0, 4, 0, 2))), ("word", None)]
    cases += [("x", Alphabet([0, 1, 2, 3, 4], "nearest")), (("lat", "lon"), CELLS)]
    for value, alphabet in cases:
        people = table.sort("when").partition_by("who")
        chosen = [part.select(value).rows() if isinstance(value, tuple) else part[value].to_list() for part in people]
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
        ([("ann", 0, "a"), ("ann", 1, "b")], {"types": 2}, "at least as many people; got 1"),
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
