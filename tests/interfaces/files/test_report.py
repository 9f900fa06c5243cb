"""`seqveil audit --html`: one page, escaped, self-contained, without a raw value."""

import contextlib
import json
import re
import shutil

import pytest

import seqveil as sv
from seqveil.interfaces.cli import main

NAMES = ["homepage", "newsroom", "<b>clinic&"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a release within ε and one that keeps a secret."""
    tmp_path = tmp_path_factory.mktemp("made")
    model = sv.MarkovModel([0.5, 0.4, 0.1], [[0.7, 0.25, 0.05], [0.3, 0.6, 0.1], [0.4, 0.4, 0.2]], alphabet=NAMES)
    model.save(tmp_path / "m.model")
    rows = [
        f"person-{user},{k},{NAMES[code]}"
        for user, codes in enumerate(model.sample(6, 60, seed=2))
        for k, code in enumerate(codes)
    ]
    (tmp_path / "raw.csv").write_text("user,seq,value\n" + "\n".join(rows) + "\n")
    with contextlib.chdir(tmp_path):
        assert main(["release", "raw.csv", "-m", "m.model", "-e", "1", "-o", "plain.csv"]) == 0
        secret = ["--secret", "ever:<b>clinic&", "--secret-epsilon", "0.5"]
        assert main(["release", "raw.csv", "-m", "m.model", *secret, "-o", "kept.csv"]) == 0
    return tmp_path


@pytest.fixture
def released(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_page_has_all_parts_and_no_raw_value(released, capsys):
    assert main(["audit", "plain.csv", "--model", "m.model", "--html", "r.html"]) == 0
    page = (released / "r.html").read_text()
    for part in ("What was promised", "held-out check", "an audit found", "Settings",
                 "Fingerprints", "is trusted with it"):  # fmt: skip
        assert part in page
    side = json.loads((released / "plain.csv.meta.json").read_text())
    assert side["digest"] in page
    assert side["model"] in page
    assert "kept</th><td>every release within its ε" in page
    for raw in ("homepage", "newsroom", "clinic", "person-"):
        assert raw not in page
    assert not re.search(r"<script|src=|href=|@import|url\(", page)
    assert "model</th><td>the releases fit it" in page
    assert re.search(r"^grade     (amber|red): ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
def test_a_guarded_release_is_shown_escaped(released):
    side = released / "kept.csv.meta.json"
    found = json.loads(side.read_text())
    side.write_text(json.dumps(found | {"guarantee": "<script>alert(1)</script>", "seqveil": "<i>"}))
    assert main(["audit", "kept.csv", "-m", "m.model", "--html", "r.html", "--json"]) == 0
    page = (released / "r.html").read_text()
    for part in ("ever:&lt;b&gt;clinic&amp;", "an attack (`seqveil attack`", 'class="grade unchecked"',
                 "nothing is promised about the whole sequence",
                 "kept</th><td>every declared secret within its ε under the model, in every whole window"):  # fmt: skip
        assert part in page
    assert not any(tag in page for tag in ("<script", "<i>", "<b>"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--html", "plain.csv"], "is read and written at once"),
        (["--html", "plain.csv.meta.json"], "is read and written at once"),
        (["--html", "nowhere/r.html"], "its folder does not exist"),
    ],
)
def test_bad_input_gets_one_line(released, capsys, given, said):
    before = (released / "plain.csv").read_bytes()
    capsys.readouterr()
    assert main(["audit", "plain.csv", "-m", "m.model", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert (released / "plain.csv").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", [{"setting": 3}, {"secrets": 3}, {"words": 3, "grade": []}, {"alphabet": None}, {"held_out_check": 1}]
)
def test_a_damaged_side_file_is_no_internal_error(released, capsys, broken):
    side = released / "plain.csv.meta.json"
    side.write_text(json.dumps(json.loads(side.read_text()) | broken))
    assert main(["audit", "plain.csv", "-m", "m.model", "--html", "r.html"]) in (0, 2)
    assert "internal" not in capsys.readouterr().err
