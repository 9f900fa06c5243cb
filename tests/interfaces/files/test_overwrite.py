"""A release is not drawn a second time over the first: that would spend the same budget again, silently."""

import pytest

from filed import release_file
from seqveil import MarkovModel
from seqveil.core.errors import InputError
from seqveil.engine.policy import Policy
from seqveil.interfaces.cli import main

KINDS = {"plain": ["--model", "m"], "batched": ["--model", "m", "--batch", "3"]}


def release(*options):
    return main(["release", "raw.csv", "--epsilon", "1", *options])


def files(place):
    return {path.name: path.read_bytes() for path in place.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_release_over_the_first_is_refused_and_says_why(place, capsys, kind):
    assert release(*KINDS[kind], "--out", "out.csv") == 0
    before = files(place)
    capsys.readouterr()
    assert release(*KINDS[kind], "--out", "out.csv") == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    for word in ("out.csv", "second spend", "another file", "--force"):
        assert word in said
    assert files(place) == before
    assert release(*KINDS[kind], "--out", "out.csv", "--force") == 0
    assert files(place)["out.csv"] != before["out.csv"]  # 200 fresh randomness
    assert release(*KINDS[kind], "--out", "other.csv") == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", ["out.csv", "out.csv.meta.json", "named.json"])
def test_whatever_is_left_of_an_earlier_release_stands_in_the_way(place, capsys, kind, left):
    (place / left).write_text("something")
    (place / "raw.csv").write_text("no,columns\nof,a stream\n")  # it is refused before anything is read
    named = ["--meta", "named.json"] if left == "named.json" else []
    before = files(place)
    assert release(*KINDS[kind], "--out", "out.csv", *named) == 2
    assert left in capsys.readouterr().err
    assert files(place) == before


@pytest.mark.slow
def test_an_empty_file_holds_no_release(place):
    (place / "out.csv").touch()
    assert release("--model", "m", "--out", "out.csv") == 0


@pytest.mark.slow
def test_with_a_state_file_its_own_output_goes_on_and_another_is_refused(place, capsys):
    options = ["--model", "m", "--out", "out.csv", "--state"]
    assert release(*options, "s.db") == 0
    before = files(place)["out.csv"]
    assert release(*options, "s.db") == 0  # a finished run that is repeated draws nothing
    assert files(place)["out.csv"] == before
    capsys.readouterr()
    assert release(*options, "new.db") == 2
    said = capsys.readouterr().err.strip()
    assert "second spend" in said
    assert "\n" not in said
    (place / "out.csv").unlink()
    (place / "newer.db").unlink(missing_ok=True)
    assert release(*options, "newer.db") == 2  # its side file is still there
    assert "out.csv.meta.json" in capsys.readouterr().err
    assert release(*options, "s.db", "--force") == 2
    assert "--force" in capsys.readouterr().err


def test_standard_output_is_never_there_already(place, capfd):
    for _ in range(2):
        assert release("--model", "m", "--out", "-", "--format", "csv") == 0
        assert capfd.readouterr().out.startswith("user,value,epsilon")


def test_from_python_too(place):
    setting = Policy(epsilon=1.0).on(MarkovModel.load("m"))
    release_file("raw.csv", setting, "out.csv")
    with pytest.raises(InputError, match="second spend"):
        release_file("raw.csv", setting, "out.csv")
    release_file("raw.csv", setting, "out.csv", force=True)
