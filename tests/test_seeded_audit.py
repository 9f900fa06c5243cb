"""A release whose coins were seeded is not private, and no command says that its promise was kept."""

import json

import pytest

from seqveil.interfaces.cli import main
from seqveil.interfaces.studio.ask import Ask
from seqveil.interfaces.studio.picture import picture
from seqveil.interfaces.studio.sources import builtin

KINDS = {
    "plain": ["--model", "m"],
    "batched": ["--model", "m", "--batch", "3"],
    "with a state file": ["--model", "m", "--state", "s.db"],
}


def audited(kind, capsys, *more):
    capsys.readouterr()
    code = main(["audit", "out.csv", "--model", "m", *more])
    return code, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_seeded_release_is_never_kept(place, capsys, kind):
    assert main(["release", "raw.csv", *KINDS[kind], "--epsilon", "1", "--seed", "1", "--out", "out.csv"]) == 0
    code, said = audited(kind, capsys)
    assert code == 1
    assert "kept" not in said
    assert [line for line in said.splitlines() if "knows the seed can undo" in line]
    code, text = audited(kind, capsys, "--json")
    found = json.loads(text)
    assert code == 1
    assert found["passed"] is False
    assert found["checks"]["unseeded"] is False
    assert found["checks"]["each_release"] is True  # the figures stand, for who does not know the seed


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_release_without_a_seed_is_kept(place, capsys, kind):
    assert main(["release", "raw.csv", *KINDS[kind], "--epsilon", "1", "--out", "out.csv"]) == 0
    code, said = audited(kind, capsys)
    assert code == 0
    assert "seed can undo" not in said
    assert said.count("kept") >= 3
    assert json.loads(audited(kind, capsys, "--json")[1])["checks"]["unseeded"] is True


@pytest.mark.slow
def test_without_a_side_file_nothing_is_known_of_a_seed(place, capsys):
    assert main(["release", "raw.csv", "--model", "m", "--epsilon", "1", "--seed", "1", "--out", "out.csv"]) == 0
    (place / "out.csv.meta.json").unlink()
    code, text = audited("plain", capsys, "--epsilon", "1", "--json")
    assert (code, json.loads(text)["checks"]["unseeded"]) == (0, None)


@pytest.mark.slow
def test_what_a_seed_began_stays_seeded(place, capsys):
    """Rows that were seeded do not become private because later rows of the same state file are not."""
    rows = (place / "raw.csv").read_text().splitlines(keepends=True)
    options = ["--model", "m", "--epsilon", "1", "--state", "s.db", "--out", "out.csv"]
    (place / "raw.csv").write_text("".join(rows[:101]))
    assert main(["release", "raw.csv", *options, "--seed", "1"]) == 0
    (place / "raw.csv").write_text("".join(rows))
    capsys.readouterr()
    assert main(["release", "raw.csv", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["private"] is False
    assert audited("plain", capsys)[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("source", ["clicks", "gaze"])
def test_what_the_page_hands_out_carries_no_seed(source):
    """The page's own picture is seeded and says so; commands and script are for a private release."""
    shown = picture(builtin(source), Ask.of({"source": source, "events": 20, "epsilon": 1.0, "seed": 7}))
    assert any("seeded" in note and "private" in note for note in shown["notes"])
    assert not any("seed" in text for text in shown["files"].values())
    *run, marked, session, _, _ = shown["snippets"]["python"].splitlines()
    assert not any("seed=7" in line for line in [*run, session])
    assert marked.startswith("# not private")
    assert "seed=7" in marked
