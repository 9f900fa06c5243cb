"""Places on Spark: cells of the map are fitted and released as anywhere else."""

import numpy as np
import polars as pl
import pytest

import sparks
from seqveil import Cells, MarkovModel
from seqveil.core.errors import InputError
from seqveil.engine.policy import Policy
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
    users = np.repeat([f"u{k}" for k in range(6)], 10)
    columns = {"user": users, "seq": np.tile(np.arange(10), 6), "lat": where[:, 0], "lon": where[:, 1]}
    return pl.DataFrame(columns)


def test_cells_are_fitted_and_released(spark):
    frame, alphabet = spark.createDataFrame(rows().to_pandas()), Cells(1000, (52.4, 52.6, 13.3, 13.5), "nearest")
    model = fit(frame, alphabet=alphabet, smoothing=1.0, columns=PAIR)
    codes = np.split(alphabet.encode(rows().select("lat", "lon").to_numpy()), 6)
    streams = [alphabet.decode(part.tolist()) for part in codes]
    assert model.fingerprint == MarkovModel.fit(streams, alphabet=alphabet, smoothing=1.0).fingerprint
    made = release(
        frame, Policy(epsilon=2.0, mechanism="balanced", distortion="metres").on(model), sparks.KEY, columns=PAIR
    ).toPandas()
    assert len(made) == 60
    told = set(made[["lat", "lon"]].itertuples(index=False, name=None))
    assert told <= set(map(tuple, alphabet.points.tolist()))


def test_columns_that_do_not_go(spark):
    frame = spark.createDataFrame(rows().to_pandas())
    with pytest.raises(InputError, match="two value columns"):
        fit(frame, alphabet=Cells(1000, (52.4, 52.6, 13.3, 13.5)), columns=Columns(value="lat"))
