"""One Spark session for all tests of this folder: Java starts once."""

import pytest

import sparks


@pytest.fixture(scope="session")
def spark():
    with sparks.session() as made:
        yield made


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """2,000 events in three files, as Parquet and as one CSV file sorted as the embedded run wants it."""
    folder = tmp_path_factory.mktemp("small")
    frame = sparks.events(2000, 60, seed=3)
    sparks.write(frame, folder / "in", 3)
    frame.write_csv(folder / "data.csv")
    return folder, frame


@pytest.fixture
def run(spark, capfd):
    """A command on the session that is there, in this process: its exit code, and what it said."""
    from seqveil.interfaces.cli import main

    def call(*args):
        capfd.readouterr()
        code = main(["spark", *map(str, args)])
        return code, *capfd.readouterr()

    return call
