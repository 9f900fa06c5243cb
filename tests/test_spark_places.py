"""Places on Spark: cells of the map and lists of places are fitted and released as anywhere else."""

import numpy as np
import polars as pl
import pytest

import sparks
from seqveil import Cells, MarkovModel, Places, Setting
from seqveil.core.errors import InputError
from seqveil.spark import Columns, fit, release

pytestmark = [pytest.mark.java, sparks.needs_java, *(pytest.mark.filterwarnings(each) for each in sparks.QUIET)]
PAIR = Columns(value=("lat", "lon"))


@pytest.fixture(scope="module")
def spark():
    with sparks.session() as made:
        yield made


def rows():
    rng = np.random.default_rng(1)
    where = rng.normal((52.52, 13.40), 0.01, (60, 2)).round(5)
    names = [f"p{k}" for k in rng.integers(0, 8, 60)]
    users = np.repeat([f"u{k}" for k in range(6)], 10)
    columns = {"user": users, "seq": np.tile(np.arange(10), 6), "lat": where[:, 0], "lon": where[:, 1], "value": names}
    return pl.DataFrame(columns)


def places(policy="error"):
    return Places([f"p{k}" for k in range(8)], np.random.default_rng(2).normal((52.52, 13.40), 0.01, (8, 2)), policy)


@pytest.mark.parametrize(
    ("alphabet", "columns"),
    [(Cells(1000, (52.4, 52.6, 13.3, 13.5), "nearest"), PAIR), (places("nearest"), PAIR), (places(), Columns())],
    ids=["cells", "coordinates", "names"],
)
def test_places_are_fitted_and_released(spark, alphabet, columns):
    frame, table = spark.createDataFrame(rows().to_pandas()), rows()
    model = fit(frame, alphabet=alphabet, smoothing=1.0, columns=columns)
    values = table.select("lat", "lon").to_numpy() if len(columns.values) == 2 else table["value"].to_list()
    streams = [part.tolist() for part in np.split(alphabet.encode(values), 6)]
    assert (
        model.fingerprint
        == MarkovModel.fit([alphabet.decode(s) for s in streams], alphabet=alphabet, smoothing=1.0).fingerprint
    )
    setting = Setting.of(model, "balanced", 2.0, "metres")
    made = release(frame, setting, sparks.KEY, columns=columns).toPandas()
    assert len(made) == 60
    known = set(map(tuple, alphabet.points.tolist())) if len(columns.values) == 2 else set(alphabet.values)
    told = (
        set(made[list(columns.values)].itertuples(index=False, name=None))
        if len(columns.values) == 2
        else set(made["value"])
    )
    assert told <= known


def test_columns_that_do_not_go(spark):
    frame = spark.createDataFrame(rows().to_pandas())
    with pytest.raises(InputError, match="two value columns"):
        fit(frame, alphabet=Cells(1000, (52.4, 52.6, 13.3, 13.5)))
