"""Where Spark itself fails: a task is tried once more, and what ended a query is named without data."""

import pytest

pytest.importorskip("pyspark")
from seqveil.core.errors import InputError
from seqveil.engine.calls import OutOfOrder
from seqveil.interfaces.spark.failures import Refused, translated, worker_errors
from seqveil.interfaces.spark.sessions import needs_spark, patient

SECRET = "zq-secret-88"


class Java:
    """An exception of Java as PySpark hands it over."""

    def __init__(self, name, cause=None, condition=None):
        self._name, self._cause, self._condition = name, cause, condition

    def getCause(self):
        return self._cause

    def getClass(self):
        return self

    def getSimpleName(self):
        return self._name

    def getCondition(self):
        if self._condition is None:
            raise AttributeError(self._name)
        return self._condition


def failed(origin):
    error = Exception(SECRET)
    error._origin = origin
    error.getCondition = lambda: "STREAM_FAILED"
    return str(translated(error))


def test_what_ended_a_query_is_named_without_data():
    disk, loop = Java("FileNotFoundException"), Java("LoopException")
    loop._cause = loop
    state = Java("SparkException", disk, "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED")
    said = failed(Java("StreamingQueryException", state))
    assert "(STREAM_FAILED < CANNOT_LOAD_STATE_STORE.UNCATEGORIZED < FileNotFoundException)" in said
    assert SECRET not in said
    assert failed(loop).count("LoopException") == 1
    for nothing_more in (None, object()):
        assert "(STREAM_FAILED)" in failed(nothing_more)


def test_an_error_of_another_package_arrives_without_its_text():
    with pytest.raises(Refused) as refused, worker_errors():
        int(SECRET)
    assert "ValueError" in str(refused.value)
    assert SECRET not in str(refused.value)
    back = translated(Exception(f"Traceback …\n{Refused.__name__}: {refused.value}\nmore"))
    assert "ValueError" in str(back)
    assert isinstance(translated(Exception("seqveil refused: OutOfOrder: event 0")), OutOfOrder)
    assert isinstance(translated(Exception("seqveil refused: InputError: no")), InputError)
    assert SECRET not in str(translated(Exception(SECRET)))


def test_what_is_missing_to_run_spark_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for home in ("", str(tmp_path)):
        monkeypatch.setenv("JAVA_HOME", home)
        with pytest.raises(InputError, match="Spark needs Java 17"):
            needs_spark()


MASTERS = {"local": "local[1,2]", "local[*]": "local[*,2]", "local[2]": "local[2,2]", "local[2,1]": "local[2,1]"}
MASTERS |= {other: other for other in ("yarn", "spark://head:7077", "local-cluster[2,1,1024]", "k8s://local")}


@pytest.mark.parametrize(("master", "wanted"), MASTERS.items())
def test_a_local_run_tries_a_task_once_more_and_any_other_is_left_as_it_is(master, wanted):
    assert patient(master) == wanted
