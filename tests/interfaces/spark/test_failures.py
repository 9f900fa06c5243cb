"""Where Spark itself fails: a task is tried once more, and an error comes without data."""

import pytest

pytest.importorskip("pyspark")
from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.spark.failures import Refused, translated, worker_errors
from seqveil.interfaces.spark.sessions import needs_spark, patient

SECRET = "zq-secret-88"


def test_an_error_of_another_package_arrives_without_its_text():
    with pytest.raises(Refused) as refused, worker_errors():
        int(SECRET)
    assert "ValueError" in str(refused.value)
    assert SECRET not in str(refused.value)
    back = translated(Exception(f"Traceback …\n{Refused.__name__}: {refused.value}\nmore"))
    assert "ValueError" in str(back)
    assert isinstance(translated(Exception("seqveil refused: OutOfOrder: event 0")), DataError)
    assert isinstance(translated(Exception("seqveil refused: InputError: no")), InputError)
    failed = Exception(SECRET)
    assert "(Exception)" in str(translated(failed))
    failed.getCondition = lambda: "STREAM_FAILED"
    assert "(STREAM_FAILED)" in str(translated(failed))
    assert SECRET not in str(translated(failed))


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
