"""A run that ended in its first micro-batch, killed or refused: it goes on, or says exactly what to remove."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from policies import promise

pytest.importorskip("pyspark")
import reference_streams as ref
import sparks
from seqveil.engine.policy import Policy
from seqveil.interfaces.cli import main
from seqveil.spark import account
from test_spark_kills import end

pytestmark = [pytest.mark.java, sparks.needs_java, *(pytest.mark.filterwarnings(each) for each in sparks.QUIET)]
FRAME = sparks.events(400, 20, seed=5)
PATIENCE = 900.0  # seconds: on a busy machine Java takes minutes to start


@pytest.fixture(scope="module")
def spark():
    with sparks.session() as made:
        yield made


@pytest.fixture
def run(capfd):
    def call(*args):
        capfd.readouterr()
        code = main(list(map(str, args)))
        return code, capfd.readouterr().err

    return call


def arguments(place, *more, epsilon=1):
    folders = ("--checkpoint", place / "cp", "--out", place / "out", "--key", place / "key", "--buckets", "4")
    model = ("-m", place / "m", *promise(epsilon=epsilon, mechanism="balanced"), "--files", "1", "--partitions", "2")
    return ["spark", "release", place / "in", *model, *folders, *more]


@pytest.fixture
def place(tmp_path):
    sparks.write(FRAME, tmp_path / "in", 2)
    sparks.model().save(tmp_path / "m")
    return tmp_path


def right(spark, place, frame=FRAME):
    """What the sink lists is what the store releases, row by row, and so is every account."""
    setting, key = Policy(epsilon=1.0, mechanism="balanced").on(sparks.model()), (place / "key").read_bytes()
    store = ref.twin(setting, sparks.query_id(place / "cp"), key)
    made = store.release(frame["user"].to_list(), frame["value"].to_numpy(), frame["seq"].to_numpy())
    spent = dict(zip(store.accounts().users, store.accounts().epsilon_spent, strict=True))
    want = frame.with_columns(value=pl.Series(made.codes)).sort("user", "seq")
    assert sparks.released(spark, place).select("user", "seq", "value").equals(want)
    assert {row.user: row.spent for row in account(spark, str(place / "cp")).collect()} == spent


def cut(place, published):
    """As a kill leaves it after the first micro-batch was listed by the sink, or before."""
    for folder in (place / "cp" / "commits", *(() if published else (place / "out" / "_spark_metadata",))):
        shutil.rmtree(folder)


@pytest.mark.parametrize("published", [True, False])
def test_a_first_micro_batch_that_was_cut_goes_on_by_itself(spark, run, place, published):
    second = place / "in" / "001.parquet"
    second.rename(place / "001.parquet")
    assert run(*arguments(place))[0] == 0
    cut(place, published)
    code, said = run("spark", "account", place / "cp")
    assert (code, "holds no release yet" in said) == (2, True)
    (place / "001.parquet").rename(second)
    code, said = run(*arguments(place))
    assert code == 0, said
    right(spark, place)


def test_with_other_options_it_says_what_differs_or_what_to_remove(spark, run, place):
    (place / "in" / "001.parquet").unlink()
    assert run(*arguments(place))[0] == 0
    cut(place, published=False)
    before = sorted(path.name for path in (place / "out").iterdir())
    code, said = run(*arguments(place, epsilon=2))
    assert (code, "was begun with another epsilon" in said, said.count("\n")) == (2, True, 1)
    assert sorted(path.name for path in (place / "out").iterdir()) == before
    shutil.rmtree(place / "out")
    code, said = run(*arguments(place, "--buckets", "8"))
    assert (code, "remove the folder cp and run this again" in said) == (2, True)
    (place / "cp" / "begun.json").unlink()  # as an earlier version leaves it
    code, said = run(*arguments(place))
    assert (code, "remove the folder cp and run this again" in said) == (2, True)
    shutil.rmtree(place / "cp")
    assert run(*arguments(place, "--buckets", "8"))[0] == 0


def test_a_first_micro_batch_that_was_refused_goes_on_once_it_is_right(spark, run, place):
    first, bad = place / "in" / "000.parquet", FRAME[:200].with_columns(pl.col("seq") + 5)
    bad.write_parquet(first)
    os.utime(first, (1e9, 1e9))
    for _ in range(2):
        code, said = run(*arguments(place))
        assert (code, said.count("error: ")) == (2, 1)
        assert "send the missing events first" in said
        assert "nothing was published, so put the files right" in said
    FRAME[:200].write_parquet(first)
    os.utime(first, (1e9, 1e9))
    code, said = run(*arguments(place))
    assert code == 0, said
    right(spark, place)


def test_a_first_micro_batch_whose_file_was_taken_out_goes_on_without_it(spark, run, place):
    first, bad = place / "in" / "000.parquet", FRAME[:200].with_columns(pl.col("seq") + 5)
    bad.write_parquet(first)
    os.utime(first, (1e9, 1e9))
    run(*arguments(place))
    first.unlink()
    FRAME[:200].write_parquet(place / "in" / "000b.parquet")
    os.utime(place / "in" / "000b.parquet", (1e9, 1e9))
    code, said = run(*arguments(place))
    assert code == 0, said
    right(spark, place)


def test_the_command_killed_from_its_first_second_on(spark, place):
    """Real kills at chance moments until the first micro-batch is done, then a run to the end."""
    command, chance = [sys.executable, "-m", "seqveil", *map(str, arguments(place))], random.Random(3)
    stages = [Path("cp/begun.json"), Path("cp/offsets/0"), Path("out/_spark_metadata/0")]
    for stage in stages:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        until = time.monotonic() + PATIENCE
        while process.poll() is None and not (place / stage).exists():
            assert time.monotonic() < until, f"{stage} did not come"
            time.sleep(0.005)
        time.sleep(chance.random() * 0.05)
        end(process)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    right(spark, place)
    assert json.loads((place / "cp" / "begun.json").read_text())["buckets"] == 4
