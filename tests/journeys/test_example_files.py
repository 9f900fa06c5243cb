"""The examples that write files: two of generated people each, and a split of a file by person."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import clicks
import split
import streams


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def halves():
    return [Path(name).read_text(encoding="utf-8").splitlines() for name in ("past.csv", "today.csv")]


def test_a_split_keeps_people_whole_and_every_row_in_its_order():
    rows = [f'"P;{k % 20}";{k};a' for k in range(100)]
    Path("mine.csv").write_text("\ufeffperson;time;value\n" + "\n".join(rows) + "\n\n", encoding="utf-8")
    split.split(Path("mine.csv"), "person")
    (head, *past), (also, *today) = halves()
    assert head == also == "person;time;value"
    assert sorted([*past, *today], key=rows.index) == rows
    assert not {row.split('"')[1] for row in past} & {row.split('"')[1] for row in today}
    assert all(part == sorted(part, key=rows.index) and part for part in (past, today))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not there, or is none"),
        (b"", "is not there, or is none"),
        (b"\xff\xfe\x00\n", "is not there, or is none"),
        (b"user\nann\n", "is not there, or is none"),
        (b"who,value\nann,1\n", "expected a column 'user'"),
        (b"user,value\nann,1\nbob\n", "row 2 has 1"),
    ],
)
def test_a_file_that_cannot_be_split_gets_one_line_and_nothing_is_written(content, said):
    if content is not None:
        Path("mine.csv").write_bytes(content)
    with pytest.raises(SystemExit, match=said):
        split.split(Path("mine.csv"))
    assert not Path("past.csv").exists()


def test_nothing_is_written_over():
    clicks.write(Path("past.csv"), 3, seed=1)
    before = Path("past.csv").read_bytes()
    for again in (
        lambda: clicks.write(Path("past.csv"), 4, seed=1),
        lambda: streams.write("home"),
        lambda: split.split(Path("past.csv")),
    ):
        with pytest.raises(SystemExit, match="is there already"):
            again()
    assert Path("past.csv").read_bytes() == before
    assert not Path("today.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", streams.KINDS)
def test_generated_files_have_whole_rows_and_nobody_in_both(kind):
    streams.write(kind)
    (head, *past), (also, *today) = halves()
    assert head == also
    assert {row.count(",") for row in [*past, *today]} == {head.count(",")}
    assert not {row.split(",")[0] for row in past} & {row.split(",")[0] for row in today}
