"""What README and docs say is run: code blocks, consoles, commands, links, and the command reference."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from seqveil.interfaces.cli import main

ROOT = Path(__file__).parent.parent
TOP = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*TOP, *DOCS]
CONSOLES = [page for page in PAGES if "```console" in page.read_text(encoding="utf-8")]  # all such blocks are run
sys.path.insert(0, str(ROOT / "scripts"))
import cli_reference  # noqa: E402


def assert_shown(want, got):
    """`got` is what the page shows, where `...` stands for anything and spaces and line ends for each other."""
    pieces = [re.escape(" ".join(piece.split())) for piece in want.split("...")]
    same = re.fullmatch(".*".join(pieces), " ".join(got.split()), re.DOTALL)
    assert same, f"the page shows\n{want}\nbut it is\n{got}"


def test_a_page_that_shows_something_else_is_noticed():
    assert_shown("a ...\n c 1...\n", "a b\n\n c   1.52\n")
    for want, got in (("a ... c", "a b"), ("a", "a b"), ("... b", "a b c"), ("1...", "21"), ("", "warning: x")):
        with pytest.raises(AssertionError, match="but it is"):
            assert_shown(want, got)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run_and_print_what_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", page.read_text(encoding="utf-8"), re.DOTALL)
    for block, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, str(page), "exec"), names)
        if shown:
            assert_shown(shown, printed.getvalue())
    if page.name == "README.md":
        assert names["session"].leakage <= 3.0
        assert names["distributions"].shape == (3, 3)


def consoles(page):
    """Every `$ command` of a page's console blocks, with the lines shown below it."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield command, shown


def run(command):
    """A seqveil command in this process, for quickness; any other in a shell that finds this environment's programs."""
    words = shlex.split(command)
    if words[0] == "seqveil" and not set(words) & {"|", ">", "&&"}:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return main(words[1:]), said.getvalue()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, shell=True, env={**os.environ, "PATH": path}, **both)
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", CONSOLES, ids=lambda page: page.name)
def test_consoles_show_what_the_commands_print(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shown = list(consoles(page))
    assert len(shown) > 4
    for command, want in shown:
        code, got = run(command)
        assert code == 0, f"{command}\n{got}"
        assert_shown(want, got)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link, _, anchor in re.findall(r"\]\(([^)#:]*)(#([\w-]+))?\)", page.read_text(encoding="utf-8")):
        target = page.parent / link if link else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), f"{link}#{anchor}"


def anchors(page):
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.slow
def test_the_command_reference_is_current():
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == cli_reference.reference()


def test_readme_and_docs_show_every_command_benchmark_and_mechanism():
    from benchmarks.__main__ import NAMES
    from seqveil import mechanisms

    readme, figures, table = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/figures.md", "docs/mechanisms.md")
    )
    assert "make demo" in readme
    assert "make test" in readme
    for name in NAMES:
        assert f"`{name}`" in figures
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(mechanisms.names())
    for name in ("inspect", "fit", "plan", "release", "audit", "attack", "decode", "mechanisms"):
        assert f"seqveil {name}" in readme


def test_every_page_is_in_the_list_of_pages_and_the_list_in_the_readme():
    index = ROOT / "docs" / "index.md"
    assert "(docs/index.md)" in PAGES[0].read_text(encoding="utf-8")
    listed = [index.parent / link for link in re.findall(r"\]\(([^)#:]+\.md)\)", index.read_text(encoding="utf-8"))]
    assert {page.resolve() for page in listed} >= {page for page in PAGES if page != index}


def test_the_pictures_of_the_docs_are_there_and_named_in_words():
    for page in PAGES:
        for words, picture in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text(encoding="utf-8")):
            assert len(words.split()) > 3, picture
            assert (page.parent / picture).read_bytes()[:4] == b"\x89PNG", picture
