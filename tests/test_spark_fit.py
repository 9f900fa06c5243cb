"""Models fitted on Spark: the same counts, the same people held out, the same model as embedded."""

import json

import numpy as np
import polars as pl
import pytest

import sparks
from seqveil import Cells, MarkovModel
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import InputError, SeqveilError
from seqveil.interfaces.cli import main
from seqveil.spark import FrameColumns, fit

pytestmark = [pytest.mark.java, sparks.needs_java, *(pytest.mark.filterwarnings(each) for each in sparks.QUIET)]
SECRET = "zq-secret-77"


@pytest.fixture(scope="module")
def spark():
    with sparks.session() as made:
        yield made


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


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """2,000 events in three files, as Parquet and as one CSV file sorted as the embedded run wants it."""
    folder = tmp_path_factory.mktemp("small")
    frame = sparks.events(2000, 60, seed=3)
    sparks.write(frame, folder / "in", 3)
    frame.write_csv(folder / "data.csv")
    return folder, frame


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    folder, frame = tmp_path_factory.mktemp("clicks"), two_kinds()
    sparks.write(frame, folder / "in", 2)
    return folder / "in", frame


@pytest.mark.parametrize(
    "options",
    [
        {"types": 2},
        {"types": 2, "order": 2, "smoothing": 1.0},
        {"types": 2, "switch": 0.1, "prior": "uniform", "seed": 3},
        {"types": 2, "switch": "estimate", "smoothing": 0.5},
        {"types": 4, "least_people": 50},
    ],
    ids=str,
)
def test_a_mixture_is_the_embedded_one_to_the_last_bit(spark, clicks, options):
    folder, frame = clicks
    want = MarkovModel.fit(frame, time="seq", **options)
    assert fit(spark.read.parquet(str(folder)), **options).fingerprint == want.fingerprint


def test_users_may_be_numbers(spark):
    frame = two_kinds(120).with_columns(pl.col("user").str.slice(1).cast(int))
    want = MarkovModel.fit(frame, time="seq", types=2)
    on_spark = spark.createDataFrame(frame.to_pandas())
    assert fit(on_spark, types=2, columns=FrameColumns()).fingerprint == want.fingerprint


@pytest.mark.parametrize("context", ["types:2", "order:2", "types:2,switch:estimate", "auto"])
def test_the_command_takes_the_context_that_the_embedded_one_takes(spark, clicks, tmp_path, capfd, context):
    folder, frame = clicks
    frame.sort("user", "seq").write_csv(tmp_path / "clicks.csv")
    frame.sort("seq").write_csv(tmp_path / "mixed.csv")
    found = []
    for command, data in (("spark fit", folder), ("fit", tmp_path / "clicks.csv"), ("fit", tmp_path / "mixed.csv")):
        assert main([*command.split(), str(data), "-o", str(tmp_path / "m"), "--context", context, "--json"]) == 0
        found.append(json.loads(capfd.readouterr().out))
    assert found[0]["fingerprint"] == found[1]["fingerprint"] == found[2]["fingerprint"]
    assert found[0]["users"] == 160
    assert found[0]["events"] == frame.height


def test_what_cannot_be_fitted_is_refused_in_a_line(spark, clicks, tmp_path, capfd):
    folder, _ = clicks
    out = tmp_path / "m"
    for wrong, message in (
        (("--context", "types:2", "--order", "2"), "--context says what --order says"),
        (("--context", "kinds"), "expected a context such as"),
    ):
        assert main(["spark", "fit", str(folder), "-o", str(out), *wrong]) != 0
        said = capfd.readouterr().err.strip()
        assert message in said
        assert "\n" not in said
    assert not out.exists()
    few = spark.createDataFrame([("ann", 0, "a"), ("ann", 1, "b")], "user STRING, seq INT, value STRING")
    with pytest.raises(SeqveilError, match="at least as many people; got 1"):
        fit(few, types=2)
    alone = spark.createDataFrame([("ann", 0, "a"), ("bob", 0, "b")], "user STRING, seq INT, value STRING")
    with pytest.raises(SeqveilError, match="no stream of two or more events"):
        fit(alone, types=2)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_fit_is_the_embedded_one_to_the_last_count(spark, small, order):
    folder, frame = small
    on_spark = spark.read.parquet(str(folder / "in"))
    for options in ({}, {"smoothing": 0.7}, {"smoothing": 1.0, "prior": "uniform"}, {"alphabet": list(range(20))}):
        want = MarkovModel.fit(frame, order=order, **options)
        assert fit(on_spark, order=order, **options).fingerprint == want.fingerprint


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
        want = MarkovModel.fit(table, alphabet=alphabet, user="who", value=value, time="when", smoothing=1.0)
        got = fit(frame, alphabet=alphabet, smoothing=1.0, columns=FrameColumns("who", value, "when"))
        assert got.fingerprint == want.fingerprint


def test_frames_that_cannot_be_fitted_are_refused_without_data(spark):
    def frame(rows):
        return spark.createDataFrame(rows, "user STRING, seq INT, value STRING")

    wrong = [
        ([("ann", 0, "a"), ("ann", 0, "b")], {}, "1 events have the same 'seq'"),
        ([("ann", 0, None)], {}, "1 rows have no user, order or value"),
        ([(None, 0, "a")], {}, "1 rows have no user"),
        ([], {}, "no rows"),
        ([("ann", 0, SECRET)], {"alphabet": ["a"]}, "not in the alphabet"),
        ([("ann", 0, "a")], {"columns": FrameColumns(seq="t")}, "no column 't'"),
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
